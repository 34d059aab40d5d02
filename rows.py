"""Rows found, changed, stored, and read in batches. Called within a ``connection()``."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from peewee import Field, IntegrityError, Query

from database import repeated, run
from errors import ServiceError
from models import Account, AnyModel, Row, as_objects, now, public_columns, timestamp
from tables import db
from validators import is_identifier

BATCH = 500  # rows in a statement; for an IN of 1,000 MariaDB may read the whole table


def find(model: AnyModel, identifier: str | None, appid: str | None = None) -> dict[str, Any]:
    """Return the object with this identifier, of any application unless one is given.

    Raises ServiceError, such as invalid-accountid: 400 when not given, 404 when unknown.
    """
    columns = ", ".join(column.name for column in public_columns(model))
    sql = f"SELECT {columns} FROM {model._meta.table_name} WHERE {model.PUBLIC_ID} = ?"
    known = is_identifier(model.PREFIX, identifier)
    found = as_objects(model, run(sql, identifier)) if known else []
    if not found or appid not in (None, found[0]["appid"]):
        raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404 if identifier else 400)
    return found[0]


@repeated
def update(model: AnyModel, identifier: str, **changes: Any) -> dict[str, Any]:
    """Change columns of the row with this identifier; return the changes, updatedAt among them.

    Raises ServiceError, such as invalid-accountid, when the row is not there any more.
    """
    with db.writing(several=False):
        changes["updatedAt"] = timestamp(now())
        columns = ", ".join(f"{name} = ?" for name in changes)
        sql = f"UPDATE {model._meta.table_name} SET {columns} WHERE {model.PUBLIC_ID} = ?"
        if not run(sql, *changes.values(), identifier).rowcount:
            raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404)
    return changes


@repeated
def insert(
    model: AnyModel, values: dict[str, Any], *, default: bool = False, **later: int
) -> dict[str, Any]:
    """Store a row of these values, made now, perhaps as its account's default; return its object.

    ``later``: further timestamps, so many seconds after createdAt. Raises invalid-accountid when
    the account of the row is not there any more.
    """
    with db.writing(several=default):
        if default:  # before the row has its moment, as this may wait for the account's row
            update(Account, values["accountid"], profileid=values["profileid"])
        moment, names = now(), model._meta.sorted_field_names
        row = dict.fromkeys(names) | values | {"id": moment}
        for name, seconds in {"createdAt": 0, "updatedAt": 0, **later}.items():
            row[name] = timestamp(moment + seconds * 10**9)
        marks, owner = ", ".join("?" * len(names)), []
        sql = f"INSERT INTO {model._meta.table_name} ({', '.join(names)}) SELECT {marks}"
        if model is not Account:  # if its account is there and stays there: its row is locked
            sql += " FROM account WHERE accountid = ? AND appid = ?"
            owner = [row["accountid"], row["appid"]]
        try:
            if not run(sql, *(row[name] for name in names), *owner).rowcount:
                raise ServiceError("invalid-accountid", 404)
        except IntegrityError:  # stored by a try before this one, whose commit seemed to fail?
            with suppress(ServiceError):
                return find(model, row[model.PUBLIC_ID])
            raise
    return as_objects(model, [[row[column.name] for column in public_columns(model)]])[0]


@repeated
def change(query: Query) -> int:
    """Update or delete rows; return how many."""
    with db.writing(several=False):
        return query.execute()


def batches(model: AnyModel, *columns: Field, source: Any = db) -> Iterator[list[Row]]:
    """Read the primary key and these columns of a whole table, by the key, in batches."""
    key: Any = model._meta.primary_key
    last = "" if model is Account else 0
    query = model.select(key, *columns).order_by(key).limit(BATCH)
    while rows := source.execute(query.where(key > last)).fetchall():
        yield rows
        last = rows[-1][0]
