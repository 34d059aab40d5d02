"""SQLite and MySQL: the Peewee databases, and all that differs between the two."""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import peewee
from pymysql.constants.CLIENT import FOUND_ROWS

from database_url import DatabaseURL

LOCK_SECONDS = 4  # how long a statement may wait for a lock
STATEMENT_SECONDS = 10  # how long to wait for MySQL, which may still complete the statement
INDEX_SECONDS = 3_600  # the same for the making of an index, and for a copy
CONNECTION_SECONDS = 600  # the age at which a connection to MySQL is replaced
SESSION = f"""SET SESSION autocommit = 1, completion_type = 0, sql_big_selects = 1,
    sql_select_limit = 18446744073709551615, sql_safe_updates = 0,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}
    /*!80000 , transaction_isolation = 'REPEATABLE-READ', transaction_read_only = 0 */
    /*M!100100 , tx_isolation = 'REPEATABLE-READ', tx_read_only = 0 */"""
"""What the service relies on, whatever the server is set to. MySQL, then MariaDB."""

logging.getLogger("peewee").setLevel(logging.INFO)  # below it, statements with their parameters


class Closer:
    """Closes a connection when the thread that owns it ends, and with it this object."""

    def __init__(self, connection: Any) -> None:
        self.connection, self.process = connection, os.getpid()

    def __del__(self) -> None:
        if self.process == os.getpid():  # not in a forked child
            with suppress(Exception):  # it is closed already, or the server is away
                self.connection.close()


class Engine(peewee.Database):
    """One connection for each thread. The first one of a process makes the tables."""

    first_use: Callable[[Any], None] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Private: Peewee connects one thread at a time. With a server that hangs, the fourth
        # thread would wait for four time-outs. What the lock guards belongs to one thread.
        self._lock = nullcontext()
        self.own = threading.local()  # for each thread, what it knows of its connection

    def _initialize_connection(self, connection: Any) -> None:
        self.own.closer, self.own.since = Closer(connection), time.monotonic()
        try:
            if self.first_use:
                self.first_use(self)
            self.first_use = None
        except BaseException:
            self.close()
            raise

    def _close(self, connection: Any) -> None:
        with suppress(Exception):  # it is closed already
            super()._close(connection)


class SQLite(Engine, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    kind = "sqlite"
    # The names of the tables and indexes; none while the file is not in WAL mode.
    names = """SELECT name FROM sqlite_master
        WHERE (SELECT journal_mode FROM pragma_journal_mode) = 'wal'"""
    index_hint = ""  # SQLite itself chooses the index
    empty_log = "PRAGMA wal_checkpoint(TRUNCATE)"  # which holds what was deleted
    field_types = {**peewee.SqliteDatabase.field_types, "ASCII": "TEXT"}

    def __init__(self, url: DatabaseURL) -> None:
        path = str(Path(__file__).parent / url.name)  # an absolute path stays as it is
        pragmas = {"synchronous": "FULL", "secure_delete": "ON"}
        super().__init__(path, pragmas, timeout=LOCK_SECONDS, check_same_thread=False)
        self.existed = os.path.exists(path)  # when the service was started
        self.turn, self.deadline = threading.RLock(), 0.0  # of the thread that has the turn

    def _connect(self) -> Any:
        if (self.existed or not self.first_use) and not os.path.exists(self.database):
            raise peewee.OperationalError("the database file is gone")  # and is not made anew
        connection, self.own.file = super()._connect(), os.stat(self.database)
        return connection

    def is_connection_usable(self) -> bool:
        """Return whether there is one, to the file that is in its place now."""
        with suppress(OSError):
            file = os.stat(self.database)
            return not self.is_closed() and os.path.samestat(self.own.file, file)
        return False

    @contextmanager
    def writing(self, *, several: bool) -> Iterator[None]:
        """Provide a transaction in which one thread of one process at a time writes."""
        joins = self.in_transaction() and not several
        deadline = time.monotonic() + LOCK_SECONDS
        if not self.turn.acquire(timeout=LOCK_SECONDS):
            raise peewee.OperationalError("database is locked by another thread")
        try:
            self.deadline = deadline
            with nullcontext() if joins else self.atomic("IMMEDIATE"):  # or a savepoint
                yield
        finally:
            self.turn.release()

    def begin(self, lock_type: str | None = None) -> None:
        """Begin a transaction as soon as no other process writes, for which it asks every 0.05 ms.

        SQLite's own wait sleeps ever longer: p99 of an update was 20 to 60 times p50 instead of 3.
        """
        connection = self.connection()
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    return super().begin(lock_type)
                except peewee.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > self.deadline:
                        raise
                time.sleep(0.00005)
        finally:
            connection.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1_000}")


class MySQL(Engine, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL."""

    kind = "mysql"
    # Peewee sends SHOW INDEX. While another node of a cluster changes the table, MariaDB's answer
    # to it is a broken packet.
    names = """SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()
        UNION SELECT index_name FROM information_schema.statistics
        WHERE table_schema = DATABASE()"""
    # If it may choose, MariaDB 10.11 reads "appid = ? AND id < ?" by the application alone and
    # skips the rows before the cursor: 107 ms in the middle of 200,000 rows instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    empty_log = "DO 0"  # nothing to do
    field_types = {
        **peewee.MySQLDatabase.field_types,
        "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
        "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
    }

    def __init__(self, url: DatabaseURL, seconds: int = STATEMENT_SECONDS) -> None:
        self.url = url
        limits = {"read_timeout": seconds, "write_timeout": seconds, "connect_timeout": 3}
        options = {"init_command": SESSION, "client_flag": FOUND_ROWS}  # an UPDATE counts matches
        super().__init__(url.name, **url.server, **limits, **options)

    def is_connection_usable(self) -> bool:
        """Return whether there is one, not too old, that the server has not closed."""
        old = self.is_closed() or time.monotonic() - self.own.since > CONNECTION_SECONDS
        if old or not self.connection().open:
            return False
        poll = select.poll()
        # A closed socket is readable. Private: PyMySQL's public way asks the server.
        poll.register(self.connection()._sock, select.POLLIN)
        return not poll.poll(0)

    def writing(self, *, several: bool) -> Any:
        """Return the context of a write. One statement is a transaction without BEGIN, COMMIT."""
        return self.atomic() if several else nullcontext()
