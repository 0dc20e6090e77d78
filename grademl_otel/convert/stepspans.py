# SPDX-License-Identifier: Apache-2.0
"""The detail of a kept step: its span, its phases nested by time, and what loader workers did for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.bounds import shard_of_asked_step, spans_of_step, worker_spans_per_part
from grademl_otel.convert.collectives import COLLECTIVE
from grademl_otel.convert.emitter import OBSERVED, Emitter, Event, phase_name
from grademl_otel.convert.rows import OpenRow, Row
from grademl_otel.convert.spans import Attributes, Link
from grademl_otel.convert.windows import Part

RUN_TRACE_PHASES: Final = frozenset({semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD, semconv.COMPILE})
"""Phases whose spans lie in the run's trace wherever they happen."""
_TO_DEVICE: Final = marks.DEVICE_BASE - marks.PHASE_BASE
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
    serial: int
    trace_kind: str
    number: int
    """Of the step in its kind of trace."""
    weight: int | None
    """None: only its own span is kept, because somebody refers to it."""
    epoch: int
    """-1 outside of epochs."""
    samples: int
    """0 when not known."""
    collected: OpenRow


def emit_step(emitter: Emitter, kept: Kept, part: Part) -> bool:
    """Emit a kept step of ``part``; return whether its detail is in the trace that its number names.

    It is not when this rank has no share of that trace, or when others were told of another one.
    """
    own: list[Event] = []
    fetched: list[Event] = []
    for event in kept.collected.events if kept.weight is not None else ():
        name = phase_name(event[1])
        if name in RUN_TRACE_PHASES:
            continue
        remote = name in semconv.WORKER_PHASES and emitter.worker(event[1][1]) is not None
        (fetched if remote else own).append(event)
    room = spans_of_step(emitter.info.rank, emitter.info.world_size)
    if len(own) >= room:
        own, fetched = [event for event in own if phase_name(event[1]) in _REDUCED], []
    shares = kept.weight is not None and len(own) < room
    asked = kept.collected.asked
    if not shares:
        own, fetched = [], []
        if asked is None:
            return False
    derived = kept.trace_kind, kept.number
    trace = emitter.step_trace(*derived) if asked is None else _told_trace(emitter, asked)
    span = emitter.step_span(kept.serial)
    row = kept.row
    attributes, links = _step_attributes(emitter, kept), _links(kept.collected)
    emitter.emit(semconv.STEP, trace, span, 0, row.start, row.end, attributes, link_to_run=True, links=links)
    _emit_nested(emitter, own, trace, span, row.step)
    _emit_fetched(emitter, fetched, part, row.step)
    return shares and (asked is None or asked == derived)


def emit_lost_step(emitter: Emitter, serial: int, row: OpenRow, step: int) -> None:
    """Emit the span of a row that never ended, for those who refer to it."""
    assert row.asked is not None
    known = [mark for _, mark in row.events if mark[0] < marks.DEVICE_BASE]
    start = min((mark[2] for mark in known), default=row.asked_at)
    end = max((mark[3] for mark in known), default=row.asked_at)
    attributes: Attributes = {
        semconv.LANE: emitter.lane(known[0][1]) if known else "main",
        semconv.STEP_NUMBER: step,
        semconv.STEP_KIND: "incomplete",
        semconv.WEIGHT: 0,
        semconv.EVIDENCE: "inferred",
    }
    trace, span = _told_trace(emitter, row.asked), emitter.step_span(serial)
    start, end = min(start, row.asked_at), max(end, row.asked_at)
    emitter.emit(semconv.STEP, trace, span, 0, start, end, attributes, link_to_run=True, links=_links(row))


def _told_trace(emitter: Emitter, asked: tuple[str, int]) -> int:
    """The trace that somebody was told; see `context.StepContexts`, which tells it."""
    info = emitter.info
    return emitter.step_trace(*asked, shard_of_asked_step(info.rank, info.world_size))


def _links(row: OpenRow) -> list[Link]:
    return [Link(*row.around, {semconv.LINK_KIND: "parent"})] if row.around is not None else []


def _step_attributes(emitter: Emitter, kept: Kept) -> Attributes:
    attributes: Attributes = {
        semconv.LANE: emitter.lane(kept.row.lane),
        semconv.STEP_NUMBER: kept.row.step,
        semconv.STEP_KIND: _KINDS[kept.trace_kind],
        semconv.STEP_MICRO: kept.row.micro,
        semconv.WEIGHT: kept.weight or 0,
        semconv.EVIDENCE: OBSERVED if kept.collected.said_at else "inferred",
    }
    if kept.samples > 0:
        attributes[semconv.STEP_SAMPLES] = kept.samples
    if kept.collected.skipped:
        attributes[semconv.STEP_SKIPPED] = kept.collected.skipped
    if kept.row.flags & semconv.FLAG_OUTLIER:
        attributes[semconv.STEP_OUTLIER] = True
    if kept.epoch >= 0 and kept.trace_kind != semconv.TRACE_EVAL_STEP:
        attributes[semconv.EPOCH_NUMBER] = kept.epoch
    return attributes


def _emit_nested(emitter: Emitter, phases: list[Event], trace: int, step_span: int, step: int) -> None:
    """Emit phases under the step, each inside the one of its lane that encloses it in time.

    What a device did has a link to the phase that enqueued it.
    """
    enqueued = {(event[1][0], event[1][2]): emitter.span_of(event) for event in phases}
    stacks: dict[int, list[tuple[int, int]]] = {}
    for event in sorted(phases, key=lambda event: (event[1][2], -event[1][3])):
        kind, lane, _, t1, *_ = event[1]
        stack = stacks.setdefault(lane, [])
        while stack and stack[-1][0] < t1:
            stack.pop()
        parent = stack[-1][1] if stack else step_span
        host = enqueued.get((event[1][0] - _TO_DEVICE, event[1][6]))
        links = [Link(trace, host, {semconv.LINK_KIND: "host"})] if host is not None else []
        span = emitter.emit_phase(event, trace, parent, {semconv.STEP_NUMBER: step}, links=links)
        if kind != COLLECTIVE:  # several of a lane overlap, and nothing lies in one
            stack.append((t1, span))


def _emit_fetched(emitter: Emitter, phases: list[Event], part: Part, step: int) -> None:
    """Emit what loader workers did, under the window: it overlaps other steps than the waiting one."""
    room = worker_spans_per_part(emitter.info.world_size) - part.worker_spans
    trace, parent = emitter.window_ids(part.window, part.number)
    for event in phases[: max(room, 0)]:
        part.worker_spans += 1
        emitter.emit_phase(event, trace, parent, {semconv.STEP_NUMBER: step})
