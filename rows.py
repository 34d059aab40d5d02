"""Read, store, update and list rows.

Hot-path queries are raw SQL, because Peewee takes 180 µs to build one, as long as a
database takes to answer it. All others are Peewee's expressions.
"""

import time
from collections import namedtuple

from peewee import IntegrityError

from database import db, retry_on_conflict, run_sql
from errors import ServiceError
from models import Account, Session, as_object, now, timestamp
from validators import MAX_INT64, is_identifier

# ``scope``: columns and their values, which the listed rows have. ``cursor_scope``: the
# same for the row ``after``. An administrator who lists one account may continue after
# any row of the application.
Listing = namedtuple("Listing", "model scope cursor_scope")


def get_object(model, identifier, appid=None):
    """Return the object with this identifier, in one application or in any.

    Raises invalid-accountid, invalid-profileid or invalid-sessionid: 400 if none is
    given, 404 if it is unknown.
    """
    existing = get_object_or_none(model, identifier)
    if not existing or appid not in (None, existing["appid"]):
        raise ServiceError(f"invalid-{model.TABLE}id", 404 if identifier else 400)
    return existing


def get_object_or_none(model, identifier):
    """Return the object with this identifier, or None."""
    if is_identifier(model.PREFIX, identifier):
        sql = f"SELECT {model.SELECT_LIST} FROM {model.TABLE} WHERE {model.TABLE}id = ?"
        row = run_sql(sql, identifier).fetchone()
        if row:
            return as_object(model, row)


@retry_on_conflict
def update(model, identifier, changes):
    """Change columns of a row; return the changes, with updatedAt.

    Raises invalid-accountid or invalid-profileid, 404, if there is no such row.
    """
    changes = changes | {"updatedAt": timestamp(now())}
    columns = ", ".join(f"{name} = ?" for name in changes)
    sql = f"UPDATE {model.TABLE} SET {columns} WHERE {model.TABLE}id = ?"
    if not run_sql(sql, *changes.values(), identifier).rowcount:
        raise ServiceError(f"invalid-{model.TABLE}id", 404)
    return changes


def lock_account(accountid):
    """Lock the account row: inserts for it block on the foreign key until the commit.

    Raises invalid-accountid, 404.
    """
    update(Account, accountid, {})


@retry_on_conflict
def insert(model, values, *, as_default=False):
    """Store an account's profile or session; return its object.

    With ``as_default``, a profile also becomes the account's default: both are stored,
    or neither. If the identifier exists, return that object and store nothing. Raises
    invalid-accountid if the account is gone.
    """
    store = insert_default_profile if as_default else insert_row
    try:
        return store(model, values)
    except IntegrityError:
        # The identifier exists: the key was used before, or the INSERT was resent.
        existing = get_object_or_none(model, values[f"{model.TABLE}id"])
        if existing:
            return existing
        # Or the account was deleted after the caller was authenticated: this raises.
        get_object(Account, values["accountid"], values["appid"])
        # Or another process stored a row in this nanosecond. The next one is free.
        return store(model, values)


def insert_default_profile(model, values):
    """Store a profile and make it the account's default, in one transaction."""
    with db.atomic():
        # This locks the account, so that of two concurrent defaults the last wins.
        update(Account, values["accountid"], {"profileid": values["profileid"]})
        return insert_row(model, values)


def insert_row(model, values):
    """Store a new row; return its object."""
    row = new_row(model, values)
    placeholders = ", ".join("?" for _ in row)
    sql = f"INSERT INTO {model.TABLE} ({', '.join(row)}) VALUES ({placeholders})"
    run_sql(sql, *row.values())
    # A property that is no column, or whose column is not set, is None.
    return as_object(model, [row.get(name) for name in model.PROPERTIES])


def new_row(model, values):
    """Return the columns of a new row: the values, its id and its timestamps."""
    reading = time.time_ns()
    row_id = now(reading)
    created_at = timestamp(row_id)
    row = values | {"id": row_id, "createdAt": created_at, "updatedAt": created_at}
    if model is Session:
        row["lastVerifiedAt"] = created_at
        row["expiresAt"] = timestamp(reading + row["duration"] * 10**9)
    return row


def select_page(listing, limit, offset, after):
    """Return objects, newest first, and the identifier that the next page comes after.

    On the last page, and if the limit is 0, the identifier is None. Raises
    invalid-after.
    """
    # One row more tells whether a page follows.
    limit_plus_one = min(limit + 1, MAX_INT64)
    before_id = cursor_id(listing, after)
    rows = select_rows(listing, before_id, limit_plus_one, offset)
    objects = [as_object(listing.model, row) for row in rows[:limit]]
    if limit and len(rows) > limit:
        return objects, objects[-1][f"{listing.model.TABLE}id"]
    return objects, None


def select_all(listing, after):
    """Yield all objects, newest first, as lists of up to 100. Raises invalid-after."""
    before_id = cursor_id(listing, after)
    while rows := select_rows(listing, before_id, 100, 0):
        yield [as_object(listing.model, row) for row in rows]
        before_id = rows[-1][-1]  # the id of the last row


def select_rows(listing, before_id, limit, offset):
    """Return rows with smaller ids, newest first: their SELECT_LIST, then the id."""
    model, scope, _ = listing
    index = f"{model.TABLE}_appid_id"
    if "accountid" in scope:
        index = f"{model.TABLE}_appid_accountid_id"
    condition = " AND ".join(f"{name} = ?" for name in scope)
    sql = f"""SELECT {model.SELECT_LIST}, id
        FROM {model.TABLE} {db.index_hint.format(index)}
        WHERE {condition} AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"""
    return run_sql(sql, *scope.values(), before_id, limit, offset).fetchall()


def cursor_id(listing, after):
    """Return the id of the cursor row, or MAX_INT64 if there is none.

    Raises invalid-after.
    """
    if not after:
        return MAX_INT64
    model, _, scope = listing
    if is_identifier(model.PREFIX, after):
        condition = " AND ".join(f"{name} = ?" for name in scope)
        sql = f"SELECT id FROM {model.TABLE} WHERE {model.TABLE}id = ? AND {condition}"
        row = run_sql(sql, after, *scope.values()).fetchone()
        if row:
            return row[0]
    raise ServiceError("invalid-after")


def select_batches(query, size):
    """Yield the rows of a query as dictionaries, as lists of up to ``size``.

    In the order of the primary key, which the query must select. Each list is read by
    a statement of its own, so the memory does not grow with the number of rows.
    """
    key = query.model._meta.primary_key
    batch = query.order_by(key).limit(size).dicts()
    rows = list(batch)
    while rows:
        yield rows
        rows = list(batch.where(key > rows[-1][key.name]))
