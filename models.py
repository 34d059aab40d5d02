"""The tables; finding, changing and storing rows; rows as objects; and the clock."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from secrets import token_hex
from threading import Lock
from typing import Any

from peewee import BigIntegerField, BooleanField, Field, IntegerField, Query, TextField

from database import AsciiField, Statement, Table, parameter
from errors import ServiceError
from validators import is_identifier

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
    UNSTORED = {"object": "account"}

    accountid = AsciiField(primary_key=True)
    appid = AsciiField()
    administrator = BooleanField()
    profileid = AsciiField(null=True)  # the default profile
    createdAt = AsciiField()
    updatedAt = AsciiField()


class Profile(Table):
    PREFIX, PUBLIC_ID = "prof", "profileid"
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


class Session(Table):
    PREFIX, PUBLIC_ID = "sess", "sessionid"
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


ListedModel = type[Profile] | type[Session]
AnyModel = type[Account] | ListedModel


@cache
def public_columns(model: AnyModel) -> list[Field]:
    """Return the columns that are read for an object: all but the hash of a token."""
    return [field for field in model._meta.sorted_fields if field.name != "tokenHash"]


@cache
def object_names(model: AnyModel) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the public columns but the id, and an object without values."""
    names = [column.name for column in public_columns(model) if column.name != "id"]
    # What has no column comes before createdAt. "object" is there twice: the first place counts.
    order = [names[0], "object", *names[1:-2], *model.UNSTORED, *names[-2:]]
    return names, dict.fromkeys(order) | model.UNSTORED


def as_objects(model: AnyModel, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows as the objects of the interface, properties in its order."""
    names, blank = object_names(model)
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


def find(model: AnyModel, identifier: str | None, appid: str | None = None) -> dict[str, Any]:
    """Return the object with this identifier, of any application unless one is given.

    Raises ServiceError, such as invalid-accountid: 400 when not given, 404 when unknown.
    """
    rows = select_row(model, key=identifier) if is_identifier(model.PREFIX, identifier) else []
    found = as_objects(model, rows)
    if not found or appid not in (None, found[0]["appid"]):
        raise ServiceError(f"invalid-{model.PUBLIC_ID}", 404 if identifier else 400)
    return found[0]


@Statement
def select_row(model: AnyModel) -> Query:
    key = getattr(model, model.PUBLIC_ID)
    return model.select(*public_columns(model)).where(key == parameter("key"))


def update(model: AnyModel, identifier: str, **changes: Any) -> dict[str, Any]:
    """Change columns of the row with this identifier; return the changes, updatedAt among them."""
    changes["updatedAt"] = timestamp(now())
    update_row(model, *sorted(changes), **changes, key=identifier)
    return changes


@Statement
def update_row(model: AnyModel, *names: str) -> Query:
    key = getattr(model, model.PUBLIC_ID)
    return model.update({name: parameter(name) for name in names}).where(key == parameter("key"))


def insert(model: AnyModel, moment: int, values: dict[str, Any]) -> dict[str, Any]:
    """Store a row made at that moment (nanoseconds; its id, if it has one); return its object."""
    row = dict.fromkeys(model._meta.sorted_field_names) | values
    row |= {"id": moment} | dict.fromkeys(("createdAt", "updatedAt"), timestamp(moment))
    insert_row(model, **row)
    return as_objects(model, [[row[field.name] for field in public_columns(model)]])[0]


@Statement
def insert_row(model: AnyModel) -> Query:
    return model.insert({field: parameter(field.name) for field in model._meta.sorted_fields})
