"""The operations on sessions. Each checks its caller, and raises codes of API.md."""

import time
from collections.abc import Iterator
from hashlib import sha256
from secrets import token_hex
from typing import Any

import peewee

import rows
from callers import (
    OPERATOR,
    READ_ONLY_PREFIX,
    Caller,
    get_own,
    require_administrator,
    require_operator,
    require_own_account,
)
from database import retry_on_conflict, transaction
from errors import ServiceError
from formats import MAX_INT32, new_identifier, parse_number
from lists import Listing, Page, Paging, read_list
from models import (
    Account,
    Resource,
    Row,
    Session,
    current_timestamp,
    next_timestamp,
    timestamp,
)

DEFAULT_DURATION = 28_800  # seconds: 8 hours
MAXIMUM_DURATION = 31_536_000  # seconds: a year


@transaction
def create_session(
    caller: Caller,
    accountid: str | None,
    *,
    appid: str | None = None,
    duration: int | str | None = None,
    read_only: bool = False,
) -> Resource:
    """Store a new session of an account and return it with its token.

    ``duration``: 1 to 31536000 seconds, by default 28800; the operator's can be longer.
    ``read_only``: whether the token can send GET and HEAD requests alone. The token is
    returned only here.
    """
    appid = require_administrator(caller, appid)
    account = lock_account(caller, accountid, appid)
    if duration is None:
        duration = DEFAULT_DURATION
    maximum = MAX_INT32 if caller is OPERATOR else MAXIMUM_DURATION
    seconds = parse_number("duration", duration, minimum=1, maximum=maximum)
    token = (READ_ONLY_PREFIX if read_only else "") + token_hex(32)
    values = {
        "sessionid": new_identifier(Session.PREFIX),
        "appid": appid,
        "accountid": account["accountid"],
        "duration": seconds,
        "csrfToken": token_hex(32),
        "tokenHash": sha256(token.encode()).hexdigest(),
    }
    session = rows.new_row(Session, values)
    session["lastVerifiedAt"] = session["createdAt"]
    # After the clock was set back, createdAt is in the future.
    started_at = min(session["id"], time.time_ns())
    session["expiresAt"] = timestamp(started_at + seconds * 10**9)
    return {"token": token, **rows.insert(Session, session)}


def lock_account(caller: Caller, accountid: str | None, appid: str) -> Row:
    """Lock the account for which an administrator acts; return it as it is committed.

    Only the operator acts for an administrator, and the lock keeps the account from
    becoming one meanwhile. Raises invalid-accountid or invalid-account.
    """
    account = rows.get_row(Account, accountid, appid, for_update=True)
    if account["administrator"] and caller is not OPERATOR:
        raise ServiceError("invalid-account")
    return account


def list_sessions(
    caller: Caller,
    *,
    appid: str | None = None,
    accountid: str | None = None,
    active: object = None,
    **paging: Any,
) -> Page | None:
    """Return the application's sessions, newest first, or None if there are none.

    ``accountid``: only sessions of this account. ``active``: if it is true, only those
    that neither ended nor expired. ``paging``: see Paging in lists.py.
    """
    appid = require_administrator(caller, appid)
    listing = Listing(Session, appid, accountid, active=bool(active))
    return read_list(listing, Paging(**paging))


def list_own_sessions(
    caller: Caller,
    accountid: str | None,
    *,
    appid: str | None = None,
    active: object = None,
    **paging: Any,
) -> Page | None:
    """Return the sessions of the caller's own account, as list_sessions does."""
    scope = require_own_account(caller, accountid, appid)
    listing = Listing(Session, *scope, active=bool(active))
    return read_list(listing, Paging(**paging))


@transaction
def end_session(
    caller: Caller, sessionid: str | None, *, appid: str | None = None
) -> Resource:
    """End a session of the caller's own account, if it has not ended; return it.

    Only the operator can end an administrator's sessions.
    """
    if caller.administrator and caller is not OPERATOR:
        raise ServiceError("invalid-account")
    # As it is committed: a transaction of the caller's own may see an older row.
    session = get_own(Session, caller, sessionid, appid, for_update=True)
    if session["endedAt"] is None:
        changes = {"endedAt": current_timestamp(), "updatedAt": next_timestamp()}
        Session.update(changes).where(Session.sessionid == sessionid).execute()
        session |= changes
    return Session.to_resource(session)


@transaction
def end_sessions(
    caller: Caller, accountid: str | None, *, appid: str | None = None
) -> Resource:
    """End all sessions of an account at once; return how many were running.

    Expired ones are marked as ended, too.
    """
    appid = require_administrator(caller, appid)
    account = lock_account(caller, accountid, appid)
    return {"object": "end", "count": end_sessions_of(account)}


def end_sessions_of(account: Row) -> int:
    """End all sessions of a locked account; return how many were running."""
    scope = rows.is_in_scope(Session, account["appid"], account["accountid"])
    return mark_as_ended(scope)


@transaction
def mark_as_ended(condition: peewee.Expression) -> int:
    """Mark the matching sessions as ended; return how many of them were running."""
    now = current_timestamp()
    update = Session.update(endedAt=now, updatedAt=next_timestamp())
    update = update.where(condition, Session.endedAt.is_null())
    count = update.where(Session.expiresAt > now).execute()
    update.execute()
    return count


def end_all_sessions(caller: Caller, *, appid: str | None = None) -> Resource:
    """End the sessions of all ordinary accounts; return how many were running."""
    appid = require_operator(caller, appid)
    ordinary = Account.select(Account.accountid).where(
        Account.appid == appid, ~Account.administrator
    )
    is_ordinary = (Session.appid == appid) & Session.accountid.in_(ordinary)
    count = 0
    for is_in_batch in batches(is_ordinary & Session.endedAt.is_null()):
        count += mark_as_ended(is_in_batch)
    return {"object": "end", "count": count}


def purge_sessions(caller: Caller, days: int) -> Resource:
    """Delete sessions that ended or expired that many days ago; return how many."""
    require_operator(caller)
    cutoff = timestamp(time.time_ns() - days * 86_400 * 10**9)
    is_old = (Session.expiresAt <= cutoff) | (Session.endedAt <= cutoff)
    count = 0
    for is_in_batch in batches(is_old):
        deletion = Session.delete().where(is_in_batch)
        count += retry_on_conflict(deletion.execute)()
    return {"object": "purge", "count": count}


def batches(condition: peewee.Expression) -> Iterator[peewee.Expression]:
    """Split the matching sessions into batches; yield a condition for each.

    Other connections can write between two batches. The conditions list ids, because
    MySQL locks every row that a change reads.
    """
    ids = Session.select(Session.id).where(condition)
    for batch in rows.select_batches(ids, 1_000):
        yield Session.id.in_([session_id for (session_id,) in batch])
