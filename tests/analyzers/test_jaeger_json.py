# SPDX-License-Identifier: Apache-2.0
"""Jaeger's JSON, as its versions, stores and UI write it, into columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import ORPHAN, Ledger, SpanColumns
from grademl_otel.analyzers.model.completeness import losses_of_reading
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.documents import read_document, read_json

DATA = Path(__file__).parent.parent / "data" / "jaeger"
TRACE = f"{0xABC:032x}"
T0 = 1_796_113_322_763_869
Json = dict[str, Any]


def span(number: int, **fields: Any) -> Json:
    return {
        "traceID": TRACE,
        "spanID": f"{number:016x}",
        "operationName": f"op {number}",
        "references": [],
        "startTime": T0,
        "duration": 7,
        "tags": [],
        "logs": [],
        "processID": "p1",
        "warnings": None,
        **fields,
    }


def reference(kind: str, number: int, trace: str = TRACE) -> Json:
    return {"refType": kind, "traceID": trace, "spanID": f"{number:016x}"}


def tag(key: str, value: Any, kind: str = "string") -> Json:
    return {"key": key, "type": kind, "value": value}


def read(*spans: Json, **members: Any) -> tuple[SpanColumns, Ledger]:
    processes = {"p1": {"serviceName": "trainer", "tags": [tag("host.name", "a")]}}
    return read_text(json.dumps({"traceID": TRACE, "spans": spans, "processes": processes, **members}))


def read_text(text: str | bytes) -> tuple[SpanColumns, Ledger]:
    builder, ledger = SpanBuilder(10**6), Ledger()
    read_document(text.encode() if isinstance(text, str) else text, builder, ledger)
    return builder.finish(ledger), ledger


def test_times_are_microseconds_and_the_ledger_says_so() -> None:
    spans, ledger = read(span(1), span(2, startTime=str(T0), duration="9"), span(3, duration=0))
    assert spans.start.tolist() == [T0 * 1000] * 3
    assert (spans.end - spans.start).tolist() == [7000, 9000, 0]
    assert ledger.microseconds
    assert ledger.impossible_times == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"duration": None},
        {"duration": -1},
        {"duration": "long"},
        {"startTime": -5},
        {"startTime": None},
        {"startTime": 2**63},
        {"duration": 2**62},
        {"startTime": 1e300},
    ],
)
def test_impossible_times_are_kept_and_counted(fields: Json) -> None:
    spans, ledger = read(span(1), span(2, **fields))
    assert len(spans) == 2
    assert spans.possible.tolist() == [True, False]
    assert ledger.impossible_times == 1


def test_absent_and_null_fields_are_no_fault() -> None:
    bare = {"traceID": TRACE, "spanID": "2"}
    nulls = span(3, references=None, tags=None, logs=None, warnings=None, operationName=None, processID=None)
    spans, _ = read(span(1), bare, nulls)
    assert len(spans) == 3
    assert spans.name(1) == spans.name(2) == ""
    assert spans.service(0) == "trainer"
    assert spans.resource(1) == spans.resource(2) == {}
    assert spans.attributes(2) == {}
    assert spans.events(2) == []


def test_the_parent_is_the_first_child_of_then_the_first_follows_from_of_the_trace() -> None:
    other = f"{0xDEF:032x}"
    spans, _ = read(
        span(1),
        span(2, references=[reference("CHILD_OF", 1)]),
        span(3, references=[reference("FOLLOWS_FROM", 1)]),
        span(4, references=[reference("FOLLOWS_FROM", 2), reference("CHILD_OF", 1)]),
        span(5, references=[reference("CHILD_OF", 9, other)]),
        span(6, references=[reference("CHILD_OF", 9, other), reference("FOLLOWS_FROM", 2)]),
        span(7, references=[], parentSpanID="1"),
        span(8, references=[reference("CHILD_OF", 1, TRACE.lstrip("0"))]),
        span(9, references=[reference("CHILD_OF", 77)]),
    )
    assert spans.parent_id.tolist() == [0, 1, 1, 1, 0, 2, 1, 1, 77]
    assert spans.parent_ix.tolist() == [-1, 0, 0, 0, -1, 1, 0, 0, ORPHAN]
    links = spans.links
    found = list(zip(links.span_ix.tolist(), links.trace_lo.tolist(), links.span_id.tolist(), strict=True))
    assert found == [(3, 0xABC, 2), (4, 0xDEF, 9), (5, 0xDEF, 9)]
    assert set(links.kind) == {"follows"}


def test_tags_hold_kind_status_and_scope() -> None:
    scope = [tag("otel.scope.name", "lib"), tag("otel.scope.version", "2")]
    spans, _ = read(
        span(
            1, tags=[tag("span.kind", "server"), tag("otel.status_code", "ERROR"), tag("error", True, "bool")]
        ),
        span(2, tags=[tag("error", True, "bool"), tag("span.kind", "CLIENT")]),
        span(3, tags=[*scope, tag("a", 1, "int64"), tag("otel.status_code", "OK")]),
        span(4, tags=[tag("error", False, "bool"), tag("level", "span.kind")]),
        span(5, tags=[{"value": "producer", "key": "span.kind"}, tag("error", "true")]),
        span(6, tags=[tag("otel.status_code", "ERROR"), tag("otel.status_description", "boom")]),
    )
    assert spans.kind.tolist() == [2, 3, 0, 0, 4, 0]
    assert spans.status.tolist() == [2, 2, 1, 0, 2, 2]
    assert [spans.scope(ix) for ix in (0, 2)] == [None, {"name": "lib", "version": "2", "attributes": {}}]
    assert spans.attributes(0) == {}
    assert spans.attributes(1) == {"error": True}
    assert spans.attributes(2) == {"a": 1}
    assert spans.attributes(3) == {"error": False, "level": "span.kind"}
    assert spans.attributes(5) == {"otel.status_description": "boom"}


def test_values_have_the_types_that_tags_say() -> None:
    spans, _ = read(
        span(
            1,
            tags=[
                tag("big", "1152921504606846977", "int64"),
                tag("whole", 3, "float64"),
                tag("nan", "NaN", "float64"),
                tag("bytes", "AAH/", "binary"),
                tag("flag", "true", "bool"),
                tag("list", '[1,"b"]'),
                tag(semconv.WINDOW_LANES, '["main","x"]'),
                tag("odd", {"a": 1}),
                {"value": "no key"},
            ],
        )
    )
    attributes = spans.attributes(0)
    assert attributes.pop("nan") != attributes.get("nan")
    assert attributes == {
        "big": 1152921504606846977,
        "whole": 3.0,
        "bytes": b"\x00\x01\xff",
        "flag": True,
        "list": '[1,"b"]',
        semconv.WINDOW_LANES: ["main", "x"],
        "odd": {"a": 1},
    }
    assert isinstance(attributes["whole"], float)


def test_logs_are_events() -> None:
    logs = [
        {"timestamp": T0 + 1, "fields": [tag("event", "nccl.timeout"), tag("rank", 3, "int64")]},
        {"timestamp": T0 + 2, "fields": [tag("message", "m")]},
        {"timestamp": "soon", "fields": None},
    ]
    spans, _ = read(span(1), span(2, logs=logs))
    assert list(spans.events(0)) == []
    events = [(event.time, event.name, event.attributes) for event in spans.events(1)]
    assert events == [
        ((T0 + 1) * 1000, "nccl.timeout", {"rank": 3}),
        ((T0 + 2) * 1000, "", {"message": "m"}),
        (0, "", {}),
    ]


def test_processes_are_resources_wherever_they_stand() -> None:
    inline = {"serviceName": "loader", "tags": [tag("host.name", "b")]}
    spans, _ = read(span(1), span(2, process=inline, processID=None), span(3, processID="p9"))
    assert spans.resource(0) == {"host.name": "a", "service.name": "trainer"}
    assert spans.resource(1) == {"host.name": "b", "service.name": "loader"}
    assert spans.resource(2) == {}


def test_processes_are_numbered_in_the_order_in_which_spans_name_them() -> None:
    """Not in that of a set of text, which every process has another of."""
    keys = [f"p{number}" for number in range(20, 0, -1)]
    spans, _ = read(
        *(span(at, processID=key) for at, key in enumerate(keys, 1)),
        processes={key: {"serviceName": key} for key in sorted(keys)},
    )
    assert [resource["service.name"] for resource in spans.resources] == keys


def test_ids_may_lack_their_padding_and_have_64_bits() -> None:
    spans, _ = read(
        span(1, traceID="abc", spanID="1"),
        span(2, traceID="ABC", spanID="0002", references=[reference("CHILD_OF", 1, "abc")]),
    )
    assert spans.trace_hi.tolist() == [0, 0]
    assert spans.trace_lo.tolist() == [0xABC, 0xABC]
    assert spans.parent_ix.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([{"spanID": "1", "traceID": "zz"}], "is no id"),
        ([{"traceID": TRACE}], "without an id"),
        ([{"traceID": TRACE, "spanID": "1" * 17}], "is no id"),
        ([{"traceID": TRACE, "spanID": "0" * 16}], "without an id"),
        ([{"traceID": TRACE, "spanID": 1}], "not a Jaeger trace"),
        ([17], "not a Jaeger trace"),
    ],
)
def test_what_is_no_span_is_told_and_not_read(spans: Any, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        read(*spans)


def test_spans_without_an_id_are_counted_beside_those_with_one() -> None:
    spans, ledger = read(span(1), span(2, spanID="zz"), span(3, spanID=None), span(4, parentSpanID="?"))
    assert spans.span_id.tolist() == [1]
    assert ledger.unidentified == 3


def test_spans_moved_by_jaeger_are_counted_with_how_far() -> None:
    moved = "This span's timestamps were adjusted by 80.000061ms"
    spans, ledger = read(
        span(1),
        span(2, warnings=[moved]),
        span(3, warnings=["duplicate span IDs; skipping clock skew adjustment"]),
        span(4, warnings=["other", "This span's timestamps were adjusted by -1m2.5s", moved]),
        span(5, warnings=[3]),
    )
    assert len(spans) == 5
    assert (ledger.moved, ledger.moved_most_ns) == (2, 62_500_000_000)
    assert losses_of_reading(ledger, {}) == [
        "2 spans were moved by Jaeger's clock-skew adjustment, by up to 62,500 ms; ask it raw"
    ]


def test_a_recorded_answer_that_was_adjusted() -> None:
    spans, ledger = read_text((DATA / "v1_trace_adjusted.json").read_bytes())
    assert len(spans) == 3
    assert ledger.moved_most_ns == 80_000_061
    assert ledger.moved == 1


@pytest.mark.parametrize("wrap", ["answer", "list", "bare", "lines", "with null"])
def test_wrappings(wrap: str) -> None:
    one = {"traceID": TRACE, "spans": [span(1)], "processes": {"p1": {"serviceName": "s", "tags": None}}}
    other = {**one, "traceID": "1", "spans": [span(1, traceID="1")]}
    text = {
        "answer": json.dumps({"data": [one, other], "total": 0, "errors": None}),
        "list": json.dumps([one, other]),
        "bare": json.dumps(one) + json.dumps(other),
        "lines": json.dumps(one) + "\n" + json.dumps(other),
        "with null": json.dumps({"total": 2, "data": [one, None, other]}),
    }[wrap]
    builder, ledger = SpanBuilder(10), Ledger()
    read_json([text.encode()], builder, ledger, "x", 1 << 20)
    spans = builder.finish(ledger)
    assert spans.trace_lo.tolist() == [0xABC, 1]
    assert (ledger.duplicates, ledger.warnings) == (0, [])
    assert [spans.service(ix) for ix in range(2)] == ["s", "s"]


def test_no_more_spans_are_taken_than_there_is_room_for() -> None:
    builder, ledger = SpanBuilder(3), Ledger()
    document = {"data": [{"traceID": TRACE, "spans": [span(n) for n in range(1, 3)]}] * 3}
    read_document(json.dumps(document).encode(), builder, ledger)
    assert len(builder) == 3
    assert builder.full
