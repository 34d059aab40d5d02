"""The Flask commands, by what they print."""

import json
import re
import shlex
import subprocess
import time

import click
import pytest
from databases import fill
from serving import CREATE, SESSIONS, Person, run

import accounts
from accounts import purge_sessions
from database import connection
from models import Session, timestamp


@pytest.fixture
def command(app):
    """Runs a command; returns the object that it prints, or the line that it fails with."""

    def invoke(*words):
        result = app.test_cli_runner().invoke(args=words)
        if result.exit_code:
            return result.output.splitlines()[-1]
        assert len(result.output.splitlines()) == 1
        return json.loads(result.output)

    return invoke


def test_init_db(app, command, database_url):
    engine = database_url.partition(":")[0]
    assert command("init-db") == {"object": "database", "engine": engine}
    assert command("init-db") == {"object": "database", "engine": engine}


def test_a_command_asks_for_the_database_only_when_it_needs_it(tmp_path, make_app, caplog):
    with click.Context(click.Command("flask")):
        app = make_app(DATABASE_URL=f"sqlite:///{tmp_path}/missing/x.db")
    assert caplog.messages == []
    (tmp_path / "missing").mkdir()
    assert run(app, "create-account")["object"] == "account"


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
    path = f"{CREATE}?accountid={account['accountid']}"
    assert app.test_client().post(path, headers=headers).status_code == 400
    with connection():
        rows = Session.select().where(Session.sessionid == session["sessionid"]).dicts()
        assert session["token"] not in str(list(rows))


@pytest.mark.parametrize("duration", ["0", "-1", "x", "2147483648"])
def test_durations_refused(command, duration):
    assert "--duration" in command("create-session", "x", "--duration", duration)


def test_a_session_expires_by_itself(app, command):
    account = command("create-account", "--administrator")
    session = command("create-session", account["accountid"], "--duration", "1")
    headers = {"Authorization": f"Bearer {session['token']}"}
    assert app.test_client().get(SESSIONS, headers=headers).status_code == 200
    with connection():
        Session.update(expiresAt=timestamp(time.time_ns())).where(
            Session.sessionid == session["sessionid"]
        ).execute()
    assert app.test_client().get(SESSIONS, headers=headers).status_code == 401
    assert Person(app, administrator=True).get(SESSIONS).json[1]["ended"] is True


def test_end_session(app, command):
    person = Person(app, administrator=True)
    ended = command("end-session", person.session["sessionid"])
    assert ended == {
        **{name: value for name, value in person.session.items() if name != "token"},
        "ended": True,
        "updatedAt": ended["updatedAt"],
    }
    assert person.get(SESSIONS).status_code == 401
    assert command("end-session", person.session["sessionid"]) == ended
    assert command("end-session", "sess_0123456789abcdef") == "Error: invalid-sessionid"
    assert command("end-session", "x") == "Error: invalid-sessionid"


def test_end_sessions(app, command):
    person = Person(app, administrator=True)
    others = [command("create-session", person.accountid) for _ in range(2)]
    expired = command("create-session", person.accountid)
    with connection():
        Session.update(expiresAt=timestamp(time.time_ns())).where(
            Session.sessionid == expired["sessionid"]
        ).execute()
    command("end-session", others[0]["sessionid"])
    bystander = Person(app, administrator=True)
    assert command("end-sessions", person.accountid) == {"object": "end", "count": 2}
    assert person.get(SESSIONS).status_code == 401
    assert command("end-sessions", person.accountid) == {"object": "end", "count": 0}
    assert bystander.get(SESSIONS).status_code == 200


def test_set_administrator(app, command):
    person = Person(app)
    account = command("create-account")
    assert person.get(SESSIONS).status_code == 403
    made = command("set-administrator", person.accountid)
    assert list(made) == list(account)
    assert (made["accountid"], made["administrator"]) == (person.accountid, True)
    assert person.get(SESSIONS).status_code == 200
    assert command("set-administrator", person.accountid, "--off")["administrator"] is False
    assert person.get(SESSIONS).status_code == 403


@pytest.mark.parametrize("accountid", ["x", "", "acct_0123456789abcdef", "ACCT_0123456789abcdef"])
@pytest.mark.parametrize("name", ["set-administrator", "end-sessions", "create-session"])
def test_unknown_accounts(command, name, accountid):
    assert command(name, accountid) == "Error: invalid-accountid"


def test_find_accounts(make_app, monkeypatch):
    app = make_app(USER_PROFILE_FIELDS="contact-email,display-email,phone")
    monkeypatch.setattr(accounts, "BATCH", 3)

    def find(*words):
        found = run(app, "find-accounts", *words)
        assert list(found) == ["object", "data"] and found["object"] == "accounts"
        return [account["accountid"] for account in found["data"]]

    people = [Person(app) for _ in range(3)]
    elsewhere = Person(app, appid="find-elsewhere")
    for person, contact, display in (
        (people[0], "Zoë@example.com", "x@example.com"),
        (people[1], "y@example.com", "ZOË@EXAMPLE.COM"),
        (people[1], "zoë@example.com", "zoë@example.com"),
        (people[2], "zoe@example.com", "zoë@example.com.example.com"),
        (elsewhere, "zoë@example.com", "y@example.com"),
    ):
        body = {"contact-email": contact, "display-email": display, "phone": "zoë@example.com"}
        assert person.create(body).status_code == 201
    assert find("zOë@Example.com") == [people[0].accountid, people[1].accountid]
    assert find("zoë@example.com", "--appid", "find-elsewhere") == [elsewhere.accountid]
    for nobody in ("", " zoë@example.com", "%", "zoë@example.com ", "@"):
        assert find(nobody) == []


def test_every_option_has_its_help(app):
    for name, command in app.cli.commands.items():
        assert command.help, name
        for parameter in command.params:
            is_option = isinstance(parameter, click.Option)
            assert not is_option or parameter.help, f"{name} {parameter.name}"


def test_purge_sessions(app, command):
    """Of more sessions than one transaction deletes."""
    command("purge-sessions", "--days", "0")
    day, now = 86_400 * 10**9, time.time_ns()
    before, later = timestamp(now - 5 * day), timestamp(now + day)
    columns = {
        "expired": {"expiresAt": before},
        "running": {"expiresAt": later},
        "ended": {"expiresAt": later, "endedAt": before},
    }
    made = {kind: fill(Session, kind, 1_250) for kind in columns}
    with connection():
        for kind, values in columns.items():
            Session.update(values).where(Session.appid == kind).execute()
    person = Person(app)
    assert command("purge-sessions", "--days", "6") == {"object": "purge", "count": 0}
    assert command("purge-sessions") == {"object": "purge", "count": 0}
    assert command("purge-sessions", "--days", "5") == {"object": "purge", "count": 2_500}
    with connection():
        assert purge_sessions(1)["count"] == 0
        left = {row.sessionid for row in Session.select()}
    assert left >= {person.session["sessionid"], *(row["sessionid"] for row in made["running"])}
    assert not left & {row["sessionid"] for row in made["expired"] + made["ended"]}


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
        update, create, sessions, profiles = [
            json.loads(subprocess.check_output([*shlex.split(line), "-s"])) for line in lines
        ]
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
