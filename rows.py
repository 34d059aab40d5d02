"""Find, lock, store and change single rows, without a check of rights."""

from collections.abc import Sequence
from typing import Any

import peewee

from database import db, retry_on_conflict, run, transaction
from errors import ServiceError
from formats import is_identifier
from models import (
    Account,
    BaseModel,
    Object,
    Profile,
    next_nanoseconds,
    next_timestamp,
    timestamp,
    timestamp_after,
)

Model = type[BaseModel]


class Stored(Object):
    """An object as it is stored. ``is_new``: whether this very call has stored it."""

    is_new = False


def to_object(model: Model, row: Sequence[Any]) -> Stored:
    """Return the API's object of a row, which is a tuple of all columns."""
    names = model._meta.sorted_field_names
    return Stored(model.as_object(dict(zip(names, row, strict=True))))


def get_object(
    model: Model, identifier: Any, appid: str, *, lock: bool = False
) -> Stored:
    """Return the object with this identifier in an application.

    With ``lock``, lock its row until the commit, and return it as it is committed, even
    if the transaction read an older one. Raises invalid-accountid, invalid-profileid or
    invalid-sessionid: 400 if none is given, 404 if it is unknown.
    """
    existing = find_object(model, identifier, lock=lock)
    if not existing or existing["appid"] != appid:
        raise ServiceError(f"invalid-{model.KEY}", 404 if identifier else 400)
    return existing


def find_object(model: Model, identifier: Any, *, lock: bool = False) -> Stored | None:
    """Return the object with this identifier, or None. ``lock`` as in get_object()."""
    row = find_row(model, identifier, lock=lock)
    return to_object(model, row) if row else None


def find_row(
    model: Model, identifier: Any, *, lock: bool = False
) -> Sequence[Any] | None:
    """Return the row with this identifier, as a tuple of all columns, or None."""
    if not is_identifier(model.PREFIX, identifier):
        return None
    cursor = run(select_by_identifier, model, lock, identifier=identifier)
    row: Sequence[Any] | None = cursor.fetchone()
    return row


def select_by_identifier(model: Model, lock: bool, *, identifier: Any) -> peewee.Query:
    """Select a row with all its columns."""
    query = model.select().where(getattr(model, model.KEY) == identifier)
    # SQLite has no FOR UPDATE, because a transaction locks the whole database.
    return query.for_update(lock and db.for_update)


def block_inserts(account: Object) -> None:
    """Make those who insert a profile or a session of an account wait until the commit.

    This locks the index record that InnoDB reads to check the foreign key. To avoid
    deadlocks, every transaction locks in this order: the account's row, this record,
    profiles and sessions.
    """
    run(select_index_record, appid=account["appid"], accountid=account["accountid"])


def select_index_record(*, appid: Any, accountid: Any) -> peewee.Query:
    """Select what the foreign key refers to, and lock it."""
    index = db.force_index(Account, "account_appid_accountid")
    is_meant = (Account.appid == appid) & (Account.accountid == accountid)
    query = Account.select(Account.accountid).from_(index).where(is_meant)
    return query.for_update(db.for_update)


def update_account(accountid: str, changes: Object) -> None:
    """Change columns of an account."""
    update = Account.update(changes | {"updatedAt": next_timestamp()})
    update.where(Account.accountid == accountid).execute()


def replace_profile(profile: Object, changes: Object) -> Object | None:
    """Change a profile that is still as it was read; return it, or None if it is not.

    Each change leaves ``updatedAt`` greater by at least a millisecond.
    """
    read_at = profile["updatedAt"]
    changes = changes | {"updatedAt": timestamp_after(read_at)}
    profileid = profile["profileid"]
    cursor = run(update_unchanged, profileid=profileid, read_at=read_at, **changes)
    return profile | changes if cursor.rowcount else None


def update_unchanged(*, profileid: Any, read_at: Any, **changes: Any) -> peewee.Query:
    """Update a profile unless another request has updated it."""
    is_unchanged = (Profile.profileid == profileid) & (Profile.updatedAt == read_at)
    return Profile.update(changes).where(is_unchanged)


def new_row(values: Object) -> Object:
    """Return the values with an id and timestamps of this moment."""
    row_id = next_nanoseconds()
    now = timestamp(row_id)
    return values | {"id": row_id, "createdAt": now, "updatedAt": now}


@retry_on_conflict
def insert(model: Model, row: Object) -> Stored:
    """Store a new_row() of an account, a profile or a session; return its object.

    If its identifier exists, because its key was used before, return the object that
    has it, and store nothing. Raises invalid-accountid if the account was just deleted.
    """
    try:
        return insert_now(model, row)
    except peewee.IntegrityError:
        return insert_locked(model, row)


@transaction
def insert_locked(model: Model, row: Object) -> Stored:
    """Find out why an INSERT failed, while nobody can change the account.

    - The account was deleted: invalid-accountid.
    - The identifier exists. If the row is this one, its connection was lost, and Peewee
      has sent the INSERT again.
    - Another process has just stored a row with the same id, or the row with this
      identifier was just deleted: store the row now.
    """
    account = get_object(Account, row["accountid"], row["appid"], lock=True)
    block_inserts(account)
    existing = find_row(model, row[model.KEY], lock=True)
    if not existing:
        return insert_now(model, new_row(row))
    stored = to_object(model, existing)
    stored.is_new = existing[0] == row["id"]
    return stored


@transaction
def insert_default_profile(values: Object) -> Stored:
    """Store a profile and make it its account's default, or neither.

    Of two at once, the last one wins. Returns and raises what insert() does.
    """
    get_object(Account, values["accountid"], values["appid"], lock=True)
    profile = insert(Profile, new_row(values))
    if profile.is_new:
        update_account(values["accountid"], {"profileid": values["profileid"]})
    return profile


def insert_now(model: Model, row: Object) -> Stored:
    """Store a row; return its object. Raises IntegrityError."""
    run(insert_row, model, **row)
    stored = Stored(model.as_object(row))
    stored.is_new = True
    return stored


def insert_row(model: Model, **row: Any) -> peewee.Query:
    return model.insert(row)
