# SPDX-License-Identifier: Apache-2.0
"""What a Tempo answers: found traces, and a trace in its envelope; made from answers seen.

A trace in protobuf is OTLP's TracesData: bare from v1, in field 1 of an envelope from v2. Its JSON is not
OTLP's: ids in base64, enums by name, ``batches`` in v1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from grademl_otel.analyzers.sources.formats import wire
from grademl_otel.analyzers.sources.formats.decoding import Unreadable

_MS: Final = 1_000_000
_MAX_TIME: Final = 2**63 - 1
_PARTIAL: Final = b"\x01"
_PARTIAL_NAMES: Final = ("PARTIAL", "PARTIAL_TRACE", 1)


@dataclass(frozen=True)
class Found:
    """A trace that a search found."""

    trace: int
    start: int
    """Unix ns; of the whole trace, as far as the server has it."""
    end: int
    root: str
    """Name of the root span; what stands there when it has not arrived tells so."""
    spans: int | None
    """Spans of all its services, as the server counts them; None where it does not."""


@dataclass(frozen=True)
class Page:
    """The answer to one search."""

    found: list[Found]
    stopped: bool
    """Whether the server did not look everywhere, because it had enough."""


@dataclass(frozen=True)
class Envelope:
    """A trace as it came, not decoded yet."""

    body: bytes | msgspec.Raw
    """TracesData in protobuf, or a JSON document."""
    protobuf: bool
    partial: str | None
    """Why it is not all of the trace, in the server's words; None where it says nothing of the kind."""


# --- Searches ---------------------------------------------------------------------------------------------


class _Stats(msgspec.Struct, gc=False):
    spanCount: int = 0


class _Trace(msgspec.Struct, gc=False):
    traceID: str = ""
    rootTraceName: str = ""
    startTimeUnixNano: int | str = 0
    durationMs: int = 0
    serviceStats: dict[str, _Stats] | None = None


class _Metrics(msgspec.Struct, gc=False):
    completedJobs: int = 0
    totalJobs: int = 0


class _Page(msgspec.Struct, gc=False):
    traces: list[_Trace] | None = None
    metrics: _Metrics | None = None


_page = msgspec.json.Decoder(_Page, strict=False)


def _message(name: str, *fields: tuple[int, str, int, str]) -> descriptor_pb2.DescriptorProto:
    """Return a message of fields (number, name, type, message type).

    A message type begins with ``?`` where the field is not repeated; other fields have none.
    """
    field = descriptor_pb2.FieldDescriptorProto
    message = descriptor_pb2.DescriptorProto(name=name)
    for number, own, kind, of in fields:
        repeated = bool(of) and not of.startswith("?")
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        message.field.add(
            name=own,
            number=number,
            type=kind,
            label=label,
            type_name=f".grademl.tempo.{of.lstrip('?')}" if of else None,
        )
    return message


def _page_class() -> Any:
    """Build the class of a search's answer: the fields that are read, by the numbers seen."""
    field = descriptor_pb2.FieldDescriptorProto
    text, count, message = field.TYPE_BYTES, field.TYPE_UINT64, field.TYPE_MESSAGE
    file = descriptor_pb2.FileDescriptorProto(
        name="grademl/tempo.proto", package="grademl.tempo", syntax="proto3"
    )
    file.message_type.append(_message("Stats", (1, "spans", count, "")))
    file.message_type.append(_message("Service", (2, "stats", message, "?Stats")))
    file.message_type.append(
        _message(
            "Trace",
            (1, "id", text, ""),
            (3, "root", text, ""),
            (4, "start", count, ""),
            (5, "ms", count, ""),
            (8, "services", message, "Service"),
        )
    )
    file.message_type.append(_message("Metrics", (4, "completed", count, ""), (5, "total", count, "")))
    file.message_type.append(
        _message("Page", (1, "traces", message, "Trace"), (2, "metrics", message, "?Metrics"))
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("grademl.tempo.Page"))


_PAGE: Final = _page_class()


def read_page(body: bytes, protobuf: bool) -> Page:
    """Return what a search found; raises Unreadable."""
    return _protobuf_page(body) if protobuf else _json_page(body)


def _protobuf_page(body: bytes) -> Page:
    try:
        page = _PAGE.FromString(body)
    except DecodeError:
        raise Unreadable("a search's answer that is no protobuf of Tempo's") from None
    found = [
        _found(
            trace.id.decode("ascii", "replace"),
            trace.root.decode("utf-8", "replace"),
            trace.start,
            trace.ms,
            [service.stats.spans for service in trace.services],
        )
        for trace in page.traces
    ]
    return Page(found, page.metrics.completed < page.metrics.total)


def _json_page(body: bytes) -> Page:
    try:
        page = _page.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Unreadable("a search's answer that is not Tempo's JSON") from None
    found = [
        _found(
            trace.traceID,
            trace.rootTraceName,
            _integer(trace.startTimeUnixNano),
            trace.durationMs,
            [stats.spanCount for stats in (trace.serviceStats or {}).values()],
        )
        for trace in page.traces or ()
    ]
    metrics = page.metrics or _Metrics()
    return Page(found, metrics.completedJobs < metrics.totalJobs)


def _found(trace: str, root: str, start: int, ms: int, spans: list[int]) -> Found:
    try:  # leading zeros are cut
        number = int(trace, 16) if len(trace) <= 32 and trace.isalnum() else 0
    except ValueError:
        number = 0
    if not number:
        raise Unreadable(f"a search found {trace[:40]!r}, which is no trace id")
    start = start if 0 <= start <= _MAX_TIME else 0
    end = min(start + max(ms, 0) * _MS + _MS, _MAX_TIME)  # the duration is cut to whole ms
    return Found(number, start, end, root, sum(spans) if any(spans) else None)


def _integer(value: int | str) -> int:
    try:
        return int(value)
    except ValueError:
        return 0


# --- Traces -----------------------------------------------------------------------------------------------


class _Envelope(msgspec.Struct, gc=False):
    trace: msgspec.Raw = msgspec.Raw(b"")
    batches: msgspec.Raw = msgspec.Raw(b"")
    resourceSpans: msgspec.Raw = msgspec.Raw(b"")
    status: int | str | None = None
    message: str | None = None


_envelope = msgspec.json.Decoder(_Envelope)


def open_envelope(body: bytes, protobuf: bool, version: int) -> Envelope | None:
    """Return the trace in the answer of api ``version`` (1 or 2); None for an empty one: no such trace.

    Raises Unreadable.
    """
    if not protobuf:
        return _open_json(body)
    if version == 1:
        return Envelope(body, True, None) if body else None
    trace, partial, message = b"", False, ""
    for field in wire.fields(body):
        value = body[field.start : field.end]
        if (field.number, field.wire) == (1, wire.LENGTH):
            trace += value  # parts of one message add up
        elif (field.number, field.wire) == (3, wire.VARINT):
            partial = value == _PARTIAL
        elif (field.number, field.wire) == (4, wire.LENGTH):
            message = value.decode("utf-8", "replace")
    if not trace and not partial:
        return None
    return Envelope(trace, True, _reason(message) if partial else None)


def _open_json(body: bytes) -> Envelope | None:
    try:
        top = _envelope.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Unreadable("a trace that is not Tempo's JSON") from None
    inner = bytes(top.trace)
    empty = not bytes(top.batches) and not bytes(top.resourceSpans) and inner.strip() in (b"", b"{}", b"null")
    partial = top.status in _PARTIAL_NAMES
    if empty and not partial:
        return None
    return Envelope(body, False, _reason(top.message or "") if partial else None)


def _reason(message: str) -> str:
    return " ".join(message.split())[:200] or "a partial trace"
