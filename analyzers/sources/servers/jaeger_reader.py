# SPDX-License-Identifier: Apache-2.0
"""One reading of a Jaeger: runs of ours by derived trace ids, traces of others by search."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from grademl_otel import semconv
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.model.run import RunSummary, list_runs
from grademl_otel.analyzers.sources.base import Selection, SourceOptions
from grademl_otel.analyzers.sources.narrow import narrow
from grademl_otel.analyzers.sources.servers.answer import Answer
from grademl_otel.analyzers.sources.servers.fetching import fetched
from grademl_otel.analyzers.sources.servers.jaeger_api import JaegerApi, Search, Summary
from grademl_otel.analyzers.sources.servers.jaeger_search import (
    TRACES_PER_SEARCH,
    dense_line,
    note_fewer,
    read_answer,
    searching,
    times,
)
from grademl_otel.analyzers.sources.servers.one_reading import OneReading
from grademl_otel.analyzers.sources.servers.own_runs import (
    LIVE_NS,
    LIVE_WINDOWS,
    OURS,
    S,
    find_run,
    no_run,
    searched,
)
from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.run_plan import RunPlan
from grademl_otel.analyzers.sources.servers.windows import Look, Pace, Windows

SUMMARIES_PER_SEARCH: Final = 2_000
GROWING_NS: Final = 60 * S
"""What is younger may still be on its way."""
_SMALL: Final = 100
"""Spans: traces smaller than this on average come faster many in one answer than one by one."""
_SERVICES: Final = 32


class JaegerReader(OneReading):
    """What was read of one Jaeger so far, for one answer; ``name`` begins each line for people."""

    def __init__(
        self, uri: str, name: str, api: JaegerApi, services: list[str], options: SourceOptions
    ) -> None:
        self.api = api
        self.services = services
        super().__init__(uri, name, options)

    def _restart(self) -> None:
        super()._restart()
        self._received: dict[int, int] = {}

    # --- What was read ---

    def _take(self, answer: Answer | None) -> tuple[int, int]:
        """Add the traces of an answer; return how many are new, and how many were read before."""
        if answer is None:
            return 0, 0
        before = len(self._builder)
        self._add(answer)
        return self._builder.close_traces(before)

    def _add(self, answer: Answer) -> None:
        before = len(self._builder)
        with answer:
            read_answer(self.api, answer, self._builder, self.ledger, self.name)
        for trace, spans in self._builder.spans_of_traces(before).items():
            self._received[trace] = self._received.get(trace, 0) + spans

    # --- Single traces ---

    def read_traces(self, trace_ids: Iterable[int]) -> Telemetry:
        """Read traces by id; NothingFound when none of them is there."""
        wanted = list(dict.fromkeys(trace_ids))
        missing: list[int] = []
        with self._broken_off():
            missing = self._fetch(wanted)
        if not len(self._builder):
            listed = ", ".join(f"{trace:032x}" for trace in wanted[:3])
            raise NothingFound(
                f"{self.name}: no trace {listed}; is it the right server, and is it kept there?"
            )
        self.ledger.partial_traces += [f"{trace:032x}" for trace in missing]
        return self.telemetry()

    def _fetch(self, trace_ids: Iterable[int]) -> list[int]:
        """Fetch traces in order until the builder is full; return the ids that the server does not have."""
        wanted, missing = list(trace_ids), []
        for done, (trace, answer) in enumerate(fetched(self.api.trace, wanted), 1):
            if answer is None:
                missing.append(trace)
                continue
            try:
                self._take(answer)
            except TooLarge:  # broken off midway, twice: what came is read
                self.ledger.partial_traces.append(f"{trace:032x}")
                raise
            self._options.progress("traces", done, len(wanted))
            if self._builder.full:
                break
        return missing

    # --- Runs of ours ---

    def find_run(self, selection: Selection) -> tuple[str, int] | None:
        """Return (run id, attempt) of the run that is asked for; as `own_runs.find_run`."""

        def search(start: int, end: int) -> list[RunSummary]:
            self.search_runs(selection.service, start, end)
            return list_runs(self.so_far())

        return find_run(selection, self.name, self._has_trace, search)

    def _has_trace(self, trace: int) -> bool:
        answer = self.api.trace(trace)
        if answer is not None:
            answer.close()
        return answer is not None

    def search_runs(self, service: str | None, start: int, end: int) -> None:
        """Read the traces of runs that began in ``[start, end]``, and some windows of those that go on."""
        names = [service] if service is not None else self.services
        for name in names:
            for _ in self._by_search(Search(name, semconv.RUN, OURS), start, end, check=False):
                if self._builder.full:
                    return
        recent = max(start, end - LIVE_NS)
        for name in names:
            self._take(self.api.search(Search(name, semconv.WINDOW), recent, end, LIVE_WINDOWS))

    def read_run(self, run_id: str, attempt: int) -> Telemetry:
        """Read one attempt by the derived ids of its traces: the run, its windows, the steps with detail."""
        plan = RunPlan(run_id, attempt)
        with self._broken_off():
            self.read_tables(plan)
            steps = plan.detailed_steps(self.so_far())
            missing = self._fetch(steps.certain)
            self._fetch(steps.guessed)
            self.ledger.partial_traces += [f"{trace:032x}" for trace in missing]
        if not len(self._builder):
            raise NothingFound(f"{self.name}: no span of run {run_id}, attempt {attempt}")
        telemetry = self.telemetry()
        if any(run.ended == "unknown" and _growing(run.end) for run in list_runs(telemetry)):
            self.ledger.warnings.append(
                f"{self.name}: the run was still going when it was read; its newest minute may be missing"
            )
        return telemetry

    def read_tables(self, plan: RunPlan) -> list[int]:
        """Read the run's own traces and its windows'; return their ids."""
        # What the search brought of other runs is not part of the answer.
        self._restart()
        asked = [plan.run_trace()]
        self._fetch(asked)
        plan.learn(self.so_far())
        while not self._builder.full and (wanted := plan.next_windows()):
            some = [*wanted, *plan.further_run_traces()]
            self._fetch(some)
            asked += some
            plan.learn(self.so_far())
        return [trace for trace in asked if trace in self._received]

    # --- Traces of others ---

    def read_foreign(self, selection: Selection) -> Telemetry:
        """Read the latest traces that match, at most ``max_traces``; NothingFound when there are none."""
        self._restart()
        for start, until in times(selection):
            with self._broken_off():
                for wanted in self.searches(selection):
                    if not self._enough():
                        self._read_found(wanted, start, until)
            if self._received:
                break
        if not self._received:
            raise NothingFound(
                f"{self.name}: no trace of {self._wanted(selection)} {searched(selection)};"
                " widen it with --since or --from"
            )
        if len(self._received) >= self._options.max_traces:
            read = f"{self.name}: read the latest {len(self._received):,} traces"
            if self._wanted(selection).service is None:
                read = f"{self.name}: read {len(self._received):,} traces, of some services only"
            self.ledger.warnings.append(f"{read}; there may be more: narrow the time")
        telemetry = self.telemetry()
        young = telemetry.spans.possible & (telemetry.spans.end > time.time_ns() - GROWING_NS)
        if young.any():
            self.ledger.warnings.append(
                f"{self.name}: some traces are less than a minute old; more of them may still come"
            )
        chosen = replace(selection, service=self._wanted(selection).service, run=None)
        spans = narrow(telemetry.spans, chosen)
        if selection.attributes and len(spans) < len(telemetry.spans):
            # Spans of traces that were found by something else: the server has not looked at attributes.
            self.ledger.warnings.append(
                f"{self.name}: this server does not search by attribute here (v2.19 and jaeger+grpc:// do);"
                f" it was looked for in the latest {len(self._received):,} traces"
            )
        return replace(telemetry, spans=spans)

    def _wanted(self, selection: Selection) -> Search:
        service = selection.service
        if service is None and len(self.services) == 1:
            service = self.services[0]
        return Search(service, selection.operation, selection.attributes)

    def searches(self, selection: Selection) -> Iterator[Search]:
        """Yield what to search for: of any service, where the server can do so, else of each."""
        wanted = self._wanted(selection)
        if wanted.service is not None:
            yield wanted
            return
        if wanted == Search():
            raise no_run(self.name, self.services)
        line = f"searched are {_SERVICES} of {len(self.services):,} services; name one (--service)"
        if len(self.services) > _SERVICES and f"{self.name}: {line}" not in self.ledger.warnings:
            self.ledger.warnings.append(f"{self.name}: {line}")
        for service in self.services[:_SERVICES]:
            yield replace(wanted, service=service)

    def _enough(self) -> bool:
        return len(self._received) >= self._options.max_traces or self._builder.full

    def _read_found(self, wanted: Search, start: int, end: int) -> None:
        """Read the latest traces of a search, and compare them with what the server counts."""
        found = self.summaries(wanted, start, end, self._options.max_traces)
        counted = {} if found is None else {one.trace_id: one.spans for one in found}
        if found is None or sum(counted.values()) < _SMALL * len(counted):
            for _ in self._by_search(wanted, start, end):
                if self._enough():
                    break
        missing = self._fetch(trace for trace in counted if trace not in self._received)
        if not self._builder.full:
            absent = dict.fromkeys(missing, 0)
            note_fewer({t: (self._received.get(t, 0), n) for t, n in counted.items()}, absent, self.ledger)

    def summaries(self, wanted: Search, start: int, end: int, count: int | None) -> list[Summary] | None:
        """Return summaries of the latest ``count`` traces, or of all; None when the server has none."""
        found: dict[int, Summary] = {}

        def ask(start: int, end: int, limit: int) -> Look:
            some = self.api.summaries(wanted, start, end, limit)
            if some is None:
                raise _NoSummaries
            new = {one.trace_id: one for one in some if one.trace_id not in found}
            found.update(new)
            self._options.progress("traces", len(found), None)
            starts = [one.start for one in new.values()] or [0]
            return Look(
                len(new),
                len(some) - len(new),
                sum(one.spans for one in new.values()),
                max(starts) - min(starts),
                max((one.end for one in new.values()), default=None),
            )

        windows = Windows(ask, start, end, Pace(SUMMARIES_PER_SEARCH, count), self.api.finest_ns)
        try:
            for _ in windows:
                if count is not None and len(found) >= count:
                    break
        except _NoSummaries:
            return None
        self._tell_dense(windows)
        return sorted(found.values(), key=lambda one: (-one.start, one.trace_id))[:count]

    def _by_search(self, wanted: Search, start: int, end: int, check: bool = True) -> Iterator[int]:
        """Search ``[start, end]``, latest first; yield the number of new traces of each window."""

        pace = Pace(TRACES_PER_SEARCH, self._options.max_traces)
        with searching(self.api, wanted, start, pace, self._builder, self._add) as ask:
            windows = Windows(ask, start, end, pace, self.api.finest_ns, check)
            for new in windows:
                self._options.progress("traces", len(self._received), None)
                yield new
        self._tell_dense(windows)

    def _tell_dense(self, windows: Windows) -> None:
        if windows.dense:
            self.ledger.warnings.append(dense_line(self.name, windows))


class _NoSummaries(Exception):
    """The server has no trace summaries."""


def _growing(end: int) -> bool:
    return end > time.time_ns() - GROWING_NS
