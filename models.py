"""The tables, their rows as the API's objects, and the clock."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any

import orjson
import peewee
from peewee import SQL, BigIntegerField, BooleanField, IntegerField, TextField
from playhouse.migrate import SchemaMigrator

from database import Engine, db, retry_on_conflict
from validators import PROFILE_FIELDS

Row = dict[str, Any]  # each column of a row by its name
Resource = dict[str, Any]  # an account, profile or session, as docs/API.md shows it

PROFILE_PROPERTIES = [field.property for field in PROFILE_FIELDS.values()]
EMAILS = ("contactEmail", "displayEmail")  # columns that a search reads, by an index
latest = 0  # what next_nanoseconds() returned last
latest_lock = Lock()


def timestamp(nanoseconds: int) -> str:
    """Return ISO 8601 in UTC, with milliseconds. Timestamps sort chronologically."""
    utc_time = datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC)
    return utc_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def current_timestamp() -> str:
    """Return the timestamp of now, to compare it with expiresAt and endedAt."""
    return timestamp(time.time_ns())


def next_nanoseconds() -> int:
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


def next_timestamp() -> str:
    """Return the timestamp of a change."""
    return timestamp(next_nanoseconds())


def timestamp_after(previous: str) -> str:
    """Return the timestamp of a change, at least a millisecond after the previous."""
    milliseconds = round(datetime.fromisoformat(previous).timestamp() * 1_000)
    return timestamp(max(next_nanoseconds(), (milliseconds + 1) * 10**6))


class AsciiField(TextField):
    """At most 64 ASCII characters, which both databases compare byte by byte."""

    field_type = "ASCII"


ACCOUNT_FOREIGN_KEY = SQL(
    "FOREIGN KEY (appid, accountid) REFERENCES account (appid, accountid)"
)


class BaseModel(peewee.Model):
    class Meta:
        database = db


# Each table has an identifier, which is in the column KEY and begins with PREFIX.
# to_resource() returns a row as the API shows it.
# A UNIQUE constraint is also an index: lists.py names some of them.


class Account(BaseModel):
    KEY = "accountid"
    PREFIX = "acct"

    accountid = AsciiField(primary_key=True)
    appid = AsciiField()
    externalid = TextField(null=True)  # the key that created it
    administrator = BooleanField()
    profileid = AsciiField(null=True)  # the default profile
    createdAt = AsciiField()
    updatedAt = AsciiField()

    class Meta:
        constraints = [
            SQL("CONSTRAINT account_appid_accountid UNIQUE (appid, accountid)")
        ]

    @classmethod
    def to_resource(cls, row: Row) -> Resource:
        return {
            "accountid": row["accountid"],
            "object": "account",
            "appid": row["appid"],
            "externalid": row["externalid"],
            "administrator": bool(row["administrator"]),  # stored as 0 or 1
            "profileid": row["profileid"],
            "createdAt": row["createdAt"],
            "updatedAt": row["updatedAt"],
        }


class Profile(BaseModel):
    KEY = "profileid"
    PREFIX = "prof"

    id = BigIntegerField(primary_key=True)  # when it was created, in ns: the order
    profileid = AsciiField()
    appid = AsciiField()
    accountid = AsciiField()
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
    fields = TextField(null=True)  # the product's own fields: a JSON object
    createdAt = AsciiField()
    updatedAt = AsciiField()

    class Meta:
        constraints = [
            SQL("CONSTRAINT profile_profileid UNIQUE (profileid)"),
            SQL("CONSTRAINT profile_appid_id UNIQUE (appid, id)"),
            SQL("CONSTRAINT profile_appid_accountid_id UNIQUE (appid, accountid, id)"),
            ACCOUNT_FOREIGN_KEY,
        ]

    @classmethod
    def to_resource(cls, row: Row) -> Resource:
        profile = {
            "profileid": row["profileid"],
            "object": "profile",
            "appid": row["appid"],
            "accountid": row["accountid"],
        }
        for name in PROFILE_PROPERTIES:
            profile[name] = row[name]
        profile["fields"] = orjson.loads(row["fields"]) if row["fields"] else None
        profile["createdAt"] = row["createdAt"]
        profile["updatedAt"] = row["updatedAt"]
        return profile


class Session(BaseModel):
    KEY = "sessionid"
    PREFIX = "sess"

    id = BigIntegerField(primary_key=True)  # when it was created, in ns: the order
    sessionid = AsciiField()
    appid = AsciiField()
    accountid = AsciiField()
    duration = IntegerField()  # seconds
    csrfToken = AsciiField()
    tokenHash = AsciiField()
    expiresAt = AsciiField()
    lastVerifiedAt = AsciiField()
    endedAt = AsciiField(null=True)
    createdAt = AsciiField()
    updatedAt = AsciiField()

    class Meta:
        constraints = [
            SQL("CONSTRAINT session_sessionid UNIQUE (sessionid)"),
            SQL("CONSTRAINT session_tokenHash UNIQUE (tokenHash)"),
            SQL("CONSTRAINT session_appid_id UNIQUE (appid, id)"),
            SQL("CONSTRAINT session_appid_accountid_id UNIQUE (appid, accountid, id)"),
            ACCOUNT_FOREIGN_KEY,
        ]

    @classmethod
    def to_resource(cls, row: Row) -> Resource:
        has_expired = row["expiresAt"] <= current_timestamp()
        return {
            "sessionid": row["sessionid"],
            "object": "session",
            "appid": row["appid"],
            "accountid": row["accountid"],
            "duration": row["duration"],
            "csrfToken": row["csrfToken"],
            "expiresAt": row["expiresAt"],
            "lastVerifiedAt": row["lastVerifiedAt"],
            "ended": row["endedAt"] is not None or has_expired,
            "createdAt": row["createdAt"],
            "updatedAt": row["updatedAt"],
        }


def to_account(account: Row, profile: Row | None) -> Resource:
    """Return an account as the API shows it, with its default profile."""
    resource = Account.to_resource(account)
    resource["profile"] = Profile.to_resource(profile) if profile else None
    return resource


OwnedModel = type[Profile] | type[Session]  # each row belongs to an account
ModelType = type[Account] | type[Profile] | type[Session]
# The table to which others refer comes first.
MODELS: tuple[ModelType, ...] = (Account, Profile, Session)
UNKNOWN_COLUMN = 1054  # MySQL's error number
Additions = dict[str, Callable[[], Any]]  # by the name of what each function adds


def create_tables(database: Engine) -> None:
    """Create the missing tables, or nothing if one that exists is another program's.

    If none is missing, the right to create tables is not needed. The indexes of the
    e-mail columns are added only if a table was missing, because that takes seconds for
    a million rows: ``flask init-db`` adds them to a table of version 3.2.
    """
    existing = [*database.get_tables(), *(view.name for view in database.get_views())]
    missing = [model for model in MODELS if model._meta.table_name not in existing]
    for model in MODELS:
        if model not in missing:
            require_columns(model, database)
    for model in MODELS:
        if model in missing:
            schema = peewee.SchemaManager(model, database)
            retry_on_conflict(schema.create_table)()
        if model is Profile and missing:
            # Before the last table is created: if this process is killed meanwhile, the
            # next one finds that a table is missing, and comes here, too.
            add_all(find_missing_indexes, database)


def require_columns(model: ModelType, database: Engine) -> None:
    """Raise OperationalError if a table lacks a column that add_missing() can't add."""
    table = model._meta.table_name
    existing = {column.name for column in database.get_columns(table)}
    for field in model._meta.sorted_fields:
        if not field.null and field.name not in existing:
            reason = f"the table {table} has no column {field.name}"
            raise peewee.OperationalError(UNKNOWN_COLUMN, reason)


def add_missing(database: Engine) -> list[str]:
    """Add nullable columns and indexes that are missing; return names of the columns.

    An older version can serve meanwhile. Raises OperationalError, for example if
    another connection holds a lock on a table.
    """
    add_all(find_missing_indexes, database)
    return add_all(find_missing_columns, database)


@retry_on_conflict
def add_all(find: Callable[[Engine], Additions], database: Engine) -> list[str]:
    """Add everything that is missing; return the names of what this call has added."""
    added = []
    for name, add in find(database).items():
        try:
            add()
        except peewee.OperationalError:
            if name in find(database):
                raise
        else:  # otherwise another process has just added it
            added.append(name)
    return added


def find_missing_columns(database: Engine) -> Additions:
    """Return what adds each missing nullable column, by a name such as profile.dob."""
    migrator = SchemaMigrator.from_database(database)
    additions: Additions = {}
    for model in MODELS:
        table = model._meta.table_name
        existing = {column.name for column in database.get_columns(table)}
        for field in model._meta.sorted_fields:
            if field.null and field.name not in existing:
                addition = migrator.add_column(table, field.name, field)
                additions[f"{table}.{field.name}"] = addition.run
    return additions


def find_missing_indexes(database: Engine) -> Additions:
    """Return what adds each missing index, by its name.

    An index with another name doesn't count, because on MySQL the search names it.
    """
    existing = {index.name for index in database.get_indexes("profile")}
    additions: Additions = {}
    for column in EMAILS:
        name = f"profile_appid_{column}"
        if name not in existing:
            sql = database.add_email_index.format(column)
            additions[name] = partial(database.execute_sql, sql)
    return additions


def check_tables() -> None:
    """Read every column of each table. The error names a column that is missing."""
    for model in MODELS:
        model.select().first()
