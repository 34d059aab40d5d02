"""What a date is: each way of writing one day is stored as that day, and all else is refused."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from email.utils import format_datetime
from itertools import product

from database import transaction
from errors import ServiceError
from operations import create_profile, list_profiles

DAY = date(1950, 1, 31)
DAYS = [
    DAY,
    *map(date.fromisoformat, ("0050-05-01", "2000-02-29", "2021-01-03", "9999-12-31")),
]
ISO = "{y:04}-{m:02}-{d:02}|{y:04}{m:02}{d:02}|{wy:04}-W{w:02}-{n}|{wy:04}W{w:02}{n}".split(
    "|"
)
TIMES = "|T10:30|T10:30:00|T10:30:00.5Z| 23:59:59,999999| 10:30-05:30|T10:30+0530|T10:30:00+01"
SLASHES = (
    "{y:04}/{m:02}/{d:02}|{y:04}/{m}/{d}|{m:02}/{d:02}/{y:04}|{m}/{d}/{y:04}".split("|")
)
ENGLISH = (
    "{d} {B} {y:04}|{d} {b} {y:04}|{d:02}-{b}-{y:04}|{B} {d}, {y:04}|{b} {d}, {y:04}"
)
FORMS = [*ISO, *SLASHES, *ENGLISH.split("|")]


def written(day, form):
    (wy, w, n), names = (
        day.isocalendar(),
        {name: format(day, f"%{name}") for name in "AaBb"},
    )
    return form.format(y=day.year, m=day.month, d=day.day, wy=wy, w=w, n=n, **names)


def ways(day):
    """Every way to write the day, also those of libraries."""
    yield from (
        written(day, form) + end for form, end in product(ISO, TIMES.split("|"))
    )
    yield from (written(day, form) for form in SLASHES)
    for form, before in product(FORMS[8:], ("", "{a} ", "{a}, ", "{A}, ", "{A} ")):
        yield from (
            change(written(day, before + form))
            for change in (str, str.upper, str.lower)
        )
    for end in (
        "",
        " 00:00:00 GMT-0500",
        " 00:00:00 GMT+0100 (Mitteleuropäische Normalzeit)",
    ):
        yield written(day, "{a} {b} {d:02} {y:04}") + end  # JavaScript's
    yield written(day, "{a}, {d:02} {b} {y:04} 10:30:00 GMT")  # its toUTCString
    yield written(day, "{a} {b} {d:2} 10:30:00 {y:04}")  # C's ctime
    for zone in (None, UTC, timezone(timedelta(hours=-3, minutes=-30))):
        yield format_datetime(datetime.combine(day, time(10, 30, 0, 123456), zone))


BEFORE = "-|+| |\n|\0|1|x|Monday, |Monday Tuesday |31 |(x) |at "
BEHIND = (
    " |\n|\0|x|?|,|.|-|T|Z| Z|+01:00|T-05:00| BC| AD| 1951| and 1951| - 1951| 1951-02-01| 10| (x)"
    "|/1951-02-01|T25:00|T24:00|T24:01|T10:60|T10:30:60|T10:3|T10:|T10:30:|T10:30:00.|T10"
    "| 0:30 AM| 10:30 PM| 10:30 1951|T10:30+99:99|T10:30+15|T1030|T10:30+01:60|T10:30+1|T10:30 XYZ"
    "|T10:30 (x)|T10:30Z 1951|T10:30\0|T10:30Z\n|T1٠:30|T10:30−05:00|t10:30|  10:30|T10:30z"
)
LONG = [
    each * 20_000
    for each in (" ", "0", "T10", " ()", "(", "x", ", ", "9", "Tue, ", "-", "\0")
]
SINGLE = """1950 | 1950-01 | 1950-W05 | 195001 | January 1950 | 31 January | January 31 | --01-31
| 01/31 | 1950/01 | 1950- | Tuesday | 10:30 | T10:30 | today | 31 | the 31st of 1950 | 310150 | 31st
| 10/11/12 | 1/31/50 | 31 Jan '50 | 50-01-31 | Jan 31 50 | 31 January 950 | Tue, 31-Jan-50 10:30 GMT
| 1950-031 | 1950031 | 31st of January 1950 | January the 31st, 1950 | Jan. 31, 1950 | 31 Jan. 1950
| 1950-02-29 | 1900-02-29 | 2100-02-29 | 29 February 2023 | Feb 30, 2024 | 2/29/1950 | 19500229
| 1950-13-01 | 1950-00-10 | 1950-01-00 | 1950-01-32 | 0 January 1950 | 32 January 1950 | 9999-W52-7
| 31 April 1950 | 13/02/1990 | 31/01/1950 | 0000-01-01 | 0000-W01-1 | 10000-01-01 | 31 January 10000
| 2024-W53-1 | 1950W538 | 2024-W54-1 | 2024-W00-1 | 1950-W05-0 | 1950-W05-8 | 1950-W052 | 1950W05-2
| 31 January February 1950 | 31 January -1950 | Monday 31 January 1950 | 31-30 January 1950 | nan
| Wed, 31 Jan 1950 10:30:00 GMT | Tuesday Tuesday 31 January 1950 | 31 January 1950 BCE | 1950-01-1
| Mon Jan 31 10:30:00 1950 | Tue Jan 31 25:30:00 1950 | Tue Jan 31 1950 24:00:00 GMT+0100
| １９５０-01-31 | 1950-٠١-31 | 31 Auguſt 1950 | 31 Januarʏ 1950 | 1950‐01‐31
| 1950-1-31 | 1950.01.31 | 31.01.1950 | 1-31-1950 | 1950-01/31 | 1950-0131 | 31 x January 1950"""
NO_DATES = [
    *map(str.strip, SINGLE.split("|")),
    "",
    "1950\x0001-31",
    "31\xa0January 1950",
    *LONG,
]
NO_DATES += [
    each + written(DAY, form) for form in FORMS[::3] for each in BEFORE.split("|")
]
NO_DATES += [
    written(DAY, form) + each for form in FORMS[::3] for each in BEHIND.split("|")
]
NO_DATES += [
    written(DAY, form) + each for form in (FORMS[0], FORMS[8]) for each in LONG
]


def test_dates(user):
    account, found = user.account, {}
    dates = {text: day.isoformat() for day in DAYS for text in ways(day)}
    dates |= dict.fromkeys(NO_DATES, "invalid-dob")
    with transaction():
        for text in dates:
            target = (account, account.accountid, {"dob": text})
            try:
                found[text] = create_profile(*target, user_profile_fields=["dob"])[
                    "dob"
                ]
            except ServiceError as error:
                found[text] = str(error)
    assert {
        text[:80]: found[text] for text in dates if found[text] != dates[text]
    } == {}
    account.administrator = True
    stored = [row["dob"] for row in list_profiles(account, all=True)]
    assert stored == [day for day in dates.values() if day != "invalid-dob"][::-1]
