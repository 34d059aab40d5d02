"""SQLite and MySQL: how each connects, begins to write, and is checked."""

import os
import select
import sqlite3
import ssl
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock

import peewee
import pymysql
from pymysql.constants.CLIENT import FOUND_ROWS

from database import LOCK_SECONDS, Engine, db

STATEMENT_SECONDS = 10  # how long a request waits for MySQL, which may still go on
IDLE_SECONDS = 60  # some networks forget a connection that is idle for 4 minutes
SESSION = f"""SET SESSION autocommit = 1, completion_type = 0, sql_big_selects = 1,
    sql_select_limit = 18446744073709551615, sql_safe_updates = 0,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}
    /*!80000 , transaction_isolation = 'REPEATABLE-READ', transaction_read_only = 0 */
    /*M!100100 , tx_isolation = 'REPEATABLE-READ', tx_read_only = 0 */"""
"""What the service relies on, whatever the server is set to. MySQL, then MariaDB."""


class SQLiteConnection(sqlite3.Connection):
    """Knows its file, and gives up its locks when it is closed."""

    opened = {}  # the process that opened each one; a child inherits this
    opened_file = None  # what file_id() returned; None when it is closed

    def __init__(self, *args, **options):
        process = os.getpid()
        if {*self.opened.values()} - {process}:
            raise peewee.OperationalError(
                "this process was forked while its parent had a connection in another "
                "thread: start it with spawn, or fork first"
            )
        super().__init__(*args, **options)
        self.opened[id(self)] = process

    def close(self):
        self.opened_file = None
        self.opened.pop(id(self), None)
        with suppress(sqlite3.Error):  # it may be closed already
            self.rollback()  # otherwise the lock lasts as long as any cursor
        super().close()


class SQLite(Engine, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    kind = "sqlite"
    index_hint = ""  # SQLite itself chooses the right index
    read_latest = ""  # a transaction that writes sees all that was committed
    field_types = {**peewee.SqliteDatabase.field_types, "ASCII": "TEXT"}
    turn = Lock()  # to write, of the threads of this process

    def __init__(self, url):
        self.url = url
        super().__init__(
            Path(url.name).as_uri() + "?mode=rw",  # never makes the file
            # After a large write, the -wal shrinks to 16 MB.
            {"synchronous": "FULL", "journal_size_limit": 2**24},
            timeout=LOCK_SECONDS,
            check_same_thread=False,
            uri=True,
            factory=SQLiteConnection,
        )
        self.register_function(lower, "LOWER", 1)

    def _connect(self):
        file = (
            self.file_id()
        )  # before it is opened: another one in its place is noticed
        connection = super()._connect()
        connection.opened_file = file
        return connection

    def file_id(self):
        """Return what tells the file from any other, or None when there is none."""
        with suppress(OSError):
            found = os.stat(self.url.name)
            return found.st_dev, found.st_ino

    def is_connection_usable(self):
        """Return whether there is one, to the file that is in its place now."""
        connection = self._state.conn
        return (
            connection is not None
            and connection.opened_file == self.file_id() is not None
        )

    @contextmanager
    def writing(self):
        """Provide a transaction; within one, a savepoint.

        Threads take turns, so that only one of a process asks SQLite: creates are a
        quarter faster. SQLite's own lock decides: a turn that nobody gives back only
        costs a second.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        is_outermost = not self.in_transaction()
        if is_outermost:
            self.turn.acquire(timeout=1)  # then it asks SQLite itself
        try:
            with self.atomic(deadline):
                yield
        finally:
            if is_outermost:
                with suppress(RuntimeError):  # somebody else has given it back
                    self.turn.release()

    one_statement = writing

    def begin(self, deadline=None):
        """Begin a transaction, called by Peewee, once no other process writes.

        It asks often at first: with SQLite's own wait p99 of an update was 20 to 60
        times p50, not 3. The deadline is by ``time.monotonic()``.
        """
        began = time.monotonic()
        deadline = deadline or began + LOCK_SECONDS
        execute = self.connection().execute
        execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    return execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    now = time.monotonic()
                    if "locked" not in str(error) or now > deadline:
                        raise
                waited = now - began
                time.sleep(0.00005 if waited < 0.1 else waited / 100)
        finally:
            execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1_000}")


def lower(text):
    """Return the text in small letters; SQLite's own LOWER knows only ASCII."""
    return text and text.lower()


class MySQLConnection(pymysql.Connection):
    """Shares one context for TLS with all others, unless ssl-mode asks for its own."""

    unverified = ssl._create_unverified_context()  # its name in PEP 476

    def _create_ssl_ctx(self, given):
        # Private. PyMySQL's own reads the system's certificates for each connection:
        # 30 ms of CPU, also for a server without TLS.
        return given or self.unverified


class MySQL(Engine, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL."""

    kind = "mysql"
    # If it may choose, MariaDB 10.11 reads "appid = ? AND id < ?" by the application
    # alone and skips the rows before the cursor: 107 ms in the middle of 200,000 rows
    # instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    read_latest = "LOCK IN SHARE MODE"  # see what was committed since it began
    field_types = {
        **peewee.MySQLDatabase.field_types,
        "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
        "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
    }

    def __init__(self, url):
        self.url = url
        super().__init__(
            url.name,
            connect_timeout=3,
            read_timeout=STATEMENT_SECONDS,
            write_timeout=STATEMENT_SECONDS,
            init_command=SESSION,
            client_flag=FOUND_ROWS,  # an UPDATE counts the rows that it matches
            **url.server,
        )

    def _connect(self):
        options = self.connect_params
        connection = MySQLConnection(database=self.database, autocommit=True, **options)
        connection.used = time.monotonic()
        return connection

    def is_connection_usable(self):
        """Return whether there is an open one, used lately; it counts as used now."""
        connection = self._state.conn
        if connection is None or not connection.open:
            return False
        now = time.monotonic()
        idle = now - connection.used
        connection.used = now
        poll = select.poll()
        # One that the server has closed is readable. Private: PyMySQL's way asks it.
        poll.register(connection._sock, select.POLLIN)
        return idle < IDLE_SECONDS and not poll.poll(0)

    writing = peewee.Database.atomic

    def one_statement(self):
        return nullcontext()  # it is a transaction by itself


ENGINES = {"sqlite": SQLite, "mysql": MySQL}


def use(url):
    """Use the database at a DatabaseURL in the whole process."""
    if db.obj:
        if db.url == url:
            return
        db.close()
    db.initialize(ENGINES[url.engine](url))
