"""The settings of the service, read from the environment and checked."""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from click import ClickException

from validators import APPID, BOUNDED_FIELDS, CATALOGUE, Lengths

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
MYSQL_SCHEMES = {"mysql", "mysql2", "mysql+pymysql", "mariadb", "mariadb+pymysql"}
SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")


class SettingError(ClickException, RuntimeError):  # flask and gunicorn print these as one line
    """A setting that is refused. The message is one line: variable, value, reason."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        shown = str(value) if str(value).isprintable() else repr(value)
        super().__init__(f"{name}={shown}: {reason}")


@dataclass(frozen=True)
class DatabaseURL:
    """A database: the path of a SQLite file, or the name and the server of a MySQL database."""

    engine: str
    name: str
    server: Mapping[str, Any] = field(default_factory=dict, repr=False)  # PyMySQL's options


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

    def example_body(self) -> dict[str, str]:
        """Return an example body. Each value has an allowed length, at most that of a body."""
        body = {name: CATALOGUE[name].example for name in self.user_profile_fields}
        for name, (least, most) in zip(BOUNDED_FIELDS, self.lengths, strict=True):
            if name in body:
                least = min(least, self.maximum_post_data_length)
                body[name] = body[name].ljust(least, ".")[:most]
        return body


def load(variables: Mapping[str, object]) -> Settings:
    """Return the checked settings. An empty variable counts as not set. Raises SettingError."""
    given = {name: value for name, value in variables.items() if value not in (None, "")}
    values = {name: str(given.get(name, default)) for name, default in DEFAULTS.items()}
    if not APPID.fullmatch(values["APPID"]):
        raise SettingError("APPID", values["APPID"], f"must match {APPID.pattern}")
    bounds = []
    for name in LENGTH_SETTINGS:
        least = whole_number(values, f"MINIMUM_{name}", least=0)
        most = whole_number(values, f"MAXIMUM_{name}")
        if least > most:
            raise SettingError(f"MINIMUM_{name}", least, f"is over MAXIMUM_{name}={most}")
        bounds.append((least, most))
    return Settings(
        appid=values["APPID"],
        database_url=database_url(values["DATABASE_URL"]),
        user_profile_fields=profile_fields(values["USER_PROFILE_FIELDS"]),
        lengths=tuple(bounds),
        page_size=whole_number(values, "PAGE_SIZE"),
        maximum_post_data_length=whole_number(values, "MAXIMUM_POST_DATA_LENGTH"),
        workers=whole_number(values, "WEB_CONCURRENCY", most=1000),
    )


def whole_number(values: dict[str, str], name: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """Return the variable as a number within the bounds. Raises SettingError."""
    if re.fullmatch("[0-9]{1,10}", values[name]) and least <= int(values[name]) <= most:
        return int(values[name])
    raise SettingError(name, values[name], f"must be a whole number from {least} to {most}")


def profile_fields(value: str) -> tuple[str, ...]:
    """Return the configured input fields, in their order. Raises SettingError."""
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in CATALOGUE:
            reason = f"{name!r} is none of {', '.join(CATALOGUE)}"
            raise SettingError("USER_PROFILE_FIELDS", value, reason)
        if names.count(name) > 1:
            raise SettingError("USER_PROFILE_FIELDS", value, f"{name!r} is there twice")
    return names


def database_url(value: str) -> DatabaseURL:
    """Return the parts of a URL as hosting providers write it; options not known are ignored.

    Raises SettingError, whose line shows nothing of the user or the password.
    """
    shown = without_credentials(value)
    try:
        url = urlsplit(value)
        host, port = url.hostname or "", url.port or 3306
        host.encode("idna")
        value.encode()  # fails for a byte that is no UTF-8
        if url.scheme in MYSQL_SCHEMES and "@" in url.path + unquote(url.query) + url.fragment:
            raise ValueError
    except ValueError:  # whose text would show a part of the password
        reason = "is not a URL; percent-encode what is special in a password"
        raise SettingError("DATABASE_URL", shown, reason) from None
    if url.scheme == "sqlite":
        path = unquote(url.path[1:])
        if path in ("", ":memory:") or "\0" in path or not value.lower().startswith("sqlite:///"):
            raise SettingError("DATABASE_URL", shown, "must name a file: sqlite:///profiles.db")
        return DatabaseURL("sqlite", path)
    if url.scheme not in MYSQL_SCHEMES:
        raise SettingError("DATABASE_URL", shown, "must be sqlite:///… or mysql://…")
    query = parse_qs(url.query).items()
    options = {re.sub("[_-]", "", name).lower(): texts[-1] for name, texts in query}
    if not host or not url.path.strip("/"):
        raise SettingError("DATABASE_URL", shown, "must name a host and a database")
    user = unquote(url.username or "")
    password = unquote(url.password or "").encode()  # PyMySQL would encode a text as Latin-1
    server = {"host": host, "port": port, "user": user, "password": password}
    mode = options.get("sslmode", "PREFERRED").upper()
    if mode not in SSL_MODES:
        raise SettingError("DATABASE_URL", shown, f"ssl-mode is none of {', '.join(SSL_MODES)}")
    tls = tls_options(mode, options.get("sslca"))
    return DatabaseURL("mysql", unquote(url.path[1:]), server | tls)


def tls_options(mode: str, ca: str | None) -> dict[str, Any]:
    """Return PyMySQL's options for an ssl-mode of MySQL's own clients. Raises SettingError."""
    if mode in ("DISABLED", "PREFERRED"):
        return {"ssl_disabled": True} if mode == "DISABLED" else {}
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise SettingError("DATABASE_URL", f"…ssl-ca={ca}", "is no file of certificates") from error
    # Python 3.13 refuses the certificates that MySQL makes for itself, unless told not to.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}


def without_credentials(url: str) -> str:
    """Return the URL without credentials and options; what is not plain is shown as "***"."""
    scheme = (re.match(r"\w[\w+.-]*://", url) or [""])[0]
    _, at, rest = url.removeprefix(scheme).rpartition("@")
    address = rest.partition("?")[0]
    plain = r"[\w./:()\[\]%-]*" if at else r"/[\w./:%-]*|[\w./-]*" if scheme else r"[\w./-]*"
    return scheme + ("***@" if at else "") + (address if re.fullmatch(plain, address) else "***")
