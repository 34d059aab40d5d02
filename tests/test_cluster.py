"""The service on a MariaDB Galera cluster of three nodes, one of which dies."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from copy import copy
from functools import partial
from itertools import count
from secrets import token_hex
from threading import Event

import pytest
from cluster import Cluster, Entrance, missing
from databases import SCHEMA, schema
from serving import (
    PROFILES,
    ROOT,
    SESSIONS,
    Person,
    assert_unavailable,
    at_once,
    named,
    wait_until,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=f"a Galera cluster needs {', '.join(missing())}"),
]

WRITES = 166  # of each of six clients, about 1,000 in all
ROUNDS = 8
TABLES = ("account", "profile", "session")


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        yield cluster


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
        cluster.nodes[0].execute(f"CREATE DATABASE {name}")
    for node in cluster.nodes:
        node.synced("SELECT 1")
    yield names
    for name in names:
        cluster.nodes[0].execute(f"DROP DATABASE {name}")


@pytest.fixture
def services(cluster, database, serve):
    """The service on each node, with its tables made."""
    first, *others = cluster.nodes
    return [
        serve(first.url(database), WEB_CONCURRENCY="1"),
        *(serve(node.url(database), WEB_CONCURRENCY="1") for node in others),
    ]


def through_each(services):
    """The same administrator as a client of each service."""
    person = Person(services[0], administrator=True)
    people = [copy(person) for _ in services]
    for each, service in zip(people, services, strict=True):
        each.client = service.test_client()
        wait_until(lambda each=each: each.get(SESSIONS).status_code == 200)
    return people


def rows(node, database):
    """All rows of a node, table by table."""
    return [node.synced(f"SELECT * FROM {table} ORDER BY 1", database=database) for table in TABLES]


def assert_equal(cluster, database):
    """The nodes hold the same rows."""
    first, *others = [rows(node, database) for node in cluster.nodes]
    assert all(other == first for other in others)


def repeat(call, number):
    return [call() for _ in range(number)]


def assert_few_unavailable(responses, success):
    """At most 5 in 1,000 are the coded 503, and all others succeed."""
    failed = [response for response in responses if response.status_code != success]
    assert_unavailable(*failed, within=15)
    assert len(failed) <= len(responses) * 5 / 1_000, f"{len(failed)} of {len(responses)}"


# Writes through several nodes at once


def test_updates_of_one_profile_through_two_nodes_conflict_unnoticed(cluster, database, services):
    people = through_each(services[:2])
    profileid = people[0].create(named("first")).json["profileid"]
    calls = [
        partial(repeat, partial(person.update, profileid, named(f"name{index}")), WRITES)
        for index, person in enumerate(people * 3)
    ]
    responses = [response for found in at_once(*calls) for response in found]
    assert_few_unavailable(responses, 200)
    assert_equal(cluster, database)


def test_default_profiles_of_one_account_through_three_nodes(cluster, database, services):
    people = through_each(services)
    calls = [
        partial(repeat, partial(person.create, named(f"name{index}", default="true")), WRITES)
        for index, person in enumerate(people * 2)
    ]
    responses = [response for found in at_once(*calls) for response in found]
    assert_few_unavailable(responses, 201)
    created = {each.json["profileid"] for each in responses if each.status_code == 201}
    assert created == {profile["profileid"] for profile in people[0].profiles()}
    assert_equal(cluster, database)


def create_then_update(writer, reader):
    """The status of an update through one node of a profile created through another."""
    profileid = writer.create(named("first")).json["profileid"]
    return reader.update(profileid, named("second")).status_code


def test_a_profile_is_found_at_once_through_every_node(services):
    people = through_each(services)
    calls = [
        partial(repeat, partial(create_then_update, people[index % 3], people[index % 3 - 1]), 50)
        for index in range(6)
    ]
    assert {status for found in at_once(*calls) for status in found} == {200}


# First starts

INIT_DB = """
import multiprocessing, os, sys
from flask.cli import cli
import app

def start(url, together):
    os.environ["DATABASE_URL"] = url
    together.wait()
    cli(["init-db"])

fork = multiprocessing.get_context("fork")
for line in sys.stdin:
    urls = line.split()
    together = fork.Barrier(len(urls))
    starts = [fork.Process(target=start, args=(url, together)) for url in urls]
    for process in starts:
        process.start()
    for process in starts:
        process.join()
    print("statuses", *(process.exitcode for process in starts), flush=True)
"""


def test_first_starts_at_once_on_three_nodes(cluster):
    with new_databases(cluster, ROUNDS) as names:
        lines = [" ".join(node.url(name) for node in cluster.nodes) for name in names]
        done = subprocess.run(
            [sys.executable, "-c", INIT_DB],
            cwd=ROOT,
            input="\n".join(lines),
            capture_output=True,
            text=True,
            timeout=60,
        )
        statuses = [line for line in done.stdout.splitlines() if line.startswith("statuses")]
        assert statuses == ["statuses 0 0 0"] * ROUNDS, done.stderr
        for node in cluster.nodes:
            node.synced("SELECT 1")
            assert [schema(node.url(name)) for name in names] == [SCHEMA] * ROUNDS


# A node that serves nothing


@pytest.mark.parametrize(
    "off, on",
    [
        ("wsrep_reject_queries = ALL", "wsrep_reject_queries = NONE"),
        (
            "wsrep_provider_options = 'gmcast.isolate=1'",
            "wsrep_provider_options = 'gmcast.isolate=0'",
        ),
    ],
    ids=["told to reject queries", "without a quorum"],
)
def test_health_is_503_on_a_node_that_serves_nothing(cluster, services, off, on):
    people, node = through_each(services), cluster.nodes[2]
    with node.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL {off}")
        try:
            wait_until(lambda: services[2].get("/health").status_code == 503)
            calls = [
                lambda: services[2].get("/health"),
                lambda: people[2].create(named("first")),
                lambda: people[2].get(PROFILES),
            ]
            assert_unavailable(*at_once(*calls), within=5)
            wait_until(lambda: services[0].get("/health").status_code == 200)
        finally:
            cursor.execute(f"SET GLOBAL {on}")
    node.wait_until_ready()
    wait_until(lambda: services[2].get("/health").status_code == 200)
    assert people[2].create(named("second")).status_code == 201


# Killed


@pytest.fixture
def entrance(cluster):
    with closing(Entrance(cluster.nodes)) as entrance:
        yield entrance


def write_until(stop, person, acknowledged):
    """Create and update profiles; each response is the success or the coded 503."""
    for number in count():
        if stop.is_set():
            return
        body = named(f"{person.accountid}.{number}", default="true" if number % 2 else "false")
        response = person.create(body)
        if response.status_code == 201:
            response = person.update(response.json["profileid"], named(f"changed{number}"))
        if response.status_code == 200:
            acknowledged.append(response.json)
        else:
            assert_unavailable(response, within=15)
            time.sleep(0.2)


def test_a_node_killed_under_writes_loses_nothing(cluster, database, entrance, serve):
    service = serve(f"mysql://root@127.0.0.1:{entrance.port}/{database}")
    people = at_once(*[partial(Person, service, administrator=True)] * 6)
    acknowledged, stop = [], Event()

    def wait_for_writes():
        enough = len(acknowledged) + 100
        wait_until(lambda: len(acknowledged) > enough)

    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write_until, stop, person, acknowledged) for person in people]
        try:
            wait_for_writes()
            cluster.nodes[0].kill()
            wait_for_writes()
            cluster.start(cluster.nodes[0])
            wait_for_writes()
        finally:
            stop.set()
        for writer in writers:
            writer.result()
    stored = {profile["profileid"]: profile for profile in people[0].profiles()}
    assert [stored.get(profile["profileid"]) for profile in acknowledged] == acknowledged
    assert_equal(cluster, database)
    assert "Traceback" not in service.log()
