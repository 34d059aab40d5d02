"""WSGI middleware: receives the body of a request, and then has a thread run the app.

- Many threads of a server wait for clients, but few run the app. These get a request
  when its body is complete, so a slow client occupies none of them.
- Requests that may write have threads of their own, so one that only reads never waits
  behind one that waits for a lock. So have deletions of accounts, which can be large.
- Each of these threads keeps a connection to the database, so a process has few.

If more threads ran the app, they would contend for the GIL: 64 serve lists at half the
rate, unless their worker is pinned to a core.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from werkzeug.wsgi import get_content_length, get_input_stream

from database import db

DELETION = "/api/administrator/delete-account"  # which can take many seconds
WAIT_SECONDS = 5  # how long a request waits for a thread, for example while MySQL hangs

# The executors of the process, by their names. A forked process has no threads, so it
# needs others.
executors: dict[str, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=executors.clear)


def submit(name: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Let one of the ``readers``, ``writers`` or ``deleters`` call a function.

    It has the context variables of this thread, such as those of a host program.
    """
    executor = executors.get(name)
    if not executor:  # setdefault(), because another thread may have just added it
        executor = ThreadPoolExecutor(getattr(db, name), name)
        executor = executors.setdefault(name, executor)
    try:
        return executor.submit(copy_context().run, call, function, *args)
    except RuntimeError:  # the process is about to end, so executors take no calls
        done: Future[Any] = Future()
        done.set_result(call(function, *args))
        return done


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread whose connection isn't too old."""
    db.close_if_stale()
    return function(*args)


class TurnMiddleware:
    """Receives the body of a request, and then has a thread run the app.

    The environ then has ``profiles.body``, as receive_body() returns it. If no thread
    is free within WAIT_SECONDS, it has these as ``profiles.waited``, too, and the app
    refuses the request. ``/live`` needs no such thread, because it uses no database.
    """

    def __init__(self, wsgi: Callable[..., Iterable[bytes]], max_body: int) -> None:
        self.wsgi = wsgi
        self.max_body = max_body

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["profiles.body"] = receive_body(environ, self.max_body)
        if environ["PATH_INFO"] == "/live":
            return self.wsgi(environ, start_response)
        name = choose_threads(environ)
        response = submit(name, self.wsgi, environ, start_response)
        try:
            return response.result(WAIT_SECONDS)
        except TimeoutError:
            if not response.cancel():  # a thread runs the app
                return response.result()
        environ["profiles.waited"] = WAIT_SECONDS
        return self.wsgi(environ, start_response)


def choose_threads(environ: dict[str, Any]) -> str:
    """Return the name of the threads that run the app for a request."""
    if environ["PATH_INFO"] == DELETION:
        return "deleters"
    is_read = environ["REQUEST_METHOD"] in ("GET", "HEAD")
    return "readers" if is_read else "writers"


def receive_body(environ: dict[str, Any], max_body: int) -> bytes | None:
    """Return the body of a request, or None if it broke off.

    Of a body that is too large, only one byte more than ``max_body`` is returned.
    """
    size = max_body + 1
    try:
        body = get_input_stream(environ).read(size)
    except Exception:  # the errors of servers have no other base in common
        return None
    length = get_content_length(environ) or 0
    return body if len(body) >= min(length, size) else None


def read_in_turns(iterator: Iterator[bytes]) -> Iterator[bytes]:
    """Return an iterator whose items are made by readers, one item at a time.

    So other requests are served between two items, and while a client reads one.
    """
    # Copied now, because the context of the request is gone when an item is asked for.
    run = copy_context().run
    return iter(lambda: submit("readers", run, next, iterator, None).result(), None)
