"""The four operations, for the HTTP routes and for callers in the same process.

Each checks its caller's rights itself and fails with a ServiceError whose message is the code.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple, Protocol

from flask import current_app
from peewee import Query

from config import Settings
from errors import ServiceError
from models import (
    Account,
    Listed,
    Profile,
    Session,
    connection,
    database,
    identifier,
    insert,
    now,
    place,
    statement,
    timestamp,
)
from validators import APPID, LARGEST_INTEGER, is_identifier, listing_query, profile_values

BATCH = 250
"""Rows read and held at a time, however many are asked for."""

Row = tuple[Any, ...]
"""A listed row: its id, its public id, and the rest of ``model.listed()``."""


class Caller(Protocol):
    """Whoever makes the call: an Account will do."""

    accountid: Any
    administrator: Any


def update_profile(
    caller: Caller,
    profileid: str | None,
    body: dict[str, Any] | None,
    *,
    appid: str | None = None,
    user_profile_fields: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Store the configured fields of the caller's own profile and answer the whole profile.

    ``user_profile_fields`` replaces the configured list for this call. Raises ServiceError:
    invalid-profileid, invalid-account, or the code of the first field that fails.
    """
    appid = application(appid)
    with connection():
        profile = find_profile(profileid, appid)
        if profile["accountid"] != caller.accountid:
            raise ServiceError("invalid-account")
        changes = checked_fields(body, user_profile_fields, creating=False)
        changes["updatedAt"] = timestamp(now())
        with database.writing():
            update_columns(*sorted(changes), **changes, profileid=profileid)
    return profile | changes


def create_profile(
    caller: Caller,
    accountid: str | None,
    body: dict[str, Any] | None,
    *,
    appid: str | None = None,
    user_profile_fields: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Store a new profile of the caller's own account and answer it.

    With ``default`` exactly ``true`` in the body it becomes the account's default profile, both
    or neither. ``user_profile_fields`` replaces the configured list for this call. Raises
    ServiceError: invalid-accountid, invalid-account, or the code of the first field that fails.
    """
    appid = application(appid)
    with connection():
        require_account(accountid, appid)
        if accountid != caller.accountid:
            raise ServiceError("invalid-account")
        values = checked_fields(body, user_profile_fields, creating=True)
        values |= {"profileid": identifier("prof"), "appid": appid, "accountid": accountid}
        default = (body or {}).get("default") in ("true", True)
        with database.writing(), database.atomic() if default else nullcontext():
            row = insert(Profile, now(), values)
            if default:
                set_default_profile(profileid=row[1], updatedAt=row[-1], accountid=accountid)
    return Profile.as_objects([row])[0]


def list_profiles(
    caller: Caller,
    *,
    accountid: str | None = None,
    all: bool | str = False,
    limit: int | str | None = None,
    offset: int | str = 0,
    after: str | None = None,
    appid: str | None = None,
) -> list[dict[str, Any]] | None:
    """The application's profiles, newest first, or None when there is none.

    Raises ServiceError: administrator-required, invalid-limit, invalid-offset, invalid-after.
    """
    query = {"accountid": accountid, "all": all, "limit": limit, "offset": offset, "after": after}
    return read_page(Profile, caller, appid, query).everything()


def list_sessions(
    caller: Caller,
    *,
    accountid: str | None = None,
    all: bool | str = False,
    limit: int | str | None = None,
    offset: int | str = 0,
    after: str | None = None,
    appid: str | None = None,
) -> list[dict[str, Any]] | None:
    """The application's sessions, newest first, without their tokens; else as list_profiles."""
    query = {"accountid": accountid, "all": all, "limit": limit, "offset": offset, "after": after}
    return read_page(Session, caller, appid, query).everything()


class Page(NamedTuple):
    """A page of a listing: its first batch, the rest as it is read, and the cursor behind it."""

    first: list[dict[str, Any]]
    rest: Iterable[list[dict[str, Any]]] | None = None
    next: str | None = None

    def everything(self) -> list[dict[str, Any]] | None:
        return [*self.first, *chain.from_iterable(self.rest or ())] or None


def read_page(model: Listed, caller: Caller, appid: str | None, given: dict[str, Any]) -> Page:
    """A page of the listing, of which no more than a batch is held at a time."""
    appid = application(appid)
    if not caller.administrator:
        raise ServiceError("administrator-required")
    query = listing_query(given, page_size=settings().page_size)
    accountid, limit = query["accountid"], query["limit"]
    if limit == 0 or accountid and not is_identifier("acct", accountid):
        return Page([])
    scope = {"appid": appid, "accountid": accountid} if accountid else {"appid": appid}
    size = min(limit, BATCH)
    with connection():
        rows = first_rows(model, scope, query, size + 1)
        if len(rows) <= size:
            return Page(model.as_objects(rows))
        rows = rows[:size]
        if limit == size:
            return Page(model.as_objects(rows), next=rows[-1][1])
        last, cursor = last_row(model, scope, rows[0][0], limit)
    return Page(model.as_objects(rows), further_batches(model, scope, rows[-1][0], last), cursor)


def first_rows(
    model: Listed, scope: dict[str, str], query: dict[str, Any], count: int
) -> Sequence[Row]:
    """The rows the page begins with. Raises ServiceError("invalid-after")."""
    after, offset = query["after"], query["offset"]
    bound = {"after": after, "appid": scope["appid"]} if after else {"before": LARGEST_INTEGER}
    skip = {"offset": offset} if offset else {}
    rows = read_rows(model, scope, **bound, **skip, count=count)
    if after and not rows and not select_cursor(model, **bound).fetchone():
        raise ServiceError("invalid-after")
    return rows


def last_row(
    model: Listed, scope: dict[str, str], first: int, limit: int
) -> tuple[int, str | None]:
    """The id of a long page's last row and, if there are more behind it, the cursor it makes.

    ``(0, None)`` when the page reaches the listing's end.
    """
    ends = read_rows(model, scope, before=first + 1, offset=limit - 1, count=2)
    return (ends[0][0], ends[0][1]) if len(ends) == 2 else (0, None)


def further_batches(
    model: Listed, scope: dict[str, str], before: int, last: int
) -> Iterator[list[dict[str, Any]]]:
    """The rows made before the one with id ``before``, down to ``last``, as they are asked for."""
    while before > last:
        with connection():
            rows = read_rows(model, scope, before=before, count=BATCH)
        rows = [row for row in rows if row[0] >= last]
        if rows:
            yield model.as_objects(rows)
        before = rows[-1][0] if len(rows) == BATCH else last


def read_rows(model: Listed, scope: dict[str, str], **places: Any) -> Sequence[Row]:
    """The rows of select_rows in the variant that these places ask for."""
    variant = (model, tuple(scope), "after" in places, "offset" in places)
    rows: Sequence[Row] = select_rows(*variant, **{**places, **scope}).fetchall()
    return rows


# What the operations share


def settings() -> Settings:
    """The settings of the application in whose context the call is made."""
    found: Settings = current_app.config["SETTINGS"]
    return found


def application(appid: str | None) -> str:
    """The application of the call, the service's own unless given. Raises ServiceError."""
    if appid is None:
        return settings().appid
    if not isinstance(appid, str) or not APPID.fullmatch(appid):
        raise ServiceError("invalid-appid")
    return appid


def find_profile(profileid: str | None, appid: str) -> dict[str, Any]:
    """The profile. Raises ServiceError: invalid-profileid, 400 if not given, 404 if unknown."""
    if not profileid:
        raise ServiceError("invalid-profileid")
    known = is_identifier("prof", profileid)
    rows = select_profile(profileid=profileid, appid=appid).fetchall() if known else []
    if not rows:
        raise ServiceError("invalid-profileid", 404)
    return Profile.as_objects(rows)[0]


def require_account(accountid: str | None, appid: str) -> None:
    """Raises ServiceError: invalid-accountid, 400 if not given, 404 if unknown."""
    if not accountid:
        raise ServiceError("invalid-accountid")
    known = is_identifier("acct", accountid)
    if not known or not select_account(accountid=accountid, appid=appid).fetchone():
        raise ServiceError("invalid-accountid", 404)


def checked_fields(
    body: dict[str, Any] | None, names: Iterable[str] | None, *, creating: bool
) -> dict[str, Any]:
    """The values to store, by property. Raises ServiceError for the first field that fails."""
    configured = settings()
    names = configured.user_profile_fields if names is None else tuple(names)
    given = {} if body is None else body
    return profile_values(given, names, configured.lengths, creating=creating)


# The statements


@statement
def select_profile() -> Query:
    return Profile.select(*Profile.listed()).where(
        Profile.profileid == place("profileid"), Profile.appid == place("appid")
    )


@statement
def select_account() -> Query:
    return Account.select(Account.accountid).where(
        Account.accountid == place("accountid"), Account.appid == place("appid")
    )


@statement
def update_columns(*names: str) -> Query:
    return Profile.update({name: place(name) for name in names}).where(
        Profile.profileid == place("profileid")
    )


@statement
def set_default_profile() -> Query:
    return Account.update(profileid=place("profileid"), updatedAt=place("updatedAt")).where(
        Account.accountid == place("accountid")
    )


@statement
def select_cursor(model: Listed) -> Query:
    """The id of the row that a cursor names within the application."""
    source = model.alias()
    return source.select(source.id).where(
        getattr(source, model.PUBLIC_ID) == place("after"), source.appid == place("appid")
    )


@statement
def select_rows(model: Listed, scope: tuple[str, ...], cursor: bool, skipping: bool) -> Query:
    """The rows older than a bound, newest first, by the index on the scope and the id.

    The bound is the id ``before`` or, with ``cursor``, the row that ``after`` names. Rows are
    skipped in the index alone: 50,000 took MariaDB 10 ms so, and 58 as whole rows.
    """
    source = model.alias() if skipping else model
    bound = select_cursor.build(model) if cursor else place("before")
    index = "_".join((model._meta.table_name, *scope, "id"))
    filters = [getattr(source, name) == place(name) for name in scope]
    rows = (
        source.select(*([source.id] if skipping else model.listed()))
        .from_(database.reading(source, index))
        .where(*filters, source.id < bound)
        .order_by(source.id.desc())
        .limit(place("count"))
    )
    if not skipping:
        return rows
    keys = rows.offset(place("offset")).alias("keys")
    return (
        model.select(*model.listed())
        .join(keys, on=(model.id == keys.c.id))
        .order_by(model.id.desc())
    )
