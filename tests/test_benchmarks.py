# SPDX-License-Identifier: Apache-2.0
"""The tables of `python -m benchmarks`; what they measure is no test's business."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import attribution, burning, tables
from benchmarks.interleaved import Compared, Spread, compare
from benchmarks.plot import chart
from benchmarks.profiles import write_profile
from benchmarks.shapes import training
from benchmarks.simulated import SCENARIOS
from benchmarks.spanfiles import HOST, SPANS
from benchmarks.tables import BEGIN, END, Table
from benchmarks.upsampled import CELL, Truth, attributed, truth_of
from benchmarks.walking import WAYS
from grademl_otel.analyzers.graph import run_path
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import read_subject

PAGE = f"# Costs\n\nHow.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n"


def test_results_take_the_place_of_those_before(tmp_path: Path) -> None:
    page = tmp_path / "costs.md"
    page.write_text(PAGE)
    plain = Compared("plain", [[1e6, 3e6], [2e6, 2e6]])
    slow = Compared("slow", [[3e6, 3e6], [4e6, 4e6]])
    table = tables.of_steps("Steps", {"plain": plain, "slow": slow}, "plain", "A | note.")
    tables.write("\n".join([tables.heading("the command"), table.to_markdown()]), page)
    text = page.read_text()
    assert text.startswith("# Costs\n\nHow.\n")
    assert text.endswith(f"{END}\n\nAfter.\n")
    assert "old" not in text
    assert "`the command`" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| slow "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["slow", "3.5 ms", "1.750 [1.375, 2.125]", "1.5 ms [750 µs, 2.25 ms]", "4 ms", "-", "-"]
    tables.write("again", page)
    assert page.read_text() == PAGE.replace("\nold\n", "\n\nagain\n\n")


@pytest.mark.parametrize("page", ["", BEGIN, END + BEGIN, BEGIN + BEGIN + END])
def test_a_page_without_a_place_for_them_is_left_alone(tmp_path: Path, page: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises(ValueError, match="needs one line"):
        tables.write("results", path)
    assert path.read_text() == page


def test_a_row_is_as_wide_as_the_head() -> None:
    assert Table("t", ("a", "b"), [("x|y", "z")]).to_markdown().splitlines()[-1] == "| x\\|y | z |"
    with pytest.raises(ValueError, match="3 cells in a table of 2"):
        Table("t", ("a", "b"), [("1", "2", "3")]).to_markdown()


def test_the_page_of_this_repository_has_a_place_for_them() -> None:
    text = tables.PAGE.read_text("utf-8")
    marks = (tables.READING, tables.GRAPH, tables.QUERY, tables.SAMPLING, tables.ATTRIBUTING)
    for mark in (BEGIN, END, *(one for pair in marks for one in pair)):
        assert text.count(mark) == 1


def test_the_page_of_attribution_has_a_place_for_how_near_it_is() -> None:
    page = tables.page_of(tables.TRUTH)
    assert page.name == "attribution.md"
    assert [page.read_text("utf-8").count(mark) for mark in tables.TRUTH] == [1, 1]
    assert tables.page_of(tables.READING) == tables.PAGE


def test_results_of_reading_leave_the_others(tmp_path: Path) -> None:
    page = tmp_path / "costs.md"
    page.write_text(PAGE + "\n".join(tables.READING))
    tables.write("read", page, tables.READING)
    assert page.read_text() == PAGE + "\n\nread\n\n".join(tables.READING)


def test_each_way_has_its_turn_in_each_round() -> None:
    turns: list[str] = []

    def way(name: str, ns: float) -> list[float]:
        turns.append(name)
        return [ns]

    results = compare({"a": lambda: way("a", 1.0), "b": lambda: way("b", 2.0)}, 3)
    assert turns == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert results["b"].ratio_to(results["a"]) == Spread(2.0, 2.0, 2.0)
    assert results["b"].added_to(results["a"]).middle == 1.0


def test_what_grows_in_proportion_is_drawn_as_a_straight_line() -> None:
    lines = {"a <b>": [(10_000.0, 0.05), (100_000.0, 0.5), (1_000_000.0, 5.0)], "single": [(1e6, 1.0)]}
    text = chart("Reading", "spans", "CPU s", lines, "today")
    root = ElementTree.fromstring(text)
    (line, dot) = root.findall("{*}polyline")
    (x1, y1), (x2, y2), (x3, y3) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert x1 < x2
    assert y1 > y2
    assert len(dot.attrib["points"].split()) == 1
    assert "a &lt;b&gt;" in text
    assert {"10 k", "1 M", "0.1", "10"} <= set(re.findall(">([^<]+)</text>", text))


def test_a_chart_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        chart("Reading", "x", "y", {"empty": []})


@pytest.mark.parametrize(
    ("way", "other"),
    [
        ("trees", "one by one"),
        ("siblings", "siblings, one by one"),
        ("apart", "apart, one by one"),
        ("nested", "nested, one by one"),
    ],
)
def test_ways_that_are_compared_do_the_same(way: str, other: str) -> None:
    assert WAYS[way]("2000")() == WAYS[other]("2000")() > 2


def test_what_paths_are_measured_beside_is_done(tmp_path: Path) -> None:
    assert WAYS["sorting"]("2000")() == 2000
    assert WAYS["networkx"]("1000")() > 2
    path = tmp_path / "profile.json"
    events = write_profile(path, 500)
    assert WAYS["reading"](str(path))() > events
    assert WAYS["profile"](str(path))() > 100


def test_runs_whose_paths_are_measured_lead_through_workers_and_ranks() -> None:
    loaded = run_path(training(400)).sections
    worked = loaded.by(loaded.lane, len(loaded.lanes))
    in_workers = [ns for (_, lane), ns in zip(loaded.lanes, worked, strict=True) if "worker" in lane]
    assert sum(in_workers) > 0.8 * sum(worked)
    across = run_path(training(400, 8)).sections
    assert np.count_nonzero(across.by(across.lane, len(across.lanes)) > 0) == 8


def test_a_truth_is_read_from_clocks_and_averaged() -> None:
    # A core for 15 ms, none for 15 ms, read at odd times.
    truth = truth_of(
        np.array([[7, 0], [7 + 15_000_000, 15_000_000], [7 + 30_000_000, 15_000_000]]), 2.0, HOST
    )
    assert (truth.start, truth.value.tolist()) == (7, [1.0, 0.5, 0.0])
    whole = Truth(0, np.array([2.0, 0.0] * 10 + [9.0]), 4.0).within_whole(0.1)
    assert whole.averages(0.1).tolist() == [1.0, 1.0]
    assert whole.held(0.1).tolist() == [1.0] * 20
    assert whole.error(whole.held(0.1)) == 1.0
    assert whole.edges[-1] == 20 * CELL


def test_phases_tell_what_was_used_within_an_interval(tmp_path: Path) -> None:
    table = attribution.simulated(tmp_path, seeds=1, seconds=12)
    errors = {
        (name, way): [float(cell.partition(" ")[0]) for cell in cells] for name, way, *cells in table.rows
    }
    assert len(errors) == 3 * len(SCENARIOS)
    for name in SCENARIOS:
        held, given = errors[name, attribution.HELD], errors[name, attribution.GIVEN]
        assert all(few < many for few, many in zip(given, held, strict=True))
        assert held == sorted(held)
    # Rules that are the whole truth.
    assert max(errors["constant", attribution.GIVEN]) == 0.0
    assert max(errors["constant", attribution.FIT][:3]) == 0.0


def test_work_of_threads_is_compared_with_their_clocks(tmp_path: Path) -> None:
    answer = burning.threads(2, 0.6, 1, tmp_path)
    readings = np.array(answer["readings"], np.int64)
    by_spans = sum(ns for *_, ns in answer["used"])
    assert 0.5 * by_spans < readings[-1, 1] - readings[0, 1] < 1.5 * by_spans + 50_000_000
    # As if one core had been full from before the first until after the last.
    truth = Truth(int(readings[0, 0]) - 10**9, np.ones(800), 2.0)
    csv_file, rules = tmp_path / "samples.csv", tmp_path / "rules.toml"
    truth.write(csv_file, 0.1)
    rules.write_text('builtin = false\n[[rule]]\nphase = "**/job*"\nmetric = "cpu.busy"\nvariable = 1\n')
    found = attributed(read_subject(Query.of(str(tmp_path / SPANS))), csv_file, rules)
    types, spans = attribution.compared(found, truth, answer["used"])
    assert set(types) == {name for name, *_ in answer["used"]}
    clock = {name: sum(ns for each, _, ns in answer["used"] if each == name) / 1e9 for name in types}
    seconds = {name: (1 + error) * clock[name] for name, error in types.items()}
    # One core for as long as spans were there; their threads sleep at most 0.2 s between two of them.
    assert 0.3 < sum(seconds.values()) < (readings[-1, 0] - readings[0, 0]) / 1e9 + 0.1
    assert len(spans) == len(answer["used"])
    assert attribution.percent([0.01, 0.01], "+") == "+1.0 % [+1.0, +1.0]"
