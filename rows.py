"""Rows found, changed, stored, and read in pages and batches. Called within a ``connection()``."""

from collections import namedtuple
from contextlib import suppress

from peewee import IntegrityError

from database import connection, db, repeated, run
from errors import ServiceError
from models import MODELS, Account, Object, as_objects, now, public_columns, timestamp
from validators import LARGEST_INTEGER, is_identifier

LONGEST_PAGE = 1_000  # rows read by one statement
BATCH = 100  # rows of a longer answer that are held at a time: 6 MB when each fills a whole body

# Of a listing: objects, more batches of objects to be read, and the next page's cursor.
Page = namedtuple("Page", "first rest next", defaults=((), None))


def find(model, identifier, appid=None, *, lock="") -> Object:
    """Return the object with this identifier. Raises invalid-…: 400 if not given, else 404."""
    columns = ", ".join(public_columns(model))
    sql = f"SELECT {columns} FROM {model.TABLE} WHERE {model.PUBLIC_ID} = ? {lock}"
    known = is_identifier(model.PREFIX, identifier)
    found = as_objects(model, run(sql, identifier)) if known else []
    if not found or appid not in (None, found[0]["appid"]):
        raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404 if identifier else 400)
    return found[0]


@repeated
def update(model, identifier, **changes) -> Object:
    """Change columns of a row; return the changes, with updatedAt. Raises invalid-…, 404."""
    with db.writing(several=False):
        changes["updatedAt"] = timestamp(now())
        columns = ", ".join(f"{name} = ?" for name in changes)
        sql = f"UPDATE {model.TABLE} SET {columns} WHERE {model.PUBLIC_ID} = ?"
        if not run(sql, *changes.values(), identifier).rowcount:
            raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404)
    return changes


@repeated
def insert(model, values, *, default=False) -> Object:
    """Store a row, perhaps as its account's default; return its object, or one with the same id.

    Raises invalid-accountid when the account of the row is not there any more.
    """
    try:
        return insert_once(model, values, default)
    except IntegrityError:
        with suppress(ServiceError):
            return find(model, values[model.PUBLIC_ID], lock=db.newest)
    return insert_once(model, values, default)  # its nanosecond was another process's


def insert_once(model, values, default):
    with db.writing(several=default):
        if (
            default
        ):  # before the row has its moment, as this may wait for the account's row
            update(Account, values["accountid"], profileid=values["profileid"])
        moment, names = now(), model._meta.sorted_field_names
        row = dict.fromkeys(
            ("createdAt", "updatedAt", "lastVerifiedAt"), timestamp(moment)
        )
        row["expiresAt"] = timestamp(moment + values.get("duration", 0) * 10**9)
        row |= values | {"id": moment}
        sql = f"INSERT INTO {model.TABLE} ({', '.join(names)}) SELECT {', '.join('?' * len(names))}"
        if (
            model is not Account
        ):  # if its account is there and stays there: its row is locked
            sql += " FROM account WHERE accountid = ? AND appid = ?"
            names = [*names, "accountid", "appid"]
        if not run(sql, *map(row.get, names)).rowcount:
            raise ServiceError("invalid-accountid", 404)
    return as_objects(model, [[row.get(name) for name in public_columns(model)]])[0]


@repeated
def change(query) -> int:
    """Run Peewee's UPDATE or DELETE; return how many rows it changed."""
    with db.writing(several=False):
        return query.execute()


def read_page(model, scope, limit, offset, after) -> Page:
    """Return a page of the rows in the scope, which is an appid and perhaps an accountid.

    One of over 1,000 rows is read as it is used, and has no cursor. Raises invalid-after.
    """
    before, size = LARGEST_INTEGER, limit if limit <= LONGEST_PAGE else BATCH
    with connection():
        if after:
            select = f"SELECT id FROM {model.TABLE} WHERE {model.PUBLIC_ID} = ? AND appid = ?"
            found = run(select, after, scope["appid"]).fetchone()
            if not found:
                raise ServiceError("invalid-after")
            before = found[0]
        rows = read_rows(model, scope, before, size + 1, offset)
    first = as_objects(model, rows[:size])
    if not size or len(rows) <= size:
        return Page(first)
    before, cursor, *_ = rows[size - 1]
    if limit == size:
        return Page(first, next=cursor)
    return Page(first, further_batches(model, scope, before, limit - size))


def further_batches(model, scope, before, left):
    """Read so many rows older than an id, a batch at a time."""
    while left:
        with connection():
            rows = read_rows(model, scope, before, min(BATCH, left))
        if not rows:
            return
        yield as_objects(model, rows)
        before, left = rows[-1][0], left - len(rows)


def read_rows(model, scope, before, count, offset=0):
    """Return rows older than an id, by the index on the scope and the id."""
    index = db.index_hint.format("_".join((model.TABLE, *scope, "id")))
    within = " AND ".join(f"{name} = ?" for name in scope)
    sql = f"""SELECT {", ".join(public_columns(model))} FROM {model.TABLE} {index}
        WHERE {within} AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"""
    return run(sql, *scope.values(), before, count, offset).fetchall()


def read_tables():
    """Read every column of a row of each table. The log names a column that is missing."""
    with connection():
        for model in MODELS:
            columns = ", ".join(model._meta.sorted_field_names)
            run(f"SELECT {columns} FROM {model.TABLE} LIMIT 1").fetchone()
