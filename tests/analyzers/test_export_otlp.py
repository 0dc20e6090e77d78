# SPDX-License-Identifier: Apache-2.0
"""OTLP from every source: what is exported is read back as what was read; by protobuf's own JSON, too."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from grademl_otel.analyzers.cli.app import run as cli
from grademl_otel.analyzers.copy.values import otlp_pairs
from grademl_otel.analyzers.exports import otlp_lines, otlp_spans
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.files.metrics import read_metrics
from grademl_otel.analyzers.subject import read_subject
from tests.support import losses
from tests.support.copied import told
from tests.support.every_format import FORMATS, otlp_protobuf
from tests.support.every_format import otlp_lines as written_lines
from tests.support.fake_jaeger import FakeJaeger, serve
from tests.support.metric_points import POINTS, as_line, request
from tests.support.metric_points import told as points_told
from tests.support.synthetic import MS, Training, simulate
from tests.support.truth import SPANS

PROFILE = Path(__file__).parents[1] / "data/profiles/gpu_rank_1.json"
ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".pb", ".pb.gz", ".pb.zst")


def export(source: object, to: Path, *more: str) -> None:
    assert cli(["export", str(source), "--to", "otlp", "-o", str(to), *more]) == 0


def read(source: object) -> SpanColumns:
    return open_source(str(source)).read(Selection()).spans


def taken(path: Path) -> TracesData:
    """Read a file of lines as protobuf's own JSON does: nothing of it may be unknown or of another type."""
    whole = TracesData()
    for line in path.read_bytes().splitlines():
        document = json.loads(line)
        if "resourceSpans" not in document:
            continue
        for group in document["resourceSpans"]:
            for scope in group["scopeSpans"]:
                for span in scope["spans"]:
                    _as_protobuf(span)
        whole.MergeFrom(json_format.ParseDict(document, TracesData()))  # into ``whole`` it replaces
    return whole


def _as_protobuf(span: dict[str, Any]) -> None:
    for one in (span, *span.get("links", ())):
        for key in {"traceId", "spanId", "parentSpanId"} & set(one):
            one[key] = base64.b64encode(bytes.fromhex(one[key])).decode()


def spans_in(data: TracesData) -> list[Span]:
    return [span for group in data.resource_spans for scope in group.scope_spans for span in scope.spans]


# --- The same as what was read ----------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jsonl", ".pb.zst"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_exported_is_what_was_read(name: str, ending: str, tmp_path: Path) -> None:
    source = tmp_path / "spans"
    source.write_bytes(FORMATS[name](SPANS))
    out = tmp_path / f"out{ending}"
    export(source, out)
    assert sorted(told(read(out))) == sorted(told(read(source)))
    if ending == ".jsonl":
        assert len(spans_in(taken(out))) == len(read(source))


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_form_of_a_file(ending: str, tmp_path: Path) -> None:
    source = tmp_path / "spans.jsonl"
    source.write_bytes(written_lines(SPANS))
    out = tmp_path / f"out{ending}"
    export(source, out)
    head = out.read_bytes()
    assert (head[:2] == b"\x1f\x8b") is ending.endswith(".gz")
    assert (head[:4] == b"\x28\xb5\x2f\xfd") is ending.endswith(".zst")
    assert sorted(told(read(out))) == sorted(told(read(source)))
    if ".pb" in ending:
        packed = {
            ".gz": gzip.decompress,
            ".zst": lambda data: zstandard.ZstdDecompressor().stream_reader(data).read(),
        }
        data = packed[out.suffix](head) if out.suffix in packed else head
        assert len(spans_in(TracesData.FromString(data))) == len(read(source))


@pytest.mark.parametrize("copied", [False, True])
def test_a_run_answers_the_same_from_its_export(
    copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    simulate(Training(ranks=2)).write_store(tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    (folder / "metrics.jsonl").write_bytes(as_line(request(Training().run_id, attempt=Training().attempt)))
    source = "runs"
    if copied:
        assert cli(["pull", "runs", "-o", "copy"]) == 0
        source = "copy"
    export(source, tmp_path / "out.jsonl")
    assert points_told(read_metrics(open_source("out.jsonl"))) == points_told(
        read_metrics(open_source("runs"))
    )
    texts = []
    for one in ("runs", "out.jsonl"):
        capsys.readouterr()
        assert cli(["critical-path", one, "--json"]) == 0
        texts.append(capsys.readouterr().out.replace(f'"{one}"', '""'))
    assert texts[0] == texts[1]


def test_a_profile_and_a_server_are_exported_too(tmp_path: Path) -> None:
    export(PROFILE, tmp_path / "profile.jsonl")
    assert sorted(told(read(tmp_path / "profile.jsonl"))) == sorted(told(read(PROFILE)))
    given = simulate(Training()).otlp_lines()
    (tmp_path / "run.jsonl").write_bytes(given)
    run = read(tmp_path / "run.jsonl")
    trace = run.trace_id_hex(0)
    with serve(FakeJaeger(given)) as server:
        export(f"jaeger://127.0.0.1:{server.port}", tmp_path / "trace.jsonl", "--trace", trace)
        export(f"jaeger://127.0.0.1:{server.port}", tmp_path / "whole.pb")
        there = read(f"jaeger://127.0.0.1:{server.port}")
    found = read(tmp_path / "trace.jsonl")
    assert {found.trace_id_hex(ix) for ix in range(len(found))} == {trace}
    assert len(found) == (run.trace_ix == run.trace_ix[0]).sum()
    assert sorted(told(read(tmp_path / "whole.pb"))) == sorted(told(there))
    assert len(there) == len(run)


@pytest.mark.parametrize("more", [(), ("--operation", "step")])
def test_times_are_as_they_were_recorded(more: tuple[str, ...], tmp_path: Path) -> None:
    """Also where hosts' clocks are apart, and answers bring them together."""
    recorded = simulate(Training(ranks=2, epochs=1, buckets=2)).otlp_lines()
    path = tmp_path / "run.jsonl"
    path.write_bytes(losses.shifted(losses.on_hosts(recorded, {1: "node-1"}), "node-1", -30 * MS))
    about = read_subject(Query.of(str(path), operation=more[1] if more else None))
    answered = about.telemetry.spans if about.run is None else about.run.spans
    export(path, tmp_path / "out.jsonl", *more)
    one, other = read(path), read(tmp_path / "out.jsonl")
    assert sorted(told(one)) == sorted(told(other))
    assert answered.start.tolist() != one.start.tolist()


# --- What is kept, and what is not ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jsonl", ".pb"])
@pytest.mark.parametrize("written", [written_lines, otlp_protobuf])
def test_otlp_stays_what_it_was(
    written: Callable[[Any], bytes], ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trace states and attributes of links, which no column holds, too."""
    source, out = tmp_path / "spans", tmp_path / f"out{ending}"
    source.write_bytes(written(SPANS))
    export(source, out)
    assert "note: not in it: schema URLs\n" in capsys.readouterr().err
    data = taken(out) if ending == ".jsonl" else TracesData.FromString(out.read_bytes())
    given = spans_in(TracesData.FromString(otlp_protobuf(SPANS)))
    assert sorted(map(repr, spans_in(data))) == sorted(map(repr, given))
    assert any(span.trace_state for span in given)
    assert any(link.attributes for span in given for link in span.links)


def test_what_readers_do_not_keep_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "spans.json"
    source.write_bytes(FORMATS["Zipkin"](SPANS))
    export(source, tmp_path / "out.jsonl")
    assert "trace states" in capsys.readouterr().err
    export(source, tmp_path / "out.jsonl", "--json")
    done = json.loads(capsys.readouterr().out)
    assert any("trace states" in line for line in done["warnings"])


def test_metrics_go_with_the_spans_in_lines_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.jsonl"
    path.write_bytes(written_lines(SPANS) + as_line(request("ab" * 16)))
    export(path, tmp_path / "out.jsonl")
    assert f"{POINTS} metric points" in capsys.readouterr().err
    metrics = [
        line for line in (tmp_path / "out.jsonl").read_bytes().splitlines() if b'"resourceMetrics"' in line
    ]
    assert points_told(read_metrics(open_source(str(tmp_path / "out.jsonl")))) == points_told(
        read_metrics(open_source(str(path)))
    )
    (group,) = json.loads(metrics[0])["resourceMetrics"]
    for metric in group["scopeMetrics"][0]["metrics"]:
        for point in metric.get("sum", {}).get("dataPoints", ()):
            for exemplar in point.get("exemplars", ()):
                assert len(exemplar.pop("traceId")) == 32
                assert len(exemplar.pop("spanId")) == 16
    json_format.ParseDict({"resourceMetrics": [group]}, MetricsData())
    capsys.readouterr()
    export(path, tmp_path / "out.pb")
    assert f"note: {POINTS} metric points are not in it" in capsys.readouterr().err
    export(path, tmp_path / "one.jsonl", "--trace", f"{SPANS[0].trace:032x}")
    assert "metric point" not in capsys.readouterr().err


def test_integers_beyond_64_bits_and_odd_numbers_are_what_readers_take() -> None:
    attributes = {
        "huge": 2**70,
        "nan": float("nan"),
        "less": float("-inf"),
        "list": [2**64, True, {"a": -(2**63)}],
    }
    pairs = otlp_pairs(attributes)
    span = {"traceId": "AA==", "attributes": pairs}
    found = json_format.ParseDict(span, Span())
    by_key = {pair.key: pair.value for pair in found.attributes}
    assert by_key["huge"].string_value == str(2**70)
    assert by_key["nan"].double_value != by_key["nan"].double_value
    assert by_key["less"].double_value == float("-inf")
    assert by_key["list"].array_value.values[0].string_value == str(2**64)
    assert by_key["list"].array_value.values[2].kvlist_value.values[0].value.int_value == -(2**63)


# --- Lines, and columns as batches ------------------------------------------------------------------------


def test_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_lines, "_LINE", 20_000)
    path = simulate(Training()).write_store(tmp_path / "runs")
    export(path, tmp_path / "out.jsonl")
    lengths = list(map(len, (tmp_path / "out.jsonl").read_bytes().splitlines()))
    assert len(lengths) > 5
    longest = max(len(json.dumps(span)) for span in _spans_of_lines(tmp_path / "out.jsonl"))
    assert max(lengths) <= max(20_000, longest + 4_000)
    assert sum(length <= 20_000 for length in lengths) >= len(lengths) - 2
    assert sorted(told(read(tmp_path / "out.jsonl"))) == sorted(told(read(path)))


def _spans_of_lines(path: Path) -> list[dict[str, Any]]:
    documents = map(json.loads, path.read_bytes().splitlines())
    groups = [group for document in documents for group in document.get("resourceSpans", ())]
    return [span for group in groups for scope in group["scopeSpans"] for span in scope["spans"]]


@pytest.mark.parametrize("most", [1, 3, 8_192])
def test_columns_are_batches_of_any_size(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_spans, "_MOST", most)
    (tmp_path / "a.jsonl").write_bytes(written_lines(SPANS))
    (tmp_path / "b.pb").write_bytes(otlp_protobuf([span for span in SPANS if span.links or span.events]))
    spans = read(tmp_path)
    some = list(otlp_spans.batches(spans))
    assert sum(map(len, some)) == len(spans)
    assert max(map(len, some)) <= most
    links = sum(0 if batch.links is None else len(batch.links.span_ix) for batch in some)
    assert links == len(spans.links) > 0
    half = list(range(0, len(spans), 2))
    chosen = list(otlp_spans.batches(spans, np.array(half)))
    ids = [int(own) for batch in chosen for own in batch.span_id]
    assert ids == spans.span_id[half].tolist()
    of_links = [
        (int(batch.span_id[row]), kind)
        for batch in chosen
        if batch.links is not None
        for row, kind in zip(batch.links.span_ix.tolist(), batch.links.kind, strict=True)
    ]
    expected = [
        (int(spans.span_id[row]), kind)
        for row, kind in zip(spans.links.span_ix.tolist(), spans.links.kind, strict=True)
        if row % 2 == 0
    ]
    assert sorted(of_links) == sorted(expected)
