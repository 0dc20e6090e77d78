# SPDX-License-Identifier: Apache-2.0
"""The critical path of a span tree: the twelve cases, the invariants, lanes, and malformed trees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from grademl_otel.analyzers.graph import (
    DEFAULT_TOLERANCE,
    OverlapTolerance,
    Path,
    trace_paths,
    tree_path,
)
from grademl_otel.analyzers.graph.trees.tree_schedule import TreeSchedule
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_PRODUCER

from ..support.build import S, columns
from ..support.paths import assert_tiles, told, walked_path

US = 1_000


def path_of(
    spans: Sequence[S], root: str | None = None, tolerance: OverlapTolerance = DEFAULT_TOLERANCE
) -> Path:
    """Return the path, which is the same by the walk and, where the tree is plain, on arrays."""
    cols = columns(spans)
    root_ix = [span.id for span in spans].index(root) if root else 0
    path = tree_path(cols, root_ix, tolerance)
    assert_tiles(path)
    assert told(cols, path) == told(cols, walked_path(cols, root_ix, tolerance))
    return path


def brief(path: Path) -> str:
    """Return the sections, latest first, as the case table writes them."""
    return " ".join(f"{s.phase}{s.start}-{s.end}" for s in reversed(path.sections))


def lane(name: str, item: str | None = None) -> dict[str, str]:
    return {"grademl.lane": name} | ({"grademl.item": item} if item else {})


CASES: dict[str, tuple[list[S], str]] = {
    "1": (
        [S("C", 1, 101), S("D", 20, 40, "C"), S("E", 50, 60, "C")],
        "C60-101 E50-60 C40-50 D20-40 C1-20",
    ),
    "2": ([S("X", 1, 101), S("A", 10, 50, "X"), S("C", 20, 60, "X")], "X60-101 C20-60 X1-20"),
    "3": ([S("A", 100, 140), S("B", 200, 500, "A")], "A100-140"),
    "4": ([S("A", 1, 31), S("B", 40, 80, "A"), S("c", 50, 60, "B")], "A1-31"),
    "5": (
        [
            S("A", 1, 31, kind=KIND_PRODUCER),
            S("B", 10, 20, "A", kind=KIND_CONSUMER, links=[("A", "follows")]),
            S("C", 12, 14, "B"),
        ],
        "A1-31",
    ),
    "6": ([S("A", 1, 30), S("B", 15, 35, "A"), S("C", 10, 25, "B")], "B25-30 C15-25 A1-15"),
    "7": ([S("A", 1, 30), S("B", 15, 35, "A"), S("C", 20, 40, "B")], "C20-30 B15-20 A1-15"),
    "8": ([S("A", 10, 30), S("B", 5, 35, "A")], "B10-30"),
    "9": ([S("A", 10, 30), S("B", 1, 5, "A")], "A10-30"),
    "10": (
        [S("R", 0, 40), S("A", 10, 20, "R"), S("B", 20, 30, "R")],
        "R30-40 B20-30 A10-20 R0-10",
    ),
    "11": (
        [S("s1", 1, 101), S("s2", 1, 2, "s1"), S("s3", 2, 3, "s1"), S("s4", 3, 101, "s1")],
        "s43-101 s32-3 s21-2",
    ),
    "12": (
        [
            S("s1", 1, 101),
            S("s2", 6, 31, "s1"),
            S("s3", 41, 91, "s1"),
            S("s4", 61, 81, "s3"),
            S("s5", 51, 81, "s3"),
        ],
        "s191-101 s381-91 s551-81 s341-51 s131-41 s26-31 s11-6",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    spans, expected = CASES[case]
    assert brief(path_of(spans)) == expected


@pytest.mark.parametrize("case", CASES)
def test_order_ids_and_shift_change_nothing(case: str) -> None:
    spans, expected = CASES[case]
    shuffled = list(spans)
    random.Random(7).shuffle(shuffled)
    assert brief(path_of(shuffled, spans[0].id)) == expected

    renamed = [
        replace(
            span,
            id=f"id-{span.id}",
            name=span.id,
            parent=f"id-{span.parent}" if span.parent else None,
            links=[(f"id-{target}", kind) for target, kind in span.links],
        )
        for span in spans
    ]
    assert brief(path_of(renamed)) == expected

    late = 1_796_113_322_763_869_123
    shifted = path_of([replace(span, start=span.start + late, end=span.end + late) for span in spans])
    moved = [(s.phase, s.start - late, s.end - late) for s in shifted.sections]
    assert moved == [(s.phase, s.start, s.end) for s in path_of(spans).sections]


@pytest.mark.parametrize("case", CASES)
def test_repeating_a_step_multiplies_every_total(case: str) -> None:
    spans, _ = CASES[case]
    once = totals(path_of(spans))
    root, k = spans[0], 5
    length = root.end - root.start
    repeated = [S("all", root.start, root.start + k * length)]
    for i in range(k):
        for span in spans:
            repeated.append(
                replace(
                    span,
                    id=f"{i}-{span.id}",
                    name=span.id,
                    parent=f"{i}-{span.parent}" if span.parent else "all",
                    start=span.start + i * length,
                    end=span.end + i * length,
                    links=[(f"{i}-{target}", kind) for target, kind in span.links],
                )
            )
    assert totals(path_of(repeated)) == {phase: k * ns for phase, ns in once.items()}


def totals(path: Path) -> dict[str, int]:
    sections = path.sections
    by_phase = sections.by(sections.phase, len(sections.phases)).tolist()
    return {phase: ns for phase, ns in zip(sections.phases, by_phase, strict=True) if ns}


def test_splitting_a_span_keeps_the_total() -> None:
    spans, _ = CASES["1"]
    whole = totals(path_of(spans))
    split = [*spans[:1], S("D1", 20, 33, "C", name="D"), S("D2", 33, 40, "C", name="D"), spans[2]]
    assert totals(path_of(split)) == whole


def shortened(spans: Sequence[S], leaf: str, by: int) -> int:
    """Return how long the root takes when ``leaf``, a span without children, takes ``by`` less."""
    cols = columns(spans)
    path = tree_path(cols, 0)
    found = TreeSchedule.of(cols, 0, path)
    assert found is not None
    ix = [span.id for span in spans].index(leaf)
    lengths = found.schedule.lengths.copy()
    lengths[found.last[found.members.ix == ix]] -= by
    return path.total_ns - found.schedule.sooner(lengths)


def test_shrinking_a_span_is_stopped_by_the_one_beside_it() -> None:
    spans = [S("R", 0, 1000), S("A", 0, 400, "R"), S("X", 0, 390, "R"), S("B", 410, 900, "R")]
    assert shortened(spans, "A", 300) == 990
    assert shortened(spans, "X", 300) == 1000  # X is beside the path
    assert shortened(spans, "B", 300) == 700
    assert shortened(spans, "A", 0) == 1000


def test_shrinking_reaches_the_root_through_every_level() -> None:
    spans = [
        S("R", 0, 100),
        S("P", 10, 80, "R"),
        S("Q", 10, 60, "R"),
        S("p", 20, 70, "P"),
        S("q", 20, 65, "P"),
    ]
    assert shortened(spans, "p", 30) == 95  # q takes over in P after 5


def test_depth_of_ten_thousand_finishes() -> None:
    depth = 10_000
    spans = [S("0", 0, 2 * depth, name="op")]
    spans += [S(str(i), i, 2 * depth - i, str(i - 1), name="op") for i in range(1, depth)]
    path = path_of(spans)
    assert len(path.sections) == 2 * depth - 1


@pytest.mark.parametrize(("start", "own"), [(0, 0), (2, 2)])
def test_a_long_chain_of_siblings_finishes(start: int, own: int) -> None:
    """With and without time between one and the next."""
    width = 10_000
    spans = [S("root", 0, 10 * width)]
    spans += [S(str(i), 10 * i + start, 10 * i + 10, "root", name="op") for i in range(width)]
    expected = {"op": (10 - own) * width} | ({"root": own * width} if own else {})
    assert totals(path_of(spans)) == expected


def test_width_of_a_hundred_thousand_finishes() -> None:
    width = 100_000
    spans = [S("root", 0, 10 * width)]
    spans += [S(str(i), 10 * i + 2, 10 * i + 9, "root", name="op") for i in range(width)]
    path = tree_path(columns(spans), 0)
    assert_tiles(path)
    assert totals(path) == {"root": 3 * width, "op": 7 * width}


def test_width_of_a_hundred_thousand_alike_finishes() -> None:
    spans = [S("root", 0, 10), *(S(str(i), 2, 9, "root", name="op") for i in range(100_000))]
    assert totals(tree_path(columns(spans), 0)) == {"root": 3, "op": 7}


# --- lanes ------------------------------------------------------------------------------------------------


def test_a_concurrent_child_does_not_enter_without_an_edge() -> None:
    spans = [
        S("step", 0, 100, attributes=lane("main")),
        S("forward", 0, 50, "step", attributes=lane("main")),
        S("data.fetch", 10, 90, "step", attributes=lane("loader-worker-0", "0:7")),
        S("backward", 50, 100, "step", attributes=lane("main")),
    ]
    assert brief(path_of(spans)) == "backward50-100 forward0-50"


def test_without_lanes_the_same_child_enters() -> None:
    spans = [S("step", 0, 100), S("forward", 0, 50, "step"), S("data.fetch", 10, 100, "step")]
    assert brief(path_of(spans)) == "data.fetch10-100 step0-10"


def test_the_item_of_a_wait_leads_into_the_worker_and_back() -> None:
    worker = "loader-worker-0"
    spans = [
        S("run", 0, 100, attributes=lane("main")),
        S("forward", 0, 40, "run", attributes=lane("main")),
        S("data.wait", 40, 92, "run", attributes=lane("main", "0:1")),
        S("optimizer", 92, 100, "run", attributes=lane("main")),
        S("before", 10, 30, "run", name="data.fetch", attributes=lane(worker, "0:0")),
        S("data.fetch", 30, 80, "run", attributes=lane(worker, "0:1")),
        S("data.collate", 80, 90, "run", attributes=lane(worker, "0:1")),
    ]
    path = path_of(spans)
    assert brief(path) == (
        "optimizer92-100 data.wait90-92 data.collate80-90 data.fetch30-80 data.fetch10-30 forward0-10"
    )
    kinds = {(s.phase, s.kind) for s in path.sections}
    assert ("data.wait", "handoff") in kinds
    assert [s.entered_by.edge for s in path.sections if s.phase == "data.collate"] == ["queue"]


def test_a_worker_that_was_idle_leads_back_to_its_parents_lane() -> None:
    worker = "loader-worker-0"
    spans = [
        S("run", 0, 100, attributes=lane("main")),
        S("forward", 0, 40, "run", attributes=lane("main")),
        S("data.wait", 40, 92, "run", attributes=lane("main", "0:1")),
        S("before", 5, 15, "run", name="data.fetch", attributes=lane(worker, "0:0")),
        S("data.fetch", 30, 90, "run", attributes=lane(worker, "0:1")),
    ]
    assert brief(path_of(spans)) == "run92-100 data.wait90-92 data.fetch30-90 forward0-30"


def test_a_lane_goes_on_directly_after_a_pause_within_the_tolerance() -> None:
    """Of the root: 1 %, here 10 ns; after more the worker was idle, and the main lane is what came before."""

    def late_by(pause: int) -> str:
        worker = "loader-worker-0"
        spans = [
            S("run", 0, 1000, attributes=lane("main")),
            S("data.wait", 600, 900, "run", attributes=lane("main", "0:1")),
            S("before", 200, 500 - pause, "run", attributes=lane(worker, "0:0")),
            S("data.fetch", 500, 880, "run", attributes=lane(worker, "0:1")),
        ]
        return brief(path_of(spans))

    assert (
        late_by(10)
        == "run900-1000 data.wait880-900 data.fetch500-880 data.fetch490-500 before200-490 run0-200"
    )
    assert late_by(11) == "run900-1000 data.wait880-900 data.fetch500-880 run0-500"


def test_an_item_that_was_there_before_the_wait_ends_nothing() -> None:
    spans = [
        S("run", 0, 100, attributes=lane("main")),
        S("data.wait", 60, 70, "run", attributes=lane("main", "0:1")),
        S("data.fetch", 10, 60, "run", attributes=lane("loader-worker-0", "0:1")),
    ]
    path = path_of(spans)
    assert brief(path) == "run70-100 data.wait60-70 run0-60"
    assert path.sections[1].kind == "unexplained"


def test_a_blocking_link_leads_into_another_lane() -> None:
    spans = [
        S("run", 0, 100, attributes=lane("main")),
        S("save", 50, 95, "run", attributes=lane("main"), links=[("write", "blocking")]),
        S("write", 20, 90, "run", attributes=lane("writer")),
    ]
    path = path_of(spans)
    assert brief(path) == "run95-100 save90-95 write20-90 run0-20"
    assert path.sections[1].entered_by.edge == "link"
    follows = [*spans[:1], replace(spans[1], links=[("write", "follows")]), spans[2]]
    assert brief(path_of(follows)) == "run95-100 save50-95 run0-50"


def test_a_blocking_link_leads_out_of_the_tree_and_back() -> None:
    """To a span of another trace, with what lies below it: a job that a request waited for."""
    spans = [
        S("request", 10, 100),
        S("before", 12, 30, "request"),
        S("ask", 40, 95, "request", links=[("job", "blocking")]),
        S("job", 20, 90, trace=2),
        S("query", 50, 80, "job", trace=2),
    ]
    path = path_of(spans)
    assert brief(path) == "request95-100 ask90-95 job80-90 query50-80 job20-50 before12-20 request10-12"
    assert [s.kind for s in path.sections if s.phase == "ask"] == ["handoff"]
    assert [s.entered_by.edge for s in path.sections if (s.phase, s.end) == ("job", 90)] == ["link"]
    long_ago = [replace(span, start=1, end=9) if span.id == "job" else span for span in spans]
    too_late = [replace(span, end=96) if span.id == "job" else span for span in spans]
    for others in (long_ago, too_late):
        assert brief(path_of(others)) == "request95-100 ask40-95 request30-40 before12-30 request10-12"


def test_a_blocking_link_binds_a_sibling_that_would_not_block_otherwise() -> None:
    spans = [
        S("R", 0, 100),
        S("A", 5, 60, "R"),
        S("B", 40, 100, "R", links=[("A", "blocking")]),
    ]
    assert brief(path_of(spans)) == "B60-100 A5-60 R0-5"
    assert brief(path_of([*spans[:2], replace(spans[2], links=[])])) == "B40-100 R0-40"


def test_what_is_entered_by_a_link_is_in_the_lane_of_what_holds_it() -> None:
    """`part` names no lane: it is in that of `job`, and `other` runs beside it."""
    spans = [
        S("run", 0, 100, attributes=lane("main")),
        S("wait", 50, 90, "run", attributes=lane("main"), links=[("part", "blocking")]),
        S("job", 10, 85, "run", attributes=lane("worker")),
        S("part", 20, 80, "job"),
        S("other", 30, 70, "part", attributes=lane("elsewhere")),
        S("own", 30, 40, "part", attributes=lane("worker")),
    ]
    assert brief(path_of(spans)) == "run90-100 wait80-90 part40-80 own30-40 part20-30 run0-20"


def test_links_into_every_level_of_a_deep_tree_finish() -> None:
    """None ended within the wait for it: each is looked at, with all that is above it, for nothing."""
    depth = 10_000
    spans = [S("run", 0, 10 * depth)]
    spans += [
        S(str(i), 0, 10 * i + 5, str(i + 1) if i < depth else None, "op", 2) for i in range(1, depth + 1)
    ]
    spans += [
        S(f"w{i}", 10 * i + 6, 10 * i + 9, "run", "wait", links=[(str(i), "blocking")])
        for i in range(1, depth)
    ]
    path = tree_path(columns(spans), 0)
    assert totals(path) == {"wait": 3 * (depth - 1), "run": 10 * depth - 3 * (depth - 1)}


def test_links_in_a_ring_and_to_what_lies_above_end() -> None:
    spans = [
        S("R", 0, 100),
        S("A", 10, 90, "R", links=[("B", "blocking"), ("R", "blocking")]),
        S("B", 5, 80, "R", links=[("A", "blocking"), ("B", "blocking")]),
    ]
    assert brief(path_of(spans)) == "R90-100 A80-90 B5-80 R0-5"


def test_a_wait_inside_another_lane_never_leads_forward_again() -> None:
    """The worker's fetch waits for a third lane that began long before it; its lane is left for good."""
    spans = [
        S("run", 0, 100, attributes=lane("main")),
        S("data.wait", 40, 92, "run", attributes=lane("main", "1")),
        S("fetch", 30, 90, "run", attributes=lane("worker", "1")),
        S("inner", 50, 85, "fetch", name="data.wait", attributes=lane("worker", "2")),
        S("earlier", 20, 30, "run", attributes=lane("worker")),
        S("shard", 10, 80, "run", attributes=lane("disk", "2")),
    ]
    assert brief(path_of(spans)) == "run92-100 data.wait90-92 fetch85-90 data.wait80-85 shard10-80 run0-10"


def test_many_waits_for_one_item_finish() -> None:
    count = 4_000
    spans = [S("run", 0, 10 * count, attributes=lane("main"))]
    for i in range(count):
        at = 10 * i
        spans.append(S(f"w{i}", at, at + 9, "run", name="data.wait", attributes=lane("main", "x")))
        spans.append(S(f"f{i}", at + 1, at + 8, "run", name="data.fetch", attributes=lane("worker", "x")))
    path = tree_path(columns(spans), 0)
    assert_tiles(path)
    assert totals(path) == {"run": 1, "data.wait": 2, "data.fetch": 10 * count - 3}


def test_the_runs_of_other_ranks_are_concurrent_though_their_lane_has_the_same_name() -> None:
    spans = [
        S("run0", 0, 100, name="run", attributes=lane("main"), resource={"grademl.rank": 0}),
        S("run1", 5, 95, "run0", name="run", attributes=lane("main"), resource={"grademl.rank": 1}),
        S("epoch", 10, 80, "run0", attributes=lane("main"), resource={"grademl.rank": 0}),
    ]
    path = path_of(spans)
    assert brief(path) == "run80-100 epoch10-80 run0-10"
    assert {s.kind for s in path.sections} == {"gap"}


def test_siblings_of_one_lane_nest_by_time() -> None:
    spans = [
        S("step", 0, 100, attributes=lane("main")),
        S("backward", 10, 90, "step", attributes=lane("main")),
        S("recompute", 20, 50, "step", attributes=lane("main")),
    ]
    assert brief(path_of(spans)) == "step90-100 backward50-90 recompute20-50 backward10-20 step0-10"


@pytest.mark.parametrize("key", ["grademl.lane", "thread.id"])
def test_a_small_overlap_in_one_lane_is_cut_and_counted(key: str) -> None:
    spans = [
        S("R", 0, 10_000),
        S("A", 0, 5_060, "R", attributes={key: "t"}),
        S("B", 5_000, 10_000, "R", attributes={key: "t"}),
    ]
    path = path_of(spans)
    assert brief(path) == "B5000-10000 A0-5000"
    assert path.overlap_ns == 60
    off = path_of(spans, tolerance=OverlapTolerance.parse("0"))
    assert brief(off) == "B5000-10000 R0-5000"
    assert off.overlap_ns == 0
    assert brief(path_of(spans, tolerance=OverlapTolerance.parse("50ns"))) == "B5000-10000 R0-5000"


def test_the_default_tolerance_is_one_percent_and_one_millisecond_at_most() -> None:
    def overlapping(length: int, overlap: int) -> list[S]:
        half = length // 2
        return [
            S("R", 0, length),
            S("A", 0, half + overlap, "R", attributes={"thread.id": 4}),
            S("B", half, length, "R", attributes={"thread.id": 4}),
        ]

    assert path_of(overlapping(10_000, 100)).overlap_ns == 100
    assert path_of(overlapping(10_000, 101)).overlap_ns == 0
    second = 1_000_000_000
    assert path_of(overlapping(second, 1_000_000)).overlap_ns == 1_000_000
    assert path_of(overlapping(second, 1_000_001)).overlap_ns == 0


def test_threads_of_different_processes_are_not_one_lane() -> None:
    spans = [
        S("R", 0, 10_000),
        S("A", 0, 5_060, "R", attributes={"thread.id": 4}, resource={"service.name": "a"}),
        S("B", 5_000, 10_000, "R", attributes={"thread.id": 4}, resource={"service.name": "b"}),
    ]
    assert path_of(spans).overlap_ns == 0


@pytest.mark.parametrize(
    ("text", "parent", "expected"),
    [
        ("1%", 10_000, 100),
        ("1%", 10**9, 10**6),
        ("0", 10**9, 0),
        ("50us", 10**9, 50_000),
        ("2ms", 1_000, 1_000),
    ],
)
def test_tolerance_as_text(text: str, parent: int, expected: int) -> None:
    assert OverlapTolerance.parse(text).of(parent) == expected


@pytest.mark.parametrize("text", ["1000000000000%", "9" * 400 + "%", "99999999999999s", "9" * 400 + "s"])
def test_a_tolerance_beyond_64_bits_allows_all_that_it_can(text: str) -> None:
    thread = {"thread.id": 1}
    spans = [
        S("R", 0, 2**58),
        S("A", 10, 2**57, "R", attributes=thread),
        S("B", 2**57 - 1000, 2**58, "R", attributes=thread),
    ]
    assert path_of(spans, tolerance=OverlapTolerance.parse(text)).overlap_ns == 1000


@pytest.mark.parametrize("text", ["", "x", "1", "-1%", "1 m"])
def test_tolerance_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="share of the parent"):
        OverlapTolerance.parse(text)


# --- ties -------------------------------------------------------------------------------------------------


def test_a_wait_loses_a_tie() -> None:
    spans = [S("R", 0, 100), S("data.wait", 10, 90, "R"), S("forward", 40, 90, "R")]
    assert brief(path_of(spans)) == "R90-100 forward40-90 R0-40"


def test_which_of_two_alike_phases_of_a_lane_holds_a_third_does_not_depend_on_the_order_of_spans() -> None:
    spans = [
        S("R", 0, 100, attributes=lane("main")),
        S("a", 10, 90, "R", attributes=lane("main")),
        S("b", 10, 90, "R", attributes=lane("main")),
        S("c", 20, 30, "R", attributes=lane("main")),
    ]
    assert brief(path_of(spans)) == "R90-100 a30-90 c20-30 a10-20 R0-10"
    assert brief(path_of([spans[0], spans[3], spans[2], spans[1]])) == brief(path_of(spans))


def test_alike_siblings_of_two_services_do_not_depend_on_the_order_of_spans() -> None:
    spans = [S("R", 0, 100, resource={"service.name": "r"})]
    spans += [S(s, 10, 90, "R", name="op", resource={"service.name": s}) for s in ("a", "b")]

    def service(order: list[S]) -> str:
        cols = columns(order)
        section = path_of(order).sections[1]
        assert section.phase == "op"
        assert section.span_ix is not None
        return cols.service(section.span_ix)

    assert service(spans) == service([spans[0], spans[2], spans[1]])


def test_alike_siblings_of_two_processes_do_not_depend_on_the_order_of_spans() -> None:
    thread = {"thread.id": 1}
    here, there = ({"service.name": "a", "process.pid": pid} for pid in (1, 2))
    spans = [S("R", 0, 32), S("B", 8, 20, "R", attributes=thread, resource=here)]
    alike = [S(f"A{n}", 20, 32, "R", "A", attributes=thread, resource=p) for n, p in enumerate((here, there))]
    one, other = columns([*spans, *alike]), columns([*spans, *alike[::-1]])
    assert told(one, path_of([*spans, *alike])) == told(other, path_of([*spans, *alike[::-1]]))


def test_alike_siblings_of_two_kinds_do_not_depend_on_the_order_of_spans() -> None:
    """Many traces are added up by the kinds of spans."""
    alike = [S(f"A{kind}", 20, 32, "R", "A", kind=kind) for kind in (KIND_PRODUCER, KIND_CONSUMER)]
    one, other = columns([S("R", 0, 32), *alike]), columns([S("R", 0, 32), *alike[::-1]])
    assert told(one, tree_path(one, 0)) == told(other, tree_path(other, 0))


def test_alike_siblings_of_two_threads_do_not_depend_on_the_order_of_spans() -> None:
    """Which of them it is shows in how what was before is entered: by its own thread, or not."""
    spans = [S("R", 0, 32), S("B", 8, 20, "R", attributes={"thread.id": 1})]
    alike = [S(f"A{n}", 20, 32, "R", "A", attributes={"thread.id": n}) for n in (1, 2)]
    one, other = columns([*spans, *alike]), columns([*spans, *alike[::-1]])
    assert told(one, path_of([*spans, *alike])) == told(other, path_of([*spans, *alike[::-1]]))


def test_alike_siblings_with_unlike_children_do_not_depend_on_the_order_of_spans() -> None:
    spans = [
        S("R", 0, 100),
        S("a", 10, 90, "R", name="op"),
        S("b", 10, 90, "R", name="op"),
        S("a1", 20, 30, "a", name="left"),
        S("b1", 50, 60, "b", name="right"),
    ]
    swapped = [spans[0], spans[2], spans[1], spans[4], spans[3]]
    assert brief(path_of(spans)) == brief(path_of(swapped))


# --- malformed trees --------------------------------------------------------------------------------------


def test_alike_siblings_that_wait_for_different_spans_do_not_depend_on_the_order_of_spans() -> None:
    spans = [
        S("R", 0, 100),
        S("a", 20, 80, "R", "wait", links=[("fast", "blocking")]),
        S("b", 20, 80, "R", "wait", links=[("slow", "blocking")]),
        S("fast", 20, 40, trace=2),
        S("slow", 20, 70, trace=3),
    ]
    one, other = columns(spans), columns([spans[0], spans[2], spans[1], *spans[3:]])
    assert told(one, tree_path(one, 0)) == told(other, tree_path(other, 0))


def test_zero_length_and_negative_children_leave_no_section() -> None:
    spans = [
        S("R", 0, 40),
        S("z", 20, 20, "R"),
        S("n", 30, 10, "R"),
        S("under", 5, 15, "n"),
        S("B", 20, 30, "R"),
        S("z2", 30, 30, "R"),
    ]
    assert brief(path_of(spans)) == "R30-40 B20-30 R0-20"


@pytest.mark.parametrize("end", [5, 3])
def test_a_root_without_duration_has_an_empty_path(end: int) -> None:
    path = path_of([S("R", 5, end), S("A", 5, 9, "R")])
    assert (path.sections, path.total_ns) == ((), 0)


def test_clipped_time_is_counted() -> None:
    assert path_of(CASES["6"][0]).clipped_ns == 5 + 5
    assert path_of(CASES["3"][0]).clipped_ns == 300


def test_what_the_walk_left_out_was_not_clipped() -> None:
    """It comes back into the middle of a step: what the step did after that is within it."""
    spans = [
        S("run", 0, 1000, attributes=lane("main")),
        S("step", 100, 600, "run", attributes=lane("main")),
        S("forward", 200, 580, "step"),
        S("wait", 700, 900, "run", "data.wait", attributes=lane("main", "0:1")),
        S("fetch", 300, 800, "run", attributes=lane("worker", "0:1")),
    ]
    path = path_of(spans)
    assert brief(path).endswith("data.wait800-900 fetch300-800 forward200-300 step100-200 run0-100")
    assert path.clipped_ns == 0
    assert path_of([*spans, S("late", 590, 620, "step")]).clipped_ns == 20


def test_what_ran_on_beside_a_step_after_the_walk_left_it_ended_nothing_before() -> None:
    """The walk comes back at 300 into a wait for an item that came at 500."""
    spans = [
        S("run", 0, 1000, attributes=lane("main")),
        S("step", 100, 600, "run", attributes=lane("main")),
        S("early", 150, 550, "step", "data.wait", attributes=lane("main", "0:2")),
        S("slow", 120, 500, "step", attributes=lane("worker 2", "0:2")),
        S("wait", 700, 900, "run", "data.wait", attributes=lane("main", "0:1")),
        S("fetch", 300, 800, "run", attributes=lane("worker 1", "0:1")),
    ]
    assert brief(path_of(spans)).endswith("fetch300-800 data.wait150-300 step100-150 run0-100")


def test_a_cycle_of_parents_has_a_path_and_an_end() -> None:
    spans = [S("A", 0, 100, "C"), S("B", 10, 90, "A"), S("C", 20, 80, "B"), S("self", 0, 50, "self", trace=2)]
    paths = trace_paths(columns(spans))
    assert [(root, brief(path)) for root, path in paths] == [
        (3, "self0-50"),
        (0, "A90-100 B80-90 C20-80 B10-20 A0-10"),
    ]


def test_of_several_roots_the_longest_is_the_trace_and_an_orphan_comes_last() -> None:
    spans = [
        S("short", 0, 10),
        S("long", 0, 50),
        S("orphan", 0, 90, "not here"),
        S("lost", 100, 120, "not here", trace=2),
        S("impossible", 500, 400, trace=2),
    ]
    assert [root for root, _ in trace_paths(columns(spans))] == [1, 3]


@pytest.mark.parametrize("parents", [(None, None), ("b", "a"), ("a", "b")])
def test_which_of_roots_alike_it_is_does_not_depend_on_the_order_of_spans(
    parents: tuple[str | None, str | None],
) -> None:
    spans = [
        S("a", 0, 10, parents[0], "op"),
        S("b", 0, 10, parents[1], "op"),
        S("in a", 2, 3, "a"),
        S("in b", 4, 5, "b"),
    ]
    one, other = columns(spans), columns([spans[1], spans[0], *spans[2:]])
    assert told(one, trace_paths(one)[0][1]) == told(other, trace_paths(other)[0][1])


def test_traces_alike_are_ordered_by_their_ids() -> None:
    spans = [S(str(trace), 0, 10, name="op", trace=trace) for trace in (3, 1, 2)]
    cols = columns(spans)
    assert [spans[root].trace for root, _ in trace_paths(cols)] == [1, 2, 3]


def test_a_child_of_another_trace_is_a_child() -> None:
    spans = [S("R", 0, 100), S("A", 10, 90, "R", trace=2), S("B", 20, 30, "A", trace=1)]
    cols = columns(spans)
    assert [(root, brief(path)) for root, path in trace_paths(cols)] == [
        (0, "R90-100 A30-90 B20-30 A10-20 R0-10"),
        (1, "A30-90 B20-30 A10-20"),
    ]


def test_times_at_both_ends_of_what_64_bits_hold() -> None:
    most = 2**63 - 1
    spans = [S("R", -most - 1, most), S("A", -most, most - 1, "R"), S("B", -most - 1, most, "A")]
    path = path_of(spans)
    assert brief(path) == f"R{most - 1}-{most} B{-most}-{most - 1} R{-most - 1}-{-most}"
    assert path.total_ns == 2**64 - 1
    late = [S("R", 0, most), *(S(str(i), 0, most, "R", name="op") for i in range(9))]
    assert brief(path_of(late)) == f"op0-{most}"
    outside = [S("R", 5, 6), *(S(str(i), 0, most, "R", name="op") for i in range(9))]
    assert path_of(outside).clipped_ns == most


def test_many_threads_of_a_parent_of_months_are_kept_apart() -> None:
    """More than fit on one axis of 64 bits: 3,000 pairs in threads of their own, one of which overlaps."""
    end = 10**16
    spans = [S("R", 0, end)]
    for i in range(3_000):
        at = 1000 * i
        thread = {"thread.id": i}
        spans.append(S(f"a{i}", at, at + 101, "R", attributes=thread))
        spans.append(S(f"b{i}", at + 100 if i == 7 else at + 101, at + 1001, "R", attributes=thread))
    path = path_of(spans)
    assert path.overlap_ns == 1
    assert totals(path)["a7"] == 100


def test_no_spans_no_paths() -> None:
    assert len(trace_paths(columns([]))) == 0
