"""The URL of a database, as hosting providers write it, taken apart and checked."""

import re
import ssl
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from errors import SettingError

# A path that does not end in "/", without a query. ":memory:" is not a file.
SQLITE_URL = "sqlite:///(?!:memory:$)([^?#]*[^?#/])"
MYSQL_SCHEME = r"(mysql2?|mariadb)(\+pymysql)?"
TLS_MODES = ["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]
# Why a URL is refused
INVALID_FORM = (
    "must look like sqlite:///file, sqlite:////folder/file or "
    "mysql://user:password@host/name, percent-encoded"
)
NOT_ENCODED = 'percent-encode "/", "?" and "#" in the user and the password'
INVALID_HOST = "has an invalid host or port, or characters that must be encoded"
INVALID_TLS_OPTIONS = (
    f"the options for TLS are ssl-mode ({', '.join(TLS_MODES)}) and ssl-ca (a file, "
    "not with DISABLED), each once"
)
NO_CERTIFICATE = "cannot read a certificate from the ssl-ca file"


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
        raise refusal(NOT_ENCODED)
    name = unquote(url.path[1:])
    if not name or "/" in name:
        raise refusal(INVALID_FORM)
    if not url.hostname or url.port == 0:
        raise ValueError
    url.hostname.encode("idna")  # raises ValueError: mysql://u:p@a..b/d
    server = {
        "host": url.hostname,
        "port": url.port or 3306,
        "user": unquote(url.username or ""),
        # As bytes, because PyMySQL encodes a str as Latin-1.
        "password": unquote(url.password or "").encode(),
    }
    return DatabaseURL("mysql", name, server | tls_options(url.query))


def tls_options(query: str) -> dict[str, Any]:
    """Return PyMySQL's options for the TLS that a URL's query asks for.

    Options that are not about TLS, such as charset, are ignored. Raises SettingError.
    """
    pairs = [
        (name, value)
        for name, value in parse_qsl(query, keep_blank_values=True)
        if re.search("ssl|tls|cert", name.lower())  # ?sslmode=…, too
    ]
    options = dict(pairs)
    is_repeated = len(options) < len(pairs)
    mode = options.pop("ssl-mode", "PREFERRED")
    ca_file = options.pop("ssl-ca", None)
    is_contradictory = ca_file == "" or (ca_file and mode == "DISABLED")
    if options or is_repeated or is_contradictory or mode not in TLS_MODES:
        raise refusal(INVALID_TLS_OPTIONS)
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
        raise refusal(NO_CERTIFICATE) from None
    # Python 3.13 and newer would refuse the certificates that MySQL makes for itself.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = ssl.CERT_NONE
    return {"ssl": context}
