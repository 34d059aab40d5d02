"""The database away, damaged, locked, hanging, full or read-only: 503, nothing lost."""

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from functools import partial
from urllib.parse import urlsplit

import peewee
import pymysql
import pytest
from service import (
    PROFILES,
    SERVER,
    SESSIONS,
    Program,
    Threads,
    assert_error,
    at_once,
    cursor_of,
    execute,
    mysql_url,
    named,
    on_mysql,
    on_sqlite,
    repeating,
    sign_in,
    wait_until,
)
from werkzeug.test import Client

import database
from accounts import create_account
from app import LogFormatter
from callers import OPERATOR
from config import parse_database_url
from database import OUTAGES, db, is_outage
from profiles import create_profile, list_profiles

long = pytest.mark.long
# Carries bytes between its clients and a server: PROXY PORT HOST PORT.
PROXY = """
import socket, sys
from threading import Thread
port, host, port_of_server = sys.argv[1:]
def carry(source, target):
    while data := source.recv(65_536):
        target.sendall(data)
    target.shutdown(socket.SHUT_RDWR)
with socket.create_server(("127.0.0.1", int(port)), backlog=64) as listener:
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, port_of_server))
        Thread(target=carry, args=[client, server]).start()
        Thread(target=carry, args=[server, client]).start()
"""
# As sitecustomize.py, it makes a service wait for an answer a fifth of the time.
IMPATIENT = """
import pymysql
connect = pymysql.connect
def connect_impatiently(*, read_timeout=100, **options):
    return connect(read_timeout=read_timeout / 5, **options)
pymysql.connect = connect_impatiently
"""


def assert_unavailable(response):
    assert_error(response, 503, "database-unavailable")


def writes(client, profileid):
    """A request of each kind that writes a profile."""
    return [
        partial(client.update, profileid, named("name")),
        partial(client.create, named("name")),
        partial(client.create, named("name", default="true")),
    ]


def statuses(requests):
    """The statuses of requests that are made at the same time."""
    return {response.status_code for response in at_once(*requests)}


@pytest.mark.parametrize("table", ["account", "profile", "session"])
def test_a_missing_column_is_503_and_init_db_names_it(
    empty_database_url, make_app, caplog, monkeypatch, table
):
    """Without an id of its own, a request, its answer and its line have the same."""
    monkeypatch.setattr(caplog.handler, "formatter", LogFormatter())
    app = make_app(DATABASE_URL=empty_database_url)
    execute(empty_database_url, f"ALTER TABLE {table} DROP COLUMN updatedAt")
    response = app.test_client().get("/health")
    assert_unavailable(response)
    request_id = response.headers["X-Request-Id"]
    line = f" request_id={request_id} database unavailable: .*updatedAt"
    assert re.search(line, caplog.text)
    done = app.test_cli_runner().invoke(args=["init-db"])
    assert done.exit_code == 1
    assert re.match("Error: database-unavailable: .*updatedAt", done.stderr)


@on_sqlite
def test_a_missing_folder_is_503_until_it_is_there(
    database_url, make_app, caplog, tmp_path
):
    file = tmp_path / "folder" / "x.db"
    app = make_app(DATABASE_URL=f"sqlite:///{file}")
    client = app.test_client()
    assert_unavailable(client.get("/health"))
    line = "OperationalError SQLITE_CANTOPEN: unable to open database file\n"
    assert caplog.text.count(line) == 2
    assert client.get("/live").json["status"] == "ok"
    file.parent.mkdir()
    assert client.get("/health").json == {"object": "health", "status": "ok"}


@pytest.mark.parametrize(
    "database_url, change",
    [
        ("sqlite", "CREATE UNIQUE INDEX one ON profile (appid)"),
        ("mysql", "CREATE UNIQUE INDEX one ON profile (appid)"),
        ("mysql", "ALTER TABLE profile MODIFY fullName VARCHAR(5)"),
    ],
    indirect=["database_url"],
)
def test_a_row_that_a_table_refuses_is_500_with_a_traceback(
    empty_database_url, make_app, caplog, change
):
    """Clients are not asked to repeat it."""
    user = sign_in(make_app(DATABASE_URL=empty_database_url))
    user.create(named("first"))
    execute(empty_database_url, change)
    assert_error(user.create(named("second")), 500, "internal-error")
    # The error's type and code, without what the driver quotes; nothing is chained.
    assert re.search(r"peewee.\w+Error: \w+Error (SQLITE_\w+|[0-9]+)\n", caplog.text)
    assert caplog.text.count("Traceback") == 1
    assert "second" not in caplog.text


def test_an_account_that_a_table_refuses(empty_database_url, make_app):
    """It is no repeat of a key, so the error is raised."""
    with make_app(DATABASE_URL=empty_database_url).app_context():
        create_account(OPERATOR)
        execute(empty_database_url, "CREATE UNIQUE INDEX one ON account (appid)")
        with pytest.raises(peewee.IntegrityError):
            create_account(OPERATOR)


def connections(url):
    """The id of each connection to a MySQL database."""
    select = "SELECT id FROM information_schema.processlist WHERE db = %s"
    return execute(mysql_url(), select, parse_database_url(url).name)


def cut_connections(url):
    """KILL every connection to a MySQL database."""
    found = connections(url)
    assert found
    for row in found:
        execute(mysql_url(), "KILL %s", *row)
    wait_until(lambda: not connections(url))


@on_mysql
def test_a_connection_that_is_killed_three_times_is_replaced(
    app, administrator, database_url
):
    """Before a read, before a write, and before a transaction."""
    caller = administrator.caller
    create = partial(create_profile, caller, caller.accountid)
    for call in (
        partial(list_profiles, caller),
        partial(create, named("first")),
        partial(create, named("second", default="true")),
    ):
        cut_connections(database_url)
        call()
    assert len(list_profiles(caller)) == 2


@on_mysql
def test_requests_in_many_threads_share_few_connections(empty_database_url, make_app):
    """Those of the threads that write. If they are killed, others take their place."""
    user = sign_in(make_app(DATABASE_URL=empty_database_url))
    db.close()
    for _ in range(2):
        created = at_once(*[partial(user.create, named("Ada"))] * 20)
        assert {response.status_code for response in created} == {201}
        assert 1 <= len(connections(empty_database_url)) <= db.writers
        cut_connections(empty_database_url)


@on_mysql
@pytest.mark.parametrize("cause", ["age", "an outage"])
def test_a_request_uses_no_old_connection(database_url, make_app, monkeypatch, cause):
    """The address of the server may be another server's by now."""
    get = partial(make_app().test_client().get, "/health")
    at_once(*[get] * 8)
    before = {*connections(database_url)}
    assert get().status_code == 200
    assert {*connections(database_url)} == before
    if cause == "age":
        monkeypatch.setattr(database, "CONNECTION_SECONDS", 0)
    else:
        db.expire()
    at_once(*[get] * 8)
    assert not before & {*connections(database_url)}


@on_mysql
def test_a_transaction_whose_connection_is_killed_is_undone(
    app, administrator, database_url
):
    caller = administrator.caller
    with pytest.raises(OUTAGES), db.atomic():
        create_profile(caller, caller.accountid, named("never"))
        cut_connections(database_url)
        create_profile(caller, caller.accountid, named("never"))
    assert list_profiles(caller) is None


@on_mysql
@long
def test_a_connection_that_the_server_closed_since_it_was_idle_is_replaced(
    app, administrator, database_url
):
    db.execute_sql("SET SESSION wait_timeout = 1")
    wait_until(lambda: not connections(database_url))
    assert administrator.profiles() == []


@on_mysql
def test_a_login_plugin_that_needs_another_package(
    database_url, make_app, monkeypatch, caplog
):
    """PyMySQL raises RuntimeError, for example if ed25519 needs PyNaCl."""
    message = "'pynacl' package is required for ed25519_password auth method"

    def connect(**options):
        raise RuntimeError(message)

    monkeypatch.setattr(pymysql, "connect", connect)
    app = make_app()
    assert caplog.messages == [
        f"database unavailable: OperationalError 2059: {message}"
    ]
    assert_error(app.test_client().get("/health"), 503, "database-unavailable")


@on_mysql
def test_a_statement_that_timed_out_is_not_sent_again(app, monkeypatch):
    db.close()
    db.connect_params["read_timeout"] /= 10
    sent = []
    monkeypatch.setattr(db.obj, "query_hooks", [sent.append])
    with pytest.raises(peewee.OperationalError, match="timed out"):
        db.execute_sql("SELECT SLEEP(1.2)")
    assert len(sent) == 1


@on_mysql
def test_the_server_ends_a_statement_before_its_client_gives_up(app, client):
    """The server is healthy, so the next request is served."""
    variable, second = "max_execution_time", 1_000
    if "MariaDB" in db.execute_sql("SELECT VERSION()").fetchone()[0]:
        variable, second = "max_statement_time", 1
    (limit,) = db.execute_sql(f"SELECT @@{variable}").fetchone()
    assert limit / second == 9 < db.connect_params["read_timeout"]
    db.execute_sql(f"SET {variable} = {second}")
    columns = "information_schema.columns"
    with pytest.raises(peewee.OperationalError, match="1969|3024") as caught:
        db.execute_sql(f"SELECT COUNT(*) FROM {columns} a, {columns} b, {columns} c")
    assert is_outage(caught.value)
    assert client.get("/health").status_code == 200


@on_mysql
@pytest.mark.parametrize("words", ["list-administrators", "copy-database {}"])
def test_a_command_beside_a_server_that_hangs_fails(
    app, database_url, make_app, monkeypatch, words
):
    """When it connects, after the same time as a request; here, that is short."""
    monkeypatch.setattr(database, "CLIENT_SECONDS", 0.2)
    monkeypatch.setenv("FLASK_RUN_FROM_CLI", "true")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"mysql://root@127.0.0.1:{listener.getsockname()[1]}/x"
        is_target = "{}" in words
        app = make_app(DATABASE_URL=database_url if is_target else url)
        done = app.test_cli_runner().invoke(args=words.format(url).split())
    place = "the target" if is_target else "database-unavailable"
    assert done.exit_code == 1
    assert done.stderr == f"Error: {place}: OperationalError 2013\n"


@on_mysql
def test_a_command_may_take_longer(app, flask):
    flask("list-administrators")
    db.close()
    for variable in ("max_statement_time", "max_execution_time"):
        with suppress(peewee.OperationalError):  # the server has the other one
            db.execute_sql(f"SET {variable} = 1")  # as if it were the server's own
            db.execute_sql(db.connect_params["init_command"])
            assert db.execute_sql(f"SELECT @@{variable}").fetchone() == (0,)
    assert db.connect_params["read_timeout"] is None


@pytest.fixture
def proxy(tmp_path):
    """Another program that listens on a port, ended with the test."""
    proxy = Program(tmp_path)
    yield proxy
    proxy.kill()


@on_mysql
@long
def test_a_server_that_comes_cuts_connections_goes_and_hangs(
    empty_database_url, serve, proxy, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    start = partial(serve, PYTHONPATH=tmp_path)
    server = urlsplit(SERVER).netloc.rpartition("@")[2]

    def come():
        proxy.start(sys.executable, "-c", PROXY, str(proxy.port), *server.split(":"))
        wait_until(proxy.is_listening)

    url = empty_database_url.replace(server, f"127.0.0.1:{proxy.port}")
    service = start(url)
    health = partial(Client(service.app).get, "/health")
    assert_unavailable(health())
    come()
    assert health().status_code == 200  # it has created the tables
    client = sign_in(service.app, administrator=True)
    profileid = client.create(named("first")).json["profileid"]
    requests = [partial(client.get, PROFILES), *writes(client, profileid)]
    assert statuses(requests * 4) == {200, 201}
    cut_connections(empty_database_url)
    assert statuses(requests) == {200, 201}
    proxy.kill()
    assert statuses(requests) == {503}
    come()
    assert statuses(requests) == {200, 201}
    proxy.process.send_signal(signal.SIGSTOP)
    # Each waits for its own time-out, 2 seconds, and not for those before it.
    with repeating(*[health] * 4):
        began = time.monotonic()
        statuses(requests * 4)
        assert time.monotonic() - began < 20
    # Whoever has no turn after 5 seconds gets its 503; /live needs none.
    live = Client(service.app).get
    with Threads(24) as pool:
        began = time.monotonic()
        answers = [pool.submit(health) for _ in range(24)]
        while not all(answer.done() for answer in answers):
            before = time.monotonic()
            assert live("/live").status_code == 200
            assert time.monotonic() - before < 2
    assert {answer.result().status_code for answer in answers} == {503}
    assert time.monotonic() - began < 11
    started = start(url, wait=False)
    get = Client(started.app).get
    assert_unavailable(wait_until(lambda: get("/health")))
    proxy.process.send_signal(signal.SIGCONT)
    wait_until(lambda: statuses(requests * 4) == {200, 201})
    assert statuses(requests * 4) == {200, 201}


@long
@pytest.mark.parametrize(
    "database_url, lock",
    [
        ("sqlite", "UPDATE account SET appid = appid"),
        ("mysql", "SELECT * FROM profile FOR UPDATE"),
        ("mysql", "LOCK TABLES profile WRITE"),
    ],
    indirect=["database_url"],
)
def test_what_is_locked_for_too_long_is_503(app, administrator, database_url, lock):
    first = administrator.create(named("first", default="true")).json
    began = time.monotonic()
    with Threads(1) as pool, cursor_of(database_url) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(lock)
        waiting = pool.submit(statuses, writes(administrator, first["profileid"]))
        while not waiting.done():
            assert administrator.get(SESSIONS).status_code == 200
    assert waiting.result() == {503}
    assert 3 < time.monotonic() - began < 30
    assert administrator.profiles() == [first]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB, gone with the test."""
    disk = tmp_path / "disk"
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,X-mount.mkdir", "tmpfs", disk]
    if os.geteuid() or subprocess.run(command).returncode:
        pytest.skip("needs to mount a file system, and only root can")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@long
def test_a_full_disk_is_503_until_there_is_room(small_disk, serve):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(18 << 20))
    url = f"sqlite:///{small_disk}/profiles.db"
    service = serve(url, USER_PROFILE_FIELDS="location")
    client = sign_in(service.app, administrator=True)
    body = {"location": "x" * 60_000}
    stored = []
    while (response := client.create(body)).status_code == 201:
        stored.insert(0, response.json)
    assert_unavailable(response)
    causes = re.findall("database unavailable: (.*)", service.log())
    assert {cause[:28] for cause in causes} == {"OperationalError SQLITE_FULL"}
    assert client.profiles() == stored
    ballast.unlink()
    last = client.create(body).json
    assert client.profiles() == [last, *stored]


@on_sqlite
@long
@pytest.mark.parametrize("room", [0.9, 1.05, 1.2, 1.8])
def test_a_copy_to_a_small_disk_is_whole_or_fails(
    empty_database_url, make_app, small_disk, tmp_path, room
):
    """``room``: how much is free, as a part of the database's size."""
    app = make_app(DATABASE_URL=empty_database_url)
    body = {"location": "x" * 60_000}
    with app.app_context():
        accountid = create_account(OPERATOR)["accountid"]
        for _ in range(100):
            create_profile(OPERATOR, accountid, body, user_profile_fields=[*body])
        size = db.pragma("page_count") * db.pragma("page_size")
    free = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(bytes(free - int(size * room)))
    copy = small_disk / "copy.db"
    words = ["copy-database", f"sqlite:///{copy}"]
    done = app.test_cli_runner().invoke(args=words)
    if room < 1:
        assert done.exit_code == 1
        assert done.stderr.startswith("Error: the target: OperationalError SQLITE_FULL")
        return
    assert done.exit_code == 0, done.output
    alone = shutil.move(copy, tmp_path)  # as a job that names it does
    with closing(sqlite3.connect(alone)) as copied:
        assert copied.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        selected = copied.execute("SELECT sum(length(location)) FROM profile")
        assert selected.fetchone() == (6_000_000,)


@long
@pytest.mark.parametrize(
    "end",
    [Program.stop, Program.kill],
)
def test_a_read_only_disk_is_503_until_it_is_writable(small_disk, serve, end):
    service = serve(f"sqlite:///{small_disk}/profiles.db")
    client = sign_in(service.app, administrator=True)
    requests = [partial(client.create, named("name"))] * 32
    db.close()  # the test has the file open, too
    end(service)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    service.start()
    service.wait_until_up()
    assert statuses(requests) == {503}
    assert re.search(
        "database unavailable: .*(SQLITE_READONLY|SQLITE_CANTOPEN)", service.log()
    )
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    wait_until(lambda: statuses(requests) == {201})
