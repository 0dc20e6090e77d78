# SPDX-License-Identifier: Apache-2.0
"""The lane budget tiles each main lane exactly, and the steady step is what the simulation says."""

from __future__ import annotations

import numpy as np
import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.graph import LaneBudgetRow, lane_budget, steady_rows, step_breakdown
from grademl_otel.analyzers.model.facts import HowEnded, Run, Scope

from ..support.build import R, S, run_from, run_of
from ..support.synthetic import MS, US, Training, simulate

NO_DETAIL = 70


def budget_of(run: Run, rank: int = 0) -> dict[str, LaneBudgetRow]:
    """Return the budget of ``rank`` by phase, having seen that every rank's sums to the wall time."""
    rows = lane_budget(run)
    for each in run.ranks:
        whole = [row for row in rows if row.rank == each and row.within is None]
        assert sum(row.ns for row in whole) == run.end - run.start
        assert len({row.phase for row in whole}) == len(whole)
        for row in whole:
            parts = sum(part.ns for part in rows if part.rank == each and part.within == row.phase)
            assert parts <= row.ns
    return {row.phase: row for row in rows if row.rank == rank and row.within is None}


def parts_of(run: Run, phase: str) -> dict[str, int]:
    return {row.phase: row.ns for row in lane_budget(run) if row.within == phase}


@pytest.mark.parametrize("detail", [0, NO_DETAIL])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_budget_is_what_was_simulated(detail: int, workers: int) -> None:
    training = Training(workers=workers, checkpoint_ns=30 * MS, detail_level=detail)
    sim = simulate(training)
    budget = budget_of(run_of(sim))
    rounding = 2 * US * len(sim.rows)
    for phase in ("data.wait", "forward", "backward", "optimizer"):
        assert budget[phase].ns == pytest.approx(sim.total(phase, kind="train"), abs=rounding)
    steps = sum(row.duration for row in sim.rows_of(kind="train"))
    in_steps = sum(budget[name].ns for name in ("data.wait", "forward", "backward", "optimizer", "other"))
    assert in_steps == pytest.approx(steps, abs=rounding)
    evaluations = sum(p.end - p.start for p in sim.passes if p.name == semconv.EVALUATE)
    assert budget["evaluate"].ns == pytest.approx(evaluations, abs=rounding)
    assert budget["checkpoint.save"].ns == 2 * training.checkpoint_ns
    assert budget["start-up"].ns == training.startup_ns
    assert budget["teardown"].ns == training.teardown_ns
    assert budget["epoch gap"].ns == pytest.approx(training.epoch_gap_ns, abs=rounding)
    assert "untraced" not in budget


@pytest.mark.parametrize("detail", [0, NO_DETAIL])
def test_an_inline_fetch_is_a_part_of_the_wait(detail: int) -> None:
    training = Training(workers=0, detail_level=detail, eval_batches=0)
    run = run_of(training)
    assert parts_of(run, "data.wait") == {"data.fetch": 40 * 3 * MS, "data.collate": 40 * MS}
    assert budget_of(run)["data.wait"].ns == 40 * (4 * MS + 100 * US)


def test_parts_of_an_evaluation() -> None:
    run = run_of(Training(workers=0))
    assert parts_of(run, "evaluate")["forward"] == 2 * 5 * 3 * MS
    assert parts_of(run, "evaluate")["data.fetch"] == 2 * 5 * 3 * MS


def test_a_checkpoint_within_a_step_is_no_other_time() -> None:
    rows = [R(0, 100, phases={"forward": (0, 40, 1)}), R(100, 200, step=1, phases={"forward": (100, 40, 1)})]
    save = Scope("checkpoint.save", 0, 60, 90, -1, {})
    budget = budget_of(run_from(rows, 0, 200, scopes=[save]))
    assert {name: row.ns for name, row in budget.items()} == {
        "forward": 80, "checkpoint.save": 30, "other": 90,
    }  # fmt: skip


def test_a_checkpoint_within_a_step_is_no_part_of_the_steady_step() -> None:
    """Every tenth step is followed by a checkpoint as long as itself, before the next one begins."""
    rows, saves = [], []
    at = 0
    for step in range(100):
        length = 200 if step % 10 == 9 else 100
        rows.append(R(at, at + length, step=step, phases={"forward": (at, 100, 1)}))
        if length > 100:
            saves.append(Scope("checkpoint.save", 0, at + 100, at + 200, -1, {}))
        at += length
    run = run_from(rows, 0, at, scopes=saves)
    budget, found = budget_of(run), step_breakdown(run)
    assert budget["checkpoint.save"].ns == 10 * 100
    assert budget["checkpoint.save"].per_step is None
    assert [(phase.phase, phase.share) for phase in found.phases] == [("forward", 1.0)]
    assert found.step is not None
    assert (found.step.p50, found.step.p95) == (100, 100)


def test_a_checkpoint_in_table_and_trace_counts_once() -> None:
    rows = [R(0, 100_000, phases={"forward": (0, 40_000, 1), "checkpoint.save": (60_000, 29_000, 1)})]
    save = Scope("checkpoint.save", 0, 60_123, 90_001, -1, {})
    assert budget_of(run_from(rows, 0, 100_000, scopes=[save]))["checkpoint.save"].ns == 29_878
    assert budget_of(run_from(rows, 0, 100_000))["checkpoint.save"].ns == 29_000


def test_ranks_that_are_not_there_are_idle() -> None:
    rows = [R(10, 90, rank=0), R(30, 60, rank=1)]
    run = run_from(rows, 0, 100, bounds={0: (0, 100), 1: (20, 70)})
    assert budget_of(run, 1)["idle"].ns == 20 + 30
    assert "idle" not in budget_of(run, 0)


def test_lost_rows_are_untraced_and_a_change_of_passes_is_an_epoch_gap() -> None:
    rows = [
        R(10 * MS, 20 * MS, step=0, item=(1, 0)),
        R(20 * MS, 30 * MS, step=1, item=(1, 1)),
        R(50 * MS, 60 * MS, step=4, item=(1, 4)),  # steps 2 and 3 are lost
        R(65 * MS, 70 * MS, step=5, item=(2, 0)),
    ]
    scopes = [Scope("epoch", 0, 8 * MS, 62 * MS, -1, {}), Scope("epoch", 0, 62 * MS, 75 * MS, -1, {})]
    budget = budget_of(run_from(rows, 0, 100 * MS, scopes=scopes))
    assert {name: row.ns // MS for name, row in budget.items()} == {
        "start-up": 8, "epoch gap": 2 + 5, "untraced": 20, "teardown": 30, "other": 35,
    }  # fmt: skip


def test_rows_lost_at_a_change_of_passes_are_not_an_epoch_gap() -> None:
    rows = [R(0, 10 * MS, step=0, item=(1, 0)), R(50 * MS, 60 * MS, step=5, item=(2, 3))]
    scopes = [Scope("epoch", 0, 0, 30 * MS, -1, {}), Scope("epoch", 0, 30 * MS, 60 * MS, -1, {})]
    budget = budget_of(run_from(rows, 0, 60 * MS, scopes=scopes))
    assert {name: row.ns // MS for name, row in budget.items()} == {"untraced": 40, "other": 20}


def test_an_evaluation_that_was_left_early_ends_with_its_last_row() -> None:
    # The script broke out of the evaluation at 40; its pass stays open to the end of the run.
    rows = [
        R(10 * MS, 20 * MS, step=0, item=(1, 0)),
        R(25 * MS, 40 * MS, step=1, item=(2, 0), flags=semconv.FLAG_EVALUATE),
        R(45 * MS, 60 * MS, step=1, item=(1, 1)),
    ]
    scopes = [Scope("epoch", 0, 10 * MS, 100 * MS, -1, {}), Scope("evaluate", 0, 22 * MS, 100 * MS, -1, {})]
    budget = budget_of(run_from(rows, 0, 100 * MS, scopes=scopes))
    assert {name: row.ns // MS for name, row in budget.items()} == {
        "start-up": 10, "evaluate": 40 - 22, "teardown": 40, "other": 10 + 15,
        "untraced": 2 + 5,  # between steps of one pass, outside the evaluation
    }  # fmt: skip


def test_what_a_killed_process_was_in_is_untraced() -> None:
    training = Training(killed_at=15)
    budget = budget_of(run_of(training))
    assert "teardown" not in budget
    assert budget["untraced"].ns > 0


def test_a_process_that_still_runs_has_no_teardown() -> None:
    run = run_from([R(10 * MS, 20 * MS), R(20 * MS, 30 * MS)], 0, 50 * MS)
    run.completeness.ended.append(HowEnded(0, "unknown", 1, 50 * MS))
    assert {name: row.ns // MS for name, row in budget_of(run).items()} == {
        "start-up": 10, "other": 20, "untraced": 20,
    }  # fmt: skip


def test_a_step_in_which_an_optimizer_holds_all_else() -> None:
    # A closure: forward and backward run several times within the one call of the optimizer.
    phases = {
        "data.wait": (0, 10_000, 1),
        "optimizer": (20_000, 70_000, 1),
        "forward": (21_000, 20_000, 5),
        "backward": (25_000, 40_000, 5),
    }
    run = run_from([R(0, 100_000, phases=phases)], 0, 100_000)
    budget = budget_of(run)
    assert {name: row.ns for name, row in budget.items()} == {
        "optimizer": 70_000, "other": 20_000, "data.wait": 10_000,
    }  # fmt: skip
    assert parts_of(run, "optimizer") == {"forward": 20_000, "backward": 40_000}


def test_more_busy_time_than_time_is_cut_to_the_row() -> None:
    phases = {"forward": (0, 80_000, 3), "backward": (10_000, 90_000, 3)}
    budget = budget_of(run_from([R(0, 100_000, phases=phases)], 0, 100_000))
    assert budget["backward"].ns == 90_000
    assert budget["forward"].ns == 10_000


def test_without_a_single_row() -> None:
    assert {name: row.ns for name, row in budget_of(run_from([], 3, 10)).items()} == {"untraced": 7}
    assert lane_budget(run_from([], 3, 3)) == []


def test_only_an_evaluation() -> None:
    rows = [R(10, 20, item=(1, 0), flags=semconv.FLAG_EVALUATE)]
    budget = budget_of(run_from(rows, 0, 50, scopes=[Scope("evaluate", 0, 5, 30, -1, {})]))
    assert {name: row.ns for name, row in budget.items()} == {"start-up": 5, "evaluate": 25, "teardown": 20}


# --- the steady step --------------------------------------------------------------------------------------


@pytest.mark.parametrize("detail", [0, NO_DETAIL])
def test_the_steady_step_is_what_was_simulated(detail: int) -> None:
    training = Training(epochs=1, steps_per_epoch=100, workers=4, eval_batches=3, detail_level=detail)
    breakdown = step_breakdown(run_of(training))
    assert (breakdown.steps, breakdown.warmup_excluded, breakdown.first, breakdown.last) == (95, 5, 5, 99)
    assert not breakdown.too_few
    assert breakdown.step is not None
    step = training.handoff_ns + 3 * MS + 6 * MS + 1 * MS + training.tail_ns
    assert breakdown.step.p50 == pytest.approx(step, abs=2 * US)
    phases = {phase.phase: phase for phase in breakdown.phases if phase.within is None}
    assert phases["backward"].per_step.p50 == pytest.approx(6 * MS, abs=2 * US)
    assert sum(phase.total_ns for phase in phases.values()) == breakdown.total_ns
    assert sum(phase.share for phase in phases.values()) == pytest.approx(1)
    assert breakdown.phases[0].phase == "backward"


@pytest.mark.parametrize(
    ("steps", "warmup"), [(0, 0), (1, 0), (3, 1), (5, 2), (6, 3), (60, 3), (100, 5), (4_000, 100)]
)
def test_warm_up_is_left_out_but_never_most(steps: int, warmup: int) -> None:
    rows = [R(10 * i, 10 * i + 10, step=i) for i in range(steps)]
    breakdown = step_breakdown(run_from(rows, 0, max(1, 10 * steps)))
    assert (breakdown.steps, breakdown.warmup_excluded) == (steps - warmup, warmup)
    assert breakdown.too_few == (steps - warmup < 20)


def test_evaluation_and_incomplete_steps_are_not_steady() -> None:
    flags = [0, 0, semconv.FLAG_EVALUATE, 0, semconv.FLAG_INCOMPLETE, semconv.FLAG_OUTLIER, 0, 0]
    updates = [0, 1, 2, 2, 3, 3, 4, 5]
    rows = [
        R(10 * i, 10 * i + 10, step=step, flags=flag)
        for i, (step, flag) in enumerate(zip(updates, flags, strict=True))
    ]
    run = run_from(rows, 0, 100)
    assert steady_rows(run, 0).tolist() == [5, 6, 7]


def test_a_later_part_of_a_run_has_no_warm_up() -> None:
    rows = [R(10 * i, 10 * i + 10, step=100 + i) for i in range(30)]
    breakdown = step_breakdown(run_from(rows, 0, 300))
    assert (breakdown.steps, breakdown.warmup_excluded, breakdown.first) == (30, 0, 100)


def test_the_step_of_one_rank_and_of_all() -> None:
    rows = [R(10 * i, 10 * i + 10, step=i) for i in range(40)]
    rows += [R(20 * i, 20 * i + 20, step=i, rank=1) for i in range(40)]
    run = run_from(rows, 0, 800)
    one, other, both = step_breakdown(run, 0), step_breakdown(run, 1), step_breakdown(run)
    assert (one.step and one.step.p50, other.step and other.step.p50) == (10, 20)
    assert (both.steps, both.total_ns) == (2 * 37, 37 * 30)
    assert both.step is not None
    assert both.step.p50 == 15


def test_quantiles_of_the_budget_are_over_the_same_steps() -> None:
    rows = [R(100 * i, 100 * i + 100, step=i, phases={"forward": (100 * i, 10 + i, 1)}) for i in range(60)]
    run = run_from(rows, 0, 6_000)
    forward = budget_of(run)["forward"].per_step
    assert forward is not None
    assert forward.p50 == np.quantile(np.arange(13, 70), 0.5)
    assert budget_of(run_of(Training()))["start-up"].per_step is None


def test_exact_detail_and_floored_table_side_by_side() -> None:
    # Row 1 has detail with odd ns; its neighbours come from a table in whole microseconds.
    lane = {semconv.LANE: "main"}
    spans = [
        S("s", 1_000_777, 2_000_333, name="step", attributes={**lane, semconv.STEP_NUMBER: 1}),
        S("f", 1_000_777, 1_900_000, "s", name="forward", attributes=lane),
    ]
    rows = [
        R(0, 1_000_000, step=0, phases={"forward": (0, 900_000, 1)}),
        R(1_000_000, 2_000_000, step=1, phases={"forward": (1_000_000, 899_000, 1)}),
        R(2_000_000, 3_000_000, step=2, phases={"forward": (2_000_000, 900_000, 1)}),
    ]
    budget = budget_of(run_from(rows, 0, 3_000_000, spans=spans))
    assert budget.keys() == {"forward", "other"}
    assert budget["forward"].ns == 900_000 + 899_223 + 900_000
