"""A service on each member of a cluster, all of which take writes."""

import os
from contextlib import suppress
from copy import copy
from functools import partial
from secrets import token_hex
from urllib.parse import urlsplit

import pymysql
import pytest
from service import at_once, execute, named, sign_in, wait_until

SERVERS = os.environ.get("TEST_CLUSTER_URLS", "").split()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not SERVERS,
        reason="set TEST_CLUSTER_URLS to the mysql:// URLs, with blanks between them, "
        "of the members of a Galera cluster or of a MySQL group",
    ),
]
TURNS = 100
ALL_ROWS = "CHECKSUM TABLE account, profile, session"
DEFAULTS = "SELECT 1 FROM account JOIN profile USING (profileid)"


def same_on_all(urls, sql):
    """The rows of a statement, once every member has the same."""

    def rows():
        with suppress(pymysql.Error):  # a database or a table has not come yet
            found = [execute(url, sql) for url in urls]
            return found == found[:1] * len(urls) and found[0]

    return wait_until(rows, 90)


@pytest.fixture
def urls():
    """A new database, on each member."""
    name = f"test_profiles_{token_hex(4)}"
    servers = [urlsplit(server) for server in SERVERS]
    own = servers[0]._replace(path="/mysql").geturl()
    execute(own, f"CREATE DATABASE {name}")
    urls = [server._replace(path=f"/{name}").geturl() for server in servers]
    same_on_all(urls, "SELECT DATABASE()")
    yield urls
    execute(own, f"DROP DATABASE {name}")


def test_conflicts_between_members_are_repeated(urls, serve):
    """All writers update one profile, and set the default of one account."""
    services = [serve(url, WEB_CONCURRENCY="1") for url in urls]
    administrator = sign_in(services[0].app, administrator=True)
    first = administrator.create(named("first")).json
    same_on_all(urls, ALL_ROWS)

    def write(number, service):
        client = copy(administrator)
        client.application = service.app
        for turn in range(TURNS):
            body = named(f"{number}.{turn}", default="true")
            assert client.update(first["profileid"], body).status_code == 200
            assert client.create(body).status_code == 201

    writers = [*enumerate(services * 2)]
    at_once(*[partial(write, *writer) for writer in writers])
    same_on_all(urls, ALL_ROWS)
    *created, updated = administrator.profiles()
    assert len(created) == len(writers) * TURNS
    last = [f"{number}.{TURNS - 1}" for number, _ in writers]
    assert updated["fullName"] in last
    assert same_on_all(urls, DEFAULTS) == [(1,)]
