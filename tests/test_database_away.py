"""The database cut off, away, hanging, locked, full and read-only: 503 in time, nothing lost."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from databases import (
    SCHEMA,
    cut_connections,
    database_at,
    default_profiles,
    locked,
    schema,
    wait_until_dead,
)
from serving import (
    PROFILES,
    ROOT,
    Person,
    assert_served,
    assert_unavailable,
    at_once,
    every_kind,
    named,
    wait_until,
)

pytestmark = pytest.mark.long
on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)


@on_mysql
def test_connections_cut_by_the_server_are_never_noticed(empty_database_url, serve):
    service = serve(empty_database_url)
    person = Person(service, administrator=True)
    profileid = person.create(named("first")).json["profileid"]
    kinds = every_kind(person, profileid, "name") * 4
    assert_served(kinds)
    assert cut_connections(empty_database_url) > 1
    assert_served(kinds)
    assert cut_connections(empty_database_url) > 1
    assert [call().status_code for _, call in kinds] == [status for status, _ in kinds]
    assert "database unavailable" not in service.log()


@on_mysql
def test_a_server_that_is_away_is_503_until_it_is_back(empty_database_url, proxy, serve):
    service = serve(proxy.url(empty_database_url))
    person = Person(service, administrator=True)
    profileid = person.create(named("first")).json["profileid"]
    kinds = every_kind(person, profileid, "name")
    assert_served(kinds)
    before = person.profiles()
    for _ in range(2):
        proxy.go()
        calls = [call for _, call in kinds] + [lambda: person.get("/health")]
        assert_unavailable(*at_once(*calls), within=5)
        proxy.come()
        assert person.profiles() == before
    assert_served(kinds)


@on_mysql
def test_a_server_that_hangs_is_503_in_time(empty_database_url, proxy, serve):
    service = serve(proxy.url(empty_database_url))
    person = Person(service, administrator=True)
    profileid = person.create(named("first")).json["profileid"]
    kinds = every_kind(person, profileid, "name")
    assert person.get("/health").status_code == 200
    proxy.hang()
    assert_unavailable(*at_once(*(call for _, call in kinds[:4])), within=15)
    proxy.recover()
    assert_served(kinds)


@on_mysql
def test_started_before_its_server_it_serves_once_that_is_back(empty_database_url, proxy, serve):
    proxy.go()
    service = serve(proxy.url(empty_database_url), wait=False)
    wait_until(lambda: service.get("/health"))
    assert_unavailable(*[service.get("/health") for _ in range(4)], within=5)
    proxy.come()
    assert service.get("/health").status_code == 200
    assert schema(empty_database_url) == SCHEMA
    person = Person(service, administrator=True)
    created = person.create(named("first"))
    assert person.profiles() == [created.json]


# Locked, full, read-only


def test_locked_by_another_it_is_503_and_stores_nothing(empty_database_url, serve):
    service = serve(empty_database_url)
    person = Person(service, administrator=True)
    first = person.create(named("first", default="true")).json
    writers = [
        lambda: person.update(first["profileid"], named("second")),
        lambda: person.create(named("third", default="true")),
        lambda: person.update(first["profileid"], named("fourth")),
        lambda: person.create(named("fifth")),
    ]
    with locked(empty_database_url), ThreadPoolExecutor(1) as pool:
        writing = pool.submit(at_once, *writers)
        while not writing.done():
            response = person.get(f"{PROFILES}?all=true")
            assert (response.status_code, response.json) == (200, [first])
            assert response.seconds < 10
            time.sleep(0.1)
        assert_unavailable(*writing.result(), within=10)
    assert person.profiles() == [first]
    with database_at(empty_database_url):
        assert default_profiles() == {person.accountid: first["profileid"]}
    assert [response.status_code for response in at_once(*writers)] == [200, 201, 200, 201]
    names = [profile["fullName"] for profile in person.profiles()]
    assert (sorted(names[:2]), names[2] in ("second", "fourth")) == (["fifth", "third"], True)


def mount(*arguments):
    """Call mount, or skip the test with what it says."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs to mount a file system: {done.stderr.strip()}")


def remount(folder, option):
    """Make the file system read-only or writable, once nobody is writing to it."""
    command = ["mount", "-o", f"remount,{option}", str(folder)]
    wait_until(lambda: not subprocess.run(command, capture_output=True).returncode)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB, gone with the test."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs to mount a file system, and only root can")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def create_until_refused(person, acknowledged):
    """Create large profiles until one is refused; returns that response."""
    for _ in range(1_000):
        response = person.create({"location": "x" * 60_000})
        if response.status_code != 201:
            return response
        acknowledged.insert(0, response.json)
    raise AssertionError("never refused")


def test_a_first_start_on_a_full_disk_is_one_line(small_disk):
    (small_disk / "ballast").write_bytes(bytes((24 << 20) - 4096))
    code = "from app import create_app; create_app()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={"DATABASE_URL": f"sqlite:///{small_disk}/profiles.db"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "database unavailable: " in line


def test_a_full_disk_is_503_until_there_is_room(small_disk, serve):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(18 << 20))
    service = serve(f"sqlite:///{small_disk}/profiles.db", USER_PROFILE_FIELDS="location")
    person, acknowledged = Person(service, administrator=True), []
    for _ in range(2):
        assert_unavailable(create_until_refused(person, acknowledged), within=5)
    assert len(acknowledged) > 10
    assert re.search("unavailable:.* full", service.log())
    assert person.profiles() == acknowledged
    ballast.unlink()
    for _ in range(5):
        response = person.create({"location": "x" * 60_000, "default": "true"})
        assert response.status_code == 201
        acknowledged.insert(0, response.json)
    assert person.profiles() == acknowledged


def start_read_only(service, folder, sign):
    """End the service and start it again on the same files, which can no longer be written."""
    service.kill(sign)
    wait_until_dead(service, f"sqlite:///{folder}/profiles.db")
    remount(folder, "ro")
    service.start()
    wait_until(lambda: service.get("/health"))


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_read_only_disk_is_503_and_the_log_says_so(small_disk, serve, sign):
    service = serve(f"sqlite:///{small_disk}/profiles.db")
    person = Person(service, administrator=True)
    first = person.create(named("first", default="true")).json
    start_read_only(service, small_disk, sign)
    writers = [
        lambda: person.create(named("second", default="true")),
        lambda: person.update(first["profileid"], named("third")),
    ]
    assert_unavailable(*at_once(*writers * 2), within=10)
    listing = person.get(f"{PROFILES}?all=true")
    if listing.status_code != 200:
        assert_unavailable(listing, within=10)
    else:
        assert listing.json == [first]
    log = service.log()
    assert re.search("database unavailable: .*(read-?only|unable to open)", log, re.IGNORECASE)


def test_a_disk_that_is_writable_again_needs_no_restart(small_disk, serve):
    service = serve(f"sqlite:///{small_disk}/profiles.db")
    person = Person(service, administrator=True)
    profileid = person.create(named("first")).json["profileid"]
    start_read_only(service, small_disk, signal.SIGKILL)
    kinds = every_kind(person, profileid, "second")
    at_once(*(call for _, call in kinds * 2))
    remount(small_disk, "rw")
    updates = [lambda: person.update(profileid, named("third")).status_code] * 16
    wait_until(lambda: set(at_once(*updates)) == {200}, 5)
    assert_served(kinds)
