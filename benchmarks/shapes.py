# SPDX-License-Identifier: Apache-2.0
"""Spans and step tables of any size as columns, made without a Python object for each."""

from __future__ import annotations

from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import KIND_INTERNAL, Links, SpanColumns
from grademl_otel.analyzers.model.facts import Completeness, HowEnded, Loader, Run, Scope, StepTable
from grademl_otel.analyzers.model.raw import NOTHING, RawStore

SPANS_PER_TRACE: Final = 1_000
_FIRST_NS: Final = 1_790_857_026_000_000_000
_SECOND: Final = 1_000_000_000
_NAMES: Final = tuple(f"operation {number}" for number in range(40))
_WORKERS: Final = 2
_PASS: Final = {semconv.EPOCH_NUMBER: 0, semconv.LOADER_ID: 0}


def traces(count: int) -> SpanColumns:
    """Return ``count`` traces: random trees, in which half of the calls follow one another."""
    chance = np.random.default_rng(1)
    start = np.zeros((SPANS_PER_TRACE, count), np.int64)
    end, parent = start.copy(), np.full_like(start, -1)
    every = np.arange(count)
    start[0] = _FIRST_NS + every * _SECOND
    end[0] = start[0] + _SECOND
    free = start.copy()  # when the last child ended
    for number in range(1, SPANS_PER_TRACE):
        above = (chance.random(count) * number).astype(np.int64)
        low, high = start[above, every], end[above, every]
        length = high - low
        follows = chance.random(count) < 0.5
        at = np.where(follows, free[above, every], low + (chance.random(count) * length).astype(np.int64))
        start[number] = np.clip(at, low, high)
        end[number] = np.minimum(start[number] + (chance.random(count) * length / 4).astype(np.int64), high)
        parent[number] = above + every * SPANS_PER_TRACE
        free[number] = start[number]
        free[above, every] = np.maximum(free[above, every], end[number])
    return _columns(start.T.ravel(), end.T.ravel(), parent.T.ravel(), np.repeat(every, SPANS_PER_TRACE))


def siblings(count: int, apart: int = 0) -> SpanColumns:
    """Return a root and ``count`` children, one after the other, with ``apart`` ns between them."""
    start = _FIRST_NS + 10_000 * np.arange(count)
    whole = np.array([_FIRST_NS]), np.array([_FIRST_NS + 10_000 * count])
    return _columns(
        np.concatenate((whole[0], start)),
        np.concatenate((whole[1], start + 10_000 - apart)),
        np.concatenate((np.array([-1]), np.zeros(count, np.int64))),
        np.zeros(count + 1, np.int64),
    )


def nested(count: int) -> SpanColumns:
    """Return ``count`` spans, each in the one before."""
    number = np.arange(count)
    return _columns(_FIRST_NS + number, _FIRST_NS + 2 * count - number, number - 1, np.zeros(count, np.int64))


def _columns(start: IntArray, end: IntArray, parent: IntArray, trace: IntArray) -> SpanColumns:
    count = len(start)
    ids = np.arange(1, count + 1, dtype=np.uint64)
    none = np.zeros(0, np.uint64)
    return SpanColumns(
        trace_hi=np.zeros(count, np.uint64),
        trace_lo=(trace + 1).astype(np.uint64),
        span_id=ids,
        parent_id=np.where(parent >= 0, parent + 1, 0).astype(np.uint64),
        parent_ix=parent,
        start=start,
        end=end,
        name_ix=(np.arange(count) % len(_NAMES)).astype(np.int32),
        names=list(_NAMES),
        kind=np.full(count, KIND_INTERNAL, np.int8),
        status=np.zeros(count, np.int8),
        resource_ix=np.zeros(count, np.int32),
        resources=[{"service.name": "shop"}],
        links=Links(np.zeros(0, np.int64), none, none, none, []),
        flags=np.zeros(count, np.uint32),
        scope_ix=np.full(count, -1, np.int32),
        scopes=[],
        raw_attributes=RawStore([], np.full(count, NOTHING, np.int32), np.zeros(count, np.int32)),
        raw_events=RawStore([], np.full(count, NOTHING, np.int32), np.zeros(count, np.int32)),
    )


def training(rows: int, ranks: int = 1) -> Run:
    """Return a run of ``rows`` steps in all, as step tables tell of it.

    One rank waits in every step for one of two loader workers; several meet in an all-reduce in every step,
    to which the ranks come last in turn.
    """
    each = rows // ranks
    number = np.tile(np.arange(each), ranks)
    rank = np.repeat(np.arange(ranks), each)
    begin = _FIRST_NS + _SECOND + 20_000_000 * number
    one = np.ones(len(rank), np.int64)
    forward = 4_000_000 + 2_000_000 * (number % ranks == rank)
    if ranks > 1:
        phases = {
            semconv.FORWARD: (begin, forward),
            semconv.BACKWARD: (begin + forward, 8_000_000 * one),
            semconv.COLLECTIVE: (begin + forward + 8_000_000, 19_000_000 - forward - 8_000_000),
            semconv.OPTIMIZER: (begin + 19_000_000, 900_000 * one),
        }
    else:
        phases = {
            semconv.DATA_WAIT: (begin, 7_000_000 * one),
            semconv.DATA_FETCH: (begin + 6_900_000 - 39_000_000, 38_000_000 * one),
            semconv.DATA_COLLATE: (begin + 6_900_000 - 1_000_000, 1_000_000 * one),
            semconv.FORWARD: (begin + 7_000_000, 4_000_000 * one),
            semconv.BACKWARD: (begin + 11_000_000, 8_000_000 * one),
            semconv.OPTIMIZER: (begin + 19_000_000, 900_000 * one),
        }
    loaded = ranks == 1
    steps = StepTable(
        rank=rank,
        step=number,
        start=begin,
        end=begin + 20_000_000,
        micro=one,
        flags=0 * one,
        window=number // 4_096,
        level=0 * one,
        item_pass=0 * one if loaded else -one,
        item_batch=number if loaded else -one,
        item_loader=0 * one if loaded else -one,
        item_worker=number % _WORKERS if loaded else -one,
        first={name: first for name, (first, _) in phases.items()},
        busy={name: busy for name, (_, busy) in phases.items()},
        count=dict.fromkeys(phases, one),
    )
    start, end = _FIRST_NS, int(begin[-1]) + 21_000_000
    empty = _columns(*(np.zeros(0, np.int64) for _ in range(4)))
    passes = [
        Scope(semconv.EPOCH, one_rank, start + _SECOND - 1_000_000, end - 1_000_000, -1, _PASS)
        for one_rank in range(ranks)
    ]
    return Run(
        run_id="0" * 32, attempt=0, script="train.py", device="cpu", ranks=list(range(ranks)),
        start=start, end=end, rank_bounds=dict.fromkeys(range(ranks), (start, end)),
        scopes=passes, run_spans={}, loaders={0: Loader(0, _WORKERS, 2, 32, False)} if loaded else {},
        steps=steps, step_spans={}, spans=empty, span_ixs=np.zeros(0, np.int64),
        completeness=Completeness(ended=[HowEnded(one_rank, "exit", None, end) for one_rank in range(ranks)]),
    )  # fmt: skip
