# SPDX-License-Identifier: Apache-2.0
"""One reading of a Tempo: runs of ours by derived trace ids, traces of others by search, then by id."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from grademl_otel import semconv
from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import RunSummary, list_runs
from grademl_otel.analyzers.sources.base import Selection, SourceOptions
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable, gc_paused
from grademl_otel.analyzers.sources.formats.documents import read_document
from grademl_otel.analyzers.sources.formats.otlp_proto import read_traces
from grademl_otel.analyzers.sources.servers.fetching import fetched
from grademl_otel.analyzers.sources.servers.one_reading import OneReading
from grademl_otel.analyzers.sources.servers.own_runs import (
    AHEAD_NS,
    LIVE_NS,
    LIVE_WINDOWS,
    LOOKBACKS_NS,
    OURS,
    find_run,
    no_run,
    searched,
)
from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.run_plan import DetailedSteps, RunPlan
from grademl_otel.analyzers.sources.servers.tempo_api import TempoApi
from grademl_otel.analyzers.sources.servers.tempo_caps import Losses
from grademl_otel.analyzers.sources.servers.tempo_query import Wanted
from grademl_otel.analyzers.sources.servers.tempo_search import Search
from grademl_otel.analyzers.sources.servers.tempo_wire import Envelope, Found

_NOT_LESS: Final = "; the answer may be too large"
"""From here on an error says that less should be asked for, and there is no less than one trace."""
CONNECTIONS: Final = 2
"""Tempo gives traces no faster to more, and refuses requests beyond its queue."""
_HEX: Final = re.compile(r"[0-9a-f]+")
_CANDIDATES: Final = 20


@dataclass(frozen=True)
class Refused:
    """A trace that the server has and cannot give."""

    why: str
    """In the server's words."""


class TempoReader(OneReading):
    """What was read of one Tempo so far, for one answer."""

    def __init__(self, uri: str, api: TempoApi, options: SourceOptions, ledger: Ledger | None = None) -> None:
        self.api = api
        super().__init__(uri, api.name, options, ledger)

    def _restart(self) -> None:
        super()._restart()
        self._losses = Losses()
        self.have: dict[int, None] = {}
        """The traces that were read, in that order."""

    def telemetry(self) -> Telemetry:
        found = super().telemetry()
        self._losses.tell(self.ledger, found.spans)
        return found

    # --- Traces by id ---

    def fetch(self, traces: Iterable[int], expected: dict[int, int | None] | None = None) -> list[int]:
        """Read traces in the order given, until the builder is full; return those that are not there."""
        missing: list[int] = []
        wanted = [trace for trace in dict.fromkeys(traces) if trace not in self.have]
        if self._builder.full:
            return missing
        for done, (trace, answer) in enumerate(fetched(self.ask, wanted, CONNECTIONS), 1):
            if answer is None:
                missing.append(trace)
            elif isinstance(answer, Refused):
                self._losses.refused(trace, answer.why)
            else:
                self._take(trace, answer, (expected or {}).get(trace))
            self._options.progress("traces", done, len(wanted))
            if not self._builder.room:
                break
        return missing

    def ask(self, trace: int) -> Envelope | Refused | None:
        """Return a trace; why it is not given, where its size is in the way; None where it is not there."""
        try:
            return self.api.trace(trace)
        except TooLarge as error:
            return Refused(str(error).removeprefix(f"{self.name}: ").partition(_NOT_LESS)[0])

    def _take(self, trace: int, answer: Envelope, expected: int | None) -> None:
        before = len(self._builder)
        read_envelope(answer, self._builder, self.ledger, self.name)
        self.have[trace] = None
        if not self._builder.full:
            self._losses.note(trace, answer, len(self._builder) - before, expected)

    def read_traces(self, traces: Iterable[int]) -> Telemetry:
        """Read traces by id; NothingFound when none of them is there."""
        wanted = list(dict.fromkeys(traces))
        missing: list[int] = []
        with self._broken_off():
            missing = self.fetch(wanted)
        for trace in missing:
            self._losses.absent(trace)
        if not len(self._builder):
            self._raise_refusal()
            listed = ", ".join(f"{trace:032x}" for trace in wanted[:3])
            raise NothingFound(
                f"{self.name}: no trace {listed}; is it the right server and tenant, and is it kept there?"
            )
        return self.telemetry()

    def _raise_refusal(self) -> None:
        """Raise SourceError where the traces are there and the server cannot give them."""
        for line in self._losses.refusals:
            raise SourceError(f"{self.name}: {line}")

    # --- Runs of ours ---

    def find_run(self, selection: Selection) -> tuple[str, int] | None:
        """Return (run id, attempt) of the run that is asked for; as `own_runs.find_run`."""
        prefix = selection.run_id.lower() if selection.run_id else None

        def search(start: int, end: int) -> list[RunSummary]:
            self.search_runs(selection.service, start, end, _CANDIDATES, prefix)
            return list_runs(self.so_far())

        return find_run(selection, self.name, lambda trace: self.ask(trace) is not None, search)

    def search_runs(
        self, service: str | None, start: int, end: int, count: int, prefix: str | None = None
    ) -> None:
        """Read the newest ``count`` run traces of ``[start, end]``, and a few windows of runs that go on."""
        prefix = prefix if prefix and _HEX.fullmatch(prefix) else None
        ended = Wanted(service, semconv.RUN, OURS, prefix)
        live = Wanted(service, semconv.WINDOW, (), prefix)
        now = time.time_ns()
        found = Search(self.api, ended, start, end, now).newest(count)
        found += Search(self.api, live, max(start, end - LIVE_NS), end, now).newest(LIVE_WINDOWS)
        self.fetch([one.trace for one in found])

    def read_run(self, run_id: str, attempt: int) -> Telemetry:
        """Read one attempt by the derived ids of its traces: the run, its windows, the steps with detail."""
        with self._broken_off():
            steps = self.read_tables(run_id, attempt)
            for trace in self.fetch(steps.certain):
                self._losses.absent(trace)
            self.fetch(steps.guessed)
        if not len(self._builder):
            self._raise_refusal()
            raise NothingFound(f"{self.name}: no span of run {run_id}, attempt {attempt}")
        return self.telemetry()

    def read_tables(self, run_id: str, attempt: int) -> DetailedSteps:
        """Read the run's trace and its windows, nothing else; return the steps whose traces belong to it."""
        self._restart()
        plan = RunPlan(run_id, attempt)
        self.fetch([plan.run_trace()])
        plan.learn(self.so_far())
        while not self._builder.full and (wanted := plan.next_windows()):
            self.fetch([*wanted, *plan.further_run_traces()])
            plan.learn(self.so_far())
        return plan.detailed_steps(self.so_far())

    # --- Traces of others ---

    def find_foreign(self, selection: Selection, services: Sequence[str], limit: int | None) -> list[Found]:
        """Return the latest ``limit`` traces that match, or all; NothingFound when there are none."""
        service = selection.service
        if service is None and len(services) == 1:
            service = services[0]
        if service is None and selection.operation is None and not selection.attributes:
            raise no_run(self.name, services)
        wanted = Wanted(service, selection.operation, selection.attributes)
        until = selection.end if selection.end is not None else time.time_ns() + AHEAD_NS
        latest = min(until, time.time_ns())
        starts = [latest - back for back in LOOKBACKS_NS] if selection.start is None else [selection.start]
        for start in starts:
            search = Search(self.api, wanted, start, until, time.time_ns())
            if found := search.all() if limit is None else search.newest(limit):
                self.ledger.warnings += [f"{self.name}: {line}" for line in search.warnings]
                if limit is not None and len(found) >= limit:
                    self.ledger.warnings.append(
                        f"{self.name}: read the latest {limit:,} traces; there may be more: narrow the time"
                    )
                return found
        what = " with ".join(f"{part}" for part in (service, selection.operation) if part) or "such a span"
        raise NothingFound(
            f"{self.name}: no trace of {what} {searched(selection)}; widen it with --since or --from"
            " (a search finds nothing of the last 30 s)"
        )

    def read_found(self, found: Sequence[Found]) -> Telemetry:
        """Read traces that a search found, and compare them with what it counted."""
        self._restart()
        with self._broken_off():
            expected = {one.trace: one.spans for one in found}
            for trace in self.fetch(expected, expected):
                self._losses.absent(trace)
        if not len(self._builder):
            self._raise_refusal()
        return self.telemetry()


def read_envelope(answer: Envelope, builder: SpanBuilder, ledger: Ledger, name: str) -> None:
    """Add the spans of a trace; raises SourceError."""
    try:
        with gc_paused():
            if answer.protobuf:
                read_traces(answer.body, builder, ledger)
            else:
                read_document(answer.body, builder)
    except Unreadable as fault:
        raise SourceError(f"{name}: a trace that cannot be read: {fault}") from None
