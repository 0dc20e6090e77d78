# SPDX-License-Identifier: Apache-2.0
"""The detail of a kept step: its span, its phases nested by time, and what loader workers did for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grademl_otel import semconv
from grademl_otel.convert.bounds import spans_of_step, worker_spans_per_part
from grademl_otel.convert.emitter import Emitter, Event, phase_name
from grademl_otel.convert.rows import Row
from grademl_otel.convert.spans import Attributes
from grademl_otel.convert.windows import Part

RUN_TRACE_PHASES: Final = frozenset({semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD, semconv.COMPILE})
"""Phases whose spans lie in the run's trace wherever they happen."""
_REDUCED: Final = semconv.WAIT_PHASES | {semconv.COLLECTIVE}
_KINDS: Final = {
    semconv.TRACE_STEP: "train",
    semconv.TRACE_EVAL_STEP: "evaluate",
    semconv.TRACE_INCOMPLETE_STEP: "incomplete",
}


@dataclass(slots=True)
class Kept:
    """A row whose detail is kept."""

    row: Row
    trace_kind: str
    number: int
    """Of the step in its kind of trace."""
    weight: int
    epoch: int
    """-1 outside of epochs."""
    samples: int
    """0 when not known."""
    phases: list[Event]


def emit_step(emitter: Emitter, kept: Kept, part: Part) -> bool:
    """Emit a kept step of ``part``; return False when this rank has no share of its trace."""
    own: list[Event] = []
    fetched: list[Event] = []
    for event in kept.phases:
        name = phase_name(event[1])
        if name in RUN_TRACE_PHASES:
            continue
        remote = name in semconv.WORKER_PHASES and emitter.worker(event[1][1]) is not None
        (fetched if remote else own).append(event)
    room = spans_of_step(emitter.info.rank, emitter.info.world_size)
    if len(own) >= room:
        own, fetched = [event for event in own if phase_name(event[1]) in _REDUCED], []
    if len(own) >= room:
        return False
    trace, span = emitter.step_ids(kept.trace_kind, kept.number)
    row = kept.row
    attributes = _step_attributes(emitter, kept)
    emitter.emit(semconv.STEP, trace, span, 0, row.start, row.end, attributes, link_to_run=True)
    _emit_nested(emitter, own, trace, span, row.step)
    _emit_fetched(emitter, fetched, part, row.step)
    return True


def _step_attributes(emitter: Emitter, kept: Kept) -> Attributes:
    attributes: Attributes = {
        semconv.LANE: emitter.lane(kept.row.lane),
        semconv.STEP_NUMBER: kept.row.step,
        semconv.STEP_KIND: _KINDS[kept.trace_kind],
        semconv.STEP_MICRO: kept.row.micro,
        semconv.WEIGHT: kept.weight,
        semconv.EVIDENCE: "inferred",
    }
    if kept.samples > 0:
        attributes[semconv.STEP_SAMPLES] = kept.samples
    if kept.epoch >= 0 and kept.trace_kind != semconv.TRACE_EVAL_STEP:
        attributes[semconv.EPOCH_NUMBER] = kept.epoch
    return attributes


def _emit_nested(emitter: Emitter, phases: list[Event], trace: int, step_span: int, step: int) -> None:
    """Emit phases under the step, each inside the one of its lane that encloses it in time."""
    stacks: dict[int, list[tuple[int, int]]] = {}
    for event in sorted(phases, key=lambda event: (event[1][2], -event[1][3])):
        _, lane, _, t1, *_ = event[1]
        stack = stacks.setdefault(lane, [])
        while stack and stack[-1][0] < t1:
            stack.pop()
        parent = stack[-1][1] if stack else step_span
        span = emitter.emit_phase(event, trace, parent, {semconv.STEP_NUMBER: step})
        stack.append((t1, span))


def _emit_fetched(emitter: Emitter, phases: list[Event], part: Part, step: int) -> None:
    """Emit what loader workers did, under the window: it overlaps other steps than the waiting one."""
    room = worker_spans_per_part(emitter.info.world_size) - part.worker_spans
    trace, parent = emitter.window_ids(part.window, part.number)
    for event in phases[: max(room, 0)]:
        part.worker_spans += 1
        emitter.emit_phase(event, trace, parent, {semconv.STEP_NUMBER: step})
