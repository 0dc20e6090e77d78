# SPDX-License-Identifier: Apache-2.0
"""Messages of `jaeger.api_v3.QueryService`, as far as they are needed; traces in them are OTLP's.

The numbers are those of jaeger-idl (`api_v3/query_service.proto`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from grademl_otel.analyzers.sources.formats.wire import LENGTH, VARINT, fields, varint
from grademl_otel.analyzers.sources.servers.jaeger_api import Search, Summary

_S: Final = 1_000_000_000


def get_trace(trace_id: int) -> bytes:
    """Return a GetTraceRequest for a raw trace."""
    return _text(1, f"{trace_id:032x}") + _number(4, 1)


def find_traces(wanted: Search, start: int, end: int, limit: int) -> bytes:
    """Return a FindTracesRequest or a FindTraceSummariesRequest, which are alike."""
    query = b"".join(
        (
            _text(1, wanted.service or ""),
            _text(2, wanted.operation or ""),
            *(_message(3, _text(1, key) + _text(2, value)) for key, value in wanted.attributes),
            _message(4, _timestamp(start)),
            _message(5, _timestamp(end)),
            _number(8, limit),
            _number(9, 1),
        )
    )
    return _message(1, query)


def service_names(response: bytes) -> list[str]:
    """Return the names in a GetServicesResponse, sorted."""
    return sorted(
        response[f.start : f.end].decode("utf-8", "replace") for f in fields(response) if f.number == 1
    )


def summaries(responses: Iterable[bytes]) -> list[Summary]:
    """Return what FindTraceSummariesResponses hold; Unreadable or ValueError where that is something else."""
    return [
        _summary(response[field.start : field.end])
        for response in responses
        for field in fields(response)
        if (field.number, field.wire) == (1, LENGTH)
    ]


def _summary(message: bytes) -> Summary:
    given = {field.number: message[field.start : field.end] for field in fields(message)}
    count = given.get(6, b"\0")
    return Summary(
        trace_id=int(given.get(1, b"").decode("ascii"), 16),
        start=int.from_bytes(given.get(4, b""), "little"),
        end=int.from_bytes(given.get(5, b""), "little"),
        spans=varint(count, 0, len(count))[0],
    )


def _timestamp(at: int) -> bytes:
    seconds, ns = divmod(max(at, 0), _S)
    return _number(1, seconds) + _number(2, ns)


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode()) if text else b""


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | LENGTH) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | VARINT) + _varint(value) if value else b""


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
