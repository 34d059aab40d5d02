"""The operations on profiles. Each checks its caller, and raises codes of API.md."""

from typing import Any

import orjson
from marshmallow import ValidationError

import rows
from callers import Caller, get_own, require_administrator, require_own_account
from database import retry_on_conflict, transaction
from errors import ServiceError
from formats import identifier_for_key, normalize_timestamp
from lists import Listing, Page, Paging, read_list
from models import Account, Profile, Resource, Row, to_account
from validators import is_own_field, profile_schema


@retry_on_conflict
def update_profile(
    caller: Caller,
    profileid: str | None,
    body: Any,
    *,
    appid: str | None = None,
    user_profile_fields: list[str] | None = None,
    if_match: str | list[str] | None = None,
) -> Resource:
    """Store the configured fields of the caller's own profile; return the profile.

    ``body``: input fields and their strings. ``user_profile_fields``: fields instead of
    the configured ones. ``if_match``: an ``updatedAt``, or several; if the profile has
    none of them, nothing is stored, and the profile is returned if it already has all
    the values; otherwise profile-changed is raised.
    """
    expected = [if_match] if isinstance(if_match, str) else if_match
    profile = get_own(Profile, caller, profileid, appid)
    values = load_profile(body, user_profile_fields, creating=False)
    while True:
        if is_expected(profile, expected):
            updated = replace_values(profile, values)
            if updated:
                return Profile.to_resource(updated)
        # Another request has changed the profile, or a transaction of the caller's own
        # has read an older one: read it as it is committed.
        profile = get_own(Profile, caller, profileid, appid, for_update=True)
        if not is_expected(profile, expected):
            return require_values(profile, values)


def is_expected(profile: Row, expected: list[str] | None) -> bool:
    """Return whether ``updatedAt`` is one of the expected moments; None allows any."""
    if expected is None:
        return True
    return profile["updatedAt"] in [normalize_timestamp(text) for text in expected]


def replace_values(profile: Row, values: Row) -> Row | None:
    """Store values; return the profile, or None if it has changed since it was read."""
    return rows.replace_profile(profile, to_columns(values, profile["fields"]))


def require_values(profile: Row, values: Row) -> Resource:
    """Return the profile if it already has all the values. Raises profile-changed."""
    resource = Profile.to_resource(profile)
    changes = to_columns(values, profile["fields"])
    if Profile.to_resource(profile | changes) != resource:
        raise ServiceError("profile-changed")
    return resource


@retry_on_conflict
def create_profile(
    caller: Caller,
    accountid: str | None,
    body: Any,
    *,
    appid: str | None = None,
    user_profile_fields: list[str] | None = None,
    idempotency_key: str | None = None,
) -> rows.Created:
    """Store a new profile of the caller's own account and return it.

    With ``default`` exactly ``true`` it also becomes the account's default: both are
    stored, or neither. ``idempotency_key``: 1 to 255 printable ASCII characters. If it
    has created a profile before, nothing is stored, and that is returned as it is now.
    """
    # As it is committed: a transaction of the operator's own may not see the account.
    scope = require_own_account(caller, accountid, appid, for_update=True)
    values = load_profile(body, user_profile_fields, creating=True)
    default = values.pop("default", None)
    columns = to_columns(values)
    columns["appid"], columns["accountid"] = scope
    columns["profileid"] = identifier_for_key(Profile.PREFIX, idempotency_key, *scope)
    if default == "true" or default is True:
        profile = insert_default_profile(columns)
    else:
        profile = rows.insert(Profile, rows.new_row(Profile, columns))
    if profile["accountid"] != accountid:
        raise ServiceError("invalid-idempotency-key")  # another account's key collides
    return profile


@transaction
def insert_default_profile(values: Row) -> rows.Created:
    """Store a profile and make it its account's default, or neither."""
    accountid, appid = values["accountid"], values["appid"]
    account = rows.get_row(Account, accountid, appid, for_update=True)
    profile = rows.insert(Profile, rows.new_row(Profile, values))
    if profile.is_new:
        rows.update_account(account, {"profileid": profile["profileid"]})
    return profile


def load_profile(body: Any, names: list[str] | None, *, creating: bool) -> Row:
    """Return the values of a body by property, and ``default``."""
    schema = profile_schema(names, creating=creating)
    try:
        return schema.load({} if body is None else body)
    except ValidationError as error:
        # In the order of the fields. If a field fails two checks, the first one counts.
        errors = {name: codes[0] for name, codes in error.messages_dict.items()}
        code = next(iter(errors.values()))
        errors.pop("_schema", None)  # the body is no mapping: invalid-body
        raise ServiceError(code, errors=errors) from None


def to_columns(values: Row, stored_fields: str | None = None) -> Row:
    """Return values by column. The product's own fields share one, as a JSON object.

    ``stored_fields``: what this column has; its fields without a new value stay. None
    as a value removes a field.
    """
    own = {name: value for name, value in values.items() if is_own_field(name)}
    columns = {name: value for name, value in values.items() if name not in own}
    if own:
        fields = orjson.loads(stored_fields or "{}") | own
        fields = {name: value for name, value in fields.items() if value is not None}
        columns["fields"] = orjson.dumps(fields).decode() if fields else None
    return columns


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
    this address, ignoring the case of ASCII letters; an empty one finds no profile.
    ``paging``: see Paging in lists.py.
    """
    appid = require_administrator(caller, appid)
    listing = Listing(Profile, appid, accountid, email=email)
    return read_list(listing, Paging(**paging))


def list_own_profiles(
    caller: Caller, accountid: str | None, *, appid: str | None = None, **paging: Any
) -> Page | None:
    """Return the profiles of the caller's own account, as list_profiles does."""
    scope = require_own_account(caller, accountid, appid)
    return read_list(Listing(Profile, *scope), Paging(**paging))


def find_own_profile(
    caller: Caller, profileid: str | None, *, appid: str | None = None
) -> Resource:
    """Return the caller's own profile."""
    return Profile.to_resource(get_own(Profile, caller, profileid, appid))


@transaction
def set_default_profile(
    caller: Caller, profileid: str | None, *, appid: str | None = None
) -> Resource:
    """Make a profile of the caller's own account its default; return the account."""
    account, profile = lock_own_profile(caller, profileid, appid)
    account = rows.update_account(account, {"profileid": profileid})
    return to_account(account, profile)


@transaction
def delete_profile(
    caller: Caller, profileid: str | None, *, appid: str | None = None
) -> Resource:
    """Delete a profile of the caller's own account; return it as it was.

    If it is the account's default, the account has none afterwards.
    """
    account, profile = lock_own_profile(caller, profileid, appid)
    if account["profileid"] == profileid:
        rows.update_account(account, {"profileid": None})
    Profile.delete().where(Profile.profileid == profileid).execute()
    return Profile.to_resource(profile)


def lock_own_profile(
    caller: Caller, profileid: str | None, appid: str | None
) -> tuple[Row, Row]:
    """Lock the caller's own profile, and before it its account, until the commit.

    Return both as they are committed.
    """
    profile = get_own(Profile, caller, profileid, appid)
    account = rows.find_row(Account, profile["accountid"], for_update=True)
    if not account:  # it was just deleted, with its profiles
        raise ServiceError("invalid-profileid", 404)
    profile = rows.get_row(Profile, profileid, account["appid"], for_update=True)
    return account, profile
