"""Which connections to a MariaDB of the test's own are encrypted."""

import shutil
import subprocess
from contextlib import closing
from getpass import getuser

import pytest
from peewee import OperationalError
from service import Program, wait_until

from config import parse_database_url
from database import MySQL

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not shutil.which("mariadbd") or not shutil.which("openssl"),
        reason="install mariadb-server and openssl",
    ),
]
DATA = f"--no-defaults --user={getuser()} --datadir="


def execute_in(folder, command):
    done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data of a server, its certificate, and one of another server."""
    folder = tmp_path_factory.mktemp("mariadb")
    method = "--auth-root-authentication-method=normal"
    execute_in(folder, f"mariadb-install-db {DATA}{folder}/data {method}")
    for name in ("own", "other"):
        subject = f"-subj /CN={name}.example -keyout {name}.key -out {name}.pem"
        execute_in(folder, f"openssl req -x509 -newkey rsa:2048 -nodes {subject}")
    return folder


@pytest.fixture
def start(folder, tmp_path):
    """Starts the server with more options; returns its URL."""
    server = Program(tmp_path)

    def start(more=""):
        address = f"--bind-address=127.0.0.1 --port={server.port}"
        socket = f"--socket={tmp_path}/socket"
        command = f"mariadbd {DATA}{folder}/data {address} {socket} {more}"
        server.start(*command.split())
        wait_until(server.is_listening)
        return f"mysql://root@127.0.0.1:{server.port}/mysql"

    yield start
    server.kill()


def is_encrypted(url):
    with closing(MySQL(parse_database_url(url))) as database:
        ((_, cipher),) = database.execute_sql("SHOW STATUS LIKE 'Ssl_cipher'")
        return cipher != ""


def test_a_server_with_tls(start, folder):
    """Its certificate is of another host, and signed by itself."""
    url = start(f"--ssl-cert={folder}/own.pem --ssl-key={folder}/own.key")
    assert not is_encrypted(f"{url}?ssl-mode=DISABLED")
    assert is_encrypted(url)
    assert is_encrypted(f"{url}?ssl-mode=REQUIRED")
    assert is_encrypted(f"{url}?ssl-ca={folder}/own.pem")
    for query in (
        "ssl-mode=VERIFY_CA",
        f"ssl-ca={folder}/other.pem",
        f"ssl-mode=VERIFY_IDENTITY&ssl-ca={folder}/own.pem",
    ):
        with pytest.raises(OperationalError, match="certificate verify failed"):
            is_encrypted(f"{url}?{query}")


def test_a_server_without_tls(start):
    url = start("--skip-ssl")
    assert not is_encrypted(url)
    with pytest.raises(OperationalError, match="SSL is required"):
        is_encrypted(f"{url}?ssl-mode=REQUIRED")
