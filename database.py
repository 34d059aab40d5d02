"""Connections, locking and retries on SQLite and MySQL.

Peewee opens a connection for each thread, at its first statement. The connection stays
open between requests. ``db.atomic()`` is the transaction. What is tried again:

- SQLite is locked: a statement outside a transaction, for 4 seconds.
- The connection to MySQL was lost: a statement outside a transaction, once.
- MySQL rolled a transaction back because of a conflict: all of it, for 4 seconds.

Any other outage is raised, and the response to a request is 503.
"""

import logging
import random
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import Lock, RLock, local
from typing import ParamSpec, TypeVar

import peewee
import pymysql
from playhouse.shortcuts import ReconnectMixin

P = ParamSpec("P")  # the parameters of a decorated function
R = TypeVar("R")  # what it returns
LOCK_SECONDS = 4
STATEMENT_SECONDS = 9  # when a MySQL server ends a statement: before CLIENT_SECONDS
CLIENT_SECONDS = 10  # how long a thread waits for a MySQL server
RETRY_SECONDS = 2  # the pause after an attempt to connect to MySQL has timed out
OUTAGES = (  # the database is unreachable, full, read-only, locked or damaged
    peewee.DatabaseError,
    peewee.InterfaceError,
    # Peewee does not translate an error while rows are fetched, nor of executemany().
    sqlite3.DatabaseError,
    pymysql.Error,
)
# These are DatabaseErrors, too, but defects of this program: see is_outage().
DEFECTS = (
    peewee.IntegrityError,
    peewee.DataError,
    sqlite3.IntegrityError,
    sqlite3.DataError,
    pymysql.IntegrityError,
    pymysql.DataError,
)
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
    completion_type = 'NO_CHAIN',
    default_storage_engine = 'InnoDB',
    foreign_key_checks = 1,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS},
    lock_wait_timeout = {LOCK_SECONDS},
    wait_timeout = 60"""
# Only MariaDB reads the first comment, and only MySQL the second, which limits SELECT
# alone. Without this, a slow statement would go on in the server after its 503.
STATEMENT_LIMIT = f"""
    /*M!100101 , max_statement_time = {STATEMENT_SECONDS} */
    /*!50708 , max_execution_time = {STATEMENT_SECONDS * 1_000} */"""

logging.getLogger("peewee").setLevel(logging.INFO)  # DEBUG would log all values


class Proxy(peewee.DatabaseProxy):
    """Passes everything on to the database that init_database() sets."""

    @contextmanager
    def savepoint(self):
        """Begin a nested transaction; if it fails, raise its first error.

        Peewee would raise that of the rollback, which also fails if MySQL has rolled
        back the whole transaction or the connection was lost. This is a method of the
        proxy, because that is what ``db.atomic()`` asks for a savepoint.
        """
        savepoint = super().savepoint()
        savepoint.__enter__()
        try:
            yield savepoint
            savepoint.commit(begin=False)
        except BaseException:
            with suppress(*OUTAGES):
                savepoint.rollback(begin=False)
            raise


db = Proxy()  # the database of the process


class Engine:
    """What both databases do on connecting and on rolling back."""

    create_missing_tables = None  # takes the database; init_database() sets it

    def get_storage_engines(self):
        """Return nothing: only MySQL has storage engines."""
        return {}

    def connect(self, reuse_if_open=False):
        """Connect, and create missing tables if this is the process's first time."""
        opened = super().connect(reuse_if_open)
        if self.create_missing_tables:
            try:
                self.create_missing_tables(self)
            except Exception:
                self.close()  # so that the next connection tries again
                raise
            self.create_missing_tables = None
        return opened

    def rollback(self):
        """Roll back, so that the error before is raised and not one of the rollback.

        A rollback fails if SQLite is full or the connection was lost. Then the database
        has rolled back by itself.
        """
        with suppress(*OUTAGES):
            super().rollback()


class SQLite(Engine, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    index_hint = ""  # SQLite itself chooses the right index
    row_lock = ""  # a transaction locks the whole database
    unlimited = {}  # connect_params for a command, whose statements may take longer
    snapshot = "DEFERRED"  # of db.atomic(): reads one moment, and locks nothing
    # SQLite's own function knows ASCII alone, and Python's does not accept NULL.
    lowered = "unicode_lower(COALESCE({}, ''))"
    add_email_index = """CREATE INDEX profile_appid_{0}
        ON profile (appid, {0} COLLATE NOCASE) WHERE {0} IS NOT NULL"""
    index_collation = "COLLATE NOCASE"
    ordered_join = "CROSS JOIN"  # reads the table on its left first

    def __init__(self, url):
        super().__init__(
            url.name,
            pragmas={"journal_mode": "wal", "synchronous": "FULL", "foreign_keys": 1},
            timeout=0,  # execute_sql() waits instead
            field_types={"ASCII": "TEXT"},
        )
        self.register_function(str.lower, "unicode_lower", 1)
        self.write_lock = RLock()  # re-entrant, because a query hook may write, too

    def _connect(self):
        with suppress(OSError):  # opening the file raises the better error
            Path(self.database).touch(0o600)  # create it private to the owner
        return super()._connect()

    def begin(self, lock_type="IMMEDIATE"):
        """Begin a transaction; wait for other writers now, not at the first write."""
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
                is_locked = str(error) == "database is locked"
                if not is_locked or is_too_old(error) or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.00005, 0.0001))


def is_too_old(error):
    """Return whether an open SELECT of this connection began before another's commit.

    Then waiting does not help. This is a function, because a variable of its caller
    that kept the driver's error would keep the connection open after its close().
    """
    driver_error = getattr(error, "orig", None)
    name = getattr(driver_error, "sqlite_errorname", "")
    return name == "SQLITE_BUSY_SNAPSHOT"


class MySQL(Engine, ReconnectMixin, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL.

    ReconnectMixin resends a statement if its connection was lost, unless a transaction
    is open. An INSERT is still stored only once: the resent one fails, because its
    identifier exists.
    """

    # Without the hint, MariaDB 10.11 reads "appid = ? AND id < ?" by the application
    # alone and skips the rows before the cursor: 107 ms in the middle of 200,000 rows
    # instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    row_lock = "FOR UPDATE"  # also reads the row as it is committed
    unlimited = {"read_timeout": None, "init_command": SESSION_SETTINGS}
    snapshot = "REPEATABLE READ"  # of db.atomic(): reads one moment, and locks nothing
    # The collation decides how letters are lowered. Bytes are compared, because the
    # collation would ignore accents and blanks at the end.
    lowered = "CAST(LOWER({} COLLATE utf8mb4_unicode_520_ci) AS BINARY)"
    # Others can write meanwhile. If that is not possible, this fails and says so.
    add_email_index = """ALTER TABLE profile
        ADD INDEX profile_appid_{0} (appid, {0}(64)), ALGORITHM=INPLACE, LOCK=NONE"""
    index_collation = ""  # the column's own, which ignores case
    ordered_join = "STRAIGHT_JOIN"
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
            read_timeout=CLIENT_SECONDS,
            write_timeout=CLIENT_SECONDS,
            init_command=SESSION_SETTINGS + STATEMENT_LIMIT,
            field_types={
                "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
                "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
            },
            **url.server,
        )
        self.opened = local()  # the connection that connect() opens for _connect()
        self.retry_at = 0  # after a time-out: when to connect again, time.monotonic()
        self.retry_lock = Lock()

    def get_storage_engines(self):
        """Return the storage engine of each table by its name."""
        tables = self.execute_sql("SHOW TABLE STATUS")
        return {name: engine for name, engine, *_ in tables}

    def connect(self, reuse_if_open=False):
        """Connect, outside the lock under which Peewee would make all threads wait."""
        if self.is_closed():
            self.opened.connection = self.open_connection()
        return super().connect(reuse_if_open)

    def _connect(self):
        """Return what connect() has opened. Peewee calls this under its lock."""
        return self.opened.connection

    def open_connection(self):
        """Return a new connection of the driver.

        After a time-out, one thread at a time tries to connect, every 2 seconds, and
        the others soon fail. Otherwise all would wait for a server that hangs.
        """
        # A healthy server accepts a connection within a tenth of a second.
        if self.retry_at and self.retry_lock.acquire(timeout=0.1):
            try:
                # It is 0 again if the server has accepted another thread's connection.
                if self.retry_at and time.monotonic() >= self.retry_at:
                    return self.try_to_connect()
            finally:
                self.retry_lock.release()
        if self.retry_at:
            raise peewee.OperationalError(2003, "The server did not respond")
        return self.try_to_connect()

    def try_to_connect(self):
        """Return a new connection; after a time-out, begin a pause.

        Another database object opens it, because the connect() of this one would hold
        the lock that all its threads share.
        """
        opener = peewee.MySQLDatabase(self.database, **self.connect_params)
        try:
            connection = opener.connection()
        except OUTAGES as error:
            pause_ends = time.monotonic() + RETRY_SECONDS
            self.retry_at = pause_ends if is_timeout(error) else 0
            raise
        self.retry_at = 0
        return connection

    def execute_sql(self, sql, params=None):
        """Execute SQL; after a time-out, let one thread at a time connect."""
        try:
            return super().execute_sql(sql, params)
        except OUTAGES as error:
            if is_timeout(error):
                self.retry_at = max(self.retry_at, time.monotonic())
            raise


def is_timeout(error):
    """Return whether the server did not respond to a connection or a statement."""
    return "timed out" in str(error)


ENGINES = {"sqlite": SQLite, "mysql": MySQL}


def init_database(url, create_tables):
    """Set the database of the process to the one at a DatabaseURL.

    The first connection calls ``create_tables`` with the database.
    """
    database = ENGINES[url.engine](url)
    database.create_missing_tables = retry_on_conflict(create_tables)
    db.initialize(database)


def retry_on_conflict(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of one statement that writes or locks: retry on a conflict.

    Inside a transaction the error is raised, because all of the transaction must run
    again. So each function that begins a transaction must be decorated, too, with
    transaction(). SQLite has no conflicts.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
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


def transaction(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: run it in a transaction, again after a conflict."""
    return retry_on_conflict(db.atomic()(function))


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
    # User ada already has more than 'max_user_connections' active connections
    (r"User ('?).*\1( has exceeded| already has)", r"User \1***\1\2"),
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
        *number, text = error.args or [""]
        for pattern, shown in REDACTIONS:
            text = re.sub(pattern, shown, text, flags=re.DOTALL)
        return str(Exception(*number, text))
    driver_error = getattr(error, "orig", error)
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
