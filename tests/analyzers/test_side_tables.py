# SPDX-License-Identifier: Apache-2.0
"""Attributes, events and links as tables, and everything as Arrow."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grademl_otel.analyzers.model.columns import Ledger, SpanColumns, Telemetry
from grademl_otel.analyzers.model.raw import RawColumn, RawStore
from grademl_otel.analyzers.model.side_tables import TYPES, attribute_table, event_table
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables import attributes_of, table
from tests.support.build import B, S, Verbatim, batch, columns
from tests.support.every_format import FORMATS
from tests.support.truth import SPANS

VALUES: dict[str, Any] = {
    "text": "é\u2028",
    "yes": True,
    "no": False,
    "int": -(2**63),
    "big": 2**63,
    "double": 0.5,
    "nan": math.nan,
    "inf": math.inf,
    "bytes": b"\x00\xff",
    "list": [1, 2.5, "x", None, b"\xff", [-math.inf]],
    "map": {"k": {"n": 1}},
    "none": None,
}


def rows(name: str, spans: SpanColumns) -> list[dict[str, Any]]:
    """Return the rows of a table of these spans."""
    about = Subject(Telemetry("here", spans, Ledger()), None, Query())
    found: list[dict[str, Any]] = table(about, name).to_pylist()
    return found


def test_values_are_in_the_column_of_their_type() -> None:
    table = attribute_table(columns([S("a", 0, 1, attributes=VALUES)]))
    rows = {
        table.keys[key]: (TYPES[kind], text, integer, double)
        for key, kind, text, integer, double in zip(
            table.key_ix.tolist(), table.type.tolist(), table.string, table.integer.tolist(),
            table.double.tolist(), strict=True,
        )
    }  # fmt: skip
    assert math.isnan(rows.pop("nan")[3])
    assert {key: row[:3] if math.isnan(row[3]) else row for key, row in rows.items()} == {
        "text": ("string", "é\u2028", 0),
        "yes": ("bool", None, 1),
        "no": ("bool", None, 0),
        "int": ("int", None, -(2**63)),
        "big": ("string", str(2**63), 0),
        "double": ("double", None, 0, 0.5),
        "inf": ("double", None, 0, math.inf),
        "bytes": ("bytes", "AP8=", 0),
        "list": ("array", '[1,2.5,"x",null,"/w==",["-Infinity"]]', 0),
        "map": ("map", '{"k":{"n":1}}', 0),
        "none": ("empty", None, 0),
    }


def test_only_what_is_asked_for_is_decoded() -> None:
    asked: list[bytes] = []

    class Counted(Verbatim):
        def attributes(self, raw: bytes) -> dict[str, Any]:
            asked.append(raw)
            return {"a": 1, "b": int(raw)}

    spans = columns([S(str(ix), 0, 1) for ix in range(4)])
    raws = RawColumn(Counted(), b"0123", np.arange(5))
    spans = replace(
        spans, raw_attributes=RawStore([raws], np.zeros(4, np.int32), np.arange(4, dtype=np.int32))
    )
    table = attribute_table(spans, keys=["b"], ixs=np.array([3, 1]))
    assert asked == [b"3", b"1"]
    assert (table.owner_ix.tolist(), table.integer.tolist(), table.keys) == ([3, 1], [3, 1], ["b"])


@pytest.mark.parametrize("name", FORMATS)
def test_attributes_of_some_keys_are_those_among_all(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"spans{name.replace(' ', '')}"
    path.write_bytes(FORMATS[name](SPANS))
    spans = open_source(str(path)).read(Selection()).spans
    every = [row for row in rows("attributes", spans) if row["value_double"] == row["value_double"]]
    keys = sorted({row["key"] for row in every})
    assert len(keys) > 3
    about = Subject(Telemetry("here", spans, Ledger()), None, Query())
    for some in [[key] for key in keys] + [keys, ["nowhere"], []]:
        found = attributes_of(about, some).to_pylist()
        chosen = [row for row in found if row["value_double"] == row["value_double"]]
        assert chosen == [row for row in every if row["key"] in some]


def full() -> SpanColumns:
    builder = SpanBuilder(9)
    resources = [{"service.name": "s", "host.name": "h"}, {"n": 1}]
    for number in (0, 1):
        builder.resource(number, resources.__getitem__)
    builder.scope("x", lambda _: {"name": "lib", "version": "1", "attributes": {"k": b"\xff"}})
    spans = [
        B(2**64 + 5, 1, 0, 10, 20, 2, 2, 257, "root", b"r", b"e", [(7, 8, "run")]),
        B(2**64 + 5, 2**64 - 1, 1, 11, 12, 0, name="child"),
        B(6, 3, 9, 0, 0, 5, 1, name="child"),
    ]
    ix = np.array([0, 1, 0], np.int32)
    builder.add(replace(batch(spans), resource_ix=ix, scope_ix=-ix))
    return builder.finish(Ledger())


def test_spans_as_arrow() -> None:
    of_no_run = dict.fromkeys(("run", "attempt", "rank"))
    assert rows("spans", full()) == [
        {
            "span_ix": 0, "trace_id": "00000000000000010000000000000005", "span_id": "0000000000000001",
            "parent_id": None, "parent_ix": -1, "start_ns": 10, "end_ns": 20, "name": "root",
            "kind": "server", "status": "error", "flags": 257, "service": "s", "resource_ix": 0,
            "scope_ix": 0, "clock": "h", "duration_ns": 10, **of_no_run,
        },
        {
            "span_ix": 1, "trace_id": "00000000000000010000000000000005", "span_id": "ffffffffffffffff",
            "parent_id": "0000000000000001", "parent_ix": 0, "start_ns": 11, "end_ns": 12, "name": "child",
            "kind": "unspecified", "status": "unset", "flags": 0, "service": "", "resource_ix": 1,
            "scope_ix": None, "clock": None, "duration_ns": 1, **of_no_run,
        },
        {
            "span_ix": 2, "trace_id": "00000000000000000000000000000006", "span_id": "0000000000000003",
            "parent_id": "0000000000000009", "parent_ix": -2, "start_ns": 0, "end_ns": 0, "name": "child",
            "kind": "consumer", "status": "ok", "flags": 0, "service": "s", "resource_ix": 0, "scope_ix": 0,
            "clock": "h", "duration_ns": None, **of_no_run,
        },
    ]  # fmt: skip


def test_side_tables_as_arrow() -> None:
    spans = full()
    assert rows("events", spans) == [{"span_ix": 0, "time_ns": 0, "name": "", "attributes": '{"raw":"ZQ=="}'}]
    assert rows("links", spans) == [
        {"span_ix": 0, "linked_trace_id": f"{7:032x}", "linked_span_id": f"{8:016x}", "kind": "run"}
    ]
    assert rows("scopes", spans) == [
        {"scope_ix": 0, "name": "lib", "version": "1", "attributes": '{"k":"/w=="}'}
    ]
    found = rows("resources", spans)
    assert [(row["resource_ix"], row["key"], row["value_string"], row["value_int"]) for row in found] == [
        (0, "service.name", "s", None), (0, "host.name", "h", None), (1, "n", None, 1)
    ]  # fmt: skip


def test_each_value_as_arrow_is_in_one_column() -> None:
    found = rows("attributes", columns([S("a", 0, 1, attributes=VALUES)]))
    given = {
        row["key"]: {key: value for key, value in row.items() if key[:6] == "value_" and value is not None}
        for row in found
    }
    assert math.isnan(given.pop("nan")["value_double"])
    assert given == {
        "text": {"value_string": "é\u2028"}, "yes": {"value_bool": True}, "no": {"value_bool": False},
        "int": {"value_int": -(2**63)}, "big": {"value_string": str(2**63)}, "double": {"value_double": 0.5},
        "inf": {"value_double": math.inf}, "bytes": {"value_string": "AP8="},
        "list": {"value_string": '[1,2.5,"x",null,"/w==",["-Infinity"]]'},
        "map": {"value_string": '{"k":{"n":1}}'}, "none": {},
    }  # fmt: skip
    assert json.loads(given["list"]["value_string"])[0] == 1


def test_events_keep_their_order() -> None:
    table = event_table(full())
    assert (table.span_ix.tolist(), table.time.tolist(), table.name, len(table)) == ([0], [0], [""], 1)
