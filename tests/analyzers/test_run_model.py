# SPDX-License-Identifier: Apache-2.0
"""The run model against the simulated truth: rows, phases, scopes, loaders, bounds, ends, attempts."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.model.run import Run, build_run, list_runs
from grademl_otel.analyzers.model.tables import MalformedTable, decode_table, join_parts
from grademl_otel.analyzers.sources import Selection, open_source
from tests.support.synthetic import MS, Row, S, Simulated, Training, lines, simulate

FLAG = {"train": 0, "evaluate": sc.FLAG_EVALUATE, "incomplete": sc.FLAG_INCOMPLETE}

SHAPES = {
    "workers": Training(),
    "no workers": Training(workers=0),
    "slow loader": Training(fetch_ns=30 * MS, workers=3, checkpoint_ns=7 * MS),
    "ranks": Training(ranks=3, compute_scale={1: 1.5}, fetch_scale={2: 3.0}),
    "micro-batches": Training(micro=3, transfer_ns=1_234_567, zero_grad_ns=7_001),
    "many parts": Training(epochs=1, steps_per_epoch=150, rows_per_part=7, detail_level=3),
    "one step": Training(epochs=1, steps_per_epoch=1, eval_batches=0),
    "killed": Training(killed_at=25),
    "raised": Training(raises_at=25),
}


def telemetry_of(folder: Path, content: bytes) -> Telemetry:
    file = folder / "traces.jsonl"
    file.write_bytes(content)
    return open_source(str(file)).read(Selection())


def run_of(folder: Path, sim: Simulated, **which: Any) -> Run:
    run = build_run(telemetry_of(folder, sim.otlp_lines()), **which)
    assert run is not None
    return run


@pytest.fixture(params=list(SHAPES))
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Simulated, Run]:
    sim = simulate(SHAPES[request.param])
    return sim, run_of(tmp_path, sim)


def test_every_row_comes_back(both: tuple[Simulated, Run]) -> None:
    sim, run = both
    table = run.steps
    assert len(table) == len(sim.rows)
    for ix, row in enumerate(sim.rows):
        assert (table.rank[ix], table.step[ix], table.window[ix]) == (row.rank, row.step, row.window)
        assert table.micro[ix] == row.micro
        assert table.flags[ix] == FLAG[row.kind] | (sc.FLAG_DETAILED if row.detailed else 0)
        item = table.item_pass[ix], table.item_batch[ix], table.item_loader[ix], table.item_worker[ix]
        assert item == (row.pass_serial, row.batch, row.loader, row.worker)
        assert 0 <= row.start - table.start[ix] < 1000
        assert 0 <= row.end - table.end[ix] < 1000
        for phase in table.count:
            _check_phase(run, ix, row, phase)


def _check_phase(run: Run, ix: int, row: Row, phase: str) -> None:
    activities = [a for a in row.phases if a.name == phase]
    assert run.steps.count[phase][ix] == len(activities)
    assert abs(int(run.steps.busy[phase][ix]) - row.total(phase)) < 1000 * max(1, len(activities))
    if activities:
        assert 0 <= min(a.start for a in activities) - run.steps.first[phase][ix] < 1000


def test_phases_are_exactly_those_that_ran(both: tuple[Simulated, Run]) -> None:
    sim, run = both
    ran = {a.name for row in sim.rows for a in row.phases}
    assert set(run.steps.count) == set(run.steps.busy) == set(run.steps.first) == ran


def test_rows_are_sorted_and_never_overlap(both: tuple[Simulated, Run]) -> None:
    table = both[1].steps
    assert (np.lexsort((table.start, table.rank)) == np.arange(len(table))).all()
    same = table.rank[1:] == table.rank[:-1]
    assert (table.end[:-1][same] <= table.start[1:][same]).all()
    assert both[1].completeness.overlap_ns == 0


def test_scopes_bounds_and_ends(both: tuple[Simulated, Run]) -> None:
    sim, run = both
    assert run.rank_bounds == sim.bounds
    assert (run.start, run.end) == (
        min(start for start, _ in sim.bounds.values()),
        max(end for _, end in sim.bounds.values()),
    )
    assert [(s.name, s.rank, s.start, s.end) for s in run.scopes] == [
        (p.name, p.rank, p.start, p.end) for p in sim.passes
    ]
    assert [s.error for s in run.scopes] == [p.terminated or p.error is not None for p in sim.passes]
    assert (run.script, run.device, run.ranks) == ("train.py", "cpu", list(range(sim.training.ranks)))
    for end in run.completeness.ended:
        trained = sim.rows_of(end.rank, "train")
        assert end.how == sim.ended
        assert end.last_step == (trained[-1].step if trained else None)
        assert end.last_mark_unix_ns == sim.bounds[end.rank][1]
        assert end.open_phase == sim.open_phase
        assert end.error == ("RuntimeError" if sim.ended == "exception" else None)


def test_spans_of_kept_steps_are_found_by_key(both: tuple[Simulated, Run]) -> None:
    sim, run = both
    kept = {(row.rank, row.step, row.start): row for row in sim.rows if row.detailed}
    assert run.step_spans.keys() == kept.keys()
    for key, ix in run.step_spans.items():
        assert run.spans.name(ix) == sc.STEP
        assert run.spans.attributes(ix)[sc.STEP_KIND] == kept[key].kind


def test_what_arrived_whole_is_complete(both: tuple[Simulated, Run]) -> None:
    sim, run = both
    found = run.completeness
    assert (found.verdict, found.reasons) == ("complete", [])
    assert found.spans_expected == found.spans_received == len(sim.spans)
    assert found.steps_expected == found.steps_measured == len(sim.rows_of(0, "train"))
    assert found.steps_detailed_all_ranks == sum(row.detailed for row in sim.rows_of(0, "train"))
    assert (found.orphans, found.roots, found.windows_missing, found.conflicts) == (0, 1, [], [])
    assert found.tracer_cost_fraction == 0.004


def test_loaders_are_known_from_their_passes(tmp_path: Path) -> None:
    run = run_of(tmp_path, simulate(Training(workers=3, prefetch=4, persistent=True)))
    loader = run.loaders[0]
    assert (loader.workers, loader.prefetch, loader.batch_size, loader.persistent) == (3, 4, 32, True)
    run = run_of(tmp_path, simulate(Training(workers=0)))
    assert (run.loaders[0].workers, run.loaders[0].prefetch, run.loaders[0].in_order) == (0, None, True)


def test_jaeger_json_gives_the_same_run_within_a_microsecond(tmp_path: Path) -> None:
    sim = simulate(Training(ranks=2, rows_per_part=7))
    ours = run_of(tmp_path, sim)
    file = tmp_path / "jaeger.json"
    file.write_text(json.dumps(sim.jaeger_v1()))
    theirs = build_run(open_source(str(file)).read(Selection()))
    assert theirs is not None
    assert theirs.completeness == replace(
        ours.completeness, ended=theirs.completeness.ended, overlap_ns=theirs.completeness.overlap_ns
    )
    for name in ("rank", "step", "micro", "flags", "window", "item_pass", "item_batch", "item_worker"):
        assert (getattr(ours.steps, name) == getattr(theirs.steps, name)).all(), name
    for name in ("start", "end"):
        difference = getattr(ours.steps, name) - getattr(theirs.steps, name)
        assert difference.min() >= 0
        assert difference.max() < 1000
    for phase, busy in ours.steps.busy.items():
        assert (theirs.steps.busy[phase] == busy).all()
    for rank, (start, end) in theirs.rank_bounds.items():
        rows = theirs.steps.where(theirs.steps.rank == rank)
        assert start <= rows.start.min()
        assert rows.end.max() <= end


def test_the_latest_run_and_its_last_attempt_by_default(tmp_path: Path) -> None:
    old = Training(run_id="a" * 32, start=1_700_000_000 * S, epochs=1)
    first = Training(run_id="b" * 32, start=1_700_100_000 * S, epochs=1, killed_at=5)
    again = replace(first, attempt=1, start=first.start + 100 * S, killed_at=None)
    content = b"".join(simulate(training).otlp_lines() for training in (again, old, first))
    telemetry = telemetry_of(tmp_path, content)
    runs = [(run.run_id[0], run.attempt, run.ended, run.steps) for run in list_runs(telemetry)]
    assert runs == [("b", 1, "exit", 20), ("b", 0, "killed", 5), ("a", 0, "exit", 20)]
    for which, wanted in (
        ({}, ("b", 1)),
        ({"attempt": 0}, ("b", 0)),
        ({"run_id": "a" * 32}, ("a", 0)),
        ({"run_id": "aa"}, ("a", 0)),
    ):
        run = build_run(telemetry, **which)
        assert run is not None
        assert (run.run_id[0], run.attempt) == wanted
        assert run.completeness.verdict == "complete"
    assert build_run(telemetry, "c") is None
    assert build_run(telemetry, attempt=7) is None


def test_foreign_spans_are_no_run_and_stay_out_of_ours(tmp_path: Path) -> None:
    foreign = (Path(__file__).parent.parent / "data" / "collector_otlp_line.jsonl").read_bytes()
    telemetry = telemetry_of(tmp_path, foreign)
    assert list_runs(telemetry) == []
    assert build_run(telemetry) is None
    sim = simulate(Training())
    run = build_run(telemetry_of(tmp_path, foreign + sim.otlp_lines()))
    assert run is not None
    assert len(run.span_ixs) == len(sim.spans) == run.completeness.spans_received
    assert len(run.spans) == len(sim.spans) + 2


# --- Tables -----------------------------------------------------------------------------------------------


def table(**columns: Any) -> dict[str, Any]:
    """Attributes of a window span; `item_pass` is written item.pass."""
    names = {name.replace("__", "."): value for name, value in columns.items()}
    return {
        sc.TABLE_VERSION: 1,
        sc.WINDOW_NUMBER: 0,
        sc.WINDOW_PART: 0,
        sc.WINDOW_LAST: True,
        **{sc.TABLE_PREFIX + name: value for name, value in names.items()},
    }


GOOD: dict[str, Any] = {"step": [0, 1], "start_us": [0, 10], "dur_us": [10, 5]}


def test_single_elements_stand_for_all_rows() -> None:
    part = decode_table(table(**GOOD, micro=[2], flags=[0], forward__first_us=[1, 11], forward__busy_us=[3],
                              forward__count=[1]), 0, 7)  # fmt: skip
    assert part.columns["micro"].tolist() == [2, 2]
    assert part.columns["end"].tolist() == [10_007, 15_007]
    assert part.columns["item.worker"].tolist() == [-1, -1]
    assert part.phases["forward"]["busy"].tolist() == [3000, 3000]
    assert part.phases["forward"]["first"].tolist() == [1007, 11_007]


def test_a_part_of_one_row_has_arrays_of_one() -> None:
    part = decode_table(table(step=[5], start_us=[0], dur_us=[3], micro=[1]), 3, 0)
    assert (part.rows, part.rank) == (1, 3)


def test_arrays_may_come_as_json_text() -> None:
    part = decode_table(table(**{name: json.dumps(values) for name, values in GOOD.items()}), 0, 0)
    assert part.columns["step"].tolist() == [0, 1]


def test_first_means_nothing_where_nothing_ran() -> None:
    part = decode_table(
        table(**GOOD, gc__first_us=[-1, 12], gc__busy_us=[0, 2], gc__count=[0, 1]), 0, 1_000_000
    )
    assert part.phases["gc"]["first"].tolist() == [0, 1_012_000]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({**GOOD, "micro": [1, 2, 3]}, "has 2 elements of 3"),
        ({"step": [0], "start_us": [0]}, "without dur_us"),
        ({**GOOD, "dur_us": [5, -1]}, "negative"),
        ({**GOOD, "step": "x"}, "neither an array"),
        ({**GOOD, "step": {"a": 1}}, "no array"),
        ({**GOOD, "step": []}, "no array"),
        ({**GOOD, "step": [0, "x"]}, "no array"),
        ({**GOOD, "step": [0, None]}, "no array"),
        ({**GOOD, "step": [0, 1 << 62]}, "out of range"),
        ({**GOOD, "gc__count": [1]}, "without gc.first_us"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(MalformedTable, match=says):
        decode_table(table(**columns), 0, 0)


def test_a_table_of_a_later_version_is_refused() -> None:
    with pytest.raises(MalformedTable, match="version 2"):
        decode_table({**table(**GOOD), sc.TABLE_VERSION: 2}, 0, 0)


@pytest.mark.parametrize("bad", [-1, "1", True, 1.5, 1 << 63])
def test_a_window_number_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(MalformedTable, match="no count"):
        decode_table({**table(**GOOD), sc.WINDOW_NUMBER: bad}, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 30)), max_size=20))
def test_joined_rows_never_overlap_and_the_cut_is_counted(rows: list[tuple[int, int, int]]) -> None:
    parts = [
        decode_table(table(step=[n], start_us=[start], dur_us=[length]), rank, 0)
        for n, (rank, start, length) in enumerate(rows)
    ]
    steps, overlap = join_parts(parts)
    same = steps.rank[1:] == steps.rank[:-1]
    assert (steps.end >= steps.start).all()
    assert (steps.end[:-1][same] <= steps.start[1:][same]).all()
    assert int((steps.end - steps.start).sum()) + overlap == 1000 * sum(length for *_, length in rows)


@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        Training,
        ranks=st.integers(1, 2),
        epochs=st.integers(1, 2),
        steps_per_epoch=st.integers(1, 40),
        workers=st.integers(0, 3),
        prefetch=st.integers(1, 3),
        fetch_ns=st.integers(1, 50 * MS),
        forward_ns=st.integers(1, 20 * MS),
        backward_ns=st.integers(1, 20 * MS),
        rows_per_part=st.integers(1, 20),
        detail_level=st.integers(0, 5),
        killed_at=st.none() | st.integers(0, 50),
    )
)
def test_any_training_comes_back_whole(training: Training) -> None:
    sim = simulate(training)
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(Path(folder), sim)
    assert run.completeness.verdict == "complete"
    assert len(run.steps) == len(sim.rows)
    assert run.rank_bounds == sim.bounds


def test_lines_of_a_rank_alone_make_a_run_of_one_rank(tmp_path: Path) -> None:
    sim = simulate(Training(ranks=2))
    own = [both for both in sim.spans if both[0] == 1]
    run = build_run(telemetry_of(tmp_path, lines(sim.training, own)))
    assert run is not None
    assert run.ranks == [1]
    assert run.script == "train.py"


_ODD: list[dict[str, Any]] = [
    {},
    {"intValue": "-1"},
    {"intValue": "9223372036854775807"},
    {"intValue": "2305843009213693951"},
    {"intValue": "1" * 30},
    {"intValue": "x"},
    {"stringValue": ""},
    {"stringValue": "é\x00"},
    {"stringValue": "[1, 2"},
    {"boolValue": True},
    {"doubleValue": "NaN"},
    {"doubleValue": 1e300},
    {"arrayValue": {}},
    {"arrayValue": {"values": [{"intValue": "9007199254740993"}, {}]}},
    {"arrayValue": {"values": [{"intValue": "5"}] * 3}},
    {"kvlistValue": {"values": [{"key": "a"}]}},
]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_odd_values_of_attributes_raise_nothing_and_take_no_time(data: st.DataObject) -> None:
    sim = simulate(Training(epochs=1, steps_per_epoch=18, eval_batches=1, workers=1))
    request = json.loads(sim.otlp_lines())
    (group,) = request["resourceSpans"]
    spans = [
        s for s in group["scopeSpans"][0]["spans"] if s["name"] in (sc.RUN, sc.WINDOW, sc.STEP, sc.EPOCH)
    ]
    for _ in range(data.draw(st.integers(1, 3))):
        owner = data.draw(st.sampled_from([group["resource"], *spans]))
        data.draw(st.sampled_from(owner["attributes"]))["value"] = data.draw(st.sampled_from(_ODD))
    with tempfile.TemporaryDirectory() as folder:
        telemetry = telemetry_of(Path(folder), json.dumps(request).encode())
    list_runs(telemetry)
    build_run(telemetry)
