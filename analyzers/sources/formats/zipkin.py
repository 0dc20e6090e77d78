# SPDX-License-Identifier: Apache-2.0
"""Zipkin's JSON, version 2: a list of spans. Microseconds, and every value is text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.model.columns import STATUS_ERROR, STATUS_OK, STATUS_UNSET, Ledger
from grademl_otel.analyzers.model.raw import Event, RawColumn
from grademl_otel.analyzers.sources.batch import SpanBatch, SpanTarget
from grademl_otel.analyzers.sources.formats import vectors
from grademl_otel.analyzers.sources.formats.decoding import NotJson, Unreadable, decoded_or_none
from grademl_otel.analyzers.sources.formats.otlp_values import STATUS_DESCRIPTION, to_int

_NONE: Final = msgspec.Raw(b"{}")
_NO_LIST: Final = msgspec.Raw(b"[]")
_Number = int | str | float | None
_KINDS: Final = {"SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
_CODES: Final = {"OK": STATUS_OK, "ERROR": STATUS_ERROR}
_FIELDS: Final = frozenset(
    {
        "error", "otel.status_code", "otel.scope.name", "otel.scope.version",
        "otel.library.name", "otel.library.version",
    }
)  # fmt: skip
"""Tags that hold fields of a span."""
_SAMPLED: Final = 1


class _Endpoint(msgspec.Struct, gc=False, frozen=True):
    serviceName: str | None = None
    ipv4: str | None = None
    ipv6: str | None = None
    port: _Number = None


class _Span(msgspec.Struct, gc=False):
    traceId: str | None = None
    id: str | None = None
    parentId: str | None = None
    name: str | None = ""
    kind: str | None = None
    timestamp: _Number = None
    duration: _Number = None
    localEndpoint: _Endpoint | None = None
    remoteEndpoint: msgspec.Raw = _NONE
    annotations: msgspec.Raw = _NO_LIST
    tags: msgspec.Raw = _NONE
    debug: bool | None = None


class _Tags(
    msgspec.Struct,
    gc=False,
    rename={
        "code": "otel.status_code",
        "scope": "otel.scope.name",
        "version": "otel.scope.version",
        "library": "otel.library.name",
        "library_version": "otel.library.version",
    },
):
    error: Any = None
    code: Any = None
    scope: Any = None
    version: Any = None
    library: Any = None
    library_version: Any = None


_spans = msgspec.json.Decoder(list[_Span])
_tags = msgspec.json.Decoder(list[_Tags | None])
_keys = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Zipkin:
    """Raw attributes are a list of the tags and the remote endpoint, raw events the array of annotations."""

    @property
    def name(self) -> str:
        return "zipkin"

    def attributes(self, raw: bytes) -> dict[str, Any]:
        parts = decoded_or_none(raw)
        tags, remote = parts if isinstance(parts, list) and len(parts) == 2 else ({}, {})
        tags = tags if isinstance(tags, dict) else {}
        found = {key: value for key, value in tags.items() if key not in _FIELDS}
        message = tags.get("error")
        if isinstance(message, str) and message not in ("", "true", "false"):
            found[STATUS_DESCRIPTION] = message
        if isinstance(remote, dict) and isinstance(remote.get("serviceName"), str):
            found.setdefault("peer.service", remote["serviceName"])
        return found

    def events(self, raw: bytes) -> Sequence[Event]:
        items = decoded_or_none(raw)
        items = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        return [
            Event((to_int(item.get("timestamp")) or 0) * 1000, str(item.get("value", "")), {})
            for item in items
        ]


ZIPKIN: Final = Zipkin()


def is_span(raw: bytes | msgspec.Raw) -> bool:
    """Whether an object is one of Zipkin's spans. Raises Unreadable for one of version 1."""
    try:
        keys = _keys.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    if "traceId" not in keys or "id" not in keys:
        return False
    if "binaryAnnotations" in keys:
        raise Unreadable("Zipkin's JSON of version 1; only version 2 (/api/v2/...) is read")
    return True


def read_spans(raw: bytes | msgspec.Raw, builder: SpanTarget, ledger: Ledger) -> None:
    """Add the spans of a list to ``builder`` until it is full; raise Unreadable when it is none."""
    try:
        spans: list[_Span] = _spans.decode(raw)
    except msgspec.ValidationError as error:
        raise Unreadable(f"not Zipkin's spans: {error}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotJson(f"not JSON: {error}") from None
    if not spans or not builder.room:
        return
    ledger.microseconds = True
    try:
        batch = _batch(spans, builder)
    except Unreadable:
        good = [span for span in spans if vectors.identified(span.traceId, span.id, span.parentId)]
        if not good or len(good) == len(spans):
            raise
        batch = replace(_batch(good, builder), unidentified=len(spans) - len(good))
    builder.add(batch)


def _batch(spans: list[_Span], builder: SpanTarget) -> SpanBatch:
    trace_hi, trace_lo = vectors.ids([span.traceId for span in spans], 16)
    start, end = _times(spans)
    status, scope_ix = _of_tags(spans, builder)
    return SpanBatch(
        trace_hi=trace_hi,
        trace_lo=trace_lo,
        span_id=vectors.ids([span.id for span in spans], 8),
        parent_id=vectors.ids([span.parentId for span in spans], 8, optional=True),
        start=start,
        end=end,
        names=[span.name or "" for span in spans],
        kind=vectors.enums([span.kind for span in spans], _KINDS),
        status=status,
        flags=np.array([_SAMPLED if span.debug else 0 for span in spans], np.uint32),
        resource_ix=_resources(spans, builder),
        scope_ix=scope_ix,
        attributes=vectors.raw_column(
            ZIPKIN, [b"[%b,%b]" % (bytes(span.tags), bytes(span.remoteEndpoint)) for span in spans]
        ),
        events=_annotations(spans),
    )


def _times(spans: list[_Span]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A span without a timestamp has no times; one without a duration has no end."""
    start = vectors.microseconds([span.timestamp for span in spans])
    length = vectors.microseconds([span.duration for span in spans])
    known = (start > 0) & (length >= 0) & np.array([span.duration is not None for span in spans])
    with np.errstate(over="ignore"):
        end = start + length
    return np.where(start < 0, 0, start), np.where(known & (end >= start), end, 0)


def _of_tags(spans: list[_Span], builder: SpanTarget) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """Return status and scope, which are among the tags."""
    try:
        tags = _tags.decode(b"[%b]" % b",".join([bytes(span.tags) for span in spans]))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Unreadable("not Zipkin's spans: tags that are none") from None
    status, scopes = [], []
    for some in tags:
        if some is None:
            status.append(STATUS_UNSET)
            scopes.append(-1)
            continue
        code = _CODES.get(some.code) if isinstance(some.code, str) else None
        has_error = some.error is not None and some.error != "false"
        status.append(code if code is not None else STATUS_ERROR if has_error else STATUS_UNSET)
        key = (
            "zipkin",
            str(some.scope or some.library or ""),
            str(some.version or some.library_version or ""),
        )
        scopes.append(builder.scope(key, _scope) if key[1] or key[2] else -1)
    return np.array(status, np.int8), np.array(scopes, np.int32)


def _scope(key: tuple[str, str, str]) -> dict[str, Any]:
    return {"name": key[1], "version": key[2], "attributes": {}}


def _resources(spans: list[_Span], builder: SpanTarget) -> npt.NDArray[np.int32]:
    return np.array([builder.resource(("zipkin", span.localEndpoint), _resource) for span in spans], np.int32)


def _resource(key: tuple[str, _Endpoint | None]) -> dict[str, Any]:
    endpoint = key[1]
    return {"service.name": endpoint.serviceName} if endpoint and endpoint.serviceName else {}


def _annotations(spans: list[_Span]) -> RawColumn | None:
    column = vectors.raw_column(ZIPKIN, [span.annotations for span in spans])
    return column if int(np.diff(column.offsets).max()) > len(b"null") else None
