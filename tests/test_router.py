"""Behind nginx, by the sample of docs/OPERATING.md as it stands."""

import re
import select
import shutil
import signal
import socket
import subprocess
from contextlib import closing, contextmanager, suppress
from getpass import getuser
from http.client import HTTPConnection, HTTPException
from itertools import count
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from serving import (
    PROFILES,
    ROOT,
    HTTPClient,
    Person,
    assert_error,
    free_port,
    named,
    repeating,
    wait_until,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("nginx"), reason="install nginx"),
]
PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=listen )\d+")
CONFIGURATION = """
user {user};
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/client_body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {sample}
}}
"""


def sample(*ports):
    """The configuration in OPERATING.md, each of its ports replaced by another."""
    page = (ROOT / "docs" / "OPERATING.md").read_text()
    text = ""
    for name in ("map", "upstream", "server"):
        (block,) = re.findall(rf"(?ms)^    {name} .*?^    \}}\n", page)
        text += block
    *parts, end = PORT.split(text)
    replaced = ""
    for part, port in zip(parts, ports, strict=True):
        replaced += f"{part}{port}"
    return replaced + end


class Router(HTTPClient):
    def open(self, path, **options):
        return super().open(f"/profiles{path}", **options)


@contextmanager
def router(folder, *ports):
    """A client of nginx, which stands in front of the services at these ports."""
    client = Router(free_port())
    text = CONFIGURATION.format(
        user=getuser(),
        folder=folder,
        sample=sample(*ports, client.port),
    )
    (folder / "nginx.conf").write_text(text)
    log = folder / "error.log"
    command = ["nginx", "-p", folder, "-c", "nginx.conf", "-e", log]

    def is_up():
        return client.open("/health").status_code == 200

    with subprocess.Popen(command) as process:
        try:
            wait_until(is_up, log=log)
            yield client
        finally:
            process.terminate()


@pytest.fixture
def services(serve, empty_database_url):
    return [serve(empty_database_url) for _ in range(2)]


@pytest.fixture
def person(services, tmp_path):
    """An administrator whose requests go through the router."""
    person = Person(services[0], administrator=True)
    ports = [service.port for service in services]
    with router(tmp_path, *ports) as person.client:
        yield person


def assert_stored(person, names):
    """These profiles are stored, each once."""
    found = [profile["fullName"] for profile in person.profiles()]
    assert sorted(found) == sorted(names)


@contextmanager
def creating(create):
    """Eight clients create profiles, also before the block and after it."""
    numbers = count()
    created = []

    def create_next():
        name = f"n{next(numbers)}"
        create(name)
        created.append(name)

    def wait_for_creates():
        enough = len(created) + 50
        wait_until(lambda: len(created) > enough)

    with repeating(*[create_next] * 8):
        wait_for_creates()
        yield created
        wait_for_creates()


def restart_both(services):
    for service in services:
        service.stop()
        service.start().wait_until_up()


def reload_one(services):
    service = services[0]
    for ended in (2, 4):
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: service.log().count("Worker exiting") == ended)  # noqa: B023


@pytest.mark.parametrize("disturb", [restart_both, reload_one])
def test_a_client_does_not_notice_what_ends(services, person, disturb):
    def create(name):
        response = person.create(named(name, default="true"))
        assert response.status_code == 201, response.text

    with creating(create) as created:
        disturb(services)
    assert_stored(person, created)


def test_a_client_repeats_what_is_killed(services, person):
    """Its key keeps the create from being stored twice.

    nginx sends a request to each service once. It answers 502 if one still starts
    and the other is killed meanwhile. It cuts its answer if the service's was cut.
    """

    def is_created(name):
        body = named(name, default="true")
        with suppress(HTTPException):
            response = person.create(body, headers={"Idempotency-Key": name})
            assert response.status_code in (201, 502), response.text
            return response.status_code == 201

    def create(name):
        wait_until(lambda: is_created(name))

    with creating(create) as created:
        for service in services * 2:
            service.kill()
            service.start().wait_until_up()
    assert_stored(person, created)


class Dying(BaseRequestHandler):
    """Passes a request on, waits for its answer, and cuts the connection."""

    def handle(self):
        with socket.create_connection(self.server.upstream) as upstream:
            readable = []
            while upstream not in readable:
                if self.request in readable:
                    upstream.sendall(self.request.recv(65_536))
                readable, _, _ = select.select([self.request, upstream], [], [])
            answer = upstream.recv(65_536)
            self.server.answers.append(answer[:13])


def test_an_upstream_that_dies_before_its_answer(services, tmp_path):
    """It has stored what was sent; the other one answers with what it finds there."""
    person = Person(services[0], administrator=True)
    with ThreadingTCPServer(("127.0.0.1", 0), Dying) as dying:
        dying.upstream = ("127.0.0.1", services[0].port)
        dying.answers = []
        Thread(target=dying.serve_forever, daemon=True).start()
        ports = dying.server_address[1], services[1].port
        with router(tmp_path, *ports) as person.client:
            for name in "abcdefghij":
                response = person.create(named(name, default="true"))
                assert response.status_code == 201
            assert_stored(person, "abcdefghij")
        dying.shutdown()
    assert dying.answers.count(b"HTTP/1.1 201 ") > 2


def test_what_the_router_passes_on(services, person):
    def create(name):
        return person.create(named(name)).json["fullName"]

    assert create("a") == "a"
    assert create("b") == "b"
    person.headers["Idempotency-Key"] = "of the client"
    assert create("c") == "c"
    assert create("d") == "c"
    page = person.get(f"{PROFILES}?limit=1")
    assert page.headers["Link"].startswith(f"</profiles{PROFILES}?limit=1&after=prof_")
    assert_error(person.create(b"x" * 70_000), 413, "body-too-large")


def test_the_log_has_the_address_and_the_id_that_the_router_knows(services, person):
    wire = HTTPConnection(
        "127.0.0.1", person.client.port, timeout=20, source_address=("127.0.0.2", 0)
    )
    with closing(wire):
        forged = {"X-Forwarded-For": "203.0.113.9"}
        wire.request("GET", "/profiles/health", headers=forged)
        id = wire.getresponse().headers["X-Request-Id"]
    assert re.fullmatch("[0-9a-f]{32}", id)
    expected = f"path=/profiles/health .* request_id={id} .* client=127.0.0.2 "

    def is_logged():
        log = services[0].log() + services[1].log()
        return re.search(expected, log)

    wait_until(is_logged)
