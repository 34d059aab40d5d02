"""The settings of the service, read from the environment and checked."""

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from flask import Config, current_app
from marshmallow import EXCLUDE, Schema, ValidationError, fields, post_load, validate

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
REQUIRED_FIELDS = ("contact-email", "full-name")  # by default
URL_HELP = (
    "must look like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name"
)
# What is wrong with a URL in which the pattern is found. The first one counts.
URL_FAULTS = {
    r"^(?!sqlite:|(?i:mysql2?|mariadb)(\+pymysql)?://)": URL_HELP,
    "[\0-\x1f\x7f]|%[01]|%7[Ff]": "must not contain control characters",
    "^sqlite:(?!///[^?#]*[^?#/]$)|^sqlite:///:memory:$": (
        'must name a file, in which "?" and "#" are percent-encoded'
    ),
    # A password is cut there, so the rest of it and the "@" come later.
    "#|//.*[/?].*@|[?].*%40": (
        'percent-encode "/", "?" and "#" in the user and the password'
    ),
    "(?i)^m.*?//(?![^/]+/[^/?]+([?]|$))": (
        "must name a host and a database, as in mysql://host/name"
    ),
    r"[?&](ssl-mode|ssl-ca)=.*&\1=": "must give ssl-mode and ssl-ca only once",
}
TLS_MODES = "DISABLED PREFERRED REQUIRED VERIFY_CA VERIFY_IDENTITY".split()
url_error = partial(SettingError, "DATABASE_URL", "***")  # shows nothing of the URL
decode = partial(unquote, errors="strict")  # raises ValueError


class DatabaseURL(NamedTuple):
    """A database: a SQLite file, or a MySQL database and PyMySQL's options for it."""

    engine: str
    name: str
    server: dict[str, Any]

    def __repr__(self) -> str:  # without the user and the password
        return f"{self.engine}://***"


def settings() -> Config:
    """Return the settings of the active app."""
    return current_app.config


def profile_schema(names: Iterable[str] | None, *, creating: bool) -> Schema:
    """Return the schema of a profile with these fields, by default as configured."""
    if names is None:
        return settings()["PROFILE_SCHEMAS"][creating]
    return make_schema(names, (), settings()["PROFILE_LENGTHS"], creating=creating)


def configured_fields() -> tuple[str, ...]:
    """Return the required fields and then the optional ones, as they are checked."""
    return settings()["USER_PROFILE_FIELDS"] + settings()["OPTIONAL_PROFILE_FIELDS"]


def example_body() -> dict[str, str]:
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
    try:
        return SETTINGS.load(values)
    except ValidationError as error:
        name, [reason] = error.normalized_messages().popitem()
        raise SettingError(name, values[name], reason) from None


def number(minimum: int, maximum: int, default: int) -> fields.Integer:
    """Return the field of a whole number, which is written in decimal digits."""
    reason = f"must be a whole number from {minimum} to {maximum}"
    return fields.Integer(
        load_default=default,
        pre_load=validate.Regexp(r"[0-9]{1,10}\Z", error=reason),
        validate=validate.Range(minimum, maximum, error=reason),
    )


def count_cores() -> int:
    """Return how many cores the process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_appid(value: str) -> str:
    """Return an application id. Raises ValidationError."""
    if not re.fullmatch(APPID, value):
        raise ValidationError(f"must match {APPID}")
    return value


def split_names(value: str) -> tuple[str, ...]:
    """Return the names in a list of fields. Raises ValidationError."""
    names = tuple(map(str.strip, value.split(",")))
    if len(PROFILE_FIELDS.keys() & names) < len(names):  # one is unknown or repeated
        reason = f"must list each field once, out of {', '.join(PROFILE_FIELDS)}"
        raise ValidationError(reason)
    return names


def parse_database_url(value: str) -> DatabaseURL:
    """Return the parts of a URL. Raises SettingError, which shows nothing of it."""
    for pattern, reason in URL_FAULTS.items():
        if re.search(pattern, value):
            raise url_error(reason)
    try:
        if value.startswith("sqlite"):
            # Relative to this folder. A path that begins with "/" replaces the folder.
            path = Path(__file__).parent / decode(value.removeprefix("sqlite:///"))
            return DatabaseURL("sqlite", str(path), {})
        return parse_mysql_url(value)
    except ValueError:  # its message may contain part of the password
        reason = "has an invalid host or port, or the password is not percent-encoded"
        raise url_error(reason) from None


def parse_mysql_url(value: str) -> DatabaseURL:
    """Return the parts of a URL. Raises SettingError, or ValueError."""
    url = urlsplit(value)
    if not url.hostname or url.port == 0:
        raise ValueError
    url.hostname.encode("idna")  # raises ValueError: mysql://u:p@a..b/d
    server = {
        "host": url.hostname,
        "port": url.port or 3306,
        "user": decode(url.username or ""),
        # As bytes, because PyMySQL encodes a str as Latin-1.
        "password": decode(url.password or "").encode(),
        **tls_options(url.query),
    }
    return DatabaseURL("mysql", decode(url.path[1:]), server)


def tls_options(query: str) -> dict[str, Any]:
    """Return PyMySQL's options for the TLS that a URL's query asks for.

    Options that are not about TLS, such as charset, are ignored. Raises SettingError.
    """
    options = dict(parse_qsl(query, keep_blank_values=True))
    mode = options.pop("ssl-mode", "PREFERRED")
    ca = options.pop("ssl-ca", None)
    if re.search("ssl|tls|cert", " ".join(options).lower()):  # ?sslmode=require
        raise url_error("the only options for TLS are ssl-mode and ssl-ca")
    if mode not in TLS_MODES:
        raise url_error(f"ssl-mode must be one of {', '.join(TLS_MODES)}")
    if ca == "" or (ca and mode == "DISABLED"):
        raise url_error("ssl-ca must name a file, and not with ssl-mode=DISABLED")
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    if mode == "PREFERRED" and not ca:
        return {}  # PyMySQL uses TLS if the server has it, and verifies nothing
    # PyMySQL's own options can't require TLS without a check of the certificate, and
    # check the host only with a file of CAs.
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError:  # such as ssl.SSLError, if it holds none
        raise url_error("cannot read a certificate from the ssl-ca file") from None
    # Python 3.13 and newer would refuse the certificates that MySQL makes for itself.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED" and not ca:
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


class Settings(Schema):
    """The settings and their defaults. The messages are the reasons of a refusal."""

    class Meta:
        unknown = EXCLUDE

    APPID = fields.Function(deserialize=parse_appid, load_default="default")
    DATABASE_URL = fields.Function(
        deserialize=parse_database_url,
        load_default=parse_database_url("sqlite:///profiles.db"),
    )
    OPTIONAL_PROFILE_FIELDS = fields.Function(deserialize=split_names, load_default=())
    USER_PROFILE_FIELDS = fields.Function(deserialize=split_names)
    PAGE_SIZE = number(1, MAX_INT32, 10)
    MAXIMUM_POST_DATA_LENGTH = number(1, MAX_INT32, 65_536)
    WEB_CONCURRENCY = number(1, 1_000, min(count_cores(), 4))
    PORT = number(1, 65_535, 8_000)

    @post_load
    def combine(self, checked: dict, **kwargs: Any) -> dict:
        """Return the settings, and PROFILE_LENGTHS: each field's two lengths.

        Raises ValidationError for two settings that contradict each other.
        """
        optional = checked["OPTIONAL_PROFILE_FIELDS"]
        default = tuple(name for name in REQUIRED_FIELDS if name not in optional)
        required = checked.setdefault("USER_PROFILE_FIELDS", default)
        if set(required) & set(optional):
            names = ",".join(required)
            reason = f"must not repeat a field of USER_PROFILE_FIELDS={names}"
            raise ValidationError(reason, "OPTIONAL_PROFILE_FIELDS")
        lengths = checked["PROFILE_LENGTHS"] = {}
        for field, name in LENGTHS.items():
            minimum, maximum = checked[f"MINIMUM_{name}"], checked[f"MAXIMUM_{name}"]
            if minimum > maximum:
                reason = f"is greater than MAXIMUM_{name}={maximum}"
                raise ValidationError(reason, f"MINIMUM_{name}")
            lengths[field] = (minimum, maximum)
        return checked


LENGTH_FIELDS: dict[str, fields.Field] = {}
for length in LENGTHS.values():
    LENGTH_FIELDS[f"MINIMUM_{length}"] = number(0, MAX_INT32, 1)
    LENGTH_FIELDS[f"MAXIMUM_{length}"] = number(1, MAX_INT32, 50)
SETTINGS = Settings.from_dict(LENGTH_FIELDS)()
