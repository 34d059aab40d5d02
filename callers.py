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
from formats import APPID, matches
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
    read_only: bool  # whether the token can send GET and HEAD requests alone
    reason: str | None  # why the session is over: ended or expired


class Operator:
    """Whoever runs the commands, who may access every row of every application."""

    accountid = None
    administrator = True


OPERATOR = Operator()
READ_ONLY_PREFIX = "ro_"  # of a token that can only read


def find_caller(authorization: str | None, appid: str) -> SessionCaller | None:
    """Return the caller whose token an Authorization header has, or None."""
    pattern = f"(?i:bearer) +(({READ_ONLY_PREFIX})?[0-9a-f]{{64}})"
    bearer = re.fullmatch(pattern, authorization or "")
    if not bearer:
        return None
    token, prefix = bearer.groups()
    token_hash = sha256(token.encode()).hexdigest()
    row = select_by_token(appid=appid, token_hash=token_hash).fetchone()
    if not row:
        return None
    accountid, administrator, sessionid, expires_at, ended_at = row
    reason = None
    if ended_at:
        reason = "ended"
    elif expires_at <= current_timestamp():
        reason = "expired"
    return SessionCaller(
        accountid=accountid,
        administrator=bool(administrator),
        appid=appid,
        sessionid=sessionid,
        read_only=bool(prefix),
        reason=reason,
    )


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


def require_operator(caller: Caller, appid: str | None = None) -> str:
    """Return a call's application, if the caller is the operator."""
    if caller is not OPERATOR:
        raise ServiceError("administrator-required")
    return resolve_appid(appid)


def require_administrator(caller: Caller, appid: str | None) -> str:
    """Return a call's application, if the caller is an administrator of it."""
    appid = resolve_appid(appid)
    if not caller.administrator or not belongs_to(caller, appid):
        raise ServiceError("administrator-required")
    return appid


def require_own_account(
    caller: Caller,
    accountid: str | None,
    appid: str | None,
    *,
    for_update: bool = False,
) -> tuple[str, str]:
    """Return a call's application and account, if the account is the caller's own.

    The operator may use any account that exists. Raises invalid-appid,
    invalid-accountid or invalid-account.
    """
    appid = resolve_appid(appid)
    if accountid and is_own(caller, accountid, appid):
        # Not looked up. If it was just deleted, lists are empty, and insert() fails.
        return appid, accountid
    account = rows.get_row(Account, accountid, appid, for_update=for_update)
    if caller is not OPERATOR:
        raise ServiceError("invalid-account")
    return appid, account["accountid"]


def get_own(
    model: ModelType,
    caller: Caller,
    identifier: str | None,
    appid: str | None,
    *,
    for_update: bool = False,
) -> Row:
    """Return a row of the caller's own account; the operator may access every row.

    Raises invalid-appid, what get_row() raises, or invalid-account.
    """
    appid = resolve_appid(appid)
    row = rows.get_row(model, identifier, appid, for_update=for_update)
    if caller is not OPERATOR and not is_own(caller, row["accountid"], appid):
        raise ServiceError("invalid-account")
    return row


def is_own(caller: Caller, accountid: str, appid: str) -> bool:
    """Return whether the account is the caller's own. The operator has none."""
    return accountid == caller.accountid and belongs_to(caller, appid)
