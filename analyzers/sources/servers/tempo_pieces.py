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
from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.tempo_caps import Losses
from grademl_otel.analyzers.sources.servers.tempo_reader import TempoReader, read_envelope
from grademl_otel.analyzers.sources.servers.tempo_wire import Envelope, Found

_SETTLED_NS: Final = 600 * 1_000_000_000
"""A trace to which nothing was added for so long is taken to be finished."""


def pieces_of_ids(reader: TempoReader, traces: Sequence[int]) -> Iterator[Piece]:
    """Return the pieces of traces that were named; whether they still grow is not known."""
    return iter([_piece(reader, trace, False, None) for trace in dict.fromkeys(traces)])


def pieces_of_found(reader: TempoReader, found: Iterable[Found]) -> Iterator[Piece]:
    """Return the pieces of traces that a search found, the oldest first: what is new comes last."""
    settled = time.time_ns() - _SETTLED_NS
    ordered = sorted(found, key=lambda one: (one.start, one.trace))
    return iter([_piece(reader, one.trace, one.end < settled, one.spans) for one in ordered])


def pieces_of_run(reader: TempoReader, run_id: str, attempt: int) -> Iterator[Piece]:
    """Return the pieces of one attempt. Its tables are read for that, and kept until their pieces are."""
    reader.kept = {}
    steps = reader.read_tables(run_id, attempt)
    tables = list(reader.kept)
    runs = list_runs(reader.so_far())
    if not runs:
        raise NothingFound(f"{reader.api.name}: no span of run {run_id}, attempt {attempt}")
    over = runs[0].ended != "unknown" and runs[0].end < time.time_ns() - _SETTLED_NS
    pieces = [_piece(reader, trace, over, None) for trace in tables]
    pieces += [_piece(reader, trace, over, None) for trace in steps.certain]
    pieces += [_piece(reader, trace, over, None, optional=True) for trace in steps.guessed]
    return iter(pieces)


def _piece(
    reader: TempoReader, trace: int, final: bool, expected: int | None, optional: bool = False
) -> Piece:
    return Piece(f"{trace:032x}", final, expected, _read(reader, trace, expected, optional))


def _read(
    reader: TempoReader, trace: int, expected: int | None, optional: bool
) -> Callable[[SpanBuilder, Ledger], None]:
    """Return what reads one trace; one that is ``optional`` need not be there."""

    def read(builder: SpanBuilder, ledger: Ledger) -> None:
        losses = Losses()
        try:
            answer: Envelope | None = (reader.kept or {}).pop(trace, None) or reader.api.trace(trace)
        except TooLarge as error:
            losses.refused(trace, reader.reason(error))
        else:
            if answer is not None:
                before = len(builder)
                read_envelope(answer, builder, ledger, reader.api.name)
                losses.note(trace, answer, len(builder) - before, expected)
            elif not optional:
                losses.absent(trace)
        losses.tell(ledger)

    return read
