"""deploy/nginx.conf in front of the service."""

import json
import re
import shutil
import subprocess
import time
from contextlib import ExitStack, closing
from getpass import getuser
from http.client import HTTPConnection, parse_headers
from secrets import token_hex
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest
from service import (
    CREATE,
    PROFILES,
    ROOT,
    Program,
    ServedApp,
    assert_error,
    named,
    on_mysql,
    on_sqlite,
    repeating,
    sign_in,
    wait_until,
)
from werkzeug.test import Client

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("nginx"), reason="install nginx"),
]
SAMPLE = (ROOT / "deploy" / "nginx.conf").read_text()
TLS = r"(?s)listen 443 ssl;.*?profiles\.key;"
# Lines of the sample that stand in a comment, and those that the prefix replaces.
PREFIX = r"    # proxy_set_header X-Forwarded-Prefix(.*\n)+?    # }\n"
ADDRESSES = r"    # location ~(.*\n)+?    # }\n"
NO_PREFIX = r"    location / {(.*\n)+?    }\n"
CONFIGURATION = """
user {user};
daemon off;
pid pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    {sample}
}}
"""


class Router(Program):
    """nginx in front of the service."""

    def start_nginx(self, folder, sample, *, tls=False):
        """Start nginx with the sample, without the lines for TLS unless asked."""
        sample = sample.replace("/var/log/nginx", str(folder))
        if not tls:
            sample = re.sub(TLS, f"listen {self.port};", sample)
        text = CONFIGURATION.format(user=getuser(), sample=sample)
        (folder / "nginx.conf").write_text(text)
        self.start("nginx", "-p", folder, "-c", "nginx.conf", "-e", "stderr")
        self.wait_until_up()


def uncomment(lines, sample):
    """Return the sample with these lines of a comment in use."""
    (text,) = [match[0] for match in re.finditer(lines, sample)]
    return sample.replace(text, text.replace("# ", ""))


@pytest.fixture
def service(serve, empty_database_url):
    return serve(empty_database_url)


@pytest.fixture
def sample(service):
    """deploy/nginx.conf with the port of the service."""
    return SAMPLE.replace(":8000", f":{service.port}")


@pytest.fixture
def router(tmp_path):
    router = Router(tmp_path)
    try:
        yield router
    finally:
        router.kill()


@pytest.fixture
def administrator(service, sample, router, tmp_path):
    """An administrator whose requests go through nginx to the service."""
    administrator = sign_in(service.app, administrator=True)
    administrator.application = router.app
    router.start_nginx(tmp_path, sample)
    return administrator


@on_sqlite
def test_a_slow_client_reaches_nginx_alone(administrator, router):
    """nginx passes on whole requests. gunicorn waits for no more than 5 seconds."""
    path = f"{CREATE}?accountid={administrator.accountid}"
    headers = {**administrator.headers, "Content-Type": "application/json"}

    def body():
        yield b"{"
        time.sleep(7)
        yield json.dumps(named("a")).encode()[1:]

    with closing(HTTPConnection("127.0.0.1", router.port)) as wire:
        wire.request("POST", path, body(), headers)
        assert wire.getresponse().status == 201


@on_sqlite
def test_keys_links_and_refusals_pass_the_router(administrator):
    key = {"Idempotency-Key": "of the client"}
    first = administrator.create(named("a"), headers=key)
    assert administrator.create(named("b"), headers=key).json == first.json
    for name in "cd":  # no key is made of the client's own X-Request-Id
        administrator.create(named(name), headers={"X-Request-Id": "of-the-client"})
    assert len(administrator.profiles()) == 3
    path = "/api/administrator/create-account"
    for headers, externalid in ((key, "of the client"), ({}, None)):
        account = administrator.post(path, headers=headers).json
        assert account["externalid"] == externalid
    link = administrator.get(f"{PROFILES}?limit=1").headers["Link"]
    assert link.startswith(f"<{PROFILES}?limit=1&after=")
    assert_error(administrator.create(b"x" * 70_000), 413, "body-too-large")


class Backend(StreamRequestHandler):
    """It keeps connections open, but breaks the one on which a request may write."""

    received = []  # the header Connection of each

    def handle(self):
        while line := self.rfile.readline().decode():
            headers = parse_headers(self.rfile)
            self.rfile.read(int(headers.get("Content-Length", 0)))
            if not line.startswith("GET"):
                self.received.append(headers.get("Connection"))
                return
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def with_servers(*ports):
    """Return the sample with these servers in each upstream."""
    servers = " ".join(f"server 127.0.0.1:{port};" for port in ports)
    return SAMPLE.replace("server 127.0.0.1:8000;", servers)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "method, key",
    [("POST", {"Idempotency-Key": "x"}), ("POST", {}), ("PATCH", {}), ("DELETE", {})],
    ids=["POST with a key", "POST", "PATCH", "DELETE"],
)
def test_only_what_is_idempotent_is_sent_again(
    router, tmp_path, monkeypatch, servers, method, key
):
    """Neither by another connection, nor to the other server."""
    monkeypatch.setattr(Backend, "received", [])
    with ExitStack() as stack:
        ports = []
        for _ in range(servers):
            backend = ThreadingTCPServer(("127.0.0.1", 0), Backend)
            backend.daemon_threads = True  # they wait as long as nginx keeps them
            stack.enter_context(backend)
            Thread(target=backend.serve_forever).start()
            stack.callback(backend.shutdown)
            ports.append(backend.server_address[1])
        router.start_nginx(tmp_path, with_servers(*ports))
        client = Client(router.app)
        for _ in ports:
            assert client.get("/").status_code == 200  # nginx keeps its connection
        done = client.open(CREATE, method=method, data={"x": "y"}, headers=key)
        assert done.status_code == 502
    if method == "DELETE":
        assert Backend.received == [None, None]
    else:
        assert Backend.received == ["close"]


@on_mysql
def test_no_create_is_stored_twice_when_a_server_is_killed(
    serve, empty_database_url, router, tmp_path
):
    """One of two, again and again; the clients have no keys."""
    killed, other = (serve(empty_database_url) for _ in range(2))
    router.start_nginx(tmp_path, with_servers(killed.port, other.port))
    administrator = sign_in(other.app, administrator=True)
    administrator.application = router.app
    created = []

    def create():
        name = token_hex(8)
        if administrator.create(named(name)).status_code == 201:
            created.append(name)

    with repeating(*[create] * 8):
        for _ in range(3):
            enough = len(created) + 100
            wait_until(lambda enough=enough: len(created) > enough)
            killed.kill()
            killed.start()
            killed.wait_until_up()
    names = [profile["fullName"] for profile in administrator.profiles()]
    assert len(names) == len({*names})
    assert {*created} <= {*names}


@on_sqlite
def test_a_prefix(service, sample, router, tmp_path):
    """By the lines in the comment of deploy/nginx.conf."""
    sample = uncomment(PREFIX, re.sub(NO_PREFIX, "", sample))
    router.start_nginx(tmp_path, sample)
    administrator = sign_in(service.app, administrator=True)
    administrator.application = router.app
    assert administrator.get("/health").status_code == 404
    administrator.application = ServedApp(router.port, prefix="/profiles")
    for name in "ab":
        administrator.create(named(name))
    link = administrator.get(f"{PROFILES}?limit=1").headers["Link"]
    assert link.startswith(f"</profiles{PROFILES}?limit=1&after=")


@on_sqlite
@pytest.mark.parametrize(
    "prefix, allowed",
    [("", True), ("", False), ("/profiles", True), ("/profiles", False)],
    ids=["named", "another", "named, prefix", "another, prefix"],
)
def test_only_named_addresses(service, sample, router, tmp_path, prefix, allowed):
    """They reach an administrator's requests and the page; others reach the rest."""
    sample = uncomment(ADDRESSES, sample)
    sample = sample.replace("192.0.2.10", "127.0.0.1" if allowed else "192.0.2.10")
    if prefix:
        sample = uncomment(PREFIX, re.sub(NO_PREFIX, "", sample))
        (rewrite,) = re.findall("rewrite .*;", SAMPLE)
        sample = sample.replace("location ~ ^/", f"location ~ ^{prefix}/")
        sample = sample.replace("deny all;", f"deny all; {rewrite}")
    router.start_nginx(tmp_path, sample)
    administrator = sign_in(service.app, administrator=True)
    user = sign_in(service.app)
    through_nginx = ServedApp(router.port, prefix=prefix)
    administrator.application = user.application = through_nginx
    assert user.create(named("a")).status_code == 201
    paths = [PROFILES, "/api%2Fadministrator/sessions", "/docs/", "/docs%2FAPI.md"]
    if not allowed:
        paths.append("/x/..//api/administrator/./accounts")  # the service has no such
    statuses = {path: administrator.get(path).status_code for path in paths}
    assert statuses == dict.fromkeys(paths, 200 if allowed else 403)


@on_sqlite
@pytest.mark.parametrize(
    "sent, returned",
    [
        ({"X-Request-Id": "of-the-client"}, "of-the-client"),
        ({}, "[0-9a-f]{32}"),
    ],
)
def test_the_request_id_of_a_client_comes_back(service, administrator, sent, returned):
    """It is in the log, too, beside the address that nginx sees, the last one."""
    headers = {"X-Forwarded-For": "203.0.113.9", **sent}
    request_id = administrator.get("/health", headers=headers).headers["X-Request-Id"]
    assert re.fullmatch(returned, request_id)
    line = f" request_id={request_id} .* forwarded=203.0.113.9,%20127.0.0.1 "
    wait_until(lambda: re.search(line, service.log()))


def test_the_log_of_nginx_has_no_query(administrator, tmp_path):
    """It has the request's id, by which the service's log is searched."""
    response = administrator.get(f"{PROFILES}?email=ada@example.com")
    line = f" GET {PROFILES} 200 .* {response.headers['X-Request-Id']}\n"
    log = tmp_path / "profiles.log"
    wait_until(lambda: re.search(line, log.read_text()))
    assert "email" not in log.read_text()


@on_sqlite
def test_tls(service, sample, router, tmp_path):
    """With a certificate of our own."""
    certificate = (
        "-keyout profiles.key -out profiles.pem -subj /CN=profiles.example.com"
    )
    command = f"openssl req -x509 -newkey rsa:2048 -nodes {certificate}"
    subprocess.run(command.split(), cwd=tmp_path, stderr=subprocess.DEVNULL, check=True)
    sample = sample.replace("/etc/ssl/", f"{tmp_path}/")
    sample = sample.replace("listen 443", f"listen {router.port}")
    router.start_nginx(tmp_path, sample, tls=True)

    name = f"profiles.example.com:{router.port}"
    command = f"curl --cacert profiles.pem --resolve {name}:127.0.0.1"
    command += f" https://{name}/health"
    answer = subprocess.check_output(
        command.split(), cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    assert json.loads(answer) == {"object": "health", "status": "ok"}
