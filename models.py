"""The tables, the objects that their rows are returned as, and the clock that orders the rows."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache
from secrets import token_hex
from threading import Lock
from typing import Any

import peewee
from peewee import BigIntegerField, BooleanField, Field, IntegerField, Query, TextField

from database import AsciiField, Statement, Table, parameter


class Clock:
    """Nanoseconds since 1970, UTC, never the same twice and never backwards in one process."""

    def __init__(self) -> None:
        self.lock, self.latest = Lock(), 0

    def __call__(self) -> int:
        with self.lock:
            self.latest = max(self.latest + 1, time.time_ns())
            return self.latest


now = Clock()


@lru_cache(maxsize=8)
def second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def timestamp(nanoseconds: int) -> str:
    """Return ISO 8601, UTC, to the millisecond: texts of one length, which sort as the moments."""
    return f"{second(nanoseconds // 10**9)}.{nanoseconds // 10**6 % 1000:03}Z"


def identifier(prefix: str) -> str:
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


Row = tuple[Any, ...]
"""A row of a listed table: the values of public_columns()."""

LISTING_INDEXES = ((("appid", "id"), False), (("appid", "accountid", "id"), False))
"""For the listing of an application and that of an account; neither is unique."""


class Account(Table):
    accountid = AsciiField(primary_key=True)
    appid = AsciiField()
    administrator = BooleanField()
    profileid = AsciiField(null=True)  # the default profile
    createdAt = AsciiField()
    updatedAt = AsciiField()


class Listed:
    """What the two listed tables share."""

    PUBLIC_ID: str
    UNSTORED: dict[str, Any]
    """Properties without a column: ``object``, which comes second, and one before createdAt."""

    @classmethod
    def as_objects(cls, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Return the rows as the objects of the interface, properties in its order."""
        names, blank = object_names(cls)  # type: ignore[arg-type]
        return [blank | dict(zip(names, row[1:], strict=True)) for row in rows]


class Profile(Listed, Table):
    PUBLIC_ID = "profileid"
    UNSTORED = {"object": "profile", "fields": None}

    id = BigIntegerField(primary_key=True)  # the nanosecond it was made: the listing's order
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


class Session(Listed, Table):
    PUBLIC_ID = "sessionid"
    UNSTORED = {"object": "session", "ended": None}

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

    @classmethod
    def as_objects(cls, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Return the rows as objects; a session has ended when it was ended or has expired."""
        moment, objects = timestamp(time.time_ns()), super().as_objects(rows)
        for each in objects:
            each["ended"] = each.pop("endedAt") is not None or each["expiresAt"] <= moment
        return objects


ListedModel = type[Profile] | type[Session]


@cache
def public_columns(model: ListedModel) -> list[Field]:
    """Return the columns that are read for a listing: all but the hash of a token."""
    return [field for field in model._meta.sorted_fields if field.name != "tokenHash"]


@cache
def object_names(model: ListedModel) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the public columns after the id, and an object without values."""
    names = [column.name for column in public_columns(model)[1:]]
    order = [names[0], "object", *names[1:-2], *model.UNSTORED, *names[-2:]]
    return names, dict.fromkeys(order) | model.UNSTORED


@Statement
def insert_row(model: type[Table]) -> Query:
    return model.insert({field: parameter(field.name) for field in model._meta.sorted_fields})


def insert(model: ListedModel, moment: int, values: dict[str, Any]) -> Row:
    """Store a row made at that moment, in nanoseconds, and return its public columns.

    The moment is its id; if another process made a row in the very same nanosecond, the next is.
    """
    made = {"createdAt": timestamp(moment), "updatedAt": timestamp(moment)}
    row = dict.fromkeys(model._meta.sorted_field_names) | values | made
    row["id"] = moment
    while True:
        try:
            insert_row(model, **row)
            return tuple(row[field.name] for field in public_columns(model))
        except peewee.IntegrityError:
            row["id"] += 1
            if row["id"] > moment + 2:
                raise
