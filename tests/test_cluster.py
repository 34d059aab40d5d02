"""The service on three MySQL servers with the same rows, all of which take writes."""

import os
import random
import time
from contextlib import contextmanager
from copy import copy
from functools import partial
from secrets import token_hex

import pytest
from cluster import Node, galera, missing
from databases import SCHEMA, Proxy, first_starts, schema
from serving import (
    Person,
    assert_unavailable,
    at_once,
    named,
    repeating,
    wait_until,
)

pytestmark = pytest.mark.long
WRITES = 166  # of each of six clients, about 1,000 in all
ROUNDS = 8
FIELDS = ("phone", "occupation", "location")


@pytest.fixture(scope="module", params=["galera", "group"])
def cluster(request):
    """The nodes of a Galera cluster of MariaDB, or of a group of MySQL."""
    if request.param == "group":
        urls = os.environ.get("TEST_GROUP_URLS", "").split()
        if len(urls) != 3:
            pytest.skip("set TEST_GROUP_URLS to the mysql:// URLs of a group's members")
        yield [Node("group", url) for url in urls]
    elif missing():
        pytest.skip(f"a Galera cluster needs {', '.join(missing())}")
    else:
        with galera() as nodes:
            yield nodes


def synchronize(cluster):
    """Wait until every node has what the others have committed, and serves."""
    for node in cluster:
        node.synced("SELECT 1")
        assert node.is_ready()


@contextmanager
def new_databases(cluster, number):
    """The names of that many databases, which every node has."""
    names = [f"test_profiles_{token_hex(4)}" for _ in range(number)]
    cluster[0].execute(*[f"CREATE DATABASE {name}" for name in names])
    synchronize(cluster)
    yield names
    cluster[0].execute(*[f"DROP DATABASE {name}" for name in names])


@pytest.fixture
def database(cluster):
    """The name of a new database on every node."""
    with new_databases(cluster, 1) as [name]:
        yield name


@pytest.fixture
def people(cluster, database, serve):
    """An administrator as a client of three services.

    Each service has a node of its own and a field of its own.
    """
    services = []
    for node, field in zip(cluster, FIELDS, strict=True):
        settings = {"WEB_CONCURRENCY": "1", "USER_PROFILE_FIELDS": field}
        services.append(serve(node.url(database), **settings))
    person = Person(services[0], administrator=True)
    people = []
    for service in services:
        people.append(copy(person))
        people[-1].client = service.test_client()
    synchronize(cluster)
    return people


def body(text):
    return dict.fromkeys(FIELDS, text)


def on_each(cluster, database, sql):
    """The rows of a statement, the same on all nodes, all of which serve."""
    synchronize(cluster)
    rows = cluster[0].synced(sql, database)
    for node in cluster:
        assert node.synced(sql, database) == rows
    return rows


def assert_equal(cluster, database):
    """The nodes hold the same rows."""
    for table in ("account", "profile", "session"):
        on_each(cluster, database, f"SELECT * FROM {table} ORDER BY 1")


def test_writes_through_three_nodes_conflict_unnoticed(cluster, database, people):
    first = people[0].create(body("first")).json
    profileid = first["profileid"]
    synchronize(cluster)

    def write(person, writer):
        """Update the one profile; create others, each of them the default."""
        created = []
        for number in range(WRITES):
            updated = person.update(profileid, body(f"{writer}.{number}"))
            assert updated.status_code == 200
            made = person.create(body("x") | {"default": "true"})
            assert made.status_code == 201
            created.append(made.json["profileid"])
        return created

    writers = [partial(write, people[number % 3], number) for number in range(6)]
    created = sum(at_once(*writers), [])
    columns = ", ".join(FIELDS)
    rows = on_each(cluster, database, f"SELECT profileid, {columns} FROM profile")
    texts = {id: texts for id, *texts in rows}
    assert texts.keys() == {profileid, *created}
    last = WRITES - 1
    for node, text in enumerate(texts[profileid]):
        assert text in (f"{node}.{last}", f"{node + 3}.{last}")
    ((default,),) = on_each(cluster, database, "SELECT profileid FROM account")
    assert default in created
    assert_equal(cluster, database)


@pytest.mark.parametrize("cluster", ["galera"], indirect=True)
def test_first_starts_at_once_through_every_node(cluster):
    with new_databases(cluster, ROUNDS) as names:
        rounds = []
        for name in names:
            rounds.append([node.url(name) for node in cluster * 4])
        first_starts(rounds)
        synchronize(cluster)
        for url in sum(rounds, []):
            assert schema(url) == SCHEMA


@pytest.mark.parametrize("cluster", ["galera"], indirect=True)
def test_a_node_killed_under_writes_loses_nothing(cluster, database, serve):
    acknowledged = []

    def write(person):
        """Create and update a profile; each response is a success or the 503."""
        default = random.choice(["true", "false"])
        response = person.create(named("first", default=default))
        if response.status_code == 201:
            profileid = response.json["profileid"]
            response = person.update(profileid, named(token_hex(4)))
        if response.status_code == 200:
            acknowledged.append(response.json)
        else:
            assert_unavailable(response, within=15)
            time.sleep(0.2)

    def wait_for_writes():
        enough = len(acknowledged) + 100
        wait_until(lambda: len(acknowledged) > enough)

    urls = [node.url(database) for node in cluster]
    with Proxy(*urls) as entrance:
        service = serve(entrance.url(urls[0]))
        person = Person(service, administrator=True)
        with repeating(*[partial(write, person)] * 6):
            wait_for_writes()
            cluster[0].kill()
            wait_for_writes()
            cluster[0].start()
            wait_for_writes()
        kept = person.profiles()
        for profile in acknowledged:
            assert profile in kept
        assert_equal(cluster, database)
        assert "Traceback" not in service.log()
