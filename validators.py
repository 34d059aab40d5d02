"""Checking input: identifiers, numbers, the fields and the schemas built from them."""

import re
from collections import namedtuple
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex

import email_validator
from marshmallow import EXCLUDE, Schema, fields, validate

from dates import parse_date
from errors import ServiceError

# Accept reserved domains such as .local and .test. This is process-wide.
email_validator.SPECIAL_USE_DOMAIN_NAMES.clear()
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
    """Return a new identifier or, with a key, always the same one for it in a scope.

    Raises invalid-idempotency-key.
    """
    if key is None:
        return new_identifier(prefix)
    if not matches("[!-~]([ -~]{0,253}[!-~])?", key):  # HTTP strips blanks at the ends
        raise ServiceError("invalid-idempotency-key")
    digest = sha256(" ".join((*scope, key)).encode()).hexdigest()
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


class Text(fields.String):
    """A string that a database can store."""

    def _deserialize(self, value, *args, **kwargs):
        if isinstance(value, str):
            with suppress(ValueError):
                value.encode()  # fails for a lone surrogate: no database can store it
                return self.convert(str.__str__(value))  # an Enum's value, not its name
        raise self.make_error("invalid")

    def convert(self, text):
        """Return the string as it is stored. Raises ValueError if it is not valid."""
        return text


class Date(Text):
    """A date, which is stored as YYYY-MM-DD."""

    convert = staticmethod(parse_date)


class Address(Text):
    """A valid e-mail address, of any domain with a dot."""

    def convert(self, text):
        # 254: RFC 5321, section 4.5.3.1.3, without the angle brackets. This is checked
        # first, because email-validator takes a second for 64 KB.
        if len(text) > 254:
            raise ValueError
        # check_deliverability would ask the network.
        email_validator.validate_email(text, check_deliverability=False, strict=True)
        return text


class Body(Schema):
    """A body: a mapping, of which only the fields of the schema are read."""

    error_messages = {"type": "invalid-body"}

    class Meta:
        unknown = EXCLUDE


def make_schema(names, optional, lengths, *, creating):
    """Return the schema of the required and the optional fields.

    Its messages are the codes. ``lengths``: for each field whose rule is "name", its
    minimum and maximum number of characters. Raises ServiceError for an unknown field.
    """
    schema = {}
    for name in (*names, *optional):
        if name not in PROFILE_FIELDS:
            raise ServiceError(f"invalid-{name}")
        schema[PROFILE_FIELDS[name].property] = text_field(
            name, lengths.get(name), required=name not in optional, creating=creating
        )
    if creating:
        schema["default"] = fields.Raw(allow_none=True, metadata={"type": "boolean"})
    return Body.from_dict(schema)()


def field_codes(names):
    """Return the codes of these fields, in the order in which they are checked."""
    codes = []
    for name in names:
        codes.append(f"invalid-{name}")
        if PROFILE_FIELDS[name].rule == "name":
            codes.append(f"invalid-{name}-length")
    return codes


def null_if_empty(value):
    """Return None for an empty string, and any other value as it is."""
    return None if value == "" else value


def text_field(name, bounds, *, required, creating):
    """Return the marshmallow field of an input field; its messages are the codes.

    An optional field can also be null; an empty string counts as null. In an update, an
    e-mail address is any string whose first "@" is not its first character. Creating a
    profile requires a valid address.
    """
    code = f"invalid-{name}"
    rule = PROFILE_FIELDS[name].rule
    checks = [validate.Length(min=1, error=code)]
    if rule == "name":
        checks.append(validate.Length(*bounds, error=f"{code}-length"))
    if rule == "email":
        checks.append(validate.Regexp("^[^@]+@", error=code))
    text_class = Text
    if rule == "email" and creating:
        text_class = Address
    if rule == "date":
        text_class = Date
    return text_class(
        required=required,
        allow_none=not required,
        pre_load=null_if_empty,
        data_key=name,
        validate=checks,
        error_messages=dict.fromkeys(("required", "null", "invalid"), code),
        metadata={"format": rule} if rule in ("email", "date") else {},
    )
