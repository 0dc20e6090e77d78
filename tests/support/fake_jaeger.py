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
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.httpserver import EndingServer
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
    summaries: bool = False
    """Whether it has trace summaries, as v2.19 on has."""
    rows: bool = False
    """Whether a search looks at three times the limit of spans, as on Cassandra."""
    page: bool = False
    """Whether unknown paths get the page of the user interface, as they do from a real one."""
    largest: int = 1_000_000
    """Largest limit of a search."""
    withheld: dict[str, int] = field(default_factory=dict)
    """Trace id -> number of its spans that are counted and not given."""
    pack: Callable[[bytes], tuple[str, bytes]] | None = None
    """Returns a Content-Encoding and the body in it."""
    cut: Callable[[str], int | None] = lambda path: None
    """After how many bytes of the answer to a path the connection closes."""
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
        status, kind, body = self._v3(parts.path, query) if self.v3 else self._v1(parts.path, query)
        if self.page and body == _NOT_FOUND:
            return 200, "text/html", b"<!doctype html><title>Jaeger UI</title>"
        return status, kind, body

    def _v3(self, path: str, query: dict[str, str]) -> Reply:
        if path == "/api/v3/services":
            return _json({"services": self._services()})
        if path == "/api/v3/traces" or (path == "/api/v3/trace-summaries" and self.summaries):
            start, end = _ns(query["query.startTimeMin"]), _ns(query["query.startTimeMax"])
            found = self._search(
                query.get("query.serviceName"), query.get("query.operationName"),
                query.get("query.attributes"), start, end, int(query["query.searchDepth"]),
            )  # fmt: skip
            if found is None:
                return _TOO_DEEP
            if found and path.endswith("summaries"):
                return _json({"summaries": [_summary(trace) for trace in found]})
        elif path.startswith("/api/v3/traces/"):
            found = self._trace(path)
        else:
            return 404, "text/plain", _NOT_FOUND
        if not found:
            body = {"error": {"httpCode": 404, "message": "No traces found"}}
            return 404, "text/plain", json.dumps(body).encode()
        groups = [
            {"resource": resource, "scopeSpans": [{"scope": {}, "spans": [span]}]}
            for trace in found
            for resource, span in trace[: len(trace) - self.withheld.get(trace[0][1]["traceId"], 0)]
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
            if found is None:
                return _TOO_DEEP
            return _json({"data": [jaeger_trace(trace) for trace in found], "errors": None})
        if path.startswith("/api/traces/"):
            found = self._trace(path)
            if found:
                return _json({"data": [jaeger_trace(found[0])], "errors": None})
            body = {"data": None, "errors": [{"code": 404, "msg": "trace not found"}]}
            return 404, "text/plain", json.dumps(body).encode()
        return 404, "text/plain", _NOT_FOUND

    def _trace(self, path: str) -> list[Trace]:
        trace = self.traces().get(path.rpartition("/")[2])
        return [] if trace is None else [trace]

    def _services(self) -> list[str]:
        return sorted({_service(resource) for trace in self.traces().values() for resource, _ in trace})

    def _search(
        self, service: str | None, operation: str | None, tags: str | None, start: int, end: int, limit: int
    ) -> list[Trace] | None:
        """Return the traces found, the latest first; None where the limit is refused."""
        if limit > self.largest:
            return None
        wanted = set(json.loads(tags).items()) if tags else set()

        def matches(resource: dict[str, Any], span: dict[str, Any]) -> bool:
            own = {(a["key"], str(next(iter(a["value"].values()), ""))) for a in span.get("attributes", ())}
            return (
                service in (None, _service(resource))
                and operation in (None, span["name"])
                and start <= int(span["startTimeUnixNano"]) <= end
                and wanted <= own
            )

        if self.rows:
            hits = [
                (int(both[1]["startTimeUnixNano"]), trace_id)
                for trace_id, trace in self.traces().items()
                for both in trace
                if matches(*both)
            ]
            latest = [trace_id for _, trace_id in sorted(hits, reverse=True)[: 3 * limit]]
            return [self.traces()[trace_id] for trace_id in dict.fromkeys(latest)][:limit]
        found = [t for t in self.traces().values() if any(matches(*both) for both in t)]
        found.sort(key=_start, reverse=True)
        return found[:limit]


_NOT_FOUND = b"404 page not found\n"
_TOO_DEEP = (
    500,
    "text/plain",
    b'{"error":{"httpCode":500,"message":"search depth must be greater than 0 and less than max traces"}}',
)


def _start(trace: Trace) -> int:
    return min(int(span["startTimeUnixNano"]) for _, span in trace)


def _summary(trace: Trace) -> dict[str, Any]:
    return {
        "traceId": trace[0][1]["traceId"],
        "minStartTimeUnixNano": str(_start(trace)),
        "maxEndTimeUnixNano": str(max(int(span["endTimeUnixNano"]) for _, span in trace)),
        "spanCount": len(trace),
    }


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
            if fake.pack is not None and status == 200:
                encoding, body = fake.pack(body)
                self.send_header("Content-Encoding", encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            kept = fake.cut(urlsplit(self.path).path)
            self.wfile.write(body if kept is None else body[:kept])
            if kept is not None:
                self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            pass

    server = EndingServer(("127.0.0.1", 0), Handler)
    fake.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
