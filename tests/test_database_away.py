"""The database cut off, away, hanging, locked, full and read-only: 503 in time, nothing lost."""

import os
import re
import signal
import subprocess
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
    SESSIONS,
    Person,
    Served,
    assert_unavailable,
    at_once,
    named,
    wait_until,
)

pytestmark = pytest.mark.long
on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)


def every_kind(person, profileid):
    """A call of each kind of request."""
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
    assert {each.status_code for each in responses} == {200, 201}, [each.text for each in responses]


@on_mysql
def test_a_server_that_cuts_connections_is_away_or_hangs(empty_database_url, proxy, serve):
    service = serve(proxy.url(empty_database_url))
    person = Person(service, administrator=True)
    profileid = person.create(named("first")).json["profileid"]
    kinds = every_kind(person, profileid)
    for _ in range(2):
        assert_served(kinds * 4)
        assert cut_connections(empty_database_url) > 1
    assert {call().status_code for call in kinds} == {200, 201}
    assert "database unavailable" not in service.log()

    before = person.profiles()
    for _ in range(2):
        proxy.go()
        assert_unavailable(*at_once(*kinds, lambda: person.get("/health")), within=5)
        proxy.come()
        assert person.profiles() == before

    proxy.hang()  # some threads have a connection, others need one
    assert_unavailable(*at_once(*kinds[:4]), within=15)
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
    assert [person.create(named("first")).json] == person.profiles()


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


def test_a_first_start_on_a_full_disk_says_so(small_disk, tmp_path):
    (small_disk / "ballast").write_bytes(bytes((24 << 20) - 4096))
    service = Served(tmp_path, f"sqlite:///{small_disk}/profiles.db")  # only its commands are run
    done = service.flask("init-db")
    assert (done.returncode, done.stdout) == (1, "")
    reason, error = done.stderr.splitlines()
    assert re.search("database unavailable: .*full", reason)
    assert error == "Error: database-unavailable"


def test_a_full_disk_is_503_until_there_is_room(small_disk, serve):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(18 << 20))
    service = serve(f"sqlite:///{small_disk}/profiles.db", USER_PROFILE_FIELDS="location")
    person, acknowledged = Person(service, administrator=True), []
    for _ in range(2):
        while (response := person.create({"location": "x" * 60_000})).status_code == 201:
            acknowledged.insert(0, response.json)
        assert_unavailable(response, within=5)
    assert len(acknowledged) > 10
    assert re.search("unavailable:.* full", service.log())
    assert person.profiles() == acknowledged
    ballast.unlink()
    for _ in range(5):
        response = person.create({"location": "x" * 60_000, "default": "true"})
        assert response.status_code == 201
        acknowledged.insert(0, response.json)
    assert person.profiles() == acknowledged


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_read_only_disk_is_503_until_it_is_writable(small_disk, serve, sign):
    url = f"sqlite:///{small_disk}/profiles.db"
    service = serve(url)
    person = Person(service, administrator=True)
    first = person.create(named("first", default="true")).json
    kinds = every_kind(person, first["profileid"])
    service.kill(sign)
    wait_until_dead(service, url)
    remount(small_disk, "ro")
    service.start()
    wait_until(lambda: service.get("/health"))
    assert_unavailable(*at_once(*kinds[1:4] * 2), within=10)
    listing = person.get(f"{PROFILES}?all=true")
    if listing.status_code == 200:
        assert listing.json == [first]
    else:
        assert_unavailable(listing, within=10)
    log = service.log()
    assert re.search("database unavailable: .*(read-?only|unable to open)", log, re.IGNORECASE)
    remount(small_disk, "rw")
    updates = [lambda: person.update(first["profileid"], named("third")).status_code] * 16
    wait_until(lambda: set(at_once(*updates)) == {200}, 5)
    assert_served(kinds)
