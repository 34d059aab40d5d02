"""Transactions that meet, at each isolation level: one waits for the other."""

import re
from contextvars import copy_context
from functools import partial

import pytest
from service import (
    Threads,
    at_once,
    close_connection,
    execute,
    mysql_url,
    named,
    run,
    sign_in,
    stored,
    wait_until,
)

from accounts import delete_account, find_own_account, set_administrator
from callers import OPERATOR
from database import MySQL, db
from errors import ServiceError
from models import Session
from profiles import (
    create_profile,
    delete_profile,
    set_default_profile,
    update_profile,
)
from rows import select_batches
from sessions import create_session, end_session

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
pytestmark = pytest.mark.parametrize(
    "database_url, level",
    [("sqlite", "its only one"), *[("mysql", level) for level in LEVELS]],
    indirect=["database_url"],
)
SESSION = "/api/administrator/create-session?accountid="
DELETION = "/api/administrator/delete-account?accountid="
# MySQL's own view of it; MariaDB tells it in its status alone.
LOCK_WAITS = """SELECT processlist_id FROM performance_schema.threads
    JOIN performance_schema.data_lock_waits ON thread_id = requesting_thread_id"""


@pytest.fixture(autouse=True)
def connections_begin_transactions_at_the_level(app, level, monkeypatch):
    connect = MySQL.connect

    def connect_at_level(self, *args):
        connect(self, *args)
        self.execute_sql(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")

    monkeypatch.setattr(MySQL, "connect", connect_at_level)
    db.close()


def submit_blocked(pool, call):
    """Make a call in a thread; return its future once it waits for a lock."""
    errors = []  # of SQLite, which refuses each try
    db.query_hooks.append(lambda event: errors.append(str(event.exception)))
    future = pool.submit(copy_context().run, call)
    wait_until(
        lambda: "database is locked" in errors or waits_for_a_lock() or future.done()
    )
    db.query_hooks.pop()
    assert not future.done(), future.result()
    return future


def waits_for_a_lock():
    """Whether a connection to the app's MySQL database waits for a lock."""
    if not db.for_update:
        return False
    own = "SELECT id FROM information_schema.processlist WHERE db = %s"
    ids = {str(id) for (id,) in execute(mysql_url(), own, db.database)}
    ((_, _, status),) = execute(mysql_url(), "SHOW ENGINE INNODB STATUS")
    if "MySQL thread id" in status:
        waiting = [str(id) for (id,) in execute(mysql_url(), LOCK_WAITS)]
    else:
        waiting = re.findall(r"\nLOCK WAIT .*\n\w+ thread id ([0-9]+)", status)
    return bool(ids.intersection(waiting))


def follow(first, second):
    """What the second call returns. It waits until the first one is committed."""
    with Threads(1) as pool:
        with db.atomic():
            first()
            waiting = submit_blocked(pool, second)
        return waiting.result()


def are_running(client):
    """Whether each session of an account has not been ended."""
    sessions = Session.select().where(Session.accountid == client.accountid)
    return [session.endedAt is None for session in sessions]


def test_create_session_after_a_promotion(administrator, user):
    """It is refused, and leaves no session."""
    promote = partial(set_administrator, OPERATOR, user.accountid)
    create = partial(administrator.post, SESSION + user.accountid)
    assert follow(promote, create).status_code == 403
    assert are_running(user) == [False]


def test_a_promotion_after_a_create_session(administrator, user):
    """It ends that session, too."""
    create = partial(create_session, administrator.caller, user.accountid)
    follow(create, partial(set_administrator, OPERATOR, user.accountid))
    assert are_running(user) == [False, False]


def test_create_profile_between_the_statements_of_a_deletion(user, monkeypatch):
    """It waits from the first of them on, and then its account is unknown."""
    creating = []

    def create(event):
        if event.sql.startswith("DELETE") and "session" in event.sql:
            call = partial(user.create, named("Ada"))
            creating.append(submit_blocked(pool, call))

    with Threads(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(db.obj, "query_hooks", [create])
            delete_account(OPERATOR, user.accountid)
        assert creating[0].result().json["message"] == "invalid-accountid"


def test_a_deletion_of_an_account_after_a_create_profile(administrator, user):
    """It deletes that profile, too."""
    create = partial(create_profile, user.caller, user.accountid, named("Ada"))
    delete = partial(administrator.delete, DELETION + user.accountid)
    assert follow(create, delete).json["profiles"] == 1


def test_requests_beside_a_deletion_of_their_account(administrator, user, database_url):
    """Each ends in success or in the code of what is gone, and leaves no row."""
    requests = [
        partial(user.create, named("Ada", default="true")),
        partial(user.create, named("Ada")),
        partial(administrator.post, SESSION + user.accountid),
        partial(administrator.delete, DELETION + user.accountid),
    ]
    found = [
        response.json.get("message", response.json["object"])
        for response in at_once(*requests * 4)
    ]
    expected = "profile session deletion sign-in-required invalid-accountid"
    assert found.count("deletion") == 1
    assert {*found} <= {*expected.split()}
    assert user.accountid not in str(stored(database_url))


def test_delete_profile_after_it_has_become_the_default(user):
    """A default profile that is gone never stays."""
    profileid = user.create(named("Ada")).json["profileid"]
    choose = partial(set_default_profile, user.caller, profileid)
    follow(choose, partial(delete_profile, user.caller, profileid))
    assert find_own_account(user.caller, user.accountid)["profileid"] is None


def test_set_default_profile_after_its_deletion(user):
    profileid = user.create(named("Ada")).json["profileid"]
    delete = partial(delete_profile, user.caller, profileid)
    with pytest.raises(ServiceError, match="^invalid-profileid$"):
        follow(delete, partial(set_default_profile, user.caller, profileid))
    assert find_own_account(user.caller, user.accountid)["profileid"] is None


def test_no_read_waits_for_a_write(user):
    """Each shows what is committed, while another connection changes the rows."""
    profileid = user.create(named("Ada")).json["profileid"]
    own = f"accountid={user.accountid}"
    paths = [
        f"account?{own}",
        f"profile?profileid={profileid}",
        f"profiles?{own}",
        f"sessions?{own}",
    ]
    reads = [partial(user.get, f"/api/user/{path}") for path in paths]
    before = [read().json for read in reads]
    with db.atomic():
        set_default_profile(user.caller, profileid)
        update_profile(user.caller, profileid, named("Grace"))
        end_session(OPERATOR, user.session["sessionid"])
        assert [response.json for response in at_once(*reads)] == before


def test_a_copy_is_of_one_moment(empty_database_url, make_app, tmp_path, monkeypatch):
    """Even if rows are written after it began to read."""
    app = make_app(DATABASE_URL=empty_database_url)
    sign_in(app).create(named("Ada"))
    close_connection()
    before = stored(empty_database_url)

    def read_then_write(query, size):
        for rows in select_batches(query, size):
            execute(empty_database_url, "UPDATE profile SET phone = '7'")
            yield rows

    monkeypatch.setattr("copying.select_batches", read_then_write)
    target = f"sqlite:///{tmp_path}/copy.db"
    run(app, "copy-database", target)
    assert stored(target) == before != stored(empty_database_url)
