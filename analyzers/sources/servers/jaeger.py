# SPDX-License-Identifier: Apache-2.0
"""A running Jaeger as a source: our runs by derived trace ids, traces of others by search."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

from grademl_otel import semconv
from grademl_otel.analyzers.errors import NothingFound, SourceError, UsageError, without_secrets
from grademl_otel.analyzers.model.columns import Ledger, Telemetry
from grademl_otel.analyzers.model.run import RunSummary, list_runs
from grademl_otel.analyzers.sources.base import Listing, Selection, SourceOptions
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.decoding import Unreadable, gc_paused
from grademl_otel.analyzers.sources.formats.documents import read_document
from grademl_otel.analyzers.sources.narrow import narrow
from grademl_otel.analyzers.sources.servers.http_client import CONNECTIONS, HttpClient
from grademl_otel.analyzers.sources.servers.jaeger_api import ADVICE, JaegerApi, Search, connect
from grademl_otel.analyzers.sources.servers.refusals import TooLarge
from grademl_otel.analyzers.sources.servers.run_plan import RunPlan

_PORT: Final = 16686
_TRACE: Final = re.compile(r"(?P<base>.*?)/(?:trace|api/traces|api/v3/traces)/(?P<id>[0-9A-Fa-f]{1,32})/?")
_PAGES: Final = re.compile(r"/(?:search|dependencies|monitor|compare)?/?$")
_FULL_ID: Final = re.compile(r"[0-9a-f]{32}")

_S: Final = 1_000_000_000
_LOOKBACKS_NS: Final = (3600 * _S, 24 * 3600 * _S, 30 * 24 * 3600 * _S)
_AHEAD_NS: Final = 3600 * _S
"""Clocks of hosts differ: what lies a little in the future counts as now."""
_SHORTEST_WINDOW_NS: Final = 1_000_000
_TRACES_PER_SEARCH: Final = 100
_OURS: Final = ((semconv.LANE, "main"),)
"""An attribute of every run span of ours; other programs have operations called run, too."""
_LIVE_NS: Final = 2 * _AHEAD_NS
_LIVE_WINDOWS: Final = 20
_ATTEMPTS_WITHOUT_A_TRACE: Final = 2


def open_jaeger(uri: str, options: SourceOptions) -> JaegerSource:
    """Return the source of ``jaeger://host[:port][/base]``, ``http(s)://...`` or a pasted trace address."""
    shown = without_secrets(uri)
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise UsageError(f"{shown}: no host and port in it; write jaeger://host:16686") from None
    if parts.username or parts.password:
        raise UsageError(f"{shown}: no secrets in addresses; pass --header Authorization=... instead")
    if not parts.hostname:
        raise UsageError(f"{shown}: no host in it; write jaeger://host:16686")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.scheme == "jaeger":
        origin = f"http://{host}:{port or _PORT}"
    else:
        origin = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    pasted = _TRACE.fullmatch(parts.path)
    trace_ids = (int(pasted["id"], 16),) if pasted else ()
    base = pasted["base"] if pasted else _PAGES.sub("", parts.path)
    return JaegerSource(origin + base, trace_ids, options)


@dataclass(frozen=True)
class JaegerSource:
    """A Jaeger query service at ``base``; ``trace_ids`` are those of a pasted trace address."""

    base: str
    trace_ids: tuple[int, ...]
    options: SourceOptions

    @property
    def uri(self) -> str:
        return self.base

    def list(self) -> Listing:
        reader = _Reader(self.base, self.options)
        start = time.time_ns() - _LOOKBACKS_NS[-1]
        reader.search_runs(None, start, time.time_ns() + _AHEAD_NS)
        telemetry = reader.telemetry()
        runs = list_runs(telemetry)
        ours = {run.service for run in runs}
        return Listing(
            runs, [name for name in reader.services if name not in ours], telemetry.ledger.warnings
        )

    def read(self, selection: Selection) -> Telemetry:
        reader = _Reader(self.base, self.options)
        trace_ids = selection.trace_ids or self.trace_ids
        if trace_ids:
            return reader.read_traces(trace_ids)
        if selection.operation is None:
            run = reader.find_run(selection)
            if run is not None:
                return reader.read_run(*run)
        return reader.read_foreign(selection)


class _Reader:
    """One reading of a Jaeger: connected, with what was read so far."""

    def __init__(self, base: str, options: SourceOptions) -> None:
        self._options = options
        self._uri = base
        self._name = f"jaeger {base}"
        self._api: JaegerApi
        self._api, self.services = connect(HttpClient(self._name, base, ADVICE, options))
        self._buffer = SpanBuilder(options.max_spans)
        self._ledger = Ledger()

    # --- What was read ---

    def telemetry(self) -> Telemetry:
        if self._buffer.full and not self._ledger.capped:
            self._capped("more spans")
        return Telemetry(self._uri, self._buffer.finish(self._ledger), self._ledger)

    def _so_far(self) -> Telemetry:
        """What is known while reading goes on; its counts are not the ledger's."""
        return Telemetry(self._uri, self._buffer.finish(Ledger()), Ledger())

    def _capped(self, what: str) -> None:
        self._ledger.capped = True
        self._ledger.warnings.append(
            f"{self._name}: {what} not fetched beyond {self._options.max_spans:,} spans; see --max-spans"
        )

    @contextmanager
    def _broken_off(self) -> Iterator[None]:
        """Keep what was read when the server fails midway, and say so; raise when there is nothing yet."""
        try:
            yield
        except SourceError as error:
            if not len(self._buffer):
                raise
            self._ledger.broken = str(error)

    def _take(self, body: bytes | None) -> tuple[int, int]:
        """Add the traces of an answer; return how many are new, and how many were read before."""
        if body is None:
            return 0, 0
        before = len(self._buffer)
        try:
            with gc_paused():
                read_document(body, self._buffer)
        except Unreadable as fault:
            raise SourceError(f"{self._name}: {fault}") from None
        return self._buffer.close_traces(before)

    # --- Single traces ---

    def read_traces(self, trace_ids: Iterable[int]) -> Telemetry:
        """Read traces by id; NothingFound when none of them is there."""
        wanted = list(dict.fromkeys(trace_ids))
        missing: list[int] = []
        with self._broken_off():
            missing = self._fetch(wanted)
        if not len(self._buffer):
            listed = ", ".join(f"{trace:032x}" for trace in wanted[:3])
            raise NothingFound(
                f"{self._name}: no trace {listed}; is it the right server, and is it kept there?"
            )
        self._ledger.partial_traces += [f"{trace:032x}" for trace in missing]
        return self.telemetry()

    def _fetch(self, trace_ids: Iterable[int]) -> list[int]:
        """Fetch traces in order until the buffer is full; return the ids that the server does not have."""
        missing: list[int] = []
        waiting = iter(trace_ids)
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            while not self._buffer.full and (some := list(islice(waiting, 4 * CONNECTIONS))):
                for trace, body in zip(some, pool.map(self._api.trace, some), strict=True):
                    if body is None:
                        missing.append(trace)
                    elif not self._buffer.full:
                        self._take(body)
        return missing

    # --- Runs of ours ---

    def find_run(self, selection: Selection) -> tuple[str, int] | None:
        """Return (run id, attempt) of the run that is asked for, or None when there is no run of ours.

        A full run id needs no search: the ids of its traces follow from it. NothingFound when a run is named
        that is not there.
        """
        prefix = selection.run_id.lower() if selection.run_id else None
        if prefix and _FULL_ID.fullmatch(prefix):
            attempt = self._last_attempt(prefix, selection.attempt)
            if attempt is not None:
                return prefix, attempt
        now = time.time_ns() + _AHEAD_NS
        until = min(now, selection.end) if selection.end is not None else now
        # A run that reaches into the time asked for may have begun long before it.
        since = min(until, selection.start) if selection.start is not None else until
        for back in _LOOKBACKS_NS:
            self.search_runs(selection.service, since - back, until)
            found = [run for run in list_runs(self._so_far()) if _wanted(run, prefix, selection)]
            if found:
                ids = {run.run_id for run in found}
                if prefix and len(ids) > 1:
                    raise UsageError(f"{self._name}: several runs begin with {prefix}; give more of the id")
                latest = found[0].run_id
                return latest, max(run.attempt for run in found if run.run_id == latest)
        if prefix:
            raise NothingFound(f"{self._name}: no run {prefix}; see `grademl runs`")
        return None

    def _last_attempt(self, run_id: str, asked: int | None) -> int | None:
        if asked is not None:
            return asked if self._has_run(run_id, asked) else None
        last, attempt = None, 0
        while attempt - (last if last is not None else -1) <= _ATTEMPTS_WITHOUT_A_TRACE:
            if self._has_run(run_id, attempt):
                last = attempt
            attempt += 1
        return last

    def _has_run(self, run_id: str, attempt: int) -> bool:
        """The run's own trace arrives when it ends (or with its first checkpoint), its windows before."""
        kinds = (semconv.TRACE_RUN, semconv.TRACE_WINDOW)
        ids = [semconv.trace_id(run_id, attempt, kind) for kind in kinds]
        return any(self._api.trace(trace) is not None for trace in ids)

    def search_runs(self, service: str | None, start: int, end: int) -> None:
        """Read the run traces that started in ``[start, end]``, and a few windows of runs that go on."""
        services: list[str | None] = [service] if service else [*self.services]
        for name in services:
            for _ in self._pages(Search(name, semconv.RUN, _OURS), start, end):
                if self._buffer.full:
                    return
            recent = max(start, end - _LIVE_NS)
            self._take(self._api.search(Search(name, semconv.WINDOW), recent, end, _LIVE_WINDOWS))

    def read_run(self, run_id: str, attempt: int) -> Telemetry:
        """Read one attempt by the derived ids of its traces: the run, its windows, the steps with detail."""
        # What the search brought of other runs is not part of the answer.
        self._buffer = SpanBuilder(self._options.max_spans)
        plan = RunPlan(run_id, attempt)
        with self._broken_off():
            self._take(self._api.trace(plan.run_trace()))
            plan.learn(self._so_far())
            while not self._buffer.full and (wanted := plan.next_windows()):
                self._fetch([*wanted, *plan.further_run_traces()])
                plan.learn(self._so_far())
            self._read_detail(plan)
        if not len(self._buffer):
            raise NothingFound(f"{self._name}: no span of run {run_id}, attempt {attempt}")
        return self.telemetry()

    def _read_detail(self, plan: RunPlan) -> None:
        steps = plan.detailed_steps(self._so_far())
        missing = self._fetch(steps.certain)
        self._fetch(steps.guessed)
        self._ledger.partial_traces += [f"{trace:032x}" for trace in missing]

    # --- Traces of others ---

    def read_foreign(self, selection: Selection) -> Telemetry:
        """Read the latest traces of a service, at most ``max_traces``."""
        self._buffer = SpanBuilder(self._options.max_spans)
        service = selection.service
        if service is None and len(self.services) == 1:
            service = self.services[0]
        if service is None:
            known = ", ".join(self.services[:8]) or "none"
            raise NothingFound(
                f"{self._name}: no run of ours in the last 30 days; choose other traces with"
                f" --service (there: {known})"
            )
        until = selection.end if selection.end is not None else time.time_ns() + _AHEAD_NS
        starts = [until - back for back in _LOOKBACKS_NS] if selection.start is None else [selection.start]
        count = 0
        with self._broken_off():
            for start in starts:
                for found in self._pages(Search(service, selection.operation), start, until):
                    count += found
                    if count >= self._options.max_traces or self._buffer.full:
                        break
                if count:
                    break
        if not count:
            what = f"no trace of {service}" + (f", {selection.operation}" if selection.operation else "")
            raise NothingFound(f"{self._name}: {what} in that time; widen it with --since or --from")
        if count >= self._options.max_traces:
            self._ledger.warnings.append(
                f"{self._name}: read the latest {count:,} traces; there may be more: narrow the time"
            )
        telemetry = self.telemetry()
        spans = narrow(telemetry.spans, replace(selection, service=service, run=None))
        return replace(telemetry, spans=spans)

    def _pages(self, wanted: Search, start: int, end: int) -> Iterator[int]:
        """Search ``[start, end]``, latest first, and yield the number of new traces of each answer.

        Jaeger does not page: an answer as long as the limit may be cut, so its time is halved.
        """
        windows = [(start, end)]
        while windows:
            start, end = windows.pop()
            try:
                body = self._api.search(wanted, start, end, _TRACES_PER_SEARCH)
            except TooLarge:
                if end - start <= _SHORTEST_WINDOW_NS:
                    raise
                new, full = 0, True
            else:
                new, again = self._take(body)
                full = new + again >= _TRACES_PER_SEARCH
            if full and end - start > _SHORTEST_WINDOW_NS:
                middle = (start + end) // 2
                windows += [(start, middle), (middle, end)]
            elif full:
                self._ledger.warnings.append(
                    f"{self._name}: {_TRACES_PER_SEARCH} traces or more in 1 ms; some may be missing"
                )
            yield new


def _wanted(run: RunSummary, prefix: str | None, selection: Selection) -> bool:
    return (
        (prefix is None or run.run_id.lower().startswith(prefix))
        and selection.attempt in (None, run.attempt)
        and (selection.start is None or run.end >= selection.start)
    )
