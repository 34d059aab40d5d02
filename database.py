"""The connections, and all that differs between SQLite and MySQL."""

import fcntl
import logging
import os
import select
import ssl
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from threading import Lock
from typing import Any

import peewee
from peewee import SQL, Model, NodeList, Query, TextField
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS

from config import DatabaseURL, SettingError
from errors import ServiceError

LOCK_SECONDS = 4
"""How long a statement may wait for another's lock before it ends in database-unavailable."""
ANSWER_SECONDS = 10
"""How long MySQL may leave a statement unanswered; longer than it may wait for two locks."""
CONNECT_SECONDS = 3
AWAY = (peewee.OperationalError, peewee.InterfaceError, peewee.InternalError)

logger = logging.getLogger(__name__)
database = peewee.DatabaseProxy()


class AsciiField(TextField):
    """Identifiers, hashes and timestamps: at most 64 ASCII characters, compared byte for byte."""

    field_type = "ASCII"


class Table(Model):
    class Meta:
        database = database


class Pooled(peewee.Database):
    """Connections given back are kept for the next, and replaced once the server has cut them.

    Peewee's own pool asks the server whether each connection is alive, and connects one at a
    time: a round trip for every request, and a queue of time-outs when the server hangs.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.idle: deque[Any] = deque()
        self.tables_made = False
        self._lock = nullcontext()  # the state it guards is each thread's own

    def _connect(self) -> Any:
        self._state.failed = False
        with suppress(IndexError):  # no idle connection is left
            while connection := self.idle.pop():
                if self.alive(connection):
                    return connection
                super()._close(connection)
        return super()._connect()

    def _close(self, connection: Any) -> None:
        if self.clean(connection) and not self._state.failed:
            self.idle.append(connection)
        else:
            super()._close(connection)

    def close_idle(self) -> None:
        """Close the connections nobody is using."""
        with suppress(IndexError):
            while connection := self.idle.pop():
                super()._close(connection)

    def fail(self) -> None:
        """Keep none of the connections: one opened on a read-only disk would stay read-only."""
        self._state.failed = True
        self.close_idle()

    def forget(self) -> None:
        """In a forked child, leave the parent's connections to the parent, not even closed."""
        self.parents = self.idle, self._state.conn
        self.idle = deque()
        self._state.reset()

    def _log_query(self, sql: str, params: Any) -> None:
        """Nothing: the parameters are tokens' hashes and the contents of profiles."""


class SQLite(Pooled, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    engine = "sqlite"
    field_types = {**peewee.SqliteDatabase.field_types, "ASCII": "TEXT"}

    def __init__(self, path: str) -> None:
        self.lock_path, self.turn = path + "-lock", Lock()
        self.lock_file: int | None = None
        durable = {"synchronous": "FULL"}
        super().__init__(path, pragmas=durable, timeout=LOCK_SECONDS, check_same_thread=False)

    def alive(self, connection: Any) -> bool:
        return True

    def clean(self, connection: Any) -> bool:
        return not connection.in_transaction

    def forget(self) -> None:
        super().forget()
        self.turn, self.lock_file = Lock(), None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A turn to write, among all threads and processes of the service.

        SQLite's own wait for a lock sleeps ever longer, which left p99 of an update at 20 to 60
        times p50. Here the threads of a process wait for a lock of theirs, and the one that has
        it asks for a lock on a file beside the database every 0.05 ms: p99 at 3 times p50.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        if not self.turn.acquire(timeout=LOCK_SECONDS):
            raise peewee.OperationalError("database is locked: no turn to write")
        try:
            lock = self.open_lock_file()
            while not has_locked(lock):
                if time.monotonic() > deadline:
                    raise peewee.OperationalError("database is locked: no turn to write")
                time.sleep(0.00005)
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            self.turn.release()

    def open_lock_file(self) -> int:
        """The file descriptor of this process's lock file, opened at the first write."""
        if self.lock_file is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            try:
                self.lock_file = os.open(self.lock_path, flags, 0o666)
                weakref.finalize(self, os.close, self.lock_file)
            except OSError as error:
                raise peewee.OperationalError(f"{self.lock_path}: {error.strerror}") from error
        return self.lock_file

    def is_wal(self) -> bool:
        """Whether the file is in WAL mode, which a copy or a restored one may not be."""
        return bool(self.pragma("journal_mode") == "wal")

    @contextmanager
    def creating_tables(self) -> Iterator[None]:
        """Alone among the processes; a new file's first switch to WAL allows no company."""
        with self.writing():
            self.pragma("journal_mode", "wal")
            yield

    def reading(self, model: type[Table], index: str) -> Any:
        """The table to select from; SQLite finds the index by itself."""
        return model


class MySQL(Pooled, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL, one statement a transaction unless asked otherwise."""

    engine = "mysql"
    field_types = {
        **peewee.MySQLDatabase.field_types,
        "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
        "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
    }

    def __init__(self, url: DatabaseURL) -> None:
        super().__init__(
            url.name,
            **{"host": url.host, "port": url.port, "user": url.user},
            password=url.password.encode(),
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            write_timeout=ANSWER_SECONDS,
            init_command=f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}",
            **ssl_options(url),
        )

    def alive(self, connection: Any) -> bool:
        """Whether the server left an idle connection alone: else there is its end to read."""
        poll = select.poll()
        poll.register(connection._sock, select.POLLIN)
        return not poll.poll(0)

    def clean(self, connection: Any) -> bool:
        return connection.open and not connection.server_status & SERVER_STATUS_IN_TRANS

    def writing(self) -> nullcontext[None]:
        """Nothing to wait for: InnoDB locks rows."""
        return nullcontext()

    def is_wal(self) -> bool:
        """InnoDB writes ahead always."""
        return True

    @contextmanager
    def creating_tables(self) -> Iterator[None]:
        """Alone among the processes, by a lock of the server's."""
        name = f"create tables of {self.database}"[:64]
        self.execute_sql("SELECT GET_LOCK(%s, 60)", (name,))
        try:
            yield
        finally:
            self.execute_sql("SELECT RELEASE_LOCK(%s)", (name,))

    def reading(self, model: type[Table], index: str) -> Any:
        """The table bound to an index.

        Left to choose, MariaDB 10.11 reads ``appid = ? AND id < ?`` by the application alone and
        throws away the rows before the cursor: 107 ms in the middle of 200,000 rows, 0.3 bound.
        """
        return NodeList((model, SQL(f"FORCE INDEX (`{index}`)")))


def has_locked(file: int) -> bool:
    """Whether the file is now locked by this process, without waiting for it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def ssl_options(url: DatabaseURL) -> dict[str, Any]:
    """PyMySQL's options for an ssl-mode of MySQL's own clients."""
    if url.ssl_mode == "DISABLED":
        return {"ssl_disabled": True}
    if url.ssl_mode == "PREFERRED":
        return {}
    try:
        context = ssl.create_default_context(cafile=url.ssl_ca)
    except OSError as error:
        raise SettingError("DATABASE_URL", f"…ssl-ca={url.ssl_ca}", "is no such file") from error
    context.check_hostname = url.ssl_mode == "VERIFY_IDENTITY"
    if url.ssl_mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


def use(url: DatabaseURL) -> None:
    """Make this the database of the process, without connecting yet."""
    if database.obj is not None:
        database.close_idle()
    database.initialize(SQLite(url.path) if url.engine == "sqlite" else MySQL(url))


os.register_at_fork(after_in_child=lambda: database.obj and database.forget())


def gone(error: BaseException | None) -> bool:
    """Whether MySQL says that the table or the database is no longer there."""
    return isinstance(error, peewee.ProgrammingError) and error.args[:1] in ((1046,), (1146,))


class connection:
    """A connection for the block, the outer one if there is one, given back at its end.

    The first one makes the tables. Raises ServiceError("database-unavailable") when the database
    is away, full, read-only, locked for too long or no longer has its tables; the log says which.
    A class, because two for each request as Peewee's context in a generator were 7 of a listing's
    180 µs.
    """

    opened = False

    def __enter__(self) -> None:
        try:
            self.opened = database.connect(reuse_if_open=True)
            if not database.tables_made:
                create_tables()
        except peewee.PeeweeException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        away = isinstance(error, AWAY) or type(error) is peewee.DatabaseError or gone(error)
        if away:
            database.fail()
        if self.opened:
            database.close()
        if away:
            logger.error("database unavailable: %s", error)
            raise ServiceError("database-unavailable") from error


def create_tables() -> None:
    """Make the tables and indexes that are missing; safe for many processes at once."""
    tables = Table.__subclasses__()
    if not database.is_wal() or missing_tables() or any(map(missing_indexes, tables)):
        with database.creating_tables():
            for model in missing_tables():
                model._schema.create_table(safe=True)
            for model in tables:
                for index in missing_indexes(model):
                    database.execute(model._schema._create_index(index, safe=False))
    database.obj.tables_made = True


def missing_tables() -> list[type[Table]]:
    there = database.get_tables()
    return [model for model in Table.__subclasses__() if model._meta.table_name not in there]


def missing_indexes(model: type[Table]) -> list[peewee.Index]:
    there = {index.name for index in database.get_indexes(model._meta.table_name)}
    return [index for index in model._meta.fields_to_index() if index._name not in there]


def place(name: str) -> peewee.Value:
    """Where a statement takes the parameter of that name."""
    return peewee.Value(name, converter=False)


class Statement:
    """A query compiled once for each variant, then run with its parameters, by name.

    Building a query takes Peewee 180 of the 240 µs it needs for one. Called with the variant's
    arguments and the parameters of its places; answers a cursor.
    """

    def __init__(self, build: Callable[..., Query]) -> None:
        self.build = build
        self.compiled = lru_cache(maxsize=256)(self.compile)

    def compile(self, engine: str, *variant: Any) -> tuple[str, list[str]]:
        """The SQL for an engine, and the names of its parameters in order."""
        sql, names = self.build(*variant).sql()
        return sql, names

    def __call__(self, *variant: Any, **parameters: Any) -> Any:
        engine = database.obj
        sql, names = self.compiled(engine.engine, *variant)
        return engine.execute_sql(sql, [parameters[name] for name in names])
