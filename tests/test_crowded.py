"""Many at once: first starts that make the tables, and writes and reads that lose nothing."""

import re
from functools import partial

import pytest
from databases import SCHEMA, database_at, default_profiles, fill, first_starts, schema
from serving import PROFILES, Person, at_once, named, repeating, walk

from models import Profile

pytestmark = pytest.mark.long

ROUNDS = 20


def test_first_starts_at_once_make_every_table_once(make_empty_database):
    urls = [make_empty_database() for _ in range(ROUNDS)]
    first_starts([[url] * 8 for url in urls])
    assert [schema(url) for url in urls] == [SCHEMA] * ROUNDS


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


def test_writes_and_reads_at_once_lose_nothing(empty_database_url, serve):
    service = serve(empty_database_url)
    person = Person(service, administrator=True)
    with database_at(empty_database_url):
        filled = fill(Profile, person.appid, 80, accountid=person.accountid)
    there, walks = [profile["profileid"] for profile in filled], []
    shared, *own = there[:17]

    def walk_all():
        """The rows of the start come once and in order each time."""
        found = [row for page in walk(person, f"{PROFILES}?limit=7") for row in page]
        assert_in_order(found)
        assert [p["profileid"] for p in found if p["profileid"] in there] == there
        walks.append(found)

    with repeating(walk_all):
        created = at_once(*[partial(work, person, f"w{i}", own[i], shared) for i in range(16)])
    assert len(walks) > 1
    listed = person.profiles()
    assert_in_order(listed)
    assert len(listed) == 80 + 256
    by_id = {profile["profileid"]: profile for profile in listed}
    made = sum(created, [])
    assert [by_id[profile["profileid"]] for profile in made] == made
    assert [profile for profile in listed if profile["profileid"] in there[17:]] == filled[17:]
    assert [by_id[profileid]["fullName"] for profileid in own] == [f"w{i}.14" for i in range(16)]
    name = by_id[shared]["fullName"]
    assert re.fullmatch(r"w\d+\.(3|7|11|15)", name)
    assert by_id[shared]["contactEmail"] == f"{name}@example.com"
    last = {profiles[-1]["profileid"] for profiles in created}
    with database_at(empty_database_url):
        assert default_profiles()[person.accountid] in last
