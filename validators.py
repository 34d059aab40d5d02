"""The fields of a profile, and the schemas of the bodies that create and update one."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from flask import current_app
from marshmallow import EXCLUDE, Schema, validate
from marshmallow.fields import Field, Raw, String

from errors import ServiceError
from formats import check_address, parse_date


class FieldSpec(NamedTuple):
    """``rule``: name (its length has bounds), email, text or date."""

    property: str
    rule: str
    example: str


# The fields of a profile, in the order of its properties.
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


class Text(String):
    """A string that a database can store. ``parse`` returns it as it is stored."""

    parse: Callable[[str], str] = staticmethod(str)

    def _deserialize(self, value: object, *args: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise self.make_error("invalid")
        text = str.__str__(value)  # the value of an Enum, not its name
        try:
            text.encode()  # fails for a lone surrogate: no database can store it
            if "\0" in text:  # a copy in PostgreSQL could not store it
                raise ValueError
            return self.parse(text)
        except ValueError as error:
            raise self.make_error("invalid") from error


class Date(Text):
    parse = staticmethod(parse_date)


class Address(Text):
    parse = staticmethod(check_address)


class Body(Schema):
    """A body, which must be a mapping. Fields that it does not know are ignored."""

    class Meta:
        unknown = EXCLUDE

    error_messages = {"type": "invalid-body"}


def profile_schema(names: Sequence[str] | None = None, *, creating: bool) -> Schema:
    """Return the schema of a profile with these fields, by default as configured.

    Raises ServiceError for an unknown field.
    """
    config = current_app.config
    required = config["USER_PROFILE_FIELDS"]
    optional = config["OPTIONAL_PROFILE_FIELDS"]
    if names is not None:
        required, optional = tuple(names), ()
    lengths = tuple(config["PROFILE_LENGTHS"].items())
    return make_schema(required, optional, lengths, creating=creating)


@cache
def make_schema(
    required: tuple[str, ...],
    optional: tuple[str, ...],
    lengths: Any,
    *,
    creating: bool,
) -> Schema:
    """Return the schema of these fields, in this order, whose messages are the codes.

    ``lengths``: the name of each field whose rule is "name", with its minimum and
    maximum number of characters. Raises ServiceError for an unknown field.
    """
    schema: dict[str, Field] = {}
    for name in (*required, *optional):
        if name not in PROFILE_FIELDS:
            raise ServiceError(f"invalid-{name}")
        schema[PROFILE_FIELDS[name].property] = make_field(
            name, dict(lengths), optional=name in optional, creating=creating
        )
    if creating:
        schema["default"] = Raw(allow_none=True, metadata={"type": "boolean"})
    return Body.from_dict(schema)()


def make_field(
    name: str, lengths: dict[str, tuple[int, int]], *, optional: bool, creating: bool
) -> Field:
    """Return the field of a schema.

    An optional field can also be null; an empty string counts as null. In an update, an
    e-mail address is any string whose first "@" is not its first character. Creating a
    profile requires a valid address.
    """
    code = f"invalid-{name}"
    rule = PROFILE_FIELDS[name].rule
    field_class = Text
    # Only for the description, because pre_load replaces an empty string.
    checks: list[validate.Validator] = [validate.Length(min=1, error=code)]
    if rule == "name":
        minimum, maximum = lengths[name]
        checks.append(validate.Length(minimum, maximum, error=f"{code}-length"))
    elif rule == "email":
        field_class = Address if creating else Text
        checks.append(validate.Regexp("^[^@]+@", error=code))
    elif rule == "date":
        field_class = Date
    return field_class(
        data_key=name,
        required=not optional,
        allow_none=optional,
        pre_load=lambda value: None if value == "" else value,
        validate=checks,
        error_messages=dict.fromkeys(("required", "null", "invalid"), code),
        metadata={"format": rule} if rule in ("date", "email") else {},
    )


def configured_fields() -> tuple[str, ...]:
    """Return the required fields and then the optional ones, as they are checked."""
    config = current_app.config
    return (*config["USER_PROFILE_FIELDS"], *config["OPTIONAL_PROFILE_FIELDS"])


def field_codes(names: Sequence[str]) -> list[str]:
    """Return the codes of these fields, in the order in which they are checked."""
    codes = []
    for name in names:
        codes.append(f"invalid-{name}")
        if PROFILE_FIELDS[name].rule == "name":
            codes.append(f"invalid-{name}-length")
    return codes


def example_body(examples: dict[str, str] | None = None) -> dict[str, str]:
    """Return a body of the configured fields with allowed values.

    ``examples``: values instead of those in PROFILE_FIELDS.
    """
    examples = examples or {}
    lengths = current_app.config["PROFILE_LENGTHS"]
    body = {}
    for name in configured_fields():
        minimum, maximum = lengths.get(name, (0, None))
        example = examples.get(name, PROFILE_FIELDS[name].example)
        body[name] = example.ljust(minimum, ".")[:maximum]
    return body
