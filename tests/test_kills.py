"""The service killed: nothing acknowledged is lost, nothing is cut short."""

from contextlib import suppress
from functools import partial
from http.client import HTTPException
from secrets import token_hex

import pytest
from service import execute, named, repeating, sign_in, wait_until

pytestmark = pytest.mark.long

# Each profile of an administrator became the default; no other profile did.
WRONG_DEFAULTS = """
SELECT * FROM account
WHERE COALESCE(profileid, '') != COALESCE((
    SELECT profileid FROM profile
    WHERE profile.accountid = account.accountid AND administrator
    ORDER BY id DESC LIMIT 1), '')"""


def test_killed_three_times_it_keeps_what_it_acknowledged(empty_database_url, serve):
    service = serve(empty_database_url)
    administrator = sign_in(service.app, administrator=True)
    acknowledged = []

    def create(client, default):
        """Create a profile while the service comes and goes."""
        name = token_hex(8)
        with suppress(OSError, HTTPException):
            response = client.create(named(name, default=default))
            assert response.status_code == 201
            acknowledged.append(response.json)

    calls = [
        partial(create, administrator, "true"),
        partial(create, sign_in(service.app), "false"),
    ]
    for _ in range(3):
        enough = len(acknowledged) + 60
        with repeating(*calls * 2):
            wait_until(lambda: len(acknowledged) > enough)  # noqa: B023
            service.kill()
        service.start()
        service.wait_until_up()
        found = administrator.profiles()
        for profile in found:
            email = f"{profile['fullName']}@example.com"
            assert profile["contactEmail"] == email
        assert execute(empty_database_url, WRONG_DEFAULTS) == []
        assert all(profile in found for profile in acknowledged)
        acknowledged[:] = found
