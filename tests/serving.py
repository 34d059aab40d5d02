"""The service as its users meet it: in this process or served by gunicorn, and signed in to it."""

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
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cached_property, partialmethod
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from threading import Event

from flask import Flask, Response
from werkzeug.test import EnvironBuilder

from database import connection
from models import Account
from validators import CATALOGUE

ROOT = Path(__file__).parent.parent
ALL_FIELDS = ",".join(CATALOGUE)
UPDATE = "/api/user/update-profile"
CREATE = "/api/user/create-profile"
PROFILES = "/api/administrator/profiles"
SESSIONS = "/api/administrator/sessions"
FORM = "application/x-www-form-urlencoded"


class Person:
    """An account with a session, made by the commands of an app or of a Served one; its client."""

    def __init__(self, service, *, administrator=False, appid=None):
        options = ["--administrator"] if administrator else []
        options += ["--appid", appid] if appid else []
        account = run(service, "create-account", *options)
        self.accountid, self.appid = account["accountid"], account["appid"]
        self.session = run(
            service, "create-session", self.accountid, "--duration", "3600"
        )
        self.token = self.session["token"]
        self.headers = {"Authorization": f"Bearer {self.token}", "X-Appid": self.appid}
        self.client = service.test_client()

    @cached_property
    def account(self):
        """The account as a caller in this process has it."""
        with connection():
            return Account.get_by_id(self.accountid)

    def send(self, method, path, **options):
        return self.client.open(path, method=method, headers=self.headers, **options)

    def get(self, path):
        return self.send("GET", path)

    def create(self, data=None, accountid=None, **options):
        path = f"{CREATE}?accountid={accountid or self.accountid}"
        return self.send("POST", path, data=data, **options)

    def update(self, profileid, data=None, **options):
        return self.send(
            "PATCH", f"{UPDATE}?profileid={profileid}", data=data, **options
        )

    def profiles(self):
        response = self.get(f"{PROFILES}?all=true")
        assert response.status_code == 200, response.text
        return response.json or []


def named(name, **more):
    """A body of the two fields configured by default, both of which contain the name."""
    return {"full-name": name, "contact-email": f"{name}@example.com", **more}


def walk(person, path):
    """The pages of a listing, each as long as it takes to follow the link to the next."""
    while path:
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


def assert_error(response, status, code):
    """The shape of every error there is."""
    assert response.json == {"object": "error", "message": code}
    assert response.status_code == status
    assert response.content_type == "application/json"
    assert response.text.endswith("}\n")
    for name, value in SAFE.items():
        assert response.headers.getlist(name) == [value]


def assert_unavailable(*responses, within=None):
    """The error of a database that is away, which says when to try again, in so many seconds."""
    for response in responses:
        assert_error(response, 503, "database-unavailable")
        assert re.fullmatch("[0-9]+", response.headers["Retry-After"])
        assert within is None or response.seconds < within


class TimedResponse(Response):
    text = property(lambda self: self.get_data(as_text=True))


class HTTPClient:
    """Sends each request over a connection of its own, as Flask's test client; times it."""

    def __init__(self, port, seconds=40):
        self.port, self.seconds = port, seconds

    def open(self, path, **options):
        began = time.monotonic()
        builder = EnvironBuilder(path, **options)
        request = builder.get_request()
        with closing(
            HTTPConnection("127.0.0.1", self.port, timeout=self.seconds)
        ) as wire:
            wire.request(
                request.method, path, request.get_data(), dict(request.headers)
            )
            answer = wire.getresponse()
            response = TimedResponse(answer.read(), answer.status, answer.getheaders())
        response.seconds = time.monotonic() - began
        builder.close()
        return response

    get = partialmethod(open, method="GET")


class Served(AbstractContextManager):
    """The service in a process group of its own, which the end of a ``with`` block kills."""

    def __init__(self, folder, database_url, **settings):
        self.port, self.log_file = free_port(), folder / f"{token_hex(4)}.log"
        self.command = procfile("web")
        own = {
            "DATABASE_URL": database_url,
            "PORT": str(self.port),
            "WEB_CONCURRENCY": "2",
        }
        own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, **own, **settings}

    def start(self, *command, **options):
        """Run the Procfile's line, or another command; the log is what they write."""
        options = {
            "env": self.environment,
            "cwd": ROOT,
            "start_new_session": True,
            **options,
        }
        with self.log_file.open("ab") as log:
            options = {"stdout": log, "stderr": log, **options}
            self.process = subprocess.Popen(command or self.command, **options)
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
            assert self.process.poll() is None, self.log()
            return self.get("/health")

        return wait_until(health)

    def log(self):
        return self.log_file.read_text()

    def kill(self, sign=signal.SIGKILL):
        """Send every process of the service the signal, and wait for their end."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, sign)
        self.process.wait(60)
        wait_until(
            lambda: socket.create_server(("127.0.0.1", self.port)).close() or True
        )

    def flask(self, *words):
        """A flask command, run to its end with the service's environment."""
        options = {
            "env": self.environment,
            "cwd": ROOT,
            "capture_output": True,
            "text": True,
        }
        return subprocess.run([sys.executable, "-m", "flask", *words], **options)


def run(service, *words):
    """The object that a flask command of the service prints, on the only line of its output."""
    if isinstance(service, Flask):
        with (
            service.app_context()
        ):  # a command would use that of another app, were one pushed
            done = service.test_cli_runner().invoke(args=words)
        assert done.exit_code == 0, done.output
    else:
        done = service.flask(*words)
        assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def procfile(process):
    """The command of a process in the Procfile."""
    lines = (ROOT / "Procfile").read_text().splitlines()
    return shlex.split(dict(line.split(": ", 1) for line in lines)[process])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def exchange(service, text, path=None):
    """What the port, or the Unix socket of a path, sends back for exactly these bytes."""
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as wire:
        wire.settimeout(40)
        wire.connect(path or ("127.0.0.1", service.port))
        wire.sendall(text)
        wire.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: wire.recv(65_536), b""))


def at_once(*calls):
    """What the calls return, each made in a thread of its own at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@contextmanager
def repeating(*calls):
    """Each call is made again and again, in a thread of its own, until the end of the block."""
    ended = Event()

    def repeat(call):
        while not ended.is_set():
            call()

    with ThreadPoolExecutor(len(calls)) as pool:
        threads = [pool.submit(repeat, call) for call in calls]
        try:
            yield
        finally:
            ended.set()
    assert [thread.result() for thread in threads]


def wait_until(condition, seconds=40):
    """What the condition returns once that is true; OSError counts as not yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError):
            if found := condition():
                return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")
