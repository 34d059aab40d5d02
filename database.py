"""Programs read in a ``connection()`` and write in a ``transaction()``.

The service's own writes are ``@repeated``, within ``db.writing()`` or
``db.one_statement()``.

- Each thread has a connection, from its first use of the database until its end.
- An exception that leaves one of the two, other than a ServiceError, closes it. What is
  used after that within a transaction fails; the next ``connection()`` opens another.
- A transaction belongs to the thread and the task that began it.
- A thread closes its connection before it forks. Never fork within a transaction.
"""

import logging
import os
import random
import time
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps

import peewee

from errors import ServiceError

LOCK_SECONDS = 4  # how long a write waits for locks, and is repeated after conflicts
OUTAGES = ("OperationalError", "InterfaceError", "InternalError", "DatabaseError")
# MySQL: no database, no table. SQLite: the connection was closed in a transaction.
OTHER_OUTAGES = (1046, 1146, "Cannot operate on a closed database.")
CONFLICTS = (
    1020,  # a row changed since it was read
    1050,  # a table was just made
    1205,  # a long wait for a lock
    1213,  # a deadlock, or a conflict in a cluster
    1684,  # a table is being changed
    3101,  # a conflict in a group
    "database is locked",  # many processes open a new file
)

ANOTHER_TASK = (
    "another task's transaction is open in this thread, or this task's in another: "
    "begin and end it in one function, without await or yield"
)

logger = logging.getLogger("profiles")
logging.getLogger("peewee").setLevel(logging.INFO)  # below it, the values of statements


class Keeper:
    """Keeps a thread's connection, and closes it when the thread ends.

    Otherwise a garbage collection closes it, perhaps late: SQLite's refers to itself.
    """

    connection = process = None

    def __init__(self):
        self.begun = []  # the transaction; the task that began it has the same list

    def close(self):
        try:
            self.connection.close()
        except Exception:  # there is none, or it is closed already
            pass

    def __del__(self, getpid=os.getpid):  # the module may be gone when Python ends
        if self.process == getpid():  # not in a forked child
            self.close()


class Engine(peewee.Database):
    """A database whose transactions cannot be joined by chance."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        # Private. Peewee's own lock lets the threads connect one after the other. With
        # a server that hangs, the fourth waits for four time-outs; and a fork may leave
        # it locked.
        self._lock = nullcontext()
        self.begun_by_task = ContextVar("begun_by_task")

    @property
    def keeper(self):
        """The Keeper of this thread."""
        if not hasattr(self._state, "keeper"):
            self._state.keeper = Keeper()
        return self._state.keeper

    def connect(self, reuse_if_open=False):
        """Connect. Whatever fails is an OperationalError."""
        try:
            super().connect(reuse_if_open)
        except Exception as error:
            raise peewee.OperationalError(*error.args) from error
        self.keeper.connection = self._state.conn
        self.keeper.process = os.getpid()

    def _close(self, connection):  # which is the keeper's
        self.keeper.close()

    def check_task(self):
        """Raise RuntimeError unless this thread's transaction is this task's."""
        begun = self.keeper.begun
        if begun != self.begun_by_task.get([]):
            raise RuntimeError(ANOTHER_TASK)
        if not begun and self.in_transaction():
            self.dispose()  # another task or an interrupt has broken it off

    def push_transaction(self, transaction):
        super().push_transaction(transaction)
        self.keeper.begun = [transaction]
        self.begun_by_task.set(self.keeper.begun)

    def pop_transaction(self):
        self.keeper.begun.clear()
        return super().pop_transaction()

    def transaction(self, *args):
        return Transaction(self, *args)

    def savepoint(self):
        return Savepoint(self)

    def rollback(self):
        """Roll back. If that fails, close the connection, which does the same."""
        try:
            super().rollback()
        except Exception:  # the error that led here tells more
            self.keeper.close()


class Transaction(peewee._transaction):
    def __exit__(self, *error):
        """End it, if it is that of this thread and task. Raises RuntimeError."""
        begun = self.db.begun_by_task.get([])
        if not self.db.keeper.begun == begun == [self]:
            raise RuntimeError(ANOTHER_TASK)
        super().__exit__(*error)


class Savepoint(peewee._savepoint):
    def rollback(self, begin=True):
        """Roll back, as a transaction does."""
        try:
            super().rollback(begin)
        except Exception:
            self.db.keeper.close()


db = peewee.DatabaseProxy()  # the database of the process


def close_before_fork():
    if db.obj and not db.in_transaction():
        db.close()


os.register_at_fork(before=close_before_fork)


@contextmanager
def connection():
    """Provide the thread's connection for the block; blocks can be nested.

    Raises ServiceError("database-unavailable") when the database is away, full,
    read-only, locked for too long or lacks a table or a column; its ``__cause__`` says
    which, and so does the log. Raises RuntimeError within another task's transaction.
    """
    db.check_task()
    engine = db.obj
    keeper = engine.keeper  # of the thread in which the block begins
    is_outermost = not engine.in_transaction()
    try:
        if is_outermost and not engine.is_connection_usable():
            engine.close()
            engine.connect()
        yield
    except ServiceError:
        raise
    except BaseException as error:
        keeper.close()
        if is_outermost:  # an interrupt may have left a transaction open
            keeper.begun.clear()
        if is_outage(error):
            reason = str(error).partition(" with text ")[0]  # a value that is no UTF-8
            logger.error("database unavailable: %s", reason)
            raise ServiceError("database-unavailable") from error
        raise


@contextmanager
def transaction():
    """Provide a transaction for the block: all that is written is stored, or nothing.

    It needs no ``connection()`` around it. Blocks within it, and operations, join it.
    On SQLite other writers wait for its end, at most 4 seconds. Raises ServiceError, as
    ``connection()`` does, also after a conflict: the caller may then repeat all of it.
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
                    if is_late or db.in_transaction() or not is_conflict(error):
                        raise
                time.sleep(random.uniform(0.001, 0.02))

    return repeat


def run(sql, *values):
    """Run SQL, with ``?`` for each value; return a cursor.

    Peewee takes 180 µs to build a query.
    """
    return db.execute_sql(sql.replace("?", db.param), values)


def is_outage(error):
    """Return whether the database is away, full, read-only, locked or incomplete."""
    code = error.args[0] if error.args else None
    is_known = type(error).__name__ in OUTAGES or code in OTHER_OUTAGES
    return is_known and is_of_database(error)


def is_conflict(error):
    """Return whether the same work may succeed in a new transaction."""
    code = error.args[0] if error.args else None
    is_known = code in CONFLICTS or "Got error 149" in str(error)  # of a group
    return is_known and is_of_database(error)


def is_of_database(error):
    """Return whether Peewee or a driver has raised the error."""
    library = type(error).__module__.partition(".")[0]
    return library in ("peewee", "pymysql", "sqlite3")
