"""SQLite and MySQL: connections, queries, locking and retries.

Peewee opens a connection at a thread's first statement. ``db.atomic()`` is the
transaction. These are retried:

- on SQLite, a statement outside a transaction, for 4 seconds while the file is locked;
- on MySQL, a statement outside a transaction, once, if the connection was lost;
- on MySQL, a whole transaction, for 4 seconds, if a conflict has rolled it back.

Any other outage is raised, and the response to a request is 503.
"""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from threading import local
from typing import Any, ParamSpec, TypeVar

import peewee
from playhouse.shortcuts import ReconnectMixin

from config import DatabaseURL
from outages import DATABASE_ERRORS, find_conflict
from outages import is_outage as is_outage  # for programs that import it from here

OUTAGES = DATABASE_ERRORS  # for these programs, too

P = ParamSpec("P")
T = TypeVar("T")

LOCK_SECONDS = 4
STATEMENT_SECONDS = 9  # when a MySQL server ends a statement: before CLIENT_SECONDS
CLIENT_SECONDS = 10  # how long a thread waits for a MySQL server
PLUGIN_CANNOT_LOAD = 2059  # MySQL's error number
CONNECTION_SECONDS = 60  # how old a connection may be when a request begins


def session_settings(statement_seconds: int) -> str:
    """Return SQL that pins the settings of a MySQL session that results depend on.

    ``statement_seconds``: when the server ends a statement, or 0 for never.
    """
    # wait_timeout: the server closes an idle connection, before a firewall silently
    # drops it. Only MariaDB reads the first comment, and only MySQL
    # the second, which limits SELECT alone. Without a limit, a slow statement would go
    # on in the server after its 503.
    return f"""SET SESSION
        autocommit = 1,
        completion_type = 'NO_CHAIN',
        default_storage_engine = 'InnoDB',
        foreign_key_checks = 1,
        sql_big_selects = 1,
        sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
        sql_select_limit = {2**64 - 1},
        innodb_lock_wait_timeout = {LOCK_SECONDS},
        lock_wait_timeout = {LOCK_SECONDS},
        wait_timeout = {CONNECTION_SECONDS}
        /*M!100101 , tx_isolation = 'REPEATABLE-READ',
        max_statement_time = {statement_seconds} */
        /*!50720 , transaction_isolation = 'REPEATABLE-READ',
        max_execution_time = {statement_seconds * 1_000} */"""


db: Any = peewee.DatabaseProxy()  # the database of the process


class ConnectionMixin(peewee.Database):
    """How a thread's connection is opened, and when it is closed.

    ``prepare`` is called with each new connection, until it has succeeded once.
    """

    unlimited: dict[str, Any] = {}  # connect_params without a limit on statements
    deleters = 1  # see turns.py

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepare: Callable[[Any], None] | None = None
        self.opened = local()  # the driver's connection of a thread, and when
        self.expired_at = 0.0  # time.monotonic() of the last expire()

    def connect(self, reuse_if_open: bool = False) -> bool:
        """Connect, and prepare the database if that hasn't been done yet."""
        if not self.is_closed():
            return super().connect(reuse_if_open)
        # Peewee would open it while it holds a lock, so beside a server that hangs,
        # each thread would wait for those before it. _connect() only hands it over.
        self.opened.connection = self.open_connection()
        self.opened.at = time.monotonic()
        try:
            super().connect()
            if prepare := self.prepare:
                prepare(self)
                self.prepare = None
        except Exception:
            self.discard()
            raise
        return True

    def open_connection(self) -> Any:
        return super()._connect()

    def _connect(self) -> Any:
        return self.opened.connection

    def discard(self) -> None:
        """Close the thread's connection, which may be lost already."""
        with suppress(*DATABASE_ERRORS):
            self.close()

    def expire(self) -> None:
        """Let each thread replace its connection before it runs another request."""
        self.expired_at = time.monotonic()

    def close_if_stale(self) -> None:
        """Close the thread's connection if it has expired, or is too old.

        After a failover, the old server may still respond, as a read-only replica.
        """
        cutoff = max(self.expired_at, time.monotonic() - CONNECTION_SECONDS)
        if not self.is_closed() and self.opened.at < cutoff:
            self.discard()

    def lift_limits(self) -> None:
        """Let statements take any time, once the server has responded to one."""
        self.execute_sql("SELECT 1")
        self.close()
        self.connect_params.update(self.unlimited)


class SQLite(ConnectionMixin, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    readers = 2  # see turns.py
    writers = 1  # SQLite has one at a time
    snapshot = "DEFERRED"  # for db.atomic(): reads as of one moment, without a lock
    add_email_index = """CREATE INDEX profile_appid_{0}
        ON profile (appid, {0} COLLATE NOCASE) WHERE {0} IS NOT NULL"""

    def __init__(self, url: DatabaseURL) -> None:
        super().__init__(
            url.name,
            pragmas={"journal_mode": "wal", "synchronous": "FULL", "foreign_keys": 1},
            timeout=0,  # execute_sql() waits instead
            field_types={"ASCII": "TEXT"},
        )

    def open_connection(self) -> Any:
        with suppress(OSError):  # opening the file raises the better error
            # Create it private to the owner, also where a symbolic link points to.
            Path(self.database).resolve().touch(0o600, exist_ok=False)
        return super().open_connection()

    def get_tables(self, schema: str | None = None) -> list[str]:
        """Return the names of the tables in lower case, because SQLite ignores it."""
        return [name.lower() for name in super().get_tables(schema)]

    def force_index(self, model: type[peewee.Model], index: str) -> Any:
        """Return what to select from: SQLite itself chooses the right index."""
        return model

    def is_address(self, column: peewee.Field, email: Any) -> peewee.Expression:
        """Return the condition that a column has an address, ignoring ASCII case."""
        return column.collate("NOCASE") == email

    def begin(self, lock_type: str = "IMMEDIATE") -> None:
        """Begin a transaction; wait for other writers now, not at the first write."""
        self.execute_sql(f"BEGIN {lock_type}")

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        """Execute SQL, retrying while another connection holds the lock.

        In a transaction, only BEGIN waits for the lock. SQLite's own wait sleeps for up
        to 100 ms, so that writers get 0.8 times as much done. The pause grows, so that
        a lock of seconds costs little CPU time.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        pause = 0.000_05  # seconds
        while True:
            try:
                return super().execute_sql(sql, params)
            except peewee.OperationalError as error:
                if str(error) != "database is locked" or self.in_transaction():
                    raise
                if time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 1.02, 0.005)


class MySQL(ConnectionMixin, ReconnectMixin, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL.

    ReconnectMixin resends a statement if its connection was lost, unless a transaction
    is open. An INSERT is still stored only once: the resent one fails, because its
    identifier exists.
    """

    readers = 3  # see turns.py; enough to overlap waits for the server
    writers = 3  # with 4, eight updates of one profile get 0.79 times as much done
    unlimited = {"read_timeout": None, "init_command": session_settings(0)}
    snapshot = "REPEATABLE READ"  # for db.atomic(): reads as of one moment
    # Others can write meanwhile; if that is not possible, the statement fails.
    add_email_index = """ALTER TABLE profile
        ADD INDEX profile_appid_{0} (appid, {0}(64)), ALGORITHM=INPLACE, LOCK=NONE"""
    # The class and a lower-case fragment of an error's message; beside it, a sample.
    # "(2013, 'Lost connection … during query (timed out)')" must not match, because the
    # statement may still run.
    reconnect_errors = (
        (peewee.OperationalError, "(2006,"),  # (2006, "MySQL server has gone away (…)")
        (peewee.OperationalError, "(4031,"),  # (4031, 'The client was disconnected …')
        (peewee.OperationalError, "during query')"),  # (2013, 'Lost … during query')
        (peewee.OperationalError, "query ([errno"),  # (2013, '… query ([Errno 104] …)')
        (peewee.InterfaceError, "(0, '')"),  # (0, ''), from a connection that is closed
    )

    def __init__(self, url: DatabaseURL) -> None:
        super().__init__(
            url.name,
            connect_timeout=3,
            read_timeout=CLIENT_SECONDS,
            write_timeout=CLIENT_SECONDS,
            init_command=session_settings(STATEMENT_SECONDS),
            field_types={
                "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
                "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
            },
            **url.server,
        )

    def open_connection(self) -> Any:
        try:
            return super().open_connection()
        except RuntimeError as error:  # a login plugin needs another package
            raise peewee.OperationalError(PLUGIN_CANNOT_LOAD, str(error)) from error

    def force_index(self, model: type[peewee.Model], index: str) -> Any:
        """Return a table to select from by this index.

        Without the hint, MariaDB skips the rows before the position one by one: 107 ms
        in the middle of 200,000 rows instead of 0.3.
        """
        return peewee.NodeList((model, peewee.SQL(f"FORCE INDEX ({index})")))

    def is_address(self, column: peewee.Field, email: Any) -> peewee.Expression:
        """Return the condition that a column has an address, ignoring case.

        The collation of the column and of its index also ignores accents. So the bytes
        are compared, too, as text in latin1, in which each byte is a character.
        """
        latin1 = peewee.SQL("USING latin1")
        found, wanted = [
            peewee.fn.CONVERT(peewee.NodeList((text.cast("BINARY"), latin1)))
            for text in (column, email)
        ]
        return (column == email) & (found.collate("latin1_swedish_ci") == wanted)


Engine = SQLite | MySQL
ENGINES: dict[str, type[Engine]] = {"sqlite": SQLite, "mysql": MySQL}


def init_database(url: DatabaseURL, prepare: Callable[[Engine], None]) -> None:
    """Set the database of the process to the one at a URL.

    Its first connection calls ``prepare``, before any other statement.
    """
    database = ENGINES[url.engine](url)
    database.prepare = prepare
    db.initialize(database)


def built_once(builder: Callable[P, peewee.Query]) -> Callable[P, Any]:
    """Decorate a function that returns a query: execute the query, return its cursor.

    Peewee takes much longer to build a query than to execute it, so the function is
    called once for each choice of positional arguments and of keywords. It gets
    placeholders as keyword arguments, so it can test only whether one is given.
    """

    @wraps(builder)
    def execute(*args: P.args, **values: P.kwargs) -> Any:
        sql, names = build(builder, db.obj.__class__, args, tuple(values))
        return db.execute_sql(sql, [values[name] for name in names])

    return execute


@cache
def build(
    builder: Callable[..., peewee.Query],
    engine: type[peewee.Database],
    args: tuple[Any, ...],
    names: tuple[str, ...],
) -> tuple[str, list[str]]:
    """Return a query's SQL for an engine, and the name of each parameter's value.

    Each placeholder's value is its own name, so these are the parameters of the SQL, as
    in ("… WHERE appid = ? AND id < ?", ["appid", "position"]). Raises TypeError if the
    query has a value that is not one of the arguments.
    """
    placeholders = {name: peewee.Value(name, converter=False) for name in names}
    sql, used_names = builder(*args, **placeholders).sql()
    if set(used_names) != set(names):
        raise TypeError(f"the values of {builder.__name__}() must be its arguments")
    return sql, used_names


def retry_on_conflict(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that writes or locks: call it again after a conflict.

    It is called again for up to LOCK_SECONDS. Inside a transaction, the conflict is
    raised, because the whole transaction must run again, so decorate the function that
    begins it, as transaction() does. SQLite has no conflicts.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return function(*args, **kwargs)
            except DATABASE_ERRORS as error:
                conflict = find_conflict(error)
                if not conflict:
                    raise
                if db.in_transaction() or time.monotonic() > deadline:
                    raise conflict from None
            time.sleep(random.uniform(0.005, 0.01))

    return wrapper


def transaction(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: run it in a transaction, again after a conflict."""
    return retry_on_conflict(db.atomic()(function))
