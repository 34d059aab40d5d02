"""The service killed and stopped: nothing acknowledged is lost, nothing is cut short."""

import json
import os
import shutil
import signal
import socket
import time
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from secrets import token_hex

import pytest
from databases import database_at, default_profiles, fill, is_sqlite, name_of, wait_until_dead
from serving import PROFILES, Person, at_once, named, repeating, wait_until

from models import Profile, as_objects, public_columns

pytestmark = pytest.mark.long


def create(person, default, acknowledged):
    """Create a profile, with or without ``default``, while the service comes and goes."""
    try:
        response = person.create(named(f"{person.accountid}.{token_hex(4)}", default=default))
    except (OSError, HTTPException):
        time.sleep(0.02)
    else:
        assert response.status_code == 201, response.text
        acknowledged.append(response.json)


def stored(url, folder):
    """What a dead service left behind: its profiles, newest first, and each account's default.

    SQLite is read from a copy, so that the service finds its files as they were left.
    """
    if is_sqlite(url):
        path, copy = Path(name_of(url)), folder / token_hex(4)
        copy.mkdir()
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copy(file, copy)
        url = f"sqlite:///{copy / path.name}"
    with database_at(url):
        rows = Profile.select(*public_columns(Profile)).order_by(Profile.id.desc()).tuples()
        return as_objects(Profile, rows), default_profiles()


def assert_stored(url, folder, people, acknowledged):
    """What was acknowledged is there, all is whole, and the defaults are the newest profiles."""
    profiles, defaults = stored(url, folder)
    by_id = {profile["profileid"]: profile for profile in profiles}
    assert len(by_id) == len(profiles)
    assert [by_id.get(profile["profileid"]) for profile in acknowledged] == acknowledged
    newest = dict.fromkeys(defaults)
    for profile in reversed(profiles):
        assert profile["contactEmail"] == f"{profile['fullName']}@example.com"
        assert profile["fullName"].startswith(profile["accountid"])
        newest[profile["accountid"]] = profile["profileid"]
    newest |= dict.fromkeys(person.accountid for person in people[::2])
    assert defaults == newest
    return profiles


def test_killed_three_times_it_keeps_what_it_acknowledged(empty_database_url, serve, tmp_path):
    service = serve(empty_database_url)
    people = at_once(*[partial(Person, service, administrator=True)] * 8)
    for _ in range(3):
        acknowledged = people[0].profiles()[::-1]
        enough = len(acknowledged) + 80
        defaults = zip(people, ["false", "true"] * 4, strict=True)
        with repeating(*(partial(create, *each, acknowledged) for each in defaults)):
            wait_until(lambda known=acknowledged, enough=enough: len(known) > enough)
            service.kill()
        wait_until_dead(service, empty_database_url)
        found = assert_stored(empty_database_url, tmp_path, people, acknowledged)
        service.start()
        assert service.wait_until_up().status_code == 200
        assert people[0].profiles() == found


def test_stopped_it_finishes_the_response_it_is_sending(empty_database_url, serve):
    service = serve(empty_database_url)
    person = Person(service, administrator=True)
    with database_at(empty_database_url):
        expected = fill(Profile, person.appid, 50_123, accountid=person.accountid)
    with closing(HTTPConnection("127.0.0.1", service.port, timeout=30)) as wire:
        wire.connect()
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        wire.request("GET", f"{PROFILES}?all=true", headers=person.headers)
        response = wire.getresponse()
        assert response.status == 200
        pieces = [response.read1(65_536)]
        os.kill(service.process.pid, signal.SIGTERM)
        while pieces[-1]:
            time.sleep(len(pieces[-1]) / 8_000_000)  # so at most 8 MB a second
            pieces.append(response.read1(65_536))
    assert json.loads(b"".join(pieces)) == expected
    assert service.process.wait(10) == 0
    with pytest.raises(ConnectionRefusedError):
        service.get("/health")
