"""WSGI middleware: a request waits its turn for one of few threads that run the app.

- Many threads of a server wait for clients. A request gets its turn when its body is
  complete, so a slow client occupies none of the few.
- Requests that may write have threads of their own, so one that only reads never waits
  behind one that waits for a lock. So have deletions of accounts, which can be large.
- Each of these threads keeps a connection to the database, so a process has few.

If more threads ran the app, there would be more connections. And where a worker isn't
pinned to a core, they would contend for the GIL: 64 serve lists at half the rate.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Barrier
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
    """Submit a call to the executor ``readers``, ``writers`` or ``deleters``.

    It runs in a copy of this thread's context, as of a host program that traces it.
    """
    run = copy_context().run

    def call() -> Any:
        db.close_if_stale()
        return run(function, *args)

    if name not in executors:
        executor = ThreadPoolExecutor(getattr(db, name), name)
        executors.setdefault(name, executor)  # another thread may have just added one
    try:
        return executors[name].submit(call)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise  # no thread can be started, but the call waits for one that runs
    done: Future[Any] = Future()
    done.set_result(call())  # here, because the process is about to end
    return done


def end_threads() -> None:
    """End all threads after their calls. Each closes its connection before."""
    database = db.obj
    for name in list(executors):
        executor = executors.pop(name)  # its threads end once it is gone
        size = getattr(database, name)
        barrier = Barrier(size)  # so that each thread gets one of the calls

        def close(barrier: Barrier = barrier) -> None:
            barrier.wait()
            database.discard()

        for _ in range(size):
            executor.submit(close)


class TurnMiddleware:
    """Receives the body of a request, and then submits a call of the app.

    The environ then has ``profiles.body``, as receive_body() returns it. If no thread
    is free within WAIT_SECONDS, ``profiles.waited`` is set to these, and the app
    refuses the request. ``/live`` runs in the server's own thread, because it uses no
    database.
    """

    def __init__(self, wsgi: Callable[..., Iterable[bytes]], max_body: int) -> None:
        self.wsgi = wsgi
        self.max_body = max_body

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["profiles.body"] = receive_body(environ, self.max_body)
        if environ["PATH_INFO"] == "/live":
            return self.wsgi(environ, start_response)
        name = choose_executor(environ)
        future = submit(name, self.wsgi, environ, start_response)
        try:
            return future.result(WAIT_SECONDS)
        except TimeoutError:
            if not future.cancel():  # a thread runs the app
                return future.result()
        environ["profiles.waited"] = WAIT_SECONDS
        return self.wsgi(environ, start_response)


def choose_executor(environ: dict[str, Any]) -> str:
    """Return the name of the executor that runs the app for a request."""
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
    # Copied now: the request's context is gone when the server asks for an item.
    run = copy_context().run

    def read_next() -> bytes | None:
        return submit("readers", run, next, iterator, None).result()

    return iter(read_next, None)
