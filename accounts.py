"""Accounts, their sessions, and the caller of a request.

No function here checks the rights of a caller: those of operations.py do.
"""

import re
import time
from collections import defaultdict, namedtuple
from hashlib import sha256
from operator import itemgetter
from secrets import token_hex

from peewee import IntegrityError, chunked

from config import settings
from database import retry_on_conflict, run_sql, select_batches, transaction
from errors import ServiceError
from models import (
    Account,
    Profile,
    Session,
    current_timestamp,
    next_nanoseconds,
    timestamp,
)
from rows import (
    BATCH,
    Listing,
    get_object,
    get_object_or_none,
    insert,
    lock_account,
    read_all,
    update_account,
)
from validators import APPID, matches, new_identifier

DEFAULT_DURATION = 28_800  # seconds: 8 hours
ADMINISTRATOR_DURATION = 31_536_000  # seconds: a year


# The account whose token a request has, and the session of the token.
RequestCaller = namedtuple("RequestCaller", "accountid administrator appid sessionid")


def resolve_appid(appid):
    """Return the application of a call, by default the service's own.

    Raises invalid-appid.
    """
    if appid is None:
        return settings()["APPID"]
    if not matches(APPID, appid):
        raise ServiceError("invalid-appid")
    return appid


def authenticate(authorization, appid):
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


def insert_account(appid=None, *, administrator=False, accountid=None):
    """Create an account. If there is one with this accountid, return it as it is.

    Raises invalid-appid.
    """
    return insert_account_once(appid, accountid, administrator=administrator)[0]


@transaction
def insert_account_once(appid, accountid, *, administrator=False):
    """Do what insert_account() does; return the account, and whether it is new."""
    appid = resolve_appid(appid)
    accountid = accountid or new_identifier("acct")
    created_at = timestamp(next_nanoseconds())
    is_new = True
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
        is_new = False
    return get_object(Account, accountid, appid), is_new


@transaction
def insert_administrator(appid=None, duration=ADMINISTRATOR_DURATION):
    """Create an administrator and a session (duration in seconds), or neither.

    Return the session with its token. Raises invalid-appid.
    """
    account = insert_account(appid, administrator=True)
    return insert_session(account["accountid"], duration)


@transaction
def set_administrator(accountid, *, off=False):
    """Make an account an administrator, or an ordinary one, and end its sessions.

    Raises invalid-accountid.
    """
    account = get_object(Account, accountid, lock=True)
    changes = update_account(accountid, {"administrator": not off})
    close_sessions(accountid)
    return account | changes


def list_administrators(appid=None):
    """Return the accounts that are administrators, the oldest first.

    Raises invalid-appid.
    """
    in_application = Account.appid == resolve_appid(appid)
    return accounts_object(read_accounts(in_application & Account.administrator))


def find_accounts(email, appid=None):
    """Return the accounts that have a profile with this address, the oldest first.

    Each has those ``profiles``, newest first. The case of ASCII letters is ignored. An
    empty address finds no account. Raises invalid-appid.
    """
    profiles = defaultdict(list)
    scope = {"appid": resolve_appid(appid)}
    for profile in read_all(Listing(Profile, scope, email)):
        profiles[profile["accountid"]].append(profile)
    accounts = []
    for accountids in chunked(profiles, BATCH):
        accounts += read_accounts(Account.accountid.in_(accountids))
    for account in accounts:
        account["profiles"] = profiles[account["accountid"]]
    return accounts_object(accounts)


def show_account(accountid, appid=None):
    """Return an account, of any application unless ``appid`` is given.

    It has all its ``profiles`` and ``sessions``, newest first. Raises
    invalid-accountid.
    """
    account = get_object(Account, accountid, appid)
    scope = {"appid": account["appid"], "accountid": accountid}
    account["profiles"] = read_all(Listing(Profile, scope))
    account["sessions"] = read_all(Listing(Session, scope))
    return account


def read_accounts(condition):
    """Return the accounts that meet a condition, in no order."""
    rows = Account.select().where(condition).tuples()  # in the order of COLUMNS
    return [Account.as_object(row) for row in rows]


def accounts_object(accounts):
    """Return a list of accounts as commands print it, the oldest first."""
    accounts.sort(key=itemgetter("createdAt", "accountid"))
    return {"object": "accounts", "data": accounts}


@retry_on_conflict
def insert_session(accountid, duration):
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
    stored, _ = insert(Session, session)
    return {"token": token, **stored}


@transaction
def close_session(sessionid):
    """End a session at once, if it has not been ended; return it.

    Raises invalid-sessionid.
    """
    get_object(Session, sessionid)
    mark_as_ended(Session.sessionid == sessionid)
    return get_object(Session, sessionid, lock=True)  # as it is committed


@transaction
def close_sessions(accountid):
    """End all sessions of an account at once; return how many were running.

    Expired ones are marked as ended, too, so that a client doesn't renew them. Raises
    invalid-accountid.
    """
    account = get_object(Account, accountid, lock=True)  # as it is committed
    is_own = (Session.appid == account["appid"]) & (Session.accountid == accountid)
    count = mark_as_ended(is_own & (Session.expiresAt > current_timestamp()))
    mark_as_ended(is_own)
    return {"object": "end", "count": count}


def mark_as_ended(condition):
    """Mark the sessions that meet a condition as ended; return how many changed."""
    ended = Session.update(
        endedAt=current_timestamp(), updatedAt=timestamp(next_nanoseconds())
    )
    return ended.where(condition, Session.endedAt.is_null()).execute()


@transaction
def erase_account(accountid):
    """Delete an account, its profiles and its sessions, or nothing; return how many.

    Raises invalid-accountid.
    """
    counts = {"object": "deletion", "accountid": accountid}
    appid = lock_account(accountid)["appid"]
    for model in (Profile, Session):
        is_own = (model.appid == appid) & (model.accountid == accountid)
        counts[f"{model.TABLE}s"] = model.delete().where(is_own).execute()
    Account.delete().where(Account.accountid == accountid).execute()
    return counts


def purge_sessions(days):
    """Delete the sessions that ended or expired that many days ago, or more.

    It deletes a thousand at a time, so that others can write in between, and by their
    ids, because MySQL locks each row that a DELETE reads. Return how many.
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
