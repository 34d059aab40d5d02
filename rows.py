"""Rows found, changed, stored, copied, and read in pages: the SQL of requests."""

from collections import namedtuple
from contextlib import suppress
from itertools import chain

from peewee import DatabaseError, IntegrityError

from database import connection, db, repeated, run
from errors import ServiceError
from models import (
    MODELS,
    Account,
    as_objects,
    now,
    public_columns,
    timestamp,
)
from validators import LARGEST_INTEGER, is_identifier

BATCH = 100  # rows read by one statement
BATCH_BYTES = 6_553_600  # of a batch whose rows each fill a body of 65,536 bytes
ANY_ROW = """SELECT 1 FROM account UNION ALL SELECT 1 FROM profile
    UNION ALL SELECT 1 FROM session LIMIT 1"""

Page = namedtuple("Page", "batches next")  # lists of objects; the next page's cursor


def find(model, identifier, appid=None, *, lock=""):
    """Return the object with this identifier, of any application or of this one.

    Raises invalid-…: 400 if none is given, 404 if it is unknown.
    """
    columns = ", ".join(public_columns(model))
    sql = f"SELECT {columns} FROM {model.TABLE} WHERE {model.PUBLIC_ID} = ? {lock}"
    found = []
    if is_identifier(model.PREFIX, identifier):
        found = as_objects(model, run(sql, identifier))
    if not found or appid not in (None, found[0]["appid"]):
        raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404 if identifier else 400)
    return found[0]


@repeated
def update(model, identifier, **changes):
    """Change columns of a row; return the changes, with updatedAt. Raises invalid-…."""
    with db.one_statement():
        changes["updatedAt"] = timestamp(now())
        columns = ", ".join(f"{name} = ?" for name in changes)
        sql = f"UPDATE {model.TABLE} SET {columns} WHERE {model.PUBLIC_ID} = ?"
        if not run(sql, *changes.values(), identifier).rowcount:
            raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404)
    return changes


@repeated
def insert(model, values, *, default=False):
    """Store an account's profile or session; return its object.

    With ``default``, a profile also becomes the account's default: both are stored, or
    none. If there is one with the same identifier, return that and store nothing.
    Raises invalid-accountid when the account is not there any more.
    """
    try:
        return insert_once(model, values, default)
    except IntegrityError:
        with suppress(ServiceError):
            return find(model, values[model.PUBLIC_ID], lock=db.read_latest)
    return insert_once(model, values, default)  # another row was made in its nanosecond


def insert_once(model, values, default):
    columns = model._meta.sorted_field_names
    marks = ", ".join("?" * len(columns))
    sql = f"""INSERT INTO {model.TABLE} ({", ".join(columns)})
        SELECT {marks} FROM account WHERE accountid = ? AND appid = ?"""
    accountid = values["accountid"]
    with db.writing() if default else db.one_statement():
        if default:
            # The account is locked first: a moment from before the wait for it would
            # put the row behind rows that were listed meanwhile. The update is not
            # repeated by itself, since a conflict undoes the whole transaction.
            update.__wrapped__(Account, accountid, profileid=values["profileid"])
        row = values | moments(now(), values.get("duration", 0))
        cursor = run(sql, *map(row.get, columns), accountid, values["appid"])
        if not cursor.rowcount:  # there is no such account
            raise ServiceError("invalid-accountid", 404)
    public = map(row.get, public_columns(model))
    return as_objects(model, [public])[0]


def moments(moment, duration):
    """Return the columns of a new row that follow from its moment."""
    made = timestamp(moment)
    return {
        "id": moment,
        "createdAt": made,
        "updatedAt": made,
        "lastVerifiedAt": made,
        "expiresAt": timestamp(moment + duration * 10**9),
    }


@repeated
def change(sql, *values):
    """Run one statement that writes; return how many rows it changed."""
    with db.one_statement():
        return run(sql, *values).rowcount


def read_page(model, scope, limit, offset, after, most_bytes):
    """Return a page of the rows in the scope: an appid and perhaps an accountid.

    A page of up to 100 rows is read at once. A longer one is read as it is used, down
    to the row that is its last one now: in batches of 100 rows, or of fewer if a body
    may have more than 65,536 bytes. Raises invalid-after.
    """
    with connection():
        before = find_id(model, scope, after) if after else LARGEST_INTEGER
        if limit <= BATCH:
            rows = read_rows(model, scope, before, limit + 1, offset)
            objects = as_objects(model, rows[:limit])
            has_more = objects and len(rows) > limit
            return Page([objects], objects[-1][model.PUBLIC_ID] if has_more else None)
        last, following = find_end(model, scope, before, offset + limit)
        size = max(1, min(BATCH, BATCH_BYTES // most_bytes))
        batches = read_batches(model, scope, before, last, size, offset)
        first = next(batches, [])  # fails before anything is sent
    return Page(chain([first], batches), following)


def find_end(model, scope, before, count):
    """Return the id of row number ``count``, and its identifier if there are more."""
    if count >= LARGEST_INTEGER:  # everything is asked for
        return 0, None
    rows = read_rows(model, scope, before, 2, count - 1, f"id, {model.PUBLIC_ID}")
    last, identifier = rows[0] if rows else (0, None)
    return last, identifier if len(rows) > 1 else None


def read_batches(model, scope, before, last, size, offset):
    """Read the rows older than ``before``, down to the last, as lists of objects."""
    while before > last:
        with connection():
            rows = read_rows(model, scope, before, size, offset)
        rows = [row for row in rows if row[0] >= last]
        if not rows:
            return
        yield as_objects(model, rows)
        before = rows[-1][0]
        offset = 0


def read_rows(model, scope, before, count, offset, columns=None):
    """Return rows older than an id, the newest first: the public columns, or others.

    The id is the first of them. They are read by the index on the scope and the id.
    """
    columns = columns or ", ".join(public_columns(model))
    index = db.index_hint.format("_".join((model.TABLE, *scope, "id")))
    condition = " AND ".join(f"{name} = ?" for name in scope)
    sql = f"""SELECT {columns} FROM {model.TABLE} {index}
        WHERE {condition} AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"""
    return run(sql, *scope.values(), before, count, offset).fetchall()


def find_id(model, scope, identifier):
    """Return the id of a row of the application. Raises invalid-after."""
    sql = f"SELECT id FROM {model.TABLE} WHERE {model.PUBLIC_ID} = ? AND appid = ?"
    row = run(sql, identifier, scope["appid"]).fetchone()
    if not row:
        raise ServiceError("invalid-after")
    return row[0]


def read_tables():
    """Read every column of each table. The log names a column that is missing."""
    with connection():
        for model in MODELS:
            columns = ", ".join(model._meta.sorted_field_names)
            run(f"SELECT {columns} FROM {model.TABLE} LIMIT 1").fetchone()


def copy_rows(model, target):
    """Copy the rows of a table to another database, by their key.

    Yield how many each statement has copied. Raises peewee.DatabaseError when the
    target has not stored all.
    """
    columns = model._meta.sorted_field_names
    key, names = columns[0], ", ".join(columns)
    marks = ", ".join([target.param] * len(columns))
    insert = f"INSERT INTO {model.TABLE} ({names}) VALUES ({marks})"
    source = f"{model.TABLE} WHERE {key} > ? ORDER BY {key} LIMIT 500"
    last = "" if model is Account else 0
    while True:
        with connection():
            rows = run(f"SELECT {names} FROM {source}", last).fetchall()
        if not rows:
            return
        cursor = target.cursor()
        cursor.executemany(insert, rows)
        if cursor.rowcount != len(rows):
            raise DatabaseError(f"has another number of {model.TABLE}s")
        yield len(rows)
        last = rows[-1][0]
