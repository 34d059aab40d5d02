"""What is a date: each text below is stored as its day, or refused.

The text alone decides, so one database will do.
"""

from functools import partial

import pytest
from service import assert_error, on_sqlite, sign_in

from app import create_app

pytestmark = on_sqlite
ACCEPTED = """\
1950-01-31: 1950-01-31 | 19500131 | 1950-W05-2 | 1950W052 | 1950-01-31T10:30
1950-01-31: 1950-01-31T10:30:00.5Z | 1950-01-31T10:30:00+0100 | 1950-01-31T10:30:00+01
1950-01-31: 1950-01-31 10:30 | 1950-01-31 10:30-05:30 | 1950-01-31 23:59:59,999999
1950-01-31: 19500131T10:30 | 1950-W05-2T10:30Z | 1950W052 10:30 | 1950/01/31 | 1950/1/31
1950-01-31: 01/31/1950 | 1/31/1950 | 31 January 1950 | 31 Jan 1950 | 31-Jan-1950
1950-01-31: 31-JAN-1950 | 31 jan 1950 | January 31, 1950 | Jan 31, 1950
1950-01-31: january 31 1950 | JAN 31 1950 | Tue 31 Jan 1950 | Tuesday 31-Jan-1950
1950-01-31: TUESDAY, January 31, 1950 | Mon, 31 Jan 1950 | monday 31 January 1950
1950-01-31: WED January 31, 1950 | Wednesday, Jan 31 1950 | thu, 31 jan 1950
1950-01-31: Thursday 31-Jan-1950 | FRI 31 JAN 1950 | Friday, Jan 31, 1950
1950-01-31: Sat Jan 31 1950 | saturday, 31 Jan 1950 | Sun, 31-jan-1950
1950-01-31: Sunday January 31 1950 | Tue, 31 Jan 1950 10:30 GMT
1950-01-31: Tue, 31 Jan 1950 10:30:00 GMT | 31 Jan 1950 10:30 +0100
1950-01-31: Tue, 31 Jan 1950 10:30:00 -0330 | Wed, 31 Jan 1950 10:30:00 -0000
1950-01-31: Tue Jan 31 10:30:00 1950 | Tue Jan 31 1950
1950-01-31: Tue Jan 31 1950 00:00:00 GMT-0500
1950-01-31: Tue Jan 31 1950 10:30:00 GMT+0100 (Central European Standard Time)
1950-01-31: Tue Jan 31 1950 00:00:00 GMT+0100 (Mitteleuropäische Normalzeit)
1950-01-05: 5 January 1950 | 05 Jan 1950 | January 5, 1950 | Jan 05 1950 | 5-jan-1950
1950-01-05: Thu Jan  5 10:30:00 1950 | 1950/1/5 | 1/5/1950
0050-05-01: 0050-05-01 | 00500501 | 5/1/0050 | 1 May 0050
2021-01-03: 2021-01-03 | 2020-W53-7 | 2020W537
2000-02-29: 2000-02-29 | 20000229 | 2000/2/29 | 29 FEBRUARY 2000 | Feb 29 2000
9999-12-31: 9999-12-31 | 99991231 | 31-Dec-9999 | December 31, 9999
""".splitlines()
NO_WHOLE_REAL_DAYS = """\
1950 | 1950-01 | 1950- | 1950-W05 | 195001 | 1950/01 | January 1950 | 31 January
January 31 | --01-31 | 01/31 | Tuesday | 10:30 | T10:30 | today | 31 | 31st | 310150
the 31st of 1950 | 10/11/12 | 1/31/50 | 50-01-31 | 31 Jan '50 | Jan 31 50
31 January 950 | Tue, 31-Jan-50 10:30 GMT
1950-02-29 | 1900-02-29 | 2100-02-29 | 19500229 | 2/29/1950 | 29 February 2023
Feb 30, 2024 | 31 April 1950 | 0 January 1950 | 32 January 1950 | 13/02/1990
31/01/1950 | 1950-13-01 | 1950-00-10 | 1950-01-00 | 1950-01-32 | 0000-01-01
10000-01-01 | 31 January 10000 | 0000-W01-1 | 9999-W52-7 | 2024-W53-1 | 2024-W54-1
2024-W00-1 | 1950W538 | 1950-W05-0 | 1950-W05-8 | Tue Jan 31 25:30:00 1950
Tue Jan 31 1950 24:00:00 GMT+0100
""".splitlines()
OTHER_WAYS = """\
1950-031 | 1950031 | 1950-W052 | 1950W05-2 | 1950-1-31 | 1950-01-1 | 1950.01.31
31.01.1950 | 1-31-1950 | 1950-01/31 | 1950-0131 | 31st of January 1950
January the 31st, 1950 | Jan. 31, 1950 | 31 Jan. 1950 | 31 x January 1950
31 January -1950 | 31-30 January 1950 | 31 January February 1950 | nan
Tuesday Tuesday 31 January 1950 | Tueday, 31 January 1950 | Tues, 31 January 1950
Wednes, 1 February 1950 | Thuday, 2 February 1950 | Satur, 4 February 1950
Tuesday, 1950-01-31 | Tuesday, 1950/01/31 | Tuesday, 01/31/1950 | １９５０-01-31
1950-٠١-31 | 1950‐01‐31 | 1950\x0001-31 | 31\xa0January 1950 | 31 Auguſt 1950
31 Januarʏ 1950
""".splitlines()
WITH_MORE = """\
{}T | {}Z | {}T10 | {}T1030 | {}T10: | {}T10:3 | {}T10:30: | {}T10:30:00. | {}T10:60
{}T10:30:60 | {}T24:00 | {}T24:01 | {}T25:00 | {}t10:30 | {}T10:30z | {}T1٠:30
{}T10:30+15 | {}T10:30+01:60
{}T10:30+1 | {}T10:30+99:99 | {}T10:30−05:00 | {}T10:30 XYZ | {}T10:30 (x)
{}T10:30Z 1951 | {}T-05:00 | {}+01:00 | {} Z | {} 10 | {} 0:30 AM | {} 10:30 PM
{} 10:30 1951 | {}  10:30 | {}T10:30\0 |  {} | {}  | \0{} | {}\0 | -{} | +{} | 1{}
x{} | 31 {} | (x) {} | at {} | Monday Tuesday {} | {}x | {}? | {}, | {}. | {}-
{} (x) | {} BC | {} AD | {} 1951 | {} and 1951 | {} - 1951 | {} 1951-02-01
{}/1951-02-01
""".splitlines()
DATES = ["", "1950-01-31", "1950W052", "01/31/1950", "31 January 1950", "Jan 31, 1950"]
LONG = f"{{}}{' ' * 60_000} | {{}}{'(' * 60_000} | {{}}{' ()' * 20_000}"


def cells(*rows):
    return [text for row in rows for text in row.split(" | ")]


def accepted():
    for row in ACCEPTED:
        day, texts = row.split(": ", maxsplit=1)
        for text in cells(texts):
            yield text, day


def refused():
    yield from cells(*NO_WHOLE_REAL_DAYS, *OTHER_WAYS)
    for date in DATES:
        for template in [*cells(*WITH_MORE, LONG), "\n{}", "{}\n"]:
            yield template.format(date)


@pytest.fixture(scope="module")
def update(database_url):
    """Updates a profile whose only field is the date."""
    app = create_app({"DATABASE_URL": database_url, "USER_PROFILE_FIELDS": "dob"})
    user = sign_in(app)
    profile = user.create({"dob": "1999-12-31"}).json
    return partial(user.update, profile["profileid"])


@pytest.mark.parametrize(("text", "day"), [*accepted()])
def test_a_date_is_stored_as_its_day(update, text, day):
    response = update({"dob": text})
    assert response.status_code == 200
    assert response.json["dob"] == day


@pytest.mark.parametrize("text", [*refused()], ids=lambda text: ascii(text)[:60])
def test_any_other_text_is_refused(update, text):
    assert_error(update({"dob": text}), 400, "invalid-dob")
