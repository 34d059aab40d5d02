"""``flask delete-account``: all of an account, also while it is in use, and nothing else."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest
from databases import (
    driver,
    execute,
    fill,
    is_sqlite,
    name_of,
    stored,
    wait_until_one_waits,
)
from serving import ROOT, Person, at_once, named, run, wait_until

from accounts import create_session, delete_account
from app import create_app
from database import connection, transaction
from errors import ServiceError
from models import Account, Profile, Session
from operations import create_profile, update_profile


@pytest.fixture
def app(empty_database_url):
    app = create_app({"DATABASE_URL": empty_database_url})
    app.url = empty_database_url
    with app.app_context():
        yield app


def test_all_of_an_account_and_nothing_else_or_nothing(app, command):
    person, other = Person(app), Person(app)
    for each in person, other:
        each.create(named("name", default="true"))
    for model, count in (Profile, 100), (Session, 150):
        fill(model, "default", count, accountid=person.accountid)
        fill(model, "default", 3)
    before = stored(app.url)
    execute(app.url, "ALTER TABLE session RENAME TO away")
    assert command("delete-account", person.accountid) == "Error: database-unavailable"
    execute(app.url, "ALTER TABLE away RENAME TO session")
    assert stored(app.url) == before
    deleted = command("delete-account", person.accountid)
    gone = {"accountid": person.accountid, "profiles": 101, "sessions": 151}
    assert deleted == {"object": "deletion", **gone}
    for table, rows in stored(app.url).items():
        assert rows == [
            row for row in before[table] if row["accountid"] != person.accountid
        ]
    assert person.create(named("name")).status_code == 401
    assert other.create(named("name")).status_code == 201
    assert command("delete-account", person.accountid) == "Error: invalid-accountid"


@pytest.mark.parametrize("default", ["true", ""])
def test_a_call_whose_account_is_deleted_before_it_writes(app, default):
    user, body = Person(app).account, named("late", default=default)
    profileid = create_profile(user, user.accountid, body)["profileid"]
    run(app, "delete-account", user.accountid)
    create = partial(create_profile, user, user.accountid, body)
    for call in create, partial(update_profile, user, profileid, body):
        with pytest.raises(
            ServiceError, match="^invalid-(account|profile)id$"
        ) as caught:
            call()
        assert caught.value.status == 404
    assert not any(stored(app.url).values())


def test_requests_while_their_account_is_deleted(app, command):
    """Each ends in success or in the code of what is gone, and none leaves a row of nobody."""
    person, seen = Person(app), set()
    profileid = person.create(named("name")).json["profileid"]
    codes = {"sign-in-required", "invalid-accountid", "invalid-profileid"}
    sends = (
        lambda: person.update(profileid, named("name")),
        lambda: person.create(named("name")),
        lambda: person.create(named("name", default="true")),
    )

    def requests(send):
        while "message" not in (answer := send().json):
            seen.add(send)
        assert answer["message"] in codes

    def sessions():
        with pytest.raises(ServiceError, match="^invalid-accountid$"), connection():
            while create_session(person.accountid, 60):
                seen.add(sessions)

    def deletion():
        wait_until(lambda: len(seen) == 4)
        assert command("delete-account", person.accountid)["object"] == "deletion"

    at_once(*[partial(requests, each) for each in sends], sessions, deletion)
    assert not any(stored(app.url).values())


def test_a_deletion_within_a_transaction_leaves_no_orphan(app):
    """Though another process adds a profile after the transaction has read."""
    person = Person(app)
    with transaction(), ThreadPoolExecutor(1) as pool:
        assert Account.select().count() == 1
        if not is_sqlite(app.url):  # where it would have to wait
            assert pool.submit(person.create, named("name")).result().status_code == 201
        deleted = delete_account(person.accountid)
    assert deleted["profiles"] == (0 if is_sqlite(app.url) else 1)
    assert not any(stored(app.url).values())


def test_a_deletion_beside_a_reader(app, command):
    """Neither it nor those who write at the same time wait for the reader's end."""
    person, writer = Person(app), Person(app)
    with driver(app.url) as (cursor, _):
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM account")
        began = time.monotonic()
        writes = [lambda: writer.create(named("name")).status_code] * 3
        deleted, *made = at_once(
            lambda: command("delete-account", person.accountid), *writes
        )
    assert deleted["sessions"] == 1 and made == [201] * 3
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "database_url", ["sqlite"], indirect=True
)  # MySQL's are not at hand
def test_what_was_deleted_cannot_be_read_once_it_is_overwritten(app, command):
    """By the line of OPERATING.md, while the service has the file open."""
    overwrite = re.search(
        'sqlite3 .* "(VACUUM;.*)"', (ROOT / "OPERATING.md").read_text()
    )[1]
    person, text = Person(app), token_hex(16)
    phone, own = {"user_profile_fields": ["phone"]}, person.account
    made = [
        create_profile(own, own.accountid, {"phone": text}, **phone) for _ in range(20)
    ]
    for each in made:  # rows that grow split the pages
        update_profile(own, each["profileid"], {"phone": text * 2_000}, **phone)
    ours = [
        each.encode() for each in (text, own.accountid, person.session["sessionid"])
    ]

    def found():
        """Which of the texts are in the file or in its log."""
        files = [Path(name_of(app.url) + end).read_bytes() for end in ("", "-wal")]
        return [each for each in ours if each in b"".join(files)]

    command("delete-account", person.accountid)
    assert found() == ours
    with driver(app.url) as (cursor, _):
        results = [cursor.execute(each).fetchall() for each in overwrite.split(";")]
    assert results == [[], [(0, 0, 0)]]
    assert found() == []


def test_an_account_that_is_deleted_twice_at_once(app, command):
    """The second one waits for the first, and finds nothing."""
    person = Person(app)
    with ThreadPoolExecutor(1) as pool, driver(app.url) as (cursor, _):
        cursor.execute("BEGIN")
        cursor.execute("DELETE FROM account")
        answer = pool.submit(command, "delete-account", person.accountid)
        if not is_sqlite(app.url):
            wait_until_one_waits()
        time.sleep(0.1)
        cursor.execute("COMMIT")
        assert answer.result() == "Error: invalid-accountid"
