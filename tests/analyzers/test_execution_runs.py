# SPDX-License-Identifier: Apache-2.0
"""Runs as phases, several traces as one tree, and both as GraphML: from files to what a user sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers import errors
from grademl_otel.analyzers.cli.app import run as cli
from grademl_otel.analyzers.execution import (
    BESIDE,
    DERIVED,
    INFERRED,
    MISSING,
    SEQUENTIAL,
    ExecutionModel,
    Pattern,
    SpanIdentity,
    execution_model,
)
from grademl_otel.analyzers.execution.drawn import phases_networkx, types_networkx
from grademl_otel.analyzers.graph import drawn, lane_budget
from grademl_otel.analyzers.graph.path import EVIDENCE
from grademl_otel.analyzers.model.facts import Run, Scope

from ..support import truth
from ..support.build import R, S, columns, run_from, run_of
from ..support.every_format import otlp_lines
from ..support.synthetic import MS, Simulated, Training, simulate
from ..support.telemetry import lines

TRAINING = Training(ranks=2, epochs=2, steps_per_epoch=4, eval_batches=2, checkpoint_ns=5 * MS, explicit=True)
WORKERLESS = replace(TRAINING, workers=0, ranks=1, explicit=False, micro=2)
RUN = f"/run[id={TRAINING.run_id}, script=train.py]"


@pytest.fixture(scope="module")
def trained() -> Run:
    return run_of(TRAINING)


@pytest.fixture(scope="module")
def model(trained: Run) -> ExecutionModel:
    return execution_model(trained.spans, [trained])


def count(model: ExecutionModel, pattern: str) -> int:
    return len(model.select(pattern))


def at(model: ExecutionModel, pattern: str) -> int:
    (node,) = model.select(pattern).tolist()
    return int(node)


def main_leaves(model: ExecutionModel, rank: int) -> np.ndarray:  # type: ignore[type-arg]
    """Return the leaves of the main lane of ``rank``."""
    phases = model.phases
    beside = phases.has(BESIDE) | phases.below(phases.has(BESIDE))
    mine = np.zeros(len(phases), bool)
    mine[phases.subtree(at(model, f"/run*/attempt*/rank[rank={rank}]"))] = True
    return np.flatnonzero(mine & phases.leaves & ~beside)


# --- A run --------------------------------------------------------------------------------------------------


def test_a_run_is_attempts_ranks_passes_steps_and_phases(model: ExecutionModel) -> None:
    training = TRAINING
    assert count(model, f"{RUN}/attempt[attempt=0]/rank*") == training.ranks
    rank = f"{RUN}/attempt[attempt=0]/rank[rank=1]"
    assert count(model, f"{rank}/epoch*") == training.epochs
    assert count(model, f"{rank}/evaluate[n=*]") == training.epochs
    assert count(model, f"{rank}/checkpoint.save*") == training.epochs
    assert count(model, f"{rank}/epoch[epoch=1]/step[step=*]") == training.steps_per_epoch
    assert at(model, f"{rank}/epoch[epoch=1]/step[step=6]/forward")
    assert count(model, f"{rank}/evaluate*/step[kind=evaluate*]/forward") == 2 * training.eval_batches
    assert model.repeats[model.types.at("/run[script=train.py]/attempt/rank/epoch/step")] == SEQUENTIAL


def test_steps_have_the_times_that_they_had(model: ExecutionModel) -> None:
    simulated = simulate(TRAINING)
    for row in simulated.rows_of(1, "train"):
        node = at(model, f"/run*/attempt*/rank[rank=1]/epoch*/step[step={row.step}]")
        assert (model.phases.start[node], model.phases.end[node]) == (row.start, row.end)
        forward = at(model, f"{model.phases.path(node)}/forward")
        assert model.phases.duration[forward] == row.total("forward")


@pytest.mark.parametrize(
    "training",
    [
        TRAINING,
        WORKERLESS,
        replace(TRAINING, detail_level=64),
        replace(TRAINING, buckets=3, explicit=False),
        replace(TRAINING, killed_at=6),
        replace(TRAINING, raises_at=6),
    ],
)
def test_the_leaves_of_a_main_lane_are_its_wall_time_exactly(training: Training) -> None:
    run = run_of(training)
    found = execution_model(run.spans, [run])
    for rank in run.ranks:
        low, high = run.rank_bounds[rank]
        assert found.phases.busy[main_leaves(found, rank)].sum() == high - low


def test_the_time_of_each_phase_is_that_of_the_lane_budget(trained: Run, model: ExecutionModel) -> None:
    """What both call the same takes the same time, to the nanosecond."""
    phases = model.phases
    leaves = main_leaves(model, 0)
    names = np.array([phases.name(node) for node in leaves.tolist()])
    budget = {row.phase: row.ns for row in lane_budget(trained) if row.rank == 0}
    for phase in ("forward", "optimizer", "data.wait"):
        training = leaves[names == phase]
        training = [node for node in training.tolist() if "/epoch[" in phases.path(node)]
        assert int(phases.busy[training].sum()) == budget[phase]
    assert int(phases.busy[leaves[names == "checkpoint.save"]].sum()) == budget["checkpoint.save"]


def test_workers_run_beside_and_name_their_items(model: ExecutionModel) -> None:
    lanes = model.select("/run*/attempt*/rank[rank=0]/loader-worker*")
    assert model.phases.has(BESIDE)[lanes].all()
    assert model.phases.has(DERIVED)[lanes].all()
    fetches = model.select("/run*/attempt*/rank[rank=0]/loader-worker*/data.fetch[batch=0, pass=*]")
    assert len(fetches) == 4, "two epochs, two evaluations"


def test_without_workers_the_batch_is_made_in_the_wait() -> None:
    run = run_of(WORKERLESS)
    found = execution_model(run.spans, [run])
    steps = WORKERLESS.epochs * WORKERLESS.steps_per_epoch * WORKERLESS.micro
    assert count(found, "**/epoch*/step*/data.wait*/data.fetch") == steps
    assert count(found, "**/epoch*/step*/forward[n=*]") == steps


def test_from_a_table_alone_sums_have_no_place_and_no_dependencies() -> None:
    run = run_of(replace(WORKERLESS, detail_level=64))
    found = execution_model(run.spans, [run])
    phases = found.phases
    sums = found.select("**/epoch*/step*/forward")
    assert phases.has(INFERRED)[sums].all()
    assert not np.isin(found.dependencies.target, sums).any()
    simulated = simulate(WORKERLESS)
    told = sum(row.total("forward") for row in simulated.rows_of(0, "train"))
    assert abs(int(phases.busy[sums].sum()) - told) <= 2000 * WORKERLESS.micro * len(sums)


def test_a_step_of_training_is_never_part_of_an_evaluation_that_its_loop_left() -> None:
    def scope(name: str, start: int, end: int, ix: int) -> Scope:
        return Scope(name, 0, start, end, ix, {})

    spans = [S("run", 0, 100), S("epoch", 10, 90, "run"), S("evaluate", 30, 100, "epoch")]
    run = run_from(
        [R(10, 30, step=0), R(40, 45, step=1, flags=sc.FLAG_EVALUATE), R(50, 70, step=1)],
        0,
        100,
        scopes=[scope("epoch", 10, 90, 1), scope("evaluate", 30, 100, 2)],
        spans=spans,
    )
    found = execution_model(run.spans, [replace(run, run_spans={0: 0})])
    assert count(found, "**/epoch*/step[step=*]") == 2
    assert count(found, "**/epoch*/evaluate/step[kind=evaluate]") == 1


def test_work_within_a_step_is_part_of_the_phase_that_it_lies_in() -> None:
    row = R(0, 100, phases={"forward": (10, 50, 1), "optimizer": (70, 20, 1)})
    scopes = [
        Scope("compile", 0, 20, 40, 1, {sc.COMPILE_TRIGGER: "frame", sc.COMPILE_ID: "0/0"}),
        Scope("checkpoint.save", 0, 92, 99, 2, {sc.CHECKPOINT_FORMAT: "torch"}),
    ]
    spans = [S("run", 0, 100), S("compile", 20, 40, "run"), S("checkpoint.save", 92, 99, "run")]
    run = run_from([row], 0, 100, scopes=scopes, spans=spans)
    found = execution_model(run.spans, [replace(run, run_spans={0: 0})])
    assert at(found, "**/step*/forward/compile[id=0\\/0, trigger=frame]")
    assert at(found, "**/step*/checkpoint.save[format=torch]")
    assert found.phases.busy[main_leaves(found, 0)].sum() == 100


def test_what_is_written_in_the_background_during_one_step_is_no_part_of_it() -> None:
    said = {sc.CHECKPOINT_FORMAT: "dcp", sc.CHECKPOINT_PART: "background", sc.LANE: "checkpoint"}
    spans = [S("run", 0, 100), S("checkpoint.save", 20, 40, "run")]
    run = run_from([R(0, 100, phases={"forward": (10, 50, 1)})], 0, 100, spans=spans,
                   scopes=[Scope("checkpoint.save", 0, 20, 40, 1, said)])  # fmt: skip
    found = execution_model(run.spans, [replace(run, run_spans={0: 0})])
    written = at(found, "/run*/attempt*/rank*/checkpoint.save[format=dcp, part=background]")
    assert found.phases.flags[written] & BESIDE
    assert found.phases.busy[main_leaves(found, 0)].sum() == 100


@pytest.mark.parametrize("number", [2**70, -1, True, "7", None])
def test_a_number_that_is_none_is_no_tag(number: Any) -> None:
    scopes = [Scope("epoch", 0, 0, 90, 1, {sc.EPOCH_NUMBER: number})]
    told = {sc.LANE: "stream-0.0", sc.STEP_NUMBER: number}
    spans = [
        S("run", 0, 100),
        S("epoch", 0, 90, "run"),
        S("device.forward", 0, 9, "run", attributes=told, resource={sc.RANK: 0}),
    ]
    run = run_from([R(0, 50)], 0, 100, scopes=scopes, spans=spans)
    found = execution_model(run.spans, [run])
    assert at(found, "/run*/attempt*/rank*/epoch/step[step=0]")
    assert not len(Pattern("/run*/attempt*/rank*/*/device.forward*").matches(found.phases))


def test_what_a_device_did_is_beside_in_the_lane_of_its_stream_and_from_the_table_where_no_span_tells() -> (
    None
):
    of_device = {"device.forward": (40, 30, 1), "device.backward": (80, 20, 2)}
    rows = [R(0, 100, step=0, phases=of_device), R(100, 200, step=1, phases={"device.forward": (140, 30, 1)})]
    told = {sc.LANE: "stream-0.7", sc.STEP_NUMBER: 1}
    spans = [S("run", 0, 200), S("device.forward", 141, 170, "run", attributes=told, resource={sc.RANK: 0})]
    found = execution_model((run := run_from(rows, 0, 200, spans=spans)).spans, [run])
    device = found.select("/run*/attempt*/rank*/device/*")
    assert [found.phases.identifier(node) for node in device.tolist()] == [
        "device.forward[step=0]",
        "device.backward[step=0]",
    ]
    assert found.phases.has(INFERRED)[device].tolist() == [False, True]
    assert at(found, "/run*/attempt*/rank*/stream-0.7/device.forward[step=1]")
    assert found.phases.has(BESIDE)[found.select("/run*/attempt*/rank*/stream-0.7")].all()


def test_a_rank_whose_run_span_is_missing_is_derived(trained: Run) -> None:
    found = execution_model(trained.spans, [replace(trained, run_spans={0: trained.run_spans[0]})])
    flags = {rank: found.phases.flags[at(found, f"/run*/attempt*/rank[rank={rank}]")] for rank in (0, 1)}
    assert not flags[0] & MISSING
    assert flags[1] & MISSING
    assert flags[1] & DERIVED


# --- Several traces, one tree -------------------------------------------------------------------------------

_SCOPE = truth.Scope("pipeline")
_PIPELINE = truth.Resource("airflow", {"host.name": "scheduler"})


def task(ix: int, name: str, parent: int = 0, trace: int = 0xF00, **more: Any) -> truth.Span:
    start = TRAINING.start - 1000 * MS
    fields: dict[str, Any] = {"start": start, "end": start + 10_000 * MS} | more
    return truth.Span(trace, ix, parent, name, resource=_PIPELINE, scope=_SCOPE, **fields)


def link_to(span: truth.Span, kind: str = "parent") -> dict[str, Any]:
    return {
        "traceId": f"{span.trace:032x}",
        "spanId": f"{span.id:016x}",
        "attributes": [{"key": sc.LINK_KIND, "value": {"stringValue": kind}}],
    }


def linked(simulated: Simulated, *links: dict[str, Any], parent: str | None = None) -> bytes:
    """Return the telemetry of a run whose run spans have these links, and name that run as their parent."""
    for _, span in simulated.spans:
        if span["name"] == "run":
            span.setdefault("links", []).extend(links)
            if parent is not None:
                span["attributes"].append({"key": sc.RUN_PARENT, "value": {"stringValue": parent}})
    return lines(simulated.training, simulated.spans)


def read(folder: Path, *parts: bytes, **options: Any) -> ExecutionModel:
    path = folder / "all.jsonl"
    path.write_bytes(b"".join(part if part.endswith(b"\n") else part + b"\n" for part in parts))
    return analyzers.execution_model(path, **options)


SMALL = Training(epochs=1, steps_per_epoch=2, eval_batches=0)
OTHER = replace(SMALL, run_id="f" * 32, start=SMALL.start + 5 * MS)
RUN_SPAN = truth.Span(
    sc.trace_id(SMALL.run_id, 0, sc.TRACE_RUN), sc.span_id(SMALL.run_id, 0, sc.TRACE_RUN), 0, "run", 0, 1,
    _PIPELINE, _SCOPE,
)  # fmt: skip


def test_a_run_is_part_of_the_span_that_it_was_launched_in(tmp_path: Path) -> None:
    dag, train = task(1, "dag"), task(2, "train", 1)
    found = read(tmp_path, otlp_lines([dag, train]), linked(simulate(SMALL), link_to(train)))
    run = at(found, "/dag[service=airflow]/train*/run*")
    assert found.phases.path(run).endswith(f"/run[id={SMALL.run_id}, script=train.py]")
    assert not found.conflicts
    assert found.phases.hosts[found.phases.host[at(found, "**/rank*")]] == "node-0"
    assert not found.phases.flags[run] & BESIDE, "a task waits for what it launched"


def test_a_child_run_is_part_of_the_rank_that_started_it_and_takes_none_of_its_time(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        linked(simulate(SMALL)),
        linked(simulate(OTHER), link_to(RUN_SPAN), parent=SMALL.run_id),
    )
    child = at(found, f"/run[id={SMALL.run_id}*]/attempt*/rank*/run*")
    assert found.phases.flags[child] & BESIDE
    rank = at(found, "/run*/attempt*/rank[rank=0]")
    assert found.phases.busy[main_leaves(found, 0)].sum() == found.phases.duration[rank]


def test_a_parent_run_that_is_only_named_owns_its_child_too(tmp_path: Path) -> None:
    found = read(tmp_path, linked(simulate(SMALL)), linked(simulate(OTHER), parent=SMALL.run_id))
    assert at(found, f"/run[id={SMALL.run_id}*]/run[id={OTHER.run_id}*]")


def test_of_owners_that_lie_within_each_other_the_innermost_counts(tmp_path: Path) -> None:
    """A sweep in a pipeline's task starts a run, which inherits the trace context of the task."""
    sweep = task(1, "sweep")
    found = read(
        tmp_path,
        otlp_lines([sweep]),
        linked(simulate(SMALL), link_to(sweep)),
        linked(simulate(OTHER), link_to(sweep), link_to(RUN_SPAN), parent=SMALL.run_id),
    )
    assert at(found, f"/sweep*/run[id={SMALL.run_id}*]/attempt*/rank*/run[id={OTHER.run_id}*]")
    assert not found.conflicts


def test_whether_owners_lie_within_each_other_is_asked_when_these_have_theirs(tmp_path: Path) -> None:
    """That the sweep launched the run in between only a log tells: the last of all evidence."""
    sweep = task(1, "sweep", attributes={"log": SMALL.run_id})
    found = read(
        tmp_path,
        otlp_lines([sweep]),
        linked(simulate(SMALL)),
        linked(simulate(OTHER), link_to(sweep), link_to(RUN_SPAN)),
    )
    assert at(found, f"/sweep*/run[id={SMALL.run_id}*]/attempt*/rank*/run[id={OTHER.run_id}*]")
    assert not found.conflicts


def test_of_two_owners_the_one_with_trace_context_counts_and_the_other_is_listed(tmp_path: Path) -> None:
    task_, stray = task(1, "task"), task(2, "stray", trace=0xF01, attributes={"log": f"run {SMALL.run_id}"})
    elsewhere = task(3, "elsewhere", trace=0xF02)
    found = read(
        tmp_path,
        otlp_lines([task_, elsewhere, stray]),
        linked(simulate(SMALL)),
        linked(simulate(OTHER), link_to(task_), link_to(RUN_SPAN), parent=SMALL.run_id),
    )
    assert at(found, f"/task*/run[id={OTHER.run_id}*]")
    (conflict,) = found.conflicts
    assert conflict.startswith(
        f"run {OTHER.run_id} has several owners: task (span {1:016x}) (trace context), "
    )
    assert conflict.endswith(f"; task (span {1:016x}) counts")
    assert at(found, f"/stray*/run[id={SMALL.run_id}*]"), "and the log of another launched the parent"


def test_an_id_that_a_task_has_logged_tells_what_it_launched(tmp_path: Path) -> None:
    logged = task(
        1,
        "submit",
        events=[truth.Happening(TRAINING.start, "log", {"line": "Submitted application_1700000000_0042 ok"})],
    )
    mentions = task(2, "other", trace=0xF01, attributes={"x": "application_1700000000_00420"})
    application = task(3, "spark", trace=0xF02, attributes={"spark.app.id": "application_1700000000_0042"})
    found = read(tmp_path, otlp_lines([logged, mentions, application]))
    assert at(found, "/submit*/spark*")
    assert not found.conflicts


def test_an_application_that_two_tasks_have_logged_has_no_owner(tmp_path: Path) -> None:
    tasks = [task(ix, name, trace=0xF00 + ix, attributes={"log": f"id={SMALL.run_id};"})
             for ix, name in ((1, "one"), (2, "two"))]  # fmt: skip
    found = read(tmp_path, otlp_lines(tasks), linked(simulate(SMALL)))
    assert at(found, "/run*")
    (conflict,) = found.conflicts
    assert conflict.endswith("; none counts")
    assert "one" in conflict
    assert "two" in conflict


def test_two_tasks_of_one_workflow_that_have_logged_a_run_do_not_own_it_nor_does_the_workflow(
    tmp_path: Path,
) -> None:
    tasks = [task(ix, f"task {ix}", 1, attributes={"log": SMALL.run_id}) for ix in (2, 3)]
    found = read(tmp_path, otlp_lines([task(1, "dag"), *tasks]), linked(simulate(SMALL)))
    assert at(found, "/run*")
    (conflict,) = found.conflicts
    assert conflict.endswith("; none counts")


def test_of_a_task_and_its_own_part_that_have_logged_a_run_the_part_owns_it(tmp_path: Path) -> None:
    outer = task(1, "outer", attributes={"log": SMALL.run_id})
    inner = task(2, "inner", 1, attributes={"log": SMALL.run_id})
    found = read(tmp_path, otlp_lines([outer, inner]), linked(simulate(SMALL)))
    assert at(found, "/outer*/inner*/run*")
    assert not found.conflicts


def test_what_would_be_part_of_itself_is_refused(tmp_path: Path) -> None:
    """Two runs that each name the other as what launched it."""
    other_span = replace(
        RUN_SPAN,
        trace=sc.trace_id(OTHER.run_id, 0, sc.TRACE_RUN),
        id=sc.span_id(OTHER.run_id, 0, sc.TRACE_RUN),
    )
    found = read(
        tmp_path,
        linked(simulate(SMALL), link_to(other_span), parent=OTHER.run_id),
        linked(simulate(OTHER), link_to(RUN_SPAN), parent=SMALL.run_id),
    )
    (conflict,) = found.conflicts
    assert "which is part of it" in conflict
    assert count(found, "**/run*") == 2


def test_spans_of_others_in_a_step_are_part_of_it_and_of_others_in_the_run_part_of_its_rank(
    tmp_path: Path,
) -> None:
    simulated = simulate(SMALL)
    step = next(span for _, span in simulated.spans if span["name"] == "step")
    now = {"start": int(step["startTimeUnixNano"]) + 10, "end": int(step["startTimeUnixNano"]) + 20}
    inside = task(1, "metric", int(step["spanId"], 16), int(step["traceId"], 16), **now)
    beside = task(2, "upload", attributes={sc.RUN_ID: SMALL.run_id, sc.RANK: 0}, **now)
    found = read(tmp_path, otlp_lines([inside, beside]), linked(simulated))
    assert at(found, "**/step[step=0]/metric*")
    assert at(found, "/run*/attempt*/rank*/upload*")
    rank = at(found, "/run*/attempt*/rank*")
    assert found.phases.busy[main_leaves(found, 0)].sum() == found.phases.duration[rank]


def test_attempts_of_one_run_are_parts_of_it(tmp_path: Path) -> None:
    again = replace(SMALL, attempt=1, start=SMALL.start + 5_000 * MS)
    found = read(tmp_path, linked(simulate(SMALL)), linked(simulate(again)))
    assert count(found, "/run*/attempt[attempt=*]") == 2
    assert found.repeats[found.types.at("/run[script=train.py]/attempt")] == SEQUENTIAL
    part = read(tmp_path, linked(simulate(SMALL)), linked(simulate(again)),
                steps=analyzers.StepRange(0, 1), attempt=0)  # fmt: skip
    assert count(part, "/run*/attempt*") == 1
    assert count(part, "**/step[step=*]") == 1


def test_a_missing_parent_is_derived_and_marked_and_holds_all_its_children() -> None:
    found = execution_model(
        columns([S("a", 5, 8, "gone"), S("b", 6, 20, "gone"), S("c", 0, 3), S("d", 1, 2, "c")]), []
    )
    missing = at(found, "/(missing)")
    assert found.phases.flags[missing] & MISSING
    assert (found.phases.start[missing], found.phases.end[missing]) == (5, 20)
    assert count(found, "/(missing)/*") == 2


def test_a_span_alone_whose_parent_is_missing() -> None:
    found = execution_model(columns([S("a", 5, 8, "gone")]), [])
    assert count(found, "/(missing)/a") == 1


def test_types_of_spans_are_their_service_name_and_what_is_chosen() -> None:
    def span(ix: str, method: str, user: int) -> S:
        said = {"http.request.method": method, "user": user}
        return S(ix, 0, 9, name="call", attributes=said, resource={"service.name": "web", "host.name": "h"})

    spans = columns([span("1", "GET", 1), span("2", "GET", 2), span("3", "PUT", 1)])
    plain = execution_model(spans, [])
    assert [plain.types.path(node) for node in plain.select_types("*")] == ["/call[service=web]"]
    chosen = execution_model(spans, [], SpanIdentity(("http.request.method",), ("user",)))
    assert [chosen.types.path(node) for node in chosen.select_types("*")] == [
        "/call[http.request.method=GET, service=web]",
        "/call[http.request.method=PUT, service=web]",
    ]
    assert at(chosen, "/call[http.request.method=GET, service=web, user=2]")


def test_a_number_at_the_end_of_a_name_tells_instances_apart_not_types() -> None:
    found = execution_model(columns([S(f"Step#{at}", at, at + 1) for at in (7, 12)] + [S("#7", 0, 1)]), [])
    assert [found.phases.identifier(node) for node in found.select("**").tolist()] == [
        "#7",
        "Step[number=7]",
        "Step[number=12]",
    ]
    assert len(found.select_types("Step")) == 1


def test_a_number_in_the_name_goes_before_an_attribute_of_that_key() -> None:
    spans = columns([S(name, 0, 1, attributes={"number": 3}) for name in ("Step#7", "Step")])
    for chosen in (SpanIdentity(types=("number",)), SpanIdentity(tags=("number",))):
        found = execution_model(spans, [], chosen)
        assert {found.phases.identifier(node) for node in found.select("*").tolist()} == {
            "Step[number=7]",
            "Step[number=3]",
        }


def test_the_tag_that_numbers_siblings_is_none_that_can_be_chosen() -> None:
    for keys in ({"types": ("n",)}, {"tags": ("n",)}):
        with pytest.raises(errors.UsageError, match="choose another key"):
            SpanIdentity(**keys)


def test_of_a_parent_that_tells_what_follows_nothing_is_guessed_from_many_calls() -> None:
    """Thirty alike calls, in one of which a link tells the order."""
    calls = [
        span
        for n in range(30)
        for span in (
            S(f"p{n}", 1000 * n, 1000 * n + 100, name="p"),
            S(f"a{n}", 1000 * n, 1000 * n + 30 + n, f"p{n}", name="a"),
            S(f"b{n}", 1000 * n + 32 + n, 1000 * n + 80, f"p{n}", name="b"),
            S(f"c{n}", 1000 * n + 82, 1000 * n + 90, f"p{n}", name="c"),
        )
    ]
    calls[3] = replace(calls[3], links=[("a0", "follows")])
    found = execution_model(columns(calls), [])
    told = found.dependencies
    of_first = told.where(found.phases.parent[told.target] == at(found, "/p[n=0]"))
    assert [EVIDENCE[one] for one in of_first.evidence] == ["observed"]
    assert len(told) > 30
    drawn_ = types_networkx(found)
    assert "observed" in {data.get("evidence") for *_, data in drawn_.edges(data=True)}
    assert "inferred" in {data.get("evidence") for *_, data in drawn_.edges(data=True)}


# --- GraphML ------------------------------------------------------------------------------------------------


def parsed(text: str) -> nx.DiGraph:
    graph: nx.DiGraph = nx.parse_graphml(text, node_type=int)
    return graph


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    simulate(TRAINING).write_store(folder)
    return folder


@pytest.mark.parametrize("graph", ["dependencies", "path", "phases", "types"])
def test_every_graph_is_read_back(store: Path, graph: str, tmp_path: Path) -> None:
    out = tmp_path / "out.graphml"
    assert cli(["export", str(store), "--to", "graphml", "--graph", graph, "-o", str(out)]) == 0
    found = nx.read_graphml(out, node_type=int)
    assert len(found) > 10
    assert nx.is_directed(found)
    if graph in ("phases", "types"):
        model = analyzers.execution_model(store)
        whole = model.phases if graph == "phases" else model.types
        assert dict(found.nodes(data="path")) == {node: whole.path(node) for node in range(len(whole))}
        parts = {edge[:2] for edge in found.edges(data="kind") if edge[2] == "part"}
        assert parts == {(int(whole.parent[node]), node) for node in range(1, len(whole))}
        assert {data.get("evidence") for *_, data in found.edges(data=True)} == {None, "inferred"}
    if graph == "path":
        sections = analyzers.critical_path(store).path.sections
        assert [data["end"] - data["start"] for _, data in found.nodes(data=True)] == [
            one.end_ns - one.start_ns for one in sections
        ]
        assert [data.get("span_id") for _, data in found.nodes(data=True)] == [
            one.span and one.span.span_id for one in sections
        ]
    if graph != "types":
        of_spans = [data for _, data in found.nodes(data=True) if "span_id" in data]
        assert {len(data["trace_id"]) for data in of_spans} == {32}
        assert {data["service"] for data in of_spans} == {"trainer"}


def test_a_model_that_is_looked_at_is_a_line(store: Path) -> None:
    model = analyzers.execution_model(store)
    assert repr(model) == f"<execution model: {len(model):,} phases of {len(model.types):,} types>"
    assert repr(model.phases) == f"<{len(model):,} phases>"
    assert repr(model.types) == f"<{len(model.types):,} types>"


def test_the_graph_of_one_trace_is_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(otlp_lines([task(1, "a"), task(2, "b", 1, end=TRAINING.start)]))
    assert cli(["export", str(path), "--to", "graphml"]) == 0
    assert [data["phase"] for _, data in parsed(capsys.readouterr().out).nodes(data=True)] == ["b", "a"]


def test_the_graph_of_a_profile_has_its_launches(capsys: pytest.CaptureFixture[str]) -> None:
    profile = Path(__file__).parents[1] / "data/profiles/gpu_rank_1.json"
    assert cli(["export", str(profile), "--to", "graphml"]) == 0
    found = parsed(capsys.readouterr().out)
    assert "device" in {data["kind"] for *_, data in found.edges(data=True)}
    assert any(data["lane"].startswith("stream") for _, data in found.nodes(data=True))


def test_without_what_is_inferred_there_are_only_edges_that_something_tells(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for graph in ("dependencies", "phases", "types"):
        assert cli(["export", str(store), "--to", "graphml", "--graph", graph, "--no-inferred"]) == 0
        edges = [data for *_, data in parsed(capsys.readouterr().out).edges(data=True)]
        # What follows what in a lane is known there even where its place is not.
        crossing = [data for data in edges if data["kind"] not in ("program", "child")]
        assert crossing
        assert "inferred" not in {data.get("evidence") for data in crossing}
    assert not len(analyzers.execution_model(store, inferred=False).dependencies)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ([], errors.EXIT_USAGE, "graphml"),
        (["--to", "xml"], errors.EXIT_USAGE, "'graphml'"),
        (["--to", "graphml", "--graph", "x"], errors.EXIT_USAGE, "'types'"),
        (["--to", "graphml", "--attempt", "all"], errors.EXIT_USAGE, "--attempt N"),
        (["--to", "graphml", "--steps", "900:"], errors.EXIT_NOTHING_FOUND, "no such steps"),
    ],
)
def test_what_cannot_be_exported_says_what_can(
    store: Path, options: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["export", str(store), *options]) == code
    assert says in capsys.readouterr().err


def test_what_is_too_large_to_draw_says_what_to_do(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("graph.drawn", "execution.drawn"):
        monkeypatch.setattr(f"grademl_otel.analyzers.{module}.MOST_NODES", 5)
    for graph in ("dependencies", "path", "phases", "types"):
        assert cli(["export", str(store), "--to", "graphml", "--graph", graph]) == errors.EXIT_USAGE
        assert "select some of the steps" in capsys.readouterr().err


HOSTILE = ('<x y="1">&amp;\'', "a\x00b\x1b[31m\x7f", "\ud800", "\r\n\ttabs", "]]>", "\u202e\ufffe", " ")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_escaped(name: str) -> None:
    drawn_ = nx.MultiDiGraph(about=name)
    drawn_.add_node(0, phase=name, start=2**62)
    drawn_.add_edge(0, 0, kind=name)
    found = parsed(drawn.graphml(drawn_))
    told = {
        str(found.nodes[0]["phase"]),
        str(found.graph["about"]),
        *(str(data["kind"]) for *_, data in found.edges(data=True)),
    }
    (shown,) = told
    assert found.nodes[0]["start"] == 2**62
    kept = "".join(one if one.isprintable() or one in "\n\t" else f"\\u{ord(one):04x}" for one in name)
    assert shown.replace("\x7f", "\\u007f").replace("\u202e", "\\u202e") == kept


def test_hostile_spans_make_a_graph_that_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    spans = [task(1, "a/b[c]*"), task(2, truth.ODD_NAME, 1), task(3, "..", 2), task(4, "<&>\x00", 3)]
    path.write_bytes(otlp_lines(spans))
    model = analyzers.execution_model(path)
    found = parsed(drawn.graphml(phases_networkx(model)))
    assert len(found) == len(model)
    for node in range(1, len(model)):
        assert model.select(model.phases.path(node)).tolist() == [node]


def test_the_python_graph_is_that_of_the_command(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = analyzers.dependency_graph(store, steps=analyzers.StepRange(0, 2))
    assert cli(["export", str(store), "--to", "graphml", "--steps", "0:2"]) == 0
    assert capsys.readouterr().out == drawn.graphml(graph) + "\n"
    assert graph.graph["run"] == TRAINING.run_id


def test_two_reads_make_one_text(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = set()
    for _ in range(2):
        assert cli(["export", str(store), "--to", "graphml", "--graph", "phases"]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1
