"""SQLite and MySQL. Programs read in ``connection()``, write in ``transaction()``.

- Each thread has a connection of its own, until it calls ``db.close()``. Close before a
  fork.
- What runs within a transaction joins it. Its errors are neither translated nor
  repeated there: the block that began the transaction raises them, and rolls back.
- The service's own writes are ``@repeated``. They are made within ``db.writing()``, a
  transaction, or ``db.one_statement()``, which MySQL needs no transaction for.
"""

import logging
import random
import sqlite3
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from threading import Lock

import peewee
from pymysql.constants.CLIENT import FOUND_ROWS

from errors import ServiceError

LOCK_SECONDS = 4  # how long a write waits for a lock, and is repeated after conflicts
IDLE_SECONDS = 60  # some networks forget a connection that is idle for 4 minutes
OUTAGES = ("OperationalError", "InterfaceError", "InternalError", "DatabaseError")
LOST = {0, 1053, 1927, 2006, 2013, 4031}  # a closed connection; 0 is PyMySQL's own
CONFLICTS = {
    1020,  # a row changed since it was read
    1050,  # a table was just made
    1205,  # a long wait for a lock
    1213,  # a deadlock, or a conflict in a Galera cluster
    1684,  # a table is being changed
    3101,  # a conflict in a group of MySQL servers, as is error 149
    "database is locked",  # many processes open a new SQLite file
}
# What the service relies on, whatever the server is set to. The last two lines are for
# MySQL 8 and for MariaDB 10.1, and newer ones.
SESSION = f"""SET SESSION
    autocommit = 1,
    completion_type = 0,
    default_storage_engine = InnoDB,
    sql_big_selects = 1,
    sql_select_limit = 18446744073709551615,
    sql_safe_updates = 0,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS},
    lock_wait_timeout = {LOCK_SECONDS}
    /*!80000 , transaction_isolation = 'REPEATABLE-READ', transaction_read_only = 0 */
    /*M!100100 , tx_isolation = 'REPEATABLE-READ', tx_read_only = 0 */"""

logger = logging.getLogger("profiles")
logging.getLogger("peewee").setLevel(logging.INFO)  # below it, the values of statements


class Engine(peewee.Database):
    """What SQLite and MySQL share. Peewee calls its methods, too."""

    def reconnect(self):
        """Open a new connection of this thread; what fails is an OperationalError."""
        try:
            self.close()
            self.connect()
        except Exception as error:
            raise peewee.OperationalError(*error.args) from error

    def rollback(self):
        """Roll back. If that fails, the database has done it already.

        The error that led here is raised, since it tells more.
        """
        with suppress(peewee.PeeweeException):
            super().rollback()

    def execute_sql(self, sql, params=None):
        """Run SQL.

        Outside a transaction a read is repeated once if its connection was lost, unless
        it took too long. A savepoint's rollback raises nothing, as rollback().
        """
        try:
            return super().execute_sql(sql, params)
        except peewee.PeeweeException as error:
            if sql.startswith("ROLLBACK TO"):
                return
            is_lost = error.args[0] in LOST and "timed out" not in str(error)
            is_read = sql.startswith("SELECT") and not self.in_transaction()
            if not is_lost or not is_read:
                raise
        self.reconnect()
        return super().execute_sql(sql, params)


class SQLite(Engine, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    kind = "sqlite"
    one_moment = "DEFERRED"  # given to atomic(): a transaction that only reads
    index_hint = ""  # SQLite itself chooses the right index

    def __init__(self, url):
        self.file = Path(url.name)
        with suppress(OSError):  # then it cannot be opened either
            self.file.touch(0o600)  # for its owner alone
        self.turn = Lock()
        super().__init__(
            self.file.as_uri() + "?mode=rw",  # so that no connection makes it anew
            # After a large write, the -wal shrinks to 16 MB.
            {"synchronous": "FULL", "journal_size_limit": 2**24, "foreign_keys": 1},
            timeout=LOCK_SECONDS,
            uri=True,
            field_types={"ASCII": "TEXT"},
        )
        self.register_function(lower, "LOWER", 1)

    def is_connection_usable(self):
        """Return whether there is one, to a file that has not been removed."""
        return super().is_connection_usable() and self.file.exists()

    def begin(self, lock_type="IMMEDIATE"):
        """Begin a transaction, called by Peewee, once no other process writes.

        It asks every 50 µs: the slowest hundredth of updates then takes 3 times as long
        as the median. With SQLite's own wait it was 20 to 60 times.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        execute = self.connection().execute
        execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    return execute(f"BEGIN {lock_type}")
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > deadline:
                        raise
                time.sleep(0.00005)
        finally:
            execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1_000}")

    @contextmanager
    def writing(self):
        """Provide a transaction; within one, a savepoint.

        Threads take turns, so that only one of a process asks SQLite: creates are a
        quarter faster.
        """
        takes_turn = not self.in_transaction()
        if takes_turn and not self.turn.acquire(timeout=LOCK_SECONDS):
            raise peewee.OperationalError("database is locked by another thread")
        try:
            with self.atomic():
                yield
        finally:
            if takes_turn:
                self.turn.release()

    one_statement = writing


def lower(text):
    """Return the text in small letters; SQLite's own LOWER knows only ASCII."""
    return text and text.lower()


class MySQL(Engine, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL."""

    kind = "mysql"
    one_moment = "REPEATABLE READ"
    # If it may choose, MariaDB 10.11 reads "appid = ? AND id < ?" by the application
    # alone and skips the rows before the cursor: 107 ms in the middle of 200,000 rows
    # instead of 0.3.
    index_hint = "FORCE INDEX ({})"

    def __init__(self, url):
        super().__init__(
            url.name,
            connect_timeout=3,
            read_timeout=10,  # seconds for a statement, which may still go on
            write_timeout=10,
            init_command=SESSION,
            field_types={
                "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
                "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
            },
            client_flag=FOUND_ROWS,  # an UPDATE counts the rows that it matches
            **url.server,
        )

    def _connect(self):
        connection = super()._connect()
        connection.used = time.monotonic()
        return connection

    def is_connection_usable(self):
        """Return whether there is one, used lately; it counts as used now."""
        if self.is_closed():
            return False
        connection = self.connection()
        used, connection.used = connection.used, time.monotonic()
        return connection.open and connection.used - used < IDLE_SECONDS

    writing = peewee.Database.atomic

    def one_statement(self):
        return nullcontext()  # it is a transaction by itself


ENGINES = {"sqlite": SQLite, "mysql": MySQL}
db = peewee.DatabaseProxy()  # the database of the process


def use(url):
    """Use the database at a DatabaseURL in the whole process."""
    if db.obj:
        db.close()
    db.initialize(ENGINES[url.engine](url))


@contextmanager
def connection():
    """Provide the thread's connection for the block; blocks can be nested.

    Raises ServiceError("database-unavailable") when the database is away, full,
    read-only, locked for too long or lacks a table or a column; its ``__cause__`` says
    which, and so does the log.
    """
    if db.in_transaction():
        yield
        return
    try:
        if not db.is_connection_usable():
            db.reconnect()
        yield
    except ServiceError:
        raise
    except BaseException as error:
        db.close()  # after an interrupt, an answer may be half read
        if is_outage(error):
            # SQLite quotes a text that is no UTF-8.
            reason = str(error).partition(" with text ")[0]
            logger.error("database unavailable: %s", reason)
            raise ServiceError("database-unavailable") from error
        raise


@contextmanager
def transaction():
    """Provide a transaction for the block: all that is written is stored, or nothing.

    It needs no ``connection()`` around it. Begin and end it in one function, without
    ``await`` or ``yield``. On SQLite other writers wait for its end, 4 to 8 seconds.
    Raises ServiceError, as ``connection()`` does, also after a conflict: the caller may
    then repeat all of it.
    """
    with connection(), db.writing():
        yield


def repeated(work):
    """Decorate work that runs in a ``connection()`` and is repeated after a conflict.

    It is repeated for 4 seconds, unless it joins a transaction.
    """

    @wraps(work)
    def repeat(*args, **options):
        deadline = time.monotonic() + LOCK_SECONDS
        with connection():
            while True:
                try:
                    return work(*args, **options)
                except Exception as error:
                    is_late = time.monotonic() > deadline
                    if db.in_transaction() or is_late or not is_conflict(error):
                        raise
                time.sleep(random.uniform(0.001, 0.02))

    return repeat


def run(sql, *values):
    """Run SQL, with ``?`` for each value; return a cursor."""
    return db.execute_sql(sql.replace("?", db.param), values)


def is_outage(error):
    """Return whether the database is away, full, read-only, locked or incomplete.

    The error is Peewee's, or a driver's own: both have a name and arguments in common.
    """
    if not is_of_database(error) or "syntax error" in str(error):
        return False
    # MySQL's 1046 and 1146 are ProgrammingErrors: no database, no table.
    return type(error).__name__ in OUTAGES or error.args[0] in (1046, 1146)


def is_conflict(error):
    """Return whether the same work may succeed in a new transaction."""
    if not is_of_database(error) or not error.args:
        return False
    return error.args[0] in CONFLICTS or "Got error 149" in str(error)


def is_of_database(error):
    """Return whether Peewee or a driver has raised the error."""
    library = type(error).__module__.partition(".")[0]
    return library in ("peewee", "pymysql", "sqlite3")
