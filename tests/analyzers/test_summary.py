# SPDX-License-Identifier: Apache-2.0
"""A path by each key: totals, self time, what blocked, slack and drag, of runs and of span trees."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph import run_path, run_summary, tree_path, tree_summary
from grademl_otel.analyzers.graph import summary as module
from grademl_otel.analyzers.graph.self_time import self_times
from grademl_otel.analyzers.graph.summary import NOT_BY_TIMES, SummaryRow
from grademl_otel.analyzers.graph.trees.tree_schedule import TreeSchedule
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_INTERNAL, KIND_PRODUCER

from ..support.build import S, columns, run_of
from ..support.synthetic import MS, Training

KEYS = ("phase", "rank", "lane", "operation")


def rows_of(training: Training, by: str = "phase") -> dict[str, SummaryRow]:
    run = run_of(training)
    return {row.key: row for row in run_summary(run, run_path(run), by)}


class TestRuns:
    @pytest.mark.parametrize("by", KEYS)
    @pytest.mark.parametrize("ranks", [1, 3])
    def test_each_key_sums_to_the_path_and_to_all_time(self, by: str, ranks: int) -> None:
        run = run_of(Training(ranks=ranks, epochs=1, steps_per_epoch=10, compute_scale={1: 1.3}))
        path = run_path(run)
        found = run_summary(run, path, by)
        assert found.untold is None
        assert sum(row.path_ns for row in found) == path.total_ns
        totals = sum(row.total_ns or 0 for row in run_summary(run, path, "lane"))
        assert sum(row.total_ns or 0 for row in found) == totals or by == "phase"  # gaps beside the path
        for row in found:
            assert row.self_ns == row.total_ns
            assert row.slack_ns is not None
            assert row.drag_ns is not None
            assert 0 <= row.drag_ns <= path.total_ns
            assert (row.slack_ns == 0) or not row.path_ns

    def test_by_lane_every_lane_has_its_wall_time(self) -> None:
        run = run_of(Training(ranks=2, epochs=1, steps_per_epoch=10))
        rows = {row.key: row for row in run_summary(run, run_path(run), "lane")}
        for rank in (0, 1):
            main = rows[f"rank {rank} main"]
            assert main.total_ns == run.end - run.start
            assert main.blocked_ns is not None
            assert rows[f"rank {rank} loader-worker-0"].blocked_ns is None
        by_rank = {row.key: row for row in run_summary(run, run_path(run), "rank")}
        assert by_rank["rank 0"].blocked_ns == rows["rank 0 main"].blocked_ns

    def test_an_operation_is_of_the_service(self) -> None:
        keys = rows_of(Training(epochs=1, steps_per_epoch=10), "operation")
        assert "trainer backward" in keys
        assert keys["trainer data.wait"].blocked_ns == rows_of(Training(epochs=1, steps_per_epoch=10))[
            "data.wait"
        ].blocked_ns  # fmt: skip

    def test_a_loader_bound_run_drags_by_its_fetches(self) -> None:
        training = Training(epochs=1, steps_per_epoch=40, fetch_ns=39 * MS, workers=2, eval_batches=0)
        rows = rows_of(training)
        compute = training.forward_ns + training.backward_ns + training.optimizer_ns
        spared = 40 * (39 * MS // 2 - compute)
        assert rows["data.fetch"].drag_ns == pytest.approx(spared, rel=0.1)
        assert rows["backward"].slack_ns == 0  # of the last step
        assert rows["backward"].drag_ns is not None
        assert rows["backward"].drag_ns < 3 * training.backward_ns

    def test_a_compute_bound_run_has_slack_in_its_loader(self) -> None:
        rows = rows_of(Training(epochs=1, steps_per_epoch=40, fetch_ns=2 * MS, eval_batches=0), "lane")
        assert (rows["rank 0 main"].drag_ns or 0) > 0.5 * (rows["rank 0 main"].path_ns)
        workers = [row for key, row in rows.items() if "loader" in key]
        assert all((row.slack_ns or 0) > 0 for row in workers if not row.path_ns)

    @pytest.mark.parametrize("training", [
        Training(epochs=0), Training(epochs=1, steps_per_epoch=1, eval_batches=0),
        Training(epochs=1, steps_per_epoch=5, detail_level=40),
        Training(epochs=1, steps_per_epoch=5, workers=0),
    ])  # fmt: skip
    def test_runs_without_much_in_them(self, training: Training) -> None:
        for by in KEYS:
            run = run_of(training)
            assert sum(row.path_ns for row in run_summary(run, run_path(run), by)) == run.end - run.start

    def test_a_graph_that_is_too_large_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MOST_JOINS", 10)
        run = run_of(Training(epochs=1, steps_per_epoch=10))
        found = run_summary(run, run_path(run))
        assert found.untold == "the graph has more than 10 dependencies"
        assert {(row.slack_ns, row.drag_ns) for row in found} == {(None, None)}
        assert all(row.total_ns for row in found)

    def test_only_the_largest_keys_have_a_drag_where_each_costs_much(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_MOST_PASSES", 1)
        run = run_of(Training(epochs=1, steps_per_epoch=10))
        rows = run_summary(run, run_path(run)).rows
        assert rows[0].drag_ns is not None
        assert {row.drag_ns for row in rows[1:]} == {None}


class TestTrees:
    SPANS = (
        S("R", 0, 1000, resource={"service.name": "shop"}),
        S("A", 0, 400, "R", resource={"service.name": "shop"}),
        S("X", 0, 390, "R", resource={"service.name": "store"}),
        S("B", 410, 900, "R", resource={"service.name": "store"}),
    )

    def test_by_operation_and_rank(self) -> None:
        spans = columns(self.SPANS)
        path = tree_path(spans, 0)
        found = {row.key: row for row in tree_summary(spans, 0, path, "operation")}
        assert {key: (row.path_ns, row.total_ns, row.self_ns) for key, row in found.items()} == {
            "store B": (490, 490, 490), "shop A": (400, 400, 400), "shop R": (110, 1000, 110),
            "store X": (0, 390, 390),
        }  # fmt: skip
        (one,) = tree_summary(spans, 0, path, "rank")
        assert (one.key, one.path_ns, one.total_ns, one.self_ns) == ("no rank", 1000, 1390, 1390)
        assert (one.slack_ns, one.drag_ns) == (0, 1000)

    def test_by_lane_only_the_path_is_added_up(self) -> None:
        """A drag of what is on the path alone would be less than that of all that is in the lane."""
        spans = columns(self.SPANS)
        (one,) = tree_summary(spans, 0, tree_path(spans, 0), "lane")
        assert (one.key, one.path_ns) == ("no lane", 1000)
        assert (one.total_ns, one.self_ns, one.slack_ns, one.drag_ns) == (None, None, None, None)

    def test_self_time_is_what_no_child_covers(self) -> None:
        spans = columns(
            [S("r", 0, 100), S("a", 10, 40, "r"), S("b", 30, 60, "r"), S("c", 90, 130, "r"),
             S("d", 35, 38, "b"), S("e", 0, 7)]
        )  # fmt: skip
        below, itself = self_times(spans, 0)
        assert dict(zip(below.tolist(), itself.tolist(), strict=True)) == {0: 40, 1: 30, 2: 27, 3: 40, 4: 3}

    def test_a_path_that_lanes_decide_has_no_schedule(self) -> None:
        spans = columns(
            [
                S("step", 0, 100, attributes={"grademl.lane": "main"}),
                S("data.wait", 0, 60, "step", attributes={"grademl.lane": "main", "grademl.item": "0:1"}),
                S("fetch", 0, 55, "step", attributes={"grademl.lane": "worker", "grademl.item": "0:1"}),
            ]
        )
        found = tree_summary(spans, 0, tree_path(spans, 0))
        assert found.untold == NOT_BY_TIMES
        assert {(row.slack_ns, row.drag_ns) for row in found} == {(None, None)}

    @pytest.mark.parametrize("by", KEYS)
    def test_totals_beyond_64_bits_are_exact(self, by: str) -> None:
        spans = columns([S("r", 0, 2**63 - 1), *(S(f"{n}", 1, 2**62, "r", "child") for n in range(4))])
        rows = tree_summary(spans, 0, tree_path(spans, 0), by)
        totals = [row.total_ns for row in rows if row.total_ns is not None]
        within = 2**62 - 1  # by rank self time is added up
        assert sum(totals) == {"lane": 0, "rank": 2**63 - 1 + 3 * within}.get(by, 2**63 - 1 + 4 * within)

    def test_a_deep_and_a_wide_tree(self) -> None:
        deep = [S("0", 0, 10**6), *(S(f"{n}", n, 10**6 - n, f"{n - 1}") for n in range(1, 3_000))]
        wide = [S("r", 0, 10**6), *(S(f"{n}", 100 * n, 100 * n + 99, "r", name="c") for n in range(3_000))]
        for made, leaf in ((deep, "2999"), (wide, "c")):
            spans = columns(made)
            rows = {row.key: row for row in tree_summary(spans, 0, tree_path(spans, 0))}
            assert rows[leaf].drag_ns == rows[leaf].path_ns > 0


@st.composite
def plain_trees(draw: st.DrawFn) -> list[S]:
    kinds = st.sampled_from((KIND_INTERNAL, KIND_INTERNAL, KIND_PRODUCER, KIND_CONSUMER))
    spans = [S("0", 0, draw(st.integers(5, 40)), name="a")]
    for number in range(1, draw(st.integers(1, 12))):
        start = draw(st.integers(-3, 40))
        spans.append(
            S(f"{number}", start, start + draw(st.integers(-1, 20)), f"{draw(st.integers(0, number - 1))}",
              draw(st.sampled_from("abcd")), kind=draw(kinds))
        )  # fmt: skip
    return spans


@given(plain_trees())
@settings(max_examples=80, deadline=None)
def test_every_plain_tree_has_a_schedule_that_agrees_with_its_path(spans: list[S]) -> None:
    cols = columns(spans)
    path = tree_path(cols, 0)
    found = TreeSchedule.of(cols, 0, path)
    assert found is not None
    schedule = found.schedule
    assert schedule.forward().tolist() == schedule.graph.end.tolist()
    on_path = set(path.sections.span_ix.tolist())
    for place, slack in zip(found.members.ix.tolist(), found.slack().tolist(), strict=True):
        assert slack == 0 or place not in on_path
    nothing = np.zeros(len(found.members), bool)
    for number, section in enumerate(path.sections):
        drag = found.drag(nothing, np.array([number]), np.array([section.duration]))
        assert 0 <= drag <= section.duration
    every = np.arange(len(path.sections))
    assert found.drag(~nothing, every, path.sections.duration) == path.total_ns


@given(plain_trees(), st.integers(-(10**15), 10**15), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_order_and_shift_change_no_summary(spans: list[S], shift: int, chance: st.random.Random) -> None:
    moved = [replace(one, start=one.start + shift, end=one.end + shift) for one in spans]
    if any(one.end == 0 for one in (*spans, *moved)):
        return  # an end of 0 is none
    others = chance.sample(moved, len(moved))
    root = next(ix for ix, one in enumerate(others) if one.id == "0")
    first, second = columns(spans), columns(others)
    assert list(tree_summary(first, 0, tree_path(first, 0))) == list(
        tree_summary(second, root, tree_path(second, root))
    )


@given(plain_trees())
@settings(max_examples=40, deadline=None)
def test_self_times_are_what_each_instant_tells(spans: list[S]) -> None:
    cols = columns(spans)
    below, itself = self_times(cols, 0)
    children = defaultdict(list)
    for one in spans[1:]:
        children[one.parent].append(one)
    assert len(below) == len(spans)
    for ix, ns in zip(below.tolist(), itself.tolist(), strict=True):
        one = spans[ix]
        alone = [
            t for t in range(one.start, one.end) if not any(c.start <= t < c.end for c in children[one.id])
        ]
        assert ns == len(alone)
