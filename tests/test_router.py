"""Behind nginx, by the sample of OPERATING.md as it stands."""

import re
import select
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, closing, contextmanager
from getpass import getuser
from http.client import HTTPConnection
from itertools import count
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Event, Thread

import pytest
from serving import (
    PROFILES,
    ROOT,
    HTTPClient,
    Person,
    assert_error,
    at_once,
    free_port,
    named,
    wait_until,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("nginx"), reason="install nginx"),
]


def sample(ports):
    """The configuration in OPERATING.md, each of its ports replaced by another."""
    block = re.compile(
        r"^    (?:map|upstream|server) .*?^    \}\n", re.MULTILINE | re.DOTALL
    )
    blocks, left = block.findall((ROOT / "OPERATING.md").read_text()), iter(ports)
    assert [each.split()[0] for each in blocks] == ["map", "upstream", "server"]
    port = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=listen )\d+")
    replaced = port.sub(lambda found: str(next(left)), "".join(blocks))
    assert next(left, None) is None
    return replaced


class Router(HTTPClient):
    def open(self, path, **options):
        return super().open(f"/profiles{path}", **options)


@contextmanager
def router(tmp_path, *ports):
    """A client of nginx, which stands in front of the services at these ports."""
    port, log = free_port(), tmp_path / "error.log"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
    (tmp_path / "nginx.conf").write_text(
        f"user {getuser()}; daemon off; pid {tmp_path}/pid; error_log {log};\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{sample([*ports, port])}}}\n"
    )
    command = ["nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", log]
    client = Router(port)
    with subprocess.Popen(command) as process, ExitStack() as stack:
        stack.callback(process.terminate)
        wait_until(lambda: client.open("/health").status_code == 200)
        yield client


@pytest.fixture
def services(serve, empty_database_url):
    return [serve(empty_database_url) for _ in range(2)]


@pytest.fixture
def person(services, tmp_path):
    """An administrator whose requests go through the router."""
    person = Person(services[0], administrator=True)
    with router(tmp_path, *(service.port for service in services)) as person.client:
        yield person


def restart_both(services):
    for service in services:
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
        service.start().wait_until_up()


def kill_both(services):
    for service in services * 2:
        service.kill()
        service.start().wait_until_up()


def reload_one(services):
    for ended in (2, 4):
        services[0].process.send_signal(signal.SIGHUP)
        wait_until(
            lambda ended=ended: services[0].log().count("Worker exiting") == ended
        )


@pytest.mark.parametrize("disturb", [restart_both, kill_both, reload_one])
def test_what_ends_loses_no_create_and_stores_none_twice(services, person, disturb):
    numbers, ended, sent = count(), Event(), []

    def send():
        while not ended.is_set():
            name = f"n{next(numbers)}"
            sent.append((name, person.create(named(name, default="true")).status_code))

    def disturb_and_end():
        try:
            wait_until(lambda: len(sent) > 50)
            disturb(services)
            more = len(sent) + 50
            wait_until(lambda: len(sent) > more)
        finally:
            ended.set()

    at_once(disturb_and_end, *[send] * 8)
    assert {status for _, status in sent} == {201}
    assert_stored(person, [name for name, _ in sent])


def assert_stored(person, names):
    """These profiles are stored, each once."""
    assert sorted(row["fullName"] for row in person.profiles()) == sorted(names)


class Dying(BaseRequestHandler):
    """Passes a request on, waits for its answer, and cuts the connection instead of answering."""

    def handle(self):
        with socket.create_connection(self.server.upstream) as upstream:
            while upstream not in select.select([self.request, upstream], [], [])[0]:
                upstream.sendall(self.request.recv(65_536))
            self.server.answers.append(upstream.recv(65_536)[:13])


def test_an_upstream_that_dies_before_its_answer(services, tmp_path):
    """It has stored what was sent; the other one finds it there, and answers as it would have."""
    person = Person(services[0], administrator=True)
    with ThreadingTCPServer(("127.0.0.1", 0), Dying) as dying:
        dying.upstream, dying.answers = ("127.0.0.1", services[0].port), []
        Thread(target=dying.serve_forever, daemon=True).start()
        ports = dying.server_address[1], services[1].port
        with router(tmp_path, *ports) as person.client:
            created = [
                person.create(named(name, default="true")) for name in "abcdefghij"
            ]
            assert_stored(person, "abcdefghij")
        dying.shutdown()
    assert {response.status_code for response in created} == {201}
    assert dying.answers.count(b"HTTP/1.1 201 ") > 2


def test_what_the_router_passes_on(services, person):
    assert [person.create(named(name)).json["fullName"] for name in "ab"] == ["a", "b"]
    person.headers["Idempotency-Key"] = "of the client"
    assert [person.create(named(name)).json["fullName"] for name in "cd"] == ["c", "c"]
    page = person.get(f"{PROFILES}?limit=1")
    assert page.headers["Link"].startswith(f"</profiles{PROFILES}?limit=1&after=prof_")
    assert_error(person.create(b"x" * 70_000), 413, "body-too-large")
    address = {"timeout": 20, "source_address": ("127.0.0.2", 0)}
    with closing(HTTPConnection("127.0.0.1", person.client.port, **address)) as wire:
        wire.request(
            "GET", "/profiles/health", headers={"X-Forwarded-For": "203.0.113.9"}
        )
        id = wire.getresponse().headers["X-Request-Id"]
    assert re.fullmatch("[0-9a-f]{32}", id)
    found = re.compile(
        f"^time=.* path=/profiles/health .* request_id={id} .*$", re.MULTILINE
    )
    (line,) = wait_until(
        lambda: [line for each in services for line in found.findall(each.log())]
    )
    assert " client=127.0.0.2 " in line
