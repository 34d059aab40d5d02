"""What an administrator does for another account, over HTTP and in this process."""

from functools import partial
from hashlib import sha256
from secrets import token_hex
from types import SimpleNamespace

import pytest
from databases import stored
from serving import (
    CREATE,
    SESSIONS,
    Person,
    assert_error,
    at_once,
    named,
    repeating,
)

import accounts
from errors import ServiceError
from operations import create_account, create_session, delete_account, end_sessions

ACCOUNT = "/api/administrator/create-account"
SESSION = "/api/administrator/create-session"
END = "/api/administrator/end-sessions"
DELETION = "/api/administrator/delete-account"
METHODS = {ACCOUNT: "POST", SESSION: "POST", END: "PATCH", DELETION: "DELETE"}
UNKNOWN = "acct_0123456789abcdef"
ANYBODY = SimpleNamespace(accountid=UNKNOWN, administrator=True)


def send(person, path, accountid="", headers=(), **body):
    address = f"{path}?accountid={accountid}"
    return person.send(METHODS[path], address, headers, **body)


def done(person, path, accountid="", **options):
    """The answer to a request that succeeds."""
    response = send(person, path, accountid, **options)
    assert response.status_code == (201 if METHODS[path] == "POST" else 200)
    return response.json


def keyed(person, key):
    return send(person, ACCOUNT, headers={"Idempotency-Key": key})


def bearer(session):
    return {"Authorization": f"Bearer {session['token']}"}


def refused(code):
    return pytest.raises(ServiceError, match=f"^{code}$")


def test_an_account(administrator):
    """No parameter makes it an administrator, or one of another application."""
    wishes = {"administrator": "true", "appid": "shop"}
    for body in ({}, {"data": wishes}, {"json": wishes | {"administrator": True}}):
        account = done(administrator, ACCOUNT, "&administrator=true", **body)
        assert account == {
            "accountid": account["accountid"],
            "object": "account",
            "appid": administrator.appid,
            "administrator": False,
            "profileid": None,
            "createdAt": account["createdAt"],
            "updatedAt": account["createdAt"],
        }


def test_a_key_makes_one_account_of_an_application(administrator):
    key = f"~ Key {token_hex(8)}"
    responses = at_once(*[partial(keyed, administrator, key)] * 30)
    account = create_account(administrator.account, idempotency_key=key)
    for response in responses:
        assert response.status_code == 201
        assert response.json == account
    digest = sha256(f"{administrator.appid} {key}".encode()).hexdigest()
    assert account["accountid"] == f"acct_{digest[:16]}"


def test_a_key_whose_account_is_deleted_meanwhile(administrator):
    """It makes the account anew."""
    create = partial(keyed, administrator, "key")
    delete = partial(send, administrator, DELETION, create().json["accountid"])
    with repeating(delete, delete):
        for _ in range(100):
            assert create().status_code == 201


def test_keys_that_are_refused(administrator):
    for key in ("", "x" * 256, "é", "a\tb"):
        response = keyed(administrator, key)
        assert_error(response, 400, "invalid-idempotency-key")


def test_a_session(make_app, empty_database_url):
    app = make_app(DATABASE_URL=empty_database_url)
    administrator = Person(app, administrator=True)
    user = Person(app)
    session = done(administrator, SESSION, user.accountid)
    (listed,) = administrator.get(f"{SESSIONS}?limit=1").json
    assert session == listed | {"token": session["token"]}
    assert session["accountid"] == user.accountid
    user.headers |= bearer(session)
    assert user.create(named("Ada")).status_code == 201
    assert session["token"] not in str(stored(empty_database_url))


def test_an_account_that_becomes_an_administrators_meanwhile(
    administrator, user, monkeypatch
):
    """Those that it had were ended, this one is not shown."""
    create = accounts.create_session

    def create_late(accountid, duration):
        accounts.set_administrator(accountid)
        return create(accountid, duration)

    monkeypatch.setattr(accounts, "create_session", create_late)
    response = send(administrator, SESSION, user.accountid)
    assert_error(response, 403, "invalid-account")


DURATIONS = {1: 1, 86_400: 86_400, "60": 60}
NO_DURATIONS = [0, -1, 1.5, True, 86_401, 2**63, "-1", "١", ""]


@pytest.mark.parametrize("way", ["json", "data"])
def test_durations(administrator, user, way):
    create = partial(send, administrator, SESSION, user.accountid)
    for value, seconds in DURATIONS.items():
        made = create(**{way: {"duration": value}})
        assert made.json["duration"] == seconds
    assert create(**{way: {}}).json["duration"] == 28_800
    for value in NO_DURATIONS:
        response = create(**{way: {"duration": value}})
        assert_error(response, 400, "invalid-duration")


def test_the_end_of_all_sessions(administrator, user):
    """At once. What has ended is not counted again."""
    session = done(administrator, SESSION, user.accountid)
    for count in (2, 0):
        answer = done(administrator, END, user.accountid)
        assert answer == {"object": "end", "count": count}
    for headers in (user.headers, bearer(session)):
        response = user.send("POST", CREATE, headers)
        assert_error(response, 401, "sign-in-required")


def test_the_deletion_of_an_account(administrator, user):
    kept = administrator.create(named("Ada")).json
    user.create(named("Bob", default="true"))
    assert done(administrator, DELETION, user.accountid) == {
        "object": "deletion",
        "accountid": user.accountid,
        "profiles": 1,
        "sessions": 1,
    }
    assert administrator.profiles() == [kept]
    again = send(administrator, DELETION, user.accountid)
    assert_error(again, 404, "invalid-accountid")


@pytest.mark.parametrize("path", METHODS)
def test_the_order_of_errors(app, administrator, user, path):
    """Each request also has what those after it are refused for."""
    headers = {"X-Appid": "a b", "Authorization": "", "Idempotency-Key": ""}
    body = {"data": "{", "content_type": "application/json"}

    def refuses(person, status, code, accountid=""):
        response = send(person, path, accountid, headers, **body)
        assert_error(response, status, code)

    refuses(user, 400, "invalid-appid")
    del headers["X-Appid"]
    refuses(user, 401, "sign-in-required")
    del headers["Authorization"]
    if path == SESSION:
        refuses(user, 400, "invalid-body")
        body = {"json": {"duration": 0}}
    refuses(user, 403, "administrator-required")
    if path == ACCOUNT:
        refuses(administrator, 400, "invalid-idempotency-key")
        return
    refuses(administrator, 400, "invalid-accountid")
    elsewhere = Person(app, appid=token_hex(8))
    for unknown in (UNKNOWN, elsewhere.accountid):
        refuses(administrator, 404, "invalid-accountid", unknown)
    for other in (administrator, Person(app, administrator=True)):
        refuses(administrator, 403, "invalid-account", other.accountid)
    if path == SESSION:
        refuses(administrator, 400, "invalid-duration", user.accountid)


def test_in_this_process(administrator):
    """A caller of one application has no rights in another."""
    appid = {"appid": token_hex(8)}
    nobody = SimpleNamespace(accountid=UNKNOWN, administrator=False)
    target = {"accountid": create_account(ANYBODY, **appid)["accountid"], **appid}
    for caller in (nobody, administrator.account):
        with refused("administrator-required"):
            create_account(caller, **appid)
        for operation in (create_session, end_sessions, delete_account):
            with refused("administrator-required"):
                operation(caller, **target)
    with refused("invalid-idempotency-key"):
        create_account(ANYBODY, **appid, idempotency_key=b"x")
    assert create_session(ANYBODY, **target, duration="60")["duration"] == 60
    assert end_sessions(ANYBODY, **target)["count"] == 1
    assert delete_account(ANYBODY, **target)["sessions"] == 1


def test_lives_at_once(make_app, empty_database_url):
    """Nothing is doubled, and nothing is left."""
    app = make_app(DATABASE_URL=empty_database_url)
    administrator = Person(app, administrator=True)
    before = stored(empty_database_url)

    def live():
        accountid = done(administrator, ACCOUNT)["accountid"]
        headers = bearer(done(administrator, SESSION, accountid))
        path = f"{CREATE}?accountid={accountid}"
        create = partial(administrator.send, "POST", path)
        for name in ("a", "b", "c", "c"):
            once = headers | {"Idempotency-Key": name}
            assert create(once, data=named(name)).status_code == 201
        assert done(administrator, END, accountid)["count"] == 1
        assert create(headers).status_code == 401
        deleted = done(administrator, DELETION, accountid)
        assert (deleted["profiles"], deleted["sessions"]) == (3, 1)

    at_once(*[live] * 8)
    assert stored(empty_database_url) == before
