# SPDX-License-Identifier: Apache-2.0
"""Spans of others as phases: a span is one, its type is its service, its name and what is chosen beside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.execution.draft import ROOT, Draft
from grademl_otel.analyzers.execution.identity import NTH, text_of
from grademl_otel.analyzers.execution.model import BESIDE, DERIVED, MISSING
from grademl_otel.analyzers.model.columns import NO_PARENT, ORPHAN, SpanColumns

SERVICE: Final = "service"
NUMBER: Final = "number"
_NUMBERED: Final = re.compile(r"(.+)#(\d{1,18})", re.DOTALL)
"""A name that numbers its instances, as profilers write `ProfilerStep#7`: one type, with a tag `NUMBER`."""
MISSING_NAME: Final = "(missing)"
"""What a parent is called that spans name and that is not here."""


@dataclass(frozen=True)
class SpanIdentity:
    """Which attributes of spans of others are tags, beside the service; by default none."""

    types: tuple[str, ...] = ()
    """Keys of attributes that tell types apart, as `http.request.method`."""
    tags: tuple[str, ...] = ()
    """Keys of attributes that tell instances of one type apart, as `http.request.id`."""

    def __post_init__(self) -> None:
        """Raises UsageError for the tag by which siblings are numbered."""
        if NTH in (*self.types, *self.tags):
            raise UsageError(f"tag {NTH!r} numbers siblings that are called the same; choose another key")


@dataclass
class _Tagged:
    """Kind, number and label of each chosen span."""

    kind: IntArray
    number: IntArray
    label: IntArray


def add_traces(
    draft: Draft, spans: SpanColumns, chosen: IntArray, identity: SpanIdentity, phase_of_span: IntArray
) -> int:
    """Add the ``chosen`` spans, below their parents or the root; return how many have parents in a circle.

    ``phase_of_span`` has the phases of spans that are there already, for those that are part of them, and
    gets those of the chosen. A parent that is not among the spans becomes a phase that is derived of its
    children; one with impossible times is passed over for what is above it.
    """
    if not len(chosen):
        return 0
    first = len(draft)
    phase_of_span[chosen] = np.arange(first, first + len(chosen))
    above = _nearest(spans.parent_ix, chosen, phase_of_span)
    orphans = np.flatnonzero(spans.parent_ix[chosen] == ORPHAN)
    own, twice = _missing_parents(spans, chosen[orphans])
    above[orphans[own >= 0]] = first + len(chosen) + own[own >= 0]
    tagged = _tagged(draft, spans, chosen, identity)
    draft.add(
        tagged.kind,
        above,
        spans.start[chosen],
        spans.end[chosen],
        number=tagged.number,
        label=tagged.label,
        span_ix=chosen,
        host=_hosts(draft, spans, chosen),
        # What is told of a step by others beside us takes none of its time.
        flags=np.where(_beside(spans, chosen) | ((above != ROOT) & (above < first)), BESIDE, 0),
    )
    missing = int(own.max(initial=-1)) + 1
    if missing:
        draft.add(draft.kind(MISSING_NAME), np.full(missing, ROOT), 0, 0, flags=DERIVED | MISSING)
    return twice


def _nearest(parent_ix: IntArray, chosen: IntArray, phase_of_span: IntArray) -> IntArray:
    """Return the phase of the nearest ancestor that has one of each chosen span; the root where none has."""
    above = parent_ix[chosen].copy()
    while True:
        passed = np.flatnonzero((above >= 0) & (phase_of_span[np.maximum(above, 0)] < 0))
        if not len(passed):
            break
        above[passed] = parent_ix[above[passed]]
    found: IntArray = np.where(above >= 0, phase_of_span[np.maximum(above, 0)], ROOT)
    return found


def _missing_parents(spans: SpanColumns, orphans: IntArray) -> tuple[IntArray, int]:
    """Return (number of the missing parent of each orphan, -1 for none; spans whose parents are a circle)."""
    if not len(orphans):
        return np.zeros(0, np.int64), 0
    keys = np.stack(
        [spans.trace_hi[orphans], spans.trace_lo[orphans], spans.parent_id[orphans]], axis=1
    )  # fmt: skip
    suspects = np.flatnonzero(np.isin(spans.span_id, keys[:, 2]))
    there = set(
        zip(
            spans.trace_hi[suspects].tolist(),
            spans.trace_lo[suspects].tolist(),
            spans.span_id[suspects].tolist(),
            strict=True,
        )
    )
    circle = np.array([key in there for key in map(tuple, keys.tolist())], np.bool_)
    number = np.full(len(orphans), -1, np.int64)
    _, of_key = np.unique(keys[~circle], axis=0, return_inverse=True)
    number[~circle] = of_key.reshape(-1)
    return number, int(circle.sum())


def _tagged(draft: Draft, spans: SpanColumns, chosen: IntArray, identity: SpanIdentity) -> _Tagged:
    names, resources = spans.name_ix[chosen].astype(np.int64), spans.resource_ix[chosen].astype(np.int64)
    key = names * len(spans.resources) + resources
    distinct, of_key = np.unique(key, return_inverse=True)
    services = [str(resource.get("service.name", "")) for resource in spans.resources]
    pairs = [divmod(one, len(spans.resources)) for one in distinct.tolist()]
    numbered = [_numbered(name) for name in spans.names]
    kinds = [
        draft.kind(numbered[name][0], _service(services[resource]), _counted(numbered[name][1]))
        for name, resource in pairs
    ]
    kind, label = np.array(kinds, np.int64)[of_key], np.full(len(chosen), -1, np.int64)
    number = np.array([value for _, value in numbered], np.int64)[names]
    wanted = (*identity.types, *identity.tags)
    may = np.zeros(len(chosen), np.bool_)
    for one in wanted:
        may |= spans.raw_attributes.that_may_have(one.encode(), chosen)
    for at in np.flatnonzero(may).tolist():
        ix = int(chosen[at])
        attributes = spans.attributes(ix)
        name, value = numbered[int(names[at])]
        if value >= 0:  # the name tells the number
            attributes = {key: told for key, told in attributes.items() if key != NUMBER}
        of_type = _service(spans.service(ix)) | _of(attributes, identity.types)
        kind[at] = draft.kind(name, of_type, _counted(value))
        of_instance = _of(attributes, identity.tags)
        label[at] = draft.label({key: told for key, told in of_instance.items() if key not in of_type})
    return _Tagged(kind, number, label)


def _numbered(name: str) -> tuple[str, int]:
    """Return the name of a span without its number, and that; -1 for none."""
    found = _NUMBERED.fullmatch(name)
    return (name, -1) if found is None else (found[1], int(found[2]))


def _counted(number: int) -> str | None:
    return None if number < 0 else NUMBER


def _service(name: str) -> dict[str, Any]:
    return {SERVICE: name} if name else {}


def _of(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: text_of(attributes[key]) for key in keys if attributes.get(key) is not None}


def _hosts(draft: Draft, spans: SpanColumns, chosen: IntArray) -> IntArray:
    names = [
        str(resource.get("host.name") or resource.get(semconv.CLOCK_ID) or "") for resource in spans.resources
    ]
    numbers = np.array([draft.host(name) for name in names] or [-1], np.int64)
    of_chosen: IntArray = numbers[spans.resource_ix[chosen]]
    return of_chosen


def _beside(spans: SpanColumns, chosen: IntArray) -> BoolArray:
    """Return which of the chosen spans name another lane than the nearest ancestor that names one."""
    beside = np.zeros(len(chosen), np.bool_)
    told = spans.raw_attributes.that_may_have(semconv.LANE.encode(), chosen)
    lanes: dict[int, str] = {}
    for ix in chosen[told].tolist():
        lane = spans.attributes(ix).get(semconv.LANE)
        if isinstance(lane, str):
            lanes[ix] = lane
    if not lanes:
        return beside
    has_lane = np.zeros(len(spans), np.int64) - 1
    has_lane[list(lanes)] = list(lanes)
    around = _nearest(spans.parent_ix, chosen[told], np.where(has_lane >= 0, has_lane + 1, -1))
    for at, ix, holder in zip(
        np.flatnonzero(told).tolist(), chosen[told].tolist(), (around - 1).tolist(), strict=True
    ):
        beside[at] = ix in lanes and holder >= 0 and lanes[ix] != lanes[holder]
    return beside


def foreign(spans: SpanColumns, ours: BoolArray) -> IntArray:
    """Return the spans with possible times whose resources are not ``ours`` (a mask of resources)."""
    found: IntArray = np.flatnonzero(~ours[spans.resource_ix] & spans.possible)
    return found


def roots(spans: SpanColumns, chosen: IntArray) -> IntArray:
    """Return those of the ``chosen`` spans that have no parent."""
    found: IntArray = chosen[spans.parent_ix[chosen] == NO_PARENT]
    return found
