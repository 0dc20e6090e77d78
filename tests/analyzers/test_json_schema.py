# SPDX-License-Identifier: Apache-2.0
"""The JSON answers against their schema and the exactness contract, on simulated runs of all kinds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers.cli.app import run as command
from grademl_otel.analyzers.errors import EXIT_SOURCE
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.reporting.document import CriticalPathDocument, to_dict, to_json
from grademl_otel.analyzers.sources import Selection
from grademl_otel.analyzers.sources.files.source import FileSource
from tests.support.jaeger_cases import jaeger_document, many_traces
from tests.support.profiles import Profile
from tests.support.synthetic import MS, US, Training, simulate

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "critical_path.schema.json").read_text())

TRAININGS = {
    "loader-bound": Training(epochs=2, steps_per_epoch=30, fetch_ns=39 * MS, checkpoint_ns=7 * MS),
    "inline": Training(epochs=2, steps_per_epoch=30, workers=0, fetch_ns=20 * MS),
    "compute-bound": Training(epochs=2, steps_per_epoch=30, zero_grad_ns=10 * US, transfer_ns=500 * US),
    "micro-batches": Training(epochs=1, steps_per_epoch=30, micro=3),
    "ranks": Training(ranks=3, epochs=1, steps_per_epoch=25, compute_scale={1: 1.3}),
    "few": Training(epochs=1, steps_per_epoch=3),
    "one step": Training(epochs=1, steps_per_epoch=1, eval_batches=0),
    "no steps": Training(epochs=0),
    "killed": Training(epochs=2, steps_per_epoch=30, killed_at=41),
    "raised": Training(epochs=2, steps_per_epoch=30, raises_at=41),
    "without detail": Training(epochs=2, steps_per_epoch=30, detail_level=40),
    "many parts": Training(epochs=2, steps_per_epoch=40, rows_per_part=7),
}


def contract(document: dict[str, Any]) -> None:
    """Assert what docs/commands.md promises of every document of a run or of one trace."""
    path, wall = document["path"], document["window"]["wall_ns"]
    assert path["total_ns"] == wall
    shown = sum(section["end_ns"] - section["start_ns"] for section in path["sections"])
    assert shown + path["omitted"]["ns"] == wall
    before = 0
    for section in path["sections"]:
        assert section["start_ns"] >= before
        assert section["end_ns"] > section["start_ns"]
        before = section["end_ns"]
    assert before <= wall
    if not path["omitted"]["sections"]:
        joints = [(section["start_ns"], section["end_ns"]) for section in path["sections"]]
        assert [start for start, _ in joints] == [0, *(end for _, end in joints[:-1])]
        assert joints[-1][1] == wall
    per_rank: dict[int, int] = defaultdict(int)
    for entry in document["lane_budget"]:
        per_rank[entry["rank"]] += entry["ns"]
    assert set(per_rank.values()) <= {wall}
    assert sorted(per_rank) == document["completeness"]["ranks"]["present"]
    for entry in document["breakdown"]:
        parts = (entry[f"{part}_ns"] for part in ("compute", "communication", "overlap", "memory"))
        assert sum(parts) + sum(idle["ns"] for idle in entry["idle"]) == entry["wall_ns"] == wall
        if (waits := entry["exposed_wait"]) is not None:
            assert waits["idle_ns"] + waits["busy_ns"] + waits["unknown_ns"] == waits["wait_ns"]
    for row in document["summary"]:
        assert not row["path_ns"] or row["slack_ns"] in (0, None)
        assert row["drag_ns"] is None or 0 <= row["drag_ns"] <= wall


def critical_path_keys(report: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a report that is a critical path's document."""
    kept = {key: value for key, value in report.items() if key in SCHEMA["properties"]}
    return {**kept, "schema": "grademl.critical_path/1"}


@pytest.mark.parametrize("name", TRAININGS)
def test_documents_of_runs(name: str, tmp_path: Path) -> None:
    simulate(TRAININGS[name]).write_store(tmp_path)
    document = json.loads(to_json(analyzers.critical_path(tmp_path)))
    jsonschema.validate(document, SCHEMA)
    contract(document)
    assert list(document) == SCHEMA["required"]
    assert document["replay"] is None
    report = json.loads(to_json(analyzers.report(tmp_path)))
    assert report["schema"] == "grademl.report/1"
    jsonschema.validate(critical_path_keys(report), SCHEMA)
    contract(report)
    assert report["path"] == document["path"]
    assert report["lane_budget"] == document["lane_budget"]


@pytest.mark.parametrize("by", ["phase", "rank", "lane", "operation", "section"])
@pytest.mark.parametrize("top", [None, 3])
def test_keys_and_limits_keep_the_contract(by: str, top: int | None, tmp_path: Path) -> None:
    simulate(TRAININGS["ranks"]).write_store(tmp_path)
    document = to_dict(analyzers.critical_path(tmp_path, by=by, top=top))
    jsonschema.validate(document, SCHEMA)
    contract(document)
    parts = sum(entry["path_ns"] for entry in document["summary"])
    assert parts <= document["path"]["total_ns"]
    if top is None:
        assert parts == document["path"]["total_ns"]
        assert document["path"]["omitted"] == {"sections": 0, "ns": 0}
    else:
        assert len(document["path"]["sections"]) == top
        assert len(document["summary"]) <= top


def test_budget_is_the_simulated_truth(tmp_path: Path) -> None:
    training = Training(epochs=2, steps_per_epoch=30, checkpoint_ns=7 * MS)
    truth = simulate(training)
    truth.write_store(tmp_path)
    document = analyzers.report(tmp_path)
    budget = {entry.phase: entry for entry in document.lane_budget}
    assert budget["checkpoint.save"].ns == 2 * 7 * MS
    for phase in ("forward", "backward", "optimizer"):
        expected = sum(row.total(phase) for row in truth.rows if row.kind == "train")
        assert budget[phase].ns == pytest.approx(expected, abs=2_000 * len(truth.rows))
    assert document.run is not None
    assert (document.run.epochs, document.run.steps, document.run.eval_steps) == (2, 60, 10)
    loader = document.run.loaders[0]
    assert (loader.workers, loader.prefetch, loader.batch_size) == (2, 2, 32)
    assert document.step is not None
    steady = [row for row in truth.rows if row.kind == "train"][-document.step.n :]
    assert document.step.mean_ns == pytest.approx(sum(r.duration for r in steady) / len(steady), abs=1_000)
    whole = sum(phase.share for phase in document.step.phases if phase.within is None)
    assert whole == pytest.approx(1.0)
    assert document.window.steps.warmup_excluded == 60 - document.step.n


def test_what_is_not_ours_is_null(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(jaeger_document("A[0,10) B<A[2,8)")))
    document = to_dict(analyzers.critical_path(path))
    jsonschema.validate(document, SCHEMA)
    assert document["source"] == {
        "uri": str(path), "run": None, "attempt": None, "fit": None, "traces": 1,
    }  # fmt: skip
    assert document["lane_budget"] == []
    assert all(s["rank"] is None and s["span"] is not None for s in document["path"]["sections"])
    assert [one["rule"] for one in document["abstained"]] == ["diagnosis"]


def test_documents_of_profiles(tmp_path: Path) -> None:
    profile = Profile(rank=3)
    profile.op("op", 0, 200)
    profile.kernel("compute", (1, 2), 10, 60)
    profile.kernel("ncclDevKernel_AllReduce", (3, 4), 40, 90, stream=20)
    document = to_dict(analyzers.critical_path(profile.write(tmp_path / "profile.json")))
    jsonschema.validate(document, SCHEMA)
    (device,) = document["breakdown"]
    assert (device["rank"], device["lane"], device["exposed_wait"]) == (3, "device 0", None)
    parts = {part: device[f"{part}_ns"] for part in ("compute", "communication", "overlap", "memory")}
    assert parts == {"compute": 30 * US, "communication": 30 * US, "overlap": 20 * US, "memory": 0}
    assert sum(parts.values()) + sum(idle["ns"] for idle in device["idle"]) == device["wall_ns"] == 200 * US
    assert device["overlap_share"] == 0.4
    assert all(row["slack_ns"] == 0 for row in document["summary"] if row["path_ns"])
    assert "What the devices did" in analyzers.render(analyzers.critical_path(tmp_path))


def test_population_keeps_its_contract(tmp_path: Path) -> None:
    path = tmp_path / "many.json"
    path.write_text(json.dumps(many_traces(["A[0,10) B<A[1,9) C<A[9,10)"] * 5 + ["A[0,100) B<A[2,98)"])))
    document = to_dict(analyzers.critical_path(path, top=1))
    jsonschema.validate(document, SCHEMA)
    shown = sum(entry["path_ns"] for entry in document["path"]["population"])
    assert shown + document["path"]["omitted"]["ns"] == document["path"]["total_ns"] == 150_000
    # A before B in five traces, A at both sides of B in one; C once in each of five.
    assert document["path"]["omitted"]["sections"] == 5 + 2 + 5


def test_killed_run_says_how_it_ended(tmp_path: Path) -> None:
    simulate(Training(epochs=2, steps_per_epoch=30, killed_at=41)).write_store(tmp_path)
    document = analyzers.report(tmp_path)
    assert document.run is not None
    (ended,) = document.run.ended
    assert (ended.how, ended.open_phase, ended.last_step) == ("killed", "backward", 40)
    assert 0 < ended.last_mark_ns <= document.window.wall_ns


def test_table_activities_have_no_span_and_spans_have_ids(tmp_path: Path) -> None:
    training = Training(epochs=1, steps_per_epoch=30, detail_level=40)
    simulate(training).write_store(tmp_path)
    document = to_dict(analyzers.critical_path(tmp_path))
    in_steps = [s for s in document["path"]["sections"] if s["phase"] in ("forward", "backward")]
    assert in_steps
    assert all(section["span"] is None for section in in_steps)


def test_runs_document(tmp_path: Path) -> None:
    simulate(Training(epochs=1, steps_per_epoch=5)).write_store(tmp_path)
    document = to_dict(analyzers.runs(tmp_path))
    assert list(document) == ["schema", "source", "runs", "services", "warnings"]
    assert document["schema"] == "grademl.runs/1"
    (run,) = document["runs"]
    assert list(run) == [
        "run", "attempt", "fit", "script", "service", "start_unix_ns", "wall_ns", "ranks", "steps", "ended",
        "name", "parent", "path", "verdict",
    ]  # fmt: skip
    assert (run["start_unix_ns"], run["steps"], run["ranks"]) == (str(Training.start), 5, 1)


def test_python_verbs_are_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(TRAININGS["loader-bound"]).write_store(tmp_path)
    for verb, document in (
        ("report", analyzers.report(tmp_path)),
        ("critical-path", analyzers.critical_path(tmp_path)),
        ("runs", analyzers.runs(tmp_path)),
    ):
        assert command([verb, str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(to_json(document))


def test_a_document_as_a_dict_is_its_json(tmp_path: Path) -> None:
    simulate(TRAININGS["loader-bound"]).write_store(tmp_path)
    document = analyzers.report(tmp_path)
    plain = to_dict(document)
    assert plain["findings"][0]["gain"]["interval"][0] == 0  # a pair in the document, an array in JSON
    assert plain == json.loads(to_json(document))


def test_python_verbs_refuse_what_does_not_exist(tmp_path: Path) -> None:
    simulate(TRAININGS["few"]).write_store(tmp_path)
    with pytest.raises(analyzers.GrademlError, match="added up by one of phase, rank"):
        analyzers.critical_path(tmp_path, by="colour")
    with pytest.raises(analyzers.GrademlError, match="above 0"):
        analyzers.report(tmp_path, top=0)
    with pytest.raises(TypeError, match="rnak"):
        analyzers.report(tmp_path, rnak=3)
    steps = analyzers.report(tmp_path, steps=analyzers.StepRange(first=1, end=2)).window.steps
    assert (steps.first, steps.last) == (1, 1)


def test_importing_a_part_leaves_the_verbs_callable() -> None:
    code = (
        "import grademl_otel.analyzers as a;"
        "import grademl_otel.analyzers.reporting.text, grademl_otel.analyzers.graph.runs.run_path;"
        "verbs = a.report, a.runs, a.critical_path, a.dependency_graph;"
        "print([callable(verb) for verb in verbs])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[True, True, True, True]\n", done.stderr


def test_graph_is_networkx(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    simulate(TRAININGS["compute-bound"]).write_store(tmp_path / "runs")
    graph = analyzers.dependency_graph(tmp_path / "runs")
    assert isinstance(graph, networkx.DiGraph)
    assert networkx.is_directed_acyclic_graph(graph)
    assert {"forward", "backward", "data.wait"} <= {data.get("phase") for _, data in graph.nodes(data=True)}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(jaeger_document("A[0,10) B<A[2,8)")))
    assert analyzers.dependency_graph(path).number_of_nodes() == 3
    path.write_text(json.dumps(many_traces(["A[0,10)"] * 2)))
    with pytest.raises(analyzers.GrademlError, match="select one with --trace"):
        analyzers.dependency_graph(path)


def test_a_source_that_breaks_off_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(TRAININGS["few"]).write_store(tmp_path)
    break_off(monkeypatch)
    with pytest.warns(UserWarning, match="connection reset; the answer is about what was read"):
        document = analyzers.critical_path(tmp_path)
    assert isinstance(document, CriticalPathDocument)
    assert document.completeness.verdict == "incomplete"


def test_a_partial_report_is_printed_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(TRAININGS["few"]).write_store(tmp_path)
    break_off(monkeypatch)
    assert command(["report", str(tmp_path)]) == EXIT_SOURCE
    captured = capsys.readouterr()
    assert "reading broke off: connection reset" in captured.out
    assert captured.err == f"grademl: {tmp_path}: connection reset; the answer is about what was read\n"


def break_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file source break off after it was read, as a server may."""
    read = FileSource.read

    def broken(self: FileSource, selection: Selection) -> Telemetry:
        telemetry = read(self, selection)
        telemetry.ledger.broken = "connection reset"
        return telemetry

    monkeypatch.setattr(FileSource, "read", broken)
