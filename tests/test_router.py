"""Behind nginx, by the sample of OPERATING.md as it stands."""

import re
import shutil
import signal
import subprocess
from contextlib import ExitStack, closing
from getpass import getuser
from http.client import HTTPConnection
from itertools import count
from threading import Event

import pytest
from serving import (
    CREATE,
    PROFILES,
    ROOT,
    HTTPClient,
    Person,
    assert_error,
    at_once,
    free_port,
    named,
    wait_until,
    walk,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("nginx"), reason="install nginx"),
]


def sample(ports):
    """The configuration in OPERATING.md, each of its ports replaced by another."""
    text = (ROOT / "OPERATING.md").read_text()
    upstream, server = (
        re.search(rf"^    {start} \{{\n.*?^    \}}\n", text, re.MULTILINE | re.DOTALL)[0]
        for start in ("upstream profiles", "server")
    )
    left = iter(ports)
    port = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=listen )\d+")
    replaced = port.sub(lambda found: str(next(left)), upstream + server)
    assert next(left, None) is None
    return replaced


@pytest.fixture
def services(serve, empty_database_url):
    return [serve(empty_database_url) for _ in range(2)]


@pytest.fixture
def router(services, tmp_path):
    """A client of nginx, which stands in front of the services."""
    port, log = free_port(), tmp_path / "error.log"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
    (tmp_path / "nginx.conf").write_text(
        f"user {getuser()}; daemon off; pid {tmp_path}/pid; error_log {log};\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{sample([*(s.port for s in services), port])}}}\n"
    )
    command = ["nginx", "-p", tmp_path, "-c", tmp_path / "nginx.conf", "-e", log]
    client = HTTPClient(port)
    with subprocess.Popen(command) as process, ExitStack() as stack:
        stack.callback(process.terminate)
        wait_until(lambda: client.get("/profiles/health").status_code == 200)
        yield client


@pytest.fixture
def person(services, router):
    """An administrator whose requests go through the router."""
    person = Person(services[0], administrator=True)
    person.client = router
    return person


def create(person, body):
    return person.send("POST", f"/profiles{CREATE}?accountid={person.accountid}", data=body)


def restart_both(services):
    for service in services:
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
        service.start().wait_until_up()


def reload_one(services):
    for ended in (2, 4):
        services[0].process.send_signal(signal.SIGHUP)
        wait_until(lambda ended=ended: services[0].log().count("Worker exiting") == ended)


@pytest.mark.parametrize("disturb", [restart_both, reload_one])
def test_a_restart_loses_no_request(services, person, disturb):
    numbers, ended, sent = count(), Event(), []

    def send():
        while not ended.is_set():
            name = f"n{next(numbers)}"
            sent.append((name, create(person, named(name)).status_code))

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
    pages = walk(person, f"/profiles{PROFILES}?limit=500")
    stored = [row["fullName"] for page in pages for row in page]
    assert sorted(stored) == sorted(name for name, _ in sent)


def test_what_the_router_passes_on(services, router, person):
    assert [create(person, named(name)).status_code for name in "ab"] == [201, 201]
    page = person.get(f"/profiles{PROFILES}?limit=1")
    assert page.headers["Link"].startswith(f"</profiles{PROFILES}?limit=1&after=prof_")
    assert_error(create(person, b"x" * 70_000), 413, "body-too-large")
    address = {"timeout": 20, "source_address": ("127.0.0.2", 0)}
    with closing(HTTPConnection("127.0.0.1", router.port, **address)) as wire:
        wire.request("GET", "/profiles/health", headers={"X-Forwarded-For": "203.0.113.9"})
        id = wire.getresponse().headers["X-Request-Id"]
    assert re.fullmatch("[0-9a-f]{32}", id)
    found = re.compile(f"^time=.* path=/profiles/health .* request_id={id} .*$", re.MULTILINE)
    (line,) = wait_until(lambda: [line for each in services for line in found.findall(each.log())])
    assert " client=127.0.0.2 " in line
