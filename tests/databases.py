"""The databases that the tests use: made, filled, watched, locked and taken away."""

import itertools
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from urllib.parse import unquote, urlsplit

import pymysql
import pytest
from serving import PROGRAMS, ROOT, free_port, wait_until

import config
from database import ENGINES, connection, db
from models import MODELS, Account, as_objects, timestamp
from validators import identifier

# When the rows of each ``fill`` begin, in nanoseconds: 1,000 seconds apart.
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
    """A cursor without a transaction, and what marks a parameter there.

    Neither database checks foreign keys for it.
    """
    if is_sqlite(url):
        client = sqlite3.connect(name_of(url), isolation_level=None)
        mark = "?"
    else:
        parts = urlsplit(url)
        mark = "%s"
        client = pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username),
            password=unquote(parts.password or ""),
            database=name_of(url),
            autocommit=True,
            init_command="SET foreign_key_checks = 0",
        )
    with closing(client):
        yield client.cursor(), mark


def execute(url, sql, *values):
    """The rows of a statement that another client runs."""
    with driver(url) as (cursor, _):
        cursor.execute(sql, values) if values else cursor.execute(sql)
        return list(cursor.fetchall())


SERVER = os.environ.get("TEST_MYSQL_URL", "")
on_mysql_server = partial(execute, SERVER)


@contextmanager
def server_set_to(name, value):
    """The server with another value of a global variable, also in new connections."""
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


def engine_at(url):
    url = config.parse_database_url(url)
    return ENGINES[url.engine](url)


def fill(model, appid, count, *, accountid=None):
    """Store rows of an account, three or four to a millisecond; return them as listed.

    An account that does not exist is made.
    """
    accountid = accountid or identifier("acct")
    start = next(STARTS)
    rows, listed = [], []
    for moment in range(start, start + count * 300_000, 300_000):
        row = new_row(model, moment, appid, accountid)
        rows.append(tuple(row.values()))
        shown = [row[field] for field in row if field.name != "tokenHash"]
        listed.insert(0, shown)
    insert, _ = model.insert(row).sql()
    owner = {"accountid": accountid, "appid": appid, "administrator": False}
    made = {"createdAt": row[model.createdAt], "updatedAt": row[model.updatedAt]}
    with connection(), db.atomic():
        Account.insert(owner | made).on_conflict_ignore().execute()
        db.cursor().executemany(insert, rows)
    return as_objects(model, listed)


def new_row(model, moment, appid, accountid):
    """A row of each column and its value, in the order of the columns."""
    made = timestamp(moment)
    values = {
        "id": moment,
        model.PUBLIC_ID: identifier(model.PREFIX),
        "appid": appid,
        "accountid": accountid,
        "tokenHash": token_hex(32),
        "csrfToken": token_hex(32),
        "duration": 60,
        "expiresAt": made,
        "lastVerifiedAt": made,
        "endedAt": None,
        "createdAt": made,
        "updatedAt": made,
    }
    row = {}
    for field in model._meta.sorted_fields:
        text = f"{field.name} {moment} é\U0001f600"
        row[field] = values.get(field.name, text)
    return row


def stored(url):
    """Every row of each table, in the order of their keys."""
    found = {}
    for model in MODELS:
        names = model._meta.sorted_field_names
        select = f"SELECT {', '.join(names)} FROM {model.TABLE} ORDER BY {names[0]}"
        found[model.TABLE] = []
        for row in execute(url, select):
            found[model.TABLE].append(dict(zip(names, row, strict=True)))
    return found


def is_empty(url):
    """Whether no table has a row."""
    return not any(stored(url).values())


def default_profiles():
    return dict(Account.select(Account.accountid, Account.profileid).tuples())


def schema(url):
    """The indexes beside the primary keys, and the foreign keys, each as a line."""
    engine = engine_at(url)
    found = []
    with engine.connection_context():
        for table in engine.get_tables():
            key = engine.get_primary_keys(table)
            for each in engine.get_indexes(table):
                if each.columns != key:
                    words = [table, *each.columns, *["UNIQUE"] * each.unique]
                    found.append(" ".join(words))
            for each in engine.get_foreign_keys(table):
                target = f"{each.dest_table} {each.dest_column}"
                found.append(f"{table} {each.column} -> {target}")
    return sorted(found)


SCHEMA = """\
account appid accountid UNIQUE
profile accountid -> account accountid
profile appid -> account appid
profile appid accountid id UNIQUE
profile appid id UNIQUE
profile profileid UNIQUE
session accountid -> account accountid
session appid -> account appid
session appid accountid id UNIQUE
session appid id UNIQUE
session sessionid UNIQUE
session tokenHash UNIQUE""".splitlines()
# The tables of version 1.3, which have no foreign keys.
TABLES_OF_1_3 = """
CREATE TABLE account (accountid {ascii} NOT NULL PRIMARY KEY, appid {ascii} NOT NULL,
    administrator INTEGER NOT NULL, profileid {ascii}, createdAt {ascii} NOT NULL,
    updatedAt {ascii} NOT NULL);
CREATE TABLE profile (id {id} NOT NULL PRIMARY KEY, appid {ascii} NOT NULL,
    accountid {ascii} NOT NULL, createdAt {ascii} NOT NULL, updatedAt {ascii} NOT NULL,
    profileid {ascii} NOT NULL, companyName {text}, fullName {text},
    contactEmail {text}, displayEmail {text}, displayName {text}, phone {text},
    occupation {text}, location {text}, dob {text}, website {text});
CREATE UNIQUE INDEX profile_profileid ON profile (profileid);
CREATE INDEX profile_appid_id ON profile (appid, id);
CREATE INDEX profile_appid_accountid_id ON profile (appid, accountid, id);
CREATE TABLE session (id {id} NOT NULL PRIMARY KEY, appid {ascii} NOT NULL,
    accountid {ascii} NOT NULL, createdAt {ascii} NOT NULL, updatedAt {ascii} NOT NULL,
    sessionid {ascii} NOT NULL, tokenHash {ascii} NOT NULL, duration INTEGER NOT NULL,
    csrfToken {ascii} NOT NULL, expiresAt {ascii} NOT NULL,
    lastVerifiedAt {ascii} NOT NULL, endedAt {ascii});
CREATE UNIQUE INDEX session_sessionid ON session (sessionid);
CREATE UNIQUE INDEX session_tokenHash ON session (tokenHash);
CREATE INDEX session_appid_id ON session (appid, id);
CREATE INDEX session_appid_accountid_id ON session (appid, accountid, id)"""


def make_tables_of_1_3(url):
    types = {"ascii": "TEXT", "text": "TEXT", "id": "INTEGER"}
    if not is_sqlite(url):
        types = {
            "ascii": "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
            "text": "LONGTEXT CHARACTER SET utf8mb4",
            "id": "BIGINT",
        }
    for statement in TABLES_OF_1_3.format(**types).split(";"):
        execute(url, statement)


def first_starts(rounds):
    """Start the service on all databases of a round at once; then the next round."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / "first_starts.py"],
        input="\n".join(" ".join(urls) for urls in rounds),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""  # where an unavailable database would be logged
    assert set(done.stdout.split()) == {"0"}


def connections(url):
    """The connections: on MySQL those of any process, on SQLite those of this one."""
    if is_sqlite(url):
        log = Path(f"{name_of(url)}-wal").resolve()  # each has a descriptor of it
        descriptors = Path("/proc/self/fd").iterdir()
        return {int(each.name) for each in descriptors if each.resolve() == log}
    select = "SELECT id FROM information_schema.processlist WHERE db = %s"
    rows = on_mysql_server(select, name_of(url))
    return {number for (number,) in rows}


def cut_connections(url):
    """KILL every connection to a MySQL database; return how many there were."""
    found = connections(url)
    for number in found:
        on_mysql_server("KILL %s", number)
    wait_until(lambda: not found & connections(url))
    return len(found)


def damage(url):
    """Break SQLite's files beyond their first page, or MySQL's connections."""
    if not is_sqlite(url):
        return cut_connections(url)
    for path in Path(name_of(url)), Path(f"{name_of(url)}-wal"):
        if path.exists():
            length = max(path.stat().st_size - 4_096, 0)
            with path.open("r+b") as file:
                file.seek(4_096)
                file.write(os.urandom(length))


@contextmanager
def locked(url):
    """The database while another client holds what every write needs."""
    with driver(url) as (cursor, _):
        if is_sqlite(url):
            cursor.execute("BEGIN EXCLUSIVE")
        else:
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM account FOR UPDATE")
            cursor.execute("SELECT * FROM profile FOR UPDATE")
        yield
        cursor.execute("ROLLBACK")


def wait_until_one_waits():
    """Wait until a transaction on the MySQL server waits for a lock of another one."""
    sql = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
    wait_until(lambda: on_mysql_server(sql)[0][1] != "0")


class Proxy:
    """Leads each connection to the next server that accepts it; can go away."""

    def __init__(self, *urls):
        servers = [urlsplit(url) for url in urls or [SERVER]]
        self.servers = [f"{each.hostname}:{each.port or 3306}" for each in servers]
        self.port = free_port()

    def __enter__(self):
        """Listen, and carry bytes both ways."""
        command = [sys.executable, PROGRAMS / "proxy.py", str(self.port)]
        command += self.servers
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(self.listens)
        return self

    def listens(self):
        with socket.create_connection(("127.0.0.1", self.port)):
            return True

    def __exit__(self, *error):
        """Cut every connection and refuse new ones."""
        self.process.kill()
        self.process.wait()

    come, go = __enter__, __exit__

    def url(self, database_url):
        """The address of the database by way of the proxy."""
        user = urlsplit(database_url).netloc.rpartition("@")[0]
        return f"mysql://{user}@127.0.0.1:{self.port}/{name_of(database_url)}"
