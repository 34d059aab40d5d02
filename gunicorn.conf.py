"""How the service is served: gunicorn's settings, its workers, and the log."""

import logging
import os
import re
import socket
import struct
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

from config import load
from errors import SettingError

QUOTING = (  # the beginnings of gunicorn's messages that quote a request
    "Invalid request from",
    "Ignored premature client",
    "Error handling request",
)

try:
    settings = load(os.environ)
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = settings["WEB_CONCURRENCY"]
if not os.environ.get("PORT"):  # with PORT, gunicorn listens on all addresses
    bind = "127.0.0.1:8000"
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1,::1"
threads = 4  # some wait for the database; more threads would wait for each other
graceful_timeout = 6  # seconds to finish what was accepted: some platforms wait 10
keepalive = 75  # seconds: longer than a router keeps an idle connection (nginx: 60)
preload_app = True  # so that a bad setting ends the start; it also saves memory
control_socket_disable = True  # nothing uses it
sendfile = False  # so that gunicorn counts the bytes it sends

CORES = []  # the workers are pinned to these; none if there are more cores than workers
if hasattr(os, "sched_getaffinity"):  # on Linux
    allowed = os.sched_getaffinity(0)
    if workers >= len(allowed):
        CORES = sorted(allowed)


def when_ready(server):
    """Warn if a platform has no database, and set a time-out for silent clients."""
    if os.environ.get("PORT") and not os.environ.get("DATABASE_URL"):
        server.log.warning(
            "DATABASE_URL is not set. SQLite is used: on most platforms the file is "
            "lost with each deployment. Set DATABASE_URL to a MySQL database."
        )
    seconds = struct.pack("ll", 5, 0)  # the timeval of C: 5 seconds
    for listener in server.LISTENERS:  # on Linux its connections inherit the option
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            listener.sock.setsockopt(socket.SOL_SOCKET, option, seconds)


def pre_fork(server, worker):
    """Choose the core that the fewest other workers have."""
    taken = [other.core for other in server.WORKERS.values()]
    worker.core = min(CORES, key=taken.count, default=None)


def post_worker_init(worker):
    """Pin the worker to its core: it is a tenth faster, or more."""
    if CORES:
        with suppress(OSError):  # the machine may allow no choice, or fewer by now
            os.sched_setaffinity(0, {worker.core})


class PatientWorker(ThreadWorker):
    """Sleeps before it accepts a connection, the longer the more connections it has.

    So a worker that has fewer accepts it first. Without this, one worker often gets all
    of them. With 8 connections, the slowest of ten runs was 0.27 times as fast as the
    fastest. With this it is 0.90 times as fast.
    """

    def accept(self, listener):
        """Accept a connection, if no other worker was faster. gunicorn calls this."""
        time.sleep(min(self.nr_conns, 10) * 0.00002)
        super().accept(listener)


class LogfmtLogger(Logger):
    def access(self, resp, req, environ, request_time):
        """Write the line of a request. gunicorn's format would take a tenth longer."""
        began = (datetime.now(UTC) - request_time).isoformat(timespec="milliseconds")
        forwarded = environ.get("HTTP_X_FORWARDED_FOR", "").rpartition(",")[2].strip()
        line = (
            f"time={began[:23]}Z method={quote_value(req.method)} "
            f"path={quote_value(req.path)[:2048]} status={(resp.status or '-')[:3]} "
            f"code={quote_value(environ.get('profiles.code', ''))} "
            f"account={quote_value(environ.get('profiles.account', ''))} "
            f"appid={quote_value(environ.get('profiles.appid', ''))} "
            f"target={quote_value(environ.get('profiles.target', ''))} "
            f"request_id={quote_value(environ.get('profiles.request_id', ''))} "
            f"bytes={resp.sent if resp.headers_sent else '-'} "
            f"ms={request_time // timedelta(milliseconds=1)} "
            f"client={quote_value(forwarded or environ['REMOTE_ADDR'])[:128]} "
            f"worker={os.getpid()}\n"
        )
        with suppress(OSError):  # standard output is closed or full
            os.write(1, line.encode())  # lines below 4 KiB never mix in a pipe


def quote_value(text):
    """Return the text as one word, percent-encoded where it must be; "-" if empty."""
    return quote(text, "/:%", "latin-1", "replace") or "-"


def redact(record):
    """Cut what gunicorn quotes of a request, such as a token. Make it one line.

    A filter of logging: it returns whether the record is logged. A client that timed
    out is not.
    """
    kind, _, frames = record.exc_info or (None, None, None)
    text = record.getMessage()
    if text.startswith(QUOTING):
        text = re.split("['\"?]", text)[0]
        if kind:  # keep the frames and the type of the exception, but not its text
            record.exc_info = (Exception, Exception(kind.__qualname__), frames)
    record.msg = text if text.isprintable() else repr(text)
    record.args = ()
    return kind is not BlockingIOError


# addFilter would add one more at each reload, which reads this file again.
logging.getLogger("gunicorn.error").filters = [redact]
worker_class = PatientWorker
logger_class = LogfmtLogger
