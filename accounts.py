"""Accounts, their sessions, and the caller of a request."""

import re
import time
from collections import namedtuple
from hashlib import sha256
from secrets import token_hex

from database import db, repeated, run
from errors import ServiceError
from models import MODELS, Account, Session, as_objects, now, public_columns, timestamp
from rows import change, find, insert, update
from validators import checked_appid, identifier, is_identifier

CALLER = """SELECT accountid, administrator
    FROM session JOIN account USING (accountid, appid)
    WHERE appid = ? AND tokenHash = ? AND expiresAt > ? AND endedAt IS NULL"""
# As bytes, since to MySQL zoe@ and zoë@ are equal. HEX(NULL) is "" in SQLite.
OWNERS = """accountid IN (SELECT accountid FROM profile WHERE appid = ? AND (
    contactEmail IS NOT NULL AND HEX(LOWER(contactEmail)) = HEX(LOWER(?)) OR
    displayEmail IS NOT NULL AND HEX(LOWER(displayEmail)) = HEX(LOWER(?))))"""
OLD_SESSIONS = """SELECT id FROM session
    WHERE (expiresAt <= ? OR endedAt <= ?) AND id > ? ORDER BY id LIMIT 1000"""
BEARER = re.compile("bearer +([0-9a-f]{64})", re.IGNORECASE)

Caller = namedtuple("Caller", "accountid administrator appid")  # of a request


def authenticate(authorization, appid):
    """Return the caller, whose session has neither ended nor expired.

    Raises sign-in-required.
    """
    bearer = BEARER.fullmatch(authorization or "")
    if bearer:
        digest = sha256(bearer[1].encode()).hexdigest()
        row = run(CALLER, appid, digest, timestamp(time.time_ns())).fetchone()
        if row:
            accountid, administrator = row
            return Caller(accountid, bool(administrator), appid)
    raise ServiceError("sign-in-required")


def create_account(appid, *, administrator=False):
    """Make an account. Raises invalid-appid."""
    accountid = identifier("acct")
    made = timestamp(now())
    sql = """INSERT INTO account (accountid, appid, administrator, createdAt, updatedAt)
        VALUES (?, ?, ?, ?, ?)"""
    change(sql, accountid, checked_appid(appid), administrator, made, made)
    return find(Account, accountid)


def set_administrator(accountid, *, off=False):
    """Make an account an administrator, or an ordinary one.

    Raises invalid-accountid.
    """
    update(Account, accountid, administrator=not off)
    return find(Account, accountid)


def list_administrators(appid):
    """Find the accounts that are administrators."""
    return list_accounts("appid = ? AND administrator", appid)


def find_accounts(email, appid):
    """Find the accounts that have a profile with this e-mail address.

    Letters may be in any case.
    """
    return list_accounts(OWNERS, appid, email, email)


def list_accounts(condition, *values):
    """Return the accounts that meet a condition in SQL, the oldest first."""
    columns = ", ".join(public_columns(Account))
    sql = (
        f"SELECT {columns} FROM account WHERE {condition} ORDER BY createdAt, accountid"
    )
    return {"object": "accounts", "data": as_objects(Account, run(sql, *values))}


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
    end_where("sessionid = ?", sessionid)
    return find(Session, sessionid)


def end_sessions(accountid):
    """End all running sessions of an account at once; return how many.

    Raises invalid-accountid.
    """
    appid = find(Account, accountid)["appid"]
    moment = timestamp(time.time_ns())
    running = "appid = ? AND accountid = ? AND expiresAt > ?"
    return {"object": "end", "count": end_where(running, appid, accountid, moment)}


def end_where(condition, *values):
    """End the sessions that meet a condition in SQL and have not been ended."""
    moment = timestamp(now())
    sql = f"""UPDATE session SET endedAt = ?, updatedAt = ?
        WHERE {condition} AND endedAt IS NULL"""
    return change(sql, moment, moment, *values)


@repeated
def delete_account(accountid, appid=None):
    """Delete an account, its profiles and its sessions, or nothing.

    If the account itself is gone, delete what is left of it in the application. Raises
    invalid-accountid when there is nothing.
    """
    if not is_identifier("acct", accountid):
        raise ServiceError("invalid-accountid", 404)
    counts = {}
    with db.writing():
        sql = "SELECT appid FROM account WHERE accountid = ?"
        (appid,) = run(sql, accountid).fetchone() or (appid,)  # its own, if it exists
        # The account first: whoever adds to it then waits, and finds that it is gone.
        for model in MODELS:
            sql = f"DELETE FROM {model.TABLE} WHERE appid = ? AND accountid = ?"
            counts[f"{model.TABLE}s"] = run(sql, appid, accountid).rowcount
        if not any(counts.values()):
            raise ServiceError("invalid-accountid", 404)
    del counts["accounts"]
    return {"object": "deletion", "accountid": accountid, **counts}


def purge_sessions(days):
    """Delete the sessions that ended or expired that many days ago, or more.

    A thousand at a time, so that others can write in between. Return how many.
    """
    latest = timestamp(time.time_ns() - days * 86_400 * 10**9)
    count = last = 0
    while True:
        ids = [id for (id,) in run(OLD_SESSIONS, latest, latest, last)]
        if not ids:
            return {"object": "purge", "count": count}
        marks = ", ".join("?" * len(ids))
        count += change(f"DELETE FROM session WHERE id IN ({marks})", *ids)
        last = ids[-1]
