# SPDX-License-Identifier: Apache-2.0
"""Where nothing was seen while phases ran, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.resource_model.model import ResourceModel
from grademl_otel.analyzers.units import count, duration

_LISTED: Final = 8
_NAMED: Final = 3
_LONG: Final = 1.5
"""So many usual intervals without a value are a gap."""
_EDGE: Final = 0.01
"""Of the time of the phases: what is missing of its beginning and its end, of less nothing is said."""
_S: Final = 10**9


@dataclass(frozen=True)
class _Gaps:
    """Of one metric."""

    number: int
    total: int
    longest: int


def gaps(model: ResourceModel, window: tuple[int, int]) -> list[str]:
    """Return a line for each group of metrics of a host that have about the same gaps in ``window``."""
    groups: dict[tuple[str | None, int, int], list[int]] = {}
    found: dict[int, _Gaps] = {}
    for ix, metric in enumerate(model.metrics):
        one = _of(metric.observed.start, metric.observed.end, window)
        if one is not None:
            found[ix] = one
            machine = model.resources[metric.resource].machine
            groups.setdefault((machine, one.number, round(one.total / _S)), []).append(ix)
    length = window[1] - window[0]
    lines = []
    ordered = sorted(groups.items(), key=lambda item: -max(found[ix].total for ix in item[1]))
    for (machine, _, _), ixs in ordered[:_LISTED]:
        worst = max((found[ix] for ix in ixs), key=lambda one: one.total)
        times = f"once, for {duration(worst.total)}"
        if worst.number > 1:
            times = (
                f"{worst.number:,} times, for {duration(worst.total)} (the longest {duration(worst.longest)})"
            )
        lines.append(f"{_what(model, machine, ixs)}: not seen {times} of {duration(length)}")
    if len(ordered) > _LISTED:
        lines.append(f"{count(len(ordered) - _LISTED, 'further group')} of metrics have gaps")
    return lines


def _what(model: ResourceModel, machine: str | None, ixs: Sequence[int]) -> str:
    types = sorted({model.metrics[ix].type for ix in ixs})
    named = ", ".join(types[:_NAMED]) + (f" and {len(types) - _NAMED:,} more" * (len(types) > _NAMED))
    resources = len({model.metrics[ix].resource for ix in ixs})
    where = f" of {machine}" if machine else ""
    return f"{named}{where}" + (f" ({count(resources, 'resource')})" if resources > 1 else "")


def _of(start: IntArray, end: IntArray, window: tuple[int, int]) -> _Gaps | None:
    if not len(start):
        return None
    usual = int(np.median(end - start))
    edge = max(2 * usual, round(_EDGE * (window[1] - window[0])))
    inner = start[1:] - end[:-1]
    inside = (end[:-1] < window[1]) & (start[1:] > window[0])
    missing = inner[inside & (inner > _LONG * usual)].tolist()
    missing += [one for one in (int(start[0]) - window[0], window[1] - int(end[-1])) if one > edge]
    return _Gaps(len(missing), sum(missing), max(missing)) if missing else None
