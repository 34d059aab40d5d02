"""Rows, connections, forks, applications and tables, in a single process."""

import gc
import os
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from multiprocessing import get_context
from types import SimpleNamespace
from urllib.parse import urlsplit

import peewee
import pytest
from databases import (
    SCHEMA,
    connections,
    cut_connections,
    driver,
    execute,
    fill,
    is_sqlite,
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
    assert_unavailable,
    at_once,
    named,
    run,
    wait_until,
)
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

import engines
import models
from accounts import Caller, create_account
from database import CONFLICTS, connection, db, is_conflict, transaction
from errors import ServiceError
from models import Account, Profile
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


def test_a_thread_uses_one_connection_until_it_ends(app, user, database_url):
    user.create(named("first"))
    before, together = connections(database_url), threading.Barrier(4)
    assert len(before) == 1

    def work():
        for _ in range(2):
            user.create(named("next"))
            assert user.create({}).status_code == 400
            with connection(), connection():
                db.execute_sql("SELECT 1").fetchone()
        together.wait(10)
        seen = connections(database_url) - before
        together.wait(10)
        return len(seen)

    assert at_once(*[work] * 4) == [4] * 4
    wait_until(lambda: connections(database_url) == before)
    assert user.create(named("last")).status_code == 201
    assert connections(database_url) == before


@on_mysql
@pytest.mark.parametrize("block", [nullcontext, connection])
def test_a_lost_connection_is_replaced(app, user, database_url, block):
    """Also when somebody has caught the error of the database."""
    for use in (lambda: None, Account.select().count):
        assert user.create(named("name")).status_code == 201
        assert cut_connections(database_url) > 0
        with block(), suppress(peewee.OperationalError):
            use()
        assert user.create(named("name")).status_code == 201


@on_mysql
def test_an_idle_connection_is_replaced_but_not_within_a_transaction(
    app, user, database_url, monkeypatch
):
    used = []
    for seconds in (60, 0, 0):
        monkeypatch.setattr(engines, "IDLE_SECONDS", seconds)
        with transaction():
            used.append(connections(database_url))
            user.create(named("next"))
            assert connections(database_url) == used[-1]
    assert [len(each) for each in used] == [1, 1, 1]
    assert len(set.union(*used)) == 3


@on_mysql
def test_a_new_connection_reads_no_certificates(app, user, monkeypatch):
    db.close()
    monkeypatch.delattr(ssl, "create_default_context")
    assert user.create(named("name")).status_code == 201


@on_mysql
@pytest.mark.parametrize("name", ["x%20", "x" * 65])
def test_a_name_that_the_server_refuses(make_app, database_url, name):
    url = urlsplit(database_url)._replace(path=f"/{name}").geturl()
    app = make_app(DATABASE_URL=url)
    assert_unavailable(app.test_client().get("/health"))
    done = app.test_cli_runner().invoke(args=["create-account"])
    assert (done.exit_code, done.stderr) == (1, "Error: database-unavailable\n")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, peewee.OperationalError])
def test_a_failure_closes_the_connection(app, user, database_url, kind):
    """An interrupted statement may have left its result in it."""
    with pytest.raises((KeyboardInterrupt, ServiceError)), connection():
        raise kind("x")
    wait_until(lambda: not connections(database_url))
    assert user.create(named("second")).status_code == 201


def test_a_failure_closes_the_connection_that_has_replaced_another(
    app, user, database_url
):
    with pytest.raises(ValueError), connection():
        db.connection().close()
        with connection():
            assert len(connections(database_url)) == 1
        raise ValueError
    wait_until(lambda: not connections(database_url))


def test_a_thread_that_begins_with_a_write(app, user):
    (account,) = at_once(lambda: create_account(user.appid))
    assert account["appid"] == user.appid


def test_which_errors_are_conflicts():
    """A group's member reports a conflict in an error that has other reasons, too."""
    lost = 'Got error 149 - "Lock deadlock; Retry transaction" during COMMIT'
    for error in (*((code, "text") for code in CONFLICTS), (1180, lost)):
        assert is_conflict(peewee.OperationalError(*error)), error
    for other in ((1180, "Got error 28 during COMMIT"), ("full",), ()):
        assert not is_conflict(peewee.OperationalError(*other))


def test_a_child_has_a_connection_of_its_own(empty_database_url, make_app):
    """Its writes outlive the connection of its parent, which goes on with a new one."""
    person = Person(make_app(DATABASE_URL=empty_database_url))
    fork = get_context("fork")
    started, ended = fork.Event(), fork.Event()

    def work():
        person.create(named("child"))
        started.set()
        assert ended.wait(10)
        person.create(named("child"))

    with connection():
        person.create(named("parent"))
        child = fork.Process(target=work)
        child.start()
        assert started.wait(10)
        assert db.execute_sql("SELECT 1").fetchone() == (1,)
        db.close()
    ended.set()
    child.join()
    assert execute(empty_database_url, "SELECT COUNT(*) FROM profile") == [(3,)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # just so
def test_a_child_leaves_connections_and_a_transaction_to_its_parent(
    app, user, database_url
):
    """The connections of other threads, too."""

    def use():
        assert user.create(named("name")).status_code == 201
        return connections(database_url)

    db.close()
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(use).result()
        with transaction():
            create_profile(user.account, user.accountid, named("name"))
            child = get_context("fork").Process(target=gc.collect)
            child.start()
            child.join()
        after = pool.submit(use).result()
    assert is_sqlite(database_url) or before <= after
    own = f"SELECT COUNT(*) FROM profile WHERE appid = '{user.appid}'"
    assert execute(database_url, own) == [(3,)]


@on_sqlite
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_of_a_process_with_a_connection_in_another_thread(app, user):
    """It would rely on locks of SQLite that only its parent has, and never gets one."""
    fork = get_context("fork")
    answers = fork.SimpleQueue()

    def create():
        account = user.account
        for _ in range(2):
            try:
                create_profile(account, account.accountid, named("child"))
            except ServiceError as error:
                answers.put((str(error), str(error.__cause__)))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(user.create, named("parent")).result().status_code == 201
        assert user.account
        child = fork.Process(target=create)
        child.start()
        for _ in range(2):
            code, reason = answers.get()
            assert code == "database-unavailable"
            assert "spawn" in reason
        child.join()
        assert pool.submit(user.create, named("parent")).result().status_code == 201


def test_within_another_flask_app(make_app):
    """Mounted, or called by a view, each app has its own settings."""
    app, other, host = make_app(PAGE_SIZE=1), make_app(PAGE_SIZE=2), Flask("host")
    administrator = Person(app, administrator=True)
    made = [administrator.create(named(name)).json for name in "ab"]

    @host.get("/")
    def view():
        with app.app_context():
            return list_profiles(administrator.account)

    @host.get("/forgotten")
    def view_without_the_context():
        with pytest.raises(RuntimeError, match="create_app"):
            list_profiles(administrator.account)
        return "refused"

    mounted = {"/inside": app, "/other": other}
    host.wsgi_app = DispatcherMiddleware(host.wsgi_app, mounted)
    headers = administrator.headers
    response = Client(host).get(f"/inside{PROFILES}", headers=headers)
    assert response.json == host.test_client().get("/").json == made[:0:-1]
    assert response.headers["Link"].startswith(f"</inside{PROFILES}?after=")
    assert Client(host).get(f"/other{PROFILES}", headers=headers).json == made[::-1]
    assert host.test_client().get("/forgotten").text == "refused"
    with pytest.raises(RuntimeError, match="application context"):
        list_profiles(administrator.account)


def test_the_app_of_a_database_that_is_not_the_current_one(
    app, administrator, make_app, empty_database_url
):
    caller = administrator.account
    make_app(DATABASE_URL=empty_database_url)
    with pytest.raises(RuntimeError, match="create_app"):
        list_profiles(caller, appid=administrator.appid)


def test_another_app_is_made_within_a_transaction(app, user, administrator, make_app):
    """On the same database it shares what is there."""
    with pytest.raises(ValueError), transaction():
        create_profile(user.account, user.accountid, named("undone"))
        other = make_app()
        raise ValueError
    assert administrator.profiles() == []
    assert Person(other).create(named("name")).status_code == 201
    assert user.create(named("name")).status_code == 201


@on_sqlite
def test_an_application_is_made_without_its_database(
    tmp_path, make_app, database_url, caplog
):
    """Once its database can be had, flask init-db makes the tables."""
    url, file = f"sqlite:///{tmp_path}/folder/x.db", tmp_path / "folder" / "x.db"
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


def test_a_table_that_lacks_a_column(empty_database_url, make_app, caplog):
    app = make_app(DATABASE_URL=empty_database_url)
    assert schema(empty_database_url) == SCHEMA
    execute(empty_database_url, "ALTER TABLE profile DROP COLUMN phone")
    done = app.test_cli_runner().invoke(args=["init-db"])
    assert (done.exit_code, done.stderr) == (1, "Error: database-unavailable\n")
    assert_unavailable(app.test_client().get("/health"))
    for line in caplog.messages:
        assert "no such column: phone" in line or "Unknown column 'phone'" in line
    execute(empty_database_url, "ALTER TABLE profile ADD COLUMN phone TEXT")
    assert app.test_client().get("/health").status_code == 200


@on_mysql
@pytest.mark.parametrize(
    "settings",
    [
        {"autocommit": 0, "sql_mode": "", "max_join_size": 1, "sql_select_limit": 7},
        {
            "completion_type": 1,
            "innodb_default_row_format": "compact",
            "sql_safe_updates": 1,
        },
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
            update(Account, person.accountid, profileid="x" * 65)
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
    with driver(database_url) as (cursor, _), ThreadPoolExecutor(1) as pool:
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
    path = tmp_path / "x.db"
    person = Person(make_app(DATABASE_URL=f"sqlite:///{path}"), administrator=True)
    fill(Profile, person.appid, 100)
    execute(f"sqlite:///{path}", "PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(size - size // 2))
    assert_unavailable(person.get(f"{PROFILES}?all=all"))
    assert "malformed" in caplog.text


@pytest.mark.parametrize("removed", [True, False])
def test_a_file_that_is_removed_or_replaced(tmp_path, make_app, removed):
    """What goes into a file that nobody can see is not acknowledged."""
    path, copy = tmp_path / "x.db", tmp_path / "copy.db"
    person = Person(make_app(DATABASE_URL=f"sqlite:///{path}"), administrator=True)
    kept = person.create(named("kept")).json
    execute(f"sqlite:///{path}", f"VACUUM INTO '{copy}'")
    lost = person.create(named("lost")).json
    assert person.profiles() == [lost, kept]
    for file in tmp_path.glob("x.db*" if removed else "x.db-*"):  # as OPERATING.md says
        file.unlink()
    if removed:
        assert_unavailable(person.create(named("never")), person.get("/health"))
        assert not path.exists()
    copy.replace(path)
    after = person.create(named("after")).json
    assert person.profiles() == [after, kept]


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
