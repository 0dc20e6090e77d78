# SPDX-License-Identifier: Apache-2.0
"""OTLP in JSON and protobuf: what writers of it do differently, what they leave out, and what is damaged."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from grademl_otel.analyzers.errors import GrademlError, SourceError
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns
from grademl_otel.analyzers.model.completeness import losses_of_reading
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.files.containers import read_blocks
from grademl_otel.analyzers.sources.formats import otlp_proto, sniff, wire
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.forms import form_named
from grademl_otel.analyzers.sources.formats.otlp_messages import OTLP_PROTO
from grademl_otel.analyzers.sources.formats.otlp_values import OTLP_JSON
from grademl_otel.analyzers.sources.formats.sniff import Holds

from ..support.every_format import framed, otlp, otlp_lines, otlp_protobuf, tempo_v2_protobuf, varint, zstd
from ..support.truth import NOT_JSON, SPANS
from .test_every_format import expected, found, same

ALL = (*SPANS, NOT_JSON)
TRACE = "0123456789abcdef0123456789abcdef"


def read(data: bytes, block: int = 1 << 20, max_spans: int = 1000) -> tuple[SpanColumns, Ledger]:
    builder, ledger = SpanBuilder(max_spans), Ledger()
    blocks = (data[at : at + block] for at in range(0, len(data), block))
    read_blocks(blocks, "file", builder, ledger, 1 << 24)
    return builder.finish(ledger), ledger


def document(**fields: Any) -> bytes:
    """A request with one span."""
    span = {"traceId": TRACE, "spanId": "1f", "startTimeUnixNano": "5", "endTimeUnixNano": "7", **fields}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


# --- JSON as others write it ------------------------------------------------------------------------------


def changed(change: Callable[[str, Any], tuple[str, Any]]) -> bytes:
    """All spans, each member of each object through ``change``; what it returns None for is left out."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = (change(key, walk(item)) for key, item in value.items())
            return {key: item for key, item in pairs if item is not None}
        return [walk(item) for item in value] if isinstance(value, list) else value

    return json.dumps(walk(otlp(ALL))).encode()


def snake(key: str, value: Any) -> tuple[str, Any]:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key), value


def numbers(key: str, value: Any) -> tuple[str, Any]:
    return key, int(value) if key.endswith(("Nano", "intValue")) else value


def names_of_enums(key: str, value: Any) -> tuple[str, Any]:
    kinds = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
    if key == "kind":
        return key, f"SPAN_KIND_{kinds[value]}"
    return key, f"STATUS_CODE_{('UNSET', 'OK', 'ERROR')[value]}" if key == "code" else value


def digits(key: str, value: Any) -> tuple[str, Any]:
    return key, str(value) if key in ("kind", "code", "flags") else value


def old_names(key: str, value: Any) -> tuple[str, Any]:
    names = {"scopeSpans": "instrumentationLibrarySpans", "scope": "instrumentationLibrary"}
    return names.get(key, key), value


def unknown_fields(key: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, dict) and key in ("scope", "resource", "status"):
        return key, {**value, "inTheFuture": [{"deep": {}}], "schemaUrl": "x"}
    return key, value


@pytest.mark.parametrize("change", [snake, numbers, names_of_enums, digits, old_names, unknown_fields])
def test_json_of_other_writers_is_the_same(change: Callable[[str, Any], tuple[str, Any]]) -> None:
    spans, ledger = read(changed(change))
    same(found(spans), expected("OTLP protobuf", ALL))
    assert ledger.warnings == []


@pytest.mark.parametrize(
    "left_out", ["attributes", "events", "links", "status", "kind", "flags", "parentSpanId", "name"]
)
@pytest.mark.parametrize("null", [True, False])
def test_what_is_left_out_or_null_is_empty(left_out: str, null: bool) -> None:
    spans, _ = read(document(**{left_out: None} if null else {}))
    row = found(spans)[int(TRACE, 16), 0x1F]
    for key, empty in {
        "attributes": {},
        "events": [],
        "links": [],
        "status": 0,
        "kind": 0,
        "name": "",
    }.items():
        assert row[key] == empty
    assert (row["flags"], row["parent"], row["start"], row["end"]) == (0, 0, 5, 7)


@pytest.mark.parametrize("of_span", ["resource", "scope", "scopeSpans", "spans"])
def test_null_groups_are_empty(of_span: str) -> None:
    request = json.loads(document())
    group = request["resourceSpans"][0]
    holder = group if of_span in ("resource", "scopeSpans") else group["scopeSpans"][0]
    holder[of_span] = None
    request["resourceSpans"] += json.loads(document(spanId="2"))["resourceSpans"]
    spans, _ = read(json.dumps(request).encode())
    assert len(spans) == (2 if of_span in ("resource", "scope") else 1)
    assert spans.scope_ix.tolist() == [-1] * len(spans)


@pytest.mark.parametrize("attributes", [None, [], [{"key": "a", "value": {"intValue": "1"}}]])
def test_the_message_of_a_status_is_an_attribute(attributes: Any) -> None:
    message = 'no "space" left\u2028'
    spans, _ = read(document(status={"code": 2, "message": message}, attributes=attributes))
    own = {"a": 1} if attributes else {}
    assert spans.attributes(0) == {**own, "otel.status_description": message}


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        (("5", "7"), (5, 7)),
        ((5, 7.0), (5, 7)),
        ((str(2**63 - 1), str(2**63 - 1)), (2**63 - 1, 2**63 - 1)),
        ((2**63, 2**63 + 1), (0, 0)),
        (("-5", "7"), (0, 0)),
        (("soon", "7"), (0, 0)),
        (("5", None), (5, 0)),
        ((1e300, "7"), (0, 0)),
    ],
)
def test_what_is_no_time_is_impossible(times: tuple[Any, Any], wanted: tuple[int, int]) -> None:
    spans, ledger = read(document(startTimeUnixNano=times[0], endTimeUnixNano=times[1]))
    assert (int(spans.start[0]), int(spans.end[0])) == wanted
    assert ledger.impossible_times == (wanted[1] == 0)


def test_values_without_a_type_or_too_deep_are_nothing() -> None:
    deep: dict[str, Any] = {"intValue": "1"}
    for _ in range(40):
        deep = {"arrayValue": {"values": [deep]}}
    values: dict[str, Any] = {
        "empty": {}, "none": None, "unknown": {"futureValue": 1}, "no int": {"intValue": "x"}, "deep": deep,
        "no bytes": {"bytesValue": "???"}, "nan": {"doubleValue": "NaN"}, "whole": {"doubleValue": 3},
        "least": {"doubleValue": "-Infinity"}, "no list": {"arrayValue": {"values": {}}},
        "no map": {"kvlistValue": None},
    }  # fmt: skip
    spans, _ = read(document(attributes=[{"key": k, "value": v} for k, v in values.items()]))
    got = spans.attributes(0)
    assert math.isnan(got.pop("nan"))
    assert (got.pop("least"), type(got["whole"])) == (-math.inf, float)
    while isinstance(got["deep"], list):
        (got["deep"],) = got["deep"]
    assert got == {
        **dict.fromkeys(("empty", "none", "unknown", "no int", "no bytes", "deep")),
        "whole": 3.0, "no list": [], "no map": {},
    }  # fmt: skip


def test_what_the_sdk_dropped_is_counted() -> None:
    _, ledger = read(document(droppedAttributesCount=3, droppedEventsCount="2", droppedLinksCount=None))
    assert ledger.sdk_dropped == 5
    assert losses_of_reading(ledger, {}) == [
        "5 attributes, events and links were beyond the limits of an SDK"
    ]
    lacking = document(droppedAttributesCount=3)
    assert read(lacking + b"\n" + lacking)[1].sdk_dropped == 3  # a repeat lacks nothing more
    data = TracesData.FromString(otlp_protobuf(SPANS))
    span = data.resource_spans[0].scope_spans[0].spans[0]
    span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count = 3, 2, 1
    _, ledger = read(data.SerializeToString())
    assert ledger.sdk_dropped == 6


def test_many_small_lines_are_each_for_themselves() -> None:
    lines = [document(spanId=f"{number:x}") for number in range(1, 1001)]
    odd = {
        100: b'{"resourceSpans":[{"scopeSpans":]}',
        200: b'{"resourceSpans":[]}',
        300: b"",
        400: b" \r",
        500: b'{"resourceMetrics":[{"scopeMetrics":[]}]}',
        600: b'{"resourceSpans":[{"scopeSpans":7}]}',
    }
    for at, line in odd.items():
        lines[at] = line
    wanted = [number for number in range(1, 1001) if number - 1 not in odd]
    for end in (b"\n", b"\r\n"):
        spans, ledger = read(end.join(lines))
        assert spans.span_id.tolist() == wanted
        assert (ledger.unreadable_lines, ledger.passed_over, ledger.duplicates) == (2, 1, 0)
        assert ledger.warnings[0].startswith("file: 2 unreadable lines left out; line 101: not JSON")
    few, _ = read(b"\n".join(lines), max_spans=150)
    assert few.span_id.tolist() == wanted[:150]


def test_spans_without_an_id_take_no_others_with_them() -> None:
    request = json.loads(document(links=[{"traceId": "zz", "spanId": "1"}, {"traceId": "a", "spanId": "b"}]))
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for changes in ({"spanId": ""}, {"traceId": "0" * 32}, {"parentSpanId": "no id"}, {"traceId": None}):
        spans.append({**spans[0], "name": "odd", **changes})
    columns, ledger = read(json.dumps(request).encode())
    assert (len(columns), ledger.unidentified) == (1, 4)
    assert columns.links.span_id.tolist() == [0xB]
    assert losses_of_reading(ledger, {}) == ["4 spans without an id were left out"]
    data = TracesData.FromString(otlp_protobuf(SPANS))
    odd = data.resource_spans[0].scope_spans[0].spans[1]
    for name, value in (("span_id", b""), ("trace_id", bytes(17)), ("parent_span_id", bytes(9))):
        setattr(odd, name, value)
        columns, ledger = read(data.SerializeToString())
        assert (len(columns), ledger.unidentified, ledger.broken) == (len(SPANS) - 1, 1, None)


def test_what_breaks_in_the_middle_leaves_what_came_before() -> None:
    good = otlp_protobuf(SPANS)
    columns, ledger = read(good + b"\x0a\x05\xff\xff\xff\xff\xff" + good)
    assert len(columns) == len(SPANS)
    assert "what came before it was read" in str(ledger.broken)


def test_no_more_spans_are_read_than_asked_for() -> None:
    for data in (otlp_lines(ALL), otlp_protobuf(ALL)):
        spans, _ = read(data, max_spans=3)
        assert len(spans) == 3


# --- Protobuf ---------------------------------------------------------------------------------------------


def test_spans_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_proto, "_PARSED", 300)
    monkeypatch.setattr(otlp_proto, "_TOGETHER", 2)
    for block in (1, 7, 1 << 20):
        spans, _ = read(otlp_protobuf(ALL), block)
        same(found(spans), expected("OTLP protobuf", ALL))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.binary(max_size=50) | st.sampled_from([b"x" * 128, b"y" * 16_383, b"z" * 16_384]), max_size=10
    ),
    st.integers(1, 60),
)
def test_a_message_split_is_the_same_fields(values: list[bytes], size: int) -> None:
    message = b"".join(b"\x12" + varint(len(value)) + value for value in values)
    assert wire.first(message + b"\x0a\x01s\x0a\x01t", 1) == b"s"
    assert wire.first(b"\x18\x05" + message, 1) == b""
    for end in range(1, min(len(message), 60)):
        with suppress(Unreadable):
            list(wire.split(message[:end], 0))
            assert end in {0, *(field.end for field in wire.fields(message))}
    parts = list(wire.split(message, size))
    assert b"".join(map(bytes, parts)) == message
    assert [bytes(part[f.start : f.end]) for part in parts for f in wire.fields(part)] == values


def test_a_name_that_is_no_text_takes_nothing_else_with_it() -> None:
    data = otlp_protobuf(SPANS).replace(b"all types", b"all \xff\xfepes")
    spans, _ = read(data)
    assert [spans.name(ix) for ix in range(2)] == ["train.step", "all \ufffd\ufffdpes"]


def test_ids_of_other_lengths(tmp_path: Path) -> None:
    data = TracesData.FromString(otlp_protobuf(SPANS[:1]))
    span = data.resource_spans[0].scope_spans[0].spans[0]
    span.trace_id = bytes.fromhex("0badc0de00000001")
    builder = SpanBuilder(10)
    otlp_proto.read_traces(
        data.SerializeToString(), builder, Ledger()
    )  # told by its fields, not by sizes alone
    for name, value in (("trace_id", bytes(17)), ("span_id", b""), ("span_id", bytes(8))):
        other = TracesData()
        other.CopyFrom(data)
        setattr(other.resource_spans[0].scope_spans[0].spans[0], name, value)
        with suppress(Unreadable):
            otlp_proto.read_traces(other.SerializeToString(), SpanBuilder(10), Ledger())
            raise AssertionError(name)


def test_a_first_span_without_ids_does_not_make_logs_of_all() -> None:
    data = TracesData()
    spans = data.resource_spans.add().scope_spans.add().spans
    for ids in ({}, {"trace_id": bytes(15) + b"t", "span_id": b"8 bytes!"}):
        spans.add(name="x", start_time_unix_nano=5, end_time_unix_nano=6, **ids)
    columns, ledger = read(data.SerializeToString())
    assert (len(columns), ledger.unidentified, ledger.passed_over) == (1, 1, 0)


def metrics() -> bytes:
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.add(key="service.name").value.string_value = "x"
    scope = group.scope_metrics.add()
    metric = scope.metrics.add(name="sixteen letters!", description="eight ch", unit="s")
    metric.sum.data_points.add(time_unix_nano=1, as_int=1)
    return bytes(request.SerializeToString())


def logs() -> bytes:
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.add(key="service.name").value.string_value = "x"
    record = group.scope_logs.add().log_records.add(time_unix_nano=1, trace_id=bytes(16), span_id=bytes(8))
    record.body.string_value = "hello"
    return bytes(request.SerializeToString())


@pytest.mark.parametrize("other", [metrics, logs])
def test_metrics_and_logs_are_passed_over(other: Callable[[], bytes]) -> None:
    for data in (other() + otlp_protobuf(SPANS), framed([other(), otlp_protobuf(SPANS)])):
        spans, ledger = read(data)
        same(found(spans), expected("OTLP protobuf"))
        assert (ledger.passed_over, ledger.unreadable_lines, ledger.warnings) == (1, 0, [])


def test_every_beginning_of_a_message_ends_in_a_line_or_in_spans() -> None:
    data = otlp_protobuf(SPANS)
    complete = found(read(data)[0])
    seen, wholes = set(), {field.end for field in wire.fields(data)}
    for end in range(2, len(data)):  # a first byte alone is a new line
        try:
            spans, ledger = read(data[:end])
        except SourceError:
            continue
        assert ledger.unreadable_lines == (end not in wholes)
        seen.add(len(spans))
        assert all(complete[key] == row or row["linked up"] != 1 for key, row in found(spans).items())
    assert seen >= {0, 2}


def test_forms_have_their_names() -> None:
    assert form_named("otlp-json") is OTLP_JSON
    assert form_named("otlp-proto") is OTLP_PROTO
    for form in (OTLP_JSON, OTLP_PROTO):
        for raw in (b"", b"\xff" * 30, b"null", b"{}", b"[1]", b"[[]]", b"\x4a\x01"):
            assert form.attributes(raw) in ({}, {"": None})
            assert list(form.events(raw)) == []


# --- What bytes hold --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b'{"resourceSpans":[]}', b'\n{"a":1}', b'\n\n\n\n{"resourceSpans":[]}', b"    {", b"\n[\n{\n",
     b"\n{\n\n\t1", b"", b"\n", b"\n\n", b"hello", b"\xef\xbb\xbf{}", b"\n {\n \"a\"", b"<html>"],
)  # fmt: skip
def test_text_is_text(text: bytes) -> None:
    assert sniff.holds(text) is Holds.TEXT


@settings(max_examples=25, deadline=None)
@given(
    st.text(" \t\r\n", max_size=12),
    st.recursive(st.none() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)),
)
def test_json_is_never_taken_for_protobuf(space: str, value: Any) -> None:
    for text in (json.dumps({"resourceSpans": value}), json.dumps([value], indent=2)):
        assert sniff.holds((space + text).encode()) is Holds.TEXT


def shapes() -> Iterator[tuple[str, TracesData]]:
    yield "whole", TracesData.FromString(otlp_protobuf(SPANS))
    data = TracesData.FromString(otlp_protobuf(SPANS))
    data.resource_spans[0].ClearField("resource")
    yield "no resource", data
    data = TracesData.FromString(otlp_protobuf(SPANS))
    data.resource_spans[0].resource.ClearField("attributes")
    yield "empty resource", data
    data = TracesData.FromString(otlp_protobuf(SPANS))
    data.resource_spans[0].resource.ClearField("attributes")
    data.resource_spans[0].resource.dropped_attributes_count = 3
    yield "only dropped attributes", data


@pytest.mark.parametrize(
    ("name", "data"), list(shapes()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_protobuf_is_told_from_its_first_bytes(name: str, data: TracesData) -> None:
    raw = data.SerializeToString()
    assert sniff.holds(raw[: sniff.HEAD]) is Holds.PROTOBUF
    assert sniff.holds(framed([raw])) is Holds.FRAMES
    assert sniff.holds(framed([zstd(raw)])) is Holds.FRAMES
    assert sniff.holds(varint(len(raw)) + raw) is Holds.DELIMITED
    tempo = b"\x0a" + varint(len(raw)) + raw
    assert sniff.holds(tempo) is Holds.TEMPO
    for wrapped in (raw, framed([raw, raw]), varint(len(raw)) + raw + varint(len(raw)) + raw, tempo):
        spans, ledger = read(wrapped)
        assert len(spans) == len(SPANS)
        assert ledger.unreadable_lines == 0


# --- Messages with their lengths --------------------------------------------------------------------------


def test_a_damaged_message_leaves_the_others() -> None:
    good = otlp_protobuf(SPANS)
    broken = bytearray(zstd(good))
    broken[len(broken) // 2 :] = bytes(len(broken) - len(broken) // 2)
    for bad in (bytes(broken), b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"{no json"):
        spans, ledger = read(framed([good, bad, good]))
        assert len(spans) == len(SPANS)
        assert (ledger.duplicates, ledger.unreadable_lines) == (len(SPANS), 1)
        assert "message 2: " in ledger.warnings[0]


def test_messages_of_json_that_are_damaged_leave_the_others() -> None:
    messages = [document(spanId=f"{number:x}") for number in range(1, 301)]
    broken = zstd(messages[9])
    packed = [zstd(message) for message in messages]
    packed[9], packed[19] = broken[:-9] + bytes(9), zstd(b"{no json")
    data = framed(packed)
    spans, ledger = read(data[:-5])
    assert spans.span_id.tolist() == [number for number in range(1, 300) if number not in (10, 20)]
    assert ledger.unreadable_lines == 3
    assert any("message 10: a message of which its zstd data" in warning for warning in ledger.warnings)
    assert "file: the last message is cut; it was left out" in ledger.warnings


def test_the_end_of_a_file_that_is_being_written_is_told() -> None:
    message = otlp_protobuf(SPANS)
    whole = framed([message, message])
    for end in [*range(len(whole) // 2 + 1, len(whole), 101), len(whole) - 1]:
        spans, ledger = read(whole[:end])
        assert len(spans) == len(SPANS)
        assert ledger.warnings == ["file: the last message is cut; it was left out"]


def test_lengths_that_cannot_be() -> None:
    good = framed([otlp_protobuf(SPANS)])
    with pytest.raises(SourceError, match="more than 16,777,216 are not read"):
        read(struct.pack(">I", 1 << 29) + otlp_protobuf(SPANS))
    spans, ledger = read(good + b"\x7f\xff\xff\xff" + good)
    assert len(spans) == len(SPANS)
    assert "2,147,483,647 bytes" in str(ledger.broken)


def test_a_message_that_is_a_bomb() -> None:
    bomb = zstd(bytes(1 << 26))
    spans, ledger = read(framed([otlp_protobuf(SPANS), bomb]))
    assert len(spans) == len(SPANS)
    assert "are not read" in ledger.warnings[0]


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\x0a", b"\x0a\x20\x0a\x05", b"\0\0\0\x30", b"\0\0\0\x30\x0a\x2e"]),
)
def test_nothing_but_our_errors_comes_out(data: bytes, before: bytes) -> None:
    with suppress(GrademlError):
        read(before + data)
    with suppress(GrademlError):
        read(tempo_v2_protobuf(SPANS)[:60] + data)
