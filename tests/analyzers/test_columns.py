# SPDX-License-Identifier: Apache-2.0
"""Columns: duplicates, impossible times, parents and rings, whatever the order of the spans."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import OTLP_JSON, otlp_attributes
from grademl_otel.analyzers.sources.formats.rows import Rows
from grademl_otel.analyzers.sources.narrow import narrow, take


def builder_of(*spans: tuple[int, ...]) -> SpanBuilder:
    """Spans as (trace, id, parent[, start, end, kind])."""
    builder = SpanBuilder(1 << 20)
    add(builder, *spans)
    return builder


def add(builder: SpanBuilder, *spans: tuple[int, ...]) -> int:
    rows = Rows(OTLP_JSON)
    resource = builder.resource(b"[]", otlp_attributes)
    for trace, own, parent, *rest in spans:
        start, end, kind = (*rest, *(0, 1, KIND_INTERNAL)[len(rest) :])
        rows.add((trace, own, parent, f"s{own}", start, end, kind, 0, resource, b"[]"))
    return builder.add(rows.batch())


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
        (1, 1, 0, 9, 5), (1, 2, 0, 3, 0), (1, 3, 0, -1, 5), (1, 4, 0, 1, 1 << 63), (1, 5, 0, 5, 5)
    )
    assert len(spans) == 5
    assert ledger.impossible_times == 4
    assert spans.possible.tolist() == [False, False, False, False, True]


def test_a_ring_of_parents_is_cut_at_its_earliest_span() -> None:
    spans, ledger = columns_of((1, 1, 3, 5, 9), (1, 2, 1, 3, 9), (1, 3, 2, 4, 9), (1, 4, 3), (1, 5, 5))
    assert spans.parent_ix.tolist() == [2, ORPHAN, 1, 2, ORPHAN]
    assert len(ledger.warnings) == 1
    assert ledger.warnings[0].startswith("2 ")


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
    resource = builder.resource(b"[]", otlp_attributes)
    rows = Rows(OTLP_JSON)
    for own, target in ((1, 11), (1, 12), (2, 13)):
        rows.add((1, own, 0, "s", 0, 1, 0, 0, resource, b"[]"))
        rows.link(9, target, "run")
    builder.add(rows.batch())
    spans = builder.finish(Ledger())
    assert spans.links.span_ix.tolist() == [0, 1]
    assert spans.links.span_id.tolist() == [11, 13]


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
