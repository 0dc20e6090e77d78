# SPDX-License-Identifier: Apache-2.0
"""The numbers of the page's charts, which lose nothing, and the SVG made from them."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path as FilePath
from typing import Any, Final

import numpy as np
import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers import secrecy
from grademl_otel.analyzers.graph import lane_budget, step_breakdown
from grademl_otel.analyzers.graph.path import KINDS, EnteredBy, Path, Section, Sections
from grademl_otel.analyzers.html.charts import draw
from grademl_otel.analyzers.html.charts.palette import phase_class, telling_apart
from grademl_otel.analyzers.html.charts.path_chart import (
    GAP,
    LABEL,
    MOST_JUMPS,
    ONE_BY_ONE,
    path_chart,
    path_data,
)
from grademl_otel.analyzers.html.charts.scales import Heights, time_label, time_ticks, value_ticks
from grademl_otel.analyzers.html.charts.steps_chart import (
    MARKER,
    PLOT,
    STRIP,
    STRIP_BAR,
    TOP,
    steps_chart,
    steps_data,
)
from grademl_otel.analyzers.html.parts import Chart, Charts
from grademl_otel.analyzers.html.series import durations as durations_module
from grademl_otel.analyzers.html.series import timeline as timeline_module
from grademl_otel.analyzers.html.series.bins import edges_of, spread
from grademl_otel.analyzers.html.series.budgets import MOST_RANKS, budget_of
from grademl_otel.analyzers.html.series.durations import (
    LONGEST,
    MOST_POINTS,
    distribution_of_run,
    durations_of_run,
)
from grademl_otel.analyzers.html.series.events import MOST, bands_of_run
from grademl_otel.analyzers.html.series.timeline import MOST_PARTS, MOST_ROWS, Timeline, timeline
from grademl_otel.analyzers.model.facts import Run, StepTable
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.document import BudgetEntry
from grademl_otel.analyzers.reporting.of_run import report_of_run
from grademl_otel.analyzers.reporting.of_traces import report_of_traces
from grademl_otel.analyzers.subject import Subject, read_subject

from ..support.build import R, columns, run_from, run_of
from ..support.hostile import MARK, hostile_run, hostile_traces
from ..support.synthetic import MS, S, Training, lines, simulate

PHASES: Final = (sc.FORWARD, sc.BACKWARD, sc.DATA_WAIT, sc.DATA_FETCH)


def tiled(lengths: Sequence[int], seed: int = 0, lanes: int = 3, phases: Sequence[str] = PHASES) -> Path:
    """A path of sections of these lengths, in random lanes and phases."""
    draw = random.Random(seed)
    sections, at = [], 1_000
    for length in lengths:
        rank = draw.randrange(lanes)
        sections.append(
            Section(
                at, at + length, draw.choice(phases), draw.choice(KINDS), rank, "main",
                draw.randrange(9), None, None, EnteredBy("program"),
            )
        )  # fmt: skip
        at += length
    return Path(1_000, at, Sections.of(sections))


def drawn(path: Path) -> Timeline:
    found = timeline(path, columns([]))
    assert found is not None
    return found


# --- The path ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_cells_hold_what_lies_in_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the overlap of each section with each bin, one by one; lengths of 0 and below a bin too."""
    monkeypatch.setattr(timeline_module, "LEVELS", (8, 64))
    monkeypatch.setattr(timeline_module, "FEWEST_BINS", 1)
    draw = random.Random(seed)
    longest = draw.choice((1, 3, 50, 10**9))
    path = tiled([draw.randint(0, longest) for _ in range(draw.choice((1, 5, 200)))] + [1], seed)
    found = drawn(path)
    for level in found.levels:
        edges = [path.total_ns * at // level.bins for at in range(level.bins + 1)]
        expected: Counter[tuple[int, str, str, str]] = Counter()
        for section in path.sections:
            start, end = section.start - path.start, section.end - path.start
            for at in range(level.bins):
                both = min(end, edges[at + 1]) - max(start, edges[at])
                if both > 0:
                    expected[at, f"rank {section.rank} · main", section.phase, section.kind] += both
        cells = zip(
            level.bin.tolist(), level.row.tolist(), level.part.tolist(), level.ns.tolist(), strict=True
        )
        several = len({section.rank for section in path.sections if section.duration}) > 1
        names = [name if several else f"rank {path.sections[0].rank} · main" for name in found.rows]
        got = {(at, names[row], *found.parts[part]): ns for at, row, part, ns in cells}
        if several:
            assert got == expected
        assert sum(got.values()) == path.total_ns
        assert sorted(zip(level.bin, level.row, level.part, strict=True)) == list(
            zip(level.bin, level.row, level.part, strict=True)
        )
    assert found.by_row_and_part.sum() == path.total_ns


def test_a_short_path_has_all_its_sections() -> None:
    path = tiled([5, 0, 7, 1])
    found = drawn(path)
    assert found.sections is not None
    assert found.sections.start.tolist() == [0, 5, 12]
    assert found.count == 3
    assert drawn(tiled([2] * (timeline_module.MOST_SECTIONS + 1))).sections is None


def test_many_lanes_and_phases_are_put_together_and_nothing_is_lost() -> None:
    phases = [f"operation {at}" for at in range(50)]
    path = tiled([at + 1 for at in range(4_000)], lanes=40, phases=phases)
    found = drawn(path)
    assert len(found.rows) == MOST_ROWS
    assert found.rows[-1] == f"{40 - MOST_ROWS + 1} more lanes"
    assert len(found.parts) == MOST_PARTS
    assert found.parts[-1] == (f"{50 * len(KINDS) - MOST_PARTS + 1} more phases", "")
    assert found.by_row_and_part.sum() == path.total_ns
    kept = found.by_row_and_part[:-1, :-1].sum()
    assert 0 < kept < path.total_ns


def test_workers_of_many_lanes_are_one_row() -> None:
    sections = [
        Section(
            at, at + 1, sc.DATA_FETCH, "work", at % 2, f"loader-worker-{at}", None, None, None,
            EnteredBy("queue"),
        )
        for at in range(40)
    ]  # fmt: skip
    found = drawn(Path(0, 40, Sections.of(sections)))
    assert found.rows == ["rank 0 · loader-workers", "rank 1 · loader-workers"]
    assert found.by_row_and_part.sum(axis=1).tolist() == [20, 20]


def test_levels_are_bounded() -> None:
    path = tiled([3] * 60_000, lanes=16, phases=[f"operation {at}" for at in range(31)])
    found = drawn(path)
    for level, most in zip(found.levels, timeline_module.MOST_CELLS, strict=False):
        assert len(level.ns) <= most or level.bins == timeline_module.FEWEST_BINS
        assert level.ns.sum() == path.total_ns


def test_no_time_is_no_chart() -> None:
    assert timeline(Path(5, 5, Sections.of([])), columns([])) is None


# --- Durations --------------------------------------------------------------------------------------------


def test_a_spread_is_that_of_numpy() -> None:
    draw = np.random.default_rng(0)
    which = np.sort(draw.integers(0, 9, 500))
    which = which[which != 4]
    values = draw.integers(0, 10**6, len(which))
    found = spread(which, values)
    assert found.bin.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    for at, bin in enumerate(found.bin.tolist()):
        mine = values[which == bin]
        assert (found.least[at], found.most[at], found.count[at]) == (mine.min(), mine.max(), len(mine))
        assert abs(found.p50[at] - np.quantile(mine, 0.5)) <= 1
        assert abs(found.p95[at] - np.quantile(mine, 0.95)) <= 1
        places = np.flatnonzero(which == bin)
        assert (found.first[at], found.last[at]) == (places[0], places[-1])


def test_few_steps_are_all_told() -> None:
    simulated = simulate(Training(ranks=2, epochs=2, steps_per_epoch=20, eval_batches=3))
    run = run_of(simulated)
    found = durations_of_run(run, run.start, run.end - run.start)
    assert found is not None
    rows = [row for rank in (0, 1) for row in simulated.rows_of(rank, "train")]
    told = sorted(zip(found.points.rank.tolist(), found.points.number.tolist(), strict=True))
    assert told == sorted((row.rank, row.step) for row in rows)
    assert found.count == len(rows)
    assert found.levels == []
    assert found.points.steady.sum() == step_breakdown(run).steps
    microsecond = 1_000
    by_start = sorted(rows, key=lambda row: (row.start, row.rank))
    assert np.abs(found.points.start - [row.start - run.start for row in by_start]).max() < microsecond


def test_many_steps_are_in_bins_and_the_longest_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations_module, "MOST_POINTS", 100)
    monkeypatch.setattr(durations_module, "LONGEST", 7)
    monkeypatch.setattr(durations_module, "LEVELS", (4, 16))
    draw = np.random.default_rng(3)
    run = long_run(draw.integers(1_000, 90_000, 300) * 1_000)
    total = run.end - run.start
    found = durations_of_run(run, run.start, total)
    assert found is not None
    ns = run.steps.end - run.steps.start
    assert sorted(found.points.ns.tolist()) == sorted(ns.tolist())[-7:]
    for level in found.levels:
        edges = edges_of(total, level.bins)
        assert level.spread.count.sum() == len(ns)
        for at, bin in enumerate(level.spread.bin.tolist()):
            began = run.steps.start - run.start
            mine = (began >= edges[bin]) & (began < edges[bin + 1])
            assert level.spread.count[at] == np.count_nonzero(mine)
            assert level.spread.most[at] == ns[mine].max()
            assert level.first[at] == run.steps.step[mine].min()
            assert level.last[at] == run.steps.step[mine].max()


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_distribution_is_that_of_the_report(ranks: int) -> None:
    """Its quantiles are those of the steady step, and its bars count each step once."""
    run = run_of(Training(ranks=ranks, epochs=2, steps_per_epoch=40, fetch_ns=25 * MS, checkpoint_ns=S))
    steps, found = step_breakdown(run), distribution_of_run(run)
    assert found is not None
    assert steps.step is not None
    assert found.counts.sum() == steps.steps
    assert [name for name, _ in found.rows] == (
        ["all"] if ranks == 1 else ["all ranks", *(f"rank {rank}" for rank in range(ranks))]
    )
    assert round(float(np.quantile(found.rows[0][1], 0.95))) == steps.step.p95
    assert found.rows[0][1].sum() == steps.total_ns


@pytest.mark.parametrize(
    ("ns", "log", "is_open"),
    [
        ([10 * MS + at * 1_000 for at in range(400)], False, False),
        ([10 * MS + at * 10_000 for at in range(400)] + [100 * MS], False, True),
        ([1 * MS] * 200 + [400 * MS] * 200, True, False),
        ([7 * MS] * 50, False, False),
    ],
)
def test_bars_count_all_however_they_are_spread(ns: list[int], log: bool, is_open: bool) -> None:
    found = durations_module._distribution("step", [("all", np.sort(np.array(ns, np.int64)))])
    assert found is not None
    assert (found.log, found.open) == (log, is_open)
    assert found.counts.sum() == len(ns)
    assert np.all(np.diff(found.edges) > 0)
    assert found.edges[0] <= min(ns)
    assert found.edges[-1] >= max(ns)
    assert len(found.counts) <= 62


# --- Events -----------------------------------------------------------------------------------------------


def kinds_of(run: Run) -> dict[str, Any]:
    return {bands.kind: bands for bands in bands_of_run(run, run.start)}


def test_events_are_those_of_the_run() -> None:
    simulated = simulate(
        Training(ranks=2, epochs=3, steps_per_epoch=20, eval_batches=4, checkpoint_ns=50 * MS)
    )
    run = run_of(simulated)
    found = kinds_of(run)
    mine = [one for one in simulated.passes if one.rank == 0]
    for kind, name in (("epoch", sc.EPOCH), ("checkpoint", sc.CHECKPOINT_SAVE)):
        told = [(band.start, band.end) for band in found[kind].bands]
        true = [(one.start - run.start, one.end - run.start) for one in mine if one.name == name]
        assert np.abs(np.array(told) - true).max() < 1_000
    assert [band.what for band in found["epoch"].bands] == ["epoch 0", "epoch 1", "epoch 2"]
    assert found["evaluation"].count == 3
    assert found["window"].bands[0].what.startswith("window 0, ")
    assert "end" not in found
    assert "missing" not in found


def test_how_it_ended_is_at_its_last_sign_of_life() -> None:
    run = run_of(Training(ranks=2, epochs=1, steps_per_epoch=40, killed_at=30))
    found = kinds_of(run)["end"]
    assert [band.what for band in found.bands] == [
        f"rank {rank} was killed in {sc.BACKWARD}" for rank in (0, 1)
    ]
    assert found.bands[0].start == found.bands[0].end <= run.end - run.start


def test_where_data_are_missing(tmp_path: FilePath) -> None:
    simulated = simulate(Training(epochs=2, steps_per_epoch=200, detail_level=12))
    lost = [
        (rank, span)
        for rank, span in simulated.spans
        if not (span["name"] == sc.WINDOW and _attribute(span, sc.WINDOW_NUMBER) == "3")
    ]
    (tmp_path / "traces.jsonl").write_bytes(lines(simulated.training, lost))
    run = read_subject(Query.of(str(tmp_path / "traces.jsonl"))).run
    assert run is not None
    found = kinds_of(run)["missing"]
    hole = next(coverage.holes for coverage in run.completeness.coverage.values())
    assert [(band.start + run.start, band.end + run.start) for band in found.bands] == list(hole)


def _attribute(span: dict[str, Any], key: str) -> str | None:
    for one in span["attributes"]:
        if one["key"] == key:
            return str(next(iter(one["value"].values())))
    return None


def test_reduced_recording_and_many_events_are_bounded() -> None:
    rows = [
        R(
            at * MS,
            at * MS + MS // 2,
            step=at,
            level=2 * (at // 50 % 2),
            phases={sc.GC: (at * MS, MS // 10, 1)},
        )
        for at in range(400)
    ]
    found = kinds_of(run_from(rows, 0, S))
    assert found["gc"].count == 400
    assert len(found["gc"].bands) == MOST
    starts = [band.start for band in found["gc"].bands]
    assert starts == sorted(starts)
    assert found["reduced"].count == 200  # between rows nothing was recorded


# --- The budget -------------------------------------------------------------------------------------------


def test_the_budget_is_that_of_the_report() -> None:
    run = run_of(Training(ranks=3, epochs=1, steps_per_epoch=20))
    entries = [
        BudgetEntry(row.rank, row.phase, row.ns, row.share, None)
        for row in lane_budget(run)
        if row.within is None
    ]
    found = budget_of(entries)
    assert found is not None
    assert found.ns.sum(axis=1).tolist() == [run.end - run.start] * 3
    assert {
        (rank, phase): ns
        for rank, row in zip(found.ranks, found.ns.tolist(), strict=True)
        for phase, ns in zip(found.phases, row, strict=True)
        if ns
    } == {(entry.rank, entry.phase): entry.ns for entry in entries}


def test_of_many_ranks_the_extremes_are_kept() -> None:
    draw = random.Random(5)
    entries = []
    for rank in range(1_000):
        wait = draw.randrange(1, 10**6)
        entries += [
            BudgetEntry(rank, sc.DATA_WAIT, wait, 0, None),
            BudgetEntry(rank, sc.FORWARD, 2 * 10**6 - wait, 0, None),
        ]
    found = budget_of(entries)
    assert found is not None
    assert len(found.ranks) == MOST_RANKS
    assert found.of == 1_000
    assert found.ranks == sorted(set(found.ranks))
    waits = [entry.ns for entry in entries if entry.phase == sc.DATA_WAIT]
    assert {0, waits.index(max(waits)), waits.index(min(waits))} <= set(found.ranks)
    assert budget_of([]) is None


# --- Axes and colours -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        (0, 30 * S, ["0 s", "5 s", "10 s", "15 s", "20 s", "25 s", "30 s"]),
        (0, 2 * S, ["0 ms", "500 ms", "1.0 s", "1.5 s", "2.0 s"]),
        (27 * S, 27 * S + 700_000, [f"27.000{at} s" for at in range(8)]),
        (0, 5_000 * S, ["0 s", "15 min", "30 min", "45 min", "1 h", "1 h 15 min"]),
        (0, 30 * 86_400 * S, ["0 s", "5 d", "10 d", "15 d", "20 d", "25 d", "30 d"]),
        (0, 5, [f"0.00000{at} ms" for at in range(6)]),
    ],
)  # fmt: skip
def test_ticks_of_time(start: int, end: int, labels: list[str]) -> None:
    assert [label for _, label in time_ticks(start, end)] == labels


def test_labels_of_time_that_people_read() -> None:
    assert time_label(5_430 * S, 30 * S) == "1 h 30 min 30 s"
    assert value_ticks(3 * MS, 90 * MS, log=True) == [5 * MS, 10 * MS, 20 * MS, 50 * MS]
    assert value_ticks(0, 90, log=False) == [0, 20, 40, 60, 80]


def test_heights_are_logarithmic_where_a_few_are_far_out() -> None:
    plain, far = Heights(5 * MS, 10 * MS, 40 * MS, 16, 206), Heights(5 * MS, 10 * MS, 4 * S, 16, 206)
    assert (plain.log, far.log) == (False, True)
    assert plain.of(0) == 206
    assert plain.of(40 * MS) == 16
    assert far.of(4 * S) == pytest.approx(16)
    assert 16 < far.of(10 * MS) < 206
    assert all(206 >= far.of(ns) >= 16 for ns, _ in far.ticks())


def style() -> str:
    return resources.files("grademl_otel.analyzers.html").joinpath("charts.css").read_text("utf-8")


def test_every_phase_has_a_colour_in_both_themes() -> None:
    themes = re.findall(r"\{([^{}]*--p-forward: #[^{}]*)\}", style())
    assert len(themes) == 3  # light, dark when chosen, dark by preference
    defined = [dict(re.findall(r"--(p-[a-z0-9-]+): (#[0-9a-f]{6});", theme)) for theme in themes]
    assert defined[1] == defined[2]
    used = {
        phase_class(phase) for phase in (*sc.PHASES, *(sc.DEVICE_PREFIX + one for one in sc.DEVICE_PHASES))
    }
    gaps = {
        phase_class(phase)
        for phase in ("start-up", "epoch gap", "teardown", "idle", "untraced", "other", "loader start")
    }
    others = {f"p-x{at}" for at in range(12)}
    for colours, paper in zip(defined[:2], ("#ffffff", "#14171b"), strict=True):
        assert set(colours) == used | gaps | others | {"p-evaluate"}
        assert [name for name in used | others if contrast(colours[name], paper) < 3] == []
    assert all(f".{name} {{ --phase: var(--{name}); }}" in style() for name in defined[0])


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_operations_of_others_are_told_apart_on_a_page() -> None:
    names = [f"GET /{at}" for at in range(12)]
    with telling_apart([sc.FORWARD, *names]):
        assert len({phase_class(name) for name in names}) == 12
        assert phase_class(sc.FORWARD) == "p-forward"
    assert phase_class("ProfilerStep#3") == phase_class("ProfilerStep#4")
    assert phase_class("GET /3") == phase_class("GET /3")


def test_script_and_python_agree_on_sizes() -> None:
    script = resources.files("grademl_otel.analyzers.html").joinpath("charts.js").read_text("utf-8")
    assert f"const ROW = {{ label: {LABEL}, gap: {GAP} }};" in script
    assert (
        f"const PLOT = {{ top: {TOP}, height: {PLOT}, strip: {STRIP}, bar: {STRIP_BAR}, marker: {MARKER} }};"
        in script
    )
    assert f"const ONE_BY_ONE = {ONE_BY_ONE};" in script
    assert f"const MOST_JUMPS = {MOST_JUMPS};" in script


# --- The SVG ----------------------------------------------------------------------------------------------


def charts_of(source: FilePath) -> tuple[Subject, Charts]:
    about = read_subject(Query.of(str(source)))
    if about.run is None:
        document = report_of_traces(about.telemetry, about.paths())
    else:
        document = report_of_run(about.telemetry, about.run)
    return about, draw(about, document)


def every(charts: Charts) -> list[Chart]:
    found = (charts.budget, charts.path, charts.steps, charts.distribution)
    return [chart for chart in found if chart is not None]


def test_whatever_names_say_a_figure_is_well_formed(tmp_path: FilePath) -> None:
    for number, write in enumerate((hostile_run, hostile_traces, lambda folder: hostile_traces(folder, 9))):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, charts = charts_of(write(folder))
        assert len(every(charts)) == (4, 1, 2)[number]
        for chart in every(charts):
            tree = ET.fromstring(f"<figure>{str(chart.figure).replace(' hidden>', '>')}</figure>")
            assert {one.tag for one in tree.iter()} <= {
                "figure", "div", "button", "output", "span", "ul", "li", "b", "svg", "defs", "pattern",
                "g", "rect", "line", "text", "circle",
            }  # fmt: skip
            names = {name for one in tree.iter() for name in one.attrib}
            assert not {name for name in names if name.startswith("on")} | (names & {"style", "href"})
            assert len(str(chart.figure)) < 200_000
        if number < 2:
            assert MARK in str(charts.path and charts.path.figure)
        assert json.loads(json.dumps(charts.data)) == charts.data


def test_a_credential_in_a_name_is_not_shown(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrecy, "_kept", set())
    secrecy.keep(["a1B2c3D4e5F6"])
    source = hostile_traces(tmp_path)
    text = source.read_text("utf-8").replace('"name": "', '"name": "host.invalid a1B2c3D4e5F6 ')
    source.write_text(text, "utf-8")
    _, charts = charts_of(source)
    shown = "".join(f"{chart.figure}{chart.table}" for chart in every(charts)) + json.dumps(charts.data)
    assert "host.invalid" in shown
    assert "a1B2c3D4e5F6" not in shown


def test_a_run_without_steps_has_no_empty_charts() -> None:
    run = run_from([], 0, S)
    about = Subject(telemetry_of(run), run, Query())
    charts = draw(about, report_of_run(about.telemetry, run))
    assert charts.steps is None
    assert charts.distribution is None
    nothing = run_from([], 5, 5)
    assert every(draw(replace(about, run=nothing), report_of_run(about.telemetry, nothing))) == []


def telemetry_of(run: Run) -> Any:
    from grademl_otel.analyzers.model.columns import Ledger, Telemetry

    return Telemetry("here", run.spans, Ledger())


# --- However long the run ---------------------------------------------------------------------------------


def long_run(ns: Any, ranks: int = 1) -> Run:
    """A run of a rank whose steps, one after the other, took ``ns``; arrays all along."""
    steps = len(ns)
    ends = np.cumsum(ns) + S
    start, zero = ends - ns, np.zeros(steps, np.int64)
    shares = ((sc.DATA_WAIT, 1), (sc.FORWARD, 3), (sc.BACKWARD, 5))
    first, busy, at = {}, {}, start
    for name, tenths in shares:
        first[name], busy[name] = at, ns * tenths // 10
        at = at + busy[name]
    table = StepTable(
        rank=zero, step=np.arange(steps), start=start, end=ends, micro=zero + 1, flags=zero,
        window=np.arange(steps) // 4096, level=zero, item_pass=zero, item_batch=np.arange(steps),
        item_loader=zero, item_worker=zero - 1, first=first, busy=busy,
        count={name: zero + 1 for name, _ in shares},
    )  # fmt: skip
    return replace(run_from([R(S, S)], 0, int(ends[-1]) + S), steps=table)


def test_a_million_steps_are_drawn_from_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    ns = draw.integers(5_000, 40_000, 1_000_000) * 1_000
    ns[draw.integers(0, len(ns), 1_000)] *= 40
    run = long_run(ns)
    total = run.end - run.start
    # The path of a walk, two sections a step, and the steady steps: finding them is no part of this.
    starts = np.concatenate(([0], (run.steps.start[:, None] + np.outer(ns, (0, 4)) // 10).ravel()))
    kind = np.zeros(len(starts), np.int64)
    path = Path(
        0, total,
        Sections(
            start=starts, end=np.append(starts[1:], total),
            phase=np.append(0, np.tile(np.arange(2), len(ns))), kind=kind, lane=kind,
            step=np.append(-1, np.repeat(np.arange(len(ns)), 2)), item=kind - 1,
            span_ix=kind - 1, entered=kind, phases=[*PHASES], lanes=[(0, "main")], items=[],
            entrances=[EnteredBy("program")],
        ),
    )  # fmt: skip
    monkeypatch.setattr(durations_module, "steady_durations", lambda _: (np.arange(100, len(ns)), ns[100:]))
    found = drawn(path)
    durations = durations_of_run(run, 0, total)
    assert durations is not None
    assert durations.count == len(ns)
    assert len(durations.points) == LONGEST
    assert all(level.ns.sum() == total for level in found.levels)
    assert all(level.spread.count.sum() == len(ns) for level in durations.levels)
    figures = [path_chart(found), steps_chart(durations, [], total)]
    data = {"path": path_data(found), "steps": steps_data(durations, [], total)}
    assert sum(len(str(chart.figure)) for chart in figures) < 400_000
    assert len(json.dumps(data, separators=(",", ":"))) < 1_500_000
    assert len(ns) > MOST_POINTS
