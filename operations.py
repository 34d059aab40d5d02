"""The four operations, for HTTP and in-process. Each checks the rights of its caller.

A caller is any object with ``accountid`` and ``administrator``. Failures are ServiceErrors.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from marshmallow import ValidationError

import models
from accounts import SignedIn
from config import Settings
from database import connection, write
from errors import ServiceError
from listings import Page, read_page
from models import Account, ListedModel, Profile, Session, find, update
from validators import APPID, is_identifier, listing_query, profile_schema

Id = str | None  # an identifier, where one can be missing
Names = Iterable[str] | None  # input fields, in place of the configured ones
Body = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
"""The input fields and their values, or a function that reads them once the target is checked."""

settings_source: Callable[[], Settings] | None = None  # set by create_app()


def settings() -> Settings:
    """Return the settings of the application that makes the call."""
    if settings_source is None:
        raise RuntimeError("no application: call create_app() first")
    return settings_source()


def update_profile(
    caller: Any, profileid: Id, body: Body, *, appid: Id = None, user_profile_fields: Names = None
) -> dict[str, Any]:
    """Store the configured fields of the caller's own profile and return the whole profile.

    Raises invalid-profileid, -account, -appid or -body, or the code of the first field that fails.
    """
    appid = checked_appid(appid)
    with connection():
        profile = find(Profile, profileid, appid)
        if profile["accountid"] != caller.accountid:
            raise ServiceError("invalid-account")
        changes = checked_fields(body, user_profile_fields, creating=False)
        return profile | write(lambda: update(Profile, profile["profileid"], **changes))


def create_profile(
    caller: Any, accountid: Id, body: Body, *, appid: Id = None, user_profile_fields: Names = None
) -> dict[str, Any]:
    """Store a new profile of the caller's own account and return it.

    With ``default`` exactly ``true`` it also becomes the account's default: both are stored or
    none. Raises invalid-accountid, -account, -appid or -body, or the first bad field's code.
    """
    appid = checked_appid(appid)
    with connection():
        just_read = isinstance(caller, SignedIn) and caller.appid == appid
        if not just_read or accountid != caller.accountid:
            find(Account, accountid, appid)
        if accountid != caller.accountid:
            raise ServiceError("invalid-account")
        values = checked_fields(body, user_profile_fields, creating=True)
        value = values.pop("default", None)
        default = value == "true" or value is True
        values |= {"profileid": models.identifier("prof"), "appid": appid, "accountid": accountid}

        def store() -> dict[str, Any]:
            if default:  # before the moment is taken: it may have to wait for the account's row
                update(Account, caller.accountid, profileid=values["profileid"])
            return models.insert(Profile, models.now(), values)

        return write(store, atomic=default)


def list_rows(
    model: ListedModel,
    caller: Any,
    *,
    accountid: Id = None,
    all: bool | str = False,
    limit: int | str | None = None,
    offset: int | str = 0,
    after: Id = None,
    appid: Id = None,
) -> list[dict[str, Any]] | None:
    """Return the application's rows, newest first, or None when there is none.

    Raises administrator-required, or invalid-limit, -offset, -after, -accountid or -appid.
    """
    query = {"accountid": accountid, "all": all, "limit": limit, "offset": offset, "after": after}
    page = list_page(model, caller, appid, query)
    return [*page.first, *chain.from_iterable(page.rest)] or None


list_profiles = partial(list_rows, Profile)
list_sessions = partial(list_rows, Session)


def list_page(model: ListedModel, caller: Any, appid: Id, given: dict[str, Any]) -> Page:
    """Return a page of a listing, for an administrator. Raises ServiceError, as list_profiles."""
    appid = checked_appid(appid)
    if not caller.administrator:
        raise ServiceError("administrator-required")
    query = listing_query(given, page_size=settings().page_size)
    account = {"accountid": query["accountid"]} if "accountid" in query else {}
    if account and not is_identifier("acct", query["accountid"]):
        return Page([])
    return read_page(model, {"appid": appid, **account}, query)


def checked_appid(appid: Id) -> str:
    """Return the application of the call, by default the service's own. Raises invalid-appid."""
    if appid is None:
        return settings().appid
    if not isinstance(appid, str) or not APPID.fullmatch(appid):
        raise ServiceError("invalid-appid")
    return appid


def checked_fields(body: Body, names: Names, *, creating: bool) -> dict[str, Any]:
    """Return the values by property, and ``default``. Raises invalid-body or a field's code."""
    fields = settings().user_profile_fields if names is None else tuple(names)
    given: object = body() if callable(body) else ({} if body is None else body)
    if not isinstance(given, Mapping):
        raise ServiceError("invalid-body")
    try:
        return profile_schema(fields, settings().lengths, creating=creating).load(given)
    except ValidationError as error:
        first = next(iter(error.messages_dict.values()))  # they are in the order of the fields
        raise ServiceError(first[0]) from None
