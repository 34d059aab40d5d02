"""``flask copy-database``, compared by the drivers of the databases themselves."""

import json
import os
import signal
import sys
from io import StringIO
from pathlib import Path

import pytest
from databases import (
    connections,
    driver,
    engine_at,
    execute,
    fill,
    new_database,
    on_sqlite,
    store,
    stored,
)
from flask.cli import ScriptInfo
from serving import Served, free_port, named, repeating, run, wait_until

from accounts import create_account
from app import create_app
from database import transaction
from models import Account, Profile, Session, make_tables
from operations import create_profile
from validators import CATALOGUE

TEXTS = [
    "\0",
    "a\0b",
    "\\",
    "\\'",
    "'';--",
    '"',
    "%s",
    "%(id)s",
    "?",
    ":id",
    "\r\n",
    "\x1a",
]
TEXTS += [
    "é\U0001f600\ufeff",
    "e\u0301",
    "é" * 10_000,
    " x ",
    "x\t",
    "",
    "0",
    "NULL",
    None,
]
COUNTS = {"accounts": 502, "profiles": 501 + len(TEXTS), "sessions": 501}


@pytest.fixture(params=["sqlite", "mysql"])
def target(request, tmp_path):
    """An empty database of either kind."""
    with new_database(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def app(empty_database_url):
    """A service with more rows of each kind than are read at once, and texts of each kind."""
    app = create_app({"DATABASE_URL": empty_database_url})
    run(app, "create-account", "--administrator")
    app.url, (account,) = empty_database_url, stored(empty_database_url)["account"]
    store(
        app.url,
        Account,
        [account | {"accountid": f"acct_{n:016x}"} for n in range(501)],
    )
    for model in (Profile, Session):
        fill(model, "default", 501)
    columns = [row.property for row in CATALOGUE.values()]
    profiles = stored(app.url)["profile"][: len(TEXTS)]
    for n, (text, row) in enumerate(zip(TEXTS, profiles, strict=True), 1):
        row |= dict.fromkeys(columns, text) | {"id": n, "profileid": f"prof_{n:016x}"}
    store(app.url, Profile, profiles)
    return app


def refusal(target, reason):
    return f"Error: DATABASE_URL={target.partition('//')[0]}//***: {reason}"


def test_every_value_of_every_column(app, command, target):
    before = stored(app.url)
    assert command("copy-database", target) == {"object": "copy", **COUNTS}
    assert stored(target) == stored(app.url) == before
    assert {row["website"] for row in before["profile"]} >= set(TEXTS)
    for table in ("session", "profile", "account"):  # at last, only accounts are left
        assert command("copy-database", target) == refusal(target, "has rows already")
        execute(target, f"DELETE FROM {table}")


@on_sqlite
def test_databases_that_are_away_or_damaged(app, command, tmp_path, target):
    """An error that names DATABASE_URL is about the target."""
    for url in (
        f"sqlite:///{tmp_path}/missing/x.db",
        f"mysql://u:secret@127.0.0.1:{free_port()}/x",
    ):
        line = command("copy-database", url)
        assert line.startswith(refusal(url, "")) and "secret" not in line
    execute(app.url, "PRAGMA wal_checkpoint(TRUNCATE)")
    path = Path(app.url.removeprefix("sqlite:///"))
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half] + os.urandom(half))
    assert command("copy-database", target) == "Error: database-unavailable"
    assert not any(stored(target).values())
    path.unlink()
    assert command("copy-database", target) == "Error: database-unavailable"


@on_sqlite
@pytest.mark.parametrize(
    "kind, reason, then",
    [
        ("sqlite", "", "BEGIN SELECT RAISE(ABORT, 'no'); END"),
        ("sqlite", "has another number of sessions", "BEGIN SELECT RAISE(IGNORE); END"),
        ("mysql", "", "FOR EACH ROW SIGNAL SQLSTATE '45000'"),
        ("mysql", "", "FOR EACH ROW KILL CONNECTION_ID()"),
    ],
)
def test_a_target_that_does_not_take_every_row(
    app, command, tmp_path, kind, reason, then
):
    with new_database(kind, tmp_path) as target:
        make_tables(engine_at(target))
        execute(target, f"CREATE TRIGGER spoil BEFORE INSERT ON session {then}")
        assert command("copy-database", target).startswith(refusal(target, reason))
        assert not any(stored(target).values())
        execute(target, "DROP TRIGGER spoil")
        assert command("copy-database", target) == {"object": "copy", **COUNTS}


@on_sqlite
@pytest.mark.long
def test_a_copy_that_is_interrupted_says_so_and_leaves_nothing(app, tmp_path):
    with new_database("mysql", tmp_path) as target:
        make_tables(engine_at(target))
        service = Served(tmp_path, app.url)
        with driver(target) as (cursor, _):
            cursor.execute("LOCK TABLES session WRITE")
            service.start(sys.executable, "-m", "flask", "copy-database", target)
            wait_until(lambda: len(connections(target)) == 2)
            service.process.send_signal(signal.SIGINT)
            assert service.process.wait(10) == 1
        assert service.log().split() == ["Aborted!"]
        assert not any(stored(target).values())


def test_what_is_written_meanwhile_is_not_copied_in_part(app, command, target):
    def write():
        with app.app_context(), transaction():
            account = Account(**create_account("default"))
            return create_profile(account, account.accountid, named("name"))

    with repeating(write):
        copied = command("copy-database", target)
    assert (
        copied["accounts"] - copied["profiles"]
        == COUNTS["accounts"] - COUNTS["profiles"]
    )
    assert [len(rows) for rows in stored(target).values()] == list(copied.values())[1:]


def test_progress_is_shown_on_a_terminal_alone(tmp_path, monkeypatch, capsys):
    app = create_app({"DATABASE_URL": f"sqlite:///{tmp_path}/source.db"})
    run(app, "create-account")
    words, terminal = ["copy-database", f"sqlite:///{tmp_path}/target.db"], StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    terminal.isatty = lambda: True
    with pytest.raises(SystemExit):
        app.cli.main(words, obj=ScriptInfo(create_app=lambda: app))
    assert "100%" in terminal.getvalue()
    assert json.loads(capsys.readouterr().out)["accounts"] == 1
