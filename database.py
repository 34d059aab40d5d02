"""Connections, locking and retries on SQLite and MySQL.

Peewee opens a connection for each thread, at its first statement. The connection stays
open between requests. ``db.atomic()`` is the transaction. What is tried again:

- SQLite is locked: a statement outside a transaction, for 4 seconds.
- The connection to MySQL was lost: a statement outside a transaction, once.
- MySQL rolled a transaction back because of a conflict: all of it, for 4 seconds.

Any other outage is raised, and the response to a request is 503.
"""

import random
import time
from contextlib import suppress
from functools import wraps
from pathlib import Path
from threading import RLock, local

import peewee
from playhouse.shortcuts import ReconnectMixin

from outages import OUTAGES, is_conflict

LOCK_SECONDS = 4
STATEMENT_SECONDS = 9  # when a MySQL server ends a statement: before CLIENT_SECONDS
CLIENT_SECONDS = 10  # how long a thread waits for a MySQL server
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

db = peewee.DatabaseProxy()  # the database of the process


class Engine(peewee.Database):
    """A database whose first connection creates the missing tables."""

    create_missing_tables = None

    def connect(self, reuse_if_open=False):
        opened = super().connect(reuse_if_open)
        if create_tables := self.create_missing_tables:
            try:
                create_tables(self)
            except Exception:
                self.close()  # so that the next connection tries again
                raise
            self.create_missing_tables = None
        return opened


class SQLite(Engine, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    index_hint = ""  # SQLite itself chooses the right index
    ignoring_case = "COLLATE NOCASE"  # of ASCII letters
    row_lock = ""  # a transaction locks the whole database
    unlimited = {}  # connect_params of commands, without time limits
    snapshot = "DEFERRED"  # for db.atomic(): reads as of one moment, without a lock
    add_email_index = """CREATE INDEX profile_appid_{0}
        ON profile (appid, {0} COLLATE NOCASE) WHERE {0} IS NOT NULL"""
    # A millisecond after updatedAt.
    next_timestamp = "strftime('%Y-%m-%dT%H:%M:%fZ', updatedAt, '+0.001 seconds')"

    def __init__(self, url):
        super().__init__(
            url.name,
            pragmas={"journal_mode": "wal", "synchronous": "FULL", "foreign_keys": 1},
            timeout=0,  # execute_sql() waits instead
            field_types={"ASCII": "TEXT"},
        )
        self.write_lock = RLock()  # re-entrant: a first write may create the tables

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
        The pause grows, so that a lock of seconds costs little CPU time.
        """
        pause = 0.000_05
        while True:
            try:
                return super().execute_sql(sql, params)
            except peewee.OperationalError as error:
                if str(error) != "database is locked" or time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 1.02, 0.005)


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
    ignoring_case = ""  # the column's collation does, and also ignores accents
    row_lock = "FOR UPDATE"  # also reads the row as it is committed
    unlimited = {"read_timeout": None, "init_command": SESSION_SETTINGS}
    snapshot = "REPEATABLE READ"  # for db.atomic(): reads as of one moment
    # Others can write meanwhile. If that is not possible, this fails and says so.
    add_email_index = """ALTER TABLE profile
        ADD INDEX profile_appid_{0} (appid, {0}(64)), ALGORITHM=INPLACE, LOCK=NONE"""
    # A millisecond after updatedAt: 2026-11-21 09:30:00.124000, for example, becomes
    # 2026-11-21T09:30:00.124Z.
    next_timestamp = """CONCAT(REPLACE(LEFT(
        TIMESTAMP(LEFT(updatedAt, 23)) + INTERVAL 1000 MICROSECOND,
        23), ' ', 'T'), 'Z')"""
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

    def connect(self, reuse_if_open=False):
        """Connect, outside the lock under which Peewee would make all threads wait.

        Otherwise, when a server hangs, each thread would wait for those before it. The
        connect() of another database object does not hold the lock of this one.
        """
        if self.is_closed():
            opener = peewee.MySQLDatabase(self.database, **self.connect_params)
            self.opened.connection = opener.connection()
        return super().connect(reuse_if_open)

    def _connect(self):
        return self.opened.connection


ENGINES = {"sqlite": SQLite, "mysql": MySQL}


def init_database(url, create_tables):
    """Set the database of the process to the one at a DatabaseURL.

    The first connection calls ``create_tables`` with the database.
    """
    database = ENGINES[url.engine](url)
    database.create_missing_tables = create_tables
    db.initialize(database)


def retry_on_conflict(function):
    """Decorate a function that writes or locks: call it again after a conflict.

    It is called again for up to LOCK_SECONDS. Inside a transaction the error is raised,
    because all of the transaction must run again, so decorate what begins it:
    transaction() does both. SQLite has no conflicts.
    """

    @wraps(function)
    def wrapper(*args, **kwargs):
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return function(*args, **kwargs)
            except OUTAGES as error:
                deadline_passed = time.monotonic() > deadline
                if db.in_transaction() or deadline_passed or not is_conflict(error):
                    raise
            time.sleep(random.uniform(0.005, 0.01))

    return wrapper


def transaction(function):
    """Decorate a function: run it in a transaction, again after a conflict."""
    return retry_on_conflict(db.atomic()(function))


def run_sql(sql, *values):
    """Run SQL on ``db``, with ``?`` for each value; return a cursor."""
    return db.execute_sql(sql.replace("?", db.param), values)


def select_batches(query, size):
    """Yield the rows of a query as the driver's tuples, as lists of up to ``size``.

    They are in the order of the primary key, which the query must select first. Each
    list is read by its own statement, so memory use does not grow with their number.
    """
    key = query.model._meta.primary_key
    batch = query.order_by(key).limit(size)
    rows = db.execute(batch).fetchall()
    while rows:
        yield rows
        rows = db.execute(batch.where(key > rows[-1][0])).fetchall()
