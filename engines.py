"""SQLite and MySQL: how each connects, is checked and begins to write."""

import logging
import os
import select
import sqlite3
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Lock

import peewee
from pymysql.constants.CLIENT import FOUND_ROWS

from database import LOCK_SECONDS, Handle, Own

STATEMENT_SECONDS = (
    10  # how long to wait for MySQL, which may still complete the statement
)
TURN_SECONDS = (
    1  # how long a thread waits for those of its process before it asks SQLite itself
)
CONNECTION_SECONDS = 600  # the age at which a connection to MySQL is replaced
SESSION = f"""SET SESSION autocommit = 1, completion_type = 0, sql_big_selects = 1,
    sql_select_limit = 18446744073709551615, sql_safe_updates = 0,
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
    innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}
    /*!80000 , transaction_isolation = 'REPEATABLE-READ', transaction_read_only = 0 */
    /*M!100100 , tx_isolation = 'REPEATABLE-READ', tx_read_only = 0 */"""
"""What the service relies on, whatever the server is set to. MySQL, then MariaDB."""

logging.getLogger("peewee").setLevel(
    logging.INFO
)  # below it, statements with their parameters


class Engine(peewee.Database):
    """One connection for each thread."""

    refused = ""  # of another database than the service's own: how its errors name it
    turn = Lock()  # of the thread that writes to SQLite

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        # Private: Peewee connects one thread at a time. With a server that hangs, the fourth
        # thread would wait for four time-outs. What the lock guards belongs to one thread.
        self._lock = nullcontext()
        self.own = Own()

    def _connect(self):
        file = self.file()  # before it is opened: another one in its place is noticed
        connection = super()._connect()
        self.own.handle = Handle(connection, file)
        return connection

    def file(self):
        """Return what tells SQLite's file from any other, or None when there is none."""

    def _close(self, connection):
        self.own.handle.close()

    def transaction_depth(self):
        return super().transaction_depth() + self.own.handle.transaction

    def in_transaction(self):
        return self.transaction_depth() > 0

    @contextmanager
    def writing(self, *, several=True):
        """Provide a transaction; within one, a savepoint; for one statement, what it needs."""
        handle, joins = self.own.handle, self.in_transaction()
        if not several and (joins or self.kind == "mysql"):
            yield
            return
        commit, rollback = handle.connection.commit, handle.connection.rollback
        if joins:
            savepoint = self.savepoint()
            commit, rollback = (
                partial(savepoint.commit, False),
                partial(savepoint.rollback, False),
            )
        try:
            savepoint.__enter__() if joins else self.begin_writing(handle)
            yield
            commit()
        except Exception:
            try:
                rollback()
            except Exception:  # the first error tells more
                handle.close()
            raise
        finally:
            if not joins:
                handle.transaction = False
                with suppress(RuntimeError):  # it was lost
                    self.turn.release()


class SQLite(Engine, peewee.SqliteDatabase):
    """SQLite in WAL mode, where a commit returns once it is on the disk."""

    kind = "sqlite"
    index_hint = newest = (
        ""  # SQLite itself chooses the index, and reads what was committed last
    )
    field_types = {**peewee.SqliteDatabase.field_types, "ASCII": "TEXT"}

    def __init__(self, url):
        self.path, uri = (
            url.name,
            Path(url.name).as_uri() + "?mode=rw",
        )  # never made anew
        options = {"timeout": LOCK_SECONDS, "check_same_thread": False, "uri": True}
        super().__init__(uri, {"synchronous": "FULL"}, **options)
        self.register_function(
            lambda text: text and text.lower(), "LOWER", 1
        )  # not of ASCII alone

    def file(self):
        with suppress(OSError):
            found = os.stat(self.path)
            return found.st_dev, found.st_ino

    def is_connection_usable(self):
        """Return whether there is one, to the file that is in its place now."""
        return (
            not self.own.handle.closed
            and self.own.handle.file == self.file() is not None
        )

    def begin_writing(self, handle):
        """Begin a transaction once no other thread and no other process writes.

        The turn, which may get lost, saves the threads of a process from asking SQLite. Who asks
        asks often at first: with SQLite's own wait, p99 of an update was 20 to 60 times p50, not 3.
        """
        deadline, handle.transaction = time.monotonic() + LOCK_SECONDS, True
        self.turn.acquire(timeout=TURN_SECONDS)
        start, execute = time.monotonic(), handle.connection.execute
        execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    return execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    waited = time.monotonic() - start
                    if "locked" not in str(error) or start + waited > deadline:
                        raise
                time.sleep(0.00005 if waited < 0.1 else waited / 100)
        finally:
            execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1_000}")


class MySQL(Engine, peewee.MySQLDatabase):
    """MySQL or MariaDB over PyMySQL."""

    kind = "mysql"
    # If it may choose, MariaDB 10.11 reads "appid = ? AND id < ?" by the application alone and
    # skips the rows before the cursor: 107 ms in the middle of 200,000 rows instead of 0.3.
    index_hint = "FORCE INDEX ({})"
    newest = "LOCK IN SHARE MODE"  # also what was committed since the transaction began
    field_types = {
        **peewee.MySQLDatabase.field_types,
        "ASCII": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
        "TEXT": "LONGTEXT CHARACTER SET utf8mb4",
    }

    def __init__(self, url):
        limits = {"read_timeout": STATEMENT_SECONDS, "write_timeout": STATEMENT_SECONDS}
        options = {
            "init_command": SESSION,
            "client_flag": FOUND_ROWS,
        }  # an UPDATE counts matches
        super().__init__(url.name, connect_timeout=3, **limits | options | url.server)

    def is_connection_usable(self):
        """Return whether there is one, not too old, that the server has not closed."""
        handle = self.own.handle
        old = time.monotonic() - handle.since > CONNECTION_SECONDS
        if handle.closed or old or not handle.connection.open:
            return False
        poll = select.poll()
        # A closed socket is readable. Private: PyMySQL's public way asks the server.
        poll.register(handle.connection._sock, select.POLLIN)
        return not poll.poll(0)

    def begin_writing(self, handle):
        handle.transaction = True
        self.execute_sql("BEGIN")

    def execute_sql(self, sql, params=None):
        try:
            return super().execute_sql(sql, params)
        except peewee.PeeweeException:
            raise
        except (
            BaseException
        ):  # an interrupt can leave an answer unread, which the next would have
            self.own.handle.close()
            raise


ENGINES = {"sqlite": SQLite, "mysql": MySQL}
