"""Read in a ``connection()``, write in a ``transaction()``.

- A thread opens a connection at its first use of the database, and keeps it until the thread ends.
- Whatever leaves one of the two by an exception other than a ServiceError closes the connection.
  What is used after that in a transaction fails; the next ``connection()`` opens another one.
- It also replaces one that the server has closed, that is old, or that leads to a replaced file.
- A thread closes its connection before it forks: an inherited one of SQLite relies on locks that
  only the parent has. Never fork within a transaction.
"""

import logging
import os
import random
import threading
import time
from contextlib import closing, contextmanager, suppress
from functools import wraps

import peewee

from errors import ServiceError, SettingError

LOCK_SECONDS = (
    4  # how long a write may wait for a lock, and is repeated after conflicts
)
OUTAGES = ("OperationalError", "InterfaceError", "InternalError", "DatabaseError")
OTHER_OUTAGES = (
    1046,
    1146,
    "Cannot operate on a closed database.",
)  # no database, no table
# A row changed since it was read; a table just made; a long wait for a lock; a deadlock, or a
# cluster's conflict; a table being changed; a group's conflict; many processes open a new file.
CONFLICTS = (1020, 1050, 1205, 1213, 1684, 3101, "database is locked")

logger = logging.getLogger("profiles")
db = peewee.DatabaseProxy()  # the database of the process
os.register_at_fork(before=lambda: db.obj and not db.in_transaction() and db.close())


class Handle:
    """A thread's connection, closed when the thread ends, and with it this object."""

    transaction = False  # whether it is in one, which another thread may end

    def __init__(self, connection=None, file=None):
        self.connection, self.closed, self.file = connection, connection is None, file
        self.process, self.since = os.getpid(), time.monotonic()

    def close(self):
        self.closed = True
        if self.process == os.getpid():  # not in a forked child
            with (
                suppress(Exception),
                closing(self.connection),
            ):  # perhaps it is closed already
                if self.file:  # SQLite's lock would last as long as any cursor
                    self.connection.rollback()

    __del__ = close


class Own(threading.local):
    handle = Handle()  # each thread's


@contextmanager
def connection(engine=db):
    """Provide the thread's connection for the block; blocks can be nested.

    Raises ServiceError("database-unavailable") when the database is away, full, read-only, locked
    for too long or lacks a table or a column; its ``__cause__`` says which, and so does the log.
    """
    handle = engine.own.handle
    try:
        if not engine.in_transaction() and not engine.is_connection_usable():
            engine.close()
            engine.connect()
            handle = engine.own.handle
        yield
    except ServiceError:
        raise
    except BaseException as error:
        handle.close()
        reason = str(error).partition(" with text ")[
            0
        ]  # which is a value that is no UTF-8
        if engine.refused and is_of_database(error):
            raise SettingError("DATABASE_URL", engine.refused, reason) from error
        if is_outage(error):
            logger.error("database unavailable: %s", reason)
            raise ServiceError("database-unavailable") from error
        raise


@contextmanager
def transaction():
    """Provide a transaction for the block: all that is written in it is stored, or nothing is.

    It needs no ``connection()`` around it. Blocks within it, and operations, join it. On SQLite
    other writers wait for its end, for at most 4 seconds. Raises ServiceError, as ``connection()``
    does, also after a conflict with another transaction: the caller may then repeat all of it.
    """
    with connection(), db.writing():
        yield


def repeated(work):
    """Decorate work that is repeated after a conflict, for 4 seconds, unless it is part of more."""

    @wraps(work)
    def repeat(*args, **options):
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return work(*args, **options)
            except Exception as error:
                if (
                    not is_conflict(error)
                    or db.in_transaction()
                    or time.monotonic() > deadline
                ):
                    raise
            time.sleep(random.uniform(0.001, 0.02))

    return repeat


def run(sql, *values):
    """Run SQL, with ``?`` for each value; return a cursor. Peewee takes 180 µs to build a query."""
    return db.execute_sql(sql.replace("?", db.param), values)


def is_outage(error):
    """Return whether the database is away, full, read-only, locked or incomplete."""
    known = type(error).__name__ in OUTAGES or (*error.args, None)[0] in OTHER_OUTAGES
    return known and is_of_database(error)


def is_conflict(error):
    """Return whether the same work may succeed when it is repeated in a new transaction."""
    code, *text = error.args or (None,)
    known = code == 1180 and "Got error 149" in str(
        text
    )  # of a group; 1180 has other reasons
    return is_of_database(error) and (known or code in CONFLICTS)


def is_of_database(error):
    return type(error).__module__.partition(".")[0] in ("peewee", "pymysql", "sqlite3")
