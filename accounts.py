"""Accounts, their sessions, and the caller of a request."""

import re
import time
from collections import namedtuple
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex

from peewee import IntegrityError, fn

from config import appid_or_own
from database import connection, db, repeated
from errors import ServiceError
from models import Account, Profile, Session, as_objects, now, timestamp
from rows import find, find_caller, find_or_none, insert, update, write
from validators import identifier, is_identifier

BEARER = re.compile("bearer +([0-9a-f]{64})", re.IGNORECASE)

Caller = namedtuple("Caller", "accountid administrator appid")  # of a request


def authenticate(authorization, appid):
    """Return the caller, whose session has neither ended nor expired.

    Raises sign-in-required.
    """
    bearer = BEARER.fullmatch(authorization or "")
    if bearer:
        token_hash = sha256(bearer[1].encode()).hexdigest()
        with connection():
            row = find_caller(appid, token_hash, timestamp(time.time_ns()))
        if row:
            return Caller(*row, appid)
    raise ServiceError("sign-in-required")


@repeated
def create_account(appid=None, *, administrator=False, accountid=None):
    """Make an account. Raises invalid-appid.

    If there is one with this accountid, return it as it is.
    """
    appid = appid_or_own(appid)
    accountid = accountid or identifier("acct")
    made = timestamp(now())
    account = Account.insert(
        accountid=accountid,
        appid=appid,
        administrator=administrator,
        createdAt=made,
        updatedAt=made,
    )
    with db.writing():
        with suppress(IntegrityError):  # it was made with the same key
            account.execute()
        return find(Account, accountid, appid)


@repeated
def set_administrator(accountid, *, off=False):
    """Make an account an administrator, or an ordinary one, and end its sessions.

    Raises invalid-accountid.
    """
    find(Account, accountid)
    with db.writing():
        update(Account, accountid, {"administrator": not off})
        end_sessions(accountid)
    return find(Account, accountid)


def list_administrators(appid=None):
    """Find the accounts that are administrators."""
    appid = appid_or_own(appid)
    return list_accounts(Account.appid == appid, Account.administrator)


def find_accounts(email, appid=None):
    """Find the accounts that have a profile with this e-mail address.

    Letters may be in any case.
    """
    appid = appid_or_own(appid)
    # As bytes, since to MySQL zoe@ and zoë@ are equal.
    addresses = [
        fn.HEX(fn.LOWER(address))
        for address in (Profile.contactEmail, Profile.displayEmail)
    ]
    is_owner = fn.HEX(fn.LOWER(email)).in_(addresses)
    owners = Profile.select(Profile.accountid).where(Profile.appid == appid, is_owner)
    # SQLite's HEX(NULL) is "": an empty address would find profiles that have none.
    return list_accounts(Account.accountid.in_(owners), email != "")


def list_accounts(*conditions):
    """Return the accounts that meet all conditions, the oldest first."""
    accounts = Account.select().where(*conditions)
    ordered = accounts.order_by(Account.createdAt, Account.accountid)
    with connection():
        return {"object": "accounts", "data": as_objects(Account, ordered.tuples())}


def create_session(accountid, duration):
    """Make a session (duration in seconds); its token is shown once.

    Raises invalid-accountid.
    """
    token = token_hex(32)
    session = {
        "sessionid": identifier("sess"),
        "appid": find(Account, accountid)["appid"],
        "accountid": accountid,
        "duration": duration,
        "tokenHash": sha256(token.encode()).hexdigest(),
        "csrfToken": token_hex(32),
    }
    return insert(Session, session) | {"token": token}


def end_session(sessionid):
    """End a session at once, if it has not ended; return it.

    Raises invalid-sessionid.
    """
    find(Session, sessionid)
    end_running(Session.sessionid == sessionid)
    return find(Session, sessionid)


def end_sessions(accountid):
    """End all running sessions of an account at once; return how many.

    Raises invalid-accountid.
    """
    appid = find(Account, accountid)["appid"]
    count = end_running(Session.appid == appid, Session.accountid == accountid)
    return {"object": "end", "count": count}


def end_running(*conditions):
    """End the sessions that meet all conditions and are running; return how many."""
    moment = timestamp(now())
    ended = Session.update(endedAt=moment, updatedAt=moment)
    is_running = Session.endedAt.is_null() & (Session.expiresAt > moment)
    return write(ended.where(is_running, *conditions))


@repeated
def delete_account(accountid, appid=None):
    """Delete an account, its profiles and its sessions, or nothing.

    ``appid``: only what is in that application. Rows whose account is gone are deleted,
    too: the tables of version 1.3 have no foreign keys. Raises invalid-accountid when
    there is nothing.
    """
    if not is_identifier("acct", accountid):
        raise ServiceError("invalid-accountid", 404)
    with db.writing():
        account = find_or_none(Account, accountid)
        if account and appid is None:
            appid = account["appid"]
        appid = appid_or_own(appid)
        if account:  # locked: whoever adds to it waits, and finds that it is gone
            update(Account, accountid, {})
        counts = {}
        for model in (Profile, Session, Account):
            own = (model.appid == appid) & (model.accountid == accountid)
            counts[f"{model.TABLE}s"] = model.delete().where(own).execute()
        if not any(counts.values()):
            raise ServiceError("invalid-accountid", 404)
    del counts["accounts"]
    return {"object": "deletion", "accountid": accountid, **counts}


def purge_sessions(days):
    """Delete the sessions that ended or expired that many days ago, or more.

    A thousand at a time, so that others can write in between. Return how many.
    """
    cutoff = timestamp(time.time_ns() - days * 86_400 * 10**9)
    is_old = (Session.expiresAt <= cutoff) | (Session.endedAt <= cutoff)
    count = 0
    while True:
        old = Session.select(Session.id).where(is_old).limit(1_000)
        with connection():
            ids = [id for (id,) in old.tuples()]
        if not ids:
            return {"object": "purge", "count": count}
        count += write(Session.delete().where(Session.id.in_(ids)))
