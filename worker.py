"""gunicorn's threaded worker, changed so that a thread never waits to receive.

gunicorn gives a connection to a thread with its first byte, and the thread waits for
the others, so four slow clients occupy four threads. Here the main thread, which polls
all connections, receives each request, and a thread gets a whole one. Its parser reads
from memory alone.

Checked with gunicorn 27.0.1, without its TLS and HTTP/2. Of its ThreadWorker, this
overrides ``accept``, ``enqueue_req``, ``murder_keepalived``, ``handle`` and
``handle_request``, and uses ``poller``, ``pending_conns``, ``keepalived_conns`` and
``nr_conns``; of its connections, ``sock``, ``client``, ``parser``, ``initialized`` and
``timeout``. It gives a connection ``data`` (what has come of a request), ``reading``
(the search for its end), ``is_whole`` (the end was found) and ``is_over`` (no further
request is handled).
"""

import re
import socket
import struct
import time
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ

from gunicorn.http import RequestParser
from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, ThreadWorker

REQUEST_SECONDS = 30  # within which a request has to arrive
SEND_TIMEOUT = struct.pack("ll", 5, 0)  # struct timeval {5, 0}
LONGEST_HEAD = 65_536  # bytes; also of what a chunked body has beside its data
CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n")
CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding:[^\r]*chunked")
EXPECT = re.compile(rb"(?i)\r\nexpect:[ \t]*100-continue[ \t]*(?=\r\n)")


class ReadAheadWorker(ThreadWorker):
    """Receives whole requests in the main thread; other threads handle them."""

    longest_body = 65_536  # bytes; a longer body is not waited for

    def accept(self, listener):
        """Accept a connection, if no other worker was faster. gunicorn calls this.

        It sleeps before, longer if it has more connections, so a worker that has fewer
        accepts it first. Without this, with 8 connections and 4 workers, the slowest of
        ten runs reached 55 % of the fastest; now 88 %. Many connections are spread
        evenly enough, and would wait: 1,500 at once for half a second.
        """
        if self.nr_conns < 10:
            time.sleep(self.nr_conns * 0.00002)
        super().accept(listener)

    def enqueue_req(self, conn):
        """Receive a request. gunicorn calls this when one begins, or may begin."""
        if not conn.initialized:
            conn.initialized = True
            conn.parser = RequestParser(self.cfg, [], conn.client)
            conn.is_over = False
        conn.data = bytearray(conn.parser.unreader.take_buffered())
        conn.is_whole = False
        conn.reading = read_request(conn, self.cfg, self.longest_body)
        if next(conn.reading, True) or receive(conn):
            super().enqueue_req(conn)
            return
        conn.timeout = time.monotonic() + REQUEST_SECONDS
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_data, conn))

    def on_data(self, conn, sock):
        """Receive more of a request."""
        if receive(conn):
            self.poller.unregister(sock)
            self.pending_conns.remove(conn)
            super().enqueue_req(conn)

    def murder_keepalived(self, force=False):
        """Close connections that have waited too long, or the oldest for a new one.

        gunicorn calls this after each round of events, and then murder_pending.
        """
        if not self.alive:  # wait no longer than gunicorn does for kept connections
            deadline = time.monotonic() + STOP_KEEPALIVE_LINGER
            for conn in self.pending_conns:
                conn.timeout = min(conn.timeout, deadline)
        waiting = self.keepalived_conns or self.pending_conns
        if waiting and self.nr_conns >= self.worker_connections:
            waiting[0].timeout = 0
        super().murder_keepalived(force)

    def handle(self, conn):
        """Handle a request; return whether to keep the connection. A thread calls this.

        After the last response, it is kept until the client closes it, because to close
        it while data arrives would reset it, and the response could be lost.
        """
        if not conn.data:  # the client has closed it
            raise ConnectionAbortedError  # gunicorn closes it, too
        # Drop a client that receives nothing for 5 seconds: the thread waits for it.
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
        conn.parser.unreader.unread(bytes(conn.data))
        conn.data.clear()
        if not super().handle(conn):
            conn.is_over = True
            conn.sock.shutdown(socket.SHUT_WR)
        return True

    def handle_request(self, req, conn):
        """Respond to a request; return whether another one may follow."""
        if not conn.is_whole:
            req.force_close()  # because the rest of its body would be taken for one
        is_kept = super().handle_request(req, conn)
        # Skip what the app has not read. gunicorn skips at most 64 KB, and if it were
        # malformed, gunicorn would respond a second time.
        with suppress(ParseException, OSError):
            conn.parser.finish_body()
        return is_kept


def receive(conn):
    """Receive what has come of a request; return whether nothing more is needed."""
    try:
        received = conn.sock.recv(65_536, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        received = b""
    conn.data += received
    return not received or next(conn.reading, True)


def read_request(conn, cfg, longest_body):
    """Yield whenever ``conn.data`` needs more bytes to hold a request.

    This only finds its end. What gunicorn or the app will refuse ends early.
    """
    data = conn.data
    while conn.is_over:
        data.clear()
        yield
    while (end := data.find(b"\r\n\r\n", 0, LONGEST_HEAD)) < 0:
        if len(data) > LONGEST_HEAD:
            fields = b"x:\r\n" * (cfg.limit_request_fields + 1)
            data[LONGEST_HEAD:] = fields + b"\r\n"
            return  # gunicorn refuses so many fields
        yield
    head, expects = EXPECT.subn(b"", bytes(data[: end + 4]))
    data[: end + 4] = head  # gunicorn would send 100 when the body is there
    start = len(head)
    length = CONTENT_LENGTH.search(head)
    expected = float(length[1]) if length else 0  # int() takes no 5,000 digits
    if expected > longest_body:
        return
    if expects and len(data) == start:
        with suppress(OSError):
            conn.sock.send(b"HTTP/1.1 100 Continue\r\n\r\n", socket.MSG_DONTWAIT)
    while len(data) < start + expected:
        yield
    if CHUNKED.search(head):
        for _ in read_chunks(data, start):
            if len(data) > start + 2 * longest_body + LONGEST_HEAD:
                return
            yield
    conn.is_whole = True


def read_chunks(data, start):
    """Yield whenever ``data`` needs more bytes to hold a chunked body."""
    size = None
    while size != 0:
        while (end := data.find(b"\r\n", start)) < 0:
            yield
        digits = re.match(rb"[0-9a-fA-F]+", data[start:end])
        if not digits:
            return  # gunicorn refuses it
        size = int(digits[0], 16)
        start = end + 2 + size + 2
        while len(data) < start:
            yield
    while data.find(b"\r\n\r\n", end) < 0:  # after the trailers, if there are any
        yield
