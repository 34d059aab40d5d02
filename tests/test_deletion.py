"""``flask delete-account``: all of an account, also one in use, and nothing else."""

import re
import time
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest
from databases import (
    driver,
    execute,
    fill,
    is_empty,
    is_sqlite,
    name_of,
    on_sqlite,
    stored,
    wait_until_one_waits,
)
from serving import ROOT, Person, Threads, at_once, named, run, wait_until

from accounts import create_session, delete_account
from database import connection, transaction
from errors import ServiceError
from models import Account, Profile, Session
from operations import create_profile, update_profile


@pytest.fixture
def app(make_app, empty_database_url):
    """The service on a database of its own."""
    app = make_app(DATABASE_URL=empty_database_url)
    with app.app_context():
        yield app


@pytest.fixture
def url(empty_database_url):
    return empty_database_url


@pytest.fixture
def other(app, user):
    """A user with a profile, in a database with many rows of the first user."""
    fill(Profile, user.appid, 100, accountid=user.accountid)
    fill(Session, user.appid, 150, accountid=user.accountid)
    other = Person(app)
    for person in user, other:
        person.create(named("name", default="true"))
    return other


def test_all_of_an_account_and_nothing_else(command, url, user, other):
    before = stored(url)
    assert command("delete-account", user.accountid) == {
        "object": "deletion",
        "accountid": user.accountid,
        "profiles": 101,
        "sessions": 151,
    }
    for table, rows in stored(url).items():
        kept = [row for row in before[table] if row["accountid"] != user.accountid]
        assert rows == kept
    assert user.create(named("name")).status_code == 401
    assert other.create(named("name")).status_code == 201
    assert command("delete-account", user.accountid) == "Error: invalid-accountid"


def test_a_deletion_that_fails_deletes_nothing(command, url, user, other):
    before = stored(url)
    execute(url, "ALTER TABLE session RENAME TO away")
    assert command("delete-account", user.accountid) == "Error: database-unavailable"
    execute(url, "ALTER TABLE away RENAME TO session")
    assert stored(url) == before


def test_an_account_is_deleted_where_it_lives(app, command, url):
    """With another application nothing of it is deleted."""
    person = Person(app, appid="there")
    person.create(named("name"))
    before = stored(url)
    words = ["delete-account", person.accountid]
    for appid in ("elsewhere", app.config["APPID"]):
        assert command(*words, "--appid", appid) == "Error: invalid-accountid"
    assert stored(url) == before
    assert command(*words)["profiles"] == 1
    assert is_empty(url)


@pytest.mark.parametrize(("model", "counts"), [(Profile, (2, 0)), (Session, (0, 2))])
def test_what_is_left_of_an_account_whose_row_is_gone(app, command, url, model, counts):
    """One row of either kind is enough to be found, but only in its application."""
    own, elsewhere = [], ["--appid", "elsewhere"]
    for appid, here, there in (
        (app.config["APPID"], own, elsewhere),
        ("elsewhere", elsewhere, own),
    ):
        row, _ = fill(model, appid, 2)
        execute(url, "DELETE FROM account")
        words = ["delete-account", row["accountid"]]
        assert command(*words, *there) == "Error: invalid-accountid"
        deleted = command(*words, *here)
        assert (deleted["profiles"], deleted["sessions"]) == counts
        assert command(*words, *here) == "Error: invalid-accountid"
        assert is_empty(url)


@pytest.mark.parametrize("default", ["true", ""])
def test_a_call_whose_account_is_deleted_before_it_writes(app, url, user, default):
    account = user.account
    body = named("late", default=default)
    profileid = create_profile(account, account.accountid, body)["profileid"]
    run(app, "delete-account", account.accountid)
    with pytest.raises(ServiceError, match="^invalid-accountid$") as caught:
        create_profile(account, account.accountid, body)
    assert caught.value.status == 404
    with pytest.raises(ServiceError, match="^invalid-profileid$") as caught:
        update_profile(account, profileid, body)
    assert caught.value.status == 404
    assert is_empty(url)


def test_requests_while_their_account_is_deleted(command, url, user):
    """Each ends in success or in the code of what is gone, and leaves no row."""
    profileid = user.create(named("name")).json["profileid"]
    succeeded = set()

    def repeat(send):
        while "message" not in (answer := send().json):
            succeeded.add(send)
        return answer["message"]

    def repeat_sessions():
        with pytest.raises(ServiceError, match="^invalid-accountid$"), connection():
            while create_session(user.accountid, 60):
                succeeded.add(create_session)

    def delete():
        wait_until(lambda: len(succeeded) == 4)
        return command("delete-account", user.accountid)["object"]

    *codes, deleted, _ = at_once(
        partial(repeat, partial(user.update, profileid, named("name"))),
        partial(repeat, partial(user.create, named("name"))),
        partial(repeat, partial(user.create, named("name", default="true"))),
        delete,
        repeat_sessions,
    )
    assert deleted == "deletion"
    assert {"sign-in-required", "invalid-accountid", "invalid-profileid"}.issuperset(
        codes
    )
    assert is_empty(url)


def test_a_deletion_within_a_transaction_leaves_no_orphan(url, user):
    """Though another process adds a profile after the transaction has read."""
    added = 0 if is_sqlite(url) else 1  # on SQLite the other one would have to wait
    with transaction(), Threads() as pool:
        assert Account.select().count() == 1
        if added:
            response = pool.submit(user.create, named("name")).result()
            assert response.status_code == 201
        assert delete_account(user.accountid, user.appid)["profiles"] == added
    assert is_empty(url)


@on_sqlite  # MySQL's files are not at hand
def test_what_was_deleted_cannot_be_read_once_it_is_overwritten(command, url, user):
    """By the line of OPERATING.md, while the service has the file open."""
    page = (ROOT / "docs" / "OPERATING.md").read_text()
    overwrite = re.findall('sqlite3 .*"(VACUUM|PRAGMA wal_checkpoint.*?)"', page)
    account = user.account
    text = token_hex(16)
    phone = {"user_profile_fields": ["phone"]}
    for _ in range(20):
        body = {"phone": text}
        profile = create_profile(account, account.accountid, body, **phone)
        body["phone"] *= 2_000  # rows that grow split the pages
        update_profile(account, profile["profileid"], body, **phone)
    secrets = [text, account.accountid, user.session["sessionid"]]

    def found():
        """Which of the secrets are in the file or in its log."""
        path = name_of(url)
        content = Path(path).read_bytes() + Path(f"{path}-wal").read_bytes()
        return [secret for secret in secrets if secret.encode() in content]

    command("delete-account", user.accountid)
    assert found() == secrets
    with driver(url) as (cursor, _):
        results = [cursor.execute(sql).fetchall() for sql in overwrite]
    assert results == [[], [(0, 0, 0)]]
    assert found() == []


def test_an_account_that_is_deleted_twice_at_once(command, url, user):
    """The second one waits for the first, and finds nothing."""
    with Threads() as pool, driver(url) as (cursor, _):
        cursor.execute("BEGIN")
        cursor.execute("DELETE FROM account")
        cursor.execute("DELETE FROM session")
        second = pool.submit(command, "delete-account", user.accountid)
        if not is_sqlite(url):
            wait_until_one_waits()
        time.sleep(0.1)
        cursor.execute("COMMIT")
        assert second.result() == "Error: invalid-accountid"
