"""Checking input: the fields and the schemas made from them, dates, identifiers."""

import re
from calendar import day_abbr, day_name
from collections import namedtuple
from contextlib import suppress
from datetime import date, datetime
from functools import lru_cache
from secrets import token_hex

from email_validator import validate_email
from marshmallow import EXCLUDE, Schema, fields, validate

from errors import ServiceError

APPID = re.compile("[A-Za-z0-9._-]{1,64}")
LARGEST_INTEGER = 2**63 - 1  # the largest LIMIT and OFFSET of SQLite
LONGEST_ADDRESS = 254  # RFC 5321, section 4.5.3.1.3, without the angle brackets


def checked_appid(appid):
    """Return the id of an application. Raises invalid-appid."""
    if not isinstance(appid, str) or not APPID.fullmatch(appid):
        raise ServiceError("invalid-appid")
    return appid


def identifier(prefix):
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


def is_identifier(prefix, text):
    """Return whether the text has the form of an identifier."""
    pattern = f"{prefix}_[0-9a-f]{{16}}"
    return isinstance(text, str) and re.fullmatch(pattern, text) is not None


CatalogueRow = namedtuple("CatalogueRow", "property rule example")
CATALOGUE = {
    # input field                   property        rule     example
    "full-name":       CatalogueRow("fullName",     "name",  "Ada King"),
    "contact-email":   CatalogueRow("contactEmail", "email", "ada@example.com"),
    "display-email":   CatalogueRow("displayEmail", "email", "hello@example.com"),
    "display-name":    CatalogueRow("displayName",  "name",  "Ada"),
    "company-name":    CatalogueRow("companyName",  "name",  "Analytical Engines"),
    "dob":             CatalogueRow("dob",          "date",  "1950-01-31"),
    "phone":           CatalogueRow("phone",        "text",  "+44 20 7946 0958"),
    "occupation":      CatalogueRow("occupation",   "text",  "Mathematician"),
    "location":        CatalogueRow("location",     "text",  "London"),
    "website":         CatalogueRow("website",      "text",  "https://example.com"),
}  # fmt: skip
BOUNDED_FIELDS = tuple(name for name, row in CATALOGUE.items() if row.rule == "name")


class CheckedText(fields.String):
    """A text that a function converts, or refuses with a ValueError."""

    def __init__(self, name, convert, rules):
        codes = dict.fromkeys(("required", "null", "invalid"), f"invalid-{name}")
        super().__init__(
            data_key=name, required=True, validate=rules, error_messages=codes
        )
        self.convert = convert

    def _deserialize(self, value, *args, **kwargs):
        if isinstance(value, str):
            with suppress(ValueError):
                text = str.__str__(value)  # of an Enum too, which is a str
                text.encode()  # fails for a lone surrogate, which no database can store
                return self.convert(text)
        raise self.make_error("invalid")


ISO_DAY = r"(\d{4}(-?)(?:\d\d\2\d\d|W\d\d\2\d))"
ISO_ZONE = r"(Z|[+-](0\d|1[0-4])(:?[0-5]\d)?)?"
ISO_TIME = rf"([T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d([.,]\d+)?)?{ISO_ZONE})?"
ISO = re.compile(ISO_DAY + ISO_TIME, re.ASCII)
DAY_NAMES = {*day_name, *day_abbr}
ZONE_NAME = re.compile(r"(?<=[ T][+-]\d{4}) \([^()]*\)$")  # of JavaScript
SECOND_BLANK = re.compile(r"(?<=^[A-Za-z]{3} ) (?=\d \d\d:)")  # of ctime: Jan  5 10:30
DATE_FORMATS = (
    "%Y/%m/%d",
    "%m/%d/%Y",
    "%d %B %Y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%B %d, %Y",
    "%b %d, %Y",
    "%B %d %Y",
    "%b %d %Y",
    "%d %b %Y %H:%M:%S %z",  # RFC 2822
    "%d %b %Y %H:%M:%S GMT",
    "%d %b %Y %H:%M %z",
    "%b %d %H:%M:%S %Y",  # C's ctime
    "%b %d %Y %H:%M:%S GMT%z",  # JavaScript
    "%b %d %Y %H:%M:%S",
)


def parse_date(text):
    """Return a date as YYYY-MM-DD, without a time.

    Raises ValueError for what is no real day.
    """
    if iso := ISO.fullmatch(text):
        return date.fromisoformat(iso[1]).isoformat()
    text = ZONE_NAME.sub("", text)
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("not a date")
    first, _, rest = text.partition(" ")
    weekday = first.removesuffix(",").title()
    if weekday not in DAY_NAMES:
        return parse_english(text).isoformat()
    found = parse_english(rest)
    if weekday not in (f"{found:%A}", f"{found:%a}"):
        raise ValueError("another weekday")
    return found.isoformat()


def parse_english(text):
    """Return the date of a text in one of the DATE_FORMATS. Raises ValueError."""
    text = SECOND_BLANK.sub("", text)
    if re.search("^ |[ /] ", text):  # for which strptime is too lenient
        raise ValueError("a blank too many")
    for way in DATE_FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, way).date()
    raise ValueError("not a date")


def parse_address(text):
    """Return an e-mail address as it is, if it is a valid one. Raises ValueError."""
    if len(text) > LONGEST_ADDRESS:  # or it is normalised first: a second for 64 KB
        raise ValueError("too long")
    validate_email(text, check_deliverability=False, strict=True)  # asks no network
    return text


@lru_cache(maxsize=256)
def profile_schema(names, lengths, *, creating):
    """Return the schema of these fields; its messages are the codes.

    ``lengths``: the least and the most characters of each of the BOUNDED_FIELDS. Raises
    ServiceError for a field that there is not.
    """
    converters = {"date": parse_date}
    if creating:
        converters["email"] = parse_address
    bounds = dict(zip(BOUNDED_FIELDS, lengths, strict=True))
    schema = {}
    for name in names:
        code = f"invalid-{name}"
        if name not in CATALOGUE:
            raise ServiceError(code)
        property, rule, _ = CATALOGUE[name]
        checks = [validate.Length(min=1, error=code)]
        if rule == "email":
            checks.append(validate.Regexp("^[^@]+@", error=code))
        if rule == "name":
            checks.append(validate.Length(*bounds[name], error=f"{code}-length"))
        schema[property] = CheckedText(name, converters.get(rule, str), checks)
    if creating:
        schema["default"] = fields.Raw(allow_none=True)
    return Schema.from_dict(schema)(unknown=EXCLUDE)


def example_body(names, lengths):
    """Return a body of these input fields with allowed values."""
    bounds = dict(zip(BOUNDED_FIELDS, lengths, strict=True))
    body = {}
    for name in names:
        least, most = bounds.get(name, (0, None))
        padded = CATALOGUE[name].example.ljust(least, ".")
        body[name] = padded[:most]
    return body
