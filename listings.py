"""Reading a listing: pages and long answers, newest first, by cursor or offset."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from database import connection, run
from errors import ServiceError
from models import ListedModel, Row, as_objects, public_columns
from tables import db
from validators import LARGEST_INTEGER

BATCH = 100  # rows read and held at a time: 6 MB when each fills a whole body


class Page(NamedTuple):
    """A page of a listing: its first batch, the batches to be read, and the next page's cursor."""

    first: list[dict[str, Any]]
    rest: Iterable[list[dict[str, Any]]] = ()
    next: str | None = None
    limit: int = 0

    def whole(self) -> list[dict[str, Any]] | None:
        """Return its rows, at most ``limit`` of them, or None when there is none."""
        return [*self.first, *chain.from_iterable(self.rest)][: self.limit] or None


def read_page(model: ListedModel, scope: dict[str, str], query: dict[str, Any]) -> Page:
    """Return a page of the rows in the scope, which is an appid and perhaps an accountid.

    A long page is read as it is used, a batch at a time. Raises ServiceError("invalid-after").
    """
    limit, after = query["limit"], query.get("after")
    size = min(limit, BATCH)
    with connection():
        rows = read_rows(model, scope, after or LARGEST_INTEGER, size + 1, query["offset"])
        if after and not rows and not run(select_cursor(model), after, scope["appid"]).fetchone():
            raise ServiceError("invalid-after")
        first = as_objects(model, rows[:size])
        if not size or len(rows) <= size:
            return Page(first, limit=limit)
        last = rows[size - 1]
        if limit == size:
            return Page(first, next=last[1], limit=limit)
        end, cursor = 0, None
        if limit < LARGEST_INTEGER:  # the cursor is sent before the rows
            ends = read_rows(model, scope, last[0], 2, limit - size - 1)
            end, cursor = ends[0][:2] if len(ends) == 2 else (0, None)
    return Page(first, further_batches(model, scope, last[0], end), cursor, limit)


def further_batches(
    model: ListedModel, scope: dict[str, str], before: int, end: int
) -> Iterator[list[dict[str, Any]]]:
    """Read the rows older than one id, down to another one, also those committed meanwhile.

    To leave some out could leave out others, which the next page would not show either.
    """
    while before > end:
        with connection():
            rows = read_rows(model, scope, before, BATCH)
        before = rows[-1][0] if len(rows) == BATCH else end
        if kept := [row for row in rows if row[0] >= end]:
            yield as_objects(model, kept)


def read_rows(
    model: ListedModel, scope: dict[str, str], before: int | str, count: int, offset: int = 0
) -> Sequence[Row]:
    """Return rows older than an id or the row of a cursor, by the index on the scope and the id."""
    table, columns = model._meta.table_name, ", ".join(c.name for c in public_columns(model))
    index = db.index_hint.format("_".join((table, *scope, "id")))
    within = " AND ".join(f"{name} = ?" for name in scope)
    bound, values = "?", [*scope.values(), before]
    if isinstance(before, str):
        bound, values = f"({select_cursor(model)})", [*values, scope["appid"]]
    sql = f"""SELECT {columns} FROM {table} {index} WHERE {within} AND id < {bound}
        ORDER BY id DESC LIMIT ? OFFSET ?"""
    return run(sql, *values, count, offset).fetchall()


def select_cursor(model: ListedModel) -> str:
    """Select the id of the row that a cursor names within the application."""
    return f"SELECT id FROM {model._meta.table_name} WHERE {model.PUBLIC_ID} = ? AND appid = ?"
