"""The operations on profiles. Each takes its caller first, and checks its rights."""

from typing import Any

from marshmallow import ValidationError

import lists
import rows
from callers import Caller, administrator_scope, get_accessible, own_scope
from database import db, retry_on_conflict, transaction
from errors import ServiceError
from formats import identifier_for_key
from lists import Listing, Page
from models import Account, Object, Profile, Stored
from validators import profile_schema


@retry_on_conflict
def update_profile(
    caller: Caller,
    profileid: str | None,
    body: Any,
    *,
    appid: str | None = None,
    user_profile_fields: list[str] | None = None,
    if_match: str | list[str] | None = None,
) -> Object:
    """Store the configured fields of the caller's own profile; return the profile.

    ``body``: input fields and their strings. ``user_profile_fields``: fields instead of
    the configured ones. ``if_match``: an ``updatedAt``, or several; if the profile has
    none of them, nothing is stored, and the profile is returned if it already has all
    the values; otherwise profile-changed is raised. Raises invalid-profileid,
    invalid-account, invalid-appid, invalid-body, or a field's code.
    """
    expected = [if_match] if isinstance(if_match, str) else if_match
    # Unless it locks the row, a transaction of the caller's own may read an older one.
    lock = db.in_transaction()
    while True:
        profile = get_accessible(Profile, caller, profileid, appid, lock=lock)
        changes = load_profile(body, user_profile_fields, creating=False)
        if expected is not None and profile["updatedAt"] not in expected:
            if changes.items() <= profile.items():
                return profile
            raise ServiceError("profile-changed")
        if updated := rows.replace_profile(profile, changes):
            return updated
        # Another request has changed it since it was read.


def create_profile(
    caller: Caller,
    accountid: str | None,
    body: Any,
    *,
    appid: str | None = None,
    user_profile_fields: list[str] | None = None,
    idempotency_key: str | None = None,
) -> Stored:
    """Store a new profile of the caller's own account and return it.

    With ``default`` exactly ``true`` it also becomes the account's default: both are
    stored, or none. ``idempotency_key``: 1 to 255 printable ASCII characters; repeated
    with the same one, it changes nothing and returns the profile that was stored first.
    Raises invalid-accountid, invalid-account, invalid-appid, invalid-body,
    invalid-idempotency-key, or a field's code.
    """
    # Unless it locks the row, a transaction of the caller's own may not see it yet.
    scope = own_scope(caller, accountid, appid, lock=db.in_transaction())
    values = load_profile(body, user_profile_fields, creating=True)
    default = values.pop("default", None)
    own = scope["appid"], scope["accountid"]
    profileid = identifier_for_key("prof", idempotency_key, *own)
    values |= {"profileid": profileid, **scope}
    if default == "true" or default is True:
        profile = rows.insert_default_profile(values)
    else:
        profile = rows.insert(Profile, rows.new_row(values))
    if profile["accountid"] != accountid:
        raise ServiceError("invalid-idempotency-key")  # another account's key collides
    return profile


def load_profile(body: Any, names: list[str] | None, *, creating: bool) -> Object:
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


def list_profiles(
    caller: Caller,
    *,
    appid: str | None = None,
    accountid: str | None = None,
    email: str | None = None,
    **paging: Any,
) -> Page | None:
    """Return the application's profiles, newest first, or None if there are none.

    ``accountid``: only profiles of this account. ``email``: only profiles that have
    this address, ignoring the case of ASCII letters; an empty one finds nobody.
    ``paging``: see read_list() in lists.py. Raises administrator-required,
    invalid-appid, invalid-parameter, invalid-limit, invalid-offset or invalid-after.
    """
    scope = administrator_scope(caller, accountid, appid)
    return lists.read_list(Listing(Profile, scope, email=email), paging)


def list_own_profiles(
    caller: Caller, accountid: str | None, *, appid: str | None = None, **paging: Any
) -> Page | None:
    """Return the profiles of the caller's own account, as list_profiles does.

    Raises invalid-accountid, invalid-account, invalid-appid, invalid-parameter,
    invalid-limit, invalid-offset or invalid-after.
    """
    scope = own_scope(caller, accountid, appid)
    return lists.read_list(Listing(Profile, scope), paging)


def find_own_profile(
    caller: Caller, profileid: str | None, *, appid: str | None = None
) -> Object:
    """Return the caller's own profile.

    Raises invalid-profileid, invalid-account or invalid-appid.
    """
    return get_accessible(Profile, caller, profileid, appid)


@transaction
def set_default_profile(
    caller: Caller, profileid: str | None, *, appid: str | None = None
) -> Object:
    """Make a profile of the caller's own account its default; return the account.

    Raises invalid-profileid, invalid-account or invalid-appid.
    """
    profile = lock_own_profile(caller, profileid, appid)
    accountid = profile["accountid"]
    rows.update_account(accountid, {"profileid": profileid})
    account = rows.get_object(Account, accountid, profile["appid"], lock=True)
    return account | {"profile": profile}


@transaction
def delete_profile(
    caller: Caller, profileid: str | None, *, appid: str | None = None
) -> Object:
    """Delete a profile of the caller's own account; return it as it was.

    If it is the account's default, the account has none afterwards. Raises
    invalid-profileid, invalid-account or invalid-appid.
    """
    profile = lock_own_profile(caller, profileid, appid)
    is_default = Account.profileid == profileid
    rows.update_account(profile["accountid"], {"profileid": None}, is_default)
    Profile.delete().where(Profile.profileid == profileid).execute()
    return profile


def lock_own_profile(
    caller: Caller, profileid: str | None, appid: str | None
) -> Object:
    """Lock the caller's own account, and then its profile, until the commit.

    Return the profile as it is committed. Raises invalid-profileid, invalid-account or
    invalid-appid.
    """
    rows.find_object(Account, caller.accountid, lock=True)  # the operator has none
    return get_accessible(Profile, caller, profileid, appid, lock=True)
