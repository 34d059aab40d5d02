"""The copy of a database."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from config import DatabaseURL
from database import ENGINES, Engine, db
from errors import CommandError
from models import MODELS, ModelType, add_missing, create_tables
from outages import DATABASE_ERRORS, describe_error, describe_failure
from rows import select_batches


def count_rows() -> int:
    """Return how many rows there are to copy; more may be written meanwhile."""
    return sum(model.select().count() for model in MODELS)


def copy_database(url: DatabaseURL) -> Iterator[tuple[str, int]]:
    """Copy all rows of one moment into an empty database, or none.

    Yields ``accounts``, ``profiles`` or ``sessions`` and how many were just copied. The
    rows are stored at the end of the iteration. Raises CommandError.
    """
    target = ENGINES[url.engine](url)
    try:
        with closing(target):
            target.lift_limits()
            if url.engine == "sqlite":
                # In WAL mode, nothing would report a disk that is full when the last
                # connection moves the rows from the -wal file into the database.
                target.pragma("journal_mode", "delete")
            create_tables(target)
            add_missing(target)  # an older version may have created the tables
            yield from copy_rows(target)
    except DATABASE_ERRORS as error:  # read_rows() has caught those of the source
        raise CommandError(f"the target: {describe_error(error)}") from None


def copy_rows(target: Engine) -> Iterator[tuple[str, int]]:
    """Copy all rows of one moment, or none; yield as copy_database() does."""
    with target.atomic():
        if any(model.select().exists(target) for model in MODELS):
            raise CommandError("the target already has rows")
        for model, rows in read_rows():
            insert_rows(target, model, rows)
            yield f"{model._meta.table_name}s", len(rows)


def read_rows() -> Iterator[tuple[ModelType, list[tuple[Any, ...]]]]:
    """Yield models, each with rows of its table, until all rows of one moment are read.

    Raises CommandError if the source fails. The error is caught here, because
    copy_database() reports any other as the target's.
    """
    try:
        with db.atomic(db.snapshot):
            for model in MODELS:
                # Fewer would be slower, and more would take much memory.
                for rows in select_batches(model.select(), 250):
                    yield model, rows
    except DATABASE_ERRORS as error:
        raise CommandError(describe_failure(error)) from None


def insert_rows(target: Engine, model: ModelType, rows: list[tuple[Any, ...]]) -> None:
    """Insert rows, which are tuples in the order of the model's fields.

    The driver's executemany() is faster than Peewee's insert_many(), and PyMySQL's
    sends statements of up to 1 MB, or of one row, so that only a row that is itself too
    long exceeds max_allowed_packet.
    """
    insertion = model.insert(dict.fromkeys(model._meta.sorted_field_names))
    sql, _ = target.get_sql_context().parse(insertion)
    target.cursor().executemany(sql, rows)
