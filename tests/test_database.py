"""Connections, turns to write and forks: what a single process can show of them."""

import errno
import fcntl
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import peewee
import pymysql
import pytest
from databases import (
    connections,
    cut_connections,
    execute,
    is_sqlite,
    mysql_server,
    name_of,
    on_mysql_server,
    server_set_to,
)
from serving import (
    PROFILES,
    ROOT,
    Person,
    assert_error,
    assert_unavailable,
    at_once,
    named,
    wait_until,
)

import config
import engines
import models
from accounts import SignedIn
from database import bind, connection, create_tables, db, write
from errors import ServiceError
from models import Account, Profile, identifier
from operations import create_profile, list_profiles

NOBODY = {"accountid": "acct_0123456789abcdef", "administrator": False}
VALUES = {"appid": "clash", "accountid": "acct_0123456789abcdef"}


def insert(moment):
    """Store a profile; returns the moment that it has."""
    made = models.insert(Profile, moment, {**VALUES, "profileid": identifier("prof")})
    return Profile.get(Profile.profileid == made["profileid"]).id


@pytest.mark.parametrize("own_transaction", [nullcontext, lambda: db.atomic()])
@pytest.mark.parametrize("default", ["", "true"])
def test_a_row_made_in_the_nanosecond_of_another_is_made_again(
    app, user, monkeypatch, default, own_transaction
):
    """As two processes can do it: each has a clock of its own."""
    start = models.now()
    with connection():
        insert(start)
        moments = iter([start, start, start + 1, start + 1, start + 2, start + 3])
        monkeypatch.setattr(models, "now", lambda: next(moments))
        with own_transaction():
            profile = create_profile(user.account, user.accountid, named("a", default=default))
        assert Profile.get(Profile.profileid == profile["profileid"]).id > start
        assert Account.get_by_id(user.accountid).profileid == (
            profile["profileid"] if default else None
        )


def test_what_else_must_be_unique_is_tried_once(empty_database_url, make_app, monkeypatch):
    user = Person(make_app(DATABASE_URL=empty_database_url))
    execute(empty_database_url, "CREATE UNIQUE INDEX one_each ON profile (accountid)")
    user.create(named("first"))
    insert, tries = models.insert, []
    monkeypatch.setattr(models, "insert", lambda *values: tries.append(0) or insert(*values))
    assert_error(user.create(named("second")), 500, "internal-error")
    assert len(tries) == 1


@pytest.mark.parametrize("table", ["account", "profile"])
def test_default_is_both_or_neither(empty_database_url, make_app, table):
    """Whichever of the two writes fails, the other is not stored either."""
    app = make_app(DATABASE_URL=empty_database_url)
    user, administrator = Person(app), Person(app, administrator=True)
    body = named("name", default="true")
    with app.app_context():
        assert user.account.profileid is None
        execute(empty_database_url, f"ALTER TABLE {table} RENAME TO elsewhere")
        with pytest.raises(ServiceError, match="^database-unavailable$"):
            create_profile(user.account, user.accountid, body)
        execute(empty_database_url, f"ALTER TABLE elsewhere RENAME TO {table}")
        assert list_profiles(administrator.account) is None
        assert default_profileid(user) is None
        made = create_profile(user.account, user.accountid, body)
        assert default_profileid(user) == made["profileid"]


def default_profileid(person):
    with connection():
        return Account.get_by_id(person.accountid).profileid


def test_a_caller_whose_account_is_gone(app, user):
    caller = user.account
    with connection():
        Account.delete().where(Account.accountid == caller.accountid).execute()
    for body in (named("name"), named("name", default="true")):
        with pytest.raises(ServiceError, match="^invalid-accountid$"):
            create_profile(caller, caller.accountid, body)


def test_a_caller_signed_in_to_another_application(app, user):
    caller = SignedIn(user.accountid, False, user.appid)
    with pytest.raises(ServiceError, match="^invalid-accountid$"):
        create_profile(caller, user.accountid, named("name"), appid="another")


def test_a_caller_of_no_account(app):
    for caller in (SimpleNamespace(**NOBODY), SimpleNamespace(**NOBODY, appid="another")):
        with pytest.raises(ServiceError, match="^invalid-accountid$"):
            create_profile(caller, caller.accountid, {})


@pytest.mark.parametrize("default", ["True", "1", "yes", "", " true", False, 1, None, ["true"]])
def test_any_other_default_leaves_the_account(app, user, default):
    assert user.create(json=named("name", default=default)).status_code == 201
    assert default_profileid(user) is None


# A thread's connection


def test_a_thread_uses_one_connection_for_all_its_requests(app, user, database_url):
    user.create(named("first"))
    before = connections(database_url)
    for _ in range(3):
        user.create(named("next"))
        with connection():
            with connection():
                db.execute_sql("SELECT 1").fetchone()
            db.execute_sql("SELECT 1").fetchone()
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


def test_a_lost_connection_is_replaced_in_process(app, user, database_url):
    if is_sqlite(database_url):
        pytest.skip("SQLite has no server")
    for _ in range(2):
        caller = Account.get_by_id(user.accountid)  # outside connection(), as in the README
        create_profile(caller, user.accountid, named("name"))
        assert cut_connections(database_url) > 0
        assert create_profile(caller, user.accountid, named("name"))["fullName"] == "name"


def test_the_first_cause_is_told_when_a_transaction_loses_its_connection(app, user, database_url):
    if is_sqlite(database_url):
        pytest.skip("SQLite has no server")

    def lose_connection():
        cut_connections(database_url)
        insert(models.now())

    with pytest.raises(ServiceError, match="^database-unavailable$") as caught, connection():
        write(lose_connection, atomic=True)
    assert caught.value.__cause__.args[0] in (1927, 2006, 2013), caught.value.__cause__


def test_a_defect_in_a_block_closes_the_connection(app, user, database_url):
    """An interrupted statement may have left its result in the connection."""
    user.create(named("first"))
    with pytest.raises(KeyboardInterrupt), connection():
        raise KeyboardInterrupt
    assert not connections(database_url)


def test_an_error_of_another_library_is_not_the_databases(app):
    class OperationalError(Exception):
        pass

    with pytest.raises(OperationalError), connection():
        raise OperationalError


def test_a_connection_lost_in_a_transaction_of_the_callers_own(app, user, database_url):
    if is_sqlite(database_url):
        pytest.skip("SQLite has no server")
    caller = user.account
    with pytest.raises(ServiceError, match="^database-unavailable$"), connection(), db.atomic():
        create_profile(caller, user.accountid, named("name"))
        cut_connections(database_url)
        create_profile(caller, user.accountid, named("name"))
    assert create_profile(caller, user.accountid, named("name"))["fullName"] == "name"


def test_a_connection_that_failed_is_not_used_again(app, user, database_url):
    user.create(named("first"))
    with pytest.raises(ServiceError, match="^database-unavailable$"):
        with connection():
            raise peewee.OperationalError("gone")
    wait_until(lambda: not connections(database_url))
    assert user.create(named("second")).status_code == 201


def test_a_transaction_of_the_callers_own_is_left_alone(app, user):
    administrator = Person(app, administrator=True)
    with connection():
        db.begin()
        made = [create_profile(user.account, user.accountid, named(name)) for name in "ab"]
        db.commit()
    assert administrator.profiles() == made[::-1]


def test_writes_of_a_child_outlive_its_parents_connection(empty_database_url, make_app):
    person = Person(make_app(DATABASE_URL=empty_database_url), administrator=True)
    person.create(named("parent"))
    started, ended = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            person.create(named("child"))
            os.write(started[1], b"x")
            os.read(ended[0], 1)
            statuses = [person.create(named("child")).status_code for _ in range(5)]
            os._exit(0 if statuses == [201] * 5 else 2)
        finally:
            os._exit(1)
    os.read(started[0], 1)
    db.close()
    os.write(ended[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for end in (*started, *ended):
        os.close(end)
    assert len(person.profiles()) == 7


def test_a_fork_within_a_transaction_leaves_it_to_the_parent(app):
    moment = models.now()
    with connection(), db.atomic():
        insert(moment)
        child = os.fork()
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    with connection():
        assert Profile.select().where(Profile.id == moment).exists()


def test_a_child_has_a_connection_of_its_own(app, user, database_url):
    with connection():
        db.execute_sql("SELECT 1").fetchone()
        child = os.fork()
        if not child:
            try:
                insert(models.now())
                wait_until(lambda: len(connections(database_url)) == 1)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert db.execute_sql("SELECT 1").fetchone() == (1,)
        wait_until(lambda: len(connections(database_url)) == 1)
    assert user.create(named("after")).status_code == 201


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # just so
def test_a_child_leaves_the_connections_of_other_threads_alone(app, user, database_url):
    connected, forked = threading.Event(), threading.Event()
    db.close()
    wait_until(lambda: not connections(database_url))

    def use_before_and_after():
        with app.app_context():
            user.get(PROFILES)
            before = connections(database_url)
            connected.set()
            assert forked.wait(10)
            assert user.create(named("after")).status_code == 201
            return is_sqlite(database_url) or before <= connections(database_url)

    with ThreadPoolExecutor(1) as pool:
        using = pool.submit(use_before_and_after)
        assert connected.wait(10)
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        forked.set()
        assert using.result()


def test_a_failure_within_a_transaction_of_the_callers_is_theirs(app, user, database_url):
    user.create(named("first"))
    before = connections(database_url)
    with pytest.raises(ServiceError), db.atomic():
        with connection():
            raise peewee.OperationalError("gone")
    assert connections(database_url) == before
    assert not db.connect(reuse_if_open=True)


# Tables


def test_missing_indexes_are_made_again(empty_database_url, make_app):
    app = make_app(DATABASE_URL=empty_database_url)
    with app.app_context(), connection():
        where = " ON profile" if db.engine == "mysql" else ""
        db.execute_sql(f"DROP INDEX profile_appid_id{where}")
        write(create_tables)
        names = [index.name for index in db.get_indexes("profile")]
    assert names.count("profile_appid_id") == 1


def test_a_table_that_lacks_columns_is_named(empty_database_url, make_app, caplog):
    app = make_app(DATABASE_URL=empty_database_url)
    execute(empty_database_url, "ALTER TABLE profile DROP COLUMN website")
    execute(empty_database_url, "ALTER TABLE profile DROP COLUMN phone")
    app = make_app(DATABASE_URL=empty_database_url)
    caplog.clear()
    done = app.test_cli_runner().invoke(args=["init-db"])
    assert (done.exit_code, done.stderr) == (1, "Error: database-unavailable\n")
    assert caplog.messages == ["database unavailable: table profile lacks phone, website"]
    assert_unavailable(app.test_client().get("/health"))


@pytest.mark.parametrize("table", ["account", "profile", "session"])
def test_health_reads_every_table(empty_database_url, make_app, table):
    app = make_app(DATABASE_URL=empty_database_url)
    assert app.test_client().get("/health").status_code == 200
    execute(empty_database_url, f"DROP TABLE {table}")
    assert_unavailable(app.test_client().get("/health"))


def test_a_relative_path_is_one_file_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bind(config.load({"DATABASE_URL": "sqlite:///some/profiles.db"}).database_url)
    assert db.database == str(ROOT / "some" / "profiles.db")


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("autocommit", 0),
        ("completion_type", 1),
        ("completion_type", 2),
        ("sql_mode", ""),
        ("sql_mode", "ANSI,NO_BACKSLASH_ESCAPES"),
        ("default_storage_engine", "MyISAM"),
        ("max_join_size", 1),
        ("innodb_default_row_format", "compact"),
    ],
)
def test_the_configuration_of_the_server_does_not_matter(
    make_empty_database, make_app, database_url, name, value
):
    if is_sqlite(database_url):
        pytest.skip("SQLite has no server")
    with server_set_to(name, value):
        url = make_empty_database()
        person = Person(make_app(DATABASE_URL=url), administrator=True)
        stored = [person.create(named("a'\\", default=default)) for default in ("true", "no")]
        assert [response.status_code for response in stored] == [400, 400]
        stored = [person.create(named("name", default=default)) for default in ("true", "no")]
        assert [response.status_code for response in stored] == [201, 201]
        assert len(person.profiles()) == 2
    select = f"SELECT accountid FROM {name_of(url)}.profile"  # by another connection
    assert on_mysql_server(select) == ((person.accountid,),) * 2
    engines_used = "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = %s"
    assert on_mysql_server(engines_used, (name_of(url),)) == (("InnoDB",),)


def test_a_table_that_another_holds_is_a_503_and_nothing_is_stored_later(app, user, database_url):
    if is_sqlite(database_url):
        pytest.skip("locked in test_database_away")
    administrator = Person(app, administrator=True)
    with mysql_server(database=name_of(database_url)) as server, server.cursor() as cursor:
        cursor.execute("LOCK TABLES profile WRITE")
        assert_unavailable(user.create(named("name")))
        cursor.execute("UNLOCK TABLES")
    assert administrator.profiles() == []


def test_the_log_has_no_value_that_mysql_refused(empty_database_url, make_app, caplog):
    if is_sqlite(empty_database_url):
        pytest.skip("SQLite stores any text in any column")
    person = Person(make_app(DATABASE_URL=empty_database_url, PROPAGATE_EXCEPTIONS=False))
    execute(empty_database_url, "ALTER TABLE profile MODIFY fullName TEXT CHARACTER SET latin1")
    assert_error(person.create(named("x") | {"full-name": "\U0001f600"}), 500, "internal-error")
    assert "DataError" in caplog.text and "1366" in caplog.text
    assert "xF0" not in caplog.text


def test_a_statement_longer_than_the_server_takes_is_a_body_too_large(
    make_empty_database, make_app, database_url, monkeypatch
):
    if is_sqlite(database_url):
        pytest.skip("SQLite has no server")
    limits = {"USER_PROFILE_FIELDS": "phone", "MAXIMUM_POST_DATA_LENGTH": 8_000_000}
    with server_set_to("max_allowed_packet", 2**20):
        person = Person(make_app(DATABASE_URL=make_empty_database(), **limits), administrator=True)
        made = person.create({"phone": "1"}).json
        for text in ("x" * 2**20, "x" * 5 * 2**20, '"' * 2**19, "\U0001f600" * 2**18):
            assert_error(person.create({"phone": text}), 413, "body-too-large")
            assert_error(person.create({"phone": text, "default": "true"}), 413, "body-too-large")
            assert_error(person.update(made["profileid"], {"phone": text}), 413, "body-too-large")
        assert person.profiles() == [made]
        assert person.create({"phone": "x" * (2**20 - 1_000)}).status_code == 201
        for text in ("x" * (2**20 - length) for length in range(0, 800, 50)):
            assert person.create({"phone": text}).status_code in (201, 413)
        monkeypatch.setattr(db.obj, "longest_statement", 20_000)
        assert_error(person.create({"phone": "\U0001f600" * 4_999}), 413, "body-too-large")


def test_a_create_that_waits_for_a_lock_is_the_newest_when_it_is_done(app, user, database_url):
    """So whoever reads newest first never finds it behind rows seen before."""
    if is_sqlite(database_url):
        pytest.skip("on SQLite one writer waits for the other")
    administrator, other = Person(app, administrator=True), Person(app)
    with mysql_server(database=name_of(database_url)) as server, server.cursor() as cursor:
        server.begin()
        cursor.execute("SELECT * FROM account WHERE accountid = %s FOR UPDATE", (user.accountid,))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(user.create, named("waiting", default="true"))
            wait_until(lambda: len(connections(database_url)) > 2)
            time.sleep(0.2)
            overtaking = other.create(named("overtaking")).json
            assert administrator.profiles() == [overtaking]
            server.rollback()
            waited = waiting.result().json
    assert administrator.profiles() == [waited, overtaking]
    assert waited["createdAt"] > overtaking["createdAt"]


def test_a_transaction_that_loses_a_deadlock_is_repeated(app, user, database_url):
    if is_sqlite(database_url):
        pytest.skip("on SQLite one writer waits for the other")
    other, attempts = Person(app), []

    def set_both():
        attempts.append(None)
        for person in (user, other):
            Account.update(profileid="prof_x").where(
                Account.accountid == person.accountid
            ).execute()

    def write_both():
        with connection():
            write(set_both, atomic=True)

    update = "UPDATE account SET updatedAt = 'x' WHERE accountid = %s"
    with mysql_server(database=name_of(database_url)) as server, server.cursor() as cursor:
        server.begin()
        values = [(identifier("acct"), "default", 0, "x", "x") for _ in range(50)]
        columns = "accountid, appid, administrator, createdAt, updatedAt"
        insert_many = f"INSERT INTO account ({columns}) VALUES (%s, %s, %s, %s, %s)"
        cursor.executemany(insert_many, values)  # who has changed most wins
        cursor.execute(update, (other.accountid,))
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_both)
            wait_until(lambda: attempts)
            time.sleep(0.2)
            cursor.execute(update, (user.accountid,))
            server.commit()
            writing.result()
    assert len(attempts) > 1
    assert default_profileid(user) == default_profileid(other) == "prof_x"


def test_private_names_of_libraries_are_what_they_were():
    """engines.py says why it uses them."""
    assert "_lock" in vars(peewee.SqliteDatabase("x.db"))
    assert "_sock" in vars(pymysql.Connection(defer_connect=True))


def test_mysqls_strict_mode_is_on(app):
    if db.engine == "mysql":
        with connection(), pytest.raises(peewee.DataError):
            models.insert(Profile, 1, {**VALUES, "profileid": "x" * 65})


def test_a_file_that_is_no_database(tmp_path, make_app, caplog):
    (tmp_path / "x.db").write_text("It is a text. " * 500)
    make_app(DATABASE_URL=f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(ServiceError, match="^database-unavailable$"), connection():
        pass
    assert "file is not a database" in caplog.text


def test_tables_that_are_gone_are_left_to_the_operator(empty_database_url, make_app):
    app = make_app(DATABASE_URL=empty_database_url)
    with app.app_context():
        with connection():
            db.execute_sql("DROP TABLE profile")
        caller = Account(accountid="acct_0123456789abcdef", administrator=True)
        for _ in range(2):  # made anew, they would be in the way of whoever restores them
            with pytest.raises(ServiceError, match="^database-unavailable$"):
                list_profiles(caller)
        with connection():
            write(create_tables)
        assert list_profiles(caller) is None


def test_a_defect_is_no_outage(app):
    with pytest.raises(peewee.ProgrammingError), connection():
        raise peewee.ProgrammingError("a defect")


def test_a_defect_in_making_tables_is_no_outage(make_app, monkeypatch):
    def fail():
        raise peewee.ProgrammingError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr("database.create_tables", fail)
        with pytest.raises(peewee.ProgrammingError):
            make_app()
    assert make_app().test_client().get("/health").status_code == 200


# SQLite's turn to write


@pytest.fixture
def sqlite(app, database_url, monkeypatch):
    """The path of the database, whose writers wait for a tenth of a second."""
    if not is_sqlite(database_url):
        pytest.skip("MySQL needs no turns")
    monkeypatch.setattr(engines, "LOCK_SECONDS", 0.1)
    return name_of(database_url)


@contextmanager
def another_thread_writing():
    """A thread of this process that stands still in its turn to write."""
    started, ending = threading.Event(), threading.Event()

    def stand_still():
        started.set()
        ending.wait(10)

    def work():
        with connection():
            write(stand_still)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(10)
    yield
    ending.set()
    thread.join()


@contextmanager
def another_process_writing(path):
    """What another process does for its turn: it locks the file beside the database."""
    with open(f"{path}-lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def assert_no_turn(user):
    start = time.monotonic()
    with pytest.raises(ServiceError, match="^database-unavailable$"):
        create_profile(user.account, user.accountid, named("name"))
    assert time.monotonic() - start < 1


def test_a_thread_waits_no_longer_than_allowed(sqlite, user):
    assert user.account
    with another_thread_writing():
        assert_no_turn(user)
    assert create_profile(user.account, user.accountid, named("name"))


def test_a_process_waits_no_longer_than_allowed(sqlite, user):
    with another_process_writing(sqlite):
        assert_no_turn(user)
    assert create_profile(user.account, user.accountid, named("name"))


def test_threads_that_wait_together_wait_no_longer(sqlite, app, user):
    def wait():
        with app.app_context():
            assert_no_turn(user)

    assert user.account
    with another_process_writing(sqlite):
        at_once(*[wait] * 4)


def test_a_turn_comes_once_the_other_process_is_done(sqlite, user, monkeypatch):
    monkeypatch.setattr(engines, "LOCK_SECONDS", 10)
    with another_process_writing(sqlite) as lock:
        threading.Timer(0.05, fcntl.flock, [lock, fcntl.LOCK_UN]).start()
        assert create_profile(user.account, user.accountid, named("name"))


def test_a_lock_file_that_cannot_be_opened(tmp_path, make_app, caplog):
    (tmp_path / "x.db-lock").mkdir()
    make_app(DATABASE_URL=f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(ServiceError, match="^database-unavailable$"), connection():
        pass
    assert "x.db-lock: Is a directory" in caplog.text


def test_a_file_system_without_locks(sqlite, user, monkeypatch):
    def fail(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert_no_turn(user)


def test_the_settings_that_keep_an_acknowledged_write(sqlite):
    with connection():
        assert db.pragma("journal_mode") == "wal"
        assert db.pragma("synchronous") == 2  # FULL
