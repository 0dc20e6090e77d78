# SPDX-License-Identifier: Apache-2.0
"""The execution model as a tree: identity, derived phases, self time, metadata, order, moments."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.execution import (
    BESIDE,
    DERIVED,
    INFERRED,
    SELF,
    Pattern,
    Phases,
    Types,
    active,
    moments,
)
from grademl_otel.analyzers.execution.assembly import NoTree, assemble
from grademl_otel.analyzers.execution.draft import ROOT, Draft, IllegalPlace
from grademl_otel.analyzers.execution.identity import identifier, tags


@dataclass(frozen=True)
class P:
    """A phase of a draft, by the place of its parent in a list; -1 for the root."""

    parent: int
    name: str
    start: int = 0
    end: int = 0
    step: int | None = None
    type_tags: tuple[tuple[str, str], ...] = ()
    of_instance: tuple[tuple[str, str], ...] = ()
    flags: int = 0
    host: str = ""


def tree(*given: P) -> tuple[Phases, Types, list[int]]:
    """Return the tree of ``given`` phases, its types, and the place of each of the phases in it."""
    draft = Draft()
    for one in given:
        draft.add_one(
            draft.kind(one.name, dict(one.type_tags), None if one.step is None else "step"),
            one.parent + 1,
            one.start,
            one.end,
            number=-1 if one.step is None else one.step,
            label=draft.label(dict(one.of_instance)),
            host=draft.host(one.host),
            flags=one.flags,
        )
    phases, types, place = assemble(draft)
    return phases, types, place[1:].tolist()


def paths(phases: Phases | Types) -> list[str]:
    return [phases.path(node) for node in range(len(phases))]


# --- Identity ----------------------------------------------------------------------------------------------


def test_an_instance_is_its_name_and_all_its_tags_sorted_by_key_a_type_has_the_type_tags_only() -> None:
    phases, types, (run, step) = tree(
        P(-1, "run", 0, 10, type_tags=(("script", "a.py"),), of_instance=(("id", "7"), ("zone", "x"))),
        P(0, "step", 0, 10, step=3),
    )
    assert phases.path(run) == "/run[id=7, script=a.py, zone=x]"
    assert phases.path(step) == "/run[id=7, script=a.py, zone=x]/step[step=3]"
    assert types.path(int(phases.type[step])) == "/run[script=a.py]/step"
    assert phases.path(0) == types.path(0) == "/"


def test_phases_with_equal_type_paths_are_of_one_type_and_no_others() -> None:
    phases, types, (one, other, a, b, c) = tree(
        P(-1, "epoch", 0, 10, step=0),
        P(-1, "epoch", 10, 20, step=1),
        P(0, "step", 0, 10),
        P(1, "step", 10, 20),
        P(-1, "step", 0, 20),
    )
    assert phases.type[one] == phases.type[other]
    assert phases.type[a] == phases.type[b] != phases.type[c]
    assert len(set(paths(types))) == len(types)


def test_siblings_that_would_be_called_the_same_are_numbered_by_time() -> None:
    phases, types, (late, early, alone) = tree(
        P(-1, "save", 50, 60), P(-1, "save", 10, 20), P(-1, "load", 0, 5)
    )
    assert phases.path(early) == "/save[n=0]"
    assert phases.path(late) == "/save[n=1]"
    assert phases.path(alone) == "/load"
    assert phases.type[early] == phases.type[late]
    assert "/save" in paths(types)


def test_kinds_that_write_the_same_are_told_apart_whichever_tag_counts() -> None:
    phases, _, places = tree(
        P(-1, "step", 0, 10, step=3), P(-1, "step", 20, 30, of_instance=(("step", "3"),))
    )
    assert [phases.path(place) for place in places] == ["/step[n=0, step=3]", "/step[n=1, step=3]"]


@pytest.mark.parametrize(
    ("name", "of_tags", "text"),
    [
        ("GET /cart", (), r"GET \/cart"),
        ("a[b]*", (), r"a\[b\]\*"),
        (".", (), r"\."),
        ("..", (), r"\.."),
        ("...", (), "..."),
        ("x", (("k", "a,b=c"),), r"x[k=a\,b\=c]"),
        ("\\", (("]", "/"),), r"\\[\]=\/]"),
    ],
)
def test_what_the_path_language_would_take_for_its_own_is_escaped(
    name: str, of_tags: tuple[tuple[str, str], ...], text: str
) -> None:
    assert identifier(name, of_tags) == text
    phases, _, (node,) = tree(P(-1, name, 0, 1, of_instance=of_tags))
    assert Pattern(phases.path(node)).matches(phases).tolist() == [node]


def test_an_empty_name_has_one() -> None:
    phases, _, (node,) = tree(P(-1, "", 0, 1))
    assert phases.path(node) == "/(unnamed)"


def test_the_tag_that_numbers_siblings_is_no_other_tag() -> None:
    with pytest.raises(ValueError, match="numbers siblings"):
        tags({"n": 1})


# --- Derived times, self time, metadata ---------------------------------------------------------------------


def test_the_root_and_derived_phases_span_from_the_first_start_to_the_last_end_of_their_children() -> None:
    phases, _, (outer, _, _) = tree(P(-1, "lost", flags=DERIVED), P(0, "a", 30, 40), P(0, "b", 10, 35))
    assert (phases.start[outer], phases.end[outer]) == (10, 40)
    assert (phases.start[0], phases.end[0]) == (10, 40)
    assert not phases.has(SELF).any(), "nothing is known to have run in a phase that nobody recorded"


def test_a_derived_phase_that_holds_nothing_takes_no_time() -> None:
    phases, _, (outer, empty, _) = tree(
        P(-1, "a", flags=DERIVED), P(0, "empty", flags=DERIVED), P(0, "b", 10, 35)
    )
    assert (phases.start[outer], phases.end[outer]) == (10, 35)
    assert phases.duration[empty] == 0


def test_a_duration_is_never_negative() -> None:
    phases, _, (node,) = tree(P(-1, "a", 20, 10))
    assert phases.duration[node] == 0
    assert phases.busy[node] == 0


def test_self_time_is_a_leaf_that_stands_for_all_gaps_between_children() -> None:
    phases, types, (outer, *_) = tree(
        P(-1, "a", 0, 100), P(0, "b", 10, 30), P(0, "c", 20, 40), P(0, "d", 90, 120), P(0, "e", 60, 60)
    )
    (leaf,) = np.flatnonzero(phases.has(SELF))
    assert phases.path(int(leaf)) == "/a/self"
    assert (phases.start[leaf], phases.end[leaf], phases.busy[leaf]) == (0, 90, 10 + 20 + 30)
    assert phases.parent[leaf] == outer
    assert "/a/self" in paths(types)


def test_self_time_of_a_sum_has_no_more_of_a_place_than_that() -> None:
    phases, _, _ = tree(
        P(-1, "a", 0, 100, flags=INFERRED), P(0, "b", 0, 40), P(-1, "c", 200, 300), P(2, "d", 200, 240)
    )
    leaves = np.flatnonzero(phases.has(SELF)).tolist()
    assert {phases.path(leaf): bool(phases.flags[leaf] & INFERRED) for leaf in leaves} == {
        "/a/self": True,
        "/c/self": False,
    }


def test_what_runs_beside_its_parent_takes_none_of_its_time() -> None:
    phases, _, _ = tree(P(-1, "a", 0, 100), P(0, "b", 0, 40), P(0, "c", 0, 100, flags=BESIDE))
    (leaf,) = np.flatnonzero(phases.has(SELF))
    assert phases.busy[leaf] == 60


def test_a_phase_that_its_children_cover_has_no_self_time() -> None:
    phases, _, _ = tree(P(-1, "a", 0, 10), P(0, "b", 0, 5), P(0, "c", 5, 10))
    assert not phases.has(SELF).any()


def test_a_host_is_no_part_of_the_identity_and_comes_from_the_nearest_ancestor() -> None:
    phases, _, (a, b, c, d) = tree(
        P(-1, "a", 0, 9, host="x"), P(0, "b", 0, 9), P(1, "c", 0, 9, host="y"), P(2, "d", 0, 9)
    )
    assert [phases.hosts[phases.host[node]] for node in (a, b, c, d)] == ["x", "x", "y", "y"]
    assert phases.host[0] == -1
    assert phases.path(d) == "/a/b/c/d"


# --- Trees that are none ------------------------------------------------------------------------------------


def test_a_parent_that_does_not_exist_is_refused() -> None:
    draft = Draft()
    draft.add(draft.kind("a"), 7, 0, 1)
    with pytest.raises(NoTree, match="does not exist"):
        assemble(draft)


def test_there_is_one_root() -> None:
    draft = Draft()
    draft.add(draft.kind("a"), -1, 0, 1)
    with pytest.raises(NoTree, match="2 phases without a parent"):
        assemble(draft)


def test_parents_in_a_circle_are_named() -> None:
    draft = Draft()
    draft.add(draft.kind("a"), [2, 3, 1], 0, 1)
    with pytest.raises(NoTree, match=r"3 phases lead in a circle: 1 -> 2 -> 3 -> 1"):
        assemble(draft)


def test_a_phase_is_not_put_into_what_is_part_of_it() -> None:
    draft = Draft()
    a, b = draft.add_one(draft.kind("a"), ROOT), draft.add_one(draft.kind("b"), 1)
    with pytest.raises(IllegalPlace):
        draft.move(a, b)
    with pytest.raises(IllegalPlace):
        draft.move(a, a)
    draft.move(b, ROOT)
    draft.move(a, b)
    phases, _, place = assemble(draft)
    assert phases.path(int(place[a])) == "/b/a"


def test_deep_and_wide_trees_take_no_recursion() -> None:
    depth = 1000
    phases, types, places = tree(*(P(at - 1, "a", at, 2 * depth - at) for at in range(depth)))
    assert len(types) == depth + 1 + depth - 1
    assert phases.path(places[-1]).count("/") == depth
    draft = Draft()
    draft.add(draft.kind("b"), ROOT, np.arange(50_000), np.arange(50_000) + 1)
    phases, types, _ = assemble(draft)
    assert (len(phases), len(types)) == (50_001, 2)


# --- Properties ---------------------------------------------------------------------------------------------

NAMES = ("a", "b", "a/b", "x[y]", "", ".")


@st.composite
def drafts(draw: st.DrawFn) -> list[P]:
    """Up to 12 phases on a coarse clock, so that ties, twins and overlaps abound."""
    found: list[P] = []
    for at in range(draw(st.integers(1, 12))):
        start = draw(st.integers(0, 8))
        found.append(
            P(
                draw(st.integers(-1, at - 1)),
                draw(st.sampled_from(NAMES)),
                start,
                start + draw(st.integers(-1, 8)),
                step=draw(st.none() | st.integers(0, 2)),
                of_instance=draw(st.sampled_from(((), (("step", "1"),), (("k", "a, b"),)))),
                flags=draw(st.sampled_from((0, 0, DERIVED, BESIDE))),
            )
        )
    return found


def shape(phases: Phases) -> list[tuple[str, int, int, int]]:
    """What the tree holds, without the order of what is in every respect the same."""
    since = phases.start[0]
    columns = (phases.start - since, phases.end - since, phases.busy)
    return list(zip(paths(phases), *(column.tolist() for column in columns), strict=True))


@given(drafts())
@settings(deadline=None, max_examples=40)
def test_no_two_phases_have_one_path(given_: list[P]) -> None:
    phases, types, _ = tree(*given_)
    assert max(Counter(paths(phases)).values()) == 1
    assert max(Counter(paths(types)).values()) == 1


@given(drafts())
@settings(deadline=None, max_examples=40)
def test_every_path_is_the_pattern_of_itself(given_: list[P]) -> None:
    phases, types, _ = tree(*given_)
    for some in (phases, types):
        for node in range(1, len(some)):
            assert Pattern(some.path(node)).matches(some).tolist() == [node]


@given(drafts(), st.randoms(use_true_random=False), st.integers(-50, 50))
@settings(deadline=None, max_examples=40)
def test_neither_order_nor_date_changes_the_tree(given_: list[P], random: object, shift: int) -> None:
    order = list(range(len(given_)))
    random.shuffle(order)  # type: ignore[attr-defined]
    place = {old: new for new, old in enumerate(order)}
    moved = [
        replace(
            given_[old],
            parent=place.get(given_[old].parent, -1),
            start=given_[old].start + shift,
            end=given_[old].end + shift,
        )
        for old in order
    ]
    assert shape(tree(*moved)[0]) == shape(tree(*given_)[0])


@given(drafts())
@settings(deadline=None, max_examples=40)
def test_parents_stand_before_children_and_a_subtree_together(given_: list[P]) -> None:
    phases, types, _ = tree(*given_)
    for some in (phases, types):
        for node in range(1, len(some)):
            assert some.parent[node] < node
            assert some.is_above(int(some.parent[node]), node)
        for node in range(len(some)):
            below = [other for other in range(len(some)) if node in some.ancestors(other)]
            assert list(range(node + 1, some.subtree(node).stop)) == below
            assert some.children(node).tolist() == [at for at in below if some.parent[at] == node]


@given(drafts())
@settings(deadline=None, max_examples=40)
def test_a_phase_and_what_covers_it_differ_by_its_self_time_exactly(given_: list[P]) -> None:
    phases, _, _ = tree(*given_)
    for node in np.flatnonzero(phases.inner & ~phases.has(DERIVED)).tolist():
        children = phases.children(node).tolist()
        time = set(range(int(phases.start[node]), int(phases.end[node])))
        for child in children:
            if not phases.flags[child] & (SELF | BESIDE):
                time -= set(range(int(phases.start[child]), int(phases.end[child])))
        own = [int(phases.busy[child]) for child in children if phases.flags[child] & SELF]
        assert own == ([len(time)] if time else [])


# --- Moments ------------------------------------------------------------------------------------------------


def test_ends_come_before_starts_and_what_takes_no_time_between_them() -> None:
    phases, _, (outer, a, b, zero) = tree(
        P(-1, "a", 0, 20), P(0, "b", 0, 10), P(0, "c", 10, 20), P(0, "z", 10, 10)
    )
    found = moments(phases, np.array([outer, a, b, zero]))
    assert list(zip(found.time.tolist(), found.phase.tolist(), found.is_end.tolist(), strict=True)) == [
        (0, outer, False),
        (0, a, False),
        (10, a, True),
        (10, zero, False),
        (10, zero, True),
        (10, b, False),
        (20, b, True),
        (20, outer, True),
    ]


def test_how_many_run_at_each_time() -> None:
    phases, _, places = tree(P(-1, "a", 0, 20), P(-1, "b", 5, 15), P(-1, "c", 15, 20), P(-1, "z", 7, 7))
    times, counts = active(phases, np.array(places))
    assert dict(zip(times.tolist(), counts.tolist(), strict=True)) == {0: 1, 5: 2, 20: 0}
    assert [len(each) for each in active(phases, np.array([], np.int64))] == [0, 0]


@given(drafts())
@settings(deadline=None, max_examples=40)
def test_counts_are_those_of_a_look_at_every_instant(given_: list[P]) -> None:
    phases, _, _ = tree(*given_)
    times, counts = active(phases)
    for at in range(-2, 20):
        running = int(((phases.start <= at) & (phases.end > at)).sum())
        before = np.searchsorted(times, at, side="right") - 1
        assert running == (counts[before] if before >= 0 else 0)
    found = moments(phases)
    open_: set[int] = set()
    for phase, is_end in zip(found.phase.tolist(), found.is_end.tolist(), strict=True):
        (open_.remove if is_end else open_.add)(phase)
    assert not open_
