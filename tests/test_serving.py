"""How the service is served: its start, its connections, its workers, its stop."""

import logging
import os
import re
import runpy
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from service import (
    CREATE,
    PROCFILE,
    PROFILES,
    ROOT,
    Served,
    cursor_of,
    execute,
    fill,
    on_sqlite,
    run,
    sign_in,
    wait_until,
)

from models import Profile

pytestmark = pytest.mark.long


def shown_settings(folder, **variables):
    """What gunicorn prints of its settings, or why it does not start."""
    service = Served(folder, f"sqlite:///{folder}/x.db", **variables)
    service.start(*PROCFILE, "--print-config")
    return service.process.wait(60), service.log()


@pytest.mark.parametrize(
    ("name", "value", "range"),
    [("PORT", "x", "1 to 65535"), ("WEB_CONCURRENCY", "0", "1 to 1000")],
)
def test_a_start_with_a_setting_that_is_refused(tmp_path, name, value, range):
    status, log = shown_settings(tmp_path, **{name: value})
    assert status == 1
    assert log == f"Error: {name}={value}: must be a whole number from {range}\n"


@pytest.mark.parametrize(
    ("variables", "name", "value"),
    [
        ({"PORT": "8123"}, "bind", "['0.0.0.0:8123']"),
        ({"PORT": ""}, "bind", "['127.0.0.1:8000']"),
        ({"WEB_CONCURRENCY": "3"}, "workers", "3"),
        ({}, "forwarded_allow_ips", "['127.0.0.1', '::1']"),
        ({"FORWARDED_ALLOW_IPS": ""}, "forwarded_allow_ips", "['127.0.0.1', '::1']"),
        ({"FORWARDED_ALLOW_IPS": "192.0.2.1"}, "forwarded_allow_ips", "['192.0.2.1']"),
        ({}, "keepalive", "75"),  # seconds; nginx keeps a connection for 60
        ({}, "graceful_timeout", "6"),  # seconds; some platforms kill after 10
    ],
)
def test_the_settings_of_a_start(tmp_path, variables, name, value):
    status, log = shown_settings(tmp_path, **variables)
    assert status == 0
    assert re.search(f"(?m)^{name} += {re.escape(value)}$", log)


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


def is_occupied(service):
    """Whether a request gets no response within a second."""
    with connected(service, HEALTH) as wire:
        wire.settimeout(1)
        try:
            return wire.recv(1) == b""
        except TimeoutError:
            return True


UNKNOWN = "POST /unknown HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("before", ["", HEALTH], ids=["first", "second"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HALF_HEAD, id="a head"),
        pytest.param(HALF_BODY, id="a body"),
        pytest.param(f"{POST}{CHUNKED}7\r\n0\r\n\r\n", id="a chunk"),
        pytest.param(f"{POST}{CHUNKED}0\r\nX-", id="trailers"),
        pytest.param(f"{POST}Content-Length: 90000000\r\n\r\nx", id="413"),
        pytest.param(f"{UNKNOWN}Content-Length: 90000000\r\n\r\nx", id="404"),
        pytest.param(f"{UNKNOWN}Content-Length: 9\r\n\r\nx", id="a short 404"),
        pytest.param(
            f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nContent-Length: 90000000\r\n\r\nx",
            id="401",
        ),
        pytest.param(
            f"{POST}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            id="100-continue",
        ),
    ],
)
def test_slow_clients_keep_nobody_waiting(administrator, before, text):
    """There are more of them than threads, and each sends another byte."""
    service = administrator.application
    with ExitStack() as stack:
        wires = []
        for _ in range(12):
            wire = connected(service, before + text.format(administrator))
            wires.append(stack.enter_context(wire))
        assert not is_occupied(service)
        for wire in wires:
            wire.sendall(b"x")
        assert not is_occupied(service)


def test_a_token_that_ends_while_its_request_arrives(administrator):
    """It is checked when the request is there, however long that takes."""
    service = administrator.application
    user = sign_in(service)
    rest = f"Content-Length: {len(FORM)}\r\n\r\n"
    with connected(service, POST.format(user) + rest + FORM[:-1]) as wire:
        wait_until(lambda: has_read(service, wire))
        run(service, "end-session", user.session["sessionid"])
        wire.sendall(FORM[-1:].encode())
        assert wire.recv(12) == b"HTTP/1.1 401"


def test_uploads_in_small_pieces_are_stored(administrator):
    """Of more clients than there are threads, all at the same time."""
    service = administrator.application
    before = len(administrator.profiles())
    body = f"{FORM}&display-name={'x' * 60_000}".encode()
    head = POST.format(administrator) + f"Content-Length: {len(body)}\r\n\r\n"
    with ExitStack() as stack:
        wires = [stack.enter_context(connected(service, head)) for _ in range(20)]
        for start in range(0, len(body), 3_000):
            for wire in wires:
                wire.sendall(body[start : start + 3_000])
        assert {wire.recv(12) for wire in wires} == {b"HTTP/1.1 201"}
    assert len(administrator.profiles()) == before + 20


def test_clients_that_do_not_read_are_given_up(serve, tmp_path):
    """There are more of them than threads, so others wait until then."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY="1")
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connected(service, UNREAD))
        wait_until(lambda: is_occupied(service))
        wait_until(lambda: not is_occupied(service))
    assert "Traceback" not in service.log()


@pytest.mark.parametrize("text", ["", HALF_HEAD], ids=["silent", "half a head"])
def test_more_connections_than_the_process_may_open_files(serve, tmp_path, text):
    """The oldest of them are closed, so others are served."""
    service = serve(f"sqlite:///{tmp_path}/x.db", wait=False)
    service.kill()
    service.environment["WEB_CONCURRENCY"] = "1"
    service.start("sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *PROCFILE)
    service.wait_until_up()
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connected(service, text))
        assert not is_occupied(service)
    assert "Traceback" not in service.log()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        pytest.param(40, "", id="nothing was sent"),
        pytest.param(20, "GET / HTTP/1.0\r\n\r\n", id="the client closes late"),
        pytest.param(20, "x\r\n\r\n", id="it closes late after an error"),
    ],
)
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


@pytest.mark.parametrize(("path", "status"), [("/nope", 404), (CREATE, 401)])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("x\r\n\r\n", id="a size"),
        pytest.param("1\r\nxx\r\n0\r\n\r\n", id="the end of a chunk"),
        pytest.param("1;\x01\r\nx\r\n0\r\n\r\n", id="an extension"),
        pytest.param("0\r\nsecret\r\n\r\n", id="a trailer"),
    ],
)
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


@pytest.mark.parametrize(
    "target",
    [
        EVIL,
        f"{EVIL}?x",
        f"{EVIL}//health",
        f"///{PROFILES}",
        "/%2Fdocs",
        "a:api/user/account?://evil.example",
    ],
)
def test_a_path_that_does_not_begin_with_one_slash(administrator, target):
    head = f"GET {target} HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    answer = exchange(administrator.application, head)
    assert answer.startswith("HTTP/1.1 404 ")
    assert answer.endswith('{"object":"error","message":"not-found"}\n')
    assert "evil" not in answer


@pytest.mark.parametrize(("path", "status"), [(f"/x{PROFILES}", 404), (PROFILES, 401)])
def test_no_header_moves_a_path(administrator, path, status):
    """Otherwise it could pass a proxy's rule for another one."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /x\r\nPATH_INFO: /x\r\n\r\n"
    answer = exchange(administrator.application, head)
    assert answer.startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize(
    ("status", "code", "rest"),
    [
        pytest.param(
            400, "invalid-body", f"Content-Length: 60\r\n\r\n{FORM}", id="cut"
        ),
        pytest.param(
            400, "invalid-body", f"{CHUNKED}99\r\n{FORM}", id="cut in a chunk"
        ),
        pytest.param(
            400, "invalid-body", f"{CHUNKED}2c\r\n{FORM}\r\n", id="cut after a chunk"
        ),
        pytest.param(
            400,
            "invalid-body",
            f"{CHUNKED}2\r\n{FORM}\r\n0\r\n\r\n",
            id="longer than its chunk",
        ),
        pytest.param(
            400, "invalid-body", f"{CHUNKED}{FORM}\r\n", id="a chunk without a size"
        ),
        pytest.param(
            413,
            "body-too-large",
            f"{CHUNKED}10001\r\n{'x' * 65_537}\r\n0\r\n\r\n",
            id="a chunk that is too large",
        ),
        pytest.param(
            413,
            "body-too-large",
            f"Content-Length: 65537\r\n\r\n{'x' * 65_537}",
            id="one byte too long",
        ),
        pytest.param(
            400,
            "invalid-contact-email",
            "X: secret\r\n" * 97 + "\r\n",
            id="100 headers",
        ),
    ],
)
def test_a_create_that_the_service_refuses_is_not_logged(
    administrator, status, code, rest
):
    service = administrator.application
    before = administrator.profiles()
    answer = exchange(service, POST.format(administrator) + rest)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert f'"message":"{code}"' in answer
    assert administrator.profiles() == before
    assert "secret" not in service.log()


@pytest.mark.parametrize(
    ("rest", "begin"),
    [
        pytest.param("secret\r\n\r\n", "HTTP/1.1 400 ", id="no colon"),
        pytest.param("X: x\r\n secret\r\n\r\n", "HTTP/1.1 400 ", id="two lines"),
        pytest.param("X : secret\r\n\r\n", "HTTP/1.1 400 ", id="a blank"),
        pytest.param("X: secret\r\n" * 98 + "\r\n", "HTTP/1.1 431 ", id="101 headers"),
        pytest.param(f"X: secret{'x' * 70_000}", "HTTP/1.1 431 ", id="64 KB"),
        pytest.param("X: secret", "", id="cut"),
    ],
)
def test_a_head_that_gunicorn_refuses_is_not_logged(administrator, rest, begin):
    service = administrator.application
    answer = exchange(service, POST.format(administrator) + rest)
    assert answer[:13] == begin
    assert "secret" not in service.log()


def test_a_form_in_chunks_is_stored(administrator):
    service = administrator.application
    before = administrator.profiles()
    answer = exchange(service, POST.format(administrator) + WHOLE)
    assert answer.startswith("HTTP/1.1 201 ")
    created, *others = administrator.profiles()
    assert (created["fullName"], others) == ("secret", before)
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


def has_read(service, wire):
    """Whether the service has accepted a connection and read what was sent."""
    own, peer = f":{service.port:04X}", f":{wire.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        _, local, remote, _, queues, _, _, _, _, inode, *_ = f"{line} 0 0".split()
        if local.endswith(own) and remote.endswith(peer):
            return queues.endswith(":00000000") and inode != "0"


@on_sqlite
def test_a_stop_answers_what_was_asked(reading, empty_database_url):
    """It waits for no half request, and ends before platforms kill it, after 10 s."""
    administrator, listing = reading
    service = administrator.application
    for _ in range(20):
        service.get("/health")  # a connection that is closed is counted as one
    with ExitStack() as stack, cursor_of(empty_database_url) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        for text in ("GET /hea", HALF_HEAD, HALF_BODY, POST + WHOLE):
            wire = connected(service, text.format(administrator))
            stack.enter_context(wire)
        wait_until(lambda: has_read(service, wire))  # and now it waits for the lock
        service.process.terminate()
        wait_until(lambda: "Handling signal: term" in service.log())
        time.sleep(0.5)  # the workers have it by then; if not, less is proven
        cursor.execute("ROLLBACK")
        assert wire.recv(12) == b"HTTP/1.1 201"
        text = listing.makefile().read()
        assert text.count('"profileid"') == 8_000
        assert text.endswith(END)
        assert service.process.wait(10) == 0


def workers(service):
    """The process ids of the workers, each with the number of its answers."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    log = service.log()
    return {int(child): log.count(f" worker={child}\n") for child in children.split()}


def assert_cores_are_shared(service, count):
    """Each worker answers, and has its core or all."""

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


@pytest.mark.parametrize("count", [1, 2, 3])
def test_workers_share_the_cores(serve, tmp_path, count):
    """Also one that replaces another."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY=str(count))
    assert_cores_are_shared(service, count)
    killed, _ = workers(service).popitem()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in workers(service))
    assert_cores_are_shared(service, count)
