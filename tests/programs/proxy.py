"""Carries bytes between its clients and servers: python proxy.py PORT HOST:PORT...

Each new connection goes to the next server that accepts it.
"""

import select
import socket
import sys
from threading import Thread

port = int(sys.argv[1])
servers = sys.argv[2:]


def connect():
    """A connection to the next server that accepts one."""
    while True:
        servers.append(servers.pop(0))
        host, _, number = servers[0].partition(":")
        try:
            return socket.create_connection((host, number))
        except OSError:
            continue


def carry(client):
    """Carry bytes both ways until one side ends; then close both."""
    with client, connect() as server:
        other = {client: server, server: client}
        while True:
            readable, _, _ = select.select(other, [], [])
            for source in readable:
                data = source.recv(65_536)
                if not data:
                    return
                other[source].sendall(data)


with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
    while True:
        client, _ = listener.accept()
        Thread(target=carry, args=[client]).start()
