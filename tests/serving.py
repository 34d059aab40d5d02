"""The service as its users meet it: in this process or served by gunicorn."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cached_property, partialmethod
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from threading import Event

from werkzeug.test import EnvironBuilder, TestResponse

from database import connection, db
from models import Account
from validators import CATALOGUE

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tests" / "programs"
ALL_FIELDS = ",".join(CATALOGUE)
UPDATE = "/api/user/update-profile"
CREATE = "/api/user/create-profile"
PROFILES = "/api/administrator/profiles"
SESSIONS = "/api/administrator/sessions"
FORM = "application/x-www-form-urlencoded"


class Person:
    """An account with a session, and its client, of an app or of a Served one."""

    def __init__(self, service, *, administrator=False, appid=None):
        command = ["create-account"]
        if administrator:
            command += ["--administrator"]
        if appid:
            command += ["--appid", appid]
        account = run(service, *command)
        self.accountid = account["accountid"]
        self.appid = account["appid"]
        command = ["create-session", self.accountid, "--duration", "3600"]
        self.session = run(service, *command)
        self.token = self.session["token"]
        self.headers = {"Authorization": f"Bearer {self.token}", "X-Appid": self.appid}
        self.client = service.test_client()

    @cached_property
    def account(self):
        """The account as a caller in this process has it."""
        with connection():
            return Account.get_by_id(self.accountid)

    def send(self, method, path, headers=(), **options):
        headers = self.headers | dict(headers)
        return self.client.open(path, method=method, headers=headers, **options)

    def get(self, path):
        return self.send("GET", path)

    def create(self, data=None, accountid=None, **options):
        path = f"{CREATE}?accountid={accountid or self.accountid}"
        return self.send("POST", path, data=data, **options)

    def update(self, profileid, data=None, **options):
        path = f"{UPDATE}?profileid={profileid}"
        return self.send("PATCH", path, data=data, **options)

    def profiles(self):
        response = self.get(f"{PROFILES}?all=true")
        assert response.status_code == 200, response.text
        return response.json or []


def named(name, **more):
    """A body of the two fields configured by default, both with the name."""
    return {"full-name": name, "contact-email": f"{name}@example.com", **more}


def walk(person, path):
    """The pages of a listing, from link to link."""
    visited = set()
    while path:
        assert path not in visited, f"{path} was there before"
        visited.add(path)
        response = person.get(path)
        assert response.status_code == 200, response.text
        yield response.json
        link = response.headers.get("Link")
        path = link and re.fullmatch('<(.+)>; rel="next"', link)[1]


# The headers that every response has, beside its X-Request-Id.
SAFE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def assert_common_headers(response):
    """The headers that every response has."""
    for name, value in SAFE.items():
        assert response.headers.getlist(name) == [value]
    assert len(response.headers.getlist("X-Request-Id")) == 1


def assert_error(response, status, code):
    """The shape of every error there is."""
    assert response.json == {"object": "error", "message": code}
    assert response.status_code == status
    assert response.content_type == "application/json"
    assert response.text.endswith("}\n")
    assert_common_headers(response)


def assert_unavailable(*responses, within=None):
    """The database is away; each answer says when to try again, and came in time."""
    for response in responses:
        assert_error(response, 503, "database-unavailable")
        assert re.fullmatch("[0-9]+", response.headers["Retry-After"])
        assert within is None or response.seconds < within


class HTTPClient:
    """Used as Flask's test client. Each request has a connection of its own."""

    def __init__(self, port, timeout=40):
        self.port = port
        self.timeout = timeout

    def open(self, path, **options):
        """The response, and in its ``seconds`` how long it took."""
        request = EnvironBuilder(path, **options).get_request()
        body = request.get_data()
        began = time.monotonic()
        wire = HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        with closing(wire):
            wire.request(request.method, path, body, dict(request.headers))
            answer = wire.getresponse()
            text = answer.read()
        status = str(answer.status)
        response = TestResponse([text], status, answer.getheaders(), request)
        response.seconds = time.monotonic() - began
        return response

    get = partialmethod(open, method="GET")


class Served:
    """The service in a process group; the end of a ``with`` block kills it."""

    def __init__(self, folder, database_url, **settings):
        self.port = free_port()
        self.log_file = folder / f"{token_hex(4)}.log"
        self.command = procfile("web")
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DATABASE_URL": database_url,
            "PORT": str(self.port),
            "WEB_CONCURRENCY": "2",
            **settings,
        }

    def start(self, *command, cwd=ROOT):
        """Run the Procfile's line, or another command; the log is what they write."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command or self.command,
                cwd=cwd,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()

    def test_client(self):
        return HTTPClient(self.port)

    def get(self, path, **options):
        return self.test_client().get(path, **options)

    def wait_until_up(self):
        """Wait until /health gets a response of any kind, and return it."""

        def health():
            assert self.process.poll() is None, "the service has ended"
            return self.get("/health")

        return wait_until(health, log=self.log_file)

    def log(self):
        return self.log_file.read_text()

    def stop(self):
        """End the service as its platform does, and wait for its end."""
        self.process.terminate()
        assert self.process.wait(60) == 0

    def kill(self, sign=signal.SIGKILL):
        """Send every process of the service the signal, and wait for their end."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, sign)
        self.process.wait(60)
        wait_until(self.port_is_free, log=self.log_file)

    def port_is_free(self):
        with socket.create_server(("127.0.0.1", self.port)):
            return True

    def flask(self, *words):
        """A flask command, run to its end with the service's environment."""
        return subprocess.run(
            [sys.executable, "-m", "flask", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
        )


def run(service, *words):
    """The object that a flask command prints on the only line of its output."""
    if isinstance(service, Served):
        done = service.flask(*words)
        assert done.returncode == 0, done.stderr
    else:
        with service.app_context():  # of this app, if that of another one is pushed
            done = service.test_cli_runner().invoke(args=words)
        assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def procfile(process, root=ROOT):
    """The command of a process in the Procfile."""
    text = (root / "Procfile").read_text()
    command = re.search(f"^{process}: (.+)$", text, re.MULTILINE)
    return shlex.split(command[1])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def exchange(service, text, path=None):
    """What the port, or a Unix socket's path, sends back for exactly these bytes."""
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as wire:
        wire.settimeout(40)
        wire.connect(path or ("127.0.0.1", service.port))
        wire.sendall(text)
        wire.shutdown(socket.SHUT_WR)
        with wire.makefile("rb") as answer:
            return answer.read()


def close_connection():
    """Close the thread's connection: Python 3.13 and newer warn of one left open."""
    if db.obj:
        db.close()


class Threads(ThreadPoolExecutor):
    """Threads that close their connection after each call, as API.md asks."""

    def submit(self, call, *values):
        def work():
            try:
                return call(*values)
            finally:
                close_connection()

        return super().submit(work)


def at_once(*calls):
    """What the calls return, each made in a thread of its own at the same time."""
    with Threads(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.result() for future in futures]


@contextmanager
def repeating(*calls):
    """Each call is made again and again, in a thread each, until the block ends."""
    ended = Event()

    def repeat(call):
        while not ended.is_set():
            call()

    with Threads(len(calls)) as pool:
        threads = [pool.submit(repeat, call) for call in calls]
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.result()


def wait_until(condition, seconds=40, *, log=None):
    """What the condition returns once that is true; OSError counts as not yet.

    A failure shows the end of the log, which is a path.
    """
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            with suppress(OSError):
                if found := condition():
                    return found
            time.sleep(0.02)
        raise AssertionError(f"waited {seconds} seconds in vain")
    except AssertionError as error:
        if log:
            error.add_note(f"The end of its log:\n{log.read_text()[-2_000:]}")
        raise
