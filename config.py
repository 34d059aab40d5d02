"""The settings of the service, read from the environment and checked."""

import os
import re
import ssl
from collections import namedtuple
from pathlib import Path
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
# The cores that the process may use, which macOS does not tell.
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
URL_HELP = (
    "must look like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name, percent-encoded"
)
# A path that does not end in "/", without a query. ":memory:" is not a file.
SQLITE_URL = "sqlite:///(?!:memory:$)([^?#]*[^?#/])"
MYSQL_SCHEME = r"(mysql2?|mariadb)(\+pymysql)?"
TLS_MODES = ["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]
TLS_HELP = (
    f"the options for TLS are ssl-mode ({', '.join(TLS_MODES)}) and ssl-ca (a file, "
    "not with DISABLED), each once"
)


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


def load(variables):
    """Return the checked settings. Raises SettingError.

    An empty variable counts as not set. Spaces around a value are ignored.
    """
    values = {
        name: str(value).strip(" ")
        for name, value in variables.items()
        if value not in (None, "")
    }
    checked = {}
    for name, (minimum, maximum, default) in NUMBERS.items():
        value = values.get(name, str(default))
        is_number = re.fullmatch("[0-9]{1,10}", value)
        if not is_number or not minimum <= int(value) <= maximum:
            reason = f"must be a whole number from {minimum} to {maximum}"
            raise SettingError(name, value, reason)
        checked[name] = int(value)
    checked["PROFILE_LENGTHS"] = checked_lengths(checked)
    checked["APPID"] = appid = values.get("APPID", "default")
    if not re.fullmatch(APPID, appid):
        raise SettingError("APPID", appid, f"must match {APPID}")
    url = values.get("DATABASE_URL", "sqlite:///profiles.db")
    checked["DATABASE_URL"] = parse_database_url(url)
    return checked | checked_fields(values)


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
    except ValueError:  # its message may contain part of the password
        reason = "has an invalid host or port, or characters that must be encoded"
        raise url_error(reason) from None


def url_error(reason):
    """Return a SettingError that shows nothing of the URL."""
    return SettingError("DATABASE_URL", "***", reason)


def parse_mysql_url(value):
    """Return the parts of a URL. Raises SettingError or ValueError."""
    url = urlsplit(value)
    is_mysql = re.fullmatch(MYSQL_SCHEME, url.scheme)  # not postgres://u@h/d
    if not is_mysql or not url.netloc:
        raise url_error(URL_HELP)
    # An unencoded "/", "?" or "#" ends the host part, so the rest of the password, up
    # to its "@", is in a later part.
    if "@" in url.path + unquote(url.query) or url.fragment:
        raise url_error('percent-encode "/", "?" and "#" in the user and the password')
    name = unquote(url.path[1:])
    if not name or "/" in name:
        raise url_error(URL_HELP)
    if not url.hostname or url.port == 0:
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

    Options that are not about TLS, such as charset, are ignored. Raises SettingError.
    """
    options = parse_qs(query, keep_blank_values=True)
    mode, *repeated_modes = options.pop("ssl-mode", ["PREFERRED"])
    ca, *repeated_cas = options.pop("ssl-ca", [None])
    is_repeated = repeated_modes or repeated_cas
    is_unknown = re.search("ssl|tls|cert", " ".join(options).lower())  # ?sslmode=…
    is_contradictory = ca == "" or (ca and mode == "DISABLED")
    if is_repeated or is_unknown or is_contradictory or mode not in TLS_MODES:
        raise url_error(TLS_HELP)
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    if mode == "PREFERRED" and not ca:
        return {}  # PyMySQL uses TLS if the server has it, and verifies nothing
    # PyMySQL's own options can't require TLS without a check of the certificate, and
    # check the host only with a file of CAs.
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError:  # there is no such file, or it holds no certificate
        raise url_error("cannot read a certificate from the ssl-ca file") from None
    # Python 3.13 and newer would refuse the certificates that MySQL makes for itself.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED" and not ca:
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
