"""docs/client.py, with the service behind a proxy that spoils some answers."""

import os
import re
import sys
import time
from importlib import import_module
from io import BytesIO
from itertools import cycle
from threading import Event, Thread
from traceback import format_exception

import pytest
from service import ROOT, close_connection, named, on_sqlite, run, sign_in
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

from accounts import end_sessions
from models import Session, timestamp
from validators import PROFILE_FIELDS

pytestmark = [pytest.mark.long, on_sqlite]

PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "docs/API.md")}


class Proxy:
    """A WSGI app in front of the service. It strips a prefix from each path.

    The next of ``faults`` answers a request instead of the service.
    """

    def __init__(self, app):
        self.app = app
        self.faults = iter([])
        self.sent = []  # the last part of each path

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"]
        environ["PATH_INFO"] = path.removeprefix("/prefix")
        self.sent.append(path.rpartition("/")[2])
        # Read it all, since a connection that is closed before may lose the answer.
        environ["wsgi.input"] = BytesIO(get_input_stream(environ).read())
        answer = next(self.faults, pass_on)
        try:
            return list(answer(self.app, environ, start_response))
        finally:
            close_connection()  # of this thread


def pass_on(app, environ, start_response):
    return app(environ, start_response)


def lose(app, environ, start_response):
    """The service does what is asked, and its answer is lost."""
    list(app(environ, start_response))
    raise ConnectionError


def page(status, content=b"<html>", **headers):
    """An answer of the proxy itself."""

    def answer(app, environ, start_response):
        pairs = [(name.replace("_", "-"), headers[name]) for name in headers]
        start_response(f"{status} Status", pairs)
        return [content]

    return answer


@pytest.fixture
def proxy(app, monkeypatch):
    pytest.importorskip("requests", reason="pip install -r tests/requirements.txt")
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # nothing new in docs/
    client = import_module("client")
    proxy = Proxy(app)
    proxy.waits = []
    monkeypatch.setattr(client, "sleep", proxy.waits.append)
    with make_server("127.0.0.1", 0, proxy) as server:
        thread = Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        # These are read when they are used: the module has been imported before.
        monkeypatch.setenv("PROFILES_URL", f"http://127.0.0.1:{server.port}/prefix")
        token = sign_in(app, administrator=True).token
        monkeypatch.setenv("PROFILES_TOKEN", token)
        monkeypatch.setenv("PROFILES_APPID", app.config["APPID"])
        yield proxy
        server.shutdown()
        thread.join()
    client.http.close()


@pytest.fixture
def client(proxy):
    """The module."""
    return import_module("client")


@pytest.fixture
def eve(proxy, client):
    """A user of the client, who is signed in."""
    eve = client.sign_up("Eve")
    proxy.sent.clear()
    return eve


@pytest.mark.parametrize("page_name", PAGES)
def test_the_sample_of_a_page(proxy, client, administrator, capsys, page_name):
    """The first answer to each request is lost, the second one is a 503."""
    proxy.faults = cycle([lose, page(503, Retry_After="2"), pass_on])
    (sample,) = re.findall("(?s)```python\n(.*?)```", PAGES[page_name])
    exec(sample, {})
    output = capsys.readouterr().out
    comments = re.findall("print.*# (.+)", sample)
    assert output.splitlines() == comments
    assert proxy.waits == [1, 2] * (len(proxy.sent) // 3)


@pytest.mark.parametrize("user_id", ["", "x ", "é", "x" * 256, 7])
@pytest.mark.parametrize("name", ["User", "sign_up"])
def test_an_id_that_is_not_sent_as_it_is(proxy, client, name, user_id):
    with pytest.raises(ValueError):
        getattr(client, name)(user_id)
    assert proxy.sent == []


def test_a_user_signs_up_once(proxy, client, administrator):
    eve = client.sign_up("Eve", duration=7)
    assert proxy.sent == ["create-account", "create-session"]
    again = client.sign_up("Eve")
    kept = client.User("Eve", eve.token)
    assert proxy.sent == ["create-account", "create-session"] * 2
    assert eve.accountid == again.accountid == kept.accountid
    assert eve.account() == kept.account()
    path = f"/api/administrator/sessions?accountid={eve.accountid}"
    durations = [session["duration"] for session in administrator.get(path).json]
    assert durations == [28_800, 7]


def test_a_user_who_did_not_sign_up(proxy, client):
    with pytest.raises(client.ServiceError) as caught:
        client.User("Eve")
    assert (caught.value.code, caught.value.status) == ("invalid-accountid", 404)
    assert proxy.sent == ["create-session"]


def test_a_user_who_was_deleted_in_another_tab(client, eve, administrator):
    """Nothing makes the account again, whatever the other tab does."""
    kept = client.User("Eve", eve.token)
    eve.delete()
    eve.delete()
    for call in (kept.account, lambda: kept.save_profile(named("Eve"))):
        with pytest.raises(client.SignedOut, match="invalid-accountid"):
            call()
    for call in (kept.sign_in, lambda: client.User("Eve")):
        with pytest.raises(client.ServiceError, match="invalid-accountid"):
            call()
    accounts = administrator.get("/api/administrator/accounts").json
    assert all(account["administrator"] for account in accounts)


def test_another_application(proxy, client, app, monkeypatch):
    token = sign_in(app, administrator=True, appid="shop").token
    monkeypatch.setenv("PROFILES_TOKEN", token)
    with pytest.raises(client.AdministratorTokenError):
        client.sign_up("Eve")
    monkeypatch.setenv("PROFILES_APPID", "shop")
    eve = client.sign_up("Eve")
    assert eve.account()["appid"] == "shop"
    monkeypatch.setenv("PROFILES_APPID", "")  # as if it were not set
    for call in (lambda: client.User("Eve"), eve.account):
        with pytest.raises(client.AdministratorTokenError):
            call()


def test_a_kept_user_reads_what_is_its_own(proxy, client, eve):
    saved = eve.save_profile(named("Eve"))
    assert proxy.sent == ["account", "profiles", "create-profile"]
    kept = client.User("Eve", eve.token)
    proxy.sent.clear()
    account = kept.account()
    assert account["accountid"] == eve.accountid
    assert account["profile"] == saved
    assert kept.profile(account["profileid"]) == saved
    assert list(kept.profiles()) == [saved]
    assert proxy.sent == ["account", "profile", "profiles"]


def test_the_profile_that_is_saved(proxy, eve):
    """One that is named, else the default one, else the newest one."""
    first = eve.save_profile(named("a"))
    second = eve.create_profile(named("b"), "b")
    third = eve.create_profile(named("b"), "c")
    assert eve.create_profile(named("b"), "c") == third

    def save(*profileid):
        return eve.save_profile(named("c"), *profileid)["profileid"]

    assert save() == first["profileid"]
    assert save(third["profileid"]) == third["profileid"]
    account = eve.set_default_profile(second["profileid"])
    assert account["profile"] == second
    assert save() == second["profileid"]
    eve.delete_profile(second["profileid"])
    proxy.sent.clear()
    assert save() == third["profileid"]
    assert proxy.sent == ["account", "profiles", "update-profile"]
    eve.delete_profile(third["profileid"])
    eve.delete_profile(first["profileid"])
    new = eve.save_profile(named("d"))
    assert [new] == list(eve.profiles())
    assert eve.account()["profile"] == new


def test_each_wrong_field_has_its_code(client, eve):
    with pytest.raises(client.ServiceError) as caught:
        eve.save_profile({"phone": "7"})
    codes = {
        "contact-email": "invalid-contact-email",
        "full-name": "invalid-full-name",
    }
    assert caught.value.errors == codes
    with pytest.raises(client.ServiceError) as caught:
        eve.profile("prof_0")
    assert caught.value.errors == {}


@pytest.mark.parametrize("value", [None, ""])
def test_a_query_without_a_value_is_not_sent(proxy, client, eve, value):
    """An administrator's list would otherwise have the rows of all users."""
    calls = [
        lambda: next(client.walk(client.administrate, "sessions", accountid=value)),
        lambda: client.administrate("DELETE", "delete-account", accountid=value),
        lambda: eve.send("PATCH", "end-session", sessionid=value),
        lambda: eve.profile(value),
        lambda: eve.delete_profile(value),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=" has no value"):
            call()
    assert proxy.sent == []


@pytest.mark.parametrize("is_named", [True, False])
def test_an_edit_of_a_profile_that_was_changed(proxy, client, eve, is_named):
    """The response to the first update is lost; its repeat finds it done."""
    shown = eve.save_profile(named("a"))
    names = [shown["profileid"]] * is_named
    proxy.faults = iter([pass_on] * (not is_named) + [lose])
    saved = eve.save_profile(named("b"), *names, if_match=shown["updatedAt"])
    assert proxy.waits == [1]
    assert saved["fullName"] == "b"
    with pytest.raises(client.ServiceError) as caught:
        eve.save_profile(named("c"), *names, if_match=shown["updatedAt"])
    assert (caught.value.code, caught.value.status) == ("profile-changed", 412)
    assert list(eve.profiles()) == [saved]
    again = eve.save_profile(named("c"), *names, if_match=saved["updatedAt"])
    assert again["fullName"] == "c"


def test_an_edit_of_a_profile_that_was_deleted(client, eve):
    """It is not made again."""
    saved = eve.save_profile(named("a"))
    eve.delete_profile(saved["profileid"])
    with pytest.raises(client.ServiceError) as caught:
        eve.save_profile(named("b"), if_match=saved["updatedAt"])
    assert (caught.value.code, caught.value.status) == ("profile-changed", 412)
    assert list(eve.profiles()) == []


def test_a_profile_that_is_deleted_twice(proxy, client, eve):
    saved = eve.save_profile(named("Eve"))
    proxy.faults = iter([lose])
    for _ in range(2):
        eve.delete_profile(saved["profileid"])
    assert list(eve.profiles()) == []


@pytest.mark.parametrize("name", ["sign_out", "delete", "delete_profile"])
def test_what_is_not_done_is_no_success(proxy, client, eve, name):
    values = ["prof_0"] * (name == "delete_profile")
    proxy.faults = iter([page(503)] * 4)
    with pytest.raises(client.ServiceError, match="unexpected-answer"):
        getattr(eve, name)(*values)


def test_a_user_signs_out(proxy, client, eve, administrator):
    """It ends one session. Signing out again is no error, and begins no session."""
    other = client.User("Eve")
    proxy.sent.clear()
    for _ in range(2):
        eve.sign_out()
    assert proxy.sent == ["end-session"] * 2
    path = f"/api/administrator/sessions?accountid={eve.accountid}"
    sessions = administrator.get(path).json
    assert [session["ended"] for session in sessions] == [False, True]
    other.account()


def test_all_accounts(client, eve, administrator):
    saved = eve.save_profile(named("Eve"))
    listed = list(client.accounts(limit=1))
    assert listed == administrator.get("/api/administrator/accounts").json
    assert [each["profile"] for each in listed if each["profile"]] == [saved]


@pytest.fixture
def expire(eve):
    """Lets all sessions of the user expire."""

    def expire():
        past = timestamp(time.time_ns())
        own = Session.accountid == eve.accountid
        Session.update(expiresAt=past).where(own).execute()

    return expire


def test_a_session_that_has_expired_is_renewed(proxy, client, eve, expire):
    saved = eve.save_profile(named("Eve"))
    kept = client.User("Eve", eve.token, sessionid=eve.sessionid)
    assert kept.sessionid == eve.sessionid
    expire()
    proxy.sent.clear()
    assert list(kept.profiles()) == [saved]
    assert proxy.sent == ["profiles", "create-session", "profiles"]
    assert kept.token != eve.token
    (newest, _) = client.walk(kept.send, "sessions", accountid=kept.accountid)
    assert kept.sessionid == newest["sessionid"]
    assert client.User("Eve", eve.token).sessionid is None


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_session_that_was_ended_stays_ended(
    proxy, client, app, eve, expire, has_expired
):
    kept = client.User("Eve", eve.token)
    other = client.User("Eve")
    other.send("PATCH", "end-session", sessionid=eve.sessionid)
    if has_expired:
        expire()
    for user in (kept, eve):
        proxy.sent.clear()
        with pytest.raises(client.SignedOut) as caught:
            user.account()
        assert (caught.value.code, caught.value.status) == ("sign-in-required", 401)
        assert caught.value.reason == "ended"
        assert proxy.sent == ["account"]


def test_a_session_that_was_purged(proxy, client, app, eve, expire):
    """Its token is unknown, and the client asks whether the account is, too."""
    expire()
    run(app, "purge-sessions", "--days", "0")
    proxy.sent.clear()
    with pytest.raises(client.SignedOut, match="sign-in-required") as caught:
        eve.account()
    assert caught.value.reason is None
    assert proxy.sent == ["account", "accounts"]


def test_a_session_that_is_ended_while_it_is_renewed(proxy, client, eve, expire):
    expire()

    def end(app, environ, start_response):
        chunks = pass_on(app, environ, start_response)
        end_sessions(eve.accountid)
        return chunks

    proxy.faults = iter([pass_on, end])
    with pytest.raises(client.SignedOut) as caught:
        eve.account()
    assert caught.value.reason == "ended"
    assert proxy.sent == ["account", "create-session", "account"]


def test_the_administrators_token_has_ended(client, eve, expire, monkeypatch):
    """The error differs from that of a user, also when a session is renewed."""
    expire()
    monkeypatch.setenv("PROFILES_TOKEN", "0" * 64)
    for call in (eve.sign_in, eve.account):
        with pytest.raises(client.AdministratorTokenError) as caught:
            call()
        assert (caught.value.code, caught.value.status) == ("sign-in-required", 401)


def test_a_users_token_instead_of_the_administrators(client, eve, monkeypatch):
    monkeypatch.setenv("PROFILES_TOKEN", eve.token)
    with pytest.raises(client.AdministratorTokenError, match="administrator-required"):
        eve.sign_in()


def test_a_first_save_that_loses_a_race(app, proxy, eve):
    """The answer to its create is a 201 with the other's values."""
    user = app.test_client()
    headers = {"Authorization": f"Bearer {eve.token}", "Idempotency-Key": "first"}
    path = f"/api/user/create-profile?accountid={eve.accountid}"

    def race(app, environ, start_response):
        response = user.post(path, json=named("Lea"), headers=headers)
        assert response.status_code == 201
        return app(environ, start_response)

    proxy.faults = iter([pass_on, pass_on, race])
    saved = eve.save_profile(named("Eve"))
    assert saved["contactEmail"] == "Eve@example.com"
    assert list(eve.profiles()) == [saved]
    sent = ["account", "profiles", "create-profile", "update-profile"]
    assert proxy.sent[:-1] == sent


@pytest.mark.parametrize(
    ("stored", "sent", "is_saved"),
    [
        pytest.param("7", "7", True, id="the same value"),
        pytest.param("8", "7", False, id="another value"),
        pytest.param(None, "7", False, id="an optional value that was not stored"),
        pytest.param(None, "", True, id="empty, which is stored as null"),
        pytest.param(None, None, True, id="null"),
        pytest.param("7", "", False, id="empty, but a value is stored"),
    ],
)
def test_a_first_save_compares_each_value(client, stored, sent, is_saved):
    assert client.is_saved({"phone": stored}, {"phone": sent}) is is_saved


def test_the_property_of_each_field(client):
    names = {name: field.property for name, field in PROFILE_FIELDS.items()}
    assert names == {name: client.property_name(name) for name in names}


def test_a_503_to_the_end(proxy, client, eve):
    headers = {"Retry_After": "2", "X_Request_Id": "r7"}
    proxy.faults = iter(
        [page(503, b'{"message": "database-unavailable"}', **headers)] * 4
    )
    with pytest.raises(client.ServiceError) as caught:
        eve.account()
    error = caught.value
    assert (error.code, error.status) == ("database-unavailable", 503)
    assert error.request_id == "r7"
    assert "r7" in str(error)
    assert proxy.waits == [2, 2, 2]


@pytest.mark.parametrize(
    ("status", "content"),
    [(200, b"<p>"), (302, b"<p>"), (414, b"<p>"), (404, b"[]"), (404, b"{}")],
)
def test_another_page_is_an_error_at_once(proxy, client, eve, status, content):
    headers = {"Location": "/openapi.json", "X_Request_Id": "r7"}
    proxy.faults = iter([page(status, content, **headers)])
    with pytest.raises(client.ServiceError) as caught:
        eve.account()
    assert (caught.value.code, caught.value.status) == ("unexpected-answer", status)
    assert caught.value.request_id == "r7"
    assert proxy.sent == ["account"]


def test_a_wait_that_is_too_long_is_an_error_at_once(proxy, client, eve):
    proxy.faults = iter([page(503, Retry_After="120")])
    with pytest.raises(client.ServiceError):
        eve.account()
    assert proxy.waits == []


@pytest.mark.parametrize(
    ("try_seconds", "timeout", "repeats"),
    [
        pytest.param(0.2, "", 3, id="each try is bounded"),
        pytest.param(60, "0.5", 0, id="the whole time is bounded"),
    ],
)
def test_a_service_that_never_answers(
    proxy, client, eve, monkeypatch, try_seconds, timeout, repeats
):
    monkeypatch.setattr(client, "TRY_SECONDS", try_seconds)
    monkeypatch.setattr(client, "WAITS", [0, 0, 0])
    monkeypatch.setenv("PROFILES_TIMEOUT", timeout)
    given_up = Event()

    def be_silent(app, environ, start_response):
        given_up.wait(60)
        raise ConnectionError

    proxy.faults = cycle([be_silent])
    began = time.monotonic()
    with pytest.raises(client.ServiceError) as caught:
        eve.account()
    seconds = time.monotonic() - began
    given_up.set()
    assert (caught.value.code, caught.value.status) == ("no-answer", None)
    assert seconds < 10
    assert proxy.waits == [0] * repeats


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("PROFILES_TOKEN", "secret\n", id="token with a line break"),
        pytest.param("PROFILES_TOKEN", "secret…", id="token that is not Latin-1"),
        pytest.param("PROFILES_APPID", "secret\n", id="appid with a line break"),
        pytest.param("PROFILES_URL", "127.0.0.1:8000", id="address without a scheme"),
        pytest.param("PROFILES_URL", "http://", id="address without a host"),
        pytest.param("PROFILES_URL", "http://127.0.0.1:x", id="port that is no number"),
    ],
)
def test_what_cannot_be_sent(proxy, client, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(client.ServiceError) as caught:
        client.User("Eve")
    assert (caught.value.code, caught.value.status) == ("not-sent", None)
    assert "secret" not in "".join(format_exception(caught.value))
    assert (proxy.sent, proxy.waits) == ([], [])


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("name", ["PROFILES_URL", "PROFILES_TOKEN"])
def test_a_variable_that_is_not_set(proxy, client, monkeypatch, name, value):
    monkeypatch.delenv(name)
    if value is not None:
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=f"variable {name} is not set"):
        client.User("Eve")
    assert proxy.sent == []


def test_an_address_that_ends_with_a_slash(client, eve, monkeypatch):
    monkeypatch.setenv("PROFILES_URL", os.environ["PROFILES_URL"] + "/")
    assert eve.account()["accountid"] == eve.accountid


def test_a_kept_token_that_cannot_be_sent(client, eve):
    with pytest.raises(client.ServiceError, match="not-sent"):
        client.User("Eve", "…").account()


def test_an_answer_that_breaks_off(proxy, eve):
    proxy.faults = iter([page(200, b'{"object":', Content_Length="100")])
    assert eve.account()["accountid"] == eve.accountid
    assert proxy.waits == [1]


def test_a_walk(proxy, client, user, administrator):
    """Requests for its pages fail, and the links to them have no prefix."""
    for _ in range(5):
        user.create(named("Eve"))
    proxy.faults = iter(
        [page(504), pass_on, lose, pass_on, page(502, Retry_After="soon")]
    )
    found = list(client.walk(client.administrate, "profiles", limit=2))
    assert found == administrator.profiles()
    assert proxy.waits == [1, 1, 1]


def test_a_walk_whose_row_is_deleted(client, user, administrator):
    for _ in range(3):
        user.create(named("Eve"))
    found = client.walk(client.administrate, "profiles", limit=1)
    first = next(found)
    user.delete(f"/api/user/delete-profile?profileid={first['profileid']}")
    with pytest.raises(client.ServiceError, match="invalid-after"):
        next(found)


def test_a_password_in_netrc_does_not_replace_the_token(
    eve, client, monkeypatch, tmp_path
):
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login ada password secret\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    assert eve.account()["accountid"] == eve.accountid
