# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server of a test, which ends with all its connections."""

from __future__ import annotations

import socket
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any


class EndingServer(ThreadingHTTPServer):
    """When it is closed no thread goes on serving a connection that a client has kept."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._connections: list[socket.socket] = []
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def server_close(self) -> None:
        super().server_close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
