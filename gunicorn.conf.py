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
from functools import partial
from selectors import EVENT_READ
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.util import close_graceful
from gunicorn.workers.gthread import ThreadWorker

from config import load
from errors import SettingError, as_line

try:
    checked = load(os.environ)
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = checked["WEB_CONCURRENCY"]
if not os.environ.get("PORT"):  # with PORT, gunicorn listens on all addresses
    bind = f"127.0.0.1:{checked['PORT']}"
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1,::1"
threads = 4  # some wait for the database; more threads would wait for each other
graceful_timeout = 6  # seconds to finish what was accepted: some platforms wait 10
keepalive = 75  # seconds: longer than a router keeps an idle connection (nginx: 60)
limit_request_fields = 50  # unfinished headers cost time that grows with this
preload_app = True  # so that a bad setting ends the start; it also saves memory
control_socket_disable = True  # nothing uses it
sendfile = False  # so that gunicorn counts the bytes it sends

CORES = []  # on Linux, workers are pinned to these if there is one for each core
if hasattr(os, "sched_getaffinity") and workers >= len(os.sched_getaffinity(0)):
    CORES = sorted(os.sched_getaffinity(0))


def when_ready(server):
    """Warn if a platform has no database, and set the sockets' time-outs.

    A thread that waits for 5 seconds to receive or send drops the client. Otherwise a
    few stalled clients would occupy every thread.
    """
    if os.environ.get("PORT") and not os.environ.get("DATABASE_URL"):
        server.log.warning(
            "DATABASE_URL is not set. SQLite is used: on most platforms the file is "
            "lost with each deployment. Set DATABASE_URL to a MySQL database."
        )
    seconds = struct.pack("ll", 5, 0)  # struct timeval {5, 0}
    for listener in server.LISTENERS:  # accepted sockets inherit this on Linux
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            listener.sock.setsockopt(socket.SOL_SOCKET, option, seconds)


def pre_fork(server, worker):
    """Choose the core that the fewest other workers have."""
    taken = [other.core for other in server.WORKERS.values()]
    worker.core = min(CORES, key=taken.count, default=None)


def post_worker_init(worker):
    """Pin the worker to its core, which makes it 10 % faster."""
    if CORES:
        with suppress(OSError):  # the machine may allow no choice, or fewer by now
            os.sched_setaffinity(0, {worker.core})


class PatientWorker(ThreadWorker):
    """Sleeps before it accepts a connection, longer if it has more connections.

    So a worker that has fewer accepts it first. Without this, one worker often gets all
    of them: with 8 connections, the slowest of ten runs reached 27 % of the fastest;
    now 90 %.
    """

    def accept(self, listener):
        """Accept a connection, if no other worker was faster. gunicorn calls this."""
        connections = max(0, self.nr_conns)  # gunicorn may count a broken one twice
        time.sleep(min(connections, 10) * 0.00002)
        super().accept(listener)

    def enqueue_req(self, conn):
        """Give a connection to a thread once there is something to read.

        gunicorn lets each new connection occupy a thread for up to 5 seconds: forty
        silent ones kept all others waiting for 20 seconds.
        """
        if conn.data_ready:  # gunicorn sets this once, with the first byte
            super().enqueue_req(conn)
        else:
            conn.set_timeout()
            self.pending_conns.append(conn)
            on_readable = partial(self.on_pending_socket_readable, conn)
            self.poller.register(conn.sock, EVENT_READ, on_readable)

    def handle(self, conn):
        """Handle a request, then close the connection unless it is kept alive.

        gunicorn itself waits up to 2 seconds for the client to close it, in the thread
        that accepts connections.
        """
        is_kept = super().handle(conn)
        if not is_kept:
            close_graceful(conn.sock, timeout=0.2)
            # After a return gunicorn would close it, too, and count it twice.
            raise ConnectionAbortedError
        return is_kept

    def handle_error(self, req, client, addr, exc):
        """Send an error response, unless the body is what failed.

        gunicorn reads what is left of a body after the response, so this would be a
        second one.
        """
        if not (req and req.body.failed):
            super().handle_error(req, client, addr, exc)


class LogfmtLogger(Logger):
    """Writes a line for each request, as logfmt, to standard output."""

    def access(self, resp, req, environ, request_time):
        """Write a request's log line. gunicorn's format would take 10 % longer."""
        began = (datetime.now(UTC) - request_time).isoformat(timespec="milliseconds")
        forwarded = environ.get("HTTP_X_FORWARDED_FOR", "").rpartition(",")[2].strip()
        line = (
            f"time={began[:23]}Z method={quote_value(req.method)} "
            f"path={quote_value(req.path)[:2048]} status={(resp.status or '-')[:3]} "
            f"code={quote_value(environ.get('profiles.code', ''))} "
            f"account={quote_value(environ.get('profiles.account', ''))} "
            f"session={quote_value(environ.get('profiles.session', ''))} "
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
    """Return the string as one word, percent-encoded where it must be; "-" if empty."""
    return quote(text, "/:%", "latin-1", "replace") or "-"


# Filters of logging: they return whether the record is logged.


def drop_noise(record):
    """Drop records that add nothing.

    "Socket error processing request." with a BlockingIOError: a client timed out.
    "Error handling request": a listing broke off, and blueprints.py has logged why.
    """
    exception_type = record.exc_info[0] if record.exc_info else None
    timed_out = exception_type is BlockingIOError
    return not timed_out and record.getMessage() != "Error handling request"


def redact_record(record):
    """Cut what a record quotes of a request, such as a token; keep it on one line.

    Samples:
    "Invalid request from ip=192.0.2.1: Invalid HTTP header name: 'token'"
    "Ignored premature client disconnection. No more data after: b'token'"
    "Error handling request GET /docs?token"
    """
    text = record.getMessage()
    if re.match("Invalid request|Ignored premature client|Error handling", text):
        text = re.split("['\"?]", text)[0]
        exception_type, _, frames = record.exc_info or (None, None, None)
        if exception_type:  # keep the type and the frames, but not the message
            error = Exception(exception_type.__qualname__)
            record.exc_info = (Exception, error, frames)
    record.msg = as_line(text)
    record.args = ()
    return True


# addFilter would add more at each reload, which reads this file again.
logging.getLogger("gunicorn.error").filters = [drop_noise, redact_record]
worker_class = PatientWorker
logger_class = LogfmtLogger
