"""Checking input: identifiers, numbers, dates, addresses, and the schemas of bodies."""

import re
from collections import namedtuple
from contextlib import suppress
from datetime import date, time
from hashlib import sha256
from secrets import token_hex
from unicodedata import is_normalized

from email_validator import validate_email
from marshmallow import EXCLUDE, Schema, fields, validate

from errors import ServiceError

APPID = "[A-Za-z0-9._-]{1,64}"
MAX_INT64 = 2**63 - 1  # the largest LIMIT and OFFSET of SQLite


def new_identifier(prefix):
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


def matches(pattern, value):
    """Return whether the value is a string that the whole pattern matches."""
    return isinstance(value, str) and bool(re.fullmatch(pattern, value))


def is_identifier(prefix, value):
    """Return whether the value is a string in the form of an identifier."""
    return matches(f"{prefix}_[0-9a-f]{{16}}", value)


def identifier_for_key(prefix, key, *scope):
    """Return a new identifier or, with a key, the one that belongs to it in a scope.

    Raises invalid-idempotency-key.
    """
    if key is None:
        return new_identifier(prefix)
    if not matches("[!-~]([ -~]{0,253}[!-~])?", key):  # HTTP strips blanks at the ends
        raise ServiceError("invalid-idempotency-key")
    scoped_key = " ".join((*scope, key))
    digest = sha256(scoped_key.encode()).hexdigest()
    return f"{prefix}_{digest[:16]}"


def parse_number(name, value, default, *, minimum=0, maximum=MAX_INT64):
    """Return a number. Raises invalid-limit, invalid-offset or invalid-duration."""
    if value is None:
        return default
    is_digits = matches("[0-9]{1,4300}", value)  # int() refuses more
    if is_digits or (isinstance(value, float) and value.is_integer()):  # as JSON's 60.0
        value = int(value)
    if type(value) is not int or not minimum <= value <= maximum:
        raise ServiceError(f"invalid-{name}")
    return value


# Dates: the ways to write one, and the parser.

# "(?!24)" refuses 24:00, which Python 3.14 accepts.
ISO = (
    r"(\d{4}-\d\d-\d\d|\d{8}"  # 1950-01-31, 19500131
    r"|\d{4}-W\d\d-\d|\d{4}W\d{3})"  # 1950-W05-2, 1950W052
    r"(?:[T ]((?!24)\d\d:[\d:.,]+"  # T10:30:00.5
    r"(?:Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)?))?"  # Z, +01:00
)
# The second of two spaces before a day of one digit, as in ctime's "Jan  5".
PADDING = r"(?<=[A-Za-z,] ) (?=\d\b)"
# (Central European Time), after GMT+0100 or " +0100"
ZONE_NAME = r"(?<=[ T][+-]\d{4}) \([^()]*\)$"

# In English: strptime() would expect the language of the process's locale.
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
YEAR = r"(?P<year>\d{4})"
MONTH = r"(?P<month>\d\d?)"
DAY = r"(?P<day>\d\d?)"
JAN = f"(?P<month>{'|'.join(MONTHS)})"
# January or Jan
JANUARY = (
    "(?P<month>jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?"
    "|sep(tember)?|oct(ober)?|nov(ember)?|dec(ember)?)"
)
# "Tuesday, " or "Tue ", or none
WEEKDAY = "(((mon|fri|sun)(day)?|tue(sday)?|wed(nesday)?|thu(rsday)?|sat(urday)?),? )?"
MINUTES = r"(2[0-3]|[01]?\d):[0-5]?\d"  # 10:30
SECONDS = rf"{MINUTES}:[0-5]?\d"  # 10:30:00
# +0100, +01:00, with seconds or without, or Z
OFFSET = r"([+-](2[0-3]|[01]\d)((:[0-5]\d){1,2}|([0-5]\d){1,2})|(?-i:Z))"
DATE_FORMATS = (
    f"{YEAR}/{MONTH}/{DAY}",  # 1950/01/31
    f"{YEAR}-{MONTH}-{DAY}",  # 1950-1-31
    f"{MONTH}/{DAY}/{YEAR}",  # 01/31/1950
    f"{WEEKDAY}{DAY} {JANUARY} {YEAR}",  # 31 January 1950
    f"{WEEKDAY}{DAY}-{JAN}-{YEAR}",  # 31-Jan-1950
    f"{WEEKDAY}{JANUARY} {DAY},? {YEAR}",  # January 31, 1950
    # RFC 2822: Tue, 31 Jan 1950 10:30 GMT, Tue, 31 Jan 1950 10:30:00 +0100
    f"{WEEKDAY}{DAY} {JAN} {YEAR} ({MINUTES}|{SECONDS}) (GMT|{OFFSET})",
    # ctime of C: Tue Jan 31 10:30:00 1950
    f"{WEEKDAY}{JAN} {DAY} {SECONDS} {YEAR}",
    # String(date) of JavaScript: Tue Jan 31 1950 10:30:00 GMT+0100
    f"{WEEKDAY}{JAN} {DAY} {YEAR} {SECONDS} GMT{OFFSET}",
)


def parse_date(text):
    """Return a date as YYYY-MM-DD, without a time. Raises ValueError."""
    text = re.sub(ZONE_NAME, "", text)  # first, since it may not be ASCII
    if not text.isascii():  # else \d matches digits of any alphabet
        raise ValueError
    if iso := re.fullmatch(ISO, text):
        day, clock_time = iso.groups()
        if clock_time:
            time.fromisoformat(clock_time)
        return date.fromisoformat(day).isoformat()
    text = re.sub(PADDING, "", text)
    for pattern in DATE_FORMATS:
        if found := re.fullmatch(pattern, text, re.IGNORECASE):
            year, month, day = found.group("year", "month", "day")
            if month.isalpha():
                month = MONTHS.index(month[:3].lower()) + 1
            return date(int(year), int(month), int(day)).isoformat()
    raise ValueError


# The fields of a profile, in the order of its properties.
FieldSpec = namedtuple("FieldSpec", "property rule example")
PROFILE_FIELDS = {
    # input field               property        rule     example
    "company-name":  FieldSpec("companyName",  "name",  "Analytical Engines"),
    "full-name":     FieldSpec("fullName",     "name",  "Ada King"),
    "contact-email": FieldSpec("contactEmail", "email", "ada@example.com"),
    "display-email": FieldSpec("displayEmail", "email", "hello@example.com"),
    "display-name":  FieldSpec("displayName",  "name",  "Ada"),
    "phone":         FieldSpec("phone",        "text",  "+44 20 7946 0958"),
    "occupation":    FieldSpec("occupation",   "text",  "Mathematician"),
    "location":      FieldSpec("location",     "text",  "London"),
    "dob":           FieldSpec("dob",          "date",  "1950-01-31"),
    "website":       FieldSpec("website",      "text",  "https://example.com"),
}  # fmt: skip


def check_address(text):
    """Return a valid e-mail address unchanged. Raises ValueError.

    The domain can be any with a dot, in any case and script, or in Punycode. Neither
    part may contain characters that are mapped to others, as in "℡.com" for tel.com.
    """
    # 254: RFC 5321, section 4.5.3.1.3, without the angle brackets. This is checked
    # first, because email-validator takes a second for 64 KB.
    if len(text) > 254:
        raise ValueError
    # Whatever the options, special-use domains such as .local are refused, so another
    # last letter is checked.
    checked = re.sub(r"(\.[A-Za-z]*)[A-Za-z]\Z", r"\1x", text)
    address = validate_email(
        checked,
        # A program that uses the library, too, can change each of these defaults.
        allow_smtputf8=True,
        allow_quoted_local=False,
        allow_domain_literal=False,
        allow_display_name=False,
        strict=True,
        check_deliverability=False,  # it would ask the network
        test_environment=False,
        globally_deliverable=True,
    )
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


def lower_labels(domain):
    """Return the set of a domain's labels in lower case, where "Σ" is always "σ"."""
    return set(domain.replace("Σ", "σ").lower().split("."))


class Text(fields.String):
    """A string that a database can store.

    ``convert`` returns it as it is stored, or raises ValueError.
    """

    convert = str

    def _deserialize(self, value, *args, **kwargs):
        if isinstance(value, str):
            with suppress(ValueError):
                value.encode()  # fails for a lone surrogate: no database can store it
                return self.convert(str.__str__(value))  # an Enum's value, not its name
        raise self.make_error("invalid")


class Body(Schema):
    """A body, which must be a mapping."""

    error_messages = {"type": "invalid-body"}


def make_schema(names, optional, lengths, *, creating):
    """Return the schema of the required and the optional fields; others are ignored.

    Its messages are the codes. ``lengths``: for each field whose rule is "name", its
    minimum and maximum number of characters. Raises ServiceError for an unknown field.

    An optional field can also be null; an empty string counts as null. In an update, an
    e-mail address is any string whose first "@" is not its first character. Creating a
    profile requires a valid address.
    """
    schema = {}
    for name in (*names, *optional):
        code = f"invalid-{name}"
        if name not in PROFILE_FIELDS:
            raise ServiceError(code)
        property_name, rule, _ = PROFILE_FIELDS[name]
        # This is for the description, since pre_load replaces an empty string.
        checks = [validate.Length(min=1, error=code)]
        if rule == "name":
            checks.append(validate.Length(*lengths[name], error=f"{code}-length"))
        if rule == "email":
            checks.append(validate.Regexp("^[^@]+@", error=code))
        field = Text(
            required=name not in optional,
            allow_none=name in optional,
            pre_load=lambda value: None if value == "" else value,
            data_key=name,
            validate=checks,
            error_messages=dict.fromkeys(("required", "null", "invalid"), code),
            metadata={"format": rule} if rule in ("email", "date") else {},
        )
        schema[property_name] = field
        if rule == "date":
            field.convert = parse_date
        if rule == "email" and creating:
            field.convert = check_address
    if creating:
        schema["default"] = fields.Raw(allow_none=True, metadata={"type": "boolean"})
    return Body.from_dict(schema)(unknown=EXCLUDE)


def field_codes(names):
    """Return the codes of these fields, in the order in which they are checked."""
    codes = []
    for name in names:
        codes.append(f"invalid-{name}")
        if PROFILE_FIELDS[name].rule == "name":
            codes.append(f"invalid-{name}-length")
    return codes
