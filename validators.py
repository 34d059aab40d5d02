"""The catalogue of the ten profile fields, and the schemas generated from it."""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate, validates

from errors import ServiceError

APPID = re.compile("[A-Za-z0-9._-]{1,64}")
IDENTIFIERS = {p: re.compile(f"{p}_[0-9a-f]{{16}}") for p in ("acct", "prof", "sess")}
LARGEST_INTEGER = 2**63 - 1
"""What LIMIT and OFFSET hold on SQLite; MySQL's are larger."""


def is_identifier(prefix: str, text: object) -> bool:
    """Whether the text has the form of an identifier; one that has not names nothing."""
    return isinstance(text, str) and IDENTIFIERS[prefix].fullmatch(text) is not None


class CatalogueRow(NamedTuple):
    property: str
    rule: str


CATALOGUE = {
    # input field                   property        rule
    "full-name":       CatalogueRow("fullName",     "name"),
    "contact-email":   CatalogueRow("contactEmail", "email"),
    "display-email":   CatalogueRow("displayEmail", "email"),
    "display-name":    CatalogueRow("displayName",  "name"),
    "company-name":    CatalogueRow("companyName",  "name"),
    "dob":             CatalogueRow("dob",          "date"),
    "phone":           CatalogueRow("phone",        "text"),
    "occupation":      CatalogueRow("occupation",   "text"),
    "location":        CatalogueRow("location",     "text"),
    "website":         CatalogueRow("website",      "text"),
}  # fmt: skip
BOUNDED_FIELDS = tuple(name for name, row in CATALOGUE.items() if row.rule == "name")

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""What JSON can write and no database can store."""

Lengths = tuple[tuple[int, int], ...]
"""The inclusive (minimum, maximum) lengths of the bounded fields, in Unicode characters."""

ISO_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d|\d{8}|\d{4}-?W\d\d-?[1-7]|\d{4}-?\d{3})(?:[T ].*)?", re.ASCII
)


@lru_cache(maxsize=1)
def date_words() -> Any:
    """What dateutil reads a written date by: English, and no year of two digits."""
    from dateutil.parser import parserinfo

    class FullYears(parserinfo):  # type: ignore[misc]
        def convertyear(self, year: int, century_specified: bool = False) -> int:
            if not century_specified:
                raise ValueError("a year of two digits")
            return year

    return FullYears()


def parse_date(text: str) -> date:
    """The complete date written in the text, ISO 8601 first, a time after it left out.

    Nothing is filled in from today: a written date is read twice, over two defaults that
    differ in year, month and day, and both readings must agree. Raises ValueError.
    """
    from dateutil import parser

    if not 0 < len(text) <= 64 or not text.isascii() or text[0] in "+-":
        # No date is longer, dateutil reads only English, and it would drop the sign of a year.
        raise ValueError("not a date")
    if iso := ISO_DATE.fullmatch(text):
        try:
            parser.isoparse(text.replace(" ", "T", 1))
            day: date = parser.isoparse(iso[1]).date()
            if "W" not in text or f"W{day.isocalendar().week:02}" in text:  # not every year has W53
                return day
        except ValueError:
            pass  # such as 1950-01-31 10:30 PM, which is a written date
    readings = {
        parser.parse(text, date_words(), default=default, ignoretz=True).date()
        for default in (datetime(2001, 1, 1), datetime(2002, 12, 28))
    }
    day = readings.pop()
    if readings or not re.search(rf"(?<!\d){day.year:04}(?!\d)", text):
        raise ValueError("not a complete date")
    return day


class Text(fields.String):
    """A text stored exactly as sent; every failure is ``invalid-<field>``."""

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
        except (ValueError, OverflowError) as error:
            raise self.make_error("invalid") from error


def check_address(field: str) -> Callable[[str], None]:
    """A valid e-mail address by its syntax, with no look at the network."""
    from email_validator import EmailNotValidError, validate_email

    def check(address: str) -> None:
        try:
            validate_email(address, check_deliverability=False, strict=True)
        except EmailNotValidError as error:
            raise ValidationError(f"invalid-{field}") from error

    return check


def profile_field(field: str, lengths: Lengths, *, creating: bool) -> Text:
    """The marshmallow field of an input field, by its rule in the catalogue."""
    rule = CATALOGUE[field].rule
    if rule == "date":
        return Date(field, metadata={"description": "A complete date, ISO 8601 or written."})
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
    """What every generated schema shares: input it does not name is left out."""

    class Meta:
        unknown = EXCLUDE


@lru_cache(maxsize=256)
def profile_schema(names: tuple[str, ...], lengths: Lengths, *, creating: bool) -> Schema:
    """The schema of a list of input fields, built once for each list and operation."""
    row: dict[str, Any] = {
        CATALOGUE[name].property: profile_field(name, lengths, creating=creating) for name in names
    }
    if creating:
        hint = {"description": "`true`: the account's default."}
        row["default"] = fields.Raw(allow_none=True, metadata=hint)
    return ConfiguredSchema.from_dict(row, name="CreateProfile" if creating else "UpdateProfile")()


def profile_values(
    body: object, names: tuple[str, ...], lengths: Lengths, *, creating: bool
) -> dict[str, Any]:
    """The checked values by property; raises ServiceError for the first field that fails."""
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
    """ASCII digits, or a number in-process, that the database can count to."""

    def __init__(self, name: str, **options: Any) -> None:
        self.code = f"invalid-{name}"
        super().__init__(validate=validate.Range(0, LARGEST_INTEGER, error=self.code), **options)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> int:
        if type(value) is int:
            return value
        digits = isinstance(value, str) and re.fullmatch("0*([0-9]{1,19})", value)
        if not digits:
            raise ValidationError(self.code)
        return int(digits[1])  # Python refuses more than 4,300 digits, zeros in front included


class ListingSchema(ConfiguredSchema):
    """The query of a listing; the default of its limit is the page size."""

    accountid = fields.String(metadata={"description": "Only this account's."})
    all = fields.Raw(metadata={"description": "Not empty: everything, whatever limit and offset."})
    offset = WholeNumber("offset", load_default=0)
    after = fields.String(metadata={"description": "Only those older than this one."})

    @validates("after")
    def check_after(self, after: str, **options: Any) -> None:
        if not is_identifier("prof", after) and not is_identifier("sess", after):
            raise ValidationError("invalid-after")


@lru_cache(maxsize=8)
def listing_schema(page_size: int) -> Schema:
    """The schema of a listing's query, built once for each page size."""
    limit = WholeNumber("limit", load_default=page_size)
    return ListingSchema.from_dict({"limit": limit}, name="Listing")()


def listing_query(given: Mapping[str, Any], *, page_size: int) -> dict[str, Any]:
    """The checked query; a parameter that is empty counts as not given, ``all`` overrules.

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
