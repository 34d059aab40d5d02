"""DATABASE_URL, as hosting providers write it."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from errors import SettingError

MYSQL_SCHEMES = {"mysql", "mysql2", "mysql+pymysql", "mariadb", "mariadb+pymysql"}
MYSQL_NAME = re.compile("[^/\0\U00010000-\U0010ffff]{1,64}(?<! )")  # that a database can have
SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")


@dataclass(frozen=True)
class DatabaseURL:
    """A database: the path of a SQLite file, or the name and the server of a MySQL database."""

    engine: str
    name: str
    server: Mapping[str, Any] = field(default_factory=dict, repr=False)  # PyMySQL's options


def parse_database_url(value: str) -> DatabaseURL:
    """Return the parts of a URL. Raises SettingError, which shows nothing of it but its scheme."""
    scheme = re.match("[a-z0-9+]+://", value)
    refused = partial(SettingError, "DATABASE_URL", f"{scheme[0] if scheme else ''}***")
    try:
        url, read = urlsplit(value), partial(unquote, errors="strict")
        host, port = url.hostname or "", 3306 if url.port is None else url.port
        host.encode("idna")
        name, user = read(url.path[1:]), read(url.username or "")
        password = read(url.password or "").encode()  # PyMySQL would encode a text as Latin-1
        in_mysql = url.scheme in MYSQL_SCHEMES
        if not value.isprintable() or in_mysql and "@" in url.path + unquote(url.query):
            raise ValueError
    except ValueError:  # whose text would show a part of the password
        raise refused("is not a URL; percent-encode what is special in a password") from None
    if url.scheme == "sqlite":
        named = name not in ("", ":memory:") and not name.endswith("/") and "\0" not in name
        if not named or re.search("[?#]", value) or not value.startswith("sqlite:///"):
            raise refused("must name a file: sqlite:///profiles.db, with %3F for ? and %23 for #")
        return DatabaseURL("sqlite", name)
    if not in_mysql:
        raise refused("must be sqlite:///… or mysql://…")
    if not host or not port or not MYSQL_NAME.fullmatch(name) or url.fragment:
        raise refused("must name a host, a port over 0 or none, and a database")
    options = {re.sub("[_-]", "", key).lower(): text for key, text in parse_qsl(url.query)}
    mode = options.get("sslmode", "PREFERRED").upper()
    if mode not in SSL_MODES:
        raise refused(f"ssl-mode is none of {', '.join(SSL_MODES)}")
    try:
        tls = tls_options(mode, options.get("sslca"))
    except (OSError, ValueError):
        raise refused("ssl-ca is no file of certificates") from None
    server = {"host": host, "port": port, "user": user, "password": password}
    return DatabaseURL("mysql", name, server | tls)


def tls_options(mode: str, ca: str | None) -> dict[str, Any]:
    """Return PyMySQL's options for an ssl-mode of MySQL's own clients, and for its ssl-ca."""
    if mode in ("DISABLED", "PREFERRED"):
        return {"ssl_disabled": True} if mode == "DISABLED" else {}
    context = ssl.create_default_context(cafile=ca)
    # Python 3.13 refuses the certificates that MySQL makes for itself, unless told not to.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
