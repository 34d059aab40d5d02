"""The tables and what makes them, their rows as objects, and the clock."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import peewee
from peewee import BigIntegerField, BooleanField, IntegerField, TextField

from database import db, repeated

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


LISTING_INDEXES = ((("appid", "id"), False), (("appid", "accountid", "id"), False))


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
        indexes = ((("profileid",), True), *LISTING_INDEXES)


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
        indexes = ((("sessionid",), True), (("tokenHash",), True), *LISTING_INDEXES)


MODELS = (Account, Profile, Session)


def make_tables():
    """Make the missing tables; safe for many processes and nodes at once."""
    make_file(db)
    repeated(make_missing)(db)


def make_file(engine):
    """Make SQLite's file, if there is none, for its owner alone."""
    if engine.kind == "sqlite":
        with suppress(OSError):  # then it cannot be opened either
            Path(engine.url.name).touch(0o600)


def make_missing(engine):
    """Make the missing tables of a database."""
    if engine.kind == "sqlite":
        engine.pragma("journal_mode", "wal")
    tables = engine.get_tables()
    missing = [model for model in MODELS if model.TABLE not in tables]
    if not missing:
        return
    with engine.writing():
        for model in missing:
            if engine.kind == "mysql":
                engine.execute(create_statement(engine, model))
            else:
                peewee.SchemaManager(model, engine).create_all()


def create_statement(engine, model):
    """Return MySQL's statement for a table with its indexes.

    Made afterwards, by several processes, the indexes stop a MySQL group.
    """
    context = engine.get_sql_context()
    parts = [column.ddl(context) for column in model._meta.sorted_fields]
    for columns, unique in model._meta.indexes:
        index = f"INDEX {'_'.join((model.TABLE, *columns))} ({', '.join(columns)})"
        parts.append(peewee.SQL("UNIQUE " * unique + index))
    context.literal(f"CREATE TABLE IF NOT EXISTS {model.TABLE} ")
    context.sql(peewee.EnclosedNodeList(parts))
    return context.literal(" ENGINE=InnoDB ROW_FORMAT=DYNAMIC")


@cache
def public_columns(model):
    """Return the names of the columns that are read for an object.

    That is all but the hash of a token.
    """
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
