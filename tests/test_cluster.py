"""The service on three MySQL servers with the same rows, all of which take writes."""

import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from secrets import token_hex
from tempfile import TemporaryDirectory

import pymysql
import pytest
from service import (
    PROGRAMS,
    ROOT,
    Served,
    assert_error,
    at_once,
    execute,
    named,
    repeating,
    sign_in,
    wait_until,
)

pytestmark = pytest.mark.long
FIELDS = ("phone", "occupation", "location")
PROVIDER = "/usr/lib/galera/libgalera_smm.so"
USER = os.geteuid() or "mysql"  # rsync's daemon writes nothing as root
ALL_ROWS = "CHECKSUM TABLE account, profile, session"
DEFAULTS = "SELECT 1 FROM account JOIN profile USING (profileid)"
INDEXED_COLUMNS = """
SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()"""


def same_on_all(urls, sql):
    """The rows of a statement, once every server has the same."""

    def rows():
        with suppress(pymysql.Error):
            found = [execute(url, sql) for url in urls]
            return found == found[:1] * len(urls) and found[0]

    return wait_until(rows, 90)


class Node:
    """A server of a Galera cluster, with four ports from this one on."""

    def __init__(self, folder, port, cluster):
        self.address = f"127.0.0.1:{port + 1}"
        self.url = f"mysql://root@{self.address}"
        # A dead node is noticed in two seconds, by default in five. A read waits for
        # what the others committed, as OPERATING.md asks for.
        self.command = f"""mariadbd --no-defaults --user={USER} --datadir={folder}
            --log-error={folder}.log --socket={folder}.sock --pid-file={folder}.pid
            --bind-address=127.0.0.1 --port={port + 1} --binlog-format=ROW
            --innodb-autoinc-lock-mode=2 --innodb-buffer-pool-size=64M --wsrep-on=ON
            --wsrep-provider={PROVIDER} --wsrep-cluster-address=gcomm://{cluster}
            --wsrep-node-address=127.0.0.1:{port} --wsrep-sst-method=rsync
            --wsrep-sst-receive-address=127.0.0.1:{port + 2} --wsrep-sync-wait=1
            --wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{port};\
ist.recv_addr=127.0.0.1:{port + 3};gcache.size=32M;evs.keepalive_period=PT0.3S;\
evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S""".split()
        create_tables = f"""mariadb-install-db --no-defaults --user={USER}
            --datadir={folder} --auth-root-authentication-method=normal"""
        subprocess.run(create_tables.split(), check=True)

    def start(self, *options):
        """Start the server, and wait until it serves."""
        command = [*self.command, *options]
        self.process = subprocess.Popen(command, start_new_session=True)
        same_on_all([self.url], "SELECT 1 FROM mysql.user")

    def kill(self):
        """End the server at once, with the programs that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def galera():
    """The nodes of a cluster."""
    if not os.path.exists(PROVIDER) or not shutil.which("rsync"):
        pytest.skip("a Galera cluster needs galera-4, mariadb-server and rsync")
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="galera"))
        shutil.chown(folder, USER)
        first = random.randrange(12_000, 32_000)  # no outgoing connection takes these
        ports = range(first, first + 12, 4)
        cluster = ",".join(f"127.0.0.1:{port}" for port in ports)
        nodes = [Node(f"{folder}/{port}", port, cluster) for port in ports]
        options = ["--wsrep-new-cluster"]
        for node in nodes:
            stack.callback(node.kill)
            node.start(*options)
            options = []
        yield nodes


@pytest.fixture(params=["galera", "group"])
def urls(request):
    """A new database on each node of a cluster, or member of a group of MySQL."""
    servers = os.environ.get("TEST_GROUP_URLS", "").split()
    if request.param == "galera":
        servers = [node.url for node in request.getfixturevalue("galera")]
    if not servers:
        pytest.skip("set TEST_GROUP_URLS to the mysql:// URLs of a group's members")
    name = f"test_profiles_{token_hex(4)}"
    execute(servers[0], f"CREATE DATABASE {name}")
    urls = [f"{server}/{name}" for server in servers]
    same_on_all(urls, "SELECT DATABASE()")
    yield urls
    execute(servers[0], f"DROP DATABASE {name}")


def test_writes_through_three_nodes_conflict_unnoticed(urls, serve):
    """Each has a service of its own, which has a field of its own."""
    services = [
        serve(url, WEB_CONCURRENCY="1", USER_PROFILE_FIELDS=field)
        for url, field in zip(urls, FIELDS, strict=True)
    ]
    administrator = sign_in(services[0], administrator=True)
    first = administrator.create(dict.fromkeys(FIELDS, "first")).json
    same_on_all(urls, ALL_ROWS)

    def write(number):
        """Update the one profile; create others, each of them the default."""
        client = copy(administrator)
        client.application = services[number % 3]
        for turn in range(166):  # about 1,000 of all writers
            body = dict.fromkeys(FIELDS, f"{number}.{turn}") | {"default": "true"}
            assert client.update(first["profileid"], body).status_code == 200
            assert client.create(body).status_code == 201

    at_once(*[partial(write, number) for number in range(6)])
    same_on_all(urls, ALL_ROWS)
    *created, updated = administrator.profiles()
    assert len(created) == 6 * 166
    for number, field in enumerate(FIELDS):
        assert updated[field] in (f"{number}.165", f"{number + 3}.165")
    assert execute(urls[0], DEFAULTS) == [(1,)]


@pytest.mark.parametrize("urls", ["galera"] * 8, indirect=True)
def test_first_starts_at_once_through_every_node(urls):
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.first_starts"],
        cwd=ROOT,
        input=" ".join(urls * 4),
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""  # where an outage would be logged
    assert done.stdout == "0 0 0 0 0 0 0 0 0 0 0 0\n"
    assert same_on_all(urls, INDEXED_COLUMNS) == [(18,)]


@pytest.fixture
def proxy(tmp_path):
    """Another program that listens on a port, ended with the test."""
    proxy = Served(tmp_path, "")
    yield proxy
    proxy.kill()


@pytest.mark.parametrize("urls", ["galera"], indirect=True)
def test_a_node_killed_under_writes_loses_nothing(galera, urls, serve, proxy):
    node = galera[0]
    servers = [each.address for each in galera]
    proxy.start(sys.executable, PROGRAMS / "proxy.py", str(proxy.port), *servers)
    url = urls[0].replace(node.address, f"127.0.0.1:{proxy.port}")
    client = sign_in(serve(url), administrator=True)
    acknowledged = []

    def write():
        """Create a profile; each response is a success or the 503."""
        response = client.create(named("name", default="true"))
        if response.status_code == 201:
            acknowledged.append(response.json)
        else:
            assert_error(response, 503, "database-unavailable")

    with repeating(*[write] * 6):
        for change in (node.kill, node.start):
            enough = len(acknowledged) + 100
            wait_until(lambda: len(acknowledged) > enough)  # noqa: B023
            change()
    kept = client.profiles()
    assert all(profile in kept for profile in acknowledged)
    same_on_all(urls, ALL_ROWS)
