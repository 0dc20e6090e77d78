# SPDX-License-Identifier: Apache-2.0
"""JSON documents out of a stream: whatever their kind, size, order of keys and the blocks they come in."""

from __future__ import annotations

import contextlib
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from grademl_otel.analyzers.model.columns import Ledger, SpanColumns
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats import jaeger_json, jsonscan, kinds, kineto, window
from grademl_otel.analyzers.sources.formats.decoding import Unreadable
from grademl_otel.analyzers.sources.formats.documents import read_document, read_json

T0 = 1_796_113_322_763_869_000
Json = dict[str, Any]


def read(
    text: bytes, *, block: int = 1 << 16, max_spans: int = 10**6, max_bytes: int = 1 << 24
) -> tuple[SpanColumns, Ledger]:
    builder, ledger = SpanBuilder(max_spans), Ledger()
    blocks = (text[at : at + block] for at in range(0, len(text), block))
    read_json(blocks, builder, ledger, "some.json", max_bytes)
    return builder.finish(ledger), ledger


def rows(spans: SpanColumns) -> dict[str, tuple[Any, ...]]:
    return {
        spans.span_id_hex(ix): (
            spans.trace_id_hex(ix),
            int(spans.parent_id[ix]),
            spans.name(ix),
            int(spans.start[ix]),
            int(spans.end[ix]),
            repr(sorted(spans.resource(ix).items())),
            repr(spans.scope(ix)),
            repr(sorted(spans.attributes(ix).items())),
        )
        for ix in range(len(spans))
    }


# --- Documents of each kind -------------------------------------------------------------------------------


def otlp_span(number: int) -> Json:
    return {
        "traceId": f"{7:032x}",
        "spanId": f"{number + 1:016x}",
        "parentSpanId": "" if number == 0 else f"{1:016x}",
        "name": f"step {number % 5}",
        "startTimeUnixNano": str(T0 + number * 1000),
        "endTimeUnixNano": str(T0 + number * 1000 + 999),
        "attributes": [{"key": 'odd "}],[{', "value": {"stringValue": f"\\ {number} é"}}],
    }


def otlp(count: int, groups: int = 2, scopes: int = 2) -> Json:
    numbers = iter(range(groups * scopes * count))
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": f"s{group}"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": f"scope {group} {scope}", "version": "1"},
                        "spans": [otlp_span(next(numbers)) for _ in range(count)],
                    }
                    for scope in range(scopes)
                ],
            }
            for group in range(groups)
        ]
    }


def jaeger_trace(count: int, trace: int = 7) -> Json:
    return {
        "traceID": f"{trace:032x}",
        "spans": [
            {
                "traceID": f"{trace:032x}",
                "spanID": f"{number + 1:016x}",
                "operationName": f"step {number % 5}",
                "references": [
                    {"refType": "CHILD_OF", "traceID": f"{trace:032x}", "spanID": f"{1:016x}"},
                ]
                if number
                else [],
                "startTime": T0 // 1000 + number,
                "duration": 1,
                "tags": [{"key": 'odd "}],[{', "type": "string", "value": f"\\ {number} é"}],
                "logs": [],
                "processID": f"p{number % 2}",
            }
            for number in range(count)
        ],
        "processes": {f"p{number}": {"serviceName": f"s{number}", "tags": []} for number in range(2)},
    }


def zipkin(count: int) -> list[Json]:
    return [
        {
            "traceId": f"{7:016x}",
            "id": f"{number + 1:016x}",
            "parentId": f"{1:016x}",
            "name": f"step {number % 5}",
            "timestamp": T0 // 1000 + number,
            "duration": 1,
            "localEndpoint": {"serviceName": "s"},
            "tags": {'odd "}],[{': f"\\ {number} é"},
        }
        for number in range(count)
    ]


def chrome(count: int) -> list[Json]:
    return [
        {
            "ph": "X",
            "name": f"step {number}",
            "pid": 1,
            "tid": 1,
            "ts": number,
            "dur": 0.5,
            "args": {"n": number},
        }
        for number in range(count)
    ]


KINDS: dict[str, Any] = {
    "OTLP": otlp(40),
    "OTLP in an envelope": {"result": otlp(40)},
    "OTLP in a sequence of envelopes": [{"result": otlp(20)}, {"result": {"resourceSpans": []}}],
    "Tempo v1": {"batches": otlp(40)["resourceSpans"]},
    "Tempo v2": {"trace": otlp(40), "metrics": {}},
    "OTLP, keys of protobuf": json.loads(
        json.dumps(otlp(40)).replace("resourceSpans", "resource_spans").replace("scopeSpans", "scope_spans")
    ),
    "Jaeger": {"data": [jaeger_trace(70), jaeger_trace(1, 8)], "total": 0, "errors": None},
    "Jaeger, bare": jaeger_trace(80),
    "Jaeger, a list": [jaeger_trace(40), jaeger_trace(3, 8)],
    "Zipkin": zipkin(90),
    "Chrome": chrome(90),
    "profile": {"schemaVersion": 1, "traceEvents": chrome(90), "baseTimeNanoseconds": T0, "host_name": "h"},
}


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(list(value))}
    return [reversed_keys(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "PIECE", 700)
    monkeypatch.setattr(window, "LINE", 700)


@pytest.mark.parametrize("turned", [False, True], ids=["as written", "keys turned round"])
def test_a_document_cut_into_pieces_gives_what_the_whole_gives(
    kind: Any, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = SpanBuilder(10**6)
    read_document(json.dumps(kind).encode(), whole)
    expected = rows(whole.finish(Ledger()))
    assert len(expected) >= 40
    document = reversed_keys(kind) if turned else kind
    for piece in (300, 700, 5000, 10**6):
        monkeypatch.setattr(window, "PIECE", piece)
        monkeypatch.setattr(window, "LINE", piece)
        for indent, block in ((None, 97), (1, 1 << 16)):
            spans, ledger = read(
                json.dumps(document, indent=indent, ensure_ascii=False).encode(), block=block
            )
            assert rows(spans) == expected
            assert ledger.unreadable_lines == 0
            assert not ledger.broken


def test_without_the_scanner_in_c_it_is_the_same(
    kind: Any, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(kind).encode()
    expected = rows(read(text)[0])
    for module in (window, kinds, kineto):
        monkeypatch.setattr(module, "scan", jsonscan.plain_scan)
    monkeypatch.setattr(jaeger_json, "gather", jsonscan.plain_gather)
    assert rows(read(text)[0]) == expected


def test_documents_stand_in_lines_or_back_to_back_or_indented(small_pieces: None) -> None:
    first, second = otlp(5), otlp(3)
    second["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["spanId"] = "ff"
    texts = [json.dumps(first), json.dumps(second)]
    expected = rows(read(json.dumps([first, second]).encode())[0])
    for text in (
        "\n".join(texts),
        "\r\n\r\n".join(texts) + "\n",
        "".join(texts),
        "\x1e".join(texts),
        json.dumps(first, indent=2) + json.dumps(second, indent=2),
        "\ufeff" + "\n".join(texts),
        texts[0] + "\n" + json.dumps(second, indent=2).replace("\n", ""),
    ):
        spans, ledger = read(text.encode())
        assert rows(spans) == expected
        assert ledger.unreadable_lines == 0


@pytest.mark.parametrize("piece", [300, 1 << 20])
@pytest.mark.parametrize("resource", [{}, {"resource": None}, {"resource": {"attributes": None}}])
@pytest.mark.parametrize("last", [False, True])
def test_null_is_empty_and_old_names_are_known_in_pieces_too(
    resource: Json, piece: int, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "PIECE", piece)
    monkeypatch.setattr(window, "LINE", piece)
    old = {"instrumentationLibrary": {"name": "old"}, "spans": list(map(otlp_span, range(9)))}
    new = {"scope": None, "spans": list(map(otlp_span, range(9, 18)))}
    group = {
        **resource,
        "instrumentationLibrarySpans": [dict(reversed(old.items())) if last else old],
        "scopeSpans": [dict(reversed(new.items())) if last else new],
    }
    one = {"resourceSpans": [dict(reversed(group.items())) if last else group]}
    camel = json.dumps(one)
    snake = camel.replace("resourceS", "resource_s").replace("scopeS", "scope_s")
    snake = snake.replace("LibraryS", "_library_s").replace("Library", "_library")
    for text in (camel, snake):
        spans, ledger = read(text.encode())
        assert ledger.warnings == []
        names = [(scope or {}).get("name") for scope in map(spans.scope, range(18))]
        assert sorted(map(str, names)) == ["None"] * 9 + ["old"] * 9


def test_all_signals_may_stand_in_one_text() -> None:
    lines = [otlp(2), {"resourceMetrics": []}, {"resourceLogs": []}, {"result": {}}, {"resource_metrics": []}]
    spans, ledger = read("\n".join(map(json.dumps, lines)).encode())
    assert (len(spans), ledger.passed_over, ledger.warnings) == (8, 3, [])


# --- What is broken ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"<!DOCTYPE html>\n<html><body>502</body></html>", "an HTML page"),
        (b"<html>", "an HTML page"),
        (b"404 page not found", "no JSON; it begins with '404 page not found'"),
        ("seit gestern läuft es ä".encode(), "no JSON; it begins with 'seit gestern läuft es '$"),
        (b"PK\x03\x04\0\0\x08\x08\0\0", "no JSON; it begins with the bytes 50 4b 03 04 00 00 08 08$"),
        (b"\x93NUMPY\x01\x00v\x00", "no JSON; it begins with the bytes 93 4e 55 4d 50 59 01 00$"),
        (b"17", "no JSON"),
        (b'"text"', "no JSON"),
        (b"\xff\xfe{\0}\0", "UTF-16"),
        ('{"resourceSpans": []}'.encode("utf-16-le"), "UTF-16"),
        ('{"resourceSpans": []}'.encode("utf-16-be"), "UTF-16"),
        (
            b'{"data":null,"errors":[{"code":404,"msg":"trace not found"}]}',
            "an error answer.*trace not found",
        ),
        (b'{"error":{"httpCode":404,"message":"No traces found"}}', "an error answer.*No traces found"),
        (b'{"hello": 1}', "neither OTLP nor Jaeger JSON"),
        (b"[1, 2]", "no JSON|neither"),
        (b'{"data": [{"hello": 1}]}', "neither OTLP nor Jaeger JSON"),
        (b'{"resourceSpans": 1}', "not OTLP"),
        (b'{"resourceSpans": [{"scopeSp', "try again"),
        (b'{"resourceSpans": [}', "not JSON|try again"),
        (b"[" * 100_000, "nested"),
        (b'{"data":' * 100_000, "nested|too many envelopes"),
        (b'{"resourceSpans":' + b"[" * 2000 + b"]" * 2000 + b"}", "nested|not OTLP"),
        (b'{"result":' * 50 + b"{}" + b"}" * 50, "too many envelopes"),
        (b'{"traceEvents": [1]}', "not a profiler's trace"),
        (b'[{"traceId": "1", "id": "1", "binaryAnnotations": []}]', "version 1"),
    ],
)
@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_what_cannot_be_read_is_told_in_one_line(
    text: bytes, says: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "PIECE", piece)
    with pytest.raises(Unreadable, match=says) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_nothing_is_no_fault() -> None:
    for text in (b"", b"\n \n", b"\xef\xbb\xbf"):
        spans, ledger = read(text)
        assert (len(spans), ledger.warnings) == (0, [])


def test_a_million_brackets_take_no_stack(small_pieces: None) -> None:
    text = b'{"data": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    with pytest.raises(Unreadable, match="nested"):
        read(text)
    value = b'{"resourceSpans": [], "other": ' + b'{"a":' * 500_000 + b"1" + b"}" * 500_000 + b"}"
    with pytest.raises(Unreadable, match="nested"):
        read(value)


def test_broken_lines_are_left_out_and_counted() -> None:
    good = json.dumps(otlp(2)).encode()
    spans, ledger = read(b"\n".join([good, b"{broken", good[:-5], b'{"other": 1}', good[:40]]))
    assert len(spans) == 8
    assert ledger.unreadable_lines == 4
    assert ledger.warnings[0] == "some.json: the last line (5) is cut; it was left out"
    assert "4 unreadable lines left out; line 2: not JSON" in ledger.warnings[1]


def test_a_broken_first_line_does_not_take_the_others_with_it() -> None:
    good = json.dumps(otlp(2)).encode()
    for first in (good[50:], b"hello", b'{"resourceSpans": [{"scopeSpans": [{"spans": [{'):
        spans, ledger = read(first + b"\n" + good + b"\n")
        assert len(spans) == 8
        assert (ledger.unreadable_lines, len(ledger.warnings)) == (1, 1)


def test_a_line_of_documents_of_which_the_last_is_broken() -> None:
    good = json.dumps(otlp(2)).encode()
    spans, ledger = read(good + b"\n" + good + good[:100] + b"\n" + good)
    assert len(spans) == 8
    assert ledger.unreadable_lines == 1


@pytest.mark.parametrize("name", ["OTLP", "Jaeger", "Zipkin", "Tempo v2"])
def test_a_document_that_is_cut_gives_what_came_before(name: str, small_pieces: None) -> None:
    text = json.dumps(KINDS[name]).encode()
    whole = read(text)[0]
    for share in (0.5, 0.9, 0.99):
        spans, ledger = read(text[: int(len(text) * share)])
        assert 0 < len(spans) < len(whole)
        assert set(rows(spans)) <= set(rows(whole))
        assert ledger.unreadable_lines == 1
        assert "broke off in document 1" in ledger.warnings[0]
        assert "ends within a document" in ledger.warnings[0]


def test_blanks_are_passed_over_and_nothing_that_was_there_before(small_pieces: None) -> None:
    """The window keeps its memory: what an earlier block left in it is no text."""
    good = json.dumps(otlp(1)).encode()
    blocks = [good, b" " * 5000, b"\n" * 100, good[:300], good[300:], b" \n" * 7]
    builder, ledger = SpanBuilder(100), Ledger()
    read_json(blocks, builder, ledger, "some.json", 1 << 20)
    assert (len(builder), ledger.warnings, ledger.unreadable_lines) == (8, [], 0)
    with pytest.raises(Unreadable, match="10,000 blanks"):
        read(b" " * 20_000, max_bytes=10_000)


def test_bounds(small_pieces: None) -> None:
    text = json.dumps(KINDS["Jaeger"]).encode()
    spans, _ = read(text, max_spans=30)
    assert len(spans) == 30
    with pytest.raises(Unreadable, match="more than 100 bytes"):
        read(text, max_bytes=100)
    assert len(read(text, max_bytes=1000)[0]) == 71


def test_every_cut_and_every_block_ends_in_columns_or_one_line(small_pieces: None) -> None:
    chance = random.Random(3)
    for document in KINDS.values():
        text = json.dumps(document).encode()
        for _ in range(12):
            damaged = bytearray(text[: chance.randrange(len(text))])
            for _ in range(chance.randrange(3) if damaged else 0):
                damaged[chance.randrange(len(damaged))] = chance.choice(b'"\\[]{},: 9')
            with contextlib.suppress(Unreadable):
                read(bytes(damaged), block=chance.randrange(1, 3000))


# --- Memory -----------------------------------------------------------------------------------------------


def long_answer(spans: int) -> Iterator[bytes]:
    trace = json.dumps(jaeger_trace(1))
    head, tail = trace.split('"spans": [', 1)
    one, tail = tail.split('], "processes"', 1)
    yield f'{{"data": [{head}"spans": ['.encode()
    for number in range(spans):
        own = one.replace(f"{1:016x}", f"{number + 1:016x}", 1).replace(
            "{", '{"unknown": "%s", ' % ("x" * 1000), 1
        )
        yield ("," if number else "").encode() + own.encode()
    yield f'], "processes"{tail}]}}'.encode()


def test_memory_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """One trace of many pieces: beside the columns only some are held."""
    piece = 1 << 16
    monkeypatch.setattr(window, "PIECE", piece)
    monkeypatch.setattr(window, "LINE", piece)
    assert sum(map(len, long_answer(20_000))) > 20 << 20
    tracemalloc.start()
    try:
        builder, ledger = SpanBuilder(10**6), Ledger()
        read_json(long_answer(20_000), builder, ledger, "some.json", 1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    spans = builder.finish(ledger)
    assert len(spans) == 20_000
    assert np.unique(spans.span_id).size == 20_000
    assert spans.service(5) == "s0"
    assert peak < 10 << 20
