"""The four operations, for HTTP and in-process. Each checks the rights of its caller.

A caller is any object with ``accountid`` and ``administrator``; one that has an ``appid`` has
rights in that application alone. Failures are ServiceErrors.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import chain
from typing import Any

from marshmallow import ValidationError

import rows
from config import settings
from database import connection
from errors import ServiceError
from models import Account, Object, Profile, Session
from validators import APPID, identifier, is_identifier, page_query, profile_schema

IDEMPOTENCY_KEY = re.compile("[ -~]{1,255}")


def update_profile(
    caller, profileid, body, *, appid=None, user_profile_fields=None
) -> Object:
    """Store the configured fields of the caller's own profile and return the whole profile.

    ``body``: a mapping of input fields to texts, or None. ``user_profile_fields``: other fields.
    Raises invalid-profileid, invalid-account, invalid-appid, invalid-body, or a field's code.
    """
    appid = checked_appid(appid)
    with connection():
        profile = rows.find(Profile, profileid, appid)
        if profile["accountid"] != caller.accountid or not is_of(caller, appid):
            raise ServiceError("invalid-account")
        changes = checked_fields(body, user_profile_fields, creating=False)
        return profile | rows.update(Profile, profileid, **changes)


def create_profile(
    caller,
    accountid,
    body,
    *,
    appid=None,
    user_profile_fields=None,
    idempotency_key=None,
) -> Object:
    """Store a new profile of the caller's own account and return it.

    With ``default`` exactly ``true`` it also becomes the account's default: both are stored, or
    none. ``idempotency_key``: 1 to 255 printable ASCII characters; repeated with the same one, it
    changes nothing and returns what was stored first. Raises invalid-accountid, invalid-account,
    invalid-appid, invalid-body, invalid-idempotency-key, or a field's code.
    """
    appid = checked_appid(appid)
    with connection():
        if accountid != caller.accountid or not is_of(caller, appid):
            rows.find(Account, accountid, appid)
            raise ServiceError("invalid-account")
        try:
            values = checked_fields(body, user_profile_fields, creating=True)
        except ServiceError:
            rows.find(
                Account, accountid, appid
            )  # an unknown account is the first error
            raise
        default = values.pop("default", None)
        values["profileid"] = new_profileid(appid, accountid, idempotency_key)
        values |= {"appid": appid, "accountid": accountid}
        made = rows.insert(
            Profile, values, default=default == "true" or default is True
        )
        if (made["appid"], made["accountid"]) != (appid, accountid):
            raise ServiceError("invalid-idempotency-key")
        return made


def new_profileid(appid: str, accountid: str, key: str | None) -> str:
    """Return a new identifier, for the same key always the same one."""
    if key is None:
        return identifier("prof")
    if not isinstance(key, str) or not IDEMPOTENCY_KEY.fullmatch(key):
        raise ServiceError("invalid-idempotency-key")
    return "prof_" + sha256(f"{appid} {accountid} {key}".encode()).hexdigest()[:16]


def listing(model):
    """Return the operation that lists the rows of a table."""

    def list_rows(
        caller,
        *,
        accountid=None,
        all=False,
        limit=None,
        offset=0,
        after=None,
        appid=None,
    ) -> list[Object] | None:
        """Return the application's rows, newest first, or None when there is none.

        Raises administrator-required, invalid-limit, invalid-offset, invalid-after,
        invalid-accountid or invalid-appid.
        """
        query = dict(
            accountid=accountid, all=all, limit=limit, offset=offset, after=after
        )
        page = read_listing(model, caller, appid, query)
        return [*page.first, *chain.from_iterable(page.rest)] or None

    list_rows.__name__ = list_rows.__qualname__ = f"list_{model.TABLE}s"
    return list_rows


list_profiles, list_sessions = listing(Profile), listing(Session)


def read_listing(model, caller, appid: str | None, given: Object) -> rows.Page:
    """Return a page of a listing, for an administrator. Raises ServiceError, as list_profiles."""
    scope = {"appid": checked_appid(appid)}
    if not caller.administrator or not is_of(caller, scope["appid"]):
        raise ServiceError("administrator-required")
    query = page_query(given, settings()["PAGE_SIZE"])
    if query["accountid"]:
        scope["accountid"] = query["accountid"]
        if not is_identifier("acct", query["accountid"]):
            return rows.Page([])
    return rows.read_page(model, scope, query["limit"], query["offset"], query["after"])


def is_of(caller: Any, appid: str) -> bool:
    """Return whether the caller may have rights in the application."""
    return getattr(caller, "appid", appid) == appid


def checked_appid(appid: str | None) -> str:
    """Return the application of the call, by default the service's own. Raises invalid-appid."""
    if appid is None:
        return settings()["APPID"]
    if not isinstance(appid, str) or not APPID.fullmatch(appid):
        raise ServiceError("invalid-appid")
    return appid


def checked_fields(
    body: object, names: Iterable[str] | None, *, creating: bool
) -> Object:
    """Return the values by property, and ``default``. Raises invalid-body or a field's code."""
    fields = settings()["USER_PROFILE_FIELDS"] if names is None else tuple(names)
    given = {} if body is None else body
    if not isinstance(given, Mapping):
        raise ServiceError("invalid-body")
    try:
        return profile_schema(
            fields, settings()["PROFILE_LENGTHS"], creating=creating
        ).load(given)
    except ValidationError as error:
        first = next(
            iter(error.messages_dict.values())
        )  # they are in the order of the fields
        raise ServiceError(first[0]) from None
