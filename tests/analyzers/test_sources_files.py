# SPDX-License-Identifier: Apache-2.0
"""Files as a source: formats and envelopes, folders, damage, and what is told of it."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc
from grademl_otel.analyzers.errors import GrademlError, NothingFound, SourceError, UsageError
from grademl_otel.analyzers.model.columns import KIND_SERVER, ORPHAN, STATUS_ERROR, Telemetry
from grademl_otel.analyzers.model.run import build_run
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source, parse_headers
from tests.support.synthetic import S, Simulated, Training, lines, simulate

DATA = Path(__file__).parent.parent / "data"
RECORDED = 0x10123456789ABCDEF
"""Trace id of the recorded answers (in its low half; the high half is 1)."""


def read(path: Path, **selection: Any) -> Telemetry:
    return open_source(str(path)).read(Selection(**selection))


def facts(telemetry: Telemetry) -> dict[tuple[str, str, str], tuple[Any, ...]]:
    """All that a span is, by its ids and name; ns are compared as they are."""
    spans = telemetry.spans
    return {
        (spans.trace_id_hex(ix), spans.span_id_hex(ix), spans.name(ix)): (
            f"{int(spans.parent_id[ix]):016x}",
            int(spans.start[ix]),
            int(spans.end[ix]),
            int(spans.kind[ix]),
            int(spans.status[ix]),
            spans.attributes(ix),
            spans.resource(ix),
        )
        for ix in range(len(spans))
    }


@pytest.fixture(scope="module")
def sim() -> Simulated:
    return simulate(Training(ranks=2))


# --- Formats ----------------------------------------------------------------------------------------------


def test_what_the_collector_writes() -> None:
    telemetry = read(DATA / "collector_otlp_line.jsonl")
    spans = telemetry.spans
    assert [spans.name(ix) for ix in range(len(spans))] == ["train.step", ""]
    assert spans.parent_ix.tolist() == [ORPHAN + 1, 0]
    assert spans.status.tolist() == [STATUS_ERROR, 0]
    assert int(spans.start[0]) == 1764570000000000001
    assert spans.possible.tolist() == [True, False]
    assert telemetry.ledger.impossible_times == 1
    assert spans.resource(0)["ml.world_size"] == 8
    assert spans.links.span_id.tolist() == [0xEEE19B7EC3C1B173]
    assert spans.links.kind == ["follows"]
    attributes = spans.attributes(0)
    nan = attributes.pop("nan")
    assert nan != nan
    assert attributes == {
        "ml.step": 7,
        "big": 1152921504606846976,
        "loss": 2.5,
        "whole": 3.0,
        "flag": False,
        "inf": float("inf"),
        "empty": "",
        "uni": "é\u2028<&>",
        "bin": b"\x00\x01\xff",
        "arr": [1],
        "nil": None,
        "otel.status_description": "boom",
    }
    assert type(attributes["whole"]) is float
    assert type(attributes["flag"]) is bool


def test_recorded_jaeger_answers_of_both_apis_agree() -> None:
    v3 = read(DATA / "jaeger" / "v3_trace_raw_first.json")
    v1 = read(DATA / "jaeger" / "v1_trace_raw_first.json")
    assert v3.ledger.conflicting == v1.ledger.conflicting == 1  # one id, two operations
    for telemetry in (v1, v3):
        spans = telemetry.spans
        assert [spans.name(ix) for ix in range(3)] == ["train.step", "allreduce", "orphan"]
        assert spans.trace_id_hex(0) == "00000000000000010123456789abcdef"
        assert spans.parent_ix.tolist() == [-1, 0, ORPHAN]
        assert spans.kind.tolist() == [1, 1, 1]
        assert [spans.resource(ix)["host.name"] for ix in range(3)] == ["node0", "node1", "node1"]
        assert {spans.resource(ix)["service.name"] for ix in range(3)} == {"trainer"}
    assert (v3.spans.start // 1000 * 1000 == v1.spans.start).all()


def test_recorded_jaeger_answers_in_other_wrappings() -> None:
    once = facts(read(DATA / "jaeger" / "v1_trace_raw_first.json"))
    for name in ("v1_trace_pretty.json", "v1_search_ids.json"):
        again = facts(read(DATA / "jaeger" / name))
        assert again.keys() == once.keys(), name
        assert {ids: fact[0] for ids, fact in again.items()} == {ids: fact[0] for ids, fact in once.items()}


def test_recorded_answers_without_spans() -> None:
    with pytest.raises(NothingFound, match="no spans"):
        read(DATA / "jaeger" / "v1_search_empty.json")
    with pytest.raises(SourceError, match="neither OTLP nor Jaeger JSON"):
        read(DATA / "jaeger" / "v3_services.json")


def test_tags_of_jaeger_keep_their_types(tmp_path: Path) -> None:
    document = json.loads((DATA / "jaeger" / "v1_trace_raw_first.json").read_text())
    trace = document["data"][0]
    trace["spans"] = [span for span in trace["spans"] if span["operationName"] == "dup-id"]
    file = tmp_path / "one.json"
    file.write_text(json.dumps(document))
    spans = read(file).spans
    assert spans.attributes(0) == {
        "big": 1152921504606846976,
        "neg": -5,
        "pi": 3.5,
        "flag": True,
        "arr": '[1,"b"]',
        "bin": b"\x00\x01\xff",
        "map": '{"k":1}',
        "otel.status_description": "boom",
    }
    assert spans.status.tolist() == [STATUS_ERROR]
    assert int(spans.parent_id[0]) == 1, "a FOLLOWS_FROM of the same trace is the parent when no CHILD_OF is"
    assert not len(spans.links.span_ix)


def test_short_ids_and_old_parents_of_jaeger(tmp_path: Path) -> None:
    trace = {
        "traceID": "abc",
        "spans": [
            {"traceID": "abc", "spanID": "1", "operationName": "a", "startTime": 5, "duration": 7,
             "process": {"serviceName": "old", "tags": None}, "tags": [
                 {"key": "span.kind", "value": "server"}, {"key": "error", "value": True}]},
            {"spanID": "2", "parentSpanID": "1", "operationName": "b", "startTime": 5, "duration": 0,
             "references": [{"refType": "FOLLOWS_FROM", "traceID": "def", "spanID": "3"}]},
            {"spanID": "3", "operationName": "no duration", "startTime": 5, "processID": "p9"},
        ],
        "processes": {"p1": {"serviceName": "x", "tags": []}},
    }  # fmt: skip
    for shape in ({"data": [trace]}, trace, [trace], {"data": trace}):
        file = tmp_path / "old.json"
        file.write_text(json.dumps(shape, indent=2))
        telemetry = read(file)
        spans = telemetry.spans
        assert spans.trace_id_hex(1) == f"{0xABC:032x}"
        assert spans.parent_ix.tolist() == [-1, 0, -1]
        assert (spans.start.tolist(), spans.end.tolist()) == ([5000, 5000, 5000], [12000, 5000, 0])
        assert (spans.kind[0], spans.status[0]) == (KIND_SERVER, STATUS_ERROR)
        assert spans.resource(0)["service.name"] == "old"
        assert spans.attributes(0) == {"error": True}
        assert (spans.links.span_ix.tolist(), spans.links.span_id.tolist()) == ([1], [3])
        assert telemetry.ledger.impossible_times == 1


def test_the_same_run_from_every_shape(sim: Simulated, tmp_path: Path) -> None:
    raw = sim.otlp_lines()
    wanted = facts(read(sim.write_store(tmp_path)))
    assert len(wanted) == len(sim.spans)
    groups = [group for line in raw.splitlines() for group in json.loads(line)["resourceSpans"]]
    document = {"resourceSpans": groups}
    shapes: dict[str, bytes] = {
        "lines.jsonl": raw,
        "lines.jsonl.gz": gzip.compress(raw),
        "document.json": json.dumps(document).encode(),
        "indented.json": json.dumps(document, indent=1).encode(),
        "result.json": json.dumps({"result": document}).encode(),
        "data.json": json.dumps({"data": document}).encode(),
        "trace.json": json.dumps({"trace": document, "metrics": {}}).encode(),
        "batches.json": json.dumps({"batches": groups}).encode(),
        "list.json": json.dumps([document]).encode(),
        "packed.json": raw.replace(b"\n", b""),
        "packed_results.json": b"".join(b'{"result":%b}' % line for line in raw.splitlines()),
        "indented_twice.json": b"\n".join(
            json.dumps(json.loads(x), indent=1).encode() for x in raw.splitlines()
        ),
        "crlf.jsonl": raw.replace(b"\n", b"\r\n"),
        "bom.jsonl": b"\xef\xbb\xbf" + raw,
        "blank_lines.jsonl": b"\n\n" + raw.replace(b"\n", b"\n\n"),
        "mixed.jsonl": raw.replace(b"\n", b'\n{"resourceMetrics":[{"scopeMetrics":[]}]}\n'),
        "old_scopes.json": json.dumps(document).replace("scopeSpans", "instrumentationLibrarySpans").encode(),
        "snake.json": _snake(json.dumps(document)).encode(),
        "numbers.json": _unquoted(json.dumps(document)).encode(),
        "kinds.json": json.dumps(document).replace('"kind": 1', '"kind": "SPAN_KIND_INTERNAL"').encode(),
        "upper.json": json.dumps(_mapped(document, str.upper)).encode(),
        "base64.json": json.dumps(_mapped(document, _base64)).encode(),
    }
    for name, content in shapes.items():
        file = tmp_path / name
        file.write_bytes(content)
        telemetry = read(file)
        assert facts(telemetry) == wanted, name
        assert telemetry.ledger.warnings == [], name


def _snake(text: str) -> str:
    for camel, snake in (
        ("resourceSpans", "resource_spans"), ("scopeSpans", "scope_spans"), ("traceId", "trace_id"),
        ("parentSpanId", "parent_span_id"), ("spanId", "span_id"), ("stringValue", "string_value"),
        ("startTimeUnixNano", "start_time_unix_nano"), ("endTimeUnixNano", "end_time_unix_nano"),
        ("intValue", "int_value"), ("arrayValue", "array_value"), ("boolValue", "bool_value"),
    ):  # fmt: skip
        text = text.replace(camel, snake)
    return text


def _unquoted(text: str) -> str:
    return re.sub(r'"(intValue|startTimeUnixNano|endTimeUnixNano)": "(-?\d+)"', r'"\1": \2', text)


def _mapped(document: Any, change: Any) -> Any:
    """Return ``document`` with ids changed."""
    if isinstance(document, list):
        return [_mapped(item, change) for item in document]
    if isinstance(document, dict):
        return {
            key: change(value) if key in ("traceId", "spanId", "parentSpanId") else _mapped(value, change)
            for key, value in document.items()
        }
    return document


def _base64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()


def test_jaeger_json_gives_the_same_run_but_for_microseconds(sim: Simulated, tmp_path: Path) -> None:
    file = tmp_path / "jaeger.json"
    file.write_text(json.dumps(sim.jaeger_v1()))
    ours, theirs = facts(read(sim.write_store(tmp_path))), facts(read(file))
    assert ours.keys() == theirs.keys()
    for key, (parent, start, end, *rest) in ours.items():
        their_parent, their_start, their_end, *their_rest = theirs[key]
        assert (their_parent, their_rest) == (parent, rest)
        assert their_start == start // 1000 * 1000
        assert their_end - their_start == (end - start) // 1000 * 1000


def test_a_line_separator_inside_a_name_ends_no_line(tmp_path: Path) -> None:
    request = json.loads((DATA / "collector_otlp_line.jsonl").read_text())
    request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] = "a\u2028b\x85c"
    file = tmp_path / "separators.jsonl"
    file.write_text(json.dumps(request, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read(file).spans.name(0) == "a\u2028b\x85c"


# --- Folders, globs, standard input -----------------------------------------------------------------------


def store(folder: Path, *trainings: Training) -> Path:
    for training in trainings:
        simulate(training).write_store(folder)
    return folder


OLD = Training(run_id="a" * 32, start=1_700_000_000 * S, epochs=1)
NEW = Training(run_id="ab" * 16, start=1_700_009_000 * S, epochs=1, killed_at=3)


def test_a_folder_of_runs_gives_the_latest_or_the_one_named(tmp_path: Path) -> None:
    where = str(store(tmp_path / "runs", OLD, NEW))
    run = build_run(open_source(where).read(Selection()))
    assert run is not None
    assert run.run_id == NEW.run_id
    run = build_run(open_source(where).read(Selection(run="AA")))
    assert run is not None
    assert run.run_id == OLD.run_id
    with pytest.raises(UsageError, match="several runs begin with a"):
        open_source(where).read(Selection(run="a"))
    with pytest.raises(NothingFound):
        open_source(where).read(Selection(run="f"))


def test_runs_are_listed_latest_first_with_their_paths(tmp_path: Path) -> None:
    listing = open_source(str(store(tmp_path / "runs", OLD, NEW))).list()
    assert [(run.run_id, run.ended, run.steps) for run in listing.runs] == [
        (NEW.run_id, "killed", 3),
        (OLD.run_id, "exit", 20),
    ]
    assert [Path(str(run.path)).name for run in listing.runs] == ["traces.jsonl", "traces.jsonl"]
    assert listing.services == []


def test_folders_of_one_run_are_read_together(tmp_path: Path) -> None:
    """Ranks that start a second apart, and a second attempt, each have a folder of their own."""
    training = Training(ranks=2, epochs=1, start=1_700_000_000 * S)
    both = simulate(training)
    again = simulate(replace(training, attempt=1, start=training.start + 60 * S))
    simulate(OLD).write_store(tmp_path)
    for second, rank, sim in ((10, 0, both), (11, 1, both), (70, 0, again), (71, 1, again)):
        folder = tmp_path / f"20260101T0000{second}Z-{training.run_id}"
        folder.mkdir()
        own = [span for span in sim.spans if span[0] == rank]
        (folder / "traces.jsonl").write_bytes(lines(sim.training, own))
    for attempt in (0, 1):
        run = build_run(read(tmp_path), attempt=attempt)
        assert run is not None
        assert (run.attempt, run.completeness.verdict) == (attempt, "complete")
    listing = open_source(str(tmp_path)).list()
    assert [(run.run_id, run.attempt, run.ranks) for run in listing.runs] == [
        (training.run_id, 1, 2),
        (training.run_id, 0, 2),
        (OLD.run_id, 0, 1),
    ]


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = store(tmp_path / "runs", OLD, NEW)
    next(folder.glob(f"*{OLD.run_id}*/traces.jsonl")).write_bytes(b"\x00" * 100)
    listing = open_source(str(folder)).list()
    assert [run.run_id for run in listing.runs] == [NEW.run_id]
    assert len(listing.warnings) == 1
    assert OLD.run_id in listing.warnings[0]


def test_the_default_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADEML_SOURCE", raising=False)
    with pytest.raises(NothingFound, match="no SOURCE was given"):
        open_source()
    store(tmp_path / "grademl-runs", OLD)
    assert len(open_source().list().runs) == 1
    store(tmp_path / "elsewhere", OLD, NEW)
    monkeypatch.setenv("GRADEML_SOURCE", "elsewhere")
    assert len(open_source().list().runs) == 2


def test_a_glob_reads_all_that_match(tmp_path: Path, sim: Simulated) -> None:
    for rank in range(2):
        own = [both for both in sim.spans if both[0] == rank]
        (tmp_path / f"rank{rank}.jsonl").write_bytes(lines(sim.training, own))
    telemetry = open_source(f"{tmp_path}/rank*.jsonl").read(Selection())
    assert len(telemetry.spans) == len(sim.spans)
    run = build_run(telemetry)
    assert run is not None
    assert run.completeness.verdict == "complete"


def test_standard_input(tmp_path: Path, sim: Simulated) -> None:
    code = (
        "from grademl_otel.analyzers.sources import *\nprint(len(open_source('-').read(Selection()).spans))"
    )
    for content in (sim.otlp_lines(), gzip.compress(sim.otlp_lines())):
        done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True)
        assert int(done.stdout) == len(sim.spans)


# --- Damage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", NothingFound, "no spans"),
        (b"\n\n", NothingFound, "no spans"),
        (b"[]", NothingFound, "no spans"),
        (b'{"resourceSpans":[]}\n', NothingFound, "no spans"),
        (b'{"resourceMetrics":[{}]}\n', NothingFound, "no spans"),
        (b"hello\n", SourceError, "no JSON"),
        (bytes(range(256)) * 10, SourceError, "no JSON"),
        (b"<!DOCTYPE html><html></html>", SourceError, "an HTML page"),
        (b"{}", SourceError, "neither OTLP nor Jaeger"),
        (b'{"hello": "world"}\n{"a": 1}\n', SourceError, "neither OTLP nor Jaeger"),
        (b"17", SourceError, "no JSON"),
        (b'{"resourceSpans": 3}', SourceError, "not OTLP trace data"),
        (b'{"data": [{"traceID": "1", "spans": "x"}]}', SourceError, "not a Jaeger trace"),
        (
            b'{"data": null, "errors": [{"code": 404, "msg": "trace not found"}]}',
            SourceError,
            "trace not found",
        ),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}', SourceError, "no id"),
        (
            b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"spanId": "1f"}]}]}]}',
            SourceError,
            "without an id",
        ),
        (b'{"resourceSpans": [{"scopeSp', SourceError, "try again"),
        (b"[" * 100_000, SourceError, "nested"),
        (b'{"result":' * 50 + b"{}" + b"}" * 50, SourceError, "too many envelopes"),
        (b"\x1f\x8b\x08\x00garbage", SourceError, "cannot be read"),
        (gzip.compress(b"hello"), SourceError, "no JSON"),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
def test_a_file_of_something_else_is_one_clear_line(
    content: bytes, error: type[GrademlError], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(content)
    with pytest.raises(error, match=says) as caught:
        read(file)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")


def test_errors_know_their_exit_codes(tmp_path: Path) -> None:
    with pytest.raises(GrademlError, match="no such file") as caught:
        read(tmp_path / "absent")
    assert caught.value.exit_code == 3
    with pytest.raises(GrademlError, match="neither a run nor a trace file") as caught:
        read(tmp_path)
    assert caught.value.exit_code == 5
    with pytest.raises(GrademlError, match=r"no file matches") as caught:
        read(tmp_path / "*.jsonl")
    assert caught.value.exit_code == 5
    with pytest.raises(GrademlError, match="unknown") as caught:
        open_source("zipkin://x")
    assert caught.value.exit_code == 2


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "secret.jsonl"
    file.write_bytes(b"{}")
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(SourceError, match="permission denied"):
        read(file)


def test_a_cut_last_line_is_left_out_and_told(sim: Simulated, tmp_path: Path) -> None:
    whole = sim.otlp_lines()
    file = tmp_path / "live.jsonl"
    cut = whole[: whole.rindex(b"\n", 0, -1) + 2000]
    file.write_bytes(cut)
    telemetry = read(file)
    complete = read_bytes(tmp_path, cut[: cut.rindex(b"\n") + 1])
    assert facts(telemetry) == facts(complete)
    assert telemetry.ledger.unreadable_lines == 1
    assert ["last line" in warning for warning in telemetry.ledger.warnings] == [True]


def read_bytes(folder: Path, content: bytes) -> Telemetry:
    file = folder / "content.jsonl"
    file.write_bytes(content)
    return read(file)


def test_garbage_between_lines_is_counted_and_the_rest_read(sim: Simulated, tmp_path: Path) -> None:
    first, rest = sim.otlp_lines().split(b"\n", 1)
    telemetry = read_bytes(tmp_path, first + b"\n\xff\xfe\x00garbage\n{}\n" + rest)
    assert len(telemetry.spans) == len(sim.spans)
    assert telemetry.ledger.unreadable_lines == 2
    assert "line 2" in telemetry.ledger.warnings[0]


def test_a_cut_gzip_file_gives_what_is_in_it(tmp_path: Path) -> None:
    raw = simulate(Training(steps_per_epoch=200)).otlp_lines()
    telemetry = read_bytes(tmp_path, gzip.compress(raw)[:-2000])
    assert len(telemetry.spans) > 0
    assert "end in the middle" in str(telemetry.ledger.broken)


def test_lines_sent_twice_count_as_duplicates_only(sim: Simulated, tmp_path: Path) -> None:
    telemetry = read_bytes(tmp_path, sim.otlp_lines() * 2)
    assert len(telemetry.spans) == telemetry.ledger.duplicates == len(sim.spans)
    run = build_run(telemetry)
    assert run is not None
    assert run.completeness.verdict == "complete"


def test_bounds_on_spans_and_bytes(sim: Simulated, tmp_path: Path) -> None:
    path = str(sim.write_store(tmp_path))
    telemetry = open_source(path, SourceOptions(max_spans=100)).read(Selection())
    assert len(telemetry.spans) == 100
    assert telemetry.ledger.capped
    assert "--max-spans" in telemetry.ledger.warnings[0]
    long = tmp_path / "long.json"
    attribute = {"key": "k", "value": {"stringValue": "x" * 9_000_000}}
    span = {"traceId": "1", "spanId": "1", "attributes": [attribute]}
    long.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    assert len(read(long).spans) == 1
    with pytest.raises(SourceError, match="more than 5,000,000 bytes"):
        open_source(str(long), SourceOptions(max_bytes=5_000_000)).read(Selection())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gets_anything_but_our_errors_out_of_the_reader(
    data: st.DataObject, tmp_path: Path
) -> None:
    sim = simulate(Training(epochs=1, steps_per_epoch=3, eval_batches=1))
    raw = data.draw(st.sampled_from([sim.otlp_lines(), json.dumps(sim.jaeger_v1()).encode()]))
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "swap"]))
        if kind == "flip":
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del damaged[at : at + data.draw(st.integers(1, 2000))]
        elif kind == "insert":
            damaged[at:at] = data.draw(st.binary(max_size=5))
        else:
            damaged = bytearray(bytes(damaged).replace(b'"0"', data.draw(_JSON), 3))
        if not damaged:
            break
    file = tmp_path / "damaged.jsonl"
    file.write_bytes(damaged)
    with suppress(GrademlError):
        build_run(read(file))
    with suppress(GrademlError):
        open_source(str(file)).list()


_JSON = st.sampled_from(
    [b"null", b"[]", b"{}", b"-1", b"1e999", b'"x"', b'"-9"', b"99999999999999999999999", b"true", b'"1.5"']
)


# --- Options ----------------------------------------------------------------------------------------------


def test_headers_are_parsed_and_never_shown() -> None:
    assert parse_headers(["A=b=c", " x-tenant = t "]) == {"A": "b=c", "x-tenant": "t"}
    for bad in ("hunter2", "=hunter2", "a b=hunter2", "a=hunter2\r\nb"):
        with pytest.raises(UsageError) as caught:
            parse_headers([bad])
        assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(SourceOptions(headers={"a": "hunter2"}))


def test_the_run_attributes_are_typed(sim: Simulated, tmp_path: Path) -> None:
    telemetry = read(sim.write_store(tmp_path))
    run = build_run(telemetry)
    assert run is not None
    attributes = telemetry.spans.attributes(run.run_spans[0])
    assert attributes[sc.EXPORTERS] == ["file"]
    assert attributes[sc.TRACER_COST] == 0.004
    assert attributes[sc.STEPS_TOTAL] == 40


def test_reading_leaves_the_collector_as_it_was(sim: Simulated, tmp_path: Path) -> None:
    path = sim.write_store(tmp_path)
    read(path)
    assert gc.isenabled()
    with pytest.raises(GrademlError):
        read_bytes(tmp_path, b"x")
    assert gc.isenabled()


def test_part_of_a_run_id_that_fits_several_runs_of_a_file(tmp_path: Path) -> None:
    telemetry = read_bytes(tmp_path, simulate(OLD).otlp_lines() + simulate(NEW).otlp_lines())
    assert len(telemetry.spans) > 100
    with pytest.raises(UsageError, match="several runs begin with a"):
        read(tmp_path / "content.jsonl", run="a")
    run = build_run(read(tmp_path / "content.jsonl", run="ab"))
    assert run is not None
    assert run.run_id == NEW.run_id


def test_time_and_service_keep_whole_runs(tmp_path: Path) -> None:
    content = simulate(OLD).otlp_lines() + simulate(replace(NEW, service="other")).otlp_lines()
    read_bytes(tmp_path, content)
    file = tmp_path / "content.jsonl"
    for selection, wanted in (
        ({"start": OLD.start + 10 * S}, NEW),
        ({"end": OLD.start + 10 * S}, OLD),
        ({"start": OLD.start + S // 3, "end": OLD.start + S // 2}, OLD),
        ({"service": "other"}, NEW),
        ({"service": OLD.service}, OLD),
    ):
        run = build_run(read(file, **selection))
        assert run is not None
        assert run.run_id == wanted.run_id
        assert run.completeness.verdict == "complete"
        assert len(run.spans) == len(run.span_ixs)
