"""How the service is served: its start, its connections, its workers, its stop."""

import os
import re
import runpy
import shutil
import signal
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPSConnection
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from service import (
    CREATE,
    PROCFILE,
    PROFILES,
    ROOT,
    Program,
    cursor_of,
    execute,
    fill,
    sign_in,
    wait_until,
)

from models import Profile

pytestmark = pytest.mark.long


def shown_settings(folder, command=(), **variables):
    """What gunicorn prints of its settings, or why it does not start."""
    service = Program(folder, DATABASE_URL=f"sqlite:///{folder}/x.db", **variables)
    service.start(*command, *PROCFILE, "--print-config")
    return service.process.wait(60), service.log()


def test_a_start_with_a_setting_that_is_refused(tmp_path):
    status, log = shown_settings(tmp_path, WEB_CONCURRENCY="0")
    assert status == 1
    assert log == "Error: WEB_CONCURRENCY=0: must be a whole number from 1 to 1000\n"


# A command with only one of the cores, and without the number of workers.
ONE_CORE = f"env -u WEB_CONCURRENCY taskset -c {min(os.sched_getaffinity(0))}"


@pytest.mark.parametrize(
    "command, variables, name, value",
    [
        ("", {"PORT": "8123"}, "bind", "['0.0.0.0:8123']"),
        ("", {"PORT": ""}, "bind", "['127.0.0.1:8000']"),
        ("", {"WEB_CONCURRENCY": "3"}, "workers", "3"),
        (ONE_CORE, {}, "workers", "1"),
        ("", {"WEB_CONCURRENCY": "3"}, "threads", "42"),
        ("prlimit --nofile=256", {}, "worker_connections", "132"),  # as on macOS
        ("prlimit --nofile=9999", {}, "worker_connections", "900"),
        ("", {"WEB_CONCURRENCY": "100"}, "threads", "4"),
        ("", {}, "keepalive", "130"),  # seconds; Caddy keeps a connection for 120
        ("", {}, "graceful_timeout", "6"),  # seconds; some platforms kill after 10
    ],
)
def test_the_settings_of_a_start(tmp_path, command, variables, name, value):
    status, log = shown_settings(tmp_path, command.split(), **variables)
    assert status == 0
    assert re.search(f"(?m)^{name} += {re.escape(value)}$", log)


def load_hooks(monkeypatch, **variables):
    """The functions that gunicorn calls, of a service with a worker for each core."""
    for name, value in {"WEB_CONCURRENCY": "1000", **variables}.items():
        monkeypatch.setenv(name, value)
    return SimpleNamespace(**runpy.run_path(f"{ROOT}/gunicorn.conf.py"))


@pytest.mark.parametrize(
    "variables, warnings",
    [
        ({}, 0),
        ({"PORT": "80", "DATABASE_URL": "sqlite:///x.db"}, 0),
        ({"PORT": "80"}, 1),
    ],
)
def test_a_platform_without_a_database_is_warned(monkeypatch, variables, warnings):
    lines = []
    log = SimpleNamespace(warning=lines.append)
    hooks = load_hooks(monkeypatch, **variables)
    hooks.when_ready(SimpleNamespace(log=log))
    assert len(lines) == warnings


def test_a_worker_that_may_not_choose_its_core_goes_on(monkeypatch):
    hooks = load_hooks(monkeypatch)
    hooks.post_worker_init(SimpleNamespace(core=1_000_000))


HEALTH = "GET /health HTTP/1.1\r\nHost: x\r\n"
# The beginning of a create; the rest of its head follows.
POST = (
    f"POST {CREATE}?accountid={{0.accountid}} HTTP/1.1\r\nHost: x\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\n"
    "Authorization: Bearer {0.token}\r\n"
)
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
FORM = "contact-email=a@example.com&full-name=secret"
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
    with connected(service, f"{HEALTH}\r\n") as wire:
        wire.settimeout(1)
        try:
            return wire.recv(1) == b""
        except TimeoutError:
            return True


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service with two workers for this file."""
    folder = tmp_path_factory.mktemp("served")
    service = Program(folder, DATABASE_URL=f"sqlite:///{folder}/x.db")
    service.start()
    try:
        service.wait_until_up()
        yield service
    finally:
        service.kill()


@pytest.fixture
def administrator(served):
    """An administrator of the service to which something broken is sent."""
    return sign_in(served.app, administrator=True)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize(
    "text",
    ["GET /live HTTP/1.1\r\nX", HALF_BODY, UNREAD],
    ids=["a head", "a body", "a response"],
)
def test_a_client_that_stalls_is_given_up(tmp_path, kind, text):
    """There are more of them than threads, so others wait until then."""
    service = Program(tmp_path, DATABASE_URL=f"sqlite:///{tmp_path}/x.db")
    socket_file = f"{tmp_path}/socket"
    options = f"-b 127.0.0.1:{service.port} -b unix:{socket_file} -w 1 --threads 2"
    service.start(*PROCFILE, *options.split())
    try:
        service.wait_until_up()
        text = text.format(sign_in(service.app))
        with ExitStack() as stack:
            for _ in range(3):
                if kind == "unix":
                    wire = stack.enter_context(socket.socket(socket.AF_UNIX))
                    wire.connect(socket_file)
                    wire.sendall(text.encode())
                else:
                    stack.enter_context(connected(service, text))
            wait_until(lambda: is_occupied(service))
            wait_until(lambda: not is_occupied(service))
        assert "Traceback" not in service.log()
    finally:
        service.kill()


LIST = (
    f"GET {PROFILES}?all=all HTTP/1.1\r\nHost: x\r\n"
    "Authorization: Bearer {0.token}\r\n"
)
JSON = (
    f"POST {CREATE}?accountid=acct_0123456789abcdef HTTP/1.1\r\nHost: x\r\n"
    "Content-Type: application/json\r\n"
)
# Each is what a client sends, and what it then goes on sending; it reads nothing.
HOLDERS = {
    "nothing": ("", ""),
    "a slow head": ("GET /live HTTP/1.1\r\nX", "x"),
    "a slow second head": (f"{HEALTH}\r\n{HEALTH}X", "x"),
    "a head in small segments": ("GET /live HTTP/1.1\r\nX", "x" * 100),
    "HTTP/1.0, left open": ("GET /live HTTP/1.0\r\n\r\n", ""),
    "TLS": ("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", ""),
    "a slow body": (f"{JSON}Content-Length: 60000\r\n\r\n", "{{"),
    "a slow body with a token": (f"{POST}Content-Length: 60000\r\n\r\n", "x"),
    "slow chunks": (f"{JSON}{CHUNKED}", "1\r\n{{\r\n"),
    "an unread file": (UNREAD, ""),
    "an unread list": (f"{LIST}\r\n", ""),
}


@pytest.mark.parametrize("urgent", [b"", b"!"], ids=["", "urgent"])
@pytest.mark.parametrize("head, more", HOLDERS.values(), ids=HOLDERS)
def test_slow_clients_keep_nobody_waiting(served, head, more, urgent):
    """Twenty-four at once: others get their responses within a second.

    Urgent data makes a socket readable, but isn't read with the other data.
    """
    user = sign_in(served.app, administrator=True)
    more = more.format(user).encode()
    ended = Event()

    def send_more():
        while not ended.wait(0.2):
            for wire in wires:
                with suppress(OSError):  # the service has closed this one
                    wire.send(more, socket.MSG_DONTWAIT)

    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        wires = [
            stack.enter_context(connected(served, head.format(user))) for _ in range(24)
        ]
        for wire in wires:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.send(urgent, socket.MSG_OOB)
        pool.submit(send_more)
        try:
            for _ in range(5):
                assert not is_occupied(served)
                assert user.get(f"{PROFILES}?limit=1").status_code == 200
                time.sleep(0.5)
        finally:
            ended.set()
    assert "Traceback" not in served.log()


def test_many_silent_clients_at_once_keep_nobody_waiting(served):
    """gunicorn by itself gives each of them a thread for five seconds."""
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(served, ""))
        for _ in range(3):
            assert not is_occupied(served)


@pytest.mark.parametrize("head", ["", "GET /live HTTP/1.1\r\nX"])
@pytest.mark.parametrize("half", [False, True])
def test_a_client_that_closes_costs_no_time(serve, tmp_path, head, half):
    """Before its head is whole, while others are served."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY="1")
    with ExitStack() as stack:
        for _ in range(5):
            wire = stack.enter_context(connected(service, head))
            wire.shutdown(socket.SHUT_WR) if half else wire.close()
        assert not is_occupied(service)
        before = cpu_seconds_of_workers(service)
        time.sleep(1)
        assert cpu_seconds_of_workers(service) - before < 0.5


@pytest.mark.skipif(not shutil.which("openssl"), reason="install openssl")
def test_gunicorn_can_serve_https(tmp_path):
    """Both requests of a kept connection get a response."""
    subject = "-subj /CN=x -addext subjectAltName=IP:127.0.0.1 -keyout key -out x"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes {subject}"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    service = Program(tmp_path, DATABASE_URL=f"sqlite:///{tmp_path}/x.db")
    options = ["--certfile", tmp_path / "x", "--keyfile", tmp_path / "key"]
    service.start(*PROCFILE, *options)
    try:
        wait_until(lambda: "Booting worker" in service.log())
        context = ssl.create_default_context(cafile=tmp_path / "x")
        client = HTTPSConnection("127.0.0.1", service.port, context=context)
        for _ in range(2):
            client.request("GET", "/live")
            assert client.getresponse().read().startswith(b'{"object":"health"')
        client.close()
    finally:
        service.kill()


@pytest.mark.parametrize(
    "status, head, rest",
    [
        ("401", JSON, "Content-Length: 2\r\n\r\n{}"),
        ("401", JSON, f"{CHUNKED}2\r\n{{}}\r\n0\r\n\r\n"),
        ("404", "POST /x HTTP/1.1\r\n", "Content-Length: 2\r\n\r\n{}"),
        ("405", "POST /live HTTP/1.1\r\n", "Content-Length: 2\r\n\r\n{}"),
        ("200", "GET /live HTTP/1.1\r\n", "Content-Length: 2\r\n\r\n{}"),
        ("201", POST, f"Content-Length: {len(FORM)}\r\n\r\n{FORM}"),
        ("201", POST, f"{CHUNKED}{len(FORM):x}\r\n{FORM}\r\n0\r\n\r\n"),
    ],
    ids="no token, chunks, path, method, GET, form, form in chunks".split(", "),
)
def test_a_body_that_arrives_keeps_its_connection(administrator, status, head, rest):
    text = head.format(administrator) + rest + f"{HEALTH}\r\n"
    answers = exchange(administrator.application, text)
    assert re.findall("HTTP/1.1 ([0-9]+)", answers) == [status, "200"]
    assert answers.count("\nConnection: keep-alive\n") == 2


@pytest.mark.parametrize(
    "status, head, rest",
    [
        ("401", JSON, f"{CHUNKED}x\r\n"),
        ("400", POST, f"{CHUNKED}x\r\n"),
        ("401", JSON, f"Content-Length: 5000000\r\n\r\n{'x' * 5_000_000}"),
        ("413", POST, f"Content-Length: 5000000\r\n\r\n{'x' * 5_000_000}"),
    ],
    ids="no token and a broken chunk, a broken chunk, no token, too large".split(", "),
)
def test_a_body_that_does_not_arrive_ends_its_connection(
    administrator, status, head, rest
):
    """Where the next request begins is unknown."""
    text = head.format(administrator) + rest + f"{HEALTH}\r\n"
    answers = exchange(administrator.application, text)
    assert re.findall("HTTP/1.1 ([0-9]+)", answers) == [status]


def test_a_client_that_still_sends_reads_that_its_body_is_too_large(administrator):
    head = POST.format(administrator) + "Content-Length: 100000000\r\n\r\n"
    with connected(administrator.application, head) as wire:
        with suppress(ConnectionError):  # once the service has closed the connection
            for _ in range(100):
                wire.sendall(b"x" * 1_000_000)
        assert wire.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize(
    "path, status",
    [
        (f"/x{PROFILES}", 404),
        (PROFILES, 401),
    ],
)
def test_no_header_moves_a_path(administrator, path, status):
    """Otherwise it could pass a proxy's rule for another one."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /x\r\nPATH_INFO: /x\r\n\r\n"
    answer = exchange(administrator.application, head)
    assert answer.startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize(
    "head, status",
    [
        (f"GET /{'x' * 4_080} HTTP/1.1\r\n", 404),
        (f"GET /{'x' * 4_081} HTTP/1.1\r\n", 414),
        (HEALTH + "X: x\r\n" * 99, 200),
        (HEALTH + "X: x\r\n" * 100, 431),
        (f"{HEALTH}X: {'x' * 8_185}\r\n", 200),
        (f"{HEALTH}X: {'x' * 8_186}\r\n", 431),
    ],
    ids="first line, longer one, 100 headers, 101, header, longer one".split(", "),
)
def test_the_largest_head(administrator, head, status):
    """As API.md tells it. 4,094 and 8,188 bytes are the most for a line."""
    answer = exchange(administrator.application, f"{head}\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ")


def test_proxies_that_word_the_scheme_differently(administrator):
    """gunicorn by itself refuses this, as HTML and without a line in the log."""
    schemes = "X-Forwarded-Proto: https\r\nX-Forwarded-Ssl: off\r\n"
    answer = exchange(administrator.application, f"{HEALTH}{schemes}\r\n")
    assert answer.startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "status, code, rest",
    [
        (400, "invalid-body", f"Content-Length: 60\r\n\r\n{FORM}"),
        (400, "invalid-body", f"{CHUNKED}99\r\n{FORM}"),
        (400, "invalid-body", f"{CHUNKED}2\r\n{FORM}\r\n0\r\n\r\n"),
        (400, "invalid-body", f"{CHUNKED}{FORM}\r\n"),
        (413, "body-too-large", f"{CHUNKED}10001\r\n{'x' * 65_537}\r\n0\r\n\r\n"),
    ],
    ids=["cut", "cut in a chunk", "longer than its chunk", "no size", "too large"],
)
def test_a_create_with_a_broken_body(administrator, status, code, rest):
    service = administrator.application
    before = administrator.profiles()
    answer = exchange(service, POST.format(administrator) + rest)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert f'"message":"{code}"' in answer
    assert administrator.profiles() == before


def test_a_form_in_chunks_is_stored(administrator):
    before = administrator.profiles()
    whole = f"{POST.format(administrator)}{CHUNKED}2c\r\n{FORM}\r\n0\r\n\r\n"
    answer = exchange(administrator.application, whole)
    assert answer.startswith("HTTP/1.1 201 ")
    created, *others = administrator.profiles()
    assert (created["fullName"], others) == ("secret", before)


def test_a_stop_gives_what_has_arrived_its_response(serve, tmp_path):
    """Silent clients delay the stop for no longer than graceful_timeout."""
    url = f"sqlite:///{tmp_path}/x.db"
    service = serve(url, WEB_CONCURRENCY="1")
    text = (
        f"{POST.format(sign_in(service.app))}Content-Length: {len(FORM)}\r\n\r\n{FORM}"
    )
    with ExitStack() as stack:
        cursor = stack.enter_context(cursor_of(url))
        cursor.execute("BEGIN IMMEDIATE")  # the create waits for the end of this
        stack.enter_context(connected(service, ""))
        create = stack.enter_context(connected(service, text))
        assert not is_occupied(service)  # both have been accepted
        service.process.terminate()
        time.sleep(1)
        cursor.execute("ROLLBACK")
        assert create.recv(12) == b"HTTP/1.1 201"
        assert service.process.wait(60) == 0


def test_a_stop_waits_for_the_request_of_a_new_connection(serve, tmp_path):
    """Its client may be slow to send it, on a machine that is busy."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY="1")
    with connected(service, "") as wire:
        time.sleep(0.03)  # it is accepted
        service.process.terminate()
        time.sleep(0.5)
        wire.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wire.recv(12) == b"HTTP/1.1 200"
        assert service.process.wait(60) == 0


@pytest.fixture
def reading(serve, make_app, empty_database_url):
    """A service, and a connection that gets ``all``."""
    service = serve(empty_database_url)
    administrator = sign_in(service.app, administrator=True)
    make_app(DATABASE_URL=empty_database_url)
    fill(Profile, "default", 8_000)  # more than a connection buffers
    head = f"GET {PROFILES}?all=all HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    token = f"Authorization: Bearer {administrator.token}\r\n\r\n"
    with connected(service, head + token) as wire:
        assert wire.recv(12) == b"HTTP/1.1 200"
        yield service, wire


END = "\n0\n\n"  # of a chunked answer that is whole


def test_a_listing_that_breaks_off_is_cut_and_logged(reading, empty_database_url):
    service, wire = reading
    execute(empty_database_url, "DROP TABLE profile")
    assert not wire.makefile().read().endswith(END)
    # The line about the error, then that of the request, both with its id.
    line = r"level=ERROR request_id=(\w+) database unavailable: .*\n"
    line += r".* status=200 code=database-unavailable .* request_id=\1 "
    wait_until(lambda: re.search(line, service.log()))
    assert "Traceback" not in service.log()


def cores_of_workers(service):
    """The process ids of the workers, each with the cores that it may use."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(child): os.sched_getaffinity(int(child)) for child in children.split()}


def cpu_seconds_of_workers(service):
    ticks = 0
    for pid in cores_of_workers(service):
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        user, system = fields.split()[11:13]
        ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def are_shared(service, count):
    """Whether each worker has one core, and each core a worker if there are enough."""
    used = cores_of_workers(service).values()
    sizes = [len(own) for own in used]
    cores = os.sched_getaffinity(0)
    return sizes == [1] * count and len(set.union(*used)) == min(count, len(cores))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_workers_share_the_cores(serve, tmp_path, count):
    """Also one that replaces another."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY=str(count))
    wait_until(lambda: are_shared(service, count))
    killed, _ = cores_of_workers(service).popitem()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in cores_of_workers(service))
    wait_until(lambda: are_shared(service, count))
