"""The tables and what makes them, their rows as objects, and the clock."""

import time
from datetime import UTC, datetime
from functools import partial

import peewee
from peewee import SQL, BigIntegerField, BooleanField, IntegerField, TextField

from database import db

latest = 0  # what now() returned last


def now():
    """Return nanoseconds since 1970, UTC. A clock that is set back does not matter.

    Two threads or processes can get the same: then insert() tries again.
    """
    global latest
    latest = moment = max(latest + 1, time.time_ns())
    return moment


def timestamp(nanoseconds):
    """Return ISO 8601, UTC, to the millisecond.

    Such texts have one length, and sort as the moments do.
    """
    moment = datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AsciiField(TextField):
    """An identifier, hash or timestamp: at most 64 ASCII characters.

    Both databases compare it byte by byte.
    """

    field_type = "ASCII"


OptionalText = partial(TextField, null=True)

ACCOUNT_FOREIGN_KEY = SQL(
    "FOREIGN KEY (appid, accountid) REFERENCES account (appid, accountid)"
)


class Account(db.Model):
    TABLE = "account"
    PREFIX = "acct"
    # What a SELECT reads for an object. The last word of each part is the name of a
    # property, in the order of the JSON.
    COLUMNS = """accountid, NULL AS object, appid, administrator, profileid, createdAt,
        updatedAt"""

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
    """The columns of an account's rows."""

    id = BigIntegerField(primary_key=True)  # the nanosecond it was made: the order
    appid = AsciiField()
    accountid = AsciiField()
    createdAt = AsciiField()
    updatedAt = AsciiField()


# A UNIQUE constraint is also an index: select_rows() in rows.py names two of them.


class Profile(AccountRow):
    TABLE = "profile"
    PREFIX = "prof"
    COLUMNS = """profileid, NULL AS object, appid, accountid, companyName, fullName,
        contactEmail, displayEmail, displayName, phone, occupation, location, dob,
        website, NULL AS fields, createdAt, updatedAt"""

    profileid = AsciiField()
    companyName = OptionalText()
    fullName = OptionalText()
    contactEmail = OptionalText()
    displayEmail = OptionalText()
    displayName = OptionalText()
    phone = OptionalText()
    occupation = OptionalText()
    location = OptionalText()
    dob = OptionalText()
    website = OptionalText()

    class Meta:
        constraints = [
            SQL("CONSTRAINT profile_profileid UNIQUE (profileid)"),
            SQL("CONSTRAINT profile_appid_id UNIQUE (appid, id)"),
            SQL("CONSTRAINT profile_appid_accountid_id UNIQUE (appid, accountid, id)"),
            ACCOUNT_FOREIGN_KEY,
        ]


class Session(AccountRow):
    TABLE = "session"
    PREFIX = "sess"
    COLUMNS = """sessionid, NULL AS object, appid, accountid, duration, csrfToken,
        expiresAt, lastVerifiedAt, endedAt AS ended, createdAt, updatedAt"""

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


MODELS = (Account, Profile, Session)  # owners first, since a copy makes them first


def create_tables(engine):
    """Make the missing tables of a database, each with its indexes in one statement."""
    for model in MODELS:
        peewee.SchemaManager(model, engine).create_table()


def check_tables():
    """Read every column of each table. The error names a column that is missing."""
    for model in MODELS:
        model.select().first()


def properties_of(model):
    """Return the names of the COLUMNS, which are the properties of the object."""
    return [column.split()[-1] for column in model.COLUMNS.split(",")]


def as_objects(model, rows):
    """Return rows of the COLUMNS as the interface's objects."""
    names = properties_of(model)
    moment = timestamp(time.time_ns())
    objects = []
    for row in rows:
        found = dict(zip(names, row))  # noqa: B905 (an id may follow the COLUMNS)
        found["object"] = model.TABLE
        if model is Account:  # both databases store a boolean as a number
            found["administrator"] = bool(found["administrator"])
        if model is Session:
            has_expired = found["expiresAt"] <= moment
            found["ended"] = has_expired or found["ended"] is not None
        objects.append(found)
    return objects
