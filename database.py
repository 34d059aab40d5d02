"""Connections, locking and retries on SQLite and MySQL.

Peewee opens a connection for each thread, at its first statement. The connection stays
open between requests. ``db.atomic()`` is the transaction. What is tried again:

- SQLite is locked: a statement outside a transaction, for 4 seconds.
- The connection to MySQL was lost: a statement outside a transaction, once.
- MySQL rolled a transaction back because of a conflict: all of it, for 4 seconds.

Any other outage is raised, and a request is answered with 503.
"""

import logging
import random
import re
import sqlite3
import time
from contextlib import suppress
from functools import wraps
from pathlib import Path
from threading import RLock

import peewee
from playhouse.shortcuts import ReconnectMixin
from pymysql.constants.CLIENT import FOUND_ROWS

LOCK_SECONDS = 4
OUTAGES = (  # the database is unreachable, full, read-only, locked or damaged
    peewee.DatabaseError,
    peewee.InterfaceError,
    sqlite3.DatabaseError,  # Peewee does not translate an error while rows are fetched
)
# These are DatabaseErrors, too, but defects of this program: see is_outage().
DEFECTS = (peewee.IntegrityError, peewee.DataError)
CONFLICTS = {  # MySQL's error numbers
    1020,  # a row has changed since it was read
    1180,  # a COMMIT failed, for example because of a Group Replication conflict
    1213,  # a deadlock, or a Galera certification failure
    3101,  # a Group Replication conflict
}
# Pin the session settings that our results depend on. wait_timeout: the server closes
# a connection after an idle minute, before a firewall silently drops it.
SESSION_SETTINGS = f"""SET SESSION
    autocommit = 1,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS},
    lock_wait_timeout = {LOCK_SECONDS},
    wait_timeout = 60"""

logging.getLogger("peewee").setLevel(logging.INFO)  # DEBUG would log all values

db = peewee.DatabaseProxy()  # the database of the process


class Rollback:
    """Raise a transaction's own error even if its rollback fails.

    If SQLite is full or the connection is lost, there is nothing left to roll back.
    """

    def rollback(self):
        with suppress(*OUTAGES):
            super().rollback()


class SQLite(Rollback, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    index_hint = ""  # SQLite itself chooses the right index

    def __init__(self, url):
        super().__init__(
            url.name,
            pragmas={"journal_mode": "wal", "synchronous": "FULL", "foreign_keys": 1},
            timeout=0,  # execute_sql() waits instead
            field_types={"ASCII": "TEXT"},
        )
        self.write_lock = RLock()  # re-entrant, because a query hook may write, too

    def _connect(self):
        with suppress(OSError):  # opening the file raises the better error
            Path(self.database).touch(0o600)  # create it private to the owner
        return super()._connect()

    def begin(self, lock_type="IMMEDIATE"):  # waits now, not at the first write
        self.execute_sql(f"BEGIN {lock_type}")

    def execute_sql(self, sql, params=None):
        """Execute SQL, retrying while another connection holds the lock.

        Only one thread of a process retries a write at a time, because retries slow
        down the writer. A thread in a transaction never waits for ``write_lock``: it
        got SQLite's lock at BEGIN, and Peewee commits without execute_sql().
        """
        if self.in_transaction():
            return super().execute_sql(sql, params)
        deadline = time.monotonic() + LOCK_SECONDS
        if sql.startswith("SELECT"):
            return self.retry_while_locked(sql, params, deadline)
        with self.write_lock:
            return self.retry_while_locked(sql, params, deadline)

    def retry_while_locked(self, sql, params, deadline):
        """Execute SQL until SQLite is not locked, or until the deadline.

        SQLite's own wait sleeps for up to 100 ms. With it, the slowest hundredth of
        updates took 20 to 60 times as long as the median; with this it takes 3 times.
        """
        while True:
            try:
                return super().execute_sql(sql, params)
            except peewee.OperationalError as error:
                deadline_passed = time.monotonic() > deadline
                if deadline_passed or str(error) != "database is locked":
                    raise
            time.sleep(random.uniform(0.00005, 0.0001))


class MySQL(Rollback, ReconnectMixin, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL.

    ReconnectMixin resends a statement if its connection was lost, unless a transaction
    is open. An INSERT is still stored only once: the resent one fails, because its
    identifier exists.
    """

    # Without the hint, MariaDB 10.11 reads "appid = ? AND id < ?" by the application
    # alone and skips the rows before the cursor: 107 ms in the middle of 200,000 rows
    # instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    # Lower-case fragments of the error message, each below a sample. "(2013, 'Lost
    # connection to MySQL server during query (timed out)')" must not match: the
    # statement may still run.
    reconnect_errors = (
        # (2006, "MySQL server has gone away (BrokenPipeError(32, 'Broken pipe'))")
        (peewee.OperationalError, "(2006,"),
        # (4031, 'The client was disconnected by the server because of inactivity. …')
        (peewee.OperationalError, "(4031,"),
        # (2013, 'Lost connection to MySQL server during query')
        (peewee.OperationalError, "during query')"),
        # (2013, 'Lost connection to MySQL server during query ([Errno 104] …)')
        (peewee.OperationalError, "during query ([errno"),
        # (0, ''), from a connection that is closed
        (peewee.InterfaceError, "(0, '')"),
    )

    def __init__(self, url):
        super().__init__(
            url.name,
            connect_timeout=3,
            read_timeout=10,
            write_timeout=10,
            init_command=SESSION_SETTINGS,
            field_types={
                "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
                "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
            },
            client_flag=FOUND_ROWS,  # an UPDATE counts the rows that it matches
            **url.server,
        )


ENGINES = {"sqlite": SQLite, "mysql": MySQL}


def init_database(url):
    """Set the database of the process to the one at a DatabaseURL."""
    db.initialize(ENGINES[url.engine](url))


def retry_on_conflict(function):
    """Decorate a function that writes to ``db``: after a conflict, call it again.

    Inside a transaction the error is raised, because all of the transaction must run
    again. SQLite has no conflicts.
    """

    @wraps(function)
    def wrapper(*args, **kwargs):
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return function(*args, **kwargs)
            except peewee.DatabaseError as error:
                deadline_passed = time.monotonic() > deadline
                is_conflict = CONFLICTS.intersection(error.args)
                if db.in_transaction() or deadline_passed or not is_conflict:
                    raise
            time.sleep(random.uniform(0.005, 0.01))

    return wrapper


def run_sql(sql, *values):
    """Run SQL on ``db``, with ``?`` for each value; return a cursor."""
    return db.execute_sql(sql.replace("?", db.param), values)


def is_outage(error):
    """Return whether the database failed, rather than this program."""
    return isinstance(error, OUTAGES) and not isinstance(error, DEFECTS)


# What the text of an error may quote, each below a sample, and what is shown instead.
# Greedy, because a user and a value can contain quotes.
REDACTIONS = (
    # Could not decode to UTF-8 column 'fullName' with text '…'
    (" with text '.*", ""),
    # Access denied for user 'ada'@'10.0.0.1' to database 'shop'
    ("'.*'@'[^']*'", "'***'@'***'"),
    # Host '10.0.0.1' is not allowed to connect to this MySQL server
    ("Host '.*' is", "Host '***' is"),
    # User 'ada' has exceeded the 'max_updates' resource (current value: 10)
    ("User '.*' has exceeded", "User '***' has exceeded"),
    # User ada already has more than 'max_user_connections' active connections
    ("User .* already has", "User *** already has"),
    # Incorrect date value: '…' for column `shop`.`profile`.`dob` at row 1
    # Truncated incorrect DOUBLE value: '…'
    # … the right syntax to use near '…' at line 1
    (r"(: |near )'(.*'(?= for column \S+ at row \d+\Z)|.*)", r"\1'***'"),
)


def describe_error(error):
    """Return why the database failed, without users, clients' hosts and values.

    For a defect this is MySQL's error number or the name of SQLite's error code.
    """
    if is_outage(error):
        *number, text = error.args
        for pattern, shown in REDACTIONS:
            text = re.sub(pattern, shown, text, flags=re.DOTALL)
        return str(Exception(*number, text))
    driver_error = getattr(error, "orig", None)
    number = error.args[0] if len(error.args) > 1 else "unknown"
    return str(getattr(driver_error, "sqlite_errorname", number))


def redact(error):
    """Return a database error with its frames, but described by describe_error().

    Raise it ``from None``, because the error that it replaces would be logged, too. Any
    other error is returned as it is.
    """
    if not isinstance(error, OUTAGES):
        return error
    return type(error)(describe_error(error)).with_traceback(error.__traceback__)


def log_error(logger, error):
    """Log an outage as one line, and any other error with its traceback."""
    if is_outage(error):
        logger.error("database unavailable: %s", describe_error(error))
    else:
        logger.error("internal error", exc_info=redact(error))
