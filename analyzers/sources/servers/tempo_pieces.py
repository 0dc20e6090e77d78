# SPDX-License-Identifier: Apache-2.0
"""What a copy of a Tempo's traces consists of: a piece a trace, so that none is asked for twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.model.run import list_runs
from grademl_otel.analyzers.sources.base import Piece
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.servers.fetching import Ahead
from grademl_otel.analyzers.sources.servers.tempo_caps import Losses
from grademl_otel.analyzers.sources.servers.tempo_reader import CONNECTIONS, TempoReader, read_envelope
from grademl_otel.analyzers.sources.servers.tempo_wire import Envelope, Found

_SETTLED_NS: Final = 600 * 1_000_000_000
"""A trace to which nothing was added for so long is taken to be finished."""


def pieces_of_ids(reader: TempoReader, traces: Sequence[int]) -> Iterator[Piece]:
    """Return the pieces of traces that were named; whether they still grow is not known."""
    wanted = list(dict.fromkeys(traces))
    reads = _ByTrace(reader, wanted)
    return iter([Piece(f"{trace:032x}", False, None, reads.of(trace)) for trace in wanted])


def pieces_of_found(reader: TempoReader, found: Iterable[Found]) -> Iterator[Piece]:
    """Return the pieces of traces that a search found, the oldest first: what is new comes last."""
    settled = time.time_ns() - _SETTLED_NS
    ordered = sorted(found, key=lambda one: (one.start, one.trace))
    reads = _ByTrace(reader, [one.trace for one in ordered])
    return iter(
        [
            Piece(f"{one.trace:032x}", one.end < settled, one.spans, reads.of(one.trace, one.spans))
            for one in ordered
        ]
    )


def pieces_of_run(reader: TempoReader, run_id: str, attempt: int) -> Iterator[Piece]:
    """Return the pieces of one attempt, found from its tables."""
    steps = reader.read_tables(run_id, attempt)
    runs = list_runs(reader.so_far())
    if not runs:
        raise NothingFound(f"{reader.api.name}: no span of run {run_id}, attempt {attempt}")
    over = runs[0].ended != "unknown" and runs[0].end < time.time_ns() - _SETTLED_NS
    wanted = [*reader.have, *steps.certain, *steps.guessed]
    guessed = set(steps.guessed)
    reads = _ByTrace(reader, wanted)
    return iter(
        [Piece(f"{trace:032x}", over, None, reads.of(trace, None, trace in guessed)) for trace in wanted]
    )


class _ByTrace:
    """Reads pieces that are a trace each."""

    def __init__(self, reader: TempoReader, traces: Sequence[int]) -> None:
        self._api = reader.api
        self._ahead = Ahead(reader.ask, traces, CONNECTIONS)

    def of(
        self, trace: int, counted: int | None = None, optional: bool = False
    ) -> Callable[[SpanBuilder, Ledger], None]:
        """Return what reads ``trace``, of which a search counted so many spans; ``optional`` ones may be
        absent.
        """

        def read(builder: SpanBuilder, ledger: Ledger) -> None:
            losses = Losses()
            try:
                answer = self._ahead.get(trace)
            except (KeyboardInterrupt, SystemExit):
                self._api.abort()
                raise
            if isinstance(answer, Envelope):
                before = len(builder)
                read_envelope(answer, builder, ledger, self._api.name)
                losses.note(trace, answer, len(builder) - before, counted)
            elif answer is not None:
                losses.refused(trace, answer.why)
            elif not optional:
                losses.absent(trace)
            losses.tell(ledger)

        return read
