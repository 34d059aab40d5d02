"""Turns to write to a SQLite file, which has one writer at a time."""

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from peewee import OperationalError

POLL_SECONDS = 0.00005


class Turns:
    """Lets one thread of one process at a time write to a file.

    SQLite's own wait for a lock sleeps ever longer, which left p99 of an update at 20 to 60 times
    p50. Here the threads of a process wait for a lock of theirs, and the one that has it asks for
    a lock on a second file every 0.05 ms: p99 at 3 times p50. To wait in flock() itself is as
    fast, but has no time-out.
    """

    def __init__(self, path: str) -> None:
        self.path, self.file, self.thread_lock = path, -1, threading.Lock()

    @contextmanager
    def take(self, seconds: float) -> Iterator[None]:
        """Hold the turn for the block. Raises OperationalError when it takes longer to get."""
        deadline = time.monotonic() + seconds
        if not self.thread_lock.acquire(timeout=seconds):
            raise OperationalError("database is locked: no turn to write")
        try:
            self.open_file()
            while not self.has_file_lock():
                if time.monotonic() > deadline:
                    raise OperationalError("database is locked: no turn to write")
                time.sleep(POLL_SECONDS)
            try:
                yield
            finally:
                fcntl.flock(self.file, fcntl.LOCK_UN)
        finally:
            self.thread_lock.release()

    def open_file(self) -> None:
        """Open the lock file at the first turn of this process. Raises OperationalError."""
        if self.file < 0:
            try:
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise OperationalError(f"{self.path}: {error.strerror}") from error
            weakref.finalize(self, os.close, self.file)

    def has_file_lock(self) -> bool:
        """Lock the file unless another process has it locked, and return whether it is."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
