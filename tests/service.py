"""What several tests use: clients, databases, and the service as a program."""

import itertools
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from threading import Barrier, Event
from urllib.parse import urlsplit
from weakref import finalize

import pymysql
import pytest
from peewee import chunked
from werkzeug.datastructures import EnvironHeaders
from werkzeug.test import Client

from app import create_app
from config import parse_database_url
from database import db
from formats import new_identifier
from models import MODELS, Account, timestamp
from turns import executors

ROOT = Path(__file__).parent.parent
UPDATE = "/api/user/update-profile"
CREATE = "/api/user/create-profile"
PROFILES = "/api/administrator/profiles"
SESSIONS = "/api/administrator/sessions"
PROCFILE = shlex.split((ROOT / "Procfile").read_text().partition("web: ")[2])
SERVER = os.environ.get("TEST_MYSQL_URL", "")
TABLES = [model._meta.table_name for model in MODELS]
PASSWORD = "IDENTIFIED BY 'x'"
NO_CHECKS = "SET foreign_key_checks = 0"
STARTS = itertools.count(1_700_000_000_000_000_000, 10**12)  # ns, 1,000 s apart

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)


class SignedIn(Client):
    """A client of an app, or of a ServedApp, that sends the token of its account."""

    def open(self, *request, headers=(), **options):
        return super().open(*request, headers=self.headers | dict(headers), **options)

    def create(self, data=None, **options):
        return self.post(f"{CREATE}?accountid={self.accountid}", data=data, **options)

    def update(self, profileid, data=None, **options):
        return self.patch(f"{UPDATE}?profileid={profileid}", data=data, **options)

    def profiles(self):
        return self.get(f"{PROFILES}?all=true").json or []

    @property
    def caller(self):
        return Account.get_by_id(self.accountid)


def sign_in(app, *, administrator=False, appid=None):
    """A client of an app, or of a ServedApp, with the token of a new account."""
    where = ["--appid", appid] if appid else []
    kind = ["--administrator"] * administrator
    account = run(app, "create-account", *kind, *where)
    client = SignedIn(app)
    client.accountid = account["accountid"]
    client.appid = account["appid"]
    client.session = run(app, "create-session", client.accountid, *where)
    client.token = client.session["token"]
    client.headers = {"Authorization": f"Bearer {client.token}"}
    if appid:
        client.headers["X-Appid"] = appid
    return client


def run(app, *words):
    """The object that a flask command prints on the only line of its output."""
    if isinstance(app, ServedApp):  # the command runs here, on the same database
        close_connection()  # it may be of another one
        app = create_app({"DATABASE_URL": app.database_url})
    with app.app_context():  # of this app, if that of another one is pushed
        done = app.test_cli_runner().invoke(args=words)
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def run_python(*words, cwd=ROOT, stdin=None, **settings):
    """Run Python in a process with these settings; return it, with what it printed."""
    environment = os.environ | settings
    options = {"env": environment, "capture_output": True, "encoding": "utf-8"}
    return subprocess.run([sys.executable, *words], cwd=cwd, stdin=stdin, **options)


def named(name, **more):
    """A body of the two fields configured by default, both with the name."""
    return {"full-name": name, "contact-email": f"{name}@example.com", **more}


def assert_error(response, status, code, reason=None):
    body = dict(response.json)
    assert body.pop("reason", None) == reason
    codes = body.pop("errors", {"": code})  # of fields: the message is the first one
    assert next(iter(codes.values())) == code
    assert body == {"object": "error", "message": code}
    assert response.status_code == status
    assert response.content_type == "application/json"
    assert response.headers["Cache-Control"] == "no-store"
    if status == 503:
        assert re.fullmatch("[0-9]+", response.headers["Retry-After"])


def close_connection():
    """Close the connections of this thread and of those that run requests.

    Python 3.13 and newer warn of one that is left open.
    """
    if not db.obj:
        return
    db.close()
    for name, executor in executors.items():
        size = getattr(db, name)
        barrier = Barrier(size)  # so that each thread gets one of the calls
        list(executor.map(lambda _: barrier.wait() + db.close(), range(size)))  # noqa: B023


class Threads(ThreadPoolExecutor):
    """Threads that close their connection after each call, as PYTHON.md asks."""

    def submit(self, call, *values):
        def work():
            with closing(db):
                return call(*values)

        return super().submit(work)


def at_once(*calls):
    """What the calls return, each made in a thread of its own at the same time."""
    with Threads(len(calls)) as pool:
        return list(pool.map(lambda call: call(), calls))


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


def wait_until(condition, seconds=40):
    """What the condition returns once that is true; OSError counts as not yet."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            if found := condition():
                return found
        assert time.monotonic() < deadline, f"waited {seconds} seconds in vain"
        time.sleep(0.02)


def mysql_url(name="mysql"):
    """The URL of a database on the MySQL server, by default of its own."""
    return urlsplit(SERVER)._replace(path=f"/{name}").geturl()


@contextmanager
def new_database(kind, folder):
    """The URL of a database of the kind without a table, until the end of the block."""
    name = f"profiles_test_{token_hex(4)}"  # MariaDB lets any user use test_…
    if kind == "sqlite":
        yield f"sqlite:///{folder}/{name}.db"
        return
    execute(mysql_url(), f"CREATE DATABASE {name}")
    try:
        yield mysql_url(name)
    finally:
        execute(mysql_url(), f"DROP DATABASE {name}")


@pytest.fixture(params=["sqlite", "mysql"])
def own_database_url(request, tmp_path):
    """A database of each test's own, under a name that a module gives it."""
    with new_database(request.param, tmp_path) as url:
        yield url


@contextmanager
def user_with(url, rights):
    """The URL of a MySQL database with a user who has only these rights."""
    name = parse_database_url(url).name
    # Beside "%", because MariaDB may have an anonymous user on this machine.
    users = f"{name}@'%', {name}@localhost"
    execute(url, f"CREATE USER {name}@'%' {PASSWORD}, {name}@localhost {PASSWORD}")
    execute(url, f"GRANT {rights} ON {name}.* TO {users}")
    try:
        yield re.sub("//.*@", f"//{name}:x@", url)
    finally:
        execute(url, f"DROP USER {users}")


@contextmanager
def cursor_of(url):
    """A cursor of another client, which checks no foreign keys."""
    engine, name, server = parse_database_url(url)
    if engine == "sqlite":
        client = sqlite3.connect(name, isolation_level=None)
    else:
        options = server | {"autocommit": True, "init_command": NO_CHECKS}
        client = pymysql.connect(database=name, **options)
    with closing(client):
        yield client.cursor()


def execute(url, sql, *values):
    """The rows of a statement that another client runs."""
    with cursor_of(url) as cursor:
        cursor.execute(sql, values) if values else cursor.execute(sql)
        return list(cursor.fetchall())


def stored(url):
    """Every row of each table, in the order of their keys."""
    return {name: execute(url, f"SELECT * FROM {name} ORDER BY 1") for name in TABLES}


def fill(model, appid, count, *, accountid=None):
    """Store rows of an account, which may be a new one; return them as listed."""
    accountid = accountid or new_identifier("acct")
    start = next(STARTS)
    moments = range(start, start + count * 300_000, 300_000)  # three or four a ms
    rows = [new_row(model, moment, appid, accountid) for moment in moments]
    with db.atomic():
        account = new_row(Account, start, appid, accountid)
        Account.insert(account).on_conflict_ignore().execute()
        for some in chunked(rows, 100):
            model.insert_many(some).execute()
    return [model.to_resource(row) for row in reversed(rows)]


def new_row(model, moment, appid, accountid):
    """A value for each column of a row that was made at the moment."""
    values = {"administrator": False, "profileid": None, "endedAt": None}
    values["duration"] = 60
    values["fields"] = json.dumps({"x-note": f"note {moment} é\U0001f600"})
    values[model.KEY] = new_identifier(model.PREFIX)
    values |= {"id": moment, "appid": appid, "accountid": accountid}
    values |= {"tokenHash": token_hex(32), "csrfToken": token_hex(32)}
    moments = "createdAt updatedAt expiresAt lastVerifiedAt".split()
    values |= dict.fromkeys(moments, timestamp(moment))
    names = model._meta.sorted_field_names
    return {name: values.get(name, f"{name} {moment} é\U0001f600") for name in names}


class Program:
    """A program in a process group, with a port and a log; by default the service."""

    def __init__(self, folder, **variables):
        holder = socket.socket()  # it keeps the port, but does not listen
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        finalize(self, holder.close)
        self.port = holder.getsockname()[1]
        self.log_file = folder / f"{token_hex(4)}.log"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PORT": str(self.port), "WEB_CONCURRENCY": "2"}
        self.environment = os.environ | own | variables
        self.app = ServedApp(self.port, variables.get("DATABASE_URL"))

    def start(self, *command, cwd=ROOT):
        """Run the Procfile's line, or another command; the log is what they write."""
        with self.log_file.open("ab") as log:
            options = {"stdout": log, "stderr": log, "start_new_session": True}
            self.process = subprocess.Popen(
                command or PROCFILE, cwd=cwd, env=self.environment, **options
            )

    def wait_until_up(self):
        """Wait until it responds to a request for its health, whatever the response."""
        get = Client(self.app).get
        wait_until(lambda: self.process.poll() is not None or get("/health"))
        assert self.process.poll() is None, f"the program has ended: {self.log()}"

    def log(self):
        return self.log_file.read_text()

    def stop(self):
        """End it as its platform does, and wait for its end."""
        self.process.terminate()
        assert self.process.wait(60) == 0

    def kill(self):
        """Kill every process of it, and wait for their end."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        wait_until(lambda: not self.is_listening())

    def is_listening(self):
        with socket.socket() as wire:
            return wire.connect_ex(("127.0.0.1", self.port)) == 0


class ServedApp:
    """A WSGI app that passes each request on to a port of this machine."""

    def __init__(self, port, database_url=None, prefix=""):
        self.port = port
        self.database_url = database_url
        self.prefix = prefix

    def __call__(self, environ, start_response):
        method, target = environ["REQUEST_METHOD"], environ["REQUEST_URI"]
        body, headers = environ["wsgi.input"].read(), dict(EnvironHeaders(environ))
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as wire:
            wire.request(method, self.prefix + target, body, headers)
            answer = wire.getresponse()
            start_response(f"{answer.status} {answer.reason}", answer.getheaders())
            return [answer.read()]
