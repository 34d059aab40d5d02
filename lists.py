"""Lists of accounts, profiles and sessions, in pages, without a check of rights.

Accounts ascend by accountid; profiles and sessions are newest first. A position in a
list is a primary key: an accountid, or the id of a profile or a session.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import orjson
import peewee
from flask import current_app
from peewee import JOIN, SQL

from database import built_once, db
from errors import ServiceError
from formats import (
    MAX_INT64,
    current_timestamp,
    is_identifier,
    matches,
    parse_number,
)
from models import (
    EMAILS,
    Account,
    ModelType,
    Profile,
    Resource,
    Row,
    Session,
    to_account,
)
from rows import find_row, is_in_scope, to_rows

MAX_ROWS = MAX_INT64 - 1  # because one more row is read
BATCH = 100  # how many rows are read at once to list all of them
MAX_BYTES = 2**20  # the JSON of a limited page
Position = str | int
NewestFirst = type[Profile] | type[Session]


@dataclass(frozen=True)
class Listing:
    """What is listed: the rows of a model.

    ``accountid``: only rows of this account.
    ``email``: only profiles that have this address, ignoring the case of ASCII letters.
    ``active``: only sessions that neither ended nor expired.
    ``position``: only rows after it.
    ``limited``: a page has at most BATCH rows and MAX_BYTES, but at least one row.
    """

    model: ModelType
    appid: str
    accountid: str | None = None
    email: str | None = None
    active: bool = False
    position: Position | None = None
    limited: bool = False


class Page(list[Resource]):
    """A part of a list. ``rest``: the listing of the rows that follow, or None."""

    def __init__(self, resources: Iterable[Resource], rest: Listing | None) -> None:
        super().__init__(resources)
        self.rest = rest

    @property
    def has_more(self) -> bool:
        return self.rest is not None

    @property
    def next_after(self) -> str | None:
        """The parameter ``after`` of the page that follows, or None."""
        return str(self.rest.position) if self.rest else None


@dataclass
class Paging:
    """The keyword arguments of each list, which say what part of it is read.

    ``limit``: the maximum number of rows, by default PAGE_SIZE. ``offset``: how many
    are skipped. Both are numbers, or strings of digits. ``limited``: as in Listing.
    ``after``: only the rows after this identifier or position. ``all``: if it is true,
    all rows, whatever the limit and offset.
    """

    limit: int | str | None = None
    offset: int | str | None = None
    after: str | None = None
    all: object = None
    limited: bool = False


def read_list(listing: Listing, paging: Paging) -> Page | None:
    """Return a part of a list, or None if it is empty.

    Raises invalid-limit, invalid-offset or invalid-after.
    """
    if paging.all:
        first = read_list(listing, Paging(limit=BATCH, after=paging.after))
        return Page(chain.from_iterable(walk(first)), None) or None
    limit, offset = current_app.config["PAGE_SIZE"], 0
    if paging.limit is not None:
        limit = parse_number("limit", paging.limit)
    if paging.offset is not None:
        offset = parse_number("offset", paging.offset)
    if paging.after:
        listing = replace(listing, position=find_position(listing, paging.after))
    if paging.limited:
        listing = replace(listing, limited=True)
    maximum = BATCH if paging.limited else MAX_ROWS
    return read_page(listing, min(limit, maximum), offset) or None


def walk(page: Page | None) -> Iterator[Page]:
    """Yield a page and those that follow it, each read when it is needed."""
    while page:
        yield page
        page = read_page(page.rest, BATCH) if page.rest else None


def find_position(listing: Listing, after: str) -> Position:
    """Return the position that ``after`` names. Raises invalid-after.

    Any accountid or number is a position, even if no such row exists any more. The
    identifier of a profile or a session must be that of a row of the listing.
    """
    if listing.model is Account and is_identifier(Account.PREFIX, after):
        return after
    if listing.model is not Account and matches("[0-9]+", after):
        return parse_number("after", after)
    row = find_row(listing.model, after)
    if not row or row["appid"] != listing.appid:
        raise ServiceError("invalid-after")
    if listing.accountid not in (None, row["accountid"]):
        raise ServiceError("invalid-after")
    return row["id"]


def read_page(listing: Listing, limit: int, offset: int = 0) -> Page:
    """Return the first page of a listing."""
    size = limit + 1  # one more row tells whether another page follows
    if listing.email is None:
        found = select_rows(listing, size, offset)
    else:  # only profiles that have the address count for the offset
        matching = islice(search(listing, max(size, BATCH)), offset, None)
        found = list(islice(matching, size))
    page = found[:limit]
    if listing.limited:
        page = shorten(page)
    if listing.model is Account:
        key = "accountid"
        resources = [to_account(row, row["profile"]) for row in page]
    else:
        key = "id"
        resources = [listing.model.to_resource(row) for row in page]
    rest = None
    if page and len(found) > len(page):
        rest = replace(listing, position=page[-1][key])
    return Page(resources, rest)


def shorten(rows: list[Row]) -> list[Row]:
    """Return the first rows, whose JSON has at most MAX_BYTES, or the first one.

    To encode rows once more takes a twentieth of the time in which they were read.
    """
    while len(rows) > 1 and len(orjson.dumps(rows)) > MAX_BYTES:
        rows = rows[: len(rows) // 2]
    return rows


def search(listing: Listing, size: int) -> Iterator[Row]:
    """Yield the profiles that have an address; read ``size`` candidates at a time.

    Few candidates have another one: SQLite, for example, ignores what follows a NUL.
    """
    if not matches("[^\ud800-\udfff]+", listing.email):
        return  # no database can store a surrogate
    email = lower_ascii(listing.email)
    while True:
        candidates = select_rows(listing, size)
        for row in candidates:
            if email in [lower_ascii(row[name]) for name in EMAILS]:
                yield row
        if len(candidates) < size:
            return
        listing = replace(listing, position=candidates[-1]["id"])


def lower_ascii(text: str | None) -> bytes:
    """Return a string as bytes, whose lower() changes ASCII letters alone."""
    return (text or "").encode().lower()


def select_rows(listing: Listing, limit: int, offset: int = 0) -> list[Row]:
    """Return the first rows of a listing; of a search, candidates."""
    model, position = listing.model, listing.position
    if position is None:
        position = "" if model is Account else MAX_INT64
    arguments: dict[str, Any] = {"position": position, "limit": limit}
    arguments["appid"] = listing.appid
    if listing.accountid is not None:
        # MySQL can't compare some strings with ASCII columns, so whatever isn't an
        # accountid becomes an empty string, which no row has.
        is_accountid = is_identifier(Account.PREFIX, listing.accountid)
        arguments["accountid"] = listing.accountid if is_accountid else ""
    if listing.email is not None:
        cursor = select_by_email(email=listing.email, **arguments)
    elif issubclass(model, Account):
        cursor = select_accounts(offset=offset, **arguments)
        return split_accounts(cursor.fetchall())
    else:
        if listing.active:
            arguments["now"] = current_timestamp()
        cursor = select_newest(model, offset=offset, **arguments)
    return to_rows(model, cursor.fetchall())


def split_accounts(selected: list[tuple[Any, ...]]) -> list[Row]:
    """Return joined rows as accounts, whose ``profile`` is the default one or None."""
    width = len(Account._meta.sorted_field_names)
    accounts = to_rows(Account, [values[:width] for values in selected])
    profiles = to_rows(Profile, [values[width:] for values in selected])
    for account, profile in zip(accounts, profiles, strict=True):
        account["profile"] = profile if profile["id"] else None
    return accounts


@built_once
def select_accounts(
    *,
    appid: str,
    position: Position,
    limit: int,
    offset: int,
    accountid: str | None = None,
) -> peewee.Query:
    """Select accounts, each with its default profile, ascending by accountid."""
    accounts = db.force_index(Account, "account_appid_accountid")
    is_default = Profile.profileid == Account.profileid
    join = peewee.Join(accounts, Profile, JOIN.LEFT_OUTER, is_default)
    return (
        Account.select(Account, Profile)
        .from_(join)
        .where(is_in_scope(Account, appid, accountid), Account.accountid > position)
        .order_by(Account.accountid)
        .limit(limit)
        .offset(offset)
    )


@built_once
def select_newest(
    model: NewestFirst,
    /,
    *,
    appid: str,
    position: Position,
    limit: int,
    offset: int,
    accountid: str | None = None,
    now: str | None = None,
) -> peewee.Query:
    """Select profiles or sessions, newest first. ``now``: only running sessions."""
    index = "appid_id" if accountid is None else "appid_accountid_id"
    table = db.force_index(model, f"{model._meta.table_name}_{index}")
    query = model.select().from_(table)
    query = query.where(is_in_scope(model, appid, accountid), model.id < position)
    if now is not None:
        query = query.where(is_running(now))
    return query.order_by(model.id.desc()).limit(limit).offset(offset)


def is_running(now: str) -> peewee.Expression:
    """Return the condition that a session has neither ended nor expired."""
    return Session.endedAt.is_null() & (Session.expiresAt > now)


@built_once
def select_by_email(
    *,
    appid: str,
    email: str,
    position: Position,
    limit: int,
    accountid: str | None = None,
) -> peewee.Query:
    """Select profiles that may have an address, newest first.

    Each column has its own SELECT, because MariaDB uses no index for an OR with ORDER
    BY, and its own LIMIT, because many profiles can share an address.
    """
    by_contact_email, by_display_email = [
        Profile.select()
        .from_(db.force_index(Profile, f"profile_appid_{column}"))
        .where(is_in_scope(Profile, appid, accountid), Profile.id < position)
        .where(db.is_address(getattr(Profile, column), email))
        .order_by(Profile.id.desc())
        .limit(limit)
        for column in EMAILS
    ]
    either = by_contact_email | by_display_email
    return either.order_by(SQL("id DESC")).limit(limit)
