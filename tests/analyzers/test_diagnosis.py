# SPDX-License-Identifier: Apache-2.0
"""The rules against simulated trainings whose truth is known."""

from __future__ import annotations

import copy
import re
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
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.sources import Selection, open_source
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
    found = diagnose(build(tmp_path, loader_bound()))
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
    assert finding.gain.fraction == pytest.approx(signals["data.wait.share"], abs=1e-9)
    assert finding.gain.interval == (0.0, finding.gain.fraction)
    assert finding.gain.next_limit == sc.BACKWARD
    assert finding.fix[0].startswith(f"DataLoader(num_workers={ceil(40 * MS / COMPUTE_NS)}), now 2")
    assert "not recorded" in finding.fix[0]
    assert found.verdict is not None
    assert found.verdict.lines[0].startswith("The trainer waits for data 49 % of")
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
    assert finding.gain is not None
    # Sixteen workers at most are advised: 401 ms / 16 is still more than the 3.05 ms of computing.
    step = finding.evidence[0]
    assert finding.gain.next_limit == sc.DATA_FETCH
    assert finding.gain.fraction < step.value


def test_computing_sets_the_pace(tmp_path: Path) -> None:
    found = diagnose(build(tmp_path, Training(epochs=1, steps_per_epoch=60)))
    (finding,) = found.findings
    assert (finding.id, finding.severity, finding.gain) == ("compute.bound", INFO, None)
    step = COMPUTE_NS + 100 * US
    assert evidence(finding)["data.wait.share"] == pytest.approx(100 * US / step, abs=1e-3)
    assert evidence(finding)["backward.share"] == pytest.approx(6 * MS / step, abs=1e-3)
    assert found.verdict is not None
    assert found.verdict.lines[0] == "The computation sets the pace: backward takes 59 % of each step."


def test_python_between_the_phases_sets_the_pace(tmp_path: Path) -> None:
    found = compute.judge(build(tmp_path, Training(epochs=1, steps_per_epoch=60, tail_ns=30 * MS)))
    assert found.verdict is not None
    assert "Python between the phases takes 7" in found.verdict.lines[0]


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
    few = [one for one in found.abstained if one.missing.startswith("too few steps")]
    assert bool(few) == (steps == 10)


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
    assert [one.rule for one in found.abstained][-1] == "ranks.straggler"


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
    assert "in 100 % of it the batch was ready" in doubt.missing
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
