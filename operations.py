"""The four operations, for HTTP and in-process. Each checks the rights of its caller.

A caller is any object with ``accountid`` and ``administrator``; one that has an
``appid`` has rights in that application alone. Failures are ServiceErrors.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from itertools import chain

from marshmallow import ValidationError

import rows
from config import settings
from database import connection
from errors import ServiceError
from models import Account, Profile, Session
from validators import (
    LARGEST_INTEGER,
    checked_appid,
    identifier,
    is_identifier,
    profile_schema,
)

IDEMPOTENCY_KEY = re.compile("[ -~]{1,255}")


def update_profile(caller, profileid, body, *, appid=None, user_profile_fields=None):
    """Store the configured fields of the caller's own profile; return all of it.

    ``body``: a mapping of input fields to texts, or None. ``user_profile_fields``:
    other fields. Raises invalid-profileid, invalid-account, invalid-appid,
    invalid-body, or a field's code.
    """
    appid = appid_or_own(appid)
    with connection():
        profile = rows.find(Profile, profileid, appid)
        if profile["accountid"] != caller.accountid or not has_rights(caller, appid):
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
):
    """Store a new profile of the caller's own account and return it.

    With ``default`` exactly ``true`` it also becomes the account's default: both are
    stored, or none. ``idempotency_key``: 1 to 255 printable ASCII characters; repeated
    with the same one, it changes nothing and returns the profile that was stored first.
    Raises invalid-accountid, invalid-account, invalid-appid, invalid-body,
    invalid-idempotency-key, or a field's code.
    """
    appid = appid_or_own(appid)
    with connection():
        if accountid != caller.accountid or not has_rights(caller, appid):
            rows.find(Account, accountid, appid)  # raises when it is unknown
            raise ServiceError("invalid-account")
        try:
            values = checked_fields(body, user_profile_fields, creating=True)
            values["profileid"] = new_profileid(appid, accountid, idempotency_key)
        except ServiceError:
            rows.find(Account, accountid, appid)  # an unknown account comes first
            raise
        default = values.pop("default", None)
        values |= {"appid": appid, "accountid": accountid}
        is_default = default == "true" or default is True
        profile = rows.insert(Profile, values, default=is_default)
        if (profile["appid"], profile["accountid"]) != (appid, accountid):
            raise ServiceError("invalid-idempotency-key")  # two keys with one hash
        return profile


def new_profileid(appid, accountid, key):
    """Return a new identifier, for the same key always the same one."""
    if key is None:
        return identifier("prof")
    if not isinstance(key, str) or not IDEMPOTENCY_KEY.fullmatch(key):
        raise ServiceError("invalid-idempotency-key")
    digest = sha256(f"{appid} {accountid} {key}".encode()).hexdigest()
    return f"prof_{digest[:16]}"


def list_profiles(caller, *, appid=None, **query):
    """Return the application's profiles, newest first, or None when there is none.

    ``query``: accountid, all, limit, offset and after, as in the API. Raises
    administrator-required, invalid-limit, invalid-offset, invalid-after,
    invalid-accountid or invalid-appid.
    """
    page = read_listing(Profile, caller, appid, **query)
    return [*chain.from_iterable(page.batches)] or None


def list_sessions(caller, *, appid=None, **query):
    """Return the application's sessions, as list_profiles returns the profiles."""
    page = read_listing(Session, caller, appid, **query)
    return [*chain.from_iterable(page.batches)] or None


def read_listing(model, caller, appid, **query):
    """Return a page of a listing. Raises what list_profiles does."""
    scope = {"appid": appid_or_own(appid)}
    if not caller.administrator or not has_rights(caller, scope["appid"]):
        raise ServiceError("administrator-required")
    configured = settings()
    limit, offset, after, accountid = page_query(configured["PAGE_SIZE"], **query)
    if accountid:
        scope["accountid"] = accountid
        if not is_identifier("acct", accountid):
            return rows.Page([[]], None)
    most_bytes = configured["MAXIMUM_POST_DATA_LENGTH"]
    return rows.read_page(model, scope, limit, offset, after, most_bytes)


def page_query(
    page_size, *, limit=None, offset=None, all=None, after=None, accountid=None
):
    """Return the checked parameters of a listing. Raises ServiceError.

    Each may be a text of a query or a value of Python. None, False and "" are not
    given.
    """
    if all:
        limit = LARGEST_INTEGER
        offset = 0
    limit = checked_number("limit", limit, page_size)
    offset = checked_number("offset", offset, 0)
    is_cursor = is_identifier("prof", after) or is_identifier("sess", after)
    if is_given(after) and not is_cursor:
        raise ServiceError("invalid-after")
    if is_given(accountid) and not isinstance(accountid, str):
        raise ServiceError("invalid-accountid")
    return limit, offset, after, accountid


def is_given(value):
    return value not in (None, "") and value is not False


def checked_number(name, value, default):
    """Return a number of rows. Raises invalid-limit or invalid-offset."""
    if not is_given(value):
        return default
    if isinstance(value, str) and re.fullmatch(
        "[0-9]{1,4300}", value
    ):  # or int() refuses it
        value = int(value)
    if type(value) is not int or not 0 <= value <= LARGEST_INTEGER:
        raise ServiceError(f"invalid-{name}")
    return value


def has_rights(caller, appid):
    """Return whether the caller is of the application, or of none in particular."""
    return getattr(caller, "appid", appid) == appid


def appid_or_own(appid):
    """Return the application of the call, by default the service's own.

    Raises invalid-appid.
    """
    own = settings()["APPID"]
    return own if appid is None else checked_appid(appid)


def checked_fields(body, names, *, creating):
    """Return the values by property, and ``default``.

    Raises invalid-body or a field's code.
    """
    configured = settings()
    fields = configured["USER_PROFILE_FIELDS"] if names is None else tuple(names)
    lengths = configured["PROFILE_LENGTHS"]
    given = {} if body is None else body
    if not isinstance(given, Mapping):
        raise ServiceError("invalid-body")
    try:
        return profile_schema(fields, lengths, creating=creating).load(given)
    except ValidationError as error:
        first = next(iter(error.messages_dict.values()))  # in the order of the fields
        raise ServiceError(first[0]) from None
