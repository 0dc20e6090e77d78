# SPDX-License-Identifier: Apache-2.0
"""Damage that `tests/property/test_mutated_inputs.py` found, each in its smallest form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grademl_otel.analyzers.copy.pull import origin_of, pull
from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import STATUS_UNSET, Telemetry
from grademl_otel.analyzers.sources import open_source
from grademl_otel.analyzers.sources.base import Selection

from ..support.every_format import otlp_protobuf, varint
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
    keys: list[Any] = [[], {}, None, 5]
    for key in keys:
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


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("start", -1, "start"),
        ("resource_ix", 7, "resource_ix"),
        ("scope_ix", -2, "scope_ix"),
        ("span_id", 0, "id"),
    ],
)
def test_a_copy_with_values_that_no_copy_has(column: str, value: int, says: str, tmp_path: Path) -> None:
    source = tmp_path / "spans.pb"
    source.write_bytes(otlp_protobuf(SPANS[:2]))
    opened = open_source(str(source))
    pull(opened, tmp_path / "copy", origin_of(str(source), opened.uri, Selection(), None))
    (path,) = (tmp_path / "copy").glob("*.parquet")
    table = pq.read_table(path)
    ix = table.column_names.index(column)
    changed = pa.array([value, *table[column].to_pylist()[1:]], table.schema.field(ix).type)
    pq.write_table(table.set_column(ix, table.schema.field(ix), changed), path)
    with pytest.raises(SourceError, match=says):
        open_source(str(path)).read(Selection())
