# SPDX-License-Identifier: Apache-2.0
"""The walk through any event graph, held against the same rule by looking at everything each time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph.event_graph import EDGE_KINDS
from grademl_otel.analyzers.graph.path import EVIDENCE, EnteredBy, Path
from grademl_otel.analyzers.graph.walk import walk

from ..support.graphs import A, E, graph_of

Brief = tuple[int, int, str, str, str, EnteredBy, bool]
"""Start, end, phase, kind, lane, entrance, whether it has the activity's span."""
LANES = ("a", "b", "c")


@dataclass(frozen=True)
class Drawn:
    activities: list[A]
    edges: list[E]
    lane: int
    low: int
    high: int

    def path(self, lanes: tuple[str, ...] = LANES) -> Path:
        graph = graph_of(self.activities, self.edges, lanes=[(0, lane) for lane in lanes])
        return walk(graph, lanes.index(LANES[self.lane]), self.low, self.high)


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    """Lanes with and without holes, and edges of any kind, many of which contradict the times."""
    activities = []
    for lane in LANES:
        cursor = draw(st.integers(0, 3))
        for _ in range(draw(st.integers(0, 4))):
            end = cursor + draw(st.integers(1, 6))
            activities.append(
                A(
                    f"{lane}{cursor}",
                    lane,
                    cursor,
                    end,
                    waits=draw(st.booleans()),
                    holder=draw(st.sampled_from((-1, -1, 1))),
                    inferred=draw(st.booleans()),
                    span_ix=len(activities),
                )
            )
            cursor = end + draw(st.sampled_from((0, 0, 1, 3)))
    edges = []
    for _ in range(draw(st.integers(0, 9)) if activities else 0):
        source, target = draw(st.sampled_from(activities)), draw(st.sampled_from(activities))
        edges.append(
            E(
                source.name,
                target.name,
                draw(st.sampled_from(EDGE_KINDS)),
                draw(st.integers(source.start - 1, source.end + 1)),
                draw(st.booleans()),
                draw(st.sampled_from(EVIDENCE)),
                draw(st.sampled_from((1.0, 0.9))),
            )
        )
    low = draw(st.integers(-1, 8))
    return Drawn(activities, edges, draw(st.integers(0, 2)), low, low + draw(st.integers(0, 30)))


def told(path: Path) -> list[Brief]:
    return [
        (s.start, s.end, s.phase, s.kind, s.lane, s.entered_by, s.span_ix is not None) for s in path.sections
    ]


def slowly(drawn: Drawn) -> list[Brief]:
    """Return the sections of the walk, latest first, by its rule as written: nothing sorted, nothing kept."""
    by_name = {a.name: a for a in drawn.activities}
    used: list[E] = []
    sections: list[Brief] = []
    low, lane = drawn.low, LANES[drawn.lane]

    def usable(target: A, to_end: bool, until: int) -> list[E]:
        return [
            e
            for e in drawn.edges
            if e.target == target.name
            and e.to_end == to_end
            and e.at is not None
            and by_name[e.source].start <= e.at <= by_name[e.source].end
            and e.at <= until
            and not any(one is e for one in used)
        ]

    def best(edges: list[E]) -> E:
        return max(
            edges,
            key=lambda e: (
                e.at,
                -EVIDENCE.index(e.evidence),
                e.confidence,
                -EDGE_KINDS.index(e.kind),
                -by_name[e.source].start,
                -LANES.index(by_name[e.source].lane),
            ),
        )

    def emit(a: A, start: int, end: int, kind: str, by: EnteredBy, hole: bool = False) -> None:
        if max(start, low) < end:
            sections.append((max(start, low), end, a.phase or a.name, kind, a.lane, by, not hole))

    def in_lane(a: A, later: A | None) -> EnteredBy:
        child = later is not None and a.holder == later.holder >= 0
        return EnteredBy("child" if child else "program", "inferred" if a.inferred else "observed")

    def own_kind(a: A) -> str:
        return "wait" if a.waits else "work"

    cursor = drawn.high
    before = [a for a in drawn.activities if a.lane == lane and a.start < cursor]
    if not before:
        nothing = (low, cursor, "untraced", "gap", lane, EnteredBy("program"), False)
        return [nothing] if cursor > low else []
    here = max(before, key=lambda a: a.start)
    by: EnteredBy | None = in_lane(here, None)
    if here.end < cursor:
        emit(here, here.end, cursor, "gap", EnteredBy("program"), hole=True)
        cursor = here.end
    while cursor > low:
        if cursor > here.start:
            assert by is not None
            came = usable(here, True, cursor)
            inside = [e for e in came if e.at is not None and e.at > here.start]
            if inside:
                edge = best(inside)
                assert edge.at is not None
                emit(here, edge.at, cursor, "handoff", by)
                used.append(edge)
                here, cursor = by_name[edge.source], edge.at
                by = EnteredBy(edge.kind, edge.evidence, edge.confidence)
                continue
            was_there = any(
                e.target == here.name
                and e.to_end
                and e.at is not None
                and by_name[e.source].start <= e.at <= min(by_name[e.source].end, here.start)
                for e in drawn.edges
            )
            emit(here, here.start, cursor, "handoff" if was_there and here.waits else own_kind(here), by)
            cursor, by = here.start, None
            if cursor <= low:
                break
        earlier = [a for a in drawn.activities if a.lane == here.lane and a.end <= here.start]
        previous = max(earlier, key=lambda a: a.end, default=None)
        let = usable(here, False, here.start)
        edge = best(let) if let else None
        if edge is not None and (previous is None or (edge.at or 0) > previous.end):
            assert edge.at is not None
            by = EnteredBy(edge.kind, edge.evidence, edge.confidence)
            emit(here, edge.at, cursor, "gap" if edge.kind in ("program", "child") else "handoff", by, True)
            used.append(edge)
            here, cursor = by_name[edge.source], edge.at
            continue
        if previous is None:
            sections.append((low, cursor, "untraced", "gap", here.lane, by or EnteredBy("program"), False))
            break
        if previous.end < cursor:
            emit(here, previous.end, cursor, "gap", by or EnteredBy("program"), hole=True)
            cursor, by = previous.end, None
        by = by or in_lane(previous, here)
        here = previous
    return sections


@given(graphs())
@settings(max_examples=200, deadline=None)
def test_the_walk_is_its_rule(drawn: Drawn) -> None:
    assert told(drawn.path()) == slowly(drawn)[::-1]


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_sections_tile_exactly(drawn: Drawn) -> None:
    path, cursor = drawn.path(), drawn.low
    for section in path.sections:
        assert section.start == cursor < section.end
        cursor = section.end
    assert cursor == drawn.high
    assert int(path.sections.duration.sum()) == path.total_ns


@given(graphs(), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_the_order_of_edges_and_lanes_and_the_origin_of_time_change_nothing(drawn: Drawn, seed: int) -> None:
    chance = random.Random(seed)
    by = 1_796_113_322_763_869_123
    moved = replace(
        drawn,
        activities=[
            replace(a, start=a.start + by, end=a.end + by)
            for a in chance.sample(drawn.activities, len(drawn.activities))
        ],
        edges=[replace(e, at=(e.at or 0) + by) for e in chance.sample(drawn.edges, len(drawn.edges))],
        low=drawn.low + by,
        high=drawn.high + by,
    )
    lanes = tuple(chance.sample(LANES, len(LANES)))
    again = [(start - by, end - by, *rest) for start, end, *rest in told(moved.path(lanes))]
    assert again == told(drawn.path())
