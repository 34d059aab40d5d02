"""What several tests use: clients, databases, and the service served by gunicorn."""

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
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from threading import Event
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
from models import EMAILS, MODELS, Account, timestamp
from validators import new_identifier

ROOT = Path(__file__).parent.parent
UPDATE = "/api/user/update-profile"
CREATE = "/api/user/create-profile"
PROFILES = "/api/administrator/profiles"
SESSIONS = "/api/administrator/sessions"
PROCFILE = shlex.split((ROOT / "Procfile").read_text().partition("web: ")[2])
SERVER = os.environ.get("TEST_MYSQL_URL", "")
NO_CHECKS = "SET autocommit = 1, foreign_key_checks = 0"

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)


class SignedIn(Client):
    """A client that sends the token of its account, of an app or of a Served one."""

    def open(self, *request, headers=(), **options):
        return super().open(*request, headers=self.headers | dict(headers), **options)

    def create(self, data=None, **options):
        return self.post(f"{CREATE}?accountid={self.accountid}", data=data, **options)

    def update(self, profileid, data=None, **options):
        return self.patch(f"{UPDATE}?profileid={profileid}", data=data, **options)

    def profiles(self):
        response = self.get(f"{PROFILES}?all=true")
        assert response.status_code == 200, response.text
        return response.json or []

    @property
    def caller(self):
        return Account.get_by_id(self.accountid)


def sign_in(service, *, administrator=False, appid=None):
    """A client with the token of a new account."""
    options = ["--administrator"] * administrator
    options += ["--appid", appid] if appid else []
    account = run(service, "create-account", *options)
    client = SignedIn(service)
    client.accountid = account["accountid"]
    client.appid = account["appid"]
    client.session = run(service, "create-session", client.accountid)
    client.token = client.session["token"]
    client.headers = {"Authorization": f"Bearer {client.token}"}
    if appid:
        client.headers["X-Appid"] = appid
    return client


def run(service, *words):
    """The object that a flask command prints on the only line of its output."""
    app = service
    if isinstance(service, Served):
        close_connection()  # it may be of another database
        app = create_app({"DATABASE_URL": service.environment["DATABASE_URL"]})
    with app.app_context():  # of this app, if that of another one is pushed
        done = app.test_cli_runner().invoke(args=words)
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    return json.loads(line)


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
    """Close the thread's connection: Python 3.13 and newer warn of one left open."""
    if db.obj:
        db.close()


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


def submit_blocked(pool, call, *values):
    """Make a call in a thread; return its future once it waits for a lock."""
    errors = []  # of SQLite, which refuses each try
    db.query_hooks.append(lambda event: errors.append(str(event.exception)))
    future = pool.submit(call, *values)
    wait_until(
        lambda: "database is locked" in errors or waits_for_a_lock() or future.done()
    )
    db.query_hooks.pop()
    assert not future.done(), future.result()
    return future


# MySQL's own view of it; MariaDB tells it in its status alone.
LOCK_WAITS = """SELECT processlist_id FROM performance_schema.threads
    JOIN performance_schema.data_lock_waits ON thread_id = requesting_thread_id"""


def waits_for_a_lock():
    """Whether a connection to the app's MySQL database waits for a lock."""
    if not db.row_lock:
        return False
    own = "SELECT id FROM information_schema.processlist WHERE db = %s"
    ids = {str(id) for (id,) in execute(mysql_url(), own, db.database)}
    ((_, _, status),) = execute(mysql_url(), "SHOW ENGINE INNODB STATUS")
    waiting = re.findall(r"\nLOCK WAIT .*\n\w+ thread id ([0-9]+)", status)
    if "MySQL thread id" in status:
        waiting = [str(id) for (id,) in execute(mysql_url(), LOCK_WAITS)]
    return bool(ids.intersection(waiting))


@contextmanager
def repeating(*calls):
    """Each call is made again and again, in a thread each, until the block ends."""
    ended = Event()

    def repeat(call):
        while not ended.is_set():
            call()

    with Threads(len(calls)) as pool, ExitStack() as stack:
        stack.callback(ended.set)
        threads = [pool.submit(repeat, call) for call in calls]
        yield
    for thread in threads:
        thread.result()


def wait_until(condition, seconds=40):
    """What the condition returns once that is true; OSError counts as not yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError):
            if found := condition():
                return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} seconds in vain")


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


@contextmanager
def user_with(url, rights):
    """The URL of a MySQL database with a user who has only these rights."""
    name = parse_database_url(url).name
    # Beside "%", because MariaDB may have an anonymous user on this machine.
    hosts = ["%", "localhost"]
    for host in hosts:
        execute(url, f"CREATE USER {name}@'{host}' IDENTIFIED BY 'x'")
        execute(url, f"GRANT {rights} ON {name}.* TO {name}@'{host}'")
    try:
        yield re.sub("//.*@", f"//{name}:x@", url)
    finally:
        for host in hosts:
            execute(url, f"DROP USER {name}@'{host}'")


@contextmanager
def cursor_of(url):
    """A cursor of another client, which checks no foreign keys."""
    engine, name, server = parse_database_url(url)
    if engine == "sqlite":
        client = sqlite3.connect(name, isolation_level=None)
    else:
        server |= dict(autocommit=None, init_command=NO_CHECKS)
        client = pymysql.connect(database=name, **server)
    with closing(client):
        yield client.cursor()


def execute(url, sql, *values):
    """The rows of a statement that another client runs."""
    with cursor_of(url) as cursor:
        cursor.execute(sql, values) if values else cursor.execute(sql)
        return list(cursor.fetchall())


def drop_email_indexes(url):
    """Drop the two indexes, which a table of 3.2 lacks."""
    table = "" if url.startswith("sqlite") else "ON profile"
    for column in EMAILS:
        execute(url, f"DROP INDEX profile_appid_{column} {table}")


def stored(url):
    """Every row of each table, in the order of their keys."""
    select = "SELECT * FROM {} ORDER BY 1"
    return {model.TABLE: execute(url, select.format(model.TABLE)) for model in MODELS}


STARTS = itertools.count(1_700_000_000_000_000_000, 10**12)  # ns, 1,000 s apart


def fill(model, appid, count, *, accountid=None):
    """Store rows of an account, which may be a new one; return them as listed."""
    accountid = accountid or new_identifier("acct")
    start = next(STARTS)
    moments = range(start, start + count * 300_000, 300_000)  # three or four a ms
    rows = [new_row(model, moment, appid, accountid) for moment in moments]
    account = new_row(Account, start, appid, accountid)
    with db.atomic():
        Account.insert(account).on_conflict_ignore().execute()
        for some in chunked(rows, 100):
            model.insert_many(some).execute()
    return [
        model.as_object([row.get(name) for name in model.COLUMNS])
        for row in reversed(rows)
    ]


def new_row(model, moment, appid, accountid):
    """A value for each column of a row that was made at the moment."""
    values = {
        "id": moment,
        "administrator": False,
        "profileid": None,
        f"{model.TABLE}id": new_identifier(model.PREFIX),
        "appid": appid,
        "accountid": accountid,
        "tokenHash": token_hex(32),
        "csrfToken": token_hex(32),
        "duration": 60,
        "endedAt": None,
    }
    moments = "createdAt updatedAt expiresAt lastVerifiedAt".split()
    values |= dict.fromkeys(moments, timestamp(moment))
    names = model._meta.sorted_field_names
    return {name: values.get(name, f"{name} {moment} é\U0001f600") for name in names}


class Served:
    """The service in a process group. It is also a WSGI app, which asks the service."""

    def __init__(self, folder, database_url, **settings):
        self.port = reserve_port(self)
        self.log_file = folder / f"{token_hex(4)}.log"
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DATABASE_URL": database_url,
            "PORT": str(self.port),
            "WEB_CONCURRENCY": "2",
            **settings,
        }

    def __call__(self, environ, start_response):
        """Pass a request of a client on, by a connection of its own."""
        target = environ["REQUEST_URI"]
        body = environ["wsgi.input"].read()
        headers = dict(EnvironHeaders(environ))
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as wire:
            wire.request(environ["REQUEST_METHOD"], target, body, headers)
            answer = wire.getresponse()
            start_response(f"{answer.status} {answer.reason}", answer.getheaders())
            return [answer.read()]

    def start(self, *command, cwd=ROOT):
        """Run the Procfile's line, or another command; the log is what they write."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command or PROCFILE,
                cwd=cwd,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_up(self):
        """Wait until /health gets a response of any kind."""
        wait_until(lambda: self.process.poll() is not None or self.get("/health"))
        assert self.process.poll() is None, f"the service has ended: {self.log()}"

    def get(self, path, **options):
        return Client(self).get(path, **options)

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
        wait_until(lambda: not is_listening(self.port))


def reserve_port(owner):
    """A port that no other program gets as long as the owner exists."""
    holder = socket.socket()  # it is bound, but does not listen
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    finalize(owner, holder.close)
    return holder.getsockname()[1]


def is_listening(port):
    with socket.socket() as wire:
        return wire.connect_ex(("127.0.0.1", port)) == 0
