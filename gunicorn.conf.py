"""How the service is served: gunicorn's settings, its workers, and the log."""

import os
import re
import socket
import struct
import sys
import time
from bisect import insort
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from selectors import EVENT_READ
from typing import Any
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.http.body import ChunkedReader
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from gunicorn.util import close_graceful
from gunicorn.workers.gthread import ThreadWorker

from config import CORES, load
from errors import SettingError

try:
    checked = load(os.environ)
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = checked["WEB_CONCURRENCY"]
PORT = os.environ.get("PORT")
if not PORT:  # with PORT, gunicorn listens on all addresses
    bind = "127.0.0.1:8000"
forwarder_headers = ""  # a client's SCRIPT_NAME could get a path past a proxy
threads = 4  # enough to overlap waits for the database; more would contend for the GIL
graceful_timeout = 6  # seconds to finish what was accepted: some platforms wait 10
keepalive = 130  # seconds: longer than routers keep idle connections (Caddy: 120)
preload_app = True  # so that a bad setting prevents the start; it also saves memory
control_socket_disable = True  # nothing uses it
worker_connections = 900  # each is an open file, of which most systems allow 1,024
sendfile = False  # so that gunicorn counts the bytes it sends

FIVE_SECONDS = struct.pack("ll", 5, 0)  # a struct timeval
MAX_HEAD = 65_536  # bytes of the first line and the headers of a request
HEAD_SECONDS = 15  # how long its client may take to send them
# Wait this long for a client to close, and read this much from it meanwhile: if it is
# still sending, a reset could overtake the response, and nginx would send a 502.
CLOSE_SECONDS = 0.2
CLOSE_BYTES = 16_000_000


def when_ready(server: Any) -> None:
    """Limit how long a thread waits for a client; warn if there is no database."""
    for listener in server.LISTENERS:  # on Linux, its connections inherit both limits
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            listener.setsockopt(socket.SOL_SOCKET, limit, FIVE_SECONDS)
    if PORT and not os.environ.get("DATABASE_URL"):
        server.log.warning(
            "DATABASE_URL is not set. SQLite is used: on most platforms the file is "
            "lost with each deployment. Set DATABASE_URL to a MySQL database."
        )


def pre_fork(server: Any, worker: Any) -> None:
    """Choose the core that the fewest other workers have."""
    taken = [other.core for other in server.WORKERS.values()]
    worker.core = min(CORES, key=taken.count, default=None)


def post_worker_init(worker: Any) -> None:
    """Pin the worker to its core, if there is at least one worker for each core.

    Its threads run one at a time anyway, and on one core they don't pass the GIL from
    core to core. Without this and without accept() below, lists get 10 to 17 % slower
    at eight clients; at two clients, two of three measurements fell from 2,800 to 1,000
    requests a second; and the 99th percentile of the response time doubles.
    """
    if CORES and len(CORES) <= workers:
        with suppress(OSError):  # the machine may allow no choice, or fewer by now
            os.sched_setaffinity(0, {worker.core})


class SharingWorker(ThreadWorker):
    """gunicorn's threaded worker, where slow requests without a token take no thread.

    It also leaves new connections to less busy workers.
    """

    def accept(self, listener: Any) -> None:
        """Accept a connection, later if this worker has more of them than others.

        Otherwise one worker often gets all of a few kept connections.
        """
        if self.nr_conns < 10:  # many spread evenly by themselves, and would only wait
            time.sleep(self.nr_conns * 0.00002)
        super().accept(listener)

    def enqueue_req(self, conn: Any) -> None:
        """Give a connection to a thread once the head of a request has arrived.

        Otherwise a client that sends nothing, or a byte now and then, occupies the
        thread. A client whose head gets too long, or takes too long, is disconnected.
        """
        if self.cfg.is_ssl:  # no head can be read before it is decrypted
            return super().enqueue_req(conn)
        unparsed = conn.parser.unreader.buf.getvalue() if conn.parser else b""
        arrived = peek(conn.sock)
        # The poller waited for this many bytes. Fewer mean that the client has closed.
        awaited_size = getattr(conn, "awaited_size", 0)
        is_closed = len(arrived) < awaited_size
        if is_closed or has_head(unparsed + arrived):
            if awaited_size:
                conn.awaited_size = 0
                conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            conn.data_ready = True
            super().enqueue_req(conn)
        elif len(arrived) == MAX_HEAD:
            self.nr_conns -= 1
            conn.close()
        else:
            if not awaited_size:
                conn.timeout = time.monotonic() + HEAD_SECONDS
            conn.awaited_size = len(arrived) + 1
            conn.sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVLOWAT, conn.awaited_size
            )
            # Sorted, because murder_pending() stops at the first that may still wait.
            insort(self.pending_conns, conn, key=attrgetter("timeout"))
            on_readable = partial(self.on_pending_socket_readable, conn)
            self.poller.register(conn.sock, EVENT_READ, on_readable)

    def murder_pending(self) -> None:
        """Close connections whose heads don't arrive in time: at a stop, in 2 seconds.

        gunicorn gives kept connections 2 seconds, but these the whole graceful_timeout.
        """
        if not self.alive:
            for conn in self.pending_conns:
                conn.timeout = min(conn.timeout, time.monotonic() + 2)
        super().murder_pending()

    def handle(self, conn: Any) -> Any:
        """Handle a request, and close its connection unless it can be kept.

        gunicorn would close it in the thread that accepts connections, where it waits
        for up to 2 seconds until the client closes it, too. Here the worker's thread
        waits: for CLOSE_SECONDS, divided by how many connections are not idle, so the
        busier the worker is, the shorter is the wait.
        """
        is_kept = super().handle(conn)
        if not is_kept:
            idle = len(self.keepalived_conns) + len(self.pending_conns)
            seconds = CLOSE_SECONDS / max(1, self.nr_conns - idle)
            close_graceful(conn.sock, seconds, CLOSE_BYTES)
            # For gunicorn, the client has closed the connection: nothing is left to do.
            raise ConnectionAbortedError
        return is_kept


def peek(sock: socket.socket) -> bytes:
    """Return what has arrived, but leave it there."""
    try:
        return sock.recv(MAX_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # nothing has, or the client has reset the connection
        return b""


def has_head(data: bytes) -> bool:
    """Return whether data has the whole head of a request, or is malformed.

    gunicorn refuses a line feed without a carriage return at once. Each TLS client
    sends one.
    """
    return b"\r\n\r\n" in data or data.count(b"\n") != data.count(b"\r\n")


class ClosingRequest(Request):
    """gunicorn's request, which closes its connection unless its body was read.

    gunicorn would read the rest first, and look at its deadline only once for 1,024
    bytes, so forty bodies sent byte by byte kept others waiting for over 90 seconds.
    """

    def should_close(self) -> bool:
        """Return whether the response closes the connection; its head says so."""
        reader = self.body.reader
        if isinstance(reader, ChunkedReader):
            is_read = reader.parser is None
        else:
            is_read = reader.length == 0
        return super().should_close() or not is_read


class LogfmtLogger(Logger):
    """Writes a line for each request, as logfmt, to standard output."""

    def access(
        self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta
    ) -> None:
        """Write a request's log line.

        What a client can make long is cut, so a line has less than 4,096 bytes and two
        workers' lines never mix in a pipe. The end of X-Forwarded-For is kept, because
        each proxy adds to it. The names profiles.… are set by app.py and blueprints.py.
        """
        began = datetime.now(UTC) - request_time
        client = environ["REMOTE_ADDR"].removeprefix("::ffff:")  # an IPv4 address
        forwarded = environ.get("HTTP_X_FORWARDED_FOR", "")[-500:]
        line = (
            f"time={began.isoformat(timespec='milliseconds')[:23]}Z "
            f"method={quote_value(req.method)} path={quote_value(req.path[:500])} "
            f"status={(resp.status or '-')[:3]} "
            f"code={environ.get('profiles.code', '-')} "
            f"account={environ.get('profiles.account', '-')} "
            f"session={environ.get('profiles.session', '-')} "
            f"appid={environ.get('profiles.appid', '-')} "
            f"target={environ.get('profiles.target', '-')} "
            f"request_id={environ.get('profiles.request_id', '-')} "
            f"bytes={resp.sent if resp.headers_sent else '-'} "
            f"ms={request_time // timedelta(milliseconds=1)} "
            f"client={quote_value(client)} forwarded={quote_value(forwarded)} "
            f"worker={os.getpid()}\n"
        )
        with suppress(OSError):  # standard output is closed, or its disk is full
            os.write(1, line.encode())

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> None:
        super().warning("%s", before_quote(msg, args), **kwargs)

    def debug(self, msg: str, *args: Any, **kwargs: Any) -> None:
        super().debug("%s", before_quote(msg, args), **kwargs)

    def exception(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log a traceback, without the request's address, which may have a query.

        Skip clients that stalled, and lists that broke off, which json_chunks() logged.
        """
        if msg not in ("Socket error processing request.", "Error handling request"):
            super().exception(str(msg).split(" %s")[0], **kwargs)


def before_quote(msg: str, args: tuple[Any, ...]) -> str:
    """Return a message up to its first quote, because a token could follow."""
    text = msg % args if args else msg
    return re.split("['\"]", text)[0]


def quote_value(text: str) -> str:
    """Return the string as one word, percent-encoded where it must be; "-" if empty."""
    return quote(text or "-", "/:%,", "latin-1", "replace")


RequestParser.mesg_class = ClosingRequest  # gunicorn has no setting for it
worker_class = SharingWorker
logger_class = LogfmtLogger
