"""The service killed and stopped: nothing acknowledged is lost, nothing is cut short."""

import json
import os
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from secrets import token_hex
from threading import Event

import pytest
from databases import (
    database_at,
    default_profiles,
    fill,
    is_sqlite,
    name_of,
    wait_until_dead,
)
from serving import ALL_FIELDS, PROFILES, Person, at_once, wait_until

from models import Profile, as_objects, public_columns

pytestmark = pytest.mark.long


def create_until(stop, person, acknowledged, default):
    """Create profiles, each with or without ``default``, while the service comes and goes."""
    for number in count():
        if stop.is_set():
            return
        body = whole_body(f"{person.accountid}.{number}") | ({"default": "true"} if default else {})
        try:
            response = person.create(body)
        except (OSError, HTTPException):
            time.sleep(0.02)  # and try again, until the service is back
            continue
        assert response.status_code == 201, response.text
        acknowledged.append(response.json)


def whole_body(name):
    """A value for each of the ten fields; all but the date contain the name."""
    body = dict.fromkeys(ALL_FIELDS.split(","), name)
    emails = dict.fromkeys(("contact-email", "display-email"), f"{name}@example.com")
    return body | emails | {"dob": "1950-01-31"}


def assert_whole(profile):
    """The ten fields are those of one body that was sent."""
    name = profile["fullName"]
    texts = ("companyName", "displayName", "phone", "occupation", "location", "website")
    assert [profile[text] for text in texts] == [name] * 6
    assert profile["contactEmail"] == profile["displayEmail"] == f"{name}@example.com"
    assert profile["dob"] == "1950-01-31"
    assert name.startswith(profile["accountid"])


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
        assert_whole(profile)
        newest[profile["accountid"]] = profile["profileid"]
    newest |= dict.fromkeys(person.accountid for person in people[::2])
    assert defaults == newest
    return profiles


def has_grown(items, number):
    return len(items) > number


def test_killed_three_times_it_keeps_what_it_acknowledged(empty_database_url, serve, tmp_path):
    service = serve(empty_database_url, USER_PROFILE_FIELDS=ALL_FIELDS)
    people = at_once(*[partial(Person, service, administrator=True)] * 8)
    for _ in range(3):
        acknowledged, stop = people[0].profiles()[::-1], Event()
        with ThreadPoolExecutor(8) as pool:
            writers = [
                pool.submit(create_until, stop, person, acknowledged, bool(index % 2))
                for index, person in enumerate(people)
            ]
            try:
                wait_until(partial(has_grown, acknowledged, len(acknowledged) + 80))
            finally:
                service.kill()
                stop.set()
        for writer in writers:
            writer.result()
        wait_until_dead(service, empty_database_url)
        found = assert_stored(empty_database_url, tmp_path, people, acknowledged)
        service.start()
        assert service.wait_until_up().status_code == 200
        assert people[0].profiles() == found


def read_slowly(response, pieces):
    """Read the rest of the response, at most 8 MB a second."""
    while piece := response.read1(65_536):
        pieces.append(piece)
        time.sleep(len(piece) / 8_000_000)


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
        read_slowly(response, pieces)
    assert json.loads(b"".join(pieces)) == expected
    assert service.process.wait(10) == 0
