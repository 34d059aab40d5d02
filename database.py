"""The connection of each thread, transactions, the tables, and compiled statements.

- A thread owns one connection. It is opened at the thread's first use of the database and kept.
- ``connection()`` checks it before use, and replaces it when the server has closed it.
- ``connection()`` closes it after any failure but a ServiceError. It is also closed when its
  thread ends.
- A thread closes its connection before it forks, and the child opens one of its own: an inherited
  SQLite connection would rely on locks that only the parent has. Never fork within a transaction.
- Everything that writes does so in ``write()``. On SQLite it then has the turn to write, one
  thread of one process at a time; on MySQL, InnoDB locks rows.
- After one of the REPEATED errors, ``write()`` repeats its work while its time lasts.
"""

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any, TypeVar

import peewee

from config import DatabaseURL
from engines import AFTERMATH, AWAY, ID_TAKEN, LOCK_SECONDS, NO_TABLE, REPEATED, MySQL, SQLite
from errors import ServiceError

T = TypeVar("T")

db = peewee.DatabaseProxy()
logger = logging.getLogger("app")  # the Flask app's


class AsciiField(peewee.TextField):
    """Identifiers, hashes and timestamps: at most 64 ASCII characters, compared byte for byte."""

    field_type = "ASCII"


class Table(peewee.Model):
    class Meta:
        database = db


def bind(url: DatabaseURL) -> None:
    """Make this the database of the process, without connecting yet."""
    if db.obj is not None:
        db.close()
    db.initialize(SQLite(url) if url.engine == "sqlite" else MySQL(url))


os.register_at_fork(before=lambda: db.obj and not db.in_transaction() and db.close())


@contextmanager
def connection() -> Iterator[None]:
    """Provide the thread's connection for the block; blocks can be nested.

    The first block of a process makes the tables. Raises ServiceError("database-unavailable")
    when the database is away, full, read-only, locked for too long or lacks a table or a column;
    its ``__cause__`` says which, and so does a line of the log.
    """
    try:
        if not db.in_transaction() and not db.is_connection_usable():
            db.close()
            db.connect()
        if not db.tables_made:
            write(create_tables, seconds=60)
        yield
    except ServiceError:
        raise
    except BaseException as error:
        if not db.in_transaction():
            db.close()
        cause = first_cause(error)
        if isinstance(cause, ServiceError):
            raise cause from cause.__cause__
        library, name = type(cause).__module__.partition(".")[0], type(cause).__name__
        lacks_table = name == "ProgrammingError" and cause.args[0] in NO_TABLE
        if library in ("peewee", "pymysql", "sqlite3") and (name in AWAY or lacks_table):
            logger.error("database unavailable: %s", cause)
            raise ServiceError("database-unavailable") from cause
        if isinstance(error, peewee.DataError | peewee.IntegrityError):
            raise type(error)(error.args[0]) from None  # MySQL's text quotes values
        raise


def first_cause(error: BaseException) -> BaseException:
    """Return the error that broke a transaction, not that of the ROLLBACK that followed."""
    while error.args[:1] in AFTERMATH and error.__context__:
        error = error.__context__
    return error


def write(work: Callable[[], T], *, atomic: bool = False, seconds: float = LOCK_SECONDS) -> T:
    """Do the work, which writes, and return what it returns.

    ``atomic`` for work of several statements: all of them are stored, or none. Work is repeated,
    for at most ``seconds``, when another process took its id or, outside a transaction of the
    caller's, after one of the REPEATED errors. The work must not call ``write()`` itself.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            with db.write_turn(), db.atomic() if atomic else nullcontext():
                return work()
        except peewee.PeeweeException as error:
            taken = isinstance(error, peewee.IntegrityError) and error.args[-1].endswith(ID_TAKEN)
            temporary = first_cause(error).args[:1] in REPEATED and not db.in_transaction()
            if not (taken or temporary) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def create_tables() -> None:
    """Make the tables and indexes that are missing; safe for many processes and nodes at once.

    It is work for ``write()``. Raises peewee.OperationalError for a table that lacks a column.
    """
    db.prepare()
    for model in Table.__subclasses__():
        model._meta.table_settings = db.table_settings
        model.create_table()
        table = model._meta.table_name
        existing = {name for (name,) in db.execute_sql(db.index_names, (table,))}
        for names, unique in model._meta.indexes:
            if "_".join((table, *names)) not in existing:
                fields = [model._meta.fields[name] for name in names]
                db.execute(model.index(*fields, unique=unique, safe=False))
        columns = db.execute_sql(f"SELECT * FROM {table} LIMIT 0").description
        if missing := model._meta.columns.keys() - {column[0] for column in columns}:
            raise peewee.OperationalError(f"table {table} lacks {', '.join(sorted(missing))}")
    db.obj.tables_made = True


def parameter(name: str) -> peewee.Value:
    """Return the placeholder of a parameter in a statement."""
    return peewee.Value(name, converter=False)


class Statement:
    """A query, compiled once for each variant of it: Peewee needs 180 µs to build one.

    Called with the variant's arguments and the values of its parameters; returns a cursor. Every
    value in the query must be a ``parameter()``.
    """

    def __init__(self, build: Callable[..., peewee.Query]) -> None:
        self.build = build
        self.compiled = lru_cache(lambda engine, *variant: build(*variant).sql())

    def __call__(self, *variant: Any, **parameters: Any) -> Any:
        sql, names = self.compiled(db.engine, *variant)
        return db.execute_sql(sql, [parameters[name] for name in names])
