"""Many at once: first starts that make the tables, and writes and reads that lose nothing."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Event

import pytest
from databases import SCHEMA, database_at, default_profiles, fill, schema
from serving import PROFILES, ROOT, Person, Served, at_once, named, walk

from models import Profile

pytestmark = pytest.mark.long

FIRST_STARTS = 8
ROUNDS = 20

# First starts

FORKED_STARTS = """
import multiprocessing, sys
from app import create_app

def start(url, together):
    together.wait()
    create_app({"DATABASE_URL": url})

fork = multiprocessing.get_context("fork")
for url in sys.stdin.read().split():
    together = fork.Barrier(int(sys.argv[1]))
    starts = [fork.Process(target=start, args=(url, together)) for _ in range(together.parties)]
    for process in starts:
        process.start()
    for process in starts:
        process.join()
    print(*(process.exitcode for process in starts))
"""


def test_first_starts_at_once_make_every_table_once(make_empty_database):
    urls = [make_empty_database() for _ in range(ROUNDS)]
    done = subprocess.run(
        [sys.executable, "-c", FORKED_STARTS, str(FIRST_STARTS)],
        cwd=ROOT,
        input="\n".join(urls),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""  # where an unavailable database would be logged
    assert done.stdout.split() == ["0"] * FIRST_STARTS * ROUNDS
    assert [schema(url) for url in urls] == [SCHEMA] * ROUNDS


def test_init_db_at_once_makes_every_table_once(empty_database_url, tmp_path):
    service = Served(tmp_path, empty_database_url)  # never started: only its commands are run
    for done in at_once(*[partial(service.flask, "init-db")] * FIRST_STARTS):
        assert (done.returncode, done.stderr) == (0, "")
    assert schema(empty_database_url) == SCHEMA


# Writes and reads


def work(person, name, own, shared):
    """Sixteen creates, sixteen updates, each seen by the next, and reads; returns the created."""
    created = []
    for number in range(16):
        body = named(f"{name}.{number}", default="true")
        response = person.create(body)
        assert (response.status_code, response.json["fullName"]) == (201, body["full-name"])
        created.append(response.json)
        response = person.update(shared if number % 4 == 3 else own, body)
        assert (response.status_code, response.json["fullName"]) == (200, body["full-name"])
        if number % 4 == 0:
            response = person.get(f"{PROFILES}?limit=20")
            assert (response.status_code, len(response.json)) == (200, 20)
    return created


def assert_in_order(profiles):
    """Each profile once, and createdAt never increasing."""
    moments = [profile["createdAt"] for profile in profiles]
    assert moments == sorted(moments, reverse=True)
    assert len({profile["profileid"] for profile in profiles}) == len(profiles)


def walk_until(stop, person, expected):
    """Walk again and again; the rows of the start come once and in order each time."""
    for number in count():
        if stop.is_set():
            return number
        found = [row for page in walk(person, f"{PROFILES}?limit=7") for row in page]
        assert_in_order(found)
        assert [p["profileid"] for p in found if p["profileid"] in expected] == expected


def test_writes_and_reads_at_once_lose_nothing(empty_database_url, serve):
    service = serve(empty_database_url)
    person = Person(service, administrator=True)
    with database_at(empty_database_url):
        filled = fill(Profile, person.appid, 80, accountid=person.accountid)
    there, stop = [profile["profileid"] for profile in filled], Event()
    shared, *own = there[:17]
    with ThreadPoolExecutor(17) as pool:
        walker = pool.submit(walk_until, stop, person, there)
        workers = [pool.submit(work, person, f"w{i}", own[i], shared) for i in range(16)]
        try:
            created = [worker.result() for worker in workers]
        finally:
            stop.set()
        assert walker.result() > 1
    listed = person.profiles()
    assert_in_order(listed)
    by_id = {profile["profileid"]: profile for profile in listed}
    made = [profile for profiles in created for profile in profiles]
    assert len(made) == 256
    assert [by_id[profile["profileid"]] for profile in made] == made
    assert len(listed) == 80 + 256
    assert [profile for profile in listed if profile["profileid"] in there[17:]] == filled[17:]
    assert [by_id[profileid]["fullName"] for profileid in own] == [f"w{i}.14" for i in range(16)]
    name = by_id[shared]["fullName"]
    assert re.fullmatch(r"w\d+\.(3|7|11|15)", name)
    assert by_id[shared]["contactEmail"] == f"{name}@example.com"
    last = {profiles[-1]["profileid"] for profiles in created}
    with database_at(empty_database_url):
        assert default_profiles()[person.accountid] in last
