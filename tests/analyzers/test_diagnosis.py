# SPDX-License-Identifier: Apache-2.0
"""The rules against simulated trainings whose truth is known."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis import compute, loader
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.diagnosis.facts import loader_facts, step_facts
from grademl_otel.analyzers.diagnosis.finding import CRITICAL, INFO, WARNING, Finding, severity_of
from grademl_otel.analyzers.model.run import Loader, Run, build_run
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.units import percent
from tests.support.build import R, S, run_from
from tests.support.synthetic import MS, US, Training, simulate

COMPUTE_NS = 3 * MS + 6 * MS + 1 * MS + 50 * US
"""What the default training does in a step beside waiting."""


def build(folder: Path, training: Training) -> Run:
    simulate(training).write_store(folder)
    run = build_run(open_source(str(folder)).read(Selection()))
    assert run is not None
    return run


def evidence(finding: Finding) -> dict[str, float]:
    return {one.signal: one.value for one in finding.evidence}


def loader_bound(workers: int = 2, **changes: object) -> Training:
    """40 ms a batch: with 2 workers one every 20 ms, while a step needs one every 10.05 ms."""
    return Training(epochs=1, steps_per_epoch=60, workers=workers, fetch_ns=39 * MS, **changes)  # type: ignore[arg-type]


def test_severity_has_one_scale() -> None:
    assert severity_of(0.0999, 100) is None
    assert severity_of(0.10, 100) == WARNING
    assert severity_of(0.20, 100) == CRITICAL
    assert severity_of(0.9, 19) == WARNING
    assert severity_of(0.9, 1) is None


def test_workers_that_cannot_keep_up(tmp_path: Path) -> None:
    run = build(tmp_path, loader_bound())
    found = diagnose(run)
    (finding,) = found.findings
    assert (finding.id, finding.severity, finding.where.ranks) == ("input.loader", CRITICAL, [0])
    signals = evidence(finding)
    # In the long run a step takes what two workers need for a batch: 20 ms, of which 10.05 ms are computing.
    assert signals["data.wait.share"] == pytest.approx(1 - COMPUTE_NS / (20 * MS), abs=0.01)
    assert signals["workers.busy.share"] == pytest.approx(1.0, abs=0.01)
    assert signals["queue.empty.share"] >= 0.4
    assert signals["batch.make.p50"] == pytest.approx(40 * MS, abs=2 * US)
    assert finding.gain is not None
    assert finding.gain.basis == "bound"
    # 40 ms over 10.05 ms are four workers; then computing sets the pace, and backward is most of it.
    assert finding.gain.interval == (0.0, finding.gain.fraction)
    assert finding.gain.next_limit == sc.BACKWARD
    assert finding.fix[0].startswith(f"DataLoader(num_workers={ceil(40 * MS / COMPUTE_NS)}), now 2")
    assert "not recorded" in finding.fix[0]
    assert found.verdict is not None
    steps = step_facts(run, 0)
    assert steps is not None
    assert found.verdict.lines[0].startswith(
        f"The trainer waits for data {percent(steps.wait_share)} of each"
    )
    assert "num_workers=2 makes a batch every 20 ms" in found.verdict.lines[1]


def test_workers_in_step_leave_the_queue_empty_once_in_a_round(tmp_path: Path) -> None:
    """Four workers hand over four batches at once: only every fourth step waits, and the rule still holds."""
    run = build(tmp_path, Training(epochs=1, steps_per_epoch=80, workers=4, fetch_ns=79 * MS))
    facts = loader_facts(run, 0)
    assert facts is not None
    assert 0.2 <= facts.empty_share < 0.5
    (finding,) = loader.judge(run).findings
    assert finding.severity == CRITICAL


def test_no_workers_and_a_slow_batch(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, loader_bound(workers=0)))
    (finding,) = found.findings
    assert (finding.id, finding.severity) == ("input.loader", CRITICAL)
    signals = evidence(finding)
    waited = 40 * MS + 100 * US
    assert signals["data.wait.share"] == pytest.approx(waited / (waited + COMPUTE_NS), abs=0.001)
    assert signals["loader.workers"] == 0
    assert "queue.empty.share" not in signals
    assert finding.gain is not None
    assert finding.gain.fraction == pytest.approx(waited / (waited + COMPUTE_NS), abs=0.001)
    assert "num_workers=0" in (found.verdict.lines[1] if found.verdict else "")


def test_a_loader_that_no_number_of_workers_saves_is_told_to_get_cheaper(tmp_path: Path) -> None:
    training = Training(
        epochs=1,
        steps_per_epoch=40,
        fetch_ns=400 * MS,
        forward_ns=1 * MS,
        backward_ns=1 * MS,
        optimizer_ns=1 * MS,
    )
    (finding,) = loader.judge(build(tmp_path, training)).findings
    assert finding.fix[0].startswith("make a batch cheaper")
    # 401 ms a batch by 2 workers, while a step computes for 3.05 ms.
    assert finding.fix[0].startswith("make a batch cheaper, from 401 ms to under 6.1 ms")
    assert finding.fix[1].startswith("more workers alone would take 132 of them")
    assert finding.gain is not None
    assert finding.gain.fraction == pytest.approx(1 - 3.05 / 200.5, abs=0.01)


def test_batches_of_a_step_are_told_one_by_one(tmp_path: Path) -> None:
    """Three batches of 40 ms a step: what a batch costs is 40 ms, what its step waits for is 120 ms."""
    found = loader.judge(build(tmp_path / "none", loader_bound(workers=0, micro=3)))
    assert found.findings[0].fix[1].startswith("make a batch cheaper (40 ms now)")
    found = loader.judge(build(tmp_path / "two", loader_bound(micro=3)))
    assert found.findings[0].fix[1].startswith("make a batch cheaper, from 40 ms to under ")
    assert found.verdict is not None
    assert found.verdict.lines[1].startswith(
        "DataLoader num_workers=2 makes the 3 batches of a step in 60 ms; the rest of the step takes 28 ms."
    )


def test_batches_cheaper_than_their_handing_over_ask_for_no_workers(tmp_path: Path) -> None:
    training = Training(
        epochs=1, steps_per_epoch=60, workers=0, fetch_ns=300 * US, collate_ns=100 * US,
        forward_ns=1 * MS, backward_ns=1 * MS, optimizer_ns=MS // 2,
    )  # fmt: skip
    (finding,) = loader.judge(build(tmp_path, training)).findings
    assert not [fix for fix in finding.fix if "num_workers" in fix]
    found = diagnose(build(tmp_path / "again", training))
    assert found.verdict is not None
    assert "The loader is the limit" not in found.verdict.lines[0]  # it takes a sixth of the step


def test_the_slower_of_two_loaders_in_a_step_is_named() -> None:
    """Each step takes a batch of both; the second loader makes one in 90 ms, the first in 30 ms."""
    period, lane = 100 * MS, {sc.LANE: "main"}
    rows, spans = [], []
    for n in range(40):
        at = n * period
        rows.append(
            R(
                at, at + period, step=n, item=(1, n), worker=0,
                phases={
                    sc.DATA_WAIT: (at, 90 * MS, 2),
                    sc.FORWARD: (at + 90 * MS, 10 * MS, 1),
                    sc.DATA_FETCH: (at, 120 * MS, 2),
                },
            )
        )  # fmt: skip
        spans += [
            S(f"s{n}", at, at + period, name=sc.STEP, attributes={**lane, sc.STEP_NUMBER: n}),
            S(f"a{n}", at, at + MS, f"s{n}", name=sc.DATA_WAIT, attributes={**lane, sc.ITEM: f"1:{n}"}),
            S(
                f"b{n}", at + MS, at + 90 * MS, f"s{n}",
                name=sc.DATA_WAIT, attributes={**lane, sc.ITEM: f"2:{n}"},
            ),
            S(f"f{n}", at + 90 * MS, at + period, f"s{n}", name=sc.FORWARD, attributes=lane),
        ]  # fmt: skip
        # The first loader made its batch ahead of the step, the second makes it while the step waits.
        for lane_name, item, start, end in (
            ("loader-worker-0", f"1:{n}", at - 30 * MS, at),
            ("loader1-worker-0", f"2:{n}", at, at + 89 * MS),
        ):
            made = {sc.LANE: lane_name, sc.ITEM: item}
            spans.append(S(item, start, end, name=sc.DATA_FETCH, attributes=made, resource={sc.RANK: 0}))
    run = run_from(rows, 0, 40 * period, spans=spans, loaders=[Loader(0, 1, 2, 32, False)])
    facts = loader_facts(run, 0)
    assert facts is not None
    assert (facts.loaders, facts.workers, facts.batches) == (2, 1, 1.0)
    assert facts.make_ns == 89 * MS
    assert facts.wait_ns == 89 * MS
    found = diagnose(run)
    assert found.verdict is not None
    assert found.verdict.lines[1] == (
        "The slowest of 2 DataLoaders (num_workers=1) makes a batch every 89 ms;"
        " a step needs one every 11 ms."
    )


def test_computing_sets_the_pace(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, Training(epochs=1, steps_per_epoch=60)))
    (finding,) = found.findings
    assert (finding.id, finding.severity, finding.gain) == ("compute.bound", INFO, None)
    step = COMPUTE_NS + 100 * US
    assert evidence(finding)["data.wait.share"] == pytest.approx(100 * US / step, abs=1e-3)
    assert evidence(finding)["backward.share"] == pytest.approx(6 * MS / step, abs=1e-3)
    assert found.verdict is not None
    assert found.verdict.lines[0] == "The computation sets the pace: backward takes 59 % of each step."


@pytest.mark.parametrize("between", [4, 11, 300])
def test_what_takes_most_of_the_time_between_steps_sets_the_pace(between: int) -> None:
    """A program with a queue of its own: its steps begin when it has a batch."""
    starts = [n * (10 + between) * MS for n in range(60)]
    rows = [R(at, at + 10 * MS, step=n, phases={sc.FORWARD: (at, 9 * MS, 1)}) for n, at in enumerate(starts)]
    found = diagnose(run_from(rows, 0, rows[-1].end))
    assert found.verdict is not None
    if between < 10:
        assert found.verdict.lines[0] == "The computation sets the pace: forward takes 90 % of each step."
    else:
        assert (found.findings, found.verdict.id) == ([], "unknown")
        assert found.verdict.lines[0] == (
            f"From step to step {10 + between} ms pass, of which a step takes 10 ms:"
            " what sets the pace is outside of the steps."
        )


def test_a_backward_that_may_be_waiting_for_another_rank_is_said_to(tmp_path: Path) -> None:
    """All ranks leave backward together: that of the fast ones is mostly waiting for the slow one."""
    run = build(tmp_path, Training(ranks=3, epochs=1, steps_per_epoch=60, more_ns={(2, sc.BACKWARD): 6 * MS}))
    found = diagnose(run)
    assert found.findings == []
    assert found.verdict is not None
    assert found.verdict.id == "not_observable"
    assert "How much of it is computing is not observable" in found.verdict.lines[0]
    assert "waiting for the slowest of the 3 ranks" in found.verdict.lines[1]
    (doubt,) = [one for one in found.abstained if one.rule == "ranks.straggler"]
    assert "no collectives were recorded in backward" in doubt.missing


def test_python_between_the_phases_sets_the_pace(tmp_path: Path) -> None:
    found = compute.judge(build(tmp_path, Training(epochs=1, steps_per_epoch=60, tail_ns=30 * MS)))
    assert found.verdict is not None
    assert "Python between the phases takes 7" in found.verdict.lines[0]


LEAD_NS = 10 * US


def around(run: Run, inner: Sequence[str], name: str) -> Run:
    """The run whose program put a phase around ``inner``, which follow each other, `LEAD_NS` before them.

    Rows begin and end that much earlier.
    """
    steps = run.steps
    first = {**steps.first, name: steps.first[inner[0]] - LEAD_NS}
    busy = {**steps.busy, name: sum(steps.busy[phase] for phase in inner) + LEAD_NS}
    count = {**steps.count, name: steps.count[inner[0]]}
    bounds = {"start": steps.start - LEAD_NS, "end": steps.end - LEAD_NS}
    named = replace(steps, first=first, busy=busy, count=count, user=frozenset({name}), **bounds)  # type: ignore[arg-type]
    return replace(run, steps=named, user_phases=named.user)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_wait_for_data_in_a_phase_of_the_programs_is_one(workers: int, tmp_path: Path) -> None:
    """`with phase("get batch"): batch = next(it)` is no computing."""
    plain = build(tmp_path, loader_bound(workers, detail_level=30))
    known, facts = step_facts(plain, 0), step_facts(around(plain, [sc.DATA_WAIT], "get batch"), 0)
    assert known is not None
    assert facts is not None
    assert facts.wait_ns == pytest.approx(known.wait_ns, abs=LEAD_NS)
    assert 0 <= facts.compute_ns["get batch"] <= LEAD_NS
    assert sum(facts.compute_ns.values()) + facts.wait_ns == pytest.approx(facts.step_ns)
    found = diagnose(around(plain, [sc.DATA_WAIT], "get batch"))
    assert found.verdict is not None
    assert found.verdict.id == "input.loader"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_without_a_number_is_judged_all_the_same(workers: int, tmp_path: Path) -> None:
    """`with step(): batch = next(it)`: the pass is no epoch, so nothing tells which loader it is of."""
    run = build(tmp_path, loader_bound(workers))
    nameless = replace(run.steps, item_loader=np.full(len(run.steps), -1))
    found = diagnose(replace(run, steps=nameless, loaders={}))
    assert found == diagnose(run)
    assert found.findings[0].id == "input.loader"
    in_turn = replace(nameless, item_pass=np.arange(len(run.steps)) % 2)
    assert loader_facts(replace(run, steps=in_turn, loaders={}), 0) is None


def test_of_a_program_that_loads_nothing_storage_is_no_question() -> None:
    rows = [R(at * MS, (at + 1) * MS, step=at, phases={sc.BACKWARD: (at * MS, MS, 1)}) for at in range(40)]
    assert diagnose(run_from(rows, 0, 40 * MS)).abstained == []
    waits = [replace(row, phases={**row.phases, sc.DATA_WAIT: (row.start, 0, 1)}) for row in rows]
    assert [one.rule for one in diagnose(run_from(waits, 0, 40 * MS)).abstained] == ["input.storage"]


def test_of_a_run_without_pytorch_the_device_is_not_known(tmp_path: Path) -> None:
    (doubt, _) = diagnose(replace(build(tmp_path, loader_bound()), device=None)).abstained
    assert doubt.missing.startswith("whether the device, which is not known, was idle while the main thread")


def test_what_takes_most_of_the_phase_is_what_to_look_into(tmp_path: Path) -> None:
    run = build(tmp_path, Training(epochs=1, steps_per_epoch=60, handoff_ns=US, detail_level=30))
    (finding,) = compute.judge(around(run, [sc.FORWARD, sc.BACKWARD], "train")).findings
    assert finding.fix == ["look into backward (6.0 ms of the 9.0 ms of train a step) with torch.profiler"]


def test_recomputing_is_what_memory_buys_back(tmp_path: Path) -> None:
    run = build(tmp_path, Training(epochs=1, steps_per_epoch=60, detail_level=30))
    steps = run.steps
    recompute = {
        "first": steps.first[sc.BACKWARD] + MS,
        "busy": np.full(len(steps), 2 * MS),
        "count": steps.count[sc.BACKWARD],
    }
    with_it = {part: {**getattr(steps, part), sc.RECOMPUTE: values} for part, values in recompute.items()}
    (finding,) = compute.judge(replace(run, steps=replace(steps, **with_it))).findings  # type: ignore[arg-type]
    assert finding.fix == [
        "checkpoint fewer activations, where memory allows: running them again takes 2.0 ms a step",
        "look into backward (6.0 ms a step) with torch.profiler",
    ]


def test_a_run_that_is_mostly_something_else_says_so(tmp_path: Path) -> None:
    training = Training(epochs=1, steps_per_epoch=60, startup_ns=3000 * MS)
    found = diagnose(build(tmp_path, training))
    assert found.verdict is not None
    assert re.fullmatch(
        r"Training steps are only 1\d % of the run: start-up takes 8\d %\.", found.verdict.lines[-1]
    )


@pytest.mark.parametrize(("steps", "severity"), [(10, WARNING), (60, CRITICAL)])
def test_few_steps_are_never_critical(steps: int, severity: str, tmp_path: Path) -> None:
    run = build(tmp_path, Training(epochs=1, steps_per_epoch=steps, fetch_ns=39 * MS))
    found = diagnose(run)
    (finding,) = found.findings
    assert finding.severity == severity
    assert found.verdict is not None
    told = [line for line in found.verdict.lines if line.startswith("Too few steps (7) to be sure")]
    assert bool(told) == (steps == 10)
    assert not [one for one in found.abstained if one.rule == loader.RULE]  # it was judged


def test_few_steps_are_never_none(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, Training(epochs=1, steps_per_epoch=10)))
    assert found.findings == []
    assert found.verdict is not None
    assert found.verdict.id == "few_steps"
    facts = step_facts(build(tmp_path / "again", Training(epochs=1, steps_per_epoch=10)), 0)
    assert facts is not None
    assert f"too few steps ({facts.n})" in [one.missing for one in found.abstained]


def test_no_steps_at_all(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, Training(epochs=0)))
    assert found.findings == []
    assert found.verdict is not None
    assert found.verdict.id == "no_steps"


def test_a_device_that_may_be_busy_is_no_proof(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, loader_bound(device="cuda:0")))
    assert found.findings == []
    assert found.verdict is not None
    assert found.verdict.id == "unknown"
    (doubt,) = [one for one in found.abstained if one.rule == "input.loader"]
    assert "cuda:0" in doubt.missing
    assert doubt.how_to_get


def test_each_rank_is_judged(tmp_path: Path) -> None:
    training = Training(ranks=3, epochs=1, steps_per_epoch=60, fetch_scale={1: 13.0})
    found = diagnose(build(tmp_path, training))
    (finding,) = [one for one in found.findings if one.id == "input.loader"]
    assert finding.where.ranks == [1]
    assert found.verdict is not None
    assert found.verdict.lines[0].startswith("Rank 1 (of 3) waits for data ")
    # The other two leave backward with it, so they wait for it; that is inferred and never leads.
    (late,) = [one for one in found.findings if one.id == "ranks.straggler"]
    assert (late.where.ranks, late.severity) == ([1], WARNING)


def test_the_first_batch_of_a_pass_is_another_cause(tmp_path: Path) -> None:
    """Workers that start slowly at every pass make its first wait long; that is not a slow loader."""
    run = build(tmp_path, Training(epochs=10, steps_per_epoch=10, spawn_ns=200 * MS, eval_batches=0))
    steps, facts = step_facts(run, 0), loader_facts(run, 0)
    assert steps is not None
    assert facts is not None
    assert steps.wait_share > 0.2
    assert facts.wait_share < 0.1
    found = diagnose(run)
    assert found.findings == []
    assert found.verdict is not None
    assert "the first batch of each pass" in found.verdict.lines[1]
    (doubt,) = [one for one in found.abstained if one.rule == loader.RULE]
    assert "persistent_workers=True" in doubt.how_to_get


def test_first_batches_beside_a_slow_loader_are_told_apart(tmp_path: Path) -> None:
    training = Training(epochs=8, steps_per_epoch=10, spawn_ns=200 * MS, fetch_ns=39 * MS, eval_batches=0)
    found = diagnose(build(tmp_path, training))
    (finding,) = found.findings
    assert finding.id == loader.RULE
    assert found.verdict is not None
    told = found.verdict.lines[2]
    assert re.fullmatch(r"\d\d % of the step are waits for the first batch of a pass, .*", told)


def with_late_batches(run: Run, every: int, late_ns: int, *, ready: bool) -> Run:
    """Return ``run`` with waits longer by ``late_ns`` in some rows, at the cost of the user's own code there.

    ``ready``: the batch was there all the while, and handing it over took the time; else it was made late.
    """
    table = copy.deepcopy(run.steps)
    late = np.arange(len(table)) % every == every - 1
    table.busy[sc.DATA_WAIT][late] += late_ns
    for phase in (sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER):
        table.first[phase][late] += late_ns
    if not ready:
        end = table.first[sc.DATA_WAIT] + table.busy[sc.DATA_WAIT] - 100 * US
        table.first[sc.DATA_COLLATE][late] = (end - table.busy[sc.DATA_COLLATE])[late]
    return replace(run, steps=table)


PATIENT = Training(epochs=1, steps_per_epoch=60, tail_ns=20 * MS, detail_level=40)
"""30.15 ms a step, of which 20 ms are the user's own code."""


def test_a_loader_that_is_late_now_and_then_is_a_warning(tmp_path: Path) -> None:
    found = diagnose(with_late_batches(build(tmp_path, PATIENT), 2, 18 * MS, ready=False))
    (finding,) = found.findings
    # Half of the steps would do; but the workers are busy a seventh of the time only.
    assert evidence(finding)["workers.busy.share"] == pytest.approx(4 / (2 * 30.15), abs=0.01)
    assert evidence(finding)["batch.unready.share"] == pytest.approx(1, abs=0.02)
    assert evidence(finding)["data.wait.share"] > 0.25
    assert finding.severity == WARNING
    found = diagnose(with_late_batches(build(tmp_path / "rarely", PATIENT), 5, 18 * MS, ready=False))
    (finding,) = found.findings
    assert finding.severity == WARNING
    assert found.verdict is not None
    assert ": the loader is late in 12 of 57 steps." in found.verdict.lines[0]
    assert "make the slow batches cheaper" in finding.fix[1]


def test_batches_that_are_ready_do_not_blame_the_loader(tmp_path: Path) -> None:
    found = diagnose(with_late_batches(build(tmp_path, PATIENT), 2, 18 * MS, ready=True))
    assert found.findings == []
    (doubt,) = [one for one in found.abstained if one.rule == loader.RULE]
    assert "in 100 % of the waiting the batch was ready" in doubt.missing
    assert "pin_memory" in doubt.how_to_get


def test_steps_of_several_batches_are_judged_by_workers_that_never_rest(tmp_path: Path) -> None:
    (finding,) = loader.judge(build(tmp_path, loader_bound(micro=3))).findings
    assert finding.severity == CRITICAL
    assert evidence(finding)["workers.busy.share"] >= 0.95
    assert "queue.empty.share" not in evidence(finding)
    # Three batches of 40 ms are made by two workers while 28.05 ms are computed: five would keep up.
    assert finding.fix[0].startswith("DataLoader(num_workers=5), now 2")
    rested = with_late_batches(build(tmp_path / "rested", replace(PATIENT, micro=3)), 2, 18 * MS, ready=False)
    found = loader.judge(rested)
    assert found.findings == []
    assert "several batches" in found.abstained[0].missing
