"""The settings of the service, read from the environment and checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from validators import APPID, BOUNDED_FIELDS, CATALOGUE, Lengths

DEFAULTS = {
    "APPID": "default",
    "DATABASE_URL": "sqlite:///profiles.db",
    "USER_PROFILE_FIELDS": "contact-email,full-name",
    "MINIMUM_PROFILE_FULL_NAME_LENGTH": "1",
    "MAXIMUM_PROFILE_FULL_NAME_LENGTH": "50",
    "MINIMUM_PROFILE_DISPLAY_NAME_LENGTH": "1",
    "MAXIMUM_PROFILE_DISPLAY_NAME_LENGTH": "50",
    "MINIMUM_PROFILE_COMPANY_NAME_LENGTH": "1",
    "MAXIMUM_PROFILE_COMPANY_NAME_LENGTH": "50",
    "PAGE_SIZE": "10",
    "MAXIMUM_POST_DATA_LENGTH": "65536",
}
MYSQL_SCHEMES = {"mysql", "mysql2", "mysql+pymysql", "mariadb", "mariadb+pymysql"}
FIELDS = ", ".join(CATALOGUE)
SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")


class SettingError(ValueError):
    """A setting that is refused. The message is one line: variable, value, reason."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        shown = str(value) if str(value).isprintable() else repr(value)
        super().__init__(f"{name}={shown}: {reason}")


@dataclass(frozen=True)
class DatabaseURL:
    """Where the database is: a ``path`` for SQLite, the other fields for MySQL."""

    engine: str
    path: str = ""
    host: str = ""
    port: int = 3306
    user: str = ""
    password: str = field(default="", repr=False)
    name: str = ""
    ssl_mode: str = SSL_MODES[1]
    ssl_ca: str | None = None


@dataclass(frozen=True)
class Settings:
    """The settings of one service."""

    appid: str
    database_url: DatabaseURL
    user_profile_fields: tuple[str, ...]
    lengths: Lengths
    page_size: int
    maximum_post_data_length: int


def load(variables: Mapping[str, object]) -> Settings:
    """Return the checked settings. An empty variable counts as not set. Raises SettingError."""
    given = {name: value for name, value in variables.items() if value not in (None, "")}
    values = {name: str(given.get(name, default)) for name, default in DEFAULTS.items()}
    if not APPID.fullmatch(values["APPID"]):
        raise SettingError("APPID", values["APPID"], f"must match {APPID.pattern}")
    if "WEB_CONCURRENCY" in given:  # gunicorn's; with 0 it would start and never answer
        whole_number({"WEB_CONCURRENCY": str(given["WEB_CONCURRENCY"])}, "WEB_CONCURRENCY", least=1)
    return Settings(
        appid=values["APPID"],
        database_url=database_url(values["DATABASE_URL"]),
        user_profile_fields=profile_fields(values["USER_PROFILE_FIELDS"]),
        lengths=tuple(length_bounds(values, name) for name in BOUNDED_FIELDS),
        page_size=whole_number(values, "PAGE_SIZE", least=1),
        maximum_post_data_length=whole_number(values, "MAXIMUM_POST_DATA_LENGTH", least=1),
    )


def whole_number(values: Mapping[str, str], name: str, least: int) -> int:
    """Return the variable as a number from ``least`` to 2**31 - 1. Raises SettingError."""
    if re.fullmatch("[0-9]{1,10}", values[name]) and least <= int(values[name]) < 2**31:
        return int(values[name])
    reason = f"must be a whole number from {least} to {2**31 - 1}"
    raise SettingError(name, values[name], reason)


def length_bounds(values: Mapping[str, str], bounded: str) -> tuple[int, int]:
    """Return the inclusive length bounds of a field, in Unicode characters."""
    name = f"PROFILE_{bounded.upper().replace('-', '_')}_LENGTH"
    minimum = whole_number(values, f"MINIMUM_{name}", least=0)
    maximum = whole_number(values, f"MAXIMUM_{name}", least=1)
    if minimum > maximum:
        raise SettingError(f"MINIMUM_{name}", minimum, f"is over MAXIMUM_{name}={maximum}")
    return minimum, maximum


def profile_fields(value: str) -> tuple[str, ...]:
    """Return the configured input fields, in their order. Raises SettingError."""
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in CATALOGUE:
            raise SettingError("USER_PROFILE_FIELDS", value, f"{name!r} is none of {FIELDS}")
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
        if url.scheme in MYSQL_SCHEMES and "@" in url.path + url.query + url.fragment:
            raise ValueError
    except ValueError:  # whose text would show a part of the password
        reason = "is not a URL; percent-encode what is special in a password"
        raise SettingError("DATABASE_URL", shown, reason) from None
    if url.scheme == "sqlite":
        path = unquote(url.path[1:])
        if path in ("", ":memory:") or "\0" in path or host:
            raise SettingError("DATABASE_URL", shown, "must name a file: sqlite:///profiles.db")
        return DatabaseURL("sqlite", path=path)
    if url.scheme not in MYSQL_SCHEMES:
        raise SettingError("DATABASE_URL", shown, "must be sqlite:///… or mysql://…")
    query = parse_qs(url.query).items()
    options = {re.sub("[_-]", "", name).lower(): texts[-1] for name, texts in query}
    mode = options.get("sslmode", "PREFERRED").upper()
    if not host or not url.path.strip("/"):
        raise SettingError("DATABASE_URL", shown, "must name a host and a database")
    if mode not in SSL_MODES:
        raise SettingError("DATABASE_URL", shown, f"ssl-mode is none of {', '.join(SSL_MODES)}")
    return DatabaseURL(
        "mysql",
        host=host,
        port=port,
        user=unquote(url.username or ""),
        password=unquote(url.password or ""),
        name=unquote(url.path[1:]),
        ssl_mode=mode,
        ssl_ca=options.get("sslca"),
    )


def without_credentials(url: str) -> str:
    """Return the URL without its user, password and options.

    A user and password end at the last "@". Without one, what is no plain address may be a user.
    """
    scheme = (re.match(r"\w[\w+.-]*://", url) or [""])[0]
    credentials, at, rest = url.removeprefix(scheme).rpartition("@")
    address = rest.partition("?")[0]
    plain = r"[\w./:()\[\]%-]*" if at else r"/[\w./:%-]*|[\w./-]*"
    return scheme + ("***@" if at else "") + (address if re.fullmatch(plain, address) else "***")
