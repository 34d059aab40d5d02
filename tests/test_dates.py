"""What a date is: each way to write a day is stored as that day, the rest refused."""

import locale
import subprocess
from datetime import date
from pathlib import Path

import pytest

from database import transaction
from errors import ServiceError
from operations import create_profile
from validators import parse_date

DAYS = [
    "0050-05-01",
    "1950-01-05",
    "1950-01-31",
    "2000-02-29",
    "2021-01-03",
    "9999-12-31",
]
ISO_DAYS = [
    "{year}-{day:%m-%d}",
    "{year}{day:%m%d}",
    "{week.year:04}-W{week.week:02}-{week.weekday}",
    "{week.year:04}W{week.week:02}{week.weekday}",
]
ISO_TIMES = [
    "",
    "T10:30",
    "T10:30:00",
    "T10:30:00.5Z",
    " 23:59:59,999999",
    " 10:30-05:30",
    "T10:30+0530",
    "T10:30:00+01",
]
ENGLISH_DAYS = [
    "{day.day} {day:%B} {year}",
    "{day.day} {day:%b} {year}",
    "{day:%d-%b}-{year}",
    "{day:%B} {day.day}, {year}",
    "{day:%b} {day.day}, {year}",
    "{day:%B} {day.day} {year}",
    "{day:%b} {day.day} {year}",
]
WEEKDAYS = ["", "{day:%a} ", "{day:%a}, ", "{day:%A} ", "{day:%A}, "]
OTHER_WAYS = [
    "{year}/{day:%m/%d}",
    "{year}/{day.month}/{day.day}",
    "{day:%m/%d}/{year}",
    "{day.month}/{day.day}/{year}",
    "{day:%a %b} {day.day:2} 10:30:00 {year}",  # C's ctime
    "{day:%a, %d %b} {year} 10:30:00 GMT",  # JavaScript's toUTCString
    "{day:%a %b %d} {year}",  # JavaScript's toDateString
    "{day:%a %b %d} {year} 00:00:00 GMT-0500",
    "{day:%a %b %d} {year} 00:00:00 GMT+0100 (Mitteleuropäische Normalzeit)",
    "{day:%a, %d %b} {year} 10:30:00 +0000",  # Python's format_datetime
    "{day:%a, %d %b} {year} 10:30:00 -0000",
    "{day:%a, %d %b} {year} 10:30:00 -0330",
]


def ways_to_write(day):
    """The day in every way, also those of libraries."""
    iso = [way + end for way in ISO_DAYS for end in ISO_TIMES]
    english = [start + way for start in WEEKDAYS for way in ENGLISH_DAYS]
    year, week = f"{day.year:04}", day.isocalendar()
    texts = []
    for way in iso + OTHER_WAYS + english:
        text = way.format(day=day, year=year, week=week)
        texts.append(text)
        if way in english:
            texts += [text.upper(), text.lower()]
    return texts


INCOMPLETE = """\
1950
1950-01
1950-W05
195001
January 1950
31 January
January 31
--01-31
01/31
1950/01
1950-
Tuesday
10:30
T10:30
today
31
the 31st of 1950
310150
31st
10/11/12
1/31/50
31 Jan '50
50-01-31
Jan 31 50
31 January 950
Tue, 31-Jan-50 10:30 GMT
"""
NO_REAL_DAYS = """\
1950-02-29
1900-02-29
2100-02-29
29 February 2023
Feb 30, 2024
2/29/1950
19500229
1950-13-01
1950-00-10
1950-01-00
1950-01-32
0 January 1950
32 January 1950
31 April 1950
13/02/1990
31/01/1950
0000-01-01
0000-W01-1
9999-W52-7
10000-01-01
31 January 10000
2024-W53-1
1950W538
2024-W54-1
2024-W00-1
1950-W05-0
1950-W05-8
Tue Jan 31 25:30:00 1950
Tue Jan 31 1950 24:00:00 GMT+0100
"""
OTHER_NOTATIONS = """\
1950-031
1950031
1950-W052
1950W05-2
1950-1-31
1950-01-1
1950.01.31
31.01.1950
1-31-1950
1950-01/31
1950-0131
31st of January 1950
January the 31st, 1950
Jan. 31, 1950
31 Jan. 1950
31 x January 1950
31 January February 1950
31 January -1950
31-30 January 1950
31 January 1950 BCE
Tuesday Tuesday 31 January 1950
nan
1950\x0001-31
31\xa0January 1950
1950/01/ 5
31   January   1950
31  January 1950
Tue  Jan 31 10:30:00 1950
Jan  5 1950
Tueday, 31 January 1950
Tuesday, 1950-01-31
Tuesday, 01/31/1950
Tues, 31 January 1950
Wednes, 1 February 1950
Thuday, 2 February 1950
Satur, 4 February 1950
１９５０-01-31
1950-٠١-31
31 Auguſt 1950
31 Januarʏ 1950
1950‐01‐31
"""
# A date and what must not be before or behind it.
WITH_MORE = """\
 {}
{}\x20
\0{}
{}\0
{}T10:30\0
-{}
+{}
1{}
x{}
Monday Tuesday {}
31 {}
(x) {}
at {}
{}x
{}?
{},
{}.
{}-
{}T
{}Z
{} Z
{}+01:00
{}T-05:00
{} BC
{} AD
{} 1951
{} and 1951
{} - 1951
{} 1951-02-01
{}/1951-02-01
{} 10
{} (x)
{}T25:00
{}T24:00
{}T24:01
{}T10:60
{}T10:30:60
{}T10:3
{}T10:
{}T10:30:
{}T10:30:00.
{}T10
{} 0:30 AM
{} 10:30 PM
{} 10:30 1951
{}T10:30+99:99
{}T10:30+15
{}T1030
{}T10:30+01:60
{}T10:30+1
{}T10:30 XYZ
{}T10:30 (x)
{}T10:30Z 1951
{}T1٠:30
{}T10:30−05:00
{}t10:30
{}  10:30
{}T10:30z
""".splitlines()
WITH_MORE += ["\n{}", "{}\n", "{}T10:30Z\n"]
DATES = [
    "1950-01-31",
    "1950W052",
    "01/31/1950",
    "31 January 1950",
    "31 Jan 1950",
    "Jan 31, 1950",
]
LONG_PARTS = [
    " ",
    "\0",
    "9",
    "(",
    " ()",
    ", ",
    "T10",
    "Tue, ",
]
LONG_TEXTS = [part * 20_000 for part in LONG_PARTS]
NO_DATES = ["", *LONG_TEXTS]
NO_DATES += (INCOMPLETE + NO_REAL_DAYS + OTHER_NOTATIONS).splitlines()
for text in DATES:
    NO_DATES += [template.format(text) for template in WITH_MORE]
    NO_DATES += [text + end for end in LONG_TEXTS]


def stored_date(account, text):
    """The date that is stored for the text, or the code of the error."""
    options = {"user_profile_fields": ["dob"]}
    try:
        made = create_profile(account, account.accountid, {"dob": text}, **options)
    except ServiceError as error:
        return error.code
    return made["dob"]


def test_each_way_to_write_a_day(user):
    account = user.account
    expected = {}
    for day in DAYS:
        texts = ways_to_write(date.fromisoformat(day))
        expected |= dict.fromkeys(texts, day)
    with transaction():
        results = {text: stored_date(account, text) for text in expected}
    assert results == expected


def test_a_weekday_is_skipped_whatever_it_is():
    for text in ("Monday 31 January 1950", "Wed, 31 Jan 1950 10:30:00 GMT"):
        assert parse_date(text) == "1950-01-31"


LOCALE = "de_DE.UTF-8"


@pytest.mark.skipif(
    not Path("/usr/share/i18n/locales/de_DE").exists(), reason="install locales"
)
def test_months_and_weekdays_are_english_in_any_locale(tmp_path, monkeypatch):
    options = f"-i de_DE -f UTF-8 {tmp_path}/{LOCALE}"
    subprocess.run(["localedef", *options.split()], check=True)
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    before = locale.setlocale(locale.LC_TIME)
    locale.setlocale(locale.LC_TIME, LOCALE)
    try:
        assert f"{date(1950, 10, 31):%A %B}" == "Dienstag Oktober"
        assert parse_date("Tuesday, 31 October 1950") == "1950-10-31"
        with pytest.raises(ValueError):
            parse_date("Dienstag, 31 Oktober 1950")
    finally:
        locale.setlocale(locale.LC_TIME, before)


def test_anything_else_is_refused(user):
    accepted = []
    for text in NO_DATES:
        if stored_date(user.account, text) != "invalid-dob":
            accepted.append(text[:80])
    assert accepted == []
