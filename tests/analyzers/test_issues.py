# SPDX-License-Identifier: Apache-2.0
"""Bottlenecks of all leaves by groups, of what consists of them, and what would be gained: end to end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.attribution import balance, issues
from grademl_otel.analyzers.attribution.attribute import Attributed
from grademl_otel.analyzers.attribution.bottlenecks import GLOBAL, LOCAL, NOT_FULL
from grademl_otel.analyzers.attribution.composite_status import (
    ByType,
    Choice,
    Timeline,
    all_of,
    any_of,
    composed,
    most_of,
    statuses_of,
)
from grademl_otel.analyzers.attribution.groupings import (
    GROUPINGS,
    METRIC,
    METRIC_TYPE,
    RESOURCE,
    RESOURCE_TYPE,
    Bottlenecks,
    Grouped,
    bottlenecks_of,
)
from grademl_otel.analyzers.attribution.issues import (
    BOTTLENECK,
    IMBALANCE,
    MEASURED,
    NO_OVERHEAD,
    Issue,
    Issues,
    issues_of,
)
from grademl_otel.analyzers.attribution.observations import EXACT, VARIABLE, Observations
from grademl_otel.analyzers.attribution.rules import Blocking, Rule, RuleSet
from grademl_otel.analyzers.execution import BESIDE, DERIVED, ExecutionModel, Phases
from grademl_otel.analyzers.execution.model import SELF
from grademl_otel.analyzers.execution.repeatability import DAG
from grademl_otel.analyzers.replay.phases import Limit
from grademl_otel.analyzers.resource_model.model import Resource, ResourceMetric, ResourceModel

from .test_execution_tree import P, tree
from .test_replay_recorded import model_of, programs

S = 1_000_000_000

Told = tuple[str, str, str, Sequence[float | None], float]
"""Type and id of a resource, name of a metric, values by second (None: not observed), capacity."""


def resources(*told: Told) -> ResourceModel:
    found: list[Resource] = []
    metrics = []
    for kind, name, metric, values, capacity in told:
        if not any((one.type, one.id) == (kind, name) for one in found):
            found.append(Resource(kind, name))
        which = next(ix for ix, one in enumerate(found) if (one.type, one.id) == (kind, name))
        at = np.array([ix for ix, value in enumerate(values) if value is not None], np.int64)
        seen = np.array([value for value in values if value is not None], np.float64)
        observed = Observations(at * S, (at + 1) * S, seen, capacity)
        metrics.append(ResourceMetric(which, metric, f"{kind}.{metric}", "1", observed, ("test",)))
    return ResourceModel(found, metrics)


def bottlenecks(
    model: ExecutionModel,
    resources_: ResourceModel,
    rules: Sequence[tuple[str, str, float]],
    blocking: Sequence[Blocking] = (),
    full_from_of: Mapping[str, float] | None = None,
) -> Bottlenecks:
    """``rules``: pattern of phases, of metrics, weight."""
    told = RuleSet(rules=[Rule(*rule[:2], VARIABLE, rule[2]) for rule in rules], blocking=blocking)
    return bottlenecks_of(Attributed(model, resources_, told), full_from_of=full_from_of)


def of(grouped: Grouped, phase: int, name: str) -> dict[str, float]:
    """Return the row of a phase and a group."""
    rows = grouped.rows.of(phase)
    (row,) = np.flatnonzero(rows.group == grouped.names.index(name)).tolist()
    return {
        column: float(getattr(rows, column)[row])
        for column in ("known", "gain", "full", "full_globally", "uniquely_full")
    }


def at(grouped: Grouped, phase: int) -> int:
    return grouped.phase.tolist().index(phase)


EVERYTHING = [("**/work", "*", 1.0)]
ONE_SECOND, (ALL, WORK) = model_of(P(-1, "all", 0, S), P(0, "work", 0, S))


# --- Groupings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("u", "explained", "gains"),
    [
        pytest.param((1, 0.5, 0), 1, (0.5, 0, 0), id="B1"),
        pytest.param((0.6, 0.3, 0), 0.9, (0.6, 0.3, 0), id="B2"),
    ],
)
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_the_vectors_end_to_end(
    grouping: str, u: tuple[float, ...], explained: float, gains: tuple[float, ...]
) -> None:
    told = zip(("cpu", "network", "disk"), u, strict=True)
    found = bottlenecks(
        ONE_SECOND, resources(*((kind, "", "busy", [10 * value], 10) for kind, value in told)), EVERYTHING
    ).by(grouping)
    assert found.without_overhead == pytest.approx([explained])
    assert found.rows.gain == pytest.approx(gains)
    assert found.names[0] == {
        METRIC: "/cpu:busy",
        RESOURCE: "/cpu",
        METRIC_TYPE: "cpu.busy",
        RESOURCE_TYPE: "cpu",
    }[grouping]  # fmt: skip


TWO_GPUS = resources(
    ("gpu", "0", "utilization", [1, 1, 0.2], 1),
    ("gpu", "0", "memory", [0.5, 0.5, 0.5], 1),
    ("gpu", "1", "utilization", [1, 0.2, 1], 1),
)
THREE, (_, USER, OTHER) = model_of(P(-1, "all", 0, 3 * S), P(0, "user", 0, 3 * S), P(0, "other", 0, 3 * S))
ONE_EACH = RuleSet(
    rules=[
        Rule("**/user", "gpu.*", VARIABLE, 1.0, resource="/gpu[id=0]"),
        Rule("**/other", "gpu.*", VARIABLE, 1.0, resource="/gpu[id=1]"),
    ]
)


@pytest.mark.parametrize(
    ("grouping", "name", "globally"),
    [
        (METRIC, "/gpu[id=0]:utilization", 2),
        (RESOURCE, "/gpu[id=0]", 2),
        (METRIC_TYPE, "gpu.utilization", 1),
        (RESOURCE_TYPE, "gpu", 1),
    ],
)
def test_a_type_is_a_global_bottleneck_where_all_of_it_is_full(
    grouping: str, name: str, globally: float
) -> None:
    found = bottlenecks_of(Attributed(THREE, TWO_GPUS, ONE_EACH)).by(grouping)
    row = of(found, USER, name)
    assert row["full"] == pytest.approx(2), (
        "that the other is full in the third second makes none of this one"
    )
    assert row["full_globally"] == pytest.approx(globally)


def test_all_of_a_type_is_full_from_the_very_limit_on() -> None:
    at_limit = resources(
        ("gpu", "0", "utilization", [1, 1, 0], 1), ("gpu", "1", "utilization", [19, 18.9, 20], 20)
    )
    found = bottlenecks_of(Attributed(THREE, at_limit, ONE_EACH)).by(METRIC_TYPE)
    assert of(found, USER, "gpu.utilization")["full_globally"] == pytest.approx(1)


def test_what_is_not_known_is_not_what_is_not_full() -> None:
    model, (_, one, two, three) = model_of(
        P(-1, "all", 0, 4 * S), P(0, "work", 0, 4 * S), P(0, "idle", 0, 2 * S), P(0, "endless", 0, S)
    )
    seen = resources(
        ("cpu", "", "busy", [1.0, None, 0.5, None], 1),
        ("power", "", "used", [5, 5, 5, 5], math.inf),
    )
    rules = [("**/work", "cpu.*", 1.0), ("**/endless", "power.*", 1.0)]
    found = bottlenecks(model, seen, rules).by()
    rows = [at(found, phase) for phase in (one, two, three)]
    assert found.active[rows].tolist() == [4, 2, 1]
    assert found.known[rows].tolist() == [2, 0, 0]
    assert found.never_full[rows].tolist() == [1, 0, 0]
    assert of(found, one, "cpu") == {
        "known": 2, "gain": 1.5, "full": 1, "full_globally": 1, "uniquely_full": 1,
    }  # fmt: skip
    for phase in (two, three):
        assert not len(found.rows.of(phase)), "defect 10: of these nothing is attributed"


def test_one_metric_may_be_full_sooner_than_others() -> None:
    seen = resources(("cpu", "", "busy", [0.85], 1), ("disk", "", "busy", [0.85], 1))
    plain = bottlenecks(ONE_SECOND, seen, EVERYTHING).by()
    sooner = bottlenecks(ONE_SECOND, seen, EVERYTHING, full_from_of={"disk.busy": 0.8}).by()
    assert plain.rows.full.tolist() == [0, 0]
    assert sooner.rows.full.tolist() == [0, 1]


def test_phases_that_use_a_metric_in_other_ways_have_their_own_bottlenecks() -> None:
    model, (_, exact, rest, idle) = model_of(
        P(-1, "all", 0, S), P(0, "exact", 0, S), P(0, "rest", 0, S), P(0, "idle", 0, S)
    )
    rules = RuleSet(
        rules=[
            Rule("**/exact", "cpu.*", EXACT, 4.0),
            Rule("**/rest", "cpu.*", VARIABLE, 1.0),
            Rule("**/idle", "cpu.*", VARIABLE, 0.0),
        ]
    )
    found = bottlenecks_of(Attributed(model, resources(("cpu", "", "busy", [7], 10)), rules)).by()
    assert [of(found, node, "cpu")["gain"] for node in (exact, rest, idle)] == pytest.approx([1, 0.5, 0])
    assert [of(found, node, "cpu")["full"] for node in (exact, rest, idle)] == [1, 0, 0]


def test_types_are_sums_of_their_phases() -> None:
    model, _ = model_of(P(-1, "all", 0, 2 * S), P(0, "work", 0, S), P(0, "work", S, 2 * S))
    by_phase = bottlenecks(model, resources(("cpu", "", "busy", [1, 0.5], 1)), EVERYTHING).by()
    found = by_phase.of_types(model.phases.type)
    assert [model.types.path(kind) for kind in found.phase.tolist()] == ["/all/work"]
    assert found.known.tolist() == [2]
    assert found.rows.gain.tolist() == [1.5]
    assert found.rows.full.tolist() == [1]


# --- What stops phases --------------------------------------------------------------------------------------

GC = [Blocking("**/work", by="**/gc")]
STOPPED, (_, BUSY, COLLECTING) = model_of(
    P(-1, "all", 0, 4 * S), P(0, "work", 0, 4 * S), P(0, "gc", S, 2 * S)
)


def test_what_stops_a_phase_is_its_bottleneck_and_nothing_else_is() -> None:
    seen = resources(("cpu", "", "busy", [1, 1, 1, 0.5], 1))
    found = bottlenecks(STOPPED, seen, [("**/work", "cpu.*", 1.0), ("**/gc", "cpu.*", 1.0)], GC).by()
    assert found.names == ["cpu", "**/gc"]
    assert of(found, BUSY, "**/gc") == {
        "known": 1, "gain": 1, "full": 1, "full_globally": 1, "uniquely_full": 1,
    }  # fmt: skip
    assert of(found, BUSY, "cpu")["full"] == 2
    assert found.active[at(found, BUSY)] == 4
    assert found.known[at(found, BUSY)] == 4
    assert found.never_full[at(found, BUSY)] == 1
    assert found.without_overhead[at(found, BUSY)] == pytest.approx(3.5)
    assert of(found, COLLECTING, "cpu")["full"] == 1


def test_of_two_things_that_stop_a_phase_neither_is_the_only_one() -> None:
    model, (_, work, *_) = model_of(
        P(-1, "all", 0, 4 * S),
        P(0, "work", 0, 4 * S),
        P(0, "gc", S, 3 * S),
        P(0, "lock", 2 * S, 4 * S),
    )
    both = [Blocking("**/work", by="**/gc"), Blocking("**/work", by="**/lock")]
    found = bottlenecks(model, resources(("cpu", "", "busy", [0.1] * 4, 1)), EVERYTHING, both).by()
    for name in ("**/gc", "**/lock"):
        row = of(found, work, name)
        assert (row["full"], row["uniquely_full"], row["gain"]) == (2, 1, 1)
    assert found.known[at(found, work)] == 4, "time is counted once"


def test_periods_of_what_stops_a_phase_are_none_of_them_empty() -> None:
    model, (_, work, *_) = model_of(
        P(-1, "all", 0, 4 * S), P(0, "work", 0, 4 * S), P(0, "gc", S, 3 * S), P(0, "lock", S, 3 * S)
    )
    both = [Blocking("**/work", by="**/gc"), Blocking("**/work", by="**/lock")]
    stopped = bottlenecks(model, resources(("cpu", "", "busy", [1], 1)), EVERYTHING, both).stopped()
    assert stopped is not None
    assert (stopped.leaf.tolist(), stopped.by.tolist()) == ([work], [[True, True]])
    assert (stopped.start.tolist(), stopped.end.tolist()) == ([S], [3 * S])


# --- Phases that consist of others --------------------------------------------------------------------------


def pieces(*rows: tuple[int, int, int, Sequence[int]]) -> Timeline:
    """Phases, start, end, what each group was."""
    phase, start, end, state = zip(*rows, strict=True)
    return Timeline(np.array(phase), np.array(start) * S, np.array(end) * S, np.array(state, np.int8))


PARENT, _, (TOP, FIRST, SECOND, THIRD) = tree(
    P(-1, "top", 0, 4 * S), P(0, "a", 0, 4 * S), P(0, "a", 0, 2 * S), P(0, "b", 0, 4 * S)
)
LEAVES = pieces(
    (FIRST, 0, 1, [GLOBAL, NOT_FULL]),
    (FIRST, 1, 4, [NOT_FULL, NOT_FULL]),
    (SECOND, 0, 2, [LOCAL, NOT_FULL]),
    (THIRD, 0, 3, [LOCAL, LOCAL]),
    (THIRD, 3, 4, [NOT_FULL, NOT_FULL]),
)


@pytest.mark.parametrize(
    ("choice", "full", "globally", "unique", "never"),
    [
        pytest.param(any_of, [3, 3], [1, 0], [0, 0], 1, id="any"),
        pytest.param(all_of, [1, 0], [0, 0], [1, 0], 3, id="all"),
        pytest.param(most_of, [3, 1], [0, 0], [2, 0], 1, id="most"),
        pytest.param(ByType(any_of, all_of), [2, 0], [0, 0], [2, 0], 2, id="by type"),
        pytest.param(ByType(all_of, any_of), [3, 3], [0, 0], [0, 0], 1, id="by type, the other way"),
    ],
)
def test_a_parent_is_what_a_predicate_says_of_its_children(
    choice: Choice, full: list[float], globally: list[float], unique: list[float], never: float
) -> None:
    found = composed(LEAVES, PARENT, ["cpu", "disk"], choice)
    assert found.active[TOP] == 4
    assert found.full[TOP].tolist() == full
    assert found.full_globally[TOP].tolist() == globally
    assert found.never_full[TOP] == never
    if choice is not most_of:
        assert found.uniquely_full[TOP].tolist() == unique


def test_types_do_not_see_each_others_children() -> None:
    """Defect 19: the pool of one type was not emptied before the next."""
    phases, _, (top, one, other) = tree(P(-1, "top", 0, S), P(0, "a", 0, S), P(0, "b", 0, S))
    for full, free in ((one, other), (other, one)):
        leaves = pieces((full, 0, 1, [LOCAL]), (free, 0, 1, [NOT_FULL]))
        found = composed(leaves, phases, ["cpu"], ByType(any_of, all_of))
        assert found.full[top].tolist() == [0]


def test_parents_may_choose() -> None:
    phases, types, (top, one, two, *_) = tree(
        P(-1, "top", 0, S),
        P(0, "strict", 0, S),
        P(0, "loose", 0, S),
        *(P(parent, name, 0, S) for parent in (1, 2) for name in "ab"),
    )
    leaves = [
        (node, 0, 1, [GLOBAL if phases.name(node) == "a" else NOT_FULL])
        for node in np.flatnonzero(phases.leaves).tolist()
    ]
    strict = {types.at("/top/strict"): all_of}
    found = composed(pieces(*leaves), phases, ["cpu"], any_of, strict)
    assert [found.full[node, 0] for node in (top, one, two)] == [1, 0, 1]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 4), st.sampled_from([NOT_FULL, LOCAL, GLOBAL])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([any_of, all_of, most_of]),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=100)
def test_statuses_are_what_each_second_gives(
    children: list[tuple[int, int, int]], choice: Choice, random: object
) -> None:
    """Each child: start, length, what it was; in any order of children."""
    phases, _, (top, *nodes) = tree(
        P(-1, "top", 0, 10 * S),
        *(P(0, "a", start * S, (start + length) * S) for start, length, _ in children),
    )
    rows = [(node, one[0], one[0] + one[1], [one[2]]) for node, one in zip(nodes, children, strict=True)]
    random.shuffle(rows)  # type: ignore[attr-defined]
    found = composed(pieces(*rows), phases, ["cpu"], choice, keep=np.arange(len(phases)) == top)
    full = globally = active = 0
    for second in range(10):
        now = [what for start, length, what in children if start <= second < start + length]
        bottleneck, everywhere = sum(one > 0 for one in now), sum(one == GLOBAL for one in now)
        if not now:
            continue
        active += 1
        if choice is any_of:
            is_one, is_global = bottleneck > 0, everywhere > 0
        elif choice is all_of:
            is_one, is_global = bottleneck == len(now), everywhere == len(now)
        else:
            is_one = bottleneck > 0 and bottleneck * 2 >= len(now)
            is_global = is_one and everywhere > 0 and everywhere * 2 >= len(now)
        full += is_one
        globally += is_global
    assert found.active[top] == active
    assert (found.full[top, 0], found.full_globally[top, 0]) == (full, globally)
    kept = found.kept
    assert (kept.start[1:] >= kept.end[:-1]).all()
    some = kept.state[:, 0] > 0
    assert ((kept.end - kept.start)[some].sum(), (kept.end - kept.start).sum()) == (full * S, active * S)


def test_a_whole_model_has_the_time_of_its_leaves() -> None:
    seen = resources(("cpu", "", "busy", [1, None, 1, 0.5], 1))
    found = bottlenecks(STOPPED, seen, [("**/work", "cpu.*", 1.0)], GC)
    grouped, statuses = found.by(), statuses_of(found, STOPPED.phases)
    assert statuses.names == grouped.names
    rows = grouped.rows
    for phase in grouped.phase.tolist():
        assert statuses.active[phase] == grouped.active[at(grouped, phase)]
        for group in range(len(statuses.names)):
            mine = (rows.phase == phase) & (rows.group == group)
            assert statuses.full[phase, group] == pytest.approx(rows.full[mine].sum())
            assert statuses.uniquely_full[phase, group] == pytest.approx(rows.uniquely_full[mine].sum())
    everything = STOPPED.phases.parent[BUSY]
    assert statuses.active[everything] == 4
    assert statuses.full[everything].tolist() == [2, 1]
    assert statuses.never_full[everything] == 1


def test_depth_is_no_recursion() -> None:
    depth = 1_000
    phases, _, places = tree(*(P(ix - 1, "a", 0, S) for ix in range(depth)))
    found = composed(pieces((places[-1], 0, 1, [LOCAL])), phases, ["cpu"])
    assert (found.full[:, 0] == 1).all()


# --- Issues -------------------------------------------------------------------------------------------------


def seconds(*given_: tuple[int, str, float, float]) -> list[P]:
    return [P(parent, name, round(start * S), round(end * S)) for parent, name, start, end in given_]


def named(found: Issues, kind: str, cause: str, target: str) -> Issue:
    (one,) = [
        issue
        for issue in found
        if (issue.kind, issue.cause, found.model.types.path(issue.target)) == (kind, cause, target)
    ]
    return one


BESIDE_OTHERS = seconds(
    (-1, "run", 0, 15),
    (0, "left", 0, 15),
    (0, "right", 0, 12),
    (1, "a", 0, 10),
    (1, "b", 10, 15),
    (2, "c", 0, 12),
)
S2_MODEL, (RUN, LEFT, RIGHT, *_) = model_of(*BESIDE_OTHERS)
FULL_IN_A = resources(
    ("cpu", "", "busy", [1] * 8 + [0] * 7, 1),
    ("disk", "", "busy", [0] * 8 + [1] * 7, 1),
    ("network", "", "busy", [1] * 15, 1),
)
OF_A_B_C = [
    ("**/a", "cpu.*", 1.0),
    ("**/a", "disk.*", 1.0),
    ("**/b", "disk.*", 1.0),
    ("**/c", "network.*", 1.0),
]


def test_s2_what_is_gained_is_simulated_and_shown_where_it_is() -> None:
    found = issues_of(S2_MODEL, bottlenecks(S2_MODEL, FULL_IN_A, OF_A_B_C))
    cpu = named(found, BOTTLENECK, "cpu", "/run/left/a")
    assert cpu.removed == pytest.approx(8)
    assert cpu.gain == pytest.approx(3), "beside it c takes 12"
    assert cpu.of_phase(LEFT) == pytest.approx(8)
    assert cpu.of_phase(RUN) == pytest.approx(3)
    assert cpu.of_phase(RIGHT) == 0
    assert cpu.of_measured == cpu.of_simulated == pytest.approx(3 / 15)
    assert (cpu.least, cpu.most) == (cpu.gain, cpu.gain)
    network = named(found, BOTTLENECK, "network", "/run/right/c")
    assert network.gain == 0
    assert network.of_phase(RIGHT) == pytest.approx(12), (
        "it is told where it is, also without a gain of the whole"
    )
    assert found.of_phase(LEFT)[0].issue is cpu
    assert found.of_phase(RUN)[0].of_measured == pytest.approx(3 / 15)
    gains = [one.gain for one in found]
    assert gains == sorted(gains, reverse=True)


def test_time_that_nothing_explains_is_not_in_the_baseline() -> None:
    model, (run, *_) = model_of(*seconds((-1, "run", 0, 10), (0, "a", 0, 10)))
    seen = resources(
        ("cpu", "", "busy", [1] * 4 + [0.5] * 2 + [None] * 4, 1),
        ("disk", "", "busy", [0] * 6 + [None] * 4, 1),
    )
    found = issues_of(model, bottlenecks(model, seen, [("**/a", "*", 1.0)]))
    assert found.simulated[run] == pytest.approx(8), "2 s were not bottlenecked; of 4 s nothing is known"
    cpu = named(found, BOTTLENECK, "cpu", "/run/a")
    assert cpu.gain == pytest.approx(4)
    assert (cpu.of_measured, cpu.of_simulated) == (pytest.approx(0.4), pytest.approx(0.5))
    measured = issues_of(model, bottlenecks(model, seen, [("**/a", "*", 1.0)]), baseline=MEASURED)
    assert measured.simulated[run] == pytest.approx(10)
    assert measured.all[0].gain == pytest.approx(4)
    with pytest.raises(ValueError, match="no baseline"):
        issues_of(model, bottlenecks(model, seen, []), baseline="any")


def test_two_bottlenecks_at_once_are_no_gain_of_either() -> None:
    seen = resources(("cpu", "", "busy", [1], 1), ("disk", "", "busy", [1], 1))
    found = issues_of(ONE_SECOND, bottlenecks(ONE_SECOND, seen, EVERYTHING))
    assert not len(found)


def test_defect_20_without_known_dependencies_nothing_is_taken_for_concurrent() -> None:
    model, _ = model_of(*seconds((-1, "run", 0, 10), (0, "a", 0, 6), (0, "b", 6, 10)))
    found = bottlenecks(model, resources(("cpu", "", "busy", [1] * 10, 1)), [("**/a", "cpu.*", 1.0)])
    guessed = issues_of(model, found)
    assert guessed.all[0].gain == pytest.approx(6)
    assert any("inferred from times alone" in note for note in guessed.notes)
    known = issues_of(model, found, inferred=False)
    assert known.all == [], "b began when it began: a fast a alone ends nothing earlier"
    assert not any("inferred" in note for note in known.notes)


def test_what_waits_gives_a_range() -> None:
    model, _ = model_of(
        *seconds((-1, "step", 0, 10), (0, "forward", 0, 4), (0, "data.wait", 4, 6), (0, "backward", 6, 10))
    )
    seen = resources(("cpu", "", "busy", [1] * 10, 1))
    found = issues_of(
        model, bottlenecks(model, seen, [("**/forward", "cpu.*", 1.0), ("**/backward", "cpu.*", 1)])
    )
    ahead = named(found, BOTTLENECK, "cpu", "/step/forward")
    assert (ahead.least, ahead.gain) == (pytest.approx(0), pytest.approx(4)), "the data may come no sooner"
    assert ahead.most == pytest.approx(4)
    behind = named(found, BOTTLENECK, "cpu", "/step/backward")
    assert behind.least == behind.gain == behind.most == pytest.approx(4)
    assert any("1 wait for others" in note for note in found.notes)


def test_a_wait_that_took_no_time_is_not_told() -> None:
    model, _ = model_of(*seconds((-1, "step", 0, 4), (0, "data.wait", 0, 0), (0, "forward", 0, 4)))
    assert not any("for others" in note for note in issues_of(model, None).notes)


def test_what_runs_beside_can_only_shorten_waits() -> None:
    model, _ = model_of(
        P(-1, "rank", 0, 10 * S),
        P(0, "data.wait", 0, 6 * S),
        P(0, "forward", 6 * S, 10 * S),
        P(0, "worker", flags=BESIDE | DERIVED),
        P(3, "fetch", 0, 6 * S),
    )
    seen = resources(("disk", "", "busy", [1] * 4 + [0.1] * 6, 1))
    found = issues_of(model, bottlenecks(model, seen, [("**/fetch", "disk.*", 1.0)]), baseline=MEASURED)
    (one,) = found
    assert one.beside
    assert (one.gain, one.least, one.most) == (0, 0, pytest.approx(4)), "no more than the fetch is faster"


def test_issues_that_were_not_simulated_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issues, "MOST_BOTTLENECKS", 1)
    found = issues_of(S2_MODEL, bottlenecks(S2_MODEL, FULL_IN_A, OF_A_B_C))
    kept = [one for one in found if one.kind == BOTTLENECK]
    assert [one.cause for one in kept] == ["network"], "the one with most time in its leaves"
    assert found.left_out == 3


def test_columns_that_are_simulated_apart_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    told = bottlenecks(S2_MODEL, FULL_IN_A, OF_A_B_C)
    together = [(one.cause, one.target, one.gain) for one in issues_of(S2_MODEL, told)]
    monkeypatch.setattr(issues, "_CELLS", 1)
    assert [(one.cause, one.target, one.gain) for one in issues_of(S2_MODEL, told)] == together


def test_several_traces_have_the_mean_gain() -> None:
    model, _ = model_of(
        *seconds(
            (-1, "get", 0, 4),
            (-1, "get", 10, 14),
            (0, "work", 0, 4),
            (1, "work", 10, 12),
            (1, "rest", 12, 14),
        )
    )
    found = issues_of(model, bottlenecks(model, resources(("cpu", "", "busy", [1] * 14, 1)), EVERYTHING))
    assert len(found.tops) == 2
    (one,) = found
    assert one.gain == pytest.approx(3)
    assert one.of_measured == one.of_simulated == pytest.approx(6 / 8)
    (of_type,) = found.of_type(model.types.at("/get"))
    assert of_type.gain == pytest.approx(3)
    assert of_type.of_measured == pytest.approx(6 / 8)


# --- Imbalance ----------------------------------------------------------------------------------------------


def test_s4_work_that_is_spread_evenly() -> None:
    model, (run, *_) = model_of(
        *seconds((-1, "run", 0, 12), (0, "task", 0, 4), (0, "task", 0, 8), (0, "task", 0, 12))
    )
    found = issues_of(model, None)
    (one,) = found
    assert (one.kind, one.cause, one.phases) == (IMBALANCE, "/run", 3)
    assert one.gain == pytest.approx(4)
    assert one.of_phase(run) == pytest.approx(4)
    assert one.of_measured == pytest.approx(4 / 12)
    assert found.baseline == MEASURED


def test_what_was_waited_for_before_takes_nothing_off_what_an_even_spread_gains() -> None:
    model, _ = model_of(
        *seconds(
            (-1, "run", 0, 14),
            (0, "collective.wait", 0, 2),
            *((0, "task", 2, 2 + work) for work in (4, 8, 12)),
        )
    )
    (one,) = (each for each in issues_of(model, None) if each.kind == IMBALANCE)
    assert (one.least, one.gain, one.most) == pytest.approx((4, 4, 4))


def test_phases_that_follow_each_other_do_not_exchange_work() -> None:
    model, _ = model_of(*seconds((-1, "run", 0, 12), (0, "task", 0, 4), (0, "task", 4, 12)))
    assert not len(issues_of(model, None))


RANKS = [P(-1, "run", 0, 20 * S)] + [
    P(0, "rank", 0, 20 * S, of_instance=(("rank", str(rank)),)) for rank in range(2)
]


def ranks(*works: tuple[float, float]) -> tuple[ExecutionModel, list[int]]:
    """Return a run of two ranks, each with steps of so many seconds of work, and then waiting."""
    given_ = list(RANKS)
    for number, both in enumerate(works):
        begin, length = number * 10, max(both)
        for rank, work in enumerate(both):
            step = len(given_)
            given_.append(P(1 + rank, "step", begin * S, round((begin + length) * S), step=number))
            given_.append(P(step, "forward", begin * S, round((begin + work) * S)))
            if work < length:
                given_.append(
                    P(step, "collective.wait", round((begin + work) * S), round((begin + length) * S))
                )
    return model_of(*given_)


def test_steps_of_ranks_that_are_called_the_same_exchange_work() -> None:
    model, _ = ranks((10, 4), (10, 4))
    found = issues_of(model, None)
    one = named(found, IMBALANCE, "/run", "/run/rank/step/forward")
    assert one.phases == 4
    assert one.gain == pytest.approx(6), "7 + 7 in place of 10 + 10"
    assert (one.least, one.most) == (0, one.gain), "what ends the waits is not known"
    targets = {model.types.path(issue.target) for issue in found}
    assert "/run/rank/step/collective.wait" not in targets, "a wait is no work"
    assert "/run/rank" in targets
    assert named(found, IMBALANCE, "/run", "/run/rank").least == 0, "there are waits in it, too"


def test_ranks_that_take_turns_in_being_slow_are_not_told_to_gain_more_than_is_known() -> None:
    model, _ = ranks((10, 4), (4, 10))
    found = issues_of(model, None)
    assert all(issue.gain == 0 for issue in found), "without the waits both ranks did as much"


MEETING = [[(10, 2), (4, 2)], [(10, 2), (4, 2)]]
"""Two rounds; in each the first rank works for 10, the second for 4, then both transfer for 2."""


def meeting(rounds: Sequence[Sequence[tuple[int, int]]]) -> tuple[ExecutionModel, list[int]]:
    phases, met = programs(*rounds)
    return model_of(*(replace(one, start=one.start * S, end=one.end * S) for one in phases), met=met)


def test_ranks_that_meet_gain_what_the_slowest_gains() -> None:
    model, _ = meeting(MEETING)
    found = issues_of(model, None)
    (one,) = found
    assert model.types.path(one.target) == "/run/rank/work", "in all else ranks wait for each other"
    assert (one.gain, one.least, one.most) == (6, 6, 6), "7 + 2 + 7 + 2 in place of 24, and no more"
    assert [model.phases.path(node) for node in one.affected.tolist()] == ["/", "/run"], "of both together"
    assert not any("for others" in note for note in found.notes)


def test_a_bottleneck_of_one_rank_gains_until_the_others_are_the_last() -> None:
    phases, met = programs(*MEETING)
    first = [replace(one, name="slow") if (one.parent, one.name) == (1, "work") else one for one in phases]
    model, _ = model_of(*(replace(one, start=one.start * S, end=one.end * S) for one in first), met=met)
    seen = resources(("cpu", "", "busy", [1] * 24, 1))
    told = bottlenecks(model, seen, [("**/slow", "cpu.*", 1.0)])
    (one,) = issues_of(model, told, baseline=MEASURED)
    assert (one.kind, one.phases) == (BOTTLENECK, 2)
    assert one.removed == 20
    assert (one.least, one.gain, one.most) == (12, 12, 12), "the others take 4 a round"


def test_neither_waits_nor_transfers_nor_what_holds_them_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issues, "MOST_IMBALANCES", 1)
    model, _ = meeting([[(10, 3), (4, 2), (7, 1)], [(10, 1), (7, 5), (4, 3)]])
    found = issues_of(model, None)
    assert [model.types.path(issue.target) for issue in found] == ["/run/rank/work"]
    assert found.left_out == 0


def test_of_a_wait_nothing_can_be_removed_but_what_others_leave() -> None:
    model, _ = meeting(MEETING)
    seen = resources(("cpu", "", "busy", [1] * 24, 1))
    told = bottlenecks(model, seen, [("**/ranks.wait", "cpu.*", 1.0)])
    for baseline in (MEASURED, NO_OVERHEAD):
        assert not [one for one in issues_of(model, told, baseline=baseline) if one.kind == BOTTLENECK]


def test_turns_are_evened_out_where_ranks_meet() -> None:
    """Each rank does as much as the other, and both wait."""
    (one,) = issues_of(meeting([[(10, 1), (4, 1)], [(4, 1), (10, 1)]])[0], None)
    assert (one.gain, one.least, one.most) == (6, 6, 6)


def test_a_collective_that_is_not_told_apart_is_a_wait() -> None:
    model, _ = model_of(
        *seconds((-1, "rank", 0, 10), (-1, "rank", 0, 10)),
        *seconds((0, "work", 0, 9), (0, "collective", 9, 10), (1, "work", 0, 3), (1, "collective", 3, 10)),
    )
    found = issues_of(model, None)
    targets = {model.types.path(issue.target) for issue in found}
    assert targets == {"/rank", "/rank/work"}
    assert all(issue.least == 0 for issue in found)
    assert any("2 waits for others" in note for note in found.notes)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_gains_are_ranges_and_no_losses(
    rounds: list[list[tuple[int, int]]], known: bool, data: st.DataObject
) -> None:
    """Of ranks that meet, and of the same where it is not known that they do."""
    model, _ = meeting(rounds) if known else model_of(*(
        replace(one, start=one.start * S, end=one.end * S) for one in programs(*rounds)[0]
    ))  # fmt: skip
    length = int(model.phases.end[0]) // S
    busy = data.draw(st.lists(st.sampled_from([0, 0.5, 1]), min_size=length, max_size=length))
    told = bottlenecks(model, resources(("cpu", "", "busy", busy, 1)), EVERYTHING)
    for baseline in (MEASURED, NO_OVERHEAD):
        for one in issues_of(model, told, baseline=baseline):
            assert 0 <= one.least <= one.gain + 1e-9
            assert one.gain <= one.most + 1e-9
            assert one.gain <= one.removed + 1e-9
            if known:
                assert one.least == one.most


def test_sets_are_told_of_each_scope() -> None:
    model, _ = ranks((10, 4), (6, 4))
    found = {
        (model.types.path(one.scope), model.types.path(one.target)): one
        for one in balance.exchanges(model, model.phases.has(SELF))
    }
    forward = found["/run", "/run/rank/step/forward"]
    paths = [model.phases.path(node) for node in forward.members.tolist()]
    assert [set(paths[:2]), set(paths[2:])] == [
        {f"/run/rank[rank={rank}]/step[step={step}]/forward" for rank in range(2)} for step in range(2)
    ]
    assert forward.first.tolist() == [0, 2]
    assert forward.balanced(model.phases.duration).tolist() == [7 * S, 7 * S, 5 * S, 5 * S]
    assert forward.uneven(model.phases.duration) == 4 * S


def test_who_is_alone_in_a_step_has_nobody_to_exchange_work_with() -> None:
    given_ = list(RANKS)
    for rank, step in ((0, 0), (1, 0), (0, 1)):
        given_.append(P(1 + rank, "step", 10 * step * S, (10 * step + 4 + rank) * S, step=step))
    model, _ = model_of(*given_)
    (found,) = (
        one
        for one in balance.exchanges(model, model.phases.has(SELF))
        if (model.types.path(one.scope), model.types.path(one.target)) == ("/run", "/run/rank/step")
    )
    assert found.first.tolist() == [0]
    assert model.phases.number[found.members].tolist() == [0, 0]


def test_what_depends_on_each_other_does_not_exchange_work() -> None:
    """Of each job task 2 comes after task 0, beside task 1: those of both jobs with one number do."""
    jobs = [P(-1, "job", 0, 9 * S) for _ in range(2)]
    tasks = [
        P(job, "task", *times, step=at) for job in (0, 1) for at, times in enumerate(((0, 4), (0, 9), (4, 8)))
    ]
    model, _ = model_of(*jobs, *tasks, told=((2, 4), (5, 7)))
    assert model.repeats[model.types.at("/job/task")] == DAG
    (one,) = [
        one
        for one in balance.exchanges(model, model.phases.has(SELF))
        if model.types.path(one.target) == "/job/task"
    ]
    assert one.first.tolist() == [0, 2, 4]
    assert model.phases.number[one.members].tolist() == [0, 0, 1, 1, 2, 2]


def test_what_nobody_recorded_has_no_work_to_give_away() -> None:
    lanes = [P(0, "worker", flags=BESIDE | DERIVED) for _ in range(2)]
    model, _ = model_of(P(-1, "rank", 0, 9), *lanes, P(1, "fetch", 0, 9), P(2, "fetch", 0, 3))
    targets = {one.target for one in balance.exchanges(model, model.phases.has(SELF))}
    assert {model.types.path(target) for target in targets} == {"/rank/worker/fetch"}


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5))
@settings(deadline=None, max_examples=30)
def test_an_even_spread_is_never_worse_and_the_mean_is_the_end(works: list[int]) -> None:
    longest = max(works)
    model, _ = model_of(*seconds((-1, "run", 0, longest), *((0, "task", 0, work) for work in works)))
    gain = sum(issue.gain for issue in issues_of(model, None))
    assert gain == pytest.approx(longest - sum(works) / len(works))


def test_self_time_is_spread_evenly_by_what_it_takes_not_by_where_it_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _ = model_of(
        *seconds(
            (-1, "run", 0, 12), (0, "task", 0, 12), (0, "task", 0, 6), (1, "part", 4, 8), (2, "part", 1, 5)
        )
    )
    one = named(issues_of(model, None), IMBALANCE, "/run", "/run/task/self")
    assert one.gain == pytest.approx(3), "8 and 2 become 5 and 5, beside 4 each"
    monkeypatch.setattr(issues, "MOST_IMBALANCES", 1)
    fewer = issues_of(model, None)
    assert (len(fewer), fewer.left_out) == (1, 1)


def test_what_would_cost_more_than_it_gains_is_no_issue() -> None:
    """In the first stage an even spread gains 3; in the second it delays what comes after."""
    model, _ = model_of(
        *seconds(
            (-1, "run", 0, 32), (0, "stage", 0, 10), (0, "stage", 10, 32),
            (1, "rank", 0, 10), (1, "rank", 0, 4), (2, "rank", 10, 20), (2, "rank", 10, 32),
            (3, "work", 0, 10), (4, "work", 0, 4),
            (5, "work", 10, 20), (6, "work", 10, 12), (6, "end", 12, 32),
        )
    )  # fmt: skip
    found = issues_of(model, None)
    assert "/run/stage/rank/work" not in {model.types.path(one.target) for one in found}
    assert "/run/stage/rank" in {model.types.path(one.target) for one in found}


def test_a_limit_is_simulated_and_told() -> None:
    """S3, and the same without a bottleneck that is half of it."""
    model, (run, *tasks) = model_of(*seconds((-1, "run", 0, 10), *[(0, "task", 0, 10)] * 5))
    limit = Limit(np.array(tasks), 2)
    seen = resources(("cpu", "", "busy", [1] * 5 + [0.1] * 5, 1))
    told = bottlenecks(model, seen, [("**/task", "cpu.*", 1.0)])
    found = issues_of(model, told, baseline=MEASURED, limits=[limit])
    assert found.simulated[run] == 30
    (one,) = found
    assert one.gain == pytest.approx(15)
    assert any("limit" in note for note in found.notes)


def test_the_whole_is_not_what_runs_beside_it() -> None:
    model, (rank, *_) = model_of(
        P(-1, "rank", flags=DERIVED), P(0, "worker", flags=BESIDE | DERIVED), P(1, "fetch", 0, 3 * S)
    )
    assert issues_of(model, None).tops.tolist() == [rank]


def test_nothing_at_all_has_no_issues() -> None:
    model, _ = model_of(P(-1, "run", 0, 0))
    assert not len(issues_of(model, None))
    assert isinstance(model.phases, Phases)
    assert not len(issues_of(model, bottlenecks(model, resources(), [])))
