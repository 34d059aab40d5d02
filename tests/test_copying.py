"""``flask copy-database``, compared by the drivers of the databases themselves."""

import json
import sys
from io import StringIO

import pytest
from databases import (
    SCHEMA,
    cut_connections,
    execute,
    fill,
    is_sqlite,
    new_database,
    schema,
    store,
    stored,
)
from flask.cli import ScriptInfo
from peewee import TextField
from serving import SESSIONS, Person, free_port, run

import copying
from app import create_app
from database import connection, open_database
from database_url import parse_database_url
from errors import SettingError
from models import Account, Profile, Session

TEXTS = ["\0", "a\0b", "\\", "\\'", "'';--", '"', "%s", "%(id)s", "?", ":id", "\r\n", "\x1a"]
TEXTS += ["é\U0001f600\ufeff", "e\u0301", "é" * 10_000, " x ", "x\t", "", "0", "NULL", None]
COUNTS = {"accounts": 502, "profiles": 501 + len(TEXTS), "sessions": 502}


@pytest.fixture(params=["sqlite", "mysql"])
def target(request, tmp_path):
    """An empty database of either kind."""
    with new_database(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def app(empty_database_url):
    """A service with more rows of each kind than are read at once, and texts of each kind."""
    app = create_app({"DATABASE_URL": empty_database_url})
    app.url, app.person = empty_database_url, Person(app, administrator=True)
    (account,) = stored(app.url)["account"]
    accounts = [account | {"accountid": f"acct_{n:016x}", "administrator": 0} for n in range(501)]
    store(app.url, Account, accounts)
    for model in (Profile, Session):
        fill(model, "default", 501, accountid=app.person.accountid)
    columns = [field.name for field in Profile._meta.sorted_fields if type(field) is TextField]
    profiles = stored(app.url)["profile"][: len(TEXTS)]
    for n, (text, row) in enumerate(zip(TEXTS, profiles, strict=True), 1):
        row |= dict.fromkeys(columns, text) | {"id": n, "profileid": f"prof_{n:016x}"}
    store(app.url, Profile, profiles)
    return app


def refusal(target, reason):
    return f"Error: DATABASE_URL={target.partition('//')[0]}//***: {reason}"


def make_tables(url):
    """Make the tables of an empty database."""
    with open_database(parse_database_url(url)).connection_context():
        pass


def test_every_value_of_every_column(app, command, target):
    before = stored(app.url)
    assert command("copy-database", app.url) == refusal(app.url, "has rows already")
    assert command("copy-database", target) == {"object": "copy", **COUNTS}
    assert stored(target) == stored(app.url) == before
    assert {row["website"] for row in before["profile"]} >= set(TEXTS)
    assert schema(target) == SCHEMA
    copied = create_app({"DATABASE_URL": target})
    response = copied.test_client().get(SESSIONS, headers=app.person.headers)
    assert response.json[0]["sessionid"] == app.person.session["sessionid"]


def test_a_database_that_has_a_row_is_refused(app, command, target):
    rows = {model: stored(app.url)[model._meta.name][0] for model in (Account, Profile, Session)}
    make_tables(target)
    for model, row in rows.items():
        store(target, model, [row])
        assert command("copy-database", target) == refusal(target, "has rows already")
        assert sum(stored(target).values(), []) == [row]
        execute(target, f"DELETE FROM {model._meta.name}")


def test_databases_that_are_away(app, command, tmp_path):
    server = f"mysql://root:secret@127.0.0.1:{free_port()}/x"
    for url in (f"sqlite:///{tmp_path}/missing/x.db", server):
        line = command("copy-database", url)
        assert line.startswith(refusal(url, "")) and "secret" not in line
    reason = "must name a host, a port over 0 or none, and a database"
    assert command("copy-database", "mysql://root:secret@h") == refusal(server, reason)
    away = create_app({"DATABASE_URL": f"sqlite:///{tmp_path}/missing/x.db"})
    result = away.test_cli_runner().invoke(args=["copy-database", f"sqlite:///{tmp_path}/x.db"])
    assert (result.exit_code, result.output.splitlines()[-1]) == (1, "Error: database-unavailable")


TRIGGERS = {
    ("refuses", "sqlite"): "BEFORE INSERT ON session BEGIN SELECT RAISE(ABORT, 'no'); END",
    ("refuses", "mysql"): "BEFORE INSERT ON session FOR EACH ROW SIGNAL SQLSTATE '45000'",
    ("alters", "sqlite"): """AFTER INSERT ON profile WHEN NEW.id = 5
        BEGIN UPDATE profile SET website = 'x' WHERE id = 5; END""",
    ("alters", "mysql"): "BEFORE INSERT ON profile FOR EACH ROW SET NEW.website = 'x'",
}


@pytest.mark.parametrize("fault", ["refuses", "alters"])
def test_a_target_that_refuses_or_alters_a_row_is_left_empty(app, command, target, fault):
    make_tables(target)
    execute(target, f"CREATE TRIGGER spoil {TRIGGERS[fault, target.partition(':')[0]]}")
    reason = "DataError the copy of profile differs" if fault == "alters" else ""
    assert command("copy-database", target).startswith(refusal(target, reason))
    assert not any(stored(target).values())
    execute(target, "DROP TRIGGER spoil")
    assert command("copy-database", target) == {"object": "copy", **COUNTS}


def test_a_copy_that_is_interrupted_leaves_nothing(app, target):
    def interrupt(count):
        raise KeyboardInterrupt

    make_tables(target)
    with pytest.raises(KeyboardInterrupt), connection():
        copying.copy_database(parse_database_url(target), interrupt)
    assert not any(stored(target).values())
    if not is_sqlite(target):
        with pytest.raises(SettingError, match="(1927|2006|2013)") as caught, connection():
            copying.copy_database(parse_database_url(target), lambda _: cut_connections(target))
        assert str(caught.value).startswith("DATABASE_URL=mysql://***: ")
        assert not any(stored(target).values())


def test_what_is_written_meanwhile_is_not_copied(app, target):
    before, counts = stored(app.url), []

    def write(count):
        if not counts:
            account, profile, session = (rows[-1] for rows in before.values())
            store(app.url, Account, [account | {"accountid": "acct_ffffffffffffffff"}])
            later = {"id": 2**62, "profileid": "prof_x", "sessionid": "sess_x", "tokenHash": "x"}
            store(app.url, Profile, [profile | later])
            store(app.url, Session, [session | later])
            execute(app.url, "UPDATE profile SET website = 'changed'")
            execute(app.url, "DELETE FROM session WHERE duration = 60")
        counts.append(count)

    with connection():
        copied = copying.copy_database(parse_database_url(target), write)
    assert copied == {"object": "copy", **COUNTS}
    assert sum(counts) == 2 * sum(COUNTS.values())
    assert stored(target) == before != stored(app.url)


def test_progress_is_shown_on_a_terminal_alone(tmp_path, monkeypatch, capsys):
    source = f"sqlite:///{tmp_path}/source.db"
    app = create_app({"DATABASE_URL": source})
    run(app, "create-account")
    words, terminal = ["copy-database", f"sqlite:///{tmp_path}/target.db"], StringIO()
    terminal.isatty = lambda: True
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sys, "stderr", terminal)
        app.cli.main(words, obj=ScriptInfo(create_app=lambda: app))
    assert "100%" in terminal.getvalue()
    counts = {"accounts": 1, "profiles": 0, "sessions": 0}
    assert json.loads(capsys.readouterr().out) == {"object": "copy", **counts}
