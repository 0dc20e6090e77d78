# SPDX-License-Identifier: Apache-2.0
"""The critical path of a run, against simulated trainings whose answers are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.graph import (
    Path,
    Sections,
    activities,
    run_path,
    run_summary,
    step_path,
    tree_path,
    tree_summary,
)
from grademl_otel.analyzers.model.facts import Loader, Run, Scope

from ..support.build import R, S, columns, run_from, run_of
from ..support.synthetic import MS, Training

NO_DETAIL = 70
"""A detail level that no step reaches: only the table is sent (for steps under 100 ms)."""


def assert_tiles(path: Path, start: int, end: int) -> None:
    cursor = start
    for section in path.sections:
        assert section.start == cursor < section.end
        cursor = section.end
    assert cursor == end == path.end
    assert path.start == start


def path_of(run: Run) -> Path:
    path = run_path(run)
    assert_tiles(path, run.start, run.end)
    return path


def by_phase(path: Path) -> Counter[str]:
    sums: Counter[str] = Counter()
    for section in path.sections:
        sums[section.phase] += section.duration
    return sums


def by_kind(path: Path, phase: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for section in path.sections:
        if section.phase == phase:
            sums[section.kind] += section.duration
    return sums


def one_long_pass(workers: int, **changes: int) -> Training:
    return Training(
        **{
            "workers": workers,
            "epochs": 1,
            "steps_per_epoch": 100,
            "eval_batches": 0,
            "fetch_ns": 60 * MS,
            **changes,
        }
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("detail", [0, NO_DETAIL])
def test_a_run_paced_by_its_workers_has_their_fetches_on_the_path(workers: int, detail: int) -> None:
    training = one_long_pass(workers, detail_level=detail)
    run = run_of(training)
    path = path_of(run)
    # The workers keep step with each other, so the main lane waits for the first of each round, always the
    # same worker's: on the path are its batches, one after the other from the start of the pass.
    batches = training.steps_per_epoch // workers
    assert by_phase(path)["data.fetch"] == pytest.approx(batches * training.fetch_ns, abs=2_000 * batches)
    assert by_kind(path, "data.fetch").keys() <= {"work", "gap"}
    assert by_phase(path)["data.collate"] == pytest.approx(batches * training.collate_ns, abs=2_000 * batches)
    assert {s.lane for s in path.sections if s.phase == "data.fetch"} == {"loader-worker-0"}
    # Of the steps only those of the last round are on the path.
    assert by_phase(path)["backward"] == pytest.approx(workers * training.backward_ns, abs=2_000 * workers)
    assert by_kind(path, "data.wait").keys() == {"handoff"}


def test_without_workers_the_fetch_is_work_of_the_main_lane() -> None:
    training = one_long_pass(0)
    path = path_of(run_of(training))
    assert by_phase(path)["data.fetch"] == 100 * training.fetch_ns
    assert {(s.lane, s.kind) for s in path.sections if s.phase.startswith("data.")} == {("main", "work")}
    assert by_phase(path)["forward"] == 100 * training.forward_ns


@pytest.mark.parametrize("detail", [0, NO_DETAIL])
def test_a_loader_that_keeps_up_is_not_on_the_path(detail: int) -> None:
    training = one_long_pass(4, fetch_ns=4 * MS, detail_level=detail)
    path = path_of(run_of(training))
    fetches = [s for s in path.sections if s.phase == "data.fetch"]
    assert len(fetches) == 1  # the first batch: nothing was ahead of it
    assert fetches[0].item is not None
    assert fetches[0].item.endswith(":0")
    assert by_phase(path)["backward"] == pytest.approx(100 * training.backward_ns, abs=200_000)


def test_detail_and_table_give_the_same_path() -> None:
    training = Training(fetch_ns=30 * MS, checkpoint_ns=5 * MS)
    from_detail = by_phase(path_of(run_of(training)))
    from_table = by_phase(path_of(run_of(replace(training, detail_level=NO_DETAIL))))
    assert from_detail.keys() == from_table.keys()
    for phase, ns in from_detail.items():
        assert from_table[phase] == pytest.approx(ns, abs=3_000 * 50)


def test_sections_carry_their_spans_where_there_are_any() -> None:
    run = run_of(one_long_pass(2))
    for section in path_of(run).sections:
        if section.kind == "work":
            assert section.span_ix is not None
            assert run.spans.name(section.span_ix) == section.phase
    table_only = run_of(one_long_pass(2, detail_level=NO_DETAIL, fetch_ns=30 * MS))
    assert {s.span_ix for s in path_of(table_only).sections} == {None}


def test_evaluation_and_checkpoint_are_on_the_path() -> None:
    training = Training(workers=0, eval_batches=5, checkpoint_ns=30 * MS, epochs=2)
    path = path_of(run_of(training))
    assert by_phase(path)["checkpoint.save"] == 2 * 30 * MS
    assert by_phase(path)["forward"] == (2 * 20 + 2 * 5) * training.forward_ns
    assert by_phase(path)["start-up"] == training.startup_ns
    assert by_phase(path)["teardown"] == training.teardown_ns


def test_a_killed_run_ends_with_what_was_not_recorded() -> None:
    path = path_of(run_of(Training(killed_at=15)))
    assert (path.sections[-1].phase, path.sections[-1].kind) == ("untraced", "gap")
    assert by_phase(path)["teardown"] == 0


def test_several_ranks_start_at_the_one_that_ended_last() -> None:
    run = run_of(Training(ranks=2, compute_scale={1: 1.5}))
    path = path_of(run)
    assert {s.rank for s in path.sections} == {max(run.ranks, key=lambda r: run.rank_bounds[r][1])}


def test_one_step() -> None:
    training = Training(epochs=1, steps_per_epoch=1, eval_batches=0)
    assert by_phase(path_of(run_of(training)))["backward"] == training.backward_ns


def test_a_run_without_steps_is_one_gap() -> None:
    path = path_of(run_from([], 100, 900))
    assert [(s.phase, s.kind, s.start, s.end) for s in path.sections] == [("untraced", "gap", 100, 900)]


def test_a_run_of_which_nothing_but_its_time_is_known() -> None:
    path = path_of(run_from([], 100, 900, bounds={}))
    assert [(s.phase, s.kind, s.rank) for s in path.sections] == [("untraced", "gap", None)]
    assert path_of(run_from([], 100, 100, bounds={})).sections == ()


# --- the queue, by hand -----------------------------------------------------------------------------------
# Two workers, one batch ahead each. Times in us; every wait starts its row; a step takes 10.

US = 1_000


def queue_run(
    fetches: list[tuple[int, int]],
    waits: list[tuple[int, int]],
    end: int,
    workers: int = 2,
    in_order: bool = True,
) -> Run:
    """Return a run whose batch i worker i % W fetched in ``fetches[i]``, awaited in ``waits[i]`` (us)."""
    ends = [min([after for after, _ in waits if after > start], default=end) for start, _ in waits]
    rows = [
        R(
            start * US,
            until * US,
            step=i,
            item=(1, i),
            worker=i % workers,
            phases={
                "data.wait": (start * US, (stop - start) * US, 1),
                "forward": (stop * US, (until - stop) * US, 1),
                "data.fetch": (fetches[i][0] * US, (fetches[i][1] - fetches[i][0]) * US, 1),
            },
        )
        for i, ((start, stop), until) in enumerate(zip(waits, ends, strict=True))
    ]
    return run_from(
        rows,
        0,
        end * US,
        scopes=[Scope("epoch", 0, 0, end * US, -1, {})],
        loaders=[Loader(0, workers, 1, 8, False, in_order)],
    )


def brief(path: Path) -> str:
    """Return each section as phase#batch/kind and times, in order of time."""
    words = []
    for s in path.sections:
        item = "" if s.item is None else "#" + s.item.split(":")[1]
        words.append(f"{s.phase}{item}/{s.kind[0]}{s.start // US}-{s.end // US}")
    return " ".join(words)


def test_one_slow_item_blocks_in_order_delivery() -> None:
    # Batch 2, put when 0 was taken, takes 100; batch 3 is there long before, but may not overtake it.
    run = queue_run(
        fetches=[(0, 10), (0, 12), (11, 111), (22, 30), (113, 120)],
        waits=[(1, 11), (21, 22), (32, 113), (123, 124), (134, 135)],
        end=145,
    )
    assert brief(path_of(run)) == (
        "data.fetch#0/w0-10 data.wait#0/h10-11 data.fetch#2/w11-111 data.wait#2/h111-113 forward/w113-123 "
        "data.wait#3/h123-124 forward/w124-134 data.wait#4/h134-135 forward/w135-145"
    )


def test_an_idle_worker_leads_back_to_the_step_that_gave_it_its_index() -> None:
    # Batch 2 goes to worker 0 when batch 0 was taken at 11, and worker 0 has been idle since 5.
    run = queue_run(
        fetches=[(0, 5), (0, 11), (12, 60)],
        waits=[(1, 11), (31, 32), (42, 61)],
        end=70,
    )
    path = path_of(run)
    assert brief(path).endswith("data.fetch#2/h11-12 data.fetch#2/w12-60 data.wait#2/h60-61 forward/w61-70")
    entered = {(s.phase, s.start // US): s.entered_by.edge for s in path.sections}
    assert entered["data.fetch", 12] == "queue"
    assert entered["data.fetch", 11] == "queue"


def test_out_of_order_delivery_gives_indices_in_the_order_of_taking() -> None:
    # Batch 1 was taken first (at 6), so batch 2 was put then, though its worker was free only at 20.
    run = queue_run(
        fetches=[(0, 20), (0, 5), (21, 60), (22, 40)],
        waits=[(16, 21), (1, 6), (50, 61), (31, 41)],
        end=70,
        in_order=False,
    )
    found = activities(run)
    item = {int(found.items.batch[ix]): ix for ix in range(4)}
    put = [int(found.let[item[batch]]) for batch in range(4)]
    assert [None if wait < 0 else int(found.waits.batch[wait]) for wait in put] == [None, None, 1, 0]


def test_a_wait_for_an_item_of_which_nothing_is_known_is_unexplained() -> None:
    rows = [
        R(
            0,
            100_000,
            item=(1, 0),
            worker=0,
            phases={"data.wait": (0, 60_000, 1), "forward": (60_000, 40_000, 1)},
        )
    ]
    path = path_of(run_from(rows, 0, 100_000, loaders=[Loader(0, 2, 2, 8, False)]))
    assert [(s.phase, s.kind) for s in path.sections] == [("data.wait", "unexplained"), ("forward", "work")]


def test_sums_of_several_runs_of_a_phase_are_placed_as_inferred() -> None:
    # Four micro-batches in turn: only the sums and the first of each are in the table.
    phases = {
        "data.wait": (0, 40_000, 4),
        "forward": (10_000, 80_000, 4),
        "backward": (30_000, 120_000, 4),
        "optimizer": (240_000, 10_000, 1),
    }
    rows = [R(0, 260_000, item=(1, 0), worker=0, phases=phases)]
    path = path_of(run_from(rows, 0, 260_000, loaders=[Loader(0, 2, 2, 8, False)]))
    sums = by_phase(path)
    assert sums == {
        "data.wait": 40_000, "forward": 80_000, "backward": 120_000, "optimizer": 10_000, "other": 10_000,
    }  # fmt: skip
    assert by_kind(path, "data.wait") == {"unexplained": 40_000}
    evidence = {s.phase: s.entered_by.evidence for s in path.sections}
    assert evidence["forward"] == "inferred"
    assert evidence["data.wait"] == "inferred"  # where it is placed is where the first of them was
    assert evidence["optimizer"] == "observed"


def test_an_item_after_one_that_was_not_recorded_is_not_chained_to_the_one_before_that() -> None:
    before = next(
        s for s in reversed(path_of(run_with_unknown_batches(prefetch=2)).sections) if s.end == 90 * US
    )
    assert (before.phase, before.kind, before.lane) == ("data.fetch", "unexplained", "loader-worker-0")
    assert before.start == 80 * US  # batch 7 was taken then, which put the index of batch 9


def test_without_the_prefetch_the_walk_goes_back_to_the_main_lane() -> None:
    path = path_of(run_with_unknown_batches(prefetch=None))
    before = next(s for s in reversed(path.sections) if s.end == 90 * US)
    assert (before.phase, before.lane) == ("data.wait", "main")
    assert before.entered_by.evidence == "inferred"


def run_with_unknown_batches(prefetch: int | None) -> Run:
    """Return batches 0..9 of one worker of which only 0 and 9 are known: it was busy with others between."""
    known = {0: (0, 10), 9: (90, 100)}
    rows = []
    for i in range(10):
        start, until = 10 * i + 1, 10 * i + 11
        phases = {"data.wait": (start * US, 9 * US, 1), "forward": ((start + 9) * US, 1 * US, 1)}
        if i in known:
            low, high = known[i]
            phases["data.fetch"] = (low * US, (high - low) * US, 1)
        rows.append(R(start * US, until * US, step=i, item=(1, i), worker=0, phases=phases))
    return run_from(rows, 0, 101 * US, loaders=[Loader(0, 1, prefetch, 8, False)])


def test_times_that_contradict_each_other_still_tile() -> None:
    rows = [
        R(0, 50, item=(1, 0), worker=0, phases={"data.wait": (0, 40, 1), "data.fetch": (200, 90, 1)}),
        R(
            20,
            90,
            step=1,
            item=(1, 0),
            worker=0,
            phases={"data.wait": (10, 500, 1), "data.fetch": (-9, 90, 1)},
        ),
        R(95, 95, step=2, phases={"forward": (95, 0, 1)}),
    ]
    for prefetch in (None, 0, 1):
        path_of(run_from(rows, 5, 100, loaders=[Loader(0, 1, prefetch, 8, False)]))


# --- one step ---------------------------------------------------------------------------------------------


def test_the_path_of_a_step_covers_that_step() -> None:
    training = one_long_pass(2)
    run = run_of(training)
    path = step_path(run, 0, 50)
    row = int(np.flatnonzero(run.steps.step == 50)[0])
    assert_tiles(path, path.start, path.end)
    assert path.total_ns == pytest.approx(int(run.steps.end[row] - run.steps.start[row]), abs=2_000)
    sums = by_phase(path)
    assert sums["backward"] == training.backward_ns
    assert sums["data.fetch"] > 0
    assert {s.step for s in path.sections if s.lane == "main"} == {50}


def test_a_step_that_was_not_recorded_is_named_with_those_that_were() -> None:
    run = run_of(one_long_pass(2))
    with pytest.raises(LookupError, match="no training step 100 of rank 0; recorded: 0 to 99"):
        step_path(run, 0, 100)
    with pytest.raises(LookupError, match="recorded: none"):
        step_path(run, 7, 0)


def test_an_evaluation_is_not_a_training_step() -> None:
    run = run_from([R(0, 10, flags=semconv.FLAG_EVALUATE)], 0, 10)
    with pytest.raises(LookupError):
        step_path(run, 0, 0)


# --- detail against table ---------------------------------------------------------------------------------


def test_a_step_whose_detail_lacks_a_phase_is_taken_from_the_table() -> None:
    rows = [
        R(0, 1_000_000, phases={"forward": (0, 400_000, 1), "backward": (400_000, 600_000, 1)}),
    ]
    lane = {semconv.LANE: "main"}
    spans = [
        S("s", 0, 1_000_000, name="step", attributes={**lane, semconv.STEP_NUMBER: 0}),
        S("f", 0, 400_000, "s", name="forward", attributes=lane),
    ]
    run = run_from(rows, 0, 1_000_000, spans=spans)
    assert by_phase(path_of(run)) == {"forward": 400_000, "backward": 600_000}
    (conflict,) = activities(run).conflicts
    assert conflict.startswith("1 step whose detail and step table differ")


def test_phases_within_phases_are_on_the_path_themselves() -> None:
    lane = {semconv.LANE: "main"}
    spans = [
        S("s", 0, 1_000_000, name="step", attributes={**lane, semconv.STEP_NUMBER: 0}),
        S("b", 100_000, 900_000, "s", name="backward", attributes=lane),
        S("r", 200_000, 500_000, "s", name="recompute", attributes=lane),
    ]
    phases = {"backward": (100_000, 800_000, 1), "recompute": (200_000, 300_000, 1)}
    for detail in (spans, []):
        run = run_from([R(0, 1_000_000, phases=phases)], 0, 1_000_000, spans=detail)
        assert [(s.phase, s.start, s.end) for s in path_of(run).sections] == [
            ("other", 0, 100_000),
            ("backward", 100_000, 200_000),
            ("recompute", 200_000, 500_000),
            ("backward", 500_000, 900_000),
            ("other", 900_000, 1_000_000),
        ]


# --- summary ----------------------------------------------------------------------------------------------


def test_the_summary_tells_what_the_main_lane_was_blocked_on() -> None:
    training = one_long_pass(1)
    run = run_of(training)
    path = path_of(run)
    rows = {row.key: row for row in run_summary(run, path)}
    assert sum(row.path_ns for row in rows.values()) == path.total_ns
    fetch, wait = rows["data.fetch"], rows["data.wait"]
    assert fetch.total_ns == 100 * training.fetch_ns
    # One worker, slower than a step: while a step runs the next batch is being fetched; the rest is a wait.
    compute = training.forward_ns + training.backward_ns + training.optimizer_ns + training.tail_ns
    blocked = 100 * training.fetch_ns - 99 * (compute + training.handoff_ns)
    assert fetch.blocked_ns == pytest.approx(blocked, rel=0.02)
    assert wait.blocked_ns == wait.total_ns
    assert fetch.slack_ns == wait.slack_ns == 0
    assert fetch.drag_ns is not None
    assert 0.9 * blocked < fetch.drag_ns <= fetch.path_ns


def test_a_phase_beside_the_path_is_in_the_summary_with_its_total() -> None:
    training = one_long_pass(4, fetch_ns=4 * MS)
    run = run_of(training)
    whole = path_of(run)
    steady = [section for section in whole.sections if section.lane == "main"]
    rows = {row.key: row for row in run_summary(run, replace(whole, sections=Sections.of(steady)))}
    fetch = rows["data.fetch"]
    assert (fetch.path_ns, fetch.path_share, fetch.total_ns) == (0, 0.0, 100 * training.fetch_ns)
    assert fetch.blocked_ns == training.fetch_ns  # the first batch
    assert list(rows)[-1] in ("data.fetch", "data.collate")


def test_the_summary_of_a_tree_tells_what_would_be_gained_without_an_operation() -> None:
    spans = columns([S("R", 0, 1000), S("A", 0, 400, "R"), S("X", 0, 390, "R"), S("B", 410, 900, "R")])
    rows = {row.key: row for row in tree_summary(spans, 0, tree_path(spans, 0))}
    assert {key: (row.path_ns, row.total_ns, row.drag_ns) for key, row in rows.items()} == {
        "B": (490, 490, 490), "A": (400, 400, 10), "R": (110, 1000, 110), "X": (0, 390, 0),
    }  # fmt: skip
    assert {key: (row.self_ns, row.slack_ns) for key, row in rows.items()} == {
        "B": (490, 0), "A": (400, 0), "R": (110, 0), "X": (390, 10),
    }  # fmt: skip
