"""How the service is served: gunicorn's settings, its workers, and the log."""

import logging
import os
import re
import socket
import struct
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address
from mmap import mmap
from typing import Any
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

from config import load
from errors import SettingError

SILENT_SECONDS = 5  # how long a thread waits for a client to send or to read more
UNREAD_BYTES = 65_536  # so much of a body left unread makes gunicorn close the connection
PLAIN = re.compile("[A-Za-z0-9._~/:%-]+")
QUOTING = ("Invalid request from", "Ignored premature client", "Error handling request")

try:
    workers = load(os.environ).workers
except SettingError as error:
    sys.exit(f"Error: {error}")
if not os.environ.get("PORT"):  # an empty one counts as not set
    bind = "127.0.0.1:8000"
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1,::1"
threads = 4  # a few requests wait for the database; more would only wait for Python's own lock
keepalive = 75  # seconds; longer than routers keep a connection that is idle, such as nginx with 60
preload_app = True  # a bad setting ends the start, and the workers share memory
control_socket_disable = True  # nothing uses it
limit_request_line = 8190  # bytes, the most that gunicorn allows; its default is 4,094
sendfile = False  # so that gunicorn counts the bytes it sends

# For the worker of each number, its connections + 1, or 0 without a worker. The workers share this
# memory. It has room for twice as many, since at a reload new ones start before the old ones end.
held = memoryview(mmap(-1, 8 * workers)).cast("i")
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def when_ready(server: Any) -> None:
    """Give the sockets the time-outs of a silent client; on Linux, connections inherit them."""
    for each in server.LISTENERS:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            each.sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", SILENT_SECONDS, 0))


def pre_fork(server: Any, worker: Any) -> None:
    """Give the worker a number that no other one has, and the core that the fewest have."""
    others = server.WORKERS.values()
    worker.number = min(range(len(held)), key=[other.number for other in others].count)
    worker.core = min(cores, key=[other.core for other in others].count, default=None)


def post_fork(server: Any, worker: Any) -> None:
    """Keep the worker on a core of its own when there is a worker for each: a tenth faster."""
    if cores and workers >= len(cores):
        os.sched_setaffinity(0, {worker.core})


def child_exit(server: Any, worker: Any) -> None:
    held[worker.number] = 0


class SharingWorker(ThreadWorker):  # type: ignore[misc]
    """Closes connections beyond its share: one often gets a client's whole pool.

    The client opens them again, and then a worker with less to do is faster to accept them.
    """

    def notify(self) -> None:
        """Publish the count; gunicorn calls this at each turn of its loop, at least each second."""
        held[self.number] = self.nr_conns + 1 if self.alive else 0
        super().notify()

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Respond, with "Connection: close" when the connection will be closed."""
        if self.nr_conns + 1 > min(filter(None, held), default=0) + 2:
            req.force_close()
        decided, body = req.should_close, req.body
        req.should_close = lambda: decided() or body.failed or unread(body.reader) >= UNREAD_BYTES
        return super().handle_request(req, conn)


def unread(reader: Any) -> int:
    """Return how many bytes of a body are left: of a chunked one, none or perhaps many."""
    return reader.length if hasattr(reader, "length") else UNREAD_BYTES * bool(reader.parser)


class LogfmtLogger(Logger):  # type: ignore[misc]
    """One logfmt line for each request on standard output; no contents in the error log."""

    def access(self, resp: Any, req: Any, environ: Any, request_time: timedelta) -> None:
        """Write the line directly: gunicorn's own way takes a tenth of the time of a request."""
        began = datetime.now(UTC) - request_time
        sender = client(self.cfg, environ["REMOTE_ADDR"], environ.get("HTTP_X_FORWARDED_FOR", ""))
        names = ("code", "account", "appid", "request_id")
        noted = [f"{name}={plain(environ.get(f'profiles.{name}') or '-')}" for name in names]
        line = (
            f"time={began.isoformat(timespec='milliseconds')[:23]}Z "
            f"method={plain(req.method)} path={plain(req.path)[:2048]} "
            f"status={(resp.status or '-')[:3]} {' '.join(noted)} "
            f"bytes={resp.sent if resp.headers_sent else '-'} "
            f"ms={request_time // timedelta(milliseconds=1)} client={plain(sender)} "
            f"worker={os.getpid()}\n"
        )
        with suppress(OSError):  # standard output is closed or full
            if sys.stdout:  # None when there is none: number 1 is then another file
                os.write(1, line.encode())  # at most 4 KiB, so lines never mix in a pipe


def plain(text: str) -> str:
    """Return the text as one word, percent-encoded where it must be; "-" if it is empty."""
    return text if PLAIN.fullmatch(text) else quote(text, "/:%", "latin-1", "replace") or "-"


@lru_cache(256)
def client(cfg: Any, peer: str, forwarded: str) -> str:
    """Return the peer's address, or if gunicorn trusts the peer, the last of X-Forwarded-For."""
    trusts_all = not peer or "*" in cfg.forwarded_allow_ips  # a Unix socket has no address
    with suppress(ValueError):  # none, or no address
        if trusts_all or any(ip_address(peer) in each for each in cfg.forwarded_allow_networks()):
            last = forwarded.rpartition(",")[2].partition("%")[0]  # from "%" on, free text
            return str(ip_address(last.strip()))
    return peer


def without_contents(record: logging.LogRecord) -> bool:
    """Cut what gunicorn quotes of a request, such as a token or a profile; make it one line."""
    kind, _, frames = record.exc_info or (None, None, None)
    text = record.getMessage()
    if text.startswith(QUOTING):
        text = re.split("['\"?]", text)[0]
        if kind:  # its frames and its type, but not its text
            record.exc_info = (Exception, Exception(kind.__qualname__), frames)
    record.msg, record.args = text if text.isprintable() else repr(text), ()
    return kind is not BlockingIOError  # of a silent client


logging.getLogger("gunicorn.error").filters = [without_contents]  # as this file may be read again
worker_class = SharingWorker
logger_class = LogfmtLogger
