# SPDX-License-Identifier: Apache-2.0
"""Answers as people and programs get them: without inferred edges, at any width, with odd names."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from grademl_otel import analyzers
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.reporting.document import PathInfo, PopulationInfo, to_dict
from tests.support.jaeger_cases import jaeger_document, many_traces
from tests.support.synthetic import MS, Training, simulate

HOSTILE = "\x1b[2J[red]|`*_<b>=cmd()'\u202e\n\ud7ff" + "x" * 300


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks of which no collective was recorded, one of them slow in forward."""
    folder = tmp_path_factory.mktemp("ranks")
    simulate(Training(ranks=3, epochs=1, steps_per_epoch=40, compute_scale={1: 1.3})).write_store(folder)
    return folder


def entered(document: Any) -> set[str]:
    """Return the evidence of all jumps between lanes."""
    edges = (section["entered_by"] for section in document["path"]["sections"])
    return {edge["evidence"] for edge in edges if edge["edge"] not in ("program", "child")}


def test_without_inferred_edges_only_what_was_observed_is_followed(
    ranks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "inferred" in entered(to_dict(analyzers.critical_path(ranks)))
    assert run(["critical-path", str(ranks), "--json", "--no-inferred"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert entered(document) == {"observed"}
    assert document["path"]["total_ns"] == document["window"]["wall_ns"]
    assert document == json.loads(json.dumps(to_dict(analyzers.critical_path(ranks, inferred=False))))


def test_top_is_what_a_screen_shows(ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["path", str(ranks), "--by", "section", "--top", "30"]) == 0
    table = capsys.readouterr().out.partition("Critical path by section")[2]
    assert sum("#" in line or " ms " in line for line in table.splitlines()) >= 30
    assert run(["path", str(ranks), "--top", "25"]) == 0
    longest = capsys.readouterr().out.partition("The longest of")[2].partition("\n\n")[0]
    assert len(longest.splitlines()) == 2 + 25  # the rest of the title, the headings
    assert run(["path", str(ranks), "--top", "2"]) == 0
    assert len(capsys.readouterr().out.partition("The longest of")[2].partition("\n\n")[0].splitlines()) == 4


def test_without_inferred_edges_ranks_are_compared_by_what_was_observed(
    ranks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = analyzers.ranks(ranks).ranks
    assert info is not None
    assert (info.source, info.evidence) == ("backward", "inferred")
    assert run(["ranks", str(ranks), "--json", "--no-inferred"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] is None
    report = analyzers.report(ranks, inferred=False)
    assert report.ranks is None
    assert not any(finding.id.startswith("ranks.") for finding in report.findings)


@pytest.mark.parametrize("by", ["phase", "rank", "lane", "operation", "section"])
def test_a_path_across_ranks_fits_the_terminal(ranks: Path, by: str) -> None:
    document = analyzers.critical_path(ranks, by=by)
    for width in (40, 80, 200):
        text = analyzers.render(document, by=by, width=width, color=False)
        assert max(map(len, text.splitlines())) <= width
        if width >= 80:
            assert "rank 1 · main" in text or by == "section"
            assert "What the main threads did" in text


def test_a_report_of_several_ranks_tells_what_each_did(
    ranks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = analyzers.report(ranks)
    assert [(one.rank, one.lane) for one in document.breakdown] == [(0, "main"), (1, "main"), (2, "main")]
    text = analyzers.render(document, width=80)
    assert "What the main threads did (of the wall time)" in text
    assert run(["report", str(ranks), "-f", "markdown"]) == 0
    assert "## What threads and devices did (of the wall time)" in capsys.readouterr().out


def test_one_rank_that_does_not_communicate_has_no_such_block(tmp_path: Path) -> None:
    simulate(Training(epochs=1, steps_per_epoch=25)).write_store(tmp_path)
    document = analyzers.report(tmp_path)
    assert len(document.breakdown) == 1
    (waits,) = (one.exposed_wait for one in document.breakdown)
    assert waits is not None
    assert waits.idle_ns == waits.wait_ns  # on a CPU the thread that waits is the device
    assert "What the main threads did" not in analyzers.render(document)


def test_a_text_calls_drag_no_gain(ranks: Path) -> None:
    text = analyzers.render(analyzers.critical_path(ranks), width=200)
    (line,) = (line for line in text.splitlines() if line.startswith("drag:") or " drag:" in line)
    assert "no forecast" in line
    assert "gain" not in text.lower()


def test_ten_thousand_sections_and_the_longest_of_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    data = jaeger_document("A[0,50000) B<A[0,1)")
    root, call = data["data"][0]["spans"]
    starts = range(root["startTime"], root["startTime"] + 50_000, 10)
    data["data"][0]["spans"] = [root] + [
        {
            **call,
            "spanID": f"{n + 9:016x}",
            "operationName": f"c{n % 5}",
            "startTime": start,
            "duration": 1 + n % 8,
        }
        for n, start in enumerate(starts)
    ]
    path.write_text(json.dumps(data))
    whole = analyzers.critical_path(path)
    some = analyzers.critical_path(path, top=4)
    assert isinstance(whole.path, PathInfo)
    assert isinstance(some.path, PathInfo)
    assert len(whole.path.sections) == 10_000
    assert len(some.path.sections) == len(some.summary) == 4
    assert some.path.omitted.sections == 10_000 - 4
    shown = sum(s.end_ns - s.start_ns for s in some.path.sections)
    assert shown + some.path.omitted.ns == some.path.total_ns == 50 * MS
    assert min(s.end_ns - s.start_ns for s in some.path.sections) == max(
        s.end_ns - s.start_ns for s in whole.path.sections
    )
    assert [s.start_ns for s in some.path.sections] == sorted(s.start_ns for s in some.path.sections)
    assert some.summary == whole.summary[:4]


@pytest.mark.parametrize("traces", [1, 3])
@pytest.mark.parametrize("by", ["phase", "operation", "section"])
def test_odd_names_harm_nobody(
    traces: int, by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = many_traces(["A[0,10) B<A[2,8)"] * traces)
    for trace in data["data"]:
        for span in trace["spans"]:
            span["operationName"] = HOSTILE + span["operationName"]
            span["tags"].append({"key": "gen_ai.latency.e2e", "type": "string", "value": HOSTILE})
        for process in trace["processes"].values():
            process["serviceName"] = HOSTILE
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(data))
    document = analyzers.critical_path(path, by=by)
    assert isinstance(document.path, PopulationInfo if traces > 1 else PathInfo)
    for form in ("text", "json", "csv", "markdown"):
        assert run(["critical-path", str(path), "-f", form, "--by", by]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
        if form == "csv":
            cells = [cell for row in list(csv.reader(io.StringIO(out)))[1:] for cell in row]
            assert not any(cell[:1] in tuple("=+@") for cell in cells)
