"""The operations, for HTTP and in-process. Each checks the rights of its caller.

A caller is any object with ``accountid`` and ``administrator``; one that also has an
``appid`` has rights in that application alone. Failures are ServiceErrors.
"""

from marshmallow import ValidationError

import accounts
import rows
from accounts import DEFAULT_DURATION, resolve_appid
from config import profile_schema
from database import retry_on_conflict, transaction
from errors import ServiceError
from models import Account, Profile, Session
from rows import Listing
from validators import identifier_for_key, is_identifier, parse_number


@retry_on_conflict
def update_profile(
    caller, profileid, body, *, appid=None, user_profile_fields=None, if_match=None
):
    """Store the configured fields of the caller's own profile; return the profile.

    ``body``: input fields and their strings. ``user_profile_fields``: fields instead of
    the configured ones. ``if_match``: an ``updatedAt``, or several; if the profile has
    none of them, nothing is stored, and the profile is returned if it already has all
    the values; otherwise profile-changed is raised. Raises invalid-profileid,
    invalid-account, invalid-appid, invalid-body, or a field's code.
    """
    appid = resolve_appid(appid)
    try:
        changes = load_profile(body, user_profile_fields, creating=False)
    except ServiceError:
        find_own_profile(caller, profileid, appid=appid)  # its error is reported first
        raise
    expected = [if_match] if isinstance(if_match, str) else if_match
    scope = {"appid": appid, "accountid": caller.accountid}
    is_stored = belongs_to(caller, appid) and rows.update_profile_row(
        profileid, scope, changes, expected
    )
    # What was not stored is compared with the profile as it is committed, which a
    # transaction of the caller's own may not see.
    profile = get_own(Profile, caller, profileid, appid, lock=not is_stored)
    if not is_stored and not changes.items() <= profile.items():
        if if_match is None:  # it did not exist yet
            raise ServiceError("invalid-profileid", 404)
        raise ServiceError("profile-changed")
    return profile


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
    return get_or_create_profile(
        caller, accountid, body, appid, user_profile_fields, idempotency_key
    )[0]


def get_or_create_profile(
    caller, accountid, body, appid=None, user_profile_fields=None, idempotency_key=None
):
    """Do what create_profile() does; return the profile, and whether it is new."""
    appid = resolve_appid(appid)
    try:
        require_owner(caller, accountid, appid)
        values = load_profile(body, user_profile_fields, creating=True)
        profileid = identifier_for_key("prof", idempotency_key, appid, accountid)
    except ServiceError:
        # An unknown account is reported first. It is read only here, because that costs
        # a statement.
        rows.get_object(Account, accountid, appid)
        raise
    default = values.pop("default", None)
    values |= {"profileid": profileid, "appid": appid, "accountid": accountid}
    is_default = default == "true" or default is True
    profile, is_new = rows.insert(Profile, values, as_default=is_default)
    if profile["accountid"] != accountid:
        raise ServiceError("invalid-idempotency-key")  # two keys have the same hash
    return profile, is_new


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


@transaction
def set_default_profile(caller, profileid, *, appid=None):
    """Make a profile of the caller's own account its default; return the account.

    Raises invalid-profileid, invalid-account or invalid-appid.
    """
    account, profile = lock_own_profile(caller, profileid, appid)
    changes = rows.update_account(caller.accountid, {"profileid": profileid})
    return account | changes | {"profile": profile}


@transaction
def delete_profile(caller, profileid, *, appid=None):
    """Delete a profile of the caller's own account; return it as it was.

    If it is the account's default, the account has none afterwards. Raises
    invalid-profileid, invalid-account or invalid-appid.
    """
    account, profile = lock_own_profile(caller, profileid, appid)
    if account["profileid"] == profileid:
        rows.update_account(caller.accountid, {"profileid": None})
    Profile.delete().where(Profile.profileid == profileid).execute()
    return profile


def lock_own_profile(caller, profileid, appid):
    """Lock the caller's own account and then its profile, until the commit.

    Return both as they are committed, since another request may just have deleted the
    profile. Raises invalid-profileid, invalid-account or invalid-appid.
    """
    account = rows.get_object_or_none(Account, caller.accountid, lock=True)
    # If the account was deleted, so was the profile: this raises.
    profile = get_own(Profile, caller, profileid, appid, lock=True)
    return account, profile


def end_session(caller, sessionid, *, appid=None):
    """End a session of the caller's own account, if it has not ended; return it.

    Only commands end an administrator's sessions. Raises invalid-account,
    invalid-sessionid or invalid-appid.
    """
    appid = resolve_appid(appid)
    if caller.administrator:
        raise ServiceError("invalid-account")
    get_own(Session, caller, sessionid, appid)
    return accounts.close_session(sessionid)


def get_own(model, caller, identifier, appid, *, lock=False):
    """Return the caller's own row: its account, or a profile or session of it.

    ``lock`` as in get_object(). Raises what that raises, invalid-account or
    invalid-appid.
    """
    appid = resolve_appid(appid)
    own = rows.get_object(model, identifier, appid, lock=lock)
    require_owner(caller, own["accountid"], appid)
    return own


def require_owner(caller, accountid, appid):
    """Raise invalid-account unless the account of the application is the caller's."""
    if accountid != caller.accountid or not belongs_to(caller, appid):
        raise ServiceError("invalid-account")


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

    ``email``: only profiles that have this address, ignoring the case of ASCII letters;
    an empty one finds nobody. Raises administrator-required, invalid-limit,
    invalid-offset, invalid-after or invalid-appid.
    """
    listing = application_listing(Profile, caller, accountid, appid, email=email)
    return read_list(listing, **query)


def list_sessions(caller, *, appid=None, accountid=None, active=None, **query):
    """Return the application's sessions, as list_profiles() returns the profiles.

    ``active``: if it is true, only those that neither ended nor expired.
    """
    listing = application_listing(Session, caller, accountid, appid, active=active)
    return read_list(listing, **query)


def list_accounts(caller, *, appid=None, accountid=None, **query):
    """Return the application's accounts, ascending by accountid, as list_profiles does.

    Each has ``profile``: its default profile, or None.
    """
    listing = application_listing(Account, caller, accountid, appid)
    return read_list(listing, **query)


def list_own_profiles(caller, accountid, *, appid=None, **query):
    """Return the profiles of the caller's own account, as list_profiles does.

    Raises invalid-accountid, invalid-account, invalid-appid, invalid-limit,
    invalid-offset or invalid-after.
    """
    return read_list(own_listing(Profile, caller, accountid, appid), **query)


def list_own_sessions(caller, accountid, *, appid=None, active=None, **query):
    """Return the sessions of the caller's own account, as list_own_profiles does.

    ``active`` as in list_sessions().
    """
    listing = own_listing(Session, caller, accountid, appid, active=active)
    return read_list(listing, **query)


def own_listing(model, caller, accountid, appid, *, active=None):
    """Return the Listing of the rows of the caller's own account.

    Raises invalid-accountid, invalid-account or invalid-appid.
    """
    account = get_own(Account, caller, accountid, appid)
    scope = {"appid": account["appid"], "accountid": accountid}
    return Listing(model, scope, active=bool(active))


def application_listing(model, caller, accountid, appid, *, email=None, active=None):
    """Return the Listing of an application, optionally of one of its accounts.

    Raises administrator-required or invalid-appid.
    """
    scope = {"appid": require_administrator(caller, appid)}
    if accountid:
        # MySQL cannot compare some strings with ASCII columns, so whatever is not an
        # accountid becomes an empty string, which no row has.
        scope["accountid"] = accountid if is_identifier("acct", accountid) else ""
    return Listing(model, scope, email, bool(active))


def read_list(listing, *, all=None, after=None, **numbers):
    """Return the objects of a listing, or None if there are none."""
    if all:
        objects = rows.read_all(listing, after)
    else:
        objects, _ = rows.select_page(listing, after=after, **numbers)
    return objects or None


def create_account(caller, *, appid=None, idempotency_key=None):
    """Store a new ordinary account and return it, as find_own_account does.

    ``idempotency_key`` as in create_profile. Raises administrator-required,
    invalid-appid or invalid-idempotency-key.
    """
    return get_or_create_account(caller, appid, idempotency_key)[0]


def get_or_create_account(caller, appid=None, idempotency_key=None):
    """Do what create_account() does; return the account, and whether it is new."""
    appid = require_administrator(caller, appid)
    accountid = identifier_for_key("acct", idempotency_key, appid)
    account, is_new = accounts.insert_account_once(appid, accountid)
    return rows.with_default_profile(account), is_new


def create_session(caller, accountid, *, appid=None, duration=None):
    """Store a new session of an account and return it with its token.

    ``duration``: 1 to 86400 seconds, by default 28800. Raises administrator-required,
    invalid-appid, invalid-accountid, invalid-account or invalid-duration.
    """
    appid = require_administrator(caller, appid)
    return for_ordinary_account(start_session, accountid, appid, duration)


def start_session(accountid, duration):
    """Store a new session of an account. Raises invalid-duration."""
    seconds = parse_number(
        "duration", duration, DEFAULT_DURATION, minimum=1, maximum=86_400
    )
    return accounts.insert_session(accountid, seconds)


def end_sessions(caller, accountid, *, appid=None):
    """End all running sessions of an account at once; return how many.

    Raises administrator-required, invalid-appid, invalid-accountid or invalid-account.
    """
    appid = require_administrator(caller, appid)
    return for_ordinary_account(accounts.close_sessions, accountid, appid)


def delete_account(caller, accountid, *, appid=None):
    """Delete an account, its profiles and its sessions, or nothing; return how many.

    Raises administrator-required, invalid-appid, invalid-accountid or invalid-account.
    """
    appid = require_administrator(caller, appid)
    return for_ordinary_account(accounts.erase_account, accountid, appid)


@transaction
def for_ordinary_account(function, accountid, appid, *args):
    """Lock an ordinary account and call the function with its id and the arguments.

    The lock keeps it from becoming an administrator meanwhile. Raises invalid-accountid
    or invalid-account.
    """
    if rows.lock_account(accountid, appid)["administrator"]:
        raise ServiceError("invalid-account")
    return function(accountid, *args)


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
