"""The databases that the tests use: made, filled, watched, locked and taken away."""

import itertools
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import partial
from secrets import token_hex
from urllib.parse import unquote, urlsplit

import peewee
import pymysql
import pytest
from serving import ROOT, free_port, wait_until

import config
from database import connection, db
from engines import ENGINES
from models import MODELS, Account, as_objects, public_columns, timestamp
from validators import identifier

# When the rows of each ``fill`` begin, in nanoseconds: in the past, 1,000 seconds apart.
STARTS = itertools.count(1_700_000_000_000_000_000, 10**12)


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_mysql = pytest.mark.parametrize("database_url", ["mysql"], indirect=True)


def is_sqlite(url):
    return url.startswith("sqlite")


def name_of(url):
    """The path of a SQLite file, or the name of a database on the MySQL server."""
    return unquote(urlsplit(url).path[1:])


@contextmanager
def driver(url):
    """A cursor of the driver itself, without a transaction, and its mark of a parameter."""
    if is_sqlite(url):
        with closing(sqlite3.connect(name_of(url), isolation_level=None)) as client:
            yield client.cursor(), "?"
    else:
        parts = urlsplit(url)
        options = {
            "host": parts.hostname,
            "port": parts.port or 3306,
            "database": name_of(url),
        }
        options |= {
            "user": unquote(parts.username),
            "password": unquote(parts.password or ""),
        }
        with pymysql.connect(**options, autocommit=True) as client:
            yield client.cursor(), "%s"


def execute(url, sql, *values):
    """The rows of a statement that another client runs."""
    with driver(url) as (cursor, _):
        cursor.execute(sql, values) if values else cursor.execute(sql)
        return list(cursor.fetchall())


SERVER = os.environ.get("TEST_MYSQL_URL", "")
on_mysql_server = partial(execute, SERVER)


@contextmanager
def server_set_to(name, value):
    """The server with a global variable of that value, which new connections have too."""
    ((before,),) = on_mysql_server(f"SELECT @@GLOBAL.{name}")
    on_mysql_server(f"SET GLOBAL {name} = %s", value)
    try:
        yield
    finally:
        on_mysql_server(f"SET GLOBAL {name} = %s", before)


@contextmanager
def new_database(kind, folder):
    """The URL of a database of the kind without a table, until the end of the block."""
    name = f"test_profiles_{token_hex(4)}"
    if kind == "sqlite":
        yield f"sqlite:///{folder}/{name}.db"
    elif not SERVER:
        pytest.skip(
            "set TEST_MYSQL_URL=mysql://root@127.0.0.1:3306 to test on that server too"
        )
    else:
        on_mysql_server(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(SERVER)._replace(path=f"/{name}").geturl()
        finally:
            on_mysql_server(f"DROP DATABASE {name}")


mysql_database = partial(new_database, "mysql", None)


def engine_at(url):
    url = config.parse_database_url(url)
    return ENGINES[url.engine](url)


@contextmanager
def database_at(url):
    """The models bound to the database, as it is, until the end of the block."""
    db.initialize(engine_at(url))
    with connection():
        yield
    db.close()


def fill(model, appid, count, *, accountid=None, step=300_000):
    """Store rows, three or four to a millisecond; returns them as listed, newest first."""
    moments = itertools.islice(itertools.count(next(STARTS), step), count)
    rows = [
        new_row(model, each, appid, accountid or identifier("acct")) for each in moments
    ]
    values = [tuple(row.values()) for row in rows]
    with connection(), db.atomic():
        db.cursor().executemany(model.insert(rows[0]).sql()[0], values)
    columns = [model._meta.fields[name] for name in public_columns(model)]
    return as_objects(
        model, [[row[column] for column in columns] for row in reversed(rows)]
    )


def new_row(model, moment, appid, accountid):
    """A row of each column and its value, in the order of the columns."""
    made, fields = timestamp(moment), model._meta.sorted_fields
    values = {"tokenHash": token_hex(32), "csrfToken": token_hex(32), "duration": 60}
    values |= {"expiresAt": made, "lastVerifiedAt": made, "endedAt": None}
    texts = [each.name for each in fields if type(each) is peewee.TextField]
    values |= {name: f"{name} {moment} é\U0001f600" for name in texts}
    values |= {"id": moment, model.PUBLIC_ID: identifier(model.PREFIX)}
    values |= {
        "appid": appid,
        "accountid": accountid,
        "createdAt": made,
        "updatedAt": made,
    }
    return {field: values[field.name] for field in fields}


def store(url, model, rows):
    """Store rows, each a dictionary of all columns."""
    names = model._meta.sorted_field_names
    with driver(url) as (cursor, mark):
        marks = ", ".join([mark] * len(names))
        insert = f"INSERT INTO {model.TABLE} ({', '.join(names)}) VALUES ({marks})"
        cursor.execute("BEGIN")
        cursor.executemany(insert, [tuple(row[name] for name in names) for row in rows])
        cursor.execute("COMMIT")


def stored(url):
    """Every row of each table, in the order of their keys."""
    found = {}
    for model in MODELS:
        names = model._meta.sorted_field_names
        rows = execute(
            url, f"SELECT {', '.join(names)} FROM {model.TABLE} ORDER BY {names[0]}"
        )
        found[model.TABLE] = [dict(zip(names, row, strict=True)) for row in rows]
    return found


def default_profiles():
    return dict(Account.select(Account.accountid, Account.profileid).tuples())


def schema(url):
    """The tables and the indexes beside their keys."""
    engine = engine_at(url)
    with connection(engine):
        tables, found = sorted(engine.get_tables()), []
        for table in tables:
            indexes = {
                (table, *each.columns, each.unique)
                for each in engine.get_indexes(table)
            }
            found += indexes - {(table, *engine.get_primary_keys(table), True)}
    engine.close()
    return tables, sorted(found)


LISTED = [("appid", "accountid", "id", False), ("appid", "id", False)]
UNIQUE = {"profile": [("profileid",)], "session": [("sessionid",), ("tokenHash",)]}
SCHEMA = (
    ["account", *UNIQUE],
    [
        (t, *index)
        for t in UNIQUE
        for index in LISTED + [(*names, True) for names in UNIQUE[t]]
    ],
)

FIRST_STARTS = """
import os, sys
from app import create_app
for line in sys.stdin:
    start, go = os.pipe()
    for url in line.split():
        if not os.fork():
            os.close(go)
            os.read(start, 1)  # until the other end is closed
            create_app({"DATABASE_URL": url})
            os._exit(0)
    os.close(go)
    print(*(os.wait()[1] for url in line.split()))
"""


def first_starts(rounds):
    """Start the service on all databases of a round at once, each in a process; then the next."""
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120}
    words, lines = (
        [sys.executable, "-c", FIRST_STARTS],
        "\n".join(map(" ".join, rounds)),
    )
    done = subprocess.run(words, input=lines, **options)
    assert done.stderr == ""  # where an unavailable database would be logged
    assert set(done.stdout.split()) == {"0"}


def connections(url):
    """The connections to the database: on MySQL of any process, on SQLite of this one."""
    if is_sqlite(url):
        log = os.path.realpath(name_of(url)) + "-wal"  # a descriptor each
        with os.scandir("/proc/self/fd") as files:
            return {
                int(file.name) for file in files if os.path.realpath(file.path) == log
            }
    select = "SELECT id FROM information_schema.processlist WHERE db = %s"
    return {row[0] for row in on_mysql_server(select, name_of(url))}


def cut_connections(url):
    """KILL every connection to a MySQL database; returns how many, once they are gone."""
    found = connections(url)
    for number in found:
        on_mysql_server("KILL %s", number)
    wait_until(lambda: not found & connections(url))
    return len(found)


@contextmanager
def locked(url):
    """The database while another client holds what every write needs."""
    with driver(url) as (cursor, _):
        cursor.execute("BEGIN EXCLUSIVE" if is_sqlite(url) else "BEGIN")
        for table in () if is_sqlite(url) else ("account", "profile"):
            cursor.execute(f"SELECT * FROM {table} FOR UPDATE")
        yield
        cursor.execute("ROLLBACK")


def wait_until_one_waits():
    """Wait until a transaction on the MySQL server waits for a lock of another one."""
    sql = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
    wait_until(lambda: on_mysql_server(sql)[0][1] != "0")


PROXY = """
import select, socket, sys, threading

def carry(near):
    servers.append(servers.pop(0))
    try:
        far = socket.create_connection(servers[0].split(":"))
    except OSError:
        return carry(near)
    others = {near: far, far: near}
    while True:
        for source in select.select(others, [], [])[0]:
            others[source].sendall(source.recv(65_536) or sys.exit())

listener, servers = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64), sys.argv[2:]
while True:
    threading.Thread(target=carry, args=[listener.accept()[0]]).start()
"""


class Proxy:
    """Leads each connection to the next server that accepts it; can go away."""

    def __init__(self, *urls):
        servers = [urlsplit(url) for url in urls or [SERVER]]
        self.servers = [f"{each.hostname}:{each.port or 3306}" for each in servers]
        self.port = free_port()

    def __enter__(self):
        """Listen, and carry bytes both ways."""
        words = [sys.executable, "-c", PROXY, str(self.port), *self.servers]
        self.process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        wait_until(
            lambda: socket.create_connection(("127.0.0.1", self.port)).close() or True
        )
        return self

    def __exit__(self, *error):
        """Cut every connection and refuse new ones."""
        self.process.kill()
        self.process.wait()

    come, go = __enter__, __exit__

    def url(self, database_url):
        """The address of the database by way of the proxy."""
        user = urlsplit(database_url).netloc.rpartition("@")[0]
        return f"mysql://{user}@127.0.0.1:{self.port}/{name_of(database_url)}"
