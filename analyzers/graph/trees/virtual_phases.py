# SPDX-License-Identifier: Apache-2.0
"""What serving engines tell of a request in attributes of its span, as phases within it.

Engines that batch requests do not make spans of what they do for one: they add to its span how long it was
queued, how long its first token took, and so on.

===================================== =======================================================================
attribute                             written by
===================================== =======================================================================
gen_ai.latency.e2e                    vLLM, SGLang: the whole request
gen_ai.latency.time_in_queue          until it was scheduled first
gen_ai.latency.time_in_model_prefill  until the first token, from then on
gen_ai.latency.time_in_model_decode   until the last token, from then on
gen_ai.latency.time_in_model_inference   both together
gen_ai.latency.time_to_first_token    from the arrival; used where prefill and decode are not told
total_time, validation_time,          text-generation-inference, text-embeddings-inference: durations as Rust
tokenization_time, queue_time,        writes them for people ("1.5ms")
inference_time
===================================== =======================================================================

They say how long, not when: the phases are laid from the start of the span in the order above, and what is
left of it stays the span's own. No convention fixes the unit of the former: it is the one by which the whole
request lasts as long as its span, within 5 %. Otherwise, or where the parts are longer than the whole, none
of it is used, and that is said. Other attributes of engines overlap these and are no part of a tiling.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.path import ATTRIBUTE, KINDS, WAIT, WORK, EnteredBy, Sections
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.units import count

QUEUE: Final = "queue"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
INFERENCE: Final = "inference"
VALIDATION: Final = "validation"
TOKENIZATION: Final = "tokenization"

WITHIN: Final = 0.05
"""How far the whole request and its span may differ, of the span's duration."""

_PREFIX: Final = "gen_ai.latency."
_UNITS_NS: Final = (1_000_000_000, 1_000_000, 1_000, 1)
_RUST: Final = re.compile(r"(\d+(?:\.\d+)?)(s|ms|µs|us|ns)")
_RUST_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "µs": 1_000, "us": 1_000, "ns": 1}
_RUST_PARTS: Final = ((VALIDATION, "validation_time"), (TOKENIZATION, "tokenization_time"),
                      (QUEUE, "queue_time"), (INFERENCE, "inference_time"))  # fmt: skip
_MARKS: Final = (b"gen_ai.latency.", b"inference_time")
"""All that is looked for in the raw attributes of spans."""

Phases = list[tuple[str, float]]
"""(name, ns), in order."""


@dataclass(frozen=True)
class Told:
    """Sections with the phases that attributes tell of."""

    sections: Sections
    origin: IntArray
    """For each of them the section that it is all or a part of."""
    notes: list[str]
    """Why attributes that tell of phases were not used, one line each."""


def with_virtual_phases(spans: SpanColumns, sections: Sections) -> Told:
    """Return ``sections`` with those of spans that tell of phases cut into these; all together as long."""
    found: dict[int, list[tuple[str, int]]] = {}
    unused: Counter[str] = Counter()
    for ix in _telling(spans, sections):
        told = _phases(spans.attributes(ix), int(spans.end[ix]) - int(spans.start[ix]))
        if isinstance(told, str):
            unused[told] += 1
        elif told:
            found[ix] = _laid_out(told, int(spans.start[ix]), int(spans.end[ix]))
    notes = [
        f"phases that attributes of {count(number, 'span')} tell of are not used: {why}"
        for why, number in sorted(unused.items())
    ]
    if not found:
        return Told(sections, np.arange(len(sections)), notes)
    return Told(*_cut(sections, found), notes)


def _telling(spans: SpanColumns, sections: Sections) -> list[int]:
    """Return the spans of ``sections`` that may tell of phases."""
    some = np.unique(sections.span_ix[sections.span_ix >= 0])
    told = np.zeros(len(some), bool)
    for mark in _MARKS:
        told |= spans.raw_attributes.that_may_have(mark, some)
    found: list[int] = some[told].tolist()
    return found


def _phases(attributes: Mapping[str, Any], duration: int) -> Phases | str:
    """Return what ``attributes`` tell of a span of that ``duration``, in ns; or why that is not used."""
    rust = {key: _rust_ns(attributes.get(key)) for key in ("total_time", *(key for _, key in _RUST_PARTS))}
    whole = rust.pop("total_time")
    if whole is not None and rust["queue_time"] is not None and rust["inference_time"] is not None:
        parts = [(name, ns) for name, key in _RUST_PARTS if (ns := rust[key])]
        return _checked(parts, duration, whole)
    told = {
        key[len(_PREFIX) :]: number
        for key, value in attributes.items()
        if key.startswith(_PREFIX) and (number := _number(value)) is not None
    }
    parts = _gen_ai(told)
    if not parts:
        return []
    end_to_end = told.get("e2e")
    if end_to_end is None:
        return "nothing beside them tells their unit (gen_ai.latency.e2e)"
    for unit in _UNITS_NS:
        if abs(end_to_end * unit - duration) <= WITHIN * duration and duration > 0:
            return _checked([(name, value * unit) for name, value in parts], duration, end_to_end * unit)
    return "gen_ai.latency.e2e is as long as the span in no unit"


def _gen_ai(told: Mapping[str, float]) -> Phases:
    queue = told.get("time_in_queue", 0.0)
    prefill, decode = told.get("time_in_model_prefill"), told.get("time_in_model_decode")
    first, whole = told.get("time_to_first_token"), told.get("e2e")
    if prefill is None and decode is None and "time_in_model_inference" in told:
        parts = [(QUEUE, queue), (INFERENCE, told["time_in_model_inference"])]
    elif prefill is None and decode is None and first is not None and whole is not None:
        parts = [(QUEUE, queue), (PREFILL, first - queue), (DECODE, whole - first)]
    else:
        parts = [(QUEUE, queue), (PREFILL, prefill or 0.0), (DECODE, decode or 0.0)]
    return [(name, value) for name, value in parts if value > 0]


def _checked(parts: Phases, duration: int, whole: float) -> Phases | str:
    if abs(whole - duration) > WITHIN * duration:
        return "the whole request is not as long as its span"
    if sum(ns for _, ns in parts) > (1 + WITHIN) * duration:
        return "they are longer than their span"
    return parts


def _number(value: Any) -> float | None:
    """Return a length; None for what is none. Some formats have numbers as text only."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _rust_ns(value: Any) -> float | None:
    match = _RUST.fullmatch(value) if isinstance(value, str) and len(value) < 40 else None
    return float(match[1]) * _RUST_NS[match[2]] if match else None


def _laid_out(parts: Phases, start: int, end: int) -> list[tuple[str, int]]:
    """Return (name, where it ends) for the phases from ``start`` on, in Unix ns, none beyond ``end``."""
    reached, bounds = 0.0, []
    for name, ns in parts:
        reached += ns
        bounds.append((name, min(start + round(reached), end)))
    return bounds


def _cut(sections: Sections, found: Mapping[int, list[tuple[str, int]]]) -> tuple[Sections, IntArray]:
    phases, entrances = list(sections.phases), list(sections.entrances)
    names = {name: at for at, name in reversed(list(enumerate(phases)))}
    entrance_of = {entrance: at for at, entrance in reversed(list(enumerate(entrances)))}
    cut = np.flatnonzero(np.isin(sections.span_ix, list(found)))
    rows: list[tuple[int, int, int, int, int, int]] = []  # origin, start, end, phase, kind, entered
    for at in cut.tolist():
        begin, end = int(sections.start[at]), int(sections.end[at])
        told = EnteredBy(entrances[int(sections.entered[at])].edge, ATTRIBUTE)
        by = entrance_of.setdefault(told, len(entrance_of))
        if by == len(entrances):
            entrances.append(told)
        for name, until in found[int(sections.span_ix[at])]:
            until = min(until, end)
            if until > begin:
                phase = names.setdefault(name, len(phases))
                if phase == len(phases):
                    phases.append(name)
                rows.append((at, begin, until, phase, KINDS.index(WAIT if name == QUEUE else WORK), by))
                begin = until
        if begin < end:
            rows.append((at, begin, end, int(sections.phase[at]), int(sections.kind[at]), by))
    table = np.array(rows, np.int64).reshape(-1, 6)
    whole = np.setdiff1d(np.arange(len(sections)), cut)
    origin = np.concatenate([whole, table[:, 0]])
    order = np.lexsort((np.concatenate([sections.start[whole], table[:, 1]]), origin))
    parts = sections.take(origin)
    for column, values in zip(("start", "end", "phase", "kind", "entered"), table.T[1:], strict=True):
        getattr(parts, column)[len(whole) :] = values
    return replace(parts.take(order), phases=phases, entrances=entrances), origin[order]
