"""docs/import_users.py, run by its command on a file of users, twice."""

import pytest
from service import ROOT, close_connection, run_python, stored

from accounts import list_accounts
from callers import OPERATOR

HEADER = "\ufeffid,full-name,contact-email,dob\r\n"
LINES = {
    2: "u-1,Zoë,zoe@example.com,1950-01-31",
    3: "u-2,Ada,ada@example.com,1/2/1950",
    4: "u-3,,@,",
    5: " u-4,Ada,ada@example.com,",
    6: "u-5,Ada,ada@example.com",
    7: "u-6,Ada,ada@example.com,,x",
    8: "u-1,Eve,eve@example.com,",
    9: "u-8,Jos\udce9,jose@example.com,",  # a byte of Latin-1
    10: 'u-7,"Grace,\r\nHopper",grace@example.com,',
}
REFUSED = """\
line 3: invalid-dob
line 4: invalid-contact-email, invalid-full-name
line 5: invalid-idempotency-key
line 6: wrong number of columns
line 7: wrong number of columns
line 9: invalid-full-name
"""


@pytest.fixture
def import_users(app, database_url, tmp_path):
    """Imports the text of a file, from another folder than the service's."""

    def run(text):
        file = tmp_path / "users.csv"
        file.write_bytes(text.encode(errors="surrogateescape"))
        settings = {"DATABASE_URL": database_url, "APPID": app.config["APPID"]}
        settings["OPTIONAL_PROFILE_FIELDS"] = "dob"
        program = ROOT / "docs/import_users.py"
        return run_python(program, file, cwd=tmp_path, **settings)

    return run


def test_each_user_is_imported_once(import_users, app, database_url):
    """With an account and a default profile, and without a session."""
    text = HEADER + "\r\n".join(LINES.values())
    done = import_users(text)
    assert done.stderr == ""
    assert done.stdout == f"{REFUSED}2 imported, 1 unchanged, 6 refused\n"
    users = {user["externalid"]: user["profile"] for user in list_accounts(OPERATOR)}
    assert {*users} == {"u-1", "u-7"}
    assert users["u-1"]["fullName"] == "Zoë"
    assert users["u-1"]["dob"] == "1950-01-31"
    assert users["u-7"]["fullName"] == "Grace,\r\nHopper"
    close_connection()
    before = stored(database_url)
    assert not [row for row in before["session"] if app.config["APPID"] in row]
    again = import_users(text).stdout
    assert again == f"{REFUSED}0 imported, 3 unchanged, 6 refused\n"
    assert stored(database_url) == before


@pytest.mark.parametrize("header", ["", "full-name", "id,phone", "id,full-name,id"])
def test_columns_that_the_service_does_not_have(import_users, user, header):
    done = import_users(f"{header}\n1,2,3\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "The columns must be id and fields, each once, out of"
    )
