"""What counts as a date: the ways to write one, and the parser."""

import re
from datetime import date, time

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


def parse_date(text: str) -> str:
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
