"""Rows found, changed, stored, and read in pages.

The statements that most requests wait for are written as SQL text: Peewee takes 180 µs
to build one, as long as a database takes to answer it. All others are expressions of
Peewee.
"""

from contextlib import nullcontext

from peewee import IntegrityError

from database import db, retry_on_conflict, run_sql
from errors import ServiceError
from models import Account, Session, as_objects, now, properties_of, timestamp
from validators import MAX_INT64, is_identifier


def get_object(model, identifier, appid=None):
    """Return the object with this identifier, of any application or of this one.

    Raises invalid-accountid, invalid-profileid or invalid-sessionid: 400 if none is
    given, 404 if it is unknown.
    """
    found = get_object_or_none(model, identifier)
    if not found or appid not in (None, found["appid"]):
        raise ServiceError(f"invalid-{model.TABLE}id", 404 if identifier else 400)
    return found


def get_object_or_none(model, identifier):
    """Return the object with this identifier, or None."""
    if is_identifier(model.PREFIX, identifier):
        sql = f"SELECT {model.COLUMNS} FROM {model.TABLE} WHERE {model.TABLE}id = ?"
        row = run_sql(sql, identifier).fetchone()
        if row:
            return as_objects(model, [row])[0]


@retry_on_conflict
def update(model, identifier, changes):
    """Change columns of a row; return the changes, with updatedAt.

    Raises invalid-accountid or invalid-profileid, 404, when there is no such row.
    """
    changes = changes | {"updatedAt": timestamp(now())}
    columns = ", ".join(f"{name} = ?" for name in changes)
    sql = f"UPDATE {model.TABLE} SET {columns} WHERE {model.TABLE}id = ?"
    if not run_sql(sql, *changes.values(), identifier).rowcount:
        raise ServiceError(f"invalid-{model.TABLE}id", 404)
    return changes


@retry_on_conflict
def insert(model, values, default=False):
    """Store an account's profile or session; return its object.

    With ``default``, a profile also becomes the account's default: both are stored, or
    none. If there is one with the same identifier, return that and store nothing.
    Raises invalid-accountid when the account is not there any more.
    """
    try:
        return insert_once(model, values, default)
    except IntegrityError:  # the identifier exists, the account is gone, or neither
        existing = get_object_or_none(model, values[f"{model.TABLE}id"])
        if existing:
            return existing
        get_object(
            Account, values["accountid"], values["appid"]
        )  # raises if it is gone
    # Another process stored a row at the same nanosecond. The next one is free.
    return insert_once(model, values, default)


def insert_once(model, values, default):
    with db.atomic() if default else nullcontext():
        if default:  # this waits for any other change of the account
            update(Account, values["accountid"], {"profileid": values["profileid"]})
        moment = now()
        made = timestamp(moment)
        row = values | {"id": moment, "createdAt": made, "updatedAt": made}
        if model is Session:
            row["lastVerifiedAt"] = made
            row["expiresAt"] = timestamp(moment + row["duration"] * 10**9)
        marks = ", ".join([db.param] * len(row))
        sql = f"INSERT INTO {model.TABLE} ({', '.join(row)}) VALUES ({marks})"
        # SQLite's execute_sql() would wait with this moment. Instead, insert() is
        # repeated, and takes a new one after the wait. Otherwise the row could appear
        # behind rows that somebody has listed meanwhile.
        db.execute_once(sql, [*row.values()])
    # object, fields and ended are no columns: they are None here.
    found = [row.get(name) for name in properties_of(model)]
    return as_objects(model, [found])[0]


def select_page(model, scope, limit, offset, after):
    """Return objects, newest first, and the identifier that the next page comes after.

    ``scope``: an appid, and perhaps an accountid. On the last page, and if the limit is
    0, the identifier is None. Raises invalid-after.
    """
    before_id = cursor_id(model, scope, after)
    # One row more tells whether a page follows.
    rows = select_rows(model, scope, before_id, min(limit + 1, MAX_INT64), offset)
    objects = as_objects(model, rows[:limit])
    if limit and len(rows) > limit:
        return objects, objects[-1][f"{model.TABLE}id"]
    return objects, None


def select_all(model, scope, after):
    """Yield all objects, newest first, as lists of up to 100. Raises invalid-after."""
    before_id = cursor_id(model, scope, after)
    while rows := select_rows(model, scope, before_id, 100, 0):
        yield as_objects(model, rows)
        before_id = rows[-1][-1]  # the id of the last row


def select_rows(model, scope, before_id, count, offset):
    """Return rows that are older than an id, newest first: their COLUMNS and the id."""
    condition = " AND ".join(f"{name} = ?" for name in scope)
    index = "appid_accountid_id" if "accountid" in scope else "appid_id"
    hint = db.index_hint.format(f"{model.TABLE}_{index}")
    sql = f"""SELECT {model.COLUMNS}, id FROM {model.TABLE} {hint}
        WHERE {condition} AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"""
    return run_sql(sql, *scope.values(), before_id, count, offset).fetchall()


def cursor_id(model, scope, after):
    """Return the id of the row ``after``, or, without one, more than any id.

    Raises invalid-after when the application has no such row.
    """
    if not after:
        return MAX_INT64
    if is_identifier(model.PREFIX, after):
        sql = f"SELECT id FROM {model.TABLE} WHERE {model.TABLE}id = ? AND appid = ?"
        row = run_sql(sql, after, scope["appid"]).fetchone()
        if row:
            return row[0]
    raise ServiceError("invalid-after")
