# SPDX-License-Identifier: Apache-2.0
"""The event graph: what each activity had to wait for, as arrays and as networkx."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from grademl_otel.analyzers.graph import (
    EDGE_KINDS,
    drawn,
    event_networkx,
    path_networkx,
    run_graph,
    run_path,
)
from grademl_otel.analyzers.model.facts import Loader, Run
from grademl_otel.analyzers.selection import StepRange, select_steps

from ..support.build import R, run_from, run_of
from ..support.synthetic import MS, Training

LOADER_BOUND = Training(epochs=1, steps_per_epoch=30, eval_batches=0, workers=2, fetch_ns=40 * MS)


def drawn_of(run: Run) -> nx.MultiDiGraph:
    return event_networkx(run_graph(run))


@pytest.fixture(scope="module")
def run() -> Run:
    return run_of(LOADER_BOUND)


def test_no_event_comes_before_what_it_waited_for(run: Run) -> None:
    graph = run_graph(run)
    edges = graph.edges
    bound = np.where(edges.to_end, graph.end[edges.target], graph.start[edges.target])
    assert len(edges) > 50
    assert np.all(edges.at <= bound)
    assert np.all((graph.start[edges.source] <= edges.at) & (edges.at <= graph.end[edges.source]))


def test_the_kinds_of_edges_and_how_many(run: Run) -> None:
    graph = drawn_of(run)
    kinds = Counter((d["kind"], d["joins"], d["evidence"]) for _, _, d in graph.edges(data=True))
    batches = LOADER_BOUND.steps_per_epoch
    first = LOADER_BOUND.workers * LOADER_BOUND.prefetch
    assert kinds["queue", "end-end", "observed"] == batches
    assert kinds["queue", "end-start", "observed"] == batches - first
    assert kinds["queue", "end-start", "inferred"] == first
    assert {kind for kind, _, _ in kinds} <= set(EDGE_KINDS)


def test_nodes_say_what_they_are(run: Run) -> None:
    graph = drawn_of(run)
    assert nx.is_directed_acyclic_graph(graph)
    by_lane = Counter(lane for _, lane in graph.nodes(data="lane"))
    assert by_lane.keys() == {"main", "loader-worker-0", "loader-worker-1"}
    fetch = next(d for _, d in graph.nodes(data=True) if d["phase"] == "data.fetch")
    assert fetch["kind"] == "work"
    assert fetch["end"] - fetch["start"] == LOADER_BOUND.fetch_ns
    assert run.spans.name(fetch["span"]) == "data.fetch"
    assert {fetch["rank"], type(fetch["step"])} == {0, int}
    gap = next(d for _, d in graph.nodes(data=True) if d["phase"] == "start-up")
    assert gap["kind"] == "gap"
    assert "step" not in gap
    assert "span" not in gap


def test_a_wait_and_the_item_that_ended_it_name_the_same_item(run: Run) -> None:
    graph = drawn_of(run)
    for source, target, data in graph.edges(data=True):
        if data["kind"] == "queue" and data["joins"] == "end-end":
            assert graph.nodes[source]["item"] == graph.nodes[target]["item"]
            assert graph.nodes[target]["phase"] == "data.wait"


def test_the_critical_path_follows_edges_of_the_graph(run: Run) -> None:
    """Every step of the walk that changes lanes is an edge of the graph."""
    graph = drawn_of(run)
    edges = {
        (graph.nodes[a]["lane"], graph.nodes[b]["lane"], data["kind"])
        for a, b, data in graph.edges(data=True)
    }
    sections = run_path(run).sections
    for before, after in pairwise(sections):
        if before.lane != after.lane:
            assert (before.lane, after.lane, before.entered_by.edge) in edges


def test_a_phase_within_another_is_joined_as_a_child() -> None:
    phases = {"backward": (0, 90_000, 1), "recompute": (20_000, 30_000, 1), "optimizer": (90_000, 10_000, 1)}
    graph = drawn_of(run_from([R(0, 100_000, phases=phases)], 0, 100_000))
    found = [
        (graph.nodes[a]["phase"], graph.nodes[b]["phase"], data["kind"])
        for a, b, data in graph.edges(data=True)
    ]
    assert found == [
        ("backward", "recompute", "child"),
        ("recompute", "backward", "child"),
        ("backward", "optimizer", "program"),
    ]


def test_what_is_known_only_as_a_sum_is_joined_as_inferred_and_to_no_item() -> None:
    phases = {"data.wait": (0, 20_000, 2), "forward": (10_000, 50_000, 2), "data.fetch": (0, 30_000, 2)}
    rows = [R(0, 100_000, item=(1, 0), worker=0, phases=phases)]
    graph = drawn_of(run_from(rows, 0, 100_000, loaders=[Loader(0, 2, 2, 8, False)]))
    assert {lane for _, lane in graph.nodes(data="lane")} == {"main"}
    assert {data["kind"] for _, _, data in graph.edges(data=True)} == {"program"}
    assert {data["evidence"] for a, _, data in graph.edges(data=True)} == {"inferred"}
    sums = {data["phase"] for _, data in graph.nodes(data=True) if data.get("inferred")}
    assert {"data.wait", "forward"} <= sums


def test_of_several_waits_in_one_sum_none_is_taken_for_that_of_a_known_item() -> None:
    phases = {"data.wait": (0, 20_000, 2), "forward": (10_000, 50_000, 2), "data.fetch": (0, 9_000, 1)}
    rows = [R(0, 100_000, item=(1, 0), worker=0, phases=phases)]
    graph = drawn_of(run_from(rows, 0, 100_000, loaders=[Loader(0, 2, 2, 8, False)]))
    assert Counter(lane for _, lane in graph.nodes(data="lane"))["loader-worker-0"] == 1
    assert {data["kind"] for _, _, data in graph.edges(data=True)} == {"program"}


def test_steps_choose_a_part(run: Run) -> None:
    graph = drawn_of(select_steps(run, StepRange(10, 12)))
    steps = {step for _, step in graph.nodes(data="step") if step is not None}
    main = {d["step"] for _, d in graph.nodes(data=True) if d["lane"] == "main"}
    assert main == {10, 11}
    assert steps >= main
    assert len(graph) < len(drawn_of(run)) / 4


def test_a_graph_too_large_for_networkx_is_refused_with_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "MOST_NODES", 10)
    with pytest.raises(ValueError, match=r"activities are too many .* select some of the steps"):
        drawn_of(run)


def test_a_run_without_anything_has_a_graph() -> None:
    assert len(drawn_of(run_from([], 0, 10))) == 1
    assert len(drawn_of(run_from([], 0, 10, bounds={}))) == 0


def test_the_path_as_a_chain(run: Run) -> None:
    path = run_path(run)
    chain = path_networkx(path)
    assert len(chain) == len(path.sections)
    assert list(nx.topological_sort(chain)) == list(range(len(chain)))
    assert sum(d["end"] - d["start"] for _, d in chain.nodes(data=True)) == path.total_ns
    entered = path.sections[3].entered_by
    assert chain.edges[3, 4] == {
        "kind": entered.edge, "evidence": entered.evidence, "confidence": entered.confidence,
    }  # fmt: skip
