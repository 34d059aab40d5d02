"""Few requests run at a time, in the order in which they came."""

from contextlib import contextmanager
from threading import Event, Thread

import pytest
from service import PROFILES, assert_error, fill, wait_until
from werkzeug.test import Client

import turns as module
from database import db
from models import Profile
from turns import TurnMiddleware, in_turns, turns


@contextmanager
def all_turns_taken():
    """No turn is free in this block."""
    for number in range(db.turns):
        assert turns.take(number)
    yield
    for _ in range(db.turns):
        turns.end()


@contextmanager
def in_threads(*calls):
    """The calls are made in a thread each, which wait for a turn; then, the block."""
    threads = [Thread(target=call) for call in calls]
    for waiting, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda: len(turns.waiting) == waiting)  # noqa: B023
    yield
    for thread in threads:
        thread.join()


def test_only_so_many_run_at_a_time(app):
    running, end = [], Event()

    def slow_app(environ, start_response):
        running.append(environ["PATH_INFO"])
        end.wait()
        start_response("200 OK", [])
        return []

    get = Client(TurnMiddleware(slow_app, max_body=10)).get
    threads = [Thread(target=get, args=["/"]) for _ in range(db.turns + 3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(turns.waiting) == 3)
    assert len(running) == db.turns
    end.set()
    for thread in threads:
        thread.join()
    assert len(running) == db.turns + 3


def test_the_first_that_came_gets_the_next_turn(app):
    order = []

    def take(number):
        assert turns.take(number)
        order.append(number)
        if len(order) < 5:
            turns.end()  # the last one leaves its turn to the block below

    with all_turns_taken():
        calls = [lambda number=number: take(number) for number in (7, 5, 9, 6, 8)]
        with in_threads(*calls):
            turns.end()
    assert order == [5, 6, 7, 8, 9]


def test_a_list_that_has_begun_comes_before_newer_requests(app):
    order = []
    items = in_turns(iter("ab"))
    assert next(items) == "a"

    def take_newer():
        turns.take(next(turns.numbers))
        order.append("newer")

    with all_turns_taken():
        with in_threads(take_newer, lambda: order.append(next(items))):
            turns.end()
    assert sorted(order) == ["b", "newer"]
    assert list(items) == []


def test_a_request_without_a_turn_is_refused(client, caplog, monkeypatch):
    """The same app serves /live, which needs no turn."""
    monkeypatch.setattr(module, "TURN_SECONDS", 0.01)
    with all_turns_taken():
        assert_error(client.get("/health"), 503, "database-unavailable")
        assert client.get("/live").status_code == 200
    assert caplog.messages == ["database unavailable: no turn within 5 seconds"]
    assert turns.waiting == {}
    assert client.get("/health").status_code == 200


def test_a_failure_ends_its_turn(app):
    def fail(environ, start_response):
        raise ValueError

    with pytest.raises(ValueError):
        Client(TurnMiddleware(fail, max_body=10)).get("/")
    with pytest.raises(ZeroDivisionError):
        list(in_turns(1 / n for n in [0]))
    assert turns.taken == 0


def test_a_list_has_no_turn_while_it_is_sent(administrator):
    """Its client may read it slowly."""
    fill(Profile, administrator.appid, 250)
    response = administrator.get(f"{PROFILES}?all=all", buffered=False)
    chunks = iter(response.response)
    assert next(chunks).startswith(b"[")
    assert turns.taken == 0
    assert b"".join(chunks).endswith(b"]\n")
