"""The four operations, for the HTTP routes and for callers in the same process.

Each checks its caller's rights itself and fails with a ServiceError whose message is the code.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Protocol

from flask import current_app
from peewee import Query

from config import Settings
from database import Statement, connection, database, place
from errors import ServiceError
from listings import Page, read_page
from models import Account, Listed, Profile, Session, identifier, insert, listed, now, timestamp
from validators import APPID, is_identifier, listing_query, profile_values


class Caller(Protocol):
    """Whoever makes the call: an Account will do."""

    @property
    def accountid(self) -> Any: ...
    @property
    def administrator(self) -> Any: ...


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
        with database.writing():
            changes["updatedAt"] = timestamp(now())
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
        if accountid != caller.accountid or getattr(caller, "appid", None) != appid:
            require_account(accountid, appid)  # only a caller of this application surely exists
        if accountid != caller.accountid:
            raise ServiceError("invalid-account")
        values = checked_fields(body, user_profile_fields, creating=True)
        wish = values.pop("default", None)
        default = wish == "true" or wish is True
        values |= {"profileid": identifier("prof"), "appid": appid, "accountid": accountid}
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
    return list_page(Profile, caller, appid, query).everything()


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
    return list_page(Session, caller, appid, query).everything()


def list_page(model: Listed, caller: Caller, appid: str | None, given: dict[str, Any]) -> Page:
    """A page of a listing, for an administrator. Raises ServiceError, as list_profiles."""
    appid = application(appid)
    if not caller.administrator:
        raise ServiceError("administrator-required")
    query = listing_query(given, page_size=settings().page_size)
    accountid = query.get("accountid")
    if not accountid:
        return read_page(model, {"appid": appid}, query)
    if not is_identifier("acct", accountid):
        return Page([])
    return read_page(model, {"appid": appid, "accountid": accountid}, query)


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


@Statement
def select_profile() -> Query:
    return Profile.select(*listed(Profile)).where(
        Profile.profileid == place("profileid"), Profile.appid == place("appid")
    )


@Statement
def select_account() -> Query:
    return Account.select(Account.accountid).where(
        Account.accountid == place("accountid"), Account.appid == place("appid")
    )


@Statement
def update_columns(*names: str) -> Query:
    return Profile.update({name: place(name) for name in names}).where(
        Profile.profileid == place("profileid")
    )


@Statement
def set_default_profile() -> Query:
    return Account.update(profileid=place("profileid"), updatedAt=place("updatedAt")).where(
        Account.accountid == place("accountid")
    )
