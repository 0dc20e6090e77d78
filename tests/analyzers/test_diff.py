# SPDX-License-Identifier: Apache-2.0
"""`grademl diff`: what differs between two runs, what does not, and what must not be compared."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.comparison.differences import differences
from grademl_otel.analyzers.comparison.document import DiffDocument, Difference
from grademl_otel.analyzers.comparison.expressions import parse
from grademl_otel.analyzers.comparison.judging import Pair
from grademl_otel.analyzers.comparison.measures import FRACTION, Quantity
from grademl_otel.analyzers.comparison.of_run import RunMeasures
from grademl_otel.analyzers.comparison.resampling import MEAN, Sample
from grademl_otel.analyzers.comparison.words import quantity
from grademl_otel.analyzers.errors import GrademlError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.coverage import Coverage
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import Subject, read_subject
from tests.support.build import R, run_from
from tests.support.shop import requests
from tests.support.simulator.job import Job, Slow
from tests.support.simulator.training import run_id, simulate
from tests.support.synthetic import MS, S, Training
from tests.support.synthetic import simulate as synthesize
from tests.support.training import ROOT, clean_environ

JOB = Job(seed=1, epochs=2, steps=60, detail_level=3)
JOBS: Mapping[str, Job] = {
    "base": JOB,
    "again": replace(JOB, seed=2, name="again"),
    "backward": replace(
        JOB, seed=3, name="backward", slow=(Slow("backward", 1.2),), start=JOB.start + 3600 * S
    ),
    "loader": replace(JOB, seed=4, name="loader", fetch=60 * MS),
    "workers": replace(JOB, seed=5, name="workers", workers=6, prefetch=3),
    "ranks": replace(JOB, seed=6, name="ranks", ranks=2),
    "longer": replace(JOB, seed=7, name="longer", epochs=4),
    "short": replace(JOB, seed=8, name="short", epochs=1, steps=12),
    "device2": replace(JOB, seed=10, name="device2", device=True),
    "device": replace(JOB, seed=9, name="device", device=True),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each job, and `both` with two of them."""
    folder = tmp_path_factory.mktemp("stores")
    for name, job in JOBS.items():
        simulate(job).write_store(folder / name)
    for name in ("base", "backward"):
        simulate(JOBS[name]).write_store(folder / "both")
    return folder


def diff(stores: Path, a: str, b: str, **options: Any) -> DiffDocument:
    return analyzers.diff(stores / a, stores / b, **options)


def of(document: DiffDocument, measure: str) -> Difference:
    (found,) = (one for one in document.differences if one.measure == measure)
    return found


def verdicts(document: DiffDocument) -> dict[str, str]:
    return {one.measure: one.verdict for one in document.differences}


# --- What differs ------------------------------------------------------------------------------------------


def test_two_runs_of_one_program_do_not_differ(stores: Path) -> None:
    document = diff(stores, "base", "again")
    assert not {"more", "less", "only in A", "only in B"} & set(verdicts(document).values())
    assert document.verdict[0].startswith("No difference")
    assert document.not_the_same == []


def test_a_slower_phase_is_named_and_nothing_else(stores: Path) -> None:
    document = diff(stores, "base", "backward")
    found = verdicts(document)
    assert found["step_time"] == found["backward"] == "more"
    assert found["samples_per_s"] == "less"
    assert {found[phase] for phase in ("forward", "optimizer")} <= {"noise", "same"}
    backward = of(document, "backward")
    assert backward.relative_interval is not None
    assert backward.relative_interval[0] < 0.2 < backward.relative_interval[1]
    assert document.verdict[0].startswith("B is ")
    assert "slower a step" in document.verdict[0]
    assert document.verdict[1].startswith("What makes the difference: backward 7.")
    assert "forward" not in " ".join(document.verdict)


def test_the_other_way_round_is_the_other_way_round(stores: Path) -> None:
    there, back = diff(stores, "base", "backward"), diff(stores, "backward", "base")
    assert verdicts(back)["step_time"] == "less"
    assert "faster a step" in back.verdict[0]
    for one in there.differences:
        other = of(back, one.measure)
        assert (one.a, one.b) == (other.b, other.a)


def test_steps_that_take_turns_are_compared_by_their_means(stores: Path) -> None:
    """Two slow workers: every other step waits. The median is one of the two lengths, by chance."""
    document = diff(stores, "base", "loader")
    step, wait = of(document, "mean(step_time)"), of(document, "mean(data.wait)")
    assert (step.verdict, wait.verdict) == ("more", "more")
    assert step.relative_interval is not None
    assert step.relative is not None
    # A batch every 61 / 2 ms against steps of 13 ms.
    assert step.relative_interval[0] < 30.5 / 13.15 - 1 < step.relative_interval[1]
    assert "data.wait" in document.verdict[1]


def test_time_of_few_steps_is_not_hidden() -> None:
    """Every fourth step waits, three times as long in B: no median knows of it."""
    sides = [measures(waits=waits) for waits in (20 * MS, 60 * MS)]
    document = compare(*sides, "step_time>20%", "data.wait>20%", "median(step_time)>20%")
    step, wait = of(document, "mean(step_time)"), of(document, "mean(data.wait)")
    assert (step.verdict, wait.verdict) == ("more", "more")
    assert (step.difference, wait.difference) == (10 * MS, 10 * MS)
    assert [result.status for result in document.results] == ["failed", "failed", "passed"]
    assert document.verdict[0].endswith(" in B on average.")
    whole = [one.a for one in document.differences if one.kind == "phase"]
    assert step.a is not None
    assert sum(ns for ns in whole if ns is not None) == pytest.approx(step.a, abs=2)


def test_samples_a_second_are_those_of_all_time(stores: Path) -> None:
    """Steps in turn of 17 and of 384 ms: 64 samples in 401 ms, and not the mean or median of two rates."""
    document = diff(stores, "base", "loader")
    rate, step = of(document, "samples_per_s"), of(document, "mean(step_time)")
    assert rate.verdict == "less"
    sample = RunMeasures(read_subject(Query.of(str(stores / "loader")))).samples
    assert sample is not None
    assert step.b is not None
    assert rate.b == pytest.approx(sample * 1e9 / step.b, rel=1e-6)
    (checked,) = analyzers.check(stores / "loader", ["samples_per_s>1"]).results
    assert checked.value == rate.b


def test_steps_of_other_sizes_are_told_by_their_samples(stores: Path) -> None:
    """A step of twice as many samples that takes as long is as slow a step, and twice as fast."""
    same, twice = (RunMeasures(read_subject(Query.of(str(stores / name)))) for name in ("base", "again"))
    assert same.samples is not None
    assert "samples" not in " ".join(compare(same, twice).verdict)
    twice.samples = 2 * same.samples
    line = compare(same, twice).verdict[-1]
    assert line.startswith(f"A step has {same.samples} samples in A and {twice.samples} in B: samples_per_s ")
    rate = of(compare(same, twice), "samples_per_s")
    assert rate.relative is not None
    assert 0.9 < rate.relative < 1.1


def test_conditions_that_are_not_the_same_are_told(stores: Path) -> None:
    told = {one.what: (one.a, one.b) for one in diff(stores, "base", "workers").not_the_same}
    assert told == {"workers": ("2", "6"), "prefetch": ("2", "3")}
    text = diff(stores, "base", "workers").to_text()
    assert "not the same  workers 2 -> 6, prefetch 2 -> 3" in text


def test_by_type(stores: Path) -> None:
    document = diff(stores, "base", "backward", by="type")
    assert of(document, "/epoch/step/backward").verdict == "more"
    assert of(document, "/epoch/step/forward").verdict in ("noise", "same")
    only = diff(stores, "base", "ranks", by="type")
    assert [one.measure for one in only.differences if one.verdict == "only in B"]
    assert not [one.measure for one in only.differences if one.verdict == "only in A"]


def test_a_part_of_a_run_against_another_part(stores: Path) -> None:
    document = analyzers.diff(
        stores / "base",
        options_a={"steps": analyzers.StepRange(0, 60)},
        options_b={"steps": analyzers.StepRange(60, 120)},
    )
    assert document.b.warmup_excluded == 0
    assert verdicts(document)["step_time"] in ("noise", "same")


def test_numbers_are_those_of_the_report(stores: Path) -> None:
    report, document = analyzers.report(stores / "base"), diff(stores, "base", "again")
    assert report.step is not None
    assert of(document, "step_time").a == report.step.p50_ns
    assert of(document, "p95(step_time)").a == report.step.p95_ns
    phases = {phase.phase: phase.p50_ns for phase in report.step.phases if phase.within is None}
    for phase in ("forward", "backward", "optimizer"):
        assert of(document, phase).a == phases[phase]


def test_a_real_difference_of_recorded_runs(tmp_path: Path) -> None:
    """The same program with a longer forward, as the recorder sees it."""
    program = tmp_path / "trains.py"
    program.write_text(
        "import sys, time\nfrom tests.support import plain_training as p\np.session.install()\n"
        "for _ in range(40):\n    p.step(lambda: time.sleep(float(sys.argv[1])))\np.session.end()\n"
    )
    for name, seconds in (("a", "0"), ("b", "0.03")):
        environ = clean_environ(tmp_path, {"GRADEML_STORE": str(tmp_path / name)})
        environ |= {"GRADEML_EXPORTER": "file", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, str(program), seconds],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr.decode()
    document = analyzers.diff(tmp_path / "a", tmp_path / "b")
    forward = next(one for one in document.differences if one.measure in ("forward", "mean(forward)"))
    assert forward.verdict in ("more", "told")  # told, where a busy machine slows many steps in a row
    assert forward.difference is not None
    assert forward.difference >= 15 * MS
    assert document.not_the_same == []


# --- Honest, or refused ------------------------------------------------------------------------------------


def test_totals_of_runs_of_other_lengths_are_refused(stores: Path) -> None:
    document = diff(stores, "base", "longer")
    wall = of(document, "wall")
    assert (wall.verdict, wall.difference) == ("refused", None)
    assert wall.reason == "the runs have 120 and 240 steps: totals say nothing of each other"
    assert of(document, "budget(teardown)").verdict == "refused"
    assert of(document, "budget(start-up)").verdict == "told"
    assert verdicts(document)["step_time"] in ("noise", "same")


def test_what_depends_on_the_number_of_ranks_is_refused(stores: Path) -> None:
    document = diff(stores, "base", "ranks")
    for measure in ("samples_per_s", "ranks.wait", "collective.transfer", "wall", "path(backward)"):
        assert of(document, measure).verdict == "refused"
        assert of(document, measure).reason == "it depends on the number of ranks (1 and 2)"
    assert of(document, "step_time").interval is not None
    assert [(pair.rank, pair.n_a, pair.n_b) for pair in document.ranks] == [(0, 114, 114), (1, 0, 114)]
    assert document.ranks[1].a is None


def test_too_few_steps(stores: Path) -> None:
    document = diff(stores, "base", "short")
    step = of(document, "step_time")
    assert (step.verdict, step.interval, step.reason) == ("told", None, "B: too few steps (9)")
    assert document.verdict == ["No verdict on the step: B: too few steps (9)."]


def test_host_times_are_not_compared_with_work(stores: Path) -> None:
    document = diff(stores, "base", "device")
    assert of(document, "forward").verdict == "refused"
    assert "enqueue" in str(of(document, "forward").reason)
    assert diff(stores, "device", "device2").notes[0].startswith("phases are how long the host took")
    assert ("device", "cpu", "cuda") in {(one.what, one.a, one.b) for one in document.not_the_same}


def measures(
    level: int = 0, scale: float = 1.0, steps: int = 80, waits: int = 2 * MS, **changes: Any
) -> RunMeasures:
    rows, now, dice = [], 0, Random(steps)
    for step in range(steps):
        wait, forward = waits if step % 4 == 3 else 2 * MS, round(dice.uniform(7, 9) * MS * scale)
        phases = {sc.DATA_WAIT: (now, wait, 1)}
        if level < 2:
            phases[sc.FORWARD] = (now + wait, forward, 1)
        rows.append(R(now, now + wait + forward, step=step, level=level, phases=phases))
        now += wait + forward
    made = replace(run_from(rows, 0, now), **changes)
    return RunMeasures(Subject(Telemetry("made", made.spans, Ledger()), made, Query()))


def compare(a: RunMeasures, b: RunMeasures, *limits: str) -> DiffDocument:
    return differences(a, b, "phase", [parse(limit) for limit in limits], 0.01)


def test_phases_that_were_not_measured_on_one_side() -> None:
    document = compare(measures(), measures(level=2), "forward>1ms")
    forward = of(document, "forward")
    assert (forward.verdict, forward.b, forward.difference) == ("refused", None, None)
    assert forward.reason == "B: recorded at level 2"
    assert of(document, "step_time").interval is not None
    assert of(document, "data.wait").interval is not None
    assert document.results[0].status == "not known"
    assert ("recording level", "0", "2") in {(one.what, one.a, one.b) for one in document.not_the_same}


def test_rows_that_are_means_of_steps_have_no_median() -> None:
    names = ("step_time", "mean(step_time)", "median(step_time)")
    document = compare(measures(), measures(level=3), *(f"{step}>5%" for step in names))
    step = of(document, "mean(step_time)")
    assert step.interval is not None
    assert "on average" in document.verdict[0]
    tail = of(document, "p95(step_time)")
    assert tail.verdict == "refused"
    assert tail.reason == "B: recorded at level 3; a row is the mean of several steps"
    assert [result.status for result in document.results] == ["passed", "passed", "not known"]


def test_a_run_of_which_steps_are_missing_tells_no_numbers() -> None:
    whole = measures()
    broken = replace(
        whole.run.completeness,
        coverage={0: Coverage(0, expected=100, missing=20, trained_ns=10**9)},
        verdict="incomplete",
        reasons=["20 of 100 steps are missing"],
    )
    document = compare(whole, measures(completeness=broken))
    assert of(document, "step_time").verdict == "refused"
    assert document.verdict[0].startswith("No verdict on the step: B: ")
    assert document.incomplete
    assert "data  INCOMPLETE" in document.to_text()
    assert "- 20 of 100 steps are missing" in document.to_text()


def test_a_phase_that_one_side_lacks() -> None:
    document = compare(measures(level=0), measures(level=0))
    assert "log" not in verdicts(document)
    rows = [
        R(n * 10 * MS, n * 10 * MS + 9 * MS, step=n, phases={sc.LOG: (n * 10 * MS, 5 * MS, 1)})
        for n in range(60)
    ]
    made = run_from(rows, 0, 600 * MS)
    other = RunMeasures(Subject(Telemetry("made", made.spans, Ledger()), made, Query()))
    found = verdicts(compare(measures(), other))
    assert found["log"] == "only in B"
    assert found["forward"] == "only in A"


# --- Limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sides", "limits", "code", "says"),
    [
        (("base", "backward"), ["step_time>5%"], 1, "1 of 1 limits are exceeded: step_time>5%"),
        (("base", "backward"), ["step_time>50%", "samples_per_s<-3%"], 1, "samples_per_s<-3%"),
        (("base", "backward"), ["step_time>50%", "backward>5ms", "path(backward)>30pp"], 0, ""),
        (("base", "backward"), ["forward>0%"], 0, ""),  # within noise
        (("base", "backward"), ["p95(step_time)>10%", "mean(backward)>10%"], 1, "p95(step_time)>10%"),
        (("base", "again"), ["step_time>0us", "step_time<0us"], 0, ""),
        (("base", "longer"), ["steps>100", "wall>50%"], 1, "steps>100"),
        (("base", "longer"), ["wall>50%"], 5, "wall>50%: the runs have 120 and 240 steps"),
        (("base", "again"), ["budget(start-up)>50%"], 5, "it was measured once"),
        (("base", "short"), ["step_time>5%"], 5, "too few steps (9)"),
        (("base", "short"), ["step_time>5%", "steps<0"], 1, "steps<0"),
        (("base", "ranks"), ["samples_per_s<-3%"], 5, "depends on the number of ranks"),
        (("base", "again"), ["checkpoint.save>5%"], 5, "there is no checkpoint.save"),
        (("base", "again"), ["log>5%"], 5, "A has none of it"),
        (("base", "again"), ["log>1ms"], 0, ""),
    ],
)
def test_limits_and_exit_codes(
    sides: tuple[str, str],
    limits: list[str],
    code: int,
    says: str,
    stores: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [argument for limit in limits for argument in ("--fail-on", limit)]
    assert run(["diff", *(str(stores / side) for side in sides), *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out.startswith("DIFF  ")
    assert all(limit in captured.out for limit in limits)
    assert says in captured.err
    assert len(captured.err.splitlines()) == (1 if says else 0)


def test_a_limit_within_the_interval_is_told(stores: Path) -> None:
    (result,) = diff(stores, "base", "again", fail_on=["step_time>0.1%"]).results
    assert result.status == "passed"
    assert result.reason is not None


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["base", "base"], 2, "A and B are the same"),
        (["base"], 5, "one run in it; name two SOURCEs"),
        (["base", "again", "short"], 2, "3 SOURCEs"),
        (["base", "again", "--run", "1", "--run", "2", "--run", "3"], 2, "--run: given 3 times"),
        (["base#latest", "base#latest"], 2, "A and B are the same"),
        (["base#latest", "again", "--run", "1"], 2, "names a run, and so does --run"),
        (["base", "again", "--fail-on", "step_time"], 2, "a difference needs a limit, as step_time>5%"),
        (["base", "again", "--fail-on", "step_time=5%"], 2, "a difference needs a limit"),
        (["base", "again", "--fail-on", "step_tme>5%"], 2, "did you mean step_time or steps?"),
        (["base", "again", "--fail-on", "step_time>5pp"], 2, "as 5%, or a time, as 200ms; not '5pp'"),
        (["base", "again", "--fail-on", "path(backward)>5ms"], 2, "or points, as 5pp"),
        (["base", "again", "--fail-on", "step_time>"], 2, "the value is missing"),
        (["base", "again", "--fail-on", "complete>1"], 2, "`grademl check` takes it"),
        (["base", "again", "--fail-on", "finding(input.loader)>1"], 2, "`grademl check` takes findings"),
        (["base", "again", "--fail-on", "errors(x)>1%"], 2, "`grademl check` takes findings"),
        (["base", "again", "-f", "junit"], 2, "--fail-on"),
        (["base", "again", "--threshold", "150%"], 2, "not a share"),
        (["base", "again", "--by", "rank"], 2, "'rank' is not one of"),
        (["base", "again", "--attempt", "all"], 2, "--attempt all"),
        (["base", "nothing"], 3, "no such file or folder"),
        (["base", "traces.json"], 2, "one of the two is a run"),
    ],
)
def test_every_failure_is_one_line_and_a_code(
    arguments: list[str],
    code: int,
    says: str,
    stores: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (stores / "traces.json").write_text(json.dumps(requests("shop", 3)))
    monkeypatch.chdir(stores)
    assert run(["diff", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("width", [40, 60, 110])
def test_no_number_is_broken_on_a_narrow_terminal(stores: Path, width: int) -> None:
    document = diff(stores, "base", "backward")
    lines = analyzers.render(document, width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    shown = [one for one in document.differences if one.verdict != "not compared"]
    assert shown
    for one in shown:
        numbers = quantity(one.a, one.unit), quantity(one.b, one.unit)
        assert any(all(number in line for number in numbers) for line in lines), one.measure


# --- Which two ---------------------------------------------------------------------------------------------


def test_two_runs_of_one_store(stores: Path) -> None:
    base, backward = run_id(JOBS["base"]), run_id(JOBS["backward"])
    named = analyzers.diff(f"{stores / 'both'}#{base[:6]}", f"{stores / 'both'}#{backward[:6]}")
    assert (named.a.source.run, named.b.source.run) == (base, backward)
    latest = analyzers.diff(stores / "both")  # the latest, and the one before
    assert (latest.a.source.run, latest.b.source.run) == (base, backward)
    assert latest.differences == named.differences


def test_options_given_twice(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, backward = run_id(JOBS["base"]), run_id(JOBS["backward"])
    assert run(["diff", str(stores / "both"), "--run", backward, "--run", base, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["a"]["source"]["run"], found["b"]["source"]["run"]) == (backward, base)
    both = ["diff", str(stores / "both"), "--run", base, "--steps", ":60", "--steps", "60:", "--json"]
    assert run(both) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["a"]["steps"], found["b"]["steps"]) == (60, 60)
    assert found["a"]["source"]["run"] == found["b"]["source"]["run"] == base


def test_a_file_that_is_called_like_a_run_of_a_source(stores: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces#1"
    file.symlink_to(next((stores / "again").iterdir()))
    assert diff(stores, "base", str(file)).b.source.run == run_id(JOBS["again"])


def test_strict(tmp_path: Path, stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthesize(Training(ranks=2, epochs=1, steps_per_epoch=40)).write_store(tmp_path)
    traces = path if path.is_file() else next(path.rglob("traces.jsonl"))
    lines = traces.read_bytes().splitlines(keepends=True)
    of_rank_1 = b'"grademl.rank","value":{"intValue":"1"}'
    kept = [line for line in lines if of_rank_1 not in line.replace(b" ", b"")]
    assert 0 < len(kept) < len(lines)
    traces.write_bytes(b"".join(kept))
    both = ["diff", str(stores / "base"), str(tmp_path)]
    assert run(both) == 0
    assert "INCOMPLETE" in capsys.readouterr().out
    assert run([*both, "--strict"]) == 4
    assert capsys.readouterr().out.startswith("DIFF")


# --- Traces of others --------------------------------------------------------------------------------------


@pytest.fixture
def shops(tmp_path: Path) -> Path:
    for name, document in {
        "before": requests("shop", 100),
        "same": requests("shop", 80),
        "slower": requests("shop", 100, slower=1.5, failing=30, more="audit"),
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def test_traces_are_compared_by_operation(shops: Path) -> None:
    document = analyzers.diff(shops / "before.json", shops / "slower.json")
    found = verdicts(document)
    assert found["duration"] == found["shop SELECT (client)"] == found["shop GET /cart (server)"] == "more"
    assert found["shop audit (client)"] == "only in B"
    assert found["errors"] == "only in B"
    select = of(document, "shop SELECT (client)")
    assert select.relative_interval is not None
    assert select.relative_interval[0] <= 0.5 <= select.relative_interval[1]
    assert "slower a trace" in document.verdict[0]
    alike = verdicts(analyzers.diff(shops / "before.json", shops / "same.json"))
    assert not {"more", "less", "only in A", "only in B"} & set(alike.values())


def test_what_waits_for_a_slower_operation_does_not_make_the_difference(shops: Path, tmp_path: Path) -> None:
    (tmp_path / "select.json").write_text(json.dumps(requests("shop", 100, slower=2.0)))
    document = analyzers.diff(shops / "before.json", tmp_path / "select.json")
    assert verdicts(document)["shop GET /cart (server)"] == "more"
    assert verdicts(document)["own(shop GET /cart (server))"] in ("same", "noise")
    own = of(document, "own(shop SELECT (client))")
    assert own.a is not None
    assert own.difference == pytest.approx(own.a, rel=0.01)
    assert document.verdict[1].startswith("What makes the difference: shop SELECT (client) itself ")
    assert "GET" not in document.verdict[1]
    # What a trace spends adds up.
    spent = sum(one.a for one in document.differences if one.kind == "own" and one.a is not None)
    mean = analyzers.check(shops / "before.json", ["mean(duration)>1ms"]).results[0].value
    assert spent == pytest.approx(mean)


@pytest.mark.parametrize(("kind", "verdict"), [("path", "less"), ("own", "less"), ("phase", "only in A")])
def test_what_left_the_path_may_be_there_all_the_same(kind: str, verdict: str) -> None:
    some, none = np.tile([0.4, 0.5, 0.6], 20), np.zeros(60)
    a, b = (Quantity(FRACTION, Sample(values, np.arange(60), 60), MEAN) for values in (some, none))
    assert Pair("x", kind, a, b).difference(1).verdict == verdict


def test_limits_of_traces(shops: Path) -> None:
    limits = ["p95(GET /cart)>10%", "SELECT>1s", "errors>5pp", "errors(SELECT)>5pp", "audit>1ms", "traces>5"]
    document = analyzers.diff(shops / "before.json", shops / "slower.json", fail_on=limits)
    statuses = [result.status for result in document.results]
    assert statuses == ["failed", "passed", "failed", "passed", "not known", "passed"]
    with pytest.raises(GrademlError, match="no measure 'GET /crt' here; did you mean"):
        analyzers.diff(shops / "before.json", shops / "slower.json", fail_on=["GET /crt>1%"])


def test_traces_by_type(shops: Path) -> None:
    document = analyzers.diff(shops / "before.json", shops / "slower.json", by="type")
    only = [one.measure for one in document.differences if one.verdict == "only in B"]
    assert len(only) == 1
    assert "audit" in only[0]


# --- Forms -------------------------------------------------------------------------------------------------


def written(capsys: pytest.CaptureFixture[str], stores: Path, *arguments: str) -> str:
    run(["diff", str(stores / "base"), str(stores / "backward"), "--fail-on", "step_time>5%", *arguments])
    return capsys.readouterr().out


def test_every_form_says_the_same(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(written(capsys, stores, "--json"))
    assert document["schema"] == "grademl.diff/1"
    assert document["differences"][0]["measure"] == "step_time"
    lines = written(capsys, stores, "-f", "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == document["differences"]
    rows = list(csv.DictReader(io.StringIO(written(capsys, stores, "-f", "csv"))))
    assert [row["measure"] for row in rows] == [one["measure"] for one in document["differences"]]
    assert int(rows[0]["interval_low"]) == document["differences"][0]["interval"][0]
    markdown = written(capsys, stores, "-f", "markdown")
    assert markdown.startswith("**B is ")
    assert "| step\\_time | " in markdown
    suite = ElementTree.fromstring(written(capsys, stores, "-f", "junit"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    text = written(capsys, stores)
    assert text.startswith("DIFF  B is ")
    for one in document["differences"]:
        assert one["measure"] in text


def test_hostile_names_stay_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "=cmd|' /C calc'!A0</testsuite>\x1b[31m\u202e**b**"
    for name, slower in (("a", 1.0), ("b", 1.5)):
        document = requests("shop", 40, slower)
        text = json.dumps(document).replace('"SELECT"', json.dumps(evil))
        (tmp_path / f"{name}.json").write_text(text)
    sides = ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--fail-on", f'"{evil}">1%']
    for form in ("text", "markdown", "csv", "junit", "json", "jsonl"):
        assert run([*sides, "-f", form]) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert run([*sides, "-f", "junit"]) == 1
    suite = ElementTree.fromstring(capsys.readouterr().out)
    assert [case.tag for case in suite] == ["testcase"]


def test_python_has_tables(stores: Path) -> None:
    document = diff(stores, "base", "backward", fail_on=["step_time>5%"])
    frame = document.to_pandas()
    assert list(frame["measure"]) == [one.measure for one in document.differences]
    assert list(document.to_pandas("results")["status"]) == ["failed"]
    assert "<" in document._repr_html_()


def test_help_loads_nothing_of_the_analysis() -> None:
    code = "import sys; from grademl_otel.analyzers.cli.app import run; run(['diff', '--help'])"
    code += "; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.splitlines()[-1] == "False", done.stderr
