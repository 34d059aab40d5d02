"""The operations, for HTTP and in-process. Each checks the rights of its caller.

A caller is any object with ``accountid`` and ``administrator``; one that has an
``appid`` has rights in that application alone. Failures are ServiceErrors.
"""

import re
from hashlib import sha256
from itertools import chain

from marshmallow import ValidationError

import accounts
import rows
from config import appid_or_own, settings
from errors import ServiceError
from models import Account, Profile, Session
from validators import (
    LARGEST_INTEGER,
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
    profile = rows.find(Profile, profileid, appid)
    if profile["accountid"] != caller.accountid or not has_rights(caller, appid):
        raise ServiceError("invalid-account")
    changes = checked_fields(body, user_profile_fields, creating=False)
    return profile | rows.update(Profile, profileid, changes)


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
    if accountid != caller.accountid or not has_rights(caller, appid):
        rows.find(Account, accountid, appid)  # raises when it is unknown
        raise ServiceError("invalid-account")
    try:
        values = checked_fields(body, user_profile_fields, creating=True)
        values["profileid"] = keyed("prof", idempotency_key, appid, accountid)
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


def keyed(prefix, key, *scope):
    """Return a new identifier; for the same key in a scope always the same one."""
    if key is None:
        return identifier(prefix)
    if not isinstance(key, str) or not IDEMPOTENCY_KEY.fullmatch(key):
        raise ServiceError("invalid-idempotency-key")
    digest = sha256(" ".join((*scope, key)).encode()).hexdigest()
    return f"{prefix}_{digest[:16]}"


def list_profiles(caller, *, appid=None, **query):
    """Return the application's profiles, newest first, or None when there is none.

    ``query``: accountid, all, limit, offset and after, as in the API. Raises
    administrator-required, invalid-limit, invalid-offset, invalid-after or
    invalid-appid.
    """
    return whole(read_listing(Profile, caller, appid, **query))


def list_sessions(caller, *, appid=None, **query):
    """Return the application's sessions, as list_profiles returns the profiles."""
    return whole(read_listing(Session, caller, appid, **query))


def whole(page):
    """Return all objects of a page, or None when there is none."""
    return [*page.first, *chain.from_iterable(page.rest)] or None


def read_listing(
    model,
    caller,
    appid,
    *,
    accountid=None,
    all=None,
    limit=None,
    offset=None,
    after=None,
):
    """Return a page of a listing. Raises what list_profiles does.

    A number may be a text. None is not given.
    """
    scope = {"appid": administered(caller, appid)}
    if all:
        limit = None
        offset = 0
    else:
        limit = checked_number("limit", limit, settings()["PAGE_SIZE"])
        offset = checked_number("offset", offset, 0)
    if after and not is_identifier(model.PREFIX, after):
        raise ServiceError("invalid-after")
    if accountid:
        scope["accountid"] = accountid  # behind appid, as in the name of the index
        if not is_identifier("acct", accountid):
            return rows.Page([], (), None)
    return rows.read_page(model, scope, limit, offset, after)


def checked_number(name, value, default, *, least=0, most=LARGEST_INTEGER):
    """Return a number. Raises invalid-limit, invalid-offset or invalid-duration."""
    if value is None:
        return default
    # int() refuses more digits.
    is_text = isinstance(value, str) and re.fullmatch("[0-9]{1,4300}", value)
    if is_text or (isinstance(value, float) and value.is_integer()):  # as JSON's 60.0
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ServiceError(f"invalid-{name}")
    return value


def create_account(caller, *, appid=None, idempotency_key=None):
    """Store a new account, which is no administrator's, and return it.

    ``idempotency_key`` as in create_profile. Raises administrator-required,
    invalid-appid or invalid-idempotency-key.
    """
    appid = administered(caller, appid)
    accountid = keyed("acct", idempotency_key, appid)
    return accounts.create_account(appid, accountid=accountid)


def create_session(caller, accountid, *, appid=None, duration=None):
    """Store a new session of an account and return it with its token.

    ``duration``: 1 to 86400 seconds, by default 28800. Raises administrator-required,
    invalid-appid, invalid-accountid, invalid-account or invalid-duration.
    """
    check_target(caller, accountid, appid)
    seconds = checked_number("duration", duration, 28_800, least=1, most=86_400)
    session = accounts.create_session(accountid, seconds)
    check_target(caller, accountid, appid)  # it may be an administrator's by now
    return session


def end_sessions(caller, accountid, *, appid=None):
    """End all running sessions of an account at once; return how many.

    Raises what create_session does, but for the duration.
    """
    check_target(caller, accountid, appid)
    return accounts.end_sessions(accountid)


def delete_account(caller, accountid, *, appid=None):
    """Delete an account, its profiles and its sessions, or nothing; return how many.

    Raises what create_session does, but for the duration.
    """
    check_target(caller, accountid, appid)
    return accounts.delete_account(accountid)


def check_target(caller, accountid, appid):
    """Check that an administrator acts for an ordinary account of the application.

    Raises administrator-required, invalid-appid, invalid-accountid or invalid-account.
    """
    account = rows.find(Account, accountid, administered(caller, appid))
    if account["administrator"]:
        raise ServiceError("invalid-account")


def administered(caller, appid):
    """Return the application. Raises administrator-required or invalid-appid."""
    appid = appid_or_own(appid)
    if not caller.administrator or not has_rights(caller, appid):
        raise ServiceError("administrator-required")
    return appid


def has_rights(caller, appid):
    """Return whether the caller is of the application, or of none in particular."""
    return getattr(caller, "appid", appid) == appid


def checked_fields(body, names, *, creating):
    """Return the values by property, and ``default``.

    Raises invalid-body or a field's code.
    """
    configured = settings()
    fields = configured["USER_PROFILE_FIELDS"] if names is None else tuple(names)
    schema = profile_schema(fields, configured["PROFILE_LENGTHS"], creating=creating)
    try:
        return schema.load({} if body is None else body)
    except ValidationError as error:
        first, *_ = error.messages_dict.values()  # in the order of the fields
        raise ServiceError(first[0]) from None
