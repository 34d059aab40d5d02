"""Watches every database connection that this process opens, until it is closed.

Python 3.13 and newer warn when an SQLite connection was not closed. Older versions do not, and
PyMySQL never does.
"""

import sqlite3
import time
import traceback
from functools import partial

import pymysql

OPEN = {}
"""Where in the code each connection was opened that has not been closed, by a key of its own."""


class Watched:
    """A connection that is listed in OPEN until its ``close()`` is called."""

    key = None  # of one that could not be opened

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.key = object()
        OPEN[self.key] = traceback.extract_stack(limit=16)[:-1]

    def close(self):
        OPEN.pop(self.key, None)
        super().close()


def watch():
    """Watch each connection opened from now on by ``sqlite3.connect`` and ``pymysql.connect``."""
    kind = type("WatchedConnection", (Watched, sqlite3.Connection), {})
    sqlite3.connect = partial(sqlite3.connect, factory=kind)
    pymysql.connect = type("WatchedConnection", (Watched, pymysql.Connection), {})


def check_closed():
    """Raises AssertionError for connections that are not closed, with where each was opened."""
    deadline = time.monotonic() + 0.5  # a thread that ends closes its own a moment later
    while OPEN and time.monotonic() < deadline:
        time.sleep(0.01)
    stacks = ["".join(traceback.format_list(stack)) for stack in OPEN.values()]
    OPEN.clear()  # the next test has its own
    assert not stacks, "opened here and never closed:\n" + "\n".join(stacks)
