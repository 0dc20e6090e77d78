# SPDX-License-Identifier: Apache-2.0
"""Tells documents apart and hands them to their readers: OTLP/JSON, Jaeger JSON, the envelopes of either."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.jaeger_json import read_trace
from grademl_otel.analyzers.sources.formats.otlp_json import read_resource_spans

_MAX_DEPTH: Final = 4
_MISSING: Final = msgspec.Raw(b"")
_SPACE: Final = b" \t\r\n"


class _Top(msgspec.Struct, gc=False):
    """The keys that tell what a document is; nothing below them is decoded yet."""

    resourceSpans: msgspec.Raw = _MISSING
    resource_spans: msgspec.Raw = _MISSING
    batches: msgspec.Raw = _MISSING
    result: msgspec.Raw = _MISSING
    trace: msgspec.Raw = _MISSING
    data: msgspec.Raw = _MISSING
    spans: msgspec.Raw = _MISSING
    processes: msgspec.Raw = _MISSING
    traceID: msgspec.Raw = _MISSING
    resourceMetrics: msgspec.Raw = _MISSING
    resourceLogs: msgspec.Raw = _MISSING
    errors: msgspec.Raw = _MISSING
    error: msgspec.Raw = _MISSING


_top = msgspec.json.Decoder(_Top)
_list = msgspec.json.Decoder(list[msgspec.Raw])


def read_document(raw: bytes | msgspec.Raw, buffer: SpanBuilder, depth: int = 0) -> None:
    """Add the spans of one JSON document to ``buffer``; metrics and logs are passed over.

    Raises Unreadable when it is not JSON, or JSON of another kind.
    """
    if depth > _MAX_DEPTH:
        raise Unreadable("too many envelopes in each other")
    try:
        if bytes(memoryview(raw)[:64]).lstrip(_SPACE).startswith(b"["):
            for item in _list.decode(raw):
                read_document(item, buffer, depth + 1)
            return
        top = _top.decode(raw)
    except msgspec.ValidationError:
        raise Unreadable("neither OTLP nor Jaeger JSON") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(f"not JSON: {error}") from None
    if _given(top.processes) or (_given(top.traceID) and _given(top.spans)):
        read_trace(raw, buffer)
        return
    for groups in (top.resourceSpans, top.resource_spans, top.batches):
        if _given(groups):
            read_resource_spans(groups, buffer)
            return
    for inner in (top.result, top.trace, top.data):
        if _given(inner):
            read_document(inner, buffer, depth + 1)
            return
    for fault in (top.error, top.errors):
        if _given(fault):
            raise Unreadable(f"an error answer: {bytes(fault)[:200].decode('utf-8', 'replace')}")
    # An empty object below an envelope is an empty trace: protobuf's JSON leaves out what is empty.
    if depth == 0 and not _given(top.resourceMetrics) and not _given(top.resourceLogs):
        raise Unreadable("neither OTLP nor Jaeger JSON: no resourceSpans, result or data in it")


def _given(raw: msgspec.Raw) -> bool:
    view = memoryview(raw)
    return view.nbytes > 0 and bytes(view[:5]) != b"null"


def split_documents(data: bytes) -> Iterator[bytes]:
    """Yield the JSON documents that stand back to back in ``data``.

    Raises Unreadable at the first that does not parse; those before it have been yielded.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8 text") from None
    decoder = json.JSONDecoder(parse_constant=_constant)
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in " \t\r\n\x1e":
            at += 1
        if at == end:
            return
        try:
            _, stop = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"not JSON: {error}") from None
        yield text[at:stop].encode()
        at = stop


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
