"""The tables, their rows as the API's objects, and the clock."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from threading import Lock
from typing import Any

import peewee
from peewee import SQL, BigIntegerField, BooleanField, IntegerField, TextField
from playhouse.migrate import SchemaMigrator

from database import db, retry_on_conflict
from validators import PROFILE_FIELDS

Object = dict[str, Any]  # an account, a profile or a session, as docs/API.md shows it

EMAILS = ("contactEmail", "displayEmail")  # columns that a search reads, by an index
latest = 0  # what next_nanoseconds() returned last
latest_lock = Lock()


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


def timestamp(nanoseconds: int) -> str:
    """Return ISO 8601, UTC, to the millisecond. Timestamps sort chronologically."""
    utc_time = datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC)
    return utc_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def next_timestamp() -> str:
    """Return the timestamp of a change."""
    return timestamp(next_nanoseconds())


def timestamp_after(previous: str) -> str:
    """Return the timestamp of a change that is later than the previous one."""
    milliseconds = round(datetime.fromisoformat(previous).timestamp() * 1_000)
    return timestamp(max(next_nanoseconds(), (milliseconds + 1) * 10**6))


def current_timestamp() -> str:
    """Return the clock's timestamp, to be compared with expiresAt and endedAt."""
    return timestamp(time.time_ns())


class AsciiField(TextField):
    """At most 64 ASCII characters, which both databases compare byte by byte."""

    field_type = "ASCII"


ACCOUNT_FOREIGN_KEY = SQL(
    "FOREIGN KEY (appid, accountid) REFERENCES account (appid, accountid)"
)


class Stored(Object):
    """An object as it is stored.

    ``position``: its primary key, which is its place in a list. ``is_new``: whether
    this very call has stored it.
    """

    position: Any
    is_new = False


class BaseModel(peewee.Model):
    """A table.

    ``KEY``: the column of the identifier, which begins with ``PREFIX``. ``SHOWN``: the
    properties of the API's object, in its order. No other column is ever exposed.
    """

    class Meta:
        database = db

    TABLE: str
    KEY: str
    PREFIX: str
    SHOWN: tuple[str, ...]

    @classmethod
    @cache
    def template(cls) -> Object:
        """Return the API's object of a row without its values."""
        return {**dict.fromkeys(cls.SHOWN), "object": cls.TABLE}

    @classmethod
    @cache
    def columns(cls) -> list[str]:
        """Return the names of the columns that as_object() needs."""
        return [name for name in cls._meta.sorted_field_names if name in cls.SHOWN]

    @classmethod
    def selection(cls) -> list[Any]:
        """Return what to select for as_object()."""
        columns = [getattr(cls, name) for name in cls.columns()]
        return [cls._meta.primary_key, *columns]

    @classmethod
    def as_object(cls, row: Sequence[Any]) -> Stored:
        """Return a row, with the primary key before its columns(), as an object."""
        stored = Stored(cls.template())
        stored.update(zip(cls.columns(), row[1:], strict=True))
        stored.position = row[0]
        return stored


# A UNIQUE constraint is also an index: lists.py names some of them.


class Account(BaseModel):
    TABLE = "account"
    KEY = "accountid"
    PREFIX = "acct"
    SHOWN = (
        "accountid",
        "object",
        "appid",
        "externalid",
        "administrator",
        "profileid",
        "createdAt",
        "updatedAt",
    )

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
    def as_object(cls, row: Sequence[Any]) -> Stored:
        account = super().as_object(row)
        account["administrator"] = bool(account["administrator"])  # stored as 0 or 1
        return account


class Profile(BaseModel):
    TABLE = "profile"
    KEY = "profileid"
    PREFIX = "prof"
    SHOWN = (
        "profileid",
        "object",
        "appid",
        "accountid",
        *[field.property for field in PROFILE_FIELDS.values()],
        "fields",
        "createdAt",
        "updatedAt",
    )

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
    createdAt = AsciiField()
    updatedAt = AsciiField()

    class Meta:
        constraints = [
            SQL("CONSTRAINT profile_profileid UNIQUE (profileid)"),
            SQL("CONSTRAINT profile_appid_id UNIQUE (appid, id)"),
            SQL("CONSTRAINT profile_appid_accountid_id UNIQUE (appid, accountid, id)"),
            ACCOUNT_FOREIGN_KEY,
        ]


class Session(BaseModel):
    TABLE = "session"
    KEY = "sessionid"
    PREFIX = "sess"
    SHOWN = (
        "sessionid",
        "object",
        "appid",
        "accountid",
        "duration",
        "csrfToken",
        "expiresAt",
        "lastVerifiedAt",
        "ended",
        "createdAt",
        "updatedAt",
    )

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
    @cache
    def columns(cls) -> list[str]:
        return [*super().columns(), "endedAt"]

    @classmethod
    def as_object(cls, row: Sequence[Any]) -> Stored:
        session = super().as_object(row)
        has_ended = session.pop("endedAt") is not None
        session["ended"] = has_ended or session["expiresAt"] <= current_timestamp()
        return session


MODELS = (Account, Profile, Session)  # in the order in which they can be filled


@retry_on_conflict
def create_tables(database: Any) -> None:
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


def add_missing(database: Any) -> list[str]:
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


def find_missing(database: Any) -> dict[str, Callable[[], Any]]:
    """Return what add_missing() adds: for each name, such as profile.dob, a function.

    An index with another name does not count, because on MySQL the search names it.
    """
    migrator = SchemaMigrator.from_database(database)
    missing: dict[str, Callable[[], Any]] = {}
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


def check_tables() -> None:
    """Read every column of each table. The error names a column that is missing."""
    for model in MODELS:
        model.select().first()
