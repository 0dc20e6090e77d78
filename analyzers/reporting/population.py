# SPDX-License-Identifier: Apache-2.0
"""Many traces together: where their critical paths run, and what the slow ones have more of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grademl_otel.analyzers.graph.path import Path
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns
from grademl_otel.analyzers.reporting.document import Omitted, PopulationEntry, PopulationInfo

TAIL_SHARE = 0.05
"""The slowest part of the traces, at least one."""
MIDDLE_SHARE = 0.10
"""The part around the median duration that the slowest are compared with, at least one."""


def population(
    spans: SpanColumns, paths: Sequence[tuple[int, Path]], top: int | None = None, told: bool = True
) -> PopulationInfo:
    """Add up the sections of all ``paths`` by service and operation, the largest first.

    Percentiles are over all traces: one whose path does not touch a key has 0 there. They are not ``told``
    of traces that lack spans. With ``top``, the keys beyond it are counted as omitted; the rest sums to the
    total exactly.
    """
    per_trace: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    sections: dict[tuple[str, str], int] = defaultdict(int)
    for number, (root, path) in enumerate(paths):
        for section in path.sections:
            ix = section.span_ix if section.span_ix is not None else root
            key = (str(spans.resource(ix).get("service.name", "")), section.phase)
            per_trace[key][number] += section.duration
            sections[key] += 1
    total = sum(path.total_ns for _, path in paths)
    tail, middle = _cohorts(np.array([path.total_ns for _, path in paths], dtype=np.int64))
    entries = [_entry(key, times, len(paths), total, tail, middle) for key, times in per_trace.items()]
    entries.sort(key=lambda entry: (-entry.path_ns, entry.key))
    if not told:
        entries = [
            replace(entry, p50_ns=None, p95_ns=None, p99_ns=None, tail_minus_median_ns=None)
            for entry in entries
        ]
    shown = entries if top is None else entries[:top]
    omitted = entries[len(shown) :]
    return PopulationInfo(
        total_ns=total,
        population=shown,
        omitted=Omitted(
            sections=sum(sections[entry.service, entry.operation] for entry in omitted),
            ns=sum(entry.path_ns for entry in omitted),
        ),
    )


def _cohorts(durations: IntArray) -> tuple[IntArray, IntArray]:
    """Return the numbers of the slowest traces and of those around the median."""
    order = np.argsort(durations, kind="stable")
    slowest = max(1, round(len(order) * TAIL_SHARE))
    width = max(1, round(len(order) * MIDDLE_SHARE))
    first = (len(order) - width) // 2
    return order[len(order) - slowest :], order[first : first + width]


def _entry(
    key: tuple[str, str], times: dict[int, int], traces: int, total: int, tail: IntArray, middle: IntArray
) -> PopulationEntry:
    values: IntArray = np.zeros(traces, dtype=np.int64)
    values[list(times)] = list(times.values())
    path_ns = sum(times.values())
    p50, p95, p99 = (int(np.percentile(values, q, method="inverted_cdf")) for q in (50, 95, 99))
    service, operation = key
    return PopulationEntry(
        key=f"{service} {operation}".strip(),
        service=service,
        operation=operation,
        traces=len(times),
        path_ns=path_ns,
        share=path_ns / total if total else 0.0,
        p50_ns=p50,
        p95_ns=p95,
        p99_ns=p99,
        tail_minus_median_ns=round(float(values[tail].mean() - values[middle].mean())),
    )
