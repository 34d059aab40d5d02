"""Watches every database connection that this process opens, until it is closed.

Python 3.13 and newer warn when an SQLite connection was not closed. Older versions do not, and
PyMySQL never does.
"""

import itertools
import sqlite3
import time
import traceback
from functools import cache

import pymysql

OPEN = {}
"""Where in the code each connection was opened that has not been closed, by its number."""
NUMBERS = itertools.count()


class Watched:
    """A connection that is listed in OPEN until its ``close()`` is called."""

    number = None  # of one that could not be opened

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.number = next(NUMBERS)
        OPEN[self.number] = traceback.extract_stack(limit=16)[:-1]

    def close(self):
        OPEN.pop(self.number, None)
        super().close()


@cache
def watched(kind):
    """The class of connections, watched."""
    return type(kind.__name__, (Watched, kind), {})


def watch():
    """Watch each connection opened from now on by ``sqlite3.connect`` and ``pymysql.connect``."""
    connect = sqlite3.connect

    def connect_watched(*args, factory=sqlite3.Connection, **options):
        return connect(*args, factory=watched(factory), **options)

    sqlite3.connect = connect_watched
    pymysql.connect = watched(pymysql.Connection)


def check_closed():
    """Raises AssertionError for connections that are not closed, with where each was opened."""
    deadline = time.monotonic() + 0.5  # a thread that ends closes its own a moment later
    while OPEN and time.monotonic() < deadline:
        time.sleep(0.01)
    stacks = ["".join(traceback.format_list(stack)) for stack in OPEN.values()]
    OPEN.clear()  # the next test has its own
    assert not stacks, "opened here and never closed:\n" + "\n".join(stacks)
