"""Accounts, their sessions, the caller of a request. Called within a ``connection()``."""

import re
import time
from collections import namedtuple
from hashlib import sha256
from secrets import token_hex

from peewee import Expression, fn

from database import db, repeated, run
from errors import ServiceError
from models import MODELS, Account, Object, Profile, Session, as_objects, now, timestamp
from rows import change, find, insert, update
from validators import identifier

CALLER = """SELECT accountid, administrator FROM session JOIN account USING (accountid, appid)
    WHERE appid = ? AND tokenHash = ? AND expiresAt > ? AND endedAt IS NULL"""
BEARER = re.compile("bearer +([0-9a-f]{64})", re.IGNORECASE)


Caller = namedtuple("Caller", "accountid administrator appid")  # of a request


def authenticate(authorization: str | None, appid: str) -> Caller:
    """Return the caller, whose session has neither ended nor expired. Raises sign-in-required."""
    if bearer := BEARER.fullmatch(authorization or ""):
        digest, moment = (
            sha256(bearer[1].encode()).hexdigest(),
            timestamp(time.time_ns()),
        )
        if row := run(CALLER, appid, digest, moment).fetchone():
            return Caller(row[0], bool(row[1]), appid)
    raise ServiceError("sign-in-required")


def create_account(appid: str, *, administrator: bool = False) -> Object:
    """Make an account."""
    values = {
        "accountid": identifier("acct"),
        "appid": appid,
        "administrator": administrator,
    }
    return insert(Account, values)


def set_administrator(accountid: str, *, off: bool = False) -> Object:
    """Make an account an administrator, or with --off an ordinary one. Raises invalid-accountid."""
    return find(Account, accountid) | update(Account, accountid, administrator=not off)


def list_administrators(appid: str) -> Object:
    """Find the accounts that are administrators."""
    return list_accounts((Account.appid == appid) & Account.administrator)


def find_accounts(email: str, appid: str) -> Object:
    """Find the accounts that have a profile with this e-mail address, in any case of letters."""
    wanted = fn.HEX(fn.LOWER(email))  # as bytes: to MySQL, zoe@ and zoë@ are equal
    columns = [
        fn.HEX(fn.LOWER(each)) for each in (Profile.contactEmail, Profile.displayEmail)
    ]
    found = (columns[0] == wanted) | (columns[1] == wanted)
    owners = Profile.select(Profile.accountid).where(Profile.appid == appid, found)
    return list_accounts(Account.accountid << owners)


def list_accounts(condition: Expression) -> Object:
    """Return the accounts that meet the condition, the oldest first."""
    accounts = (
        Account.select().where(condition).order_by(Account.createdAt, Account.accountid)
    )
    return {"object": "accounts", "data": as_objects(Account, db.execute(accounts))}


def create_session(accountid: str, duration: int) -> Object:
    """Make a session (duration in seconds); its token is shown once. Raises invalid-accountid."""
    token, appid = token_hex(32), find(Account, accountid)["appid"]
    values = {"sessionid": identifier("sess"), "appid": appid, "accountid": accountid}
    values |= {
        "tokenHash": sha256(token.encode()).hexdigest(),
        "csrfToken": token_hex(32),
    }
    return insert(Session, values | {"duration": duration}) | {"token": token}


def end_session(sessionid: str) -> Object:
    """End a session at once, if it has not ended; return it. Raises invalid-sessionid."""
    end_where(Session.sessionid == find(Session, sessionid)["sessionid"])
    return find(Session, sessionid)


def end_sessions(accountid: str) -> Object:
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
def delete_account(accountid: str) -> Object:
    """Delete an account, its profiles and its sessions, or nothing. Raises invalid-accountid."""
    appid, counts = find(Account, accountid)["appid"], {}
    with db.writing():
        # The account first: whoever adds to it then waits for the end, and finds that it is gone.
        for model in MODELS:
            own = (model.appid == appid) & (model.accountid == accountid)
            counts[f"{model.TABLE}s"] = model.delete().where(own).execute()
        if not counts.pop("accounts"):
            raise ServiceError("invalid-accountid", 404)
    return {"object": "deletion", "accountid": accountid, **counts}


def purge_sessions(days: int) -> Object:
    """Delete the sessions that ended or expired that many days ago, or more; return how many."""
    latest = timestamp(time.time_ns() - days * 86_400 * 10**9)
    old = (Session.expiresAt <= latest) | (Session.endedAt <= latest)
    return {"object": "purge", "count": change(Session.delete().where(old))}
