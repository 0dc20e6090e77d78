# SPDX-License-Identifier: Apache-2.0
"""Several files as one source: rotated ones, folders of all kinds, compression, damage, growth, metrics."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.files import blocks, compression, growth, seams
from grademl_otel.analyzers.sources.files.metrics import read_metrics
from grademl_otel.analyzers.suggest import explain_source

from ..support.every_format import FORMATS, collector_protobuf_zstd, framed, otlp_lines, otlp_protobuf, zstd
from ..support.truth import SPANS
from .test_every_format import expected, found, same

TIMES = ("2026-12-01T05-02-14.173", "2026-12-01T05-02-14.174", "2026-12-02T00-00-00.000")


def read(path: Path | str, **options: Any) -> Telemetry:
    return open_source(str(path), SourceOptions(**options)).read(Selection())


def complete(telemetry: Telemetry) -> None:
    same(found(telemetry.spans), expected("OTLP JSON lines"))
    assert telemetry.ledger.duplicates == 0


def line(number: int, size: int = 200) -> bytes:
    attribute = {"key": "text", "value": {"stringValue": "x" * size}}
    span = {
        "traceId": "1",
        "spanId": f"{number:x}",
        "name": "n",
        "startTimeUnixNano": 1,
        "endTimeUnixNano": 2,
    }
    groups = [{"scopeSpans": [{"spans": [{**span, "attributes": [attribute]}]}]}]
    return json.dumps({"resourceSpans": groups}).encode() + b"\n"


def ids(telemetry: Telemetry) -> list[int]:
    return telemetry.spans.span_id.tolist()


# --- Rotated files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spans-{}.jsonl", "spans-{}-size.jsonl", "spans-{}.jsonl.gz"])
def test_rotated_files_come_before_the_live_one_in_order_of_time(name: str, tmp_path: Path) -> None:
    for number, time in reversed(list(enumerate(TIMES, 1))):
        content = line(number)
        file = tmp_path / name.format(time)
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "spans.jsonl").write_bytes(line(9))
    (tmp_path / "spans-other.jsonl").write_bytes(line(10))
    assert ids(read(tmp_path / "spans.jsonl")) == [1, 2, 3, 9]
    assert sorted(ids(read(tmp_path))) == [1, 2, 3, 9, 10]
    assert ids(read(tmp_path / name.format(TIMES[1]))) == [2]
    (tmp_path / "spans.jsonl").unlink()
    assert sorted(ids(read(tmp_path))) == [1, 2, 3, 10]


def test_a_line_that_rotation_cut_is_put_together(tmp_path: Path) -> None:
    whole = b"".join(map(line, range(1, 7)))
    names = [*(f"spans-{time}.json" for time in TIMES), "spans.json"]
    size = len(line(1))
    for cuts in ([size + 30, 3 * size, 4 * size + 1], [10, 2 * size - 1, 5 * size + 100]):
        edges = [0, *cuts, len(whole)]
        for name, start, end in zip(names, edges, edges[1:], strict=False):
            (tmp_path / name).write_bytes(whole[start:end])
        telemetry = read(tmp_path)
        assert ids(telemetry) == [1, 2, 3, 4, 5, 6]
        assert (telemetry.ledger.unreadable_lines, telemetry.ledger.warnings) == (0, [])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_cut_loses_a_line(data: st.DataObject) -> None:
    documents = [{"n": number, "deep": [{"k": "\u2028}{"}, []]} for number in range(5)]
    whole = b"".join(json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    size = data.draw(st.integers(1, 60))
    files = [whole[start:end] for start, end in pairwise([0, *cuts, len(whole)])]
    streams = [[file[at : at + size] for at in range(0, len(file), size)] for file in files]
    lines = b"".join(seams.joined(streams)).split(b"\n")
    assert [json.loads(line) for line in lines if line.strip()] == documents


def test_a_line_whose_other_half_is_lost_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / f"spans-{TIMES[0]}.json").write_bytes(line(1) + line(2)[:-50])
    (tmp_path / "spans.json").write_bytes(line(3) + line(4))
    telemetry = read(tmp_path / "spans.json")
    assert ids(telemetry) == [1, 3, 4]
    assert telemetry.ledger.unreadable_lines == 1
    (tmp_path / f"spans-{TIMES[0]}.json").write_bytes(line(1) + line(2).rstrip())
    assert ids(read(tmp_path / "spans.json")) == [1, 2, 3, 4]


def test_rotated_messages_each_stand_for_themselves(tmp_path: Path) -> None:
    for name, part in ((f"s-{TIMES[0]}.binpb", SPANS[:3]), ("s.binpb", SPANS[3:])):
        (tmp_path / name).write_bytes(collector_protobuf_zstd(part))
    complete(read(tmp_path / "s.binpb"))


# --- Folders and globs ------------------------------------------------------------------------------------


def test_a_folder_of_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(otlp_lines(SPANS[:2])))
    (tmp_path / "b.pb").write_bytes(otlp_protobuf(SPANS[2:4]))
    (tmp_path / "c.otlp").write_bytes(framed([otlp_protobuf(SPANS[4:5])]))
    (tmp_path / "d.json.zst").write_bytes(zstd(otlp_lines(SPANS[5:])))
    (tmp_path / "notes.txt").write_bytes(b"not read")
    (tmp_path / "deeper.json").mkdir()
    telemetry = read(tmp_path)
    complete(telemetry)
    assert telemetry.ledger.warnings == []


def test_globs_reach_down(tmp_path: Path) -> None:
    for number, folder in enumerate(("a", "a/b", "c")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "spans.jsonl").write_bytes(line(number + 1))
        (tmp_path / folder / "readme.md").write_bytes(b"x")
    for pattern in ("**", "**/*.jsonl"):
        assert sorted(ids(read(f"{tmp_path}/{pattern}"))) == [1, 2, 3]
    assert ids(read(f"{tmp_path}/*")) == [1, 3]
    assert ids(read(f"{tmp_path}/[ab]/b")) == [2]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingFound, match="only folders without trace files"):
        read(f"{tmp_path}/e*")


def test_a_name_with_glob_characters_is_a_name_first(tmp_path: Path) -> None:
    (tmp_path / "a[1].jsonl").write_bytes(line(1))
    (tmp_path / "a1.jsonl").write_bytes(line(2))
    assert ids(read(tmp_path / "a[1].jsonl")) == [1]


def test_loose_files_beside_runs_are_listed_and_found(tmp_path: Path) -> None:
    run = tmp_path / f"20260101T000000Z-{'ab' * 16}"
    run.mkdir()
    (run / "traces.jsonl").write_bytes(line(1))
    (tmp_path / "others.json").write_bytes(otlp_protobuf(SPANS))
    assert ids(read(tmp_path)) == [1]
    assert set(open_source(str(tmp_path)).list().services) >= {"trainer", "loader"}
    named = open_source(str(tmp_path)).read(Selection(service="trainer"))
    assert len(named.spans)


def test_what_is_unreadable_is_named_and_the_rest_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(otlp_lines(SPANS))
    (tmp_path / "b.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00garbage")
    (tmp_path / "settings.json").write_bytes(b'{"editor": "vim"}')
    telemetry = read(tmp_path)
    complete(telemetry)
    assert [str(tmp_path / "settings.json") in one for one in telemetry.ledger.warnings] == [True]
    assert "b.jsonl.gz: cannot be read" in str(telemetry.ledger.broken)
    assert run(["report", str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    assert "same id, other trace" in out
    assert "b.jsonl.gz" in err
    (tmp_path / "b.jsonl.gz").unlink()
    assert read(tmp_path).ledger.broken is None
    assert run(["report", str(tmp_path)]) == 0


def test_nothing_readable_is_the_first_fault(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"hello")
    (tmp_path / "b.jsonl").write_bytes(b"<html></html>")
    with pytest.raises(SourceError, match=r"a\.jsonl: "):
        read(tmp_path)


# --- Compression ------------------------------------------------------------------------------------------

PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd}


@pytest.mark.parametrize("outer", PACKERS)
@pytest.mark.parametrize("inner", PACKERS)
def test_compressed_twice_and_in_parts(outer: str, inner: str, tmp_path: Path) -> None:
    data = otlp_lines(SPANS)
    half = len(data) // 2
    packed = PACKERS[inner](data[:half]) + PACKERS[inner](data[half:])
    (tmp_path / "x").write_bytes(PACKERS[outer](packed[:100]) + PACKERS[outer](packed[100:]))
    complete(read(tmp_path / "x"))


@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_file_that_is_cut_keeps_what_came_before(packer: str, tmp_path: Path) -> None:
    lines = [line(number, 2000) for number in range(1, 300)]
    packed = b"".join(PACKERS[packer](each) for each in lines)
    (tmp_path / "x").write_bytes(packed[:-30])
    telemetry = read(tmp_path / "x")
    assert ids(telemetry) == list(range(1, 299))
    assert "end in the middle" in str(telemetry.ledger.broken)
    assert run(["critical-path", str(tmp_path / "x")]) == 3
    (tmp_path / "x").write_bytes(packed[:20])
    with pytest.raises(SourceError, match="end in the middle"):
        read(tmp_path / "x")


@pytest.mark.parametrize("packer", PACKERS)
def test_bombs_end_early(packer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_HARMLESS", 1 << 20)
    many = PACKERS[packer](b" " * (1 << 22)) * 64
    (tmp_path / "x").write_bytes(PACKERS[packer](many) if packer == "gzip" else many)
    with pytest.raises(SourceError, match="more than 1,000 times its size"):
        read(tmp_path / "x")


def test_standard_input_takes_everything() -> None:
    code = (
        "from grademl_otel.analyzers.sources import *\nprint(len(open_source('-').read(Selection()).spans))"
    )
    for content in (otlp_protobuf(SPANS), zstd(collector_protobuf_zstd(SPANS))):
        done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True)
        assert int(done.stdout) == len(SPANS)


def test_a_named_pipe_is_read_or_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(otlp_lines(SPANS)))
    writer.start()
    complete(read(pipe))
    writer.join()
    monkeypatch.setattr(blocks, "_PIPE_S", 0.1)
    with pytest.raises(SourceError, match="nobody has written"):
        read(pipe)


# --- Growth -----------------------------------------------------------------------------------------------


def pieces(path: Path) -> dict[str, tuple[bool, list[int]]]:
    """Key -> (whether final, ids of its spans)."""
    told = {}
    for piece in open_source(str(path)).pieces(Selection(), Ledger()):
        builder, ledger = SpanBuilder(10_000), Ledger()
        piece.read(builder, ledger)
        assert piece.key not in told
        assert (ledger.unreadable_lines, ledger.broken) == (0, None)
        told[piece.key] = (piece.final, builder.finish(ledger).span_id.tolist())
    return told


def test_pieces_stay_as_they_are_when_a_file_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_RANGE", 5000)
    monkeypatch.setattr(growth, "_BLOCK", 700)
    file = tmp_path / "spans.jsonl"
    file.write_bytes(b"".join(line(number) for number in range(1, 61)))
    before = pieces(file)
    assert len(before) > 3
    assert [final for final, _ in before.values()] == [True] * (len(before) - 1) + [False]
    assert [one for _, some in before.values() for one in some] == list(range(1, 61))
    with file.open("ab") as more:
        more.write(b"".join(line(number) for number in range(61, 101)))
    after = pieces(file)
    assert [one for _, some in after.values() for one in some] == list(range(1, 101))
    for key, (final, some) in before.items():
        if final:
            assert after[key] == (True, some)
    assert list(after)[: len(before)] == list(before)


def test_pieces_of_a_file_that_was_rotated_in_the_middle_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_RANGE", 3000)
    whole = b"".join(line(number) for number in range(1, 31))
    live = tmp_path / "spans.json"
    live.write_bytes(whole[:5000])
    keys = list(pieces_of_complete_lines(live))
    live.rename(tmp_path / f"spans-{TIMES[0]}.json")
    live.write_bytes(whole[5000:])
    now = pieces(live)
    assert [one for _, some in now.values() for one in some] == list(range(1, 31))
    assert list(now)[: len(keys)] == keys, "a file that was renamed is not copied again"
    assert [final for final, _ in now.values()][-1] is False


def pieces_of_complete_lines(path: Path) -> list[str]:
    return [piece.key for piece in open_source(str(path)).pieces(Selection(), Ledger())]


def test_pieces_of_what_is_no_lines_are_whole_files(tmp_path: Path) -> None:
    (tmp_path / "a.pb").write_bytes(otlp_protobuf(SPANS[:3]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(line(1) + line(2)))
    (tmp_path / "c.json").write_bytes(json.dumps(json.loads(line(3)), indent=1).encode())
    told = pieces(tmp_path)
    assert [final for final, _ in told.values()] == [True] * 3
    assert sorted(map(len, (some for _, some in told.values()))) == [1, 2, 3]
    (tmp_path / "a.pb").write_bytes(otlp_protobuf(SPANS))
    (tmp_path / "settings.json").write_bytes(b'{"editor": "vim"}')
    again = pieces(tmp_path)
    assert again.popitem()[1] == (True, [])
    assert len(set(told) & set(again)) == 2


# --- What doctor and metrics see --------------------------------------------------------------------------

_CALLED = {
    "OTLP JSON document": "OTLP JSON",
    "OTLP JSON lines": "OTLP JSON",
    "OTLP protobuf": "OTLP protobuf",
    "Collector JSON zstd": "messages of the Collector's file exporter",
    "Jaeger v3": "OTLP JSON",
    "Jaeger v1": "Jaeger JSON",
    "Jaeger traces": "Jaeger JSON",
    "Tempo v1 JSON": "OTLP JSON",
    "Tempo v2 protobuf": "Tempo's protobuf answer",
    "Zipkin": "Zipkin JSON",
}


@pytest.mark.parametrize("name", _CALLED)
def test_a_probe_calls_formats_by_their_names(name: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(FORMATS[name](SPANS))
    assert open_source(str(tmp_path)).probe().notes == (f"1 file of {_CALLED[name]}",)


def test_a_probe_tells_formats_and_faults_without_reading_spans(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line(1) + line(2)[:-20])
    (tmp_path / "b.pb").write_bytes(otlp_protobuf(SPANS))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(line(1)))
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(line(1))[:12])
    (tmp_path / "e.jsonl").write_bytes(b"")
    probe = open_source(str(tmp_path)).probe()
    assert probe.kind == "files"
    assert probe.limits["files"] == "5"
    notes = "\n".join(probe.notes)
    assert "OTLP JSON, gzip" in notes
    assert "OTLP protobuf" in notes
    for words in ("a.jsonl: the last line is cut", "d.jsonl.gz: its gzip data", "e.jsonl: empty"):
        assert words in notes
    assert probe.problems == ()
    assert open_source(str(tmp_path / "absent")).probe().problems == (
        f"{tmp_path}/absent: no such file or folder",
    )


def test_metrics_of_a_run_lie_beside_its_traces(tmp_path: Path) -> None:
    run = tmp_path / f"20260101T000000Z-{'ab' * 16}"
    run.mkdir()
    (run / "traces.jsonl").write_bytes(line(1))
    with pytest.raises(NothingFound, match="no metrics"):
        read_metrics(open_source(str(tmp_path)))
    points = [
        {"timeUnixNano": str(time), "startTimeUnixNano": "5", "asInt": str(7 * time),
         "attributes": [{"key": "phase", "value": {"stringValue": "forward"}}]}
        for time in (10, 20)
    ]  # fmt: skip
    temporality = "AGGREGATION_TEMPORALITY_CUMULATIVE"
    total = {"dataPoints": points, "isMonotonic": True, "aggregationTemporality": temporality}
    metric = {"name": "grademl.steps", "unit": "{step}", "sum": total}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "x"}}]}
    request = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}
    for written in (json.dumps(request).encode() + b"\nhalf a li", json.dumps(request, indent=2).encode()):
        (run / "metrics.jsonl").write_bytes(written)
        found = read_metrics(open_source(str(tmp_path)))
        assert found.time.tolist() == [10, 20]
        assert found.whole.tolist() == [70, 140]
        assert found.temporality.tolist() == [2, 2]
        assert (found.name(1), found.unit(1), found.resource(1)) == (
            "grademl.steps",
            "{step}",
            {"service.name": "x"},
        )
        assert found.attributes(0) == {"phase": "forward"}
        assert found.scope_ix.tolist() == [-1, -1]
    (run / f"metrics-{TIMES[0]}-size.jsonl").write_bytes(
        json.dumps(request).encode().replace(b'"10"', b'"9"')
    )
    assert read_metrics(open_source(str(tmp_path))).time.tolist() == [9, 20, 10, 20]


def test_a_zstd_window_that_is_too_large_is_told(tmp_path: Path) -> None:
    descriptor, window_of_512_mib, last_raw_block_of_1 = b"\x00", b"\x98", b"\x09\x00\x00"
    frame = compression.ZSTD + descriptor + window_of_512_mib + last_raw_block_of_1 + b"{"
    (tmp_path / "a.zst").write_bytes(frame)
    with pytest.raises(SourceError, match="need a window of more than 128 MiB"):
        read(tmp_path / "a.zst")


def test_what_may_not_be_looked_at_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat

    def refused(path: Path, **how: bool) -> os.stat_result:
        if "hidden" in path.parts[:-1]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **how)

    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "a.jsonl").write_bytes(line(1))
    monkeypatch.setattr(Path, "stat", refused)
    for source in (hidden / "a.jsonl", hidden / "below" / "b.jsonl"):
        with pytest.raises(SourceError, match=r"\.jsonl: cannot be read: permission denied"):
            open_source(str(source)).read(Selection())
        assert open_source(str(source)).probe().problems == (f"{source}: cannot be read: permission denied",)
        explain_source(str(source))
    with pytest.raises(SourceError, match="cannot be read: file name too long"):
        open_source("a" * 5000).read(Selection())
    explain_source("a" * 5000)


def metric_request(*points: dict[str, object]) -> dict[str, object]:
    metric = {"name": "a", "sum": {"dataPoints": [{"timeUnixNano": "5", **point} for point in points]}}
    return {"resourceMetrics": [{"resource": None, "scopeMetrics": [{"scope": None, "metrics": [metric]}]}]}


def test_metrics_that_cannot_be_read_are_told_and_cost_no_others(tmp_path: Path) -> None:
    good = json.dumps(metric_request({"asInt": "3"})).encode()
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([good, b'{"resourceMetrics":[5]}', good[:-9], good]))
    (tmp_path / "b.jsonl").write_bytes(b'{"resourceMetrics": [\n{"resource": null')
    found = read_metrics(open_source(str(tmp_path)))
    assert found.whole.tolist() == [3, 3]
    assert [warning.partition(": ")[2][:34] for warning in found.warnings] == [
        "2 documents of metrics left out; n",
        "metrics are read up to a fault: it",
    ]
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(NothingFound, match=r"no metrics beside its spans \(.*b\.jsonl: .*ends within"):
        read_metrics(open_source(str(tmp_path)))


def test_metric_values_beyond_int64_are_none(tmp_path: Path) -> None:
    numbers = ("9" * 400, str(2**63), str(-(2**63)), str(2**63 - 1))
    (tmp_path / "a.jsonl").write_text(json.dumps(metric_request(*({"asInt": text} for text in numbers))))
    found = read_metrics(open_source(str(tmp_path)))
    assert found.is_whole.tolist() == [False, False, True, True]
    assert found.whole.tolist() == [0, 0, -(2**63), 2**63 - 1]
    assert np.isnan(found.value).tolist() == [True, True, False, False]


def test_a_document_of_metrics_may_be_long(tmp_path: Path) -> None:
    request = metric_request(*({"asInt": str(number)} for number in range(20_000)))
    (tmp_path / "a.json").write_text(json.dumps(request, indent=8))
    assert (tmp_path / "a.json").stat().st_size > 4 << 20
    assert read_metrics(open_source(str(tmp_path))).whole.tolist() == list(range(20_000))


def test_reading_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grademl_otel.analyzers.sources.files import source as files

    monkeypatch.setattr(files, "_PROGRESS_S", 0)
    (tmp_path / "a.jsonl").write_bytes(otlp_lines(SPANS))
    told: list[tuple[str, int, int | None]] = []
    read(tmp_path, progress=lambda *now: told.append(now))
    size = len(otlp_lines(SPANS))
    assert told[-1] == ("bytes", size, size)
