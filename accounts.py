"""The operations on accounts. Each checks its caller, and raises codes of API.md."""

from collections import Counter, defaultdict
from operator import itemgetter
from typing import Any

import rows
from callers import Caller, require_administrator, require_operator, require_own_account
from database import transaction
from errors import ServiceError
from formats import identifier_for_key
from lists import AccountListing, Listing, Page, Paging, read_list
from models import Account, Profile, Resource, Session
from sessions import MAXIMUM_DURATION, create_session, end_sessions_of

DELETION_BATCH = 500  # rows; if each has 60 KB, SQLite deletes them in 0.3 seconds


@transaction
def create_account(
    caller: Caller,
    *,
    appid: str | None = None,
    idempotency_key: str | None = None,
    administrator: bool = False,
) -> rows.Created:
    """Store a new account and return it, with ``profile`` as find_own_account does.

    ``idempotency_key`` as in create_profile; it is the account's ``externalid``. Only
    the operator can create an administrator.
    """
    appid = require_administrator(caller, appid)
    if administrator:
        require_operator(caller)
    accountid = identifier_for_key(Account.PREFIX, idempotency_key, appid)
    values = {
        "accountid": accountid,
        "appid": appid,
        "externalid": idempotency_key,
        "administrator": administrator,
    }
    account = rows.insert(Account, rows.new_row(Account, values))
    if account["appid"] != appid or not has_key(account, idempotency_key):
        raise ServiceError("invalid-idempotency-key")
    if account["externalid"] != idempotency_key:  # created by 4.0
        row = rows.get_row(Account, accountid, appid, for_update=True)
        row = rows.update_account(row, {"externalid": idempotency_key})
        account |= Account.to_resource(row)
    profile = rows.find_row(Profile, account["profileid"], for_update=True)
    account["profile"] = Profile.to_resource(profile) if profile else None
    return account


def has_key(account: Resource, idempotency_key: str | None) -> bool:
    """Return whether this key created an account: keys of one id can be crafted."""
    return account["externalid"] in (None, idempotency_key)  # 4.0 stored no key


@transaction
def create_administrator(
    caller: Caller,
    *,
    appid: str | None = None,
    duration: int | str | None = MAXIMUM_DURATION,
    read_only: bool = False,
) -> Resource:
    """Create an administrator and its first session, or neither; return the session.

    ``duration`` and ``read_only`` as in create_session.
    """
    account = create_account(caller, appid=appid, administrator=True)
    accountid = account["accountid"]
    return create_session(
        caller, accountid, appid=appid, duration=duration, read_only=read_only
    )


def list_accounts(
    caller: Caller,
    *,
    appid: str | None = None,
    accountid: str | None = None,
    **paging: Any,
) -> Page | None:
    """Return the application's accounts, each with ``profile``, by ascending id."""
    appid = require_administrator(caller, appid)
    return read_list(AccountListing(appid, accountid), Paging(**paging))


def find_own_account(
    caller: Caller, accountid: str | None, *, appid: str | None = None
) -> Resource:
    """Return the caller's own account; ``profile`` is its default profile, or None."""
    scope = require_own_account(caller, accountid, appid)
    page = read_list(AccountListing(*scope), Paging(limit=1))
    if not page:
        raise ServiceError("invalid-accountid", 404)  # it was just deleted
    return page[0]


@transaction
def set_administrator(
    caller: Caller,
    accountid: str | None,
    *,
    appid: str | None = None,
    off: bool = False,
) -> Resource:
    """Make an account an administrator, or an ordinary one, and end its sessions."""
    appid = require_operator(caller, appid)
    account = rows.get_row(Account, accountid, appid, for_update=True)
    end_sessions_of(account)
    account = rows.update_account(account, {"administrator": not off})
    return Account.to_resource(account)


def delete_account(
    caller: Caller, accountid: str | None, *, appid: str | None = None
) -> Resource:
    """Delete an ordinary account with its sessions and profiles; return how many.

    A large account is deleted in batches, between which others can write. The sessions
    come first, so their tokens can't store anything more. If this fails, a part may be
    deleted, and another call deletes the rest.
    """
    counts = Counter(profiles=0, sessions=0)
    while True:
        batch = delete_batch(caller, accountid, appid)
        counts.update(batch)
        if batch.total() < DELETION_BATCH:
            return {"object": "deletion", "accountid": accountid, **counts}


@transaction
def delete_batch(
    caller: Caller, accountid: str | None, appid: str | None
) -> Counter[str]:
    """Delete a batch of an ordinary account's rows, and with the last one the account.

    Return how many there were. The last batch has fewer than DELETION_BATCH.
    """
    appid = require_administrator(caller, appid)
    account = rows.get_row(Account, accountid, appid, for_update=True)
    if account["administrator"]:  # not even the operator deletes one
        raise ServiceError("invalid-account")
    rows.block_inserts(account)
    sessions = rows.delete_rows(Session, account, DELETION_BATCH)
    profiles = rows.delete_rows(Profile, account, DELETION_BATCH - sessions)
    if sessions + profiles < DELETION_BATCH:
        Account.delete().where(Account.accountid == accountid).execute()
    elif account["profileid"]:  # it may be deleted now
        rows.update_account(account, {"profileid": None})
    return Counter(profiles=profiles, sessions=sessions)


def show_account(
    caller: Caller, accountid: str | None, *, appid: str | None = None
) -> Resource:
    """Return an account with all its ``profiles`` and ``sessions``, newest first."""
    appid = require_operator(caller, appid)
    account = rows.get_row(Account, accountid, appid)
    profiles = read_list(Listing(Profile, appid, accountid), Paging(all=True))
    sessions = read_list(Listing(Session, appid, accountid), Paging(all=True))
    resource = Account.to_resource(account)
    return resource | {"profiles": profiles or [], "sessions": sessions or []}


def find_accounts(caller: Caller, email: str, *, appid: str | None = None) -> Resource:
    """Return the accounts that have a profile with this address, oldest first.

    Each has those ``profiles``, newest first. The case of ASCII letters is ignored. An
    empty address finds no account.
    """
    appid = require_operator(caller, appid)
    listing = Listing(Profile, appid, email=email)
    profiles: dict[str, list[Resource]] = defaultdict(list)
    for profile in read_list(listing, Paging(all=True)) or []:
        profiles[profile["accountid"]].append(profile)
    accounts = []
    for accountid, found in profiles.items():
        account = rows.find_row(Account, accountid)
        if account:  # otherwise it was just deleted
            accounts.append(Account.to_resource(account) | {"profiles": found})
    return sort_accounts(accounts)


def list_administrators(caller: Caller, *, appid: str | None = None) -> Resource:
    """Return the accounts that are administrators, oldest first."""
    appid = require_operator(caller, appid)
    query = Account.select().where(Account.appid == appid, Account.administrator)
    selected: Any = query.dicts()
    return sort_accounts([Account.to_resource(row) for row in selected])


def sort_accounts(accounts: list[Resource]) -> Resource:
    """Return a list of accounts as commands print it, oldest first."""
    data = sorted(accounts, key=itemgetter("createdAt", "accountid"))
    return {"object": "accounts", "data": data}
