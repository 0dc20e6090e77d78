# SPDX-License-Identifier: Apache-2.0
"""Many traces together: where their critical paths run, and what the slow ones have more of.

All on arrays: a million sections are sorted twice, and no Python is spent on one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray
from grademl_otel.analyzers.graph.path import EVIDENCE
from grademl_otel.analyzers.graph.trees.trace_paths import TracePaths
from grademl_otel.analyzers.model.arrays import added, changes
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.reporting.document import Omitted, PopulationEntry, PopulationInfo

TAIL_SHARE = 0.05
"""The slowest part of the traces, at least one."""
MIDDLE_SHARE = 0.10
"""The part around the median duration that the slowest are compared with, at least one."""

SPAN_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
"""By the numbers of `SpanColumns.kind`."""
_PERCENTILES: Final = (50, 95, 99)
_SPARSE: Final = 4
"""So many times more values than there are elements are not laid out."""
_MOST: Final = 2**62
"""What 64 bits add up exactly; only spans that contradict each other last longer together."""


def population(
    spans: SpanColumns, paths: TracePaths, top: int | None = None, told: bool = True
) -> PopulationInfo:
    """Add up the sections of all ``paths`` by service, operation and kind of span, the largest first.

    Percentiles are over all traces: one whose path does not touch a key has 0 there. They are not ``told``
    of traces that lack spans. With ``top``, the keys beyond it are counted as omitted; the rest sums to the
    total exactly.
    """
    total = sum(paths.total_ns.tolist())
    keys = _keys(spans, paths)
    path_ns = added(keys.number, paths.sections.duration, len(keys.name))
    names = [keys.text(at) for at in range(len(keys.name))]
    order = sorted(range(len(names)), key=lambda at: (-path_ns[at], names[at]))
    shown = order if top is None else order[:top]
    spread = _Spread(paths, keys.number, len(names))
    entries = []
    for at in shown:
        service, operation, kind, evidence = names[at]
        entries.append(
            PopulationEntry(
                key=_key(service, operation, kind),
                service=service,
                operation=operation,
                kind=kind,
                evidence=evidence,
                traces=spread.traces(at),
                path_ns=path_ns[at],
                share=path_ns[at] / total if total else 0.0,
                **(spread.percentiles(at) if told else dict.fromkeys(_SPREAD)),
            )
        )
    sections = np.bincount(keys.number, minlength=len(names))
    return PopulationInfo(
        total_ns=total,
        population=entries,
        omitted=Omitted(
            sections=int(sections[order[len(shown) :]].sum()),
            ns=sum(path_ns[at] for at in order[len(shown) :]),
        ),
    )


def _key(service: str, operation: str, kind: str) -> str:
    """Return the key in words; a client and the server that it calls often bear one name."""
    return f"{service} {operation}".strip() + ("" if kind in SPAN_KINDS[:2] else f" ({kind})")


_SPREAD: Final = (*(f"p{q}_ns" for q in _PERCENTILES), "tail_minus_median_ns")


@dataclass(frozen=True)
class _Keys:
    """What each section is counted under."""

    number: IntArray
    """Of each section, from 0."""
    name: list[tuple[int, int, int, int]]
    """(service, phase, kind, evidence) of each number, as indices."""
    services: list[str]
    phases: list[str]

    def text(self, at: int) -> tuple[str, str, str, str]:
        service, phase, kind, evidence = self.name[at]
        of_span = SPAN_KINDS[kind] if 0 <= kind < len(SPAN_KINDS) else SPAN_KINDS[0]
        return self.services[service], self.phases[phase], of_span, EVIDENCE[evidence]


def _keys(spans: SpanColumns, paths: TracePaths) -> _Keys:
    sections = paths.sections
    ix = np.where(sections.span_ix >= 0, sections.span_ix, paths.roots[paths.trace])
    services: dict[str, int] = {}
    of_resource = [
        services.setdefault(str(resource.get("service.name", "")), len(services))
        for resource in spans.resources
    ]
    phases: dict[str, int] = {}
    of_phase = [phases.setdefault(phase, len(phases)) for phase in sections.phases]
    told = [EVIDENCE.index(entered.evidence) for entered in sections.entrances]
    columns = [
        np.array(of_resource or [0], np.int64)[spans.resource_ix[ix]],
        np.array(of_phase or [0], np.int64)[sections.phase],
        spans.kind[ix].astype(np.int64),
        np.array(told or [0], np.int64)[sections.entered],
    ]
    code = np.zeros(len(sections), np.int64)
    for column in columns:  # renumbered each time: a product of all sizes might not fit
        code = _renumbered(code * (int(column.max(initial=0)) + 1) + column)
    first = np.full(int(code.max(initial=-1)) + 1, -1, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    name = [tuple(int(column[at]) for column in columns) for at in first.tolist()]
    return _Keys(code, name, list(services), list(phases))  # type: ignore[arg-type]


def _renumbered(values: IntArray) -> IntArray:
    """Return ``values``, none below 0, by their ranks: equal ones as equal numbers without gaps."""
    most = int(values.max(initial=0)) + 1
    if most > _SPARSE * (len(values) + 1):
        return np.unique(values, return_inverse=True)[1].reshape(-1)
    there = np.zeros(most, np.int64)
    there[values] = 1
    ranks: IntArray = (np.cumsum(there) - 1)[values]
    return ranks


class _Spread:
    """The times of each key in each trace on whose path it is, by key and length."""

    def __init__(self, paths: TracePaths, key: IntArray, keys: int) -> None:
        self._count = len(paths)
        # Of one key sections stand by trace already. Small numbers are sorted faster.
        order = np.argsort(key.astype(np.int16) if keys < 1 << 15 else key, kind="stable")
        of_key, trace = key[order], paths.trace[order]
        begins = np.flatnonzero(changes(of_key, trace)) if len(order) else order
        times = np.add.reduceat(paths.sections.duration[order], begins) if len(begins) else begins
        of_key, trace = of_key[begins], trace[begins]
        slow, usual = (_mean(of_key, times, keys, part, trace) for part in _cohorts(paths.total_ns))
        self._difference = slow - usual
        self._times = _sorted_within(of_key, times)
        self._first = np.searchsorted(of_key, np.arange(keys + 1))

    def traces(self, key: int) -> int:
        """Return on how many paths ``key`` is."""
        return int(self._first[key + 1] - self._first[key])

    def percentiles(self, key: int) -> dict[str, int]:
        """Return percentiles (the least time that so many traces do not exceed), and tail minus median."""
        found = self.traces(key)
        spread = {}
        for q in _PERCENTILES:
            at = max(0, -(-q * self._count // 100) - 1) - (self._count - found)
            spread[f"p{q}_ns"] = int(self._times[self._first[key] + at]) if at >= 0 else 0
        return {**spread, "tail_minus_median_ns": round(float(self._difference[key]))}


def _cohorts(durations: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return how much of each trace, 0 to 1, is among the slowest, and among those around the median.

    Equally long ones at the edge of a cohort are in it in equal parts: no order among them means anything.
    """
    count = len(durations)
    slowest, width = max(1, round(count * TAIL_SHARE)), max(1, round(count * MIDDLE_SHARE))
    first = (count - width) // 2
    order = np.argsort(durations)
    begins = np.flatnonzero(changes(durations[order])) if count else order
    ends = np.append(begins[1:], count)[: len(begins)]

    def part(low: int, high: int) -> FloatArray:
        inside = np.maximum(np.minimum(ends, high) - np.maximum(begins, low), 0)
        parts: FloatArray = np.zeros(count)
        parts[order] = np.repeat(inside / (ends - begins), ends - begins)
        return parts

    return part(count - slowest, count), part(first, first + width)


def _sorted_within(key: IntArray, times: IntArray) -> IntArray:
    """Return ``times`` with those of each key, which stand together, in ascending order."""
    room = int(times.max(initial=0)) + 1
    if (int(key.max(initial=0)) + 1) * room >= _MOST:
        return times[np.lexsort((times, key))]
    ascending: IntArray = np.sort(key * room + times) % room
    return ascending


def _mean(key: IntArray, times: IntArray, keys: int, part: FloatArray, trace: IntArray) -> FloatArray:
    """Return the mean time of each key over the ``part`` of each trace; those without it count as 0."""
    means: FloatArray = np.bincount(key, times * part[trace], keys) / max(1, round(float(part.sum())))
    return means
