# SPDX-License-Identifier: Apache-2.0
"""A server that sends as many bytes as it is asked for, behind a proxy that lets through so many per second.

    python -m benchmarks.throttled BYTES_PER_SECOND

It prints the port of the proxy, and ends when its standard input does. All connections share one rate. What
goes through passes the loopback twice: from the server to the proxy, and on to whoever asked.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from typing import Final

_ASKED: Final = struct.Struct("!Q")
_CHUNK: Final = 1 << 15
_BUFFER: Final = 1 << 18
_BEHIND_S: Final = 0.02
"""So much of what was not used is made up for: nobody wakes in time."""


class Rate:
    """So many bytes per second, for whoever takes them."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._due = 0.0
        self._lock = threading.Lock()

    def take(self, number: int) -> None:
        """Return when ``number`` bytes may have gone through."""
        with self._lock:
            now = time.perf_counter()
            self._due = max(self._due, now - _BEHIND_S) + number / self._rate
            left = self._due - now
        if left > 0:
            time.sleep(left)


def ask_for(connection: socket.socket, number: int) -> None:
    """Have ``number`` bytes sent, and wait until all are there. Raises ConnectionError."""
    connection.sendall(_ASKED.pack(number))
    left = number
    while left:
        got = len(connection.recv(min(left, _CHUNK)))
        if not got:
            raise ConnectionError("the server has closed the connection")
        left -= got


def _listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    # What is under way is in no buffer of megabytes, that fill as fast as memory does.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return listener


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_send, args=(connection,), daemon=True).start()


def _send(connection: socket.socket) -> None:
    chunk = bytes(_CHUNK)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while asked := connection.recv(_ASKED.size, socket.MSG_WAITALL):
        (left,) = _ASKED.unpack(asked)
        while left:
            left -= connection.send(chunk[: min(left, _CHUNK)])


def _pass_on(listener: socket.socket, server: int, rate: Rate) -> None:
    while True:
        asking, _ = listener.accept()
        answering = socket.socket()
        answering.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        answering.connect(("127.0.0.1", server))
        asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else the end of an answer waits
        threading.Thread(target=_copy, args=(asking, answering, None), daemon=True).start()
        threading.Thread(target=_copy, args=(answering, asking, rate), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, rate: Rate | None) -> None:
    try:
        while data := source.recv(_CHUNK):
            if rate is not None:
                rate.take(len(data))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # either side may be gone first


def main() -> None:
    rate = Rate(float(sys.argv[1]))
    server, proxy = _listening(), _listening()
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    threading.Thread(target=_pass_on, args=(proxy, server.getsockname()[1], rate), daemon=True).start()
    print(proxy.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
