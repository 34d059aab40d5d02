"""Read in a ``connection()``, write in a ``transaction()``.

- A thread opens a connection at its first use of the database, and keeps it. It is closed after
  any failure but a ServiceError, and when the thread ends.
- ``connection()`` checks it before use, and replaces it when the server has closed it, when it is
  old, or when another file is in the place of SQLite's.
- A thread closes it before it forks, and the child opens one of its own: an inherited SQLite
  connection would rely on locks that only the parent has. Never fork within a transaction.
"""

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import peewee

from database_url import DatabaseURL
from engines import LOCK_SECONDS, STATEMENT_SECONDS, Engine, MySQL, SQLite
from errors import ServiceError
from failures import first_cause, is_conflict, is_id_taken, is_outage, shown
from tables import db, make_tables

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("profiles")


def bind(url: DatabaseURL) -> None:
    """Make this the database of the process, without connecting yet."""
    if db.obj is not None:
        db.close()
    db.initialize(open_database(url))


def open_database(url: DatabaseURL, seconds: int = STATEMENT_SECONDS) -> Engine:
    """Return a database, without connecting yet; ``seconds``: how long to wait for MySQL."""
    engine = SQLite(url) if url.engine == "sqlite" else MySQL(url, seconds)
    engine.first_use = repeated(make_tables)
    return engine


os.register_at_fork(before=lambda: db.obj and not db.in_transaction() and db.close())


@contextmanager
def connection() -> Iterator[None]:
    """Provide the thread's connection for the block; blocks can be nested.

    Raises ServiceError("database-unavailable") when the database is away, full, read-only, locked
    for too long or lacks a table or a column; its ``__cause__`` says which, and so does the log.
    """
    try:
        if not db.in_transaction() and not db.is_connection_usable():
            db.close()
            db.connect()
        yield
    except ServiceError:
        raise
    except BaseException as error:
        cause = first_cause(error)
        if not db.in_transaction():
            db.close()
        elif is_outage(cause):  # what follows in this transaction fails, too, and is not stored
            with suppress(Exception):  # it is closed already
                db.connection().close()
        if isinstance(cause, ServiceError):
            raise cause from cause.__cause__
        if is_outage(cause):
            logger.error("database unavailable: %s", shown(cause))
            raise ServiceError("database-unavailable") from cause
        if isinstance(error, peewee.DataError | peewee.IntegrityError):
            raise type(error)(error.args[0]) from None  # MySQL's text quotes values
        raise


@contextmanager
def transaction() -> Iterator[None]:
    """Provide a transaction for the block: all that is written in it is stored, or nothing is.

    It needs no ``connection()`` around it. Blocks within it, and operations, join it. On SQLite
    other writers wait for its end, for at most 4 seconds. Raises ServiceError, as ``connection()``
    does, also when MySQL has rolled it back because of a conflict: the caller may then repeat it,
    and must not catch an error of the database within the block.
    """
    with connection(), db.writing(several=True):
        yield


def repeated(work: Callable[P, T]) -> Callable[P, T]:
    """Decorate work that is repeated after a conflict, for 4 seconds, unless it is part of more."""

    @wraps(work)
    def repeat(*args: P.args, **options: P.kwargs) -> T:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return work(*args, **options)
            except peewee.PeeweeException as error:
                conflict = is_conflict(error) and not db.in_transaction()
                if not (conflict or is_id_taken(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.001, 0.02))

    return repeat


def run(sql: str, *values: Any) -> Any:
    """Run SQL, with ``?`` for each value; return a cursor. Peewee takes 180 µs to build a query."""
    return db.execute_sql(sql.replace("?", db.param), values)
