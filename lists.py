"""Lists of accounts, profiles and sessions, in pages, without a check of rights.

Accounts ascend by accountid; profiles and sessions are newest first. A position in a
list is a primary key: an accountid, or the id of a profile or a session.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import peewee
from flask import current_app
from peewee import JOIN, SQL

import rows
from database import db, run
from errors import ServiceError
from formats import MAX_INT64, is_identifier, matches, parse_number
from models import EMAILS, Account, Object, Profile, current_timestamp

BATCH = 100  # how many rows are read at once to list all of them

Scope = dict[str, str]  # the appid, and perhaps the accountid, of rows
Position = str | int


class Listing(NamedTuple):
    """What is listed: the rows of a model in a scope.

    ``email``: only profiles that have this address, ignoring the case of ASCII letters.
    ``active``: only sessions that neither ended nor expired.
    """

    model: rows.Model
    scope: Scope
    email: str | None = None
    active: bool = False


class Paging(NamedTuple):
    """Which part of a list is read. Numbers may be strings."""

    limit: int | str | None = None  # by default PAGE_SIZE
    offset: int | str | None = None
    after: str | None = None  # an identifier: only rows behind this one
    all: object = None  # if it is true: everything, whatever the limit and the offset


class Page(list[Object]):
    """Objects of a listing, in order.

    ``end``: the position of the last one if more follow, otherwise None.
    """

    def __init__(
        self,
        listing: Listing,
        objects: Iterable[Object],
        end: Position | None = None,
    ) -> None:
        super().__init__(objects)
        self.listing = listing
        self.end = end

    @property
    def next_after(self) -> str | None:
        """Return the identifier that the next page comes after, if there is one."""
        if self.end is None:
            return None
        identifier: str = self[-1][self.listing.model.KEY]
        return identifier


def read_list(listing: Listing, paging: Paging) -> Page | None:
    """Return a page of a listing or, with ``all``, everything; None if it is empty.

    Raises invalid-limit, invalid-offset or invalid-after.
    """
    limit, offset = BATCH, 0
    if not paging.all:
        limit = parse_number("limit", paging.limit, current_app.config["PAGE_SIZE"])
        offset = parse_number("offset", paging.offset, 0)
    page = read_page(listing, find_position(listing, paging.after), limit, offset)
    if paging.all:
        page = Page(listing, [row for batch in walk(page) for row in batch])
    return page or None


def walk(page: Page) -> Iterator[Page]:
    """Yield a page and those that follow it, each read when it is needed."""
    yield page
    while page.end is not None:
        page = read_page(page.listing, page.end, BATCH)
        if page:  # otherwise the rest was just deleted
            yield page


def read_page(
    listing: Listing, position: Position, limit: int, offset: int = 0
) -> Page:
    """Return the page after a position."""
    limit = min(limit, MAX_INT64 - 1)
    size = limit + 1  # one more row tells whether another page follows
    if listing.email is None:
        matching = select_matching(listing, position, size, offset)
    else:  # only rows that match count for the offset
        candidates = select_matching(listing, position, max(size, BATCH))
        matching = islice(candidates, offset, None)
    found = list(islice(matching, limit))
    page = Page(listing, [listed for _, listed in found])
    if page and next(matching, None):
        page.end = found[-1][0]
    return page


def select_matching(
    listing: Listing, position: Position, size: int, offset: int = 0
) -> Iterator[tuple[Position, Object]]:
    """Yield each object after a position, behind its own position, in order.

    ``size`` rows are read at a time.
    """
    while True:
        batch = select_rows(listing, position, size, offset)
        for row in batch:
            listed = to_listed(listing.model, row)
            if is_match(listing, listed):
                yield row[0], listed
        if len(batch) < size:
            return
        position, offset = batch[-1][0], 0


def to_listed(model: rows.Model, row: Sequence[Any]) -> Object:
    """Return the object of a row. A row of an account ends with that of its default."""
    if model is not Account:
        return rows.to_object(model, row)
    width = len(Account._meta.sorted_field_names)
    account = rows.to_object(Account, row[:width])
    profile = rows.to_object(Profile, row[width:])
    account["profile"] = profile if profile["profileid"] else None
    return account


def is_match(listing: Listing, listed: Object) -> bool:
    """Return whether a candidate has the address, or a session has not just expired."""
    if listing.active:
        return not listed["ended"]
    if listing.email is None:
        return True
    email = lower_ascii(listing.email)
    return email in [lower_ascii(listed[name] or "") for name in EMAILS]


def lower_ascii(text: str) -> bytes:
    """Return a string as bytes, whose lower() changes ASCII letters alone."""
    return text.encode().lower()


def find_position(listing: Listing, after: str | None) -> Position:
    """Return the position of the row ``after``, or where a listing begins.

    Of accounts, any accountid is one, whether the account exists or not. Raises
    invalid-after.
    """
    model = listing.model
    if not after:
        return "" if model is Account else MAX_INT64
    if model is Account and is_identifier(Account.PREFIX, after):
        return after
    row = rows.find_row(model, after)
    if row and listing.scope.items() <= rows.to_object(model, row).items():
        position: int = row[0]
        return position
    raise ServiceError("invalid-after")


def read_account(account: Object) -> Object:
    """Return an account with its default profile as ``profile``, or None.

    Both are read again by one statement, so that they agree.
    """
    scope = {"appid": account["appid"], "accountid": account["accountid"]}
    page = read_page(Listing(Account, scope), position="", limit=1)
    if not page:  # it was just deleted
        return account | {"profileid": None, "profile": None}
    return page[0]


def select_rows(
    listing: Listing, position: Position, limit: int, offset: int
) -> list[Sequence[Any]]:
    """Return the rows after a position, in order. Those of a search are candidates."""
    model = listing.model
    values: dict[str, Any] = {"position": position, "limit": limit, **listing.scope}
    if listing.email is not None:
        # No database can store a surrogate.
        if not matches("[^\ud800-\udfff]+", listing.email):
            return []
        cursor = run(select_by_email, email=listing.email, **values)
    elif model is Account:
        cursor = run(select_accounts, offset=offset, **values)
    else:
        if listing.active:
            values["now"] = current_timestamp()
        cursor = run(select_newest, model, offset=offset, **values)
    found: list[Sequence[Any]] = cursor.fetchall()
    return found


def select_accounts(
    *, appid: Any, position: Any, limit: Any, offset: Any, accountid: Any = None
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


def select_newest(
    model: Any,
    *,
    appid: Any,
    position: Any,
    limit: Any,
    offset: Any,
    accountid: Any = None,
    now: Any = None,
) -> peewee.Query:
    """Select profiles, or sessions: with ``now``, the active ones. Newest first."""
    index = "appid_id" if accountid is None else "appid_accountid_id"
    query = model.select().from_(db.force_index(model, f"{model.TABLE}_{index}"))
    query = query.where(is_in_scope(model, appid, accountid), model.id < position)
    if now is not None:
        query = query.where(model.endedAt.is_null(), model.expiresAt > now)
    return query.order_by(model.id.desc()).limit(limit).offset(offset)


def select_by_email(
    *, appid: Any, email: Any, position: Any, limit: Any, accountid: Any = None
) -> peewee.Query:
    """Select profiles that may have an address, newest first.

    The index of each column finds them; on MySQL it also ignores accents. Each column
    has its own SELECT, because MariaDB uses no index for an OR with ORDER BY, and each
    ends where the batch does, because many profiles can share an address.
    """
    by_contact_email, by_display_email = [
        Profile.select()
        .from_(db.force_index(Profile, f"profile_appid_{column}"))
        .where(is_in_scope(Profile, appid, accountid), Profile.id < position)
        .where(db.ignore_case(getattr(Profile, column)) == email)
        .order_by(Profile.id.desc())
        .limit(limit)
        for column in EMAILS
    ]
    either = by_contact_email | by_display_email
    return either.order_by(SQL("id DESC")).limit(limit)


def is_in_scope(model: Any, appid: Any, accountid: Any) -> Any:
    """Return the condition that a row is of an application, or of one account of it."""
    condition = model.appid == appid
    if accountid is not None:
        condition &= model.accountid == accountid
    return condition
