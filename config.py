"""The settings of the service, read from the environment and checked."""

import os
import re
from collections.abc import Mapping
from typing import Any

from database_url import parse_database_url
from errors import SettingError
from formats import APPID, MAX_INT32
from validators import PROFILE_FIELDS, is_own_field

# For each field whose length has bounds, what its MINIMUM_ and MAXIMUM_ settings share:
# PROFILE_FULL_NAME_LENGTH for full-name.
LENGTHS = {
    name: f"PROFILE_{name.upper().replace('-', '_')}_LENGTH"
    for name, field in PROFILE_FIELDS.items()
    if field.rule == "name"
}
# The cores that the process may use. macOS can't report them.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
NUMBERS = {  # each setting's minimum value, its maximum, and its default
    **{f"MINIMUM_{name}": (0, MAX_INT32, 1) for name in LENGTHS.values()},
    **{f"MAXIMUM_{name}": (1, MAX_INT32, 50) for name in LENGTHS.values()},
    "PAGE_SIZE": (1, MAX_INT32, 10),
    "MAXIMUM_POST_DATA_LENGTH": (1, MAX_INT32, 65_536),
    "WEB_CONCURRENCY": (1, 1_000, min(len(CORES) or os.cpu_count() or 1, 4)),
    "PORT": (1, 65_535, 8_000),
}
REQUIRED_FIELDS = ("contact-email", "full-name")  # by default


def load(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked settings. Raises SettingError.

    Spaces around a value are ignored. An empty variable counts as not set, but one with
    only spaces is refused.
    """
    values = {
        name: str(value).strip(" ")
        for name, value in variables.items()
        if value not in (None, "")
    }
    checked: dict[str, Any] = {}
    for name, (minimum, maximum, default) in NUMBERS.items():
        value = values.get(name, str(default))
        is_number = re.fullmatch("[0-9]{1,10}", value)
        if not is_number or not minimum <= int(value) <= maximum:
            reason = f"must be a whole number from {minimum} to {maximum}"
            raise SettingError(name, value, reason)
        checked[name] = int(value)
    checked["PROFILE_LENGTHS"] = check_lengths(checked)
    appid = values.get("APPID", "default")
    if not re.fullmatch(APPID, appid):
        raise SettingError("APPID", appid, f"must match {APPID}")
    checked["APPID"] = appid
    url = values.get("DATABASE_URL", "sqlite:///profiles.db")
    checked["DATABASE_URL"] = parse_database_url(url)
    return checked | check_fields(values)


def check_lengths(numbers: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return the minimum and maximum length, in characters, of each field with bounds.

    Raises SettingError.
    """
    lengths = {}
    for field, name in LENGTHS.items():
        minimum = numbers[f"MINIMUM_{name}"]
        maximum = numbers[f"MAXIMUM_{name}"]
        if minimum > maximum:
            reason = f"is greater than MAXIMUM_{name}={maximum}"
            raise SettingError(f"MINIMUM_{name}", minimum, reason)
        lengths[field] = (minimum, maximum)
    return lengths


def check_fields(values: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return both lists of fields, each as a tuple of names. Raises SettingError."""
    optional = split_names("OPTIONAL_PROFILE_FIELDS", values, ())
    default = tuple(name for name in REQUIRED_FIELDS if name not in optional)
    required = split_names("USER_PROFILE_FIELDS", values, default)
    if set(required) & set(optional):
        reason = f"must not repeat a field of USER_PROFILE_FIELDS={','.join(required)}"
        raise SettingError("OPTIONAL_PROFILE_FIELDS", ",".join(optional), reason)
    return {"USER_PROFILE_FIELDS": required, "OPTIONAL_PROFILE_FIELDS": optional}


def split_names(
    variable: str, values: dict[str, str], default: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names in the value of a variable. Raises SettingError."""
    if variable not in values:
        return default
    names = tuple(map(str.strip, values[variable].split(",")))
    is_known = all(name in PROFILE_FIELDS or is_own_field(name) for name in names)
    if not is_known or len(set(names)) < len(names):
        reason = (
            f"must list each field once, and only {', '.join(PROFILE_FIELDS)} "
            "or fields of your own, such as x-postal-address"
        )
        raise SettingError(variable, values[variable], reason)
    return names
