"""The Flask commands, by what they print."""

import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import datetime

import click
import pytest
from databases import fill
from flask.cli import ScriptInfo
from serving import ROOT, SESSIONS, Person, run

from database import connection
from models import Account, Profile, Session, timestamp


def test_accounts(app, command):
    account = command("create-account")
    made = {name: account[name] for name in ("accountid", "createdAt")}
    assert re.fullmatch("acct_[0-9a-f]{16}", account["accountid"])
    assert account == made | {
        "object": "account",
        "appid": app.config["SETTINGS"].appid,
        "administrator": False,
        "profileid": None,
        "updatedAt": account["createdAt"],
    }
    person, words = Person(app), ("set-administrator", account["accountid"])
    changed = command(*words)
    assert changed == account | {"administrator": True, "updatedAt": changed["updatedAt"]}
    assert command("create-account", "--administrator")["administrator"] is True
    assert command("create-account", "--appid", "Shop")["appid"] == "Shop"
    assert command("create-account", "--appid", "a b") == "Error: invalid-appid"
    assert person.get(SESSIONS).status_code == 403
    command("set-administrator", person.accountid)
    assert person.get(SESSIONS).status_code == 200
    assert command("set-administrator", person.accountid, "--off")["administrator"] is False
    assert person.get(SESSIONS).status_code == 403


def lasts(session):
    """How many seconds the session lasts."""
    made, end = (datetime.fromisoformat(session[name]) for name in ("createdAt", "expiresAt"))
    return (end - made).total_seconds()


def test_sessions(app, command):
    person, other = Person(app, administrator=True, appid="Shop"), Person(app, appid="Shop")
    session = command("create-session", person.accountid)
    token = session.pop("token")
    assert lasts(session) == 28_800
    assert re.fullmatch("sess_[0-9a-f]{16}", session["sessionid"])
    assert re.fullmatch("[0-9a-f]{128}", session["csrfToken"] + token)
    expected = {
        "sessionid": session["sessionid"],
        "object": "session",
        "appid": "Shop",
        "accountid": person.accountid,
        "duration": 28_800,
        "csrfToken": session["csrfToken"],
        "expiresAt": session["expiresAt"],
        "lastVerifiedAt": session["createdAt"],
        "ended": False,
        "createdAt": session["createdAt"],
        "updatedAt": session["createdAt"],
    }
    assert list(session.items()) == list(expected.items())
    with connection():
        rows = Session.select().where(Session.sessionid == session["sessionid"]).dicts()
        assert token not in str(list(rows))
    person.headers["Authorization"] = f"Bearer {token}"
    listed = person.get(f"{SESSIONS}?all=all").json[0]
    assert list(listed.items()) == list(expected.items())
    ended = command("end-session", session["sessionid"])
    assert ended == session | {"ended": True, "updatedAt": ended["updatedAt"]}
    assert person.get(SESSIONS).status_code == 401
    assert command("end-session", session["sessionid"]) == ended
    for unknown in ("sess_0123456789abcdef", "x"):
        assert command("end-session", unknown) == "Error: invalid-sessionid"

    session = command("create-session", person.accountid, "--duration", "1")
    assert lasts(session) == 1
    with connection():  # as if the second were over
        expired = Session.update(expiresAt=timestamp(time.time_ns()))
        expired.where(Session.sessionid == session["sessionid"]).execute()
    person.headers["Authorization"] = f"Bearer {session['token']}"
    assert person.get(SESSIONS).status_code == 401
    running = command("create-session", person.accountid)
    person.headers["Authorization"] = f"Bearer {running['token']}"
    (row,) = [row for row in person.get(SESSIONS).json if row["sessionid"] == session["sessionid"]]
    assert row["ended"] is True

    assert command("end-sessions", person.accountid) == {"object": "end", "count": 2}
    assert person.get(SESSIONS).status_code == 401
    assert command("end-sessions", person.accountid) == {"object": "end", "count": 0}
    assert other.get(SESSIONS).status_code == 403


@pytest.mark.parametrize("number", ["-1", "x", "2147483648", "٣", " 5 ", "1_0", "+5", "5.0", ""])
def test_numbers_refused(command, user, number):
    for words in ("create-session", user.accountid, "--duration"), ("purge-sessions", "--days"):
        assert command(*words, number).startswith(f"Error: Invalid value for '{words[-1]}': ")
    assert "--duration" in command("create-session", user.accountid, "--duration", "0")


@pytest.mark.parametrize(
    "name", ["set-administrator", "end-sessions", "create-session", "delete-account"]
)
def test_unknown_accounts(command, name):
    for accountid in ("x", "", "acct_0123456789abcdef", "ACCT_0123456789abcdef"):
        assert command(name, accountid) == "Error: invalid-accountid"


def test_list_administrators(app, command):
    people = [Person(app, administrator=True) for _ in range(3)]
    Person(app)
    elsewhere = Person(app, administrator=True, appid=f"{people[0].appid}-2")
    command("set-administrator", people[1].accountid, "--off")
    first, third = command("list-administrators")["data"]
    assert (first["accountid"], third["accountid"]) == (people[0].accountid, people[2].accountid)
    found = command("list-administrators", "--appid", elsewhere.appid)
    again = command("set-administrator", elsewhere.accountid)
    assert found == {"object": "accounts", "data": [again | {"updatedAt": again["createdAt"]}]}
    assert command("list-administrators", "--appid", "nobody") == {"object": "accounts", "data": []}
    assert command("list-administrators", "--appid", "a b") == "Error: invalid-appid"


def test_find_accounts(make_app):
    """Also behind more rows than are read at once."""
    app = make_app(USER_PROFILE_FIELDS="contact-email,display-email,phone")
    fill(Profile, app.config["SETTINGS"].appid, 501)

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
        assert all(each.help for each in command.params if isinstance(each, click.Option)), name


def test_purge_sessions(app, command):
    """Of more sessions than one transaction deletes."""
    command("purge-sessions", "--days", "0")
    before, later = (timestamp(time.time_ns() + days * 86_400 * 10**9) for days in (-5, 1))
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
    assert command("purge-sessions", "--days", "1") == {"object": "purge", "count": 0}
    with connection():
        left = {row.sessionid for row in Session.select()}
    assert left >= {person.session["sessionid"], *(row["sessionid"] for row in made["running"])}
    assert not left & {row["sessionid"] for row in made["expired"] + made["ended"]}


def pipe_without_a_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


@pytest.mark.parametrize(
    "output", [lambda: open("/dev/full", "w"), pipe_without_a_reader, nullcontext]
)
def test_output_that_cannot_be_written(app, user, monkeypatch, capsys, output):
    """Nothing is made whose identifier or token nobody has seen."""

    def stored():
        with connection():
            return Account.select().count(), Session.select().count()

    before = stored()
    for words in ["create-account"], ["create-session", user.accountid]:
        with output() as file, monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
            patch.setattr(sys, "stdout", file)  # None when it is closed
            app.cli.main(words, obj=ScriptInfo(create_app=lambda: app))
        assert caught.value.code == 1
        assert re.fullmatch("Error: cannot write the output: .+\n", capsys.readouterr().err)
    assert stored() == before


def test_a_process_whose_output_cannot_be_written(tmp_path):
    """Python itself adds nothing to it at its end."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flask", "create-account"],
            cwd=ROOT,
            env=os.environ | {"DATABASE_URL": f"sqlite:///{tmp_path}/x.db"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    error = "Error: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, error)


def test_the_demo_keeps_to_the_configured_fields(app, make_app):
    demanding = make_app(
        USER_PROFILE_FIELDS="full-name,display-name,company-name,dob,website,phone",
        MINIMUM_PROFILE_DISPLAY_NAME_LENGTH=30,
        MAXIMUM_PROFILE_COMPANY_NAME_LENGTH=3,
    )
    assert demanding.test_cli_runner().invoke(args=["demo"]).exit_code == 0
