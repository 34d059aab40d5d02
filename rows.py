"""Read, store, update and list rows.

Hot-path queries are raw SQL, because Peewee takes 180 µs to build one, which is as long
as a database takes to run it. All others are Peewee's expressions.
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
    as_object,
    columns_without_index,
    next_nanoseconds,
    timestamp,
    timestamp_after,
)
from validators import MAX_INT64, is_identifier, parse_number

BATCH = 100  # how many rows select_all() reads at once
WRITE_BATCH = 1_000  # how many rows execute_in_batches() changes at once
INSERT_TRIES = 10

# ``scope``: the appid, and perhaps the accountid, of the listed rows and of the row
# ``after``, in this order, because the index is named by it.
# ``email``: an address that the listed profiles have, ignoring case, or None.
Listing = namedtuple("Listing", "model scope email", defaults=[None])


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
    if is_identifier(model.PREFIX, identifier):
        sql = f"SELECT {model.SELECT_LIST} FROM {model.TABLE} WHERE {model.TABLE}id = ?"
        if lock:
            sql += f" {db.row_lock}"
        row = run_sql(sql, identifier).fetchone()
        if row:
            return as_object(model, row)


@retry_on_conflict
def update_account(accountid, changes):
    """Change columns of an account; return the changes, with updatedAt."""
    changes = changes | {"updatedAt": timestamp(next_nanoseconds())}
    Account.update(changes).where(Account.accountid == accountid).execute()
    return changes


@retry_on_conflict
def update_unchanged(profile, changes):
    """Change columns of a profile and return it, or None if it was changed meanwhile.

    Its ``updatedAt`` tells whether the row still is the ``profile`` that was read.
    """
    read_at = profile["updatedAt"]
    changes = changes | {"updatedAt": timestamp_after(read_at)}
    columns = ", ".join(f"{name} = ?" for name in changes)
    sql = f"UPDATE profile SET {columns} WHERE profileid = ? AND updatedAt = ?"
    cursor = run_sql(sql, *changes.values(), profile["profileid"], read_at)
    return profile | changes if cursor.rowcount else None


def with_default_profile(account):
    """Return the account as a listing has it: with ``profile``, the default or None.

    Both are read again by one statement, so that they agree.
    """
    scope = {name: account[name] for name in ("appid", "accountid")}
    rows = select_rows(Listing(Account, scope), position="", limit=1)
    if not rows:  # it was just deleted
        return account | {"profileid": None, "profile": None}
    return as_objects(Account, rows)[0]


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
    """Store an account's profile or session; return its object.

    With ``as_default``, a profile also becomes the account's default. An IntegrityError
    has one of three causes:

    - The identifier exists, because the key was used before, or the INSERT was resent:
      return that object, and store nothing.
    - The account was deleted after the caller was authenticated: invalid-accountid.
    - Another process stored a row in this nanosecond: the next nanosecond is free.

    If others create and delete the same identifier, it may exist when it is stored and
    not when it is read, so this is tried INSERT_TRIES times. Within a transaction that
    has read before, a row may stay hidden, so there it is tried twice.
    """
    store = insert_default_profile if as_default else insert_row
    tries = 2 if db.in_transaction() else INSERT_TRIES
    while True:
        try:
            return store(model, values)
        except IntegrityError:
            existing = get_object_or_none(model, values[f"{model.TABLE}id"])
            if existing:
                return existing
            get_object(Account, values["accountid"], values["appid"], lock=True)
            tries -= 1
            if not tries:
                raise


@db.atomic()
def insert_default_profile(model, values):
    """Store a profile and make it its account's default, or neither; return it."""
    # This locks the account, so that of two concurrent defaults the last wins.
    update_account(values["accountid"], {"profileid": values["profileid"]})
    return insert_row(model, values)


def insert_row(model, values):
    """Store a row; return its object."""
    row = new_row(model, values)
    names = ", ".join(row)
    placeholders = ", ".join("?" for _ in row)
    sql = f"INSERT INTO {model.TABLE} ({names}) VALUES ({placeholders})"
    run_sql(sql, *row.values())
    return as_object(model, map(row.get, model.COLUMNS))  # None for one without a value


def new_row(model, values):
    """Return the columns of a new row: the values, its id and its timestamps."""
    row_id = next_nanoseconds()
    created_at = timestamp(row_id)
    row = values | {"id": row_id, "createdAt": created_at, "updatedAt": created_at}
    if model is Session:
        row["lastVerifiedAt"] = created_at
        # After the clock was set back, row_id is in the future.
        begins_at = min(row_id, time.time_ns())
        row["expiresAt"] = timestamp(begins_at + row["duration"] * 10**9)
    return row


def select_page(listing, limit=None, offset=None, after=None):
    """Return objects in order, and the identifier that the next page comes after.

    Accounts ascend by accountid; profiles and sessions are newest first. On the last
    page, and if the limit is 0, the identifier is None. Numbers may be strings. Raises
    invalid-limit, invalid-offset or invalid-after.
    """
    limit = parse_number("limit", limit, settings()["PAGE_SIZE"])
    offset = parse_number("offset", offset, 0)
    rows = select_rows(
        listing,
        position=find_position(listing, after),
        limit=min(limit + 1, MAX_INT64),  # one more tells whether a page follows
        offset=offset,
    )
    objects = as_objects(listing.model, rows[:limit])
    if limit and len(rows) > limit:
        return objects, objects[-1][f"{listing.model.TABLE}id"]
    return objects, None


def select_all(listing, after=None):
    """Yield all objects in order, as lists of up to BATCH. Raises invalid-after."""
    position = find_position(listing, after)
    while rows := select_rows(listing, position=position, limit=BATCH):
        yield as_objects(listing.model, rows)
        if len(rows) < BATCH:
            return  # without a statement that would find nothing
        position = rows[-1][-1]


def select_rows(listing, *, position, limit, offset=0):
    """Return the rows behind a position, in order; each ends with its own position.

    A position is an accountid in a listing of accounts, and an id in any other. The
    values before it are what as_objects() reads.
    """
    model, scope, email = listing
    condition = " AND ".join(f"{model.TABLE}.{name} = ?" for name in scope)
    values = [*scope.values()]
    index = "_".join([model.TABLE, *scope, "id"])
    source = f"{model.TABLE} {db.index_hint.format(index)}"
    if email:
        lower = db.lowered.format
        columns = ", ".join(map(lower, EMAILS))
        condition += f" AND {lower('?')} IN ({columns})"
        # A lone surrogate, which no database can store, is in no address either.
        values.append(email.encode(errors="backslashreplace").decode())
        if email.isascii() and not columns_without_index(db):
            source = source_by_email(condition, index)
            found = [email, *values, position, min(limit + offset, MAX_INT64)]
            values = [*found, *found, *values]
    if model is Account:
        sql = f"""SELECT {Account.SELECT_LIST}, {Profile.SELECT_LIST}, account.accountid
            FROM account {db.index_hint.format("account_appid_accountid")}
            LEFT JOIN profile ON profile.profileid = account.profileid
            WHERE {condition} AND account.accountid > ?
            ORDER BY account.accountid LIMIT ? OFFSET ?"""
    else:
        sql = f"""SELECT {model.SELECT_LIST}, id FROM {source}
            WHERE {condition} AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"""
    return run_sql(sql, *values, position, limit, offset).fetchall()


def source_by_email(condition, index):
    """Return a FROM clause of the profiles of a page that have an ASCII address.

    The index of each e-mail column finds those that may have it, and the condition
    decides. Each column has its own SELECT, because MariaDB uses no index for an OR
    with ORDER BY. Each stops where the page ends, because many can share an address;
    then MySQL may choose ``index``, that of the listing. The join reads the ids first,
    because MariaDB otherwise sometimes begins with the whole table.
    """
    ids = " UNION ".join(
        f"""SELECT * FROM (SELECT id FROM profile
            {db.index_hint.format(f"profile_appid_{column}, {index}")}
            WHERE {column} = ? {db.index_collation} AND {condition} AND id < ?
            ORDER BY id DESC LIMIT ?) AS {column}"""
        for column in EMAILS
    )
    return f"({ids}) AS matching {db.ordered_join} profile USING (id)"


def as_objects(model, rows):
    """Return the objects of rows of select_rows(). An account has its ``profile``."""
    objects = [as_object(model, row) for row in rows]
    if model is Account:
        for account, row in zip(objects, rows, strict=True):
            profile = as_object(Profile, row[len(Account.COLUMNS) :])
            account["profile"] = profile if profile["profileid"] else None
    return objects


def find_position(listing, after):
    """Return the position of the row ``after``, or where a listing begins.

    An account's position is its accountid, whether there is such an account or not.
    Raises invalid-after.
    """
    model, scope, _ = listing
    if not after:
        return "" if model is Account else MAX_INT64
    if is_identifier(model.PREFIX, after):
        if model is Account:
            return after
        condition = " AND ".join(f"{name} = ?" for name in scope)
        sql = f"SELECT id FROM {model.TABLE} WHERE {model.TABLE}id = ? AND {condition}"
        row = run_sql(sql, after, *scope.values()).fetchone()
        if row:
            return row[0]
    raise ServiceError("invalid-after")


def select_batches(query, size):
    """Yield the rows of a query as the driver's tuples, as lists of up to ``size``.

    They are in the order of the primary key, which the query must select first. Each
    list is read by its own statement, so memory use does not grow with their number.
    """
    key = query.model._meta.primary_key
    batch = query.order_by(key).limit(size)
    rows = db.execute(batch).fetchall()
    while rows:
        yield rows
        rows = db.execute(batch.where(key > rows[-1][0])).fetchall()


def execute_in_batches(statement, condition):
    """Execute an UPDATE or a DELETE of the rows that meet a condition; return how many.

    To be called within a transaction. The statement is executed for one range of ids
    after the other, each with about WRITE_BATCH of the rows, so that none takes long.
    All ids are read first, because later SELECTs would have to skip what was deleted:
    with 300,000 rows, MariaDB took 151 s instead of 8. The ranges cover every id,
    because a transaction that has read before may not see the newest rows, which the
    statement changes, too.
    """
    model = statement.model
    matching = model.select(model.id).where(condition).order_by(model.id)
    ids = [row[0] for row in db.execute(matching)]
    count = 0
    first_id = 0
    for last_id in (*ids[WRITE_BATCH - 1 :: WRITE_BATCH], MAX_INT64):
        in_range = model.id.between(first_id, last_id)
        count += statement.where(condition, in_range).execute()
        first_id = last_id + 1
    return count
