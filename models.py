"""The tables and what makes them, their rows as objects, and the clock."""

import time
from datetime import UTC, datetime

import peewee
from peewee import SQL, BigIntegerField, BooleanField, IntegerField, TextField

from database import db

latest = 0  # what now() returned last


def now():
    """Return nanoseconds since 1970, UTC.

    In a thread, each call returns more than the last. Two threads or processes can get
    the same: then insert() tries again.
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
    """An identifier, hash or timestamp: at most 64 ASCII characters, as bytes."""

    field_type = "ASCII"


# Each constraint below is also an index, of the name that read_rows() in rows.py uses.
OWNER = SQL("FOREIGN KEY (appid, accountid) REFERENCES account (appid, accountid)")


class Account(db.Model):
    TABLE = "account"
    PREFIX = "acct"
    PUBLIC_ID = "accountid"
    PROPERTIES = """
        accountid object appid administrator profileid createdAt updatedAt
        """.split()

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


class Owned(db.Model):
    """The columns of an account's rows."""

    id = BigIntegerField(primary_key=True)  # the nanosecond it was made: the order
    appid = AsciiField()
    accountid = AsciiField()
    createdAt = AsciiField()
    updatedAt = AsciiField()


class Profile(Owned):
    TABLE = "profile"
    PREFIX = "prof"
    PUBLIC_ID = "profileid"
    PROPERTIES = """
        profileid object appid accountid companyName fullName contactEmail displayEmail
        displayName phone occupation location dob website fields createdAt updatedAt
        """.split()

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
            OWNER,
        ]


class Session(Owned):
    TABLE = "session"
    PREFIX = "sess"
    PUBLIC_ID = "sessionid"
    PROPERTIES = """
        sessionid object appid accountid duration csrfToken expiresAt lastVerifiedAt
        ended createdAt updatedAt
        """.split()

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
            OWNER,
        ]


MODELS = (Account, Profile, Session)  # owners first, since a copy makes them first


def make_tables(engine):
    """Make the missing tables of a database, each with its indexes in one statement.

    If several processes add an index later, a group of MySQL servers stops.
    """
    if engine.kind == "sqlite":
        engine.pragma("journal_mode", "wal")
    tables = engine.get_tables()
    for model in MODELS:
        if model.TABLE not in tables:
            peewee.SchemaManager(model, engine).create_table()


def public_columns(model):
    """Return the columns that are read for an object: all but the hash of a token."""
    return [name for name in model._meta.sorted_field_names if name != "tokenHash"]


def as_objects(model, rows):
    """Return rows of the public columns as the interface's objects."""
    columns = public_columns(model)
    moment = timestamp(time.time_ns())
    blank = dict.fromkeys(model.PROPERTIES)  # in their order
    blank["object"] = model.TABLE
    objects = []
    for row in rows:
        each = blank | dict(zip(columns, row))  # noqa: B905 (strict takes time)
        each.pop("id", None)
        if model is Account:  # both databases store a boolean as a number
            each["administrator"] = bool(each["administrator"])
        if model is Session:
            ended_at = each.pop("endedAt")
            each["ended"] = bool(ended_at) or each["expiresAt"] <= moment
        objects.append(each)
    return objects
