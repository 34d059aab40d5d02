"""Checking input: identifiers, numbers, the fields and the schemas built from them."""

import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex
from typing import Any
from unicodedata import is_normalized

from email_validator import validate_email
from marshmallow import EXCLUDE, Schema, fields, validate

from dates import parse_date
from errors import ServiceError

APPID = "[A-Za-z0-9._-]{1,64}"
MAX_INT64 = 2**63 - 1  # the largest LIMIT and OFFSET of SQLite


def new_identifier(prefix: str) -> str:
    """Return a new identifier: the prefix and 16 hexadecimal characters."""
    return f"{prefix}_{token_hex(8)}"


def matches(pattern: str, value: Any) -> bool:
    """Return whether the value is a string that the whole pattern matches."""
    return isinstance(value, str) and bool(re.fullmatch(pattern, value))


def is_identifier(prefix: str, value: Any) -> bool:
    """Return whether the value is a string in the form of an identifier."""
    return matches(f"{prefix}_[0-9a-f]{{16}}", value)


def identifier_for_key(
    prefix: str,
    key: str | None,
    *scope: str,
) -> str:
    """Return a new identifier or, with a key, always the same one for it in a scope.

    Raises invalid-idempotency-key.
    """
    if key is None:
        return new_identifier(prefix)
    if not matches("[!-~]([ -~]{0,253}[!-~])?", key):  # HTTP strips blanks at the ends
        raise ServiceError("invalid-idempotency-key")
    scoped_key = " ".join((*scope, key))
    digest = sha256(scoped_key.encode()).hexdigest()
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


def check_address(text: str) -> str:
    """Return a valid e-mail address unchanged. Raises ValueError.

    The domain can be any with a dot, in any case and script, or in Punycode, but must
    not contain characters that are mapped to others, as in "℡.com" for tel.com.
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
    domain = checked.rpartition("@")[2]
    labels = domain.lower().split(".")
    valid_labels = f"{address.domain}.{address.ascii_domain}".lower().split(".")
    if not set(labels).issubset(valid_labels):
        raise ValueError
    # The lower case of the Kelvin sign is "k", for example.
    if not is_normalized("NFKC", domain):
        raise ValueError
    return text


class Text(fields.String):
    """A string that a database can store.

    ``convert`` returns it as it is stored, or raises ValueError.
    """

    convert: Callable[[str], str] = str

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if isinstance(value, str):
            with suppress(ValueError):
                value.encode()  # fails for a lone surrogate: no database can store it
                return self.convert(str.__str__(value))  # an Enum's value, not its name
        raise self.make_error("invalid")


class Body(Schema):
    """A body, which must be a mapping."""

    error_messages = {"type": "invalid-body"}


def make_schema(
    names: Sequence[str],
    optional: Sequence[str],
    lengths: dict[str, tuple[int, int]],
    *,
    creating: bool,
) -> Schema:
    """Return the schema of the required and the optional fields; others are ignored.

    Its messages are the codes. ``lengths``: for each field whose rule is "name", its
    minimum and maximum number of characters. Raises ServiceError for an unknown field.

    An optional field can also be null; an empty string counts as null. In an update, an
    e-mail address is any string whose first "@" is not its first character. Creating a
    profile requires a valid address.
    """
    schema: dict[str, fields.Field[Any]] = {}
    for name in (*names, *optional):
        code = f"invalid-{name}"
        if name not in PROFILE_FIELDS:
            raise ServiceError(code)
        property_name, rule, _ = PROFILE_FIELDS[name]
        not_empty = validate.Length(min=1, error=code)
        checks: list[validate.Validator] = [not_empty]
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


def field_codes(names: Sequence[str]) -> list[str]:
    """Return the codes of these fields, in the order in which they are checked."""
    codes = []
    for name in names:
        codes.append(f"invalid-{name}")
        if PROFILE_FIELDS[name].rule == "name":
            codes.append(f"invalid-{name}-length")
    return codes
