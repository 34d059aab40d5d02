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

from config import load
from errors import SettingError

SILENT_SECONDS = 5  # how long a thread waits for a client to send or to read more
UNREAD_BYTES = (
    65_536  # so much of a body left unread makes gunicorn close the connection
)
PLAIN = re.compile("[A-Za-z0-9._~/:%-]+")
QUOTING = (  # how gunicorn's messages begin that quote a request
    "Invalid request from",
    "Ignored premature client",
    "Error handling request",
)

if __name__ == "__main__":  # as version 1.0 was started
    sys.exit("Error: start the service by gunicorn 'app:create_app()'")
try:
    settings = load(os.environ)
except SettingError as error:
    sys.exit(f"Error: {error}")
workers = settings["WEB_CONCURRENCY"]
if not os.environ.get("PORT"):  # with it, gunicorn itself listens on all addresses
    bind = f"127.0.0.1:{settings['PORT']}"
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1,::1"
threads = 4  # a few requests wait for the database; more would wait for Python's lock
graceful_timeout = 6  # seconds to finish what was accepted: some platforms wait 10
keepalive = 75  # seconds, longer than routers keep an idle connection, as nginx with 60
preload_app = True  # a bad setting ends the start, and the workers share memory
control_socket_disable = True  # nothing uses it
sendfile = False  # so that gunicorn counts the bytes it sends

CORES = []  # the processors that may be used
if hasattr(os, "sched_getaffinity"):  # on Linux
    CORES = sorted(os.sched_getaffinity(0))
# Of each worker, by its number: 1 and its connections, or 0 once it has ended. In
# memory that the workers share. During a reload there are twice as many.
connections_of_worker = memoryview(mmap(-1, 8 * workers)).cast("i")


def when_ready(server):
    """Name the database, and let silent clients time out."""
    server.log.info("Database: %s", settings["DATABASE_URL"])
    seconds = struct.pack("ll", SILENT_SECONDS, 0)
    for listener in server.LISTENERS:  # whose connections inherit it, on Linux
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            listener.sock.setsockopt(socket.SOL_SOCKET, option, seconds)


def pre_fork(server, worker):
    """Give the worker a number of its own, and the core that the fewest others have."""
    others = server.WORKERS.values()
    used = {other.number for other in others}
    free = {*range(len(connections_of_worker))} - used
    for number in free:
        connections_of_worker[number] = 0  # of a worker that was killed
    worker.number = min(free, default=0)  # shared, if somebody adds workers
    cores = [other.core for other in others]
    worker.core = min(CORES, key=cores.count, default=None)


class SharingWorker(ThreadWorker):
    """Closes connections beyond its share: one worker often gets all of a client's."""

    def init_process(self):
        """Keep to one core when there is a worker for each: a tenth faster, or more."""
        if CORES and workers >= len(CORES):
            with suppress(OSError):  # the machine may allow no choice, or fewer by now
                os.sched_setaffinity(0, {self.core})
        super().init_process()

    def notify(self):
        """Publish the count. gunicorn calls this at least each second."""
        connections_of_worker[self.number] = self.nr_conns + 1 if self.alive else 0
        super().notify()

    def handle_request(self, req, conn):
        """Respond, with "Connection: close" when the connection will be closed."""
        fewest = min(filter(None, connections_of_worker), default=1) - 1
        if self.nr_conns > fewest + 2:
            req.force_close()
        decided = req.should_close
        req.should_close = lambda: decided() or is_too_much_unread(req.body)
        return super().handle_request(req, conn)


def is_too_much_unread(body):
    """Return whether gunicorn will close the connection for the rest of a body."""
    if hasattr(body.reader, "length"):
        return body.failed or body.reader.length >= UNREAD_BYTES
    return body.failed or bool(body.reader.parser)  # chunked: nobody knows how much


class LogfmtLogger(Logger):
    def access(self, resp, req, environ, request_time):
        """Write the request's line itself: gunicorn's way takes a tenth of its time."""
        began = (datetime.now(UTC) - request_time).isoformat(timespec="milliseconds")
        forwarded = environ.get("HTTP_X_FORWARDED_FOR", "").rpartition(",")[2].strip()
        line = (
            f"time={began[:23]}Z method={plain(req.method)} "
            f"path={plain(req.path)[:2048]} status={(resp.status or '-')[:3]} "
            f"code={plain(environ.get('profiles.code', ''))} "
            f"account={plain(environ.get('profiles.account', ''))} "
            f"appid={plain(environ.get('profiles.appid', ''))} "
            f"request_id={plain(environ.get('profiles.request_id', ''))} "
            f"bytes={resp.sent if resp.headers_sent else '-'} "
            f"ms={request_time // timedelta(milliseconds=1)} "
            f"client={plain(forwarded or environ['REMOTE_ADDR'])[:128]} "
            f"worker={os.getpid()}\n"
        )
        with suppress(OSError):  # standard output is closed or full
            if sys.stdout:  # None when there is none: number 1 is then another file
                os.write(1, line.encode())  # below 4 KiB, lines never mix in a pipe


def plain(text):
    """Return the text as one word, percent-encoded where it must be; "-" if empty."""
    if PLAIN.fullmatch(text):
        return text
    return quote(text, "/:%", "latin-1", "replace") or "-"


def without_contents(record):
    """Cut what gunicorn quotes of a request, such as a token; make it one line."""
    kind, _, frames = record.exc_info or (None, None, None)
    text = record.getMessage()
    if text.startswith(QUOTING):
        text = re.split("['\"?]", text)[0]
        if kind:  # its frames and its type, but not its text
            record.exc_info = (Exception, Exception(kind.__qualname__), frames)
    record.msg = text if text.isprintable() else repr(text)
    record.args = ()
    return kind is not BlockingIOError  # of a silent client


# Not addFilter: at a reload this file is read again.
logging.getLogger("gunicorn.error").filters = [without_contents]
worker_class = SharingWorker
logger_class = LogfmtLogger
