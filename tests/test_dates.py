"""What is a date: each text below is stored as its day, or refused.

The text alone decides, so one database will do.
"""

import shutil
import subprocess
from functools import partial

import pytest
from service import assert_error, on_sqlite, run_python, sign_in

from app import create_app
from formats import parse_date

pytestmark = [on_sqlite, pytest.mark.usefixtures("database_url")]

# Each of them is 31 January 1950, in another way than those of docs/API.md. A weekday
# is not compared with the date.
JANUARY_31 = """\
1950-01-31T10:30
1950-01-31 23:59:59,999999
19500131T10:30+0100
31 jan 1950
tue, 31 Jan 1950
TUESDAY, January 31, 1950
mon 31 January 1950
saturday, Jan 31, 1950
Tue, 31 Jan 1950 10:30:00 -0330
31 Jan 1950 10:30:00 GMT
31 Jan 1950 10:30 GMT
Tue, 31 Jan 1950 10:30 +1400
1950-01-31T10:30-14:00
Tue Jan 31 1950
January 31 1950
Tue Jan 31 1950 10:30:00 GMT-0500
Tue Jan 31 1950 10:30:00 GMT+0100 (Mitteleuropäische Normalzeit)
""".splitlines()
OTHER_DAYS = [
    ("1/5/1950", "1950-01-05"),
    ("1950-1-5", "1950-01-05"),
    ("1 May 0050", "0050-05-01"),
    ("29 FEBRUARY 2000", "2000-02-29"),
    ("9999-12-31", "9999-12-31"),
]
# A part is missing, there is no such day or time, or it is written in another way.
REFUSED = (
    """\
1950
1950-W05
1950-W05-2
01/31/50
1900-02-29
31/01/1950
0000-01-01
1950-01-31T24:00
1950-01-31T10:60
1950-01-31x10:30
1950-01-31T10:30+14:01
1950-01-31T10:30-15:00
1950-01-31T10:30:00 Z
1950-01-31T10:30:00.Z
1950-01-31T10:30.5
1950-01-31T10:30+00:99
1950-01-31T10:30:00+01:00:30
1950-01-31 10:30 +0100
31 Jan 1950 1:2 GMT
31 Jan 1950 10:30:00 Z
31 Jan 1950 10:30:00 +01:00
Jan 31 1950 10:30:00 GMTZ
Tue Jan 31 1950 10:30:00 GMT+0100 ()
Tue, 31 Jan 1950 10:30:00 +1401
Tue Jan 31 1950 10:30:00 GMT-1500
Tue Jan 31 10:30:00 1950
Tue Jan 31 1950 10:30 GMT+0100
1950-031
1950-1-31 10:30
50-1-31
Jan. 31, 1950
Janu 31, 1950
31-Jan-1950
31-January-1950
1,2 January 1950
Sunflower 31 January 1950
Tueday, 31 January 1950
Tuesday, 1950-01-31
Tuesday, 01/31/1950
1950-01-31 10:30 PM
1950-01-31/1951-02-01
Tue Jan 31 1950 (x)
31 Jan 1950 (x)
31  Jan 1950
31 Jan  1950
Jan   5, 1950
Jan 31  10:30:00 1950
01/ 3/1950
 1950-01-31
 5 Jan 1950
garbage, 31 Jan 1950
31 Jan 1950 10:30 blah blah
31 Jan 70 10:30:00 +1970
15 March 0144 10:00 BC
""".splitlines()
    + [
        # A character is not ASCII, not to be seen, or one too many.
        "1950-٠١-31",
        "31 Auguſt 1950",
        "31\xa0January 1950",
        "31\tJanuary 1950",
        f"31{' ' * 60_000}Jan 1950",
        "31 Jan 1950 ",
        "1950-01-31\n",
        "Tue Jan 31 1950 10:30:00 GMT+0100 (a\0b)",
        f"31 January 1950{' ()' * 20_000}",
    ]
)


@pytest.fixture(scope="module")
def update(database_url):
    """Updates a profile whose only field is the date."""
    app = create_app({"DATABASE_URL": database_url, "USER_PROFILE_FIELDS": "dob"})
    user = sign_in(app)
    profile = user.create({"dob": "1999-12-31"}).json
    return partial(user.update, profile["profileid"])


@pytest.mark.parametrize(
    "text, day", [(text, "1950-01-31") for text in JANUARY_31] + OTHER_DAYS
)
def test_a_date_is_stored_as_its_day(update, text, day):
    response = update({"dob": text})
    assert response.status_code == 200
    assert response.json["dob"] == day


@pytest.mark.parametrize(
    "text",
    REFUSED,
    ids=lambda text: ascii(text)[:60],
)
def test_any_other_text_is_refused(update, text):
    assert_error(update({"dob": text}), 400, "invalid-dob")


# A program that sets its locale before it reads its first date, and sets it back.
PROGRAM = """
import locale, sys
from formats import parse_date
for name in (sys.argv[1], "C", sys.argv[1]):
    locale.setlocale(locale.LC_ALL, name)
    for text in ("31 Dec 1950", "Sun, December 31, 1950"):
        assert parse_date(text) == "1950-12-31"
    try:
        parse_date(sys.argv[2])
    except ValueError:
        continue
    sys.exit(f"{sys.argv[2]} is a date in {name}")
"""


@pytest.mark.parametrize(
    "name, text",
    [
        ("de_DE", "31 Dez 1950"),
        ("fr_FR", "31 déc. 1950"),
        ("tr_TR", "31 Ara 1950"),
        ("ja_JP", "31 12月 1950"),
    ],
)
def test_names_are_english_in_any_locale(tmp_path, name, text):
    compiler = shutil.which("localedef") or pytest.skip("localedef is not installed")
    command = [compiler, "-i", name, "-f", "UTF-8", tmp_path / f"{name}.UTF-8"]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"localedef can't make {name}: install the sources of locales")
    done = run_python("-c", PROGRAM, f"{name}.UTF-8", text, LOCPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_dates_are_read_without_strptime(monkeypatch):
    """Its names are those of the locale; this also runs where there is only one."""
    monkeypatch.delattr("_strptime._strptime")
    for text in JANUARY_31:
        assert parse_date(text) == "1950-01-31"
