"""The catalogue of the ten profile fields, and the schemas generated from it."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from email_validator import EmailNotValidError, validate_email
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate, validates

from dates import parse_date
from errors import ServiceError

APPID = re.compile("[A-Za-z0-9._-]{1,64}")
IDENTIFIERS = {p: re.compile(f"{p}_[0-9a-f]{{16}}") for p in ("acct", "prof", "sess")}
LARGEST_INTEGER = 2**63 - 1
"""The largest LIMIT and OFFSET of SQLite; MySQL's are larger."""


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

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON can contain one, no database can store it."""

Lengths = tuple[tuple[int, int], ...]
"""The inclusive (minimum, maximum) lengths of the bounded fields, in Unicode characters."""


class Text(fields.String):
    """A non-empty text, stored exactly as sent; it fails with ``invalid-<field>``."""

    def __init__(self, field: str, **options: Any) -> None:
        code = f"invalid-{field}"
        options["validate"] = [validate.Length(min=1, error=code), *options.pop("rules", ())]
        super().__init__(data_key=field, required=True, **options)
        self.error_messages = dict.fromkeys(("required", "null", "invalid"), code)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        text = "true" if value is True else value
        if not isinstance(text, str) or LONE_SURROGATE.search(text):
            raise self.make_error("invalid")
        return text


class Date(Text):
    """A date, stored as YYYY-MM-DD."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        try:
            return parse_date(super()._deserialize(value, *args, **kwargs)).isoformat()
        except ValueError as error:
            raise self.make_error("invalid") from error


def check_address(field: str) -> Callable[[str], None]:
    """Return a marshmallow validator of the syntax of e-mail addresses, without the network."""

    def check(address: str) -> None:
        try:
            validate_email(address, check_deliverability=False, strict=True)
        except EmailNotValidError as error:
            raise ValidationError(f"invalid-{field}") from error

    return check


def profile_field(field: str, lengths: Lengths, *, creating: bool) -> Text:
    """Return the marshmallow field of an input field, by its rule in the catalogue."""
    rule = CATALOGUE[field].rule
    if rule == "date":
        return Date(field)
    if rule == "email":
        rules: list[Any] = [validate.Regexp("^[^@]+@", error=f"invalid-{field}")]
        if not creating:
            return Text(field, rules=rules)
        return Text(field, rules=[*rules, check_address(field)], metadata={"format": "email"})
    if rule == "name":
        least, most = lengths[BOUNDED_FIELDS.index(field)]
        return Text(field, rules=[validate.Length(least, most, error=f"invalid-{field}-length")])
    return Text(field)


class ConfiguredSchema(Schema):
    """The base of the generated schemas: input that the schema does not name is ignored."""

    class Meta:
        unknown = EXCLUDE


@lru_cache(maxsize=256)
def profile_schema(names: tuple[str, ...], lengths: Lengths, *, creating: bool) -> Schema:
    """Return the schema of a list of input fields, built once for each list and operation."""
    row: dict[str, Any] = {
        CATALOGUE[name].property: profile_field(name, lengths, creating=creating) for name in names
    }
    if creating:
        hint = {"description": "Whether it becomes the account's default profile."}
        row["default"] = fields.Raw(allow_none=True, metadata=hint)
    return ConfiguredSchema.from_dict(row, name="CreateProfile" if creating else "UpdateProfile")()


def profile_values(
    body: object, names: tuple[str, ...], lengths: Lengths, *, creating: bool
) -> dict[str, Any]:
    """Return the checked values by property. Raises ServiceError for the first field that fails."""
    if not isinstance(body, Mapping):
        raise ServiceError("invalid-body")
    for name in names:
        if name not in CATALOGUE:
            raise ServiceError(f"invalid-{name}")
    try:
        return profile_schema(names, lengths, creating=creating).load(body)
    except ValidationError as error:
        first = next(name for name in names if name in error.messages_dict)
        raise ServiceError(error.messages_dict[first][0]) from None


class WholeNumber(fields.Integer):
    """A whole number up to LARGEST_INTEGER: ASCII digits, or an int in-process."""

    def __init__(self, name: str, **options: Any) -> None:
        self.code = f"invalid-{name}"
        super().__init__(validate=validate.Range(0, LARGEST_INTEGER, error=self.code), **options)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> int:
        if type(value) is int:
            return value
        digits = isinstance(value, str) and re.fullmatch("0*([0-9]{1,19})", value)
        if not digits:
            raise ValidationError(self.code)
        return int(digits[1])  # without leading zeros: int() refuses more than 4,300 digits


class ListingSchema(ConfiguredSchema):
    """The query of a listing. The default limit is the page size."""

    accountid = fields.String(metadata={"description": "Only those of this account."})
    all = fields.Raw(metadata={"description": "Everything. Leave it out for limit and offset."})
    offset = WholeNumber("offset", load_default=0, metadata={"description": "How many to skip."})
    after = fields.String(metadata={"description": "Only those older than this one."})

    @validates("after")
    def check_after(self, after: str, **options: Any) -> None:
        if not is_identifier("prof", after) and not is_identifier("sess", after):
            raise ValidationError("invalid-after")


@lru_cache(maxsize=8)
def listing_schema(page_size: int) -> Schema:
    """Return the schema of a listing's query, built once for each page size."""
    hint = {"description": "How many at most."}
    limit = WholeNumber("limit", load_default=page_size, metadata=hint)
    return ListingSchema.from_dict({"limit": limit}, name="Listing")()


def listing_query(given: Mapping[str, Any], *, page_size: int) -> dict[str, Any]:
    """Return the checked query. An empty parameter counts as not given; ``all`` replaces
    ``limit`` and ``offset``.

    Raises ServiceError: invalid-limit, invalid-offset, invalid-after.
    """
    query = {k: v for k, v in given.items() if v is not None and v is not False and v != ""}
    if query.get("all"):
        query |= {"limit": LARGEST_INTEGER, "offset": 0}
    try:
        return listing_schema(page_size).load(query)
    except ValidationError as error:
        names = ("limit", "offset", "after", "accountid")
        first = next(name for name in names if name in error.messages_dict)
        raise ServiceError(f"invalid-{first}") from None
