"""The Flask commands, by what they print."""

import json
import re
import shlex
import subprocess
import time

import pytest
from conftest import Person

import commands
from commands import purge_sessions
from database import connection
from models import Session, timestamp


@pytest.fixture
def command(app):
    """Runs a command and answers the object it prints, or the line it fails with."""

    def run(*words):
        result = app.test_cli_runner().invoke(args=words)
        if result.exit_code:
            return result.output.splitlines()[-1]
        assert len(result.output.splitlines()) == 1
        return json.loads(result.output)

    return run


def test_init_db(app, command, database_url):
    engine = database_url.partition(":")[0]
    assert command("init-db") == {"object": "database", "engine": engine}
    assert command("init-db") == {"object": "database", "engine": engine}


def test_create_account(app, command):
    account = command("create-account")
    assert account == {
        "accountid": account["accountid"],
        "object": "account",
        "appid": app.config["SETTINGS"].appid,
        "administrator": False,
        "profileid": None,
        "createdAt": account["createdAt"],
        "updatedAt": account["createdAt"],
    }
    assert re.fullmatch("acct_[0-9a-f]{16}", account["accountid"])
    assert command("create-account", "--administrator")["administrator"] is True
    assert command("create-account", "--appid", "Shop")["appid"] == "Shop"
    assert command("create-account", "--appid", "a b") == "Error: invalid-appid"


def test_create_session(app, command):
    account = command("create-account", "--appid", "Shop")
    session = command("create-session", account["accountid"])
    assert session == {
        "sessionid": session["sessionid"],
        "object": "session",
        "appid": "Shop",
        "accountid": account["accountid"],
        "duration": 28_800,
        "csrfToken": session["csrfToken"],
        "expiresAt": session["expiresAt"],
        "lastVerifiedAt": session["createdAt"],
        "ended": False,
        "createdAt": session["createdAt"],
        "updatedAt": session["createdAt"],
        "token": session["token"],
    }
    assert re.fullmatch("[0-9a-f]{64}", session["token"])
    headers = {"Authorization": f"Bearer {session['token']}", "X-Appid": "Shop"}
    path = f"/api/user/create-profile?accountid={account['accountid']}"
    assert app.test_client().post(path, headers=headers).status_code == 400
    with connection():
        rows = Session.select().where(Session.sessionid == session["sessionid"]).dicts()
        assert session["token"] not in str(list(rows))


@pytest.mark.parametrize("words", [("x",), ("acct_0123456789abcdef",), ("ACCT_0123456789abcdef",)])
def test_create_session_of_nobody(command, words):
    assert command("create-session", *words) == "Error: invalid-accountid"


@pytest.mark.parametrize("duration", ["0", "-1", "x", "2147483648"])
def test_durations_refused(command, duration):
    assert "--duration" in command("create-session", "x", "--duration", duration)


def test_a_session_expires_by_itself(app, command):
    account = command("create-account", "--administrator")
    session = command("create-session", account["accountid"], "--duration", "1")
    headers = {"Authorization": f"Bearer {session['token']}"}
    path = "/api/administrator/sessions"
    assert app.test_client().get(path, headers=headers).status_code == 200
    with connection():
        Session.update(expiresAt=timestamp(time.time_ns())).where(
            Session.sessionid == session["sessionid"]
        ).execute()
    assert app.test_client().get(path, headers=headers).status_code == 401
    assert Person(app, administrator=True).get(path).json[1]["ended"] is True


def test_end_session(app, command):
    person = Person(app, administrator=True)
    ended = command("end-session", person.session["sessionid"])
    assert ended == {
        **{name: value for name, value in person.session.items() if name != "token"},
        "ended": True,
        "updatedAt": ended["updatedAt"],
    }
    assert person.get("/api/administrator/sessions").status_code == 401
    assert command("end-session", person.session["sessionid"]) == ended
    assert command("end-session", "sess_0123456789abcdef") == "Error: invalid-sessionid"
    assert command("end-session", "x") == "Error: invalid-sessionid"


def test_purge_sessions(app, command, monkeypatch):
    monkeypatch.setattr(commands, "PURGE_BATCH", 3)
    command("purge-sessions", "--days", "0")
    day = commands.DAY_NANOSECONDS
    now = time.time_ns()
    kept, gone = [Person(app) for _ in range(4)], [Person(app) for _ in range(7)]
    with connection():
        for at, person in enumerate(gone):
            column = Session.endedAt if at % 2 else Session.expiresAt
            Session.update({column: timestamp(now - 5 * day)}).where(
                Session.sessionid == person.session["sessionid"]
            ).execute()
    assert command("purge-sessions", "--days", "6") == {"object": "purge", "count": 0}
    assert command("purge-sessions") == {"object": "purge", "count": 0}
    assert command("purge-sessions", "--days", "5") == {"object": "purge", "count": 7}
    with connection():
        assert purge_sessions(timestamp(now - day)) == 0
        left = {row.sessionid for row in Session.select()}
    assert {person.session["sessionid"] for person in kept} <= left
    assert not {person.session["sessionid"] for person in gone} & left


def test_a_database_that_is_away(tmp_path, make_app):
    app = make_app(DATABASE_URL=f"sqlite:///{tmp_path}/missing/x.db")
    result = app.test_cli_runner().invoke(args=["create-account"])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "Error: database-unavailable"


def test_every_line_of_the_demo_works(serve, database_url):
    service = serve(database_url, APPID="demo")
    service.environment["FLASK_RUN_PORT"] = str(service.port)
    for _ in range(2):
        demo = service.flask("demo").stdout
        lines = [line for line in demo.splitlines() if line.startswith("curl ")]
        answers = [
            json.loads(subprocess.check_output([*shlex.split(line), "-s"])) for line in lines
        ]
        update, create, sessions, profiles = answers
        assert (update["object"], update["fullName"]) == ("profile", "Ada King")
        assert (create["object"], create["accountid"]) == ("profile", update["accountid"])
        assert [row["object"] for row in sessions[:2]] == ["session", "session"]
        assert [row["object"] for row in profiles] == ["profile", "profile"]


def test_the_demo_keeps_to_the_configured_fields(app, make_app):
    demanding = make_app(
        USER_PROFILE_FIELDS="full-name,display-name,company-name,dob,website,phone",
        MINIMUM_PROFILE_DISPLAY_NAME_LENGTH=30,
        MAXIMUM_PROFILE_COMPANY_NAME_LENGTH=3,
    )
    assert demanding.test_cli_runner().invoke(args=["demo"]).exit_code == 0
