"""Few threads run the app: those that only read, and those that may write."""

import os
import threading
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Event, Thread

import pytest
from service import (
    CREATE,
    PROFILES,
    at_once,
    close_connection,
    fill,
    named,
    wait_until,
)
from werkzeug.test import Client

import turns
from database import db
from models import Profile
from turns import TurnMiddleware, executors, read_in_turns, submit

BOTH = pytest.mark.parametrize(
    "name, method", [("readers", "GET"), ("readers", "HEAD"), ("writers", "POST")]
)


@contextmanager
def all_taken(name):
    """None of these threads is free in this block."""
    end = Event()
    taken = [submit(name, end.wait) for _ in range(getattr(db, name))]
    try:
        yield
    finally:
        end.set()
    for call in taken:
        call.result()


@BOTH
def test_only_so_many_run_at_a_time(app, name, method):
    running, end = [], Event()

    def slow_app(environ, start_response):
        running.append(threading.current_thread().name)
        end.wait()
        start_response("200 OK", [])
        return []

    send = Client(TurnMiddleware(slow_app, max_body=10)).open
    count = getattr(db, name)
    threads = [Thread(target=send, kwargs={"method": method}) for _ in range(count + 3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(running) == count)
    end.set()
    for thread in threads:
        thread.join()
    assert len(running) == count + 3
    assert len({*running}) == count
    assert all(thread.startswith(name) for thread in running)


def test_reads_and_writes_do_not_wait_for_each_other(user):
    """A write may wait for a lock, and a list of all rows may be long."""
    with all_taken("writers"):
        assert user.get("/health").status_code == 200
    with all_taken("readers"):
        assert user.create(named("Ada")).status_code == 201


def test_writes_do_not_wait_for_deletions(administrator, user):
    """That of a large account would keep SQLite's only writer for many seconds."""
    with all_taken("deleters"):
        assert user.create(named("Ada")).status_code == 201
    with all_taken("writers"):
        path = f"{turns.DELETION}?accountid={user.accountid}"
        assert administrator.delete(path).status_code == 200


@BOTH
def test_a_request_for_which_no_thread_is_free_is_refused(
    app, user, caplog, monkeypatch, name, method
):
    """The same app serves /live, which needs none."""
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.01)
    path = f"{CREATE}?accountid={user.accountid}"
    with all_taken(name):
        response = user.open(path, method=method, data=named("never"))
        assert response.status_code == 503
        assert user.get("/live").status_code == 200
    assert caplog.messages == ["database unavailable: no thread within 0.01 seconds"]
    assert user.get(f"/api/user/profiles?accountid={user.accountid}").json is None


def test_a_request_that_runs_gets_its_response(app, monkeypatch):
    """However long it takes."""
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.01)

    def slow_app(environ, start_response):
        Event().wait(0.1)
        start_response("200 OK", [])
        return [b"done"]

    assert Client(TurnMiddleware(slow_app, max_body=10)).get("/").text == "done"


def test_what_is_asked_for_while_the_process_ends_gets_a_response(user):
    """An executor takes no calls any more once the main thread has ended."""
    for name in ("readers", "writers"):
        submit(name, int).result()
        executors[name].shutdown()
    created = user.create(named("Ada"))
    assert created.status_code == 201
    path = f"/api/user/profiles?accountid={user.accountid}&all=1"
    assert user.get(path).json == [created.json]
    executors.clear()


def test_a_call_for_which_no_thread_can_be_started_is_made_at_most_once(
    app, monkeypatch
):
    """The system may allow no more. The executor keeps the call for later."""
    executors.clear()
    calls = []

    def fail(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            submit("writers", calls.append, "first")
    submit("writers", calls.append, "second").result()
    assert calls == ["first", "second"]
    executors.clear()  # this one has lost count of its idle threads


def test_the_app_has_the_context_of_its_caller(app):
    """Such as the request that a host program traces."""
    variable = ContextVar("variable")

    def show(environ, start_response):
        start_response("200 OK", [])
        return [variable.get()]

    variable.set(b"of the host")
    assert Client(TurnMiddleware(show, max_body=10)).get("/").text == "of the host"


def test_an_error_of_the_app_is_raised(app):
    def fail(environ, start_response):
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        Client(TurnMiddleware(fail, max_body=10)).get("/")
    with pytest.raises(ZeroDivisionError):
        list(read_in_turns(1 / n for n in [0]))


def test_an_empty_item_is_not_the_last(app):
    assert list(read_in_turns(iter([b"a", b"", b"b"]))) == [b"a", b"", b"b"]


def test_a_list_waits_behind_requests_that_came_before(administrator):
    """Each of its items is read in the order in which they were asked for."""
    order = []
    items = read_in_turns(order.append(name) or name for name in "ab")
    assert next(items) == "a"
    with all_taken("readers"):
        before = submit("readers", order.append, "before")
        thread = Thread(target=next, args=[items])
        thread.start()
        wait_until(lambda: executors["readers"]._work_queue.qsize() == 2)
        after = submit("readers", order.append, "after")
    thread.join()
    before.result(), after.result()
    assert sorted(order) == ["a", "after", "b", "before"]


def test_a_list_occupies_no_thread_while_it_is_sent(administrator):
    """Its client may read it slowly."""
    fill(Profile, administrator.appid, 250)
    response = administrator.get(f"{PROFILES}?all=all", buffered=False)
    chunks = iter(response.response)
    assert next(chunks).startswith(b"[")
    assert at_once(*[lambda: submit("readers", int).result(1)] * 4) == [0] * 4
    assert b"".join(chunks).endswith(b"]\n")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(user, monkeypatch):
    """Also if the process has served requests before, as a host program may have."""
    monkeypatch.setattr(turns, "WAIT_SECONDS", 2)
    user.create(named("Ada"))
    user.get("/health")
    close_connection()
    pid = os.fork()
    if not pid:
        with suppress(Exception):
            responses = user.get("/health"), user.create(named("Eve"))
            os._exit([each.status_code for each in responses] != [200, 201])
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


def test_another_app_ends_the_threads_of_the_first(make_app):
    make_app().test_client().get("/health")
    before = {thread for thread in threading.enumerate() if "readers" in thread.name}
    assert before
    make_app()
    wait_until(lambda: not before & {*threading.enumerate()})
