"""The tables and what makes them, the objects that their rows are returned as, and the clock."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import peewee
from peewee import BigIntegerField, BooleanField, IntegerField, TextField

from database import connection, db, repeated

latest, latest_lock = 0, Lock()


def now():
    """Return nanoseconds since 1970, UTC. In a process, each call returns more than the last."""
    global latest
    latest_lock.acquire(timeout=1)  # a signal's exception may have left it locked
    latest = moment = max(latest + 1, time.time_ns())
    with suppress(RuntimeError):
        latest_lock.release()
    return moment


def timestamp(nanoseconds):
    """Return ISO 8601, UTC, to the millisecond: texts of one length, which sort as the moments."""
    moment = datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AsciiField(TextField):
    """Identifiers, hashes and timestamps: at most 64 ASCII characters, compared byte for byte."""

    field_type = "ASCII"


Object = dict[str, Any]  # of the interface: each property and its value

LISTING_INDEXES = ((("appid", "id"), False), (("appid", "accountid", "id"), False))


class Account(db.Model):
    TABLE, PREFIX, PUBLIC_ID = "account", "acct", "accountid"
    PROPERTIES = (
        "accountid object appid administrator profileid createdAt updatedAt".split()
    )

    accountid = AsciiField(primary_key=True)
    appid = AsciiField()
    administrator = BooleanField()
    profileid = AsciiField(null=True)  # the default profile
    createdAt = AsciiField()
    updatedAt = AsciiField()


class Profile(db.Model):
    TABLE, PREFIX, PUBLIC_ID = "profile", "prof", "profileid"
    PROPERTIES = """profileid object appid accountid companyName fullName contactEmail displayEmail
        displayName phone occupation location dob website fields createdAt updatedAt""".split()

    id = BigIntegerField(
        primary_key=True
    )  # the nanosecond it was made: the listing's order
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
        indexes = ((("profileid",), True), *LISTING_INDEXES)


class Session(db.Model):
    TABLE, PREFIX, PUBLIC_ID = "session", "sess", "sessionid"
    PROPERTIES = """sessionid object appid accountid duration csrfToken expiresAt lastVerifiedAt
        ended createdAt updatedAt""".split()

    id = BigIntegerField(primary_key=True)  # as in Profile
    sessionid = AsciiField()
    appid = AsciiField()
    accountid = AsciiField()
    tokenHash = AsciiField()
    duration = IntegerField()  # seconds
    csrfToken = AsciiField()
    expiresAt = AsciiField()
    lastVerifiedAt = AsciiField()
    endedAt = AsciiField(null=True)
    createdAt = AsciiField()
    updatedAt = AsciiField()

    class Meta:
        indexes = ((("sessionid",), True), (("tokenHash",), True), *LISTING_INDEXES)


MODELS = (Account, Profile, Session)


def make_tables(engine=db):
    """Make the missing tables; safe for many processes and nodes at once. Raises ServiceError."""
    if engine.kind == "sqlite":
        with suppress(OSError):  # then it cannot be opened either
            Path(engine.path).touch(0o600)
    with connection(engine):
        make_missing(engine)


@repeated
def make_missing(engine):
    if engine.kind == "sqlite":
        engine.pragma("journal_mode", "wal")
    existing = engine.get_tables()
    if missing := [model for model in MODELS if model.TABLE not in existing]:
        with engine.writing():
            for model in missing:
                if engine.kind == "mysql":
                    engine.execute(create_statement(engine, model))
                else:
                    peewee.SchemaManager(model, engine).create_all()


def create_statement(engine, model):
    """Return MySQL's statement for a table and its indexes. Made later, they break up a group."""
    context = engine.get_sql_context()
    parts = [column.ddl(context) for column in model._meta.sorted_fields]
    for columns, unique in model._meta.indexes:
        index = f"INDEX {'_'.join((model.TABLE, *columns))} ({', '.join(columns)})"
        parts.append(peewee.SQL("UNIQUE " * unique + index))
    context.literal(f"CREATE TABLE IF NOT EXISTS {model.TABLE} ")
    context.sql(peewee.EnclosedNodeList(parts))
    return context.literal(" ENGINE=InnoDB ROW_FORMAT=DYNAMIC")


def public_columns(model):
    """Return the names of the columns that are read for an object: all but the hash of a token."""
    return [name for name in model._meta.sorted_field_names if name != "tokenHash"]


def as_objects(model, rows):
    """Return rows of the public columns as the interface's objects."""
    names = [name for name in public_columns(model) if name != "id"]
    blank, width = dict.fromkeys(model.PROPERTIES) | {"object": model.TABLE}, len(names)
    moment, objects = timestamp(time.time_ns()), []
    for row in rows:
        each = blank | dict(zip(names, row[-width:]))  # noqa: B905 (strict is a fifth slower)
        if model is Account:  # both databases store a boolean as a number
            each["administrator"] = bool(each["administrator"])
        if model is Session:  # it has ended when it was ended or has expired
            each["ended"] = (
                each.pop("endedAt") is not None or each["expiresAt"] <= moment
            )
        objects.append(each)
    return objects
