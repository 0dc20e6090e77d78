# SPDX-License-Identifier: Apache-2.0
"""What all parts of the conversion share: whose run it is, its ids, and where its spans are collected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.collectives import COLLECTIVE, describe_collective
from grademl_otel.convert.spans import Attributes, Link, Span
from grademl_otel.ring.reader import Mark
from grademl_otel.vocabulary import free, spelled

_WORKER_LANE: Final = re.compile(r"^loader\d*-worker-(\d+)$")
_TRACE_SCOPE: Final = "scope"
_EVENT: Final = "mark"
_ERROR_TYPE: Final = "error.type"
_WITH_ITEM: Final = frozenset(
    marks.phase_kind(name) for name in (semconv.DATA_WAIT, *semconv.WORKER_PHASES, semconv.DATA_TRANSFER)
)
"""Kinds of marks whose ``x`` is an item."""
UNNAMED: Final = "phase"
"""A phase of the program's own whose name is not known, or does not matter."""
OBSERVED: Final = "observed"

Event = tuple[int, Mark]
"""A mark and its sequence number in the ring, from which the id of its span follows."""


class Emitter:
    """Makes spans of one rank of one run, with ids that docs/telemetry.md defines."""

    def __init__(self, info: marks.RunInfo, strings: Sequence[str]):
        self.info = info
        self.emitted = 0
        """Spans made so far, those of an earlier relay included."""
        self.muted = False
        """True while marks are read again that an earlier relay has told of: nothing but windows is made
        then.
        """
        self._strings = strings
        self._out: list[Span] = []
        self._workers: dict[int, int | None] = {}
        self._names: dict[int, str] = {}
        """Kinds of `marks.USER_KINDS` and what they stand for."""
        shard = semconv.run_shard(info.rank)
        self.run_trace = semconv.trace_id(info.run_id, info.attempt, semconv.TRACE_RUN, 0, shard)
        self.run_span = self.run_span_of(info.rank)
        self._of_marks = semconv.span_id(info.run_id, info.attempt, _EVENT, 0, info.rank)

    def emit(
        self,
        name: str,
        trace: int,
        span: int,
        parent: int,
        start: int,
        end: int,
        attributes: Attributes,
        *,
        error: str | None = None,
        link_to_run: bool = False,
        links: Sequence[Link] = (),
    ) -> None:
        """Make a span; ``start`` and ``end`` in ns of ``perf_counter``."""
        if self.muted and name != semconv.WINDOW:
            return
        offset = self.info.perf_to_unix_ns
        own = [Link(self.run_trace, self.run_span, {semconv.LINK_KIND: "run"})] if link_to_run else []
        start, end = start + offset, end + offset
        self._out.append(Span(name, trace, span, parent, start, end, attributes, [*own, *links], error))
        self.emitted += 1

    def emit_phase(
        self,
        event: Event,
        trace: int,
        parent: int,
        attributes: Attributes,
        error: str | None = None,
        links: Sequence[Link] = (),
    ) -> int:
        """Make the span of a phase and return its id; lane and item come from the mark."""
        kind, lane, t0, t1, _, item, _, _ = event[1]
        span = self.span_of(event)
        attributes = {semconv.LANE: self.lane(lane), **attributes}
        if kind == COLLECTIVE:
            attributes |= describe_collective(event[1], self.text)
        if item >= 0 and kind in _WITH_ITEM:
            pass_serial, batch = marks.unpack_item(item)
            attributes[semconv.ITEM] = f"{pass_serial}:{batch}"
        name = self.name_of(kind)
        if kind in marks.USER_KINDS:
            attributes |= {semconv.PHASE: name, semconv.EVIDENCE: OBSERVED}
            error = self.text(event[1][6]) or None
            if error is not None:
                attributes[_ERROR_TYPE] = error
        self.emit(name, trace, span, parent, t0, t1, attributes, error=error, links=links)
        return span

    def span_of(self, event: Event) -> int:
        """Return the id of the span of a phase."""
        return semconv.event_id(self._of_marks, event[0])

    def learn(self, kind: int, text: int) -> None:
        """Take from a mark or the totals what the program calls the phases of ``kind``."""
        if kind not in self._names and self.text(text):
            self._names[kind] = free(spelled(self.text(text)))

    def name_of(self, kind: int) -> str:
        """Return the name of the phases whose marks have ``kind``."""
        if kind in marks.USER_KINDS:
            return self._names.get(kind, UNNAMED)
        return marks.phase_of(kind)

    def take(self) -> list[Span]:
        """Return the spans made since the last call."""
        taken, self._out = self._out, []
        return taken

    def text(self, number: int) -> str:
        """Return interned text, empty for an id that the ring does not have."""
        return self._strings[number] if 0 <= number < len(self._strings) else ""

    def lane(self, number: int) -> str:
        """Return the name of a lane."""
        return self.text(number) or "main"

    def worker(self, lane: int) -> int | None:
        """Return the number of the loader worker whose lane this is, None for any other lane."""
        if lane not in self._workers:
            match = _WORKER_LANE.match(self.text(lane))
            self._workers[lane] = int(match.group(1)) if match else None
        return self._workers[lane]

    def run_span_of(self, rank: int) -> int:
        """Return the id of the run span of ``rank``."""
        return semconv.span_id(self.info.run_id, self.info.attempt, semconv.RUN, 0, rank)

    def scope_span(self, serial: int) -> int:
        """Return the id of another scope's span; derived, so that a restarted relay names it the same."""
        info = self.info
        return semconv.span_id(info.run_id, info.attempt, _TRACE_SCOPE, serial, info.rank)

    def window_ids(self, window: int, part: int) -> tuple[int, int]:
        """Return trace id and span id of a part of a window."""
        info = self.info
        shard = semconv.window_shard(info.rank, part, info.world_size)
        trace = semconv.trace_id(info.run_id, info.attempt, semconv.TRACE_WINDOW, window, shard)
        return trace, semconv.span_id(info.run_id, info.attempt, semconv.WINDOW, window, info.rank, part)

    def step_trace(self, kind: str, number: int, shard: int = 0) -> int:
        """Return the trace id of a kept step; ``kind`` is one of the traces of steps."""
        return semconv.trace_id(self.info.run_id, self.info.attempt, kind, number, shard)

    def step_span(self, serial: int) -> int:
        """Return the id of the span of a row: known when the row begins, whatever it turns out to be."""
        info = self.info
        return semconv.span_id(info.run_id, info.attempt, semconv.STEP, serial, info.rank)


def phase_name(mark: Mark) -> str:
    """Return the name of the phase that ``mark`` records; of one that the program named `UNNAMED`."""
    return UNNAMED if mark[0] in marks.USER_KINDS else marks.phase_of(mark[0])
