"""MySQL servers with the same rows: a Galera cluster, and the members of a group."""

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

PROVIDER = "/usr/lib/galera/libgalera_smm.so"
USER = os.geteuid() or "mysql"  # rsync's daemon writes nothing as root
ADDRESS = "127.0.0.1:{}"

# A dead node is noticed in two seconds, by default in five.
GALERA = """\
[mariadbd]
user = {user}
datadir = {datadir}
socket = {datadir}.sock
pid-file = {datadir}.pid
bind-address = 127.0.0.1
port = {port}
binlog-format = ROW
innodb-autoinc-lock-mode = 2
innodb-buffer-pool-size = 64M
wsrep-on = ON
wsrep-provider = {provider}
wsrep-cluster-address = gcomm://{group}
wsrep-node-address = {own}
wsrep-sst-method = rsync
wsrep-sst-receive-address = {transfer}
wsrep-sync-wait = 1  # as the README asks for: reads what the others committed
wsrep-provider-options = "gmcast.listen_addr=tcp://{own}; ist.recv_addr={increments}; \
gcache.size=32M; evs.keepalive_period=PT0.3S; evs.suspect_timeout=PT2S; \
evs.inactive_timeout=PT4S"
"""

# What makes a connection wait for all that others have committed.
SYNC = {
    "galera": "SET SESSION wsrep_sync_wait = 15",
    "group": "SET SESSION group_replication_consistency = 'BEFORE'",
}
# Whether a server has caught up with the others and serves.
READY = {
    "galera": """SELECT variable_value = 'ON' FROM information_schema.global_status
        WHERE variable_name = 'WSREP_READY'""",
    "group": """SELECT COUNT(*) = 3 FROM performance_schema.replication_group_members
        WHERE member_state = 'ONLINE'""",
}


def missing():
    """The programs that a cluster needs and that are not installed."""
    programs = ["mariadbd", "mariadb-install-db", "rsync", PROVIDER]
    return [each for each in programs if not shutil.which(each, mode=os.F_OK)]


def free_ports(number):
    """Ports that no outgoing connection takes while a node is stopped."""
    ports = []
    while len(ports) < number:
        port = random.randrange(12_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


class Node:
    """A server that has the same rows as others: of a Galera cluster, or of a group."""

    process = None

    def __init__(self, kind, url, configuration=None):
        self.kind = kind
        self.address = urlsplit(url)
        self.configuration = configuration

    def url(self, database):
        return self.address._replace(path=f"/{database}").geturl()

    def execute(self, *statements, database=""):
        """The rows of the last statement."""
        with driver(self.url(database)) as (cursor, _):
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def synced(self, sql, database=""):
        """The rows of a statement, after all that the other nodes have committed."""
        return self.execute(SYNC[self.kind], sql, database=database)

    def is_ready(self):
        with suppress(pymysql.Error):
            return self.execute(READY[self.kind]) == ((1,),)

    def start(self, *options):
        """Start the server, and wait until it serves."""
        log_file = self.configuration.with_suffix(".log")
        command = ["mariadbd", f"--defaults-file={self.configuration}", *options]
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

        def is_ready():
            assert self.process.poll() is None, "the server has ended"
            return self.is_ready()

        wait_until(is_ready, 90, log=log_file)

    def kill(self):
        """End the server at once, with the programs that it started."""
        if self.process:
            with suppress(ProcessLookupError):  # it has ended already
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)


@contextmanager
def galera():
    """Three nodes with the same rows, any of which takes writes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="galera")))
        shutil.chown(folder, USER)
        owns = [ADDRESS.format(port) for port in free_ports(3)]
        nodes = []
        for number, own in enumerate(owns):
            datadir = folder / f"node{number}"
            datadir.mkdir()
            shutil.chown(datadir, USER)
            port, transfer, increments = free_ports(3)
            configuration = datadir.with_suffix(".cnf")
            configuration.write_text(
                GALERA.format(
                    user=USER,
                    datadir=datadir,
                    port=port,
                    provider=PROVIDER,
                    group=",".join(owns),
                    own=own,
                    transfer=ADDRESS.format(transfer),
                    increments=ADDRESS.format(increments),
                )
            )
            url = f"mysql://root@127.0.0.1:{port}"
            nodes.append(Node("galera", url, configuration))
            stack.callback(nodes[-1].kill)
        make_tables = [
            "mariadb-install-db",
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            f"--user={USER}",
            f"--datadir={folder}/node0",
        ]
        subprocess.run(make_tables, check=True, capture_output=True)
        nodes[0].start("--wsrep-new-cluster")
        nodes[1].start()
        nodes[2].start()
        yield nodes
