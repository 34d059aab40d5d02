"""The service killed, stopped, cut off, locked out, out of room, and under load."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from secrets import token_hex
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

import pytest
from conftest import ALL_FIELDS, ROOT, mysql_database, mysql_server

import config
from database import database, use
from models import Account, Profile, identifier, listed, now, timestamp

pytestmark = pytest.mark.long
on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)

PROFILES = "/api/administrator/profiles"
FIRST_STARTS = 8
ROUNDS = 20


# Clients


class Answer(NamedTuple):
    """What came back, and after how many seconds."""

    status: int
    headers: http.client.HTTPMessage
    value: Any
    seconds: float


def send(service, method, path, fields=None, headers=()):
    """One request over a connection of its own, its body form-encoded."""
    began = time.monotonic()
    body = fields and urlencode(fields)
    form = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=40)) as connection:
        connection.request(method, path, body, {**form, **dict(headers)})
        response = connection.getresponse()
        value = json.loads(response.read())
    return Answer(response.status, response.headers, value, time.monotonic() - began)


class Client:
    """An administrator's account with a session, made by the service's commands."""

    def __init__(self, service):
        self.service = service
        self.accountid = service.run("create-account", "--administrator")["accountid"]
        self.token = service.run("create-session", self.accountid)["token"]
        self.headers = {"Authorization": f"Bearer {self.token}"}

    def send(self, method, path, fields=None):
        return send(self.service, method, path, fields, self.headers)

    def create(self, fields):
        return self.send("POST", f"/api/user/create-profile?accountid={self.accountid}", fields)

    def update(self, profileid, fields):
        return self.send("PATCH", f"/api/user/update-profile?profileid={profileid}", fields)

    def profiles(self):
        """Every profile, newest first."""
        answer = self.send("GET", f"{PROFILES}?all=true")
        assert answer.status == 200, answer
        return answer.value or []


def named(name, **more):
    """A body of the two fields configured by default, both of which tell the name."""
    return {"full-name": name, "contact-email": f"{name}@example.com", **more}


def at_once(*calls):
    """What the calls answer, each made in a thread of its own at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def every_kind(client, profileid, name):
    """A call of each kind of request, with the status of its success."""
    return [
        (200, lambda: client.send("GET", f"{PROFILES}?limit=3")),
        (200, lambda: client.update(profileid, named(name))),
        (201, lambda: client.create(named(name))),
        (201, lambda: client.create(named(name, default="true"))),
        (200, lambda: client.send("GET", "/api/administrator/sessions")),
    ]


def assert_unavailable(answers, *, within):
    """Each answer is the coded 503 that says when to come again, in time."""
    for answer in answers:
        assert answer.value == {"object": "error", "message": "database-unavailable"}
        assert answer.status == 503
        assert re.fullmatch("[0-9]+", answer.headers["Retry-After"])
        assert answer.seconds < within


def assert_served(kinds):
    """Each kind of request, made at the same time, succeeds."""
    answers = at_once(*(call for _, call in kinds))
    assert [answer.status for answer in answers] == [status for status, _ in kinds], answers


def wait_until(condition, seconds=20):
    """Wait for the condition to hold; OSError counts as not yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError):
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError("waited in vain")


# Databases


@contextmanager
def database_at(url):
    """The database as the models' own, and no connection left open behind it."""
    use(config.load({"DATABASE_URL": url}).database)
    with database.connection_context():
        yield
    database.close_idle()


def fill(url, accountid, number):
    """Store that many profiles through the model; answer them as listed, newest first."""
    moment, rows = now(), []
    for index in range(number):
        made = timestamp(moment + index)
        texts = [f"text {index} {place} é\U0001f600" for place in range(10)]
        rows.append((moment + index, identifier("prof"), "default", accountid, *texts, made, made))
    with database_at(url), database.atomic():
        insert = Profile.insert(dict(zip(Profile._meta.sorted_fields, rows[0], strict=True)))
        database.cursor().executemany(insert.sql()[0], rows)
    return Profile.as_objects(reversed(rows))


def default_profiles(url):
    """The profileid of each account, by its accountid."""
    with database_at(url):
        return dict(Account.select(Account.accountid, Account.profileid).tuples())


def schema(url):
    """The tables and the indexes beside their keys, each as often as it is there."""
    with database_at(url):
        tables = sorted(database.get_tables())
        keys = {table: tuple(database.get_primary_keys(table)) for table in tables}
        found = [index for table in tables for index in database.get_indexes(table)]
    indexes = [(i.table, *i.columns, i.unique) for i in found if tuple(i.columns) != keys[i.table]]
    return tables, sorted(indexes)


SCHEMA = (
    ["account", "profile", "session"],
    [
        ("profile", "appid", "accountid", "id", False),
        ("profile", "appid", "id", False),
        ("profile", "profileid", True),
        ("session", "appid", "accountid", "id", False),
        ("session", "appid", "id", False),
        ("session", "sessionid", True),
        ("session", "tokenHash", True),
    ],
)


@contextmanager
def locked(url):
    """The database while somebody else holds what every write needs."""
    path = unquote(urlsplit(url).path[1:])
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")
    else:
        with mysql_server(database=path) as other, other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM account FOR UPDATE")
            cursor.execute("SELECT * FROM profile FOR UPDATE")
            yield
            cursor.execute("ROLLBACK")


def execute(url, sql):
    """Run a statement as somebody else."""
    path = unquote(urlsplit(url).path[1:])
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(sql)
    else:
        with mysql_server(database=path) as other, other.cursor() as cursor:
            cursor.execute(sql)


def connections(url):
    """The ids of all connections to the MySQL database."""
    with mysql_server() as server, server.cursor() as cursor:
        select = "SELECT id FROM information_schema.processlist WHERE db = %s"
        cursor.execute(select, (urlsplit(url).path[1:],))
        return [row[0] for row in cursor.fetchall()]


class Proxy:
    """Stands between the service and the MySQL server, and can go away or hang."""

    def __init__(self):
        server = urlsplit(os.environ["TEST_MYSQL_URL"])
        self.server = server.hostname, server.port or 3306
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.ended = Event()

    def url(self, database_url):
        """The address of the database by way of the proxy."""
        url = urlsplit(database_url)
        user = url.netloc.rpartition("@")[0]
        return url._replace(netloc=f"{user}@127.0.0.1:{self.port}").geturl()

    def come(self):
        """Listen, and carry bytes both ways."""
        self.ended.clear()
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.selector, self.answering = DefaultSelector(), Event()
        self.selector.register(self.listener, EVENT_READ)
        self.answering.set()
        self.thread = Thread(target=self.carry)
        self.thread.start()

    def go(self):
        """Cut every connection and refuse new ones."""
        self.ended.set()
        self.answering.set()
        self.thread.join()

    def hang(self):
        """Take new connections and all that comes in, and carry nothing."""
        self.answering.clear()

    def recover(self):
        """Carry on where it was left."""
        self.answering.set()

    def carry(self):
        while not self.ended.is_set():
            ready = self.selector.select(0.02)
            self.answering.wait()
            for key, _ in ready:
                if key.fileobj is self.listener:
                    self.accept()
                else:
                    self.forward(key.fileobj, key.data)
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()

    def accept(self):
        near, far = self.listener.accept()[0], socket.create_connection(self.server)
        self.selector.register(near, EVENT_READ, far)
        self.selector.register(far, EVENT_READ, near)

    def forward(self, source, target):
        if source.fileno() < 0:  # closed with its other side a moment ago
            return
        data = b""
        with suppress(OSError):
            data = source.recv(65_536)
            target.sendall(data)
        if not data:
            for end in (source, target):
                self.selector.unregister(end)
                end.close()


@pytest.fixture
def proxy():
    """A proxy that carries; gone with the test."""
    proxy = Proxy()
    proxy.come()
    yield proxy
    proxy.go()


# Killed


def create_until(stop, client, acknowledged, default):
    """Create profiles, each the account's default or none, whatever becomes of the service."""
    for number in count():
        if stop.is_set():
            return
        body = whole_body(f"{client.accountid}.{number}") | ({"default": "true"} if default else {})
        try:
            answer = client.create(body)
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)  # and ask again, until the service is back
            continue
        assert answer.status == 201, answer
        acknowledged.append(answer.value)


def whole_body(name):
    """A value for each of the ten fields, all but the date telling the name."""
    body = dict.fromkeys(ALL_FIELDS.split(","), name)
    emails = dict.fromkeys(("contact-email", "display-email"), f"{name}@example.com")
    return body | emails | {"dob": "1950-01-31"}


def assert_whole(profile):
    """The ten fields are those of one body that was sent."""
    name = profile["fullName"]
    texts = ("companyName", "displayName", "phone", "occupation", "location", "website")
    assert [profile[text] for text in texts] == [name] * 6
    assert profile["contactEmail"] == profile["displayEmail"] == f"{name}@example.com"
    assert profile["dob"] == "1950-01-31"
    assert name.startswith(profile["accountid"])


def wait_until_dead(service, url):
    """Wait until no process of a killed service is left, and no connection of theirs."""
    with socket.socket() as probe:
        wait_until(lambda: probe.connect_ex(("127.0.0.1", service.port)))
    if url.startswith("mysql"):
        wait_until(lambda: not connections(url))


def stored(url, folder):
    """All that a dead service left behind: its profiles, newest first, and each account's default.

    SQLite is read from a copy, so that the service finds its files as they were left.
    """
    if url.startswith("sqlite"):
        path, copy = Path(unquote(urlsplit(url).path[1:])), folder / token_hex(4)
        copy.mkdir()
        for file in path.parent.glob(f"{path.name}*"):
            shutil.copy(file, copy)
        url = f"sqlite:///{copy / path.name}"
    with database_at(url):
        rows = Profile.select(*listed(Profile)).order_by(Profile.id.desc()).tuples()
        accounts = Account.select(Account.accountid, Account.profileid).tuples()
        return Profile.as_objects(rows), dict(accounts)


def assert_stored(url, folder, clients, acknowledged):
    """What was acknowledged is there, all is whole, and the defaults are the newest profiles."""
    profiles, defaults = stored(url, folder)
    by_id = {profile["profileid"]: profile for profile in profiles}
    assert len(by_id) == len(profiles)
    assert [by_id.get(profile["profileid"]) for profile in acknowledged] == acknowledged
    newest = dict.fromkeys(defaults)
    for profile in reversed(profiles):
        assert_whole(profile)
        newest[profile["accountid"]] = profile["profileid"]
    newest |= dict.fromkeys(client.accountid for client in clients[::2])
    assert defaults == newest
    return profiles


def has_grown(items, number):
    return len(items) > number


def test_killed_three_times_it_keeps_what_it_acknowledged(empty_database_url, serve, tmp_path):
    service = serve(empty_database_url, USER_PROFILE_FIELDS=ALL_FIELDS)
    clients = at_once(*[lambda: Client(service)] * 8)
    for _ in range(3):
        acknowledged, stop = clients[0].profiles()[::-1], Event()
        with ThreadPoolExecutor(8) as pool:
            writers = [
                pool.submit(create_until, stop, client, acknowledged, bool(index % 2))
                for index, client in enumerate(clients)
            ]
            try:
                wait_until(partial(has_grown, acknowledged, len(acknowledged) + 80))
            finally:
                service.kill()
                stop.set()
        for writer in writers:
            writer.result()
        wait_until_dead(service, empty_database_url)
        found = assert_stored(empty_database_url, tmp_path, clients, acknowledged)
        service.start()
        assert service.wait_until_up() == 200
        assert clients[0].profiles() == found


# Stopped


def read_slowly(response, pieces):
    """Read the rest of the answer no faster than 8 MB a second."""
    while piece := response.read1(65_536):
        pieces.append(piece)
        time.sleep(len(piece) / 8_000_000)


def test_stopped_it_finishes_the_answer_it_is_sending(empty_database_url, serve):
    service = serve(empty_database_url)
    client = Client(service)
    expected = fill(empty_database_url, client.accountid, 50_123)
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)) as connection:
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.request("GET", f"{PROFILES}?all=true", headers=client.headers)
        response = connection.getresponse()
        assert response.status == 200
        pieces = [response.read1(65_536)]
        os.kill(service.process.pid, signal.SIGTERM)
        read_slowly(response, pieces)
    assert json.loads(b"".join(pieces)) == expected
    assert service.process.wait(10) == 0


# The database gone: MySQL


def cut_connections(url):
    """KILL every connection to the database; answer how many there were, once they are gone."""
    found = connections(url)
    with mysql_server() as server, server.cursor() as cursor:
        for connection in found:
            cursor.execute("KILL %s", (connection,))
    wait_until(lambda: not set(found) & set(connections(url)))
    return len(found)


@on_mysql
def test_connections_cut_by_the_server_are_never_noticed(empty_database_url, serve):
    service = serve(empty_database_url)
    client = Client(service)
    profileid = client.create(named("first")).value["profileid"]
    kinds = every_kind(client, profileid, "name") * 4
    assert_served(kinds)
    assert cut_connections(empty_database_url) > 1
    assert_served(kinds)
    assert cut_connections(empty_database_url) > 1
    assert [call().status for _, call in kinds] == [status for status, _ in kinds]
    assert "database unavailable" not in service.log.read_text()


@on_mysql
def test_a_server_that_is_away_is_503_until_it_is_back(empty_database_url, proxy, serve):
    service = serve(proxy.url(empty_database_url))
    client = Client(service)
    profileid = client.create(named("first")).value["profileid"]
    kinds = every_kind(client, profileid, "name")
    assert_served(kinds)
    before = client.profiles()
    for _ in range(2):
        proxy.go()
        calls = [call for _, call in kinds] + [lambda: client.send("GET", "/health")]
        assert_unavailable(at_once(*calls), within=5)
        proxy.come()
        assert client.profiles() == before
    assert_served(kinds)


@on_mysql
def test_a_server_that_hangs_is_503_in_time(empty_database_url, proxy, serve):
    service = serve(proxy.url(empty_database_url))
    client = Client(service)
    profileid = client.create(named("first")).value["profileid"]
    kinds = every_kind(client, profileid, "name")
    assert client.send("GET", "/health").status == 200
    proxy.hang()
    assert_unavailable(at_once(*(call for _, call in kinds[:4])), within=15)
    proxy.recover()
    assert_served(kinds)


@on_mysql
def test_started_before_its_server_it_serves_once_that_is_back(empty_database_url, proxy, serve):
    proxy.go()
    service = serve(proxy.url(empty_database_url), wait=False)
    wait_until(lambda: send(service, "GET", "/health"))
    assert_unavailable([send(service, "GET", "/health") for _ in range(4)], within=5)
    proxy.come()
    assert send(service, "GET", "/health").status == 200
    assert schema(empty_database_url) == SCHEMA
    client = Client(service)
    created = client.create(named("first"))
    assert client.profiles() == [created.value]


# Locked, full, read-only


def test_locked_by_another_it_answers_503_and_stores_nothing(empty_database_url, serve):
    service = serve(empty_database_url)
    client = Client(service)
    first = client.create(named("first", default="true")).value
    writers = [
        lambda: client.update(first["profileid"], named("second")),
        lambda: client.create(named("third", default="true")),
        lambda: client.update(first["profileid"], named("fourth")),
        lambda: client.create(named("fifth")),
    ]
    with locked(empty_database_url), ThreadPoolExecutor(1) as pool:
        writing = pool.submit(at_once, *writers)
        while not writing.done():
            answer = client.send("GET", f"{PROFILES}?all=true")
            assert (answer.status, answer.value) == (200, [first])
            assert answer.seconds < 10
            time.sleep(0.1)
        assert_unavailable(writing.result(), within=10)
    assert client.profiles() == [first]
    assert default_profiles(empty_database_url) == {client.accountid: first["profileid"]}
    assert [answer.status for answer in at_once(*writers)] == [200, 201, 200, 201]
    names = [profile["fullName"] for profile in client.profiles()]
    assert (sorted(names[:2]), names[2] in ("second", "fourth")) == (["fifth", "third"], True)


def mount(*arguments):
    """Call mount, or skip the test with what it says."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs to mount a file system: {done.stderr.strip()}")


def remount(folder, option):
    """Make the file system read-only or writable, once nobody is writing to it."""
    command = ["mount", "-o", f"remount,{option}", str(folder)]
    wait_until(lambda: not subprocess.run(command, capture_output=True).returncode)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB, gone with the test."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs to mount a file system, and only root can")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def create_until_refused(client, acknowledged):
    """Create large profiles until one is refused; answer that."""
    for _ in range(1_000):
        answer = client.create({"location": "x" * 60_000})
        if answer.status != 201:
            return answer
        acknowledged.insert(0, answer.value)
    raise AssertionError("never refused")


def test_a_full_disk_is_503_until_there_is_room(small_disk, serve):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(18 << 20))
    service = serve(f"sqlite:///{small_disk}/profiles.db", USER_PROFILE_FIELDS="location")
    client, acknowledged = Client(service), []
    for _ in range(2):
        assert_unavailable([create_until_refused(client, acknowledged)], within=5)
    assert len(acknowledged) > 10
    assert re.search("unavailable:.* full", service.log.read_text())
    assert client.profiles() == acknowledged
    ballast.unlink()
    for _ in range(5):
        answer = client.create({"location": "x" * 60_000, "default": "true"})
        assert answer.status == 201
        acknowledged.insert(0, answer.value)
    assert client.profiles() == acknowledged


def start_read_only(service, folder, sign):
    """End the service and start it again on the same files, which can no longer be written."""
    service.kill(sign)
    wait_until_dead(service, f"sqlite:///{folder}/profiles.db")
    remount(folder, "ro")
    service.start()
    wait_until(lambda: send(service, "GET", "/health"))


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_read_only_disk_is_503_and_the_log_says_so(small_disk, serve, sign):
    service = serve(f"sqlite:///{small_disk}/profiles.db")
    client = Client(service)
    first = client.create(named("first", default="true")).value
    start_read_only(service, small_disk, sign)
    writers = [
        lambda: client.create(named("second", default="true")),
        lambda: client.update(first["profileid"], named("third")),
    ]
    assert_unavailable(at_once(*writers * 2), within=10)
    listing = client.send("GET", f"{PROFILES}?all=true")
    if listing.status != 200:
        assert_unavailable([listing], within=10)
    else:
        assert listing.value == [first]
    log = service.log.read_text()
    assert re.search("database unavailable: .*(read-?only|unable to open)", log, re.IGNORECASE)


def test_a_disk_that_is_writable_again_needs_no_restart(small_disk, serve):
    service = serve(f"sqlite:///{small_disk}/profiles.db")
    client = Client(service)
    profileid = client.create(named("first")).value["profileid"]
    start_read_only(service, small_disk, signal.SIGKILL)
    kinds = every_kind(client, profileid, "second")
    at_once(*(call for _, call in kinds * 2))
    remount(small_disk, "rw")
    updates = [lambda: client.update(profileid, named("third")).status] * 16
    wait_until(lambda: set(at_once(*updates)) == {200}, 5)
    assert_served(kinds)


# Many at once: first starts

FORKED_STARTS = """
import multiprocessing, sys
from app import create_app

def start(url, together):
    together.wait()
    create_app({"DATABASE_URL": url})

fork = multiprocessing.get_context("fork")
for url in sys.stdin.read().split():
    together = fork.Barrier(int(sys.argv[1]))
    starts = [fork.Process(target=start, args=(url, together)) for _ in range(together.parties)]
    for process in starts:
        process.start()
    for process in starts:
        process.join()
    print(*(process.exitcode for process in starts))
"""


@contextmanager
def fresh_databases(database_url, folder, number):
    """The URLs of that many databases of the same kind without a table."""
    with ExitStack() as stack:
        if database_url.startswith("sqlite"):
            yield [f"sqlite:///{folder}/fresh{index}.db" for index in range(number)]
        else:
            yield [stack.enter_context(mysql_database()) for _ in range(number)]


def test_first_starts_at_once_make_every_table_once(database_url, tmp_path):
    with fresh_databases(database_url, tmp_path, ROUNDS) as urls:
        done = subprocess.run(
            [sys.executable, "-c", FORKED_STARTS, str(FIRST_STARTS)],
            cwd=ROOT,
            input="\n".join(urls),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == ""  # where a database that is unavailable would be told
        assert done.stdout.split() == ["0"] * FIRST_STARTS * ROUNDS
        assert [schema(url) for url in urls] == [SCHEMA] * ROUNDS


def init_db(url):
    """Run the command that makes the tables."""
    command = [sys.executable, "-m", "flask", "init-db"]
    environment = {**os.environ, "DATABASE_URL": url}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_init_db_at_once_makes_every_table_once(empty_database_url):
    for done in at_once(*[partial(init_db, empty_database_url)] * FIRST_STARTS):
        assert (done.returncode, done.stderr) == (0, "")
    assert schema(empty_database_url) == SCHEMA


# Many at once: writes and reads


def work(client, name, own, shared):
    """Sixteen creates, sixteen updates, each seen by the next, and reads; answer the created."""
    created = []
    for number in range(16):
        body = named(f"{name}.{number}", default="true")
        answer = client.create(body)
        assert (answer.status, answer.value["fullName"]) == (201, body["full-name"])
        created.append(answer.value)
        answer = client.update(shared if number % 4 == 3 else own, body)
        assert (answer.status, answer.value["fullName"]) == (200, body["full-name"])
        if number % 4 == 0:
            answer = client.send("GET", f"{PROFILES}?limit=20")
            assert (answer.status, len(answer.value)) == (200, 20)
    return created


def walk(client):
    """All profiles, by way of the links from page to page."""
    path, found = f"{PROFILES}?limit=7", []
    while path:
        answer = client.send("GET", path)
        assert answer.status == 200
        found += answer.value
        link = re.fullmatch('<(.*)>; rel="next"', answer.headers.get("Link", '<>; rel="next"'))
        path = link[1]
    return found


def assert_in_order(profiles):
    """Each profile once, and createdAt never increasing."""
    moments = [profile["createdAt"] for profile in profiles]
    assert moments == sorted(moments, reverse=True)
    assert len({profile["profileid"] for profile in profiles}) == len(profiles)


def walk_until(stop, client, expected):
    """Walk again and again; each time those there at the start come once and in order."""
    for number in count():
        if stop.is_set():
            return number
        found = walk(client)
        assert_in_order(found)
        assert [p["profileid"] for p in found if p["profileid"] in expected] == expected


def test_writes_and_reads_at_once_lose_nothing(empty_database_url, serve):
    service = serve(empty_database_url)
    client = Client(service)
    filled = fill(empty_database_url, client.accountid, 80)
    there, stop = [profile["profileid"] for profile in filled], Event()
    shared, *own = there[:17]
    with ThreadPoolExecutor(17) as pool:
        walker = pool.submit(walk_until, stop, client, there)
        workers = [pool.submit(work, client, f"w{i}", own[i], shared) for i in range(16)]
        try:
            created = [worker.result() for worker in workers]
        finally:
            stop.set()
        assert walker.result() > 1
    listed = client.profiles()
    assert_in_order(listed)
    by_id = {profile["profileid"]: profile for profile in listed}
    made = [profile for profiles in created for profile in profiles]
    assert len(made) == 256
    assert [by_id[profile["profileid"]] for profile in made] == made
    assert len(listed) == 80 + 256
    assert [profile for profile in listed if profile["profileid"] in there[17:]] == filled[17:]
    assert [by_id[profileid]["fullName"] for profileid in own] == [f"w{i}.14" for i in range(16)]
    name = by_id[shared]["fullName"]
    assert re.fullmatch(r"w\d+\.(3|7|11|15)", name)
    assert by_id[shared]["contactEmail"] == f"{name}@example.com"
    last = {profiles[-1]["profileid"] for profiles in created}
    assert default_profiles(empty_database_url)[client.accountid] in last


# Secrets


def raw(service, text):
    """What the service answers to these very bytes, after which the client sends no more."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(text.encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


def secret_values():
    """Values such as people send, none of which can be anywhere by chance."""
    return {
        name: f"secret{token_hex(6)}@example.com" if "email" in name else f"secret{token_hex(6)}"
        for name in ALL_FIELDS.split(",")
    } | {"dob": "1931-03-17"}


@pytest.fixture
def talkative(empty_database_url, serve, tmp_path):
    """The service with every logger at its most talkative."""
    settings = tmp_path / "talkative.py"
    settings.write_text("import logging\n\nlogging.basicConfig(level=logging.DEBUG)\n")
    arguments = f"--log-level debug --config {settings}"
    return serve(empty_database_url, USER_PROFILE_FIELDS=ALL_FIELDS, GUNICORN_CMD_ARGS=arguments)


def send_good_and_bad(client, profileid, values):
    """Requests of all kinds that send the values; answer their statuses."""
    bad = [values | {name: value * 9} for name, value in values.items()]
    bad += [values | {"contact-email": f"@{values['phone']}"}, values | {"full-name": ""}]
    answers = [client.create(values), client.update(profileid, values)]
    answers += [client.create(body) for body in bad]
    answers += [client.update(profileid, body) for body in bad]
    path = f"/api/user/create-profile?accountid={client.accountid}"
    for kind in (
        "application/json",
        "multipart/form-data; boundary=b",
        "multipart/form-data",
        "x/y",
    ):
        headers = {**client.headers, "Content-Type": kind}
        answers.append(send(client.service, "POST", path, values, headers))
        with closing(http.client.HTTPConnection("127.0.0.1", client.service.port)) as connection:
            connection.request("POST", path, json.dumps(values)[:-1], headers)
            answers.append(connection.getresponse())
    answers.append(client.create(values | {"phone": values["phone"] * 6_000}))
    for path in (PROFILES, "/api/administrator/sessions", "/none", "/api/user/update-profile"):
        answers += [client.send(method, path, values) for method in ("GET", "POST", "PATCH")]
    return {answer.status for answer in answers}


def leaked(service, client, secrets):
    """The secrets that the log tells."""
    log = service.log.read_text()
    hashes = [sha256(client.token.encode()).hexdigest()]
    return [secret for secret in (client.token, *hashes, *secrets) if secret in log]


def test_the_log_tells_no_secret(empty_database_url, talkative):
    client, values = Client(talkative), secret_values()
    created = client.create(values)
    assert created.status == 201, created
    profileid = created.value["profileid"]
    assert send_good_and_bad(client, profileid, values) >= {200, 201, 400, 404, 405, 413, 415}
    unknown = token_hex(32)
    for token in (unknown, unknown.upper(), f"{unknown}x", f"{unknown} {client.token}"):
        headers = {"Authorization": f"Bearer {token}"}
        assert send(talkative, "POST", PROFILES, values, headers).status == 405
        assert send(talkative, "GET", PROFILES, None, headers).status == 401
    with locked(empty_database_url):
        writers = [lambda: client.create(values), lambda: client.update(profileid, values)]
        assert_unavailable(at_once(*writers), within=10)
    execute(empty_database_url, "ALTER TABLE profile RENAME TO elsewhere")
    answers = [
        client.create(values),
        client.update(profileid, values),
        client.send("GET", PROFILES),
    ]
    assert {answer.status for answer in answers} <= {500, 503}
    talkative.kill(signal.SIGTERM)
    log = talkative.log.read_text()
    assert "[DEBUG]" in log and "database unavailable" in log
    secrets = (unknown, sha256(unknown.encode()).hexdigest(), *values.values())
    assert leaked(talkative, client, secrets) == []


HEAD = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
FORM = POST + "Content-Type: application/x-www-form-urlencoded\r\n"
CHUNKED = POST + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "header without a colon": HEAD + "Authorization {secret}\r\n\r\n",
    "header with a space in its name": HEAD + "Authorization : {secret}\r\n\r\n",
    "header over two lines": HEAD + "Authorization: Bearer\r\n {secret}\r\n\r\n",
    "header cut short": HEAD + "Authorization: Bearer {secret}",
    "body cut short": FORM + "Content-Length: 999\r\n\r\nphone={secret}",
    "body over its length": FORM + "Content-Length: 6\r\n\r\nphone={secret}\r\n",
    "chunk without a size": CHUNKED + "{secret}\r\n\r\n",
    "chunk over its size": CHUNKED + "2\r\n{secret}\r\n0\r\n\r\n",
    "chunk cut short": CHUNKED + "999\r\n{secret}",
}


def send_broken(service):
    """What is answered to each broken request, and the secret that was in it."""
    client = Client(service)
    path = f"/api/user/create-profile?accountid={client.accountid}"
    secrets = {name: f"secret{token_hex(29)}" for name in BROKEN}
    texts = {
        name: text.format(token=client.token, path=path, secret=secrets[name])
        for name, text in BROKEN.items()
    }
    return {name: raw(service, text) for name, text in texts.items()}, secrets


def test_a_broken_request_is_no_error_of_the_service(empty_database_url, serve):
    answers, _ = send_broken(serve(empty_database_url, USER_PROFILE_FIELDS="phone"))
    assert [name for name, answer in answers.items() if not re.match("HTTP/1.1 4|$", answer)] == []


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_log_tells_no_secret_of_a_broken_request(empty_database_url, serve, level):
    service = serve(empty_database_url, GUNICORN_CMD_ARGS=f"--log-level {level}")
    _, secrets = send_broken(service)
    service.kill(signal.SIGTERM)
    log = service.log.read_text()
    assert "Shutting down" in log
    assert [name for name, secret in secrets.items() if secret in log] == []
