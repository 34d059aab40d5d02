"""Rows, connections, forks, applications and tables: what a single process can show of them."""

import gc
import logging
import os
import re
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from multiprocessing import get_context
from types import SimpleNamespace

import click
import peewee
import pymysql
import pytest
from databases import (
    SCHEMA,
    connections,
    cut_connections,
    driver,
    execute,
    is_sqlite,
    schema,
    server_set_to,
    wait_until_one_waits,
)
from flask import Flask
from serving import (
    PROFILES,
    ROOT,
    Person,
    assert_error,
    assert_unavailable,
    at_once,
    named,
    run,
    wait_until,
)

import config
import engines
import models
import rows
from accounts import Caller, create_account
from database import bind, connection, transaction
from errors import ServiceError
from failures import CONFLICTS, is_conflict
from models import Account, Profile
from operations import create_profile, list_profiles
from tables import db

on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def default_profileid(person):
    with connection():
        return Account.get_by_id(person.accountid).profileid


# Rows


@pytest.mark.parametrize("own", [nullcontext, transaction])
@pytest.mark.parametrize("default", ["", "true"])
def test_a_row_made_in_the_nanosecond_of_another_is_made_again(
    app, user, monkeypatch, default, own
):
    """As two processes can do it: each has a clock of its own."""
    first = user.create(named("first")).json
    with connection():
        start = Profile.get(Profile.profileid == first["profileid"]).id
    monkeypatch.setattr(models, "latest", start + 10**12)
    second = user.create(named("second")).json
    monkeypatch.setattr(models, "latest", start + 10**12 - 5)
    with own():
        third = create_profile(user.account, user.accountid, named("third", default=default))
    assert len({first["profileid"], second["profileid"], third["profileid"]}) == 3
    assert default_profileid(user) == (third["profileid"] if default else None)


def test_what_else_must_be_unique_is_tried_once(empty_database_url, make_app, caplog):
    user = Person(make_app(DATABASE_URL=empty_database_url))
    execute(empty_database_url, "CREATE UNIQUE INDEX one_each ON profile (accountid)")
    user.create(named("first"))
    with caplog.at_level(logging.DEBUG, "peewee"):
        assert_error(user.create(named("second")), 500, "internal-error")
    assert caplog.text.count("INSERT INTO") == 1


def test_a_row_that_was_stored_though_its_commit_seemed_to_fail(app, user, database_url):
    """The work is repeated then, and finds its row."""
    values = {"profileid": "prof_0123456789abcdef", "appid": user.appid}
    values |= {"accountid": user.accountid, "phone": "1"}
    with connection():
        stored = rows.insert(Profile, values)
        assert rows.insert(Profile, values) == stored
    own = f"SELECT phone FROM profile WHERE accountid = '{user.accountid}'"
    assert execute(database_url, own) == [("1",)]


@pytest.mark.parametrize("table", ["account", "profile"])
def test_default_is_both_or_neither(empty_database_url, make_app, table):
    """Whichever of the two writes fails, the other is not stored either."""
    user = Person(make_app(DATABASE_URL=empty_database_url), administrator=True)
    caller, body = user.account, named("name", default="true")
    execute(empty_database_url, f"ALTER TABLE {table} RENAME TO elsewhere")
    with pytest.raises(ServiceError, match="^database-unavailable$"):
        create_profile(caller, user.accountid, body)
    execute(empty_database_url, f"ALTER TABLE elsewhere RENAME TO {table}")
    assert (user.profiles(), default_profileid(user)) == ([], None)
    made = create_profile(caller, user.accountid, body)
    assert default_profileid(user) == made["profileid"]


def test_a_caller_of_another_application_or_of_no_account(app, user):
    signed_in = Caller(user.accountid, False, user.appid)
    nobody = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=False)
    stranger = SimpleNamespace(**vars(nobody), appid="another")
    for caller, body in ((signed_in, named("name")), (nobody, {}), (stranger, {})):
        with pytest.raises(ServiceError, match="^invalid-accountid$"):
            create_profile(caller, caller.accountid, body, appid="another")


def test_any_other_default_leaves_the_account(app, user):
    for default in ("True", "1", "yes", "", " true", False, 1, None, ["true"]):
        assert user.create(json=named("name", default=default)).status_code == 201
        assert default_profileid(user) is None, default


# A thread's connection


def test_a_thread_uses_one_connection_for_all_its_requests(app, user, database_url):
    user.create(named("first"))
    before = connections(database_url)
    for _ in range(3):
        user.create(named("next"))
        assert user.create({}).status_code == 400
        with connection():
            with connection():
                db.execute_sql("SELECT 1").fetchone()
            db.execute_sql("SELECT 1").fetchone()
        assert not db.connect(reuse_if_open=True)
    assert connections(database_url) == before
    assert len(before) == 1


def test_each_thread_has_a_connection_until_it_ends(app, user, database_url):
    user.create(named("first"))
    before, together = connections(database_url), threading.Barrier(4)

    def work():
        app.test_client().get(PROFILES, headers=user.headers)
        together.wait(10)
        seen = connections(database_url) - before
        together.wait(10)
        return len(seen)

    assert at_once(*[work] * 4) == [4] * 4
    wait_until(lambda: connections(database_url) == before)
    assert user.create(named("last")).status_code == 201


def test_another_database_closes_the_connection_to_the_first(
    empty_database_url, make_app, database_url
):
    first = make_app()
    Account.get_or_none(Account.accountid == "acct_0123456789abcdef")  # outside connection()
    assert len(connections(database_url)) == 1
    Person(make_app(DATABASE_URL=empty_database_url)).create(named("name"))
    wait_until(lambda: not connections(database_url))
    assert len(connections(empty_database_url)) == 1
    assert first.test_client().get("/health").status_code == 200


@on_mysql
def test_a_lost_connection_is_replaced_in_process(app, user, database_url):
    for use in (lambda: None, Account.select().count):
        caller = user.account
        create_profile(caller, user.accountid, named("name"))
        assert cut_connections(database_url) > 0
        with suppress(peewee.OperationalError):
            use()  # outside connection()
        assert create_profile(caller, user.accountid, named("name"))["fullName"] == "name"


@on_mysql
def test_an_old_connection_is_replaced_but_not_within_a_block(app, user, database_url, monkeypatch):
    user.create(named("first"))
    used = []
    for seconds in (engines.CONNECTION_SECONDS, 0, 0):
        monkeypatch.setattr(engines, "CONNECTION_SECONDS", seconds)
        with transaction():
            used.append(connections(database_url))
            user.create(named("next"))
            assert connections(database_url) == used[-1]
    assert [len(each) for each in used] == [1, 1, 1]
    assert len(set.union(*used)) == 3


class OperationalError(Exception):
    """Of another library."""


@pytest.mark.parametrize(
    "kind",
    [KeyboardInterrupt, OperationalError, peewee.ProgrammingError, peewee.OperationalError],
)
def test_a_failure_closes_the_connection_and_the_next_call_has_another(
    app, user, database_url, kind
):
    """An interrupted statement may have left its result in it. A defect is no outage."""
    user.create(named("first"))
    outcome = ServiceError if kind is peewee.OperationalError else kind
    with pytest.raises(outcome), connection():
        raise kind("x")
    wait_until(lambda: not connections(database_url))
    assert user.create(named("second")).status_code == 201


@on_mysql
def test_the_log_has_no_value_that_mysql_refused(empty_database_url, make_app, caplog):
    person = Person(make_app(DATABASE_URL=empty_database_url, PROPAGATE_EXCEPTIONS=False))
    execute(empty_database_url, "ALTER TABLE profile MODIFY fullName TEXT CHARACTER SET latin1")
    assert_error(person.create(named("x") | {"full-name": "\U0001f600"}), 500, "internal-error")
    assert "DataError" in caplog.text and "1366" in caplog.text
    assert "xF0" not in caplog.text


def test_which_errors_are_conflicts():
    """A group's member reports a conflict in an error that has other reasons, too."""
    for code in CONFLICTS:
        assert is_conflict(peewee.OperationalError(code, "text")), code
    assert {1020, 1050, 1061, 1205, 1213, 1684, 3101, "database is locked"} == set(CONFLICTS)
    lost = 'Got error 149 - "Lock deadlock; Retry transaction" during COMMIT'
    assert is_conflict(peewee.OperationalError(1180, lost))
    for other in ((1180, "Got error 28 during COMMIT"), (1062, "Got error 149"), ("full",), ()):
        assert not is_conflict(peewee.OperationalError(*other))


def test_private_names_of_libraries_are_what_they_were():
    """engines.py says why it uses them."""
    assert "_lock" in vars(peewee.SqliteDatabase("x.db"))
    assert "_sock" in vars(pymysql.Connection(defer_connect=True))


# Forks


def in_a_child(work):
    """The id of a child in which the work is done; its status is 0 when it has succeeded."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def test_a_child_has_a_connection_of_its_own(empty_database_url, make_app):
    """Its writes outlive the connection of its parent, which goes on with a new one."""
    person = Person(make_app(DATABASE_URL=empty_database_url), administrator=True)
    fork = get_context("fork")
    started, ended = fork.Event(), fork.Event()

    def work():
        person.create(named("child"))
        started.set()
        assert ended.wait(10)
        assert [person.create(named("child")).status_code for _ in range(5)] == [201] * 5
        assert len(connections(empty_database_url)) == 1

    with connection():
        person.create(named("parent"))
        child = in_a_child(work)
        assert started.wait(10)
        assert db.execute_sql("SELECT 1").fetchone() == (1,)
        db.close()
    ended.set()
    assert os.waitpid(child, 0)[1] == 0
    assert len(person.profiles()) == 7


def test_a_fork_within_a_transaction_leaves_it_to_the_parent(app, user, database_url):
    with transaction():
        made = create_profile(user.account, user.accountid, named("name"))
        assert os.waitpid(in_a_child(lambda: None), 0)[1] == 0
    found = execute(database_url, f"SELECT profileid FROM profile WHERE appid = '{user.appid}'")
    assert found == [(made["profileid"],)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # just so
def test_a_child_leaves_the_connections_of_other_threads_alone(app, user, database_url):
    connected, forked = threading.Event(), threading.Event()
    db.close()
    wait_until(lambda: not connections(database_url))

    def use_before_and_after():
        user.get(PROFILES)
        before = connections(database_url)
        connected.set()
        assert forked.wait(10)
        assert user.create(named("after")).status_code == 201
        return is_sqlite(database_url) or before <= connections(database_url)

    with ThreadPoolExecutor(1) as pool:
        using = pool.submit(use_before_and_after)
        assert connected.wait(10)
        assert os.waitpid(in_a_child(gc.collect), 0)[1] == 0
        forked.set()
        assert using.result()


# Applications of one process


def test_within_another_flask_app_each_has_its_own_log(make_app, monkeypatch, capsys):
    """As without pytest, which has handlers of its own."""
    administrator = Person(make_app(), administrator=True)
    made, caller = administrator.create(named("name")).json, administrator.account
    host = Flask("host")
    host.config["SETTINGS"] = "its own"

    @host.get("/")
    def view():
        host.logger.error("its own line")
        with suppress(ServiceError), connection():
            raise peewee.OperationalError("gone")
        return list_profiles(caller)

    with monkeypatch.context() as patch:
        for name in (None, "host", "profiles"):
            patch.setattr(logging.getLogger(name), "handlers", [])
        assert host.logger.handlers
        for _ in range(2):  # the second adds no second handler
            make_app(APPID=administrator.appid)
        assert host.test_client().get("/").json == [made]
    first, second = capsys.readouterr().err.splitlines()
    when = r"\[[-0-9 :,]+\]"
    assert re.fullmatch(f"{when} ERROR in test_database: its own line", first)
    assert re.fullmatch(f"{when} ERROR: database unavailable: gone", second)


def test_the_settings_of_the_active_app_count_or_else_those_of_the_last(make_app):
    first, last = make_app(PAGE_SIZE=1), make_app(PAGE_SIZE=2)
    assert config.settings().page_size == 2
    with first.app_context():
        assert config.settings().page_size == 1
        with last.app_context():
            assert config.settings().page_size == 2


def test_before_any_application_the_error_says_so(monkeypatch):
    monkeypatch.setattr(config, "source", None)
    with pytest.raises(RuntimeError, match="call create_app"):
        list_profiles(None)


def test_the_sample_of_the_readme_runs_as_it_stands(tmp_path):
    section = (ROOT / "README.md").read_text().split("## In-process")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        cwd=ROOT,
        env={"DATABASE_URL": f"sqlite:///{tmp_path}/x.db", "APPID": "shop"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "'phone': '1'" in done.stdout


# Tables, made at the first use


def test_an_application_is_made_without_its_database(tmp_path, make_app, caplog):
    app = make_app(DATABASE_URL=f"sqlite:///{tmp_path}/folder/x.db")
    assert caplog.messages == []
    assert_unavailable(app.test_client().get("/health"))
    done = app.test_cli_runner().invoke(args=["create-account"])
    assert (done.exit_code, done.stderr) == (1, "Error: database-unavailable\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.db").write_text("It is a text. " * 500)
    assert_unavailable(app.test_client().get("/health"))
    assert "file is not a database" in caplog.messages[-1]
    (tmp_path / "folder" / "x.db").unlink()
    assert app.test_client().get("/health").status_code == 200


def test_the_first_use_makes_the_tables_in_a_click_program_too(empty_database_url, make_app):
    with click.Context(click.Command("host")):
        make_app(DATABASE_URL=empty_database_url)
        Account.get_or_none(Account.accountid == "x")  # outside connection()
    assert schema(empty_database_url) == SCHEMA


def test_missing_indexes_are_made_again(empty_database_url, make_app):
    made = {"object": "database", "engine": empty_database_url.split(":")[0]}
    assert run(make_app(DATABASE_URL=empty_database_url), "init-db") == made
    on = "" if is_sqlite(empty_database_url) else " ON profile"
    for index in ("profile_appid_id", "profile_profileid"):
        execute(empty_database_url, f"DROP INDEX {index}{on}")
    assert run(make_app(DATABASE_URL=empty_database_url), "init-db") == made
    assert schema(empty_database_url) == SCHEMA


def test_a_table_that_lacks_columns_is_named_until_it_has_them(
    empty_database_url, make_app, caplog
):
    run(make_app(DATABASE_URL=empty_database_url), "init-db")
    execute(empty_database_url, "ALTER TABLE profile DROP COLUMN website")
    execute(empty_database_url, "ALTER TABLE profile DROP COLUMN phone")
    app = make_app(DATABASE_URL=empty_database_url)
    done = app.test_cli_runner().invoke(args=["init-db"])
    assert (done.exit_code, done.stderr) == (1, "Error: database-unavailable\n")
    assert caplog.messages == ["database unavailable: table profile lacks phone, website"]
    for _ in range(2):
        with pytest.raises(peewee.OperationalError, match="lacks phone, website"):
            Account.select().count()  # outside connection()
    execute(empty_database_url, "ALTER TABLE profile ADD COLUMN website TEXT")
    assert_unavailable(app.test_client().get("/health"))
    execute(empty_database_url, "ALTER TABLE profile ADD COLUMN phone TEXT")
    assert app.test_client().get("/health").status_code == 200


def test_tables_that_are_gone_are_left_to_the_operator(empty_database_url, make_app):
    """Made anew, they would be in the way of whoever restores them."""
    for table in ("account", "profile", "session"):
        client = make_app(DATABASE_URL=empty_database_url).test_client()
        assert client.get("/health").status_code == 200
        execute(empty_database_url, f"DROP TABLE {table}")
        for _ in range(2):
            assert_unavailable(client.get("/health"))


def test_a_relative_path_is_one_file_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bind(config.load({"DATABASE_URL": "sqlite:///some/profiles.db"}).database_url)
    assert db.database == str(ROOT / "some" / "profiles.db")


# The server


@on_mysql
@pytest.mark.parametrize(
    "settings",
    [
        {"autocommit": 0, "sql_mode": "", "max_join_size": 1, "sql_select_limit": 7},
        {"completion_type": 1, "innodb_default_row_format": "compact", "sql_safe_updates": 1},
        {"completion_type": 2, "default_storage_engine": "MyISAM"},
        {"sql_mode": "ANSI,NO_BACKSLASH_ESCAPES"},
    ],
)
def test_the_configuration_of_the_server_does_not_matter(
    make_empty_database, make_app, database_url, settings
):
    with ExitStack() as server:
        for name, value in settings.items():
            server.enter_context(server_set_to(name, value))
        url = make_empty_database()
        for _ in range(2):  # to make the tables, and to find them
            app = make_app(DATABASE_URL=url)
            assert run(app, "init-db") == {"object": "database", "engine": "mysql"}
        person, other = Person(app, administrator=True), Person(app)
        made = [other.create(named("name")).status_code for _ in range(3)]
        assert made == [201] * 3
        stored = [person.create(named("a'\\", default=default)) for default in ("true", "no")]
        assert [response.status_code for response in stored] == [400, 400]
        stored = [person.create(named("name", default=default)) for default in ("true", "no")]
        assert [response.status_code for response in stored] == [201, 201]
        assert len(person.profiles()) == 5
        with pytest.raises(peewee.DataError), connection():
            create_account("x" * 65)
        with transaction():  # a caller's own statement, which no key helps
            Account.update(profileid=None).where(Account.appid == person.appid).execute()
        assert run(app, "end-sessions", other.accountid)["count"] == 1
        assert run(app, "purge-sessions", "--days", "0")["count"] == 1
        assert run(app, "delete-account", other.accountid)["profiles"] == 3
    assert execute(url, "SELECT accountid FROM profile") == [(person.accountid,)] * 2
    tables = "information_schema.tables WHERE table_schema = DATABASE()"
    assert execute(url, f"SELECT DISTINCT engine FROM {tables}") == [("InnoDB",)]


@on_mysql
def test_a_statement_longer_than_the_server_takes_is_a_503(make_empty_database, make_app):
    limits = {"USER_PROFILE_FIELDS": "phone", "MAXIMUM_POST_DATA_LENGTH": 1_000_000}
    with server_set_to("max_allowed_packet", 2**16):
        person = Person(make_app(DATABASE_URL=make_empty_database(), **limits), administrator=True)
        made = person.create({"phone": "1"}).json
        for text in ("x" * 2**16, '"' * 2**15, "\U0001f600" * 2**14):
            assert_unavailable(
                person.create(json={"phone": text}),
                person.create(json={"phone": text, "default": "true"}),
                person.update(made["profileid"], json={"phone": text}),
            )
        assert person.profiles() == [made]
        assert person.create({"phone": "x" * (2**16 - 1_000)}).status_code == 201


@on_mysql
def test_a_create_that_waits_for_a_lock_is_the_newest_when_it_is_done(app, user, database_url):
    """So whoever reads newest first never finds it behind rows seen before."""
    administrator, other = Person(app, administrator=True), Person(app)
    with driver(database_url) as (cursor, _):
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM account WHERE accountid = %s FOR UPDATE", (user.accountid,))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(user.create, named("waiting", default="true"))
            wait_until_one_waits()
            overtaking = other.create(named("overtaking")).json
            assert administrator.profiles() == [overtaking]
            cursor.execute("ROLLBACK")
            waited = waiting.result().json
    assert administrator.profiles() == [waited, overtaking]
    assert waited["createdAt"] > overtaking["createdAt"]


# SQLite's file


def test_a_damaged_page_is_an_outage(tmp_path, make_app, caplog):
    app = make_app(DATABASE_URL=f"sqlite:///{tmp_path}/x.db", USER_PROFILE_FIELDS="location")
    person = Person(app, administrator=True)
    for _ in range(20):
        assert person.create({"location": "x" * 3_000}).status_code == 201
    with connection():
        db.execute_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    with (tmp_path / "x.db").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size // 2)
        file.write(os.urandom(size - size // 2))
    assert_unavailable(person.get(f"{PROFILES}?all=all"))
    assert "malformed" in caplog.text


@pytest.mark.parametrize("removed", [True, False])
def test_a_file_that_is_removed_or_replaced(tmp_path, make_app, removed):
    """Nothing is acknowledged that goes into a file that nobody can see, and none is made anew."""
    path, copy = tmp_path / "x.db", tmp_path / "copy.db"
    person = Person(make_app(DATABASE_URL=f"sqlite:///{path}"), administrator=True)
    kept = person.create(named("kept")).json
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    lost = person.create(named("lost")).json
    assert person.profiles() == [lost, kept]
    if removed:
        path.unlink()
        for _ in range(2):
            assert_unavailable(person.create(named("never")), person.get("/health"))
        assert not path.exists()
    for log in tmp_path.glob("x.db-*"):  # as OPERATING.md says
        log.unlink()
    copy.replace(path)
    after = person.create(named("after")).json
    assert person.profiles() == [after, kept]


def test_a_file_that_is_removed_before_a_process_uses_it(tmp_path, make_app):
    path = tmp_path / "x.db"
    path.touch()
    client = make_app(DATABASE_URL=f"sqlite:///{path}").test_client()
    path.unlink()
    assert_unavailable(client.get("/health"))
    assert not path.exists()


def test_a_text_that_is_no_utf8_is_not_in_the_log(tmp_path, make_app, caplog):
    person = Person(make_app(DATABASE_URL=f"sqlite:///{tmp_path}/x.db"), administrator=True)
    person.create(named("name"))
    with connection():
        db.execute_sql("UPDATE profile SET fullName = CAST(x'53454352455450ff' AS TEXT)")
    assert_unavailable(person.get(PROFILES))
    assert "column 'fullName'" in caplog.text
    assert "SECRET" not in caplog.text


@on_sqlite
def test_the_settings_that_keep_an_acknowledged_write(app):
    with connection():
        assert db.pragma("journal_mode") == "wal"
        assert db.pragma("synchronous") == 2  # FULL
        with transaction():
            assert db.pragma("busy_timeout") == 4_000  # also after BEGIN, which waits otherwise
