# SPDX-License-Identifier: Apache-2.0
"""Many trees on arrays against the walk, one tree after the other: the same path to the last bit."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.graph import OverlapTolerance, trace_paths
from grademl_otel.analyzers.graph.trees import forest
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_INTERNAL, KIND_PRODUCER

from ..support.build import S, columns
from ..support.paths import assert_tiles, told, walked_path

NAMES = ("forward", "data.wait", "GET /", "step")
TOLERANCES = st.sampled_from(("0", "1%", "3ns", "100%")).map(OverlapTolerance.parse)


@st.composite
def forests(draw: st.DrawFn) -> list[S]:
    """Up to three traces of up to 12 spans, most of them plain trees.

    Some on a clock so coarse that siblings are alike, some of threads whose spans overlap a little.
    """
    tick = draw(st.sampled_from((1, 1, 8)))
    threads = draw(st.sampled_from((0, 0, 1, 2)))
    spans = []
    for trace in range(draw(st.integers(1, 3))):
        for i in range(draw(st.integers(1, 12))):
            start = draw(st.integers(0, 24 // tick)) * tick
            thread = draw(st.integers(min(threads, 1), threads))
            spans.append(
                S(
                    f"{trace}-{i}",
                    start,
                    start + draw(st.integers(0, 16 // tick)) * tick + (8 if i == 0 else draw(ODD)),
                    draw(st.none() | st.just("not here")) if i == 0 else f"{trace}-{draw(_parents(i))}",
                    name=draw(st.sampled_from(NAMES[: 1 if tick > 1 else None])),
                    trace=trace + 1,
                    kind=draw(st.sampled_from((KIND_INTERNAL, KIND_INTERNAL, KIND_PRODUCER, KIND_CONSUMER))),
                    attributes={"thread.id": thread} if thread else {},
                    resource={
                        "service.name": draw(st.sampled_from("ab")) if threads == 0 else "a",
                        "grademl.rank": draw(st.integers(0, 1)) if tick == 1 and threads == 0 else 0,
                    },
                )
            )
    return spans


ODD = st.sampled_from((0, 0, 0, 0, 0, 0, 0, -1))
"""What makes a few spans end before they start."""


def _parents(i: int) -> st.SearchStrategy[int]:
    """Mostly one of the first, so that many are siblings; sometimes itself, or what closes a cycle."""
    return st.integers(0, min(i - 1, 2)) | st.integers(0, i - 1) | st.integers(max(0, i - 2), i)


@given(forests(), TOLERANCES, st.integers(1, 40))
@settings(max_examples=120, deadline=None)
def test_all_at_once_are_as_each_alone(spans: list[S], tolerance: OverlapTolerance, at_once: int) -> None:
    cols = columns(spans)
    with mock.patch.object(forest, "_AT_ONCE", at_once):
        paths = trace_paths(cols, tolerance)
    for root, path in paths:
        assert_tiles(path)
        assert told(cols, path) == told(cols, walked_path(cols, root, tolerance))


@given(forests(), st.randoms(use_true_random=False), st.integers(-30, 10**18))
@settings(max_examples=60, deadline=None)
def test_order_and_shift_change_nothing(spans: list[S], random: object, shift: int) -> None:
    """A shift to before 0 leaves nothing to the arrays: times may be anything there."""
    shuffled = list(spans)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    moved = [S(**{**vars(s), "start": s.start + shift, "end": s.end + shift}) for s in shuffled]
    before, after = columns(spans), columns(moved)
    expected = sorted((told(before, path) for _, path in trace_paths(before)), key=repr)
    # A span that ends at 0 has no end: then another is the root.
    if all(s.end and s.end + shift for s in spans):
        found = [told(after, path, shift) for _, path in trace_paths(after)]
        assert sorted(found, key=repr) == expected


@given(forests(), st.data())
@settings(max_examples=50, deadline=None)
def test_some_of_the_roots_have_the_paths_they_have_among_all(spans: list[S], data: st.DataObject) -> None:
    cols = columns(spans)
    every = trace_paths(cols)
    some = data.draw(st.lists(st.integers(0, len(every) - 1), unique=True))
    for paths in (every.take(np.array(some, np.int64)), trace_paths(cols, roots=every.roots[some].tolist())):
        assert paths.roots.tolist() == every.roots[some].tolist()
        assert paths.total_ns.tolist() == every.total_ns[some].tolist()
        assert [told(cols, path) for _, path in paths] == [told(cols, every[at][1]) for at in some]
        assert paths.sections.by(paths.trace, len(paths)).tolist() == paths.total_ns.tolist()
