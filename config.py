"""The settings of the service, read from the environment and checked."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from database_url import DatabaseURL, parse_database_url
from errors import SettingError
from validators import APPID, BOUNDED_FIELDS, CATALOGUE, Lengths, example_body

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LENGTH_SETTINGS = [f"PROFILE_{name.upper().replace('-', '_')}_LENGTH" for name in BOUNDED_FIELDS]
DEFAULTS = {
    "APPID": "default",
    "DATABASE_URL": "sqlite:///profiles.db",
    "USER_PROFILE_FIELDS": "contact-email,full-name",
    **{f"MINIMUM_{name}": "1" for name in LENGTH_SETTINGS},
    **{f"MAXIMUM_{name}": "50" for name in LENGTH_SETTINGS},
    "PAGE_SIZE": "10",
    "MAXIMUM_POST_DATA_LENGTH": "65536",
    "WEB_CONCURRENCY": str(min(CORES, 4)),
}


@dataclass(frozen=True)
class Settings:
    """The settings of one service."""

    appid: str
    database_url: DatabaseURL
    user_profile_fields: tuple[str, ...]
    lengths: Lengths
    page_size: int
    maximum_post_data_length: int
    workers: int
    example_body: Mapping[str, str]  # which is accepted as it stands


source: Callable[[], Settings] | None = None  # set by create_app()


def settings() -> Settings:
    """Return the settings of the application that makes the call."""
    if source is None:
        raise RuntimeError("no application: call create_app() first")
    return source()


def load(variables: Mapping[str, object]) -> Settings:
    """Return the checked settings. An empty variable counts as not set. Raises SettingError."""
    values = DEFAULTS | {k: str(v) for k, v in variables.items() if v not in (None, "")}
    if not APPID.fullmatch(values["APPID"]):
        raise SettingError("APPID", values["APPID"], f"must match {APPID.pattern}")
    listed = values["USER_PROFILE_FIELDS"]
    names, lengths = tuple(name.strip() for name in listed.split(",")), []
    for name in names:
        if name not in CATALOGUE or names.count(name) > 1:
            wrong = "is there twice" if name in CATALOGUE else f"is none of {', '.join(CATALOGUE)}"
            raise SettingError("USER_PROFILE_FIELDS", listed, f"{name!r} {wrong}")
    for name in LENGTH_SETTINGS:
        least = whole_number(values, f"MINIMUM_{name}", least=0)
        most = whole_number(values, f"MAXIMUM_{name}")
        if least > most:
            raise SettingError(f"MINIMUM_{name}", least, f"is over MAXIMUM_{name}={most}")
        lengths.append((least, most))
    most = whole_number(values, "MAXIMUM_POST_DATA_LENGTH")
    example = example_body(names, tuple(lengths), most)
    if len(json.dumps({**example, "default": False}, indent=2)) > most:
        reason = "is too short for a body of the configured fields"
        raise SettingError("MAXIMUM_POST_DATA_LENGTH", most, reason)
    return Settings(
        appid=values["APPID"],
        database_url=parse_database_url(values["DATABASE_URL"]),
        user_profile_fields=names,
        lengths=tuple(lengths),
        page_size=whole_number(values, "PAGE_SIZE"),
        maximum_post_data_length=most,
        workers=whole_number(values, "WEB_CONCURRENCY", most=1000),
        example_body=example,
    )


def whole_number(values: dict[str, str], name: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """Return the variable as a number within the bounds. Raises SettingError."""
    if re.fullmatch("[0-9]{1,10}", values[name]) and least <= int(values[name]) <= most:
        return int(values[name])
    raise SettingError(name, values[name], f"must be a whole number from {least} to {most}")
