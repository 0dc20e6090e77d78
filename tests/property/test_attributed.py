# SPDX-License-Identifier: Apache-2.0
"""Who used what and what was full, of any phases, metrics and rules: what holds whatever they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.attribution.attribute import Attributed
from grademl_otel.analyzers.attribution.groupings import (
    GROUPINGS,
    METRIC,
    METRIC_TYPE,
    RESOURCE,
    RESOURCE_TYPE,
    Grouped,
    bottlenecks_of,
)
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE
from grademl_otel.analyzers.attribution.rules import FIT, Blocking, Rule, RuleSet
from grademl_otel.analyzers.execution import ExecutionModel
from grademl_otel.analyzers.resource_model.model import ResourceModel

from ..support.attributed import SECOND, Ph, model_of, observed, rank, resources_of, run_of

LEAVES = st.lists(
    st.tuples(st.sampled_from(("a", "b", "gc")), st.integers(-5, 60), st.integers(0, 40)), max_size=7
)
RANKS = st.lists(LEAVES, min_size=1, max_size=3)
AMOUNTS = st.one_of(st.just(0.0), st.floats(0.1, 5))
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from(("/**", "**/a", "**/b", "**/gc", "**/self", "**/rank/**")),
        st.sampled_from(("*", "cpu.*", "gpu.*", "disk.read")),
        st.sampled_from((NONE, EXACT, VARIABLE, VARIABLE, FIT)),
        AMOUNTS,
    ),
    min_size=1,
    max_size=5,
)
BY_GC = Blocking("**/rank/**", by="**/gc")
BLOCKING = st.lists(
    st.sampled_from(
        (
            BY_GC,
            Blocking("**/a", by="**/b"),
            Blocking("**/b", none=True),
            Blocking("**/a", metric="cpu.throttled", at_least=0.5),
        )
    ),
    max_size=4,
)
VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(0, 12)), min_size=1, max_size=9)
CAPACITY = st.one_of(st.just(math.inf), st.floats(1, 12))
MEASURED = st.tuples(VALUES, VALUES, VALUES, CAPACITY, CAPACITY)
Measured = tuple[list[float], list[float], list[float], float, float]


def model(ranks: Sequence[Sequence[tuple[str, int, int]]]) -> ExecutionModel:
    """Return a run of ranks, whose phases lie side by side; times in tenths of a second."""
    return model_of(
        run_of(
            *(
                rank(
                    number,
                    10,
                    *(Ph(name, at / 10, (at + length) / 10, beside=True) for name, at, length in leaves),
                    host="h" if number < 2 else "g",
                )
                for number, leaves in enumerate(ranks)
            )
        )
    )


def resources(measured: Measured) -> ResourceModel:
    busy, power, stopped, capacity, other = measured
    return resources_of(
        ("cpu.busy", observed(*busy, capacity=capacity), "", "h"),
        ("cpu.throttled", observed(*stopped, capacity=1), "", "h"),
        ("gpu.utilization", observed(*power, capacity=other, every=0.7), "0", "h"),
        ("gpu.utilization", observed(*busy[::-1], capacity=capacity, every=0.7), "1", "h"),
        ("gpu.memory", observed(*stopped, capacity=other, start=1), "1", "h"),
        ("disk.read", observed(*power, capacity=other, start=2), "sda", "g"),
    )


def used(found: Attributed, node: int, metric: int, low: int, high: int) -> float:
    """Return what a phase used from ``low`` to ``high``."""
    use = found.of_phase(node, metric)
    if use is None:
        return 0.0
    return float(np.nan_to_num(use.usage) @ (np.diff(np.clip(use.edges, low, high)) / SECOND))


@settings(max_examples=100, deadline=None)
@given(RANKS, MEASURED, RULES, BLOCKING)
def test_what_is_observed_is_somewhere_within_bounds_and_not_with_who_is_stopped(
    ranks: list[list[tuple[str, int, int]]], measured: Measured, rules: list[Rule], blocking: list[Blocking]
) -> None:
    told = resources(measured)
    found = Attributed(model(ranks), told, RuleSet((), rules, blocking))
    for metric, one in enumerate(told.metrics):
        seen = one.observed
        balance, attribution = found.balance(metric), found.attribution(metric)
        whole = balance.used + balance.background + balance.unplaced
        assert whole == pytest.approx(balance.observed, rel=1e-9, abs=1e-300)
        slack = 1e-9 * max(seen.value, default=0.0)
        assert (np.nan_to_num(attribution.usage()) >= 0).all()
        assert (np.nan_to_num(attribution.unattributed()) >= -slack).all()
        value = attribution.upsampled.value
        most = max(seen.capacity, max(seen.value, default=0.0))
        assert (np.nan_to_num(value) <= most + slack).all()
        fits = seen.value <= seen.capacity
        owner = attribution.upsampled.demand.timeline.observation
        inside = (owner >= 0) & fits[np.maximum(owner, 0)] if len(seen) else owner >= 0
        assert (value[inside] <= seen.capacity + slack).all()
        for phase in range(len(attribution.users)):
            use = attribution.of_phase(phase)
            if use is not None:
                below = np.isnan(use.usage) | (use.usage <= use.capacity + slack)
                assert below[inside[attribution.upsampled.demand.timeline.first[phase] :][: len(below)]].all()
        for leaf, start, end in zip(found.blocked.leaf, found.blocked.start, found.blocked.end, strict=True):
            assert used(found, int(leaf), metric, int(start), int(end)) == 0


@settings(max_examples=60, deadline=None)
@given(RANKS, MEASURED, RULES)
def test_a_collection_stops_all_of_its_own_process_and_nothing_else(
    ranks: list[list[tuple[str, int, int]]], measured: Measured, rules: list[Rule]
) -> None:
    found = Attributed(model(ranks), resources(measured), RuleSet((), rules, [BY_GC]))
    phases = found.model.phases
    free = Attributed(model(ranks), resources(measured), RuleSet((), rules))
    leaves = [node for node in range(len(phases)) if phases.size[node] == 1]
    of_rank = {node: phases.path(node).partition("rank=")[2][:1] for node in leaves}
    collecting = {node for node in leaves if phases.path(node).partition("rank=")[2][3:].startswith("gc")}
    was, now = free.activity, found.activity
    for node in set(leaves) - collecting:
        stopped = [
            (int(phases.start[one]), int(phases.end[one]))
            for one in collecting
            if of_rank[one] == of_rank[node]
        ]
        for low, high in stopped:
            for metric in range(len(found)):
                assert used(found, node, metric, low, high) == 0
        # What is left of its activity is what no collection of its process covers.
        moments = np.unique(
            [
                *was.start[was.leaf == node],
                *was.end[was.leaf == node],
                *(at for each in stopped for at in each),
            ]
        )
        for low, high in pairwise(moments):
            active = any(
                s <= low and high <= e
                for s, e in zip(was.start[was.leaf == node], was.end[was.leaf == node], strict=True)
            )
            covered = any(s <= low and high <= e for s, e in stopped)
            left = any(
                s <= low and high <= e
                for s, e in zip(now.start[now.leaf == node], now.end[now.leaf == node], strict=True)
            )
            assert left == (active and not covered)


# --- Bottlenecks --------------------------------------------------------------------------------------------

_COARSER = (
    (METRIC, RESOURCE),
    (METRIC, METRIC_TYPE),
    (RESOURCE, RESOURCE_TYPE),
    (METRIC_TYPE, RESOURCE_TYPE),
)
_SLACK = 1e-7


@settings(max_examples=100, deadline=None)
@given(RANKS, MEASURED, RULES, BLOCKING)
def test_times_of_bottlenecks_are_parts_of_the_time_that_is_known(
    ranks: list[list[tuple[str, int, int]]], measured: Measured, rules: list[Rule], blocking: list[Blocking]
) -> None:
    found = bottlenecks_of(Attributed(model(ranks), resources(measured), RuleSet((), rules, blocking)))
    by = {grouping: found.by(grouping) for grouping in GROUPINGS}
    for one in by.values():
        assert (one.known <= one.active + _SLACK).all()
        assert (one.without_overhead >= 0).all()
        assert (one.without_overhead <= one.known + _SLACK).all(), "S is at most 1"
        rows, at = one.rows, np.searchsorted(one.phase, one.rows.phase)
        assert (rows.known <= one.known[at] + _SLACK).all()
        for part, whole in (
            (rows.gain, rows.known),
            (rows.gain, one.without_overhead[at]),
            (rows.full, rows.known),
            (rows.full_globally, rows.full),
            (rows.uniquely_full, rows.full),
        ):
            assert (part >= 0).all()
            assert (part <= whole + _SLACK).all()
        alone = np.bincount(at, rows.uniquely_full, len(one.phase))
        assert (alone + one.never_full <= one.known + _SLACK).all()
        assert (np.bincount(at, rows.full, len(one.phase)) + one.never_full >= one.known - _SLACK).all()
    for fine, coarse in _COARSER:
        _check_coarser(by[fine], by[coarse])


def _check_coarser(fine: Grouped, coarse: Grouped) -> None:
    """Of more metrics together more is gained; and what overlaps within a group explains no more time."""
    assert coarse.phase.tolist() == fine.phase.tolist()
    assert coarse.known == pytest.approx(fine.known, abs=_SLACK)
    assert (coarse.without_overhead <= fine.without_overhead + _SLACK).all()
    assert coarse.never_full == pytest.approx(fine.never_full, abs=_SLACK)
    for phase in fine.phase.tolist():
        mine, theirs = fine.rows.of(phase), coarse.rows.of(phase)
        for column in ("gain", "full"):
            most = max(getattr(mine, column), default=0.0)
            assert most <= max(getattr(theirs, column), default=0.0) + _SLACK
        assert mine.uniquely_full.sum() <= theirs.uniquely_full.sum() + _SLACK


@settings(max_examples=60, deadline=None)
@given(RANKS, MEASURED, RULES, BLOCKING)
def test_bottlenecks_do_not_depend_on_the_order_of_phases_and_metrics(
    ranks: list[list[tuple[str, int, int]]], measured: Measured, rules: list[Rule], blocking: list[Blocking]
) -> None:
    told = resources(measured)
    backwards = replace(told, metrics=told.metrics[::-1])
    for grouping in GROUPINGS:
        first, second = (
            _by_name(Attributed(model(each), some, RuleSet((), rules, blocking)), grouping)
            for each, some in ((ranks, told), ([leaves[::-1] for leaves in ranks], backwards))
        )
        assert first.keys() == second.keys()
        for key, row in first.items():
            assert second[key] == pytest.approx(row, abs=1e-6)


def _by_name(found: Attributed, grouping: str) -> dict[tuple[str, str], list[float]]:
    one = bottlenecks_of(found).by(grouping).of_types(found.model.phases.type)
    types, rows = found.model.types, one.rows
    whole = {
        (types.path(int(node)), ""): [active, known, explained, never]
        for node, active, known, explained, never in zip(
            one.phase, one.active, one.known, one.without_overhead, one.never_full, strict=True
        )
    }
    parts = {
        (types.path(int(rows.phase[ix])), one.names[int(rows.group[ix])]): [
            float(getattr(rows, column)[ix])
            for column in ("known", "gain", "full", "full_globally", "uniquely_full")
        ]
        for ix in range(len(rows))
    }
    return whole | parts
