# SPDX-License-Identifier: Apache-2.0
"""Batches of spans as OTLP export requests of bounded size.

A span that was read from OTLP protobuf travels as the bytes that it was. Any other is put together from its
fields, attributes, events and links, and what OTLP/JSON says beside these (trace states, attributes of links,
counts of what an SDK dropped); readers of other formats pass over that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from grademl_otel import semconv
from grademl_otel.analyzers.model.raw import RawColumn
from grademl_otel.analyzers.sources.batch import SpanBatch
from grademl_otel.analyzers.sources.formats.otlp_beside import OTLP_JSON_SPAN, Beside, LinkBeside
from grademl_otel.analyzers.sources.formats.otlp_messages import OTLP_PROTO
from grademl_otel.analyzers.sources.formats.otlp_values import (
    OTLP_JSON,
    STATUS_DESCRIPTION,
    otlp_attributes,
)

MAX_BYTES: Final = 3_900_000
"""Receivers take 4 MiB by default."""
_MAX_SPANS: Final = 8_192
_FRAME: Final = 8
"""Bytes before a message in another, at most."""
_INT64: Final = range(-(2**63), 2**63)

Group = tuple[int, int]
"""Resource and scope, by their numbers; the scope -1 for none."""


@dataclass(frozen=True)
class Request:
    """Spans that are sent together."""

    spans: Sequence[tuple[Group, bytes]]
    packer: Packer = field(repr=False, compare=False)

    @property
    def count(self) -> int:
        return len(self.spans)

    def body(self) -> bytes:
        """Return it as an `ExportTraceServiceRequest`."""
        return self.packer.body(self)

    def halves(self) -> tuple[Request, ...]:
        """Return two requests for one that is too large; none where it is of one span."""
        middle = len(self.spans) // 2
        parts = (self.spans[:middle], self.spans[middle:])
        return tuple(Request(part, self.packer) for part in parts) if middle else ()


@dataclass
class Packer:
    """Gathers spans and hands each full request to ``send``; `resources` and `scopes` are what they name."""

    resources: Sequence[Mapping[str, Any]]
    scopes: Sequence[Mapping[str, Any]]
    send: Callable[[Request], None]
    rebuilt: int = 0
    """Spans that were put together from what a reader of another format than OTLP keeps."""
    _waiting: list[tuple[Group, bytes]] = field(default_factory=list)
    _named: set[Group] = field(default_factory=set)
    """The groups of the spans that wait."""
    _bytes: int = 0
    _heads: dict[Group, tuple[bytes, bytes]] = field(default_factory=dict)
    """Resource and scope of each group so far, as fields."""

    def add(self, batch: SpanBatch) -> None:
        """Take the spans of ``batch``."""
        groups = zip(batch.resource_ix.tolist(), batch.scope_ix.tolist(), strict=True)
        for group, message in zip(groups, self._messages(batch), strict=True):
            size = len(message) + _FRAME + self._head_bytes(group)
            if self._waiting and (self._bytes + size > MAX_BYTES or len(self._waiting) >= _MAX_SPANS):
                self.flush()
                size = len(message) + _FRAME + self._head_bytes(group)
            self._waiting.append((group, message))
            self._named.add(group)
            self._bytes += size

    def flush(self) -> None:
        """Send what is waiting."""
        if self._waiting:
            request = Request(self._waiting, self)
            self._waiting, self._named, self._bytes = [], set(), 0
            self.send(request)

    def body(self, request: Request) -> bytes:
        """Return ``request`` as bytes."""
        by_group: dict[Group, list[bytes]] = {}
        for group, message in request.spans:
            by_group.setdefault(group, []).append(message)
        by_resource: dict[int, list[bytes]] = {}
        for (resource, scope), messages in by_group.items():
            head, own = self._head((resource, scope))
            parts = [own, *(message_field(2, message) for message in messages)]
            by_resource.setdefault(resource, [head]).append(message_field(2, b"".join(parts)))
        return b"".join(message_field(1, b"".join(parts)) for parts in by_resource.values())

    def _head(self, group: Group) -> tuple[bytes, bytes]:
        """Return the resource and the scope of ``group``, each as the field that it is in its message."""
        if group not in self._heads:
            resource, scope = group
            own = message_field(1, _scope(self.scopes[scope])) if scope >= 0 else b""
            self._heads[group] = message_field(1, _resource(self.resources[resource])), own
        return self._heads[group]

    def _head_bytes(self, group: Group) -> int:
        """Return by how much a span of ``group`` makes what waits larger beside itself."""
        return 0 if group in self._named else sum(map(len, self._head(group))) + 2 * _FRAME

    def _messages(self, batch: SpanBatch) -> Iterator[bytes]:
        raws = batch.attributes
        if raws.form == OTLP_PROTO:
            return (raws[row] for row in range(len(batch)))
        if raws.form not in (OTLP_JSON, OTLP_JSON_SPAN):
            self.rebuilt += len(batch)
        return _rebuilt(batch)


def message_field(number: int, message: bytes) -> bytes:
    """Return a field of a message that holds ``message``: its tag, its length, and it."""
    size, varint = len(message), bytearray()
    while size > 127:
        varint.append(size & 127 | 128)
        size >>= 7
    varint.append(size)
    return bytes((number << 3 | 2, *varint)) + message


def _rebuilt(batch: SpanBatch) -> Iterator[bytes]:
    links, with_beside = _links(batch), batch.attributes.form == OTLP_JSON_SPAN
    columns = zip(
        batch.trace_hi.tolist(), batch.trace_lo.tolist(), batch.span_id.tolist(), batch.parent_id.tolist(),
        batch.names, batch.kind.tolist(), batch.start.tolist(), batch.end.tolist(), batch.status.tolist(),
        batch.flags.tolist(), strict=True,
    )  # fmt: skip
    for row, (hi, lo, own, parent, name, kind, start, end, status, flags) in enumerate(columns):
        attributes = dict(batch.attributes.form.attributes(batch.attributes[row]))
        message = attributes.pop(STATUS_DESCRIPTION, None)
        own_links = links.get(row, [])
        beside = OTLP_JSON_SPAN.beside(batch.attributes[row]) if with_beside else _NOTHING
        if len(own_links) == len(beside.links):
            for link, more in zip(own_links, beside.links, strict=True):
                _add(link, more)
        yield Span(
            trace_id=hi.to_bytes(8, "big") + lo.to_bytes(8, "big"),
            span_id=own.to_bytes(8, "big"),
            parent_span_id=parent.to_bytes(8, "big") if parent else b"",
            name=name,
            kind=kind,
            start_time_unix_nano=start,
            end_time_unix_nano=end,
            attributes=_pairs(attributes),
            events=_events(batch.events, row),
            links=own_links,
            trace_state=beside.traceState,
            dropped_attributes_count=beside.droppedAttributesCount,
            dropped_events_count=beside.droppedEventsCount,
            dropped_links_count=beside.droppedLinksCount,
            status=Status(code=status, message=message if isinstance(message, str) else ""),
            flags=flags,
        ).SerializeToString()


def _add(link: Span.Link, more: LinkBeside) -> None:
    """Add to a link what it says beside the span that it names."""
    del link.attributes[:]
    link.attributes.extend(_pairs(otlp_attributes(bytes(more.attributes))))
    link.trace_state, link.flags = more.traceState, more.flags
    link.dropped_attributes_count = more.droppedAttributesCount


_NOTHING: Final = Beside()


def _events(column: RawColumn | None, row: int) -> list[Span.Event]:
    if column is None:
        return []
    return [
        Span.Event(
            time_unix_nano=min(max(event.time, 0), 2**64 - 1),
            name=event.name,
            attributes=_pairs(event.attributes),
        )
        for event in column.form.events(column[row])
    ]


def _links(batch: SpanBatch) -> dict[int, list[Span.Link]]:
    links: dict[int, list[Span.Link]] = {}
    if batch.links is None:
        return links
    found = batch.links
    ids = zip(found.trace_hi.tolist(), found.trace_lo.tolist(), found.span_id.tolist(), strict=True)
    for row, (hi, lo, span_id), kind in zip(found.span_ix.tolist(), ids, found.kind, strict=True):
        links.setdefault(row, []).append(
            Span.Link(
                trace_id=hi.to_bytes(8, "big") + lo.to_bytes(8, "big"),
                span_id=span_id.to_bytes(8, "big"),
                attributes=[] if kind == _DEFAULT_LINK else _pairs({semconv.LINK_KIND: kind}),
            )
        )
    return links


_DEFAULT_LINK: Final = "follows"


def _resource(attributes: Mapping[str, Any]) -> bytes:
    message: bytes = Resource(attributes=_pairs(attributes)).SerializeToString()
    return message


def _scope(scope: Mapping[str, Any]) -> bytes:
    message: bytes = InstrumentationScope(
        name=str(scope.get("name") or ""),
        version=str(scope.get("version") or ""),
        attributes=_pairs(scope.get("attributes") or {}),
    ).SerializeToString()
    return message


def _pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items()]


def _any(value: Any) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bool):  # before int: a bool is one in Python
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value) if value in _INT64 else AnyValue(string_value=str(value))
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=_pairs(value)))
    if isinstance(value, (list, tuple)):
        return AnyValue(array_value=ArrayValue(values=[_any(item) for item in value]))
    return AnyValue()
