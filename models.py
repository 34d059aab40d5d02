"""The tables, the objects that their rows are returned as, and the clock."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from secrets import token_hex
from threading import Lock
from typing import Any

from peewee import BigIntegerField, BooleanField, Field, IntegerField, TextField

from tables import AsciiField, Table

latest, latest_lock = 0, Lock()


def now() -> int:
    """Return nanoseconds since 1970, UTC. In a process, each call returns more than the last."""
    global latest
    with latest_lock:
        latest = max(latest + 1, time.time_ns())
        return latest


def timestamp(nanoseconds: int) -> str:
    """Return ISO 8601, UTC, to the millisecond: texts of one length, which sort as the moments."""
    moment = datetime.fromtimestamp(nanoseconds // 10**6 / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def identifier(prefix: str) -> str:
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


Row = Sequence[Any]  # a row's values; those of a listed model begin with the id and the public id

# For the listing of an application, and that of an account.
LISTING_INDEXES = ((("appid", "id"), False), (("appid", "accountid", "id"), False))


class Account(Table):
    PREFIX, PUBLIC_ID = "acct", "accountid"
    PROPERTIES = "accountid object appid administrator profileid createdAt updatedAt".split()

    accountid = AsciiField(primary_key=True)
    appid = AsciiField()
    administrator = BooleanField()
    profileid = AsciiField(null=True)  # the default profile
    createdAt = AsciiField()
    updatedAt = AsciiField()


class Profile(Table):
    PREFIX, PUBLIC_ID = "prof", "profileid"
    PROPERTIES = """profileid object appid accountid companyName fullName contactEmail displayEmail
        displayName phone occupation location dob website fields createdAt updatedAt""".split()

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


class Session(Table):
    PREFIX, PUBLIC_ID = "sess", "sessionid"
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


ListedModel = type[Profile] | type[Session]
AnyModel = type[Account] | ListedModel


@cache
def public_columns(model: AnyModel) -> list[Field]:
    """Return the columns that are read for an object: all but the hash of a token."""
    return [field for field in model._meta.sorted_fields if field.name != "tokenHash"]


@cache
def names_and_blank(model: AnyModel) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the public columns but the id, and an object without values."""
    names = [column.name for column in public_columns(model) if column.name != "id"]
    return names, dict.fromkeys(model.PROPERTIES) | {"object": model._meta.name}


def as_objects(model: AnyModel, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return rows of the public columns, with or without the id, as the interface's objects."""
    names, blank = names_and_blank(model)
    objects, width = [], len(names)
    for row in rows:
        each = blank.copy()
        each.update(zip(names, row[-width:]))  # noqa: B905 (strict is a fifth slower)
        objects.append(each)
    if model is Account:  # both databases store a boolean as a number
        for each in objects:
            each["administrator"] = bool(each["administrator"])
    if model is Session:  # which has ended when it was ended or has expired
        moment = timestamp(time.time_ns())
        for each in objects:
            each["ended"] = each.pop("endedAt") is not None or each["expiresAt"] <= moment
    return objects
