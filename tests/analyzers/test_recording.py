# SPDX-License-Identifier: Apache-2.0
"""What the analyzer says of runs that were recorded or sent in part, from marks to the report's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from grademl_otel import marks, semconv
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.graph import lane_budget, step_breakdown
from grademl_otel.analyzers.model.run import Run, build_run, list_runs
from grademl_otel.analyzers.model.tables import MalformedTable, decode_table
from grademl_otel.analyzers.reporting.of_run import report_of_run
from grademl_otel.analyzers.reporting.text import render
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.servers.run_plan import RunPlan
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.spans import Resource, Span
from grademl_otel.export import otlpjson
from grademl_otel.ring.reader import OpenPhase

from ..support.mark_script import INFO, MS, RUN_ID, MarkScript, S

REASON = "own cost 4 % of a 0.5 ms step; budget 1 %"


def resource(rank: int = 0, world: int = 1) -> Resource:
    identity = {semconv.RUN_ID: RUN_ID, semconv.ATTEMPT: 0, semconv.RANK: rank, semconv.WORLD_SIZE: world}
    return Resource({**INFO.resource, **identity})


def converted(script: MarkScript, end: int) -> list[Span]:
    converter = Converter(script.strings)
    return [*converter.feed(script.marks, 1), *converter.finish("exit", [], end)]


def read(folder: Path, *ranks: tuple[Resource, list[Span]]) -> Run:
    path = folder / "traces.jsonl"
    path.write_bytes(b"".join(otlpjson.trace_line(of, spans) for of, spans in ranks))
    run = build_run(open_source(str(path)).read(Selection()))
    assert run is not None
    return run


def report(folder: Path, run: Run) -> str:
    telemetry = open_source(str(folder / "traces.jsonl")).read(Selection())
    return " ".join(render(report_of_run(telemetry, run), width=100).split())


def level(script: MarkScript, to: int) -> None:
    script.scope_int(1, semconv.WINDOW_RECORD_LEVEL, to)
    script.scope_text(1, semconv.WINDOW_RECORD_REASON, REASON)


def with_device(script: MarkScript) -> MarkScript:
    script.scope_text(1, semconv.DEVICE, "cpu")
    return script


def full_then(at_level: int, full: int = 48, then: int = 480, **changes: object) -> MarkScript:
    """48 steps in full, then 480 at the level; 1 ms each, a tenth of it waiting."""
    script = with_device(MarkScript(**changes))
    script.open_scope(2, "epoch", 0, number=0)
    for number in range(full):
        script.step(10 + number, number, number * MS, MS, pass_serial=2)
    level(script, at_level)
    if at_level == 2:
        for number in range(full, full + then):
            at = number * MS
            script.phase("data.wait", at, at + MS // 10, 10 + number, item=(2, number))
            script.row(10 + number, number, at, at + MS, pass_serial=2)
    else:
        for number in range(full, full + then, 16):
            packed = marks.pack_row(marks.SEVERAL, 0, 2)
            script.add(marks.ROW, number * MS, (number + 16) * MS, 10 + number, x=number, y=packed, z=16)
    script.close_scope(2, "epoch", (full + then) * MS)
    script.close_scope(1, "run", (full + then) * MS)
    return script


# --- Recorded in part ---------------------------------------------------------------------------------------


def test_boundaries_only(tmp_path: Path) -> None:
    run = read(tmp_path, (resource(), converted(full_then(2), S)))

    assert (run.completeness.verdict, run.completeness.reasons) == ("complete", [])
    assert [(one.rank, one.level, one.since, one.reason) for one in run.reduced] == [(0, 2, 48, REASON)]
    steps = step_breakdown(run)
    assert {phase.phase for phase in steps.phases} == {"data.wait", "other"}
    found = diagnose(run)
    assert found.verdict is not None
    assert found.verdict.id == "not_measured"
    assert found.findings == []
    missing = {one.rule: one.missing for one in found.abstained}
    assert REASON in missing["compute.bound"]
    text = report(tmp_path, run)
    assert text.count("recorded in part from step 48 on, at level 2: only waits for data were measured") == 1
    assert "waits for data 10 % of each step" in text
    assert "forward 0" not in text


def test_updates_only(tmp_path: Path) -> None:
    run = read(tmp_path, (resource(), converted(full_then(3), S)))

    assert (run.completeness.verdict, run.completeness.reasons) == ("complete", [])
    assert run.completeness.steps_measured == 528
    # One row for each step: those counted together have their mean length.
    assert run.steps.step.tolist() == list(range(528))
    assert set((run.steps.end - run.steps.start).tolist()) == {MS}
    steps = step_breakdown(run)
    assert [phase.phase for phase in steps.phases] == ["other"]
    assert steps.step is not None
    assert steps.step.p50 == MS
    found = diagnose(run)
    assert {one.rule for one in found.abstained} >= {"compute.bound", "input.loader"}
    text = report(tmp_path, run)
    assert "each row is the mean of several steps" in text
    assert "No step waits" not in text
    assert sum(row.ns for row in lane_budget(run) if row.within is None) == run.end - run.start


def test_levels_at_which_nothing_is_lost_are_not_mentioned(tmp_path: Path) -> None:
    script = with_device(MarkScript())
    for number in range(40):
        script.step(10 + number, number, number * MS, MS)
        if number == 20:
            level(script, 1)
    run = read(tmp_path, (resource(), converted(script, S)))
    assert run.reduced == []
    assert run.completeness.notes == []


def test_mostly_full_steps_are_judged_as_such(tmp_path: Path) -> None:
    run = read(tmp_path, (resource(), converted(full_then(2, full=496, then=32), S)))
    steps = step_breakdown(run)
    assert {phase.phase for phase in steps.phases} == {"data.wait", "forward", "backward"}
    assert steps.last == 495


def test_ranks_that_were_recorded_in_full_are_what_a_step_is_made_of(tmp_path: Path) -> None:
    full = with_device(MarkScript(rank=1, world_size=2))
    for number in range(528):
        full.step(10 + number, number, number * MS, MS)
    part = full_then(2, world_size=2)
    run = read(tmp_path, (resource(0, 2), converted(part, S)), (resource(1, 2), converted(full, S)))
    assert {phase.phase for phase in step_breakdown(run).phases} == {"data.wait", "forward", "backward"}
    assert {phase.phase for phase in step_breakdown(run, 0).phases} == {"data.wait", "other"}


def test_what_a_step_is_made_of_does_not_hang_on_a_rank_without_steps(tmp_path: Path) -> None:
    part, idle = full_then(2, world_size=2), with_device(MarkScript(rank=1, world_size=2))
    run = read(tmp_path, (resource(0, 2), converted(part, S)), (resource(1, 2), converted(idle, S)))
    assert step_breakdown(run).steps == 480


def test_levels_that_changed_are_told_once(tmp_path: Path) -> None:
    script = with_device(MarkScript())
    for number in range(240):
        script.step(10 + number, number, number * MS, MS)
        if (to := {16: 2, 48: 3, 112: 0}.get(number + 1)) is not None:
            script.scope_int(1, semconv.WINDOW_RECORD_LEVEL, to)
            script.scope_text(1, semconv.WINDOW_RECORD_REASON, f"reason of {to}")
    run = read(tmp_path, (resource(), converted(script, S)))
    found = [(one.level, one.since, one.until, one.reason) for one in run.reduced]
    assert found == [(2, 16, 47, "reason of 2"), (3, 48, 111, "reason of 3")]
    assert run.completeness.notes == [
        "recorded in part from step 16 to 111, down to level 3: only the ends of updates were counted, each"
        " row is the mean of several steps (reason of 3)"
    ]


def test_a_rank_is_judged_by_its_own_level(tmp_path: Path) -> None:
    """Both wait; of the one the loader was not measured, of the other nothing was."""
    ranks = []
    for rank, to in enumerate((2, 3)):
        script = full_then(to, rank=rank, world_size=2)
        ranks.append((resource(rank, 2), converted(script, S)))
    found = diagnose(read(tmp_path, *ranks))
    missing = [one.missing for one in found.abstained if one.rule == "input.loader"]
    assert missing == [f"recorded at level {to}: {REASON}" for to in (2, 3)]


# --- Threads side by side -----------------------------------------------------------------------------------


def test_the_busiest_thread_is_analyzed_and_the_others_are_told_of(tmp_path: Path) -> None:
    script = with_device(MarkScript())
    for number in range(60):
        lane = "thread-1" if number % 3 else "main"
        at = number * MS
        script.phase("forward", at, at + MS, 10 + number, lane=lane)
        script.add(marks.ROW, at, at + 2 * MS, 10 + number, x=number, y=marks.pack_row(0, 1, 0), lane=lane)
    run = read(tmp_path, (resource(), converted(script, S)))

    assert run.completeness.verdict == "complete"
    assert run.completeness.steps_measured == 60
    assert run.steps.step.tolist() == [number for number in range(60) if number % 3]
    assert run.step_spans
    assert all(number % 3 for _, number, _ in run.step_spans)
    assert run.completeness.notes == [
        "rank 0: 2 threads trained; the times are those of thread-1, which was busiest,"
        " without 20 steps of the others"
    ]


def test_a_checkpoint_that_another_thread_writes_takes_no_time_of_the_training(tmp_path: Path) -> None:
    script = with_device(MarkScript())
    script.open_scope(2, "epoch", 0, number=0)
    script.phase("checkpoint.save", 5 * MS, 15 * MS, 0, lane="thread-1")
    script.phase("checkpoint.save", 62 * MS, 64 * MS, 0, lane="thread-1")
    for number in range(60):
        script.step(10 + number, number, number * MS, MS, pass_serial=2)
    script.close_scope(2, "epoch", 60 * MS)
    script.close_scope(1, "run", 70 * MS)
    run = read(tmp_path, (resource(), converted(script, 70 * MS)))
    budget = {row.phase: row.ns for row in lane_budget(run) if row.within is None}
    assert budget["checkpoint.save"] == 2 * MS  # the one after the last step
    assert sum(budget.values()) == run.end - run.start
    step = step_breakdown(run).step
    assert step is not None
    assert (step.p50, step.p95) == (MS, MS)


def test_a_lane_without_a_name_is_refused() -> None:
    good = {semconv.TABLE_VERSION: 1, "grademl.table.step": [1, 2], "grademl.table.start_us": [0, 9]}
    good |= {"grademl.table.dur_us": [1, 1], "grademl.table.lane": [0, 1]}
    with pytest.raises(MalformedTable, match="beyond the 1"):
        decode_table(good, 0, 0)
    with pytest.raises(MalformedTable, match="no array of names"):
        decode_table({**good, semconv.WINDOW_LANES: [1, 2]}, 0, 0)
    part = decode_table({**good, semconv.WINDOW_LANES: '["main", "thread-1"]'}, 0, 0)
    assert part.lanes == ("main", "thread-1")


@pytest.mark.parametrize("steps", [[0, 1], [-1, 1], [1, 5000], [4096] * 2000])
def test_rows_of_no_or_too_many_steps_are_refused(steps: list[int]) -> None:
    some = list(range(len(steps)))
    table = {semconv.TABLE_VERSION: 1, "grademl.table.step": some, "grademl.table.start_us": some}
    table |= {"grademl.table.dur_us": [1], "grademl.table.steps": steps}
    with pytest.raises(MalformedTable, match="no steps, or of too many"):
        decode_table(table, 0, 0)


# --- Runs that go on ----------------------------------------------------------------------------------------


def test_a_run_that_goes_on_says_what_it_is_at(tmp_path: Path) -> None:
    script = with_device(MarkScript())
    for number in range(3):
        script.step(10 + number, number, number * 30 * S, 30 * S)
    converter = Converter(script.strings)
    spans = converter.feed(script.marks, 1)
    backward = OpenPhase(script.text("main"), marks.phase_kind("backward"), 95 * S)
    for at in range(90, 130):
        spans += converter.flush(at * S, [backward])
    run = read(tmp_path, (resource(), spans))

    assert (run.script, run.device) == ("train.py", "cpu")
    (ended,) = run.completeness.ended
    assert (ended.how, ended.last_step, ended.open_phase) == ("unknown", 2, "backward")
    assert run.end == max(span.end_ns for span in spans)
    assert run.completeness.reasons == [
        "rank 0 has not reported an end: still running, just killed, or its last spans are missing"
    ]
    assert "in backward since 1:35" in report(tmp_path, run)
    (summary,) = list_runs(open_source(str(tmp_path / "traces.jsonl")).read(Selection()))
    assert (summary.script, summary.steps, summary.ended) == ("train.py", 3, "unknown")


# --- What had no room ---------------------------------------------------------------------------------------


def test_passes_that_were_not_sent_are_no_defect(tmp_path: Path) -> None:
    script = with_device(MarkScript())
    for epoch in range(2000):
        at = epoch * MS
        script.open_scope(2 + epoch, "epoch", at, number=epoch)
        script.step(10_000 + epoch, epoch, at, MS, pass_serial=2 + epoch)
        script.close_scope(2 + epoch, "epoch", at + MS)
    script.close_scope(1, "run", 2 * S)
    spans = converted(script, 2 * S)
    run = read(tmp_path, (resource(), spans))

    sent = sum(span.name == "epoch" for span in spans)
    assert (run.completeness.verdict, run.completeness.reasons) == ("complete", [])
    assert run.completeness.notes == [
        f"{2000 - sent:,} passes over a loader have no span: a trace holds 2,000 at most"
    ]
    assert "2,000 epochs, 2,000 steps" in report(tmp_path, run)


def test_ranks_of_several_run_traces_are_one_run(tmp_path: Path) -> None:
    ranks = []
    for rank in (0, 1, 64, 65):
        script = with_device(MarkScript(rank=rank, world_size=4))
        for number in range(20):
            script.step(10 + number, number, number * MS, MS)
        script.close_scope(1, "run", S)
        ranks.append((resource(rank), converted(script, S)))
    run = read(tmp_path, *ranks)

    assert run.ranks == [0, 1, 64, 65]
    assert run.completeness.orphans == 0
    assert run.completeness.roots == 2
    assert not any("root" in reason for reason in run.completeness.reasons)


def test_the_traces_of_many_ranks_are_all_asked_for(tmp_path: Path) -> None:
    """What the ids of the traces of a run of 130 ranks are follows from what a window says."""
    script = with_device(MarkScript(rank=129, world_size=130))
    for number in range(5 * 512):
        script.row(10 + number, 0, number * MS, (number + 1) * MS, flags=semconv.FLAG_EVALUATE)
    spans = converted(script, 10 * S)
    path = tmp_path / "traces.jsonl"
    path.write_bytes(otlpjson.trace_line(resource(129, 130), spans))
    plan = RunPlan(RUN_ID, 0)
    assert plan.further_run_traces() == []
    asked = set(plan.next_windows())
    plan.learn(open_source(str(path)).read(Selection()))
    run_traces = plan.further_run_traces()
    while wanted := plan.next_windows():
        asked |= set(wanted)
        plan.learn(open_source(str(path)).read(Selection()))

    assert run_traces == [semconv.trace_id(RUN_ID, 0, "run", 0, shard) for shard in (1, 2)]
    assert plan.further_run_traces() == []
    windows = {span.trace_id for span in spans if span.name == "window"}
    assert len(windows) > 1
    assert windows <= asked
