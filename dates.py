"""What counts as a date: the ways to write one, and the parser."""

import re
from contextlib import suppress
from datetime import date, datetime, time

# "(?!24)" refuses 24:00, which Python 3.14 accepts.
ISO = (
    r"(\d{4}-\d\d-\d\d|\d{8}"  # 1950-01-31, 19500131
    r"|\d{4}-W\d\d-\d|\d{4}W\d{3})"  # 1950-W05-2, 1950W052
    r"(?:[T ]((?!24)\d\d:[\d:.,]+"  # T10:30:00.5
    r"(?:Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)?))?"  # Z, +01:00
)
WEEKDAY = (  # such as "Tue ", if an English date follows and not 01/31/1950
    "(?i)^((mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun)"
    r",? (?!\d+[/-]\d)"
)
# The second of two spaces before a day of one digit, as in ctime's "Jan  5".
PADDING = r"(?<=[A-Za-z,] ) (?=\d\b)"
STRAY_BLANK = r"(?<![\w,]) "  # the first character, or after a blank, "/" or "-"
# (Central European Time), after GMT+0100 or " +0100"
ZONE_NAME = r"(?<=[ T][+-]\d{4}) \([^()]*\)$"
DATE_FORMATS = (
    "%Y/%m/%d",  # 1950/01/31
    "%Y-%m-%d",  # 1950-1-31
    "%m/%d/%Y",  # 01/31/1950
    "%d %B %Y",  # 31 January 1950
    "%d %b %Y",  # 31 Jan 1950
    "%d-%b-%Y",  # 31-Jan-1950
    "%B %d, %Y",  # January 31, 1950
    "%b %d, %Y",  # Jan 31, 1950
    "%B %d %Y",  # January 31 1950
    "%b %d %Y",  # Jan 31 1950
    # RFC 2822:
    "%d %b %Y %H:%M GMT",  # 31 Jan 1950 10:30 GMT
    "%d %b %Y %H:%M %z",  # 31 Jan 1950 10:30 +0100
    "%d %b %Y %H:%M:%S GMT",  # 31 Jan 1950 10:30:00 GMT
    "%d %b %Y %H:%M:%S %z",  # 31 Jan 1950 10:30:00 +0100
    # ctime of C:
    "%b %d %H:%M:%S %Y",  # Jan 31 10:30:00 1950
    # String(date) of JavaScript:
    "%b %d %Y %H:%M:%S GMT%z",  # Jan 31 1950 10:30:00 GMT+0100
)


def parse_date(text):
    """Return a date as YYYY-MM-DD, without a time. Raises ValueError."""
    text = re.sub(ZONE_NAME, "", text)  # first, since it may not be ASCII
    # strptime() also takes digits of other alphabets, tabs and ends of lines.
    if not text.isascii() or not text.isprintable():
        raise ValueError
    if iso := re.fullmatch(ISO, text):
        day, clock_time = iso.groups()
        if clock_time:
            time.fromisoformat(clock_time)
        return date.fromisoformat(day).isoformat()
    text = re.sub(PADDING, "", text)
    text = re.sub(WEEKDAY, "", text)
    if re.search(STRAY_BLANK, text):  # strptime() would skip it
        raise ValueError
    for pattern in DATE_FORMATS:
        with suppress(ValueError):
            return datetime.strptime(text, pattern).date().isoformat()
    raise ValueError
