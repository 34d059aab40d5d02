"""The service killed: nothing acknowledged is lost, nothing is cut short."""

import shutil
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from secrets import token_hex

import pytest
from databases import connections, is_sqlite, name_of, stored
from serving import Person, named, repeating, wait_until

pytestmark = pytest.mark.long


def left_behind(url, folder):
    """The rows of a dead service: each profile by its identifier, and the accounts."""
    if is_sqlite(url):  # read from a copy, so that the service finds its own files
        path = Path(name_of(url))
        copies = folder / token_hex(4)
        copies.mkdir()
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copy(file, copies)
        url = f"sqlite:///{copies / path.name}"
    tables = stored(url)
    profiles = {row["profileid"]: row for row in tables["profile"]}
    assert len(profiles) == len(tables["profile"])
    return profiles, tables["account"]


def test_killed_three_times_it_keeps_what_it_acknowledged(
    empty_database_url, serve, tmp_path
):
    service = serve(empty_database_url)
    people = [Person(service, administrator=True) for _ in range(4)]
    with_default = [person.accountid for person in people[2:]]
    acknowledged = []

    def create(person):
        """Create a profile while the service comes and goes."""
        name = f"{person.accountid}.{token_hex(4)}"
        default = str(person.accountid in with_default).lower()
        with suppress(OSError, HTTPException):
            response = person.create(named(name, default=default))
            assert response.status_code == 201, response.text
            acknowledged.append(response.json)

    for _ in range(3):
        enough = len(acknowledged) + 60
        with repeating(*[partial(create, person) for person in people]):
            wait_until(lambda: len(acknowledged) > enough)  # noqa: B023
            service.kill()
        wait_until(lambda: not connections(empty_database_url))

        profiles, accounts = left_behind(empty_database_url, tmp_path)
        newest = {}
        for profile in profiles.values():  # the oldest one comes first
            assert profile["contactEmail"] == f"{profile['fullName']}@example.com"
            assert profile["fullName"].startswith(profile["accountid"])
            if profile["accountid"] in with_default:
                newest[profile["accountid"]] = profile["profileid"]
        for account in accounts:
            assert account["profileid"] == newest.get(account["accountid"])

        service.start()
        assert service.wait_until_up().status_code == 200
        found = people[0].profiles()
        assert [profile["profileid"] for profile in found] == list(profiles)[::-1]
        for profile in found:
            row = profiles[profile["profileid"]]
            del row["id"]
            assert row.items() <= profile.items()
        for profile in acknowledged:
            assert profile in found
        acknowledged[:] = found
