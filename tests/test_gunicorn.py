"""How the service is served, over real connections: log, start, stop, workers."""

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
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote_to_bytes

import pytest
from databases import damage, fill, locked
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
from test_administrators import ACCOUNT, DELETION

from app import create_app
from models import Profile

NAMES = """
time method path status code account appid target request_id bytes ms client worker
""".split()
# A line of the log, as strict as any parser of logfmt.
VALUE = r"[!#-&(-<>-\[\]-~]+"
LINE = re.compile(" ".join(f"{name}=(?P<{name}>{VALUE})" for name in NAMES))
ROWS = 8_000  # more than a connection buffers


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for the tests that change nothing of it."""
    folder = tmp_path_factory.mktemp("served")
    service = Served(folder, f"sqlite:///{folder}/x.db")
    sockets = ["-b", f"127.0.0.1:{service.port}", "-b", f"unix:{folder}/socket"]
    with service.start(*service.command, *sockets):
        service.wait_until_up()
        wait_until(lambda: logged(service))  # the line of /health
        yield service


@pytest.fixture(scope="module")
def person(service):
    return Person(service, administrator=True)


def logged(service, start=0):
    """The values of each line of a request in the log, from a position on."""
    text = service.log_file.read_bytes()[start:].decode()
    lines = [line for line in text.split("\n") if line.startswith("time=")]
    return [LINE.fullmatch(line).groupdict() for line in lines]


def send(service, target, *headers, method="GET", body=b"", path=None):
    """The body of the response to a request, and the values of its line in the log."""
    head = [f"{method} {target} HTTP/1.1", "Host: x", "Connection: close", *headers]
    text = "\r\n".join(head) + "\r\n\r\n"
    start = service.log_file.stat().st_size
    response = exchange(service, text.encode("latin-1") + body, path)
    (values,) = wait_until(lambda: logged(service, start))
    return response.partition(b"\r\n\r\n")[2], values


LOGGED = f"""\
{PROFILES}?limit=5 signed-in default 200 -
{PROFILES}?limit=secret signed-in default 400 invalid-limit
{PROFILES}?token=secret - default 401 sign-in-required
/nowhere?secret - - 404 not-found
/docs/swagger-ui.css?secret - - 200 -""".splitlines()


@pytest.mark.parametrize("request_and_answer", LOGGED)
def test_the_line_of_a_request(service, person, request_and_answer):
    path, signed_in, appid, status, code = request_and_answer.split()
    account = "-"
    id = "[0-9a-f]{32}"
    headers = []
    if signed_in != "-":
        account = person.accountid
        id = "router-1.2_3"
        headers = [f"Authorization: Bearer {person.token}", f"X-Request-Id: {id}"]
    began = datetime.now(UTC)
    text, values = send(service, path, *headers)
    moment = values.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    passed = datetime.fromisoformat(moment) - began
    assert abs(passed) < timedelta(seconds=10)
    assert int(values.pop("ms")) < 10_000
    assert f"Booting worker with pid: {values.pop('worker')}\n" in service.log()
    assert re.fullmatch(id, values.pop("request_id"))
    assert values == {
        "method": "GET",
        "path": path.partition("?")[0],
        "status": status,
        "code": code,
        "account": account,
        "appid": appid,
        "target": "-",
        "bytes": str(len(text)),
        "client": "127.0.0.1",
    }


def test_the_account_that_an_administrator_acted_for(service, person):
    token = f"Authorization: Bearer {person.token}"
    text, values = send(service, ACCOUNT, token, method="POST")
    made = json.loads(text)["accountid"]
    assert values["target"] == made
    for accountid, expected in ((f"{made}%20code=-", "-"), (made, made)):
        path = f"{DELETION}?accountid={accountid}"
        _, values = send(service, path, token, method="DELETE")
        assert values["target"] == expected


TARGETS = r"""
/a%20b /a%0Amethod=GET%20path=/forged /%0d%0a%00%1b[2J%7f /"quoted"='x'\n{}|^`<>
/%e2%80%a8%c2%85%ed%a0%80%ff%fe /=%3D /%zz% //evil.example/x /-
"""


def test_nothing_that_a_client_sends_forges_a_line(service):
    for target in TARGETS.split():
        for end in ("", "?a=secret%20b", "?"):
            _, values = send(service, target + end)
            assert unquote_to_bytes(values["path"]) == unquote_to_bytes(target)
            assert values["method"] == "GET"
            assert values["account"] == "-"
    for method in ("A'B", "FORGED%0A", "*`|~$&+^!", "OPTIONS"):
        _, values = send(service, "/health", method=method)
        assert unquote_to_bytes(values["method"]) == unquote_to_bytes(method)
    for name in ("X-Request-Id", "X-Appid", "X-Forwarded-For", "Authorization"):
        for text in ("a b", 'a="b', "x code=-", "\xe9\x85", "x" * 129, "::1%a b=c"):
            _, values = send(service, PROFILES, f"{name}: {text}")
            assert values["status"] in ("400", "401")
            assert text not in values.values()
    # A long path is cut, so that the line is one write.
    _, values = send(service, f"/{'=' * 4_000}?secret")
    assert values["path"] == "/" + "%3D" * 682 + "%"
    # gunicorn itself refuses this.
    _, values = send(service, "/here?secret", "Content-Length: secret")
    assert values["path"] == "/here"
    assert values["status"] == "400"
    assert values["bytes"] == "-"
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
    """A service, an administrator, and the response to ``all``, not read yet."""
    service = serve(url)
    person = Person(service, administrator=True)
    create_app({"DATABASE_URL": url})
    fill(Profile, "default", ROWS)
    with closing(HTTPConnection("127.0.0.1", service.port)) as wire:
        wire.sock = silent(service)
        wire.request("GET", f"{PROFILES}?all=all", headers=person.headers)
        yield service, person, wire.getresponse()


@pytest.mark.long
def test_a_listing_that_broke_off_says_why(serve, empty_database_url):
    with reading_all(serve, empty_database_url) as (service, _, response):
        damage(empty_database_url)
        with pytest.raises(IncompleteRead):
            response.read()

        def listings():
            return [line for line in logged(service) if line["path"] == PROFILES]

        (values,) = wait_until(listings)
    assert values["status"] == "200"
    assert values["code"] == "database-unavailable"


@pytest.mark.parametrize(
    ["forwarded", "client"],
    [
        ("192.0.2.1, 203.0.113.9", "203.0.113.9"),
        ("192.0.2.1,2001:DB8::1", "2001:DB8::1"),
        ("192.0.2.1\r\nX-Forwarded-For: unknown", "unknown"),
        ("203.0.113.9,", "127.0.0.1"),
        ("=" * 200, "%3D" * 42 + "%3"),
    ],
)
def test_the_client_is_the_last_address_that_was_forwarded(service, forwarded, client):
    _, values = send(service, "/", f"X-Forwarded-For: {forwarded}")
    assert values["client"] == client


def test_the_client_of_a_unix_socket(service):
    path = f"{service.log_file.parent}/socket"
    _, values = send(service, "/", path=path)
    assert values["client"] == "-"
    _, values = send(service, "/", "X-Forwarded-For: ::1", path=path)
    assert values["client"] == "::1"


@pytest.mark.long
@pytest.mark.parametrize(
    "line", ['exec "$@" >&-', 'exec "$@" | true', 'exec "$@" >/dev/full']
)
def test_without_a_standard_output_requests_are_served(tmp_path, line):
    service = Served(tmp_path, f"sqlite:///{tmp_path}/x.db")
    with service.start("sh", "-c", line, "sh", *service.command):
        assert service.wait_until_up().status_code == 200
        for _ in range(20):
            assert service.get("/health").status_code == 200
    assert b"method=" not in (tmp_path / "x.db").read_bytes()
    assert "Traceback" not in service.log()


def error_log_shows(text, argument, exc_info=None):
    """What the error log makes of a record."""
    record = logging.LogRecord(
        "gunicorn.error", logging.ERROR, "", 0, text, (argument,), exc_info
    )
    assert logging.getLogger("gunicorn.error").filter(record)
    return logging.Formatter("%(message)s").format(record)


@pytest.mark.parametrize(
    ["port", "database_url", "count"],
    [("80", "", 1), ("80", "sqlite:///profiles.db", 0), ("", "", 0)],
)
def test_a_platform_that_forgot_its_database(
    monkeypatch, caplog, port, database_url, count
):
    """With PORT and without DATABASE_URL, the start warns."""
    start = runpy.run_path(str(ROOT / "gunicorn.conf.py"))["when_ready"]
    monkeypatch.setenv("PORT", port)
    monkeypatch.setenv("DATABASE_URL", database_url)
    start(SimpleNamespace(log=logging.getLogger("start"), LISTENERS=[]))
    warnings = [
        line.getMessage() for line in caplog.records if line.levelname != "INFO"
    ]
    assert len(warnings) == count
    for text in warnings:
        assert "SQLite" in text
        assert "DATABASE_URL" in text


def test_the_error_log_quotes_nothing_of_a_request():
    for _ in range(2):  # as gunicorn may
        runpy.run_path(str(ROOT / "gunicorn.conf.py"))
    assert error_log_shows("Two\nlines%s", "") == r"'Two\nlines'"
    try:
        int("secret")
    except ValueError:
        error = sys.exc_info()
    first, *trace = error_log_shows(
        "Error handling request %s", "/x?secret", error
    ).splitlines()
    assert first == "Error handling request /x"
    assert trace[0].startswith("Traceback")
    assert '    int("secret")' in trace  # a line of the code, not a value
    assert trace[-1] == "Exception: ValueError"


def test_the_start_names_the_database_without_user_and_password(service, serve):
    assert f" Database: sqlite {service.log_file.parent}/x.db\n" in service.log()
    other = serve("mysql://someone:secret@127.0.0.1:1/name", wait=False)
    expected = " Database: mysql 127.0.0.1 name\n"
    wait_until(lambda: expected in other.log(), log=other.log_file)
    assert not re.search("someone|secret", other.log())


@pytest.mark.long
def test_a_worker_that_may_not_choose_its_core_serves(serve, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "def refuse(*arguments):\n"
        "    raise PermissionError\n"
        "os.sched_setaffinity = refuse\n"
    )
    count = len(os.sched_getaffinity(0))
    settings = {"PYTHONPATH": str(tmp_path), "WEB_CONCURRENCY": str(count)}
    service = serve(f"sqlite:///{tmp_path}/x.db", **settings)
    assert service.get("/health").status_code == 200
    for worker in workers(service):
        assert len(os.sched_getaffinity(worker)) == count


def test_a_body_that_nobody_reads_does_not_break_the_next_request(service):
    with closing(HTTPConnection("127.0.0.1", service.port, timeout=20)) as wire:
        for _ in range(2):
            wire.request("POST", CREATE, b"x" * 1_000, {"Content-Type": FORM})
            response = wire.getresponse()
            assert response.status == 401
            assert response.read().endswith(b"}\n")


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
    """More clients than threads: they send half a request, or read no answer."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY="1")
    text = REQUESTS[kind].format(Person(service).token)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(silent(service, text))
        with pytest.raises(TimeoutError):  # soon each thread has one of them
            for _ in range(100):
                HTTPClient(service.port, timeout=0.5).get("/health")
        # Each send that the kernel takes a part of begins its ten seconds again.
        patient = HTTPClient(service.port, timeout=90)
        assert patient.get("/health").status_code == 200
    assert "Traceback" not in service.log()


@pytest.mark.long
def test_a_stop_answers_what_was_asked_and_waits_for_no_half_request(serve, tmp_path):
    """In less than 8 seconds, as some platforms kill after 10."""
    url = f"sqlite:///{tmp_path}/x.db"
    with reading_all(serve, url) as (service, person, response), ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        for kind in ("line", "head", "body"):
            text = REQUESTS[kind].format(person.token)
            stack.enter_context(silent(service, text))
        with locked(url):
            created = pool.submit(person.create, named("Ada"))
            time.sleep(0.5)  # the create waits for the lock by then
            began = time.monotonic()
            service.process.terminate()
            time.sleep(1.5)
        assert created.result().status_code == 201
        assert len(json.loads(response.read())) == ROWS
        assert service.process.wait(20) == 0
        assert time.monotonic() - began < 8


def test_a_stop_does_not_wait_for_ever(tmp_path):
    """What is not answered 8 seconds after a SIGTERM is cut: some platforms wait 10."""
    service = Served(tmp_path, f"sqlite:///{tmp_path}/x.db")
    with service.start(*service.command, "--print-config"):
        assert service.process.wait(60) == 0
    assert re.search("\ngraceful_timeout += [1-8]\n", service.log())


def workers(service):
    """The process ids of the workers."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in children.split()]


def count_closed(connections):
    """Send a request on each; how many are closed by the response. All are whole."""
    for connection in connections:
        connection.request("GET", "/openapi.json")
        response = connection.getresponse()
        assert response.status == 200
        assert response.read().endswith(b"}\n")
    return sum(connection.sock is None for connection in connections)


def close(connections):
    for connection in connections:
        connection.close()


def send_signal(pids, sign):
    for pid in pids:
        os.kill(pid, sign)


def assert_shared(service, connections):
    """Soon no connection is closed any more, and the workers hold about as many."""
    wait_until(lambda: count_closed(connections) == 0 == count_closed(connections))
    last = logged(service)[-len(connections) :]
    held = Counter(int(line["worker"]) for line in last)
    assert held.keys() == {*workers(service)}
    assert max(held.values()) - min(held.values()) <= 2


def assert_workers_share(service, count):
    """The workers have the cores, and whatever connections are made, in equal parts."""
    cores = os.sched_getaffinity(0)
    each_has = 1 if count >= len(cores) else len(cores)

    def have_their_cores():
        used = [os.sched_getaffinity(worker) for worker in workers(service)]
        lengths = [len(each) for each in used]
        return lengths == [each_has] * count and set.union(*used) == cores

    wait_until(have_their_cores)
    clients = [HTTPConnection("127.0.0.1", service.port, timeout=20) for _ in range(16)]
    assert_shared(service, clients)  # so each has published its count
    close(clients)
    others = workers(service)[1:]
    send_signal(others, signal.SIGSTOP)
    number = count_closed(clients)  # it keeps two more than the others last held
    send_signal(others, signal.SIGCONT)
    assert (number > 0) is (count > 1)
    assert_shared(service, clients)
    close(clients)
    time.sleep(1.5)  # until each worker has published that it holds none


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 3])
def test_workers_share_the_cores_and_the_connections(serve, tmp_path, count):
    """Also those that replace others, after a reload or a kill."""
    service = serve(f"sqlite:///{tmp_path}/x.db", WEB_CONCURRENCY=str(count))

    def assert_replaced(old):
        wait_until(lambda: set(old).isdisjoint(workers(service)))
        assert_workers_share(service, count)

    assert_workers_share(service, count)
    old = workers(service)
    service.process.send_signal(signal.SIGHUP)
    assert_replaced(old)
    for killed in (1, 2):
        old = workers(service)[-killed:]
        send_signal(old, signal.SIGKILL)
        assert_replaced(old)
