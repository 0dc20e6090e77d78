# SPDX-License-Identifier: Apache-2.0
"""What a copy of a Jaeger's traces consists of.

Where the server counts spans (trace summaries), a piece is a trace, which is compared with its count. Older
servers tell of traces only by giving them: there a piece is an hour, in which all is searched for once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.model.run import list_runs
from grademl_otel.analyzers.sources.base import Piece, Selection
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.fetching import Ahead
from grademl_otel.analyzers.sources.servers.jaeger_api import Search, Summary
from grademl_otel.analyzers.sources.servers.jaeger_reader import JaegerReader
from grademl_otel.analyzers.sources.servers.jaeger_search import (
    TRACES_PER_SEARCH,
    dense_line,
    note_fewer,
    read_answer,
    searching,
)
from grademl_otel.analyzers.sources.servers.own_runs import AHEAD_NS, LOOKBACKS_NS, S
from grademl_otel.analyzers.sources.servers.run_plan import RunPlan
from grademl_otel.analyzers.sources.servers.windows import Pace, Windows

_SETTLED_NS: Final = 600 * S
"""A trace to which nothing was added for so long is taken to be finished."""
_HOUR_NS: Final = 3600 * S
_PIECE_NS: Final = 300 * S
"""What an interrupted copy may have to read again."""
_EMPTY_BYTES: Final = 100
"""An answer of v1 without a trace is no longer."""


def pieces_of_ids(reader: JaegerReader, traces: Sequence[int]) -> Iterator[Piece]:
    """Return the pieces of traces that were named; whether they still grow is not known."""
    ids = list(dict.fromkeys(traces))
    reads = _ByTrace(reader, ids)
    return iter([Piece(f"{trace:032x}", False, None, reads.of(trace)) for trace in ids])


def pieces_of_run(reader: JaegerReader, run_id: str, attempt: int) -> Iterator[Piece]:
    """Return the pieces of one attempt, found from its tables."""
    plan = RunPlan(run_id, attempt)
    tables = reader.read_tables(plan)
    telemetry = reader.so_far()
    runs = list_runs(telemetry)
    if not runs:
        raise NothingFound(f"{reader.name}: no span of run {run_id}, attempt {attempt}")
    over = runs[0].ended != "unknown" and runs[0].end < time.time_ns() - _SETTLED_NS
    steps = plan.detailed_steps(telemetry)
    ids = [*tables, *steps.certain, *steps.guessed]
    guessed = set(steps.guessed)
    reads = _ByTrace(reader, ids)
    return iter(
        [Piece(f"{trace:032x}", over, None, reads.of(trace, optional=trace in guessed)) for trace in ids]
    )


def pieces_of_search(reader: JaegerReader, selection: Selection, ledger: Ledger) -> Iterator[Piece]:
    """Return the pieces of all traces that match; NothingFound where it is not said which."""
    now = time.time_ns()
    end = selection.end if selection.end is not None else now + AHEAD_NS
    start = selection.start if selection.start is not None else end - LOOKBACKS_NS[-1]
    found: list[Summary] = []
    for wanted in reader.searches(selection):
        some = reader.summaries(wanted, start, end, None)
        if some is None:
            ledger.warnings += reader.ledger.warnings
            return iter(_times(reader, list(reader.searches(selection)), start, end, now))
        found += some
    ledger.warnings += reader.ledger.warnings
    counted = {one.trace_id: one for one in sorted(found, key=lambda one: (one.start, one.trace_id))}
    reads = _ByTrace(reader, list(counted))
    return iter(
        [
            Piece(f"{trace:032x}", one.end < now - _SETTLED_NS, one.spans, reads.of(trace, one.spans))
            for trace, one in counted.items()
        ]
    )


class _ByTrace:
    """Reads pieces that are a trace each."""

    def __init__(self, reader: JaegerReader, traces: Sequence[int]) -> None:
        self._reader = reader
        self._ahead = Ahead(reader.api.trace, traces)

    def of(
        self, trace: int, counted: int | None = None, optional: bool = False
    ) -> Callable[[SpanBuilder, Ledger], None]:
        """Return what reads ``trace``, of which the server counts so many spans; ``optional`` ones may be
        absent.
        """

        def read(builder: SpanBuilder, ledger: Ledger) -> None:
            api, name = self._reader.api, self._reader.name
            before = len(builder)
            try:
                answer = self._ahead.get(trace)
                if answer is not None:
                    with answer:
                        read_answer(api, answer, builder, ledger, name)
            except (KeyboardInterrupt, SystemExit):
                api.abort()
                raise
            if counted is not None:
                note_fewer({trace: (len(builder) - before, counted)}, {}, ledger)
            elif answer is None and not optional:
                ledger.partial_traces.append(f"{trace:032x}")

        return read


def _times(reader: JaegerReader, searches: Sequence[Search], start: int, end: int, now: int) -> list[Piece]:
    """Return ``start`` to ``end`` in pieces, the latest first; hours without a trace have none."""
    pieces = []
    many = len(searches) > 1
    for wanted in searches:
        pace = Pace(TRACES_PER_SEARCH)
        for begin in _busy_times(reader, wanted, start, end):
            first, last = max(start, begin), min(end, begin + _PIECE_NS)
            at = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(begin // S))
            key = f"{at} {wanted.service}" if many else at
            read = _read_time(reader, wanted, first, last, pace)
            pieces.append(Piece(key, last < now - _SETTLED_NS, None, read))
    return pieces


def _busy_times(reader: JaegerReader, wanted: Search, start: int, end: int) -> Iterator[int]:
    """Yield where the pieces of those hours begin that hold a trace, the latest first."""

    def any_in(first: int, last: int) -> bool:
        answer = reader.api.search(wanted, max(start, first), min(end, last), 1)
        if answer is not None:
            answer.close()
        return answer is not None and answer.size > _EMPTY_BYTES

    day, last = 24 * _HOUR_NS, end
    while last > start:
        first = last // _HOUR_NS * _HOUR_NS
        if any_in(first, last):
            yield from range(last // _PIECE_NS * _PIECE_NS, first - 1, -_PIECE_NS)
            last = first - 1
            continue
        last = first - 1
        # Nothing in an hour: in a day, or before it?
        while last > start and not any_in(last - day, last):
            if not any_in(start, last):
                return
            last -= day


def _read_time(
    reader: JaegerReader, wanted: Search, start: int, end: int, pace: Pace
) -> Callable[[SpanBuilder, Ledger], None]:
    """Return what reads the traces of some time."""

    def read(builder: SpanBuilder, ledger: Ledger) -> None:
        api, name = reader.api, reader.name

        def add(answer: Answer) -> None:
            with answer:
                read_answer(api, answer, builder, ledger, name)

        try:
            with searching(api, wanted, start, pace, builder, add) as ask:
                windows = Windows(ask, start, end, pace, api.finest_ns)
                for _ in windows:
                    pass
        except (KeyboardInterrupt, SystemExit):
            api.abort()
            raise
        if windows.dense:
            ledger.warnings.append(dense_line(name, windows))

    return read
