"""How the service is served: gunicorn's settings, its workers, and the log."""

import os
import re
import socket
import struct
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

from config import CORES, load
from errors import SettingError

try:
    checked = load({**os.environ})
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = checked["WEB_CONCURRENCY"]
PORT = os.environ.get("PORT")
if not PORT:  # with PORT, gunicorn listens on all addresses
    bind = "127.0.0.1:8000"
forwarder_headers = ""  # with SCRIPT_NAME, a path could pass a proxy's rules
threads = 4  # enough to overlap waits for the database; more would contend for the GIL
graceful_timeout = 6  # seconds to finish what was accepted: some platforms wait 10
keepalive = 130  # seconds: longer than routers keep idle connections (Caddy: 120)
preload_app = True  # so that a bad setting ends the start; it also saves memory
control_socket_disable = True  # nothing uses it
worker_connections = 900  # each is an open file, of which most systems allow 1,024
sendfile = False  # so that gunicorn counts the bytes it sends

FIVE_SECONDS = struct.pack("ll", 5, 0)  # a struct timeval


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

    Its threads run one at a time anyway, and so don't pass Python's lock between cores.
    """
    if CORES and len(CORES) <= workers:
        with suppress(OSError):  # the machine may allow no choice, or fewer by now
            os.sched_setaffinity(0, {worker.core})


class SharingWorker(ThreadWorker):
    """gunicorn's threaded worker, which leaves new connections to less busy workers."""

    def accept(self, listener: Any) -> None:
        """Accept a connection, later if this worker has more of them than others.

        Otherwise one worker often gets all of a few kept connections.
        """
        if self.nr_conns < 10:  # many spread evenly by themselves, and would only wait
            time.sleep(self.nr_conns * 0.00002)
        super().accept(listener)


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
        """Log a warning, up to what it quotes of a request: it could be a token."""
        text = msg % args if args else msg
        super().warning("%s", re.split("['\"]", text)[0], **kwargs)

    def exception(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log a traceback, without the request's address, which may have a query.

        Leave out a client that stalled, and a list that broke off: it was logged.
        """
        if msg not in ("Socket error processing request.", "Error handling request"):
            super().exception(str(msg).split(" %s")[0], **kwargs)


def quote_value(text: str | None) -> str:
    """Return the string as one word, percent-encoded where it must be; "-" if empty."""
    return quote(text or "-", "/:%,", "latin-1", "replace")


worker_class = SharingWorker
logger_class = LogfmtLogger
