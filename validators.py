"""Checking input: the catalogue of the fields, the schemas made from it, identifiers, paging."""

import re
from collections import namedtuple
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime
from functools import lru_cache, partial
from secrets import token_hex
from typing import Any

from email_validator import validate_email
from marshmallow import EXCLUDE, Schema, fields, validate

from errors import ServiceError

APPID = re.compile("[A-Za-z0-9._-]{1,64}")
IDENTIFIERS = {p: re.compile(f"{p}_[0-9a-f]{{16}}") for p in ("acct", "prof", "sess")}
LARGEST_INTEGER = (
    2**63 - 1
)  # the largest LIMIT and OFFSET of SQLite; MySQL's are larger


def identifier(prefix: str) -> str:
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


def is_identifier(prefix: str, text: object) -> bool:
    """Return whether the text has the form of an identifier. Anything else cannot match a row."""
    return isinstance(text, str) and IDENTIFIERS[prefix].fullmatch(text) is not None


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

Lengths = tuple[
    tuple[int, int], ...
]  # inclusive, of BOUNDED_FIELDS, in Unicode characters


class CheckedText(fields.String):
    """A text, stored as a function returns it. The function raises ValueError for a bad one."""

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
ISO_TIME = r"([T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d([.,]\d+)?)?(Z|[+-](0\d|1[0-4])(:?[0-5]\d)?)?)?"
WEEKDAY = re.compile(
    "(Mon|Tues?|Wed(nes)?|Thu(rs)?|Fri|Sat(ur)?|Sun)(day)?,? ", re.IGNORECASE
)
COMMENT = re.compile(
    r"(?<=[ T][+-]\d{4}) \([^()]*\)$"
)  # of JavaScript: the name of the time zone
DATE_FORMATS = (
    *("%Y/%m/%d", "%m/%d/%Y", "%d %B %Y", "%d %b %Y", "%d-%b-%Y"),
    *("%B %d, %Y", "%b %d, %Y", "%B %d %Y", "%b %d %Y"),
    *("%d %b %Y %H:%M:%S %z", "%d %b %Y %H:%M:%S GMT", "%d %b %Y %H:%M %z"),  # RFC 2822
    *(
        "%b %d %H:%M:%S %Y",
        "%b %d %Y %H:%M:%S GMT%z",
        "%b %d %Y %H:%M:%S",
    ),  # C, JavaScript
)


def parse_date(text: str) -> str:
    """Return a date as YYYY-MM-DD, without a time. Raises ValueError for what is no real day."""
    if iso := re.fullmatch(ISO_DAY + ISO_TIME, text, re.ASCII):
        return date.fromisoformat(iso[1]).isoformat()
    weekday = WEEKDAY.match(text)
    rest = COMMENT.sub("", text[weekday.end() :] if weekday else text)
    if not (rest.isascii() and rest.isprintable()) or rest != rest.strip():
        raise ValueError("not a date")
    for way in DATE_FORMATS:
        with suppress(ValueError):
            found = datetime.strptime(rest, way)
            if not weekday or f"{found:%a}" == weekday[1][:3].title():
                return found.date().isoformat()
    raise ValueError("not a date")


@lru_cache(maxsize=256)
def profile_schema(
    names: tuple[str, ...], lengths: Lengths, *, creating: bool
) -> Schema:
    """Return the schema of these fields; its messages are the codes. Raises ServiceError."""
    address = partial(
        validate_email, check_deliverability=False, strict=True
    )  # asks no network
    converters = {"date": parse_date}
    if creating:
        converters["email"] = lambda text: address(text).original
    schema = {}
    for name in names:
        code = f"invalid-{name}"
        if name not in CATALOGUE:
            raise ServiceError(code)
        property, rule, _ = CATALOGUE[name]
        rules = [validate.Length(min=1, error=code)]
        if rule == "email":
            rules.append(validate.Regexp("^[^@]+@", error=code))
        elif rule == "name":
            least, most = lengths[BOUNDED_FIELDS.index(name)]
            rules.append(validate.Length(least, most, error=f"{code}-length"))
        schema[property] = CheckedText(name, converters.get(rule, str), rules)
    if creating:
        schema["default"] = fields.Raw(allow_none=True)
    return Schema.from_dict(schema)(unknown=EXCLUDE)


def example_body(names: Iterable[str], lengths: Lengths) -> dict[str, Any]:
    """Return a body of these input fields with allowed values."""
    bounds, body = dict(zip(BOUNDED_FIELDS, lengths, strict=True)), {}
    for name in names:
        least, most = bounds.get(name, (0, None))
        body[name] = CATALOGUE[name].example.ljust(least, ".")[:most]
    return body


def page_query(given: Mapping[str, Any], page_size: int) -> dict[str, Any]:
    """Return limit and offset as numbers, after and accountid as given. Raises ServiceError."""
    query = {
        k: v for k, v in given.items() if v is not None and v is not False and v != ""
    }
    if query.pop("all", None):
        query |= {"limit": LARGEST_INTEGER, "offset": 0}
    query = {"limit": page_size, "offset": 0, "after": None, "accountid": None} | query
    for name in ("limit", "offset"):
        value = query[name]
        if isinstance(value, str) and re.fullmatch("[0-9]{1,4300}", value):
            value = query[name] = int(value)
        if type(value) is not int or not 0 <= value <= LARGEST_INTEGER:
            raise ServiceError(f"invalid-{name}")
    after = query["after"]
    if after is not None and not (
        is_identifier("prof", after) or is_identifier("sess", after)
    ):
        raise ServiceError("invalid-after")
    if not isinstance(query["accountid"], str | None):
        raise ServiceError("invalid-accountid")
    return query
