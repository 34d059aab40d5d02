"""Starts the service on databases in rounds: python first_starts.py < ROUNDS

Each line names the databases of a round. Each start is a process of its own; those of
a round begin at once. Prints how each of them ended: 0 is a success.
"""

import os
import sys

from app import create_app


def start_at_once(urls):
    """The statuses with which the processes of a round end."""
    waiting, signal = os.pipe()
    for url in urls:
        if os.fork() == 0:
            os.close(signal)
            os.read(waiting, 1)  # until the parent closes the other end
            create_app({"DATABASE_URL": url})
            os._exit(0)
    os.close(signal)
    os.close(waiting)
    return [os.wait()[1] for _ in urls]


for line in sys.stdin:
    print(*start_at_once(line.split()))
