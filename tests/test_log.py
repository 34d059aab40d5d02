"""The log: a line for each request, which nobody can forge, and no secret in it."""

import re
import runpy
import socket
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import unquote

import pytest
from gunicorn.config import Config
from service import (
    PROCFILE,
    PROFILES,
    ROOT,
    Program,
    execute,
    on_sqlite,
    run,
    run_python,
    sign_in,
    wait_until,
)

from validators import PROFILE_FIELDS

pytestmark = pytest.mark.long
V = r"[!#-&(-<>-\[\]-~]+"  # a value, as strict as any parser of logfmt
LINE = (
    rf"time={V} method=({V}) path=({V}) status={V} code={V} "
    rf"account={V} session={V} appid={V} target={V} request_id={V} bytes={V} "
    rf"ms={V} client={V} forwarded={V} worker={V}"
)
TOKEN = "5ec4e7" * 10 + "5ec4"


@pytest.fixture(scope="module")
def service(database_url, tmp_path_factory):
    """One service for this file."""
    folder = tmp_path_factory.mktemp("served")
    fields = ",".join(PROFILE_FIELDS)
    variables = {"DATABASE_URL": database_url, "USER_PROFILE_FIELDS": fields}
    service = Program(folder, **variables)
    service.socket = f"{folder}/socket"
    options = f"-b unix:{service.socket} -b 127.0.0.1:{service.port} --log-level debug"
    service.start(*PROCFILE, *options.split())
    try:
        service.wait_until_up()
        wait_until(lambda: logged(service))
        yield service
    finally:
        service.kill()


@pytest.fixture(scope="module")
def administrator(service):
    return sign_in(service.app, administrator=True)


def logged(service, start=0):
    """The lines of requests in the log, from a position on."""
    lines = re.findall("(?m)^(time=.*)\n", service.log()[start:])
    return [re.fullmatch(LINE, line) for line in lines]


def send(service, head):
    """Send the head of a request to the Unix socket; return its only line."""
    start = len(service.log())
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(service.socket)
        wire.sendall(f"{head}\r\nHost: x\r\n\r\n".encode("latin-1"))
        wire.recv(1)
        (line,) = wait_until(lambda: logged(service, start))
        return line


SIGNED_IN = "account={0[accountid]} session={0[sessionid]} appid=default"
ANONYMOUS = "account=- session=- appid=-"


@pytest.mark.parametrize(
    "target, fields",
    [
        (f"{PROFILES}?limit=5", f"status=200 code=- {SIGNED_IN}"),
        (f"{PROFILES}?limit=x", f"status=400 code=invalid-limit {SIGNED_IN}"),
        ("/nowhere", f"status=404 code=not-found {ANONYMOUS}"),
        ("/docs/swagger-ui.css", f"status=200 code=- {ANONYMOUS}"),
    ],
)
def test_each_field_of_a_line(service, administrator, target, fields):
    start = len(service.log())
    began = datetime.now(UTC)
    headers = {"X-Request-Id": "router-1.2_3", "X-Forwarded-For": "192.0.2.1,::1, x"}
    response = administrator.get(target, headers=headers)
    (line,) = wait_until(lambda: logged(service, start))
    time = re.match(r"time=(\S{23}Z) ", line[0])[1]
    assert abs(datetime.fromisoformat(time) - began) < timedelta(minutes=1)
    expected = (
        f"time={time} method=GET path={response.request.path} "
        f"{fields.format(administrator.session)} "
        f"target=- request_id=router-1.2_3 bytes={len(response.data)} "
        r"ms=\d+ client=127.0.0.1 forwarded=192.0.2.1,::1,%20x worker=\d+"
    )
    assert re.fullmatch(expected, line[0])


FORGED = '\xe9 b="c" code=-'
NAMES = "X-Request-Id", "X-Appid", "X-Forwarded-For"
HEADS = [
    f"GET /a%0Amethod=GET%20path=/forged?{TOKEN} HTTP/1.1",
    rf"""GET /%e2%80%a8%ff"quoted"='x'\n{{}}|^`<>?{TOKEN} HTTP/1.1""",
    "FORGED%0A*`|~$ /health HTTP/1.1",
    "\r\n".join(["GET / HTTP/1.1", *[f"{name}: {FORGED}" for name in NAMES]]),
    f"GET {PROFILES} HTTP/1.1\r\nAuthorization: Bearer {TOKEN} x",
]


@pytest.mark.parametrize("head", HEADS, ids="{!a:.80}".format)
def test_no_request_forges_a_line_or_has_its_token_in_it(service, head):
    line = send(service, head)
    method_and_path = re.match(r"\S+ [^\s?]+", head)[0]
    assert unquote(" ".join(line.groups())) == unquote(method_and_path)
    assert TOKEN not in service.log()


@pytest.mark.parametrize(
    "head, shown",
    [
        # The client is the peer: a Unix socket has no address.
        ("GET / HTTP/1.1", " client=- forwarded=- "),
        (
            "GET / HTTP/1.1\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: ::1",
            " client=- forwarded=192.0.2.1,::1 ",
        ),
        (
            f"GET {PROFILES}?a HTTP/1.1",
            " status=401 code=sign-in-required account=- session=- appid=default "
            "target=- ",
        ),
        # gunicorn itself refuses this.
        (
            "GET /a?b HTTP/1.1\r\nContent-Length: x",
            " path=/a status=400 code=- account=- session=- appid=- target=- "
            "request_id=- bytes=- ",
        ),
    ],
    ids="{!a:.80}".format,
)
def test_what_a_line_shows_of_a_head(service, head, shown):
    assert shown in send(service, head)[0]


def test_a_token_that_is_refused_with_a_reason_is_traced(service):
    """After a leak, the log shows what the thief still tries."""
    user = sign_in(service.app)
    sessionid = user.session["sessionid"]
    run(service.app, "end-session", sessionid)
    head = f"GET {PROFILES} HTTP/1.1\r\nAuthorization: Bearer {user.token}"
    shown = f"status=401 code=sign-in-required account={user.accountid} "
    assert f"{shown}session={sessionid} " in send(service, head)[0]


def test_the_longest_line_is_written_at_once(service):
    """Below 4,096 bytes, lines never mix in a pipe.

    What is cut of X-Forwarded-For is its beginning, because proxies append to it. This
    line has short values elsewhere, such as its code: the longest have 300 bytes more.
    """
    lines = [
        f"GET /{'=' * 4_000} HTTP/1.1",
        f"X-Request-Id: {'x' * 128}",
        f"X-Forwarded-For: {'=' * 8_000}, 203.0.113.9",
    ]
    line = send(service, "\r\n".join(lines))[0]
    assert f" path=/{'%3D' * 499} " in line
    assert re.search(" forwarded=(%3D)+,%20203.0.113.9 ", line)
    assert 3_200 < len(line) < 3_796


GET = "GET /health HTTP/1.1\r\nHost: x\r\n"
SIGNED_GET = f"{GET}Authorization: Bearer {TOKEN}\r\n"
CHUNKS = "POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
# What gunicorn refuses of each, if the app doesn't refuse it
MALFORMED = {
    "a header without a colon": ("InvalidHeader", f"{GET}Bearer {TOKEN}\r\n\r\n"),
    "a header without a name": ("InvalidHeader", f"{GET}: {TOKEN}\r\n\r\n"),
    "a blank in a name": ("InvalidHeaderName", f"{GET}Bearer {TOKEN}: x\r\n\r\n"),
    "a header of two lines": (
        "ObsoleteFolding",
        f"{GET}Authorization:\r\n {TOKEN}\r\n\r\n",
    ),
    "a control character": (
        "InvalidHeader",
        f"{GET}Authorization: {TOKEN}\x01\r\n\r\n",
    ),
    "a long header": (
        "LimitRequestHeaders",
        f"{GET}Authorization: {TOKEN * 150}\r\n\r\n",
    ),
    "many headers": ("InvalidHeader", SIGNED_GET * 100 + "\r\n"),
    "two lengths": (
        "InvalidHeader",
        f"{SIGNED_GET}Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    ),
    "a length and chunks": (
        "InvalidHeader",
        f"{SIGNED_GET}Content-Length: 0\r\n{CHUNKS[-30:]}",
    ),
    "a version": ("InvalidHTTPVersion", f"GET / HTTP/{TOKEN}\r\n\r\n"),
    "a method": ("InvalidRequestMethod", f"{TOKEN} / HTTP/1.1\r\n\r\n"),
    "a target that is no URI": (
        "InvalidRequestLine",
        f"GET http://[{TOKEN} HTTP/1.1\r\n\r\n",
    ),
    "a long first line": ("LimitRequestLine", f"GET /{TOKEN * 70} HTTP/1.1\r\n\r\n"),
    "LF": ("InvalidRequestLine", SIGNED_GET.replace("\r\n", "\n") + "\n"),
    "TLS": (
        "InvalidRequestLine",
        f"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n{TOKEN}",
    ),
    "a proxy's line": (
        "InvalidRequestLine",
        f"PROXY TCP4 {TOKEN} x 1 1\r\n{GET}\r\n",
    ),
    "half a head": ("", SIGNED_GET),
    "a chunk's size": ("", f"{CHUNKS}{TOKEN}x\r\n\r\n"),
    "a chunk's end": ("", f"{CHUNKS}1\r\n{TOKEN}\r\n0\r\n\r\n"),
}


@on_sqlite
@pytest.mark.parametrize("error, text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_leaves_no_token_in_the_log(service, error, text):
    """A line says what gunicorn has refused, without its value."""
    start = len(service.log())
    with socket.create_connection(("127.0.0.1", service.port)) as wire:
        wire.sendall(text.encode("latin-1"))
        wire.shutdown(socket.SHUT_WR)
        answer = wire.makefile("rb").read()
    assert re.match(rb"HTTP/1.1 (4..|501) |$", answer)
    log = service.log()[start:]
    assert TOKEN not in log
    refused = re.findall(r"Invalid request from ip=127.0.0.1: (\S+)\n", log)
    assert refused == error.split()


def test_a_defect_is_logged_without_the_query_of_its_request(capfd):
    """One that Flask does not handle, so gunicorn logs it."""
    logger = runpy.run_path(f"{ROOT}/gunicorn.conf.py")["LogfmtLogger"](Config())
    try:
        raise ValueError("a defect")
    except ValueError:
        logger.exception("Error handling request %s %s", "GET", "/?secret")
    log = capfd.readouterr().err
    assert "Error handling request: ValueError\nTraceback " in log
    assert log.endswith("ValueError: a defect\n")
    assert "secret" not in log


LINE_OF_ERROR = (
    r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=ERROR request_id=(\S+) "
)


ROOT_HANDLER = "import logging; logging.basicConfig(format='HOST %(message)s')"
HOST = "from flask import Flask; shop = Flask('shop')"
HOST_LOGGER = f"{HOST}; shop.logger"
SERVICE = "from app import create_app; service = create_app()"
OWN_FORMATS = rf"\[.*\] ERROR in <string>: paid\n{LINE_OF_ERROR}failed\n"
OF_HOST = "HOST paid\nHOST failed\n"


@pytest.mark.parametrize(
    "program, lines",
    [
        ([HOST_LOGGER, SERVICE], OWN_FORMATS),
        ([SERVICE, HOST_LOGGER], OWN_FORMATS),
        ([ROOT_HANDLER, SERVICE, HOST], OF_HOST),
    ],
    ids=["the host first", "the service first", "a root handler first"],
)
def test_the_log_of_a_host_program_stays_its_own(tmp_path, program, lines):
    url = f"sqlite:///{tmp_path}/x.db"
    calls = "shop.logger.error('paid')", "service.logger.error('failed')"
    done = run_python("-c", "\n".join([*program, *calls]), DATABASE_URL=url)
    assert re.fullmatch(lines, done.stderr)


def test_the_password_of_a_database_that_is_away_is_not_logged(serve):
    log = serve("mysql://someone:secret@127.0.0.1:1/name").log()
    assert re.search(f"(?m)^{LINE_OF_ERROR}database unavailable: ", log)
    assert "secret" not in log


KINDS = ("application/json", "multipart/form-data; boundary=b", "x")


def test_nothing_of_a_profile_is_logged(service, administrator, database_url):
    values = dict.fromkeys(PROFILE_FIELDS, "secret@example.com") | {"dob": "1931-03-17"}
    bodies = [{"data": str(values), "content_type": kind} for kind in KINDS]
    for name in values:
        for times in (0, 1, 9, 6_000):
            bodies.append({"data": values | {name: values[name] * times}})
    profileid = administrator.create(values).json["profileid"]
    writes = (administrator.create, partial(administrator.update, profileid))

    def send_all():
        return {write(**body).status_code for write in writes for body in bodies}

    assert send_all() == {200, 201, 400, 413, 415}
    execute(database_url, "ALTER TABLE profile RENAME TO elsewhere")
    try:
        assert 503 in send_all()
    finally:
        execute(database_url, "ALTER TABLE elsewhere RENAME TO profile")
    assert "database unavailable: " in service.log()
    assert not re.search(f"secret|1931-03-17|{administrator.token}", service.log())
