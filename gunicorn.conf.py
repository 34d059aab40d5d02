"""How the service is served: gunicorn's settings, its workers, and the log."""

import logging
import os
import re
import socket
import struct
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from mmap import mmap
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

from config import CORES, load
from errors import SettingError

SILENT_SECONDS = 5  # how long a thread waits for a client to send or to read more
UNREAD_BYTES = (
    65_536  # so much of a body left unread makes gunicorn close the connection
)
PLAIN = re.compile("[A-Za-z0-9._~/:%-]+")
QUOTING = ("Invalid request from", "Ignored premature client", "Error handling request")

if __name__ == "__main__":  # as version 1.0 was started
    sys.exit("Error: start the service by gunicorn 'app:create_app()'")
try:
    settings = load(os.environ)
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = settings["WEB_CONCURRENCY"]
if not os.environ.get("PORT"):  # an empty one counts as not set
    bind = "127.0.0.1:8000"
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1,::1"
threads = 4  # a few requests wait for the database; more would only wait for Python's own lock
graceful_timeout = (
    6  # seconds to finish what was accepted: some platforms kill after 10
)
keepalive = 75  # seconds; longer than routers keep a connection that is idle, such as nginx with 60
preload_app = True  # a bad setting ends the start, and the workers share memory
control_socket_disable = True  # nothing uses it
sendfile = False  # so that gunicorn counts the bytes it sends

# For each worker's number, its connections + 1, or 0. There are twice as many during a reload.
held = memoryview(mmap(-1, 8 * workers)).cast("i")


def when_ready(server):
    """Name the database, and give the sockets time-outs, which connections inherit on Linux."""
    server.log.info("Database: %s", settings["DATABASE_URL"])
    for each in server.LISTENERS:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            each.sock.setsockopt(
                socket.SOL_SOCKET, option, struct.pack("ll", SILENT_SECONDS, 0)
            )


def pre_fork(server, worker):
    """Give the worker a number that no other one has, and the core that the fewest have."""
    others = server.WORKERS.values()
    worker.number = min(range(len(held)), key=[other.number for other in others].count)
    for free in set(range(len(held))) - {other.number for other in others}:
        held[free] = 0  # of a worker that was killed
    worker.core = min(CORES, key=[other.core for other in others].count, default=None)


class SharingWorker(ThreadWorker):
    """Closes connections beyond its share: one worker often gets a client's whole pool."""

    def init_process(self):
        """Keep to one core when there is a worker for each: a tenth faster, or more."""
        if CORES and workers >= len(CORES):
            with suppress(
                OSError
            ):  # the machine may allow no choice, or fewer cores by now
                os.sched_setaffinity(0, {self.core})
        super().init_process()

    def notify(self):
        """Publish the count; gunicorn calls this at each turn of its loop, at least each second."""
        held[self.number] = self.nr_conns + 1 if self.alive else 0
        super().notify()

    def handle_request(self, req, conn):
        """Respond, with "Connection: close" when the connection will be closed."""
        if self.nr_conns + 1 > min(filter(None, held), default=0) + 2:
            req.force_close()
        decided, body = req.should_close, req.body
        req.should_close = lambda: (
            decided() or body.failed or unread(body.reader) >= UNREAD_BYTES
        )
        return super().handle_request(req, conn)


def unread(reader):
    """Return how many bytes of a body are left: of a chunked one, none or perhaps many."""
    return (
        reader.length
        if hasattr(reader, "length")
        else UNREAD_BYTES * bool(reader.parser)
    )


class LogfmtLogger(Logger):
    def access(self, resp, req, environ, request_time):
        """Write the request's line, directly: gunicorn's own way takes a tenth of its time."""
        began = datetime.now(UTC) - request_time
        last = environ.get("HTTP_X_FORWARDED_FOR", "").rpartition(",")[2].strip()
        client = plain(last or environ["REMOTE_ADDR"])[:128]
        names = ("code", "account", "appid", "request_id")
        noted = [
            f"{name}={plain(environ.get(f'profiles.{name}') or '-')}" for name in names
        ]
        line = (
            f"time={began.isoformat(timespec='milliseconds')[:23]}Z "
            f"method={plain(req.method)} path={plain(req.path)[:2048]} "
            f"status={(resp.status or '-')[:3]} {' '.join(noted)} "
            f"bytes={resp.sent if resp.headers_sent else '-'} "
            f"ms={request_time // timedelta(milliseconds=1)} client={client} "
            f"worker={os.getpid()}\n"
        )
        with suppress(OSError):  # standard output is closed or full
            if sys.stdout:  # None when there is none: number 1 is then another file
                os.write(
                    1, line.encode()
                )  # at most 4 KiB, so lines never mix in a pipe


def plain(text):
    """Return the text as one word, percent-encoded where it must be; "-" if it is empty."""
    return (
        text
        if PLAIN.fullmatch(text)
        else quote(text, "/:%", "latin-1", "replace") or "-"
    )


def without_contents(record):
    """Cut what gunicorn quotes of a request, such as a token or a profile; make it one line."""
    kind, _, frames = record.exc_info or (None, None, None)
    text = record.getMessage()
    if text.startswith(QUOTING):
        text = re.split("['\"?]", text)[0]
        if kind:  # its frames and its type, but not its text
            record.exc_info = (Exception, Exception(kind.__qualname__), frames)
    record.msg, record.args = text if text.isprintable() else repr(text), ()
    return kind is not BlockingIOError  # of a silent client


logging.getLogger("gunicorn.error").filters = [
    without_contents
]  # as this file may be read again
worker_class = SharingWorker
logger_class = LogfmtLogger
