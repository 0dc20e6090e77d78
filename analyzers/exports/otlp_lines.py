# SPDX-License-Identifier: Apache-2.0
"""Spans as OTLP/JSON, a request a line, as the Collector's file exporter writes them.

Ids are hexadecimal, integers of 64 bits are text, what is empty is left out. A line is no longer than the
Collector's receivers of files take by default, but for a span that is longer itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from grademl_otel import semconv
from grademl_otel.analyzers.copy.values import encode_attributes, encode_scope, otlp_pairs
from grademl_otel.analyzers.model.raw import Event
from grademl_otel.analyzers.sources.batch import SpanBatch
from grademl_otel.analyzers.sources.formats.otlp_beside import OTLP_JSON_SPAN, Beside
from grademl_otel.analyzers.sources.formats.otlp_messages import OTLP_PROTO, key_values
from grademl_otel.analyzers.sources.formats.otlp_values import STATUS_DESCRIPTION, otlp_attributes

_LINE: Final = 1_000_000
"""Bytes; `max_log_size` of the Collector's receiver is 1 MiB."""
_DEFAULT_LINK: Final = "follows"
_Json = dict[str, Any]


class Lines:
    """Puts spans together to lines; `resources` and `scopes` are what they name by number."""

    def __init__(self, resources: Sequence[Mapping[str, Any]], scopes: Sequence[Mapping[str, Any]]) -> None:
        self._resources = resources
        self._scopes = scopes
        self._heads: dict[tuple[str, int], bytes] = {}
        self._waiting: dict[int, dict[int, list[bytes]]] = {}
        self._bytes = 0

    def of(self, batches: Iterable[SpanBatch]) -> Iterator[bytes]:
        """Yield lines, each with the spans of a resource and a scope together."""
        for batch in batches:
            groups = zip(batch.resource_ix.tolist(), batch.scope_ix.tolist(), strict=True)
            for (resource, scope), span in zip(groups, _spans(batch), strict=True):
                encoded = msgspec.json.encode(span)
                size = len(encoded) + len(self._resource(resource)) + len(self._scope(scope)) + 64
                if self._waiting and self._bytes + size > _LINE:
                    yield self._line()
                self._waiting.setdefault(resource, {}).setdefault(scope, []).append(encoded)
                self._bytes += size
        if self._waiting:
            yield self._line()

    def _line(self) -> bytes:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        groups = []
        for resource, scopes in waiting.items():
            parts = [
                b"{%b" % self._scope(scope) + b'"spans":[' + b",".join(spans) + b"]}"
                for scope, spans in scopes.items()
            ]
            groups.append(b"{%b" % self._resource(resource) + b'"scopeSpans":[' + b",".join(parts) + b"]}")
        return b'{"resourceSpans":[' + b",".join(groups) + b"]}\n"

    def _resource(self, ix: int) -> bytes:
        key = ("resource", ix)
        if key not in self._heads:
            attributes = encode_attributes(self._resources[ix], portable=True)
            self._heads[key] = b'"resource":{"attributes":%b},' % attributes
        return self._heads[key]

    def _scope(self, ix: int) -> bytes:
        key = ("scope", ix)
        if key not in self._heads:
            self._heads[key] = (
                b"" if ix < 0 else b'"scope":%b,' % encode_scope(self._scopes[ix], portable=True)
            )
        return self._heads[key]


def _spans(batch: SpanBatch) -> Iterator[_Json]:
    columns = zip(
        batch.trace_hi.tolist(), batch.trace_lo.tolist(), batch.span_id.tolist(), batch.parent_id.tolist(),
        batch.names, batch.kind.tolist(), batch.start.tolist(), batch.end.tolist(), batch.status.tolist(),
        batch.flags.tolist(), strict=True,
    )  # fmt: skip
    links = _links(batch)
    form = batch.attributes.form
    for row, (hi, lo, own, parent, name, kind, start, end, status, flags) in enumerate(columns):
        raw = batch.attributes[row]
        attributes = dict(form.attributes(raw))
        message = attributes.pop(STATUS_DESCRIPTION, None)
        events = () if batch.events is None else batch.events.form.events(batch.events[row])
        span = {
            "traceId": f"{hi:016x}{lo:016x}",
            "spanId": f"{own:016x}",
            "parentSpanId": f"{parent:016x}" if parent else "",
            "flags": flags,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
            "attributes": otlp_pairs(attributes),
            "events": [_event(event) for event in events],
            "links": links.get(row, ()),
        }
        if form == OTLP_PROTO:
            span.update(_beside(raw))
        elif form == OTLP_JSON_SPAN:
            span.update(_kept(OTLP_JSON_SPAN.beside(raw), links.get(row, ())))
        filled = _filled(span)
        filled["status"] = _filled({"message": message if isinstance(message, str) else "", "code": status})
        yield filled  # with a status even where that is empty, as the Collector


def _filled(fields: _Json) -> _Json:
    """Return ``fields`` without those that are empty."""
    return {key: value for key, value in fields.items() if value}


def _event(event: Event) -> _Json:
    time = str(min(max(event.time, 0), 2**64 - 1))
    return _filled({"timeUnixNano": time, "name": event.name, "attributes": otlp_pairs(event.attributes)})


def _links(batch: SpanBatch) -> dict[int, list[_Json]]:
    links: dict[int, list[_Json]] = {}
    if batch.links is None:
        return links
    found = batch.links
    ids = zip(found.trace_hi.tolist(), found.trace_lo.tolist(), found.span_id.tolist(), strict=True)
    for row, (hi, lo, span_id), kind in zip(found.span_ix.tolist(), ids, found.kind, strict=True):
        attributes = [] if kind == _DEFAULT_LINK else otlp_pairs({semconv.LINK_KIND: kind})
        link = {"traceId": f"{hi:016x}{lo:016x}", "spanId": f"{span_id:016x}", "attributes": attributes}
        links.setdefault(row, []).append(_filled(link))
    return links


def _kept(beside: Beside, links: Sequence[_Json]) -> _Json:
    """Return what a span of JSON had beside its columns; ``links`` are what these have of its links."""
    found: _Json = {
        "traceState": beside.traceState,
        "droppedAttributesCount": beside.droppedAttributesCount,
        "droppedEventsCount": beside.droppedEventsCount,
        "droppedLinksCount": beside.droppedLinksCount,
    }
    if links and len(links) == len(beside.links):
        found["links"] = [
            _filled(
                {
                    **link,
                    "traceState": more.traceState,
                    "attributes": otlp_pairs(otlp_attributes(bytes(more.attributes))),
                    "droppedAttributesCount": more.droppedAttributesCount,
                    "flags": more.flags,
                }
            )
            for link, more in zip(links, beside.links, strict=True)
        ]
    return found


def _beside(raw: bytes) -> _Json:
    """Return what a span in protobuf has beside its columns."""
    try:
        span = Span.FromString(raw)
    except DecodeError:
        return {}
    found: _Json = {
        "traceState": span.trace_state,
        "droppedAttributesCount": span.dropped_attributes_count,
        "droppedEventsCount": span.dropped_events_count,
        "droppedLinksCount": span.dropped_links_count,
    }
    if any(event.dropped_attributes_count for event in span.events):
        found["events"] = [
            _filled({**_event(_plain(event)), "droppedAttributesCount": event.dropped_attributes_count})
            for event in span.events
        ]
    if span.links:
        found["links"] = [
            _filled(
                {
                    "traceId": link.trace_id.hex(),
                    "spanId": link.span_id.hex(),
                    "traceState": link.trace_state,
                    "attributes": otlp_pairs(key_values(link.attributes)),
                    "droppedAttributesCount": link.dropped_attributes_count,
                    "flags": link.flags,
                }
            )
            for link in span.links
        ]
    return found


def _plain(event: Span.Event) -> Event:
    return Event(event.time_unix_nano, event.name, key_values(event.attributes))
