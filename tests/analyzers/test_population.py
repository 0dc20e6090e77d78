# SPDX-License-Identifier: Apache-2.0
"""Many traces together: keys, shares, percentiles, the tail against the middle, and what was left out."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel.analyzers.graph import TracePaths, trace_paths
from grademl_otel.analyzers.model.columns import (
    KIND_CLIENT,
    KIND_INTERNAL,
    KIND_SERVER,
    STATUS_ERROR,
    SpanColumns,
)
from grademl_otel.analyzers.reporting.document import PopulationInfo, to_dict
from grademl_otel.analyzers.reporting.population import population

from ..support.build import S, columns
from ..support.jaeger_cases import jaeger_document
from ..support.synthetic import MS

SHOP, STORE = {"service.name": "shop"}, {"service.name": "store"}


def request(number: int, store_ms: int, kind: int = KIND_SERVER) -> list[S]:
    """A request of 10 ms beside the call of a store."""
    begin, end = number * 10**10, number * 10**10 + (10 + store_ms) * MS
    ids = f"r{number}", f"c{number}", f"s{number}"
    return [
        S(ids[0], begin, end, name="buy", trace=number + 1, kind=kind, resource=SHOP),
        S(ids[1], begin + 5 * MS, end - 4 * MS, ids[0], "get", number + 1, KIND_CLIENT, resource=SHOP),
        S(ids[2], begin + 5 * MS, end - 5 * MS, ids[1], "get", number + 1, KIND_SERVER, resource=STORE),
    ]


def found(spans: SpanColumns, top: int | None = None) -> PopulationInfo:
    return population(spans, trace_paths(spans), top)


def test_time_is_counted_by_service_operation_and_kind_of_span() -> None:
    made = found(columns([span for number in range(20) for span in request(number, 30)]))
    assert [(e.service, e.operation, e.kind, e.key, e.path_ns, e.traces) for e in made.population] == [
        ("store", "get", "server", "store get (server)", 20 * 30 * MS, 20),
        ("shop", "buy", "server", "shop buy (server)", 20 * 9 * MS, 20),
        ("shop", "get", "client", "shop get (client)", 20 * 1 * MS, 20),
    ]
    assert made.total_ns == 20 * 40 * MS
    assert sum(entry.share for entry in made.population) == pytest.approx(1)
    assert {entry.evidence for entry in made.population} == {"observed"}


def test_the_slow_traces_have_more_of_what_is_slow() -> None:
    slow = {7, 40}
    spans = columns([s for number in range(40 + 1) for s in request(number, 500 if number in slow else 20)])
    store, buy, get = found(spans).population
    assert (store.p50_ns, store.p95_ns, store.p99_ns) == (20 * MS, 20 * MS, 500 * MS)
    assert (store.tail_minus_median_ns, buy.tail_minus_median_ns, get.tail_minus_median_ns) == (
        480 * MS,
        0,
        0,
    )


def test_of_traces_equally_long_none_is_slower() -> None:
    """When they were is no matter: here all that call the store came last."""
    spans = [s for number in range(40) for s in request(number, 30)[: 3 if number >= 30 else 1]]
    assert {entry.tail_minus_median_ns for entry in found(columns(spans)).population} == {0}


def test_a_trace_without_the_key_counts_as_none_of_it() -> None:
    spans = [span for number in range(10) for span in request(number, 30)[: 3 if number < 4 else 1]]
    made = found(columns(spans))
    store = next(entry for entry in made.population if entry.service == "store")
    assert (store.traces, store.p50_ns, store.p95_ns) == (4, 0, 30 * MS)


def test_spans_that_failed_are_keys_as_they_are() -> None:
    spans = columns(request(0, 30) + request(1, 30))
    spans.status[spans.trace_ix == 1] = STATUS_ERROR
    assert len(found(spans).population) == 3


def test_phases_of_serving_engines_are_keys_of_their_own(tmp_path: Path) -> None:
    documents = []
    for number in range(1, 41):
        queue = 50 if number > 38 else 10
        document = jaeger_document(f"A[0,{1000 * (queue + 40)})", trace=number, service="vllm")
        (span,) = document["data"][0]["spans"]
        span["operationName"] = "llm_request"
        span["tags"] += [
            {"key": f"gen_ai.latency.{key}", "type": "float64", "value": ms / 1000}
            for key, ms in (("e2e", queue + 40), ("time_in_queue", queue), ("time_in_model_prefill", 10),
                            ("time_in_model_decode", 25))
        ]  # fmt: skip
        documents += document["data"]
    path = tmp_path / "llm.json"
    path.write_text(json.dumps({"data": documents}))
    document = to_dict(analyzers.critical_path(path))
    entries = {entry["operation"]: entry for entry in document["path"]["population"]}
    assert {name: (entry["evidence"], entry["path_ns"]) for name, entry in entries.items()} == {
        "decode": ("attribute", 40 * 25 * MS),
        "queue": ("attribute", (38 * 10 + 2 * 50) * MS),
        "prefill": ("attribute", 40 * 10 * MS),
        "llm_request": ("attribute", 40 * 5 * MS),
    }
    assert entries["queue"]["tail_minus_median_ns"] == 40 * MS
    assert entries["decode"]["tail_minus_median_ns"] == 0
    assert "queue" in analyzers.render(analyzers.critical_path(path), width=80)
    one = to_dict(analyzers.critical_path(path, traces=[f"{40:x}"]))
    rows = {row["key"]: (row["path_ns"], row["drag_ns"]) for row in one["summary"] if row["path_ns"]}
    assert rows == {
        "queue": (50 * MS, 50 * MS), "decode": (25 * MS, 25 * MS), "prefill": (10 * MS, 10 * MS),
        "llm_request": (5 * MS, 5 * MS),
    }  # fmt: skip


def test_phases_without_a_unit_are_said(tmp_path: Path) -> None:
    document = jaeger_document("A[0,1000)")
    document["data"][0]["spans"][0]["tags"] += [
        {"key": "gen_ai.latency.time_in_queue", "type": "float64", "value": 0.1}
    ]
    path = tmp_path / "llm.json"
    path.write_text(json.dumps(document))
    said = {one.rule: one.missing for one in analyzers.critical_path(path).abstained}
    assert "nothing beside them tells their unit" in said["path.virtual_phases"]


def test_top_leaves_out_and_says_how_much() -> None:
    spans = columns([span for number in range(5) for span in request(number, 30)])
    made = found(spans, top=1)
    assert [entry.service for entry in made.population] == ["store"]
    assert (made.omitted.sections, made.omitted.ns) == (5 * 3, 5 * 10 * MS)


def test_times_beyond_64_bits_add_up_exactly() -> None:
    spans = columns([S(f"s{n}", 0, 2**62, name="long", trace=n + 1, kind=KIND_INTERNAL) for n in range(8)])
    made = found(spans)
    assert made.total_ns == made.population[0].path_ns == 8 * 2**62


@st.composite
def crowds(draw: st.DrawFn) -> list[S]:
    spans = []
    for trace in range(draw(st.integers(1, 12))):
        spans += request(trace, draw(st.integers(0, 6)) * 10, draw(st.sampled_from((0, 1, 2))))[
            : draw(st.integers(1, 3))
        ]
    return spans


def part_of(lengths: list[int], first: int, until: int) -> list[Fraction]:
    """Return how much of each trace is among those from ``first`` until ``until`` by length.

    Of equally long ones it is the mean over all orders that they can stand in.
    """
    parts = []
    for length in lengths:
        below, alike = sum(other < length for other in lengths), lengths.count(length)
        inside = [at for at in range(below, below + alike) if first <= at < until]
        parts.append(Fraction(len(inside), alike))
    return parts


@given(crowds(), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_it_is_what_adding_up_one_by_one_gives(spans: list[S], top: int) -> None:
    cols = columns(spans)
    paths = trace_paths(cols)
    times: dict[tuple[str, str, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for number, (_, path) in enumerate(paths):
        for section in path.sections:
            assert section.span_ix is not None
            key = cols.service(section.span_ix), section.phase, int(cols.kind[section.span_ix])
            times[key][number] += section.duration
    made = population(cols, paths)
    kinds = ("unspecified", "internal", "server", "client")
    lengths = [path.total_ns for _, path in paths]
    count, width = len(lengths), max(1, round(len(lengths) * 0.1))
    tail = part_of(lengths, count - max(1, round(count * 0.05)), count)
    first = (count - width) // 2
    middle = part_of(lengths, first, first + width)
    assert len(made.population) == len(times)
    for entry in made.population:
        mine = times[entry.service, entry.operation, kinds.index(entry.kind)]
        every = sorted(mine.get(number, 0) for number in range(len(paths)))
        assert (entry.path_ns, entry.traces) == (sum(every), len(mine))
        for q, ns in ((50, entry.p50_ns), (95, entry.p95_ns), (99, entry.p99_ns)):
            assert ns == every[math.ceil(q * len(every) / 100) - 1]
        slow, usual = (
            sum(mine.get(number, 0) * part for number, part in enumerate(parts)) / sum(parts)
            for parts in (tail, middle)
        )
        assert abs(entry.tail_minus_median_ns - (slow - usual)) <= Fraction(501, 1000)
    some = population(cols, paths, top)
    assert sum(entry.path_ns for entry in some.population) + some.omitted.ns == some.total_ns
    assert some.total_ns == sum(path.total_ns for _, path in paths)


@given(crowds(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_spans_changes_nothing(spans: list[S], chance: random.Random) -> None:
    assert found(columns(spans)) == found(columns(chance.sample(spans, len(spans))))


def test_a_hundred_thousand_traces_are_added_up_without_looking_at_one() -> None:
    paths = trace_paths(columns([span for number in range(50) for span in request(number, 30)]))
    times = 2_000
    many = TracePaths(
        roots=np.tile(paths.roots, times),
        start=np.tile(paths.start, times),
        end=np.tile(paths.end, times),
        sections=paths.sections.take(np.tile(np.arange(len(paths.sections)), times)),
        first=np.concatenate([[0], np.cumsum(np.tile(np.diff(paths.first), times))]),
        clipped_ns=np.tile(paths.clipped_ns, times),
        overlap_ns=np.tile(paths.overlap_ns, times),
    )
    spans = columns([span for number in range(50) for span in request(number, 30)])
    made = population(spans, many)
    assert made.total_ns == 100_000 * 40 * MS
    assert [entry.p95_ns for entry in made.population] == [30 * MS, 9 * MS, 1 * MS]
