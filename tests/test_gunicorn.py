"""How the service is served: its start, its workers, its log, over real connections."""

import logging
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from secrets import token_hex
from urllib.parse import unquote_to_bytes

import pytest
from databases import database_at, execute, fill
from gunicorn.http.errors import InvalidHeader
from serving import (
    CREATE,
    PROFILES,
    ROOT,
    HTTPClient,
    Person,
    Served,
    exchange,
    procfile,
    wait_until,
)

import config
from models import Profile

NAMES = "time method path status code account appid request_id bytes ms client worker".split()
FORM = "application/x-www-form-urlencoded"
CSS = "/docs/swagger-ui.css"

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for the tests that change nothing of it."""
    folder = tmp_path_factory.mktemp("served")
    with Served(folder, f"sqlite:///{folder}/x.db").start() as service:
        service.wait_until_up()
        wait_until(lambda: logged(service))  # the line of /health
        yield service


@pytest.fixture(scope="module")
def person(service):
    return Person(service, administrator=True)


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path}/x.db"


# The line of a request


def parsed(line):
    """The values of a line of the log, read as strictly as any parser of logfmt does."""
    pairs = [pair.partition("=") for pair in line.split(" ")]
    assert [name for name, _, _ in pairs] == NAMES, line
    values = {name: value for name, _, value in pairs}
    assert all(re.fullmatch("[!-~]+", value) for value in values.values()), line
    assert not re.search("[\"'=\\\\]", "".join(values.values())), line
    return values


def logged(service, start=0):
    """The lines of requests in the log, from a position on."""
    with service.log_file.open(newline="\n") as log:
        log.seek(start)
        return [line for line in log.read().split("\n") if line.startswith("time=")]


def send(service, target, *headers, method="GET", body=b"", path=None):
    """The body of the response to a request, and the values of the one line that it logs."""
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""]
    start = service.log_file.stat().st_size
    response = exchange(service, "\r\n".join(lines).encode("latin-1") + body, path)
    wait_until(lambda: logged(service, start))
    (line,) = logged(service, start)
    return response.partition(b"\r\n\r\n")[2], parsed(line)


@needs_proc
def test_the_line_of_a_request(service, person):
    own = f"Authorization: Bearer {person.token}", "X-Request-Id: router-1.2_3"
    began = datetime.now(UTC)
    text, values = send(service, f"{PROFILES}?limit=5", *own)
    assert text == b"null\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", values["time"])
    assert abs(datetime.fromisoformat(values.pop("time")) - began).total_seconds() < 10
    assert int(values.pop("ms")) < 10_000
    assert int(values.pop("worker")) in workers(service)
    expected = {"method": "GET", "path": PROFILES, "status": "200", "code": "-"}
    expected |= {"account": person.accountid, "appid": "default", "client": "127.0.0.1"}
    assert values == expected | {"request_id": "router-1.2_3", "bytes": "5"}
    text, values = send(service, f"{PROFILES}?limit=secret", *own)
    expected |= {"status": "400", "code": "invalid-limit", "bytes": str(len(text))}
    assert values.items() >= expected.items()


def test_the_line_of_a_request_without_a_session(service):
    for path, status, code, appid in (
        (PROFILES, "401", "sign-in-required", "default"),
        ("/nowhere", "404", "not-found", "-"),
        (CSS, "200", "-", "-"),
        (CREATE, "405", "method-not-allowed", "-"),
    ):
        text, values = send(service, f"{path}?token=secret")
        expected = {"path": path, "status": status, "code": code, "account": "-", "appid": appid}
        assert values.items() >= expected.items()
        assert values["bytes"] == str(len(text)) != "0"


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
def test_no_path_forges_a_line(service, target):
    for end in ("", "?a=secret%20b", "?"):
        _, values = send(service, target + end)
        assert unquote_to_bytes(values["path"]) == unquote_to_bytes(target)
        assert (values["method"], values["account"]) == ("GET", "-")
        assert "secret" not in str(values)


def test_a_path_of_any_length_fits_one_write(service):
    _, values = send(service, f"/{'=' * 8_000}?secret")
    assert values["path"] == "/" + "%3D" * 682 + "%"


def test_nothing_else_forges_a_line(service):
    for method in ("A'B", "FORGED%0A", "*`|~$&+^!", "OPTIONS"):
        _, values = send(service, "/health", method=method)
        assert unquote_to_bytes(values["method"]) == unquote_to_bytes(method)
    for name in ("X-Request-Id", "X-Appid", "X-Forwarded-For", "Authorization"):
        for value in ("a b", 'a="b', "x code=-", "\xe9\x85", "x" * 129, "::1%a b=c"):
            _, values = send(service, PROFILES, f"{name}: {value}")
            assert values["status"] in ("400", "401")
            assert value not in values.values()


def test_a_request_that_gunicorn_refuses(service):
    _, values = send(service, "/here?secret", "Content-Length: secret")
    assert [values[name] for name in ("path", "status", "bytes")] == ["/here", "400", "-"]
    assert "secret" not in service.log()


@pytest.mark.long
def test_a_listing_that_broke_off_says_why(serve, empty_database_url):
    service = serve(empty_database_url)
    person = Person(service, administrator=True)
    with database_at(empty_database_url):
        fill(Profile, "default", 20_000)  # more than fits the buffers of a connection
    with closing(HTTPConnection("127.0.0.1", service.port, timeout=20)) as wire:
        wire.request("GET", f"{PROFILES}?all=all", headers=person.headers)
        response = wire.getresponse()
        execute(empty_database_url, "ALTER TABLE profile RENAME TO elsewhere")
        with pytest.raises(IncompleteRead):
            response.read()
    (line,) = wait_until(lambda: [line for line in logged(service) if PROFILES in line])
    assert (parsed(line)["status"], parsed(line)["code"]) == ("200", "database-unavailable")


# The client behind a router


def test_a_trusted_router_names_the_client(service):
    for forwarded, client in {
        "203.0.113.9": "203.0.113.9",
        "192.0.2.1, 203.0.113.9": "203.0.113.9",
        "192.0.2.1,2001:DB8::1": "2001:db8::1",
        "203.0.113.9, unknown": "127.0.0.1",
        "203.0.113.9:443": "127.0.0.1",
        "203.0.113.9,": "127.0.0.1",
        "": "127.0.0.1",
    }.items():
        assert send(service, "/", f"X-Forwarded-For: {forwarded}")[1]["client"] == client


@pytest.mark.long
def test_who_else_names_the_client(tmp_path, sqlite_url):
    """A peer that is no router does not; over a Unix socket, which has no address, each does."""
    path, service = f"{tmp_path}/s", Served(tmp_path, sqlite_url, FORWARDED_ALLOW_IPS="10.0.0.0/8")
    with service.start(*procfile("web"), "--bind", f"unix:{path}", "--bind", f":{service.port}"):
        service.wait_until_up()
        wait_until(lambda: logged(service))  # the line of /health
        forwarded = "X-Forwarded-For: 203.0.113.9"
        assert send(service, "/", forwarded)[1]["client"] == "127.0.0.1"
        assert send(service, "/", path=path)[1]["client"] == "-"
        assert send(service, "/", forwarded, path=path)[1]["client"] == "203.0.113.9"


# Standard output


@pytest.mark.long
@pytest.mark.parametrize("line", ['exec "$@" >&-', 'exec "$@" | true', 'exec "$@" >/dev/full'])
def test_without_a_standard_output_requests_are_served(tmp_path, sqlite_url, line):
    with Served(tmp_path, sqlite_url).start("sh", "-c", line, "sh", *procfile("web")) as service:
        assert service.wait_until_up().status_code == 200
        assert [service.get("/health").status_code for _ in range(20)] == [200] * 20
    assert b"method=" not in (tmp_path / "x.db").read_bytes()
    assert "Traceback" not in service.log()


@pytest.mark.long
def test_lines_of_all_workers_are_whole_in_one_pipe(tmp_path, sqlite_url):
    """Twenty times as much as a pipe holds, so that workers wait for its reader."""
    paths = [f"/{token_hex(1_000)}" for _ in range(600)]
    service = Served(tmp_path, sqlite_url)
    with service.start(stdout=subprocess.PIPE), service.process.stdout as pipe:
        service.wait_until_up()
        with ThreadPoolExecutor(16) as pool:
            sent = pool.map(lambda path: service.get(path).status_code, paths)
            lines = [pipe.readline().decode().removesuffix("\n") for _ in range(601)]
            assert set(sent) == {404}
    assert sorted(parsed(line)["path"] for line in lines) == sorted([*paths, "/health"])


# The error log


def formatted(text, *arguments, error=None):
    """A record of gunicorn's error log as it is written, when the file was read twice."""
    for _ in range(2):
        runpy.run_path(str(ROOT / "gunicorn.conf.py"))
    exc_info = error and (type(error), error, error.__traceback__)
    record = logging.LogRecord("gunicorn.error", 40, "", 0, text, arguments, exc_info)
    assert logging.getLogger("gunicorn.error").filter(record)
    return logging.Formatter("%(message)s").format(record)


@pytest.mark.parametrize(
    ("text", "argument", "expected"),
    [
        ("Booting worker with pid: %s", 7, "Booting worker with pid: 7"),
        ("Two\nlines%s", "", "'Two\\nlines'"),
        ("Invalid request from ip=::1: %s", InvalidHeader("secret"), "Invalid HTTP Header: "),
        ("Ignored premature client disconnection. %s", "after: b'secret'", "after: b"),
        ("Error handling request %s", "/x?secret", "/x"),
    ],
)
def test_the_error_log_quotes_nothing_of_a_request(text, argument, expected):
    assert formatted(text, argument).endswith(expected)


def test_the_error_log_shows_where_a_request_failed_but_not_its_contents():
    try:
        int("secret")
    except ValueError as error:
        text = formatted("Error handling request %s", "/x?secret", error=error)
    expected = (
        r"Error handling request /x\nTraceback.*\n  File .*\n    int\(.*\nException: ValueError"
    )
    assert re.fullmatch(expected, text, re.DOTALL)
    assert formatted("Cannot start", error=OSError("reason")).endswith("reason")


# The start


@pytest.mark.long
@pytest.mark.parametrize("value", ["1001", "x", ""])
def test_a_bad_number_of_workers_ends_the_start(serve, sqlite_url, value):
    service = serve(sqlite_url, wait=False, WEB_CONCURRENCY=value)
    assert service.process.wait(40) != 0
    if value == "1001":
        line = "Error: WEB_CONCURRENCY=1001: must be a whole number from 1 to 1000\n"
        assert service.log() == line
    else:  # gunicorn reads it first
        assert service.log().splitlines()[-1].startswith("ValueError: invalid literal for int()")


def test_the_settings_of_gunicorn(monkeypatch):
    """Those that no other test shows. An empty variable counts as not set."""
    for name in ("PORT", "FORWARDED_ALLOW_IPS", "WEB_CONCURRENCY"):
        monkeypatch.setenv(name, "")
    found = runpy.run_path(str(ROOT / "gunicorn.conf.py"))
    assert (found["bind"], found["keepalive"]) == ("127.0.0.1:8000", 75)
    assert found["forwarded_allow_ips"] == "127.0.0.1,::1"
    assert found["workers"] == min(config.CORES, 4)


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


# Clients


@pytest.mark.parametrize(
    ("signed_in", "header", "sent", "status", "closes"),
    [
        (False, ("Content-Length", "65535"), b"", 401, False),
        (False, ("Content-Length", "65536"), b"", 401, True),
        (False, ("Content-Length", "300000"), b"", 401, True),
        (False, ("Transfer-Encoding", "chunked"), b"", 401, True),
        (True, ("Transfer-Encoding", "chunked"), b"3\r\na=b\r\n0\r\n\r\n", 400, False),
        (True, ("Content-Length", "65537"), b"", 413, True),
    ],
)
def test_an_answer_says_whether_the_connection_is_closed(
    service, person, signed_in, header, sent, status, closes
):
    """It is if 64 KiB or more of the body were not read, or nobody knows how much."""
    with closing(HTTPConnection("127.0.0.1", service.port, timeout=20)) as wire:
        wire.putrequest("POST", f"{CREATE}?accountid={person.accountid}")
        headers = {"Content-Type": FORM}
        for each in (headers | (person.headers if signed_in else {}) | dict([header])).items():
            wire.putheader(*each)
        wire.endheaders(sent)
        response = wire.getresponse()
        assert (response.status, response.read()[-2:]) == (status, b"}\n")
        assert (response.headers["Connection"] == "close") is closes
        kept = wire.sock
        if closes:
            assert kept is None  # as the client was told to
        else:
            wire.send(b"" if sent else b"x" * 65_535)
            wire.request("GET", "/nowhere")
            assert wire.getresponse().status == 404
            assert wire.sock is kept


CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    ("header", "text", "status", "code"),
    [
        ("Content-Length: 60", b"contact-email=a@example.com&full-name=Ada", 400, "invalid-body"),
        ("Content-Length: 65536", b"a", 400, "invalid-body"),
        ("Content-Length: 65537", b"a", 413, "body-too-large"),
        (CHUNKED, b"29\r\ncontact-email=a@example.com&full-name=Ada\r\n", 400, "invalid-body"),
        (CHUNKED, b"50\r\ncontact-email=a@example.com&full-name=Ada", 400, "invalid-body"),
        (CHUNKED, b"no size\r\n\r\n", 400, "invalid-body"),
        (CHUNKED, b"10000\r\n" + b"a" * 65_536, 400, "invalid-body"),
        (CHUNKED, b"10001\r\n" + b"a" * 65_537 + b"\r\n0\r\n\r\n", 413, "body-too-large"),
    ],
)
def test_a_body_cut_short(service, person, header, text, status, code):
    own = f"Authorization: Bearer {person.token}", f"Content-Type: {FORM}", header
    target = f"{CREATE}?accountid={person.accountid}"
    answer, values = send(service, target, *own, method="POST", body=text)
    assert answer == f'{{"object":"error","message":"{code}"}}\n'.encode()
    assert (values["status"], values["code"]) == (str(status), code)


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "GET /health HTTP/1.1\r\nHost: x\r\nX-",
        f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {{}}\r\n"
        "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{",
        "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    ],
    ids=["head", "body", "answer"],
)
def test_silent_clients_are_given_up(serve, sqlite_url, text):
    """More of them than threads: some send half a request, others do not read their answer."""
    service = serve(sqlite_url, WEB_CONCURRENCY="1")
    token = Person(service).token
    with ExitStack() as stack:
        for _ in range(5):
            wire = stack.enter_context(socket.socket())
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            wire.connect(("127.0.0.1", service.port))
            wire.sendall(text.format(token).encode())
        with pytest.raises(TimeoutError):  # soon each thread has one of them
            for _ in range(100):
                HTTPClient(service.port, seconds=0.5).get("/health")
        # Each send that the kernel takes a part of begins its ten seconds again.
        assert HTTPClient(service.port, seconds=90).get("/health").status_code == 200
    assert "Traceback" not in service.log()


# The workers


def workers(service):
    """The process ids of the workers."""
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


@contextmanager
def pool(service, number):
    """Connections that stay open, and are opened again when one has closed them."""
    with ExitStack() as stack:
        made = [HTTPConnection("127.0.0.1", service.port, timeout=20) for _ in range(number)]
        for connection in made:
            stack.enter_context(closing(connection))
        yield made


def closed(connections):
    """How many are closed by the response to a request on each; all responses are whole."""
    number = 0
    for connection in connections:
        connection.request("GET", "/openapi.json")
        response = connection.getresponse()
        assert (response.status, response.read()[-2:]) == (200, b"}\n")
        assert (response.headers["Connection"] == "close") is (connection.sock is None)
        number += connection.sock is None
    return number


def held(service):
    """How many connections each worker holds."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    mine = [line for line in lines if line[1].endswith(f":{service.port:04X}") and line[3] == "01"]
    sockets = {f"socket:[{line[9]}]" for line in mine}
    folders = [Path(f"/proc/{worker}/fd") for worker in workers(service)]
    return [sum(os.readlink(f) in sockets for f in folder.iterdir()) for folder in folders]


def assert_shared(service, connections):
    """Within some rounds no connection is closed any more, and the workers hold about as many."""
    wait_until(lambda: closed(connections) == 0 == closed(connections), 40)
    counts = held(service)
    assert sum(counts) == len(connections)
    assert len(counts) > 1 and max(counts) - min(counts) <= 2, counts


@pytest.mark.long
@needs_proc
@pytest.mark.parametrize("count", [2, 3])
def test_workers_share_the_connections_of_a_pool(serve, sqlite_url, count):
    service = serve(sqlite_url, WEB_CONCURRENCY=str(count))
    wait_until(lambda: len(workers(service)) == count)
    with pool(service, 16) as connections:
        assert_shared(service, connections)  # so each has published its count
        first, *others = workers(service)
        for worker in others:
            os.kill(worker, signal.SIGSTOP)
        for connection in connections:
            connection.close()
        number = closed(connections)  # by one worker; it keeps two more than the others last held
        for worker in others:
            os.kill(worker, signal.SIGCONT)
        assert number > 0
        assert_shared(service, connections)


@pytest.mark.long
def test_one_worker_closes_nothing(serve, sqlite_url):
    service = serve(sqlite_url, WEB_CONCURRENCY="1")
    with pool(service, 16) as connections:
        assert [closed(connections) for _ in range(5)] == [0] * 5
    if sys.platform == "linux":  # and runs anywhere
        assert os.sched_getaffinity(workers(service)[0]) == os.sched_getaffinity(0)


def kill_workers(service, pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not {*pids} & {*workers(service)})


def assert_own_cores(service, cores):
    """There is a worker for each core, which it keeps to, once they all have started."""
    wait_until(lambda: len(workers(service)) == len(cores) and service.get("/health"))
    wait_until(lambda: all(len(os.sched_getaffinity(each)) == 1 for each in workers(service)))
    assert sorted(min(os.sched_getaffinity(each)) for each in workers(service)) == cores


@pytest.mark.long
@needs_proc
def test_workers_that_replace_others_get_their_share_and_their_core(serve, sqlite_url):
    """Also after a reload."""
    cores = sorted(os.sched_getaffinity(0))
    service = serve(sqlite_url, WEB_CONCURRENCY=str(len(cores)))
    assert_own_cores(service, cores)
    for killed in (slice(0, 1), slice(1, 2), slice(0, 2), slice(0, 1)):
        kill_workers(service, workers(service)[killed])
        assert_own_cores(service, cores)
        with pool(service, 8) as connections:
            if len(cores) > 1:
                assert_shared(service, connections)
    old = workers(service)
    os.kill(service.process.pid, signal.SIGHUP)
    wait_until(lambda: not {*old} & {*workers(service)} and len(workers(service)) == len(cores))
    for worker in workers(service)[1:]:
        kill_workers(service, [worker])
        assert_own_cores(service, cores)
