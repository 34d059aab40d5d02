"""The settings of the service, and the URL of its database, read and checked."""

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

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

# A path that does not end in "/", without a query. ":memory:" is not a file.
SQLITE_URL = "sqlite:///(?!:memory:$)([^?#]*[^?#/])"
MYSQL_SCHEME = r"(mysql2?|mariadb)(\+pymysql)?"
OPTIONS = {"ssl-mode", "ssl-ca", "unix_socket"}
TLS_MODES = ["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]
# Why a URL is refused
INVALID_FORM = (
    "must look like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name, percent-encoded"
)
INVALID_HOST = "has an invalid host or port, or characters that must be encoded"
INVALID_OPTIONS = (
    f"the options are ssl-mode ({', '.join(TLS_MODES)}), ssl-ca (a file, not with "
    "DISABLED) and unix_socket (a file, with no host or localhost), each once"
)


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
    """Return each field's minimum and maximum length. Raises SettingError."""
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


class DatabaseURL(NamedTuple):
    """A database: a SQLite file, or a MySQL database and PyMySQL's options for it."""

    engine: str  # sqlite or mysql
    name: str
    server: dict[str, Any]

    def __repr__(self) -> str:  # without the user and the password
        return f"{self.engine}://***"


def refusal(reason: str) -> SettingError:
    """Return a SettingError that shows nothing of the URL."""
    return SettingError("DATABASE_URL", "***", reason)


def parse_database_url(value: str) -> DatabaseURL:
    """Return the parts of a URL. Raises SettingError."""
    try:
        if not unquote(value, errors="strict").isprintable():
            raise ValueError
        if sqlite := re.fullmatch(SQLITE_URL, value):
            # Relative to this folder. A path that begins with "/" replaces the folder.
            path = Path(__file__).parent / unquote(sqlite[1])
            return DatabaseURL("sqlite", str(path), {})
        return parse_mysql_url(urlsplit(value))
    except ValueError:  # its message may contain part of the password
        raise refusal(INVALID_HOST) from None


def parse_mysql_url(url: SplitResult) -> DatabaseURL:
    """Return the parts of a split URL. Raises SettingError or ValueError."""
    if not re.fullmatch(MYSQL_SCHEME, url.scheme) or not url.netloc:
        raise refusal(INVALID_FORM)
    # An unencoded "/", "?" or "#" ends the host part, so the rest of the password, up
    # to its "@", is in a later part.
    if "@" in url.path + unquote(url.query) or url.fragment:
        raise refusal('percent-encode "/", "?" and "#" in the user and the password')
    name = unquote(url.path[1:])
    if not name or "/" in name:
        raise refusal(INVALID_FORM)
    options = read_options(url.query)
    login = {
        "user": unquote(url.username or ""),
        # As bytes, because PyMySQL encodes a str as Latin-1.
        "password": unquote(url.password or "").encode(),
    }
    address = server_address(url, options.get("unix_socket"))
    return DatabaseURL("mysql", name, login | address | tls_options(options))


def server_address(url: SplitResult, unix_socket: str | None) -> dict[str, Any]:
    """Return PyMySQL's options for a host and port, or for a Unix socket.

    Raises SettingError or ValueError.
    """
    host = unquote(url.hostname or "")  # [fe80::1%25eth0] is fe80::1%eth0
    if unix_socket == "" or (unix_socket and host not in ("", "localhost")):
        raise refusal(INVALID_OPTIONS)
    if not (host or unix_socket) or url.port == 0:
        raise ValueError
    host.encode("idna")  # raises ValueError: mysql://u:p@a..b/d
    return {"host": host, "port": url.port or 3306, "unix_socket": unix_socket}


def read_options(query: str) -> dict[str, str]:
    """Return the options of a URL's query for TLS and a socket, each at most once.

    Others, such as charset, are ignored. Raises SettingError.
    """
    pairs = [
        (name, value)
        for name, value in parse_qsl(query, keep_blank_values=True)
        if re.search("ssl|tls|cert|socket$", name.lower())  # ?sslmode=…, too
    ]
    options = dict(pairs)
    if len(options) < len(pairs) or options.keys() - OPTIONS:
        raise refusal(INVALID_OPTIONS)
    return options


def tls_options(options: dict[str, str]) -> dict[str, Any]:
    """Return PyMySQL's options for the TLS that a URL asks for. Raises SettingError."""
    mode = options.get("ssl-mode", "PREFERRED")
    ca_file = options.get("ssl-ca")
    is_contradictory = ca_file == "" or (ca_file and mode == "DISABLED")
    if is_contradictory or mode not in TLS_MODES:
        raise refusal(INVALID_OPTIONS)
    if ca_file and mode in ("PREFERRED", "REQUIRED"):
        mode = "VERIFY_CA"
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    if mode == "PREFERRED":
        return {}  # PyMySQL uses TLS if the server has it, and verifies nothing
    # A context, because PyMySQL's own options can't require TLS without a check of the
    # certificate, and check no host without a file of CAs.
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError:  # there is no such file, or it holds no certificate
        raise refusal("cannot read a certificate from the ssl-ca file") from None
    # Python 3.13 and newer would refuse the certificates that MySQL makes for itself.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
