"""How the service is served: its log, its start and stop, its workers, over real connections."""

import errno
import json
import logging
import os
import re
import runpy
import signal
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from databases import database_at, execute, fill, locked
from serving import (
    CREATE,
    FORM,
    PROFILES,
    ROOT,
    HTTPClient,
    Person,
    Served,
    exchange,
    named,
    wait_until,
)

from models import Profile

NAMES = "time method path status code account appid request_id bytes ms client worker".split()
ROWS = 8_000  # more than a connection buffers


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for the tests that change nothing of it."""
    folder = tmp_path_factory.mktemp("served")
    service = Served(folder, f"sqlite:///{folder}/x.db")
    sockets = "-b", f"127.0.0.1:{service.port}", "-b", f"unix:{folder}/socket"
    with service.start(*service.command, *sockets):
        service.wait_until_up()
        wait_until(lambda: logged(service))  # the line of /health
        yield service


@pytest.fixture(scope="module")
def person(service):
    return Person(service, administrator=True)


def parsed(line):
    """The values of a line of the log, read as strictly as any parser of logfmt does."""
    pairs = [pair.partition("=") for pair in line.split(" ")]
    assert [name for name, _, _ in pairs] == NAMES, line
    assert all(re.fullmatch(r"[!#-&(-<>-\[\]-~]+", value) for _, _, value in pairs), (
        line
    )
    return {name: value for name, _, value in pairs}


def logged(service, start=0):
    """The lines of requests in the log, from a position on."""
    lines = service.log_file.read_bytes()[start:].decode().split("\n")
    return [line for line in lines if line.startswith("time=")]


def send(service, target, *headers, method="GET", body=b"", path=None):
    """The body of the response to a request, and the values of the one line that it logs."""
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: x",
        "Connection: close",
        *headers,
        "",
        "",
    ]
    start = service.log_file.stat().st_size
    response = exchange(service, "\r\n".join(lines).encode("latin-1") + body, path)
    (line,) = wait_until(lambda: logged(service, start))
    return response.partition(b"\r\n\r\n")[2], parsed(line)


def test_the_line_of_a_request(service, person):
    own = f"Authorization: Bearer {person.token}", "X-Request-Id: router-1.2_3"
    for path, headers, status, code, account, appid in (
        (f"{PROFILES}?limit=5", own, "200", "-", person.accountid, "default"),
        (
            f"{PROFILES}?limit=secret",
            own,
            "400",
            "invalid-limit",
            person.accountid,
            "default",
        ),
        (f"{PROFILES}?token=secret", (), "401", "sign-in-required", "-", "default"),
        ("/nowhere?secret", (), "404", "not-found", "-", "-"),
        ("/docs/swagger-ui.css?secret", (), "200", "-", "-", "-"),
        (f"{CREATE}?secret", (), "405", "method-not-allowed", "-", "-"),
    ):
        began = datetime.now(UTC)
        text, values = send(service, path, *headers)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", values["time"])
        assert (
            abs(datetime.fromisoformat(values.pop("time")) - began).total_seconds() < 10
        )
        assert int(values.pop("ms")) < 10_000
        assert f"Booting worker with pid: {values.pop('worker')}\n" in service.log()
        assert re.fullmatch(
            "router-1.2_3" if headers else "[0-9a-f]{32}", values.pop("request_id")
        )
        expected = {
            "method": "GET",
            "path": path.partition("?")[0],
            "status": status,
            "code": code,
        }
        expected |= {"account": account, "appid": appid, "client": "127.0.0.1"}
        assert values == expected | {"bytes": str(len(text))}


def test_nothing_that_a_client_sends_forges_a_line(service):
    targets = r"""/a%20b /a%0Amethod=GET%20path=/forged /%0d%0a%00%1b[2J%7f /"quoted"='x'\n{}|^`<>
        /%e2%80%a8%c2%85%ed%a0%80%ff%fe /=%3D /%zz% //evil.example/x /-"""
    for target in targets.split():
        for end in ("", "?a=secret%20b", "?"):
            _, values = send(service, target + end)
            assert unquote_to_bytes(values["path"]) == unquote_to_bytes(target)
            assert (values["method"], values["account"]) == ("GET", "-")
            assert "secret" not in str(values)
    for method in ("A'B", "FORGED%0A", "*`|~$&+^!", "OPTIONS"):
        _, values = send(service, "/health", method=method)
        assert unquote_to_bytes(values["method"]) == unquote_to_bytes(method)
    for name in ("X-Request-Id", "X-Appid", "X-Forwarded-For", "Authorization"):
        for value in ("a b", 'a="b', "x code=-", "\xe9\x85", "x" * 129, "::1%a b=c"):
            _, values = send(service, PROFILES, f"{name}: {value}")
            assert values["status"] in ("400", "401")
            assert value not in values.values()
    _, values = send(
        service, f"/{'=' * 4_000}?secret"
    )  # cut, so that the line is one write
    assert values["path"] == "/" + "%3D" * 682 + "%"
    _, values = send(
        service, "/here?secret", "Content-Length: secret"
    )  # gunicorn refuses it
    assert [values[name] for name in ("path", "status", "bytes")] == [
        "/here",
        "400",
        "-",
    ]
    assert "secret" not in service.log()


def silent(service, text=""):
    """A connection of a client that sends this, and takes in little of an answer."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    wire.connect(("127.0.0.1", service.port))
    wire.sendall(text.encode())
    return wire


@contextmanager
def reading_all(serve, url):
    """A service, an administrator, and the response to ``all``, of which nothing is read yet."""
    service = serve(url)
    person = Person(service, administrator=True)
    with database_at(url):
        fill(Profile, "default", ROWS)
    with closing(HTTPConnection("127.0.0.1", service.port)) as wire:
        wire.sock = silent(service)
        wire.request("GET", f"{PROFILES}?all=all", headers=person.headers)
        yield service, person, wire.getresponse()


@pytest.mark.long
def test_a_listing_that_broke_off_says_why(serve, empty_database_url):
    with reading_all(serve, empty_database_url) as (service, _, response):
        execute(empty_database_url, "ALTER TABLE profile RENAME TO elsewhere")
        with pytest.raises(IncompleteRead):
            response.read()
        (line,) = wait_until(
            lambda: [line for line in logged(service) if PROFILES in line]
        )
    assert (parsed(line)["status"], parsed(line)["code"]) == (
        "200",
        "database-unavailable",
    )


def test_the_client_is_the_last_address_that_was_forwarded(service):
    for forwarded, client in {
        "192.0.2.1, 203.0.113.9": "203.0.113.9",
        "192.0.2.1,2001:DB8::1": "2001:DB8::1",
        "192.0.2.1\r\nX-Forwarded-For: unknown": "unknown",
        "203.0.113.9,": "127.0.0.1",
        "": "127.0.0.1",
        "=" * 200: "%3D" * 42 + "%3",
    }.items():
        assert (
            send(service, "/", f"X-Forwarded-For: {forwarded}")[1]["client"] == client
        )
    path = f"{service.log_file.parent}/socket"
    assert send(service, "/", path=path)[1]["client"] == "-"
    assert send(service, "/", "X-Forwarded-For: ::1", path=path)[1]["client"] == "::1"


@pytest.mark.long
@pytest.mark.parametrize(
    "line", ['exec "$@" >&-', 'exec "$@" | true', 'exec "$@" >/dev/full']
)
def test_without_a_standard_output_requests_are_served(tmp_path, line):
    service = Served(tmp_path, f"sqlite:///{tmp_path}/x.db")
    with service.start("sh", "-c", line, "sh", *service.command):
        assert service.wait_until_up().status_code == 200
        assert [service.get("/health").status_code for _ in range(20)] == [200] * 20
    assert b"method=" not in (tmp_path / "x.db").read_bytes()
    assert "Traceback" not in service.log()


def test_the_error_log_quotes_nothing_of_a_request():
    for _ in range(2):  # as gunicorn may
        runpy.run_path(str(ROOT / "gunicorn.conf.py"))
    trace = r"\nTraceback.*\n  File .*\n    int\(.*\nException: ValueError"
    for text, argument, expected in (
        ("Two\nlines%s", "", r"'Two\\nlines'"),
        ("Error handling request %s", "/x?secret", "Error handling request /x" + trace),
    ):
        record = logging.LogRecord("gunicorn.error", 40, "", 0, text, (argument,), None)
        try:
            int("secret")
        except ValueError:
            record.exc_info = sys.exc_info() if "handling" in text else None
        assert logging.getLogger("gunicorn.error").filter(record)
        shown = logging.Formatter("%(message)s").format(record)
        assert re.fullmatch(expected, shown, re.DOTALL)


@pytest.mark.long
def test_a_start_that_fails_says_why(tmp_path):
    for value, command, reason in (
        (
            "1001",
            (),
            "Error: WEB_CONCURRENCY=1001: must be a whole number from 1 to 1000",
        ),
        (
            "x",
            (),
            "ValueError: invalid literal for int() with base 10: 'x'",
        ),  # gunicorn's own
        (
            "1",
            (sys.executable, "gunicorn.conf.py"),
            "Error: start the service by ",
        ),  # as 1.0 was
    ):
        with Served(tmp_path, "", WEB_CONCURRENCY=value).start(*command) as service:
            assert service.process.wait(40) != 0
            assert service.log().splitlines()[-1].startswith(reason)


def test_the_start_names_the_database_without_user_and_password(service, serve):
    assert f" Database: sqlite {service.log_file.parent}/x.db\n" in service.log()
    other = serve("mysql://someone:secret@127.0.0.1:1/name", wait=False)
    wait_until(lambda: " Database: mysql 127.0.0.1 name\n" in other.log())
    assert not re.search("someone|secret", other.log())


@pytest.mark.long
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM])
def test_a_worker_that_may_not_choose_its_core_serves(serve, tmp_path, number):
    refuse = f"os.sched_setaffinity = lambda *_: exec('raise OSError({number}, str())')"
    (tmp_path / "sitecustomize.py").write_text(f"import os\n{refuse}\n")
    count = len(os.sched_getaffinity(0))
    settings = {"PYTHONPATH": str(tmp_path), "WEB_CONCURRENCY": str(count)}
    service = serve(f"sqlite:///{tmp_path}/x.db", **settings)
    assert service.get("/health").status_code == 200
    assert {len(os.sched_getaffinity(worker)) for worker in workers(service)} == {count}


def test_an_answer_says_whether_the_connection_is_closed(service, person):
    """It is if 64 KiB or more of the body were not read, or nobody knows how much."""
    for signed_in, header, sent, status, closes in (
        (False, ("Content-Length", "65535"), b"", 401, False),
        (False, ("Content-Length", "65536"), b"", 401, True),
        (False, ("Transfer-Encoding", "chunked"), b"", 401, True),
        (True, ("Transfer-Encoding", "chunked"), b"3\r\na=b\r\n0\r\n\r\n", 400, False),
        (True, ("Content-Length", "65537"), b"", 413, True),
    ):
        headers = (
            {"Content-Type": FORM}
            | (person.headers if signed_in else {})
            | dict([header])
        )
        with closing(HTTPConnection("127.0.0.1", service.port, timeout=20)) as wire:
            wire.request(
                "POST", f"{CREATE}?accountid={person.accountid}", sent, headers
            )
            response = wire.getresponse()
            assert (response.status, response.read()[-2:]) == (status, b"}\n")
            assert (response.headers["Connection"] == "close") is closes
            assert (wire.sock is None) is closes  # as the client was told to
            if not closes:
                wire.send(b"" if sent else b"x" * 65_535)
                wire.request("GET", "/nowhere")
                assert wire.getresponse().status == 404


def test_a_body_cut_short(service, person):
    own = f"Authorization: Bearer {person.token}", f"Content-Type: {FORM}"
    target, body = (
        f"{CREATE}?accountid={person.accountid}",
        b"contact-email=a@example.com",
    )
    chunked = "Transfer-Encoding: chunked"
    for header, text, status, code in (
        ("Content-Length: 60", body, "400", "invalid-body"),
        ("Content-Length: 65537", b"a", "413", "body-too-large"),
        (chunked, b"1b\r\n" + body + b"\r\n", "400", "invalid-body"),
        (chunked, b"no size\r\n\r\n", "400", "invalid-body"),
        (chunked, b"10000\r\n" + b"a" * 65_536, "400", "invalid-body"),
        (
            chunked,
            b"10001\r\n" + b"a" * 65_537 + b"\r\n0\r\n\r\n",
            "413",
            "body-too-large",
        ),
    ):
        answer, values = send(service, target, *own, header, method="POST", body=text)
        assert json.loads(answer) == {"object": "error", "message": code}
        assert (values["status"], values["code"]) == (status, code)


REQUESTS = {
    "line": "GET /hea",
    "head": "GET /health HTTP/1.1\r\nHost: x\r\nX-",
    "body": f"POST {CREATE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {{}}\r\n"
    "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{",
    "answer": "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["head", "body", "answer"])
def test_silent_clients_are_given_up(serve, tmp_path, kind):
    """More of them than threads: some send half a request, others do not read their answer."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY="1")
    text = REQUESTS[kind].format(Person(service).token)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(silent(service, text))
        with pytest.raises(TimeoutError):  # soon each thread has one of them
            for _ in range(100):
                HTTPClient(service.port, seconds=0.5).get("/health")
        # Each send that the kernel takes a part of begins its ten seconds again.
        assert HTTPClient(service.port, seconds=90).get("/health").status_code == 200
    assert "Traceback" not in service.log()


@pytest.mark.long
def test_a_stop_answers_what_was_asked_and_waits_for_no_half_request(serve, tmp_path):
    """In less than 8 seconds, as some platforms kill after 10."""
    url = f"sqlite:///{tmp_path}/x.db"
    with reading_all(serve, url) as (service, person, response), ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor())
        for kind in ("line", "head", "body"):
            stack.enter_context(silent(service, REQUESTS[kind].format(person.token)))
        with locked(url):
            created = threads.submit(person.create, named("Ada"))
            time.sleep(0.5)  # the create waits for the lock by then
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            time.sleep(1.5)
        assert created.result().status_code == 201
        assert len(json.loads(response.read())) == ROWS
        assert service.process.wait(20) == 0
        assert time.monotonic() - began < 8


def workers(service):
    """The process ids of the workers."""
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def closed(connections):
    """How many are closed by the response to a request on each; all responses are whole."""
    for connection in connections:
        connection.request("GET", "/openapi.json")
        response = connection.getresponse()
        assert (response.status, response.read()[-2:]) == (200, b"}\n")
    return sum(connection.sock is None for connection in connections)


def assert_shared(service, connections):
    """Within some rounds no connection is closed any more, and the workers hold about as many."""
    wait_until(lambda: closed(connections) == 0 == closed(connections))
    counts = Counter(
        int(parsed(line)["worker"]) for line in logged(service)[-len(connections) :]
    )
    assert counts.keys() == {*workers(service)}
    assert max(counts.values()) - min(counts.values()) <= 2


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 3])
def test_workers_share_the_cores_and_the_connections(serve, tmp_path, count):
    """Also those that replace others, after a reload, and after one that had no connection."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY=str(count))
    clients = [HTTPConnection("127.0.0.1", service.port, timeout=20) for _ in range(16)]
    cores = os.sched_getaffinity(0)
    for ended in (slice(None), slice(-1, None), slice(2), slice(0)):
        wait_until(lambda: len(workers(service)) == count and closed(clients) + 1)
        used = [os.sched_getaffinity(worker) for worker in workers(service)]
        assert {*map(len, used)} == {len(cores) if count < len(cores) else 1}
        assert set.union(*used) == cores
        assert_shared(service, clients)  # so each has published its count
        for worker in workers(service)[1:]:
            os.kill(worker, signal.SIGSTOP)
        for client in clients:
            client.close()
        number = closed(
            clients
        )  # by one worker; it keeps two more than the others last held
        for worker in workers(service)[1:]:
            os.kill(worker, signal.SIGCONT)
        assert (number > 0) is (count > 1)
        assert_shared(service, clients)
        for client in clients:
            client.close()
        time.sleep(1.5)  # until each worker has published that it holds none
        old, reload = workers(service)[ended], ended == slice(None)
        for pid in [service.process.pid] if reload else old:
            os.kill(pid, signal.SIGHUP if reload else signal.SIGKILL)
        wait_until(lambda old=old: not {*old} & {*workers(service)})
