"""The database away, hanging, locked, full or read-only: 503 in time, nothing lost."""

import os
import re
import signal
import subprocess

import pytest
from databases import Proxy, cut_connections, on_mysql
from serving import (
    PROFILES,
    SESSIONS,
    Person,
    assert_unavailable,
    at_once,
    named,
    wait_until,
)

pytestmark = pytest.mark.long


def writes(person, profileid):
    """Requests of each kind that writes."""
    return [
        lambda: person.update(profileid, named("name")),
        lambda: person.create(named("name")),
        lambda: person.create(named("name", default="true")),
    ]


def reads(person):
    return [
        lambda: person.get(f"{PROFILES}?limit=3"),
        lambda: person.get(SESSIONS),
    ]


def assert_served(requests):
    """Each request, made at the same time, succeeds."""
    for response in at_once(*requests):
        assert response.status_code in (200, 201), response.text


def assert_health_unavailable(service):
    """More answers than there are workers."""
    for _ in range(4):
        assert_unavailable(service.get("/health"), within=5)


@on_mysql
def test_a_server_that_comes_cuts_connections_goes_and_hangs(empty_database_url, serve):
    proxy = Proxy()
    service = serve(proxy.url(empty_database_url))
    assert_health_unavailable(service)
    with proxy:
        done = service.flask("init-db")  # of a database that was empty, once
        assert done.returncode == 0
        assert service.get("/health").status_code == 200
        person = Person(service, administrator=True)
        profileid = person.create(named("first")).json["profileid"]
        requests = reads(person) + writes(person, profileid)
        known = len(service.log())
        for _ in range(2):
            assert_served(requests * 4)
            assert cut_connections(empty_database_url) > 1
        assert_served(requests)
        assert "database unavailable" not in service.log()[known:]
        before = person.profiles()
        for _ in range(2):
            proxy.go()
            responses = at_once(*requests, lambda: person.get("/health"))
            assert_unavailable(*responses, within=5)
            proxy.come()
            assert person.profiles() == before
        # Some threads have a connection, others need one.
        proxy.process.send_signal(signal.SIGSTOP)
        # The threads of a worker wait for each other's time-outs, 10 seconds each.
        assert_unavailable(*at_once(*requests[1:]), within=40)
        proxy.process.send_signal(signal.SIGCONT)
        assert_served(requests)


def test_a_removed_file_is_never_made_anew(tmp_path, serve):
    """Nor when it was not there when the service started, nor after a reload."""
    path = tmp_path / "folder" / "x.db"
    service = serve(f"sqlite:///{path}")
    path.parent.mkdir()
    assert_unavailable(service.get("/health"))
    assert service.flask("init-db").returncode == 0
    assert service.get("/health").status_code == 200
    for file in path.parent.iterdir():
        file.unlink()
    assert_health_unavailable(service)
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: service.log().count("Booting") == 4, log=service.log_file)
    assert_health_unavailable(service)
    assert not path.exists()


def remount(folder, option):
    """Make the file system read-only or writable, once nobody is writing to it."""
    command = ["mount", "-o", f"remount,{option}", folder]

    def is_remounted():
        return subprocess.run(command, capture_output=True).returncode == 0

    wait_until(is_remounted)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB, gone with the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder]
    if os.geteuid() or subprocess.run(command).returncode:
        pytest.skip("needs to mount a file system, and only root can")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_503_until_there_is_room(small_disk, serve):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((24 << 20) - 4096))
    url = f"sqlite:///{small_disk}/profiles.db"
    service = serve(url, USER_PROFILE_FIELDS="location")
    done = service.flask("init-db")
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.search("unavailable:.* full\n", done.stderr)
    assert done.stderr.endswith("Error: database-unavailable\n")
    ballast.write_bytes(bytes(18 << 20))
    assert service.flask("init-db").returncode == 0
    person = Person(service, administrator=True)
    body = {"location": "x" * 60_000}
    acknowledged = []
    for _ in range(2):
        while (response := person.create(body)).status_code == 201:
            acknowledged.insert(0, response.json)
        assert_unavailable(response, within=5)
    assert len(acknowledged) > 10
    assert re.search("unavailable:.* full", service.log())
    assert person.profiles() == acknowledged
    ballast.unlink()
    for _ in range(5):
        response = person.create(body | {"default": "true"})
        acknowledged.insert(0, response.json)
    assert person.profiles() == acknowledged


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_read_only_disk_is_503_until_it_is_writable(small_disk, serve, sign):
    service = serve(f"sqlite:///{small_disk}/profiles.db")
    person = Person(service, administrator=True)
    first = person.create(named("first", default="true")).json
    requests = writes(person, first["profileid"])
    service.kill(sign)
    remount(small_disk, "ro")
    service.start().wait_until_up()
    assert_unavailable(*at_once(*requests * 2), within=10)
    unavailable = {"object": "error", "message": "database-unavailable"}
    listing = person.get(f"{PROFILES}?all=true")
    assert listing.json in ([first], unavailable)
    reason = "unavailable: .*(read-?only|unable to open)"
    assert re.search(reason, service.log(), re.IGNORECASE)
    remount(small_disk, "rw")

    def all_write():
        responses = at_once(*requests[:1] * 16)
        return all(response.status_code == 200 for response in responses)

    wait_until(all_write, 5)
    assert_served(reads(person) + requests)
