"""MySQL servers with the same rows: a Galera cluster on free local ports, and others."""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
from databases import driver
from serving import wait_until

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
OPTIONS = (
    *(
        "--no-defaults",
        "--bind-address=127.0.0.1",
        "--wsrep-on=ON",
        "--wsrep-sst-method=rsync",
    ),
    *(
        "--binlog-format=ROW",
        "--innodb-autoinc-lock-mode=2",
        "--innodb-buffer-pool-size=64M",
    ),
    "--wsrep-sync-wait=1",  # as the README asks for: a node reads what the others committed
)
USER = os.geteuid() or "mysql"  # rsync's daemon writes nothing as root
PROVIDER_OPTIONS = (  # a dead node is noticed in two seconds, by default in five
    "gcache.size=32M;evs.keepalive_period=PT0.3S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S"
)


def missing():
    """The programs that a cluster needs and that are not installed."""
    programs = ("mariadbd", "mariadb-install-db", "rsync", PROVIDER)
    return [
        str(each)
        for each in programs
        if not (shutil.which(each) or Path(each).exists())
    ]


def free_ports(number):
    """Ports below those of outgoing connections, one of which could take a stopped node's port."""
    ports = []
    while len(ports) < number:
        port = random.randrange(12_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


class Member:
    """A server whose rows others have too: a member of a group."""

    sync = "SET SESSION group_replication_consistency = 'BEFORE'"
    ready = """SELECT COUNT(*) = 3 FROM performance_schema.replication_group_members
        WHERE member_state = 'ONLINE'"""

    def __init__(self, url):
        self.address = urlsplit(url)

    def url(self, database):
        return self.address._replace(path=f"/{database}").geturl()

    def execute(self, sql, database="", *before):
        with driver(self.url(database)) as (cursor, _):
            for each in (*before, sql):
                cursor.execute(each)
            return cursor.fetchall()

    def synced(self, sql, database=""):
        """The rows of a statement, once the server has applied all that the others committed."""
        return self.execute(sql, database, self.sync)

    def is_ready(self):
        """Whether the server has caught up with the others and serves."""
        with suppress(pymysql.Error):
            return self.execute(self.ready) == ((1,),)


class Node(Member):
    """A server of a Galera cluster; started, killed and started again on the same files."""

    sync = "SET SESSION wsrep_sync_wait = 15"
    ready = """SELECT variable_value = 'ON' FROM information_schema.global_status
        WHERE variable_name = 'WSREP_READY'"""

    def __init__(self, folder, name):
        self.folder, self.name = folder / name, name
        self.folder.mkdir()
        shutil.chown(self.folder, USER)
        self.log = folder / f"{name}.log"
        self.port, self.base, self.transfer, self.increments = free_ports(4)
        super().__init__(f"mysql://root@127.0.0.1:{self.port}")

    def start(self, nodes):
        """Start the server and wait until it serves: it joins the nodes, or founds a cluster."""
        address = "gcomm://" + ",".join(f"127.0.0.1:{node.base}" for node in nodes)
        base, increments = f"127.0.0.1:{self.base}", f"127.0.0.1:{self.increments}"
        addresses = f"gmcast.listen_addr=tcp://{base};ist.recv_addr={increments}"
        own = (
            *(f"--user={USER}", f"--datadir={self.folder}", f"--port={self.port}"),
            *(f"--socket={self.folder}.sock", f"--pid-file={self.folder}.pid"),
            *(f"--wsrep-provider={PROVIDER}", f"--wsrep-cluster-address={address}"),
            *(f"--wsrep-node-name={self.name}", f"--wsrep-node-address={base}"),
            f"--wsrep-sst-receive-address=127.0.0.1:{self.transfer}",
            f"--wsrep-provider-options={addresses};{PROVIDER_OPTIONS}",
        )
        with self.log.open("ab") as log:
            options = {"stdout": log, "stderr": log, "start_new_session": True}
            self.process = subprocess.Popen(["mariadbd", *OPTIONS, *own], **options)
        wait_until(lambda: self.is_ready() or self.process.poll() is not None, 90)
        assert self.is_ready(), self.log.read_text()[-4_000:]

    def kill(self):
        """End the server at once, with the programs it started, and wait for its end."""
        with suppress(
            ProcessLookupError, AttributeError
        ):  # ended already, or never started
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)


@contextmanager
def galera():
    """Three nodes with the same rows, any of which takes writes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="galera")))
        shutil.chown(folder, USER)
        nodes = [Node(folder, f"node{number}") for number in (1, 2, 3)]
        for node in nodes:
            stack.callback(node.kill)
        command = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={nodes[0].folder}",
        ]
        command += [f"--user={USER}", "--auth-root-authentication-method=normal"]
        subprocess.run(command, check=True, capture_output=True)
        for number, node in enumerate(nodes):
            node.start(nodes[:number])
        yield nodes
