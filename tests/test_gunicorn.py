"""How the service is served: its start, its workers, its log, over real connections."""

import http.client
import json
import logging
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from urllib.parse import unquote_to_bytes

import pytest
from gunicorn.http.errors import InvalidHeader
from serving import ROOT, Served, procfile, run

import config

LISTING = "/api/administrator/profiles"
NAMES = "method path status code account appid request_id bytes ms client".split()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for the tests that only read its log."""
    folder = tmp_path_factory.mktemp("served")
    service = Served(folder, f"sqlite:///{folder}/x.db").start()
    service.wait_until_up()
    yield service
    service.kill()


@pytest.fixture(scope="module")
def administrator(service):
    """The account of an administrator, with the headers of a session."""
    account = run(service, "create-account", "--administrator")
    token = run(service, "create-session", account["accountid"])["token"]
    return account | {"headers": {"Authorization": f"Bearer {token}"}}


@pytest.fixture
def settings():
    """The names in gunicorn.conf.py, in this process."""
    return runpy.run_path(str(ROOT / "gunicorn.conf.py"))


def get(service, path, headers=()):
    """The response to a GET over a connection of its own, its body read."""
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)) as connection:
        connection.request("GET", path, headers=dict(headers))
        response = connection.getresponse()
        response.body = response.read()
        return response


def raw(address, text):
    """All that comes back for these bytes, over TCP or a Unix socket."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(20)
        connection.connect(address)
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def parsed(line):
    """The values of a line of the log, read as strictly as any parser of logfmt does."""
    pairs = [pair.partition("=") for pair in line.split(" ")]
    assert [name for name, _, _ in pairs] == NAMES, line
    values = {name: value for name, _, value in pairs}
    assert all(re.fullmatch("[!-~]+", value) for value in values.values()), line
    assert not re.search("[\"'=\\\\]", "".join(values.values())), line
    return values


def wait_until(condition, seconds=20):
    """Wait for the condition to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never holds"
        time.sleep(0.02)


def logged(service, start=0):
    """The lines of requests in the log, from a position on."""
    with service.log_file.open(newline="\n") as log:
        log.seek(start)
        return [line for line in log.read().split("\n") if line.startswith("method=")]


def settle(service):
    """Send a last request and wait for its line, which is written after the response."""
    marker = f"/{token_hex(8)}"
    get(service, marker)
    wait_until(lambda: any(marker in line for line in logged(service)))
    return marker


def one_line(service, send):
    """The values of the one line that the log says while something is sent."""
    settle(service)
    start = service.log_file.stat().st_size
    send()
    wait_until(lambda: logged(service, start))
    marker = settle(service)
    (line,) = [line for line in logged(service, start) if marker not in line]
    return parsed(line)


# The line of a request


def test_the_line_of_a_success(service, administrator):
    headers = administrator["headers"] | {"X-Request-Id": "router-1.2_3"}
    values = one_line(service, lambda: get(service, f"{LISTING}?limit=5", headers))
    assert int(values.pop("ms")) < 10_000
    assert values == {
        "method": "GET",
        "path": LISTING,
        "status": "200",
        "code": "-",
        "account": administrator["accountid"],
        "appid": "default",
        "request_id": "router-1.2_3",
        "bytes": str(len("null")),
        "client": "127.0.0.1",
    }


def test_the_line_of_an_error(service, administrator):
    responses = []
    path = f"{LISTING}?limit=secret"
    values = one_line(
        service, lambda: responses.append(get(service, path, administrator["headers"]))
    )
    (response,) = responses
    assert (values["status"], values["code"]) == ("400", "invalid-limit")
    assert (values["path"], values["account"]) == (LISTING, administrator["accountid"])
    assert values["bytes"] == str(len(response.body))
    assert values["request_id"] == response.headers["X-Request-Id"]


@pytest.mark.parametrize(
    ("path", "status", "code", "appid"),
    [
        (LISTING, "401", "sign-in-required", "default"),
        ("/nowhere", "404", "not-found", "-"),
        ("/health", "200", "-", "-"),
        ("/api/user/create-profile", "405", "method-not-allowed", "-"),
    ],
)
def test_the_line_of_a_request_without_a_session(service, path, status, code, appid):
    values = one_line(service, lambda: get(service, f"{path}?token=secret"))
    assert [values[name] for name in ("path", "status", "code", "account", "appid")] == [
        *(path, status, code),
        *("-", appid),
    ]


@pytest.mark.parametrize(
    "target",
    [
        "/a%20b",
        "/a%0Amethod=GET%20path=/forged",
        "/%0d%0a%00%1b[2J%7f",
        "/\"quoted\"='x'\\n{}|^`<>",
        "/a=b%3Dc",
        "/%e2%80%a8%c2%85%ed%a0%80%ff%fe",
        "/%zz%",
        "//evil.example/x",
        "/" + "=" * 500,
        "/-",
    ],
)
@pytest.mark.parametrize("end", ["", "?a=secret%20b", "?"])
def test_no_path_forges_a_line(service, target, end):
    text = f"GET {target}{end} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    values = one_line(service, lambda: raw(("127.0.0.1", service.port), text))
    assert unquote_to_bytes(values["path"]) == unquote_to_bytes(target)
    assert (values["method"], values["account"]) == ("GET", "-")
    assert "secret" not in str(values)


def test_a_path_of_any_length_fits_one_write(service):
    values = one_line(service, lambda: get(service, f"/{'=' * 8_000}?secret"))
    assert "/" + "=" * 600 == unquote_to_bytes(values["path"]).decode()[:601]
    assert len(values["path"]) == 2_048


@pytest.mark.parametrize("method", ["A'B", "FORGED%0A", "*`|~$&+^!", "OPTIONS"])
def test_no_method_forges_a_line(service, method):
    text = f"{method} /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    values = one_line(service, lambda: raw(("127.0.0.1", service.port), text))
    assert unquote_to_bytes(values["method"]) == unquote_to_bytes(method)


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Appid", "X-Forwarded-For", "Authorization"])
@pytest.mark.parametrize("value", ["a b", 'a="b', "x code=-", "\xe9\x85", "x" * 129, "::1%a b=c"])
def test_no_header_forges_a_line(service, name, value):
    text = f"GET {LISTING} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{name}: {value}\r\n\r\n"
    values = one_line(service, lambda: raw(("127.0.0.1", service.port), text.encode("latin-1")))
    assert values["status"] in ("400", "401")
    assert value not in values.values()


def test_a_request_that_gunicorn_refuses(service):
    text = b"GET /here?secret HTTP/1.1\r\nHost: x\r\nContent-Length: secret\r\n\r\n"
    values = one_line(service, lambda: raw(("127.0.0.1", service.port), text))
    assert [values[name] for name in ("path", "status", "bytes")] == ["/here", "400", "-"]
    assert "secret" not in service.log_file.read_text()


def test_a_file_is_counted(service):
    responses = []
    values = one_line(service, lambda: responses.append(get(service, "/docs/swagger-ui.css")))
    assert values["bytes"] == str(len(responses[0].body)) != "0"


# The client behind a router

FORWARDED = [
    ("203.0.113.9", "203.0.113.9"),
    ("192.0.2.1, 203.0.113.9", "203.0.113.9"),
    ("192.0.2.1,2001:DB8::1", "2001:db8::1"),
    ("203.0.113.9, unknown", "127.0.0.1"),
    ("203.0.113.9:443", "127.0.0.1"),
    ("203.0.113.9,", "127.0.0.1"),
    ("", "127.0.0.1"),
]


@pytest.mark.parametrize(("forwarded", "client"), FORWARDED)
def test_a_trusted_router_names_the_client(service, forwarded, client):
    headers = {"X-Forwarded-For": forwarded}
    assert one_line(service, lambda: get(service, "/", headers))["client"] == client


def test_any_other_peer_is_the_client_itself(serve, tmp_path):
    service = serve(f"sqlite:///{tmp_path}/x.db", FORWARDED_ALLOW_IPS="10.0.0.0/8")
    headers = {"X-Forwarded-For": "203.0.113.9"}
    assert one_line(service, lambda: get(service, "/", headers))["client"] == "127.0.0.1"


def test_a_unix_socket_has_no_address(serve, tmp_path):
    path = f"{tmp_path}/s"
    options = f"--bind unix:{path} --bind 127.0.0.1:{{}}"
    service = Served(tmp_path, f"sqlite:///{tmp_path}/x.db")
    service.environment["GUNICORN_CMD_ARGS"] = options.format(service.port)
    try:
        service.start().wait_until_up()
        text = "GET / HTTP/1.0\r\nHost: x\r\n{}\r\n"
        for header, client in (("", "-"), ("X-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9")):
            send = text.format(header).encode()
            assert one_line(service, lambda send=send: raw(path, send))["client"] == client
    finally:
        service.kill()


# Standard output


def start(folder, *command, **options):
    """A service by the given command, to be killed; its log is only standard error's."""
    service = Served(folder, f"sqlite:///{folder}/x.db")
    options = {"env": service.environment, "cwd": ROOT, "start_new_session": True, **options}
    with service.log_file.open("wb") as log:
        service.process = subprocess.Popen(command, stderr=log, **options)
    return service


@pytest.mark.parametrize("line", ['exec "$@" >&-', 'exec "$@" | true', 'exec "$@" >/dev/full'])
def test_without_a_standard_output_requests_are_served(tmp_path, line):
    service = start(tmp_path, "sh", "-c", line, "sh", *procfile("web"))
    try:
        assert service.wait_until_up().status_code == 200
        assert [get(service, "/health").status for _ in range(20)] == [200] * 20
        assert b"method=" not in (tmp_path / "x.db").read_bytes()
        assert "Traceback" not in service.log_file.read_text()
    finally:
        service.kill()


def test_lines_of_all_workers_are_whole_in_one_pipe(tmp_path):
    service = start(tmp_path, *procfile("web"), stdout=subprocess.PIPE)
    paths = [f"/{token_hex(1_000)}" for _ in range(400)]
    try:
        service.wait_until_up()
        with ThreadPoolExecutor(16) as pool:
            sent = pool.map(lambda path: get(service, path).status, paths)
            time.sleep(1)  # the pipe, of 64 KiB, is full for a while
            lines = [service.process.stdout.readline().decode() for _ in range(401)]
            assert set(sent) == {404}
    finally:
        service.kill()
        service.process.stdout.close()
    logged = [parsed(line.removesuffix("\n"))["path"] for line in lines]
    assert sorted(logged) == sorted([*paths, "/health"])


# The error log


def formatted(settings, text, *arguments, error=None):
    """A record of gunicorn's error log as it is written. The file is read at least twice."""
    exc_info = error and (type(error), error, error.__traceback__)
    record = logging.LogRecord("gunicorn.error", 40, "", 0, text, arguments, exc_info)
    runpy.run_path(str(ROOT / "gunicorn.conf.py"))
    assert logging.getLogger("gunicorn.error").filter(record)
    return logging.Formatter("%(message)s").format(record)


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("Booting worker with pid: %s", (7,), "Booting worker with pid: 7"),
        ("Two\nlines", (), "'Two\\nlines'"),
        (
            "Invalid request from ip=%s: %s",
            ("::1", InvalidHeader("Authorization secret")),
            "Invalid request from ip=::1: Invalid HTTP Header: ",
        ),
        (
            "Ignored premature client disconnection. %s",
            ("No more data after: b'secret'",),
            "Ignored premature client disconnection. No more data after: b",
        ),
        ("Error handling request %s %s", ("GET", "/x?secret"), "Error handling request GET /x"),
    ],
)
def test_the_error_log_quotes_nothing_of_a_request(settings, text, arguments, expected):
    assert formatted(settings, text, *arguments) == expected


def test_the_error_log_shows_where_a_request_failed_but_not_its_contents(settings):
    try:
        int("secret")
    except ValueError as error:
        text = formatted(settings, "Error handling request %s", "/x?secret", error=error)
    expected = (
        r"Error handling request /x\nTraceback.*\n  File .*\n    int\(.*\nException: ValueError"
    )
    assert re.fullmatch(expected, text, re.DOTALL)
    assert formatted(settings, "Cannot start", error=OSError("reason")).endswith("reason")


# The start


@pytest.mark.parametrize("value", ["0", "-1", "x", "2.5", "  ", "1_0", "１", "1001", "1\n2"])
def test_a_bad_number_of_workers_ends_the_start(serve, tmp_path, value):
    service = serve(f"sqlite:///{tmp_path}/x.db", wait=False, WEB_CONCURRENCY=value)
    assert service.process.wait(20) != 0
    shown = value if value.isprintable() else repr(value)
    line = f"Error: WEB_CONCURRENCY={shown}: must be a whole number from 1 to 1000\n"
    assert service.log_file.read_text() == line


@pytest.mark.parametrize(
    "command", [[ROOT / "gunicorn.conf.py"], ["-m", "gunicorn", "-c", ROOT / "gunicorn.conf.py"]]
)
def test_a_start_from_another_folder(tmp_path, command):
    """As a unit of systemd without a working directory does it."""
    done = subprocess.run(
        [sys.executable, *command, "--chdir", ROOT, "--print-config", "app:create_app()"],
        cwd=tmp_path,
        env={"DATABASE_URL": f"sqlite:///{tmp_path}/x.db"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SharingWorker" in done.stdout


def workers(service):
    """The process ids of the workers."""
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_proc
@pytest.mark.parametrize("value", ["", "3"])
def test_the_number_of_workers(serve, tmp_path, value):
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY=value)
    expected = int(value or min(config.CORES, 4))
    wait_until(lambda: len(workers(service)) == expected)


@pytest.mark.parametrize(("cores", "expected"), [(None, 1), (1, 1), (2, 2), (64, 4)])
@pytest.mark.parametrize("affinity", [True, False])
def test_the_default_number_of_workers(monkeypatch, cores, expected, affinity):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    if affinity:
        monkeypatch.setattr(os, "cpu_count", lambda: 99)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores or 1), raising=False)
    settings = runpy.run_path(str(ROOT / "config.py"))["load"]({"WEB_CONCURRENCY": ""})
    assert settings.workers == expected


def test_sigterm_to_the_started_process_ends_all(serve, tmp_path):
    service = serve(f"sqlite:///{tmp_path}/x.db")
    os.kill(service.process.pid, signal.SIGTERM)
    # gunicorn kills a worker that was still starting after 30 seconds.
    assert service.process.wait(40) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", service.port)) != 0


# The connections of the workers


class Pool:
    """A client that keeps its connections open, and opens again what is closed."""

    def __init__(self, service, number):
        self.connections = [
            http.client.HTTPConnection("127.0.0.1", service.port, timeout=20) for _ in range(number)
        ]
        self.closed = 0

    def round(self):
        """A request on each connection; each is answered whole. Returns how many were closed."""
        closed = 0
        for connection in self.connections:
            if connection.sock is None:
                connection.connect()
            connection.request("GET", "/openapi.json")
            response = connection.getresponse()
            assert json.loads(response.read())["openapi"]
            assert response.status == 200
            if response.headers["Connection"] == "close":
                assert connection.sock is None  # as the client was told to
                closed += 1
        return closed

    def close(self):
        for connection in self.connections:
            connection.close()


def held(service):
    """How many connections each worker holds."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    mine = [line for line in lines if line[1].endswith(f":{service.port:04X}") and line[3] == "01"]
    sockets = {f"socket:[{line[9]}]" for line in mine}
    folders = [Path(f"/proc/{worker}/fd") for worker in workers(service)]
    return [sum(os.readlink(f) in sockets for f in folder.iterdir()) for folder in folders]


def assert_shared(service, pool):
    """Within some rounds no connection is closed any more, and the workers hold about as many."""
    wait_until(lambda: pool.round() == 0 == pool.round())
    counts = held(service)
    assert sum(counts) == len(pool.connections)
    assert len(counts) > 1 and max(counts) - min(counts) <= 2, counts


@needs_proc
@pytest.mark.parametrize("number", ["2", "3"])
def test_workers_share_the_connections_of_a_pool(serve, tmp_path, number):
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY=number)
    wait_until(lambda: len(workers(service)) == int(number))
    time.sleep(1)  # so that each has published its count
    _, *others = workers(service)
    for worker in others:
        os.kill(worker, signal.SIGSTOP)
    with closing(Pool(service, 16)) as pool:
        closed = pool.round()  # by one worker, which keeps two more than the others last held
        for worker in others:
            os.kill(worker, signal.SIGCONT)
        assert closed >= 12
        assert_shared(service, pool)


@needs_proc
def test_a_worker_that_is_new_gets_its_share(serve, tmp_path):
    service = serve(f"sqlite:///{tmp_path}/x.db")
    wait_until(lambda: len(workers(service)) == 2)
    for _ in range(3):
        before = workers(service)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda gone=before[0]: gone not in workers(service))
        wait_until(lambda: len(workers(service)) == 2)
        with closing(Pool(service, 8)) as pool:
            assert_shared(service, pool)


def test_one_worker_closes_nothing(serve, tmp_path):
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY="1")
    with closing(Pool(service, 16)) as pool:
        assert [pool.round() for _ in range(5)] == [0] * 5
