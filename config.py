"""The settings of the service, read from the environment and checked."""

import os
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from flask import current_app

from errors import SettingError
from validators import APPID, BOUNDED_FIELDS, CATALOGUE

CORES = (
    sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
)  # of Linux
LENGTHS = [
    f"PROFILE_{name.upper().replace('-', '_')}_LENGTH" for name in BOUNDED_FIELDS
]
NUMBERS = {  # the least, the most, and the default
    **{f"MINIMUM_{name}": (0, 2**31 - 1, 1) for name in LENGTHS},
    **{f"MAXIMUM_{name}": (1, 2**31 - 1, 50) for name in LENGTHS},
    "PAGE_SIZE": (1, 2**31 - 1, 10),
    "MAXIMUM_POST_DATA_LENGTH": (1, 2**31 - 1, 65_536),
    "WEB_CONCURRENCY": (1, 1_000, min(len(CORES) or os.cpu_count() or 1, 4)),
}
URLS = """must be like sqlite:///file, sqlite:////folder/file or mysql://user:password@host/name,
    percent-encoded; TLS is ?ssl-mode=REQUIRED, VERIFY_CA or VERIFY_IDENTITY, with &ssl-ca=file"""
MYSQL = re.compile(r"(mysql2?|mariadb)(\+pymysql)?")
TLS = (
    "DISABLED",
    "PREFERRED",
    "REQUIRED",
    "VERIFY_CA",
    "VERIFY_IDENTITY",
)  # ever stricter
SWITCH = {"true": "REQUIRED", "1": "REQUIRED", "false": "DISABLED", "0": "DISABLED"}
TLS_OPTIONS = {  # of a URL, as the clients of several languages name them
    "sslmode": {mode.lower(): mode for mode in TLS},
    "sslaccept": {"strict": "VERIFY_IDENTITY", "accept_invalid_certs": "REQUIRED"},
    **dict.fromkeys(("ssl", "tls", "usessl", "requiressl"), SWITCH),
}


class DatabaseURL(NamedTuple):
    """A database: a SQLite file, or a MySQL database and PyMySQL's options for its server."""

    engine: str
    name: str
    server: dict[str, Any] = {}

    def __repr__(self) -> str:  # what may be shown: no user, no password
        return " ".join(filter(None, (self.engine, self.server.get("host"), self.name)))


def settings() -> Mapping[str, Any]:
    """Return the settings of the active app. Raises RuntimeError when there is none."""
    return current_app.config


def load(variables: Mapping[str, object]) -> dict[str, Any]:
    """Return the checked settings. An empty variable counts as not set. Raises SettingError."""
    given = {
        name: str(value) for name, value in variables.items() if value not in (None, "")
    }
    checked: dict[str, Any] = {}
    for name, (least, most, default) in NUMBERS.items():
        value = given.get(name, str(default))
        if not re.fullmatch("[0-9]{1,10}", value) or not least <= int(value) <= most:
            raise SettingError(
                name, value, f"must be a whole number from {least} to {most}"
            )
        checked[name] = int(value)
    lengths = tuple(
        (checked[f"MINIMUM_{name}"], checked[f"MAXIMUM_{name}"]) for name in LENGTHS
    )
    for name, (least, most) in zip(LENGTHS, lengths, strict=True):
        if least > most:
            raise SettingError(
                f"MINIMUM_{name}", least, f"is over MAXIMUM_{name}={most}"
            )
    appid = given.get("APPID", "default")
    if not APPID.fullmatch(appid):
        raise SettingError("APPID", appid, f"must match {APPID.pattern}")
    listed = given.get("USER_PROFILE_FIELDS", "contact-email,full-name")
    names = tuple(name.strip() for name in listed.split(","))
    if not set(names) <= CATALOGUE.keys() or len(set(names)) < len(names):
        reason = f"must name each field once, of {', '.join(CATALOGUE)}"
        raise SettingError("USER_PROFILE_FIELDS", listed, reason)
    checked |= {
        "APPID": appid,
        "USER_PROFILE_FIELDS": names,
        "PROFILE_LENGTHS": lengths,
    }
    url = parse_database_url(given.get("DATABASE_URL", "sqlite:///profiles.db"))
    return checked | {"DATABASE_URL": url}


def parse_database_url(value: str) -> DatabaseURL:
    """Return the parts of a URL. Raises SettingError, which shows nothing of it."""
    try:
        url = urlsplit(value)
        encoded = url.path[1:], url.username or "", url.password or ""
        name, user, password = (unquote(part, errors="strict") for part in encoded)
        if (
            not value.isprintable()
            or not name
            or "\0" in name
            or url.fragment
            or url.port == 0
        ):
            raise ValueError
        if re.fullmatch("sqlite:///[^?#]*[^?#/]", value) and name != ":memory:":
            return DatabaseURL("sqlite", str(Path(__file__).parent / name))
        outside = url.path + unquote(
            url.query
        )  # where a password may be that is not encoded
        if (
            not MYSQL.fullmatch(url.scheme)
            or not url.hostname
            or "/" in name
            or "@" in outside
        ):
            raise ValueError
        url.hostname.encode("idna")
        pairs = parse_qsl(url.query, keep_blank_values=True)
        options = [(re.sub("[_-]", "", key).lower(), text) for key, text in pairs]
        server = {"host": url.hostname, "port": url.port or 3306, "user": user}
        server |= {
            "password": password.encode(),
            **tls(options),
        }  # a text would become Latin-1
        return DatabaseURL("mysql", name, server)
    except (
        ValueError,
        KeyError,
        OSError,
    ):  # whose text would show a part of the password
        raise SettingError("DATABASE_URL", "***", " ".join(URLS.split())) from None


def tls(options: list[tuple[str, str]]) -> dict[str, Any]:
    """Return PyMySQL's options for the strictest TLS that is asked for. Raises KeyError."""
    names = [(k, v.lower()) for k, v in options if "ssl" in k or "tls" in k]
    asked = [TLS_OPTIONS[k][v] for k, v in names if k != "sslca"]
    if "sslca" in dict(names) and "sslmode" not in dict(names):
        asked.append("VERIFY_CA")
    mode = max(asked, key=TLS.index, default="PREFERRED")
    if mode in ("DISABLED", "PREFERRED"):
        return {"ssl_disabled": True} if mode == "DISABLED" else {}
    context = ssl.create_default_context(cafile=dict(options).get("sslca"))
    # Python 3.13 refuses the certificates that MySQL makes for itself, unless told not to.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
