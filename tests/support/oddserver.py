# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server that answers every request in one chosen, mostly unhelpful, way."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from .httpserver import EndingServer


@dataclass
class OddServer:
    """What it answers, and what it was asked."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    """Take the request and say nothing until the test is over."""
    hang_up: bool = False
    """Close the connection without an answer."""
    port: int = 0
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """(path, headers) of each request so far."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(odd: OddServer) -> Iterator[OddServer]:
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            odd.asked.append((self.path, dict(self.headers)))
            if odd.hang:
                over.wait(120)
            if odd.hang or odd.hang_up:
                self.close_connection = True
                return
            self.send_response(odd.status)
            for name, value in {"Content-Type": "application/json", **odd.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(odd.body)))
            self.end_headers()
            self.wfile.write(odd.body)

        def log_message(self, format: str, *args: object) -> None:
            """Tests say what they need to say."""

    server = EndingServer(("127.0.0.1", 0), Handler)
    odd.port = int(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield odd
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
