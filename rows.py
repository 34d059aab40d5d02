"""Find, lock, store and change rows, without a check of rights."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import peewee

from database import built_once, db
from errors import ServiceError
from formats import is_identifier
from models import (
    Account,
    ModelType,
    OwnedModel,
    Profile,
    Resource,
    Row,
    next_nanoseconds,
    next_timestamp,
    timestamp,
    timestamp_after,
)

INSERT_TRIES = 5


class Created(Resource):
    """What a create returns. ``is_new``: whether this very call has stored it."""

    def __init__(self, resource: Resource, *, is_new: bool) -> None:
        super().__init__(resource)
        self.is_new = is_new


def to_rows(model: ModelType, selected: Iterable[Sequence[Any]]) -> list[Row]:
    """Return as rows the tuples that a query of all columns of a model selected."""
    names = model._meta.sorted_field_names
    return [dict(zip(names, values, strict=True)) for values in selected]


def select_batches(
    query: "peewee.ModelSelect[Any]", size: int
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a query as the driver's tuples, as lists of up to ``size``.

    They are in the order of the primary key, which the query must select first. Each
    list is read by its own statement, so memory use does not grow with their number.
    """
    key = query.model._meta.primary_key
    batch = query.order_by(key).limit(size)
    rows = db.execute(batch).fetchall()
    while rows:
        yield rows
        rows = db.execute(batch.where(key > rows[-1][0])).fetchall()


def get_row(
    model: ModelType, identifier: str | None, appid: str, *, for_update: bool = False
) -> Row:
    """Return the row with this identifier in an application.

    With ``for_update``, return it as it is committed, even if the transaction has read
    an older one, and lock it until the transaction ends. Raises invalid-accountid,
    invalid-profileid or invalid-sessionid: 400 if none is given, 404 if it is unknown.
    """
    row = find_row(model, identifier, for_update=for_update)
    if not row or row["appid"] != appid:
        raise ServiceError(f"invalid-{model.KEY}", 404 if identifier else 400)
    return row


def find_row(
    model: ModelType, identifier: str | None, *, for_update: bool = False
) -> Row | None:
    """Return the row with this identifier, or None. ``for_update`` as in get_row()."""
    if not is_identifier(model.PREFIX, identifier):
        return None
    cursor = select_by_identifier(model, for_update, identifier=identifier)
    rows = to_rows(model, cursor.fetchall())
    return rows[0] if rows else None


@built_once
def select_by_identifier(
    model: ModelType, for_update: bool, /, *, identifier: str | None
) -> peewee.Query:
    query = model.select().where(getattr(model, model.KEY) == identifier)
    # SQLite has no FOR UPDATE, because a transaction locks the whole database.
    return query.for_update(for_update and db.for_update)


def block_inserts(account: Row) -> None:
    """Make inserts of an account's profiles and sessions wait until the commit.

    This locks the index record that InnoDB reads to check the foreign key. To avoid
    deadlocks, every transaction locks in this order: the account's row, this record,
    profiles and sessions.
    """
    index = db.force_index(Account, "account_appid_accountid")
    query = Account.select(Account.accountid).from_(index)
    query = query.where(is_in_scope(Account, account["appid"], account["accountid"]))
    query.for_update(db.for_update).execute()


def delete_rows(model: OwnedModel, account: Row, limit: int) -> int:
    """Delete up to ``limit`` profiles or sessions of an account; return how many."""
    is_of_account = is_in_scope(model, account["appid"], account["accountid"])
    query = model.select(model.id).where(is_of_account).limit(limit)
    # As it is committed: a transaction of the caller's own may not see all rows.
    selected = db.execute(query.for_update(db.for_update)).fetchall()
    is_selected = model.id.in_([row_id for (row_id,) in selected])
    return model.delete().where(is_selected).execute()


def is_in_scope(
    model: ModelType, appid: str, accountid: str | None
) -> peewee.Expression:
    """Return the condition that a row is of an application, or of one account of it."""
    condition = model.appid == appid
    if accountid is not None:
        condition &= model.accountid == accountid
    return condition


def update_account(account: Row, changes: Row) -> Row:
    """Change columns of a locked account; return its row with the changes."""
    changes = changes | {"updatedAt": next_timestamp()}
    is_account = Account.accountid == account["accountid"]
    Account.update(changes).where(is_account).execute()
    return account | changes


def replace_profile(profile: Row, changes: Row) -> Row | None:
    """Change a profile unless it has changed since it was read; return it, or None."""
    profileid, read_at = profile["profileid"], profile["updatedAt"]
    changes = changes | {"updatedAt": timestamp_after(read_at)}
    cursor = update_unchanged(profileid=profileid, read_at=read_at, **changes)
    return profile | changes if cursor.rowcount else None


@built_once
def update_unchanged(
    *, profileid: str, read_at: str, **changes: str | None
) -> peewee.Query:
    is_unchanged = (Profile.profileid == profileid) & (Profile.updatedAt == read_at)
    return Profile.update(changes).where(is_unchanged)


def new_row(model: ModelType, values: Row) -> Row:
    """Return a row with these values, and the id and timestamps of this moment."""
    now_ns = next_nanoseconds()
    now = timestamp(now_ns)
    values = values | {"id": now_ns, "createdAt": now, "updatedAt": now}
    return {name: values.get(name) for name in model._meta.sorted_field_names}


def insert(model: ModelType, row: Row, *, tries: int = INSERT_TRIES) -> Created:
    """Store a new_row(), and return it; if its identifier exists, return that row.

    Raises invalid-accountid if the account of a profile or a session was just deleted.
    """
    try:
        insert_row(model, **row)
        return Created(model.to_resource(row), is_new=True)
    except peewee.IntegrityError:
        # As it is committed: a transaction of the caller's own may read older rows.
        existing = find_row(model, row[model.KEY], for_update=True)
        if existing:
            # Peewee sends an INSERT again if its connection was lost, but not in a
            # transaction, in which accounts are stored, which have no id.
            is_new = model is not Account and existing["id"] == row["id"]
            return Created(model.to_resource(existing), is_new=is_new)
        if model is not Account:  # its account may just have been deleted
            get_row(Account, row["accountid"], row["appid"], for_update=True)
        if tries == 1:
            raise
        # Another process has just stored a row with the same id, or the row with this
        # identifier was just deleted.
        return insert(model, new_row(model, row), tries=tries - 1)


@built_once
def insert_row(model: ModelType, /, **row: str | int | bool | None) -> peewee.Query:
    return model.insert(row)
