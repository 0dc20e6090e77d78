# SPDX-License-Identifier: Apache-2.0
"""Tells JSON documents apart by their keys and hands them to their readers, the envelopes of any opened."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.batch import SpanTarget
from grademl_otel.analyzers.sources.formats import jaeger_json, kineto, zipkin
from grademl_otel.analyzers.sources.formats.decoding import NotJson, Unreadable
from grademl_otel.analyzers.sources.formats.jsonscan import scan
from grademl_otel.analyzers.sources.formats.otlp_json import read_resource_spans

GROUPS: Final = ("resourceSpans", "resource_spans", "batches")
"""Keys of OTLP's spans; Tempo calls them batches."""
SCOPES: Final = frozenset(
    {
        "scopeSpans", "scope_spans",
        "instrumentationLibrarySpans", "instrumentation_library_spans",
    }
)  # fmt: skip
ENVELOPES: Final = ("result", "trace", "data")
"""Keys of what answers of Jaeger and Tempo are put into."""
EVENTS: Final = "traceEvents"
BIG: Final = frozenset({*GROUPS, *ENVELOPES, "spans", EVENTS})
"""Keys under which most of a document is."""
_OTHER_SIGNALS: Final = ("resourceMetrics", "resourceLogs", "resource_metrics", "resource_logs")
_FAULTS: Final = ("error", "errors")
KNOWN: Final = frozenset({*BIG, *_OTHER_SIGNALS, *_FAULTS, "processes", "traceID"})
MAX_ENVELOPES: Final = 4

_FIRST_KEY: Final = re.compile(rb'\s*(\[?)\s*\{\s*"([^"\\]*)"\s*:\s*')
_PHASE: Final = re.compile(rb'"ph"\s*:\s*"')
_FIRST_LOOK: Final = 1 << 16
_list = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NONE_OF_THEM: Final = (
    "neither OTLP nor Jaeger JSON, nor Zipkin's, nor a profiler's:"
    " no resourceSpans, data, result or traceEvents in it"
)


_SIGNS: Final = (
    ("OTLP JSON", re.compile(rb'"(?:resource_?(?:[sS]pans|[mM]etrics|[lL]ogs)|batches)"')),
    ("Jaeger JSON", re.compile(rb'"(?:traceID|spanID|processes)"')),
    ("Zipkin JSON", re.compile(rb'"(?:localEndpoint|remoteEndpoint|parentId|timestamp|traceId)"')),
    ("a profiler's JSON", re.compile(rb'"(?:traceEvents|ph|deviceProperties|displayTimeUnit)"')),
)
"""Keys that come early in each kind of document, and in no other before its own."""


def called(head: bytes) -> str:
    """Return what people call a document that begins with ``head``: its kind if that is seen, else JSON."""
    found = [(match.start(), name) for name, sign in _SIGNS if (match := sign.search(head))]
    return min(found)[1] if found else "JSON"


def first_key(raw: bytes | msgspec.Raw) -> bytes:
    """Return the first key of an object, or of the first object of an array; b"" where there is none."""
    match = _FIRST_KEY.match(raw)
    return match.group(2) if match else b""


def is_events(raw: bytes | msgspec.Raw) -> bool:
    """Whether an array, which may be broken, begins with an event of a profiler."""
    text = bytes(memoryview(raw)[:_FIRST_LOOK]).lstrip()
    if not text.startswith(b"["):
        return False
    end, comma = scan(text, 1, len(text), True)
    first = text[1 : comma if comma >= 0 else end if end >= 0 else len(text)]
    try:
        return "ph" in _object.decode(first)
    except msgspec.ValidationError:
        return False
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _PHASE.search(first) is not None


def read(raw: bytes | msgspec.Raw, builder: SpanTarget, ledger: Ledger, depth: int = 0) -> None:
    """Add the spans of one document until ``builder`` is full; metrics and logs are passed over.

    Raises NotJson when it is none, Unreadable when it is JSON of another kind.
    """
    if depth > MAX_ENVELOPES:
        raise Unreadable("too many envelopes in each other")
    first = bytes(memoryview(raw)[:64]).lstrip()[:1]
    if first not in (b"{", b"["):
        raise NotJson("no JSON") if depth == 0 else Unreadable(_NONE_OF_THEM)
    begins = _FIRST_KEY.match(raw)
    if begins is not None and not begins.group(1) and begins.group(2) == b"resourceSpans":
        inner = _alone(memoryview(raw)[begins.end() :])
        if inner is not None and _read_alone(inner, builder, ledger):
            return
    try:
        if first == b"[":
            if _read_list(raw, builder, ledger):
                return
            items = _list.decode(raw)
        else:
            top = _object.decode(raw)
    except msgspec.ValidationError:
        raise Unreadable(_NONE_OF_THEM) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotJson(_why(error)) from None
    try:
        if first == b"[":
            _read_items(raw, items, builder, ledger, depth)
        else:
            _read_object(raw, top, builder, ledger, depth)
    except NotJson as fault:  # within what is JSON as a whole, as far as a decoder looks that skips it
        raise Unreadable(str(fault)) from None


def read_groups(raw: bytes | msgspec.Raw, builder: SpanTarget, ledger: Ledger) -> None:
    """Add the spans of a ``resourceSpans`` array."""
    read_resource_spans(raw, builder)


def _alone(rest: memoryview) -> memoryview | None:
    """Return the text of an object's only member without the brace after it; None where there is no brace."""
    end = len(rest)
    while end and rest[end - 1] in b" \t\r\n":
        end -= 1
    return rest[: end - 1] if end and rest[end - 1] == ord("}") else None


def _read_alone(groups: memoryview, builder: SpanTarget, ledger: Ledger) -> bool:
    """Read ``resourceSpans`` that are all of a document, as in lines of files: they are decoded only once."""
    before = builder.room
    try:
        read_groups(bytes(groups), builder, ledger)
    except Unreadable:
        if builder.room != before:
            raise
        return False  # other members follow, or it is no JSON at all: to be found out in the general way
    return True


def _read_list(raw: bytes | msgspec.Raw, builder: SpanTarget, ledger: Ledger) -> bool:
    """Read an array at once if all of it is of a kind for which that is known; return whether it was."""
    key = first_key(raw)
    if key in (b"traceID", b"processes") and jaeger_json.read_traces(raw, builder, ledger):
        return True
    if is_events(raw):
        kineto.read_events(raw, builder, ledger)
        return True
    return False


def _read_items(
    raw: bytes | msgspec.Raw, items: list[msgspec.Raw], builder: SpanTarget, ledger: Ledger, depth: int
) -> None:
    if items and zipkin.is_span(items[0]):
        zipkin.read_spans(raw, builder, ledger)
        return
    for item in items:
        if bytes(item) != b"null":
            read(item, builder, ledger, depth + 1)


def _read_object(
    raw: bytes | msgspec.Raw, top: dict[str, msgspec.Raw], builder: SpanTarget, ledger: Ledger, depth: int
) -> None:
    given = {key: value for key, value in top.items() if key in KNOWN and bytes(value)[:5] != b"null"}
    if "processes" in given or ("traceID" in given and "spans" in given):
        jaeger_json.read_trace(raw, builder, ledger)
        return
    if EVENTS in given:
        kineto.read_profile(top, builder, ledger)
        return
    for key in (*GROUPS, *ENVELOPES):
        if key in given:
            if key in GROUPS:
                read_groups(given[key], builder, ledger)
            else:
                read(given[key], builder, ledger, depth + 1)
            return
    if zipkin.is_span(raw):
        zipkin.read_spans(b"[%b]" % bytes(raw), builder, ledger)
        return
    for key in _FAULTS:
        if key in given:
            raise Unreadable(f"an error answer: {bytes(given[key])[:200].decode('utf-8', 'replace')}")
    # An empty object below an envelope is an empty trace: protobuf's JSON leaves out what is empty.
    if any(key in given for key in _OTHER_SIGNALS):
        ledger.passed_over += 1
    elif depth == 0 or top:
        raise Unreadable(_NONE_OF_THEM)


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "not JSON: brackets nested too deep"
    return f"not JSON: {error}"
