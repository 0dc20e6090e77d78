# SPDX-License-Identifier: Apache-2.0
"""A small Jaeger query service over HTTP: spans from OTLP/JSON lines, and the faults that servers have.

It answers as the recorded answers in tests/data/jaeger do: v3 in OTLP/JSON, 404 where nothing matches, errors
as JSON in text/plain, at most as many traces as the limit says, the latest first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.synthetic import jaeger_trace

Trace = list[tuple[dict[str, Any], dict[str, Any]]]
"""(resource, span) of each span, in OTLP/JSON."""
Reply = tuple[int, str, bytes]
"""Status, content type (of a redirect: where to, without parameters), body."""


@dataclass
class FakeJaeger:
    """What the server holds and how it behaves; change it while it runs."""

    lines: bytes = b""
    v3: bool = True
    tenant: str | None = None
    """Required value of the header x-tenant."""
    intercept: Callable[[str], Reply | None] = lambda path: None
    """May answer a path (without parameters) itself; status 0 closes the connection without an answer."""
    port: int = 0
    requests: list[str] = field(default_factory=list)
    """Paths with parameters, in the order received."""
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def traces(self) -> dict[str, Trace]:
        """Return trace id -> (resource, span) of all lines."""
        return _traces(self.lines)

    def answer(self, target: str, tenant: str | None) -> Reply:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        own = self.intercept(parts.path)
        if own is not None:
            return own
        if self.tenant is not None and tenant != self.tenant:
            return 401, "text/plain", b"missing tenant header" if tenant is None else b"unknown tenant"
        if self.v3:
            return self._v3(parts.path, query)
        return self._v1(parts.path, query)

    def _v3(self, path: str, query: dict[str, str]) -> Reply:
        if path == "/api/v3/services":
            return _json({"services": self._services()})
        if path == "/api/v3/traces":
            start, end = _ns(query["query.startTimeMin"]), _ns(query["query.startTimeMax"])
            found = self._search(
                query.get("query.serviceName"), query.get("query.operationName"),
                query.get("query.attributes"), start, end, int(query["query.searchDepth"]),
            )  # fmt: skip
        elif path.startswith("/api/v3/traces/"):
            found = self._trace(path)
        else:
            return 404, "text/plain", b"404 page not found\n"
        if not found:
            body = {"error": {"httpCode": 404, "message": "No traces found"}}
            return 404, "text/plain", json.dumps(body).encode()
        groups = [
            {"resource": resource, "scopeSpans": [{"scope": {}, "spans": [span]}]}
            for trace in found
            for resource, span in trace
        ]
        return _json({"result": {"resourceSpans": groups}})

    def _v1(self, path: str, query: dict[str, str]) -> Reply:
        if path == "/api/services":
            return _json({"data": self._services(), "errors": None})
        if path == "/api/traces":
            found = self._search(
                query.get("service"), query.get("operation"), query.get("tags"),
                int(query["start"]) * 1000, int(query["end"]) * 1000, int(query["limit"]),
            )  # fmt: skip
            return _json({"data": [jaeger_trace(trace) for trace in found], "errors": None})
        if path.startswith("/api/traces/"):
            found = self._trace(path)
            if found:
                return _json({"data": [jaeger_trace(found[0])], "errors": None})
            body = {"data": None, "errors": [{"code": 404, "msg": "trace not found"}]}
            return 404, "text/plain", json.dumps(body).encode()
        return 404, "text/plain", b"404 page not found\n"

    def _trace(self, path: str) -> list[Trace]:
        trace = self.traces().get(path.rpartition("/")[2])
        return [] if trace is None else [trace]

    def _services(self) -> list[str]:
        return sorted({_service(resource) for trace in self.traces().values() for resource, _ in trace})

    def _search(
        self, service: str | None, operation: str | None, tags: str | None, start: int, end: int, limit: int
    ) -> list[Trace]:
        wanted = set(json.loads(tags).items()) if tags else set()

        def matches(resource: dict[str, Any], span: dict[str, Any]) -> bool:
            own = {(a["key"], str(next(iter(a["value"].values()), ""))) for a in span.get("attributes", ())}
            return (
                service in (None, _service(resource))
                and operation in (None, span["name"])
                and start <= int(span["startTimeUnixNano"]) <= end
                and wanted <= own
            )

        found = [t for t in self.traces().values() if any(matches(*both) for both in t)]
        found.sort(key=lambda t: min(int(span["startTimeUnixNano"]) for _, span in t), reverse=True)
        return found[:limit]


@lru_cache(maxsize=4)
def _traces(lines: bytes) -> dict[str, Trace]:
    found: dict[str, Trace] = {}
    for line in lines.splitlines():
        for group in json.loads(line)["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    found.setdefault(span["traceId"], []).append((group["resource"], span))
    return found


def _service(resource: dict[str, Any]) -> str:
    return next((a["value"]["stringValue"] for a in resource["attributes"] if a["key"] == "service.name"), "")


def _json(body: Any) -> Reply:
    return 200, "application/json", json.dumps(body).encode()


def _ns(text: str) -> int:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))


@contextmanager
def serve(fake: FakeJaeger) -> Iterator[FakeJaeger]:
    """Run ``fake`` on a free loopback port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: else each answer takes 40 ms more

        def do_GET(self) -> None:
            fake.requests.append(self.path)
            fake.headers.append(dict(self.headers))
            status, kind, body = fake.answer(self.path, self.headers.get("x-tenant"))
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{kind}?{urlsplit(self.path).query}")
            else:
                self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
