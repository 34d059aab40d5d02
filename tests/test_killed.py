"""The service killed: nothing acknowledged is lost, nothing is cut short."""

from contextlib import suppress
from functools import partial
from http.client import HTTPException
from secrets import token_hex

import pytest
from databases import connections, execute
from serving import Person, named, repeating, wait_until

pytestmark = pytest.mark.long


def test_killed_three_times_it_keeps_what_it_acknowledged(empty_database_url, serve):
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
        service.start()
        assert service.wait_until_up().status_code == 200
        found = people[0].profiles()
        newest = {}
        for profile in found:  # the newest one comes first
            assert profile["contactEmail"] == f"{profile['fullName']}@example.com"
            assert profile["fullName"].startswith(profile["accountid"])
            if profile["accountid"] in with_default:
                newest.setdefault(profile["accountid"], profile["profileid"])
        accounts = "SELECT accountid, profileid FROM account"
        for accountid, profileid in execute(empty_database_url, accounts):
            assert profileid == newest.get(accountid)
        for profile in acknowledged:
            assert profile in found
        acknowledged[:] = found
