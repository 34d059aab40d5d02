"""docs/client.py, with the service behind a proxy that spoils some answers."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from copy import copy
from importlib import import_module
from io import BytesIO
from itertools import cycle
from pickle import dumps, loads
from threading import Event, Thread
from traceback import format_exception

import pytest
from service import (
    ROOT,
    close_connection,
    named,
    on_sqlite,
    run,
    run_python,
    sign_in,
)
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

from callers import OPERATOR
from models import Session, timestamp
from profiles import delete_profile

pytestmark = [pytest.mark.long, on_sqlite]


class Proxy:
    """A WSGI app in front of the service. It strips a prefix from each path.

    The next of ``faults`` answers a request instead of the service.
    """

    def __init__(self, app):
        self.app = app
        self.faults = iter([])
        self.sent = []  # the last part of each path
        self.waits = []  # of the client

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
def proxy(app, client, monkeypatch):
    proxy = Proxy(app)
    monkeypatch.setattr(client, "sleep", proxy.waits.append)
    with make_server("127.0.0.1", 0, proxy) as server:
        thread = Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        # These are read when they are used: the module has been imported before.
        monkeypatch.setenv("PROFILES_URL", f"http://127.0.0.1:{server.port}/prefix/")
        token = sign_in(app, administrator=True).token
        monkeypatch.setenv("PROFILES_TOKEN", token)
        monkeypatch.setenv("PROFILES_APPID", app.config["APPID"])
        yield proxy
        server.shutdown()
        thread.join()
    client.http_session(os.getpid()).close()


@pytest.fixture
def client(monkeypatch):
    """The module."""
    pytest.importorskip("requests", reason="pip install -r tests/requirements.txt")
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # nothing new in docs/
    return import_module("client")


@pytest.fixture
def eve(proxy, client):
    """A user of the client, who is signed in."""
    eve = client.sign_up("Eve")
    proxy.sent.clear()
    return eve


@pytest.fixture
def keep(client):
    """Returns the user as a later request of the product finds it."""
    return lambda user: client.User("Eve", user.token, user.sessionid)


@pytest.fixture
def expire(eve):
    """Lets all sessions of the user expire."""

    def expire():
        past = timestamp(time.time_ns())
        own = Session.accountid == eve.accountid
        Session.update(expiresAt=past).where(own).execute()

    return expire


def ids(sessions):
    return [session["sessionid"] for session in sessions]


@pytest.mark.parametrize("name", ["README.md", "docs/API.md"])
def test_the_sample_of_a_page(proxy, capsys, name):
    """The first answer to each request is lost, the second one is a 503."""
    proxy.faults = cycle([lose, page(503, Retry_After="2"), pass_on])
    (sample,) = re.findall("(?s)```python\n(.*?)```", (ROOT / name).read_text())
    exec(sample, {})
    output = capsys.readouterr().out
    comments = re.findall("print.*# (.+)", sample)
    assert output.splitlines() == comments
    requests = len(proxy.sent) // 3
    assert proxy.waits == [0, 2] * requests


@pytest.mark.parametrize(
    "user_id",
    ["", "x ", "é", "x" * 256, 7],
)
def test_an_id_that_is_not_sent_as_it_is(proxy, client, user_id):
    for call in (client.User, client.sign_up):
        with pytest.raises(ValueError):
            call(user_id)
    assert proxy.sent == []


def test_a_user_signs_up_once(proxy, client, keep):
    eve = client.sign_up("Eve", duration=7)
    again = client.sign_up("Eve")
    kept = keep(eve)
    assert proxy.sent == ["create-account", "create-session"] * 2
    assert eve.account() == kept.account()
    assert again.accountid == eve.accountid
    found = client.walk(kept.send, "sessions", accountid=kept.accountid)
    assert [session["duration"] for session in found] == [28_800, 7]


@pytest.mark.parametrize("token", ["x", ""])
def test_a_token_is_kept_with_its_sessionid(proxy, client, token):
    for sessionid in (None, ""):
        with pytest.raises(ValueError, match="belong together"):
            client.User("Eve", token, sessionid)
    assert proxy.sent == []


def test_a_session_of_another_account(proxy, client):
    content = b'{"accountid": "acct_0", "token": "x", "sessionid": "x"}'
    proxy.faults = iter([page(201, content)])
    with pytest.raises(client.ServiceError, match="unexpected-answer"):
        client.User("Eve")


FORKS = """
import os, sys
from multiprocessing import get_context
import client

def check_connection(event, values):
    if event == "http.client.connect":
        values[0].opener = os.getpid()
    elif event == "http.client.send":
        assert values[0].opener == os.getpid()

def sign_in(number):
    user = client.User(f"{number % 4}")
    assert user.account()["accountid"] == user.accountid

sys.addaudithook(check_connection)
for number in range(4):
    client.sign_up(f"{number}")
with get_context("fork").Pool(4) as pool:
    pool.map(sign_in, range(40), chunksize=1)
"""


def test_a_process_uses_no_connection_of_its_parent(serve, database_url):
    """Four processes sign users in at once, after their parent has done so."""
    pytest.importorskip("requests")
    service = serve(database_url)
    own = {
        "PYTHONPATH": str(ROOT / "docs"),
        "PROFILES_URL": f"http://127.0.0.1:{service.port}",
        "PROFILES_TOKEN": sign_in(service, administrator=True).token,
    }
    done = run_python("-B", "-c", FORKS, **own)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_user_who_was_deleted_in_another_tab(client, eve, administrator, keep):
    """Nothing makes the account again, whatever the other tab does."""
    kept = keep(eve)
    eve.delete()
    eve.delete()
    with pytest.raises(client.SignedOut, match="invalid-accountid"):
        kept.save_profile(named("Eve"))
    with pytest.raises(client.ServiceError, match="invalid-accountid, status 404"):
        client.User("Eve")
    assert all(account["administrator"] for account in client.accounts())


def test_another_application(proxy, client, app, monkeypatch):
    token = sign_in(app, administrator=True, appid="shop").token
    monkeypatch.setenv("PROFILES_TOKEN", token)
    monkeypatch.setenv("PROFILES_APPID", "shop")
    assert client.sign_up("Eve").account()["appid"] == "shop"
    monkeypatch.setenv("PROFILES_APPID", "")  # as if it were not set
    with pytest.raises(client.AdministratorTokenError):
        client.User("Eve")


def test_the_profile_that_is_saved(proxy, eve):
    """One that is named, else the default one."""
    first = eve.save_profile(named("a"))
    assert eve.account()["profile"] == first
    assert eve.profile(first["profileid"]) == first
    second = eve.create_profile(named("b"), "b")
    assert eve.create_profile(named("b"), "b") == second
    assert eve.set_default_profile(second["profileid"])["profile"] == second
    named_first = eve.save_profile(named("c"), first["profileid"])
    default = eve.save_profile(named("d"))
    assert default["profileid"] == second["profileid"]
    with pytest.raises(ValueError, match="profileid has no value"):
        eve.save_profile(named("e"), "")
    assert list(eve.profiles(limit=1)) == [default, named_first]


def test_a_save_when_the_first_profile_is_not_the_default(proxy, eve):
    """It is changed, and becomes the default."""
    first = eve.save_profile(named("a"))
    newest = eve.create_profile(named("b"), "b")
    default = eve.create_profile(named("c"), "c")
    eve.set_default_profile(default["profileid"])
    eve.delete_profile(default["profileid"])
    saved = eve.save_profile(named("d"))
    assert saved["profileid"] == first["profileid"]
    assert saved["fullName"] == "d"
    assert eve.account()["profile"] == saved
    assert list(eve.profiles()) == [newest, saved]


def test_each_wrong_field_has_its_code(client, eve):
    with pytest.raises(client.ServiceError) as caught:
        eve.save_profile({"phone": "7"})
    error = caught.value
    codes = {
        "contact-email": "invalid-contact-email",
        "full-name": "invalid-full-name",
    }
    assert error.errors == codes
    assert str(error) == (
        "invalid-contact-email, status 400, contact-email: invalid-contact-email, "
        f"full-name: invalid-full-name, request {error.request_id}"
    )


@pytest.mark.parametrize(
    "path, name, value",
    [
        ("profiles", "emali", "x"),
        ("accounts", "email", "x"),
        ("end-sessions", "limit", 1),
        ("profiles", "email", None),
        ("sessions", "accountid", ""),
    ],
)
def test_a_parameter_that_is_unknown_or_empty(proxy, client, path, name, value):
    """An administrator's list would otherwise have the rows of all users."""
    with pytest.raises(ValueError, match=name):
        client.administrate("GET", path, **{name: value})
    assert proxy.sent == []


@pytest.mark.parametrize("name", ["websiet", "fullName"])
def test_a_field_that_is_unknown(proxy, client, eve, name):
    for call in (eve.save_profile, eve.create_profile):
        with pytest.raises(ValueError, match=name):
            call(named("Eve") | {name: "x"}, "prof_0")
    assert proxy.sent == []


def test_an_edit_of_a_profile_that_was_changed(proxy, client, eve):
    """The response to the first update is lost; its repeat finds it done."""
    shown = eve.save_profile(named("a"))["updatedAt"]
    proxy.faults = iter([pass_on, lose])
    saved = eve.save_profile(named("b"), if_match=shown)
    assert saved["fullName"] == "b"
    for profileid in (None, saved["profileid"]):
        with pytest.raises(client.ServiceError, match="profile-changed, status 412"):
            eve.save_profile(named("c"), profileid, if_match=shown)
    assert list(eve.profiles()) == [saved]


@pytest.mark.parametrize(
    ("if_match", "stored"), [(None, ["c"]), ("", ["c"]), ("x", [])]
)
def test_a_default_that_is_deleted_while_it_is_saved(
    proxy, client, eve, if_match, stored
):
    """The account still had it; an edit of it is refused, and no other is made."""
    saved = eve.save_profile(named("a"))

    def delete_first(app, environ, start_response):
        with app.app_context():
            delete_profile(OPERATOR, saved["profileid"])
        return pass_on(app, environ, start_response)

    proxy.faults = iter([pass_on, delete_first])
    with suppress(client.ServiceError):
        eve.save_profile(named("c"), if_match=if_match)
    assert [profile["fullName"] for profile in eve.profiles()] == stored


def test_a_first_save_of_a_form_that_another_one_preceded(client, eve):
    """An empty if_match says that there was no profile."""
    saved = eve.save_profile(named("a"), if_match="")
    with pytest.raises(client.ServiceError, match="profile-changed, status 412"):
        eve.save_profile(named("b"), if_match="")
    assert list(eve.profiles()) == [saved]


def test_an_edit_of_a_profile_that_was_deleted(proxy, client, eve):
    """Its deletion is lost and repeated, and it is not made again."""
    saved = eve.save_profile(named("a"))
    proxy.faults = iter([lose])
    eve.delete_profile(saved["profileid"])
    with pytest.raises(client.ServiceError, match="profile-changed, status 412"):
        eve.save_profile(named("b"), if_match=saved["updatedAt"])
    assert list(eve.profiles()) == []


@pytest.mark.parametrize(
    "faults",
    [
        [lose],
        [pass_on, lose],
        [pass_on, lose, pass_on, lose],
        [pass_on, lose, pass_on, pass_on, lose],
    ],
    ids=["account", "create-profile", "update-profile", "set-default-profile"],
)
def test_a_first_save_whose_answer_is_lost(proxy, eve, faults):
    proxy.faults = iter(faults)
    saved = eve.save_profile(named("Eve"))
    assert saved["fullName"] == "Eve"
    assert proxy.waits == [0] * faults.count(lose)
    assert eve.account()["profile"] == saved
    assert list(eve.profiles()) == [saved]


def test_what_is_not_done_is_no_success(proxy, client, eve):
    proxy.faults = cycle([page(503)])
    for call in (eve.sign_out, eve.delete):
        with pytest.raises(client.ServiceError, match="unexpected-answer"):
            call()


def test_the_devices_of_a_user(proxy, client, eve, expire):
    """Ending a session again is no error, and begins no session."""
    expire()
    phone, tablet, laptop = (client.User("Eve") for _ in range(3))
    running = [laptop.sessionid, tablet.sessionid, phone.sessionid]
    assert ids(phone.sessions(limit=1)) == running
    proxy.faults = iter([lose, pass_on, pass_on, lose])
    phone.end_session(tablet.sessionid)
    phone.end_session("sess_0123456789abcdef")
    laptop.sign_out()
    assert ids(phone.sessions()) == [phone.sessionid]
    other = client.User("Eve")
    other.sign_out_everywhere()
    for user in (phone, tablet, laptop, other):
        with pytest.raises(client.SignedOut):
            user.account()


def test_an_administrators_lists(client, eve, administrator):
    saved = eve.save_profile(named("Eve"))
    client.sign_up("Lea").save_profile(named("Lea"))
    listed = list(client.accounts(limit=1))
    assert listed == administrator.get("/api/administrator/accounts").json
    others = client.accounts(after=listed[0]["accountid"])
    assert list(others) == listed[1:]
    assert list(client.profiles(email="eve@Example.com")) == [saved]


def test_a_session_that_has_expired_is_renewed(proxy, client, eve, expire, keep):
    saved = eve.save_profile(named("Eve"))
    kept = keep(eve)
    expire()
    proxy.sent.clear()
    assert list(kept.profiles()) == [saved]
    assert proxy.sent == ["profiles", "create-session", "profiles"]
    assert kept.token != eve.token
    assert ids(kept.sessions()) == [kept.sessionid]


def test_a_session_that_was_purged(proxy, client, app, eve, expire):
    """Its token is unknown, and the client asks whether the account is, too."""
    expire()
    run(app, "purge-sessions", "--days", "0")
    with pytest.raises(client.SignedOut, match="sign-in-required"):
        eve.account()
    assert proxy.sent == ["account", "accounts"]


def test_the_administrators_token_is_wrong(client, eve, expire, monkeypatch):
    """The error differs from that of a user, also when a session is renewed."""
    other = client.sign_up("Lea")
    expire()
    for token in ("0" * 64, eve.token, other.token):
        monkeypatch.setenv("PROFILES_TOKEN", token)
        with pytest.raises(client.AdministratorTokenError):
            eve.account()


@pytest.mark.parametrize(
    "call, repeats",
    [
        ("account", 2),
        ("sign_in", 4),
    ],
)
def test_an_outage(proxy, client, eve, monkeypatch, call, repeats):
    """By default, a GET may take 5 seconds, and a change 15."""
    monkeypatch.setattr(client, "monotonic", lambda: sum(proxy.waits))
    content = b'{"object": "error", "message": "database-unavailable"}'
    headers = {"Retry_After": "2", "X_Request_Id": "r7"}
    proxy.faults = cycle([page(503, content, **headers)])
    message = "database-unavailable, status 503, request r7"
    with pytest.raises(client.ServiceError, match=message):
        getattr(eve, call)()
    assert proxy.waits == [2] * repeats


@pytest.mark.parametrize(
    "status, content",
    [
        (200, b"<p>"),
        (302, b"<p>"),
        (404, b"[]"),
        (404, b'{"message": "no\\nroute"}'),
        (404, b'{"object": "x", "message": "x", "errors": ["no\\nroute"]}'),
    ],
)
def test_another_page_is_an_error_at_once(proxy, client, eve, status, content):
    headers = {"Location": "/openapi.json", "X_Request_Id": "r7"}
    proxy.faults = iter([page(status, content, **headers)])
    with pytest.raises(client.ServiceError) as caught:
        eve.account()
    assert str(caught.value) == f"unexpected-answer, status {status}, request r7"
    assert proxy.sent == ["account"]


@pytest.mark.parametrize(
    "try_seconds, timeout, waits",
    [
        (0.2, "", [0]),
        (60, "0.5", []),
    ],
    ids=["each try is bounded", "the whole time is bounded"],
)
def test_a_service_that_never_answers(
    proxy, client, eve, monkeypatch, try_seconds, timeout, waits
):
    monkeypatch.setattr(client, "TRY_SECONDS", try_seconds)
    monkeypatch.setenv("PROFILES_TIMEOUT", timeout)
    given_up = Event()
    proxy.faults = cycle([lambda *request: given_up.wait(60)])
    with pytest.raises(client.ServiceError) as caught:
        eve.account()
    given_up.set()
    address = os.environ["PROFILES_URL"].removesuffix("/prefix/")
    assert str(caught.value) == f"no-answer, {address}, TimeoutError"
    assert proxy.waits == waits


def find_profiles(client):
    """Return the error of a search."""
    address = "secret@example.com"
    with pytest.raises(client.ServiceError) as caught:
        list(client.profiles(email=address))
    assert str(caught.value).isprintable()
    assert "secret" not in "".join(format_exception(caught.value))
    return caught.value


NOBODY = "http://127.0.0.1:1"
REFUSED = f"no-answer, {NOBODY}, ConnectionRefusedError: Connection refused"
MALFORMED = "not-sent, malformed PROFILES_URL, InvalidURL"
NO_SCHEMA = "not-sent, malformed PROFILES_URL, MissingSchema"


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("TOKEN", "secret\n", f"not-sent, {NOBODY}, InvalidHeader"),
        ("TOKEN", "secret…", f"not-sent, {NOBODY}, UnicodeEncodeError"),
        ("APPID", "secret\n", f"not-sent, {NOBODY}, InvalidHeader"),
        ("URL", "", NO_SCHEMA),
        ("URL", "secret", NO_SCHEMA),  # the token, say
        ("URL", "http://", "not-sent, http://, InvalidURL"),
        ("URL", "127.0.0.1:8000", "not-sent, 127.0.0.1:8000, InvalidSchema"),
        ("URL", "ada:secret@localhost:80/x", "not-sent, localhost:80, InvalidSchema"),
        ("URL", "http://ada:secret?@localhost:8000", MALFORMED),
        ("URL", "http://ada:secret/@localhost:8000", MALFORMED),
        ("URL", "http://localhost:8000\n", MALFORMED),
        ("URL", NOBODY, REFUSED),
        ("URL", "http://ada:secret@127.0.0.1:1", REFUSED),
        ("URL", "http://secret@127.0.0.1:1/secret?secret=7", REFUSED),
    ],
)
def test_a_request_that_does_not_arrive(
    proxy, client, monkeypatch, name, value, message
):
    """A connection that was refused is tried again once, at once."""
    monkeypatch.setenv("PROFILES_URL", NOBODY)
    monkeypatch.setenv(f"PROFILES_{name}", value)
    assert str(find_profiles(client)) == message
    assert proxy.waits == [0] * message.startswith("no-answer")


def test_an_unknown_host(proxy, client, monkeypatch):
    """The error is not confused with one that the caller handles meanwhile."""

    def fail(*request, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setenv("PROFILES_URL", "https://profiles.example")
    try:
        raise OSError(7, "secret")
    except OSError:
        with pytest.raises(client.ServiceError) as caught:
            client.User("Eve")
    reason = "gaierror: Name or service not known"
    assert str(caught.value) == f"no-answer, https://profiles.example, {reason}"


@pytest.mark.skipif(not shutil.which("openssl"), reason="install openssl")
def test_a_certificate_that_is_not_trusted(proxy, client, monkeypatch, tmp_path):
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout key -out x"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "x", tmp_path / "key")

    def refuse():
        for _ in range(2):
            wire, _ = server.accept()
            with wire, suppress(OSError):
                context.wrap_socket(wire, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("PROFILES_URL", address)
        thread = Thread(target=refuse)
        thread.start()
        error = find_profiles(client)
        thread.join()
    reason = (
        r"SSLCertVerificationError: \[SSL: CERTIFICATE_VERIFY_FAILED\] "
        r"certificate verify failed: self.signed certificate \(_ssl\.c:\d+\)"
    )
    assert re.fullmatch(f"no-answer, {address}, {reason}", str(error))


@pytest.mark.parametrize(
    "duplicate",
    [
        copy,
        lambda error: loads(dumps(error)),
    ],
    ids=["copy", "pickle"],
)
@pytest.mark.parametrize(
    "name", ["ServiceError", "AdministratorTokenError", "SignedOut"]
)
def test_a_copy_of_an_error(proxy, client, name, duplicate):
    error_type = getattr(client, name)
    codes = {"dob": "invalid-dob"}
    values = {"request_id": "r7", "reason": "ended", "errors": codes}
    values |= {"retry_after": "2", "detail": "http://127.0.0.1:1, TimeoutError"}
    error = error_type(code="invalid-dob", status=400, **values)
    error.add_note("while Eve saved")
    twin = duplicate(error)
    assert type(twin) is error_type
    assert vars(twin) == vars(error)
    assert str(twin) == str(error)


def test_a_walk(proxy, client, eve, administrator):
    """Requests for its pages fail, or break off, and the links have no prefix."""
    for name in "abcde":
        eve.create_profile(named("Eve"), name)
    bad_gateway = page(502, Retry_After="soon")
    broken = page(200, b"[{", Content_Length="100")
    proxy.faults = iter([page(504), pass_on, lose, pass_on, bad_gateway, broken])
    assert list(client.profiles(limit=2)) == administrator.profiles()
    assert proxy.waits == [0, 0, 0, 0]


def test_a_password_in_netrc_does_not_replace_the_token(eve, monkeypatch, tmp_path):
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login ada password secret\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    assert eve.account()["accountid"] == eve.accountid
