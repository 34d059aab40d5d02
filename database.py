"""SQLite and MySQL: how each is reached, what is tried again, what an outage is.

Peewee connects by itself, each thread for itself; ``db.atomic()`` is the transaction.
"""

import logging
import random
import re
import sqlite3
import time
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from threading import RLock

import peewee
from playhouse.shortcuts import ReconnectMixin
from pymysql.constants.CLIENT import FOUND_ROWS

LOCK_SECONDS = 4  # how long a lock is waited for, and a conflict tried again
# The last is raised while rows are fetched, where Peewee does not translate it.
OUTAGES = (peewee.DatabaseError, peewee.InterfaceError, sqlite3.DatabaseError)
DEFECTS = (peewee.IntegrityError, peewee.DataError)  # DatabaseErrors that are our fault
CONFLICTS = (
    "^database is locked"  # another connection to SQLite writes
    "|^.1020,"  # a row has changed since it was read
    "|^.1205,"  # a long wait for a lock
    "|^.1213,"  # a deadlock, or a conflict in a Galera cluster
    "|^.3101,"  # a conflict in a group of MySQL servers
    "|Got error 149"  # the same
)
# What changes an answer. The server closes an idle connection before a network does.
SESSION = f"""SET SESSION
    autocommit = 1,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS},
    lock_wait_timeout = {LOCK_SECONDS},
    wait_timeout = 60"""

logger = logging.getLogger("profiles")
logging.getLogger("peewee").setLevel(logging.INFO)  # below it, the values of statements

db = peewee.DatabaseProxy()  # the database of the process
turn = RLock()


def repeated(work):
    """Decorate work that is done again, for 4 seconds, after a conflict.

    Within a transaction it is not: whoever began that does all of it again. One thread
    of a process tries again at a time, since more would wait for Python's own lock.
    """

    @wraps(work)
    def repeat(*args, **options):
        deadline = time.monotonic() + LOCK_SECONDS
        own_turn = nullcontext()
        while True:
            with own_turn:
                try:
                    return work(*args, **options)
                except peewee.DatabaseError as error:
                    is_late = db.in_transaction() or time.monotonic() > deadline
                    if is_late or not re.search(CONFLICTS, str(error)):
                        raise
                time.sleep(random.uniform(0.00005, 0.0001))
            own_turn = turn

    return repeat


class SQLite(peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk.

    While another connection writes, execute_sql() repeats a statement. SQLite's own
    wait grows to 100 ms: the slowest updates took 20 to 60 times as long as the median,
    and take 3 times as long with this one.
    """

    index_hint = ""  # SQLite itself chooses the right index
    execute_once = peewee.SqliteDatabase.execute_sql
    execute_sql = repeated(execute_once)

    def __init__(self, url):
        super().__init__(
            url.name,
            pragmas={
                "journal_mode": "wal",
                "synchronous": "FULL",
                "foreign_keys": 1,
            },
            timeout=0,  # of SQLite's own wait
            field_types={"ASCII": "TEXT"},
        )

    def _connect(self):
        with suppress(OSError):  # then it cannot be opened either
            Path(self.database).touch(0o600)  # for its owner alone
        return super()._connect()

    def begin(self, lock_type="IMMEDIATE"):
        self.execute_sql(f"BEGIN {lock_type}")


class MySQL(ReconnectMixin, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL.

    A statement outside a transaction is sent again after a lost connection. An insert
    is still stored once, since its identifier was made before.
    """

    execute_once = ReconnectMixin.execute_sql
    # If it may choose, MariaDB 10.11 reads "appid = ? AND id < ?" by the application
    # alone and skips the rows before the cursor: 107 ms in the middle of 200,000 rows
    # instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    reconnect_errors = (
        (peewee.OperationalError, "(2006,"),
        (peewee.OperationalError, "(4031,"),
        (peewee.OperationalError, "during query')"),  # 2013, but not "(timed out)"
        (peewee.OperationalError, "during query ([errno"),
        (peewee.InterfaceError, "(0, '')"),
    )

    def __init__(self, url):
        super().__init__(
            url.name,
            connect_timeout=3,
            read_timeout=10,
            write_timeout=10,
            init_command=SESSION,
            field_types={
                "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
                "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
            },
            client_flag=FOUND_ROWS,  # an UPDATE counts the rows that it matches
            **url.server,
        )


ENGINES = {"sqlite": SQLite, "mysql": MySQL}


def use_database(url):
    """Use the database at a DatabaseURL in the whole process."""
    db.initialize(ENGINES[url.engine](url))


def run_sql(sql, *values):
    """Run SQL, with ``?`` for each value; return a cursor."""
    return db.execute_sql(sql.replace("?", db.param), values)


def reason_of(error):
    """Return why the database failed, without a text that SQLite may quote."""
    return str(error).partition(" with text ")[0]


def log_outage(error):
    logger.error("database unavailable: %s", reason_of(error))
