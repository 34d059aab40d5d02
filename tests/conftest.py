"""The service on each database, over real connections, each test in an application of its own."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import pymysql
import pytest

from app import create_app
from commands import create_account, create_session
from database import connection
from models import Account
from validators import CATALOGUE

ROOT = Path(__file__).parent.parent
ALL_FIELDS = ",".join(CATALOGUE)


def mysql_server(**options):
    """A connection to the server that TEST_MYSQL_URL names."""
    url = urlsplit(os.environ["TEST_MYSQL_URL"])
    options |= {"host": url.hostname, "port": url.port or 3306, "user": unquote(url.username)}
    try:
        return pymysql.connect(**options, password=unquote(url.password or ""), autocommit=True)
    except pymysql.OperationalError as error:
        pytest.exit(f"TEST_MYSQL_URL: {error}", 1)


@contextmanager
def mysql_database():
    """The URL of a new database on the server, dropped at the end."""
    name = f"test_profiles_{token_hex(4)}"
    with mysql_server() as server, server.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(os.environ["TEST_MYSQL_URL"])._replace(path=f"/{name}").geturl()
        finally:
            cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="session", params=["sqlite", "mysql"])
def database_url(request, tmp_path_factory):
    """A database for the whole run."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/profiles.db"
    elif "TEST_MYSQL_URL" not in os.environ:
        pytest.skip("set TEST_MYSQL_URL=mysql://root@127.0.0.1:3306 to test on that server too")
    else:
        with mysql_database() as url:
            yield url


@pytest.fixture
def empty_database_url(database_url, tmp_path):
    """A database of the same kind without a table, for one test."""
    if database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path}/empty.db"
    else:
        with mysql_database() as url:
            yield url


@pytest.fixture
def make_app(database_url):
    """Makes the service, in an application of its own unless told otherwise."""

    def make(**settings):
        return create_app({"DATABASE_URL": database_url, "APPID": token_hex(8), **settings})

    return make


@pytest.fixture
def app(make_app):
    """The service with two fields configured, as it comes; its context is pushed."""
    app = make_app()
    with app.app_context():
        yield app


class Person:
    """An account with a session, and a client that sends its token."""

    def __init__(self, app, *, administrator=False, appid=None):
        self.appid = appid or app.config["SETTINGS"].appid
        with app.app_context(), connection():
            made = create_account(self.appid, administrator=administrator)
            self.accountid = made["accountid"]
            self.session = create_session(self.accountid, 60)
            self.account = Account.get_by_id(self.accountid)
        self.token = self.session["token"]
        self.headers = {"Authorization": f"Bearer {self.token}", "X-Appid": self.appid}
        self.client = app.test_client()

    def get(self, path, **options):
        return self.client.get(path, headers=self.headers, **options)

    def create(self, data=None, accountid=None, **options):
        path = f"/api/user/create-profile?accountid={accountid or self.accountid}"
        return self.client.post(path, headers=self.headers, data=data, **options)

    def update(self, profileid, data=None, **options):
        path = f"/api/user/update-profile?profileid={profileid}"
        return self.client.patch(path, headers=self.headers, data=data, **options)


@pytest.fixture
def user(app):
    return Person(app)


@pytest.fixture
def administrator(app):
    return Person(app, administrator=True)


def assert_error(response, status, code):
    """The shape of every error there is."""
    assert response.json == {"object": "error", "message": code}
    assert response.status_code == status
    assert response.content_type == "application/json"
    assert response.headers["Cache-Control"] == "no-store"


def procfile(process):
    """The command of a process in the Procfile."""
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
    return shlex.split(lines[process])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Served:
    """The service run by the Procfile's line, in a process group of its own."""

    def __init__(self, folder, database_url, **settings):
        self.port, self.log = free_port(), folder / f"{token_hex(4)}.log"
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DATABASE_URL": database_url,
            "PORT": str(self.port),
            "WEB_CONCURRENCY": "2",
            **settings,
        }
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                procfile("web"),
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait_until_up(self, seconds=20):
        """Wait for an answer of any kind from /health."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                with urlopen(f"{self.url}/health") as response:
                    return response.status
            except HTTPError as error:
                error.close()
                return error.code
            except OSError:
                pass
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def kill(self, sign=signal.SIGKILL):
        """Send every process of the service the signal, and wait for their end."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, sign)
        self.process.wait(60)

    def flask(self, *command):
        """A flask command, run to its end."""
        return subprocess.run(
            [sys.executable, "-m", "flask", *command],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def run(self, *command):
        """The JSON that a flask command prints last."""
        done = self.flask(*command)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def serve(tmp_path):
    """Starts the service by the Procfile's line; ends it with the test."""
    services = []

    def start(database_url, *, wait=True, **settings):
        service = Served(tmp_path, database_url, **settings).start()
        services.append(service)
        if wait:
            service.wait_until_up()
        return service

    yield start
    for service in services:
        service.kill()


def readme():
    return re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
