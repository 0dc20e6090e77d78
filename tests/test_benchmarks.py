# SPDX-License-Identifier: Apache-2.0
"""The tables of `python -m benchmarks`; what they measure is no test's business."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import tables
from benchmarks.interleaved import Compared, Spread, compare
from benchmarks.plot import chart
from benchmarks.profiles import write_profile
from benchmarks.shapes import training
from benchmarks.tables import BEGIN, END, Table
from benchmarks.walking import WAYS
from grademl_otel.analyzers.graph import run_path

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
    for mark in (BEGIN, END, *tables.READING, *tables.GRAPH, *tables.QUERY, *tables.SAMPLING):
        assert text.count(mark) == 1


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
