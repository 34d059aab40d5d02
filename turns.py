"""Few requests run at a time, while many threads wait for their clients.

- A request waits for a turn once its body has arrived, so a slow client stops nobody.
- ``db.turns`` requests of a process have one. The first that came gets the next.
- A connection to the database is used in a turn, so a process has few of them.

With more turns, threads contend for the GIL: 64 at once serve lists at half the rate,
unless their worker is pinned to a core.
"""

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from itertools import count
from threading import Lock
from typing import Any

from werkzeug.wsgi import get_content_length, get_input_stream

from database import db

TURN_SECONDS = 5  # how long a request waits for a turn, for example while MySQL hangs


class Turns:
    """The turns of a process. Of those that wait, the smallest number is next."""

    def __init__(self) -> None:
        self.numbers = count()
        self.taken = 0
        self.waiting: dict[int, Lock] = {}  # by number; each is locked until its turn
        self.lock = Lock()

    def take(self, number: int, seconds: float = -1) -> bool:
        """Wait for a turn, by default without a limit. Return whether it got one."""
        with self.lock:
            if self.taken < db.turns:
                self.taken += 1
                return True
            turn = self.waiting[number] = Lock()
            turn.acquire()
        if turn.acquire(timeout=seconds):
            return True
        with self.lock:
            # It is no longer there if end() has just given it a turn.
            return self.waiting.pop(number, None) is None

    def end(self) -> None:
        """End a turn, and give it to the next that waits."""
        db.release()
        with self.lock:
            if self.waiting:
                self.waiting.pop(min(self.waiting)).release()
            else:
                self.taken -= 1


turns = Turns()


class TurnMiddleware:
    """WSGI middleware: receives the body of a request, and then waits for a turn.

    If there is none within TURN_SECONDS, the environ has ``profiles.no_turn``, and the
    app refuses the request. ``/live`` doesn't wait, because it uses no database.
    """

    def __init__(self, wsgi: Callable[..., Iterable[bytes]], max_body: int) -> None:
        self.wsgi = wsgi
        self.max_body = max_body

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "CONTENT_LENGTH" in environ or "HTTP_TRANSFER_ENCODING" in environ:
            receive_body(environ, self.max_body)
        if environ["PATH_INFO"] == "/live":
            return self.wsgi(environ, start_response)
        if not turns.take(next(turns.numbers), TURN_SECONDS):
            environ["profiles.no_turn"] = True
            return self.wsgi(environ, start_response)
        try:
            return self.wsgi(environ, start_response)
        finally:
            turns.end()


def receive_body(environ: dict[str, Any], max_body: int) -> None:
    """Receive the body of a request, up to one byte more than it may have.

    The app gets it with its length. If that is more than has arrived, because the body
    broke off, Werkzeug raises ClientDisconnected when the app reads the body.
    """
    try:
        body = get_input_stream(environ).read(max_body + 1)
        length = get_content_length(environ) or len(body)
    except Exception:  # the errors of servers have no other base in common
        body, length = b"", 1  # as if one byte were missing
    environ["wsgi.input"] = BytesIO(body)
    environ["CONTENT_LENGTH"] = str(length)
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    environ.pop("wsgi.input_terminated", None)


def in_turns(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the items of an iterator, each read in a turn of its own.

    All have the same number, so a list that has begun comes before newer requests.
    """
    number = next(turns.numbers)
    while True:
        turns.take(number)
        try:
            item = next(iterator)
        except StopIteration:
            return
        finally:
            turns.end()
        yield item
