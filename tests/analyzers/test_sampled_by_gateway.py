# SPDX-License-Identifier: Apache-2.0
"""A gateway that keeps the traces of some steps: what it left out is told, and does not pass for lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.servers.run_plan import RunPlan
from tests.support.synthetic import Simulated, Span, Training, attributes, lines, simulate

TRAINING = Training(run_id="5a3b" * 8, ranks=2, epochs=1, steps_per_epoch=60, rows_per_part=20)
KEPT = range(0, 60, 10)
MARKED = (sc.RUN, sc.WINDOW)


@pytest.fixture(scope="module")
def sim() -> Simulated:
    return simulate(TRAINING)


def kept(span: Span) -> bool:
    """Whether a gateway that keeps every tenth step, and no evaluation, passes ``span`` on."""
    traces = {sc.trace_id(TRAINING.run_id, 0, sc.TRACE_STEP, number, 0) for number in KEPT}
    of_run = span["name"] in (*MARKED, sc.EPOCH, sc.EVALUATE, *sc.WORKER_PHASES)
    return of_run or int(span["traceId"], 16) in traces


def read(
    folder: Path,
    sim: Simulated,
    percent: float | None = 10,
    keep: Callable[[int, Span], bool] = lambda rank, span: True,
) -> Telemetry:
    spans = [(rank, copy.deepcopy(span)) for rank, span in sim.spans if kept(span) and keep(rank, span)]
    for _, span in spans:
        if percent is not None and span["name"] in MARKED:
            span["attributes"] += attributes({sc.GATEWAY_PERCENT: percent})
    file = folder / "traces.jsonl"
    file.write_bytes(lines(sim.training, spans))
    return open_source(str(file)).read(Selection())


def run_of(telemetry: Telemetry) -> Run:
    run = build_run(telemetry)
    assert run is not None
    return run


@pytest.mark.parametrize("percent", [10, 12.5])
def test_what_was_left_out_is_told_and_is_no_loss(percent: float, sim: Simulated, tmp_path: Path) -> None:
    run = run_of(read(tmp_path, sim, percent))
    found = run.completeness
    assert (found.verdict, found.reasons) == ("complete", [])
    assert found.spans_expected is None
    assert found.steps_detailed_all_ranks == 6
    (note,) = (note for note in found.notes if "gateway" in note)
    assert note.startswith(f"a gateway kept the detail of 6 of 60 training steps: {percent:g} % of all")


def test_the_census_is_the_same(sim: Simulated, tmp_path: Path) -> None:
    sampled = run_of(read(tmp_path, sim)).steps
    (tmp_path / "whole").mkdir()
    file = tmp_path / "whole" / "traces.jsonl"
    file.write_bytes(sim.otlp_lines())
    whole = run_of(open_source(str(file)).read(Selection())).steps
    for column in ("rank", "step", "start", "end", "flags"):
        assert np.array_equal(getattr(sampled, column), getattr(whole, column))
    assert {phase: busy.tolist() for phase, busy in sampled.busy.items()} == {
        phase: busy.tolist() for phase, busy in whole.busy.items()
    }


@pytest.mark.parametrize("percent", [None, 100])
def test_without_a_word_of_a_gateway_it_is_a_loss(
    percent: float | None, sim: Simulated, tmp_path: Path
) -> None:
    found = run_of(read(tmp_path, sim, percent)).completeness
    assert found.verdict == "incomplete"
    assert any("spans are missing" in reason for reason in found.reasons)


def test_a_step_that_it_kept_must_be_there_of_all_ranks(sim: Simulated, tmp_path: Path) -> None:
    step = sc.trace_id(TRAINING.run_id, 0, sc.TRACE_STEP, 20, 0)
    lost = run_of(read(tmp_path, sim, 10, lambda rank, span: (rank, int(span["traceId"], 16)) != (1, step)))
    assert lost.completeness.verdict == "incomplete"
    assert lost.completeness.reasons == ["rank 1: 1 of 6 steps that the gateway kept lack their spans"]


def test_a_window_that_is_missing_is_missed_all_the_same(sim: Simulated, tmp_path: Path) -> None:
    windows = [span for _, span in sim.spans if span["name"] == sc.WINDOW]
    found = run_of(read(tmp_path, sim, 10, lambda rank, span: span["spanId"] != windows[1]["spanId"]))
    assert found.completeness.verdict == "incomplete"
    assert found.completeness.windows_missing == [1]


def test_traces_that_may_have_been_left_out_are_no_loss_of_a_server(sim: Simulated, tmp_path: Path) -> None:
    asked = RunPlan(TRAINING.run_id, 0).detailed_steps(read(tmp_path, sim))
    assert asked.certain == []
    assert {sc.trace_id(TRAINING.run_id, 0, sc.TRACE_STEP, number, 0) for number in range(60)} <= set(
        asked.guessed
    )
    whole = RunPlan(TRAINING.run_id, 0).detailed_steps(read(tmp_path, sim, None))
    assert set(asked.guessed) == {*whole.certain, *whole.guessed}
    assert whole.certain != []
