"""Checking input: the fields and the schemas made from them, dates, identifiers."""

import re
from collections import namedtuple
from contextlib import suppress
from datetime import date, datetime, time
from functools import lru_cache
from secrets import token_hex

import email_validator
from marshmallow import EXCLUDE, Schema, fields, validate

from errors import ServiceError

# Accept reserved domains such as .local and .test. This counts for the whole process.
email_validator.SPECIAL_USE_DOMAIN_NAMES.clear()
APPID = "[A-Za-z0-9._-]{1,64}"
MAX_INT64 = 2**63 - 1  # the largest LIMIT and OFFSET of SQLite


def new_identifier(prefix):
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


def is_identifier(prefix, text):
    """Return whether the text has the form of an identifier."""
    pattern = f"{prefix}_[0-9a-f]{{16}}"
    return isinstance(text, str) and bool(re.fullmatch(pattern, text))


FieldSpec = namedtuple("FieldSpec", "property rule example")
PROFILE_FIELDS = {
    # input field                   property        rule     example
    "full-name":       FieldSpec("fullName",     "name",  "Ada King"),
    "contact-email":   FieldSpec("contactEmail", "email", "ada@example.com"),
    "display-email":   FieldSpec("displayEmail", "email", "hello@example.com"),
    "display-name":    FieldSpec("displayName",  "name",  "Ada"),
    "company-name":    FieldSpec("companyName",  "name",  "Analytical Engines"),
    "dob":             FieldSpec("dob",          "date",  "1950-01-31"),
    "phone":           FieldSpec("phone",        "text",  "+44 20 7946 0958"),
    "occupation":      FieldSpec("occupation",   "text",  "Mathematician"),
    "location":        FieldSpec("location",     "text",  "London"),
    "website":         FieldSpec("website",      "text",  "https://example.com"),
}  # fmt: skip


class CheckedText(fields.String):
    """A text that a function converts, or refuses with a ValueError."""

    def __init__(self, convert, **options):
        super().__init__(required=True, **options)
        self.convert = convert

    def _deserialize(self, value, *args, **kwargs):
        if isinstance(value, str):
            with suppress(ValueError):
                value.encode()  # fails for a lone surrogate, which no database stores
                return self.convert(str.__str__(value))  # of a StrEnum, its value
        raise self.make_error("invalid")


class Body(Schema):
    error_messages = {"type": "invalid-body"}

    class Meta:
        unknown = EXCLUDE


ISO = (
    r"(\d{4}-\d\d-\d\d|\d{8}"  # 1950-01-31, 19500131
    r"|\d{4}-W\d\d-\d|\d{4}W\d{3})"  # 1950-W05-2, 1950W052
    r"(?:[T ]((?!24)\d\d:[\d:.,]+"  # T10:30:00.5, not 24:00, as Python 3.14 accepts
    r"(?:Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)?))?"  # Z, +01:00
)
WEEKDAY = (  # such as "Tue ", if an English date follows and not 01/31/1950
    "(?i)^((mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun)"
    r",? (?!\d+/)"
)
# Behind GMT+0100 or " +0100": (Central European Time)
ZONE_NAME = r"(?<=[ T][+-]\d{4}) \([^()]*\)$"
DATE_FORMATS = (
    "%Y/%m/%d",  # 1950/01/31
    "%m/%d/%Y",  # 01/31/1950
    "%d %B %Y",  # 31 January 1950
    "%d %b %Y",  # 31 Jan 1950
    "%d-%b-%Y",  # 31-Jan-1950
    "%B %d, %Y",  # January 31, 1950
    "%b %d, %Y",  # Jan 31, 1950
    "%B %d %Y",  # January 31 1950
    "%b %d %Y",  # Jan 31 1950
    # RFC 2822:
    "%d %b %Y %H:%M GMT",  # 31 Jan 1950 10:30 GMT
    "%d %b %Y %H:%M %z",  # 31 Jan 1950 10:30 +0100
    "%d %b %Y %H:%M:%S GMT",  # 31 Jan 1950 10:30:00 GMT
    "%d %b %Y %H:%M:%S %z",  # 31 Jan 1950 10:30:00 +0100
    # ctime of C:
    "%b %d %H:%M:%S %Y",  # Jan 31 10:30:00 1950
    # String(date) of JavaScript:
    "%b %d %Y %H:%M:%S GMT%z",  # Jan 31 1950 10:30:00 GMT+0100
)


def parse_date(text):
    """Return a date as YYYY-MM-DD, without a time. Raises ValueError."""
    text = re.sub(ZONE_NAME, "", text)  # first, since it may not be ASCII
    # strptime() also takes digits of other alphabets, tabs and ends of lines.
    if not text.isascii() or not text.isprintable():
        raise ValueError
    if iso := re.fullmatch(ISO, text):
        day, moment = iso.groups()
        if moment:
            time.fromisoformat(moment)
        return date.fromisoformat(day).isoformat()
    text = re.sub(WEEKDAY, "", text)
    for pattern in DATE_FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, pattern).date().isoformat()
    raise ValueError


def parse_address(text):
    """Return an e-mail address as it is, if it is a valid one. Raises ValueError."""
    # 254: RFC 5321, section 4.5.3.1.3, without the angle brackets. This is checked
    # first, because email-validator takes a second for 64 KB.
    if len(text) > 254:
        raise ValueError
    # check_deliverability would ask the network.
    email_validator.validate_email(text, check_deliverability=False, strict=True)
    return text


@lru_cache(maxsize=256)
def profile_schema(names, lengths, *, creating):
    """Return the schema of these fields; its messages are the codes.

    ``lengths``: pairs of a field whose rule is "name", and its least and most number of
    characters. In an update, an address is any text with an "@" that is not its first
    character. Only a create needs a valid address. Raises ServiceError for an unknown
    field.
    """
    converters = {"date": parse_date}
    if creating:
        converters["email"] = parse_address
    bounds = dict(lengths)
    schema = {}
    for name in names:
        code = f"invalid-{name}"
        if name not in PROFILE_FIELDS:
            raise ServiceError(code)
        rule = PROFILE_FIELDS[name].rule
        checks = [validate.Length(min=1, error=code)]
        if rule == "name":
            checks.append(validate.Length(*bounds[name], error=f"{code}-length"))
        if rule == "email":
            checks.append(validate.Regexp("^[^@]+@", error=code))
        schema[PROFILE_FIELDS[name].property] = CheckedText(
            converters.get(rule, str),
            data_key=name,
            validate=checks,
            error_messages=dict.fromkeys(("required", "null", "invalid"), code),
            metadata={"format": rule} if rule in ("email", "date") else {},
        )
    if creating:
        schema["default"] = fields.Raw(allow_none=True, metadata={"type": "boolean"})
    return Body.from_dict(schema)()
