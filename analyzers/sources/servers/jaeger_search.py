# SPDX-License-Identifier: Apache-2.0
"""Searching a Jaeger: answers into a builder, and what is to be said of those that are not whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.base import Selection
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable, gc_paused
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.fetching import Guess
from grademl_otel.analyzers.sources.servers.jaeger_api import JaegerApi, Search
from grademl_otel.analyzers.sources.servers.own_runs import AHEAD_NS, LOOKBACKS_NS, S
from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.windows import Ask, Look, Pace, Windows

TRACES_PER_SEARCH: Final = 100
_LISTED: Final = 3


def times(selection: Selection) -> Iterator[tuple[int, int]]:
    """Yield the times to search, each to be tried when the one before held nothing."""
    now = time.time_ns()
    until = selection.end if selection.end is not None else now + AHEAD_NS
    starts = [min(now, until) - back for back in LOOKBACKS_NS]
    for start in starts if selection.start is None else [selection.start]:
        yield start, max(start, until)


@contextmanager
def searching(
    api: JaegerApi,
    wanted: Search,
    earliest: int,
    pace: Pace,
    builder: SpanBuilder,
    add: Callable[[Answer], None],
) -> Iterator[Ask]:
    """Give what `Windows` asks with; ``add`` adds an answer to ``builder``, whose traces are then closed."""
    guess = Guess(partial(api.search, wanted), earliest)

    def ask(start: int, end: int, limit: int) -> Look:
        answer = guess.get(start, end, limit)
        if answer is None:
            return Look(0, 0)
        if answer.broken is not None:  # of less time it may arrive
            answer.close()
            raise TooLarge(answer.broken)
        if end - start == pace.fit:
            guess.prepare(start, end, limit)
        before = len(builder)
        add(answer)
        tenth, most, latest = builder.starts_since(before, (0.1, 0.9, 1.0)) or (0, 0, None)
        spans = len(builder) - before
        new, again = builder.close_traces(before)
        pace.learn(answer.size, new + again)
        return Look(new, again, spans, most - tenth, latest)

    try:
        yield ask
    finally:
        guess.close()


def read_answer(api: JaegerApi, answer: Answer, builder: SpanBuilder, ledger: Ledger, name: str) -> None:
    """Add the spans of an answer; raises SourceError at a fault, after what came before it."""
    try:
        with gc_paused():
            api.read(answer, builder, ledger)
    except Unreadable as fault:
        if answer.broken is None:
            raise SourceError(f"{name}: an answer that cannot be read: {fault}") from None
    if answer.broken is not None:
        raise TooLarge(answer.broken)


def note_fewer(counts: Mapping[int, tuple[int, int]], absent: Mapping[int, int], ledger: Ledger) -> None:
    """Note traces of which fewer spans came than the server counts: trace id -> (received, counted)."""
    fewer = {trace: pair for trace, pair in counts.items() if pair[0] < pair[1]}
    ledger.partial_traces += [f"{trace:032x}" for trace in dict.fromkeys([*fewer, *absent])]
    lines = [
        f"trace {trace:032x}: {received:,} of the {counted:,} spans that the server counts"
        for trace, (received, counted) in fewer.items()
    ]
    if len(lines) > _LISTED:
        missing = sum(counted - received for received, counted in fewer.values())
        lines[_LISTED:] = [
            f"{len(lines) - _LISTED:,} more traces are not whole; {missing:,} spans are missing altogether"
        ]
    ledger.warnings += lines


def dense_line(name: str, windows: Windows) -> str:
    """What to say of moments with more traces than a server gives."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(windows.dense[0] / S))
    return (
        f"{name}: more traces at one moment ({moment}) than the server gives at once; some are missing,"
        " narrow them with --operation or --attribute"
    )
