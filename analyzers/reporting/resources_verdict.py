# SPDX-License-Identifier: Apache-2.0
"""The answer on resources in words: what was full while what ran, and where nothing was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from grademl_otel.analyzers.reporting.resources_document import BottleneckEntry, MetricEntry, PhaseEntry
from grademl_otel.analyzers.reporting.short_paths import shortened
from grademl_otel.analyzers.units import percent, seconds

_WORTH: Final = 0.10
"""Part of a phase's time from which on what was full in it is worth a word."""
_OF_ALL: Final = 0.02
"""Part of the time of all phases from which on a phase is worth one."""
_FREE: Final = 0.90
_OBSERVED: Final = 0.80
_RESOURCES: Final = 3
_PHASES: Final = 3


def verdict(
    phases: Sequence[PhaseEntry], bottlenecks: Sequence[BottleneckEntry], metrics: Sequence[MetricEntry]
) -> list[str]:
    """Return the answer, a line each; the first one is what matters most."""
    whole = sum(one.busy_ns for one in phases)
    known = sum(one.known_ns or 0 for one in phases)
    if not known:
        if all(one.capacity is None for one in metrics):
            return ["What was full is not known: nobody told the capacity of anything that was observed."]
        return ["What was full is not known: no phase ran while something that it uses was observed."]
    name = dict(zip((one.key for one in phases), shortened([one.key for one in phases])[1], strict=True))
    lines = list(_full(phases, bottlenecks, name, whole))
    if not lines:
        lines = ["Nothing that was observed was full for long: no phase was limited by it."]
    lines += list(_free(phases, name, whole))
    if known < _OBSERVED * whole:
        part = percent(known / whole)
        lines.append(f"That is about {part} of the phases' time: of the rest it is not known what was full.")
    return lines


def _full(
    phases: Sequence[PhaseEntry],
    bottlenecks: Sequence[BottleneckEntry],
    name: dict[str, str],
    whole: int,
) -> Iterator[str]:
    """Yield a line for each type of resources that was full, those that were for longest first."""
    busy = {one.key: max(1, one.busy_ns) for one in phases}
    told = [
        one
        for one in bottlenecks
        if one.full_ns >= _WORTH * busy[one.key] and busy[one.key] >= _OF_ALL * whole
    ]
    full: dict[str, int] = {}
    for one in told:
        full[one.resource] = full.get(one.resource, 0) + one.full_ns
    for resource in sorted(full, key=lambda one: (-full[one], one))[:_RESOURCES]:
        own = sorted((one for one in told if one.resource == resource), key=lambda one: -one.full_ns)
        parts = [
            f"{percent(min(1.0, one.full_ns / busy[one.key]))} of {name[one.key]}"
            f" ({seconds(one.full_ns)} of {seconds(busy[one.key])})"
            for one in own[:_PHASES]
        ]
        more = f", and part of {len(own) - _PHASES:,} more" if len(own) > _PHASES else ""
        yield f"{resource} was full in {', '.join(parts)}{more}."


def _free(phases: Sequence[PhaseEntry], name: dict[str, str], whole: int) -> Iterator[str]:
    """Yield a line on the longest phases in which nothing was full."""
    free = [
        one
        for one in phases
        if one.known_ns and (one.free_ns or 0) >= _FREE * one.known_ns and one.busy_ns >= _WORTH * whole
    ]
    if free:
        parts = [f"{name[one.key]} ({seconds(one.busy_ns)})" for one in free[:_PHASES]]
        more = f" and {len(free) - _PHASES:,} more" if len(free) > _PHASES else ""
        hint = "look for waits, locks, latency"
        yield f"Nothing that was observed was full in {', '.join(parts)}{more}: {hint}."
