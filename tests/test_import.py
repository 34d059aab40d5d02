"""flask import-users, run on a file of users, twice."""

import json
from io import BytesIO

import pytest
from service import (
    close_connection,
    cursor_of,
    execute,
    on_mysql,
    on_sqlite,
    run_python,
    stored,
)

import importing
from accounts import list_accounts
from callers import OPERATOR
from database import SQLite, db

HEADER = "\ufeffid,full-name,contact-email,dob,x-vat-id\r\n"
LINES = {
    2: "u-1,Zoë,zoe@example.com,1950-01-31,CHE-1",
    3: "u-2,Ada,ada@example.com,1/2/1950,",
    4: "u-3,,@,,",
    5: " u-4,Ada,ada@example.com,,",
    6: "u-5,Ada,ada@example.com,",
    7: "u-6,Ada,ada@example.com,,,x",
    8: "u-1,Eve,eve@example.com,,",
    9: 'u-7,"Grace,\r\nHopper",grace@example.com,,',
    11: "",
    12: "u-9,Lea,lea@,1/2/1950,",
    13: ",,,,",  # an empty row of a spreadsheet
}
REFUSED = """\
line 3: invalid-dob
line 4: invalid-contact-email, invalid-full-name
line 5: invalid-id
line 6: wrong number of columns
line 7: wrong number of columns
line 8: repeated id
line 12: invalid-contact-email, invalid-dob
"""
NOT_UTF_8 = "not UTF-8; save the file as UTF-8"
SEPARATED = "separated by semicolons or tabs instead of commas"
NO_FILE = "Invalid value for 'FILE':"
BAD_APPID = "invalid-appid: it must match [A-Za-z0-9._-]{1,64}"


@pytest.fixture
def import_users(app, database_url, tmp_path):
    """Imports a file, of which this is the text or the content."""

    def run(text, *, by_standard_input=False, **settings):
        file = tmp_path / "users.csv"
        if isinstance(text, str):
            text = text.encode(errors="surrogateescape")
        file.write_bytes(text)
        settings = {"DATABASE_URL": database_url, **settings}
        settings["OPTIONAL_PROFILE_FIELDS"] = "dob,x-vat-id"
        command = ["-m", "flask", "import-users", "--appid", app.config["APPID"]]
        if by_standard_input:
            with file.open("rb") as stdin:
                return run_python(*command, "-", stdin=stdin, **settings)
        return run_python(*command, file, **settings)

    return run


def counts(done):
    """How many were imported, left unchanged and refused."""
    printed = json.loads(done.stdout)
    assert printed.pop("object") == "import"
    return [printed.pop(name) for name in ("imported", "unchanged", "refused")]


@pytest.mark.parametrize("by_standard_input", [False, True])
def test_each_user_is_imported_once(import_users, app, database_url, by_standard_input):
    """With an account and a default profile, and without a session."""
    text = HEADER + "\r\n".join(LINES.values())
    done = import_users(text, by_standard_input=by_standard_input)
    assert done.stderr == REFUSED
    assert (done.returncode, counts(done)) == (1, [2, 0, 7])
    users = {user["externalid"]: user["profile"] for user in list_accounts(OPERATOR)}
    assert {*users} == {"u-1", "u-7"}
    assert users["u-1"]["fullName"] == "Zoë"
    assert users["u-1"]["dob"] == "1950-01-31"
    assert users["u-1"]["fields"] == {"x-vat-id": "CHE-1"}
    assert users["u-7"]["fullName"] == "Grace,\r\nHopper"
    close_connection()
    before = stored(database_url)
    assert not [row for row in before["session"] if app.config["APPID"] in row]
    again = import_users(text)
    assert (again.stderr, counts(again)) == (REFUSED, [0, 2, 7])
    assert stored(database_url) == before


def test_nothing_is_refused(import_users):
    done = import_users(f"{HEADER}{LINES[2]}\n")
    assert (done.returncode, done.stderr, counts(done)) == (0, "", [1, 0, 0])


def test_others_can_write_during_an_import(app, database_url):
    """It stores up to 50 users at a time, because SQLite has one writer at a time."""
    users = "".join(f"u-{n},Ada,ada@example.com\n" for n in range(120))
    file = BytesIO(b"id,full-name,contact-email\n" + users.encode())
    select = f"SELECT count(*) FROM account WHERE appid = '{app.config['APPID']}'"
    counts = set()
    with cursor_of(database_url) as cursor:
        for _, result in importing.import_users(file, app.config["APPID"]):
            assert result == "imported"
            cursor.execute(select)
            counts.add(*cursor.fetchone())
            cursor.execute("UPDATE account SET externalid = externalid")
    assert sorted(counts) == [50, 100, 120]


@pytest.mark.parametrize(
    "line, reason",
    [
        ('u-2,"Ada,ada@example.com,,', "unexpected end of data"),
        ('u-2,"A"da,ada@example.com,,', "',' expected after '\"'"),
        ("u-2,Jos\udce9,jose@example.com,,", NOT_UTF_8),
    ],
    ids=["unclosed quote", "stray quote", "a byte of Windows-1252"],
)
def test_a_broken_line_stops_the_import(import_users, line, reason):
    """What was imported before it stays."""
    done = import_users(f"{HEADER}{LINES[2]}\n{line}\nu-3,Eve,eve@example.com,,\n")
    assert done.stderr == f"line 3: stopped here: {reason}\n"
    assert (done.returncode, counts(done)) == (1, [1, 0, 1])
    (account,) = list_accounts(OPERATOR)
    assert account["externalid"] == "u-1"


@pytest.mark.parametrize(
    "name, own, maximum, result",
    [
        ("Ada", "x" * 140_000, "65536", "line 2: body-too-large\n"),
        ("Ada", "x" * 140_000, "150000", ""),
        ("A" * 140_000, "", "150000", "line 2: invalid-full-name-length\n"),
    ],
)
def test_a_long_value_is_stored_or_refused_as_over_http(
    import_users, name, own, maximum, result
):
    """The users behind it are imported. Python's csv reads 131,072 characters."""
    lines = f"u-2,{name},ada@example.com,,{own}\n{LINES[2]}\n"
    done = import_users(HEADER + lines, MAXIMUM_POST_DATA_LENGTH=maximum)
    assert done.stderr == result
    users = {user["externalid"]: user["profile"] for user in list_accounts(OPERATOR)}
    if result:
        assert {*users} == {"u-1"}
    else:
        assert users["u-2"]["fields"] == {"x-vat-id": own}


@pytest.mark.parametrize(
    "header, reasons",
    [
        ("", "id is missing, contact-email is missing, full-name is missing"),
        ("full-name,contact-email", "id is missing"),
        ("id,full-name", "contact-email is missing"),
        ("id,full-name,contact-email,phone", "phone is unknown"),
        ("id,full-name,contact-email,x\x1b", "'x\\x1b' is unknown"),
        ("id,full-name,contact-email,id", "id is repeated"),
        ("id,,full-name,contact-email,", "column 2 has no name"),
        ("id;full-name;contact-email", SEPARATED),
        ('"id";"full-name";"contact-email"', SEPARATED),
        ("id\tfull-name\tcontact-email", SEPARATED),
    ],
)
def test_columns_are_the_id_and_configured_fields(import_users, user, header, reasons):
    done = import_users(f"{header}\n1,2,3\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: columns: {reasons}\n"


@on_sqlite
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_in_utf_16(import_users, encoding):
    """As a spreadsheet saves "Unicode text"; the first one begins with a mark."""
    done = import_users(f"{HEADER[1:]}{LINES[2]}\n".encode(encoding))
    assert done.stderr == f"line 1: stopped here: {NOT_UTF_8}\n"
    assert (done.returncode, counts(done)) == (1, [0, 0, 1])


def test_columns_at_the_end_may_have_neither_name_nor_values(import_users):
    """A spreadsheet writes such columns. No value is left out without a word."""
    header = "id,full-name,contact-email,,"
    line = "{0},{0},{0}@example.com,,{1}"
    lines = [header, line.format("ada", ""), line.format("eve", "x")]
    done = import_users("\n".join(lines))
    assert (done.stderr, counts(done)) == ("line 3: column 5 has no name\n", [1, 0, 1])


def test_a_user_who_has_an_account_is_unchanged_whatever_the_line(import_users):
    import_users(f"{HEADER}{LINES[2]}\n")
    done = import_users(f"{HEADER}u-1,,@,1/2/1950,\n")
    assert (done.returncode, done.stderr, counts(done)) == (0, "", [0, 1, 0])


@pytest.mark.parametrize(
    "words, status, error",
    [
        ([], 2, "Missing argument 'FILE'."),
        (["nowhere.csv"], 2, f"{NO_FILE} 'nowhere.csv': No such file or directory"),
        (["tests"], 2, f"{NO_FILE} 'tests': Is a directory"),
        (
            ["-", "--appid", "a b"],
            1,
            "invalid-appid: it must match [A-Za-z0-9._-]{1,64}",
        ),
    ],
)
def test_a_file_or_an_application_that_is_refused(words, status, error, database_url):
    """Click's status of an argument that is refused is 2."""
    done = run_python("-m", "flask", "import-users", *words, DATABASE_URL=database_url)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.splitlines()[-1] == f"Error: {error}"
    assert "Traceback" not in done.stderr


KILL = """CREATE TRIGGER x BEFORE INSERT ON account FOR EACH ROW
    IF NEW.externalid = 'u-60' THEN KILL CONNECTION_ID(); END IF"""
CONFLICT = """CREATE TRIGGER x BEFORE INSERT ON account FOR EACH ROW
    IF NEW.externalid = 'u-3' AND @raised IS NULL THEN
        SET @raised = 1; SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF"""


def import_here(app, lines):
    """Import lines in this process."""
    file = f"id,full-name,contact-email\n{lines}"
    return app.test_cli_runner().invoke(args=["import-users", "-"], input=file)


def test_a_database_that_goes_away(make_app, empty_database_url):
    """The second transaction of three fails, and a repeat imports the rest."""
    url = empty_database_url
    settings = {"DATABASE_URL": url, "APPID": "default"}
    settings["MAXIMUM_PROFILE_FULL_NAME_LENGTH"] = 20_000
    lines = "".join(f"u-{n},{'x' * 20_000},ada@example.com\n" for n in range(120))
    app = make_app(**settings)
    if isinstance(db.obj, SQLite):
        db.pragma("max_page_count", 400, permanent=True)
    else:
        execute(url, KILL)
    done = import_here(app, lines)
    told, error = done.stderr.splitlines()
    assert told == "At least 50 users were imported; a repeat imports the others"
    assert error.startswith("Error: database-unavailable: OperationalError ")
    assert (done.exit_code, done.stdout) == (1, "")
    assert len(stored(url)["profile"]) == 50
    execute(url, "DROP TRIGGER IF EXISTS x")
    assert counts(import_here(make_app(**settings), lines)) == [70, 50, 0]


@on_mysql
def test_a_transaction_that_is_repeated_is_counted_once(make_app, empty_database_url):
    app = make_app(DATABASE_URL=empty_database_url)
    execute(empty_database_url, CONFLICT)
    lines = "u-1,Ada,ada@example.com\nu-2,,\nu-3,Eve,eve@example.com\n"
    done = import_here(app, lines)
    assert db.execute_sql("SELECT @raised").fetchone() == (1,)
    assert done.stderr == "line 3: invalid-contact-email, invalid-full-name\n"
    assert (done.exit_code, counts(done)) == (1, [2, 0, 1])


def test_no_database_is_an_error_of_one_line(import_users):
    done = import_users(HEADER, DATABASE_URL="mysql://root@127.0.0.1:3/none")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: database-unavailable: OperationalError 2003")
    assert len(done.stderr.splitlines()) == 1
