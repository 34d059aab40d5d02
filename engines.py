"""SQLite and MySQL: the Peewee databases, and all that differs between the two."""

import fcntl
import logging
import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import peewee

from config import DatabaseURL
from errors import ServiceError

LOCK_SECONDS = 4  # how long a statement may wait for a lock
STATEMENT_SECONDS = 10  # how long MySQL may take for a statement: longer than two waits for a lock
AWAY = ("OperationalError", "InterfaceError", "InternalError", "DatabaseError")
"""Names of errors that mean "unavailable": Peewee's or, while rows are fetched, a driver's."""
NO_TABLE = (1046, 1146)  # MySQL's errors for a database or a table that does not exist
AFTERMATH = ((0,), (1305,))  # PyMySQL's for a connection lost before, MySQL's for a lost savepoint
ID_TAKEN = (".id", "PRIMARY'")  # how SQLite's and MySQL's messages end
REPEATED = ((1020,), (1205,), (1213,), (1050,), (1061,), (1684,))
"""MySQL's errors for a changed row, a long wait, and a deadlock or a conflict in a cluster; and
for a table or an index that another process has made, or is changing just now."""
SESSION = f"""SET SESSION autocommit = 1, completion_type = 0, sql_big_selects = 1,
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


class OneForEachThread(peewee.Database):
    """One connection for each thread, which is closed when the thread ends."""

    tables_made = False
    table_settings: list[str] | None = None
    write_turn: Any = nullcontext  # the context of one write(); MySQL needs none: it locks rows

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Private: Peewee connects one thread at a time. With a server that hangs, the fourth
        # thread would wait for four time-outs. What the lock guards belongs to one thread.
        self._lock = nullcontext()
        self.own = threading.local()  # for each thread, the Closer of its connection

    def connect(self, reuse_if_open: bool = False) -> bool:
        opened = super().connect(reuse_if_open)
        if opened:
            self.own.closer = Closer(self.connection())
        return bool(opened)


class SQLite(OneForEachThread, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    engine = "sqlite"
    index_hint = ""  # SQLite itself chooses the index
    index_names = "SELECT name FROM pragma_index_list(?)"
    field_types = {**peewee.SqliteDatabase.field_types, "ASCII": "TEXT"}

    def __init__(self, url: DatabaseURL) -> None:
        path = str(Path(__file__).parent / url.name)  # an absolute path stays as it is
        pragmas = {"synchronous": "FULL"}
        super().__init__(path, pragmas, timeout=LOCK_SECONDS, check_same_thread=False)
        self.turn_of_thread = threading.Lock()

    @contextmanager
    def write_turn(self) -> Iterator[None]:
        """Let only one thread of one process write during the block. Raises OperationalError.

        SQLite's own wait for a lock sleeps ever longer, which left p99 of an update at 20 to 60
        times p50. Here the threads of a process wait for a lock of theirs, and the one that has it
        asks for a lock on a second file every 0.05 ms: p99 at 3 times p50. To wait in flock()
        itself is as fast, but has no time-out.
        """
        deadline, path = time.monotonic() + LOCK_SECONDS, f"{self.database}-lock"
        with ExitStack() as turn:
            if not self.turn_of_thread.acquire(timeout=LOCK_SECONDS):
                raise peewee.OperationalError("database is locked: no turn to write")
            turn.callback(self.turn_of_thread.release)
            try:
                # It stays empty. Opened for writing, so that a read-only disk fails here.
                file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
                turn.callback(os.close, file)
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    if time.monotonic() > deadline:
                        raise peewee.OperationalError("database is locked: no turn to write")
                    time.sleep(0.00005)
                turn.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a forked child may have it open
            except OSError as error:
                raise peewee.OperationalError(f"{path}: {error.strerror}") from error
            yield

    def prepare(self) -> None:
        """Set WAL mode, in a turn: a new file's first switch to it needs exclusive access."""
        self.pragma("journal_mode", "wal")


class MySQL(OneForEachThread, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL. A statement outside atomic() is a transaction by itself."""

    engine = "mysql"
    table_settings = ["ENGINE=InnoDB", "ROW_FORMAT=DYNAMIC"]
    longest_statement = 2**30
    # If it may choose, MariaDB 10.11 reads "appid = ? AND id < ?" by the application alone and
    # skips the rows before the cursor: 107 ms in the middle of 200,000 rows instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    # Peewee sends SHOW INDEX. While another node of a cluster changes the table, MariaDB's answer
    # to it is a broken packet.
    index_names = """SELECT index_name FROM information_schema.statistics
        WHERE table_schema = DATABASE() AND table_name = %s"""
    field_types = {
        **peewee.MySQLDatabase.field_types,
        "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
        "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
    }

    def __init__(self, url: DatabaseURL) -> None:
        limits = {"read_timeout": STATEMENT_SECONDS, "write_timeout": STATEMENT_SECONDS}
        super().__init__(url.name, **url.server, **limits, connect_timeout=3, init_command=SESSION)

    def is_connection_usable(self) -> bool:
        """Return whether there is one that the server has not closed."""
        if self.is_closed() or not self.connection().open:
            return False
        poll = select.poll()
        # A closed socket is readable. Private: PyMySQL's public way asks the server.
        poll.register(self.connection()._sock, select.POLLIN)
        return not poll.poll(0)

    def prepare(self) -> None:
        """Ask for the longest statement that the server takes, in bytes."""
        self.longest_statement = self.execute_sql("SELECT @@max_allowed_packet").fetchone()[0]

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        """Run a statement. Raises ServiceError("body-too-large"); the server would just hang up."""
        # A character of a parameter takes at most 4 bytes in the statement.
        most = len(sql) + 4 * sum(len(value) for value in params or () if isinstance(value, str))
        longest = self.longest_statement
        if most >= longest and len(self.cursor().mogrify(sql, params).encode()) >= longest:
            raise ServiceError("body-too-large")
        return super().execute_sql(sql, params)
