"""Lists of accounts, profiles and sessions, in pages, without a check of rights.

Accounts ascend by accountid; profiles and sessions are newest first. A position in a
list is a primary key: an accountid, or the id of a profile or a session.
"""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import peewee
from flask import current_app
from peewee import JOIN, SQL

import rows
from database import db, run
from errors import ServiceError
from formats import MAX_INT64, is_identifier, matches, parse_number
from models import EMAILS, Account, BaseModel, Profile, Stored, current_timestamp

BATCH = 100  # how many rows are read at once to list all of them


class Listing(NamedTuple):
    """What is listed: the rows of a model.

    ``scope``: their ``appid`` and perhaps their ``accountid``.
    ``email``: only profiles that have this address, ignoring the case of ASCII letters.
    ``active``: only sessions that neither ended nor expired.
    """

    model: type[BaseModel]
    scope: dict[str, str]
    email: str | None = None
    active: bool = False


class Page(list[Stored]):
    """Objects of a listing, in order. ``has_more``: whether others follow."""

    listing: Listing
    has_more = False


def read_list(listing: Listing, paging: dict[str, Any]) -> Page | None:
    """Return a page of a listing, or None if it is empty.

    ``paging``: ``limit``, by default PAGE_SIZE, and ``offset``, which are numbers or
    their strings; ``after``, an identifier: only what comes behind it; ``all``: if it
    is true, everything, whatever the limit and the offset. Raises invalid-parameter for
    another name, invalid-limit, invalid-offset or invalid-after.
    """
    if not paging.keys() <= {"limit", "offset", "after", "all"}:
        raise ServiceError("invalid-parameter")
    limit, offset = BATCH, 0
    if not paging.get("all"):
        page_size = current_app.config["PAGE_SIZE"]
        limit = parse_number("limit", paging.get("limit"), page_size)
        offset = parse_number("offset", paging.get("offset"), 0)
    position = find_position(listing, paging.get("after"))
    page = read_page(listing, position, limit, offset)
    if paging.get("all"):
        page = Page(chain.from_iterable(walk(page)))
    return page or None


def walk(page: Page) -> Iterator[Page]:
    """Yield a page and those that follow it, each read when it is needed."""
    yield page
    while page.has_more:
        page = read_page(page.listing, page[-1].position, BATCH)
        if page:  # otherwise the rest was just deleted
            yield page


def read_page(listing: Listing, position: Any, limit: int, offset: int = 0) -> Page:
    """Return the page after a position."""
    limit = min(limit, MAX_INT64 - 1)
    size = limit + 1  # one more row tells whether another page follows
    if listing.email is None:
        found = iter(select(listing, position, size, offset))
    else:  # only profiles that have the address count for the offset
        found = islice(search(listing, position, max(size, BATCH)), offset, None)
    page = Page(islice(found, limit))
    page.listing = listing
    page.has_more = bool(page) and any(found)
    return page


def search(listing: Listing, position: Any, size: int) -> Iterator[Stored]:
    """Yield the profiles after a position that have the address of a listing.

    ``size`` candidates are read at a time.
    """
    if not matches("[^\ud800-\udfff]+", listing.email):
        return  # no database can store a surrogate
    email = lower_ascii(listing.email)
    while True:
        candidates = select(listing, position, size)
        for profile in candidates:
            if email in [lower_ascii(profile[name]) for name in EMAILS]:
                yield profile
        if len(candidates) < size:
            return
        position = candidates[-1].position


def lower_ascii(text: str | None) -> bytes:
    """Return a string as bytes, whose lower() changes ASCII letters alone."""
    return (text or "").encode().lower()


def find_position(listing: Listing, after: str | None) -> Any:
    """Return the position of the row ``after``, or where a listing begins.

    Of accounts, any accountid is one, whether the account exists or not. Raises
    invalid-after.
    """
    model = listing.model
    if not after:
        return "" if model is Account else MAX_INT64
    if model is Account and is_identifier(Account.PREFIX, after):
        return after
    row = rows.find_object(model, after)
    if row and listing.scope.items() <= row.items():
        return row.position
    raise ServiceError("invalid-after")


def select(
    listing: Listing, position: Any, limit: int, offset: int = 0
) -> list[Stored]:
    """Return the objects after a position, in order; of a search, candidates."""
    model = listing.model
    values: dict[str, Any] = {"position": position, "limit": limit, **listing.scope}
    if listing.email is not None:
        cursor = run(select_by_email, email=listing.email, **values)
    elif model is Account:
        cursor = run(select_accounts, offset=offset, **values)
        return [to_account(row) for row in cursor.fetchall()]
    else:
        if listing.active:
            values["now"] = current_timestamp()
        cursor = run(select_newest, model, offset=offset, **values)
    return [model.as_object(row) for row in cursor.fetchall()]


def to_account(row: tuple[Any, ...]) -> Stored:
    """Return an account with its default profile, whose columns end its row."""
    width = len(Account.columns()) + 1
    account = Account.as_object(row[:width])
    profile = Profile.as_object(row[width:])
    account["profile"] = profile if profile["profileid"] else None
    return account


def select_accounts(
    *, appid: Any, position: Any, limit: Any, offset: Any, accountid: Any = None
) -> peewee.Query:
    """Select accounts, each with its default profile, ascending by accountid."""
    accounts = db.force_index(Account, "account_appid_accountid")
    is_default = Profile.profileid == Account.profileid
    join = peewee.Join(accounts, Profile, JOIN.LEFT_OUTER, is_default)
    return (
        Account.select(*Account.selection(), *Profile.selection())
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
    query = model.select(*model.selection()).from_(
        db.force_index(model, f"{model.TABLE}_{index}")
    )
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
        Profile.select(*Profile.selection())
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
