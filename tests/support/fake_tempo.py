# SPDX-License-Identifier: Apache-2.0
"""A small Tempo over HTTP: spans from OTLP/JSON lines, with rules and limits seen on a real one, and faults.

Its answers have the shapes of those recorded in tests/data/tempo: ids in base64 or without their leading
zeros, enums by name, an empty answer for a trace that is not there, traces cut at a size. A search that is
cut at its limit gives the oldest that match, unless it asks for the newest.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from ssl import SSLContext
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from .httpserver import EndingServer

S = 1_000_000_000
WEEK_S = 168 * 3600
KINDS = ["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
CODES = ["UNSET", "OK", "ERROR"]

Row = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
"""(resource, scope, span), in OTLP/JSON."""
Reply = tuple[int, str, bytes]
"""Status, content type, body; status 0 closes the connection without an answer."""

JSON = "application/json"
PROTOBUF = "application/protobuf"
TEXT = "text/plain; charset=utf-8"


@dataclass
class FakeTempo:
    """What the server holds and how it behaves; change it while it runs."""

    lines: bytes = b""
    v2: bool = True
    protobuf: bool = True
    """Whether it answers in protobuf when asked to."""
    hints: bool = True
    """Whether TraceQL has ``with (most_recent=true)``."""
    tenant: str | None = None
    """Required value of the header X-Scope-OrgID."""
    end_cutoff_s: int = 0
    largest: int = 262_144
    longest_s: int = WEEK_S
    ingest_bytes: int | None = None
    """Traces are cut at this size when they come in, and nobody is told."""
    query_bytes: int | None = None
    """Traces above this size are cut by v2, which says so, and refused by v1."""
    answer_traces: int | None = None
    """Searches that match more are refused as too large, whatever their limit."""
    late: dict[str, int] = field(default_factory=dict)
    """Trace id -> Unix s at which it came in: searches find it only if they reach from its end to then."""
    stats_of: Callable[[str, int], int] = lambda trace, spans: spans
    """(trace id, spans held) -> the number of spans that a search tells."""
    intercept: Callable[[str], Reply | None] = lambda path: None
    """May answer a path (without parameters) itself."""
    metrics: bytes = b""
    port: int = 0
    requests: list[str] = field(default_factory=list)
    """Paths with parameters, in the order received."""
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    """Requests answered at the same time, at most."""

    @property
    def url(self) -> str:
        return f"tempo://127.0.0.1:{self.port}"

    def traces(self) -> dict[str, list[Row]]:
        """Return trace id -> spans that are kept."""
        return _traces(self.lines) if self.ingest_bytes is None else _kept(self.lines, self.ingest_bytes)

    def answer(self, target: str, headers: dict[str, str]) -> Reply:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        own = self.intercept(parts.path)
        if own is not None:
            return own
        if parts.path == "/api/echo":
            return 200, TEXT, b"echo"
        if parts.path == "/api/status/buildinfo":
            return 200, JSON, b'{"version":"3.0.3","revision":"1900ed7bb5"}\n'
        if parts.path == "/metrics" and self.metrics:
            return 200, TEXT, self.metrics
        if self.tenant is not None and headers.get("x-scope-orgid") is None:
            return 401, TEXT, b"no org id\n"
        foreign = self.tenant not in (None, headers.get("x-scope-orgid"))
        held = {} if foreign else self.traces()
        wants = headers.get("accept", "") == PROTOBUF and self.protobuf
        if parts.path == "/api/search":
            return self._search(query, held, wants)
        if parts.path == "/api/v2/search/tag/resource.service.name/values":
            names = sorted({_service(resource) for rows in held.values() for resource, _, _ in rows})
            return _json({"tagValues": [{"type": "string", "value": name} for name in names], "metrics": {}})
        if match := re.fullmatch(r"/api/(v2/)?traces/([^/]+)", parts.path):
            if match[1] and not self.v2:
                return 404, TEXT, b"404 page not found\n"
            return self._trace(match[2], held, 2 if match[1] else 1, wants)
        return 404, TEXT, b"404 page not found\n"

    def _trace(self, trace: str, held: dict[str, list[Row]], version: int, wants: bool) -> Reply:
        if not re.fullmatch(r"[0-9a-fA-F]+", trace):
            return (
                400,
                TEXT,
                b"trace IDs can only contain hex characters: invalid character 'z' at position 1",
            )
        rows, partial = held.get(trace.lower().zfill(32)), ""
        if rows is None:
            if version == 1:
                return 404, "", b""
            return (200, PROTOBUF, b"\x0a\x00\x12\x00") if wants else _json({"trace": {}, "metrics": {}})
        if self.query_bytes is not None and traces_data(rows).ByteSize() > self.query_bytes:
            if version == 1:
                limit = f"trace exceeds max size (max bytes: {self.query_bytes})"
                return 422, TEXT, f"error querying live-stores: {limit}".encode()
            rows = _cut(rows, self.query_bytes)
            partial = f"Trace exceeds maximum size of {self.query_bytes} bytes, a partial trace is returned"
        if wants:
            body = traces_data(rows).SerializeToString()
            if version == 2:
                body = _field(1, body) + _field(2, b"\x08\x9a")
                body += b"\x18\x01" + _field(4, partial.encode()) if partial else b""
            return 200, PROTOBUF, body
        groups = tempo_json(rows)
        if version == 1:
            return _json({"batches": groups})
        said = {"status": "PARTIAL", "message": partial} if partial else {}
        return _json({"trace": {"resourceSpans": groups}, "metrics": {"inspectedBytes": "7"}, **said})

    def _search(self, query: dict[str, str], held: dict[str, list[Row]], wants: bool) -> Reply:
        now = int(time.time())
        given = [query.get("start", ""), query.get("end", "")]
        if any(given):
            for name, text in zip(("start", "end"), given, strict=True):
                if text and (not text.isdigit() or int(text) >= 2**32):
                    return _refused(
                        f'invalid {name}: strconv.ParseUint: parsing "{text}": value out of range'
                    )
            start, end = (int(text or 0) for text in given)
        else:
            start, end = now - 900, now
        if start >= end:
            return _refused(f"http parameter start must be before end. received start={start} end={end}")
        if end - start > self.longest_s:
            hours = f"{self.longest_s // 3600}h{self.longest_s // 60 % 60}m{self.longest_s % 60}s"
            return _refused(
                f"range specified by start and end exceeds {hours}. received start={start} end={end}"
            )
        end = min(end, now - self.end_cutoff_s) if self.end_cutoff_s else end
        limit = int(query.get("limit", "20"))
        if limit < 1:
            return _refused("invalid limit: must be a positive number")
        if limit > self.largest:
            return _refused(f"limit {limit} exceeds max limit {self.largest}")
        if int(query.get("spss", "3")) > 100:
            return _refused(f"spans per span set exceeds 100. received {query['spss']}")
        match = re.fullmatch(r"\{ (.*?) ?\}( with \(most_recent=true\))?", query["q"], re.DOTALL)
        if match is None or (match[2] and not self.hints):
            return _refused(
                "invalid TraceQL query: parse error at line 1, col 24: syntax error: unexpected $end"
            )
        wanted = _condition(match[1])
        found = [
            (trace, rows)
            for trace, rows in held.items()
            if self._reaches(trace, rows, start, end) and any(wanted(*row) for row in rows)
        ]
        found.sort(key=lambda one: min(_start(row) for row in one[1]))
        if self.answer_traces is not None and len(found) > self.answer_traces:
            return 500, TEXT, b"response larger than the max (34937796 vs 16777216)"
        stopped = len(found) > limit
        found = (found[-limit:] if match[2] else found[:limit])[::-1]
        hits = [self._hit(trace, rows) for trace, rows in found]
        jobs = {"completedJobs": 2 if stopped else 3, "totalJobs": 3}
        if not wants:
            return _json({"traces": hits, "metrics": {"inspectedBytes": "19266", **jobs}})
        body = b"".join(_field(1, _hit_protobuf(hit)) for hit in hits)
        return 200, PROTOBUF, body + _field(2, bytes([0x20, jobs["completedJobs"], 0x28, 3]))

    def _reaches(self, trace: str, rows: list[Row], start: int, end: int) -> bool:
        first, last = min(map(_start, rows)), max(map(_end, rows))
        if trace in self.late:
            return start <= last // S and end >= self.late[trace] - 120
        return first < end * S and last >= start * S

    def _hit(self, trace: str, rows: list[Row]) -> dict[str, Any]:
        first, last = min(map(_start, rows)), max(map(_end, rows))
        roots = [(resource, span) for resource, _, span in rows if not span.get("parentSpanId")]
        services: dict[str, int] = {}
        for resource, _, _ in rows:
            services[_service(resource)] = services.get(_service(resource), 0) + 1
        first_service = next(iter(services))
        services[first_service] += self.stats_of(trace, len(rows)) - len(rows)
        missing = "<root span not yet received>"
        return {
            "traceID": trace.lstrip("0"),
            "rootServiceName": _service(roots[0][0]) if roots else missing,
            "rootTraceName": roots[0][1]["name"] if roots else "",
            "startTimeUnixNano": str(first),
            "durationMs": (last - first) // 1_000_000,
            "serviceStats": {name: {"spanCount": count} for name, count in services.items()},
        }


# --- TraceQL, as far as it is asked -------------------------------------------------------------------------

_TERM = re.compile(
    r'(resource\.[\w.]+|name|\."(?:[^"\\]|\\.)*"|\.[\w.]+) (=~|=) ("(?:[^"\\]|\\.)*"|[^\s()]+)', re.DOTALL
)


def _condition(text: str) -> Callable[..., bool]:
    """Return what tells whether a span matches terms that are joined by && or, in parentheses, by ||."""
    groups: list[list[tuple[str, str, Any]]] = []
    at = 0
    while at < len(text):
        inside = text[at] == "("
        at += inside
        group = []
        while True:
            term = _TERM.match(text, at)
            assert term is not None, text[at:]
            group.append((term[1], term[2], json.loads(term[3])))
            at = term.end()
            if not inside or text[at] == ")":
                break
            at += len(" || ")
        at += inside
        groups.append(group)
        at += len(" && ")
    return lambda resource, _, span: all(any(_holds(t, resource, span) for t in group) for group in groups)


def _holds(term: tuple[str, str, Any], resource: dict[str, Any], span: dict[str, Any]) -> bool:
    field_, operator, wanted = term
    if field_ == "name":
        return bool(span["name"] == wanted)
    holders = [resource] if field_.startswith("resource.") else [span, resource]
    key = field_.removeprefix("resource.").removeprefix(".")
    key = json.loads(key) if key.startswith('"') else key
    for attribute in [a for holder in holders for a in holder.get("attributes", ()) if a["key"] == key]:
        ((kind, raw),) = attribute["value"].items()
        value = int(raw) if kind == "intValue" else raw
        if operator == "=~" and re.fullmatch(wanted, str(value)):
            return True
        if operator == "=" and type(value) is type(wanted) and value == wanted:
            return True
    return False


# --- Shapes -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _traces(lines: bytes) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for line in lines.splitlines():
        for group in json.loads(line)["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    row = (group["resource"], scope.get("scope", {}), span)
                    found.setdefault(span["traceId"].lower().zfill(32), []).append(row)
    return found


@lru_cache(maxsize=4)
def _kept(lines: bytes, limit: int) -> dict[str, list[Row]]:
    return {trace: _cut(rows, limit) for trace, rows in _traces(lines).items()}


def _cut(rows: list[Row], limit: int) -> list[Row]:
    kept, size = [], 0
    for row in rows:
        size += len(traces_data([row]).resource_spans[0].scope_spans[0].spans[0].SerializeToString())
        if size > limit:
            break
        kept.append(row)
    return kept


def _groups(rows: list[Row]) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for resource, scope, span in rows:
        key = json.dumps([resource, scope], sort_keys=True)
        group = {"resource": resource, "scopeSpans": [{"scope": scope, "spans": []}]}
        groups.setdefault(key, group)["scopeSpans"][0]["spans"].append(span)
    return list(groups.values())


def traces_data(rows: list[Row]) -> TracesData:
    """Return spans as OTLP's message."""
    data = TracesData()
    json_format.ParseDict({"resourceSpans": _rebased(_groups(rows), False)}, data)
    return data


def tempo_json(rows: list[Row]) -> list[dict[str, Any]]:
    """Return resource spans as Tempo writes them."""
    return _rebased(_groups(rows), True)


def _rebased(groups: list[dict[str, Any]], names: bool) -> list[dict[str, Any]]:
    """Return ``groups`` with ids in base64, as protobuf's own JSON has them, enums by name if ``names``."""

    def span(one: dict[str, Any]) -> dict[str, Any]:
        out = dict(one)
        for key, size in (("traceId", 32), ("spanId", 16), ("parentSpanId", 16)):
            if out.get(key):
                out[key] = base64.b64encode(bytes.fromhex(out[key].zfill(size))).decode()
        out["links"] = [span(link) for link in out.get("links", ())]
        if names and "kind" in out:
            out["kind"] = f"SPAN_KIND_{KINDS[out['kind']]}"
        if names and "code" in out.get("status", {}):
            out["status"] = {**out["status"], "code": f"STATUS_CODE_{CODES[out['status']['code']]}"}
        return {key: value for key, value in out.items() if value != []}

    return [
        {
            **group,
            "scopeSpans": [{**s, "spans": [span(one) for one in s["spans"]]} for s in group["scopeSpans"]],
        }
        for group in groups
    ]


def _hit_protobuf(hit: dict[str, Any]) -> bytes:
    out = _field(1, hit["traceID"].encode()) + _field(2, hit["rootServiceName"].encode())
    out += _field(3, hit["rootTraceName"].encode())
    out += b"\x20" + _varint(int(hit["startTimeUnixNano"])) + b"\x28" + _varint(hit["durationMs"])
    for name, stats in hit["serviceStats"].items():
        out += _field(8, _field(1, name.encode()) + _field(2, b"\x08" + _varint(stats["spanCount"])))
    return out


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _service(resource: dict[str, Any]) -> str:
    return next((a["value"]["stringValue"] for a in resource["attributes"] if a["key"] == "service.name"), "")


def _start(row: Row) -> int:
    return int(row[2]["startTimeUnixNano"])


def _end(row: Row) -> int:
    return int(row[2]["endTimeUnixNano"])


def _json(body: Any) -> Reply:
    return 200, JSON, json.dumps(body).encode()


def _refused(text: str) -> Reply:
    return 400, TEXT, text.encode()


@contextmanager
def serve(fake: FakeTempo, tls: SSLContext | None = None) -> Iterator[FakeTempo]:
    """Run ``fake`` on a free loopback port until the block ends; with TLS if ``tls`` is given."""
    lock = Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: else each answer takes 40 ms more

        def do_GET(self) -> None:
            fake.requests.append(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            fake.headers.append(headers)
            with lock:
                fake.at_once += 1
                fake.most_at_once = max(fake.most_at_once, fake.at_once)
            try:
                status, kind, body = fake.answer(self.path, headers)
            finally:
                with lock:
                    fake.at_once -= 1
            if status == 0:
                self.close_connection = True
                return
            self.send_response(status)
            if kind:
                self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = EndingServer(("127.0.0.1", 0), Handler)
    fake.port = server.server_address[1]
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
