"""What a date is: one complete and real day, and nothing left over."""

import re
from datetime import date

SHAPES = (
    *("YYYY-MM-DD", "YYYYMMDD"),  # ISO 8601
    *("YYYY-Www-N", "YYYYWwwN"),  # day N of a week
    *("YYYY-NNN", "YYYYNNN"),  # day NNN of the year
    *("YYYY/M/D", "M/D/YYYY"),
    *("the Dth of Month, YYYY", "Month the Dth, YYYY"),  # all but D, Month and YYYY may be missing
)
MONTHS = """Jan(uary)? Feb(ruary)? Mar(ch)? Apr(il)? May June? July? Aug(ust)? Sep(t(ember)?)?
    Oct(ober)? Nov(ember)? Dec(ember)?""".split()
WEEKDAYS = "Mon(day)? Tue(sday)? Wed(nesday)? Thu(rsday)? Fri(day)? Sat(urday)? Sun(day)?".split()
NUMBERS = {name[:3].lower(): n for names in (MONTHS, WEEKDAYS) for n, name in enumerate(names)}
PARTS = {
    "YYYY": r"(?P<year>\d{4})",
    "NNN": r"(?P<yearday>\d{3})",
    "Www": r"W(?P<week>\d\d)",
    "Month": rf"(?P<month_name>{'|'.join(MONTHS)})\.?",
    "MM": r"(?P<month>\d\d)",
    "DD": r"(?P<day>\d\d)",
    "the ": "(the +)?",
    "of ": "(of +)?",
    "th": "(st|nd|rd|th)?",
    "M": r"(?P<month>\d\d?)",
    "D": r"(?P<day>\d\d?)",
    "N": r"(?P<number>\d)",
    ", ": "(,? +|,|-)",
    " ": "( +|-)",
}
BEFORE = rf"((?P<weekday>{'|'.join(WEEKDAYS)})\.?,? +)?"
CLOCK = (
    r"([01]?\d|2[0-3])(:[0-5]\d){1,2}([.,]\d+)?|24:00(:00)?|23:59:60"
    r"|(0?[1-9]|1[0-2])(:[0-5]\d){1,2}[ \u202f]?[AP]M"  # with a blank as JavaScript writes it
)
BASIC = r"([01]\d|2[0-3])([0-5]\d){0,2}([.,]\d+)?|24(00){0,2}"  # ISO 8601 without colons
OFFSET = r"[+-](0\d|1[0-4])(:?[0-5]\d){0,2}"
ZONE = rf" ?(Z|(UTC?|GMT|[ECMP][SD]T)({OFFSET})?|{OFFSET})"
COMMENT = r" \([^()\x00-\x1f\x7f]*\)"
BEHIND = rf"(((T|,? +)({CLOCK})|T({BASIC}))({ZONE}({COMMENT})?)?)?"
WRITTEN = (re.sub("|".join(PARTS), lambda part: PARTS[part[0]], shape) for shape in SHAPES)
PATTERNS = [re.compile(f"(?ai){BEFORE}{shape}{BEHIND}") for shape in WRITTEN]


def parse_date(text: str) -> str:
    """Return the date as YYYY-MM-DD. Raises ValueError for a text that is not one real day."""
    found = next(filter(None, (pattern.fullmatch(text) for pattern in PATTERNS)), None)
    if not found:
        raise ValueError("not a date")
    parts = found.groupdict()
    year = int(parts["year"])
    if "week" in parts:
        day = date.fromisocalendar(year, int(parts["week"]), int(parts["number"]))
    elif "yearday" in parts:
        day = date.fromordinal(date(year, 1, 1).toordinal() + int(parts["yearday"]) - 1)
        if day.year != year:
            raise ValueError("not a day of that year")
    else:
        month = parts.get("month") or 1 + NUMBERS[parts["month_name"][:3].lower()]
        day = date(year, int(month), int(parts["day"]))
    if parts["weekday"] and NUMBERS[parts["weekday"][:3].lower()] != day.weekday():
        raise ValueError("not that day of the week")
    return day.isoformat()
