"""The Flask commands, by what they print."""

import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from functools import partial

import click
import pytest
from databases import driver, execute, fill, on_sqlite
from serving import ROOT, SESSIONS, Person, named, run

from app import create_app
from commands import show
from database import connection
from models import Session, timestamp

DAY = 86_400 * 10**9  # nanoseconds


def moment_in(nanoseconds):
    return timestamp(time.time_ns() + nanoseconds)


def test_create_account(app, command):
    account = command("create-account")
    names = "accountid object appid administrator profileid createdAt updatedAt"
    assert list(account) == names.split()
    assert re.fullmatch("acct_[0-9a-f]{16}", account["accountid"])
    expected = {
        "object": "account",
        "appid": app.config["APPID"],
        "administrator": False,
        "profileid": None,
        "updatedAt": account["createdAt"],
    }
    assert account == account | expected
    assert command("create-account", "--appid", "a b") == "Error: invalid-appid"


def test_set_administrator(command, user, administrator):
    """The sessions that the account had end: they were given to somebody else."""
    for off, status in (([], 200), (["--off"], 403)):
        before = command("set-administrator", user.accountid, *off)
        assert before["administrator"] is not bool(off)
        assert user.get(SESSIONS).status_code == 401
        session = command("create-session", user.accountid)
        user.headers["Authorization"] = f"Bearer {session['token']}"
        assert user.get(SESSIONS).status_code == status
    assert administrator.get(SESSIONS).status_code == 200
    changed = command("set-administrator", user.accountid, "--off")
    assert changed == before | {"updatedAt": changed["updatedAt"]}


def lifetime(session):
    """How many seconds after its creation the session expires."""
    begin = datetime.fromisoformat(session["createdAt"])
    end = datetime.fromisoformat(session["expiresAt"])
    return (end - begin).total_seconds()


@pytest.fixture
def person(app):
    return Person(app, administrator=True, appid="Shop")


@pytest.fixture
def sign_in(command, person):
    """Makes a session of the person, who sends its token from now on."""

    def create_session(*options):
        session = command("create-session", person.accountid, *options)
        person.headers["Authorization"] = f"Bearer {session['token']}"
        return session

    return create_session


def test_create_and_end_session(command, person, sign_in):
    session = sign_in()
    token = session.pop("token")
    moment = session["createdAt"]
    assert re.fullmatch("sess_[0-9a-f]{16}", session["sessionid"])
    assert re.fullmatch("[0-9a-f]{128}", session["csrfToken"] + token)
    expected = {
        "object": "session",
        "appid": "Shop",
        "accountid": person.accountid,
        "ended": False,
        "lastVerifiedAt": moment,
        "updatedAt": moment,
        "duration": 28_800,
    }
    assert session == session | expected
    assert lifetime(session) == 28_800
    with connection():
        assert token not in str(list(Session.select().dicts()))
    assert list(person.get(SESSIONS).json[0].items()) == list(session.items())

    ended = command("end-session", session["sessionid"])
    assert ended == session | {"ended": True, "updatedAt": ended["updatedAt"]}
    assert person.get(SESSIONS).status_code == 401
    assert command("end-session", session["sessionid"]) == ended
    assert command("end-session", "sess_0123456789abcdef") == "Error: invalid-sessionid"


def test_a_session_expires(person, sign_in):
    session = sign_in("--duration", "1")
    assert lifetime(session) == session["duration"] == 1
    with connection():  # as if the second were over
        expired = Session.update(expiresAt=moment_in(0))
        expired.where(Session.sessionid == session["sessionid"]).execute()
    assert person.get(SESSIONS).status_code == 401
    sign_in()
    ended = {row["sessionid"]: row["ended"] for row in person.get(SESSIONS).json}
    assert ended[session["sessionid"]] is True


def test_end_sessions(app, command, person, sign_in):
    """Those of the account that are running."""
    other = Person(app, appid="Shop")
    command("end-session", sign_in()["sessionid"])
    sign_in()
    for count in (2, 0):
        ended = command("end-sessions", person.accountid)
        assert ended == {"object": "end", "count": count}
        assert person.get(SESSIONS).status_code == 401
    assert other.get(SESSIONS).status_code == 403


@pytest.mark.parametrize("number", ["-1", "x", "2147483648", "5.0"])
def test_numbers_refused(command, user, number):
    line = command("create-session", user.accountid, "--duration", number)
    assert line.startswith("Error: Invalid value for '--duration': ")
    line = command("purge-sessions", "--days", number)
    assert line.startswith("Error: Invalid value for '--days': ")


def test_a_session_of_no_duration_is_refused(command, user):
    assert "--duration" in command("create-session", user.accountid, "--duration", "0")


@pytest.mark.parametrize(
    "name", ["set-administrator", "end-sessions", "create-session", "delete-account"]
)
def test_accounts_that_are_unknown(command, name):
    for accountid in ("x", "", "acct_0123456789abcdef", "ACCT_0123456789abcdef"):
        assert command(name, accountid) == "Error: invalid-accountid"


def test_help(app):
    for name, command in app.cli.commands.items():
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, name


def test_list_administrators(app, command):
    first, second, third = [command("create-account", "--administrator") for _ in "123"]
    command("create-account")
    command("set-administrator", second["accountid"], "--off")
    found = command("list-administrators")
    assert found == {"object": "accounts", "data": [first, third]}
    elsewhere = f"{first['appid']}-2"
    account = command("create-account", "--administrator", "--appid", elsewhere)
    found = command("list-administrators", "--appid", elsewhere)
    assert found["data"] == [account]


def find_accounts(app, *words):
    found = run(app, "find-accounts", *words)["data"]
    return [account["accountid"] for account in found]


def create_with_emails(person, contact, display):
    body = {
        "contact-email": contact,
        "display-email": display,
        "phone": "zoë@example.com",
    }
    assert person.create(body).status_code == 201


def test_find_accounts(make_app):
    app = make_app(USER_PROFILE_FIELDS="contact-email,display-email,phone")
    contact, display, another = [Person(app) for _ in "123"]
    elsewhere = Person(app, appid="find-elsewhere")
    create_with_emails(contact, "Zoë@example.com", "x@example.com")
    create_with_emails(display, "y@example.com", "ZOË@EXAMPLE.COM")
    create_with_emails(display, "zoë@example.com", "zoë@example.com")
    create_with_emails(another, "zoe@example.com", "zoë@example.com.example.com")
    create_with_emails(elsewhere, "zoë@example.com", "y@example.com")
    found = find_accounts(app, "zOë@Example.com")
    assert found == [contact.accountid, display.accountid]
    found = find_accounts(app, "zoë@example.com", "--appid", "find-elsewhere")
    assert found == [elsewhere.accountid]
    for email in ("", " zoë@example.com", "%", "zoë@example.com "):
        assert find_accounts(app, email) == []


def test_no_address_finds_nobody(app, user):
    """Also where no profile has an address to display."""
    user.create(named("name"))
    assert find_accounts(app, "") == []
    assert find_accounts(app, "name@example.com") == [user.accountid]


def store_sessions(appid, **changes):
    fill(Session, appid, 125)
    with connection():
        Session.update(changes).where(Session.appid == appid).execute()


def test_purge_sessions(command, user):
    command("purge-sessions", "--days", "0")
    before = moment_in(-5 * DAY)
    later = moment_in(DAY)
    store_sessions("expired", expiresAt=before)
    store_sessions("ended", expiresAt=later, endedAt=before)
    store_sessions("running", expiresAt=later)
    assert command("purge-sessions", "--days", "6")["count"] == 0
    assert command("purge-sessions")["count"] == 0
    purged = command("purge-sessions", "--days", "5")
    assert purged == {"object": "purge", "count": 250}
    assert command("purge-sessions", "--days=1")["count"] == 0
    with connection():
        left = Counter(session.appid for session in Session.select())
    assert left["expired"] == 0
    assert left["ended"] == 0
    assert left["running"] == 125
    assert left[user.appid] == 1


@on_sqlite
def test_a_purge_that_fails_keeps_what_it_has_done(empty_database_url, make_app):
    """It deletes a part at a time, in a transaction each."""
    url = empty_database_url
    runner = make_app(DATABASE_URL=url).test_cli_runner()
    fill(Session, "default", 2_500)
    ((middle,),) = execute(
        url, "SELECT id FROM session ORDER BY id LIMIT 1 OFFSET 1250"
    )
    action = "BEGIN SELECT RAISE(ABORT, 'no'); END"
    trigger = f"CREATE TRIGGER spoil BEFORE DELETE ON session WHEN OLD.id = {middle}"
    execute(url, f"{trigger} {action}")
    assert runner.invoke(args=["purge-sessions"]).exit_code == 1
    ((left,),) = execute(url, "SELECT count(*) FROM session")
    assert 0 < left < 2_500


def test_the_users_of_the_demo_differ(app, administrator):
    app.test_cli_runner().invoke(args=["demo"])
    profiles = administrator.profiles()
    assert len({profile["fullName"] for profile in profiles}) == 3
    assert len({profile["contactEmail"] for profile in profiles}) == 3


@pytest.fixture
def sqlite_url(tmp_path):
    """A database with its tables."""
    url = f"sqlite:///{tmp_path}/x.db"
    create_app({"DATABASE_URL": url})
    return url


def run_shell(url, command, **options):
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": url},
        capture_output=True,
        text=True,
        **options,
    )


@pytest.mark.parametrize("words", ["create-account", "demo"])
@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (">/dev/full", "No space left on device"),
        ("| true", "Broken pipe"),
        (">&-", "it is closed"),
    ],
)
def test_output_that_cannot_be_written(sqlite_url, words, output, reason):
    """What was made stays, and Python adds nothing at its end."""
    command = f"(sleep 0.2; exec {sys.executable} -m flask {words}) {output}"
    process = run_shell(sqlite_url, command)
    assert process.returncode == 1
    assert process.stderr == f"Error: cannot write the output: {reason}\n"
    ((count,),) = execute(sqlite_url, "SELECT count(*) FROM account")
    assert count == (4 if words == "demo" else 1)


def test_a_process_whose_disk_is_full(sqlite_url, tmp_path):
    """What could not be stored is not shown."""
    with driver(sqlite_url) as (reader, _):
        reader.execute("BEGIN")  # so that the database's log grows
        reader.execute("SELECT count(*) FROM account").fetchall()
        execute(sqlite_url, "INSERT INTO account SELECT 'x', 'x', 0, NULL, 'x', 'x'")
        size = os.stat(tmp_path / "x.db-wal").st_size
        limit_files = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
        command = f"exec {sys.executable} -m flask create-account"
        process = run_shell(sqlite_url, command, preexec_fn=limit_files)
    assert process.returncode == 1
    assert process.stdout == ""
    assert process.stderr.endswith("\nError: database-unavailable\n")
    assert execute(sqlite_url, "SELECT accountid FROM account") == [("x",)]


@pytest.mark.parametrize("output", ["/dev/full", None])
def test_output_that_cannot_be_written_in_this_process(monkeypatch, output):
    file = output and open(output, "w")
    monkeypatch.setattr(sys, "stdout", file)
    with pytest.raises(click.ClickException, match="^cannot write the output: "):
        show("text")
    with suppress(OSError, AttributeError):
        file.close()
