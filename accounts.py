"""Accounts, their sessions, the caller of a request. Called within a ``connection()``."""

import re
import time
from hashlib import sha256
from secrets import token_hex
from typing import Any, NamedTuple

from peewee import Expression

from database import repeated, run
from errors import ServiceError
from listings import read_rows
from models import Account, ListedModel, Profile, Session, as_objects, identifier, now, timestamp
from rows import BATCH, batches, change, find, insert, update
from tables import db
from validators import LARGEST_INTEGER

KINDS: dict[ListedModel, str] = {Profile: "profiles", Session: "sessions"}
CALLER = """SELECT accountid, administrator FROM session JOIN account USING (accountid, appid)
    WHERE appid = ? AND tokenHash = ? AND expiresAt > ? AND endedAt IS NULL"""
BEARER = re.compile("bearer +([0-9a-f]{64})", re.IGNORECASE)


class Caller(NamedTuple):
    """The caller of a request: an account of the application, just read from the database."""

    accountid: str
    administrator: bool
    appid: str


def authenticate(authorization: str | None, appid: str) -> Caller:
    """Return the caller, whose session has neither ended nor expired. Raises sign-in-required."""
    if bearer := BEARER.fullmatch(authorization or ""):
        digest, moment = sha256(bearer[1].encode()).hexdigest(), timestamp(time.time_ns())
        if row := run(CALLER, appid, digest, moment).fetchone():
            return Caller(row[0], bool(row[1]), appid)
    raise ServiceError("sign-in-required")


def create_account(appid: str, *, administrator: bool = False) -> dict[str, Any]:
    """Make an account."""
    values = {"accountid": identifier("acct"), "appid": appid, "administrator": administrator}
    return insert(Account, values)


def set_administrator(accountid: str, *, off: bool = False) -> dict[str, Any]:
    """Make an account an administrator, or with --off an ordinary one. Raises invalid-accountid."""
    return find(Account, accountid) | update(Account, accountid, administrator=not off)


def list_administrators(appid: str) -> dict[str, Any]:
    """Find the accounts that are administrators."""
    return list_accounts((Account.appid == appid) & Account.administrator)


def find_accounts(email: str, appid: str) -> dict[str, Any]:
    """Find the accounts that have a profile with this e-mail address, in any case of letters.

    The table is read whole: no index helps, and the databases disagree on upper and lower case.
    """
    wanted, found = email.casefold(), set()
    columns = (Profile.appid, Profile.accountid, Profile.contactEmail, Profile.displayEmail)
    for rows in batches(Profile, *columns):
        for _, of_appid, accountid, *emails in rows:
            if of_appid == appid and wanted in [each.casefold() for each in emails if each]:
                found.add(accountid)
    return list_accounts(Account.accountid << found)


def list_accounts(condition: Expression) -> dict[str, Any]:
    """Return the accounts that meet the condition, the oldest first."""
    accounts = Account.select().where(condition).order_by(Account.createdAt, Account.accountid)
    return {"object": "accounts", "data": as_objects(Account, db.execute(accounts))}


def create_session(accountid: str, duration: int) -> dict[str, Any]:
    """Make a session (duration in seconds); its token is shown once. Raises invalid-accountid."""
    token, appid = token_hex(32), find(Account, accountid)["appid"]
    values = {"sessionid": identifier("sess"), "appid": appid, "accountid": accountid}
    values |= {"tokenHash": sha256(token.encode()).hexdigest(), "csrfToken": token_hex(32)}
    values["duration"] = duration
    return insert(Session, values, lastVerifiedAt=0, expiresAt=duration) | {"token": token}


def end_session(sessionid: str) -> dict[str, Any]:
    """End a session at once, if it has not ended; return it. Raises invalid-sessionid."""
    end_where(Session.sessionid == find(Session, sessionid)["sessionid"])
    return find(Session, sessionid)


def end_sessions(accountid: str) -> dict[str, Any]:
    """End all running sessions of an account at once; return how many. Raises invalid-accountid."""
    appid, moment = find(Account, accountid)["appid"], timestamp(time.time_ns())
    own = (Session.appid == appid) & (Session.accountid == accountid)
    return {"object": "end", "count": end_where(own & (Session.expiresAt > moment))}


def end_where(condition: Expression) -> int:
    """End the sessions that meet the condition and have not been ended; return how many."""
    moment = timestamp(now())
    end = Session.update(endedAt=moment, updatedAt=moment)
    return change(end.where(condition, Session.endedAt.is_null()))


@repeated
def delete_account(accountid: str) -> dict[str, Any]:
    """Delete an account, its profiles and its sessions: all, or nothing. Raises invalid-accountid.

    On SQLite the contents are overwritten, and the log of changes is emptied if nobody reads it.
    """
    scope = {"appid": find(Account, accountid)["appid"], "accountid": accountid}
    counts = dict.fromkeys(KINDS.values(), 0)
    with db.writing(several=True):
        # The account first: whoever adds to it then waits for the end, and finds that it is gone.
        if not Account.delete().where(Account.accountid == accountid).execute():
            raise ServiceError("invalid-accountid", 404)
        for model, kind in KINDS.items():
            before = LARGEST_INTEGER
            while rows := read_rows(model, scope, before, BATCH):
                before, ids = rows[-1][0], [row[0] for row in rows]
                counts[kind] += model.delete().where(model.id << ids).execute()
    db.execute_sql(db.empty_log)
    return {"object": "deletion", "accountid": accountid, **counts}


def purge_sessions(days: int) -> dict[str, Any]:
    """Delete the sessions that ended or expired that many days ago, or more; return how many."""
    latest, deleted = timestamp(time.time_ns() - days * 86_400 * 10**9), 0
    old = (Session.expiresAt <= latest) | (Session.endedAt <= latest)
    for rows in batches(Session):
        read = Session.id.between(rows[0][0], rows[-1][0])
        deleted += change(Session.delete().where(read, old))
    return {"object": "purge", "count": deleted}
