"""What a date is: each way of writing one day is stored as that day, and all else is refused."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from email.utils import format_datetime
from itertools import product

from database import transaction
from errors import ServiceError
from operations import create_profile, list_profiles

MONTHS = "January February March April May June July August September October November December"
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
DAY = date(1950, 1, 31)
DAYS = [DAY, *map(date.fromisoformat, ("0050-01-01", "2000-02-29", "2021-01-03", "9999-12-31"))]
MORE = map(date.fromisoformat, ("0001-01-01", "1972-09-02", "2011-11-11", "2024-12-30"))
FORMS = [
    *("{y:04}-{m:02}-{d:02}", "{y:04}{m:02}{d:02}", "{y:04}-{yd:03}", "{y:04}{yd:03}"),
    *("{wy:04}-W{w:02}-{n}", "{wy:04}W{w:02}{n}", "{y:04}/{m:02}/{d:02}", "{y:04}/{m}/{d}"),
    *("{m:02}/{d:02}/{y:04}", "{m}/{d}/{y:04}", "{d} {month} {y:04}", "{d:02}-{mon}-{y:04}"),
    *("{d}{th} of {month}, {y:04}", "the {d}{th} of {month} {y:04}", "{month} {d}, {y:04}"),
    *("{mon}. {d} {y:04}", "{month} the {d}{th}, {y:04}"),
]
TIMES = [
    *("", "T10:30:00.5Z", "T1030+0100", "T24:00", " 23:59:59,999 -05:30", ", 10:30:05\u202fPM"),
    *(" 12:30 AM EST", " 10:30:00 GMT+0100 (Central European Standard Time)"),
]


def written(day, form):
    wy, w, n = day.isocalendar()
    month, weekday = MONTHS.split()[day.month - 1], WEEKDAYS.split()[n - 1]
    th = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    parts = {"y": day.year, "m": day.month, "d": day.day, "yd": day.timetuple().tm_yday}
    parts |= {"wy": wy, "w": w, "n": n, "month": month, "mon": month[:3], "th": th}
    return form.format(**parts, weekday=weekday, wd=weekday[:3])


def written_by_libraries(day):
    """The day as JavaScript, Python and databases write it, most of them with a time."""
    yield written(day, "{wd} {mon} {d:02} {y:04}")  # toDateString
    for zone in (
        *("+0000 (Coordinated Universal Time)", "+0530 (GMT+05:30)", "-0500 (EST)", ""),
        *("+0100 (Mitteleuropäische Normalzeit)", "+0800 (中国标准时间)"),
    ):
        yield written(day, "{wd} {mon} {d:02} {y:04} 00:00:00 GMT") + zone  # String(date)
    yield written(day, "{wd}, {d:02} {mon} {y:04} 10:30:00 GMT")  # toUTCString
    yield written(day, "{y:04}-{m:02}-{d:02}T10:30:00.000Z")  # toISOString
    yield written(day, "{m}/{d}/{y:04}, 10:30:00 AM")  # toLocaleString
    for zone in (None, UTC, timezone(timedelta(hours=-3, minutes=-30))):
        moment = datetime.combine(day, time(10, 30, 0, 123456), zone)
        yield from (str(moment), moment.isoformat(timespec="minutes"), format_datetime(moment))
    if day.year >= 1000:  # the C library writes others without zeros
        for form in (
            *("%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%A, %B %d, %Y", "%a %d %b %Y %H:%M:%S UTC"),
            *("%Y%m%dT%H%M%SZ", "%m/%d/%Y %I:%M %p", "%G-W%V-%u", "%Y-%j", "%a, %d %b %Y %X +0000"),
        ):
            yield moment.strftime(form)


DATES = {
    before + written(day, form) + behind: day.isoformat()
    for day, form, behind in [*product(DAYS, FORMS, TIMES), *product(MORE, FORMS, TIMES[:1])]
    for before in ("", written(day, "{weekday}, "))
}
DATES |= {text: day.isoformat() for day in DAYS for text in written_by_libraries(day)}
DATES |= {
    text.strip(): "1950-01-31"
    for text in (
        "31 JANUARY 1950 | tue, january 31, 1950 | 1950-w05-2 | 1950-01-31t10:30z | Tue 1/31/1950"
        "| the 31st of January 1950 | January the 31st, 1950 | Tue. the 31st of Jan. 1950"
        "| 31 of January 1950 | 31  January   1950 | Jan-31-1950 | 1950-01-31 10:30"
        "| 1950-01-31 1:30 | 1950-01-31T10 | 1950-01-31T103000,5 | 1950-01-31  10:30 UT"
        "| 1950-01-31 10:30 Z | 1950-01-31T10:30+01 | 19500131T240000Z | 1950031T10:30"
        "| 1950-01-31T10:30 PST | 1950-01-31 1:30 PM | 1950-01-31 24:00:00 | Jan the 31st 1950"
        "| 1950-01-31T23:59:60Z | 1950-01-31T10:30:00+00:19:32 | January 31,1950"
    ).split("|")
}
DATES |= {
    f"31{' ' * 30_000}January{' ' * 30_000}1950": "1950-01-31",
    f"1950-01-31T10:30:00.{'9' * 60_000}Z": "1950-01-31",
    f"1950-01-31T10:30:00Z ({'x' * 60_000})": "1950-01-31",
    **{"Sept. 2 1972": "1972-09-02", "2-SEPT-1972": "1972-09-02", "2 Sep 1972": "1972-09-02"},
    **{"1 January 0050": "0050-01-01", "May 1 1950": "1950-05-01", "2020-W53-7": "2021-01-03"},
}

BEFORE = "-|+| |\n|\0|1|x|Monday, |Monday Tuesday |31 |(x) |at "
BEHIND = (
    " |\n|\0|x|?|,|.|-|T|Z| Z|+01:00|T-05:00| BC| AD| 1951| and 1951| - 1951| 1951-02-01| 10| (x)"
    "|/1951-02-01|--1951-02-01|T25:00|T24:01|T10:60|T10:30:61|T10:3|T10:|T10:30:|T10:30:00.|TT10"
    "| 13:00 PM| 0:30 AM| 10 PM| 10:30 XM| 10:30 AM PM| 00:00 BC| 10:30 1951|T10:30+99:99|T10:30+15"
    "|T2430|T10:30+2050|T10:30+01:60|T10:30+1|T10:30 XYZ|T10:30Z (x|T10:30Z ((x))"
    "|T10:30Z (x) (y)|T10:30 (x)| 00:00 (BC)|T10:30Z (x\n)|T10:30Z 1951|T10:30ZZ"
    "|T10:30\0|T10:30Z\n|T1٠:30|T10:30\xa0PM|T10:30−05:00"
)
LONG = [
    *(" " * 60_000, " " * 60_000 + "x", " 10:30" + " " * 60_000 + "Z", ", " * 30_000),
    *("0" * 60_000, "T10:30." + "9" * 60_000 + "x", "T10:30+" + "0" * 60_000, "T" * 60_000),
    *("T10:30Z (" + "(" * 60_000, "T10:30Z (" + "x" * 60_000, "T10:30Z" + " ()" * 20_000),
]
SINGLE = """
1950 | 1950-01 | 1950-W05 | 1950W05 | 195001 | January 1950 | 31 January | 01-1950 | January 31
| W05-2 | --01-31 | -031 | 01/31 | 1950/01 | 1950- | Tuesday | 10:30 | T10:30 | today | now | 31
| 31st | 1/31/019 | of January 1950 | the 31st of 1950 | 310150 | 10/11/12 | 1/31/50 | 31 Jan '50
| 50-01-31 | Jan 31 50 | 31 January 950 | 1/2/20 2020 | 1/2/50 10:30 +2050 | 1/2/50 10:30:10.2050
| Tue, 31-Jan-50 10:30:00 GMT

| 1950-02-29 | 1900-02-29 | 2100-02-29 | 29 February 2023 | Feb 30 2024 | 2/29/1950 | 19500229
| 1950-13-01 | 1950-00-10 | 1950-01-00 | 1950-01-32 | 0 January 1950 | 32 January 1950
| 31 April 1950 | 13/02/1990 | 31/01/1950 | 0000-01-01 | 0000-001 | 0000-W01-1 | 10000-01-01
| 31 January 10000 | 1950-000 | 1950-366 | 1950366 | 2024-367 | 9999-366 | 1950-999 | 0001-000
| 2024-W53-1 | 2023W531 | 1950W538 | 2024-W54-1 | 2024-W00-1 | 1950-W05-0 | 1950-W05-8 | 9999-W52-7
| 0001-W53-1

| 31-30 January 1950 | 31 January February 1950 | 31 January -1950 | 31 Jan 1950 and 1951
| January 31.9 1950 | 31.5 January 1950 | 31/31 January 1950 | 31 or 30 January 1950
| Monday 31 January 1950 | Wed, 31 Jan 1950 10:30:00 GMT | Sunday 1950-W05-2 | Mon 1950031
| Tuesday Tuesday 31 January 1950 | 31 January 1950 BCE | the the 31st of January 1950

| １９５０-01-31 | 1950-٠١-31 | 31 Auguſt 1950 | 31 Januarʏ 1950 | 1950‐01‐31 | 1950-1-31
| 1950-01-1 | 1950.01.31 | 31.01.1950 | 1-31-1950 | 1950-01/31 | 1950-0131 | 195001-31 | 1950-W052
| 1950W05-2 | 31 de enero de 1950 | XXXI January 1950 | thirty-first January 1950
| January 1950 31 | 31 Janu 1950 | 31 Janu. 1950 | 31January1950 | the Tuesday 31 January 1950
| 1e3-01-31 | [31 January 1950] | nan | "1950-01-31" | 1950-01-31; | Infinity | -631152000
| 1e99999999 1950 | 0x79e-01-31 | 2433313.5 | on 31 January 1950 | R/1950-01-31 | 31 x January 1950
"""
NO_DATES = [
    *(before + written(DAY, form) for form in FORMS for before in BEFORE.split("|")),
    *(written(DAY, form) + behind for form in FORMS for behind in BEHIND.split("|")),
    *(written(DAY, form) + behind for form in FORMS[::8] for behind in LONG),
    *(text * (60_000 // len(text)) for text in (" ", "1", "-", "the ", "Tue, ", "31 of ", "\0")),
    *(word + " " * 60_000 + "x" for word in ("the", "31", "Tue")),
    *("31 January,-1950", "January-31,-1950", "1 Sepember 1950"),
    *("", "1950\x0001-31", "1950-0\x001-31", "31\tJanuary 1950", "31\xa0January 1950"),
    *(text.strip() for text in SINGLE.split("|")),
]


def surprises(account, expected):
    """The texts whose outcome, a stored date or a code, is not the expected one."""
    found = {}
    for text in expected:
        try:
            body = {"dob": text}
            made = create_profile(account, account.accountid, body, user_profile_fields=["dob"])
            found[text] = made["dob"]
        except ServiceError as error:
            found[text] = str(error)
    return {text[:80]: found[text] for text in expected if found[text] != expected[text]}


def test_dates(user):
    with transaction():
        assert not surprises(user.account, DATES)
    user.account.administrator = True
    stored = [row["dob"] for row in list_profiles(user.account, all=True)]
    assert stored == [*DATES.values()][::-1]
    assert len(stored) > 1300


def test_no_dates(user):
    with transaction():
        assert not surprises(user.account, dict.fromkeys(NO_DATES, "invalid-dob"))
    user.account.administrator = True
    assert list_profiles(user.account) is None
