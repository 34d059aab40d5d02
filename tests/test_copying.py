"""``flask copy-database``, compared by the drivers of the databases themselves."""

import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from databases import (
    damage,
    execute,
    fill,
    first_starts,
    is_empty,
    name_of,
    new_database,
    on_sqlite,
    stored,
)
from flask.cli import ScriptInfo
from serving import free_port, named, repeating, run

from accounts import create_account
from app import create_app
from database import connection, db, transaction
from models import Account, Profile, Session
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
    "\r\n",
    "\x1a",
    "é\U0001f600\ufeff",
    "é" * 10_000,
    " x ",
    "",
    "NULL",
    None,
]
MANY = 501  # more rows than are read at once
COPIED = {"object": "copy", "accounts": MANY, "profiles": MANY, "sessions": MANY}


@pytest.fixture(params=["sqlite", "mysql"])
def target(request, tmp_path):
    """An empty database of either kind."""
    with new_database(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def source(empty_database_url):
    return empty_database_url


@pytest.fixture
def app(source):
    """A service with many rows of each kind, and texts of each kind."""
    app = create_app({"DATABASE_URL": source})
    run(app, "create-account", "--administrator")
    (account,) = stored(source)["account"]
    owner = {"accountid": account["accountid"]}
    fill(Session, "default", MANY, **owner)
    fill(Profile, "default", MANY - len(TEXTS), **owner)
    profiles = stored(source)["profile"][: len(TEXTS)]
    properties = [field.property for field in CATALOGUE.values()]
    for number, (profile, text) in enumerate(zip(profiles, TEXTS, strict=True), 1):
        profile |= dict.fromkeys(properties, text)
        profile |= {"id": number, "profileid": f"prof_{number:016x}"}
    others = [account | {"accountid": f"acct_{n:016x}"} for n in range(1, MANY)]
    with connection():
        Account.insert_many(others).execute()
        Profile.insert_many(profiles).execute()
    return app


def refusal(target, reason):
    kind = target.partition(":")[0]
    return f"Error: DATABASE_URL={kind}://***: {reason}"


def test_every_value_of_every_column(app, command, source, target):
    before = stored(source)
    assert {row["website"] for row in before["profile"]} >= set(TEXTS)
    assert command("copy-database", target) == COPIED
    assert stored(target) == before
    assert stored(source) == before


def test_a_target_that_has_rows(app, command, target):
    command("copy-database", target)
    for table in ("session", "profile", "account"):  # at last, only accounts are left
        assert command("copy-database", target) == refusal(target, "has rows already")
        execute(target, f"DELETE FROM {table}")


@on_sqlite
def test_a_target_that_is_away(app, command, tmp_path):
    for url in (
        f"sqlite:///{tmp_path}/missing/x.db",
        f"mysql://u:secret@127.0.0.1:{free_port()}/x",
    ):
        line = command("copy-database", url)
        assert line.startswith(refusal(url, ""))
        assert "secret" not in line


@on_sqlite
def test_a_source_that_is_damaged_or_away(app, command, source, target):
    """The error does not name DATABASE_URL, which is the target's."""
    db.close()
    damage(source)
    assert command("copy-database", target) == "Error: database-unavailable"
    assert is_empty(target)
    Path(name_of(source)).unlink()
    assert command("copy-database", target) == "Error: database-unavailable"


@on_sqlite
@pytest.mark.parametrize(
    ("kind", "reason", "action"),
    [
        ("sqlite", "", "BEGIN SELECT RAISE(ABORT, 'no'); END"),
        ("mysql", "", "FOR EACH ROW SIGNAL SQLSTATE '45000'"),
        ("mysql", "", "FOR EACH ROW KILL CONNECTION_ID()"),
    ],
)
def test_a_target_that_does_not_take_every_row(
    app, command, tmp_path, kind, reason, action
):
    with new_database(kind, tmp_path) as target:
        first_starts([[target]])  # which makes the tables
        execute(target, f"CREATE TRIGGER spoil BEFORE INSERT ON session {action}")
        assert command("copy-database", target).startswith(refusal(target, reason))
        assert is_empty(target)
        execute(target, "DROP TRIGGER spoil")
        assert command("copy-database", target) == COPIED


def test_what_is_written_meanwhile_is_not_copied_in_part(app, command, target):
    """An account and its profile are stored at once: both are copied, or neither."""

    def create_both():
        with app.app_context(), transaction():
            account = Account(**create_account("default"))
            return create_profile(account, account.accountid, named("name"))

    with repeating(create_both):
        copied = command("copy-database", target)
    assert copied["accounts"] == copied["profiles"]
    for table, rows in stored(target).items():
        assert len(rows) == copied[f"{table}s"]


@on_sqlite
def test_progress_is_shown_on_a_terminal_alone(app, target, monkeypatch, capsys):
    words = ["copy-database", target]
    terminal = StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit, match="^0$"):
        app.cli.main(words, obj=ScriptInfo(create_app=lambda: app))
    assert terminal.getvalue().startswith("\r")
    assert json.loads(capsys.readouterr().out) == COPIED
