"""Transactions, alone, beside other writers and after conflicts: all or nothing."""

import signal
import time
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event

import peewee
import pytest
from databases import (
    cut_connections,
    driver,
    execute,
    is_sqlite,
    locked,
    on_mysql,
    on_sqlite,
    wait_until_one_waits,
)
from serving import Person, Threads, assert_unavailable, at_once, named, repeating

import database
import rows
from accounts import create_account
from database import connection, db, transaction
from errors import ServiceError
from models import Account
from operations import create_profile, list_profiles, update_profile

UNAVAILABLE = "database-unavailable"
LOCK = "UPDATE account SET updatedAt = 'x' WHERE accountid = %s"  # of MySQL


def create(person, name, **more):
    return create_profile(person.account, person.accountid, named(name, **more))


def stored(url, person):
    """The names in the application and its defaults, as another client sees them."""
    own = f"WHERE appid = '{person.appid}'"
    names = execute(url, f"SELECT fullName FROM profile {own} ORDER BY id")
    defaults = execute(
        url, f"SELECT profileid FROM account {own} ORDER BY createdAt, accountid"
    )
    return [name for (name,) in names], [profileid for (profileid,) in defaults]


def test_what_is_done_in_a_transaction_joins_it(app, user, database_url):
    before = stored(database_url, user)
    db.close()  # it opens the connection itself
    with transaction():
        made = create_account(user.appid, administrator=True)
        caller = Account.get_by_id(made["accountid"])
        bodies = [named(name, default="true") for name in "ab"]
        profiles = [create_profile(caller, caller.accountid, body) for body in bodies]
        with transaction(), connection():
            update_profile(caller, profiles[0]["profileid"], named("c"))
        assert [profile["fullName"] for profile in list_profiles(caller)] == ["b", "c"]
        assert stored(database_url, user) == before == ([], [None])
    names, defaults = stored(database_url, user)
    assert names == ["c", "b"]
    assert {*defaults} == {None, profiles[1]["profileid"]}


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


def interrupt_a_statement(person, url):
    """Its result, which nobody has read by then, must not be given to the next one."""
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    cursor = db.execute_sql(
        f"SELECT {1 if is_sqlite(url) else 'SLEEP(0.2)'} UNION SELECT 2"
    )
    time.sleep(1)
    cursor.fetchall()


FAILURES = {  # what fails, and the error that the caller of transaction() has
    "defect": (lambda person, url: [][0], IndexError),
    "interrupted": (interrupt_a_statement, Interrupted),
    "no table": (lambda *_: db.execute_sql("SELECT * FROM missing"), UNAVAILABLE),
    "lost": (
        lambda person, url: [cut_connections(url), create(person, "x")],
        UNAVAILABLE,
    ),
    "lost at the commit": (lambda _, url: cut_connections(url), UNAVAILABLE),
    "refused": (lambda person, url: create(person, ""), "invalid-contact-email"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("nested", [False, True])
def test_a_failure_leaves_nothing_and_the_thread_can_go_on(
    app, user, database_url, failure, nested
):
    if failure.startswith("lost") and is_sqlite(database_url):
        pytest.skip("SQLite has no connection to lose")
    fail, error = FAILURES[failure]
    kept = create(user, "kept")
    with pytest.raises(Exception) as caught, transaction():
        create(user, "first", default="true")
        with transaction():
            create_account(user.appid)
            update_profile(user.account, kept["profileid"], named("changed"))
            if nested:
                fail(user, database_url)
        fail(user, database_url)
    assert getattr(caught.value, "code", type(caught.value)) == error
    assert stored(database_url, user) == (["kept"], [None])
    if error == UNAVAILABLE:
        cause = caught.value.__cause__
        assert cause.args[0] in (1146, 1927, 2006, 2013) or is_sqlite(database_url), (
            cause
        )
        assert ("missing" in str(cause)) == (failure == "no table")
    with transaction():
        create(user, "next")
    create(user, "last")
    assert stored(database_url, user) == (["kept", "next", "last"], [None])


def test_a_refusal_undoes_its_own_block_alone(app, user, database_url):
    with transaction():
        create(user, "a")
        with suppress(ServiceError):
            create(user, "", default="true")
        with suppress(ServiceError), transaction():
            create(user, "b", default="true")
            create(user, "")
        create(user, "c")
    assert stored(database_url, user) == (["a", "c"], [None])


@contextmanager
def heavier_transaction(url):
    """A transaction on MySQL that wins a deadlock, since it has changed more."""
    with driver(url) as (cursor, _):
        cursor.execute("BEGIN")
        columns = "(accountid, appid, administrator, createdAt, updatedAt)"
        rows = ", ".join(
            f"('acct_{number:016x}', 'x', 0, 'x', 'x')" for number in range(100)
        )
        cursor.execute(f"INSERT INTO account {columns} VALUES {rows}")
        yield cursor
        cursor.execute("ROLLBACK")


@on_mysql
def test_a_callers_transaction_that_loses_a_conflict_is_not_repeated(
    app, user, database_url
):
    other = Person(app)

    def change_both():
        with app.app_context(), transaction():
            create(user, "before", default="true")
            rows.update(Account, other.accountid, {"administrator": True})
            create(user, "after")

    with Threads(1) as pool, heavier_transaction(database_url) as server:
        server.execute(LOCK, [other.accountid])
        assert user.account
        changing = pool.submit(change_both)
        wait_until_one_waits()
        server.execute(LOCK, [user.accountid])
    with pytest.raises(ServiceError, match=UNAVAILABLE) as caught:
        changing.result()
    assert caught.value.__cause__.args[0] == 1213
    assert stored(database_url, user) == ([], [None, None])
    change_both()
    assert stored(database_url, user)[0] == ["before", "after"]


@pytest.mark.parametrize("first", ["UPDATE account", "INSERT"])
def test_any_statement_of_a_create_may_meet_a_conflict(app, user, monkeypatch, first):
    """As in a cluster. The whole create is repeated."""
    left = [peewee.OperationalError(1213, "Deadlock")]

    def run(sql, *values):
        if sql.startswith(first) and left:
            raise left.pop()
        return database.run(sql, *values)

    monkeypatch.setattr(rows, "run", run)
    assert create(user, "name", default="true")["fullName"] == "name"
    assert left == []


@on_mysql
def test_a_write_of_the_service_that_loses_a_conflict_is_repeated(
    app, user, database_url
):
    with Threads(1) as pool, heavier_transaction(database_url) as server:
        server.execute("SELECT * FROM profile FOR UPDATE")
        creating = pool.submit(user.create, named("name", default="true"))
        wait_until_one_waits()  # its account is changed, its profile is not yet made
        server.execute(LOCK, [user.accountid])
    response = creating.result()
    assert response.status_code == 201
    assert stored(database_url, user) == (["name"], [response.json["profileid"]])


@on_sqlite
def test_transactions_beside_another_writer(app, user, database_url):
    """Each has read before it writes, and in between the other one wants to write."""
    own, times = f"sessionid = '{user.session['sessionid']}'", []

    def add():
        times.append(
            execute(
                database_url, f"UPDATE session SET duration = duration + 1 WHERE {own}"
            )
        )

    def work(name):
        for number in range(10):
            with app.app_context(), transaction():
                assert Account.get_by_id(user.accountid).accountid == user.accountid
                for letter in "abc":
                    create(user, f"{name}.{number}.{letter}", default="true")
            user.create(named(f"{name}.{number}.d"))

    with repeating(add):
        at_once(*[partial(work, name) for name in "vwxy"])
    expected = [
        f"{name}.{n}.{end}" for name in "vwxy" for n in range(10) for end in "abcd"
    ]
    assert sorted(stored(database_url, user)[0]) == expected
    found = execute(database_url, f"SELECT duration FROM session WHERE {own}")
    assert found == [(3_600 + len(times),)]


@contextmanager
def another_thread_writing(url):
    """A thread of this process that stands still in its transaction."""
    begun = Event()
    ended = Event()

    def write():
        with transaction():
            begun.set()
            ended.wait()

    with Threads(1) as pool:
        writing = pool.submit(write)
        begun.wait()
        yield
        ended.set()
        writing.result()


@pytest.mark.parametrize("writing", [another_thread_writing, locked])
def test_a_writer_waits_no_longer_than_allowed(
    app, user, administrator, database_url, writing
):
    """Behind another one that waits, too. Readers go on."""
    if writing is another_thread_writing and not is_sqlite(database_url):
        pytest.skip("on MySQL, writers of different rows do not wait")
    first = user.create(named("first", default="true")).json
    requests = [
        lambda: user.update(first["profileid"], named("never")),
        lambda: user.create(named("never")),
        lambda: user.create(named("never", default="true")),
    ]

    def wait(request, seconds):
        time.sleep(seconds)
        began = time.monotonic()
        assert_unavailable(request())
        return time.monotonic() - began

    waits = [partial(wait, each, number) for number, each in enumerate(requests)]
    with Threads(1) as pool, writing(database_url):
        waiting = pool.submit(at_once, *waits)
        while not waiting.done():
            assert administrator.profiles() == [first]
            time.sleep(0.1)
        waited = waiting.result()
        assert 3 < min(waited) and max(waited) < 10
    with Threads(1) as pool, writing(database_url):
        creating = pool.submit(user.create, named("after"))
        time.sleep(1)
        assert administrator.profiles() == [first]
    assert administrator.profiles() == [creating.result().json, first]
    assert Account.get_by_id(user.accountid).profileid == first["profileid"]
