"""Find, lock, store and change single rows, without a check of rights."""

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
    Stored,
    next_nanoseconds,
    next_timestamp,
    timestamp,
    timestamp_after,
)


def get_object(
    model: type[BaseModel], identifier: Any, appid: str, *, lock: bool = False
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


def find_object(
    model: type[BaseModel], identifier: Any, *, lock: bool = False
) -> Stored | None:
    """Return the object with this identifier, or None. ``lock`` as in get_object()."""
    if not is_identifier(model.PREFIX, identifier):
        return None
    row = run(select_by_identifier, model, lock, identifier=identifier).fetchone()
    return model.as_object(row) if row else None


def select_by_identifier(
    model: type[BaseModel], lock: bool, *, identifier: Any
) -> peewee.Query:
    """Select what the API shows of a row."""
    query = model.select(*model.selection()).where(
        getattr(model, model.KEY) == identifier
    )
    # SQLite has no FOR UPDATE, because a transaction locks the whole database.
    return query.for_update(lock and db.for_update)


def block_inserts(account: Object) -> None:
    """Make those who insert a profile or a session of an account wait until the commit.

    This locks the index record that InnoDB reads to check the foreign key. To avoid
    deadlocks, every transaction locks in this order: the account's row, this record,
    profiles and sessions.
    """
    index = db.force_index(Account, "account_appid_accountid")
    record = Account.select(Account.accountid).from_(index)
    record = record.where(
        Account.appid == account["appid"], Account.accountid == account["accountid"]
    )
    record.for_update(db.for_update).execute()


def update_account(accountid: str | None, changes: Object, *conditions: Any) -> None:
    """Change columns of an account, if it meets the conditions."""
    update = Account.update(changes | {"updatedAt": next_timestamp()})
    update.where(Account.accountid == accountid, *conditions).execute()


def replace_profile(profile: Object, changes: Object) -> Object | None:
    """Change a profile that is still as it was read; return it, or None if it is not.

    Each change leaves ``updatedAt`` greater by at least a millisecond.
    """
    profileid, read_at = profile["profileid"], profile["updatedAt"]
    changes = changes | {"updatedAt": timestamp_after(read_at)}
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
def insert(model: type[BaseModel], row: Object) -> Stored:
    """Store a new_row() of a profile or a session; return its object.

    If its identifier exists, because its key was used before, return the object that
    has it, and store nothing. Raises invalid-accountid if the account was just deleted.
    """
    try:
        return insert_now(model, row)
    except peewee.IntegrityError:
        return insert_locked(model, row)


@transaction
def insert_locked(model: type[BaseModel], row: Object) -> Stored:
    """Find out why an INSERT failed, while nobody can change the account.

    - The account was deleted: invalid-accountid.
    - The identifier exists. If the id is this row's, the connection was lost, and
      Peewee has sent the INSERT again.
    - Another process has just stored a row with the same id, or the row with this
      identifier was just deleted: store the row now.
    """
    account = get_object(Account, row["accountid"], row["appid"], lock=True)
    block_inserts(account)
    existing = find_object(model, row[model.KEY], lock=True)
    if not existing:
        return insert_now(model, new_row(row))
    existing.is_new = existing.position == row["id"]
    return existing


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


def insert_now(model: type[BaseModel], row: Object) -> Stored:
    """Store a row; return its object. Raises IntegrityError."""
    run(model.insert, **row)
    key = model._meta.sorted_field_names[0]
    stored = model.as_object([row.get(name) for name in (key, *model.columns())])
    stored.is_new = True
    return stored
