"""What an administrator does for other accounts, over HTTP and in this process."""

import json
from functools import partial
from hashlib import sha256
from secrets import token_bytes
from unittest.mock import Mock

import pytest
from peewee import OperationalError
from service import (
    SESSIONS,
    assert_error,
    at_once,
    fill,
    named,
    on_mysql,
    repeating,
    sign_in,
    stored,
)
from werkzeug.test import create_environ

import formats
from accounts import (
    DELETION_BATCH,
    create_account,
    delete_account,
    delete_batch,
    set_administrator,
)
from callers import OPERATOR
from database import db
from errors import ServiceError
from models import Account, Profile, Session
from profiles import create_profile, list_profiles
from sessions import (
    create_session,
    end_session,
    end_sessions,
    list_sessions,
    purge_sessions,
)

ACCOUNT = "/api/administrator/create-account"
ACCOUNTS = "/api/administrator/accounts"
SESSION = "/api/administrator/create-session?accountid="
END = "/api/administrator/end-sessions?accountid="
DELETION = "/api/administrator/delete-account?accountid="
UNKNOWN = "acct_0123456789abcdef"


def test_create_account_makes_an_ordinary_one_of_the_application(administrator):
    body = {"administrator": True, "appid": "other"}
    response = administrator.post(f"{ACCOUNT}?administrator=true", json=body)
    account = response.json
    assert response.status_code == 201
    assert account == {
        "accountid": account["accountid"],
        "object": "account",
        "appid": administrator.appid,
        "externalid": None,
        "administrator": False,
        "profileid": None,
        "createdAt": account["createdAt"],
        "updatedAt": account["createdAt"],
        "profile": None,
    }


def test_create_account_with_a_key_makes_one_of_an_application(administrator):
    key = "~ Key " + "x" * 249
    create = partial(administrator.post, ACCOUNT, headers={"Idempotency-Key": key})
    responses = at_once(*[create] * 10)
    account = create_account(administrator.caller, idempotency_key=key)
    digest = sha256(f"{administrator.appid} {key}".encode()).hexdigest()
    assert account["accountid"] == f"acct_{digest[:16]}"
    assert account["externalid"] == key
    (listed,) = administrator.get(f"{ACCOUNTS}?accountid={account['accountid']}").json
    assert listed == account
    assert sorted(each.status_code for each in responses) == [200] * 9 + [201]
    for response in responses:
        assert response.json == account


@pytest.mark.parametrize(
    "stored, status", [("Key", 400), ("key ", 400), ("key", 200), (None, 200)]
)
def test_a_key_whose_account_may_have_another_one(
    app, administrator, flask, stored, status
):
    """Two keys can have the same hash. An account of 4.0 has no key until now."""
    create = partial(administrator.post, ACCOUNT, headers={"Idempotency-Key": "key"})
    account = create().json
    is_account = Account.accountid == account["accountid"]
    Account.update(externalid=stored).where(is_account).execute()
    if status == 200:
        repeated = create()
        assert repeated.status_code == 200
        updated_at = repeated.json["updatedAt"]
        assert repeated.json == account | {"updatedAt": updated_at}
        assert create().json == repeated.json
        assert flask("show-account", "--key", "key")["externalid"] == "key"
        return
    assert_error(create(), 400, "invalid-idempotency-key")
    for words in ("create-account", "show-account"):
        done = app.test_cli_runner().invoke(args=[words, "--key", "key"])
        assert (done.exit_code, done.stdout) == (1, "")


def test_a_key_whose_id_another_application_has(administrator, monkeypatch):
    """Two keys can have the same hash, whatever their applications are."""
    hashed = Mock(return_value=sha256(token_bytes(8)))
    monkeypatch.setattr(formats, "sha256", hashed)
    assert create_account(OPERATOR, appid="bank", idempotency_key="key").is_new
    Account.update(externalid=None).where(Account.appid == "bank").execute()
    headers = {"Idempotency-Key": "key"}
    response = administrator.post(ACCOUNT, headers=headers)
    assert_error(response, 400, "invalid-idempotency-key")


def test_create_account_with_a_key_beside_deletions_makes_it_anew(administrator):
    create = partial(administrator.post, ACCOUNT, headers={"Idempotency-Key": "key"})
    delete = partial(administrator.delete, DELETION + create().json["accountid"])
    with repeating(delete, delete):
        for _ in range(60):
            assert create().status_code in (200, 201)


@pytest.mark.parametrize(
    "body, duration",
    [
        ({}, 28_800),
        ({"json": {"duration": 1.0}}, 1),
        ({"data": {"duration": "86400"}}, 86_400),
    ],
)
def test_create_session_shows_the_token(administrator, user, body, duration):
    """A duration in the query is ignored."""
    path = f"{SESSION}{user.accountid}&duration=7"
    response = administrator.post(path, **body)
    assert response.status_code == 201
    assert [*response.json][0] == "token"
    token = response.json["token"]
    (session,) = administrator.get(f"{SESSIONS}?limit=1").json
    assert response.json == session | {"token": token}
    assert session["accountid"] == user.accountid
    assert session["duration"] == duration


@pytest.mark.parametrize(
    "duration", [0, -1, 1.5, True, 31_536_001, "-1", "١", "", None]
)
def test_create_session_refuses_a_duration(administrator, user, duration):
    body = {"duration": duration}
    response = administrator.post(SESSION + user.accountid, json=body)
    assert_error(response, 400, "invalid-duration")


def test_delete_account(administrator, database_url):
    before = stored(database_url)
    user = sign_in(administrator.application)
    user.create(named("Ada", default="true"))
    response = administrator.delete(DELETION + user.accountid)
    assert response.json == {
        "object": "deletion",
        "accountid": user.accountid,
        "profiles": 1,
        "sessions": 1,
    }
    assert stored(database_url) == before


def test_delete_account_that_fails_deletes_nothing(
    administrator, user, database_url, monkeypatch
):
    user.create(named("Ada", default="true"))
    before = stored(database_url)

    def fail(event):
        if event.sql.startswith("DELETE") and "session" in event.sql:
            raise OperationalError

    monkeypatch.setattr(db.obj, "query_hooks", [fail])
    response = administrator.delete(DELETION + user.accountid)
    assert_error(response, 503, "database-unavailable")
    assert stored(database_url) == before


@pytest.fixture
def large(app, administrator, database_url):
    """A user whose account is deleted in three batches, and what is stored without."""
    before = stored(database_url)
    user = sign_in(app)
    user.create(named("Ada", default="true"))
    fill(Profile, user.appid, 2 * DELETION_BATCH, accountid=user.accountid)
    return user, before


def test_delete_account_that_fails_after_a_batch(
    administrator, large, database_url, monkeypatch
):
    """A large account is then deleted in part, and a repeat deletes the rest."""
    user, before = large
    deletions = []

    def fail(event):
        if event.sql.startswith("DELETE") and "profile" in event.sql:
            deletions.append(event)
            if len(deletions) == 2:
                raise OperationalError

    with monkeypatch.context() as patch:
        patch.setattr(db.obj, "query_hooks", [fail])
        response = administrator.delete(DELETION + user.accountid)
    assert_error(response, 503, "database-unavailable")
    assert_error(user.create(named("late")), 401, "sign-in-required")
    (account,) = administrator.get(f"{ACCOUNTS}?accountid={user.accountid}").json
    assert account["profileid"] is account["profile"] is None
    left = len(administrator.profiles())
    assert 0 < left < 2 * DELETION_BATCH
    deletion = administrator.delete(DELETION + user.accountid).json
    assert (deletion["profiles"], deletion["sessions"]) == (left, 0)
    assert stored(database_url) == before


def test_what_happens_between_two_batches_of_a_deletion(app, large, database_url):
    """What is created then is deleted, too, but an administrator's account stays."""
    user, before = large
    caller = user.caller
    delete_batch(OPERATOR, user.accountid, user.appid)
    set_administrator(OPERATOR, user.accountid)
    with pytest.raises(ServiceError, match="^invalid-account$"):
        delete_account(OPERATOR, user.accountid)
    set_administrator(OPERATOR, user.accountid, off=True)
    create_profile(caller, user.accountid, named("late", default="true"))
    create_session(OPERATOR, user.accountid)
    deletion = delete_account(OPERATOR, user.accountid)
    assert (deletion["profiles"], deletion["sessions"]) == (DELETION_BATCH + 3, 1)
    assert stored(database_url) == before


def test_delete_account_in_a_transaction_that_is_undone(app, large, database_url):
    user, _ = large
    during = stored(database_url)
    with pytest.raises(KeyError), db.atomic():
        delete_account(OPERATOR, user.accountid)
        raise KeyError
    assert stored(database_url) == during


@on_mysql
def test_delete_account_in_a_transaction_that_has_read(app, large, database_url):
    """It deletes also what others have committed since."""
    user, before = large
    with db.atomic():
        assert Profile.select().first()
        at_once(partial(user.create, named("late")))
        delete_account(OPERATOR, user.accountid)
    assert stored(database_url) == before


@pytest.mark.parametrize(
    "path, target",
    [
        ("/api/administrator/end-sessions?accountid=ID", "acct_"),
        ("/api/administrator/profiles?accountid=ID", "acct_"),
        ("/api/user/account?accountid=ID", "acct_"),
        ("/api/user/profile?profileid=ID", "prof_"),
        ("/api/user/delete-profile?profileid=ID", "prof_"),
        ("/api/user/end-session?sessionid=ID", "sess_"),
        ("/api/user/end-session?sessionid=x", None),
        ("/api/administrator/profiles?accountid=acct_0123456789ABCDEF", None),
        ("/api/administrator/profiles?email=acct_0123456789abcdef", None),
        # Only the parameter that the request reads, so that none hides another.
        ("/api/user/profile?profileid=ID&sessionid=sess_0123456789abcdef", "prof_"),
        ("/api/user/account?accountid=ID&profileid=prof_0123456789abcdef", "acct_"),
        ("/api/user/account?profileid=prof_0123456789abcdef", None),
    ],
)
def test_what_a_request_names_is_the_logged_target(app, path, target):
    """Whether it exists or not, and whoever names it."""
    identifier = target and f"{target}0123456789abcdef"
    environ = create_environ(path.replace("ID", identifier or ""))
    for method in ("GET", "PATCH", "DELETE"):
        environ["REQUEST_METHOD"] = method
        app(environ, lambda *_: None)
    assert environ.get("profiles.target") == identifier


def test_the_account_that_is_created_is_the_logged_target(administrator):
    environ = create_environ(ACCOUNT, method="POST", headers=administrator.headers)
    body = b"".join(administrator.application(environ, lambda *_: None))
    assert json.loads(body)["accountid"] == environ["profiles.target"]


@pytest.mark.parametrize("default", ["true", ""])
def test_create_profile_whose_account_was_deleted_meanwhile(
    administrator, user, default
):
    caller = user.caller
    administrator.delete(DELETION + caller.accountid)
    body = named("late", default=default)
    with pytest.raises(ServiceError, match="^invalid-accountid$"):
        create_profile(caller, caller.accountid, body)


def test_a_body_is_read_between_the_session_and_the_right(client, user):
    body = {"data": "{", "content_type": "application/json"}
    assert_error(client.post(SESSION, **body), 401, "sign-in-required")
    assert_error(user.post(SESSION, **body), 400, "invalid-body")


@pytest.mark.parametrize(
    "method, path",
    [("POST", SESSION), ("PATCH", END), ("DELETE", DELETION)],
)
def test_the_account_is_an_ordinary_one_of_the_application(
    app, administrator, method, path
):
    """test_pages.py has what else is checked, in its order."""
    elsewhere = sign_in(app, appid="elsewhere")
    response = administrator.open(path + elsewhere.accountid, method=method)
    assert_error(response, 404, "invalid-accountid")
    other = sign_in(app, administrator=True)
    response = administrator.open(path + other.accountid, method=method)
    assert_error(response, 403, "invalid-account")


@pytest.mark.parametrize(
    "operation, target",
    [
        (list_profiles, []),
        (list_sessions, []),
        (create_account, []),
        (create_session, [UNKNOWN]),
        (end_sessions, [UNKNOWN]),
        (delete_account, [UNKNOWN]),
    ],
)
def test_a_caller_has_rights_in_its_application_alone(administrator, operation, target):
    with pytest.raises(ServiceError, match="^administrator-required$"):
        operation(administrator.caller, *target, appid="elsewhere")


@on_mysql
def test_a_transaction_finds_what_it_does_not_see(administrator, user):
    """The session and the account were created after it had begun to read."""
    with db.atomic():
        assert Session.select().count()
        sign_in_again = partial(administrator.post, SESSION + user.accountid)
        created, _ = at_once(sign_in_again, sign_in_again)
        assert end_session(OPERATOR, created.json["sessionid"])["ended"]
        assert end_sessions(OPERATOR, user.accountid)["count"] == 2
        (created,) = at_once(partial(administrator.post, ACCOUNT))
        accountid = created.json["accountid"]
        assert create_session(OPERATOR, accountid, duration=60)
        for default in ("false", "true"):
            assert create_profile(OPERATOR, accountid, named("Ada", default=default))
        assert set_administrator(OPERATOR, accountid)["administrator"] is True


@pytest.mark.parametrize(
    "call",
    [
        partial(create_account, administrator=True),
        partial(set_administrator, accountid=UNKNOWN),
        partial(purge_sessions, days=30),
    ],
)
def test_what_the_operator_alone_may_do(administrator, call):
    with pytest.raises(ServiceError, match="^administrator-required$"):
        call(administrator.caller)


def test_the_operator_alone_acts_for_administrators(administrator):
    caller, accountid = administrator.caller, administrator.accountid
    for operation, target, options in (
        (create_session, accountid, {"duration": 86_401}),
        (end_session, administrator.session["sessionid"], {}),
        (end_sessions, accountid, {}),
    ):
        with pytest.raises(ServiceError, match="^invalid-account$"):
            operation(caller, target, **options)
        assert operation(OPERATOR, target, **options)
