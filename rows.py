"""Rows found, changed, stored, and read in pages.

The statements of most requests are SQL: Peewee takes 180 µs to build one, as long as a
database takes to answer it. All others are Peewee's own expressions.
"""

from collections import namedtuple

from peewee import IntegrityError

from database import connection, db, repeated, run
from errors import ServiceError
from models import (
    MODELS,
    Account,
    Session,
    as_objects,
    now,
    public_columns,
    timestamp,
)
from validators import LARGEST_INTEGER, is_identifier

BATCH = 100  # rows read by one statement

# A page of a listing: its first objects, an iterator of lists with the rest of them,
# and the identifier that its next page comes after, or None.
Page = namedtuple("Page", "first rest next")


def find_caller(appid, token_hash, moment):
    """Return the accountid of a session that runs, and if it is an administrator's."""
    sql = """SELECT accountid, administrator
        FROM session JOIN account USING (accountid, appid)
        WHERE appid = ? AND tokenHash = ? AND expiresAt > ? AND endedAt IS NULL"""
    return run(sql, appid, token_hash, moment).fetchone()


def find(model, identifier, appid=None):
    """Return the object with this identifier, of any application or of this one.

    Raises invalid-accountid, invalid-profileid or invalid-sessionid: 400 if none is
    given, 404 if it is unknown.
    """
    found = find_or_none(model, identifier)
    if not found or appid not in (None, found["appid"]):
        raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404 if identifier else 400)
    return found


def find_or_none(model, identifier):
    """Return the object with this identifier, or None."""
    if not is_identifier(model.PREFIX, identifier):
        return None
    columns = ", ".join(public_columns(model))
    sql = f"SELECT {columns} FROM {model.TABLE} WHERE {model.PUBLIC_ID} = ?"
    with connection():
        found = as_objects(model, run(sql, identifier))
    return found[0] if found else None


@repeated
def write(query):
    """Execute a statement of Peewee that writes; return how many rows it changed."""
    with db.one_statement():
        return query.execute()


@repeated
def update(model, identifier, changes):
    """Change columns of a row; return the changes, with updatedAt. Raises as find()."""
    with db.one_statement():
        changes = changes | {"updatedAt": timestamp(now())}
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
    except IntegrityError:  # it is stored already, or its nanosecond is another row's
        existing = find_or_none(model, values[model.PUBLIC_ID])
    return existing or insert_once(model, values, default)


def insert_once(model, values, default):
    owner = values["accountid"], values["appid"]
    with db.writing() if default else db.one_statement():
        if default:
            # The account is locked first: a moment from before the wait for it would
            # put the row behind rows that were listed meanwhile.
            update(Account, owner[0], {"profileid": values["profileid"]})
        moment = now()
        made = timestamp(moment)
        row = values | {"id": moment, "createdAt": made, "updatedAt": made}
        if model is Session:
            expires_at = timestamp(moment + row["duration"] * 10**9)
            row |= {"lastVerifiedAt": made, "expiresAt": expires_at}
        marks = ", ".join("?" * len(row))
        # It inserts nothing if the account is gone.
        sql = f"""INSERT INTO {model.TABLE} ({", ".join(row)})
            SELECT {marks} FROM account WHERE accountid = ? AND appid = ?"""
        if not run(sql, *row.values(), *owner).rowcount:
            raise ServiceError("invalid-accountid", 404)
    return as_objects(model, [map(row.get, public_columns(model))])[0]


def read_page(model, scope, limit, offset, after):
    """Return a page of the rows in the scope: an appid and perhaps an accountid.

    Up to 100 rows are read at once. A longer page, or all rows if the limit is None, is
    read as it is used. Until ``rest`` has ended or is closed, the thread is in a
    transaction: nothing else may use its connection. Raises invalid-after.
    """
    with connection():
        before_id = find_id(model, scope, after) if after else LARGEST_INTEGER
        if limit is not None and limit <= BATCH:
            rows = read_rows(model, scope, before_id, limit + 1, offset)
            objects = as_objects(model, rows[:limit])
            has_more = objects and len(rows) > limit
            return Page(objects, (), objects[-1][model.PUBLIC_ID] if has_more else None)
        batches = read_batches(model, scope, before_id, limit, offset)
        try:
            first = next(batches, [])  # begins the transaction; the next line joins it
            after_page = limit and find_next(model, scope, before_id, limit + offset)
        except BaseException:
            batches.close()
            raise
        return Page(first, batches, after_page)


def read_batches(model, scope, before_id, limit, offset):
    """Yield the rows as lists of objects, all of one moment of the database."""
    left = LARGEST_INTEGER if limit is None else limit
    with connection(), db.atomic(db.one_moment):
        while left:
            rows = read_rows(model, scope, before_id, min(left, BATCH), offset)
            if not rows:
                return
            yield as_objects(model, rows)
            left -= len(rows)
            before_id = rows[-1][0]
            offset = 0


def find_next(model, scope, before_id, count):
    """Return the identifier of row number ``count``, or None if no row follows it."""
    offset = min(count - 1, LARGEST_INTEGER)
    rows = read_rows(model, scope, before_id, 2, offset)
    return as_objects(model, rows)[0][model.PUBLIC_ID] if len(rows) > 1 else None


def read_rows(model, scope, before_id, count, offset):
    """Return the public columns of rows older than an id, the newest first.

    The id is the first of them. The index is that of a constraint in models.py: it
    begins with the scope, in its order, and ends with the id.
    """
    columns = ", ".join(public_columns(model))
    index = db.index_hint.format("_".join((model.TABLE, *scope, "id")))
    condition = " AND ".join(f"{name} = ?" for name in scope)
    sql = f"""SELECT {columns} FROM {model.TABLE} {index}
        WHERE {condition} AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"""
    return run(sql, *scope.values(), before_id, count, offset).fetchall()


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
            list(model.select().limit(1).tuples())
