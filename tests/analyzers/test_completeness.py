# SPDX-License-Identifier: Apache-2.0
"""The verdict: what is taken away from a run's telemetry must be missed, in words and in numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.completeness import Reasons
from grademl_otel.analyzers.model.foreign import judge_foreign
from grademl_otel.analyzers.model.run import Completeness, build_run
from grademl_otel.analyzers.sources import Selection, SourceOptions, open_source
from tests.support.synthetic import Simulated, Span, Training, lines, simulate

DATA = Path(__file__).parent.parent / "data"
TRAINING = Training(ranks=2, epochs=1, steps_per_epoch=120, rows_per_part=20)


@pytest.fixture(scope="module")
def sim() -> Simulated:
    return simulate(TRAINING)


def value(span: Span, key: str) -> Any:
    """Return an attribute of an OTLP/JSON span, integers as int; None when absent."""
    for attribute in span["attributes"]:
        if attribute["key"] == key:
            ((kind, raw),) = attribute["value"].items()
            return int(raw) if kind == "intValue" else raw
    return None


def verdict(folder: Path, sim: Simulated, keep: Callable[[int, Span], bool]) -> Completeness:
    """Return the verdict on the spans for which ``keep(rank, span)``."""
    file = folder / "traces.jsonl"
    file.write_bytes(lines(sim.training, [both for both in sim.spans if keep(*both)]))
    run = build_run(open_source(str(file)).read(Selection()))
    assert run is not None
    return run.completeness


def is_part(span: Span, window: int, part: int | None = None) -> bool:
    return (
        span["name"] == sc.WINDOW
        and value(span, sc.WINDOW_NUMBER) == window
        and part in (None, value(span, sc.WINDOW_PART))
    )


def test_nothing_is_missed_when_all_is_there(sim: Simulated, tmp_path: Path) -> None:
    found = verdict(tmp_path, sim, lambda rank, span: True)
    assert (found.verdict, found.reasons) == ("complete", [])
    assert found.steps_measured == found.steps_expected == 120


def test_a_missing_part_of_a_window(sim: Simulated, tmp_path: Path) -> None:
    found = verdict(tmp_path, sim, lambda rank, span: not (rank == 1 and is_part(span, 2, 1)))
    assert found.verdict == "incomplete"
    assert found.windows_missing == [2]
    assert found.steps_expected == 120
    assert found.steps_measured == 100
    text = "\n".join(found.reasons)
    assert "rank 1: 20 of 120 training steps are missing" in text
    assert "rank 1: window 2 lacks parts 1 of 4" in text
    assert "rank 0" not in text


def test_the_missing_last_part_of_a_window(sim: Simulated, tmp_path: Path) -> None:
    found = verdict(tmp_path, sim, lambda rank, span: not (rank == 0 and is_part(span, 2, 3)))
    assert "rank 0: window 2 lacks its last part" in found.reasons
    assert found.windows_missing == [2]
    assert found.steps_measured == 116


def test_an_end_that_had_no_rows_left_to_send(tmp_path: Path) -> None:
    """The last part went out by time just before the end, and could not know that it was the last."""

    def unclosed(rank: int, span: Span) -> bool:
        if is_part(span, 3):
            for attribute in span["attributes"]:
                if attribute["key"] == sc.WINDOW_LAST:
                    attribute["value"]["boolValue"] = False
        return True

    found = verdict(tmp_path, simulate(TRAINING), unclosed)
    assert (found.verdict, found.reasons) == ("complete", [])


def test_a_missing_window(sim: Simulated, tmp_path: Path) -> None:
    found = verdict(tmp_path, sim, lambda rank, span: not is_part(span, 1))
    assert found.windows_missing == [1]
    assert "ranks 0, 1: 1 of 4 windows are missing: 1" in found.reasons
    assert found.steps_measured == 120 - 32
    assert found.orphans > 0, "the fetches of that window's steps have lost their parent"


def test_the_missing_end_of_the_run_is_known_from_the_run_span(sim: Simulated, tmp_path: Path) -> None:
    found = verdict(tmp_path, sim, lambda rank, span: not is_part(span, 3))
    assert found.verdict == "incomplete"
    assert any("5 of 5 evaluation steps are missing" in reason for reason in found.reasons)
    assert any("8 of 120 training steps are missing" in reason for reason in found.reasons)


def test_a_missing_rank(sim: Simulated, tmp_path: Path) -> None:
    found = verdict(tmp_path, sim, lambda rank, span: rank == 1)
    assert found.verdict == "incomplete"
    assert (found.ranks_expected, found.ranks_present) == (2, [1])
    assert "1 of 2 ranks sent nothing: 0" in found.reasons
    assert found.orphans == 1, "its run span's parent is rank 0's"


def test_a_single_missing_span(sim: Simulated, tmp_path: Path) -> None:
    victim = next(span for _, span in sim.spans if span["name"] == sc.BACKWARD)
    found = verdict(tmp_path, sim, lambda rank, span: span is not victim)
    assert found.spans_expected == found.spans_received + 1 == len(sim.spans)
    assert found.reasons == [f"rank 0: 1 of {len(sim.spans) // 2:,} spans are missing"]


def test_spans_that_the_recorder_could_not_deliver_are_told_as_such(sim: Simulated, tmp_path: Path) -> None:
    spans = copy.deepcopy(sim.spans)
    own = next(span for rank, span in spans if rank == 0 and span["name"] == sc.RUN)
    own["attributes"].append({"key": sc.TRACER_UNSENT, "value": {"intValue": "1"}})
    worker = next(span for rank, span in spans if rank == 0 and span["name"] == sc.DATA_FETCH)
    found = verdict(tmp_path, replace(sim, spans=spans), lambda rank, span: span is not worker)
    total = len(sim.spans) // 2
    assert found.reasons == [
        f"rank 0: 1 of {total:,} spans are missing, 1 were lost on their way out of the recorder"
    ]


def test_a_missing_step_span_leaves_orphans_and_fewer_steps_in_detail(sim: Simulated, tmp_path: Path) -> None:
    victim = next(s for rank, s in sim.spans if rank == 1 and s["name"] == sc.STEP)
    found = verdict(tmp_path, sim, lambda rank, span: span is not victim)
    assert found.orphans == 4
    assert found.steps_detailed_all_ranks == 119
    assert "4 spans name a parent that is not here" in found.reasons


def test_a_step_span_without_phases_is_no_step_in_detail(sim: Simulated, tmp_path: Path) -> None:
    alone = next(s for rank, s in sim.spans if rank == 1 and s["name"] == sc.STEP)
    found = verdict(
        tmp_path, sim, lambda rank, span: span is alone or span.get("parentSpanId") != alone["spanId"]
    )
    assert found.steps_detailed_all_ranks == 119
    assert found.orphans == 0


def test_a_run_that_goes_on_has_no_end_yet(sim: Simulated, tmp_path: Path) -> None:
    """No run span, no passes, and the last window's part is still open."""
    found = verdict(
        tmp_path,
        sim,
        lambda rank, span: rank == 0 and span["name"] not in (sc.RUN, sc.EPOCH, sc.EVALUATE),
    )
    assert [end.how for end in found.ended] == ["unknown"]
    assert any(reason.startswith("rank 0 has not reported an end") for reason in found.reasons)
    assert found.steps_expected == found.steps_measured == 120


def test_a_killed_run_whose_tables_are_here_is_complete(tmp_path: Path) -> None:
    found = verdict(tmp_path, simulate(Training(killed_at=25)), lambda rank, span: True)
    assert found.verdict == "complete"
    (end,) = found.ended
    assert (end.how, end.last_step, end.open_phase) == ("killed", 24, sc.BACKWARD)


def test_a_killed_run_that_lost_its_last_part_knows_from_the_run_span(tmp_path: Path) -> None:
    sim = simulate(Training(killed_at=25, eval_batches=0))
    found = verdict(tmp_path, sim, lambda rank, span: not is_part(span, 1))
    assert any("9 of 25 training steps are missing" in reason for reason in found.reasons)


def test_lost_marks_are_told(tmp_path: Path) -> None:
    found = verdict(tmp_path, simulate(Training(tracer_dropped=7)), lambda rank, span: True)
    assert found.verdict == "incomplete"
    assert found.tracer_dropped == 7
    assert "the tracer lost 7 marks" in found.reasons[0]


def test_a_table_that_cannot_be_read_is_told_and_missed(sim: Simulated, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    text = sim.otlp_lines().replace(b'"grademl.table.version","value":{"intValue":"1"}',
                                    b'"grademl.table.version","value":{"intValue":"9"}', 1)  # fmt: skip
    file.write_bytes(text)
    run = build_run(open_source(str(file)).read(Selection()))
    assert run is not None
    reasons = "\n".join(run.completeness.reasons)
    assert "step table of version 9" in reasons
    assert "rank 0: 16 of 120 training steps are missing" in reasons


def test_a_step_whose_span_and_row_disagree_is_a_conflict(sim: Simulated, tmp_path: Path) -> None:
    victim = next(span for _, span in sim.spans if span["name"] == sc.STEP)
    longer = {**victim, "endTimeUnixNano": str(int(victim["endTimeUnixNano"]) + 5_000_000)}
    spans = [(rank, longer if span is victim else span) for rank, span in sim.spans]
    file = tmp_path / "traces.jsonl"
    file.write_bytes(lines(sim.training, spans))
    run = build_run(open_source(str(file)).read(Selection()))
    assert run is not None
    assert run.completeness.conflicts == ["1 of 250 steps: span and table row differ by over 1 %"]


def test_reading_that_stopped_at_a_bound_is_incomplete(sim: Simulated, tmp_path: Path) -> None:
    path = str(sim.write_store(tmp_path))
    run = build_run(open_source(path, SourceOptions(max_spans=200)).read(Selection()))
    assert run is not None
    assert any("--max-spans" in reason for reason in run.completeness.reasons)


# --- Spans of others --------------------------------------------------------------------------------------


def foreign(name: str) -> Telemetry:
    return open_source(str(DATA / name)).read(Selection())


def test_spans_of_others_are_unverifiable_at_best(tmp_path: Path) -> None:
    whole = foreign("jaeger/v3_trace_raw_first.json")
    found = judge_foreign(whole)
    assert (found.verdict, found.orphans, found.roots) == ("incomplete", 1, 1)
    assert found.reasons[1] == "1 span with the id of another was left out"
    kept = whole.spans.parent_ix != -2
    found = judge_foreign(replace(whole, ledger=Ledger()), kept.nonzero()[0])
    assert (found.verdict, found.reasons, found.spans_received) == ("unverifiable", [], 2)
    assert found.spans_expected is None


def test_impossible_times_of_others_are_told() -> None:
    found = judge_foreign(foreign("collector_otlp_line.jsonl"))
    assert "1 span with impossible times was left out" in found.reasons


def test_a_rank_without_any_table(sim: Simulated, tmp_path: Path) -> None:
    names = (sc.WINDOW, sc.RUN)
    found = verdict(tmp_path, sim, lambda rank, span: rank == 0 or span["name"] not in names)
    assert "rank 1: no step table has arrived" in found.reasons
    assert found.steps_expected == 120


def test_reasons_of_many_ranks_are_few_lines(tmp_path: Path) -> None:
    sim = simulate(Training(ranks=40, epochs=1, steps_per_epoch=20, eval_batches=0, rows_per_part=1))
    found = verdict(tmp_path, sim, lambda rank, span: not is_part(span, 0, 3))
    listed = ", ".join(str(rank) for rank in range(8))
    assert f"ranks {listed} and 32 more: 1 of 20 training steps are missing" in found.reasons
    found = verdict(tmp_path, sim, lambda rank, span: not is_part(span, 0, rank % 16))
    assert len(found.reasons) <= 25


def test_what_holds_for_the_run_is_not_among_the_reasons_too_many() -> None:
    reasons = Reasons()
    for rank in range(40):
        reasons.of_rank(rank, f"window {rank} lacks its last part")
    reasons.add("reading broke off: the server stopped")
    found = reasons.lines()
    assert found[:2] == ["reading broke off: the server stopped", "rank 0: window 0 lacks its last part"]
    assert found[-1] == "17 more reasons of this kind"


def test_every_reason_is_one_line(sim: Simulated, tmp_path: Path) -> None:
    found = verdict(tmp_path, sim, lambda rank, span: int(span["spanId"], 16) % 3 != 0)
    assert found.verdict == "incomplete"
    assert all("\n" not in reason and len(reason) < 200 for reason in found.reasons)


def test_a_rank_of_which_only_impossible_times_came_is_missing(sim: Simulated, tmp_path: Path) -> None:
    spans = [(rank, {**span, "endTimeUnixNano": "0"} if rank == 1 else span) for rank, span in sim.spans]
    file = tmp_path / "traces.jsonl"
    file.write_bytes(lines(sim.training, spans))
    run = build_run(open_source(str(file)).read(Selection()))
    assert run is not None
    assert list(run.rank_bounds) == run.ranks == [0]
    assert "1 of 2 ranks sent nothing: 1" in run.completeness.reasons
