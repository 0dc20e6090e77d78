# SPDX-License-Identifier: Apache-2.0
"""Zipkin's JSON of version 2 into columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grademl_otel.analyzers.model.columns import Ledger, SpanColumns
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.documents import read_json

T0 = 1_796_113_322_763_869
Json = dict[str, Any]


def span(number: int, **fields: Any) -> Json:
    made = {
        "traceId": "abc",
        "id": f"{number:016x}",
        "name": f"op {number}",
        "timestamp": T0,
        "duration": 5,
        "localEndpoint": {"serviceName": "shop", "ipv4": "10.0.0.1", "port": 80},
        **fields,
    }
    return {key: value for key, value in made.items() if value is not ...}


def read(*spans: Json, lines: bool = False) -> tuple[SpanColumns, Ledger]:
    builder, ledger = SpanBuilder(10**6), Ledger()
    text = "\n".join(map(json.dumps, spans)) if lines else json.dumps(spans)
    read_json([text.encode()], builder, ledger, "some.json", 1 << 20)
    return builder.finish(ledger), ledger


@pytest.mark.parametrize("lines", [False, True])
def test_fields(lines: bool) -> None:
    spans, ledger = read(
        span(1, kind="SERVER", traceId=f"{(5 << 64) + 0xABC:032x}"),
        span(2, kind="CLIENT", parentId="1", debug=True),
        span(3, kind="PRODUCER", tags=None, annotations=None, localEndpoint=None, name=None),
        span(4, kind="CONSUMER", duration="7"),
        span(5, kind=...),
        lines=lines,
    )
    assert spans.trace_hi.tolist() == [5, 0, 0, 0, 0]
    assert set(spans.trace_lo.tolist()) == {0xABC}
    assert spans.kind.tolist() == [2, 3, 4, 5, 0]
    assert spans.parent_id.tolist() == [0, 1, 0, 0, 0]
    assert spans.flags.tolist() == [0, 1, 0, 0, 0]
    assert spans.start.tolist() == [T0 * 1000] * 5
    assert (spans.end - spans.start).tolist() == [5000, 5000, 5000, 7000, 5000]
    assert [spans.service(ix) for ix in range(5)] == ["shop", "shop", "", "shop", "shop"]
    assert spans.name(2) == ""
    assert ledger.microseconds
    assert (ledger.impossible_times, ledger.unreadable_lines) == (0, 0)


@pytest.mark.parametrize(
    "fields",
    [{"timestamp": ...}, {"timestamp": None}, {"duration": ...}, {"duration": -1}, {"timestamp": "soon"}],
)
def test_spans_without_a_time_are_kept_and_counted(fields: Json) -> None:
    spans, ledger = read(span(1), span(2, **fields))
    assert spans.possible.tolist() == [True, False]
    assert ledger.impossible_times == 1


def test_tags_are_texts_and_hold_status_and_scope() -> None:
    spans, _ = read(
        span(1, tags={"a": "1", "otel.scope.name": "lib", "otel.scope.version": "2"}),
        span(2, tags={"error": "out of stock"}),
        span(3, tags={"error": ""}),
        span(4, tags={"error": "true", "otel.status_code": "ERROR", "b": "x"}),
        span(5, tags={"otel.status_code": "OK"}, remoteEndpoint={"serviceName": "bank"}),
        span(6, tags={"otel.library.name": "old"}),
    )
    assert spans.status.tolist() == [0, 2, 2, 2, 1, 0]
    assert spans.scope(0) == {"name": "lib", "version": "2", "attributes": {}}
    assert spans.scope(1) is None
    assert (spans.scope(5) or {})["name"] == "old"
    assert [spans.attributes(ix) for ix in range(6)] == [
        {"a": "1"},
        {"otel.status_description": "out of stock"},
        {},
        {"b": "x"},
        {"peer.service": "bank"},
        {},
    ]


def test_annotations_are_events() -> None:
    spans, _ = read(span(1), span(2, annotations=[{"timestamp": T0 + 1, "value": "retry"}, {"value": 3}]))
    assert list(spans.events(0)) == []
    assert [(event.time, event.name) for event in spans.events(1)] == [((T0 + 1) * 1000, "retry"), (0, "3")]


def test_a_server_that_shares_its_clients_id_is_its_child() -> None:
    spans, ledger = read(
        span(1, kind="CLIENT"),
        span(2, kind="CLIENT", parentId="1"),
        span(2, kind="SERVER", parentId="1", shared=True, localEndpoint={"serviceName": "bank"}),
        span(3, parentId="2"),
    )
    assert spans.parent_ix.tolist() == [-1, 0, 1, 2]
    assert (ledger.duplicates, ledger.conflicting) == (0, 0)


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([span(1, id="zz")], "is no id"),
        ([span(1, traceId="0")], "without an id"),
        ([span(1, name=5)], "not Zipkin's spans"),
        ([span(1, tags="none")], "not Zipkin's spans"),
        ([span(1), 5], "not Zipkin's spans"),
        ([span(1, binaryAnnotations=[])], "version 1"),
    ],
)
def test_what_is_none_is_told(spans: list[Any], says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        read(*spans)


def test_spans_without_an_id_are_counted_beside_those_with_one() -> None:
    spans, ledger = read(span(1), span(2, id="zz"), span(3, id=None), span(4, parentId="?"))
    assert spans.span_id.tolist() == [1]
    assert ledger.unidentified == 3


def test_no_more_spans_are_taken_than_there_is_room_for() -> None:
    builder, ledger = SpanBuilder(2), Ledger()
    read_json([json.dumps([span(1), span(2), span(3)]).encode()], builder, ledger, "some.json", 1 << 20)
    assert len(builder) == 2
