# SPDX-License-Identifier: Apache-2.0
"""A server that does with each connection what a function says: for what no HTTP library would send."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Handle = Callable[["RawServer", socket.socket, bytes], None]


@dataclass
class RawServer:
    """Where it listens, and what it was asked."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    """Heads of requests, in the order received."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the test is over: handlers that go on for ever look at it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving_raw(handle: Handle) -> Iterator[RawServer]:
    """Serve on a free loopback port; ``handle`` gets each connection with the head of its request."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = RawServer(listener.getsockname()[1])
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(30)
            head = b""
            while b"\r\n\r\n" not in head and (some := connection.recv(65536)):
                head += some
            server.requests.append(head)
            handle(server, connection, head)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        server.over.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in threads:
            thread.join(10)


def drip(data: bytes, every_s: float = 0.02) -> Handle:
    """Return a handler that sends ``data`` over and over, a byte at a time."""

    def handle(server: RawServer, connection: socket.socket, head: bytes) -> None:
        while not server.over.is_set():
            for byte in data:
                connection.sendall(bytes((byte,)))
                time.sleep(every_s)

    return handle
