# SPDX-License-Identifier: Apache-2.0
"""Whatever a run's telemetry says: its path tiles the wall time, its budget sums to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv
from grademl_otel.analyzers.graph import (
    Path,
    event_networkx,
    lane_budget,
    run_graph,
    run_path,
    run_summary,
    step_breakdown,
    step_path,
)
from grademl_otel.analyzers.model.facts import Loader, Run, Scope

from ..support.build import R, S, run_from, run_of
from ..support.synthetic import MS, US, Training, simulate

TIMES = st.integers(-5, 60).map(lambda t: t * 700)
PHASES = (
    "data.wait",
    "data.fetch",
    "data.collate",
    "forward",
    "recompute",
    "backward",
    "optimizer",
    "checkpoint.save",
)


def assert_exact(run: Run, path: Path) -> None:
    cursor = run.start
    for section in path.sections:
        assert section.start == cursor < section.end
        cursor = section.end
    assert cursor == run.end
    rows = lane_budget(run)
    for rank in run.ranks:
        whole = {row.phase: row for row in rows if row.rank == rank and row.within is None}
        assert sum(row.ns for row in whole.values()) == run.end - run.start
        for name, row in whole.items():
            assert sum(part.ns for part in rows if part.rank == rank and part.within == name) <= row.ns
    breakdown = step_breakdown(run)
    assert sum(phase.total_ns for phase in breakdown.phases if phase.within is None) == breakdown.total_ns
    assert sum(row.path_ns for row in run_summary(run, path)) == path.total_ns


@st.composite
def wild_runs(draw: st.DrawFn) -> Run:
    """Runs whose tables, scopes and detail need not agree with each other or with any clock."""
    ranks = draw(st.integers(1, 2))
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        start = draw(TIMES)
        phases = {
            name: (draw(TIMES), draw(st.integers(0, 20)) * 500, draw(st.sampled_from((0, 1, 1, 3))))
            for name in draw(st.sets(st.sampled_from(PHASES)))
        }
        rows.append(
            R(
                start,
                start + draw(st.integers(0, 30)) * 700,
                step=draw(st.integers(0, 4)),
                rank=draw(st.integers(0, ranks - 1)),
                flags=draw(st.sampled_from((0, 0, 0, 2, 4, 8))),
                item=draw(st.sampled_from(((-1, -1), (1, 0), (1, 1), (1, 2), (2, 0)))),
                worker=draw(st.integers(-1, 1)),
                phases=phases,
            )
        )
    scopes = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(TIMES)
        name = draw(st.sampled_from(("epoch", "evaluate", "checkpoint.save", "compile")))
        end = start + draw(st.integers(0, 30)) * 700
        scopes.append(Scope(name, draw(st.integers(0, ranks - 1)), start, end, -1, {}))
    spans = []
    for i, row in enumerate(draw(st.lists(st.sampled_from(rows), max_size=3, unique_by=id)) if rows else ()):
        shared: dict[str, Any] = {"resource": {semconv.RANK: row.rank}}
        spans.append(
            S(
                f"s{i}",
                row.start + 3,
                row.end,
                name="step",
                attributes={semconv.STEP_NUMBER: row.step},
                **shared,
            )
        )
        for k in range(draw(st.integers(0, 3))):
            start = draw(TIMES)
            end = start + draw(st.integers(-1, 20)) * 700
            item = {semconv.ITEM: draw(st.sampled_from(("1:0", "1:1", "x")))}
            name = draw(st.sampled_from(PHASES))
            spans.append(S(f"s{i}p{k}", start, end, f"s{i}", name=name, attributes=item, **shared))
    low = draw(st.integers(-3, 3)) * 700
    high = low + draw(st.integers(0, 60)) * 700
    bounds = {}
    for rank in range(ranks):
        start = draw(st.integers(low, high))
        bounds[rank] = (start, draw(st.integers(start, high)))
    loader = Loader(
        0, draw(st.integers(0, 2)), draw(st.sampled_from((None, 0, 1, 2))), 8, False, draw(st.booleans())
    )
    ended = draw(st.sampled_from(("exit", "killed")))
    return run_from(rows, low, high, scopes=scopes, loaders=[loader], bounds=bounds, spans=spans, ended=ended)


@given(wild_runs())
@settings(max_examples=150, deadline=None)
def test_contradictory_telemetry_has_an_exact_path_and_budget(run: Run) -> None:
    assert_exact(run, run_path(run))
    event_networkx(run_graph(run))


@given(wild_runs())
@settings(max_examples=80, deadline=None)
def test_any_step_has_an_exact_path(run: Run) -> None:
    for rank, step in {(int(r), int(s)) for r, s in zip(run.steps.rank, run.steps.step, strict=True)}:
        try:
            path = step_path(run, rank, step)
        except LookupError:
            continue
        cursor = path.start
        for section in path.sections:
            assert section.start == cursor < section.end
            cursor = section.end
        assert cursor == path.end


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    steps = draw(st.integers(1, 8))
    return Training(
        ranks=draw(st.sampled_from((1, 1, 2))),
        epochs=draw(st.integers(1, 2)),
        steps_per_epoch=steps,
        micro=draw(st.sampled_from((1, 1, 2))),
        eval_batches=draw(st.integers(0, 2)),
        workers=draw(st.integers(0, 3)),
        prefetch=draw(st.integers(1, 3)),
        fetch_ns=draw(st.integers(0, 20 * MS)),
        collate_ns=draw(st.integers(0, 2 * MS)),
        handoff_ns=draw(st.integers(0, 200 * US)),
        spawn_ns=draw(st.integers(0, 20 * MS)),
        forward_ns=draw(st.integers(1, 10 * MS)),
        backward_ns=draw(st.integers(1, 10 * MS)),
        tail_ns=draw(st.integers(0, 3 * US)),
        checkpoint_ns=draw(st.sampled_from((0, 5 * MS + 1))),
        detail_level=draw(st.sampled_from((0, 1, 70))),
        rows_per_part=draw(st.sampled_from((2, 512))),
        killed_at=draw(st.one_of(st.none(), st.integers(0, steps - 1))),
    )


@given(trainings())
@settings(max_examples=40, deadline=None)
def test_any_training_has_an_exact_path_that_follows_the_queue(training: Training) -> None:
    run = run_of(training)
    path = run_path(run)
    assert_exact(run, path)
    assert nx.is_directed_acyclic_graph(event_networkx(run_graph(run)))
    if training.workers and training.micro == 1:
        # Every wait on the path is either the handing over of a batch or has nothing left that is not known.
        kinds = {s.kind for s in path.sections if s.phase == "data.wait"}
        assert kinds <= {"handoff"}


@given(trainings())
@settings(max_examples=20, deadline=None)
def test_budgets_of_detail_and_of_table_agree(training: Training) -> None:
    exact = simulate(replace(training, detail_level=0))
    run = run_of(replace(training, detail_level=70))
    rounding = 3 * US * (len(exact.rows) + 1) * training.micro
    rows = {(r.rank, r.phase): r.ns for r in lane_budget(run) if r.within is None}
    for rank in run.ranks:
        for phase in ("data.wait", "forward", "backward", "optimizer"):
            truth = sum(exact.total(phase, rank, kind) for kind in ("train", "incomplete"))
            assert abs(rows.get((rank, phase), 0) - truth) <= rounding
