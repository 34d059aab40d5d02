"""Read, store, update and list rows.

Most queries here are raw SQL, because Peewee takes 180 µs to build one, which is as
long as a database takes to run it. What runs rarely is Peewee's expressions.
"""

import time
from collections import namedtuple

from peewee import IntegrityError

from config import settings
from database import db, retry_on_conflict, run_sql
from errors import ServiceError
from models import (
    EMAILS,
    Account,
    Profile,
    Session,
    current_timestamp,
    next_nanoseconds,
    timestamp,
)
from validators import MAX_INT64, is_identifier, matches, parse_number

BATCH = 100  # how many rows select_all() reads at once


# ``scope``: the appid, and perhaps the accountid, of the listed rows and of the row
# ``after``, in this order, because it names the index. ``email``: an address that
# the profiles have. ``active``: whether sessions that ended or expired are left out.
Listing = namedtuple("Listing", "model scope email active", defaults=[None, False])


def get_object(model, identifier, appid=None, *, lock=False):
    """Return the object with this identifier, in one application or in any.

    With ``lock``, lock its row until the commit, and return it as it is committed, even
    if the transaction read an older one. Raises invalid-accountid, invalid-profileid or
    invalid-sessionid: 400 if none is given, 404 if it is unknown.
    """
    existing = get_object_or_none(model, identifier, lock=lock)
    if not existing or appid not in (None, existing["appid"]):
        raise ServiceError(f"invalid-{model.TABLE}id", 404 if identifier else 400)
    return existing


def get_object_or_none(model, identifier, *, lock=False):
    """Return the object with this identifier, or None."""
    if not is_identifier(model.PREFIX, identifier):
        return None
    columns = ", ".join(model.COLUMNS)
    sql = f"SELECT {columns} FROM {model.TABLE} WHERE {model.TABLE}id = ?"
    if lock:
        sql += f" {db.row_lock}"
    row = run_sql(sql, identifier).fetchone()
    return model.as_object(row) if row else None


def update_account(accountid, changes):
    """Change columns of an account; return the changes, with updatedAt."""
    changes = changes | {"updatedAt": timestamp(next_nanoseconds())}
    Account.update(changes).where(Account.accountid == accountid).execute()
    return changes


def update_profile_row(profileid, scope, changes, expected):
    """Change columns of a profile of an account; return whether it was stored.

    With ``expected``, it must have one of these values of ``updatedAt``. Each change
    leaves it greater by at least a millisecond.
    """
    if not is_identifier(Profile.PREFIX, profileid):
        return False
    columns = "".join(f"{name} = ?, " for name in changes)
    now = timestamp(next_nanoseconds())
    sql = f"""UPDATE profile SET {columns}
        updatedAt = CASE WHEN updatedAt < ? THEN ? ELSE {db.next_timestamp} END
        WHERE profileid = ? AND {each_equal(scope)}"""
    values = [*changes.values(), now, now, profileid, *scope.values()]
    if expected is not None:
        # MySQL cannot compare some strings with ASCII columns, and ignores trailing
        # blanks. IN (NULL) matches no row.
        tags = [tag for tag in expected if matches("[!-~]+", tag)]
        placeholders = ", ".join("?" for _ in tags) or "NULL"
        sql += f" AND updatedAt IN ({placeholders})"
        values += tags
    return run_sql(sql, *values).rowcount > 0


def with_default_profile(account):
    """Return the account as a listing has it: with ``profile``, the default or None.

    Both are read again by one statement, so that they agree.
    """
    scope = {"appid": account["appid"], "accountid": account["accountid"]}
    accounts, _ = select_accounts(scope, position="", limit=1)
    if not accounts:  # it was just deleted
        return account | {"profileid": None, "profile": None}
    return accounts[0]


def lock_account(accountid, appid=None):
    """Lock an account until the commit; return it as it is committed.

    Others that change the account wait for its row. Those that insert a profile or a
    session of it wait for the index record, which InnoDB reads to check the foreign
    key. To avoid deadlocks, every transaction locks in this order: row, index record,
    profiles and sessions. Raises invalid-accountid: 400 if none is given, 404 if it is
    unknown.
    """
    account = get_object(Account, accountid, appid, lock=True)
    hint = db.index_hint.format("account_appid_accountid")
    sql = f"""SELECT accountid FROM account {hint}
        WHERE appid = ? AND accountid = ? {db.row_lock}"""
    run_sql(sql, account["appid"], accountid).fetchone()
    return account


@retry_on_conflict
def insert(model, values, *, as_default=False):
    """Store an account's profile or session; return its object, and whether it is new.

    With ``as_default``, a profile also becomes the account's default. If an object with
    this identifier exists, it is returned, and nothing is stored. Raises
    invalid-accountid if the account was just deleted.
    """
    store = insert_default_profile if as_default else insert_row
    try:
        return store(model, values), True
    except IntegrityError:
        return insert_locked(store, model, values)


@db.atomic()
def insert_locked(store, model, values):
    """Find out why insert() met an IntegrityError, while nobody changes the account.

    - The account was deleted after the caller was authenticated: invalid-accountid.
    - The identifier exists, because the key was used before. If the INSERT was resent,
      its first try has stored the object.
    - It existed and was deleted, or another process stored a row with the same id:
      store the row now.
    """
    lock_account(values["accountid"], values["appid"])
    existing = get_object_or_none(model, values[f"{model.TABLE}id"], lock=True)
    if existing:
        was_resent = model.select().where(model.id == values["id"]).exists()
        return existing, was_resent
    return store(model, values), True


@db.atomic()
def insert_default_profile(model, values):
    """Store a profile and make it its account's default, or neither; return it."""
    # This locks the account, so that of two concurrent defaults the last wins.
    update_account(values["accountid"], {"profileid": values["profileid"]})
    return insert_row(model, values)


def insert_row(model, values):
    """Add an id and timestamps to the values, store them, and return their object."""
    row_id = next_nanoseconds()
    created_at = timestamp(row_id)
    values.update(id=row_id, createdAt=created_at, updatedAt=created_at)
    if model is Session:
        values["lastVerifiedAt"] = created_at
        # After the clock was set back, row_id is in the future.
        begins_at = min(row_id, time.time_ns())
        values["expiresAt"] = timestamp(begins_at + values["duration"] * 10**9)
    names = ", ".join(values)
    placeholders = ", ".join("?" for _ in values)
    sql = f"INSERT INTO {model.TABLE} ({names}) VALUES ({placeholders})"
    run_sql(sql, *values.values())
    return model.as_object([values.get(name) for name in model.COLUMNS])


def select_page(listing, limit=None, offset=None, after=None):
    """Return objects in order, and the identifier that the next page comes after.

    Accounts ascend by accountid; profiles and sessions are newest first. On the last
    page, and if the limit is 0, the identifier is None. Numbers may be strings. Raises
    invalid-limit, invalid-offset or invalid-after.
    """
    limit = parse_number("limit", limit, settings()["PAGE_SIZE"])
    offset = parse_number("offset", offset, 0)
    position = find_position(listing, after)
    skipped = 0
    if listing.email is not None:  # only rows that match count for the offset
        skipped, offset = offset, 0
    end = skipped + limit
    # One more row tells whether another page follows.
    objects, _ = select_rows(listing, position, min(end + 1, MAX_INT64), offset)
    next_after = None
    if limit and len(objects) > end:
        next_after = objects[end - 1][f"{listing.model.TABLE}id"]
    return find_matching(listing, objects[:end])[skipped:], next_after


def select_all(listing, after=None):
    """Yield all objects in order, as lists of 1 to BATCH. Raises invalid-after."""
    position = find_position(listing, after)
    while True:
        objects, position = select_rows(listing, position, BATCH)
        if matching := find_matching(listing, objects):
            yield matching
        if len(objects) < BATCH:
            return  # without a statement that would find nothing


def read_all(listing, after=None):
    """Return all objects in order, as a list. Raises invalid-after."""
    return [each for objects in select_all(listing, after) for each in objects]


def find_position(listing, after):
    """Return the position of the row ``after``, or where a listing begins.

    An account's position is its accountid, whether there is such an account or not.
    Raises invalid-after.
    """
    model, scope = listing.model, listing.scope
    if not after:
        return "" if model is Account else MAX_INT64
    if is_identifier(model.PREFIX, after):
        if model is Account:
            return after
        sql = f"""SELECT id FROM {model.TABLE}
            WHERE {model.TABLE}id = ? AND {each_equal(scope)}"""
        row = run_sql(sql, after, *scope.values()).fetchone()
        if row:
            return row[0]
    raise ServiceError("invalid-after")


def select_rows(listing, position, limit, offset=0):
    """Return the objects after a position, in order, and the position of the last.

    A position is an accountid, or the id of a profile or a session. Of a search, these
    are candidates, which find_matching() filters.
    """
    if listing.model is Account:
        return select_accounts(listing.scope, position, limit, offset)
    if listing.email is not None:
        return select_by_email(listing.scope, listing.email, position, limit)
    return select_newest(listing, position, limit, offset)


def select_accounts(scope, position, limit, offset=0):
    """Return accounts, each with its default profile, ascending by accountid."""
    columns = [f"account.{name}" for name in Account.COLUMNS]
    columns += [f"profile.{name}" for name in Profile.COLUMNS]
    sql = f"""SELECT {", ".join(columns)}
        FROM account {db.index_hint.format("account_appid_accountid")}
        LEFT JOIN profile ON profile.profileid = account.profileid
        WHERE {each_equal(scope, "account.")} AND account.accountid > ?
        ORDER BY account.accountid LIMIT ? OFFSET ?"""
    cursor = run_sql(sql, *scope.values(), position, limit, offset)
    accounts = []
    for row in cursor.fetchall():
        account = Account.as_object(row[: len(Account.COLUMNS)])
        profile = Profile.as_object(row[len(Account.COLUMNS) :])
        account["profile"] = profile if profile["profileid"] else None
        accounts.append(account)
        position = account["accountid"]
    return accounts, position


def select_newest(listing, position, limit, offset):
    """Return profiles or sessions, newest first."""
    model, scope = listing.model, listing.scope
    index = "_".join([model.TABLE, *scope, "id"])
    conditions = f"{each_equal(scope)} AND id < ?"
    values = [*scope.values(), position]
    if listing.active:
        conditions += " AND endedAt IS NULL AND expiresAt > ?"
        values.append(current_timestamp())
    sql = f"""SELECT id, {", ".join(model.COLUMNS)}
        FROM {model.TABLE} {db.index_hint.format(index)}
        WHERE {conditions} ORDER BY id DESC LIMIT ? OFFSET ?"""
    return fetch_objects(model, sql, *values, limit, offset)


def select_by_email(scope, email, position, limit):
    """Return profiles that may have an address, newest first.

    The index of each column finds them; on MySQL it also ignores accents. Each column
    has its own SELECT, because MariaDB uses no index for an OR with ORDER BY, and each
    ends where the page does, because many profiles can share an address.
    """
    if not matches("[^\ud800-\udfff]+", email):  # no database can store a surrogate
        return [], None
    selects = [
        f"""SELECT * FROM (SELECT id, {", ".join(Profile.COLUMNS)}
            FROM profile {db.index_hint.format(f"profile_appid_{column}")}
            WHERE {each_equal(scope)} AND {column} = ? {db.ignoring_case} AND id < ?
            ORDER BY id DESC LIMIT ?) AS by_{column}"""
        for column in EMAILS
    ]
    sql = f"{' UNION '.join(selects)} ORDER BY id DESC LIMIT ?"
    values = [*scope.values(), email, position, limit]
    return fetch_objects(Profile, sql, *values, *values, limit)


def each_equal(names, prefix=""):
    """Return the SQL condition that each of these columns has a given value."""
    return " AND ".join(f"{prefix}{name} = ?" for name in names)


def fetch_objects(model, sql, *values):
    """Return the objects of a SELECT of ids and COLUMNS, and the last id or None."""
    rows = run_sql(sql, *values).fetchall()
    objects = [model.as_object(row[1:]) for row in rows]
    return objects, rows[-1][0] if rows else None


def find_matching(listing, objects):
    """Return the objects; of a search, only the profiles that have the address.

    Of active sessions, leave out those that have expired since they were selected.
    """
    if listing.active:
        return [session for session in objects if not session["ended"]]
    if listing.email is None or not objects:
        return objects
    email = lower_ascii(listing.email)
    return [
        profile
        for profile in objects
        if email in [lower_ascii(profile[name] or "") for name in EMAILS]
    ]


def lower_ascii(text):
    """Return a string as bytes, whose lower() changes ASCII letters alone."""
    return text.encode().lower()
