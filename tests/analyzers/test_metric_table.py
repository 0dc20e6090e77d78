# SPDX-License-Identifier: Apache-2.0
"""The table of metrics: series, since when a point counts, what it added; by hand for each kind of point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.subject import read_subject
from grademl_otel.analyzers.tables import table, why_empty
from grademl_otel.convert import spans
from grademl_otel.convert.spans import Attributes
from grademl_otel.export.otlpjson import metric_line
from tests.support.synthetic import MS, S, Simulated, Training, simulate
from tests.support.telemetry import resource

SMALL = Training(ranks=2, epochs=1, steps_per_epoch=3, eval_batches=0)
DELTA, CUMULATIVE = 1, 2

Point = dict[str, Any]
Rows = list[dict[str, Any]]


def at(time: int, number: float | int | str | None, start: int = 0, **more: Any) -> Point:
    """Return a point; a str is a double that JSON has no number for, as NaN."""
    key = "asInt" if isinstance(number, int) else "asDouble"
    point: Point = {"timeUnixNano": str(time), **({key: number} if number is not None else {})}
    return {**point, **({"startTimeUnixNano": str(start)} if start else {}), **more}


def sums(*points: Point, temporality: int = CUMULATIVE, monotonic: bool = True, name: str = "n") -> Point:
    data = {"dataPoints": points, "aggregationTemporality": temporality, "isMonotonic": monotonic}
    return {"name": name, "unit": "1", "sum": data}


def gauges(*points: Point) -> Point:
    return {"name": "g", "gauge": {"dataPoints": points}}


def histograms(*points: Point, temporality: int = CUMULATIVE) -> Point:
    return {"name": "h", "histogram": {"dataPoints": points, "aggregationTemporality": temporality}}


def request(metrics: Sequence[Point], of: dict[str, Any] | None = None) -> bytes:
    """Return a line of OTLP/JSON with ``metrics`` of the resource ``of``."""
    group = {"resource": of or {}, "scopeMetrics": [{"metrics": list(metrics)}]}
    return json.dumps({"resourceMetrics": [group]}).encode() + b"\n"


def stored(folder: Path, sim: Simulated, *requests: bytes) -> str:
    """Write a store with these metrics beside the run; return its place."""
    path = sim.write_store(folder)
    (path.parent / "metrics.jsonl").write_bytes(b"".join(requests))
    return str(folder)


def rows(source: str, *columns: str, **options: Any) -> Rows:
    found: Rows = table(read_subject(Query.of(source, **options)), "metrics", columns or None).to_pylist()
    return found


def added(folder: Path, *metrics: Point) -> list[tuple[Any, ...]]:
    """Return (series, since, delta, delta of the count) of each point."""
    columns = ("series_ix", "since_ns", "delta", "count_delta")
    found = rows(stored(folder, simulate(SMALL), request(metrics)), *columns)
    return [tuple(row[name] for name in columns) for row in found]


def test_a_cumulative_sum_adds_what_it_has_more(tmp_path: Path) -> None:
    assert added(tmp_path, sums(at(20, 7, 10), at(30, 9, 10), at(40, 9, 10))) == [
        (0, 10, 7, None), (0, 20, 2, None), (0, 30, 0, None)
    ]  # fmt: skip


def test_a_new_start_counts_from_there(tmp_path: Path) -> None:
    assert added(tmp_path, sums(at(20, 7, 10), at(40, 8, 35), at(50, 9, 35))) == [
        (0, 10, 7, None), (0, 35, 8, None), (0, 40, 1, None)
    ]  # fmt: skip


def test_two_writers_of_one_series_do_not_mix(tmp_path: Path) -> None:
    both = sums(at(20, 100, 10), at(21, 5, 11), at(30, 104, 10), at(31, 6, 11))
    assert added(tmp_path, both) == [
        (0, 10, 100, None), (0, 11, 5, None), (0, 20, 4, None), (0, 21, 1, None)
    ]  # fmt: skip


def test_a_sum_that_falls_began_anew(tmp_path: Path) -> None:
    assert added(tmp_path, sums(at(20, 7), at(30, 3), at(40, 5))) == [
        (0, None, None, None), (0, 20, 3, None), (0, 30, 2, None)
    ]  # fmt: skip
    other = tmp_path / "other"
    up_and_down = sums(at(20, 7), at(30, 3), monotonic=False)
    assert added(other, up_and_down) == [(0, None, None, None), (0, 20, -4, None)]


def test_points_of_temporality_delta_say_it_themselves(tmp_path: Path) -> None:
    points = sums(at(20, 7, 10), at(30, 2, 20), at(40, 1), temporality=DELTA)
    assert added(tmp_path, points) == [(0, 10, 7, None), (0, 20, 2, None), (0, 30, 1, None)]


def test_gauges_add_nothing(tmp_path: Path) -> None:
    assert added(tmp_path, gauges(at(20, 0.5), at(30, 0.75, 20))) == [
        (0, None, None, None), (0, 20, None, None)
    ]  # fmt: skip


def test_histograms_add_values_and_their_sum(tmp_path: Path) -> None:
    def seen(time: int, count: int, total: float, start: int = 0) -> Point:
        return {**at(time, None, start), "count": str(count), "sum": total}

    assert added(tmp_path / "a", histograms(seen(20, 4, 2.0, 10), seen(30, 6, 3.5, 10))) == [
        (0, 10, 2.0, 4), (0, 20, 1.5, 2)
    ]  # fmt: skip
    # Of values below 0 the sum may fall; only a count that falls began anew.
    assert added(tmp_path / "b", histograms(seen(20, 4, 2.0), seen(30, 5, 1.0), seen(40, 1, 0.5))) == [
        (0, None, None, None), (0, 20, -1.0, 1), (0, 30, 0.5, 1)
    ]  # fmt: skip


def test_points_are_put_in_order_of_time_within_their_series(tmp_path: Path) -> None:
    def of(phase: str) -> dict[str, Any]:
        return {"attributes": [{"key": "phase", "value": {"stringValue": phase}}]}

    mixed = sums(at(30, 9, 10, **of("b")), at(20, 1, 10, **of("a")), at(20, 4, 10, **of("b")), at(0, 5))
    found = added(tmp_path, mixed)
    assert found == [
        (0, 20, 5, None), (1, 10, 1, None), (0, 10, 4, None), (2, None, None, None)
    ]  # fmt: skip


def test_what_is_no_number_is_null_and_spoils_no_sum(tmp_path: Path) -> None:
    source = stored(
        tmp_path, simulate(SMALL),
        request([gauges(at(10, "NaN"), at(20, "Infinity"), at(30, None), at(0, 2.5), at(40, 2**62 + 1))]),
    )  # fmt: skip
    found = rows(source, "time_ns", "value", "whole", "count", "monotonic", "temporality")
    assert [row["value"] for row in found] == [None, float("inf"), None, 2.5, float(2**62 + 1)]
    assert [row["whole"] for row in found] == [None, None, None, None, 2**62 + 1]
    assert [row["time_ns"] for row in found] == [10, 20, 30, None, 40]
    for name in ("count", "monotonic", "temporality"):
        assert {row[name] for row in found} == {None}


def test_large_integers_differ_exactly(tmp_path: Path) -> None:
    big = 2**60
    assert [delta for _, _, delta, _ in added(tmp_path, sums(at(1, big, 1), at(2, big + 3, 1)))] == [big, 3]


def test_differences_beyond_64_bits_are_about_right(tmp_path: Path) -> None:
    ends = sums(at(1, -(2**63), 1), at(2, 2**63 - 1, 1), monotonic=False)
    assert added(tmp_path, ends)[1][2] == pytest.approx(2.0**64)


def test_a_point_says_whose_it_is(tmp_path: Path) -> None:
    sim = simulate(SMALL)
    of = resource(sim.training, 1)
    source = stored(tmp_path, sim, request([sums(at(20, 7, 10))], of), request([gauges(at(5, 1.0))]))
    first, second = rows(source)
    assert (first["run"], first["attempt"], first["rank"]) == (SMALL.run_id, 0, 1)
    assert (first["service"], first["host"]) == (SMALL.service, "node-0")
    assert (first["name"], first["unit"], first["kind"]) == ("n", "1", "sum")
    assert (first["temporality"], first["monotonic"], first["attributes"]) == ("cumulative", True, "{}")
    assert [second[name] for name in ("run", "attempt", "rank", "host")] == [None] * 4
    assert (second["service"], second["unit"]) == ("", "")
    # Of a part of the run only what is of its ranks, and in its time.
    assert [row["point_ix"] for row in rows(source, ranks=(1,))] == [0]
    assert rows(source, ranks=(0,)) == []
    assert rows(source, steps=StepRange(1, 2)) == []
    inside = sim.rows_of(1)[1].start + MS
    (Path(source) / sim.folder / "metrics.jsonl").write_bytes(request([gauges(at(inside, 2))], of))
    assert [row["value"] for row in rows(source, steps=StepRange(1, 2))] == [2.0]
    assert rows(source, steps=StepRange(2, 3)) == []


def test_times_of_another_host_are_by_the_clock_of_the_others(tmp_path: Path) -> None:
    sim = simulate(replace(SMALL, buckets=2, epochs=2, steps_per_epoch=20, skew_ns={1: 3 * S}))
    shown = sim.training.start + 4 * S
    source = stored(tmp_path, sim, request([sums(at(shown, 7, shown - S))], resource(sim.training, 1)))
    (row,) = rows(source)
    assert abs(row["time_ns"] - (shown - 3 * S)) < 5 * MS
    assert row["time_ns"] - row["start_ns"] == S


def test_metrics_of_a_copy_are_those_of_its_source(tmp_path: Path) -> None:
    metrics = request([sums(at(20, 7, 10), at(30, 9, 10)), gauges(at(25, 0.5))], resource(SMALL, 0))
    source = stored(tmp_path / "store", simulate(SMALL), metrics)
    analyzers.pull(source, tmp_path / "copy")
    assert rows(source) == rows(str(tmp_path / "copy"))
    assert len(rows(source)) == 3


def test_what_was_sampled_is_read_as_it_was_written(tmp_path: Path) -> None:
    start, time = 1_764_570_000_000_000_000, 1_764_570_001_000_000_000
    gpu: Attributes = {"hw.id": "GPU-1", "hw.type": "gpu"}
    metrics: list[spans.Metric] = [
        spans.Gauge("hw.temperature", "Cel", "Hot.", time, [spans.Point(40.5, gpu, start, time - 5)]),
        spans.UpDown("hw.gpu.memory.usage", "By", "", start, time, [spans.Point(1 << 40, gpu)]),
        spans.Sum("hw.energy", "J", "", start, time, [spans.Point(7, gpu, start + 3, time - 5)]),
    ]
    source = stored(tmp_path, simulate(SMALL), metric_line(spans.Resource({"host.name": "node-0"}), metrics))
    columns = ("name", "unit", "kind", "monotonic", "value", "whole", "start_ns", "time_ns", "attributes")
    found = rows(source, *columns)
    assert {row["attributes"] for row in found} == {'{"hw.id":"GPU-1","hw.type":"gpu"}'}
    assert {row["name"]: tuple(row[name] for name in columns[1:-1]) for row in found} == {
        "hw.temperature": ("Cel", "gauge", None, 40.5, None, None, time - 5),
        "hw.gpu.memory.usage": ("By", "sum", False, 2.0**40, 1 << 40, start, time),
        "hw.energy": ("J", "sum", True, 7.0, 7, start + 3, time - 5),
    }


def test_without_metrics_the_reason_is_told(tmp_path: Path) -> None:
    simulate(SMALL).write_store(tmp_path)
    about = read_subject(Query.of(str(tmp_path)))
    assert table(about, "metrics").num_rows == 0
    assert "no metrics beside its spans" in str(why_empty(about, "metrics"))
