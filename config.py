"""The settings of the service, read from the environment and checked."""

import os
import re
import ssl
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from flask import current_app

from errors import SettingError
from validators import APPID, PROFILE_FIELDS, make_schema

# For each field whose length has bounds, the name of its two settings without MINIMUM_
# or MAXIMUM_: PROFILE_FULL_NAME_LENGTH for full-name.
LENGTHS = {
    name: f"PROFILE_{name.upper().replace('-', '_')}_LENGTH"
    for name, field in PROFILE_FIELDS.items()
    if field.rule == "name"
}
MAX_INT32 = 2**31 - 1
NUMBERS = {  # each setting's minimum value, its maximum, and its default
    **{f"MINIMUM_{name}": (0, MAX_INT32, 1) for name in LENGTHS.values()},
    **{f"MAXIMUM_{name}": (1, MAX_INT32, 50) for name in LENGTHS.values()},
    "PAGE_SIZE": (1, MAX_INT32, 10),
    "MAXIMUM_POST_DATA_LENGTH": (1, MAX_INT32, 65_536),
    "WEB_CONCURRENCY": (1, 1_000, min(os.cpu_count() or 1, 4)),
    "PORT": (1, 65_535, 8_000),
}
REQUIRED_FIELDS = ("contact-email", "full-name")  # by default
URL_HELP = (
    "must look like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name, percent-encoded; for TLS, append "
    "?ssl-mode=REQUIRED, VERIFY_CA or VERIFY_IDENTITY, and &ssl-ca=file"
)
# A path that does not end in "/", without a query. ":memory:" is not a file.
SQLITE_URL = "sqlite:///(?!:memory:$)([^?#]*[^?#/])"
MYSQL_SCHEME = r"(mysql2?|mariadb)(\+pymysql)?"
TLS_MODES = "DISABLED PREFERRED REQUIRED VERIFY_CA VERIFY_IDENTITY".split()


class DatabaseURL(namedtuple("DatabaseURL", "engine name server")):
    """A database: a SQLite file, or a MySQL database and PyMySQL's options for it."""

    def __repr__(self):  # without the user and the password
        return f"{self.engine}://***"


def settings():
    """Return the settings of the active app."""
    return current_app.config


def profile_schema(names, *, creating):
    """Return the schema of a profile with these fields, by default as configured."""
    if names is None:
        return settings()["PROFILE_SCHEMAS"][creating]
    return make_schema(names, (), settings()["PROFILE_LENGTHS"], creating=creating)


def configured_fields():
    """Return the required fields and then the optional ones, as they are checked."""
    return settings()["USER_PROFILE_FIELDS"] + settings()["OPTIONAL_PROFILE_FIELDS"]


def example_body():
    """Return a body of the configured fields with allowed values."""
    lengths = settings()["PROFILE_LENGTHS"]
    body = {}
    for name in configured_fields():
        minimum, maximum = lengths.get(name, (0, None))
        body[name] = PROFILE_FIELDS[name].example.ljust(minimum, ".")[:maximum]
    return body


def load(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked settings. Raises SettingError.

    An empty variable counts as not set. Spaces around a value are ignored.
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
        if not is_number or int(value) not in range(minimum, maximum + 1):
            reason = f"must be a whole number from {minimum} to {maximum}"
            raise SettingError(name, value, reason)
        checked[name] = int(value)
    checked["PROFILE_LENGTHS"] = checked_lengths(checked)
    checked["APPID"] = appid = values.get("APPID", "default")
    if not re.fullmatch(APPID, appid):
        raise SettingError("APPID", appid, f"must match {APPID}")
    checked |= checked_fields(values)
    url = values.get("DATABASE_URL", "sqlite:///profiles.db")
    checked["DATABASE_URL"] = parse_database_url(url)
    return checked


def checked_lengths(numbers):
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


def checked_fields(values):
    """Return both lists of fields, each as a tuple of names. Raises SettingError."""
    optional = split_names("OPTIONAL_PROFILE_FIELDS", values, ())
    default = tuple(name for name in REQUIRED_FIELDS if name not in optional)
    required = split_names("USER_PROFILE_FIELDS", values, default)
    if set(required) & set(optional):
        reason = f"must not repeat a field of USER_PROFILE_FIELDS={','.join(required)}"
        raise SettingError("OPTIONAL_PROFILE_FIELDS", ",".join(optional), reason)
    return {"USER_PROFILE_FIELDS": required, "OPTIONAL_PROFILE_FIELDS": optional}


def split_names(variable, values, default):
    """Return the names in the value of a variable. Raises SettingError."""
    if variable not in values:
        return default
    names = tuple(map(str.strip, values[variable].split(",")))
    if len(PROFILE_FIELDS.keys() & names) < len(names):  # one is unknown or repeated
        reason = f"must list each field once, out of {', '.join(PROFILE_FIELDS)}"
        raise SettingError(variable, values[variable], reason)
    return names


def parse_database_url(value):
    """Return the parts of a URL. Raises SettingError, which shows nothing of it."""
    try:
        if not unquote(value, errors="strict").isprintable():
            raise ValueError
        match = re.fullmatch(SQLITE_URL, value)
        if not match:
            return parse_mysql_url(value)
        # Relative to this folder. A path that begins with "/" replaces the folder.
        path = Path(__file__).parent / unquote(match[1])
        return DatabaseURL("sqlite", str(path), {})
    except (ValueError, OSError):  # its message may contain part of the password
        raise SettingError("DATABASE_URL", "***", URL_HELP) from None


def parse_mysql_url(value):
    """Return the parts of a URL. Raises ValueError, or OSError for a missing file."""
    url = urlsplit(value)
    name = unquote(url.path[1:])
    faults = (
        not re.fullmatch(MYSQL_SCHEME, url.scheme),  # postgres://u@h/d
        not url.hostname,  # mysql:///d
        not name,  # mysql://h
        "/" in name,  # mysql://h/d/
        url.port == 0,
        # If "/", "?" or "#" in a password is not encoded, the URL is cut there. The
        # rest of the password, with the "@" after it, is then in one of these parts.
        "@" in url.path,  # mysql://u:se/cret@h/d
        "@" in unquote(url.query),  # mysql://u:se?cret@h/d
        url.fragment,  # mysql://u:se#cret@h/d
    )
    if any(faults):
        raise ValueError
    url.hostname.encode("idna")  # raises ValueError: mysql://u:p@a..b/d
    server = {
        "host": url.hostname,
        "port": url.port or 3306,
        "user": unquote(url.username or ""),
        # As bytes, because PyMySQL encodes a str as Latin-1.
        "password": unquote(url.password or "").encode(),
        **tls_options(url.query),
    }
    return DatabaseURL("mysql", name, server)


def tls_options(query):
    """Return PyMySQL's options for the TLS that a URL's query asks for.

    Other options, such as charset, are ignored. Raises ValueError for another option
    about TLS, or one that is given twice, and OSError for a file that holds no
    certificate.
    """
    options = parse_qs(query, keep_blank_values=True)
    [mode] = options.pop("ssl-mode", ["PREFERRED"])  # ValueError if there are two
    [ca] = options.pop("ssl-ca", [None])
    is_unknown = re.search("ssl|tls|cert", " ".join(options).lower())  # ?SSL-Mode=…
    is_contradictory = ca and mode == "DISABLED"
    if is_unknown or is_contradictory or ca == "" or mode not in TLS_MODES:
        raise ValueError
    if ca and mode != "VERIFY_IDENTITY":
        mode = "VERIFY_CA"
    if mode == "PREFERRED":
        return {}  # PyMySQL uses TLS if the server has it, and verifies nothing
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    context = ssl.create_default_context(cafile=ca)
    # Python 3.13 and newer would refuse the certificates that MySQL makes for itself.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
