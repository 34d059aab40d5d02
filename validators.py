"""Checking input: the fields and the schemas made from them, dates, identifiers."""

import re
from collections import namedtuple
from contextlib import suppress
from datetime import date
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
    return isinstance(text, str) and bool(re.fullmatch(pattern, text))


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


class CheckedText(fields.String):
    """A text that a function converts, or refuses with a ValueError."""

    def __init__(self, convert, **options):
        super().__init__(required=True, **options)
        self.convert = convert

    def _deserialize(self, value, *args, **kwargs):
        if isinstance(value, str):
            with suppress(ValueError):
                text = str.__str__(value)  # of an Enum too, which is a str
                text.encode()  # fails for half a character, which no database stores
                return self.convert(text)
        raise self.make_error("invalid")


class Body(Schema):
    error_messages = {"type": "invalid-body"}

    class Meta:
        unknown = EXCLUDE


# \2 is the first hyphen: a day is written with two hyphens or with none.
ISO_DAY = r"(\d{4}(-?)(?:\d\d\2\d\d|W\d\d\2\d))"
TIME = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d)?"
# A fraction comes only after seconds.
ISO_TIME = rf"{TIME}(?:(?<=:\d\d:\d\d)[.,]\d+)?(?:Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)?"
ISO = re.compile(f"{ISO_DAY}(?:[T ]{ISO_TIME})?", re.ASCII)
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
NAME = (
    "(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    "|aug(?:ust)?|sep(?:tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
WEEKDAY = (
    "(?:(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun),? )?"
)
MONTH = r"(?P<month>\d{1,2})"
YEAR = r"(?P<year>\d{4})"
DAY = r"(?P<day>\d{1,2})"
ZONE = r"[+-](?:0\d|1[0-4])[0-5]\d(?: \([^()]*\))?"
DATE_FORMATS = (  # in letters of any case
    f"{YEAR}/{MONTH}/{DAY}",  # 1950/01/31
    f"{MONTH}/{DAY}/{YEAR}",  # 01/31/1950
    f"{WEEKDAY}{DAY} {NAME} {YEAR}",  # Tuesday, 31 January 1950
    f"{WEEKDAY}{DAY}-{NAME}-{YEAR}",  # 31-Jan-1950
    f"{WEEKDAY}{NAME} {DAY},? {YEAR}",  # Tue January 31, 1950
    # RFC 2822: Tue, 31 Jan 1950 10:30:00 +0100
    f"{WEEKDAY}{DAY} {NAME} {YEAR} {TIME} (?:GMT|{ZONE})",
    # ctime of C: Tue Jan 31 10:30:00 1950
    rf"{WEEKDAY}{NAME} (?P<day>[ \d]?\d) {TIME} {YEAR}",
    # JavaScript: Tue Jan 31 1950 10:30:00 GMT+0100 (Central European Standard Time)
    f"{WEEKDAY}{NAME} {DAY} {YEAR} {TIME}(?: GMT{ZONE})?",
)


def parse_date(text):
    """Return a date as YYYY-MM-DD, without a time.

    Raises ValueError for what is no real day.
    """
    if iso := ISO.fullmatch(text):
        return date.fromisoformat(iso[1]).isoformat()
    for pattern in DATE_FORMATS:
        found = re.fullmatch(pattern, text, re.ASCII | re.IGNORECASE)
        if found:
            month = found["month"][:3].lower()
            number = MONTHS.index(month) + 1 if month.isalpha() else int(month)
            return date(int(found["year"]), number, int(found["day"])).isoformat()
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

    ``lengths``: pairs of a field whose rule is "name", and its least and most number of
    characters. Raises ServiceError for a field that there is not.
    """
    converters = {"date": parse_date}
    if creating:
        converters["email"] = parse_address
    bounds = dict(lengths)
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
        schema[property] = CheckedText(
            converters.get(rule, str),
            data_key=name,
            validate=checks,
            error_messages=dict.fromkeys(("required", "null", "invalid"), code),
            metadata={"format": rule} if rule in ("email", "date") else {},
        )
    if creating:
        schema["default"] = fields.Raw(allow_none=True, metadata={"type": "boolean"})
    return Body.from_dict(schema)()


def example_body(settings):
    """Return a body of the configured fields with allowed values."""
    bounds = dict(settings["PROFILE_LENGTHS"])
    body = {}
    for name in settings["USER_PROFILE_FIELDS"]:
        least, most = bounds.get(name, (0, None))
        body[name] = CATALOGUE[name].example.ljust(least, ".")[:most]
    return body
