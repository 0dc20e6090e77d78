# SPDX-License-Identifier: Apache-2.0
"""Whatever a store holds and however it cuts its answers, a search by windows finds every trace once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.windows import Look, Pace, Windows

SPAN = 10**12


class Store:
    """Traces with the times of their spans; it gives at most so many of them, in some order."""

    def __init__(
        self,
        traces: Sequence[Sequence[int]],
        order: int = 0,
        rows: bool = False,
        largest: int = 10**9,
        most_spans: int = 10**9,
        told: bool = True,
    ) -> None:
        self.traces = traces
        self.order = order
        self.rows = rows
        self.largest = largest
        self.most_spans = most_spans
        self.told = told
        self.seen: set[int] = set()
        self.asked = 0

    def ask(self, start: int, end: int, limit: int) -> Look:
        self.asked += 1
        assert self.asked < 20_000
        if limit > self.largest:
            raise TooLarge("search depth must be greater than 0 and less than max traces")
        hits = [
            (at, number) for number, times in enumerate(self.traces) for at in times if start <= at <= end
        ]
        hits.sort(key=lambda hit: (hit[0] * self.order, hit[1]))
        if self.rows:  # as Cassandra: three times the limit of rows, then as many traces as are in them
            hits = hits[: 3 * limit]
        found = list(dict.fromkeys(number for _, number in hits))[:limit]
        if sum(len(self.traces[number]) for number in found) > self.most_spans:
            raise TooLarge("the answer is too large")
        new = [number for number in found if number not in self.seen]
        self.seen.update(new)
        times = sorted(at for number in new for at in self.traces[number])
        if not times or not self.told:
            return Look(len(new), len(found) - len(new))
        return Look(len(new), len(found) - len(new), len(times), times[-1] - times[0], times[-1])


stores = st.builds(
    Store,
    traces=st.lists(
        st.lists(
            st.one_of(
                st.integers(0, SPAN),
                st.integers(SPAN // 3, SPAN // 3 + 1000),
                st.sampled_from((0, SPAN // 2, SPAN)),
            ),
            min_size=1,
            max_size=4,
        ),
        max_size=60,
    ),
    order=st.sampled_from((-1, 0, 1)),
    largest=st.sampled_from((7, 80, 10**9)),
    told=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(stores, st.integers(2, 7), st.integers(1, 10_000_000), st.sampled_from((1, 1000)))
def test_every_trace_is_found_once(store: Store, limit: int, size: int, finest: int) -> None:
    pace = Pace(limit)
    windows = Windows(store.ask, 0, SPAN, pace, finest)
    found = 0
    for new in windows:
        found += new
        pace.learn(size, new)
    assert found == len(store.seen)
    if not windows.dense:
        assert len(store.seen) == len(store.traces)
    else:  # only where the server gives no more of one moment
        assert store.largest < 80


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, SPAN), min_size=1, max_size=40, unique=True),
    st.integers(5, 30),
    st.integers(5, 20),
)
def test_a_store_that_counts_rows_is_seen_through(starts: list[int], spans: int, limit: int) -> None:
    store = Store([[at + 7 * n for n in range(spans)] for at in starts], order=-1, rows=True)
    for _ in Windows(store.ask, 0, 2 * SPAN, Pace(limit)):
        pass
    assert store.seen == set(range(len(starts)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, SPAN), max_size=60, unique=True), st.integers(5, 20))
def test_answers_that_are_too_large_are_asked_for_in_pieces(starts: list[int], most: int) -> None:
    store = Store([[at] for at in starts], order=-1, most_spans=most)
    for _ in Windows(store.ask, 0, SPAN, Pace(100)):
        pass
    assert store.seen == set(range(len(starts)))


def test_few_requests_find_many_traces() -> None:
    store = Store([[SPAN // 2 + 1000 * n] for n in range(5_000)], order=-1)
    pace = Pace(100)

    def ask(start: int, end: int, limit: int) -> Look:
        look = store.ask(start, end, limit)
        pace.learn(50_000 * (look.new + look.again), look.new + look.again)  # 335 fit into an answer
        return look

    for _ in Windows(ask, 0, SPAN, pace):
        pass
    assert len(store.seen) == 5_000
    assert store.asked < 80
