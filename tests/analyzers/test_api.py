# SPDX-License-Identifier: Apache-2.0
"""The Python API: what docs/python.md says works, and answers are the same as those of the commands."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

import networkx as nx
import pandas as pd
import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers import api, shown
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.cli.commands import grademl
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.graph import drawn
from grademl_otel.analyzers.shown import Shown
from tests.support.jaeger_cases import jaeger_document, many_traces
from tests.support.synthetic import MS, Training, simulate

ROOT = Path(__file__).parents[2]
RUNS = ("3f2a" + "0" * 28, "91bc" + "0" * 28)
NO_ANSWER = {"completion", "help"}


@dataclass(frozen=True)
class Idle:
    kind: str
    ns: int | None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs in grademl-runs, and one trace of others."""
    folder = tmp_path_factory.mktemp("api")
    for number, run_id in enumerate(RUNS):
        start = Training.start + number * 10**12
        training = Training(
            run_id=run_id, ranks=2, epochs=1, steps_per_epoch=40, fetch_ns=39 * MS, start=start, buckets=2
        )
        simulate(training).write_store(folder / "grademl-runs")
    (folder / "trace.json").write_text(json.dumps(jaeger_document("A[0,100) B<A[10,60) C<A[70,90)")))
    (folder / "many.json").write_text(json.dumps(many_traces(["A[0,10) B<A[1,9)"] * 3)))
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def test_what_the_page_shows_works(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grademl-runs").symlink_to(folder / "grademl-runs")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert "VERDICT" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_example_program_works(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "analyze_run.py", folder / "grademl-runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "data: complete\n" in done.stdout
    assert re.search(r"^data\.wait +\d+\.\d\d ms", done.stdout, re.MULTILINE)
    assert len(re.findall(r"^step \d+: ", done.stdout, re.MULTILINE)) == 3
    assert (tmp_path / "report.html").exists()


def test_each_command_is_a_function_that_is_told_of() -> None:
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    for name in set(grademl.commands) - NO_ANSWER:
        function = getattr(analyzers, name.replace("-", "_"))
        assert isinstance(function, types.FunctionType), name  # and no module of that name
        assert f"`{name.replace('-', '_')}(" in text
    # Whatever is loaded meanwhile.
    for name in analyzers.__all__:
        assert not isinstance(getattr(analyzers, name), types.ModuleType)


def test_each_function_is_typed_and_returns_an_answer() -> None:
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    for name, function in inspect.getmembers(api, inspect.isfunction):
        if name.startswith("_") or function.__module__ != api.__name__:
            continue
        assert function.__doc__
        parameters = inspect.signature(function).parameters
        assert all(one.annotation is not inspect.Parameter.empty for one in parameters.values()), name
        returned = str(inspect.signature(function).return_annotation)
        assert returned in ("nx.DiGraph", "Database") or f"`{returned}`" in text, name


def test_answers_say_what_commands_say(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, Shown] = {
        "report": analyzers.report(),
        "runs": analyzers.runs(),
        "path": analyzers.critical_path(),
        "ranks": analyzers.ranks(),
    }
    for name, answer in answers.items():
        assert run([name]) == 0
        assert capsys.readouterr().out == answer.to_text()
        assert str(answer) == answer.to_text().rstrip("\n")
        assert run([name, "--json"]) == 0
        assert capsys.readouterr().out == answer.to_json() + "\n"
        assert json.loads(answer.to_json(indent=False)) == answer.to_dict()


# --- Tables ------------------------------------------------------------------------------------------------


def test_tables_are_exact_and_what_is_not_known_is_na(here: Path) -> None:
    path = analyzers.critical_path()
    assert path.tables[:2] == ["summary", "sections"]
    frame = path.to_pandas()
    assert frame["path_ns"].sum() == path.path.total_ns
    assert frame["key"].tolist() == [entry.key for entry in path.summary]
    assert {name: str(frame[name].dtype) for name in ("path_ns", "path_share", "slack_ns")} == {
        "path_ns": "int64", "path_share": "float64", "slack_ns": "Int64",
    }  # fmt: skip
    sections = path.to_pandas("sections")
    assert isinstance(path.path, analyzers.PathInfo)
    assert len(sections) == len(path.path.sections)
    assert (sections["end_ns"] - sections["start_ns"]).sum() == path.path.total_ns
    assert sections["span.trace_id"].isna().equals(pd.Series([s.span is None for s in path.path.sections]))
    assert sections["entered_by.confidence"].dtype == "float64"


def test_large_integers_stay_exact_beside_na() -> None:
    frame = shown.frame(shown.Records(Idle, [Idle("a", 2**62 + 1), Idle("b", None)]))
    assert frame["ns"].dtype == "Int64"
    assert frame["ns"][0] == 2**62 + 1
    assert frame["ns"][1] is pd.NA
    assert shown.frame(shown.Records(Idle, [])).columns.tolist() == ["kind", "ns"]


def test_every_table_of_every_answer_has_its_columns(here: Path) -> None:
    answers: list[Shown] = [
        analyzers.report(), analyzers.critical_path("many.json"), analyzers.ranks(), analyzers.runs(),
        analyzers.doctor("grademl-runs"), analyzers.execution_model(), analyzers.report("trace.json"),
    ]  # fmt: skip
    for answer in answers:
        for name in answer.tables:
            frame = answer.to_pandas(name)
            assert len(frame.columns) > 1, (answer, name)
            assert frame.columns.is_unique
        assert answer.to_pandas().equals(answer.to_pandas(answer.tables[0]))
    with pytest.raises(UsageError, match="did you mean sections"):
        analyzers.report().to_pandas("section")


def test_without_pandas_a_line_says_what_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(analyzers.GrademlError, match=r"^pandas is not installed; run: pip install pandas$"):
        analyzers.runs().to_pandas()


# --- Graphs and pages --------------------------------------------------------------------------------------


def test_a_path_is_a_chain(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = analyzers.critical_path()
    chain = answer.to_networkx()
    assert isinstance(chain, nx.DiGraph)
    assert nx.is_path(chain, range(len(chain)))
    took = sum(node["end_ns"] - node["start_ns"] for _, node in chain.nodes(data=True))
    assert took == chain.graph["total_ns"] == answer.window.wall_ns
    foreign = analyzers.critical_path("trace.json").to_networkx()
    assert [node["phase"] for _, node in foreign.nodes(data=True)] == ["A", "B", "A", "C", "A"]
    assert all(re.fullmatch("[0-9a-f]{16}", node["span_id"]) for _, node in foreign.nodes(data=True))
    assert {data["kind"] for *_, data in foreign.edges(data=True)} <= {"child", "program"}
    longest = analyzers.critical_path(top=3).to_networkx()
    assert len(longest) == 3  # joined only where nothing is between
    with pytest.raises(UsageError, match="3 traces have no one path"):
        analyzers.critical_path("many.json").to_networkx()
    monkeypatch.setattr("grademl_otel.analyzers.reporting.drawn.MOST_NODES", 3)
    with pytest.raises(UsageError, match="too many"):
        answer.to_networkx()
    assert drawn.MOST_NODES > 3


def test_a_model_is_told_by_its_types(here: Path) -> None:
    model = analyzers.execution_model()
    graph = model.to_networkx()
    frame = model.to_pandas()
    assert len(graph) == len(frame) == len(model.types)
    assert frame["phases"].sum() == len(model)
    assert model.to_dict()["verdict"] == "complete"
    assert "data  complete" in str(model)
    assert "backward" in model._repr_html_()


def test_a_report_is_a_page(here: Path) -> None:
    report = analyzers.report()
    page = report.to_html()
    assert page.startswith("<!doctype html>")
    assert page == report.to_html()
    lost = type(report)(**{name: value for name, value in vars(report).items() if name[0] != "_"})
    assert lost == report
    with pytest.raises(UsageError, match="does not know its source"):
        lost.to_html()


def test_pull_is_an_answer(here: Path, tmp_path: Path) -> None:
    done = analyzers.pull("grademl-runs", tmp_path / "copy", run="3f2a")
    assert done.error is None
    assert done.to_dict()["schema"] == "grademl.pull/1"
    assert done.to_pandas()["spans"].tolist() == [done.spans]
    assert analyzers.report(tmp_path / "copy").source.run == RUNS[0]


def test_recording_loads_nothing_of_the_analysis() -> None:
    program = (
        "import sys, grademl_otel\n"
        "assert not [name for name in sys.modules if name.startswith('grademl_otel.analyzers')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_hints_of_records_can_be_read() -> None:
    """Frames are made by them: what a document holds must not be named for checkers only."""
    for cls in (*every(Shown), shown.Records):
        if cls.__module__.startswith("grademl_otel.") and cls.__name__.endswith("Entry"):
            assert get_type_hints(cls)


def every(cls: type) -> list[type]:
    return [one for direct in cls.__subclasses__() for one in (direct, *every(direct))]
