"""Rows, connections, applications and tables, in a single process."""

import os
import re
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from types import SimpleNamespace
from urllib.parse import urlsplit

import peewee
import pytest
from databases import (
    SCHEMA,
    connections,
    cut_connections,
    damage,
    driver,
    execute,
    fill,
    make_tables_of_1_3,
    name_of,
    on_mysql,
    on_sqlite,
    schema,
    server_set_to,
    wait_until_one_waits,
)
from flask import Flask
from serving import (
    PROFILES,
    Person,
    Threads,
    assert_error,
    assert_unavailable,
    at_once,
    named,
    run,
    wait_until,
    walk,
)

import accounts
import database
import models
from accounts import Caller
from database import CONFLICTS, connection, db, is_conflict, transaction
from errors import ServiceError
from models import Account, Profile, Session
from operations import create_profile, list_profiles, update_profile
from rows import update


def default_profileid(person):
    with connection():
        return Account.get_by_id(person.accountid).profileid


@pytest.mark.parametrize("own", [nullcontext, transaction])
@pytest.mark.parametrize("default", ["", "true"])
def test_a_row_made_in_the_nanosecond_of_another(app, user, monkeypatch, default, own):
    """As two processes can do it: each has a clock of its own."""
    later = models.now() + 10**12
    monkeypatch.setattr(models, "latest", later)
    first = user.create(named("first")).json
    monkeypatch.setattr(models, "latest", later)
    with own():
        second = create_profile(
            user.account, user.accountid, named("second", default=default)
        )
    assert first["profileid"] != second["profileid"]
    assert default_profileid(user) == (second["profileid"] if default else None)


@pytest.mark.parametrize("table", ["account", "profile"])
def test_default_is_both_or_neither(empty_database_url, make_app, table):
    """Whichever of the two writes fails, the other is not stored either."""
    user = Person(make_app(DATABASE_URL=empty_database_url), administrator=True)
    body = named("name", default="true")
    execute(empty_database_url, f"ALTER TABLE {table} RENAME TO elsewhere")
    with (
        user.client.application.app_context(),
        pytest.raises(ServiceError, match="unavailable"),
    ):
        create_profile(Caller(user.accountid, False, user.appid), user.accountid, body)
    execute(empty_database_url, f"ALTER TABLE elsewhere RENAME TO {table}")
    assert (user.profiles(), default_profileid(user)) == ([], None)
    made = user.create(body).json
    assert default_profileid(user) == made["profileid"]


def test_callers_of_another_application_or_of_no_account(app, user):
    foreign = SimpleNamespace(
        accountid=user.accountid, administrator=False, appid="another"
    )
    nobody = SimpleNamespace(accountid="acct_0123456789abcdef", administrator=False)
    profileid = user.create(named("a")).json["profileid"]
    for code, caller, appid in (
        ("invalid-account", foreign, user.appid),
        ("invalid-accountid", user.account, "another"),
        ("invalid-accountid", nobody, "another"),
    ):
        with pytest.raises(ServiceError, match=f"^{code}$"):
            create_profile(caller, caller.accountid, named("a"), appid=appid)
    with pytest.raises(ServiceError, match="^invalid-account$"):
        update_profile(foreign, profileid, named("a"), appid=user.appid)


def test_any_other_default_leaves_the_account(app, user):
    for default in ("True", "1", "yes", "", " true", False, 1, None, ["true"]):
        assert user.create(json=named("name", default=default)).status_code == 201
    assert default_profileid(user) is None


def test_a_thread_uses_one_connection_until_it_closes_it(app, user, database_url):
    user.create(named("first"))
    before = connections(database_url)

    def work():
        for _ in range(2):
            user.create(named("next"))
            assert user.create({}).status_code == 400
            with connection(), connection():
                db.execute_sql("SELECT 1").fetchone()
        return len(connections(database_url) - before)

    assert at_once(work) == [1]  # which closes it
    wait_until(lambda: connections(database_url) == before)


@on_mysql
def test_a_read_is_repeated_when_its_connection_was_lost(app, user, database_url):
    """But not within a transaction, and no write."""
    target = [user.accountid]
    for call in (
        partial(accounts.find_accounts, "x@example.com"),
        accounts.list_administrators,
        partial(accounts.create_session, *target, 60),
        partial(accounts.end_session, user.session["sessionid"]),
        partial(accounts.end_sessions, *target),
        partial(accounts.set_administrator, *target),
        partial(accounts.purge_sessions, 1_000),
    ):
        assert cut_connections(database_url) == 1
        call()

    def read_in_a_transaction():
        with transaction():
            cut_connections(database_url)
            accounts.list_administrators()

    for call in (partial(update, Account, *target, {}), read_in_a_transaction):
        cut_connections(database_url)
        with pytest.raises(ServiceError, match="unavailable"):
            call()
        assert accounts.list_administrators()["data"]


@on_mysql
def test_a_read_that_takes_too_long_is_not_repeated(make_app, database_url):
    make_app()
    db.connect_params["read_timeout"] = 1
    began = time.monotonic()
    with pytest.raises(ServiceError, match="unavailable"), connection():
        db.execute_sql("SELECT SLEEP(3)")
    assert time.monotonic() - began < 2
    wait_until(lambda: not connections(database_url))


@on_mysql
def test_an_idle_connection_is_replaced_but_not_within_a_transaction(
    app, user, database_url, monkeypatch
):
    used = []
    for seconds in (60, 0, 0):
        monkeypatch.setattr(database, "IDLE_SECONDS", seconds)
        with transaction():
            used.append(connections(database_url))
            user.create(named("next"))
            assert connections(database_url) == used[-1]
    assert [len(each) for each in used] == [1, 1, 1]
    assert len(set.union(*used)) == 3


@on_mysql
@pytest.mark.parametrize("name", ["x%20", "x" * 65])
def test_a_name_that_the_server_refuses(make_app, database_url, name):
    url = urlsplit(database_url)._replace(path=f"/{name}").geturl()
    app = make_app(DATABASE_URL=url)
    assert_unavailable(app.test_client().get("/health"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, peewee.OperationalError])
def test_a_failure_closes_the_connection(app, user, database_url, kind):
    """An interrupted statement may have left its result in it."""
    with pytest.raises((KeyboardInterrupt, ServiceError)), connection():
        raise kind("x")
    wait_until(lambda: not connections(database_url))
    assert user.create(named("second")).status_code == 201


def test_which_errors_are_conflicts():
    """A group's member reports a conflict in an error that has other reasons, too."""
    lost = 'Got error 149 - "Lock deadlock; Retry transaction" during COMMIT'
    for error in (*((code, "text") for code in CONFLICTS), (1180, lost)):
        assert is_conflict(peewee.OperationalError(*error)), error
    for other in ((1180, "Got error 28 during COMMIT"), ("full",), ()):
        assert not is_conflict(peewee.OperationalError(*other))


def test_within_another_flask_app(make_app):
    """Each app has its own settings."""
    app = make_app(PAGE_SIZE=1)
    administrator = Person(app, administrator=True)
    other = make_app(PAGE_SIZE=2, APPID=administrator.appid)
    host = Flask("host")
    made = [administrator.create(named(name)).json for name in "ab"]

    @host.get("/<int:number>")
    def view(number):
        with [app, other][number].app_context():
            return list_profiles(administrator.account)

    client = host.test_client()
    assert client.get("/0").json == made[:0:-1]
    assert client.get("/1").json == made[::-1]
    with pytest.raises(RuntimeError, match="application context"):
        list_profiles(administrator.account)


@on_sqlite
def test_a_file_that_is_not_there(tmp_path, make_app, database_url, caplog):
    """The service never makes it anew; flask init-db does."""
    url = f"sqlite:///{tmp_path}/folder/x.db"
    file = tmp_path / "folder" / "x.db"
    app = make_app(DATABASE_URL=url)
    assert "unable to open" in caplog.text
    done = app.test_cli_runner().invoke(args=["create-account"])
    assert (done.exit_code, done.stderr) == (1, "Error: database-unavailable\n")
    file.parent.mkdir()
    file.write_text("It is a text. " * 500)
    assert_unavailable(app.test_client().get("/health"))
    assert "file is not a database" in caplog.messages[-1]
    file.unlink()
    assert_unavailable(app.test_client().get("/health"))
    for _ in range(2):
        made = run(make_app(DATABASE_URL=url), "init-db")
        assert made == {"object": "database", "engine": "sqlite"}
        assert app.test_client().get("/health").status_code == 200
    person = Person(app)
    for each in file.parent.iterdir():
        each.unlink()
    assert_unavailable(person.create(named("never")), person.get("/health"))
    assert not file.exists()


def test_a_table_that_lacks_a_column(empty_database_url, make_app, caplog):
    app = make_app(DATABASE_URL=empty_database_url)
    assert schema(empty_database_url) == SCHEMA
    execute(empty_database_url, "ALTER TABLE profile DROP COLUMN phone")
    done = app.test_cli_runner().invoke(args=["init-db"])
    assert (done.exit_code, done.stderr) == (1, "Error: database-unavailable\n")
    assert_unavailable(app.test_client().get("/health"))
    for line in caplog.messages:
        assert re.search("(no such|unknown) column.*phone", line, re.IGNORECASE)
    execute(empty_database_url, "ALTER TABLE profile ADD COLUMN phone TEXT")
    assert app.test_client().get("/health").status_code == 200


def test_a_statement_that_is_wrong_is_a_defect(app, administrator, monkeypatch, caplog):
    """Clients are not asked to repeat it."""
    monkeypatch.setattr(type(db.obj), "index_hint", "WRONG WRONG")
    assert_error(administrator.get(PROFILES), 500, "internal-error")
    assert "Traceback" in caplog.text
    assert "syntax" in caplog.text


def test_the_database_keeps_what_belongs_together(app, user, administrator):
    """An account with rows is not deleted, and a row needs an account."""
    user.create(named("name"))
    own = Account.accountid == user.accountid
    statements = (
        Account.delete().where(own),
        Account.update(appid="another").where(own),
        Profile.update(accountid="acct_0123456789abcdef"),
        Session.update(appid="another"),
    )
    for statement in statements:
        with pytest.raises(peewee.IntegrityError), connection():
            statement.execute()
    (profile,) = administrator.profiles()
    assert profile["accountid"] == user.accountid


def test_tables_of_version_1_3_are_used_as_they_are(empty_database_url, make_app):
    url = empty_database_url
    make_tables_of_1_3(url)
    before = schema(url)
    app = make_app(DATABASE_URL=url)
    person = Person(app, administrator=True)
    made = [person.create(named(name, default="true")).json for name in "abc"]
    for query in ("limit=1", f"limit=1&accountid={person.accountid}"):
        pages = walk(person, f"{PROFILES}?{query}")
        assert list(pages) == [[profile] for profile in made[::-1]]
    assert person.update(made[0]["profileid"], named("d")).status_code == 200
    assert run(app, "init-db")["object"] == "database"
    assert schema(url) == before
    assert "->" not in "".join(before)
    assert run(app, "delete-account", person.accountid)["profiles"] == 3


@on_mysql
@pytest.mark.parametrize(
    "settings",
    [
        {"autocommit": 0, "sql_mode": "", "max_join_size": 1, "sql_select_limit": 7},
        {"completion_type": 1, "sql_safe_updates": 1},
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
        app = make_app(DATABASE_URL=url)
        person, other = Person(app, administrator=True), Person(app)
        assert [other.create(named("name")).status_code for _ in range(3)] == [201] * 3
        body = named("name") | {"full-name": "a'\\"}
        made = [
            person.create(body | {"default": default}).json
            for default in ("true", "no")
        ]
        assert person.profiles()[1::-1] == made
        with pytest.raises(peewee.DataError), connection():
            update(Account, person.accountid, {"profileid": "x" * 65})
        with transaction():  # a caller's own statement, which no key helps
            Account.update(profileid=None).where(
                Account.appid == person.appid
            ).execute()
        assert run(app, "end-sessions", other.accountid)["count"] == 1
        assert run(app, "purge-sessions", "--days", "0")["count"] == 1
        assert run(app, "delete-account", other.accountid)["profiles"] == 3
    assert execute(url, "SELECT accountid FROM profile") == [(person.accountid,)] * 2
    tables = "information_schema.tables WHERE table_schema = DATABASE()"
    assert execute(url, f"SELECT DISTINCT engine FROM {tables}") == [("InnoDB",)]


@on_mysql
def test_a_create_that_waits_for_a_lock_is_the_newest_when_it_is_done(
    app, user, database_url
):
    """So whoever reads newest first never finds it behind rows seen before."""
    administrator, other = Person(app, administrator=True), Person(app)
    with driver(database_url) as (cursor, _), Threads(1) as pool:
        cursor.execute("BEGIN")
        cursor.execute(
            "SELECT * FROM account WHERE accountid = %s FOR UPDATE", [user.accountid]
        )
        waiting = pool.submit(user.create, named("waiting", default="true"))
        wait_until_one_waits()
        overtaking = other.create(named("overtaking")).json
        assert administrator.profiles() == [overtaking]
        cursor.execute("ROLLBACK")
        waited = waiting.result().json
    assert administrator.profiles() == [waited, overtaking]
    assert waited["createdAt"] > overtaking["createdAt"]


def test_a_damaged_page_is_an_outage(tmp_path, make_app, caplog):
    url = f"sqlite:///{tmp_path}/x.db"
    person = Person(make_app(DATABASE_URL=url), administrator=True)
    fill(Profile, person.appid, 100)
    db.close()
    damage(url)
    assert_unavailable(person.get(f"{PROFILES}?all=all"))
    assert "malformed" in caplog.text


def test_a_text_that_is_no_utf8_is_not_in_the_log(tmp_path, make_app, caplog):
    person = Person(
        make_app(DATABASE_URL=f"sqlite:///{tmp_path}/x.db"), administrator=True
    )
    person.create(named("name"))
    with connection():
        db.execute_sql(
            "UPDATE profile SET fullName = CAST(x'53454352455450ff' AS TEXT)"
        )
    assert_unavailable(person.get(PROFILES))
    assert "column 'fullName'" in caplog.text
    assert "SECRET" not in caplog.text


@on_sqlite
def test_the_file_keeps_what_is_acknowledged_and_is_its_owners_alone(
    app, user, database_url
):
    with connection():
        assert db.pragma("journal_mode") == "wal"
        assert db.pragma("synchronous") == 2  # FULL
        assert db.pragma("journal_size_limit") == 16 * 2**20
        with transaction():
            assert db.pragma("busy_timeout") == 4_000  # also after BEGIN
    for end in ("", "-wal", "-shm"):
        mode = os.stat(name_of(database_url) + end).st_mode
        assert oct(mode & 0o777) == "0o600"
