"""Transactions: all is stored or nothing, alone, beside other writers and after conflicts."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from signal import SIGINT, default_int_handler
from threading import Event

import pytest
from databases import cut_connections, driver, execute, is_sqlite, locked, wait_until_one_waits
from serving import Person, assert_unavailable, at_once, named, run

import database
import engines
import rows
from accounts import create_account
from database import connection, transaction
from errors import ServiceError
from models import Account
from operations import create_profile, list_profiles, update_profile
from tables import db

on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def create(person, name, **more):
    return create_profile(person.account, person.accountid, named(name, **more))


def stored(url, person):
    """The names in the person's application and its defaults, as another client sees them."""
    own = f"WHERE appid = '{person.appid}'"
    names = execute(url, f"SELECT fullName FROM profile {own} ORDER BY id")
    defaults = execute(url, f"SELECT profileid FROM account {own} ORDER BY createdAt, accountid")
    return [name for (name,) in names], [profileid for (profileid,) in defaults]


# All or nothing


def test_what_is_done_in_a_transaction_joins_it(app, user, database_url):
    before = stored(database_url, user)
    db.close()  # it opens the connection itself
    with transaction():
        made = create_account(user.appid, administrator=True)
        caller = Account.get_by_id(made["accountid"])
        profiles = [
            create_profile(caller, caller.accountid, named(name, default="true")) for name in "ab"
        ]
        with transaction(), connection():
            update_profile(caller, profiles[0]["profileid"], named("c"))
        assert [profile["fullName"] for profile in list_profiles(caller)] == ["b", "c"]
        assert stored(database_url, user) == before == ([], [None])
    names, defaults = stored(database_url, user)
    assert names == ["c", "b"]
    assert {*defaults} == {None, profiles[1]["profileid"]}


def lose_the_connection(url):
    if is_sqlite(url):
        db.connection().close()
    else:
        cut_connections(url)


UNAVAILABLE = "^database-unavailable$"
FAILURES = {  # what fails, with the error that the caller of transaction() has
    "refused": (lambda person, url: create(person, ""), ServiceError, "^invalid-contact-email$"),
    "defect": (lambda person, url: [][0], IndexError, None),
    "interrupted": (lambda *_: default_int_handler(SIGINT, None), KeyboardInterrupt, None),
    "no table": (lambda *_: db.execute_sql("SELECT * FROM missing"), ServiceError, UNAVAILABLE),
    "lost at the commit": (lambda _, url: lose_the_connection(url), ServiceError, UNAVAILABLE),
    "lost": (
        lambda person, url: (lose_the_connection(url), create(person, "lost")),
        ServiceError,
        UNAVAILABLE,
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("nested", [False, True])
def test_a_failure_leaves_nothing_and_the_thread_fit_for_more(
    app, user, database_url, failure, nested
):
    fail, error, text = FAILURES[failure]
    kept = create(user, "kept")
    with pytest.raises(error, match=text) as caught, transaction():
        create(user, "first", default="true")
        with transaction():
            create_account(user.appid)
            update_profile(user.account, kept["profileid"], named("changed"))
            if nested:
                fail(user, database_url)
        fail(user, database_url)
    assert stored(database_url, user) == (["kept"], [None])
    if text == UNAVAILABLE:
        cause = caught.value.__cause__
        assert cause.args[0] in (1146, 1927, 2006, 2013) or is_sqlite(database_url), cause
        assert ("missing" in str(cause)) == (failure == "no table")
    with transaction():
        create(user, "next")
    create(user, "last")
    assert stored(database_url, user) == (["kept", "next", "last"], [None])


@pytest.mark.parametrize("failure", ["no table", "lost"])
@pytest.mark.parametrize("nested", [transaction, connection])
def test_an_error_of_the_database_ends_a_transaction_also_when_it_is_swallowed(
    app, user, database_url, failure, nested
):
    with pytest.raises(ServiceError, match=UNAVAILABLE) as caught, transaction():
        create(user, "before")
        with suppress(ServiceError), nested():
            FAILURES[failure][0](user, database_url)
        with suppress(ServiceError):
            create(user, "after")
    assert caught.value.__cause__
    assert stored(database_url, user) == ([], [None])
    create(user, "next")
    assert stored(database_url, user) == (["next"], [None])


def test_a_failure_that_is_no_outage_undoes_its_own_block_alone(app, user, database_url):
    with transaction():
        create(user, "a")
        with suppress(ServiceError):
            create(user, "", default="true")
        with suppress(ValueError), transaction():
            create(user, "b", default="true")
            raise ValueError
        create(user, "c")
    assert stored(database_url, user) == (["a", "c"], [None])


# Conflicts


@contextmanager
def heavier_transaction(url):
    """A transaction of another client on MySQL, which wins a deadlock: it has changed more."""
    with driver(url) as (cursor, _):
        cursor.execute("BEGIN")
        columns = "accountid, appid, administrator, createdAt, updatedAt"
        insert = f"INSERT INTO account ({columns}) VALUES (%s, 'x', 0, 'x', 'x')"
        cursor.executemany(insert, [(f"acct_{number:016x}",) for number in range(100)])
        yield cursor
        cursor.execute("ROLLBACK")


def lock(execute, person):
    execute(f"UPDATE account SET updatedAt = 'x' WHERE accountid = '{person.accountid}'")


@on_mysql
def test_a_callers_transaction_that_loses_a_conflict_is_the_callers_to_repeat(
    app, user, database_url
):
    other, tries = Person(app), []

    def change_both():
        tries.append(None)
        with transaction():
            create(user, "before", default="true")
            rows.update(Account, other.accountid, administrator=True)
            create(user, "after")

    with ThreadPoolExecutor(1) as pool, heavier_transaction(database_url) as server:
        lock(server.execute, other)
        assert user.account
        changing = pool.submit(change_both)
        wait_until_one_waits()
        lock(server.execute, user)
    with pytest.raises(ServiceError, match=UNAVAILABLE) as caught:
        changing.result()
    assert caught.value.__cause__.args[0] == 1213
    assert len(tries) == 1
    assert stored(database_url, user) == ([], [None, None])
    change_both()
    assert stored(database_url, user)[0] == ["before", "after"]


@on_mysql
def test_a_write_of_the_service_that_loses_a_conflict_is_repeated(app, user, database_url):
    with ThreadPoolExecutor(1) as pool, heavier_transaction(database_url) as server:
        server.execute("SELECT * FROM profile FOR UPDATE")
        creating = pool.submit(user.create, named("name", default="true"))
        wait_until_one_waits()  # its account is changed, its profile is not yet made
        lock(server.execute, user)
    response = creating.result()
    assert response.status_code == 201
    assert stored(database_url, user) == (["name"], [response.json["profileid"]])


# Beside other writers


@on_sqlite
def test_transactions_beside_another_writer(app, user, database_url):
    """Each has read before it writes, and in between the other one wants to write."""
    own, writing, stop = f"sessionid = '{user.session['sessionid']}'", Event(), Event()

    def write():
        """Add up, as a process would that knows nothing of this one; returns how often."""
        with driver(database_url) as (cursor, _):
            for number in count(1):
                cursor.execute("BEGIN IMMEDIATE")
                cursor.execute(f"UPDATE session SET duration = duration + 1 WHERE {own}")
                cursor.execute("COMMIT")
                writing.set()
                if stop.is_set():
                    return number

    def work(name):
        for number in range(10):
            with transaction():
                assert Account.get_by_id(user.accountid).accountid == user.accountid
                for letter in "abc":
                    create(user, f"{name}.{number}.{letter}", default="true")
            create(user, f"{name}.{number}.d")

    assert user.account
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        assert writing.wait(10)
        try:
            at_once(*[lambda name=name: work(name) for name in "vwxy"])
        finally:
            stop.set()
    names, _ = stored(database_url, user)
    expected = [f"{name}.{n}.{end}" for name in "vwxy" for n in range(10) for end in "abcd"]
    assert sorted(names) == expected
    found = execute(database_url, f"SELECT duration FROM session WHERE {own}")
    assert found == [(3_600 + writer.result(),)]


@contextmanager
def another_thread_writing(url):
    """A thread of this process that stands still in its transaction."""
    standing = transaction()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(standing.__enter__).result()
        try:
            yield
        finally:
            pool.submit(standing.__exit__, None, None, None).result()


@on_sqlite
@pytest.mark.parametrize("writing", [another_thread_writing, locked])
def test_a_writer_waits_no_longer_than_allowed(app, user, database_url, monkeypatch, writing):
    for module in (engines, database):
        monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    assert user.account

    def wait():
        start = time.monotonic()
        with pytest.raises(ServiceError, match=UNAVAILABLE) as caught:
            create(user, "operation")
        assert "locked" in str(caught.value.__cause__)
        with pytest.raises(ServiceError, match=UNAVAILABLE), transaction():
            create(user, "transaction")
        assert time.monotonic() - start < 2

    with writing(database_url):
        at_once(*[wait] * 4)
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as pool, writing(database_url):
        creating = pool.submit(user.create, named("after"))
        assert stored(database_url, user) == ([], [None])
    assert creating.result().status_code == 201
    assert stored(database_url, user) == (["after"], [None])


@on_sqlite
@pytest.mark.long
def test_a_writer_behind_one_that_waits_waits_no_longer(app, user, database_url):
    assert user.account

    def wait(delay):
        time.sleep(delay)
        start = time.monotonic()
        with pytest.raises(ServiceError, match=UNAVAILABLE):
            create(user, "name")
        return time.monotonic() - start

    with locked(database_url):
        assert max(at_once(lambda: wait(0), lambda: wait(2))) < 5


# A database that another client holds


@pytest.mark.long
def test_a_first_use_of_a_database_that_another_holds(empty_database_url, make_app):
    """It is refused in time, and the application is made without it."""
    if is_sqlite(empty_database_url):
        hold = "BEGIN EXCLUSIVE"
    else:
        run(make_app(DATABASE_URL=empty_database_url), "init-db")
        execute(empty_database_url, "DROP INDEX profile_profileid ON profile")
        hold = "LOCK TABLES profile WRITE"
    with driver(empty_database_url) as (cursor, _):
        cursor.execute(hold)
        start = time.monotonic()
        app = make_app(DATABASE_URL=empty_database_url)
        assert time.monotonic() - start < 2
        assert_unavailable(app.test_client().get("/health"))
        assert time.monotonic() - start < 10
    assert app.test_client().get("/health").status_code == 200


@on_mysql
@pytest.mark.long
def test_a_table_that_another_holds_is_a_503_and_nothing_is_stored_later(app, user, database_url):
    with driver(database_url) as (cursor, _):
        cursor.execute("LOCK TABLES profile WRITE")
        assert_unavailable(user.create(named("name")))
        cursor.execute("UNLOCK TABLES")
    assert stored(database_url, user) == ([], [None])
