"""The operations on accounts. Each takes its caller first, and checks its rights."""

from collections import defaultdict
from operator import itemgetter
from typing import Any

import peewee
from peewee import chunked

import lists
import rows
from callers import (
    Caller,
    administrator_scope,
    lock_target,
    own_scope,
    require_administrator,
    require_operator,
)
from database import transaction
from errors import ServiceError
from formats import identifier_for_key
from lists import BATCH, Listing, Page
from models import Account, Object, Profile, Session, Stored, next_timestamp
from sessions import create_session, end_sessions

ADMINISTRATOR_DURATION = 31_536_000  # seconds: a year


@transaction
def create_account(
    caller: Caller,
    *,
    appid: str | None = None,
    idempotency_key: str | None = None,
    administrator: bool = False,
) -> Stored:
    """Store a new account and return it, with ``profile`` as find_own_account does.

    ``idempotency_key`` as in create_profile; it is the account's ``externalid``. Only
    the operator can create an administrator. Raises administrator-required,
    invalid-appid or, also if the account with its id has another key,
    invalid-idempotency-key.
    """
    appid = require_administrator(caller, appid)
    if administrator:
        require_operator(caller)
    accountid = identifier_for_key("acct", idempotency_key, appid)
    now = next_timestamp()
    row = {
        "accountid": accountid,
        "appid": appid,
        "externalid": idempotency_key,
        "administrator": administrator,
        "createdAt": now,
        "updatedAt": now,
    }
    account: Stored | None
    try:
        account = rows.insert_now(Account, row)
    except peewee.IntegrityError:
        # The key was used before. Even the failed INSERT locks the row, so nobody can
        # delete the account before we read it.
        account = rows.find_object(Account, accountid, lock=True)
        if not account:
            raise
        if not has_key(account, idempotency_key):
            raise ServiceError("invalid-idempotency-key") from None
    account["profile"] = rows.find_object(Profile, account["profileid"], lock=True)
    return account


def has_key(account: Object, idempotency_key: str | None) -> bool:
    """Return whether an account was created with this key, given that the ids agree.

    Keys can be crafted whose ids collide. Accounts created by 4.0 have no stored key.
    """
    return account["externalid"] in (None, idempotency_key)


@transaction
def create_administrator(
    caller: Caller,
    *,
    appid: str | None = None,
    duration: int | str | None = ADMINISTRATOR_DURATION,
) -> Object:
    """Create an administrator and its first session, or neither; return the session.

    ``duration`` in seconds. Raises administrator-required, invalid-appid or
    invalid-duration.
    """
    account = create_account(caller, appid=appid, administrator=True)
    accountid = account["accountid"]
    return create_session(caller, accountid, appid=appid, duration=duration)


def list_accounts(
    caller: Caller,
    *,
    appid: str | None = None,
    accountid: str | None = None,
    **paging: Any,
) -> Page | None:
    """Return the application's accounts, ascending by accountid, as list_profiles does.

    Each has ``profile``: its default profile, or None.
    """
    scope = administrator_scope(caller, accountid, appid)
    return lists.read_list(Listing(Account, scope), paging)


def find_own_account(
    caller: Caller, accountid: str | None, *, appid: str | None = None
) -> Object:
    """Return the caller's own account; its ``profile`` is the default profile, or None.

    Raises invalid-accountid, invalid-account or invalid-appid.
    """
    scope = own_scope(caller, accountid, appid)
    page = lists.read_list(Listing(Account, scope), {"limit": 1})
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
) -> Object:
    """Make an account an administrator, or an ordinary one, and end its sessions.

    Raises administrator-required, invalid-appid or invalid-accountid.
    """
    appid = require_operator(caller, appid)
    end_sessions(caller, accountid, appid=appid)
    rows.update_account(accountid, {"administrator": not off})
    return rows.get_object(Account, accountid, appid, lock=True)


@transaction
def delete_account(
    caller: Caller, accountid: str | None, *, appid: str | None = None
) -> Object:
    """Delete an ordinary account, its profiles and its sessions; return how many.

    Raises administrator-required, invalid-appid, invalid-accountid or invalid-account.
    """
    appid = require_administrator(caller, appid)
    account = lock_target(caller, accountid, appid)
    if account["administrator"]:  # not even the operator deletes one
        raise ServiceError("invalid-account")
    rows.block_inserts(account)
    counts = {"object": "deletion", "accountid": accountid}
    for model in (Profile, Session):
        is_own = (model.appid == appid) & (model.accountid == accountid)
        counts[f"{model.TABLE}s"] = model.delete().where(is_own).execute()
    Account.delete().where(Account.accountid == accountid).execute()
    return counts


def show_account(
    caller: Caller, accountid: str | None, *, appid: str | None = None
) -> Object:
    """Return an account with all its ``profiles`` and ``sessions``, newest first.

    Raises administrator-required, invalid-appid or invalid-accountid.
    """
    appid = require_operator(caller, appid)
    account = rows.get_object(Account, accountid, appid)
    scope = {"appid": appid, "accountid": account["accountid"]}
    everything = {"all": True}
    for model in (Profile, Session):
        page = lists.read_list(Listing(model, scope), everything)
        account[f"{model.TABLE}s"] = page or []
    return account


def find_accounts(caller: Caller, email: str, *, appid: str | None = None) -> Object:
    """Return the accounts that have a profile with this address, the oldest first.

    Each has those ``profiles``, newest first. The case of ASCII letters is ignored. An
    empty address finds no account. Raises administrator-required or invalid-appid.
    """
    scope = {"appid": require_operator(caller, appid)}
    matching = lists.read_list(Listing(Profile, scope, email=email), {"all": True})
    profiles: dict[str, list[Object]] = defaultdict(list)
    for profile in matching or []:
        profiles[profile["accountid"]].append(profile)
    accounts = []
    for accountids in chunked(profiles, BATCH):
        accounts += read_accounts(Account.accountid.in_(accountids))
    for account in accounts:
        account["profiles"] = profiles[account["accountid"]]
    return sort_accounts(accounts)


def list_administrators(caller: Caller, *, appid: str | None = None) -> Object:
    """Return the accounts that are administrators, the oldest first.

    Raises administrator-required or invalid-appid.
    """
    is_own = Account.appid == require_operator(caller, appid)
    return sort_accounts(read_accounts(is_own & Account.administrator))


def read_accounts(condition: Any) -> list[Object]:
    """Return the accounts that meet a condition, in no order."""
    selected: Any = Account.select(*Account.selection()).where(condition).tuples()
    return [Account.as_object(row) for row in selected]


def sort_accounts(accounts: list[Object]) -> Object:
    """Return a list of accounts as commands print it, the oldest first."""
    data = sorted(accounts, key=itemgetter("createdAt", "accountid"))
    return {"object": "accounts", "data": data}
