# SPDX-License-Identifier: Apache-2.0
"""`grademl check`: its expressions, what each measures, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.comparison import expressions
from grademl_otel.analyzers.comparison.expressions import (
    FUNCTIONS,
    NUMBER,
    POINTS,
    SHARE,
    TIME,
    WORD,
    parse,
)
from grademl_otel.analyzers.comparison.measures import MEASURES
from grademl_otel.analyzers.errors import GrademlError, UsageError
from tests.support.shop import requests
from tests.support.simulator.job import Job, Pauses
from tests.support.simulator.training import simulate
from tests.support.synthetic import MS, Training
from tests.support.synthetic import simulate as synthesize
from tests.support.training import ROOT

JOB = Job(seed=1, epochs=2, steps=60, collections=Pauses(10, 2 * MS), saves=Pauses(20, 30 * MS))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    simulate(JOB).write_store(folder)
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of several kinds, and other traces."""
    folder = tmp_path_factory.mktemp("places")
    simulate(replace(JOB, detail_level=3)).write_store(folder / "runs")
    simulate(replace(JOB, epochs=1, steps=12)).write_store(folder / "few")
    synthesize(Training(epochs=1, steps_per_epoch=40, raises_at=30)).write_store(folder / "raises")
    synthesize(Training(epochs=2, steps_per_epoch=30, fetch_ns=39 * MS)).write_store(folder / "loader")
    for name, count in (("shop", 100), ("quiet", 5)):
        (folder / f"{name}.json").write_text(json.dumps(requests("shop", count, failing=30, more="audit")))
    lost = requests("shop", 40)
    lost["data"][3]["spans"][1]["references"][0]["spanID"] = "00000000000000ff"
    (folder / "lost.json").write_text(json.dumps(lost))
    return folder


# --- Expressions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "function", "name", "operator", "kind", "number"),
    [
        ("data.wait<10%", None, "data.wait", "<", SHARE, 0.1),
        ("step_time < 200 ms", None, "step_time", "<", TIME, 200e6),
        ("p95(step_time)<=1.5s", "p95", "step_time", "<=", TIME, 1.5e9),
        ("p5( data.wait )>50us", "p5", "data.wait", ">", TIME, 50e3),
        ("steps>=1,000", None, "steps", ">=", NUMBER, 1000),
        ("steps>=1e3", None, "steps", ">=", NUMBER, 1000),
        ("ranks==8", None, "ranks", "=", NUMBER, 8),
        ("ended!=killed", None, "ended", "!=", WORD, 0),
        ("finding(input.loader)=none", "finding", "input.loader", "=", WORD, 0),
        ("path(data.fetch)<5pp", "path", "data.fetch", "<", POINTS, 0.05),
        ("samples_per_s<-3%", None, "samples_per_s", "<", SHARE, -0.03),
        ("p95(GET /cart)<2m", "p95", "GET /cart", "<", TIME, 120e9),
        ("GET /cart (client)<1h", None, "GET /cart (client)", "<", TIME, 3600e9),
        ('median("a<b>(c)")>1ns', "median", "a<b>(c)", ">", TIME, 1),
        ('"p95(x)"<1', None, "p95(x)", "<", NUMBER, 1),
        ("aten::add(Tensor)<1ms", None, "aten::add(Tensor)", "<", TIME, 1e6),
        ("epoch gap<.5s", None, "epoch gap", "<", TIME, 0.5e9),
    ],
)
def test_what_an_expression_says(
    text: str, function: str | None, name: str, operator: str, kind: str, number: float
) -> None:
    found = parse(text)
    assert (found.function, found.name, found.operator) == (function, name, operator)
    assert found.value is not None
    assert (found.value.kind, found.value.number) == (kind, pytest.approx(number))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step_time<", "the value is missing, as in step_time<200ms, at ^ in: step_time<^"),
        ("step_time<5x", "no unit 'x': one of %, pp, ns, us, ms, s, m, h, /s, at ^ in: step_time<5^x"),
        ("step_time<5%%", "no unit '%%'"),
        ("step_time<<5ms", "neither a number with a unit"),
        ("<5ms", "the name of what is measured is missing, at ^ in: ^<5ms"),
        ("p95(step_time<5ms", "the ')' of p95( is missing, at ^ in: p95(step_time^<5ms"),
        ("p95()<5ms", "the name of what is measured is missing, at ^ in: p95(^)<5ms"),
        ('"a<5ms', 'a quote that is not closed, at ^ in: ^"a<5ms'),
        ('a"b"<5ms', 'a quote within a name: put all of the name in quotes, at ^ in: a^"b"<5ms'),
        (
            "medan(step_time)<5ms",
            "no function 'medan'; did you mean median or mean?, at ^ in: ^medan(step_time)<5ms",
        ),
        ("x" * 2000, "1,000 characters at most"),
    ],
)
def test_a_wrong_expression_is_told_with_its_place(text: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert says in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    name = said = ""
    try:
        name = parse(text).name
    except UsageError as error:
        said = str(error)
    assert bool(name) != bool(said)
    assert "\n" not in said


@given(st.sampled_from(expressions.OPERATORS), st.integers(-5, 5), st.integers(-5, 5))
def test_operators_mean_what_they_say(operator: str, measured: int, limit: int) -> None:
    python = "==" if operator == "=" else operator
    assert parse(f"steps{operator}{limit}").holds(measured) == eval(f"{measured} {python} {limit}")


# --- What is measured --------------------------------------------------------------------------------------


def test_values_are_those_of_the_report(store: Path) -> None:
    report = analyzers.report(store)
    assert report.step is not None
    assert report.run is not None
    phases = {one.phase: one for one in report.step.phases if one.within is None}
    budget = {one.phase: one for one in report.lane_budget}
    tracer = report.completeness.tracer.cost_fraction
    expected: dict[str, Any] = {
        "step_time<1s": report.step.p50_ns,
        "p95(step_time)<1s": report.step.p95_ns,
        "mean(step_time)<1s": report.step.mean_ns,
        "backward<1s": phases["backward"].p50_ns,
        "backward<99%": pytest.approx(phases["backward"].share),
        "wall<1h": report.window.wall_ns,
        "budget(start-up)<1h": budget["start-up"].ns,
        "budget(start-up)<99%": pytest.approx(budget["start-up"].share),
        "steps=120": report.run.steps,
        "ranks=1": 1,
        "spans>0": report.completeness.spans.received,
        "orphans=0": 0,
        "dropped=0": 0,
        "tracer<99%": tracer,
        "complete": True,
        "ended=exit": "exit",
        "findings>=0": sum(finding.severity != "info" for finding in report.findings),
    }
    document = analyzers.check(store, list(expected))
    assert {one.expression: one.value for one in document.results} == expected
    assert document.status == "passed"


def test_garbage_collections_within_forward_are_told(store: Path) -> None:
    """2 ms in each tenth step of 13 ms: 1.5 % of the time, of which the median step has none."""
    share, mean, median = analyzers.check(store, ["gc<50%", "gc<1ms", "median(gc)<1ms"]).results
    assert isinstance(share.value, float)
    assert 0.01 < share.value < 0.02
    assert median.value == 0
    assert mean.measure == "mean(gc)"
    assert isinstance(mean.value, int)
    assert 0.15 * MS < mean.value < 0.25 * MS


def test_one_of_few_checkpoints(store: Path) -> None:
    save, p95 = analyzers.check(store, ["checkpoint.save<1s", "p95(checkpoint.save)<1s"]).results
    assert isinstance(save.value, int)
    assert (save.status, save.n, save.interval) == ("passed", 6, None)
    assert 20 * MS < save.value < 45 * MS
    assert p95.status == "passed"


@pytest.mark.parametrize(
    ("place", "texts", "statuses", "code"),
    [
        ("runs", ["step_time<1s", "complete", "data.wait<10%", "ended=exit", "steps>=100"], "ppppp", 0),
        ("runs", ["step_time<1s", "step_time<1us"], "pf", 1),
        ("runs", ["ranks=8", "ended!=exit", "log>1ms"], "fff", 1),
        ("runs", ["path(backward)>10%", "path(backward)<10%", "path(log)=0%"], "pfp", 1),
        ("runs", ["findings=0", "finding(input.loader)=none", "finding(compute.bound)=info"], "ppp", 0),
        ("loader", ["findings=0", "finding(input.loader)=none", "exposed_wait<10%"], "fff", 1),
        ("loader", ["finding(input.loader)=critical", "data.wait>30%"], "pp", 0),
        ("runs", ["checkpoint.load<1s", "step_time<1s"], "np", 5),
        ("runs", ["checkpoint.load<1s", "step_time<1us"], "nf", 1),  # a failure goes before
        ("few", ["step_time<1s", "data.wait<99%", "findings=0", "samples_per_s>1"], "nnnn", 5),
        ("few", ["steps>=10", "complete"], "pp", 0),
        ("raises", ["ended=exception", "ended=exit"], "pf", 1),
        (
            "shop.json",
            ["p95(GET /cart)<1s", "errors<1%", "traces>=100", "orphans=0", "duration<1s"],
            "pfppp",
            1,
        ),
        ("shop.json", ["path(audit)<50%", "errors(SELECT)<1%", "shop SELECT (client)<1s"], "ppp", 0),
        ("shop.json", ["complete"], "n", 5),
        ("quiet.json", ["duration<1s", "errors<99%", "traces=5"], "nnp", 5),
        ("lost.json", ["complete"], "f", 1),
        ("lost.json", ["orphans=1", "duration<1s"], "pp", 0),
    ],
)
def test_what_holds_and_how_it_ends(
    place: str,
    texts: list[str],
    statuses: str,
    code: int,
    places: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["check", str(places / place), *texts, "--json"]) == code
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["schema"] == "grademl.check/1"
    assert "".join(result["status"][0] for result in document["results"]) == statuses
    assert document["status"] == {0: "passed", 1: "failed", 5: "not known"}[code]
    for result in document["results"]:
        assert (result["value"] is None) == (result["status"] == "not known")
        assert result["status"] != "not known" or result["reason"]
    assert len(captured.err.splitlines()) == (code != 0)


@pytest.mark.parametrize(
    ("place", "text", "says"),
    [
        ("runs", "step_time<10%", "step_time is a time, as 200ms; not '10%'"),
        ("runs", "steps<10ms", "steps is a number, as 8; not '10ms'"),
        ("runs", "ended<exit", "words are compared by = and !="),
        ("runs", "ended=finished", "'finished' is none of exit, exception, killed, unknown"),
        ("runs", "finding(input.loader)=bad", "'bad' is none of none, info, warning, critical"),
        ("runs", "finding(input.loder)=none", "did you mean input.loader?"),
        ("runs", "data.wiat<10%", "no measure 'data.wiat' here; did you mean data.wait"),
        ("runs", "Backward<10%", "did you mean backward or forward?"),
        ("runs", "budget(startup)<10%", "did you mean start-up?"),
        ("runs", "path(forwrd)<10%", "did you mean forward?"),
        ("runs", "complete=1", "complete is nothing: `complete` stands alone; not '1'"),
        ("runs", "steps", "compare it with a number, as 8, as steps=8"),
        ("runs", "data.wait", "compare it with a time, as 200ms, as data.wait<200ms"),
        ("runs", "p95(steps)>1", "steps is one number, of which no p95 can be told"),
        ("runs", "errors(x)<1%", "that is told of traces; this is a run"),
        ("shop.json", "budget(x)<1%", "that is told of runs"),
        ("shop.json", "GET /crt<1s", "did you mean GET /cart"),
        ("shop.json", "data.wait<1s", "no measure 'data.wait' here"),
    ],
)
def test_what_cannot_be_asked(place: str, text: str, says: str, places: Path) -> None:
    with pytest.raises(UsageError) as error:
        analyzers.check(places / place, [text])
    assert says in str(error.value)


def test_a_limit_within_the_interval_is_told(places: Path) -> None:
    report = analyzers.report(places / "runs")
    assert report.step is not None
    (result,) = analyzers.check(places / "runs", [f"step_time<{report.step.p50_ns + 10}ns"]).results
    assert result.status == "passed"
    assert result.interval is not None
    assert result.reason == "the limit lies within the interval: another run may be on its other side"


def test_a_median_of_few_is_exact_and_has_no_interval(places: Path) -> None:
    """p99 of 114 steps is one of them."""
    (result,) = analyzers.check(places / "runs", ["p99(step_time)<1s"]).results
    assert (result.status, result.interval) == ("passed", None)


# --- The command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "what to check? give expressions"),
        (["runs"], 2, "what to check of runs?"),
        (["runs", "step_time<"], 2, "the value is missing"),
        (["nowhere", "complete"], 3, "no such file or folder"),
        (["compelte"], 2, "compelte is no expression; did you mean complete?"),
        (["runs", "complete", "--attempt", "all"], 2, "--attempt all"),
        (["runs", "complete", "--run", "ffff"], 5, "no span in it matches"),
    ],
)
def test_every_failure_is_one_line_and_a_code(
    arguments: list[str],
    code: int,
    says: str,
    places: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(places)
    assert run(["check", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1


def test_the_default_source(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADEML_SOURCE", str(store))
    assert run(["check", "complete"]) == 0
    assert run(["check", "steps=120", "complete"]) == 0
    assert "passed  steps=120 · is 120" in capsys.readouterr().out


def test_every_form_says_the_same(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["check", str(store), "step_time<1s", "ranks=8", "checkpoint.load<1s"]
    run([*texts, "--json"])
    document = json.loads(capsys.readouterr().out)
    run([*texts, "-f", "jsonl"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == document["results"]
    run([*texts, "-f", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["status"] for row in rows] == ["passed", "failed", "not known"]
    run([*texts, "-f", "markdown"])
    assert "**failed**" in capsys.readouterr().out
    run([*texts, "-f", "junit"])
    suite = ElementTree.fromstring(capsys.readouterr().out)
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "3", "failures": "1", "errors": "1",
    }  # fmt: skip
    run(texts)
    out = capsys.readouterr().out
    assert re.search(r"^passed     step_time<1s · is 1\d\.\d ms \(", out, re.MULTILINE)
    assert re.search(r"^failed     ranks=8 · is 1$", out, re.MULTILINE)
    assert re.search(r"^not known  checkpoint.load<1s · there is no checkpoint.load$", out, re.MULTILINE)


def test_strict(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(places / "lost.json"), "traces=40", "--strict"]) == 4
    assert "INCOMPLETE" in capsys.readouterr().out
    assert run(["check", str(places / "lost.json"), "traces=41", "--strict"]) == 1
    capsys.readouterr()


def test_python_raises_what_the_command_prints(store: Path) -> None:
    with pytest.raises(GrademlError, match="what to check"):
        analyzers.check(store)
    document = analyzers.check(store, ["complete", "ranks=8"])
    assert document.status == "failed"
    assert list(document.to_pandas()["status"]) == ["passed", "failed"]


def test_the_document_has_every_measure() -> None:
    """docs/comparing.md and the table that is the source of it."""
    text = (ROOT / "docs" / "comparing.md").read_text()
    for measure in MEASURES:
        row = f"| `{measure.name}` | {measure.of} | {measure.meaning} | {measure.needs} |"
        assert row in text
    for function in FUNCTIONS:
        assert f"`{function}" in text
