"""The database cut off, away, hanging, locked, full and read-only: 503 in time, nothing lost."""

import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from databases import Proxy, cut_connections, execute, locked, on_mysql
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


def every_kind(person, profileid):
    return [
        lambda: person.get(f"{PROFILES}?limit=3"),
        lambda: person.update(profileid, named("name")),
        lambda: person.create(named("name")),
        lambda: person.create(named("name", default="true")),
        lambda: person.get(SESSIONS),
    ]


def assert_served(calls):
    """Each call, made at the same time, succeeds."""
    responses = at_once(*calls)
    assert {each.status_code for each in responses} == {200, 201}, [
        each.text for each in responses
    ]


@on_mysql
def test_a_server_that_comes_cuts_connections_goes_and_hangs(empty_database_url, serve):
    proxy = Proxy()
    service = serve(proxy.url(empty_database_url))
    assert_unavailable(*[service.get("/health") for _ in range(4)], within=5)
    with proxy:
        assert (
            service.flask("init-db").returncode == 0
        )  # of a database that was empty, once
        assert service.get("/health").status_code == 200
        person = Person(service, administrator=True)
        profileid = person.create(named("first")).json["profileid"]
        kinds, known = every_kind(person, profileid), len(service.log())
        for _ in range(2):
            assert_served(kinds * 4)
            assert cut_connections(empty_database_url) > 1
        assert_served(kinds)
        assert "database unavailable" not in service.log()[known:]
        before = person.profiles()
        for _ in range(2):
            proxy.go()
            assert_unavailable(
                *at_once(*kinds, lambda: person.get("/health")), within=5
            )
            proxy.come()
            assert person.profiles() == before
        proxy.process.send_signal(
            signal.SIGSTOP
        )  # some threads have a connection, others need one
        assert_unavailable(*at_once(*kinds[:4]), within=15)
        proxy.process.send_signal(signal.SIGCONT)
        assert_served(kinds)


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
    assert_unavailable(*[service.get("/health") for _ in range(4)])
    service.process.send_signal(signal.SIGHUP)
    wait_until(lambda: service.log().count("Booting") == 4)
    assert_unavailable(*[service.get("/health") for _ in range(4)])
    assert not path.exists()


def test_locked_by_another_it_is_503_and_stores_nothing(empty_database_url, serve):
    service = serve(empty_database_url)
    person = Person(service, administrator=True)
    first = person.create(named("first", default="true")).json
    writers = [
        lambda: person.update(first["profileid"], named("second")),
        lambda: person.create(named("third", default="true")),
        lambda: person.create(named("fourth")),
    ]
    with locked(empty_database_url), ThreadPoolExecutor(1) as pool:
        writing = pool.submit(at_once, *writers)
        while not writing.done():
            response = person.get(f"{PROFILES}?all=true")
            assert (response.status_code, response.json) == (200, [first])
            time.sleep(0.1)
        assert_unavailable(*writing.result(), within=10)
    assert person.profiles() == [first]
    assert execute(empty_database_url, "SELECT profileid FROM account") == [
        (first["profileid"],)
    ]
    assert [response.status_code for response in at_once(*writers)] == [200, 201, 201]
    names = [profile["fullName"] for profile in person.profiles()]
    assert (sorted(names[:2]), names[2:]) == (["fourth", "third"], ["second"])


def remount(folder, option):
    """Make the file system read-only or writable, once nobody is writing to it."""
    command = ["mount", "-o", f"remount,{option}", str(folder)]
    wait_until(lambda: not subprocess.run(command, capture_output=True).returncode)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB, gone with the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command).returncode:
        pytest.skip("needs to mount a file system, and only root can")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_503_until_there_is_room(small_disk, serve):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((24 << 20) - 4096))
    service = serve(
        f"sqlite:///{small_disk}/profiles.db", USER_PROFILE_FIELDS="location"
    )
    done = service.flask("init-db")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(
        "unavailable:.* full\n.*Error: database-unavailable$", done.stderr, re.DOTALL
    )
    ballast.write_bytes(bytes(18 << 20))
    assert service.flask("init-db").returncode == 0
    person, acknowledged = Person(service, administrator=True), []
    for _ in range(2):
        while (
            response := person.create({"location": "x" * 60_000})
        ).status_code == 201:
            acknowledged.insert(0, response.json)
        assert_unavailable(response, within=5)
    assert len(acknowledged) > 10
    assert re.search("unavailable:.* full", service.log())
    assert person.profiles() == acknowledged
    ballast.unlink()
    for _ in range(5):
        acknowledged.insert(
            0, person.create({"location": "x" * 60_000, "default": "true"}).json
        )
    assert person.profiles() == acknowledged


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_read_only_disk_is_503_until_it_is_writable(small_disk, serve, sign):
    service = serve(f"sqlite:///{small_disk}/profiles.db")
    person = Person(service, administrator=True)
    first = person.create(named("first", default="true")).json
    kinds = every_kind(person, first["profileid"])
    service.kill(sign)
    remount(small_disk, "ro")
    service.start()
    wait_until(lambda: service.get("/health"))
    assert_unavailable(*at_once(*kinds[1:4] * 2), within=10)
    listing = person.get(f"{PROFILES}?all=true")
    assert listing.json in (
        [first],
        {"object": "error", "message": "database-unavailable"},
    )
    assert re.search(
        "unavailable: .*(read-?only|unable to open)", service.log(), re.IGNORECASE
    )
    remount(small_disk, "rw")
    updates = [
        lambda: person.update(first["profileid"], named("third")).status_code
    ] * 16
    wait_until(lambda: set(at_once(*updates)) == {200}, 5)
    assert_served(kinds)
