"""How the service is served: gunicorn's settings, its workers, and the log.

The Procfile runs this file, which checks the settings and then runs gunicorn, which reads it.
"""

import logging
import os
import re
import sys
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from ipaddress import ip_address
from mmap import mmap
from typing import Any
from urllib.parse import quote

from gunicorn.glogging import Logger
from gunicorn.workers.gthread import ThreadWorker

sys.path.append(os.path.dirname(__file__))  # gunicorn may read this file from another folder
from config import SettingError, load  # noqa: E402

PLAIN = re.compile("[A-Za-z0-9._~/:%-]+")
QUOTING = ("Invalid request from", "Ignored premature client", "Error handling request")

try:
    workers = load(os.environ).workers
except SettingError as error:
    sys.exit(f"Error: {error}")
threads = 4  # a few requests wait for the database; more would only wait for Python's own lock
preload_app = True  # a bad setting ends the start, and the workers share memory
control_socket_disable = True  # nothing uses it
limit_request_line = 8190  # bytes, the most that gunicorn allows; its default is 4,094
sendfile = False  # so that gunicorn counts the bytes it sends

# A number for each worker: its connections + 1, or 0 without a worker. The workers share this
# memory. It has room for twice as many: one that replaces another has a number of its own.
held = memoryview(mmap(-1, 8 * workers)).cast("i")


def child_exit(server: Any, worker: Any) -> None:
    held[worker.age % len(held)] = 0


class SharingWorker(ThreadWorker):  # type: ignore[misc]
    """A worker that closes connections, after their response, until it holds its share of them.

    gunicorn's workers race for new connections, and one often gets all those of a client's pool.
    A client opens a closed connection again, and then a worker with less to do is faster.
    """

    def notify(self) -> None:
        """Publish the count; gunicorn calls this at each turn of its loop, at least each second."""
        held[self.age % len(held)] = self.nr_conns + 1 if self.alive else 0
        super().notify()

    def handle_request(self, req: Any, conn: Any) -> Any:
        if self.nr_conns + 1 > min(filter(None, held), default=0) + 2:
            req.force_close()
        return super().handle_request(req, conn)


class LogfmtLogger(Logger):  # type: ignore[misc]
    """One logfmt line for each request on standard output; no contents in the error log."""

    def access(self, resp: Any, req: Any, environ: Any, request_time: timedelta) -> None:
        """Write the line directly: gunicorn's own way takes a tenth of the time of a request."""
        app_values = [
            f"{name}={plain(environ.get(f'profiles.{name}') or '-')}"
            for name in ("code", "account", "appid", "request_id")
        ]
        sender = client(self.cfg, environ["REMOTE_ADDR"], environ.get("HTTP_X_FORWARDED_FOR", ""))
        line = (
            f"method={plain(req.method)} path={plain(req.path)[:2048]} "
            f"status={(resp.status or '-')[:3]} {' '.join(app_values)} "
            f"bytes={resp.sent if resp.headers_sent else '-'} "
            f"ms={request_time // timedelta(milliseconds=1)} client={plain(sender)}\n"
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
    text = record.getMessage()
    if text.startswith(QUOTING):
        text = re.split("['\"?]", text)[0]
        if record.exc_info and record.exc_info[0]:  # its frames and its type, but not its text
            kind, _, frames = record.exc_info
            record.exc_info = (Exception, Exception(kind.__qualname__), frames)
    record.msg, record.args = text if text.isprintable() else repr(text), ()
    return True


logging.getLogger("gunicorn.error").filters = [without_contents]  # as this file is read twice
worker_class = SharingWorker
logger_class = LogfmtLogger

if __name__ == "__main__":
    os.environ["WEB_CONCURRENCY"] = str(workers)  # a bad one is a traceback at gunicorn's import
    sys.argv.insert(1, f"--config={__file__}")  # gunicorn looks only in the current folder
    from gunicorn.app.wsgiapp import run

    run(prog="gunicorn")
