"""Transactions, alone, beside other writers and after conflicts: all or nothing."""

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from random import uniform
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
from serving import Person, assert_unavailable, at_once, named, repeating

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


def lose_the_connection(url):
    if is_sqlite(url):
        db.connection().close()
    else:
        cut_connections(url)


class Interrupted(Exception):
    pass


@contextmanager
def interrupted_after(seconds):
    """A block in which a signal's handler raises, unless the block ends earlier."""

    def interrupt(*_):
        if not ended:
            raise Interrupted

    ended = []
    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        ended.append(True)


def interrupt_a_statement(person, url):
    """Its result, which nobody has read by then, must not be given to the next one."""
    with interrupted_after(0.02):
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
        lambda person, url: [lose_the_connection(url), create(person, "x")],
        UNAVAILABLE,
    ),
    "lost at the commit": (lambda _, url: lose_the_connection(url), UNAVAILABLE),
    "refused": (lambda person, url: create(person, ""), "invalid-contact-email"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("nested", [False, True])
def test_a_failure_leaves_nothing_and_the_thread_can_go_on(
    app, user, database_url, failure, nested
):
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


@pytest.mark.parametrize("failure", ["defect", "interrupted", "no table", "lost"])
@pytest.mark.parametrize("nested", [transaction, connection])
def test_a_failure_that_is_swallowed_ends_the_transaction_all_the_same(
    app, user, administrator, database_url, failure, nested
):
    """What follows fails, and nothing wrong is read later."""
    (fail, _), reader = FAILURES[failure], administrator.account
    made = create(user, "made")
    with pytest.raises(ServiceError, match=UNAVAILABLE), transaction():
        create(user, "before")
        with suppress(Exception), nested():
            fail(user, database_url)
        with pytest.raises(ServiceError, match=UNAVAILABLE):
            list_profiles(reader)
        create(user, "after")
    assert stored(database_url, user) == (["made"], [None, None])
    assert list_profiles(reader) == [made]


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


@pytest.mark.long  # coverage.py would be interrupted while it holds its own lock
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of PyMySQL
def test_interrupts_anywhere(app, user, database_url):
    """The exception of a handler comes out as it is; writes go on in all threads."""
    acknowledged = []
    for number in range(100 if is_sqlite(database_url) else 30):
        for own in (nullcontext, transaction):
            name = f"{number}.{own.__name__}"
            create(user, "first")  # opens the connection
            with suppress(Interrupted):
                with interrupted_after(uniform(0.00001, 0.004)), own():
                    create(user, name, default="true")
                acknowledged.append(name)
    began = time.monotonic()
    at_once(lambda: user.create(named("elsewhere")))
    create(user, "last")
    assert time.monotonic() - began < 2
    names, (default,) = stored(database_url, user)
    assert {*acknowledged, "elsewhere", "last"} <= {*names}
    assert default


@pytest.mark.parametrize("error", [None, ValueError])
def test_entered_in_one_thread_and_left_in_another(app, user, database_url, error):
    """As some web frameworks do it with a generator. Nothing of it is stored."""
    with ThreadPoolExecutor(1) as pool:
        inside = transaction()
        pool.submit(inside.__enter__).result()
        joining = pool.submit(copy_context().run, user.create, named("inside"))
        assert joining.result().status_code == 500
        with pytest.raises(RuntimeError, match="in one function"):
            inside.__exit__(error, error and error(), None)
        assert user.create(named("after")).status_code == 201
        assert pool.submit(user.create, named("there")).result().status_code == 201
    assert stored(database_url, user)[0] == ["after", "there"]


@on_mysql  # on SQLite the second one waits for the first
def test_left_within_the_transaction_of_another_thread(app, user, database_url):
    """Which goes on as if nothing had happened."""
    with ThreadPoolExecutor(1) as pool:
        foreign = transaction()
        pool.submit(foreign.__enter__).result()
        with transaction():
            create(user, "first")
            with pytest.raises(RuntimeError, match="in one function"):
                foreign.__exit__(None, None, None)
            create(user, "second")
    assert stored(database_url, user)[0] == ["first", "second"]


def test_two_tasks_in_one_thread(app, user, database_url):
    """One waits within its transaction. The other is refused, and joins nothing."""
    assert user.account

    async def wait_in_a_transaction():
        with transaction():
            create(user, "first")
            await asyncio.sleep(0.1)
            create(user, "second")

    async def write_meanwhile():
        with pytest.raises(RuntimeError, match="in one function"):
            create(user, "refused")

    async def both():
        await asyncio.gather(wait_in_a_transaction(), write_meanwhile())
        create(user, "after")

    asyncio.run(both())
    assert stored(database_url, user)[0] == ["first", "second", "after"]


def test_a_task_that_goes_on_in_another_thread(app, user, database_url):
    """What it writes there would not be part of its transaction."""
    assert user.account
    with ThreadPoolExecutor(1) as pool, transaction():
        create(user, "here")
        task = copy_context()
        with pytest.raises(RuntimeError, match="in one function"):
            pool.submit(task.run, create, user, "there").result()
    with ThreadPoolExecutor(1) as pool:  # the transaction is over
        pool.submit(task.run, create, user, "after").result()
    assert stored(database_url, user)[0] == ["here", "after"]


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
            rows.update(Account, other.accountid, administrator=True)
            create(user, "after")

    with ThreadPoolExecutor(1) as pool, heavier_transaction(database_url) as server:
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
    with ThreadPoolExecutor(1) as pool, heavier_transaction(database_url) as server:
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

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        begun.wait()
        yield
        ended.set()
        writing.result()


@on_sqlite
@pytest.mark.parametrize("writing", [another_thread_writing, locked])
def test_a_writer_waits_no_longer_than_allowed(app, user, database_url, writing):
    """Behind another one that waits, too."""

    def wait(seconds):
        time.sleep(seconds)
        began = time.monotonic()
        assert_unavailable(user.create(named("never")))
        return time.monotonic() - began

    with writing(database_url):
        waited = at_once(lambda: wait(0), lambda: wait(0), lambda: wait(2))
        assert 3 < min(waited) and max(waited) < 10
    with ThreadPoolExecutor(1) as pool, writing(database_url):
        creating = pool.submit(user.create, named("after"))
        time.sleep(1)
        assert stored(database_url, user) == ([], [None])
    assert creating.result().status_code == 201
    assert stored(database_url, user) == (["after"], [None])
