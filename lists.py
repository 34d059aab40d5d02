"""Lists of accounts, profiles and sessions, in pages, without a check of rights.

Accounts ascend by accountid; profiles and sessions are newest first. A position in a
list is a primary key: an accountid, or the id of a profile or a session.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import orjson
import peewee
from flask import current_app
from peewee import JOIN, SQL

from database import built_once, db
from errors import ServiceError
from formats import MAX_INT64, is_identifier, matches, parse_number
from models import (
    EMAILS,
    Account,
    OwnedModel,
    Profile,
    Resource,
    Row,
    Session,
    current_timestamp,
    to_account,
)
from rows import find_row, is_in_scope, to_rows

MAX_ROWS = MAX_INT64 - 1  # because one more row is read
BATCH = 100  # how many rows are read at once to list all of them
MAX_BYTES = 2**20  # the JSON of a limited page


@dataclass(frozen=True)
class Listing:
    """A list of profiles or sessions of an application, newest first.

    ``accountid``: only those of this account.
    ``email``: only profiles that have this address, ignoring the case of ASCII letters.
    ``active``: only sessions that neither ended nor expired.
    ``position``: only those with smaller ids.
    ``limited``: a page has at most BATCH rows and MAX_BYTES, but at least one row.
    """

    key: ClassVar[str] = "id"  # the column of positions
    model: OwnedModel
    appid: str
    accountid: str | None = None
    email: str | None = None
    active: bool = False
    position: int = MAX_INT64
    limited: bool = False

    def after(self, after: str) -> "Listing":
        """Return the listing of the rows after a position. Raises invalid-after.

        ``after``: any number, even if no such row exists any more, or the identifier of
        a row of this listing.
        """
        if matches("[0-9]+", after):
            return replace(self, position=parse_number("after", after))
        row = find_row(self.model, after)
        if not row or row["appid"] != self.appid:
            raise ServiceError("invalid-after")
        if self.accountid not in (None, row["accountid"]):
            raise ServiceError("invalid-after")
        return replace(self, position=row["id"])

    def read_rows(self, limit: int, offset: int) -> list[Row]:
        if self.email is not None:
            # Only profiles that have the address count for the offset.
            matching = islice(search(self, max(limit, BATCH)), offset, None)
            return list(islice(matching, limit))
        arguments = scope_arguments(self) | {"limit": limit, "offset": offset}
        if self.active:
            arguments["now"] = current_timestamp()
        return to_rows(self.model, select_newest(self.model, **arguments).fetchall())

    def to_resource(self, row: Row) -> Resource:
        return self.model.to_resource(row)


@dataclass(frozen=True)
class AccountListing:
    """A list of accounts of an application, each with its default profile.

    They ascend by accountid. ``accountid``: only this account. ``position``: only those
    with greater ids. ``limited`` as in Listing.
    """

    key: ClassVar[str] = "accountid"
    appid: str
    accountid: str | None = None
    position: str = ""
    limited: bool = False

    def after(self, after: str) -> "AccountListing":
        """Return the listing of the rows after an accountid. Raises invalid-after.

        The account need not exist any more.
        """
        if not is_identifier(Account.PREFIX, after):
            raise ServiceError("invalid-after")
        return replace(self, position=after)

    def read_rows(self, limit: int, offset: int) -> list[Row]:
        cursor = select_accounts(limit=limit, offset=offset, **scope_arguments(self))
        selected = cursor.fetchall()
        width = len(Account._meta.sorted_field_names)
        accounts = to_rows(Account, [values[:width] for values in selected])
        profiles = to_rows(Profile, [values[width:] for values in selected])
        for account, profile in zip(accounts, profiles, strict=True):
            account["profile"] = profile if profile["id"] else None
        return accounts

    def to_resource(self, row: Row) -> Resource:
        return to_account(row, row["profile"])


AnyListing = Listing | AccountListing


def scope_arguments(listing: AnyListing) -> dict[str, Any]:
    """Return the arguments of a query that say where the rows of a listing are."""
    arguments = {"appid": listing.appid, "position": listing.position}
    if listing.accountid is not None:
        # MySQL can't compare some strings with ASCII columns, so whatever isn't an
        # accountid becomes an empty string, which no row has.
        is_accountid = is_identifier(Account.PREFIX, listing.accountid)
        arguments["accountid"] = listing.accountid if is_accountid else ""
    return arguments


class Page(list[Resource]):
    """A part of a list. ``rest``: the listing of the rows that follow, or None."""

    def __init__(self, resources: Iterable[Resource], rest: AnyListing | None) -> None:
        super().__init__(resources)
        self.rest = rest

    @property
    def has_more(self) -> bool:
        return self.rest is not None


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


def read_list(listing: AnyListing, paging: Paging) -> Page | None:
    """Return a part of a list, or None if it is empty.

    Raises invalid-limit, invalid-offset or invalid-after.
    """
    if paging.all:
        page = read_list(listing, Paging(limit=BATCH, after=paging.after))
        resources: list[Resource] = []
        while page:
            resources += page
            page = read_page(page.rest, BATCH) if page.rest else None
        return Page(resources, None) or None
    limit, offset = current_app.config["PAGE_SIZE"], 0
    if paging.limit is not None:
        limit = parse_number("limit", paging.limit)
    if paging.offset is not None:
        offset = parse_number("offset", paging.offset)
    if paging.after:
        listing = listing.after(paging.after)
    if paging.limited:
        listing = replace(listing, limited=True)
    maximum = BATCH if paging.limited else MAX_ROWS
    return read_page(listing, min(limit, maximum), offset) or None


def read_page(listing: AnyListing, limit: int, offset: int = 0) -> Page:
    """Return the first page of a listing."""
    found = listing.read_rows(limit + 1, offset)  # one more if another page follows
    page = found[:limit]
    if listing.limited:
        page = shorten(page)
    rest = None
    if page and len(found) > len(page):
        rest = replace(listing, position=page[-1][listing.key])
    return Page(map(listing.to_resource, page), rest)


def shorten(rows: list[Row]) -> list[Row]:
    """Return the first rows, whose JSON has at most MAX_BYTES, or the first one.

    To encode rows once more takes a twentieth of the time in which they were read.
    """
    while len(rows) > 1 and len(orjson.dumps(rows)) > MAX_BYTES:
        rows = rows[: len(rows) // 2]
    return rows


def search(listing: Listing, size: int) -> Iterator[Row]:
    """Yield the profiles that have an address; read ``size`` candidates at a time.

    A few candidates can have another one: SQLite ignores what follows a NUL.
    """
    if not matches("[^\ud800-\udfff]+", listing.email):
        return  # no database can store a surrogate
    email = lower_ascii(listing.email)
    while True:
        arguments = scope_arguments(listing) | {"email": listing.email, "limit": size}
        candidates = to_rows(Profile, select_by_email(**arguments).fetchall())
        for row in candidates:
            if email in [lower_ascii(row[name]) for name in EMAILS]:
                yield row
        if len(candidates) < size:
            return
        listing = replace(listing, position=candidates[-1]["id"])


def lower_ascii(text: str | None) -> bytes:
    """Return a string as bytes, whose lower() changes ASCII letters alone."""
    return (text or "").encode().lower()


@built_once
def select_accounts(
    *,
    appid: str,
    position: str,
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
    model: OwnedModel,
    /,
    *,
    appid: str,
    position: int,
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
        query = query.where(Session.endedAt.is_null(), Session.expiresAt > now)
    return query.order_by(model.id.desc()).limit(limit).offset(offset)


@built_once
def select_by_email(
    *,
    appid: str,
    email: str,
    position: int,
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
    either = by_contact_email | by_display_email  # UNION
    return either.order_by(SQL("id DESC")).limit(limit)
