# SPDX-License-Identifier: Apache-2.0
"""Trees with lanes against a twin that goes back one ns at a time, as section 5 of the rule set says it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph import OverlapTolerance, Path, trace_paths, tree_path

from ..support.build import S, columns
from ..support.paths import assert_tiles, told

PAUSE = 2
TOLERANCE = OverlapTolerance(1.0, PAUSE)
ITEMS = ("0:0", "0:1")


def lane(name: str, item: str | None = None) -> dict[str, str]:
    return {"grademl.lane": name} | ({"grademl.item": item} if item else {})


@st.composite
def lanes(draw: st.DrawFn) -> list[S]:
    """A run of up to 40 ns: phases of the main lane, some with one inside, two workers, a job elsewhere.

    What one lane does never overlaps, as nothing does that one thread does. Every name is its own.
    """
    end = draw(st.integers(10, 40))
    spans = [S("run", 0, end, attributes=lane("main"))]

    def fill(name: str, items: bool) -> None:
        at = draw(st.integers(0, 4))
        for number in range(draw(st.integers(1, 5))):
            length = draw(st.integers(1, 12))
            waits = name == "main" and draw(st.booleans())
            item = draw(st.sampled_from(ITEMS)) if waits or items else None
            own = f"{name} {number}"
            linked = [("job", "blocking")] if name == "main" and draw(st.integers(0, 3)) == 3 else []
            spans.append(
                S(
                    own,
                    at,
                    min(at + length, end),
                    "run",
                    name="data.wait" if waits else own,
                    attributes=lane(name, item),
                    links=linked,
                )
            )
            if length > 2 and draw(st.booleans()):
                inner = lane(name) if draw(st.booleans()) else {}
                spans.append(S(f"in {own}", at + 1, min(at + length - 1, end), own, attributes=inner))
            at += length + draw(st.integers(0, 4))
            if at >= end:
                break

    fill("main", items=False)
    fill("worker 0", items=True)
    fill("worker 1", items=True)
    start = draw(st.integers(0, 30))
    spans.append(S("job", start, start + draw(st.integers(1, 15)), trace=2))
    return [s for s in spans if s.start < s.end]


def twin(spans: list[S]) -> list[tuple[int, str]]:
    """Return (start, id) of each ns of the path of the run, from the first to the last."""
    run = spans[0]
    by_id = {s.id: s for s in spans}
    owned: list[tuple[int, str]] = []
    entered: set[str] = set()  # spans of other lanes
    seen: set[str] = set()  # spans of the main lane that the walk has come into

    def own(low: int, high: int, span: str) -> None:
        owned.extend((t, span) for t in range(low, high))

    def is_main(s: S) -> bool:
        top = s if s.parent in (None, "run") else by_id[s.parent]
        return s is run or (top.parent == "run" and top.attributes["grademl.lane"] == "main")

    main = [s for s in spans if is_main(s)]
    beside = [s for s in spans[1:] if s.parent == "run" and not is_main(s)]

    def back_through(s: S, cursor: int) -> int:
        """Own all of ``s`` of another lane, with what is inside, and of what came directly before it."""
        while True:
            low = max(s.start, run.start)
            for t in range(low, cursor):
                inside = [i for i in spans if i.parent == s.id and i.start <= t < i.end]
                own(t, t + 1, inside[0].id if inside else s.id)
            cursor = low
            mates = [m for m in beside if s in beside and lane_of(m) == lane_of(s)]
            mates = [m for m in mates if m.end <= cursor and m.id not in entered]
            last = max(mates, key=lambda m: m.end, default=None)
            if last is None or cursor - last.end > PAUSE:
                return cursor
            own(last.end, cursor, s.id)
            entered.add(last.id)
            s, cursor = last, last.end

    def lane_of(s: S) -> object:
        return s.attributes.get("grademl.lane")

    cursor = run.end
    while cursor > run.start:
        around = [s for s in main if s.start < cursor <= s.end]
        around.sort(key=lambda s: (s.end - s.start, s is run))
        new = [s for s in reversed(around) if s.id not in seen]
        if not new:
            own(cursor - 1, cursor, around[0].id)
            cursor -= 1
            continue
        span = new[0]  # the outermost that the walk comes into here
        seen.add(span.id)
        ends: list[S] = []
        if span.name == "data.wait":
            item = span.attributes["grademl.item"]
            ends += [s for s in beside if s.attributes.get("grademl.item") == item]
        ends += [by_id[target] for target, _ in span.links if target in by_id]
        ends = [s for s in ends if span.start < s.end <= cursor and s.id not in entered]
        if ends:
            best = min(ends, key=lambda s: (-s.end, s.start, s.name or s.id))
            own(best.end, cursor, span.id)
            entered.add(best.id)
            cursor = back_through(best, best.end)
    return sorted(owned)


def each_ns(spans: list[S], path: Path) -> list[tuple[int, str]]:
    return [
        (t, spans[s.span_ix].id)
        for s in path.sections
        if s.span_ix is not None
        for t in range(s.start, s.end)
    ]


@given(lanes())
@settings(max_examples=80, deadline=None)
def test_the_walk_is_the_rule(spans: list[S]) -> None:
    path = tree_path(columns(spans), 0, TOLERANCE)
    assert_tiles(path)
    assert each_ns(spans, path) == twin(spans)


@given(lanes(), st.randoms(use_true_random=False), st.integers(-(10**18), 10**18))
@settings(max_examples=60, deadline=None)
def test_order_ids_and_shift_change_nothing(spans: list[S], random: object, shift: int) -> None:
    shuffled = list(spans)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    moved = [
        replace(
            s,
            id=f"x{s.id}",
            name=s.name or s.id,
            parent=None if s.parent is None else f"x{s.parent}",
            start=s.start + shift,
            end=s.end + shift,
            links=[(f"x{target}", kind) for target, kind in s.links],
        )
        for s in shuffled
    ]
    before, after = columns(spans), columns(moved)
    root = next(ix for ix, s in enumerate(moved) if s.id == "xrun")
    expected = told(before, tree_path(before, 0, TOLERANCE))
    assert told(after, tree_path(after, root, TOLERANCE), shift) == expected


@given(lanes(), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_repeating_a_run_multiplies_every_total(spans: list[S], times: int) -> None:
    """Each time with items of its own, and later than a pause after the one before."""
    length = spans[0].end + PAUSE + 1
    names = {s.id: s.name or s.id for s in spans}
    repeated = [S("all", 0, times * length, attributes=lane("main"))]
    for k in range(times):
        for s in spans:
            item = s.attributes.get("grademl.item")
            repeated.append(
                replace(
                    s,
                    id=f"{k} {s.id}",
                    name=names[s.id],
                    parent=f"{k} {s.parent}" if s.parent else "all" if s.id == "run" else None,
                    start=s.start + k * length,
                    end=s.end + k * length,
                    attributes={**s.attributes, **({"grademl.item": f"{k} {item}"} if item else {})},
                    links=[(f"{k} {target}", kind) for target, kind in s.links],
                )
            )
    expected = totals(tree_path(columns(spans), 0, TOLERANCE))
    found = totals(tree_path(columns(repeated), 0, TOLERANCE))
    assert found.pop("all") == times * (PAUSE + 1)
    assert found == {name: times * ns for name, ns in expected.items()}


def totals(path: Path) -> dict[str, int]:
    sections = path.sections
    by_phase = sections.by(sections.phase, len(sections.phases)).tolist()
    return {phase: ns for phase, ns in zip(sections.phases, by_phase, strict=True) if ns}


@given(lanes())
@settings(max_examples=60, deadline=None)
def test_every_trace_of_it_has_a_path(spans: list[S]) -> None:
    for root, path in trace_paths(columns(spans), TOLERANCE):
        assert_tiles(path)
        assert path.total_ns == spans[root].end - spans[root].start
