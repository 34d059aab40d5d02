"""Callers, and what they may do."""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import peewee
from flask import current_app

import rows
from database import built_once
from errors import ServiceError
from formats import APPID, is_identifier, matches
from models import Account, ModelType, Row, Session, current_timestamp


class Caller(Protocol):
    """Any object with ``accountid`` and ``administrator``, such as an Account.

    If it has an ``appid``, too, it has rights in that application alone.
    """

    @property
    def accountid(self) -> str | None: ...

    @property
    def administrator(self) -> bool: ...


@dataclass(frozen=True)
class SessionCaller:
    """The account whose token a request has, and the session of the token."""

    accountid: str
    administrator: bool
    appid: str
    sessionid: str
    reason: str | None  # why the session is over: ended or expired


class Operator:
    """Whoever runs the commands, who may access every row of every application."""

    accountid = None
    administrator = True


OPERATOR = Operator()


def find_caller(authorization: str | None, appid: str) -> SessionCaller | None:
    """Return the caller whose token an Authorization header has, or None."""
    bearer = re.fullmatch("(?i:bearer) +([0-9a-f]{64})", authorization or "")
    if not bearer:
        return None
    token_hash = sha256(bearer[1].encode()).hexdigest()
    row = select_by_token(appid=appid, token_hash=token_hash).fetchone()
    if not row:
        return None
    accountid, administrator, sessionid, expires_at, ended_at = row
    reason = None
    if ended_at:
        reason = "ended"
    elif expires_at <= current_timestamp():
        reason = "expired"
    return SessionCaller(accountid, bool(administrator), appid, sessionid, reason)


def require_running(caller: SessionCaller | None) -> SessionCaller:
    """Return a caller whose session is running. Raises sign-in-required."""
    if not caller:
        raise ServiceError("sign-in-required")
    if caller.reason:
        raise ServiceError("sign-in-required", reason=caller.reason)
    return caller


@built_once
def select_by_token(*, appid: str, token_hash: str) -> peewee.Query:
    """Select a session with its account."""
    same_account = Account.accountid == Session.accountid
    same_account &= Account.appid == Session.appid
    return (
        Session.select(
            Session.accountid,
            Account.administrator,
            Session.sessionid,
            Session.expiresAt,
            Session.endedAt,
        )
        .join(Account, on=same_account)
        .where(Session.appid == appid, Session.tokenHash == token_hash)
    )


def resolve_appid(appid: str | None) -> str:
    """Return a call's application, by default the service's. Raises invalid-appid."""
    if appid is None:
        return current_app.config["APPID"]
    if not matches(APPID, appid):
        raise ServiceError("invalid-appid")
    return appid


def belongs_to(caller: Caller, appid: str) -> bool:
    """Return whether the caller may act in the application."""
    return getattr(caller, "appid", appid) == appid


def is_operator(caller: Caller) -> bool:
    """Return whether the caller is the one who runs the commands."""
    return isinstance(caller, Operator)


def require_operator(caller: Caller, appid: str | None = None) -> str:
    """Return a call's application, if the caller is the operator.

    Raises administrator-required or invalid-appid.
    """
    if not is_operator(caller):
        raise ServiceError("administrator-required")
    return resolve_appid(appid)


def require_administrator(caller: Caller, appid: str | None) -> str:
    """Return a call's application, if the caller is an administrator of it.

    Raises administrator-required or invalid-appid.
    """
    appid = resolve_appid(appid)
    if not caller.administrator or not belongs_to(caller, appid):
        raise ServiceError("administrator-required")
    return appid


def lock_target(caller: Caller, accountid: str | None, appid: str) -> Row:
    """Lock the account for which an administrator acts; return it as it is committed.

    Only the operator acts for an administrator, and the lock keeps the account from
    becoming one meanwhile. Raises invalid-accountid or invalid-account.
    """
    account = rows.get_row(Account, accountid, appid, lock=True)
    if account["administrator"] and not is_operator(caller):
        raise ServiceError("invalid-account")
    return account


def get_accessible(
    model: ModelType,
    caller: Caller,
    identifier: str | None,
    appid: str | None,
    *,
    lock: bool = False,
) -> Row:
    """Return a row of the caller's own account; the operator may access every row.

    ``lock`` as in get_row(). Raises the same errors, invalid-account or invalid-appid.
    """
    appid = resolve_appid(appid)
    row = rows.get_row(model, identifier, appid, lock=lock)
    if not is_own(caller, row) and not is_operator(caller):
        raise ServiceError("invalid-account")
    return row


def is_own(caller: Caller, row: Row) -> bool:
    """Return whether a row is of the caller's own account."""
    return row["accountid"] == caller.accountid and belongs_to(caller, row["appid"])


def own_scope(
    caller: Caller, accountid: str | None, appid: str | None, *, lock: bool = False
) -> dict[str, str]:
    """Return the scope of the rows of the caller's own account.

    That a caller's own account exists isn't checked here: without it, lists are empty,
    and rows.insert() raises invalid-accountid. Another account is looked up, because
    the operator may access it; ``lock`` and the errors are those of get_accessible().
    """
    scope = {"appid": resolve_appid(appid), "accountid": accountid or ""}
    if not is_own(caller, scope):
        get_accessible(Account, caller, accountid, appid, lock=lock)
    return scope


def administrator_scope(
    caller: Caller, accountid: str | None, appid: str | None
) -> dict[str, str]:
    """Return the scope of an administrator's list: an application, or one account.

    Raises administrator-required or invalid-appid.
    """
    scope = {"appid": require_administrator(caller, appid)}
    if accountid is not None:
        # MySQL cannot compare some strings with ASCII columns, so whatever is not an
        # accountid becomes an empty string, which no row has.
        is_accountid = is_identifier(Account.PREFIX, accountid)
        scope["accountid"] = accountid if is_accountid else ""
    return scope
