"""The tables, the objects that their rows are answered as, and the clock that orders them."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache
from secrets import token_hex
from threading import Lock
from typing import Any

import peewee
from peewee import BigIntegerField, BooleanField, Field, IntegerField, Query, TextField

from database import AsciiField, Statement, Table, place


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
    """ISO 8601, UTC, to the millisecond: texts of one length, which sort as the moments do."""
    return f"{second(nanoseconds // 10**9)}.{nanoseconds // 10**6 % 1000:03}Z"


Row = tuple[Any, ...]
"""A listed row: its id, its public id, and the rest of ``listed``."""

LISTING_INDEXES = ((("appid", "id"), False), (("appid", "accountid", "id"), False))
"""For a listing of the application and of an account; neither is unique."""


def identifier(prefix: str) -> str:
    """A new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


class Account(Table):
    accountid = AsciiField(primary_key=True)
    appid = AsciiField()
    administrator = BooleanField()
    profileid = AsciiField(null=True)  # the default profile
    createdAt = AsciiField()
    updatedAt = AsciiField()


class Profile(Table):
    PUBLIC_ID = "profileid"

    id = BigIntegerField(primary_key=True)  # the nanosecond it was made: the listing's order
    profileid = AsciiField(unique=True)
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
        indexes = LISTING_INDEXES

    @staticmethod
    def as_objects(rows: Iterable[Row]) -> list[dict[str, Any]]:
        """The rows as the service answers them.

        Spelled out, because ten took 5 µs so, and 13 by zipping names and values.
        """
        return [
            {
                "profileid": profileid,
                "object": "profile",
                "appid": appid,
                "accountid": accountid,
                "companyName": company_name,
                "fullName": full_name,
                "contactEmail": contact_email,
                "displayEmail": display_email,
                "displayName": display_name,
                "phone": phone,
                "occupation": occupation,
                "location": location,
                "dob": dob,
                "website": website,
                "fields": None,
                "createdAt": created_at,
                "updatedAt": updated_at,
            }
            for _, profileid, appid, accountid, company_name, full_name, contact_email,
            display_email, display_name, phone, occupation, location, dob, website,
            created_at, updated_at in rows
        ]  # fmt: skip


class Session(Table):
    PUBLIC_ID = "sessionid"

    id = BigIntegerField(primary_key=True)  # as in Profile
    sessionid = AsciiField(unique=True)
    appid = AsciiField()
    accountid = AsciiField()
    tokenHash = AsciiField(unique=True)
    duration = IntegerField()  # seconds
    csrfToken = AsciiField()
    expiresAt = AsciiField()
    lastVerifiedAt = AsciiField()
    endedAt = AsciiField(null=True)
    createdAt = AsciiField()
    updatedAt = AsciiField()

    class Meta:
        indexes = LISTING_INDEXES

    @staticmethod
    def as_objects(rows: Iterable[Row]) -> list[dict[str, Any]]:
        """The rows as the service answers them; a session ends by itself when it expires."""
        moment = timestamp(time.time_ns())
        return [
            {
                "sessionid": sessionid,
                "object": "session",
                "appid": appid,
                "accountid": accountid,
                "duration": duration,
                "csrfToken": csrf_token,
                "expiresAt": expires_at,
                "lastVerifiedAt": last_verified_at,
                "ended": ended_at is not None or expires_at <= moment,
                "createdAt": created_at,
                "updatedAt": updated_at,
            }
            for _, sessionid, appid, accountid, duration, csrf_token, expires_at,
            last_verified_at, ended_at, created_at, updated_at in rows
        ]  # fmt: skip


Listed = type[Profile] | type[Session]


@cache
def listed(model: Listed) -> list[Field]:
    """The columns of a listed row: all but the token's hash."""
    return [field for field in model._meta.sorted_fields if field.name != "tokenHash"]


@Statement
def insert_row(model: type[Table]) -> Query:
    return model.insert({field: place(field.name) for field in model._meta.sorted_fields})


def insert(model: Listed, moment: int, values: dict[str, Any]) -> Row:
    """Store a row made at that moment and answer its listed columns.

    The moment is its id; if another process made a row in the very same nanosecond, the next is.
    """
    made = {"createdAt": timestamp(moment), "updatedAt": timestamp(moment)}
    row = dict.fromkeys(model._meta.sorted_field_names) | values | made
    row["id"] = moment
    while True:
        try:
            insert_row(model, **row)
            return tuple(row[field.name] for field in listed(model))
        except peewee.IntegrityError:
            row["id"] += 1
            if row["id"] > moment + 2:
                raise
