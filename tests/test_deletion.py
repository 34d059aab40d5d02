"""``flask delete-account``: all of an account, also while it is in use, and nothing else."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from threading import Thread

import pytest
from databases import driver, execute, fill, is_sqlite, name_of, stored, wait_until_one_waits
from serving import Person, at_once, named, run, wait_until

from accounts import create_session
from app import create_app
from database import connection
from errors import ServiceError
from models import Profile, Session
from operations import create_profile, update_profile


@pytest.fixture
def app(empty_database_url):
    app = create_app({"DATABASE_URL": empty_database_url})
    app.url = empty_database_url
    with app.app_context():
        yield app


def test_an_account_with_more_rows_than_a_statement_deletes(app, command):
    person = Person(app)
    others = [Person(app), Person(app, appid="shop", administrator=True)]
    for each in person, *others:
        assert each.create(named("name", default="true")).status_code == 201
    for model, count in (Profile, 1_000), (Session, 1_500):
        fill(model, "default", count, accountid=person.accountid)
    for model in (Profile, Session):
        fill(model, "default", 3)
    before = stored(app.url)
    counts = {"profiles": 1_001, "sessions": 1_501}
    deleted = command("delete-account", person.accountid)
    assert deleted == {"object": "deletion", "accountid": person.accountid, **counts}
    assert stored(app.url) == {
        table: [row for row in rows if row["accountid"] != person.accountid]
        for table, rows in before.items()
    }
    assert person.create(named("name")).status_code == 401
    assert others[0].create(named("name")).status_code == 201
    assert command("delete-account", person.accountid) == "Error: invalid-accountid"


def test_a_deletion_that_fails_deletes_nothing(app, command):
    person = Person(app)
    fill(Profile, "default", 600, accountid=person.accountid)
    before = stored(app.url)
    execute(app.url, "ALTER TABLE session RENAME TO away")
    assert command("delete-account", person.accountid) == "Error: database-unavailable"
    execute(app.url, "ALTER TABLE away RENAME TO session")
    assert stored(app.url) == before
    assert command("delete-account", person.accountid)["profiles"] == 600


@pytest.mark.parametrize("default", [True, False])
def test_a_request_whose_account_is_deleted_before_it_writes(app, default):
    user, other = Person(app), Person(app)
    assert user.account and other.account
    profileid = other.create(named("name")).json["profileid"]

    def body(person):
        """A body that is read once its caller has been checked."""
        thread = Thread(target=run, args=(app, "delete-account", person.accountid))
        thread.start()
        thread.join()
        return named("late", default=default)

    for read in (lambda: body(user), named("late", default=default)):
        with pytest.raises(ServiceError, match="^invalid-accountid$") as caught:
            create_profile(user.account, user.accountid, read)
        assert caught.value.status == 404
    with pytest.raises(ServiceError, match="^invalid-profileid$") as caught:
        update_profile(other.account, profileid, lambda: body(other))
    assert caught.value.status == 404
    assert not any(stored(app.url).values())


def test_an_account_that_somebody_else_deletes_meanwhile(app, command):
    person = Person(app)
    with driver(app.url) as (cursor, _):
        cursor.execute("BEGIN")
        cursor.execute("DELETE FROM account")
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(command, "delete-account", person.accountid)
            if not is_sqlite(app.url):
                wait_until_one_waits()
            cursor.execute("COMMIT")
    assert answer.result() == "Error: invalid-accountid"
    assert len(stored(app.url)["session"]) == 1


def test_requests_while_their_account_is_deleted(app, command):
    """Each ends in success or in the code of what is gone, and none leaves a row of nobody."""
    person, seen = Person(app), set()
    profileid = person.create(named("name")).json["profileid"]
    codes = {"sign-in-required", "invalid-accountid", "invalid-profileid"}

    def requests(name, send):
        for _ in range(2_000):
            response = send()
            if response.status_code >= 400:
                break
            seen.add(name)
        assert response.json.get("message") in codes

    def sessions():
        with pytest.raises(ServiceError, match="^invalid-accountid$"), connection():
            for _ in range(2_000):
                create_session(person.accountid, 60)
                seen.add("session")

    def deletion():
        wait_until(lambda: len(seen) == 4)
        assert command("delete-account", person.accountid)["object"] == "deletion"

    at_once(
        lambda: requests("update", lambda: person.update(profileid, named("name"))),
        lambda: requests("create", lambda: person.create(named("name"))),
        lambda: requests("default", lambda: person.create(named("name", default="true"))),
        sessions,
        deletion,
    )
    assert not any(stored(app.url).values())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # MySQL's are not at hand
def test_what_was_deleted_cannot_be_read_in_the_file(app, command):
    person, other, text = Person(app), Person(app), token_hex(16)
    for phone in (text, text * 2_000):
        create_profile(
            person.account, person.accountid, {"phone": phone}, user_profile_fields=["phone"]
        )
    other.create(named("name"))
    ours = [each.encode() for each in (text, person.accountid, person.session["sessionid"])]

    def found():
        """Which of the texts are in the file or in its log."""
        paths = name_of(app.url), f"{name_of(app.url)}-wal"
        contents = b"".join(Path(path).read_bytes() for path in paths)
        return [each for each in ours if each in contents]

    assert found() == ours
    command("delete-account", person.accountid)
    assert found() == []
    assert len(stored(app.url)["profile"]) == 1
