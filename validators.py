"""Checking input: the catalogue of the fields, dates, identifiers, the query of a listing."""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from dateutil import parser
from email_validator import validate_email
from marshmallow import EXCLUDE, Schema, fields, validate

from errors import ServiceError

APPID = re.compile("[A-Za-z0-9._-]{1,64}")
IDENTIFIERS = {p: re.compile(f"{p}_[0-9a-f]{{16}}") for p in ("acct", "prof", "sess")}
LARGEST_INTEGER = 2**63 - 1  # the largest LIMIT and OFFSET of SQLite; MySQL's are larger
ISO_DATE = re.compile(r"(\d{4}-\d\d-\d\d|\d{8}|\d{4}-?W\d\d-?[1-7]|\d{4}-?\d{3})(?:[T ].*)?")
FILL_INS = (datetime(2001, 1, 1), datetime(2002, 12, 28))
"""What dateutil fills missing parts in from: a complete date gives the same result with both."""


def is_identifier(prefix: str, text: object) -> bool:
    """Return whether the text has the form of an identifier. Anything else cannot match a row."""
    return isinstance(text, str) and IDENTIFIERS[prefix].fullmatch(text) is not None


class CatalogueRow(NamedTuple):
    property: str
    rule: str
    example: str


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

Lengths = tuple[tuple[int, int], ...]  # inclusive, of BOUNDED_FIELDS, in Unicode characters


class Text(fields.String):
    """A text, stored as a function returns it. The function raises ValueError for a bad one."""

    def __init__(self, convert: Callable[[str], str], **options: Any) -> None:
        super().__init__(**options)
        self.convert = convert

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        text = "true" if value is True else value
        if not isinstance(text, str):
            raise self.make_error("invalid")
        try:
            text.encode()  # fails for a lone surrogate, which no database can store
            return self.convert(text)
        except ValueError as error:
            raise self.make_error("invalid") from error


def checked_address(text: str) -> str:
    """Return the e-mail address; its syntax is checked, without the network. Raises ValueError."""
    return validate_email(text, check_deliverability=False, strict=True).original


class FullYears(parser.parserinfo):  # type: ignore[misc]
    """dateutil's words for dates, with years of two digits refused."""

    def convertyear(self, year: int, century_specified: bool = False) -> int:
        return year if century_specified else 0  # no date has the year 0


def parse_date(text: str) -> str:
    """Return the complete date in the text as YYYY-MM-DD; a time after it is ignored.

    The text is ISO 8601, or else a date such as "31 January 1950". Raises ValueError.
    """
    if len(text) > 64 or not text.isascii() or text.startswith(("+", "-")):
        # No written date is longer. dateutil reads English only, and ignores the sign of a year.
        raise ValueError("not a date")
    try:
        if match := ISO_DATE.fullmatch(text):
            parser.isoparse(text.replace(" ", "T", 1))  # refuses what follows, unless it is a time
            if "W" in text:  # isoparse takes a week 53 in every year
                return date.fromisoformat(match[1]).isoformat()
            return parser.isoparse(match[1]).date().isoformat()
    except (ValueError, OverflowError):
        pass  # such as 1950-01-31 10:30 PM, which is no ISO 8601
    try:
        found = {parser.parse(text, FullYears(), default=d, ignoretz=True).date() for d in FILL_INS}
    except Exception as error:  # dateutil documents ValueError; decimal's errors get out too
        raise ValueError("not a date") from error
    day = found.pop()
    if found or not re.search(rf"(?<!\d){day.year:04}(?!\d)", text):
        raise ValueError("not a complete date")
    return day.isoformat()


@lru_cache(maxsize=256)
def profile_schema(names: tuple[str, ...], lengths: Lengths, *, creating: bool) -> Schema:
    """Return the schema of these input fields, by their rules, built once for each list of them.

    Its messages are the codes. Raises ServiceError for a name that is not in the catalogue.
    """
    converters = {"date": parse_date, "email": checked_address if creating else str}
    schema: dict[str, Any] = {}
    for name in names:
        code = f"invalid-{name}"
        if name not in CATALOGUE:
            raise ServiceError(code)
        property, rule, _ = CATALOGUE[name]
        rules: list[validate.Validator] = [validate.Length(min=1, error=code)]
        if rule == "email":
            rules.append(validate.Regexp("^[^@]+@", error=code))
        elif rule == "name":
            least, most = lengths[BOUNDED_FIELDS.index(name)]
            rules.append(validate.Length(least, most, error=f"{code}-length"))
        codes: dict[str, Any] = dict.fromkeys(("required", "null", "invalid"), code)
        options: dict[str, Any] = {"data_key": name, "required": True, "validate": rules}
        schema[property] = Text(converters.get(rule, str), error_messages=codes, **options)
    if creating:
        schema["default"] = fields.Raw(allow_none=True)
    return Schema.from_dict(schema)(unknown=EXCLUDE)


def listing_query(given: Mapping[str, Any], *, page_size: int) -> dict[str, Any]:
    """Return the query checked, with defaults for limit and offset. ``all`` overrules both.

    Raises ServiceError: invalid-limit, invalid-offset, invalid-after, invalid-accountid.
    """
    query = {k: v for k, v in given.items() if v is not None and v is not False and v != ""}
    if query.get("all"):
        query |= {"limit": LARGEST_INTEGER, "offset": 0}
    for name, default in (("limit", page_size), ("offset", 0)):
        value = query.get(name, default)
        if isinstance(value, str) and (digits := re.fullmatch("0*([0-9]{1,19})", value)):
            value = int(digits[1])  # without leading zeros: int() refuses more than 4,300 digits
        if type(value) is not int or not 0 <= value <= LARGEST_INTEGER:
            raise ServiceError(f"invalid-{name}")
        query[name] = value
    if "after" in query and not any(is_identifier(p, query["after"]) for p in ("prof", "sess")):
        raise ServiceError("invalid-after")
    if not isinstance(query.get("accountid", ""), str):
        raise ServiceError("invalid-accountid")
    return query
