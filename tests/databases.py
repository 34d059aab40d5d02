"""The databases that the tests use: made, filled, watched, locked and taken away."""

import itertools
import os
import socket
import sqlite3
import subprocess
import sys
from collections import deque
from contextlib import closing, contextmanager, suppress
from secrets import token_hex
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread
from urllib.parse import unquote, urlsplit

import peewee
import pymysql
import pytest
from playhouse import db_url
from serving import ROOT, free_port, wait_until

import config
from database import bind, connection
from models import Account, Profile, Session, as_objects, identifier, public_columns, timestamp
from tables import db

STARTS = itertools.count(1_700_000_000_000_000_000, 10**12)
"""When the rows of each ``fill`` begin, in nanoseconds: in the past, 1,000 seconds apart."""


def is_sqlite(url):
    return url.startswith("sqlite")


def name_of(url):
    """The path of an SQLite file, or the name of a database on the MySQL server."""
    return unquote(urlsplit(url).path[1:])


# Made


def mysql_server(**options):
    """A connection to the server that TEST_MYSQL_URL names."""
    url = urlsplit(os.environ["TEST_MYSQL_URL"])
    options |= {"host": url.hostname, "port": url.port or 3306, "user": unquote(url.username)}
    try:
        return pymysql.connect(**options, password=unquote(url.password or ""), autocommit=True)
    except pymysql.OperationalError as error:
        pytest.exit(f"TEST_MYSQL_URL: {error}", 1)


def on_mysql_server(sql, parameters=()):
    """The rows of a statement on the server."""
    with mysql_server() as server, server.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


@contextmanager
def server_set_to(name, value):
    """The server with a global variable of that value, which new connections have too."""
    ((before,),) = on_mysql_server(f"SELECT @@GLOBAL.{name}")
    on_mysql_server(f"SET GLOBAL {name} = %s", (value,))
    try:
        yield
    finally:
        on_mysql_server(f"SET GLOBAL {name} = %s", (before,))


@contextmanager
def mysql_database():
    """The URL of a new database on the server, dropped at the end."""
    name = f"test_profiles_{token_hex(4)}"
    on_mysql_server(f"CREATE DATABASE {name}")
    try:
        yield urlsplit(os.environ["TEST_MYSQL_URL"])._replace(path=f"/{name}").geturl()
    finally:
        on_mysql_server(f"DROP DATABASE {name}")


@contextmanager
def new_database(kind, folder):
    """The URL of a database of the kind without a table, until the end of the block."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/{token_hex(4)}.db"
    elif not os.environ.get("TEST_MYSQL_URL"):
        pytest.skip("set TEST_MYSQL_URL=mysql://root@127.0.0.1:3306 to test on that server too")
    else:
        with mysql_database() as url:
            yield url


@contextmanager
def database_at(url):
    """The models bound to the database, as it is, until the end of the block."""
    bind(config.load({"DATABASE_URL": url}).database_url)
    db.obj.first_use = None  # which would make the tables
    with db.connection_context():
        yield
    close_database()


def close_database():
    """Close the connection that the service keeps for this thread."""
    if db.obj:
        db.close()


# Filled and read


def fill(model, appid, count, *, accountid=None, step=300_000):
    """Store rows, three or four to a millisecond; returns them as listed, newest first.

    They are one account's, or each of an account of its own. Every field of a profile has a text.
    """
    start = next(STARTS)
    rows = [
        new_row(model, moment, appid, accountid or identifier("acct"))
        for moment in range(start, start + count * step, step)
    ]
    insert = model.insert(rows[0]).sql()[0]
    with connection(), db.atomic():
        db.cursor().executemany(insert, [tuple(row.values()) for row in rows])
    columns = public_columns(model)
    return as_objects(model, [[row[column] for column in columns] for row in reversed(rows)])


def new_row(model, moment, appid, accountid):
    """A row of each column and its value, in the order of the columns."""
    made = timestamp(moment)
    if model is Session:
        values = {"tokenHash": token_hex(32), "csrfToken": token_hex(32), "duration": 60}
        values |= {"expiresAt": made, "lastVerifiedAt": made, "endedAt": None}
    else:
        texts = [field for field in Profile._meta.sorted_fields if type(field) is peewee.TextField]
        values = {field.name: f"{field.name} {moment} é\U0001f600" for field in texts}
    values |= {"id": moment, model.PUBLIC_ID: identifier(model.PUBLIC_ID[:4])}
    values |= {"appid": appid, "accountid": accountid, "createdAt": made, "updatedAt": made}
    return {field: values[field.name] for field in model._meta.sorted_fields}


@contextmanager
def driver(url):
    """A cursor of the driver itself, without a transaction, and its mark of a parameter."""
    if is_sqlite(url):
        with closing(sqlite3.connect(name_of(url), isolation_level=None)) as client:
            yield client.cursor(), "?"
    else:
        with mysql_server(database=name_of(url)) as client:
            yield client.cursor(), "%s"


def execute(url, sql):
    """The rows of a statement that another client runs."""
    with driver(url) as (cursor, _):
        cursor.execute(sql)
        return list(cursor.fetchall())


def store(url, model, rows):
    """Store rows, each a dictionary of all columns."""
    names = model._meta.sorted_field_names
    with driver(url) as (cursor, mark):
        marks = ", ".join([mark] * len(names))
        cursor.execute("BEGIN")
        cursor.executemany(
            f"INSERT INTO {model._meta.name} ({', '.join(names)}) VALUES ({marks})",
            [tuple(row[name] for name in names) for row in rows],
        )
        cursor.execute("COMMIT")


def stored(url):
    """Every row of each table, in the order of their keys."""
    found = {}
    for model in (Account, Profile, Session):
        names, table = model._meta.sorted_field_names, model._meta.name
        rows = execute(url, f"SELECT {', '.join(names)} FROM {table} ORDER BY {names[0]}")
        found[table] = [dict(zip(names, row, strict=True)) for row in rows]
    return found


def default_profiles():
    """The profileid of each account, by its accountid."""
    return dict(Account.select(Account.accountid, Account.profileid).tuples())


def schema(url):
    """The tables and the indexes beside their keys, each as often as it is there.

    They are not read over a connection of the service's, which would make what is missing.
    """
    database = db_url.connect(url, unquote_password=True)
    with database.connection_context():
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


FIRST_STARTS = """
import multiprocessing, sys
from app import create_app
from database import connection

def start(url, together):
    create_app({"DATABASE_URL": url})
    together.wait()
    with connection():
        pass

fork = multiprocessing.get_context("fork")
for line in sys.stdin:
    urls = line.split()
    together = fork.Barrier(len(urls))
    starts = [fork.Process(target=start, args=(url, together)) for url in urls]
    for process in starts:
        process.start()
    for process in starts:
        process.join()
    print(*(process.exitcode for process in starts))
"""


def first_starts(rounds):
    """Start the service on all databases of a round at once, each in a process; then the next."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STARTS],
        cwd=ROOT,
        input="\n".join(map(" ".join, rounds)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""  # where an unavailable database would be logged
    assert done.stdout.split() == ["0"] * sum(map(len, rounds))


# Watched and locked


def connections(url):
    """The connections to the database: on MySQL of any process, on SQLite of this one.

    Each connection to an SQLite file in WAL mode has a file descriptor of the log beside it.
    """
    if is_sqlite(url):
        log = os.path.realpath(name_of(url)) + "-wal"
        with os.scandir("/proc/self/fd") as files:
            return {int(file.name) for file in files if os.path.realpath(file.path) == log}
    select = "SELECT id FROM information_schema.processlist WHERE db = %s"
    return {row[0] for row in on_mysql_server(select, (name_of(url),))}


def cut_connections(url):
    """KILL every connection to a MySQL database; returns how many, once they are gone."""
    found = connections(url)
    for number in found:
        on_mysql_server("KILL %s", (number,))
    wait_until(lambda: not found & connections(url))
    return len(found)


def wait_until_dead(service, url):
    """Wait until no process of a killed service is left, and no connection of theirs."""
    with socket.socket() as probe:
        wait_until(lambda: probe.connect_ex(("127.0.0.1", service.port)))
    if not is_sqlite(url):
        wait_until(lambda: not connections(url))


@contextmanager
def locked(url):
    """The database while another client holds what every write needs."""
    with driver(url) as (cursor, _):
        cursor.execute("BEGIN EXCLUSIVE" if is_sqlite(url) else "BEGIN")
        if not is_sqlite(url):
            cursor.execute("SELECT * FROM account FOR UPDATE")
            cursor.execute("SELECT * FROM profile FOR UPDATE")
        yield
        cursor.execute("ROLLBACK")


def wait_until_one_waits():
    """Wait until a transaction on the MySQL server waits for a lock of another one."""
    show = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
    wait_until(lambda: on_mysql_server(show)[0][1] != "0")


# Taken away


class Proxy:
    """Leads each connection to the next server that accepts it; can go away or hang."""

    def __init__(self, *urls):
        servers = [urlsplit(url) for url in urls or [os.environ["TEST_MYSQL_URL"]]]
        self.servers = deque((server.hostname, server.port or 3306) for server in servers)
        self.port, self.ended = free_port(), Event()

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
        """Carry on from where it stopped."""
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
        near = self.listener.accept()[0]
        for _ in range(len(self.servers)):
            self.servers.rotate()
            with suppress(OSError):
                far = socket.create_connection(self.servers[0])
                self.selector.register(near, EVENT_READ, far)
                self.selector.register(far, EVENT_READ, near)
                return
        near.close()

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
