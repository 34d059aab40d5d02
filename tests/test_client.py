"""The clients, with the service behind a proxy that spoils some answers.

Each case of client_cases.json runs with docs/client.py and with docs/client.mjs. The
other tests are of docs/client.py alone.
"""

import json
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from io import BytesIO
from itertools import cycle
from operator import attrgetter
from pickle import dumps, loads
from threading import Barrier, Event, Thread
from traceback import format_exception
from urllib.parse import urlsplit

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
        self.request_ids = []
        self.waits = []  # of the client

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"]
        environ["PATH_INFO"] = path.removeprefix("/prefix")
        self.sent.append(path.rpartition("/")[2])
        self.request_ids.append(environ["HTTP_X_REQUEST_ID"])
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


def run_python_client(client, user, steps):
    """Return what each step of a case returned or raised, as client_cases.mjs does."""
    results = []
    for step in steps:
        target = client if step.get("of") == "client" else user
        name = re.sub("[A-Z]", lambda match: "_" + match[0].lower(), step["call"])
        values = [resolve(value, results) for value in step.get("arguments", [])]
        try:
            result = getattr(target, name)(*values, **step.get("options", {}))
            if isinstance(result, Iterator):
                result = list(result)
            results.append({"returned": result})
        except (ValueError, client.ServiceError) as error:
            raised = {"type": type(error).__name__, "message": str(error)}
            if raised["type"] == "ValueError":
                raised["type"] = "TypeError"  # as it is called in JavaScript
            for name, value in vars(error).items():
                raised[re.sub("_(.)", lambda match: match[1].upper(), name)] = value
            raised["shown"] = "".join(format_exception(error))
            results.append({"raised": raised})
    return results


def run_node_client(client, user, steps):
    if not shutil.which("node"):
        pytest.skip("install node")
    case = {"user": ["Eve", user.token, user.sessionid], "steps": steps}
    command = ["node", ROOT / "tests/client_cases.mjs", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def resolve(value, results):
    """Return the value; "$1.updatedAt" is a property of the result of step 1."""
    reference = re.fullmatch(r"\$(\d+)((\.\w+)*)", str(value))
    if not reference:
        return value
    result = results[int(reference[1])]
    found = result.get("returned") or result["raised"]
    for name in reference[2].split(".")[1:]:
        found = found[name]
    return found


def assert_contains(actual, expected, results):
    """Compare the expected properties of an object, and all rows of a list."""
    expected = resolve(expected, results)
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert actual[name] == resolve(value, results)
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for row, expected_row in zip(actual, expected, strict=True):
            assert_contains(row, expected_row, results)
    else:
        assert actual == expected


def fault(row, make_app):
    """Return the fault of the proxy that a case describes."""
    if isinstance(row, str):
        return {"pass": pass_on, "lose": lose}[row]
    if "service" in row:  # with other settings
        other = make_app(**row["service"])
        return lambda app, environ, start_response: other(environ, start_response)
    content = row["content"]
    if content != "<p>":
        content = json.dumps(content)
    headers = row.get("headers", {})
    headers = {name.replace("-", "_"): value for name, value in headers.items()}
    return page(row["status"], content.encode(), **headers)


CASES = json.loads((ROOT / "tests/client_cases.json").read_text())


def hide_id(text):
    """Return the text with ID in place of the id that a client gave a request."""
    return re.sub(r"\b([0-9a-f]{32}|[0-9a-f-]{36})\b", "ID", text)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
@pytest.mark.parametrize("run_client", [run_python_client, run_node_client])
def test_a_case_of_both_clients(
    proxy, client, eve, app, make_app, monkeypatch, run_client, case
):
    make_app = partial(make_app, APPID=app.config["APPID"])
    if "service" in case:  # its settings
        proxy.app = make_app(**case["service"])
    for name, value in case.get("settings", {}).items():
        if value is None:
            monkeypatch.delenv(name)
        elif isinstance(value, list):  # a command that prints a token
            monkeypatch.setenv(name, run(app, *value)["token"])
        else:
            monkeypatch.setenv(name, value)
    proxy.faults = iter([fault(row, make_app) for row in case.get("faults", [])])
    results = run_client(client, eve, case["steps"])
    results = json.loads(hide_id(json.dumps(results, default=vars)))
    for step, result in zip(case["steps"], results, strict=True):
        if "raises" in step:
            assert_contains(result["raised"], step["raises"], results)
            assert "secret" not in result["raised"]["shown"]
            assert eve.token not in result["raised"]["shown"]
        else:
            assert "returned" in result, result
            assert_contains(result["returned"], step.get("returns", {}), results)
    if "sent" in case:
        assert proxy.sent == case["sent"]


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


def test_each_try_of_a_request_has_its_id(proxy, eve):
    proxy.request_ids.clear()
    proxy.faults = iter([lose, page(503), pass_on])
    eve.account()
    first, *others = proxy.request_ids
    assert others == [first] * 2
    eve.account()
    assert proxy.request_ids.count(first) == 3


def test_a_user_signs_up_once(proxy, client, keep):
    eve = client.sign_up("Eve", duration=7)
    again = client.sign_up("Eve")
    kept = keep(eve)
    assert proxy.sent == ["create-account", "create-session"] * 2
    assert client.User("Eve").account() == kept.account()
    assert again.accountid == eve.accountid
    found = client.walk(kept.send, "sessions", accountid=kept.accountid)
    assert [session["duration"] for session in found] == [2_592_000, 2_592_000, 7]


@pytest.mark.parametrize("user", ["User", "ENVIRONMENT.user"])
def test_a_token_is_kept_with_its_sessionid(proxy, client, user):
    """A session of the product that has lost both starts no other one here."""
    user = attrgetter(user)(client)
    for session in (
        {"token": "x"},
        {"token": "x", "sessionid": ""},
        {"sessionid": "x"},
    ):
        with pytest.raises(ValueError, match="belong together"):
            user("Eve", **session)
    for lost in (None, ""):
        with pytest.raises(client.SignedOut) as caught:
            user("Eve", lost, lost)
        assert str(caught.value) == "sign-in-required, the User has no token"
    assert proxy.sent == []


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
        "PROFILES_TOKEN": sign_in(service.app, administrator=True).token,
    }
    done = run_python("-B", "-c", FORKS, **own)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_application(proxy, client, app, monkeypatch):
    token = sign_in(app, administrator=True, appid="shop").token
    monkeypatch.setenv("PROFILES_TOKEN", token)
    monkeypatch.setenv("PROFILES_APPID", "shop")
    assert client.sign_up("Eve").account()["appid"] == "shop"
    monkeypatch.setenv("PROFILES_APPID", "")  # as if it were not set
    with pytest.raises(client.AdministratorTokenError):
        client.User("Eve")


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


def test_a_default_that_is_deleted_while_it_is_saved(proxy, client, eve):
    """The account still had it. Nothing is saved; the next save creates another."""
    saved = eve.save_profile(named("a"))

    def delete_first(app, environ, start_response):
        with app.app_context():
            delete_profile(OPERATOR, saved["profileid"])
        return pass_on(app, environ, start_response)

    proxy.faults = iter([pass_on, delete_first])
    with pytest.raises(client.ServiceError, match="invalid-profileid, status 404"):
        eve.save_profile(named("b"))
    assert list(eve.profiles()) == []
    created = eve.save_profile(named("c"))
    assert list(eve.profiles()) == [created]


def test_a_user_who_was_deleted_in_another_tab(client, eve, keep):
    """Nothing makes the account again, whatever the other tab does."""
    kept = keep(eve)
    eve.delete()
    with pytest.raises(client.SignedOut, match="sign-in-required, status 401"):
        kept.save_profile(named("Eve"))
    with pytest.raises(client.ServiceError, match="invalid-accountid, status 404"):
        client.User("Eve")
    assert all(account["administrator"] for account in client.accounts())


def test_a_session_that_has_expired_is_over(proxy, client, app, eve, expire):
    """A copy of its token doesn't let anybody in, also after it was deleted."""
    expire()
    other = client.User("Eve")
    assert ids(other.sessions()) == [other.sessionid]
    for reason in ("expired", "ended", None):
        proxy.sent.clear()
        with pytest.raises(client.SignedOut, match="sign-in-required") as caught:
            eve.account()
        assert caught.value.reason == reason
        eve.sign_out()
        assert proxy.sent == ["account", "end-session"]
        assert ids(other.sessions()) == [other.sessionid]
        if reason == "expired":
            other.end_session(eve.sessionid)
        else:
            run(app, "purge-sessions", "--days", "0")


def test_the_administrators_token_is_wrong(client, eve, monkeypatch):
    """The error differs from that of a user."""
    for token in ("0" * 64, eve.token):
        monkeypatch.setenv("PROFILES_TOKEN", token)
        with pytest.raises(client.AdministratorTokenError):
            client.User("Eve")


def test_an_administrators_lists(client, eve, administrator):
    saved = eve.save_profile(named("Eve"))
    client.sign_up("Lea").save_profile(named("Lea"))
    listed = list(client.accounts(limit=1))
    assert listed == administrator.get("/api/administrator/accounts").json
    others = client.accounts(after=listed[0]["accountid"])
    assert list(others) == listed[1:]
    assert list(client.profiles(email="eve@Example.com")) == [saved]


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
    "try_seconds, timeout, waits",
    [
        (0.2, "", [0, 1, 2, 4]),
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
    message = f"no-answer, {address}, TimeoutError, request ID"
    assert hide_id(str(caught.value)) == message
    assert proxy.waits == waits


def find_profiles(client):
    """Return the error of a search."""
    address = "secret@example.com"
    with pytest.raises(client.ServiceError) as caught:
        list(client.profiles(email=address))
    assert "secret" not in "".join(format_exception(caught.value))
    return caught.value


def test_a_connection_that_is_refused(proxy, client, monkeypatch):
    """It is waited for as after a 503: the service may be restarting."""
    monkeypatch.setattr(client, "monotonic", lambda: sum(proxy.waits))
    monkeypatch.setenv("PROFILES_URL", "http://127.0.0.1:1/secret")
    message = "no-answer, http://127.0.0.1:1, Connection refused, request ID"
    assert hide_id(str(find_profiles(client))) == message
    assert proxy.waits == [0, 1, 2]


def test_a_host_whose_first_address_is_dead(eve, client, monkeypatch):
    """It drops packets, as a listener does whose queue is full."""
    url = urlsplit(os.environ["PROFILES_URL"])
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.2", url.port), backlog=0) as dead:
        with socket.create_connection(dead.getsockname()):
            addresses = [("127.0.0.2", url.port), ("127.0.0.1", url.port)]
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            found = [(*kind, address) for address in addresses]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *name: found)
            url = url._replace(netloc=f"two.example:{url.port}")
            monkeypatch.setenv("PROFILES_URL", url.geturl())
            start = time.monotonic()
            assert eve.account()["accountid"] == eve.accountid
            assert 0.5 <= time.monotonic() - start < 2


class ForgottenConnections(BaseHTTPRequestHandler):
    """Answers the first request of each connection, and resets it at the second one."""

    protocol_version = "HTTP/1.1"
    is_first = True

    def do_GET(self):
        if self.is_first:
            self.is_first = False
            self.server.barrier.wait(20)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
        else:
            options = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, options)
            self.close_connection = True

    def log_message(self, *values):
        pass


def test_kept_connections_that_were_forgotten(proxy, client):
    """After one of them is lost, none of the others is used; the system probes each."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ForgottenConnections) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        service = client.Service(url, "x")
        server.barrier = Barrier(30)
        with ThreadPoolExecutor(30) as threads:
            sent = [threads.submit(service.administrate, "GET", "x") for _ in "x" * 30]
        assert [each.result().json() for each in sent] == [{}] * 30
        server.barrier = Barrier(1)
        assert service.administrate("GET", "x").json() == {}
        assert proxy.waits == [0]
        session = client.http_session(os.getpid())
        pools = session.get_adapter(url).poolmanager.pools
        (key,) = pools.keys()
        wire = pools[key].pool.queue[-1].sock
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        session.close()
        server.shutdown()


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
    assert hide_id(str(caught.value)) == (
        "no-answer, https://profiles.example, Name or service not known, request ID"
    )


@pytest.mark.skipif(not shutil.which("openssl"), reason="install openssl")
def test_a_certificate_that_is_not_trusted(proxy, client, monkeypatch, tmp_path):
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout key -out x"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "x", tmp_path / "key")

    def refuse():
        for _ in range(5):
            wire, _ = server.accept()
            with wire, suppress(OSError):
                context.wrap_socket(wire, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("PROFILES_URL", address)
        thread = Thread(target=refuse)
        thread.start()
        message = hide_id(str(find_profiles(client)))
        thread.join()
    reason = (
        r"\[SSL: CERTIFICATE_VERIFY_FAILED\] "
        r"certificate verify failed: self.signed certificate \(_ssl\.c:\d+\)"
    )
    assert re.fullmatch(f"no-answer, {address}, {reason}, request ID", message)


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
    values["profile"] = {"fullName": "Eve", "fields": {"x-vat-id": "1"}}
    error = error_type(code="invalid-dob", status=400, **values)
    error.add_note("while Eve saved")
    twin = duplicate(error)
    assert type(twin) is error_type
    assert vars(twin) == vars(error)
    assert str(twin) == str(error)
    assert "Eve'" not in repr(twin)


def test_a_walk(proxy, client, eve, administrator, monkeypatch):
    """Requests for its pages fail, or break off, and the links have no prefix."""
    for name in "abcde":
        eve.create_profile(named("Eve"), name)
    bad_gateway = page(502, Retry_After="soon")
    broken = page(200, b"[{", Content_Length="100")
    monkeypatch.setattr(client, "WAITS", (0, 0))
    proxy.faults = iter([page(504), pass_on, lose, pass_on, bad_gateway, broken])
    assert list(client.profiles(limit=2)) == administrator.profiles()
    assert proxy.waits == [0, 0, 0, 0]


def test_a_page(proxy, client, eve, administrator):
    for name in "abc":
        eve.create_profile(named("Eve"), name)
    listed = administrator.profiles()
    query = {"accountid": eve.accountid, "limit": 2}
    rows, next_query = client.read_page(client.administrate, "profiles", **query)
    assert next_query.keys() == {*query, "after"}
    others, end = client.read_page(client.administrate, "profiles", **next_query)
    assert (rows + others, end) == (listed, None)
    assert client.read_page(eve.send, "profiles", accountid=eve.accountid)[0] == listed


def test_the_properties_of_the_types(client, eve):
    row_of_type = {
        client.Profile: eve.save_profile(named("Eve")),
        client.Account: eve.account(),
        client.Session: next(eve.sessions()),
    }
    for row_type, row in row_of_type.items():
        assert row.keys() == row_type.__annotations__.keys()


def test_a_pickled_user(client, eve, monkeypatch):
    """It has its own token, but not that of the administrator."""
    pickled = dumps(eve)
    assert os.environ["PROFILES_TOKEN"].encode() not in pickled
    assert loads(pickled).account() == eve.account()
    service = client.Service(os.environ["PROFILES_URL"], "secret")
    with pytest.raises(TypeError, match="would be pickled with its token"):
        dumps(service.user("Eve", eve.token, eve.sessionid))


def test_a_password_in_netrc_does_not_replace_the_token(eve, monkeypatch, tmp_path):
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login ada password secret\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    assert eve.account()["accountid"] == eve.accountid


def test_no_cookie_is_kept(proxy, client, eve):
    """A proxy's cookie for one user would be sent for all others."""
    cookies = []

    def set_cookie(app, environ, start_response):
        cookies.append(environ.get("HTTP_COOKIE"))

        def start(status, headers, *error):
            return start_response(status, [*headers, ("Set-Cookie", "route=1")], *error)

        return app(environ, start)

    proxy.faults = cycle([set_cookie])
    eve.account()
    client.sign_up("Lea").account()
    assert cookies == [None] * 4


def test_a_connection_for_each_thread(proxy, client, caplog):
    """urllib3 logs a warning for each connection that its pool has no room for."""
    barrier = Barrier(20)

    def app(environ, start_response):
        barrier.wait(20)
        start_response("200 OK", [])
        return [b"{}"]

    with make_server("127.0.0.1", 0, app, threaded=True) as server:
        thread = Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        service = client.Service(f"http://127.0.0.1:{server.port}", "x")
        with ThreadPoolExecutor(20) as threads:
            sent = [threads.submit(service.administrate, "GET", "x") for _ in "x" * 20]
        server.shutdown()
        thread.join()
    assert [each.result().json() for each in sent] == [{}] * 20
    assert "pool is full" not in caplog.text


def test_services_that_are_configured_by_values(proxy, client, app, monkeypatch):
    """One process uses two applications, whatever the environment names."""
    url, token = os.environ["PROFILES_URL"], os.environ["PROFILES_TOKEN"]
    shop_token = sign_in(app, administrator=True, appid="shop").token
    monkeypatch.setenv("PROFILES_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("PROFILES_TOKEN")
    main = client.Service(url, token, app.config["APPID"], timeout=20)
    shop = client.Service(url, shop_token, appid="shop")
    for service, appid in ((main, app.config["APPID"]), (shop, "shop")):
        eve = service.sign_up("Eve", duration=7)
        kept = service.user("Eve", eve.token, eve.sessionid)
        saved = kept.save_profile(named("Eve"))
        assert saved["appid"] == appid
        assert service.user("Eve").account()["profile"] == saved
        assert kept.accountid == service.compute_accountid("Eve")
        query = {"accountid": kept.accountid}
        assert list(service.profiles(**query)) == [saved]
        assert list(service.accounts(**query)) == [kept.account()]
        sessions = client.walk(service.administrate, "sessions", **query)
        durations = [session["duration"] for session in sessions]
        assert durations[:2] == [2_592_000, 7]
        kept.sign_out_everywhere()
        kept.delete()
        assert list(service.accounts(**query)) == []


@pytest.mark.parametrize(
    "settings, detail",
    [
        ({"url": "localhost"}, "malformed url"),
        ({"token": "secret\n"}, "malformed token"),
        ({"token": ""}, "token is not set"),
        ({"appid": "secret\nx"}, "malformed appid"),
        ({"timeout": -1}, "malformed timeout"),
    ],
)
def test_a_wrong_setting_of_a_service(proxy, client, settings, detail):
    service = client.Service(**{"url": "http://127.0.0.1:1", "token": "x"} | settings)
    with pytest.raises(client.ServiceError) as caught:
        service.sign_up("Eve")
    assert str(caught.value) == f"not-sent, {detail}"


@pytest.mark.parametrize("user_id", [5, None, "", "x "])
def test_the_message_about_a_wrong_id(proxy, client, user_id):
    for call in (client.sign_up, client.User, client.compute_accountid):
        with pytest.raises(ValueError, match="^user_id must be "):
            call(user_id)


def test_a_proxy_of_the_environment(proxy, client, eve, monkeypatch):
    """The line in the docstring of the client exempts a host."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("PROFILES_TIMEOUT", "0.5")
    with pytest.raises(client.ServiceError, match="no-answer"):
        eve.account()
    name, value = re.search(r"\n    export (\w+)=(\S+)\n", client.__doc__).groups()
    monkeypatch.setenv(name, value)
    assert eve.account()["accountid"] == eve.accountid
