"""Connections, turns to write and forks: what a single process can show of them."""

import fcntl
import os
import threading
import time
from types import SimpleNamespace

import peewee
import pytest
from conftest import Person

import database as engines
import models
from database import connection, create_tables, database
from errors import ServiceError
from models import Account, Profile, identifier
from operations import create_profile, list_profiles

NOBODY = {"accountid": "acct_0123456789abcdef", "administrator": False}
VALUES = {"appid": "clash", "accountid": "acct_0123456789abcdef"}


def insert(moment):
    return models.insert(Profile, moment, {**VALUES, "profileid": identifier("prof")})


def test_a_row_made_in_the_same_nanosecond_is_the_next(app):
    start = models.now()
    with connection():
        assert [insert(start)[0] - start for _ in range(3)] == [0, 1, 2]
        with pytest.raises(peewee.IntegrityError):
            insert(start)


def test_a_transaction_goes_on_after_a_clash(app):
    start = models.now()
    with connection():
        insert(start)
        with database.writing(), database.atomic():
            assert insert(start)[0] == start + 1
        assert Profile.select().where(Profile.id == start + 1).exists()


def test_default_is_both_or_neither(app, user, monkeypatch):
    def fail(**parameters):
        raise peewee.OperationalError("gone")

    body = {"contact-email": "a@example.com", "full-name": "A", "default": "true"}
    with monkeypatch.context() as patch:
        patch.setattr("operations.set_default_profile", fail)
        with pytest.raises(ServiceError, match="^database-unavailable$"):
            create_profile(user.account, user.accountid, body)
    administrator = Person(app, administrator=True).account
    assert list_profiles(administrator) is None
    assert Account.get_by_id(user.accountid).profileid is None
    made = create_profile(user.account, user.accountid, body)
    assert Account.get_by_id(user.accountid).profileid == made["profileid"]


def test_a_caller_of_no_account(app):
    for caller in (SimpleNamespace(**NOBODY), SimpleNamespace(**NOBODY, appid="another")):
        with pytest.raises(ServiceError, match="^invalid-accountid$"):
            create_profile(caller, caller.accountid, {})


@pytest.mark.parametrize("default", ["True", "1", "yes", "", " true", False, 1, None, ["true"]])
def test_any_other_default_leaves_the_account(app, user, default):
    body = {"contact-email": "a@example.com", "full-name": "A", "default": default}
    assert user.create(json=body).status_code == 201
    assert Account.get_by_id(user.accountid).profileid is None


def test_connections_are_given_back_and_taken_again(app, user):
    for _ in range(3):
        user.get("/api/administrator/profiles")
    assert len(database.idle) == 1
    with connection():
        assert not database.idle
        with connection():
            assert not database.is_closed()
        assert not database.is_closed()
    assert len(database.idle) == 1


def test_a_connection_that_failed_is_not_kept(app):
    with pytest.raises(ServiceError):
        with connection():
            raise peewee.OperationalError("gone")
    assert not database.idle
    with connection():
        database.execute_sql("BEGIN")
    assert not database.idle


def test_a_child_has_connections_of_its_own(app, user):
    with connection():
        child = os.fork()
        if not child:
            try:
                insert(models.now())
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert database.execute_sql("SELECT 1").fetchone() == (1,)
    idle = list(database.idle)
    database.forget()
    assert not database.idle
    with connection():
        assert database.connection() not in idle


def test_missing_indexes_are_made_again(empty_database_url, make_app):
    app = make_app(DATABASE_URL=empty_database_url)
    with app.app_context(), connection():
        where = " ON profile" if database.engine == "mysql" else ""
        database.execute_sql(f"DROP INDEX profile_appid_id{where}")
        create_tables()
        names = [index.name for index in database.get_indexes("profile")]
    assert names.count("profile_appid_id") == 1


def test_mysqls_strict_mode_is_on(app):
    if database.engine == "mysql":
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
            database.execute_sql("DROP TABLE profile")
        caller = Account(accountid="acct_0123456789abcdef", administrator=True)
        for _ in range(2):  # made anew, they would be in the way of whoever restores them
            with pytest.raises(ServiceError, match="^database-unavailable$"):
                list_profiles(caller)
        with connection():
            create_tables()
        assert list_profiles(caller) is None


def test_a_defect_is_no_outage(app):
    with pytest.raises(peewee.ProgrammingError), connection():
        raise peewee.ProgrammingError("a defect")


def test_a_defect_in_making_tables_is_no_outage(app, monkeypatch):
    def fail():
        raise peewee.ProgrammingError("a defect")

    monkeypatch.setattr(engines, "create_tables", fail)
    database.obj.tables_made = False
    with pytest.raises(peewee.ProgrammingError), connection():
        pass
    assert database.is_closed()


# SQLite's turn to write


@pytest.fixture
def sqlite(app, monkeypatch):
    if database.engine != "sqlite":
        pytest.skip("MySQL needs no turns")
    monkeypatch.setattr(engines, "LOCK_SECONDS", 0.1)
    return database.obj


def assert_no_turn(within):
    start = time.monotonic()
    with pytest.raises(ServiceError, match="^database-unavailable$"), connection():
        with database.writing():
            pass
    assert time.monotonic() - start < within


def test_a_thread_waits_no_longer_than_allowed(sqlite):
    with sqlite.turn:
        assert_no_turn(within=1)
    with connection(), sqlite.writing():
        pass


def test_a_process_waits_no_longer_than_allowed(sqlite):
    """For another that stands still in its turn, too."""
    other = os.open(sqlite.lock_path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert_no_turn(within=1)
    threading.Timer(0.05, os.close, [other]).start()
    with connection(), sqlite.writing():
        pass


def test_a_lock_file_that_cannot_be_opened(tmp_path, make_app, caplog):
    (tmp_path / "x.db-lock").mkdir()
    make_app(DATABASE_URL=f"sqlite:///{tmp_path}/x.db")
    assert_no_turn(within=1)
    assert "x.db-lock: Is a directory" in caplog.text


def test_the_settings_that_keep_an_acknowledged_write(sqlite):
    with connection():
        assert sqlite.pragma("journal_mode") == "wal"
        assert sqlite.pragma("synchronous") == 2  # FULL
