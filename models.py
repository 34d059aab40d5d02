"""The tables, their rows as the API's objects, and the clock."""

import re
import time
from datetime import UTC, datetime, timedelta

import peewee
from peewee import SQL, BigIntegerField, BooleanField, IntegerField, TextField
from playhouse.migrate import SchemaMigrator

from database import db
from validators import PROFILE_FIELDS

ALTER_SECONDS = 60  # how long run_when_unlocked() waits for other connections
EMAILS = ("contactEmail", "displayEmail")  # columns that a search reads, by an index
latest = 0  # what next_nanoseconds() returned last


def next_nanoseconds():
    """Return nanoseconds since 1970, UTC, for the id and the timestamps of a row.

    The current time, but at least one more than the last value, so that rows of a
    process keep their order when the clock is set back. Not unique across threads and
    processes: insert() retries on a collision. To compare with the current time, use
    ``time.time_ns()`` or current_timestamp() instead.
    """
    global latest
    latest = now_ns = max(latest + 1, time.time_ns())
    return now_ns


def timestamp(nanoseconds):
    """Return ISO 8601, UTC, to the millisecond. Timestamps sort chronologically."""
    return format_time(datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC))


def format_time(utc_time):
    """Return a datetime in UTC as timestamp() does."""
    return utc_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def timestamp_after(previous):
    """Return the current timestamp, but at least a millisecond after the previous one.

    So two versions of a profile never have the same updatedAt.
    """
    now = timestamp(next_nanoseconds())
    if now > previous:
        return now
    return format_time(datetime.fromisoformat(previous) + timedelta(milliseconds=1))


def current_timestamp():
    """Return the clock's timestamp, to be compared with expiresAt and endedAt."""
    return timestamp(time.time_ns())


class AsciiField(TextField):
    """At most 64 ASCII characters, which both databases compare byte by byte."""

    field_type = "ASCII"


ACCOUNT_FOREIGN_KEY = SQL(
    "FOREIGN KEY (appid, accountid) REFERENCES account (appid, accountid)"
)


# The properties that are not a column of the same name: object is the table's name,
# fields is always null, and ended follows from endedAt and expiresAt.
PROPERTY_COLUMNS = {"object": None, "fields": None, "ended": "endedAt"}


def with_columns(model):
    """Decorate a model: set what select and as_object() need of its PROPERTIES.

    EMPTY: the object that as_object() fills, with the properties in their order.
    COLUMNS: the columns that it is filled from. SELECT_LIST: the same as SQL.
    """
    model.TABLE = model._meta.table_name
    model.EMPTY = dict.fromkeys(model.PROPERTIES) | {"object": model.TABLE}
    names = [PROPERTY_COLUMNS.get(name, name) for name in model.PROPERTIES]
    model.COLUMNS = [name for name in names if name]
    model.SELECT_LIST = ", ".join(f"{model.TABLE}.{name}" for name in model.COLUMNS)
    return model


@with_columns
class Account(db.Model):
    PREFIX = "acct"
    PROPERTIES = """accountid object appid administrator profileid createdAt
        updatedAt""".split()

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


class AccountRow(db.Model):
    """The columns of each row that belongs to an account."""

    id = BigIntegerField(primary_key=True)  # when it was created, in ns: the order
    appid = AsciiField()
    accountid = AsciiField()
    createdAt = AsciiField()
    updatedAt = AsciiField()


# A UNIQUE constraint is also an index: rows.py names some of them.


@with_columns
class Profile(AccountRow):
    PREFIX = "prof"
    PROPERTIES = [
        *"profileid object appid accountid".split(),
        *[field.property for field in PROFILE_FIELDS.values()],
        *"fields createdAt updatedAt".split(),
    ]

    profileid = AsciiField()
    # A column for each field: companyName, fullName and so on. In the body of a class,
    # locals() is the namespace of the class.
    locals().update(
        {field.property: TextField(null=True) for field in PROFILE_FIELDS.values()}
    )

    class Meta:
        constraints = [
            SQL("CONSTRAINT profile_profileid UNIQUE (profileid)"),
            SQL("CONSTRAINT profile_appid_id UNIQUE (appid, id)"),
            ACCOUNT_FOREIGN_KEY,
            # Only MySQL runs what is in the comment. On SQLite, create_tables() adds
            # the two indexes.
            SQL(
                """CONSTRAINT profile_appid_accountid_id UNIQUE (appid, accountid, id)
                /*!, INDEX profile_appid_contactEmail (appid, contactEmail(64)),
                INDEX profile_appid_displayEmail (appid, displayEmail(64)) */"""
            ),
        ]


@with_columns
class Session(AccountRow):
    PREFIX = "sess"
    PROPERTIES = """sessionid object appid accountid duration csrfToken expiresAt
        lastVerifiedAt ended createdAt updatedAt""".split()

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


MODELS = (Account, Profile, Session)  # in the order in which they can be filled


def create_tables(database):
    """Create the missing tables, each with its indexes in one statement.

    If none is missing, no right to create tables is needed.
    """
    existing = database.get_tables()
    for model in MODELS:
        if model.TABLE not in existing:
            peewee.SchemaManager(model, database).create_table()
    if Profile.TABLE not in existing:
        add_indexes(database)


def add_columns(database):
    """Add the columns that a table lacks and that may be null; return their names.

    Only ``flask init-db`` calls this. An older version can serve meanwhile.
    """
    migrator = SchemaMigrator.from_database(database)
    added = []
    for model in MODELS:
        existing = {column.name for column in database.get_columns(model.TABLE)}
        for field in model._meta.sorted_fields:
            if field.null and field.name not in existing:
                addition = migrator.add_column(model.TABLE, field.name, field)
                if run_when_unlocked(addition.run):
                    added.append(f"{model.TABLE}.{field.name}")
    return added


def add_indexes(database):
    """Add the missing indexes of the e-mail columns.

    This takes seconds for a million rows, so the service does it only in a new table.
    """
    for column in columns_without_index(database):
        sql = database.add_email_index.format(column)
        run_when_unlocked(database.execute_sql, sql)


def columns_without_index(database):
    """Return the e-mail columns whose index is missing, as in a table of 3.2.

    An index of another name does not count, because the search names it on MySQL.
    """
    names = [index.name for index in database.get_indexes(Profile.TABLE)]
    return [column for column in EMAILS if f"profile_appid_{column}" not in names]


def run_when_unlocked(add, *args):
    """Add a column or an index by ``add(*args)``, retrying while others lock the table.

    Return True, or False if another process has just added it. Raises OperationalError:
    for a lock, after ALTER_SECONDS.
    """
    deadline = time.monotonic() + ALTER_SECONDS
    while True:
        try:
            add(*args)
            return True
        except peewee.OperationalError as error:
            exists = r"\((1060|1061),|duplicate column name|index \S+ already exists"
            if re.search(exists, str(error)):
                return False
            is_locked = re.search(r"\((1205|1213),|database is locked", str(error))
            if not is_locked or time.monotonic() > deadline:
                raise
        time.sleep(0.5)  # lets statements run that queued up behind this one


def check_tables():
    """Read every column of each table. The error names a column that is missing."""
    for model in MODELS:
        model.select().first()


def as_object(model, values):
    """Return the object of a row, as the API has it.

    ``values``: those of the model's COLUMNS, in their order, as SELECT_LIST reads them.
    Other values may follow.
    """
    properties = model.EMPTY.copy()
    properties.update(zip(model.COLUMNS, values, strict=False))
    if model is Account:  # both databases store a boolean as 0 or 1
        properties["administrator"] = bool(properties["administrator"])
    if model is Session:
        was_ended = properties.pop("endedAt") is not None
        has_expired = properties["expiresAt"] <= current_timestamp()
        properties["ended"] = was_ended or has_expired
    return properties
