"""The service killed and stopped: nothing acknowledged is lost, nothing is cut short."""

import shutil
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from secrets import token_hex

import pytest
from databases import connections, execute, is_sqlite, name_of
from serving import Person, at_once, named, repeating, wait_until

from models import Profile, as_objects, public_columns

pytestmark = pytest.mark.long


def create(person, default, acknowledged):
    """Create a profile, with or without ``default``, while the service comes and goes."""
    with suppress(OSError, HTTPException):
        response = person.create(
            named(f"{person.accountid}.{token_hex(4)}", default=default)
        )
        assert response.status_code == 201, response.text
        acknowledged.append(response.json)


def stored(url, folder):
    """What a dead service left behind: its profiles, newest first, and each account's default."""
    if is_sqlite(
        url
    ):  # read from a copy, so that the service finds its files as they were left
        path, copy = Path(name_of(url)), folder / token_hex(4)
        copy.mkdir()
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copy(file, copy)
        url = f"sqlite:///{copy / path.name}"
    names = ", ".join(public_columns(Profile))
    rows = execute(url, f"SELECT {names} FROM profile ORDER BY id DESC")
    return as_objects(Profile, rows), dict(
        execute(url, "SELECT accountid, profileid FROM account")
    )


def assert_stored(url, folder, people, acknowledged):
    """What was acknowledged is there, all is whole, and the defaults are the newest profiles."""
    profiles, defaults = stored(url, folder)
    assert len({each["profileid"] for each in profiles}) == len(profiles)
    assert all(profile in profiles for profile in acknowledged)
    newest = dict.fromkeys(defaults)
    for profile in reversed(profiles):
        assert profile["contactEmail"] == f"{profile['fullName']}@example.com"
        assert profile["fullName"].startswith(profile["accountid"])
        newest[profile["accountid"]] = profile["profileid"]
    newest |= dict.fromkeys(person.accountid for person in people[::2])
    assert defaults == newest
    return profiles


def test_killed_three_times_it_keeps_what_it_acknowledged(
    empty_database_url, serve, tmp_path
):
    service = serve(empty_database_url)
    people = at_once(*[partial(Person, service, administrator=True)] * 4)
    for number in range(1, 4):
        acknowledged = people[0].profiles()[::-1]
        defaults = zip(people, ["false", "true"] * 2, strict=True)
        with repeating(*(partial(create, *each, acknowledged) for each in defaults)):
            wait_until(lambda: len(acknowledged) > 60 * number)  # noqa: B023
            service.kill()
        wait_until(lambda: not connections(empty_database_url))
        found = assert_stored(empty_database_url, tmp_path, people, acknowledged)
        service.start()
        assert service.wait_until_up().status_code == 200
        assert people[0].profiles() == found
