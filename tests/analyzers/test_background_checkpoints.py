# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that is written while the training goes on takes no time of it but at the end of the run."""

from __future__ import annotations

from pathlib import Path

from grademl_otel import marks, semconv
from grademl_otel.analyzers.graph import lane_budget, run_path, step_breakdown
from grademl_otel.analyzers.model.run import Run

from ..support.mark_script import MS, MarkScript
from .test_recording import converted, read, resource, with_device

STEPS = 60
END = 90 * MS


def recorded(folder: Path, *background: tuple[int, int]) -> Run:
    """Steps of a ms each; before the third one the thread waits 2 ms for a state to be copied."""
    script = with_device(MarkScript())
    script.open_scope(2, "epoch", 0, number=0)
    for number in range(STEPS):
        at = number * MS if number < 3 else (number + 2) * MS
        if number == 2:
            script.phase("checkpoint.save", at + MS, at + 3 * MS, 10 + number)
            script.row(10 + number, number, at, at + 3 * MS, pass_serial=2)
        else:
            script.step(10 + number, number, at, MS, pass_serial=2)
    script.close_scope(2, "epoch", (STEPS + 2) * MS)
    for number, (start, end) in enumerate(background):
        serial = 3 + number
        kind = marks.SCOPE_INDEX["checkpoint.save"]
        script.add(marks.SCOPE_OPEN, start, start, serial, x=1, y=kind, z=number, lane="checkpoint")
        script.scope_bool(serial, semconv.CHECKPOINT_COMPLETED, True)
        script.close_scope(serial, "checkpoint.save", end)
    script.close_scope(1, "run", END)
    return read(folder, (resource(), converted(script, END)))


def saving(run: Run) -> int:
    budget = {row.phase: row.ns for row in lane_budget(run) if row.within is None}
    assert sum(budget.values()) == run.end - run.start
    return budget.get("checkpoint.save", 0)


def test_only_what_the_thread_waited_for_is_time_of_the_training(tmp_path: Path) -> None:
    run = recorded(tmp_path, (5 * MS, 25 * MS), (30 * MS, 45 * MS))
    assert saving(run) == 2 * MS
    step = step_breakdown(run).step
    assert step is not None
    assert step.p50 == MS
    assert run.completeness.verdict == "complete"


def test_at_the_end_the_program_waits_for_it(tmp_path: Path) -> None:
    run = recorded(tmp_path, (50 * MS, 80 * MS))
    assert saving(run) == 2 * MS + 80 * MS - (STEPS + 2) * MS


def test_the_path_of_the_run_leads_through_the_one_that_its_end_waited_for(tmp_path: Path) -> None:
    run = recorded(tmp_path, (5 * MS, 25 * MS), (50 * MS, 80 * MS))
    observed = [s for s in run_path(run, inferred=False).sections if s.phase == "checkpoint.save"]
    assert sum(s.duration for s in observed) == 2 * MS + 80 * MS - (STEPS + 2) * MS
    blocking, written = (s for s in run_path(run).sections if s.phase == "checkpoint.save")
    assert (blocking.lane, blocking.duration) == ("main", 2 * MS)
    # The steps beside it could have taken longer.
    assert (written.lane, written.start - run.start, written.duration) == ("checkpoint", 50 * MS, 30 * MS)
    assert written.entered_by.evidence == "inferred"
