# SPDX-License-Identifier: Apache-2.0
"""A small inference server: a linear model behind HTTP, without a framework; it knows of no telemetry.

It prints its port, answers ``POST`` with ``{"inputs": [...]}``, and ends when its stdin does.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WEIGHTS = [[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        inputs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        outputs = [sum(w * x for w, x in zip(row, inputs, strict=True)) for row in WEIGHTS]
        body = json.dumps({"outputs": outputs}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
server.shutdown()
