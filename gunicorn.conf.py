"""How the service is served: gunicorn's settings, its workers, and the log."""

import os
import random
import re
import resource
import socket
import struct
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from logging import LogRecord
from typing import Any
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.util import close_graceful
from gunicorn.workers import gthread

from config import CORES, load
from errors import SettingError

try:
    checked = load(os.environ)
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = checked["WEB_CONCURRENCY"]
PORT = os.environ.get("PORT")
host = "0.0.0.0" if PORT else "127.0.0.1"  # a platform sets PORT
bind = f"{host}:{checked['PORT']}"
forwarder_headers = ""  # a client's SCRIPT_NAME could get a path past a proxy
# Nothing reads the scheme, and gunicorn would refuse two headers that differ.
secure_scheme_headers: dict[str, str] = {}
threads = max(128 // workers, 4)  # they wait for clients; turns.py has others
graceful_timeout = 6  # seconds to finish what was accepted: some platforms wait 10
keepalive = 130  # seconds: longer than routers keep idle connections (Caddy: 120)
preload_app = True  # so that a bad setting prevents the start; it also saves memory
control_socket_disable = True  # nothing uses it
# Each is an open file. The limit is 1,024 on most systems, and 256 on macOS.
open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
worker_connections = min(open_files, 1_024) - 124
sendfile = False  # so that gunicorn counts the bytes it sends

FIVE_SECONDS = struct.pack("ll", 5, 0)  # a struct timeval
MAX_DRAIN = 16_000_000  # bytes
# gunicorn's messages that quote the request: how they begin
QUOTING = (
    "Invalid request from ip",
    "Error handling request",
    "Ignored premature client disconnection.",
)
# Its messages when a connection failed, or a list broke off
UNLOGGED = ("Socket error processing request.", "Error handling request")


def when_ready(server: Any) -> None:
    """Warn if a platform sets PORT, but no DATABASE_URL."""
    if PORT and not os.environ.get("DATABASE_URL"):
        server.log.warning(
            "DATABASE_URL is not set. SQLite is used: on most platforms the file is "
            "lost with each deployment. Set DATABASE_URL to a MySQL database."
        )


def pre_fork(server: Any, worker: Any) -> None:
    """Choose a core that the fewest other workers have.

    At random, so that two services on one machine don't choose the same cores.
    """
    taken = [other.core for other in server.WORKERS.values()]
    cores = random.sample(CORES, len(CORES))
    worker.core = min(cores, key=taken.count, default=None)


def post_worker_init(worker: Any) -> None:
    """Pin the worker to its core.

    Its threads run one at a time anyway, and on one core they don't pass the GIL from
    core to core: with 16 clients, one worker serves 1.8 times as many lists and stores
    1.2 times as many updates. Only if others keep all cores busy does it store fewer,
    0.6 times as many.
    """
    if CORES:
        with suppress(OSError):  # the machine may allow no choice, or fewer by now
            os.sched_setaffinity(0, {worker.core})


class Worker(gthread.ThreadWorker):
    """gunicorn's threaded worker, changed where it has no setting."""

    def handle(self, conn: Any) -> Any:
        """Handle a request, and close its connection unless it can be kept.

        A client that sends or reads nothing for five seconds is given up; gunicorn
        would wait forever. gunicorn would also wait for up to two seconds, in the
        thread that accepts others, until the client has closed the connection. This
        thread waits and reads instead, so that no reset overtakes the response.
        """
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            conn.sock.setsockopt(socket.SOL_SOCKET, option, FIVE_SECONDS)
        result = super().handle(conn)
        if not result:
            close_graceful(conn.sock, max_drain=MAX_DRAIN)
            # If this returned, gunicorn would close it again, fail, and count it twice.
            raise ConnectionAbortedError
        return result

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Let a worker that stops wait for the first request of a connection.

        gunicorn would close a connection whose request hasn't arrived yet.
        """
        if self.alive or conn.initialized or fs.exception():
            super().finish_request(conn, fs)
        else:
            conn.data_ready = True  # so that handle() waits for the request
            self.enqueue_req(conn)


class LogfmtLogger(Logger):
    """Writes a line for each request, as logfmt, to standard output."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.addFilter(hide_request)

    def access(
        self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta
    ) -> None:
        """Write a request's log line.

        What a client can make long is cut, so a line has less than 4,096 bytes and two
        workers' lines never mix in a pipe. Each proxy adds to the end of
        X-Forwarded-For, so that is kept.
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


def hide_request(record: LogRecord) -> bool:
    """Log the class of an error where gunicorn would quote the request, and a token.

    Return whether the record is logged: not if a connection failed, for example because
    its client stalled, or a list broke off, which json_chunks() has logged.
    """
    message = str(record.msg)
    if message in UNLOGGED:
        return False
    if message.startswith(QUOTING):
        summary = re.split(": | %s", message)[0]
        record.msg = f"{summary}: {type(sys.exception()).__name__}"
        record.args = ()
    return True


def quote_value(text: str) -> str:
    """Return the string as one word, percent-encoded where it must be; "-" if empty."""
    return quote(text or "-", "/:%,", "latin-1", "replace")


# The settings that name the classes above
worker_class = Worker
# How many seconds a new connection has a thread before gunicorn only watches it: with
# gunicorn's own 5 seconds, as many silent clients as threads stop a worker. It is also
# how long gunicorn reads the rest of a body that is too large.
gthread.DEFAULT_WORKER_DATA_TIMEOUT = 0.1
logger_class = LogfmtLogger
