"""SQLite and MySQL: the Peewee databases, and all that differs between the two."""

import logging
import os
import select
import ssl
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import peewee
from peewee import SQL, NodeList
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS

from config import DatabaseURL, SettingError
from errors import ServiceError
from turns import Turns

LOCK_SECONDS = 4
"""How long a statement may wait for a lock before it fails."""
STATEMENT_SECONDS = 10
"""How long MySQL may take for a statement: longer than it may wait for two locks."""
CONNECT_SECONDS = 3
LONGEST_ESCAPE = 4
"""Bytes that a character of a parameter takes in a statement, at most."""
SESSION = f"""SET SESSION autocommit = 1, completion_type = 0, sql_big_selects = 1,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}
    /*!80000 , transaction_isolation = 'REPEATABLE-READ', transaction_read_only = 0 */
    /*M!100100 , tx_isolation = 'REPEATABLE-READ', tx_read_only = 0 */"""
"""What the service relies on, whatever the server is set to. MySQL, then MariaDB."""
PROJECT = Path(__file__).parent

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
    """A database whose connections belong to threads, as Peewee has it, and end with them."""

    tables_made = False
    table_settings: list[str] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.own = threading.local()
        # Private: Peewee connects one thread at a time. With a server that hangs, the fourth
        # thread would wait for four time-outs. What the lock guards belongs to one thread.
        self._lock = nullcontext()

    def connect(self, reuse_if_open: bool = False) -> bool:
        opened = super().connect(reuse_if_open)
        if opened:
            self.own.closer = Closer(self.connection())
        return bool(opened)

    def before_fork(self) -> None:
        """Called in the thread that is about to fork. By default there is nothing to do."""

    def after_fork(self) -> None:
        """In a forked child, keep the parent's connection, but neither use nor close it."""
        self.inherited, self.own = self.own, threading.local()
        self.dispose()

    def write_turn(self) -> AbstractContextManager[None]:
        """Return the turn of a writer, for a with block. By default none: InnoDB locks rows."""
        return nullcontext()

    def indexed(self, model: Any, index: str) -> Any:
        """Return the FROM clause of a listing. By default the database chooses the index."""
        return model


class SQLite(OneForEachThread, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    engine = "sqlite"
    field_types = {**peewee.SqliteDatabase.field_types, "ASCII": "TEXT"}

    def __init__(self, path: str) -> None:
        path = str(PROJECT / path)  # an absolute path stays as it is
        durable = {"synchronous": "FULL"}
        super().__init__(path, durable, timeout=LOCK_SECONDS, check_same_thread=False)
        self.turns = Turns(path + "-lock")

    def connect(self, reuse_if_open: bool = False) -> bool:
        self.own.writable = os.access(self.database, os.W_OK)
        return super().connect(reuse_if_open)

    def is_connection_usable(self) -> bool:
        """Return whether there is one; one opened on a read-only file would stay read-only."""
        return not self.is_closed() and self.own.writable

    def has_open_transaction(self) -> bool:
        return bool(self.connection().in_transaction)

    def before_fork(self) -> None:
        """Close the connection: SQLite in the child would count on file locks of the parent."""
        if not self.in_transaction():
            self.close()

    def after_fork(self) -> None:
        super().after_fork()
        self.turns = Turns(self.turns.path)

    def write_turn(self) -> AbstractContextManager[None]:
        return self.turns.take(LOCK_SECONDS)

    def prepare(self) -> None:
        """Set WAL mode, in a turn: a new file's first switch to it needs exclusive access."""
        self.pragma("journal_mode", "wal")

    def index_names(self, table: str) -> set[str]:
        """Return the names of a table's indexes."""
        return {index.name for index in self.get_indexes(table)}


class MySQL(OneForEachThread, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL, one statement a transaction unless asked otherwise."""

    engine = "mysql"
    table_settings = ["ENGINE=InnoDB", "ROW_FORMAT=DYNAMIC"]
    longest_statement = 2**30
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
            read_timeout=STATEMENT_SECONDS,
            write_timeout=STATEMENT_SECONDS,
            init_command=SESSION,
            **ssl_options(url),
        )

    def is_connection_usable(self) -> bool:
        """Return whether there is one that the server has not closed.

        The socket of a closed connection is readable. Private: PyMySQL's own way is a round trip.
        """
        if self.is_closed() or not self.connection().open:
            return False
        poll = select.poll()
        poll.register(self.connection()._sock, select.POLLIN)
        return not poll.poll(0)

    def has_open_transaction(self) -> bool:
        return bool(self.connection().server_status & SERVER_STATUS_IN_TRANS)

    def prepare(self) -> None:
        """Ask for the longest statement that the server takes, in bytes."""
        self.longest_statement = self.execute_sql("SELECT @@max_allowed_packet").fetchone()[0]

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        """Run a statement. Raises ServiceError("body-too-large"); the server would just hang up."""
        characters = sum(len(value) for value in params or () if isinstance(value, str))
        if characters * LONGEST_ESCAPE > self.longest_statement:
            if len(self.cursor().mogrify(sql, params).encode()) >= self.longest_statement:
                raise ServiceError("body-too-large")
        return super().execute_sql(sql, params)

    def index_names(self, table: str) -> set[str]:
        """Return the names of a table's indexes.

        Peewee sends SHOW INDEX, which MariaDB answers with a broken packet while another node of
        a cluster changes the table.
        """
        select = "SELECT index_name FROM information_schema.statistics"
        where = "WHERE table_schema = DATABASE() AND table_name = %s"
        return {name for (name,) in self.execute_sql(f"{select} {where}", (table,))}

    def indexed(self, model: Any, index: str) -> Any:
        """Return the table bound to the index.

        Left to choose, MariaDB 10.11 reads ``appid = ? AND id < ?`` by the application alone and
        skips the rows before the cursor: 107 ms in the middle of 200,000 rows, 0.3 with the index.
        """
        return NodeList((model, SQL(f"FORCE INDEX (`{index}`)")))


def ssl_options(url: DatabaseURL) -> dict[str, Any]:
    """Return PyMySQL's options for an ssl-mode of MySQL's own clients. Raises SettingError."""
    if url.ssl_mode == "DISABLED":
        return {"ssl_disabled": True}
    if url.ssl_mode == "PREFERRED":
        return {}
    try:
        context = ssl.create_default_context(cafile=url.ssl_ca)
    except (OSError, ValueError) as error:
        reason = "is no readable file of certificates"
        raise SettingError("DATABASE_URL", f"…ssl-ca={url.ssl_ca}", reason) from error
    # Python 3.13 refuses the certificates that MySQL makes for itself, unless told not to.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = url.ssl_mode == "VERIFY_IDENTITY"
    if url.ssl_mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
