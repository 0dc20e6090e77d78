# SPDX-License-Identifier: Apache-2.0
"""Damage that `tests/property/test_mutated_inputs.py` found, each in its smallest form."""

from __future__ import annotations

import json
from pathlib import Path

from grademl_otel.analyzers.model.columns import STATUS_UNSET, Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection

from ..support.every_format import varint
from ..support.foreign_formats import jaeger_trace
from ..support.truth import SPANS


def read(data: bytes, folder: Path) -> Telemetry:
    path = folder / "input"
    path.write_bytes(data)
    return open_source(str(path)).read(Selection())


def test_a_status_beyond_int64(tmp_path: Path) -> None:
    span = b"\x0a\x10" + b"\x01" * 16 + b"\x12\x08" + b"\x02" * 8 + b"\x7a\x0b\x18" + varint(2**64 - 1)
    message = span
    for field in (b"\x12", b"\x12", b"\x0a"):  # of a scope, of a resource, of the data
        message = field + varint(len(message)) + message
    assert int(read(message, tmp_path).spans.status[0]) == STATUS_UNSET


def test_a_key_of_jaeger_that_is_no_text(tmp_path: Path) -> None:
    trace = jaeger_trace(SPANS[2:3])
    for key in ([], {}, None, 5):
        trace["processes"]["p1"]["tags"][0]["key"] = key
        trace["spans"][0]["tags"] = [{"key": key, "type": "string", "value": "x"}]
        spans = read(json.dumps(trace).encode(), tmp_path).spans
        assert spans.attributes(0) == {}
        assert spans.resource(0) == {"service.name": "loader", "ratio": 0.25, "spot": True}


def test_types_of_events_that_nobody_knows_are_counted_together(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "n", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]
    events += [{"ph": f"\x1b{number}", "name": "n", "ts": 1, "pid": 1, "tid": 1} for number in range(500)]
    warnings = read(json.dumps({"traceEvents": events}).encode(), tmp_path).ledger.warnings
    (told,) = (line for line in warnings if "passed over" in line)
    assert "500 events of no known type" in told
    assert told.isprintable()
