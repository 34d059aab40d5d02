"""The four operations, for HTTP and in-process. Each checks the rights of its caller.

A caller is any object with ``accountid`` and ``administrator``. Failures are ServiceErrors.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from marshmallow import ValidationError

import rows
from config import settings
from database import connection
from errors import ServiceError
from listings import Page, read_page
from models import Account, ListedModel, Profile, Session, identifier
from validators import APPID, is_identifier, page_query, profile_schema

Body = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None
"""The input fields and their values, or a function that reads them once the target is checked."""


def update_profile(
    caller: Any,
    profileid: str | None,
    body: Body,
    *,
    appid: str | None = None,
    user_profile_fields: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Store the configured fields of the caller's own profile and return the whole profile.

    Raises invalid-profileid, invalid-account, invalid-appid, invalid-body, or a field's code.
    """
    appid = checked_appid(appid)
    with connection():
        profile = rows.find(Profile, profileid, appid)
        if profile["accountid"] != caller.accountid:
            raise ServiceError("invalid-account")
        changes = checked_fields(body, user_profile_fields, creating=False)
        return profile | rows.update(Profile, profile["profileid"], **changes)


def create_profile(
    caller: Any,
    accountid: str | None,
    body: Body,
    *,
    appid: str | None = None,
    user_profile_fields: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Store a new profile of the caller's own account and return it.

    With ``default`` exactly ``true`` it also becomes the account's default: both are stored, or
    none. Raises invalid-accountid, invalid-account, invalid-appid, invalid-body, or a field's code.
    """
    appid = checked_appid(appid)
    with connection():
        if accountid != caller.accountid or not is_identifier("acct", accountid):
            rows.find(Account, accountid, appid)
            raise ServiceError("invalid-account")
        try:
            values = checked_fields(body, user_profile_fields, creating=True)
        except ServiceError:
            rows.find(Account, accountid, appid)  # an unknown account is the first error
            raise
        default = values.pop("default", None)
        values |= {"profileid": identifier("prof"), "appid": appid, "accountid": accountid}
        return rows.insert(Profile, values, default=default == "true" or default is True)


def listing(model: ListedModel) -> Callable[..., list[dict[str, Any]] | None]:
    """Return the operation that lists the rows of a table."""

    def list_rows(
        caller: Any,
        *,
        accountid: str | None = None,
        all: bool | str = False,
        limit: int | str | None = None,
        offset: int | str = 0,
        after: str | None = None,
        appid: str | None = None,
    ) -> list[dict[str, Any]] | None:
        """Return the application's rows, newest first, or None when there is none.

        Raises administrator-required, invalid-limit, invalid-offset, invalid-after,
        invalid-accountid or invalid-appid.
        """
        query = dict(accountid=accountid, all=all, limit=limit, offset=offset, after=after)
        return read_listing(model, caller, appid, query).whole()

    return list_rows


list_profiles, list_sessions = listing(Profile), listing(Session)


def read_listing(model: ListedModel, caller: Any, appid: str | None, given: dict[str, Any]) -> Page:
    """Return a page of a listing, for an administrator. Raises ServiceError, as list_profiles."""
    scope = {"appid": checked_appid(appid)}
    if not caller.administrator:
        raise ServiceError("administrator-required")
    query = page_query(given, settings().page_size)
    if "accountid" in query:
        scope["accountid"] = query["accountid"]
        if not is_identifier("acct", query["accountid"]):
            return Page([])
    return read_page(model, scope, query)


def checked_appid(appid: str | None) -> str:
    """Return the application of the call, by default the service's own. Raises invalid-appid."""
    if appid is None:
        return settings().appid
    if not isinstance(appid, str) or not APPID.fullmatch(appid):
        raise ServiceError("invalid-appid")
    return appid


def checked_fields(body: Body, names: Iterable[str] | None, *, creating: bool) -> dict[str, Any]:
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
