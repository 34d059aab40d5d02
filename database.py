"""SQLite and MySQL: how each is reached, what is tried again, what an outage is.

Peewee opens a connection for each thread, at its first statement. The connection stays
open between requests. ``db.atomic()`` is the transaction.
"""

import logging
import random
import sqlite3
import time
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from threading import RLock

import peewee
from playhouse.shortcuts import ReconnectMixin
from pymysql.constants.CLIENT import FOUND_ROWS

LOCK_SECONDS = 4  # how long a statement waits for a lock or is tried again
OUTAGES = (  # the database is away, full, read-only, locked, damaged or incomplete
    peewee.DatabaseError,
    peewee.InterfaceError,
    sqlite3.DatabaseError,  # Peewee does not translate an error while rows are fetched
)
# These are DatabaseErrors, too, but defects of this program.
DEFECTS = (peewee.IntegrityError, peewee.DataError)
CONFLICTS = {  # after which the same work may succeed
    "database is locked",  # another connection to SQLite writes
    1020,  # a row has changed since it was read
    1180,  # a COMMIT that failed, such as by a conflict in a group of MySQL servers
    1213,  # a deadlock, or a conflict in a Galera cluster
    3101,  # a conflict in a group of MySQL servers
}
# These settings change an answer, so the server's own must not count. wait_timeout: the
# server closes a connection that was idle, before a firewall forgets it.
SESSION_SETTINGS = f"""SET SESSION_SETTINGS
    autocommit = 1,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS},
    lock_wait_timeout = {LOCK_SECONDS},
    wait_timeout = 60"""

logger = logging.getLogger("profiles")
logging.getLogger("peewee").setLevel(logging.INFO)  # DEBUG would log all values

db = peewee.DatabaseProxy()  # the database of the process
retry_lock = RLock()  # re-entrant, since repeated functions call each other


def retry_on_conflict(function):
    """Decorate a function that is called again, for 4 seconds, after a conflict.

    Within a transaction of ``db`` it raises the error: the function that began the
    transaction may be called again. Only one thread of a process tries again at a time,
    since several would slow down the thread that they wait for.
    """

    @wraps(function)
    def wrapper(*args, **kwargs):
        deadline = time.monotonic() + LOCK_SECONDS
        lock = nullcontext()  # the first try needs none
        while True:
            with lock:
                try:
                    return function(*args, **kwargs)
                except peewee.DatabaseError as error:
                    is_conflict = CONFLICTS.intersection(error.args)
                    deadline_passed = time.monotonic() > deadline
                    if db.in_transaction() or deadline_passed or not is_conflict:
                        raise
                time.sleep(random.uniform(0.5, 1) * db.retry_seconds)
            lock = retry_lock

    return wrapper


class SQLite(peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk.

    execute_sql() is repeated while another connection writes. SQLite's own wait sleeps
    for up to 100 ms: with it, the slowest hundredth of updates took 20 to 60 times as
    long as the median. With retry_on_conflict() they take 3 times as long.
    """

    retry_seconds = 0.0001
    index_hint = ""  # SQLite itself chooses the right index
    execute_once = peewee.SqliteDatabase.execute_sql  # for insert_once() in rows.py
    execute_sql = retry_on_conflict(execute_once)

    def __init__(self, url):
        super().__init__(
            url.name,
            pragmas={
                "journal_mode": "wal",
                "synchronous": "FULL",
                "foreign_keys": 1,
            },
            timeout=0,  # SQLite itself does not wait
            field_types={"ASCII": "TEXT"},
        )

    def _connect(self):
        with suppress(OSError):  # opening it raises the better error
            Path(self.database).touch(0o600)  # a new file belongs to its owner alone
        return super()._connect()

    def begin(self, lock_type="IMMEDIATE"):  # waits now, not at the first write
        self.execute_sql(f"BEGIN {lock_type}")


class MySQL(ReconnectMixin, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL.

    ReconnectMixin sends a statement again whose connection was lost, unless it is in a
    transaction. An insert is still stored once: the second one fails, since its
    identifier exists.
    """

    execute_once = ReconnectMixin.execute_sql  # for insert_once() in rows.py
    retry_seconds = 0.01
    # If it may choose, MariaDB 10.11 reads "appid = ? AND id < ?" by the application
    # alone and skips the rows before the cursor: 107 ms in the middle of 200,000 rows
    # instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    # Each text is a part of the error's text, in any case of letters. Error 2013 that
    # ends in "(timed out)" is not here: the statement may still run.
    reconnect_errors = (
        (peewee.OperationalError, "(2006,"),
        (peewee.OperationalError, "(4031,"),
        (peewee.OperationalError, "during query')"),  # 2013
        (peewee.OperationalError, "during query ([errno"),  # 2013
        (peewee.InterfaceError, "(0, '')"),  # of a connection that is closed
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
    """Use the database at a DatabaseURL in the whole process."""
    db.initialize(ENGINES[url.engine](url))


def run_sql(sql, *values):
    """Run SQL, with ``?`` for each value; return a cursor."""
    return db.execute_sql(sql.replace("?", db.param), values)


def describe_error(error):
    """Return why the database failed, without a value that SQLite may quote."""
    return str(error).partition(" with text ")[0]


def log_outage(error):
    logger.error("database unavailable: %s", describe_error(error))
