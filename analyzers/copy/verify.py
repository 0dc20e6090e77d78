# SPDX-License-Identifier: Apache-2.0
"""Whether what was sent is there: read back by trace id, and compared span by span."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.sources.base import Progress, Selection, Source
from grademl_otel.analyzers.sources.batch import IdArray, SpanBatch

_TRACES_AT_A_TIME: Final = 64
_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""A collector passes on what it has in batches, and servers index it some time later."""

Trace = tuple[int, int]


class SentSpans:
    """The ids of all spans that were sent; 24 bytes each."""

    def __init__(self) -> None:
        self._ids: list[tuple[IdArray, IdArray, IdArray]] = []

    def add(self, batch: SpanBatch) -> None:
        self._ids.append((batch.trace_hi.copy(), batch.trace_lo.copy(), batch.span_id.copy()))

    def traces(self) -> int:
        """Return how many traces they are of."""
        pairs = [np.stack((hi, lo), axis=1) for hi, lo, _ in self._ids]
        return len(np.unique(np.concatenate(pairs), axis=0)) if pairs else 0

    def by_trace(self) -> dict[Trace, set[int]]:
        """Return the distinct span ids of each trace; a span that was sent twice is one."""
        spans: dict[Trace, set[int]] = {}
        for hi, lo, own in self._ids:
            order = np.lexsort((lo, hi))
            hi, lo, own = hi[order], lo[order], own[order]
            apart = np.flatnonzero((hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])) + 1
            for part in np.split(np.arange(len(own)), apart):
                if len(part):
                    trace = int(hi[part[0]]), int(lo[part[0]])
                    spans.setdefault(trace, set()).update(own[part].tolist())
        return spans


def missing(
    sent: dict[Trace, set[int]],
    source: Source,
    progress: Progress,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[Trace, set[int]]:
    """Return what of ``sent`` is not in ``source``, empty when all is there; raises SourceError.

    What is not there yet is looked for again, for some seconds.
    """
    absent = _absent(sent, source, progress)
    for pause in _PAUSES_S:
        if not absent:
            break
        sleep(pause)
        absent = _absent({trace: sent[trace] for trace in absent}, source, progress)
    return absent


def _absent(wanted: dict[Trace, set[int]], source: Source, progress: Progress) -> dict[Trace, set[int]]:
    absent: dict[Trace, set[int]] = {}
    traces = list(wanted)
    # A file is read as a whole each time.
    size = _TRACES_AT_A_TIME if "://" in source.uri else len(traces)
    for first in range(0, len(traces), size):
        progress("traces compared", first, len(traces))
        some = traces[first : first + size]
        there = _there(source, some)
        for trace in some:
            left = wanted[trace] - there.get(trace, set())
            if left:
                absent[trace] = left
    return absent


def _there(source: Source, traces: list[Trace]) -> dict[Trace, set[int]]:
    ids = tuple(hi << 64 | lo for hi, lo in traces)
    try:
        spans = source.read(Selection(trace_ids=ids)).spans
    except NothingFound:
        return {}
    there: dict[Trace, set[int]] = {}
    for hi, lo, own in zip(
        spans.trace_hi.tolist(), spans.trace_lo.tolist(), spans.span_id.tolist(), strict=True
    ):
        there.setdefault((hi, lo), set()).add(own)
    return there
