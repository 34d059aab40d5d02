"""The service on three MySQL servers with the same rows, all of which take writes."""

import os
import random
import time
from contextlib import contextmanager
from copy import copy
from functools import partial
from secrets import token_hex

import pytest
from cluster import Member, galera, missing
from databases import SCHEMA, Proxy, first_starts, schema
from serving import (
    SESSIONS,
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
    """A Galera cluster of MariaDB, or a group of MySQL; its nodes."""
    if request.param == "group":
        urls = os.environ.get("TEST_GROUP_URLS", "").split()
        if len(urls) != 3:
            pytest.skip(
                "set TEST_GROUP_URLS to the three mysql:// URLs of a group's members"
            )
        yield [Member(url) for url in urls]
    elif missing():
        pytest.skip(f"a Galera cluster needs {', '.join(missing())}")
    else:
        with galera() as nodes:
            yield nodes


@pytest.fixture
def database(cluster):
    """The name of a new database on every node."""
    with new_databases(cluster, 1) as [name]:
        yield name


@contextmanager
def new_databases(cluster, number):
    """The names of that many databases, which every node has."""
    names = [f"test_profiles_{token_hex(4)}" for _ in range(number)]
    for name in names:
        cluster[0].execute(f"CREATE DATABASE {name}")
    for node in cluster:
        node.synced("SELECT 1")
    yield names
    for name in names:
        cluster[0].execute(f"DROP DATABASE {name}")


@pytest.fixture
def services(cluster, database, serve):
    """The service on each node, each with a field of its own, and with the tables made."""
    settings = [
        {"WEB_CONCURRENCY": "1", "USER_PROFILE_FIELDS": field} for field in FIELDS
    ]
    return [
        serve(node.url(database), **own)
        for node, own in zip(cluster, settings, strict=True)
    ]


def through_each(services):
    """The same administrator as a client of each service."""
    person = Person(services[0], administrator=True)
    people = [copy(person) for _ in services]
    for each, service in zip(people, services, strict=True):
        each.client = service.test_client()
        wait_until(lambda each=each: each.get(SESSIONS).status_code == 200)
    return people


def body(text):
    return dict.fromkeys(FIELDS, text)


def on_each(cluster, database, sql):
    """The rows of a statement, which are the same on all nodes, and all of them serve."""
    first, *others = [node.synced(sql, database) for node in cluster]
    assert [other == first for other in others] == [True, True]
    assert [node.is_ready() for node in cluster] == [True] * 3
    return first


def assert_equal(cluster, database):
    """The nodes hold the same rows."""
    for table in ("account", "profile", "session"):
        on_each(cluster, database, f"SELECT * FROM {table} ORDER BY 1")


def test_writes_through_three_nodes_conflict_unnoticed(cluster, database, services):
    people = through_each(services)
    profileid = people[0].create(body("first")).json["profileid"]
    for person in people:
        wait_until(
            lambda each=person: each.update(profileid, body("")).status_code == 400
        )

    def write(person, writer):
        """Update the one profile, and create others, each the default one of the one account."""
        created = []
        for number in range(WRITES):
            updated = person.update(profileid, body(f"{writer}.{number}"))
            made = person.create(body("x") | {"default": "true"})
            assert (updated.status_code, made.status_code) == (200, 201)
            created.append(made.json["profileid"])
        return created

    calls = [partial(write, person, writer) for writer, person in enumerate(people * 2)]
    created = sum(at_once(*calls), [])
    profiles = on_each(
        cluster, database, f"SELECT profileid, {', '.join(FIELDS)} FROM profile"
    )
    found = {id: texts for id, *texts in profiles}
    assert found.keys() == {profileid, *created}
    last = [
        {f"{writer}.{WRITES - 1}" for writer in (node, node + 3)} for node in range(3)
    ]
    texts = zip(found[profileid], last, strict=True)
    assert all(text in either for text, either in texts), found[profileid]
    ((default,),) = on_each(cluster, database, "SELECT profileid FROM account")
    assert default in created
    assert_equal(cluster, database)


def test_first_starts_at_once_through_every_node(cluster):
    with new_databases(cluster, ROUNDS) as names:
        first_starts([[node.url(name) for node in cluster * 4] for name in names])
        for node in cluster:
            node.synced("SELECT 1")
            assert node.is_ready()
            assert [schema(node.url(name)) for name in names] == [SCHEMA] * ROUNDS


@pytest.fixture
def entrance(cluster):
    """A proxy that leads to every node."""
    with Proxy(*[node.url("") for node in cluster]) as entrance:
        yield entrance


def write(person, acknowledged):
    """Create and update a profile; each response is the success or the coded 503."""
    response = person.create(named("first", default=random.choice(["true", "false"])))
    if response.status_code == 201:
        response = person.update(response.json["profileid"], named(token_hex(4)))
    if response.status_code == 200:
        acknowledged.append(response.json)
    else:
        assert_unavailable(response, within=15)
        time.sleep(0.2)


@pytest.mark.parametrize("cluster", ["galera"], indirect=True)
def test_a_node_killed_under_writes_loses_nothing(cluster, database, entrance, serve):
    service = serve(entrance.url(cluster[0].url(database)))
    people = at_once(*[partial(Person, service, administrator=True)] * 6)
    acknowledged = []

    def wait_for_writes():
        enough = len(acknowledged) + 100
        wait_until(lambda: len(acknowledged) > enough)

    with repeating(*(partial(write, person, acknowledged) for person in people)):
        wait_for_writes()
        cluster[0].kill()
        wait_for_writes()
        cluster[0].start(cluster)
        wait_for_writes()
    stored = {profile["profileid"]: profile for profile in people[0].profiles()}
    assert [
        stored.get(profile["profileid"]) for profile in acknowledged
    ] == acknowledged
    assert_equal(cluster, database)
    assert "Traceback" not in service.log()
