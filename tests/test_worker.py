"""worker.py: what a whole request is, and that a thread never waits for one."""

import os
import random
import socket
import struct
from contextlib import ExitStack, suppress
from selectors import DefaultSelector
from threading import Thread
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker
from service import wait_until

import worker as module
from worker import ReadAheadWorker, read_request

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
EXPECT = POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
WITHOUT_EXPECT = POST + b"Content-Length: 3\r\n\r\n"
UNREAD = POST.replace(b"/", b"/unread", 1)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LIMIT = 100  # of a body


class Sent(list):
    """A socket to which only is sent."""

    def send(self, data, flags):
        self.append(data)


def arriving():
    """A connection on which nothing has come yet, and the search for a request."""
    conn = SimpleNamespace(data=bytearray(), is_whole=False, is_over=False, sock=Sent())
    return conn, read_request(conn, Config(), LIMIT)


def bytes_needed(text):
    """How many bytes are read one by one, until no more are needed; the connection."""
    conn, reading = arriving()
    for count, byte in enumerate(text):
        if next(reading, "ready") == "ready":
            return count, conn
        conn.data.append(byte)
    assert next(reading, "ready") == "ready"
    return len(text), conn


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GET, id="no body"),
        pytest.param(b"\r\n" + GET, id="an empty line before"),
        pytest.param(b"x\r\n\r\n", id="no HTTP"),
        pytest.param(b"\r\n\r\n", id="nothing"),
        pytest.param(POST + b"Content-Length: 3\r\n\r\nabc", id="a length"),
        pytest.param(POST + b"CONTENT-length:\t 3 \r\n\r\n\r\n\r", id="in any form"),
        pytest.param(POST + b"X-Content-Length: 3\r\n\r\n", id="another length"),
        pytest.param(POST + b"Content-Length: x\r\n\r\n", id="no number"),
        pytest.param(CHUNKED + b"0\r\n\r\n", id="no chunk"),
        pytest.param(CHUNKED + b"1\r\nx\r\nA\r\n0123456789\r\n0\r\n\r\n", id="chunks"),
        pytest.param(CHUNKED + b"5\r\n0\r\n\r\n\r\n0\r\n\r\n", id="an end in a chunk"),
        pytest.param(CHUNKED + b"1;a=b\r\nx\r\n0;c\r\n\r\n", id="extensions"),
        pytest.param(CHUNKED + b"0\r\nX: y\r\nZ: 0\r\n\r\n", id="trailers"),
        pytest.param(
            POST + b"transfer-encoding:gzip, Chunked\r\n\r\n0\r\n\r\n", id="two codings"
        ),
        pytest.param(EXPECT + b"abc", id="an expectation"),
    ],
)
def test_a_request_ends_with_its_last_byte(text):
    count, conn = bytes_needed(text + GET)
    assert count == len(text)
    assert conn.is_whole
    assert conn.data == text.replace(EXPECT, WITHOUT_EXPECT)


@pytest.mark.parametrize("length", [b"101", b"9" * 5_000], ids=["101", "digits"])
def test_a_body_that_is_too_long_is_not_waited_for(length):
    """It is not whole, so nobody knows where the next request begins."""
    text = POST + b"Content-Length: %b\r\n\r\n" % length
    needed, conn = bytes_needed(text + b"x")
    assert needed == len(text)
    assert not conn.is_whole


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"fffffffffff\r\n", id="a chunk"),
        pytest.param(b"1\r\nx\r\n" * 30, id="chunks"),
        pytest.param(b"1" * 200, id="a size"),
        pytest.param(b"0\r\n", id="trailers"),
    ],
)
def test_chunks_that_are_too_long_are_not_waited_for(monkeypatch, body):
    monkeypatch.setattr(module, "LONGEST_HEAD", 1_000)
    needed, conn = bytes_needed(CHUNKED + body + b"1" * 2_000)
    assert needed == len(CHUNKED) + 2 * LIMIT + 1_001
    assert not conn.is_whole


def test_a_head_that_is_too_long_gets_more_fields_than_gunicorn_accepts(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_HEAD", 1_000)
    needed, conn = bytes_needed(POST + b"x" * 2_000)
    assert needed == 1_001
    assert conn.data.count(b"\r\nx:") == Config().limit_request_fields
    assert conn.data.endswith(b"\r\n\r\n")
    assert not conn.is_whole


def test_a_head_that_is_too_long_is_refused_although_it_arrived_at_once(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_HEAD", 1_000)
    conn, reading = arriving()
    conn.data += POST + b"x" * 2_000 + b"\r\n\r\n"
    assert list(reading) == []
    assert conn.data.count(b"x:\r\n") == Config().limit_request_fields + 1
    assert not conn.is_whole


@pytest.mark.parametrize("text", [b"x\r\n", b"-1\r\n", b"\r\n"])
def test_a_size_that_is_no_number_is_not_waited_for(text):
    assert bytes_needed(CHUNKED + text)[0] == len(CHUNKED + text)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        pytest.param(EXPECT, [CONTINUE], id="once"),
        pytest.param(EXPECT + b"a", [], id="the body has begun"),
        pytest.param(EXPECT.replace(b"3", b"101"), [], id="the body is too long"),
        pytest.param(WITHOUT_EXPECT, [], id="not expected"),
    ],
)
def test_100_continue(text, sent):
    conn, reading = arriving()
    conn.data += text
    for _ in range(3):
        next(reading, None)
    assert conn.sock == sent
    assert b"Expect" not in conn.data


def test_nothing_is_read_after_the_last_response():
    conn, reading = arriving()
    conn.is_over = True
    conn.data += GET
    assert next(reading, "ready") != "ready"
    assert conn.data == b""


def application(environ, start_response):
    """Returns the body, but of /unread, which is not read, the path."""
    path = environ["PATH_INFO"].encode()
    body = path if path == b"/unread" else environ["wsgi.input"].read() or b"-"
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


@pytest.fixture
def start(monkeypatch):
    """Starts a worker that handles one request at a time, in a thread of the test."""
    monkeypatch.setattr(module, "STOP_KEEPALIVE_LINGER", 0)
    with ExitStack() as stack:

        def start(family=socket.AF_INET, address=("127.0.0.1", 0), **settings):
            listener = stack.enter_context(socket.socket(family))
            listener.bind(address)
            listener.listen()
            config = Config()
            for name, value in {"threads": 1, **settings}.items():
                config.set(name, value)
            arguments = 1, os.getppid(), [listener], None, 30, config, Logger(config)
            worker = ReadAheadWorker(*arguments)
            worker.wsgi = application
            worker.tpool = worker.get_thread_pool()
            worker.poller = DefaultSelector()
            worker.method_queue.init()
            thread = Thread(target=worker.run)

            def stop():
                worker.handle_exit(None, None)
                thread.join()
                worker.tmp.close()

            thread.start()
            stack.callback(stop)
            worker.family = family
            worker.address = listener.getsockname()
            return worker

        yield start


def connect(worker, text=b""):
    """A connection on which this was sent."""
    wire = socket.socket(worker.family)
    wire.settimeout(20)
    wire.connect(worker.address)
    wire.sendall(text)
    return wire


def responses(wire):
    """The bodies of all responses until the service ends the connection."""
    text = b""
    with suppress(ConnectionError):
        while received := wire.recv(65_536):
            text += received
    return [part.partition(b"\r\n\r\n")[2] for part in text.split(b"HTTP/1.1 200 ")[1:]]


def assert_served(worker):
    with connect(worker, GET) as wire:
        assert wire.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    ("connections", "microseconds"), [(0, 0), (1, 20), (9, 180), (10, None)]
)
def test_a_worker_with_more_connections_waits_before_it_accepts_another(
    monkeypatch, connections, microseconds
):
    calls = []
    sleep = SimpleNamespace(sleep=lambda seconds: calls.append(round(seconds * 10**6)))
    monkeypatch.setattr(module, "time", sleep)
    monkeypatch.setattr(ThreadWorker, "accept", lambda *call: calls.append(call))
    worker = object.__new__(ReadAheadWorker)
    worker.nr_conns = connections
    worker.accept("listener")
    waits = [] if microseconds is None else [microseconds]
    assert calls == [*waits, (worker, "listener")]


KINDS = {
    "head": b"GET / HTTP/1.1\r\nX-",
    "body": POST + b"Content-Length: 3\r\n\r\nx",
    "chunk": CHUNKED + b"5\r\n0\r\n\r\n",
    "trailer": CHUNKED + b"0\r\nX-",
    "expectation": EXPECT,
    "unread body": UNREAD + b"Content-Length: 3\r\n\r\nx",
    "too large": POST + b"Content-Length: 90000000\r\n\r\nx",
    "unread and too large": UNREAD + b"Content-Length: 90000000\r\n\r\nx",
    "malformed": b"x\r\n\r\nx",
    "silence": b"",
}


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
@pytest.mark.parametrize("text", KINDS.values(), ids=KINDS)
def test_a_slow_client_occupies_no_thread(start, before, text):
    worker = start()
    with connect(worker, before + text) as wire:
        assert_served(worker)
        with suppress(ConnectionError):
            wire.sendall(b"x")
        assert_served(worker)


def test_a_slow_client_on_a_kept_connection_occupies_no_thread(start):
    worker = start()
    with connect(worker, GET) as wire:
        assert wire.recv(12) == b"HTTP/1.1 200"
        wire.sendall(POST)
        assert_served(worker)
        wire.sendall(b"Connection: close\r\n\r\n")
        assert responses(wire) == [b"-"]


@pytest.mark.parametrize("seed", range(8))
def test_requests_that_come_together_are_answered_in_their_order(start, seed):
    """They are of every framing, and cut at random."""
    choose = random.Random(seed)
    requests, bodies = [], []
    for number in range(40):
        body = b"%d\r\n0\r\n\r\n" % number * choose.randint(1, 40)
        half = choose.randrange(1, len(body))
        kinds = [
            (GET, b"-"),
            (POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), body),
            (
                b"%b%x\r\n%b\r\n%x;a=b\r\n%b\r\n0\r\nX: y\r\n\r\n"
                % (CHUNKED, half, body[:half], len(body) - half, body[half:]),
                body,
            ),
            (
                b"%bExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%b"
                % (POST, len(body), body),
                body,
            ),
            (UNREAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), b"/unread"),
        ]
        request, response = choose.choice(kinds)
        requests.append(request)
        bodies.append(response)
    text = b"".join(requests)
    cuts = sorted(choose.sample(range(len(text)), 60))
    worker = start()
    with connect(worker) as wire:
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            wire.sendall(text[begin:end])
            if choose.random() < 0.3:
                assert_served(worker)  # so that the worker receives what was sent
        wire.shutdown(socket.SHUT_WR)
        received = b""
        while more := wire.recv(65_536):
            received += more
    found = []
    for part in received.replace(CONTINUE, b"").split(b"HTTP/1.1 200 OK")[1:]:
        found.append(part.partition(b"\r\n\r\n")[2])
    assert found == bodies


@pytest.mark.parametrize("length", [65_536, 200_000])
def test_a_connection_is_kept_after_a_long_body_that_nobody_read(
    start, monkeypatch, length
):
    """As its response said. gunicorn itself would close it after 64 KB."""
    monkeypatch.setattr(ReadAheadWorker, "longest_body", 200_000)
    worker = start()
    head = UNREAD + b"Content-Length: %d\r\n\r\n" % length
    with connect(worker, head + b"x" * length + GET) as wire:
        wire.shutdown(socket.SHUT_WR)
        assert responses(wire) == [b"/unread", b"-"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(UNREAD + b"Content-Length: 70000\r\n\r\nx", id="a length"),
        pytest.param(UNREAD + CHUNKED[len(POST) :] + b"9" * 200_000, id="a size"),
    ],
)
def test_a_body_that_is_not_awaited_ends_the_connection(start, text):
    """The response says so, or a proxy would send the next request on it.

    It reaches a client that still sends: the connection stays open for its reading.
    """
    worker = start()
    with connect(worker, text) as wire:
        received = wire.recv(65_536)
        wire.sendall(GET)
        while more := wire.recv(65_536):
            received += more
        assert received.count(b"HTTP/1.1 ") == 1
        assert b"\r\nConnection: close\r\n" in received
        wire.sendall(GET * 1_000)  # which is not reset
        assert_served(worker)
        wire.sendall(GET)
    wait_until(lambda: worker.nr_conns == 0)
    assert worker.nr == 2  # none of the others was handled


@pytest.mark.parametrize(
    "body", [b"x\r\n\r\n", b"1\r\nxx\r\n0\r\n\r\n", b"0\r\nx\r\n\r\n"]
)
def test_a_malformed_body_that_nobody_read_gets_one_response(start, body):
    worker = start()
    with connect(worker, UNREAD + CHUNKED[len(POST) :] + body + GET) as wire:
        assert responses(wire) == [b"/unread"]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_client_that_goes_away_is_not_counted_any_more(start, tmp_path, family):
    """However it ends, and at whatever point."""
    worker = start() if family == socket.AF_INET else start(family, f"{tmp_path}/x")
    reset = struct.pack("ii", 1, 0)  # struct linger: close at once, with a reset
    for text in [*KINDS.values(), GET, GET + GET, UNREAD + GET]:
        for is_reset in (True, False):
            with connect(worker, text) as wire:
                if is_reset:
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    wait_until(lambda: worker.nr_conns == 0)


def test_a_request_has_a_limited_time(start, monkeypatch):
    """However often something comes."""
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0)
    worker = start()
    with connect(worker, POST) as wire:
        assert wire.recv(1) == b""
    wait_until(lambda: worker.nr_conns == 0)


@pytest.mark.parametrize("text", [b"", POST], ids=["silent", "unfinished"])
def test_the_oldest_waiting_connection_is_closed_for_a_new_one(start, text):
    worker = start(worker_connections=4)
    with ExitStack() as stack:
        wires = [stack.enter_context(connect(worker, text)) for _ in range(10)]
        assert_served(worker)
        assert wires[0].recv(1) == b""
    wait_until(lambda: worker.nr_conns == 0)


def test_a_kept_connection_is_closed_before_an_unfinished_request(start):
    worker = start(worker_connections=3)
    with connect(worker, POST) as unfinished, connect(worker, GET) as kept:
        wait_until(lambda: worker.keepalived_conns)
        assert not worker.keepalived_conns[0].data  # it would fill the memory
        kept.recv(65_536)
        with connect(worker):
            assert kept.recv(1) == b""
            unfinished.sendall(b"Connection: close\r\n\r\n")
            assert responses(unfinished) == [b"-"]


def test_a_stop_does_not_wait_for_an_unfinished_request(start):
    worker = start(graceful_timeout=1000)
    with connect(worker, POST) as wire:
        assert_served(worker)
        worker.handle_exit(None, None)
        assert wire.recv(1) == b""
