"""A MariaDB Galera cluster of three nodes on free local ports, for tests."""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from itertools import cycle, islice
from pathlib import Path
from threading import Thread

import pymysql

PROVIDERS = [
    Path("/usr/lib/galera/libgalera_smm.so"),  # Debian and Ubuntu
    Path("/usr/lib64/galera-4/libgalera_smm.so"),  # Fedora and its relatives
]
OPTIONS = (
    *("--no-defaults", "--bind-address=127.0.0.1", "--wsrep-on=ON", "--wsrep-sst-method=rsync"),
    *("--binlog-format=ROW", "--innodb-autoinc-lock-mode=2", "--innodb-buffer-pool-size=64M"),
    "--wsrep-sync-wait=1",  # as the README asks for: a node reads what the others committed
)
USER = "mysql" if os.geteuid() == 0 else str(os.geteuid())  # rsync's daemon writes nothing as root
PROVIDER_OPTIONS = (  # a dead node is noticed in two seconds, by default in five
    "gcache.size=32M;evs.keepalive_period=PT0.3S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT4S"
)
READY_SECONDS = 30


def missing():
    """The programs that a cluster needs and that are not installed."""
    programs = ("mariadbd", "mariadb-install-db", "rsync")
    provider = [] if any(map(Path.exists, PROVIDERS)) else [PROVIDERS[0].name]
    return [program for program in programs if not shutil.which(program)] + provider


def free_ports(number):
    """Ports below those of outgoing connections, one of which could take a stopped node's port."""
    ports = []
    while len(ports) < number:
        port = random.randrange(12_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


class Node:
    """One server of the cluster; started, killed and started again on the same files."""

    def __init__(self, folder, name):
        self.folder, self.name = folder / name, name
        self.folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
        self.log = folder / f"{name}.log"
        self.port, self.base, self.transfer, self.increments = free_ports(4)
        self.process = None

    def start(self, address):
        """Start the server without waiting for it; ``gcomm://`` alone founds a cluster."""
        base = f"127.0.0.1:{self.base}"
        provider = next(filter(Path.exists, PROVIDERS))
        addresses = f"gmcast.listen_addr=tcp://{base};ist.recv_addr=127.0.0.1:{self.increments}"
        own = (
            *(f"--user={USER}", f"--datadir={self.folder}", f"--port={self.port}"),
            *(f"--socket={self.folder}.sock", f"--pid-file={self.folder}.pid"),
            *(f"--wsrep-provider={provider}", f"--wsrep-cluster-address={address}"),
            *(f"--wsrep-node-name={self.name}", f"--wsrep-node-address={base}"),
            f"--wsrep-sst-receive-address=127.0.0.1:{self.transfer}",
            f"--wsrep-provider-options={addresses};{PROVIDER_OPTIONS}",
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["mariadbd", *OPTIONS, *own], stdout=log, stderr=log, start_new_session=True
            )

    def connect(self, **options):
        """A connection to this node alone."""
        options = {"user": "root", "autocommit": True, "connect_timeout": 3, **options}
        return closing(pymysql.connect(host="127.0.0.1", port=self.port, **options))

    def execute(self, sql, **options):
        """The rows of a statement on this node, as they are there now."""
        with self.connect(**options) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def synced(self, sql, **options):
        """The rows of a statement, once the node has applied all that the others committed."""
        return self.execute(sql, init_command="SET SESSION wsrep_sync_wait = 15", **options)

    def is_ready(self):
        """Whether the node has caught up with the others and serves."""
        try:
            return self.execute("SHOW STATUS LIKE 'wsrep_ready'")[0][1] == "ON"
        except pymysql.Error:
            return False

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_ready():
            late = time.monotonic() > deadline
            assert not late and self.process.poll() is None, self.log.read_text()[-4_000:]
            time.sleep(0.1)

    def url(self, database):
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def kill(self):
        """End the server at once, with the programs it started, and wait for its end."""
        if self.process:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)


class Cluster:
    """Three nodes with the same rows, any of which takes writes; a context manager."""

    def __enter__(self):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="galera")))
            if os.geteuid() == 0:
                shutil.chown(folder, USER)
            self.nodes = [Node(folder, f"node{number}") for number in (1, 2, 3)]
            for node in self.nodes:
                stack.callback(node.kill)
            self.found(self.nodes[0])
            for node in self.nodes[1:]:
                self.start(node)
            self.ending = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.ending.close()

    def found(self, node):
        """Start the first node, with an empty database server of its own."""
        command = ["mariadb-install-db", "--no-defaults", f"--datadir={node.folder}"]
        command += [f"--user={USER}", "--auth-root-authentication-method=normal"]
        subprocess.run(command, check=True, capture_output=True)
        node.start("gcomm://")
        node.wait_until_ready()

    def start(self, node):
        """Start a node that joins the others, and wait until it serves."""
        node.start("gcomm://" + ",".join(f"127.0.0.1:{each.base}" for each in self.nodes))
        node.wait_until_ready()


class Entrance:
    """A TCP proxy that leads each connection to the next node that accepts it."""

    def __init__(self, nodes):
        self.nodes, self.number = cycle(nodes), len(nodes)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.threads = [Thread(target=self.accept)]
        self.threads[0].start()

    def close(self):
        """Accept no more, and wait for the end of what is connected."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join()

    def accept(self):
        with suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                self.threads.append(Thread(target=self.lead, args=(near,)))
                self.threads[-1].start()

    def lead(self, near):
        """Carry both ways between a client and a node until either ends."""
        with near, suppress(OSError), self.reach() as far:
            back = Thread(target=carry, args=(far, near))
            back.start()
            carry(near, far)
            back.join()

    def reach(self):
        """A connection to the next node that accepts one. Raises OSError when none does."""
        for node in islice(self.nodes, self.number):
            with suppress(OSError):
                return socket.create_connection(("127.0.0.1", node.port))
        raise OSError("no node accepts a connection")


def carry(source, target):
    """Carry bytes one way until either end closes, then end both."""
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
