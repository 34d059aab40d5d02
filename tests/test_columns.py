"""What a table lacks: flask init-db adds it while an older version serves."""

import json
import shutil
from functools import partial

import pytest
from service import (
    ROOT,
    TABLES,
    SignedIn,
    at_once,
    close_connection,
    cursor_of,
    execute,
    named,
    on_mysql,
    own_database_url,
    repeating,
    run_python,
    sign_in,
    stored,
    user_with,
)

from database import db
from models import EMAILS, add_missing

NOTHING = {"object": "database", "added": []}
PHONE = {"object": "database", "added": ["profile.phone"]}


database_url = own_database_url
target = own_database_url  # the empty database that a copy goes to


def drop(url, *columns):
    """Drop columns, such as profile.phone."""
    for column in columns:
        table, name = column.split(".")
        execute(url, f"ALTER TABLE {table} DROP COLUMN {name}")


def drop_email_indexes(url):
    """Drop the two indexes, which a table of 3.2 lacks."""
    table = "" if url.startswith("sqlite") else "ON profile"
    for column in EMAILS:
        execute(url, f"DROP INDEX profile_appid_{column} {table}")


def describe_columns():
    tables = {name: db.get_columns(name) for name in TABLES}
    return {name: {column.name: column for column in tables[name]} for name in tables}


def test_the_columns_that_may_be_null_are_added(flask, user, database_url):
    """Once, each as in a new table. The rows keep their other values."""
    before = user.create(named("Ada", default="true")).json
    new = describe_columns()
    columns = ["account.externalid", "account.profileid"]
    columns += ["profile.phone", "profile.dob", "session.endedAt"]
    drop(database_url, *columns)
    assert flask("init-db") == {"object": "database", "added": columns}
    assert flask("init-db") == NOTHING
    assert describe_columns() == new
    assert user.get(f"/api/user/profile?profileid={before['profileid']}").json == before


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
    user.create(named("Ada"))
    new = email_indexes(database_url)
    assert len({name for name, *_ in new}) == 2
    drop_email_indexes(database_url)
    assert email_indexes(database_url) == []
    for _ in range(2):
        assert flask("init-db") == NOTHING
        assert email_indexes(database_url) == new


def test_a_copy_adds_the_indexes_to_tables_of_an_older_version(flask, target):
    flask("copy-database", target)
    new = email_indexes(target)
    drop_email_indexes(target)
    flask("copy-database", target)
    assert email_indexes(target) == new


@pytest.mark.parametrize(
    "name, calls",
    [
        ("get_columns", 3),
        ("get_indexes", 1),
    ],
)
def test_what_another_process_adds_at_the_same_moment(
    app, flask, monkeypatch, name, calls
):
    """It was missing when the columns or the indexes were read."""
    flask("init-db")
    outdated = [[] for _ in range(calls)]
    read = getattr(db.obj, name)
    monkeypatch.setattr(
        db.obj, name, lambda table: outdated.pop() if outdated else read(table)
    )
    assert add_missing(db) == []
    assert not outdated


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", ["table", "view", "table in capitals"])
def test_a_table_of_another_program_is_left_as_it_is(
    database_url, make_app, caplog, name, kind
):
    """Neither a start nor a command adds a column to it, or another table."""
    other_name = name
    if kind == "table in capitals" and database_url.startswith("sqlite"):
        other_name = name.upper()  # on MySQL, this could be another table
    execute(database_url, f"CREATE TABLE x_{other_name} (id BIGINT, note TEXT)")
    if kind == "view":
        execute(database_url, f"CREATE VIEW {name} AS SELECT * FROM x_{name}")
    else:
        execute(database_url, f"ALTER TABLE x_{other_name} RENAME TO {other_name}")
    app = make_app(DATABASE_URL=database_url)
    key = "accountid" if name == "account" else f"{name}id"
    reason = f"OperationalError 1054: the table {name} has no column {key}"
    assert caplog.messages == [f"database unavailable: {reason}"]
    done = app.test_cli_runner().invoke(args=["init-db"])
    assert done.exit_code == 1
    assert done.stderr.endswith(f"Error: database-unavailable: {reason}\n")
    assert app.test_client().get("/health").status_code == 503
    with cursor_of(database_url) as cursor:
        cursor.execute(f"SELECT * FROM {name}")
        assert [column[0] for column in cursor.description] == ["id", "note"]
        for other in {*TABLES} - {name}:
            cursor.execute(f"CREATE TABLE {other} (id BIGINT)")  # it doesn't exist


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
    assert done.stderr == "Error: database-unavailable: OperationalError 1142\n"


# A field that the next version adds

ROWS = [  # of two files: the row before the new one, and the new one
    (
        "validators.py",
        '    "website":       FieldSpec(',
        '    "nickname": FieldSpec("nickname", "name", "Countess"),\n',
    ),
    (
        "models.py",
        "    website = TextField(",
        "    nickname = TextField(null=True)\n",
    ),
]
NICKNAME_ADDED = {"object": "database", "added": ["profile.nickname"]}


@pytest.fixture
def next_version(tmp_path):
    """The folder of a copy of the code with one field more, as CONTRIBUTING says."""
    folder = tmp_path / "next"
    ignored = shutil.ignore_patterns(".*", "tests", "*.db*", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=ignored)
    for name, before, row in ROWS:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (position,) = [at for at, line in enumerate(lines) if line.startswith(before)]
        lines.insert(position + 1, row)
        (folder / name).write_text("".join(lines))
    return folder


def init_db(folder, url):
    """What ``flask init-db`` prints, as a process in a folder of the code."""
    done = run_python("-m", "flask", "init-db", cwd=folder, DATABASE_URL=url)
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_new_field_while_the_version_before_serves(database_url, serve, next_version):
    old = sign_in(serve(database_url).app)
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
        ).app
    )
    new.accountid = old.accountid
    new.headers = old.headers
    check_nickname(old, new, first["profileid"])


def check_nickname(old, new, profileid):
    """It is refused, stored, shown and described; the old version serves on."""
    ada = {"full-name": "Ada"}
    response = new.create(ada | {"nickname": "x" * 9})
    assert response.json["errors"] == {"nickname": "invalid-nickname-length"}
    created = new.create(ada | {"nickname": "Countess"}).json
    assert [*created].index("nickname") == [*created].index("website") + 1
    path = "/api/user/profile?profileid="
    assert new.get(path + created["profileid"]).json == created
    assert new.get(path + profileid).json["nickname"] is None
    updated = new.update(profileid, ada | {"nickname": "Ada"}).json
    assert updated["nickname"] == "Ada"
    description = new.get("/openapi.json")
    schemas = description.json["components"]["schemas"]
    assert schemas["Profile"]["required"] == [*created]
    assert "`invalid-nickname`, `invalid-nickname-length`" in description.text
    del updated["nickname"]
    assert old.get(path + profileid).json == updated
    assert old.create(named("Eve")).status_code == 201
