# SPDX-License-Identifier: Apache-2.0
"""Columns: duplicates, impossible times, parents and rings, whatever the order of the spans."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import (
    KIND_CLIENT,
    KIND_INTERNAL,
    KIND_SERVER,
    NO_PARENT,
    ORPHAN,
    Ledger,
    SpanColumns,
)
from grademl_otel.analyzers.sources import Selection
from grademl_otel.analyzers.sources.batch import CodedNames
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.narrow import narrow, take
from tests.support.build import B, batch


def builder_of(*spans: tuple[int, ...]) -> SpanBuilder:
    """Spans as (trace, id, parent[, start, end, kind])."""
    builder = SpanBuilder(1 << 20)
    add(builder, *spans)
    return builder


def add(builder: SpanBuilder, *spans: tuple[int, ...]) -> int:
    builder.resource("none", lambda _: {})
    return builder.add(batch([B(*span, name=f"s{span[1]}") for span in spans]))


def columns_of(*spans: tuple[int, ...]) -> tuple[SpanColumns, Ledger]:
    ledger = Ledger()
    return builder_of(*spans).finish(ledger), ledger


def test_parents_are_found_within_their_trace_only() -> None:
    spans, _ = columns_of((1, 7, 0), (1, 8, 7), (2, 8, 7), (2, 9, 8))
    assert spans.parent_ix.tolist() == [NO_PARENT, 0, ORPHAN, 2]


def test_children_may_come_before_their_parents() -> None:
    spans, _ = columns_of((1, 8, 7), (1, 7, 0))
    assert spans.parent_ix.tolist() == [1, NO_PARENT]


def test_ids_of_full_length_are_kept() -> None:
    trace, own = 2**128 - 1, 2**64 - 1
    spans, _ = columns_of((trace, own, 0))
    assert spans.trace_id_hex(0) == "f" * 32
    assert spans.span_id_hex(0) == "f" * 16


def test_traces_that_differ_in_their_upper_half_only_are_two() -> None:
    spans, ledger = columns_of((5, 1, 0), (1 << 64 | 5, 1, 0))
    assert len(spans) == 2
    assert ledger.duplicates == 0


def test_of_duplicates_the_first_stays_and_the_rest_is_counted() -> None:
    spans, ledger = columns_of((1, 7, 0, 5, 9), (1, 8, 7), (1, 7, 0, 6, 8), (1, 7, 0, 5, 9))
    assert spans.start.tolist() == [5, 0]
    assert (ledger.duplicates, ledger.conflicting) == (1, 1)


def test_a_client_and_a_server_span_may_share_an_id() -> None:
    client, server = (1, 7, 6, 0, 9, KIND_CLIENT), (1, 7, 6, 1, 8, KIND_SERVER)
    spans, ledger = columns_of((1, 6, 0), client, server, (1, 9, 7))
    assert ledger.duplicates == 0
    assert spans.parent_ix.tolist() == [NO_PARENT, 0, 1, 2]


def test_impossible_times_are_kept_counted_and_masked() -> None:
    spans, ledger = columns_of(
        (1, 1, 0, 9, 5), (1, 2, 0, 3, 0), (1, 3, 0, 0, 0), (1, 4, 0, 0, 0), (1, 5, 0, 5, 5)
    )
    assert len(spans) == 5
    assert ledger.impossible_times == 4
    assert spans.possible.tolist() == [False, False, False, False, True]


def test_a_ring_of_parents_is_cut_at_its_earliest_span() -> None:
    spans, ledger = columns_of((1, 1, 3, 5, 9), (1, 2, 1, 3, 9), (1, 3, 2, 4, 9), (1, 4, 3), (1, 5, 5))
    assert spans.parent_ix.tolist() == [2, ORPHAN, 1, 2, ORPHAN]
    assert len(ledger.warnings) == 1
    assert ledger.warnings[0].startswith("2 ")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(0, 12)), max_size=40))
def test_parents_agree_with_a_search_and_never_form_a_ring(spans: list[tuple[int, int, int]]) -> None:
    columns, ledger = columns_of(*spans)
    where = {(int(columns.trace_lo[ix]), int(columns.span_id[ix])): ix for ix in range(len(columns))}
    assert len(columns) == len({(trace, own) for trace, own, _ in spans})
    assert ledger.duplicates + ledger.conflicting == len(spans) - len(columns)
    cut = 0
    for ix, parent in enumerate(columns.parent_ix.tolist()):
        wanted = int(columns.parent_id[ix])
        found = where.get((int(columns.trace_lo[ix]), wanted))
        if wanted == 0:
            assert parent == NO_PARENT
        else:
            assert parent in (ORPHAN, found)
            cut += parent == ORPHAN and found is not None
        seen = set()
        at = ix
        while at >= 0:
            assert at not in seen
            seen.add(at)
            at = int(columns.parent_ix[at])
    assert [f"{cut}"] * (cut > 0) == [warning.split()[0] for warning in ledger.warnings]


def test_a_long_chain_below_a_ring_is_not_walked_again_and_again() -> None:
    count = 20_000
    chain = [(1, own, own - 1) for own in range(2, count)]
    spans, _ = columns_of((1, 1, 1), *chain)
    assert spans.parent_ix.tolist() == [ORPHAN, *range(count - 2)]


def test_links_follow_their_spans_when_duplicates_go() -> None:
    builder = SpanBuilder(10)
    spans = [B(1, own, 0, links=[(9, target, "run")]) for own, target in ((1, 11), (1, 12), (2, 13))]
    builder.add(batch(spans))
    columns = builder.finish(Ledger())
    assert columns.links.span_ix.tolist() == [0, 1]
    assert columns.links.span_id.tolist() == [11, 13]


def test_closed_traces_take_no_more() -> None:
    builder = builder_of((1, 1, 0), (1, 2, 1), (2, 1, 0))
    assert builder.close_traces(0) == (2, 0)
    assert add(builder, (1, 3, 0), (3, 1, 0)) == 1
    assert builder.close_traces(3) == (1, 1)


def test_taking_spans_renumbers_parents_and_links() -> None:
    spans, _ = columns_of((1, 1, 0), (2, 1, 0), (2, 2, 1), (2, 3, 2))
    kept = take(spans, np.array([1, 3]))
    assert kept.span_id.tolist() == [1, 3]
    assert kept.parent_ix.tolist() == [NO_PARENT, ORPHAN]


def test_narrowing_keeps_whole_traces() -> None:
    spans, _ = columns_of((1, 1, 0, 10, 20), (1, 2, 1, 12, 15), (2, 1, 0, 100, 110))
    assert narrow(spans, Selection(trace_ids=(2,))).span_id.tolist() == [1]
    assert len(narrow(spans, Selection(operation="s2"))) == 2
    assert len(narrow(spans, Selection(start=16))) == 3
    assert len(narrow(spans, Selection(start=21))) == 1
    assert len(narrow(spans, Selection(end=11))) == 2
    assert len(narrow(spans, Selection(service="absent"))) == 0


SPANS = st.builds(
    B,
    trace=st.integers(1, 3) | st.integers(2**64, 2**64 + 2),
    id=st.integers(1, 12),
    parent=st.integers(0, 12),
    start=st.integers(0, 3),
    end=st.integers(0, 3),
    kind=st.integers(0, 5),
    status=st.integers(0, 2),
    flags=st.sampled_from([0, 1, 2**32 - 1]),
    name=st.sampled_from(["a", "b", "c"]),
    raw=st.binary(max_size=2),
    events=st.just(b"") | st.binary(max_size=2),
    links=st.lists(
        st.tuples(st.integers(1, 2**128 - 1), st.integers(1, 9), st.sampled_from(["run", "follows"])),
        max_size=2,
    ),
)


def told(columns: SpanColumns, ix: int) -> B:
    """The span as it was given; its links are not."""
    events = columns.events(ix)
    return B(
        int(columns.trace_hi[ix]) << 64 | int(columns.trace_lo[ix]),
        int(columns.span_id[ix]),
        int(columns.parent_id[ix]),
        int(columns.start[ix]),
        int(columns.end[ix]),
        int(columns.kind[ix]),
        int(columns.status[ix]),
        int(columns.flags[ix]),
        columns.name(ix),
        columns.attributes(ix)["raw"],
        events[0].attributes["raw"] if events else b"",
    )


@settings(deadline=None)
@given(st.lists(st.lists(SPANS, max_size=6), max_size=4), st.integers(1, 2))
def test_whatever_comes_in_whatever_batches_comes_out(batches: list[list[B]], again: int) -> None:
    """The first of each (trace, id, kind) stays, whole; the others are counted as what they are."""
    batches = batches * again
    builder = SpanBuilder(1 << 20)
    for spans in batches:
        assert builder.add(batch(spans)) == len(spans)
    ledger = Ledger()
    columns = builder.finish(ledger)
    spans_given = [span for spans in batches for span in spans]
    first: dict[tuple[int, int, int], B] = {}
    exact: Counter[bool] = Counter()
    for span in spans_given:
        key = (span.trace, span.id, span.kind)
        if key in first:
            exact[replace(first[key], links=()) == replace(span, links=())] += 1
        first.setdefault(key, span)
    assert [told(columns, ix) for ix in range(len(columns))] == [replace(s, links=()) for s in first.values()]
    assert (ledger.duplicates, ledger.conflicting) == (exact[True], exact[False])
    links = columns.links
    targets = zip(
        links.trace_hi.tolist(), links.trace_lo.tolist(), links.span_id.tolist(), links.kind, strict=True
    )
    found = [
        (ix, hi << 64 | lo, span, kind)
        for ix, (hi, lo, span, kind) in zip(links.span_ix.tolist(), targets, strict=True)
    ]
    assert found == [(ix, *link) for ix, span in enumerate(first.values()) for link in span.links]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "changed", [B(1, 50, 0, raw=b"no"), B(1, 50, 0, raw=b"50", events=b"e"), B(1, 50, 0, 1, raw=b"50")]
)
def test_what_comes_twice_is_compared_to_the_last_byte(order: int, changed: B) -> None:
    spans = [B(1, own, 0, raw=b"%d" % own) for own in range(1, 101)]
    again = [changed if span.id == changed.id else span for span in spans][::order]
    builder = SpanBuilder(1 << 20)
    for some in (spans[:30], spans[30:], again[:80], again[80:]):
        builder.add(batch(some))
    ledger = Ledger()
    assert len(builder.finish(ledger)) == 100
    assert (ledger.duplicates, ledger.conflicting) == (99, 1)


@pytest.mark.parametrize("size", [1, 3])
def test_many_small_batches_are_put_together(size: int) -> None:
    builder = SpanBuilder(1 << 20)
    given = [
        B(
            trace,
            own,
            own - 1,
            name=f"{own % 7}",
            raw=b"%d" % own,
            events=b"e" * (trace % 3),
            links=[(9, own, "run")],
        )
        for trace in range(600)
        for own in range(1, size + 1)
    ]
    for at in range(0, len(given), size):
        builder.add(batch(given[at : at + size]))
    columns = builder.finish(Ledger())
    assert [told(columns, ix) for ix in range(len(columns))] == [replace(span, links=()) for span in given]
    assert columns.links.span_id.tolist() == [span.id for span in given]
    assert len(columns.raw_attributes.columns) < 300  # of 600 batches


def test_reading_may_go_on_after_a_first_look() -> None:
    builder = builder_of((1, 2, 1), (1, 3, 2))
    first = builder.finish(Ledger())
    assert first.parent_ix.tolist() == [ORPHAN, 0]
    add(builder, (1, 1, 0), (1, 2, 1))
    ledger = Ledger()
    assert builder.finish(ledger).parent_ix.tolist() == [2, 0, NO_PARENT]
    assert (len(builder), ledger.duplicates) == (4, 1)
    assert first.parent_ix.tolist() == [ORPHAN, 0]


def test_no_more_spans_than_asked_for_are_taken() -> None:
    builder = SpanBuilder(3)
    spans = [B(1, own, 0, raw=b"%d" % own, links=[(9, own, "run")]) for own in range(1, 5)]
    assert builder.add(batch(spans[:2])) == 2
    assert (builder.room, builder.full) == (1, False)
    assert builder.add(batch(spans[2:])) == 1
    assert (builder.room, builder.full) == (0, True)
    assert builder.add(batch(spans)) == 0
    columns = builder.finish(Ledger())
    assert columns.links.span_id.tolist() == [1, 2, 3]
    assert columns.attributes(2) == {"raw": b"3"}


def test_of_closed_traces_nothing_is_taken_and_the_rest_is_whole() -> None:
    builder = SpanBuilder(9)
    builder.add(batch([B(1, 1, 0), B(1 << 64, 1, 0)]))
    builder.close_traces(0)
    more = [B(trace, 7, 0, raw=b"%d" % trace, links=[(9, trace & 7, "run")]) for trace in (1, 2, 1 << 64, 3)]
    assert builder.add(batch(more)) == 2
    columns = builder.finish(Ledger())
    assert [columns.attributes(ix)["raw"] for ix in (2, 3)] == [b"2", b"3"]
    assert (columns.links.span_ix.tolist(), columns.links.span_id.tolist()) == ([2, 3], [2, 3])
    assert builder.spans_of_traces(1) == {1 << 64: 1, 2: 1, 3: 1}


def test_nothing_makes_empty_columns() -> None:
    ledger = Ledger()
    for builder in (SpanBuilder(9), builder_of()):
        columns = builder.finish(ledger)
        assert (len(columns), columns.names, columns.trace_ix.tolist(), columns.clock.tolist()) == (
            0,
            [],
            [],
            [],
        )
        assert len(take(columns, np.zeros(0, np.int64))) == 0
    assert ledger == Ledger()


def test_events_may_be_in_the_bytes_of_the_attributes() -> None:
    builder = SpanBuilder(9)
    one = batch([B(1, 1, 0, raw=b"x"), B(1, 2, 0, raw=b"y")])
    builder.add(replace(one, events=one.attributes))
    builder.add(batch([B(1, 3, 0, raw=b"z")]))
    columns = builder.finish(Ledger())
    assert [[event.attributes for event in columns.events(ix)] for ix in range(3)] == [
        [{"raw": b"x"}],
        [{"raw": b"y"}],
        [],
    ]
    assert columns.attributes(1) == {"raw": b"y"}


def test_resources_and_scopes_are_there_once_however_written() -> None:
    builder = SpanBuilder(9)
    decoded = {"a": {"service.name": "x", "n": 1}, "b": {"n": 1, "service.name": "x"}, "c": {"n": 1.0}}
    assert [builder.resource(key, decoded.__getitem__) for key in "abca"] == [0, 0, 1, 0]
    scope = {"name": "s", "version": "", "attributes": {}}
    assert [builder.scope(key, lambda _: dict(scope)) for key in "ab"] == [0, 0]
    none, some = batch([B(1, 1, 0), B(1, 2, 0)]), np.array([0, -1], np.int32)
    builder.add(replace(none, scope_ix=some, resource_ix=-some))
    columns = builder.finish(Ledger())
    assert (columns.scope(0), columns.scope(1)) == (scope, None)
    assert (columns.service(0), columns.service(1)) == ("x", "")


def test_a_clock_is_a_boot_else_a_host() -> None:
    builder = SpanBuilder(9)
    says = [{semconv.CLOCK_ID: "boot", "host.name": "b"}, {"host.name": "a"}, {}, {"host.name": "boot"}]
    for number in range(len(says)):
        builder.resource(number, says.__getitem__)
    builder.add(
        replace(batch([B(1, own, 0) for own in range(1, 5)]), resource_ix=np.arange(4, dtype=np.int32))
    )
    columns = builder.finish(Ledger())
    assert columns.clocks == ["boot", "a"]
    assert columns.clock.tolist() == [0, 1, -1, 0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**128 - 1) | st.sampled_from([1, 1 << 64, 1 << 64 | 1])))
def test_traces_have_numbers(traces: list[int]) -> None:
    builder = SpanBuilder(1 << 20)
    builder.add(batch([B(trace, own, 0) for own, trace in enumerate(traces, 1)]))
    number = {trace: ix for ix, trace in enumerate(sorted(set(traces)))}
    assert builder.finish(Ledger()).trace_ix.tolist() == [number[trace] for trace in traces]


@pytest.mark.parametrize("order", [1, -1])
def test_long_chains_and_deep_trees_take_no_time(order: int) -> None:
    """20,000 spans below each other, parents first and last."""
    spans = [B(1, own, own - 1) for own in range(1, 20_001)][::order]
    builder = SpanBuilder(1 << 20)
    builder.add(batch(spans))
    ledger = Ledger()
    columns = builder.finish(ledger)
    parents = columns.parent_ix.tolist()
    assert all(child - parent == order for child, parent in enumerate(parents) if parent != NO_PARENT)
    assert ledger == Ledger()


def test_of_a_shared_id_the_server_span_has_the_children() -> None:
    """However the three come, and whatever else has the id in another trace."""
    client, server, child, other = (
        B(1, 7, 6, kind=KIND_CLIENT),
        B(1, 7, 6, kind=KIND_SERVER),
        B(1, 8, 7),
        B(2, 7, 0),
    )
    inner = B(1, 7, 6, kind=KIND_INTERNAL)
    for spans in permutations([client, server, child, other, inner]):
        builder = SpanBuilder(9)
        builder.add(batch(spans))
        parents = builder.finish(Ledger()).parent_ix.tolist()
        assert parents[spans.index(child)] == spans.index(server)
        assert parents[spans.index(server)] == spans.index(client)
        assert parents[spans.index(client)] == parents[spans.index(inner)] == ORPHAN
        assert parents[spans.index(other)] == NO_PARENT


@given(st.lists(SPANS, max_size=8), st.data())
@settings(deadline=None)
def test_what_is_taken_is_whole(spans: list[B], data: st.DataObject) -> None:
    builder = SpanBuilder(99)
    builder.add(batch(spans))
    columns = builder.finish(Ledger())
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(columns), max_size=len(columns))), np.bool_
    )
    kept = np.flatnonzero(mask)
    taken = take(columns, kept)
    assert [told(taken, ix) for ix in range(len(taken))] == [told(columns, ix) for ix in kept.tolist()]
    new_ix = {old: new for new, old in enumerate(kept.tolist())}
    for old, new in new_ix.items():
        parent = int(columns.parent_ix[old])
        assert int(taken.parent_ix[new]) == (parent if parent < 0 else new_ix.get(parent, ORPHAN))
    links = zip(columns.links.span_ix.tolist(), columns.links.span_id.tolist(), strict=True)
    left = zip(taken.links.span_ix.tolist(), taken.links.span_id.tolist(), strict=True)
    assert list(left) == [(new_ix[ix], span) for ix, span in links if ix in new_ix]


def test_keys_are_looked_for_before_anything_is_decoded() -> None:
    builder = SpanBuilder(9)
    raws = [b'[{"key":"a.b"}]', b'[{"key":"a\\u002eb"}]', b'[{"key":"ab"}]', b""]
    builder.add(batch([B(1, own, 0, raw=raw) for own, raw in enumerate(raws, 1)]))
    store = builder.finish(Ledger()).raw_attributes
    assert [store.may_have(ix, [b"x", b"a.b"]) for ix in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("expected", [0, 1, 7, 12, 99, 2**70])
def test_how_many_spans_were_expected_changes_nothing(expected: int) -> None:
    def some(first: int, count: int) -> list[B]:
        return [
            B(1, ix + 1, ix, 10 * ix, 10 * ix + 5, name=f"n{ix % 3}", raw=b"%d" % ix, events=b"e" * (ix % 2))
            for ix in range(first, first + count)
        ]

    def told(spans: SpanColumns) -> list[object]:
        return [spans.parent_ix.tolist()] + [
            [of(ix) for of in (spans.span_id_hex, spans.name, spans.attributes, spans.events)]
            for ix in range(len(spans))
        ]

    builder, plain = SpanBuilder(99, expected), SpanBuilder(99)
    seen = []
    for first, count in ((0, 3), (3, 4), (7, 0), (7, 5), (12, 8)):
        for one in (builder, plain):
            one.add(batch(some(first, count)))
        found = builder.finish(Ledger())
        seen.append((found, told(found)))
        assert told(found) == told(plain.finish(Ledger()))
        assert builder.starts_since(first, (0.5,)) == plain.starts_since(first, (0.5,))
    for found, before in seen:
        assert told(found) == before, "what was returned is not written to again"


def test_names_by_number_are_those_names() -> None:
    spans = [B(1, ix + 1, 0, ix, ix, name=name) for ix, name in enumerate("bbadb")]
    words = ["unused", "d", "a", "b"]
    coded = CodedNames(np.array([words.index(span.name) for span in spans], np.int32), words)
    assert list(coded) == [span.name for span in spans]
    assert list(coded[1:3]) == ["b", "a"]
    builder = SpanBuilder(99)
    builder.add(batch([B(1, 9, 0, name="a")]))
    builder.add(replace(batch(spans), names=coded))
    found = builder.finish(Ledger())
    assert found.names == ["a", "b", "d"], "by first appearance, and no other"
    assert [found.name(ix) for ix in range(6)] == ["a", *"bbadb"]
