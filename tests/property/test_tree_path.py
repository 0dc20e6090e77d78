# SPDX-License-Identifier: Apache-2.0
"""The tree walk against a twin that follows the rule to the letter, on every kind of small tree."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph import Path, trace_paths, tree_path
from grademl_otel.analyzers.graph.trees.tree_schedule import TreeSchedule
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_INTERNAL, KIND_PRODUCER

from ..support.build import S, columns

NAMES = ("forward", "backward", "data.wait", "GET /")
TIMES = st.integers(0, 24)


@st.composite
def trees(draw: st.DrawFn, kinds: bool = True) -> list[S]:
    """A tree of up to 14 spans on a coarse clock, so that ties, zero lengths and overlaps abound."""
    spans = [S("0", draw(st.integers(0, 8)), draw(st.integers(8, 24)), name="root")]
    for i in range(1, draw(st.integers(1, 14))):
        start = draw(TIMES)
        spans.append(
            S(
                str(i),
                start,
                start + draw(st.integers(-1, 16)),
                str(draw(st.integers(0, i - 1))),
                name=draw(st.sampled_from(NAMES)),
                kind=draw(st.sampled_from((KIND_INTERNAL, KIND_PRODUCER, KIND_CONSUMER)))
                if kinds
                else KIND_INTERNAL,
            )
        )
    return spans


def twin(spans: list[S]) -> list[tuple[int, str]]:
    """Return (start, name) of each ns of the path: the rule of the walk, one ns at a time, by recursion."""

    def walk(span: S, lo: int, hi: int) -> list[tuple[int, str]]:
        owned: list[tuple[int, str]] = []
        children = []
        for child in spans:
            if child.parent != span.id or child.end < child.start:
                continue
            if span.kind == KIND_PRODUCER and child.kind == KIND_CONSUMER:
                continue
            a, b = max(child.start, lo), min(child.end, hi)
            if a < b:
                children.append((a, b, child))
        cursor = hi
        while cursor > lo:
            ended = [(b, c.name != "data.wait", -a) for a, b, c in children if b <= cursor and a < cursor]
            if not ended:
                owned += [(t, span.name or "") for t in range(lo, cursor)]
                return owned
            best = max(ended)
            a, b, child = min(
                (x for x in children if (x[1], x[2].name != "data.wait", -x[0]) == best),
                key=lambda x: x[2].name or "",
            )
            owned += [(t, span.name or "") for t in range(b, cursor)]
            owned += walk(child, a, b)
            cursor = a
        return owned

    root = spans[0]
    return sorted(walk(root, root.start, max(root.start, root.end)))


def each_ns(path: Path) -> list[tuple[int, str]]:
    return [(t, s.phase) for s in path.sections for t in range(s.start, s.end)]


def distinct(spans: list[S]) -> list[S]:
    """Keep one wait and give all others a name of their own, so that the rule alone decides every tie."""
    kept: list[S] = []
    for span in spans:
        if span.parent is not None and all(span.parent != other.id for other in kept):
            continue
        if span.name != "data.wait":
            kept.append(replace(span, name=f"{span.name}#{span.id}"))
        elif all(other.name != "data.wait" for other in kept):
            kept.append(span)
    return kept


@given(trees())
@settings(max_examples=80, deadline=None)
def test_sections_tile_the_root_exactly(spans: list[S]) -> None:
    path = tree_path(columns(spans), 0)
    cursor = path.start
    for section in path.sections:
        assert section.start == cursor < section.end
        cursor = section.end
    assert cursor == path.end == max(spans[0].start, spans[0].end)


@given(trees())
@settings(max_examples=80, deadline=None)
def test_the_walk_is_the_rule(spans: list[S]) -> None:
    named = distinct(spans)
    assert each_ns(tree_path(columns(named), 0)) == twin(named)


@given(trees(), st.randoms(use_true_random=False), st.integers(-(10**18), 10**18))
@settings(max_examples=80, deadline=None)
def test_order_ids_and_shift_change_nothing(spans: list[S], random: object, shift: int) -> None:
    shuffled = list(spans)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    moved = [
        replace(
            s,
            id=f"x{s.id}",
            parent=None if s.parent is None else f"x{s.parent}",
            start=s.start + shift,
            end=s.end + shift,
        )
        for s in shuffled
    ]
    root = next(ix for ix, s in enumerate(moved) if s.id == "x0")
    expected = tree_path(columns(spans), 0)
    found = tree_path(columns(moved), root)
    assert [(s.start - shift, s.end - shift, s.phase, s.kind) for s in found.sections] == [
        (s.start, s.end, s.phase, s.kind) for s in expected.sections
    ]
    assert found.clipped_ns == expected.clipped_ns


@given(trees(kinds=False), st.data())
@settings(max_examples=60, deadline=None)
def test_splitting_a_leaf_keeps_every_total(spans: list[S], data: st.DataObject) -> None:
    parents = {s.parent for s in spans}
    leaves = [s for s in spans[1:] if s.id not in parents and s.end - s.start >= 2]
    if not leaves:
        return
    leaf = data.draw(st.sampled_from(leaves))
    at = data.draw(st.integers(leaf.start + 1, leaf.end - 1))
    # Names of their own: which of two alike is taken may depend on what lies below, which a split changes.
    alone = [replace(s, name="leaf" if s.id == leaf.id else f"span {s.id}") for s in spans]
    # A half may lose a tie that the whole would not have had.
    if any(s.end in (at, leaf.end) or min(s.end, leaf.end) > spans[0].end for s in spans if s.id != leaf.id):
        return
    halves = [replace(leaf, name="leaf", end=at), replace(leaf, id="half", name="leaf", start=at)]
    split = [s for s in alone if s.id != leaf.id] + halves

    def total(tree: list[S]) -> int:
        path = tree_path(columns(tree), 0)
        return sum(s.duration for s in path.sections if s.phase == "leaf")

    # Where the whole was off the path because it ended too late, its first half may still be on it.
    assert total(split) == total(alone) or total(alone) == 0


@given(trees(), st.data())
@settings(max_examples=60, deadline=None)
def test_shortening_gains_no_more_than_it_takes_away(spans: list[S], data: st.DataObject) -> None:
    cols = columns(spans)
    path = tree_path(cols, 0)
    found = TreeSchedule.of(cols, 0, path)
    if found is None:
        assert not len(path.sections)
        return
    lengths = found.schedule.lengths.copy()
    at = data.draw(st.integers(0, len(lengths) - 1))
    by = data.draw(st.integers(0, int(lengths[at])))
    assert found.schedule.sooner(lengths) == 0
    lengths[at] -= by
    assert 0 <= found.schedule.sooner(lengths) <= by


@given(st.lists(st.tuples(st.integers(-2, 9), TIMES, st.integers(-2, 20)), min_size=1, max_size=10))
@settings(max_examples=80, deadline=None)
def test_any_parents_at_all_end_with_an_exact_path(raw: list[tuple[int, int, int]]) -> None:
    spans = [
        S(str(i), start, start + length, None if parent == -1 else str(parent), name="op", trace=1 + i % 2)
        for i, (parent, start, length) in enumerate(raw)
    ]
    for root, path in trace_paths(columns(spans)):
        assert sum(s.duration for s in path.sections) == path.total_ns
        assert path.total_ns == max(0, spans[root].end - spans[root].start)
