"""The operations, for HTTP and in-process. Each checks the rights of its caller.

A caller is any object with ``accountid`` and ``administrator``; one that has an
``appid`` has rights in that application alone. Failures are ServiceErrors.
"""

from contextlib import contextmanager

from marshmallow import ValidationError

import accounts
import rows
from accounts import DEFAULT_DURATION, resolve_appid
from config import profile_schema, settings
from database import db, retry_on_conflict
from errors import ServiceError
from models import Account, Profile, Session
from rows import Listing
from validators import identifier_for_key, is_identifier, parse_number


def update_profile(caller, profileid, body, *, appid=None, user_profile_fields=None):
    """Store the configured fields of the caller's own profile; return all of it.

    ``body``: a mapping of input fields to strings, or None. ``user_profile_fields``:
    fields instead of the configured ones. Raises invalid-profileid, invalid-account,
    invalid-appid, invalid-body, or a field's code.
    """
    profile = find_own_profile(caller, profileid, appid=appid)
    changes = load_profile(body, user_profile_fields, creating=False)
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
    appid = resolve_appid(appid)
    if accountid != caller.accountid or not belongs_to(caller, appid):
        rows.get_object(Account, accountid, appid)  # raises if it is unknown
        raise ServiceError("invalid-account")
    try:
        values = load_profile(body, user_profile_fields, creating=True)
        profileid = identifier_for_key("prof", idempotency_key, appid, accountid)
    except ServiceError:
        rows.get_object(Account, accountid, appid)  # if it is unknown, that is first
        raise
    default = values.pop("default", None)
    values |= {"profileid": profileid, "appid": appid, "accountid": accountid}
    is_default = default == "true" or default is True
    profile = rows.insert(Profile, values, as_default=is_default)
    if profile["accountid"] != accountid:
        raise ServiceError("invalid-idempotency-key")  # two keys have the same hash
    return profile


def find_own_profile(caller, profileid, *, appid=None):
    """Return the caller's own profile.

    Raises invalid-profileid, invalid-account or invalid-appid.
    """
    return get_own(Profile, caller, profileid, appid)


def find_own_account(caller, accountid, *, appid=None):
    """Return the caller's own account; its ``profile`` is the default profile, or None.

    Raises invalid-accountid, invalid-account or invalid-appid.
    """
    return rows.with_default_profile(get_own(Account, caller, accountid, appid))


@retry_on_conflict
def set_default_profile(caller, profileid, *, appid=None):
    """Make a profile of the caller's own account its default; return the account.

    Raises invalid-profileid, invalid-account or invalid-appid.
    """
    with locked_own_profile(caller, profileid, appid) as (account, profile):
        changes = rows.update(Account, caller.accountid, {"profileid": profileid})
    return account | changes | {"profile": profile}


@retry_on_conflict
def delete_profile(caller, profileid, *, appid=None):
    """Delete a profile of the caller's own account; return it as it was.

    If it is the account's default, the account has none afterwards. Raises
    invalid-profileid, invalid-account or invalid-appid.
    """
    with locked_own_profile(caller, profileid, appid) as (account, profile):
        if account and account["profileid"] == profileid:  # 1.x may have left it alone
            rows.update(Account, caller.accountid, {"profileid": None})
        rows.delete_profile(profileid)
    return profile


@contextmanager
def locked_own_profile(caller, profileid, appid):
    """Lock the caller's own account and then its profile, in a transaction.

    Return both as they are committed, since another request may just have deleted the
    profile. Raises invalid-profileid, invalid-account or invalid-appid.
    """
    with db.atomic():
        account = rows.get_object_or_none(Account, caller.accountid, lock=True)
        profile = get_own(Profile, caller, profileid, appid, lock=True)
        yield account, profile


def end_session(caller, sessionid, *, appid=None):
    """End a session of the caller's own account, if it has not ended; return it.

    Not for administrators, whose sessions only commands end. Raises invalid-account,
    invalid-sessionid or invalid-appid.
    """
    appid = resolve_appid(appid)
    if caller.administrator:
        raise ServiceError("invalid-account")
    get_own(Session, caller, sessionid, appid)
    return accounts.end_session(sessionid)


def get_own(model, caller, identifier, appid, *, lock=False):
    """Return the caller's own row: its account, or a profile or session of it.

    ``lock`` as in get_object(). Raises what that raises, invalid-account or
    invalid-appid.
    """
    appid = resolve_appid(appid)
    own = rows.get_object(model, identifier, appid, lock=lock)
    if own["accountid"] != caller.accountid or not belongs_to(caller, appid):
        raise ServiceError("invalid-account")
    return own


def load_profile(body, names, *, creating):
    """Return the values by property, and ``default``.

    Raises invalid-body or a field's code.
    """
    schema = profile_schema(names, creating=creating)
    try:
        return schema.load({} if body is None else body)
    except ValidationError as error:
        # In the order of the fields. If a field fails two checks, the first one counts.
        errors = {name: codes[0] for name, codes in error.messages_dict.items()}
        code = next(iter(errors.values()))
        errors.pop("_schema", None)  # the body is no mapping: invalid-body
        raise ServiceError(code, errors=errors) from None


def list_profiles(caller, *, appid=None, accountid=None, email=None, **query):
    """Return the application's profiles, newest first, or None if there are none.

    ``email``: only profiles that have this address, ignoring case. ``query``: all,
    limit, offset and after, as in the API. Numbers may be strings. Raises
    administrator-required, invalid-limit, invalid-offset, invalid-after or
    invalid-appid.
    """
    listing = application_listing(Profile, caller, appid, accountid, email)
    return read_list(listing, **query)


def list_sessions(caller, *, appid=None, accountid=None, **query):
    """Return the application's sessions, as list_profiles returns the profiles."""
    return read_list(application_listing(Session, caller, appid, accountid), **query)


def list_accounts(caller, *, appid=None, accountid=None, **query):
    """Return the application's accounts, ascending by accountid, as list_profiles does.

    Each has ``profile``: its default profile, or None.
    """
    return read_list(application_listing(Account, caller, appid, accountid), **query)


def list_own_profiles(caller, accountid, *, appid=None, **query):
    """Return the profiles of the caller's own account, as list_profiles does.

    Raises invalid-accountid, invalid-account, invalid-appid, invalid-limit,
    invalid-offset or invalid-after.
    """
    return read_list(own_listing(Profile, caller, accountid, appid), **query)


def list_own_sessions(caller, accountid, *, appid=None, **query):
    """Return the sessions of the caller's own account, as list_own_profiles does."""
    return read_list(own_listing(Session, caller, accountid, appid), **query)


def own_listing(model, caller, accountid, appid):
    """Return the Listing of the rows of the caller's own account.

    Raises invalid-accountid, invalid-account or invalid-appid.
    """
    account = get_own(Account, caller, accountid, appid)
    return Listing(model, {"appid": account["appid"], "accountid": accountid})


def application_listing(model, caller, appid, accountid, email=None):
    """Return the Listing of an application, optionally of one of its accounts.

    Raises administrator-required or invalid-appid.
    """
    scope = {"appid": require_administrator(caller, appid)}
    if accountid:
        # No row has an empty one. MySQL cannot compare some strings with ASCII columns.
        scope["accountid"] = accountid if is_identifier("acct", accountid) else ""
    return Listing(model, scope, email)


def read_list(listing, *, all=None, limit=None, offset=None, after=None):
    """Return the objects of a listing, or None if there are none."""
    if all:
        batches = rows.select_all(listing, after)
        objects = [each for batch in batches for each in batch]
    else:
        objects, _ = read_page(listing, limit, offset, after)
    return objects or None


def read_page(listing, limit, offset, after):
    """Return a page of a listing, and the identifier that the next page comes after.

    On the last page, the identifier is None. Raises invalid-limit, invalid-offset or
    invalid-after.
    """
    limit = parse_number("limit", limit, settings()["PAGE_SIZE"])
    offset = parse_number("offset", offset, 0)
    return rows.select_page(listing, limit, offset, after)


def create_account(caller, *, appid=None, idempotency_key=None):
    """Store a new ordinary account and return it, as find_own_account does.

    ``idempotency_key`` as in create_profile. Raises administrator-required,
    invalid-appid or invalid-idempotency-key.
    """
    appid = require_administrator(caller, appid)
    accountid = identifier_for_key("acct", idempotency_key, appid)
    account = accounts.create_account(appid, accountid=accountid)
    return rows.with_default_profile(account)


@retry_on_conflict
def create_session(caller, accountid, *, appid=None, duration=None):
    """Store a new session of an account and return it with its token.

    ``duration``: 1 to 86400 seconds, by default 28800. Raises administrator-required,
    invalid-appid, invalid-accountid, invalid-account or invalid-duration.
    """
    with locked_target(caller, accountid, appid):
        seconds = parse_number(
            "duration", duration, DEFAULT_DURATION, minimum=1, maximum=86_400
        )
        return accounts.create_session(accountid, seconds)


@retry_on_conflict
def end_sessions(caller, accountid, *, appid=None):
    """End all running sessions of an account at once; return how many.

    Raises administrator-required, invalid-appid, invalid-accountid or invalid-account.
    """
    with locked_target(caller, accountid, appid):
        return accounts.end_sessions(accountid)


@retry_on_conflict
def delete_account(caller, accountid, *, appid=None):
    """Delete an account, its profiles and its sessions, or nothing; return how many.

    Raises administrator-required, invalid-appid, invalid-accountid or invalid-account.
    """
    with locked_target(caller, accountid, appid):
        return accounts.delete_account(accountid)


@contextmanager
def locked_target(caller, accountid, appid):
    """Lock an ordinary account, for which an administrator acts, in a transaction.

    So it cannot become an administrator meanwhile. Raises administrator-required,
    invalid-appid, invalid-accountid or invalid-account.
    """
    appid = require_administrator(caller, appid)
    with db.atomic():
        if rows.lock_account(accountid, appid)["administrator"]:
            raise ServiceError("invalid-account")
        yield


def require_administrator(caller, appid):
    """Return the application's id, if the caller is an administrator of it.

    Raises administrator-required or invalid-appid.
    """
    appid = resolve_appid(appid)
    if not caller.administrator or not belongs_to(caller, appid):
        raise ServiceError("administrator-required")
    return appid


def belongs_to(caller, appid):
    """Return whether the caller may act in the application."""
    return getattr(caller, "appid", appid) == appid
