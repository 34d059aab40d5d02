"""The Flask commands, by what they print."""

import os
import re
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import datetime
from functools import partial

import click
import pytest
from databases import driver, execute, fill
from flask.cli import ScriptInfo
from serving import ROOT, SESSIONS, Person, run

from app import create_app
from database import connection
from models import Account, Session, timestamp


def test_accounts(app, command):
    account, person = command("create-account"), Person(app)
    assert re.fullmatch("acct_[0-9a-f]{16}", account["accountid"])
    names = "accountid object appid administrator profileid createdAt updatedAt"
    expected = account["accountid"], "account", app.config["APPID"], False, None
    assert list(account) == names.split()
    assert tuple(account.values()) == (
        *expected,
        account["createdAt"],
        account["createdAt"],
    )
    changed = command("set-administrator", account["accountid"])
    assert changed == account | {
        "administrator": True,
        "updatedAt": changed["updatedAt"],
    }
    assert command("create-account", "--appid", "a b") == "Error: invalid-appid"
    for words, status in (([], 200), (["--off"], 403)):
        changed = command("set-administrator", person.accountid, *words)
        assert (changed["administrator"], person.get(SESSIONS).status_code) == (
            not words,
            status,
        )


def test_sessions(app, command):
    person, other = (
        Person(app, administrator=True, appid="Shop"),
        Person(app, appid="Shop"),
    )

    def made(*words):
        """A session that lasts as long as it says, whose token the person sends from now on."""
        session = command("create-session", person.accountid, *words)
        person.headers["Authorization"] = f"Bearer {session['token']}"
        begin, end = (
            datetime.fromisoformat(session[each]) for each in ("createdAt", "expiresAt")
        )
        assert (end - begin).total_seconds() == session["duration"]
        return session

    def status():
        return person.get(SESSIONS).status_code

    session = made()
    token, moment = session.pop("token"), session["createdAt"]
    assert re.fullmatch("sess_[0-9a-f]{16}", session["sessionid"])
    assert re.fullmatch("[0-9a-f]{128}", session["csrfToken"] + token)
    expected = {
        "object": "session",
        "appid": "Shop",
        "accountid": person.accountid,
        "ended": False,
    }
    expected |= {"lastVerifiedAt": moment, "updatedAt": moment, "duration": 28_800}
    assert session == session | expected
    with connection():
        rows = Session.select().where(Session.sessionid == session["sessionid"]).dicts()
        assert token not in str(list(rows))
    assert list(person.get(SESSIONS).json[0].items()) == list(session.items())
    ended = command("end-session", session["sessionid"])
    assert ended == session | {"ended": True, "updatedAt": ended["updatedAt"]}
    assert status() == 401
    assert command("end-session", session["sessionid"]) == ended
    assert command("end-session", "sess_0123456789abcdef") == "Error: invalid-sessionid"

    session = made("--duration", "1")
    with connection():  # as if the second were over
        expired = Session.update(expiresAt=timestamp(time.time_ns()))
        expired.where(Session.sessionid == session["sessionid"]).execute()
    assert status() == 401
    made()
    rows = {row["sessionid"]: row["ended"] for row in person.get(SESSIONS).json}
    assert rows[session["sessionid"]] is True
    for count in (2, 0):
        assert command("end-sessions", person.accountid) == {
            "object": "end",
            "count": count,
        }
        assert status() == 401
    assert other.get(SESSIONS).status_code == 403


def test_arguments_refused(app, command, user):
    for number in ("-1", "x", "2147483648", "5.0", "", "1e3"):
        for words in (
            ["create-session", user.accountid, "--duration"],
            ["purge-sessions", "--days"],
        ):
            assert command(*words, number).startswith(
                f"Error: Invalid value for '{words[-1]}': "
            )
    assert "--duration" in command("create-session", user.accountid, "--duration", "0")
    for name in (
        "set-administrator",
        "end-sessions",
        "create-session",
        "delete-account",
    ):
        for accountid in ("x", "", "acct_0123456789abcdef", "ACCT_0123456789abcdef"):
            assert command(name, accountid) == "Error: invalid-accountid"
    for name, command in app.cli.commands.items():  # and each has its help
        assert command.help, name
        assert all(
            each.help for each in command.params if isinstance(each, click.Option)
        ), name


def test_list_administrators(app, command):
    people = [Person(app, administrator=True) for _ in range(3)]
    Person(app)
    elsewhere = Person(app, administrator=True, appid=f"{people[0].appid}-2")
    command("set-administrator", people[1].accountid, "--off")
    first, third = command("list-administrators")["data"]
    assert (first["accountid"], third["accountid"]) == (
        people[0].accountid,
        people[2].accountid,
    )
    found = command("list-administrators", "--appid", elsewhere.appid)
    again = command("set-administrator", elsewhere.accountid)
    assert found == {
        "object": "accounts",
        "data": [again | {"updatedAt": again["createdAt"]}],
    }


def test_find_accounts(make_app):
    app = make_app(USER_PROFILE_FIELDS="contact-email,display-email,phone")

    def find(*words):
        return [
            account["accountid"]
            for account in run(app, "find-accounts", *words)["data"]
        ]

    *people, elsewhere = (
        *(Person(app) for _ in range(3)),
        Person(app, appid="find-elsewhere"),
    )
    for person, contact, display in (
        (people[0], "Zoë@example.com", "x@example.com"),
        (people[1], "y@example.com", "ZOË@EXAMPLE.COM"),
        (people[1], "zoë@example.com", "zoë@example.com"),
        (people[2], "zoe@example.com", "zoë@example.com.example.com"),
        (elsewhere, "zoë@example.com", "y@example.com"),
    ):
        body = {
            "contact-email": contact,
            "display-email": display,
            "phone": "zoë@example.com",
        }
        assert person.create(body).status_code == 201
    assert find("zOë@Example.com") == [people[0].accountid, people[1].accountid]
    assert find("zoë@example.com", "--appid", "find-elsewhere") == [elsewhere.accountid]
    assert [
        find(each) for each in ("", " zoë@example.com", "%", "zoë@example.com ")
    ] == [[]] * 4


def test_purge_sessions(app, command):
    command("purge-sessions", "--days", "0")
    before, later = (
        timestamp(time.time_ns() + days * 86_400 * 10**9) for days in (-5, 1)
    )
    columns = {"expired": {"expiresAt": before}, "running": {"expiresAt": later}}
    columns["ended"] = {"expiresAt": later, "endedAt": before}
    made = {kind: fill(Session, kind, 125) for kind in columns}
    with connection():
        for kind, values in columns.items():
            Session.update(values).where(Session.appid == kind).execute()
    kept = {
        Person(app).session["sessionid"],
        *(row["sessionid"] for row in made["running"]),
    }
    for words, count in (
        (["--days", "6"], 0),
        ([], 0),
        (["--days", "5"], 250),
        (["--days=1"], 0),
    ):
        assert command("purge-sessions", *words) == {"object": "purge", "count": count}
    with connection():
        left = {row.sessionid for row in Session.select()}
    assert left >= kept and not left & {
        row["sessionid"] for row in made["expired"] + made["ended"]
    }


# Stored, then shown


def pipe_without_a_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


@pytest.mark.parametrize(
    "output", [partial(open, "/dev/full", "w"), pipe_without_a_reader, None]
)
def test_output_that_cannot_be_written(app, user, monkeypatch, capsys, output):
    """What was made stands. Without an output it is closed."""

    def stored():
        with connection():
            return Account.select().count(), Session.select().count()

    accounts, sessions = stored()
    for words in ["create-account"], ["create-session", user.accountid], ["demo"]:
        with (output or nullcontext)() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", file)
            with pytest.raises(SystemExit, match="^1$"):
                app.cli.main(words, obj=ScriptInfo(create_app=lambda: app))
        assert re.fullmatch(
            "Error: cannot write the output: .+\n", capsys.readouterr().err
        )
    assert stored() == (accounts + 5, sessions + 3)


def test_a_process_whose_output_or_disk_is_full(tmp_path):
    """Python adds nothing at its end. What could not be stored is not shown."""
    url = f"sqlite:///{tmp_path}/x.db"
    create_app({"DATABASE_URL": url})

    def create_account(**options):
        options |= {"cwd": ROOT, "env": os.environ | {"DATABASE_URL": url}}
        words = [sys.executable, "-m", "flask", "create-account"]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True, **options)
        assert (done.returncode, done.stdout or "") == (1, "")
        return done.stderr.splitlines()[-1]

    with driver(url) as (reader, _), open("/dev/full", "w") as full:
        reader.execute("BEGIN")  # so that the database's log grows
        assert reader.execute("SELECT count(*) FROM account").fetchall() == [(0,)]
        told = create_account(stdout=full)
        assert told == "Error: cannot write the output: No space left on device"
        most = (os.stat(f"{tmp_path}/x.db-wal").st_size,) * 2
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, most)
        told = create_account(stdout=subprocess.PIPE, preexec_fn=limit)
        assert told == "Error: database-unavailable"
    assert execute(url, "SELECT count(*) FROM account") == [(1,)]
