"""What a table lacks: flask init-db adds it while an older version serves."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from unittest.mock import Mock

import pytest
from peewee import OperationalError
from service import (
    ROOT,
    SignedIn,
    Threads,
    at_once,
    close_connection,
    cursor_of,
    drop_email_indexes,
    execute,
    named,
    new_database,
    on_mysql,
    repeating,
    sign_in,
    stored,
    user_with,
)

import models
from database import db
from models import EMAILS, Account, Profile, Session, run_when_unlocked

NOTHING = {"object": "database", "added": []}
PHONE = {"object": "database", "added": ["profile.phone"]}


@pytest.fixture(params=["sqlite", "mysql"])
def database_url(request, tmp_path):
    """A database of each test's own."""
    with new_database(request.param, tmp_path) as url:
        yield url


def drop(url, *columns):
    """Drop columns, such as profile.phone."""
    for column in columns:
        table, name = column.split(".")
        if name in EMAILS and url.startswith("sqlite"):  # MySQL changes its index
            execute(url, f"DROP INDEX IF EXISTS profile_appid_{name}")
        execute(url, f"ALTER TABLE {table} DROP COLUMN {name}")


def test_the_columns_that_may_be_null_are_added(flask, user, database_url):
    """Once. The rows keep their other values."""
    before = user.create(named("Ada", default="true")).json
    columns = ["account.profileid", "profile.phone", "profile.dob", "session.endedAt"]
    drop(database_url, *columns)
    assert flask("init-db") == {"object": "database", "added": columns}
    assert flask("init-db") == NOTHING
    assert user.get(f"/api/user/profile?profileid={before['profileid']}").json == before


@pytest.mark.parametrize("model", [Account, Profile, Session])
def test_a_column_that_is_added_is_like_one_of_a_new_table(
    app, flask, database_url, model
):
    names = [field.name for field in model._meta.sorted_fields if field.null]
    new = {column.name: column for column in db.get_columns(model.TABLE)}
    drop(database_url, *[f"{model.TABLE}.{name}" for name in names])
    assert len(flask("init-db")["added"]) == len(names) > 0
    assert {column.name: column for column in db.get_columns(model.TABLE)} == new


def test_tables_that_are_created_are_not_listed(flask, database_url):
    assert flask("init-db") == NOTHING
    execute(database_url, "DROP TABLE session")
    drop(database_url, "profile.phone")
    assert flask("init-db") == PHONE
    assert stored(database_url)["session"] == []


def email_indexes(url):
    """How the database describes them."""
    if url.startswith("sqlite"):
        sql = "SELECT name, sql FROM sqlite_master WHERE name LIKE '%Email'"
    else:
        sql = """SELECT index_name, column_name, sub_part, non_unique
            FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND index_name LIKE '%Email'"""
    return sorted(execute(url, sql))


def test_the_indexes_are_added(flask, user, database_url):
    """Once, to a table that has rows. They are not listed."""
    profile = user.create(named("Ada")).json
    new = email_indexes(database_url)
    assert len({name for name, *_ in new}) == 2
    drop_email_indexes(database_url)
    assert email_indexes(database_url) == []
    for _ in range(2):
        assert flask("init-db") == NOTHING
        assert email_indexes(database_url) == new
    (found,) = flask("find-accounts", "ADA@example.com")["data"]
    assert found["profiles"] == [profile]


def test_indexes_of_columns_that_are_added(flask, database_url):
    flask("init-db")
    new = email_indexes(database_url)
    drop_email_indexes(database_url)
    drop(database_url, "profile.displayEmail")
    added = {"object": "database", "added": ["profile.displayEmail"]}
    assert flask("init-db") == added
    assert email_indexes(database_url) == new


def test_neither_a_service_nor_another_command_adds_what_is_missing(
    app, client, flask, database_url
):
    flask("init-db")
    drop(database_url, "profile.phone")
    drop_email_indexes(database_url)
    close_connection()
    assert client.get("/health").status_code == 503
    flask("create-account")
    assert email_indexes(database_url) == []
    assert flask("init-db") == PHONE


def test_what_another_process_adds_at_the_same_moment(app, flask, monkeypatch):
    """It was missing when the columns and the indexes were read."""
    flask("init-db")
    monkeypatch.setattr(db.obj, "get_columns", lambda table: [])
    monkeypatch.setattr(db.obj, "get_indexes", lambda table: [])
    assert flask("init-db") == NOTHING


LOCKED = [
    (1205, "Lock wait timeout exceeded; try restarting transaction"),
    (1213, "Deadlock found when trying to get lock; try restarting transaction"),
    ("database is locked",),
]
ADDED_ELSEWHERE = [
    (1060, "Duplicate column name 'phone'"),
    (1061, "Duplicate key name 'profile_appid_contactEmail'"),
    ("duplicate column name: phone",),
    ("index profile_appid_contactEmail already exists",),
]


@pytest.fixture
def addition(monkeypatch):
    """A migration that fails as its ``run`` is told to; nobody sleeps."""
    monkeypatch.setattr("models.time.sleep", lambda seconds: None)
    return Mock()


@pytest.mark.parametrize("error", LOCKED, ids=str)
def test_a_lock_is_waited_for(addition, error):
    addition.run.side_effect = [OperationalError(*error)] * 2 + [None]
    assert run_when_unlocked(addition.run) is True
    assert addition.run.call_count == 3


@pytest.mark.parametrize("error", LOCKED, ids=str)
def test_a_lock_is_waited_for_no_longer_than_a_minute(addition, error, monkeypatch):
    monkeypatch.setattr(models, "ALTER_SECONDS", -1)
    addition.run.side_effect = OperationalError(*error)
    with pytest.raises(OperationalError):
        run_when_unlocked(addition.run)
    assert addition.run.call_count == 1


@pytest.mark.parametrize("error", ADDED_ELSEWHERE, ids=str)
def test_what_exists_by_now_is_no_error(addition, error):
    addition.run.side_effect = OperationalError(*error)
    assert run_when_unlocked(addition.run) is False


@on_mysql
def test_the_right_that_is_missing_is_named(app, make_app, flask, database_url):
    flask("init-db")
    drop(database_url, "profile.phone")
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, REFERENCES"
    with user_with(database_url, rights) as url:
        app = make_app(DATABASE_URL=url)
        done = app.test_cli_runner().invoke(args=["init-db"])
        close_connection()
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "Error: database-unavailable: "
        "(1142, \"ALTER command denied to user '***'@'***' for table "
    )


@pytest.fixture
def reader(flask, database_url):
    """A cursor of a transaction that keeps the table of sessions from being changed."""
    flask("init-db")
    drop(database_url, "profile.phone", "session.endedAt")
    close_connection()
    with cursor_of(database_url) as cursor:
        cursor.execute("BEGIN IMMEDIATE" if "sqlite" in database_url else "BEGIN")
        cursor.execute("SELECT COUNT(*) FROM session")
        cursor.fetchall()
        yield cursor


@pytest.mark.long
def test_init_db_waits_for_an_open_transaction(flask, reader):
    """Longer than a request does."""
    with Threads(1) as pool:
        waiting = pool.submit(flask, "init-db")
        with pytest.raises(TimeoutError):
            waiting.result(6)
        reader.execute("ROLLBACK")
        added = waiting.result()["added"]
    assert added == ["profile.phone", "session.endedAt"]


@on_mysql
@pytest.mark.long
def test_columns_that_were_added_before_an_error_stay(app, flask, reader, monkeypatch):
    monkeypatch.setattr(models, "ALTER_SECONDS", 0)
    done = app.test_cli_runner().invoke(args=["init-db"])
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: database-unavailable: (1205, 'Lock wait ")
    reader.execute("ROLLBACK")
    assert flask("init-db")["added"] == ["session.endedAt"]


# A field that the next version adds

WEBSITE = '    "website":       FieldSpec('
NICKNAME = '    "nickname": FieldSpec("nickname", "name", "Countess"),\n'
NICKNAME_ADDED = {"object": "database", "added": ["profile.nickname"]}


@pytest.fixture
def next_version(tmp_path):
    """The folder of a copy of the code with one field more, as CONTRIBUTING says."""
    folder = tmp_path / "next"
    ignored = shutil.ignore_patterns(".*", "tests", "*.db*", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=ignored)
    lines = (folder / "validators.py").read_text().splitlines(keepends=True)
    (position,) = [at for at, line in enumerate(lines) if line.startswith(WEBSITE)]
    lines.insert(position + 1, NICKNAME)
    (folder / "validators.py").write_text("".join(lines))
    return folder


def init_db(folder, url):
    """What ``flask init-db`` prints, as a process in a folder of the code."""
    command = [sys.executable, "-m", "flask", "init-db"]
    environment = {**os.environ, "DATABASE_URL": url}
    return json.loads(subprocess.check_output(command, cwd=folder, env=environment))


@pytest.mark.long
def test_a_new_field_while_the_version_before_serves(database_url, serve, next_version):
    old = sign_in(serve(database_url))
    first = old.create(named("Ada")).json

    def save():
        assert old.create(named("Eve")).status_code == 201
        assert old.update(first["profileid"], named("Ada")).status_code == 200

    with repeating(save, save):
        printed = at_once(*[partial(init_db, next_version, database_url)] * 5)
    assert [each for each in printed if each != NOTHING] == [NICKNAME_ADDED]
    new = SignedIn(
        serve(
            database_url,
            cwd=next_version,
            USER_PROFILE_FIELDS="full-name,nickname",
            MAXIMUM_PROFILE_NICKNAME_LENGTH="8",
        )
    )
    new.accountid = old.accountid
    new.headers = old.headers
    check_nickname(old, new, first["profileid"])


CODES = [("", "invalid-nickname"), ("x" * 9, "invalid-nickname-length")]


def check_nickname(old, new, profileid):
    """It is refused, stored, read, listed and described; the old version serves on."""
    ada = {"full-name": "Ada"}
    for nickname, code in CODES:
        response = new.create(ada | {"nickname": nickname})
        assert response.json["errors"] == {"nickname": code}
    created = new.create(ada | {"nickname": "Countess"}).json
    assert [*created].index("nickname") == [*created].index("website") + 1
    path = "/api/user/profile?profileid="
    assert new.get(path + created["profileid"]).json == created
    assert new.get(path + profileid).json["nickname"] is None
    updated = new.update(profileid, ada | {"nickname": "Ada"}).json
    assert updated["nickname"] == "Ada"
    profiles = new.get(f"/api/user/profiles?all=1&accountid={new.accountid}").json
    assert (profiles[0], profiles[-1]) == (created, updated)
    description = new.get("/openapi.json")
    schemas = description.json["components"]["schemas"]
    assert schemas["Profile"]["required"] == [*created]
    properties = schemas["Profile"]["properties"]
    assert properties["nickname"]["examples"] == ["Countess"]
    assert schemas["CreateProfile"]["properties"]["nickname"]["maxLength"] == 8
    assert "`invalid-nickname`, `invalid-nickname-length`" in description.text
    del updated["nickname"]
    assert old.get(path + profileid).json == updated
    assert old.create(named("Eve")).status_code == 201
