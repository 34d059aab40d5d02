"""Accounts and their sessions, and the caller of a request.

The functions are called within a ``connection()``.
"""

import re
import time
from collections.abc import Iterator
from hashlib import sha256
from secrets import token_hex
from typing import Any, NamedTuple

from peewee import Expression, Field, Query

import models
from database import Statement, db, parameter, write
from errors import ServiceError
from models import Account, ListedModel, Profile, Row, Session, public_columns
from validators import is_identifier

BEARER = re.compile("bearer +([0-9a-f]{64})", re.IGNORECASE)
BATCH = 1_000
"""Rows read, or sessions purged, at a time, so that no request waits long for a lock."""


class SignedIn(NamedTuple):
    """The caller of a request: an account of the application, just read from the database."""

    accountid: str
    administrator: bool
    appid: str


def token_hash(token: str) -> str:
    """Return what the database holds in place of a token."""
    return sha256(token.encode()).hexdigest()


def authenticate(authorization: str | None, appid: str) -> SignedIn:
    """Return the caller of a request with this Authorization header, within the application.

    Raises ServiceError("sign-in-required") without a session that is neither ended nor expired.
    """
    bearer = BEARER.fullmatch(authorization or "")
    if bearer:
        moment = models.timestamp(time.time_ns())
        row = select_caller(appid=appid, hash=token_hash(bearer[1]), moment=moment).fetchone()
        if row:
            return SignedIn(row[0], bool(row[1]), appid)
    raise ServiceError("sign-in-required")


@Statement
def select_caller() -> Query:
    return (
        Account.select(Account.accountid, Account.administrator)
        .join(Session, on=(Session.accountid == Account.accountid))
        .where(
            Session.appid == parameter("appid"),
            Session.tokenHash == parameter("hash"),
            Session.expiresAt > parameter("moment"),
            Session.endedAt.is_null(),
            Account.appid == Session.appid,
        )
    )


def create_account(appid: str, *, administrator: bool = False) -> dict[str, Any]:
    """Store a new account and return it."""
    account = Account(accountid=models.identifier("acct"), appid=appid, administrator=administrator)
    account.createdAt = account.updatedAt = models.timestamp(models.now())
    write(lambda: account.save(force_insert=True))
    return as_object(account)


def set_administrator(accountid: str, administrator: bool) -> dict[str, Any]:
    """Make the account an administrator's or not, and return it. Raises ServiceError."""
    account = find_account(accountid)
    account.administrator, account.updatedAt = administrator, models.timestamp(models.now())
    write(lambda: account.save(only=[Account.administrator, Account.updatedAt]))
    return as_object(account)


def find_account(accountid: str) -> Account:
    """Return the account, of any application. Raises ServiceError("invalid-accountid")."""
    known = is_identifier("acct", accountid)
    account = Account.get_or_none(Account.accountid == accountid) if known else None
    if account is None:
        raise ServiceError("invalid-accountid", 404)
    return account


def find_accounts(email: str, appid: str) -> list[dict[str, Any]]:
    """Return the application's accounts that have a profile with the address, in any case.

    The table is read whole: no index helps, and the databases disagree on upper and lower case.
    """
    wanted, found = email.casefold(), dict[str, None]()
    columns = (Profile.appid, Profile.accountid, Profile.contactEmail, Profile.displayEmail)
    for rows in batches(Profile, *columns):
        for _, of_appid, accountid, *emails in rows:
            if of_appid == appid and wanted in [each.casefold() for each in emails if each]:
                found[accountid] = None
    accounts = [Account.get_or_none(Account.accountid == accountid) for accountid in found]
    return [as_object(account) for account in accounts if account]


def as_object(account: Account) -> dict[str, Any]:
    """Return the account as the commands print it."""
    accountid, *names = Account._meta.sorted_field_names
    values = {name: getattr(account, name) for name in names}
    return {accountid: account.accountid, "object": "account", **values}


def create_session(accountid: str, duration: int) -> dict[str, Any]:
    """Store a new session of so many seconds and return it with its token, which is not stored.

    Raises ServiceError("invalid-accountid").
    """
    account, token = find_account(accountid), token_hex(32)

    def store() -> Row:
        moment = models.now()
        session = {
            "sessionid": models.identifier("sess"),
            "appid": account.appid,
            "accountid": accountid,
            "tokenHash": token_hash(token),
            "duration": duration,
            "csrfToken": token_hex(32),
            "expiresAt": models.timestamp(moment + duration * 10**9),
            "lastVerifiedAt": models.timestamp(moment),
        }
        return models.insert(Session, moment, session)

    return {**Session.as_objects([write(store)])[0], "token": token}


def end_session(sessionid: str) -> dict[str, Any]:
    """End a session, unless it was ended before, and return it.

    Raises ServiceError("invalid-sessionid").
    """
    this = Session.sessionid == sessionid
    if not is_identifier("sess", sessionid) or not Session.get_or_none(this):
        raise ServiceError("invalid-sessionid", 404)
    end_those(this)
    row = db.execute(Session.select(*public_columns(Session)).where(this)).fetchone()
    return Session.as_objects([row])[0]


def end_sessions(accountid: str) -> int:
    """End the sessions of an account that are running; return how many. Raises ServiceError."""
    own = (Session.appid == find_account(accountid).appid) & (Session.accountid == accountid)
    return end_those(own & (Session.expiresAt > models.timestamp(time.time_ns())))


def end_those(condition: Expression) -> int:
    """End the sessions that meet the condition and have not been ended; return how many."""

    def end() -> int:
        moment = models.timestamp(models.now())
        update = Session.update(endedAt=moment, updatedAt=moment)
        return update.where(condition, Session.endedAt.is_null()).execute()

    return write(end)


def purge_sessions(before: str) -> int:
    """Delete the sessions ended or expired by that timestamp; return how many."""
    over, deleted = (Session.expiresAt <= before) | (Session.endedAt <= before), 0
    for rows in batches(Session):
        walked = Session.id.between(rows[0][0], rows[-1][0])
        deleted += write(Session.delete().where(walked, over).execute)
    return deleted


def batches(model: ListedModel, *columns: Field) -> Iterator[list[Row]]:
    """Read a whole table in the order of its ids, that and these columns, a batch at a time."""
    query, last = model.select(model.id, *columns).order_by(model.id).limit(BATCH), 0
    while rows := db.execute(query.where(model.id > last)).fetchall():
        yield rows
        last = rows[-1][0]
