"""The formats of single values: identifiers, numbers, dates and e-mail addresses."""

import re
from datetime import date, time
from hashlib import sha256
from secrets import token_hex
from typing import Any
from unicodedata import is_normalized

from email_validator import validate_email

from errors import ServiceError

APPID = "[A-Za-z0-9._-]{1,64}"
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1  # the largest LIMIT and OFFSET of SQLite


def matches(pattern: str, value: object) -> bool:
    """Return whether the value is a string that the whole pattern matches."""
    return isinstance(value, str) and bool(re.fullmatch(pattern, value))


def is_identifier(prefix: str, value: object) -> bool:
    """Return whether the value is a string in the form of an identifier."""
    return matches(f"{prefix}_[0-9a-f]{{16}}", value)


def new_identifier(prefix: str) -> str:
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


def identifier_for_key(prefix: str, key: str | None, *scope: str) -> str:
    """Return a new identifier or, with a key, the one that belongs to it in a scope.

    Raises invalid-idempotency-key.
    """
    if key is None:
        return new_identifier(prefix)
    if not matches("[!-~]([ -~]{0,253}[!-~])?", key):  # HTTP strips blanks at the ends
        raise ServiceError("invalid-idempotency-key")
    digest = sha256(" ".join((*scope, key)).encode()).hexdigest()
    return f"{prefix}_{digest[:16]}"


def parse_number(
    name: str,
    value: Any,
    default: int,
    *,
    minimum: int = 0,
    maximum: int = MAX_INT64,
) -> int:
    """Return a number. Raises invalid-limit, invalid-offset or invalid-duration."""
    if value is None:
        return default
    is_digits = matches("[0-9]{1,4300}", value)  # int() refuses more
    if is_digits or (isinstance(value, float) and value.is_integer()):  # JSON's 60.0
        value = int(value)
    if type(value) is not int or not minimum <= value <= maximum:
        raise ServiceError(f"invalid-{name}")
    return value


# Dates. "(?!24)" refuses 24:00, which Python 3.14 accepts.
ISO_DATE = (
    r"(\d{4}-\d\d-\d\d|\d{8}"  # 1950-01-31, 19500131
    r"|\d{4}-W\d\d-\d|\d{4}W\d{3})"  # 1950-W05-2, 1950W052
    r"(?:[T ]((?!24)\d\d:[\d:.,]+"  # T10:30:00.5
    r"(?:Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)?))?"  # Z, +01:00
)
# In English, whatever the locale of the process is, which strptime() would follow.
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
JAN = f"(?P<month>{'|'.join(MONTHS)})"
JANUARY = (
    "(?P<month>jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?"
    "|sep(tember)?|oct(ober)?|nov(ember)?|dec(ember)?)"
)
WEEKDAY = "(((mon|fri|sun)(day)?|tue(sday)?|wed(nesday)?|thu(rsday)?|sat(urday)?),? )?"
YEAR = r"(?P<year>\d{4})"
MONTH = r"(?P<month>\d\d?)"
DAY = r"(?P<day>\d\d?)"
TIME = r"(2[0-3]|[01]?\d):[0-5]?\d(:[0-5]?\d)?"
ZONE = r"([+-](2[0-3]|[01]\d)((:[0-5]\d){1,2}|([0-5]\d){1,2})|(?-i:Z))"
DATE_FORMATS = (
    f"{YEAR}/{MONTH}/{DAY}",  # 1950/01/31
    f"{YEAR}-{MONTH}-{DAY}",  # 1950-1-31
    f"{MONTH}/{DAY}/{YEAR}",  # 01/31/1950
    f"{WEEKDAY}{DAY} {JANUARY} {YEAR}",  # 31 January 1950
    f"{WEEKDAY}{DAY}-{JAN}-{YEAR}",  # 31-Jan-1950
    f"{WEEKDAY}{JANUARY} {DAY},? {YEAR}",  # January 31, 1950
    f"{WEEKDAY}{DAY} {JAN} {YEAR} {TIME} (GMT|{ZONE})",  # RFC 2822
    f"{WEEKDAY}{JAN} {DAY} {TIME} {YEAR}",  # ctime() of C: Jan 31 10:30:00 1950
    f"{WEEKDAY}{JAN} {DAY} {YEAR} {TIME} GMT{ZONE}",  # String(date) of JavaScript
)


def parse_date(text: str) -> str:
    """Return a date as YYYY-MM-DD, without its time. Raises ValueError.

    docs/API.md lists the formats.
    """
    # JavaScript adds the name of the time zone, in any language.
    text = re.sub(r"(?<=[ T][+-]\d{4}) \([^()]*\)$", "", text)
    if not text.isascii():  # \d matches the digits of any script
        raise ValueError
    if iso := re.fullmatch(ISO_DATE, text):
        day, clock_time = iso.groups()
        if clock_time:
            time.fromisoformat(clock_time)
        return date.fromisoformat(day).isoformat()
    # ctime() puts a second blank before a day of one digit.
    text = re.sub(r"(?<=[A-Za-z,] ) (?=\d\b)", "", text)
    for date_format in DATE_FORMATS:
        if match := re.fullmatch(date_format, text, re.IGNORECASE):
            year, month, day = match.group("year", "month", "day")
            number = MONTHS.index(month[:3].lower()) + 1 if month.isalpha() else month
            return date(int(year), int(number), int(day)).isoformat()
    raise ValueError


def check_address(text: str) -> str:
    """Return a valid e-mail address unchanged. Raises ValueError.

    The domain can be any with a dot, in any case and script, or in Punycode. Neither
    part may contain characters that are mapped to others, as in "℡.com" for tel.com.
    """
    # 254: RFC 5321, section 4.5.3.1.3, without the angle brackets. This is checked
    # first, because email-validator takes long for a long text.
    if len(text) > 254:
        raise ValueError
    # Whatever the options, special-use domains such as .local are refused, so another
    # last letter is checked.
    checked = re.sub(r"(\.[A-Za-z]*)[A-Za-z]\Z", r"\1x", text)
    # Deliverability would be checked over the network.
    address = validate_email(checked, strict=True, check_deliverability=False)
    if text.isascii():
        return text
    local_part, _, domain = checked.rpartition("@")
    labels = lower_labels(domain)
    valid_labels = lower_labels(f"{address.domain}.{address.ascii_domain}")
    # The lower case of the Kelvin sign is "k", for example, but NFKC maps it to "K".
    is_domain = labels <= valid_labels and is_normalized("NFKC", domain)
    if not is_domain or local_part != address.local_part:
        raise ValueError
    return text


def lower_labels(domain: str) -> set[str]:
    """Return the set of a domain's labels in lower case, where "Σ" is always "σ"."""
    return set(domain.replace("Σ", "σ").lower().split("."))
