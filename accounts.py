"""Accounts, their sessions, and the caller of a request.

No function here checks the rights of a caller. operations.py has functions of the same
names that do, so blueprints.py calls those and imports only authenticate() and
resolve_appid() from here.
"""

import re
import time
from collections import defaultdict
from hashlib import sha256
from itertools import chain
from secrets import token_hex
from typing import Any, NamedTuple

from peewee import IntegrityError

from config import settings
from database import retry_on_conflict, run_sql, transaction
from errors import ServiceError
from models import (
    Account,
    Profile,
    Session,
    as_object,
    current_timestamp,
    next_nanoseconds,
    timestamp,
)
from rows import (
    Listing,
    execute_in_batches,
    get_object,
    get_object_or_none,
    insert,
    lock_account,
    select_all,
    select_batches,
    update_account,
)
from validators import APPID, matches, new_identifier

Object = dict[str, Any]  # of the API: an account, a profile, a session, …
OptionalStr = str | None  # None: not given
DEFAULT_DURATION = 28_800  # seconds: 8 hours
ADMINISTRATOR_DURATION = 31_536_000  # seconds: a year


class RequestCaller(NamedTuple):
    """The account whose token a request has, and the session of the token."""

    accountid: str
    administrator: bool
    appid: str
    sessionid: str


def resolve_appid(appid: OptionalStr) -> str:
    """Return the application of a call, by default the service's own.

    Raises invalid-appid.
    """
    if appid is None:
        return settings()["APPID"]
    if not matches(APPID, appid):
        raise ServiceError("invalid-appid")
    return appid


def authenticate(authorization: OptionalStr, appid: str) -> RequestCaller:
    """Return the caller whose token an Authorization header has.

    Raises sign-in-required, whose reason says why the session is not running.
    """
    reason = None
    bearer = re.fullmatch("(?i:bearer) +([0-9a-f]{64})", authorization or "")
    if bearer:
        sql = """SELECT accountid, administrator, sessionid, expiresAt, endedAt
            FROM session JOIN account USING (accountid, appid)
            WHERE appid = ? AND tokenHash = ?"""
        token_hash = sha256(bearer[1].encode()).hexdigest()
        row = run_sql(sql, appid, token_hash).fetchone()
        if row:
            accountid, administrator, sessionid, expires_at, ended_at = row
            if not ended_at and expires_at > current_timestamp():
                return RequestCaller(accountid, bool(administrator), appid, sessionid)
            reason = "ended" if ended_at else "expired"
    raise ServiceError("sign-in-required", reason=reason)


@transaction
def create_account(
    appid: OptionalStr = None,
    *,
    administrator: bool = False,
    accountid: OptionalStr = None,
) -> Object:
    """Create an account. If there is one with this accountid, return it as it is.

    Raises invalid-appid.
    """
    appid = resolve_appid(appid)
    accountid = accountid or new_identifier("acct")
    created_at = timestamp(next_nanoseconds())
    try:
        # Even a failed INSERT locks the row, so nobody can delete the account before we
        # read it.
        Account.create(
            accountid=accountid,
            appid=appid,
            administrator=administrator,
            createdAt=created_at,
            updatedAt=created_at,
        )
    except IntegrityError:
        # The same key created the account before. A transaction of the caller's own
        # does not see it if it began to read before that.
        if not get_object_or_none(Account, accountid):
            raise
    return get_object(Account, accountid, appid)


@transaction
def create_administrator(
    appid: OptionalStr = None, duration: int = ADMINISTRATOR_DURATION
) -> Object:
    """Create an administrator and a session (duration in seconds), or neither.

    Return the session with its token. Raises invalid-appid.
    """
    account = create_account(appid, administrator=True)
    return create_session(account["accountid"], duration)


@transaction
def set_administrator(accountid: str, *, off: bool = False) -> Object:
    """Make an account an administrator, or an ordinary one, and end its sessions.

    Raises invalid-accountid.
    """
    account = get_object(Account, accountid, lock=True)
    changes = update_account(accountid, {"administrator": not off})
    end_sessions(accountid)
    return account | changes


def list_administrators(appid: OptionalStr = None) -> Object:
    """Return the accounts that are administrators, the oldest first.

    Raises invalid-appid.
    """
    in_application = Account.appid == resolve_appid(appid)
    return accounts_where(in_application & Account.administrator)


def find_accounts(email: str, appid: OptionalStr = None) -> Object:
    """Return the accounts that have a profile with this address, ignoring case.

    Each has those ``profiles``, newest first. An empty address finds no account. Raises
    invalid-appid.
    """
    listing = Listing(Profile, {"appid": resolve_appid(appid)}, email)
    matching = defaultdict(list)
    batches = select_all(listing) if email else ()
    for batch in batches:
        for profile in batch:
            matching[profile["accountid"]].append(profile)
    result = accounts_where(Account.accountid.in_(list(matching)))
    for account in result["data"]:
        account["profiles"] = matching[account["accountid"]]
    return result


def show_account(accountid: str, appid: OptionalStr = None) -> Object:
    """Return an account, of any application unless ``appid`` is given.

    It has all its ``profiles`` and ``sessions``, newest first. Raises
    invalid-accountid.
    """
    account = get_object(Account, accountid, appid)
    scope = {"appid": account["appid"], "accountid": accountid}
    for model in (Profile, Session):
        objects = chain.from_iterable(select_all(Listing(model, scope)))
        account[f"{model.TABLE}s"] = list(objects)
    return account


def accounts_where(condition):
    """Return the accounts that meet a condition, the oldest first."""
    accounts = Account.select().where(condition)
    ordered = accounts.order_by(Account.createdAt, Account.accountid)
    objects = [as_object(Account, row) for row in ordered.tuples()]
    return {"object": "accounts", "data": objects}


@retry_on_conflict
def create_session(accountid: str, duration: int) -> Object:
    """Create a session (duration in seconds); its token is returned only here.

    Raises invalid-accountid.
    """
    account = get_object(Account, accountid, lock=True)  # as it is committed
    token = token_hex(32)
    session = {
        "sessionid": new_identifier("sess"),
        "appid": account["appid"],
        "accountid": accountid,
        "duration": duration,
        "tokenHash": sha256(token.encode()).hexdigest(),
        "csrfToken": token_hex(32),
    }
    return {"token": token, **insert(Session, session)}


@transaction
def end_session(sessionid: str) -> Object:
    """End a session at once, if it has not been ended; return it.

    Raises invalid-sessionid.
    """
    get_object(Session, sessionid)
    mark_as_ended(Session.sessionid == sessionid)
    return get_object(Session, sessionid, lock=True)  # as it is committed


@transaction
def end_sessions(accountid: str) -> Object:
    """End all sessions of an account at once; return how many were running.

    Those that have expired are ended, too. Raises invalid-accountid.
    """
    account = get_object(Account, accountid, lock=True)  # as it is committed
    is_own = (Session.appid == account["appid"]) & (Session.accountid == accountid)
    count = mark_as_ended(is_own & (Session.expiresAt > current_timestamp()))
    mark_as_ended(is_own)
    return {"object": "end", "count": count}


def mark_as_ended(condition):
    """Mark the sessions that meet a condition as ended; return how many were not."""
    ended = Session.update(
        endedAt=current_timestamp(), updatedAt=timestamp(next_nanoseconds())
    )
    return execute_in_batches(ended, condition & Session.endedAt.is_null())


@transaction
def delete_account(accountid: str) -> Object:
    """Delete an account, its profiles and its sessions, or nothing; return how many.

    Raises invalid-accountid.
    """
    counts = {"object": "deletion", "accountid": accountid}
    appid = lock_account(accountid)["appid"]
    for model in (Profile, Session):
        is_own = (model.appid == appid) & (model.accountid == accountid)
        counts[f"{model.TABLE}s"] = execute_in_batches(model.delete(), is_own)
    Account.delete().where(Account.accountid == accountid).execute()
    return counts


def purge_sessions(days: int) -> Object:
    """Delete the sessions that ended or expired that many days ago, or more.

    A thousand at a time, so that others can write in between, and by their ids, because
    MySQL would lock each row that it had to read. Return how many.
    """
    cutoff = timestamp(time.time_ns() - days * 86_400 * 10**9)
    is_old = (Session.expiresAt <= cutoff) | (Session.endedAt <= cutoff)
    old = Session.select(Session.id).where(is_old)
    count = 0
    for batch in select_batches(old, 1_000):
        ids = [row[0] for row in batch]
        deletion = Session.delete().where(Session.id.in_(ids))
        count += retry_on_conflict(deletion.execute)()
    return {"object": "purge", "count": count}
