"""Checking input: the catalogue of the fields, the schemas made from it, identifiers, paging."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from email_validator import validate_email
from marshmallow import EXCLUDE, Schema, fields, validate

from dates import parse_date
from errors import ServiceError

APPID = re.compile("[A-Za-z0-9._-]{1,64}")
IDENTIFIERS = {p: re.compile(f"{p}_[0-9a-f]{{16}}") for p in ("acct", "prof", "sess")}
LARGEST_INTEGER = 2**63 - 1  # the largest LIMIT and OFFSET of SQLite; MySQL's are larger


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


class CheckedText(fields.String):
    """A text, stored as a function returns it. The function raises ValueError for a bad one."""

    def __init__(self, name: str, convert: Callable[[str], str], rules: list[Any]) -> None:
        codes: dict[str, Any] = dict.fromkeys(("required", "null", "invalid"), f"invalid-{name}")
        super().__init__(data_key=name, required=True, validate=rules, error_messages=codes)
        self.convert = convert

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> str:
        if not isinstance(value, str) and value is not True:
            raise self.make_error("invalid")
        text = "true" if value is True else str.__str__(value)  # of an Enum too, which is a str
        try:
            text.encode()  # fails for a lone surrogate, which no database can store
            return self.convert(text)
        except ValueError as error:
            raise self.make_error("invalid") from error


def checked_address(text: str) -> str:
    """Return the e-mail address; its syntax is checked, without the network. Raises ValueError."""
    return validate_email(text, check_deliverability=False, strict=True).original


@lru_cache(maxsize=256)
def profile_schema(names: tuple[str, ...], lengths: Lengths, *, creating: bool) -> Schema:
    """Return the schema of these fields; its messages are the codes. Raises ServiceError."""
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
        schema[property] = CheckedText(name, converters.get(rule, str), rules)
    if creating:
        schema["default"] = fields.Raw(allow_none=True)
    return Schema.from_dict(schema)(unknown=EXCLUDE)


def example_body(names: Iterable[str], lengths: Lengths, most_bytes: int) -> dict[str, str]:
    """Return a body of these input fields with allowed values, of at most so many bytes each."""
    body = {name: CATALOGUE[name].example for name in names}
    for name, (least, most) in zip(BOUNDED_FIELDS, lengths, strict=True):
        if name in body:
            body[name] = body[name].ljust(min(least, most_bytes), ".")[:most]
    return body


def page_query(given: Mapping[str, Any], page_size: int) -> dict[str, Any]:
    """Return the query of a listing, its limit and offset as numbers. Raises ServiceError."""
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
