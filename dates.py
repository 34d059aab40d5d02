"""Reading a date as people write it."""

import re
from datetime import date, datetime

from dateutil import parser

ISO_DATE = re.compile(r"(\d{4}-\d\d-\d\d|\d{8}|\d{4}-?W\d\d-?[1-7]|\d{4}-?\d{3})(?:[T ].*)?")
DEFAULTS = (datetime(2001, 1, 1), datetime(2002, 12, 28))
"""What dateutil fills missing parts in from: a complete date gives the same result with both."""


class FullYears(parser.parserinfo):  # type: ignore[misc]
    """dateutil's words for dates, with years of two digits refused."""

    def convertyear(self, year: int, century_specified: bool = False) -> int:
        if not century_specified:
            raise ValueError("a year of two digits")
        return year


def parse_date(text: str) -> str:
    """Return the complete date in the text as YYYY-MM-DD; a time after it is ignored.

    The text is ISO 8601, or else a date such as "31 January 1950". Raises ValueError.
    """
    if len(text) > 64 or not text.isascii() or text.startswith(("+", "-")):
        # No written date is longer. dateutil reads English only, and ignores the sign of a year.
        raise ValueError("not a date")
    try:
        if match := ISO_DATE.fullmatch(text):
            parser.isoparse(text.replace(" ", "T", 1))
            if "W" in text:
                date.fromisoformat(match[1])  # isoparse takes a week 53 in every year
            return parser.isoparse(match[1]).date().isoformat()
    except (ValueError, OverflowError):
        pass  # such as 1950-01-31 10:30 PM, which is no ISO 8601
    try:
        found = {parser.parse(text, FullYears(), default=d, ignoretz=True).date() for d in DEFAULTS}
    except Exception as error:  # dateutil documents ValueError; decimal's errors get out too
        raise ValueError("not a date") from error
    day = found.pop()
    if found or not re.search(rf"(?<!\d){day.year:04}(?!\d)", text):
        raise ValueError("not a complete date")
    return day.isoformat()
