"""The fields of a profile, and the schemas of the bodies that create and update one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flask import current_app
from marshmallow import EXCLUDE, Schema, validate
from marshmallow.fields import Field, Raw, String

from errors import ServiceError
from formats import check_address, matches, parse_date

# The minimum and maximum number of characters of each field whose rule is "name"
Lengths = dict[str, tuple[int, int]]


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

OWN_FIELD = "x-[a-z0-9]+(-[a-z0-9]+)*"  # the name of a field of the product's own
MAX_NAME_LENGTH = 64


def is_own_field(name: str) -> bool:
    """Return whether a name has the form of a field of the product's own."""
    return matches(OWN_FIELD, name) and len(name) <= MAX_NAME_LENGTH


def get_field(name: str) -> FieldSpec:
    """Return a field by its name. Raises ServiceError if it is unknown."""
    if name in PROFILE_FIELDS:
        return PROFILE_FIELDS[name]
    if not is_own_field(name):
        raise ServiceError(f"invalid-{name}")
    example = name.removeprefix("x-").replace("-", " ").capitalize()
    return FieldSpec(name, "text", example)


# These are also in /openapi.json, so JavaScript has to understand them. NUL is refused
# because PostgreSQL, to which profiles may be copied, can't store it.
NO_NUL = r"^[^\u0000]*$"
ADDRESS = r"^[^@\u0000]+@[^\u0000]*$"


class Text(String):
    """A string that a database can store. ``parse`` returns it as it is stored."""

    def __init__(self, parse: Callable[[str], str], **options: Any) -> None:
        super().__init__(**options)
        self.parse = parse

    def _deserialize(self, value: object, *args: Any, **kwargs: Any) -> str:
        if not isinstance(value, str):
            raise self.make_error("invalid")
        text = str.__str__(value)  # the value of an Enum, not its name
        try:
            text.encode()  # fails for a lone surrogate: no database can store it
            return self.parse(text)
        except ValueError as error:
            raise self.make_error("invalid") from error


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
    schemas = current_app.extensions.setdefault("profile_schemas", {})
    key = required, optional, creating
    if key not in schemas:
        lengths = config["PROFILE_LENGTHS"]
        schemas[key] = make_schema(required, optional, lengths, creating=creating)
    return schemas[key]


def make_schema(
    required: Sequence[str],
    optional: Sequence[str],
    lengths: Lengths,
    *,
    creating: bool,
) -> Schema:
    """Return the schema of these fields, in this order. Its messages are the codes."""
    schema: dict[str, Field] = {}
    for name in (*required, *optional):
        schema[get_field(name).property] = make_field(
            name, lengths, optional=name in optional, creating=creating
        )
    if creating:
        schema["default"] = Raw(allow_none=True, metadata={"type": "boolean"})
    return Body.from_dict(schema)()


def make_field(name: str, lengths: Lengths, *, optional: bool, creating: bool) -> Field:
    """Return the field of a schema.

    An optional field can also be null; an empty string counts as null. In an update, an
    e-mail address is any string whose first "@" is not its first character. Creating a
    profile requires a valid address.
    """
    code = f"invalid-{name}"
    rule = get_field(name).rule
    parse: Callable[[str], str] = str
    pattern = NO_NUL
    if rule == "email":
        parse = check_address if creating else str
        pattern = ADDRESS
    elif rule == "date":
        parse = parse_date
    checks: list[validate.Validator] = [
        validate.Regexp(pattern, error=code),
        # This puts minLength into /openapi.json. It never fails, because pre_load below
        # replaces an empty string.
        validate.Length(min=1, error=code),
    ]
    if rule == "name":
        minimum, maximum = lengths[name]
        checks.append(validate.Length(minimum, maximum, error=f"{code}-length"))
    return Text(
        parse,
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
        if name in current_app.config["PROFILE_LENGTHS"]:
            codes.append(f"invalid-{name}-length")
    return codes


def example_body(examples: dict[str, str] | None = None) -> dict[str, str]:
    """Return a body of the configured fields: these examples, or PROFILE_FIELDS'."""
    lengths = current_app.config["PROFILE_LENGTHS"]
    body = {}
    for name in configured_fields():
        example = (examples or {}).get(name, get_field(name).example)
        minimum, maximum = lengths.get(name, (0, None))
        body[name] = example.ljust(minimum, ".")[:maximum]
    return body
