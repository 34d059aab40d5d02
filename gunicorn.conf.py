"""How the service is served: gunicorn's settings, its workers, and the log."""

import logging
import os
import re
import resource
import select
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from urllib.parse import quote

from gunicorn.glogging import Logger

from config import load
from errors import SettingError, as_line
from worker import ReadAheadWorker

try:
    checked = load(os.environ)
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = checked["WEB_CONCURRENCY"]
if not os.environ.get("PORT"):  # with PORT, gunicorn listens on all addresses
    bind = f"127.0.0.1:{checked['PORT']}"
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1,::1"
forwarder_headers = ""  # with SCRIPT_NAME, a path could pass a proxy's rules
threads = 4  # some wait for the database; more threads would wait for each other
graceful_timeout = 6  # seconds to finish what was accepted: some platforms wait 10
keepalive = 75  # seconds: longer than a router keeps an idle connection (nginx: 60)
preload_app = True  # so that a bad setting ends the start; it also saves memory
control_socket_disable = True  # nothing uses it
# Each connection needs one of the files that the process may open.
worker_connections = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 50)
sendfile = False  # so that gunicorn counts the bytes it sends

CORES = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def when_ready(server):
    """Warn if a platform has no database."""
    if os.environ.get("PORT") and not os.environ.get("DATABASE_URL"):
        server.log.warning(
            "DATABASE_URL is not set. SQLite is used: on most platforms the file is "
            "lost with each deployment. Set DATABASE_URL to a MySQL database."
        )


def pre_fork(server, worker):
    """Choose the core that the fewest other workers have."""
    taken = [other.core for other in server.WORKERS.values()]
    worker.core = min(CORES, key=taken.count, default=None)


def post_worker_init(worker):
    """Pin the worker to its core, if there is at least one worker for each core.

    With two workers on two cores, this makes it 12 % faster: its threads run one at a
    time anyway, and no longer pass Python's lock from core to core.
    """
    if 0 < len(CORES) <= workers:
        with suppress(OSError):  # the machine may allow no choice, or fewer by now
            os.sched_setaffinity(0, {worker.core})


class LogfmtLogger(Logger):
    """Writes a line for each request, as logfmt, to standard output."""

    seconds_to_wait = 1  # for a full pipe to be read; 0 after that was in vain

    def access(self, resp, req, environ, request_time):
        """Write a request's log line. gunicorn's format would take 10 % longer."""
        began = (datetime.now(UTC) - request_time).isoformat(timespec="milliseconds")
        client = environ["REMOTE_ADDR"]
        forwarded = environ.get("HTTP_X_FORWARDED_FOR", "").rpartition(",")[2].strip()
        if forwarded and is_trusted(client, self.cfg.forwarded_allow_ips):
            client = forwarded
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
            f"client={quote_value(client)[:128]} worker={os.getpid()}\n"
        )
        with suppress(OSError):  # standard output is closed, or its disk is full
            # A pipe that is full because nobody reads it would stop every thread.
            _, writable, _ = select.select([], [1], [], self.seconds_to_wait)
            self.seconds_to_wait = len(writable)
            if writable:
                os.write(1, line.encode())  # lines below 4 KiB never mix in a pipe


def is_trusted(address, allowed):
    """Return whether a peer may name the client. A Unix socket has no address."""
    return (
        not address
        or "*" in allowed
        or any(ip_address(address) in ip_network(ip) for ip in allowed)
    )


def quote_value(text):
    """Return the string as one word, percent-encoded where it must be; "-" if empty."""
    return quote(text, "/:%", "latin-1", "replace") or "-"


# Filters of logging: they return whether the record is logged.


def drop_noise(record):
    """Drop records that add nothing.

    "Socket error processing request." with a BlockingIOError: a client timed out.
    "Error handling request": a listing broke off, and blueprints.py has logged why.
    """
    timed_out = isinstance(sys.exception(), BlockingIOError)
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
# One byte more, because the app reads a body that long before it refuses it.
ReadAheadWorker.longest_body = checked["MAXIMUM_POST_DATA_LENGTH"] + 1
worker_class = ReadAheadWorker
logger_class = LogfmtLogger
