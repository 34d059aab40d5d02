"""The tables, their rows as the API's objects, and the clock."""

import time
from datetime import UTC, datetime
from functools import partial
from threading import Lock

import peewee
from peewee import SQL, BigIntegerField, BooleanField, IntegerField, TextField
from playhouse.migrate import SchemaMigrator

from database import db, retry_on_conflict
from validators import PROFILE_FIELDS

EMAILS = ("contactEmail", "displayEmail")  # columns that a search reads, by an index
latest = 0  # what next_nanoseconds() returned last
latest_lock = Lock()


def next_nanoseconds():
    """Return nanoseconds since 1970, UTC, for the id and the timestamps of a row.

    The current time, but at least one more than the last value, so the rows of a
    process have different ids, and keep their order when the clock is set back. Not
    unique across processes: insert() retries on a collision. To compare with the
    current time, use ``time.time_ns()`` or current_timestamp() instead.
    """
    global latest
    with latest_lock:
        latest = max(latest + 1, time.time_ns())
        return latest


def timestamp(nanoseconds):
    """Return ISO 8601, UTC, to the millisecond. Timestamps sort chronologically."""
    utc_time = datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC)
    return utc_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def current_timestamp():
    """Return the clock's timestamp, to be compared with expiresAt and endedAt."""
    return timestamp(time.time_ns())


class AsciiField(TextField):
    """At most 64 ASCII characters, which both databases compare byte by byte."""

    field_type = "ASCII"


ACCOUNT_FOREIGN_KEY = SQL(
    "FOREIGN KEY (appid, accountid) REFERENCES account (appid, accountid)"
)


# as_object() takes the values of a model's COLUMNS, in this order, and returns the
# object as the API has it. A UNIQUE constraint is also
# an index: rows.py names some of them.


class Account(db.Model):
    TABLE = "account"
    PREFIX = "acct"
    COLUMNS = "accountid appid administrator profileid createdAt updatedAt".split()

    accountid = AsciiField(primary_key=True)
    appid = AsciiField()
    administrator = BooleanField()
    profileid = AsciiField(null=True)  # the default profile
    createdAt = AsciiField()
    updatedAt = AsciiField()

    class Meta:
        constraints = [
            SQL("CONSTRAINT account_appid_accountid UNIQUE (appid, accountid)")
        ]

    @staticmethod
    def as_object(row):
        accountid, appid, administrator, profileid, created_at, updated_at = row
        return {
            "accountid": accountid,
            "object": "account",
            "appid": appid,
            "administrator": bool(administrator),  # both databases store 0 or 1
            "profileid": profileid,
            "createdAt": created_at,
            "updatedAt": updated_at,
        }


class Profile(db.Model):
    TABLE = "profile"
    PREFIX = "prof"
    EMPTY = {  # as the API has a profile, without its values
        "profileid": None,
        "object": "profile",
        "appid": None,
        "accountid": None,
        **{field.property: None for field in PROFILE_FIELDS.values()},
        "fields": None,
        "createdAt": None,
        "updatedAt": None,
    }
    COLUMNS = [name for name in EMPTY if name not in ("object", "fields")]

    id = BigIntegerField(primary_key=True)  # when it was created, in ns: the order
    appid = AsciiField()
    accountid = AsciiField()
    createdAt = AsciiField()
    updatedAt = AsciiField()
    profileid = AsciiField()
    companyName = TextField(null=True)
    fullName = TextField(null=True)
    contactEmail = TextField(null=True)
    displayEmail = TextField(null=True)
    displayName = TextField(null=True)
    phone = TextField(null=True)
    occupation = TextField(null=True)
    location = TextField(null=True)
    dob = TextField(null=True)
    website = TextField(null=True)

    class Meta:
        constraints = [
            SQL("CONSTRAINT profile_profileid UNIQUE (profileid)"),
            SQL("CONSTRAINT profile_appid_id UNIQUE (appid, id)"),
            SQL("CONSTRAINT profile_appid_accountid_id UNIQUE (appid, accountid, id)"),
            ACCOUNT_FOREIGN_KEY,
        ]

    @staticmethod
    def as_object(row):
        profile = Profile.EMPTY.copy()
        profile.update(zip(Profile.COLUMNS, row, strict=True))
        return profile


class Session(db.Model):
    TABLE = "session"
    PREFIX = "sess"
    COLUMNS = """sessionid appid accountid duration csrfToken expiresAt lastVerifiedAt
        endedAt createdAt updatedAt""".split()

    id = BigIntegerField(primary_key=True)  # when it was created, in ns: the order
    appid = AsciiField()
    accountid = AsciiField()
    createdAt = AsciiField()
    updatedAt = AsciiField()
    sessionid = AsciiField()
    tokenHash = AsciiField()
    duration = IntegerField()  # seconds
    csrfToken = AsciiField()
    expiresAt = AsciiField()
    lastVerifiedAt = AsciiField()
    endedAt = AsciiField(null=True)

    class Meta:
        constraints = [
            SQL("CONSTRAINT session_sessionid UNIQUE (sessionid)"),
            SQL("CONSTRAINT session_tokenHash UNIQUE (tokenHash)"),
            SQL("CONSTRAINT session_appid_id UNIQUE (appid, id)"),
            SQL("CONSTRAINT session_appid_accountid_id UNIQUE (appid, accountid, id)"),
            ACCOUNT_FOREIGN_KEY,
        ]

    @staticmethod
    def as_object(row):
        sessionid, appid, accountid, duration, csrf_token, expires_at, *rest = row
        last_verified_at, ended_at, created_at, updated_at = rest
        return {
            "sessionid": sessionid,
            "object": "session",
            "appid": appid,
            "accountid": accountid,
            "duration": duration,
            "csrfToken": csrf_token,
            "expiresAt": expires_at,
            "lastVerifiedAt": last_verified_at,
            "ended": ended_at is not None or expires_at <= current_timestamp(),
            "createdAt": created_at,
            "updatedAt": updated_at,
        }


MODELS = (Account, Profile, Session)  # in the order in which they can be filled


@retry_on_conflict
def create_tables(database):
    """Create the missing tables.

    If none is missing, the right to create tables is not needed. The indexes of the
    e-mail columns are added to a new table only, because that takes seconds for a
    million rows: ``flask init-db`` adds them to a table of version 3.2.
    """
    existing = database.get_tables()
    for model in MODELS:
        if model.TABLE not in existing:
            peewee.SchemaManager(model, database).create_table()
    if Profile.TABLE not in existing:
        add_missing(database)


def add_missing(database):
    """Add nullable columns and indexes that are missing; return names of the columns.

    An older version can serve meanwhile. Raises OperationalError, for example if
    another connection holds a lock on a table.
    """
    added = []
    for name, add in find_missing(database).items():
        try:
            add()
        except peewee.OperationalError:
            if name in find_missing(database):
                raise
        else:  # otherwise another process has just added it
            added.append(name)
    return [name for name in added if "." in name]


def find_missing(database):
    """Return what add_missing() adds: for each name, such as profile.dob, a function.

    An index with another name does not count, because on MySQL the search names it.
    """
    migrator = SchemaMigrator.from_database(database)
    missing = {}
    for model in MODELS:
        existing = {column.name for column in database.get_columns(model.TABLE)}
        for field in model._meta.sorted_fields:
            if field.null and field.name not in existing:
                addition = migrator.add_column(model.TABLE, field.name, field)
                missing[f"{model.TABLE}.{field.name}"] = addition.run
    existing = {index.name for index in database.get_indexes(Profile.TABLE)}
    for column in EMAILS:
        if f"profile_appid_{column}" not in existing:
            sql = database.add_email_index.format(column)
            missing[column] = partial(database.execute_sql, sql)
    return missing


def check_tables():
    """Read every column of each table. The error names a column that is missing."""
    for model in MODELS:
        model.select().first()
