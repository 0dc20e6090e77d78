# SPDX-License-Identifier: Apache-2.0
"""Dependencies between siblings: what is legal, what is told, what times tell; and how types repeat."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.execution import (
    BESIDE,
    CONCURRENT,
    DAG,
    INFERRED,
    ONCE,
    SEQUENTIAL,
    Dependencies,
    ExecutionModel,
    IllegalDependency,
    Phases,
    execution_model,
)
from grademl_otel.analyzers.execution.conflicts import MOST, Conflicts
from grademl_otel.analyzers.execution.dependencies import (
    MOST_BESIDES,
    MOST_EACH,
    check,
    inferred,
    legal,
    none,
)
from grademl_otel.analyzers.execution.repeatability import repeatability
from grademl_otel.analyzers.graph.path import ATTRIBUTE, EVIDENCE, OBSERVED
from grademl_otel.analyzers.graph.path import INFERRED as BY_TIMES

from ..support.build import S, columns
from .test_execution_tree import P, tree


def pairs(found: Dependencies) -> set[tuple[int, int]]:
    return set(zip(found.source.tolist(), found.target.tolist(), strict=True))


def law(phases: Phases, told: Dependencies) -> tuple[Dependencies, list[str]]:
    """Return (what is legal, the lines about what is not)."""
    conflicts = Conflicts()
    return legal(phases, told, conflicts), conflicts.lines


def by_times(*siblings: tuple[int, int]) -> set[tuple[int, int]]:
    """Return the inferred dependencies of siblings with these times, by their places in the list."""
    phases, _, places = tree(
        P(-1, "all", 0, 100), *(P(0, chr(97 + at), *times) for at, times in enumerate(siblings))
    )
    place = {node: at for at, node in enumerate(places[1:])}
    return {(place[before], place[later]) for before, later in pairs(inferred(phases, none()))}


# --- Legality -----------------------------------------------------------------------------------------------

PHASES, _, (A, B, C, INNER) = tree(P(-1, "a", 0, 1), P(-1, "b", 1, 2), P(-1, "c", 2, 3), P(0, "i", 0, 1))


def test_a_dependency_is_between_two_siblings() -> None:
    told = Dependencies.of([(A, A), (A, INNER), (A, B)], OBSERVED)
    kept, wrong = law(PHASES, told)
    assert pairs(kept) == {(A, B)}
    assert sorted(wrong) == [
        "/a cannot come after itself: /a",
        "/a/i cannot come after no sibling of it: /a",
    ]


def test_of_a_circle_what_leads_forward_in_time_stays_and_what_hangs_on_it_too() -> None:
    told = Dependencies.of([(A, B), (B, C), (C, A)], OBSERVED)
    kept, wrong = law(PHASES, told)
    assert pairs(kept) == {(A, B), (B, C)}
    assert wrong == ["/a cannot come after what itself comes after it: /c"]
    backward = Dependencies.of([(B, A), (C, B)], OBSERVED)
    assert pairs(law(PHASES, backward)[0]) == {(B, A), (C, B)}, "times may be wrong; circles cannot be"


def test_a_long_chain_behind_a_circle_is_kept() -> None:
    n = 3000
    phases, _, places = tree(*(P(-1, "a", at, at + 1) for at in range(n)))
    chain = [*pairwise(places), (places[1], places[0])]
    kept, wrong = law(phases, Dependencies.of(chain, OBSERVED))
    assert len(kept) == n - 1
    assert len(wrong) == 1


def test_what_cannot_be_is_told_as_often_as_people_read() -> None:
    n = MOST + 7
    phases, _, places = tree(*(P(-1, "a", at, at + 1) for at in range(n)))
    _, wrong = law(phases, Dependencies.of([(place, place) for place in places], OBSERVED))
    assert len(wrong) == MOST + 1
    assert wrong[-1] == "and 7 conflicts more"


def test_one_that_is_added_is_checked() -> None:
    told = Dependencies.of([(A, B), (B, C)], OBSERVED)
    check(PHASES, A, C, told)
    for source, target, says in ((C, A, "itself comes after it"), (A, A, "itself"), (A, INNER, "no sibling")):
        with pytest.raises(IllegalDependency, match=says):
            check(PHASES, source, target, told)


def test_what_is_told_twice_has_the_better_evidence() -> None:
    told = Dependencies.join([Dependencies.of([(A, B)], evidence) for evidence in (ATTRIBUTE, OBSERVED)])
    assert [EVIDENCE[ix] for ix in told.evidence] == [OBSERVED]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from(EVIDENCE)), max_size=20))
@settings(deadline=None)
def test_there_are_never_circles_and_no_more_is_refused_than_makes_one(
    given_: list[tuple[int, int, str]],
) -> None:
    phases, _, places = tree(*(P(-1, chr(97 + at), at, at + 1) for at in range(7)))
    told = Dependencies.join(
        [Dependencies.of([(places[a], places[b])], evidence) for a, b, evidence in given_] or [none()]
    )
    kept, wrong = law(phases, told)
    graph = nx.DiGraph(list(pairs(kept)))
    assert nx.is_directed_acyclic_graph(graph)
    assert len(kept) + len(wrong) == len(told)
    everything = nx.DiGraph(list(pairs(told)))
    for before, later in pairs(told) - pairs(kept):
        assert before == later or nx.has_path(everything, later, before)
    if nx.is_directed_acyclic_graph(nx.DiGraph(list(pairs(told)))):
        assert not wrong


# --- By times -----------------------------------------------------------------------------------------------


def test_what_runs_one_after_another_is_a_chain() -> None:
    assert by_times((0, 10), (10, 20), (25, 30), (30, 30), (30, 40)) == {(0, 1), (1, 2), (2, 3), (3, 4)}


def test_what_overlaps_does_not_wait_for_each_other() -> None:
    assert by_times((0, 10), (5, 15)) == set()


def test_only_the_frontier_is_waited_for() -> None:
    """The jobs of the Spark parser: 0 and 1 side by side, then 2, then 3 and 4 side by side, then 5."""
    jobs = ((0, 10), (0, 12), (12, 20), (20, 30), (20, 25), (30, 40))
    assert by_times(*jobs) == {(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5)}


def test_a_job_that_has_waited_keeps_its_dependencies_in_the_frontier_until_it_ends() -> None:
    # 1 begins after 0 and runs on; 2 begins meanwhile, and can only have waited for 0 as well.
    assert by_times((0, 10), (10, 50), (20, 30), (60, 70)) == {(0, 1), (0, 2), (1, 3), (2, 3)}


def test_two_crowds_cost_no_product_and_one_that_waits_for_a_crowd_waits_for_all_of_it() -> None:
    n = 2000
    phases, _, places = tree(
        P(-1, "all", 0, 100),
        *(P(0, "a", 0, 10) for _ in range(n)),
        P(0, "b", 10, 20),
        *(P(0, "c", 20, 30) for _ in range(n)),
        *(P(0, "d", 40, 50) for _ in range(n)),
    )
    found = inferred(phases, none())
    waits = np.bincount(found.target, minlength=len(phases))
    assert waits[places[1 + n]] == n
    assert set(waits[places[2 + n : 2 + 2 * n]].tolist()) == {1}
    assert waits[places[2 + 2 * n :]].min() >= 1
    assert len(found) <= MOST_EACH * (3 * n + 1) + MOST_BESIDES + n


def test_times_tell_nothing_where_anything_else_does_and_of_what_has_no_place() -> None:
    phases, _, (_, a, b, c, *_) = tree(
        P(-1, "all", 0, 100),
        P(0, "a", 0, 10),
        P(0, "b", 20, 30),
        P(0, "c", 40, 50),
        P(0, "sum", 60, 70, flags=INFERRED),
        P(0, "beside", 80, 90, flags=BESIDE),
    )
    assert pairs(inferred(phases, none())) == {(a, b), (b, c)}, "no self time, no sums, no other lanes"
    assert pairs(inferred(phases, Dependencies.of([(a, c)], OBSERVED))) == set()
    roots, _, _ = tree(P(-1, "a", 0, 10), P(-1, "b", 20, 30))
    assert not len(inferred(roots, none())), "traces that nothing ties"


TIMES = st.tuples(st.integers(0, 12), st.integers(0, 6))


@given(st.lists(TIMES, min_size=1, max_size=10))
@settings(deadline=None, max_examples=60)
def test_inferred_dependencies_agree_with_time_have_no_circles_and_lose_no_order_of_chains(
    given_: list[tuple[int, int]],
) -> None:
    siblings = [(start, start + length) for start, length in given_]
    found = by_times(*siblings)
    assert all(siblings[before][1] <= siblings[later][0] for before, later in found)
    graph = nx.DiGraph(list(found))
    assert nx.is_directed_acyclic_graph(graph)
    ordered = sorted(range(len(siblings)), key=lambda at: siblings[at])
    if all(siblings[a][1] <= siblings[b][0] for a, b in pairwise(ordered)):
        assert found == set(pairwise(ordered)) or len(set(siblings)) < len(siblings)


# --- Told by spans ------------------------------------------------------------------------------------------


def named(model: ExecutionModel) -> set[tuple[str, str, str]]:
    """Return (source, target, evidence) by names."""
    told = model.dependencies
    return {
        (model.phases.name(source), model.phases.name(target), EVIDENCE[evidence])
        for source, target, evidence in zip(
            told.source.tolist(), told.target.tolist(), told.evidence.tolist(), strict=True
        )
    }


def of(*spans: S) -> ExecutionModel:
    return execution_model(columns(spans), [])


def test_a_link_that_follows_is_observed_and_silences_the_times() -> None:
    model = of(
        S("dag", 0, 100),
        S("a", 0, 10, "dag"),
        S("b", 10, 20, "dag"),
        S("c", 30, 40, "dag", links=[("a", "follows"), ("dag", "follows")]),
        S("d", 32, 35, "c", links=[("b", "follows")]),
        S("e", 35, 40, "c"),
    )
    assert named(model) == {("a", "c", OBSERVED), ("d", "e", BY_TIMES)}
    assert not model.conflicts
    assert named(model.observed()) == {("a", "c", OBSERVED)}


def test_an_attribute_names_what_comes_before_by_id_identifier_or_name() -> None:
    after = "grademl.after"
    model = of(
        S("dag", 0, 100),
        S("a", 0, 10, "dag"),
        S("b0", 0, 10, "dag", name="b"),
        S("b1", 0, 11, "dag", name="b"),
        S("c", 20, 30, "dag", attributes={after: ["b", "a"]}),
        S("d", 40, 50, "dag", attributes={after: "b[n=1]"}),
        S("e", 60, 70, "dag", attributes={after: f"{2:016x}"}),
    )
    told = model.dependencies
    found = {
        (model.phases.identifier(before), model.phases.identifier(later))
        for before, later in zip(told.source.tolist(), told.target.tolist(), strict=True)
    }
    assert found == {("b[n=0]", "c"), ("b[n=1]", "c"), ("a", "c"), ("b[n=1]", "d"), ("a", "e")}
    assert {evidence for *_, evidence in named(model)} == {ATTRIBUTE}


def test_what_an_attribute_names_and_is_not_there_is_a_conflict_and_so_is_a_circle() -> None:
    model = of(
        S("dag", 0, 100),
        S("a", 0, 10, "dag", attributes={"grademl.after": ["gone", "b"]}),
        S("b", 10, 20, "dag", attributes={"grademl.after": "a"}),
        S("c", 20, 30, "dag", attributes={"grademl.after": "c"}),
    )
    assert model.conflicts == [
        "/dag/a: grademl.after names 'gone', which is no sibling of it",
        "/dag/c cannot come after itself: /dag/c",
        "/dag/a cannot come after what itself comes after it: /dag/b",
    ]
    assert len(model.dependencies) == 1


def test_names_that_mean_too_many_are_cut_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grademl_otel.analyzers.execution.told.MOST_NAMED", 3)
    first = [S(f"a{at}", 0, 10, "dag", name="a") for at in range(2)]
    then = [S(f"b{at}", 20, 30, "dag", attributes={"grademl.after": "a"}) for at in range(2)]
    model = of(S("dag", 0, 100), *first, *then)
    assert len(model.dependencies) == 3
    assert model.conflicts == ["grademl.after names more than 3 dependencies: the others are left out"]


@st.composite
def workflows(draw: st.DrawFn) -> list[S]:
    """Up to nine spans of different starts, with links and attributes between any of them."""
    ids = [str(at) for at in range(draw(st.integers(2, 9)))]
    names = st.sampled_from("abc")
    return [
        S(
            own,
            at,
            at + draw(st.integers(0, 6)),
            draw(st.sampled_from([None, *ids[:at]])),
            name=draw(names),
            attributes={"grademl.after": draw(st.lists(names, max_size=2))},
            links=[(draw(st.sampled_from(ids)), draw(st.sampled_from(("follows", "parent"))))],
        )
        for at, own in enumerate(ids)
    ]


@given(workflows(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_the_order_of_spans_changes_nothing(spans: list[S], random: Random) -> None:
    def told(given_: list[S]) -> tuple[list[str], set[tuple[str, str, int]], list[str]]:
        model = of(*given_)
        path, found = model.phases.path, model.dependencies
        rows = zip(found.source.tolist(), found.target.tolist(), found.evidence.tolist(), strict=True)
        return (
            [path(node) for node in range(len(model))],
            {(path(source), path(target), evidence) for source, target, evidence in rows},
            [model.types.path(node) + way for node, way in enumerate(model.repeats)],
        )

    shuffled = random.sample(spans, len(spans))
    assert told(shuffled) == told(spans)


# --- Repeatability ------------------------------------------------------------------------------------------


def repeats(model: ExecutionModel) -> dict[str, str]:
    return {model.types.path(node): way for node, way in enumerate(model.repeats)}


def test_the_four_ways_in_which_phases_repeat() -> None:
    model = of(
        S("job", 0, 100),
        S("o", 0, 10, "job", name="once"),
        S("s0", 0, 10, "job", name="in turn"),
        S("s1", 10, 20, "job", name="in turn"),
        S("c0", 0, 10, "job", name="at once"),
        S("c1", 5, 20, "job", name="at once"),
        S("d0", 0, 10, "job", name="as told"),
        S("d1", 5, 20, "job", name="as told", links=[("d0", "follows")]),
    )
    found = repeats(model)
    assert found["/job"] == ONCE
    assert found["/job/once"] == ONCE
    assert found["/job/in turn"] == SEQUENTIAL
    assert found["/job/at once"] == CONCURRENT
    assert found["/job/as told"] == DAG


def test_two_parents_with_one_each_do_not_repeat_it() -> None:
    model = of(S("a", 0, 10, name="job"), S("b", 0, 10, name="job"), S("c", 0, 5, "a", name="x"),
               S("d", 0, 5, "b", name="x"))  # fmt: skip
    assert repeats(model)["/job"] == CONCURRENT
    assert repeats(model)["/job/x"] == ONCE


def test_what_a_parent_says_counts_more_than_what_was_seen_unless_parents_disagree() -> None:
    def job(*said: str) -> ExecutionModel:
        return of(
            *(
                span
                for at, way in enumerate(said)
                for span in (
                    S(f"job{at}", 0, 100, name="job", attributes={"grademl.repeats": way}),
                    S(f"a{at}", 0, 10, f"job{at}", name="x"),
                    S(f"b{at}", 10, 20, f"job{at}", name="x"),
                )
            )
        )

    assert repeats(job("concurrent"))["/job/x"] == CONCURRENT
    assert repeats(job("concurrent", "concurrent"))["/job/x"] == CONCURRENT
    both = job("concurrent", "dag")
    assert repeats(both)["/job/x"] == SEQUENTIAL
    assert both.conflicts == ["job: grademl.repeats is concurrent and dag; what was seen counts"]
    odd = job("sometimes")
    assert repeats(odd)["/job/x"] == SEQUENTIAL
    assert odd.conflicts == ["/job: grademl.repeats is 'sometimes', no way to repeat"]


def test_inferred_dependencies_make_no_dag() -> None:
    phases, types, _ = tree(P(-1, "all", 0, 100), P(0, "x", 0, 10), P(0, "x", 5, 20), P(0, "x", 30, 40))
    found = dict(zip((types.path(node) for node in range(len(types))),
                     repeatability(phases, types, none()), strict=True))  # fmt: skip
    assert found["/all/x"] == CONCURRENT
