"""Accounts, their sessions, the caller of a request. Called within a ``connection()``."""

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
from models import Account, ListedModel, Profile, Row, Session, as_objects, find, select_row, update

BEARER = re.compile("bearer +([0-9a-f]{64})", re.IGNORECASE)
BATCH = 1_000  # rows read or purged at a time, so that no request waits long for a lock


class SignedIn(NamedTuple):
    """The caller of a request: an account of the application, just read from the database."""

    accountid: str
    administrator: bool
    appid: str


def authenticate(authorization: str | None, appid: str) -> SignedIn:
    """Return the caller, whose session has neither ended nor expired. Raises sign-in-required."""
    if bearer := BEARER.fullmatch(authorization or ""):
        digest, moment = sha256(bearer[1].encode()).hexdigest(), models.timestamp(time.time_ns())
        if row := select_caller(appid=appid, hash=digest, moment=moment).fetchone():
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
    """Make an account."""
    new = {"accountid": models.identifier("acct"), "appid": appid, "administrator": administrator}
    return write(lambda: models.insert(Account, models.now(), new))


def set_administrator(accountid: str, *, off: bool = False) -> dict[str, Any]:
    """Make an account an administrator, or with --off an ordinary one. Raises invalid-accountid."""
    account = find(Account, accountid)
    return account | write(lambda: update(Account, accountid, administrator=not off))


def find_accounts(email: str, appid: str) -> dict[str, Any]:
    """Find the accounts that have a profile with this e-mail address, in any case of letters.

    The table is read whole: no index helps, and the databases disagree on upper and lower case.
    """
    wanted, found = email.casefold(), dict[str, None]()
    columns = (Profile.appid, Profile.accountid, Profile.contactEmail, Profile.displayEmail)
    for rows in batches(Profile, *columns):
        for _, of_appid, accountid, *emails in rows:
            if of_appid == appid and wanted in [each.casefold() for each in emails if each]:
                found[accountid] = None
    found_rows = (row for each in found for row in select_row(Account, key=each))
    return {"object": "accounts", "data": as_objects(Account, found_rows)}


def create_session(accountid: str, duration: int) -> dict[str, Any]:
    """Make a session (duration in seconds); its token is shown once. Raises invalid-accountid."""
    token, appid = token_hex(32), find(Account, accountid)["appid"]
    session = {"sessionid": models.identifier("sess"), "appid": appid, "accountid": accountid}
    session |= {"tokenHash": sha256(token.encode()).hexdigest(), "csrfToken": token_hex(32)}
    session["duration"] = duration

    def store() -> dict[str, Any]:
        moment = models.now()
        session["lastVerifiedAt"] = models.timestamp(moment)
        session["expiresAt"] = models.timestamp(moment + duration * 10**9)
        return models.insert(Session, moment, session)

    return write(store) | {"token": token}


def end_session(sessionid: str) -> dict[str, Any]:
    """End a session at once, if it has not ended; return it. Raises invalid-sessionid."""
    find(Session, sessionid)
    end_where(Session.sessionid == sessionid)
    return find(Session, sessionid)


def end_sessions(accountid: str) -> dict[str, Any]:
    """End all running sessions of an account at once; return how many. Raises invalid-accountid."""
    appid, moment = find(Account, accountid)["appid"], models.timestamp(time.time_ns())
    own = (Session.appid == appid) & (Session.accountid == accountid)
    return {"object": "end", "count": end_where(own & (Session.expiresAt > moment))}


def end_where(condition: Expression) -> int:
    """End the sessions that meet the condition and have not been ended; return how many."""
    moment = models.timestamp(models.now())
    end = Session.update(endedAt=moment, updatedAt=moment)
    return write(end.where(condition, Session.endedAt.is_null()).execute)


def purge_sessions(days: int) -> dict[str, Any]:
    """Delete the sessions that ended or expired that many days ago, or more; return how many."""
    latest, deleted = models.timestamp(time.time_ns() - days * 86_400 * 10**9), 0
    old = (Session.expiresAt <= latest) | (Session.endedAt <= latest)
    for rows in batches(Session):
        in_batch = Session.id.between(rows[0][0], rows[-1][0])
        deleted += write(Session.delete().where(in_batch, old).execute)
    return {"object": "purge", "count": deleted}


def batches(model: ListedModel, *columns: Field) -> Iterator[list[Row]]:
    """Read the id and these columns of a whole table, in the order of the ids, in batches."""
    query, last = model.select(model.id, *columns).order_by(model.id).limit(BATCH), 0
    while rows := db.execute(query.where(model.id > last)).fetchall():
        yield rows
        last = rows[-1][0]
