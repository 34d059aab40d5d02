"""How the service is served: its start, its connections, its workers, its stop."""

import logging
import os
import re
import runpy
import signal
import socket
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from service import (
    CREATE,
    PROCFILE,
    PROFILES,
    ROOT,
    Served,
    at_once,
    cursor_of,
    execute,
    fill,
    on_sqlite,
    sign_in,
    wait_until,
)

from models import Profile

pytestmark = pytest.mark.long
# What is set, and what is shown then: an error, or all settings of gunicorn.
SHOWN = {
    "PORT=x": r"^Error: PORT=x: must be a whole number from 1 to 65535\n$",
    "WEB_CONCURRENCY=0": r"^Error: WEB_CONCURRENCY=0: must be .* from 1 to 1000\n$",
    "PORT=8123": r"\nbind += \['0.0.0.0:8123'\]\n",
    "PORT=": r"\nbind += \['127.0.0.1:8000'\]\n",
    "WEB_CONCURRENCY=3": r"\nworkers += 3\n",
    "FORWARDED_ALLOW_IPS=": r"\nforwarded_allow_ips += \['127.0.0.1', '::1'\]\n",
    "FORWARDED_ALLOW_IPS=192.0.2.1": r"\nforwarded_allow_ips += \['192.0.2.1'\]\n",
    "APPID=idle": r"\nkeepalive += 75\n",  # seconds; nginx keeps a connection for 60
    "APPID=stop": r"\ngraceful_timeout += [1-8]\n",  # some platforms kill after 10
}


@pytest.mark.parametrize("setting", SHOWN)
def test_the_settings_of_a_start(tmp_path, setting):
    service = Served(tmp_path, f"sqlite:///{tmp_path}/x.db")
    service.start("env", setting, *PROCFILE, "--print-config")
    has_failed = service.process.wait(60) != 0
    assert has_failed is ("Error" in service.log())
    assert re.search(SHOWN[setting], service.log())


@pytest.fixture
def hooks(monkeypatch):
    """The functions that gunicorn calls, of a service with a worker for each core."""
    monkeypatch.setenv("WEB_CONCURRENCY", "1000")
    return runpy.run_path(f"{ROOT}/gunicorn.conf.py")


def test_a_platform_without_a_database_is_warned(hooks, monkeypatch, caplog):
    server = SimpleNamespace(log=logging.getLogger(), LISTENERS=[])
    hooks["when_ready"](server)
    monkeypatch.setenv("PORT", "80")
    monkeypatch.setenv("DATABASE_URL", "sqlite:///x.db")
    hooks["when_ready"](server)
    assert caplog.text == ""
    monkeypatch.delenv("DATABASE_URL")
    hooks["when_ready"](server)
    assert "DATABASE_URL is not set. SQLite is used" in caplog.text


def test_a_worker_that_may_not_choose_its_core_goes_on(hooks):
    hooks["post_worker_init"](SimpleNamespace(core=1_000_000))


HEALTH = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
# The beginning of a create; the rest of its head follows.
POST = (
    f"POST {CREATE}?accountid={{0.accountid}} HTTP/1.1\r\nHost: x\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\n"
    "Authorization: Bearer {0.token}\r\n"
)
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
FORM = "contact-email=a@example.com&full-name=secret"
WHOLE = f"{CHUNKED}2c\r\n{FORM}\r\n0\r\n\r\n"
HALF_HEAD = "GET /health HTTP/1.1\r\nHost: x\r\nX-"
HALF_BODY = f"{POST}Content-Length: 9\r\n\r\nx"
UNREAD = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n" * 20


def connected(service, text):
    """A connection on which this was sent, and nothing is read."""
    wire = socket.create_connection(("127.0.0.1", service.port))
    wire.sendall(text.encode())
    return wire


def exchange(service, text):
    """All that is sent back to a client that sends nothing more."""
    with connected(service, text) as wire:
        wire.shutdown(socket.SHUT_WR)
        return wire.makefile().read()


# What a client sends, and the longest time in seconds that another one waits.
SILENT = [(HALF_HEAD, 8), (HALF_BODY, 8), (UNREAD, 30)]


def test_silent_clients_are_given_up(serve, tmp_path):
    """There are more of them than threads, so others wait until then."""

    url = f"sqlite:///{tmp_path}/x.db"
    user = sign_in(serve(url))

    def wait_behind(text, limit):
        service = serve(url, WEB_CONCURRENCY="1")
        with ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(connected(service, text.format(user)))
            time.sleep(1)  # each thread has one of them by then
            began = time.monotonic()
            assert service.get("/health").status_code == 200
            assert 2 < time.monotonic() - began < limit
        assert "Traceback" not in service.log()

    at_once(*[partial(wait_behind, *silent) for silent in SILENT])


# How many connections are open, and what was sent on each.
OPEN = {
    "nothing was sent": (40, ""),
    "the client closes late": (20, "GET / HTTP/1.0\r\n\r\n"),
    "the client closes late after an error": (20, "x\r\n\r\n"),
}


@pytest.mark.parametrize(("count", "text"), OPEN.values(), ids=OPEN)
def test_open_connections_keep_nobody_waiting(serve, tmp_path, count, text):
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY="1")
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connected(service, text))
        began = time.monotonic()
        assert service.get("/health").status_code == 200
        assert time.monotonic() - began < 5


@pytest.fixture(scope="module")
def administrator(tmp_path_factory):
    """An administrator of the service to which something broken is sent."""
    folder = tmp_path_factory.mktemp("served")
    url = f"sqlite:///{folder}/x.db"
    service = Served(folder, url, GUNICORN_CMD_ARGS="--log-level debug")
    service.start()
    try:
        service.wait_until_up()
        yield sign_in(service, administrator=True)
    finally:
        service.kill()


def test_a_body_that_nobody_reads_does_not_break_the_next_request(administrator):
    text = f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
    answers = exchange(administrator.application, text * 2)
    assert answers.count("HTTP/1.1 401 ") == 2


BROKEN = {
    "a size": "x\r\n\r\n",
    "the end of a chunk": "1\r\nxx\r\n0\r\n\r\n",
    "an extension": "1;\x01\r\nx\r\n0\r\n\r\n",
    "a trailer": "0\r\nsecret\r\n\r\n",
}


@pytest.mark.parametrize(("path", "status"), [("/nope", 404), (CREATE, 401)])
@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_broken_body_that_nobody_reads_ends_the_connection(
    administrator, path, status, body
):
    service = administrator.application
    start = len(service.log())
    text = f"POST {path} HTTP/1.1\r\nHost: x\r\n{CHUNKED}{body}{HEALTH}"
    answers = exchange(service, text)
    assert answers.startswith(f"HTTP/1.1 {status} ")
    assert answers.count("HTTP/1.1 ") == 1
    assert service.log()[start:].count(f" path={path} ") == 1


def test_a_client_that_still_sends_reads_that_its_body_is_too_large(administrator):
    head = POST.format(administrator) + "Content-Length: 100000000\r\n\r\n"
    with connected(administrator.application, head) as wire:
        with suppress(ConnectionError):  # once the service has closed the connection
            for _ in range(100):
                wire.sendall(b"x" * 1_000_000)
        assert wire.recv(12) == b"HTTP/1.1 413"


EVIL = "http://evil.example"
REFUSED = [EVIL, f"{EVIL}?x", f"{EVIL}//health", f"///{PROFILES}", "/%2Fdocs"]


@pytest.mark.parametrize("target", REFUSED)
def test_a_path_that_is_empty_or_begins_with_two_slashes(administrator, target):
    head = f"GET {target} HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    answer = exchange(administrator.application, head)
    assert answer.startswith("HTTP/1.1 404 ")
    assert answer.endswith('{"object":"error","message":"not-found"}\n')
    assert "evil" not in answer


# By what is in the answer: what follows in the head and in the body.
SENT = {
    "invalid-body: cut": f"Content-Length: 60\r\n\r\n{FORM}",
    "invalid-body: cut in a chunk": f"{CHUNKED}99\r\n{FORM}",
    "invalid-body: cut after a chunk": f"{CHUNKED}2c\r\n{FORM}\r\n",
    "invalid-body: longer than its chunk": f"{CHUNKED}2\r\n{FORM}\r\n0\r\n\r\n",
    "invalid-body: without a size": f"{CHUNKED}{FORM}\r\n",
    "body-too-large: a chunk": f"{CHUNKED}10001\r\n{'x' * 65_537}\r\n0\r\n\r\n",
    "400: a header without a colon": "secret\r\n\r\n",
    "400: a header over two lines": "X: x\r\n secret\r\n\r\n",
    "400: a header with a blank before the colon": "X : secret\r\n\r\n",
    ": a header that is cut has no answer": "X: secret",
    "invalid-contact-email: 50 headers": "X: secret\r\n" * 47 + "\r\n",
    "HTTP/1.1 431: 51 headers": "X: secret\r\n" * 48 + "\r\n",
    "201 CREATED: a whole form": WHOLE,
}


@pytest.mark.parametrize("case", SENT)
def test_what_is_broken_is_refused_and_not_logged(administrator, case):
    service = administrator.application
    stored = len(administrator.profiles()) + case.startswith("201")
    answer = exchange(service, POST.format(administrator) + SENT[case])
    assert case.partition(":")[0] in answer
    names = [profile["fullName"] for profile in administrator.profiles()]
    assert names == ["secret"] * stored
    assert "secret" not in service.log()


@pytest.fixture
def reading(serve, make_app, empty_database_url):
    """An administrator of a service, and a connection that gets ``all``."""
    service = serve(empty_database_url)
    administrator = sign_in(service, administrator=True)
    make_app(DATABASE_URL=empty_database_url)
    fill(Profile, "default", 8_000)  # more than a connection buffers
    head = f"GET {PROFILES}?all=all HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    token = f"Authorization: Bearer {administrator.token}\r\n\r\n"
    with connected(service, head + token) as wire:
        assert wire.recv(12) == b"HTTP/1.1 200"
        yield administrator, wire


END = "\n0\n\n"  # of a chunked answer that is whole


def test_a_listing_that_breaks_off_is_cut_and_logged(reading, empty_database_url):
    administrator, wire = reading
    execute(empty_database_url, "DROP TABLE profile")
    assert not wire.makefile().read().endswith(END)
    # The line about the error, then that of the request, both with its id.
    line = r"level=ERROR request_id=(\w+) database unavailable: .*\n"
    line += r".* status=200 code=database-unavailable .* request_id=\1 "
    wait_until(lambda: re.search(line, administrator.application.log()))
    assert "Traceback" not in administrator.application.log()


@on_sqlite
def test_a_stop_answers_what_was_asked(reading, empty_database_url):
    """It waits for no half request, and ends in 8 seconds: platforms kill after 10."""
    administrator, listing = reading
    service = administrator.application
    for _ in range(20):
        service.get("/health")  # a connection that is closed is counted as one
    with ExitStack() as stack, cursor_of(empty_database_url) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        for text in ("GET /hea", HALF_HEAD, HALF_BODY, POST + WHOLE):
            wire = connected(service, text.format(administrator))
            stack.enter_context(wire)
        time.sleep(0.5)  # the create waits for the lock by then
        service.process.terminate()
        time.sleep(1.5)
        cursor.execute("ROLLBACK")
        assert wire.recv(12) == b"HTTP/1.1 201"
        text = listing.makefile().read()
        assert text.count('"profileid"') == 8_000
        assert text.endswith(END)
        assert service.process.wait(6) == 0


def workers(service):
    """The process ids of the workers, each with the number of its answers."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    log = service.log()
    return {int(child): log.count(f" worker={child}\n") for child in children.split()}


def assert_shared(service, count):
    """Each worker has its core or all, and a new one its share of connections."""

    def have_answered():
        service.get("/health")
        answers = workers(service).values()
        return len(answers) == count and all(answers)

    wait_until(have_answered)
    cores = os.sched_getaffinity(0)
    used = [os.sched_getaffinity(worker) for worker in workers(service)]
    each_has = 1 if count >= len(cores) else len(cores)
    assert [len(own) for own in used] == [each_has] * count
    assert set.union(*used) == cores
    with ExitStack() as stack:
        for _ in range(40):
            wire = stack.enter_context(connected(service, HEALTH))
            wire.recv(1)
    assert min(workers(service).values()) >= 20 / count


@pytest.mark.parametrize("count", [1, 2, 3])
def test_workers_share_the_cores_and_the_connections(serve, tmp_path, count):
    """Also one that replaces another."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY=str(count))
    assert_shared(service, count)
    killed, _ = workers(service).popitem()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in workers(service))
    assert_shared(service, count)
