# SPDX-License-Identifier: Apache-2.0
"""What a query is about: read the source, then take a run of ours, or else the traces that match."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from grademl_otel.analyzers.errors import NothingFound, UsageError
from grademl_otel.analyzers.graph.trees.tolerance import DEFAULT_TOLERANCE
from grademl_otel.analyzers.model.clocks import Clocks, clocks_of_traces
from grademl_otel.analyzers.model.columns import SpanColumns, Telemetry
from grademl_otel.analyzers.model.facts import Completeness
from grademl_otel.analyzers.model.foreign import judge_foreign
from grademl_otel.analyzers.model.run import Run, build_run
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.selection import select_fit, select_ranks, select_steps
from grademl_otel.analyzers.sources import Selection, Source, SourceOptions, open_source
from grademl_otel.analyzers.sources.narrow import matches
from grademl_otel.analyzers.sources.registry import SOURCE_VARIABLE
from grademl_otel.analyzers.sources.servers.jaeger_address import names_traces
from grademl_otel.analyzers.suggest import explain_source

if TYPE_CHECKING:
    from grademl_otel.analyzers.graph import TracePaths

_TRACE_ID: Final = re.compile(r"[0-9a-fA-F]{1,32}")

BUILT: Final = "built"
"""Where `Subject.made` has the whole run of which the subject is."""


@dataclass(frozen=True)
class Subject:
    """The telemetry that was read, and the run in it if that is what the query is about."""

    telemetry: Telemetry
    run: Run | None
    query: Query
    clocks: Clocks | None = None
    """Those to which the times of ``telemetry`` were brought, where no run is the subject."""
    made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was made of it, by who made it: a subject is asked for several tables, one after the other."""

    @cached_property
    def completeness(self) -> Completeness:
        """The verdict on what was read: of the run, else of spans that tell no counts."""
        return judge_foreign(self.telemetry) if self.run is None else self.run.completeness

    @property
    def is_part(self) -> bool:
        """Whether the query asks for a part of a run: some of its ranks or steps, or one of its fits."""
        chosen = (self.query.fit, self.query.ranks, self.query.steps)
        return self.run is not None and any(part is not None for part in chosen)

    def paths(self) -> TracePaths:
        """Return (root, critical path) of each trace that matches; NothingFound when none does."""
        return self._paths

    @cached_property
    def _paths(self) -> TracePaths:
        # Graphs are for who asks for a path: what only looks at spans starts without them.
        from grademl_otel.analyzers.graph.profiles.profile_path import paths_of_traces

        spans, query = self.telemetry.spans, self.query
        roots = _matching_roots(spans, query)
        if not roots:
            raise NothingFound(f"{self.telemetry.uri}: no trace in it matches the selection")
        return paths_of_traces(spans, roots, query.tolerance or DEFAULT_TOLERANCE, query.inferred)


def read_subject(query: Query) -> Subject:
    """Read what ``query`` asks for. Traces are the subject when it names any, or there is no run of ours."""
    if query.every_attempt:
        raise UsageError("an answer is about one attempt: ask for each of them, see `answers.each_attempt`")
    telemetry = open_query(query).read(selection_of(query))
    if query.traces or query.operation is not None or query.attributes or _names_traces(query.source):
        return _traces(telemetry, query)
    run = build_run(telemetry, attempt=query.attempt, clocks=query.clocks)
    if run is None:
        _refuse_run_options(telemetry, query)
        return _traces(telemetry, query)
    _check_hosts(run.clocks, query)
    built, run = run, select_fit(run, query.fit)
    if query.ranks is not None:
        run = select_ranks(run, query.ranks)
    if query.steps is not None:
        run = select_steps(run, query.steps)
    found = Subject(telemetry, run, query)
    found.made[BUILT] = built
    return found


def _traces(telemetry: Telemetry, query: Query) -> Subject:
    """Return the traces of ``telemetry`` as the subject, with the times of all hosts by one clock."""
    clocks = clocks_of_traces(telemetry.spans, query.clocks)
    _check_hosts(clocks, query)
    return Subject(replace(telemetry, spans=clocks.correct(telemetry.spans)), None, query, clocks)


def _check_hosts(clocks: Clocks | None, query: Query) -> None:
    """Raise NothingFound for an offset of a host that is not here, UsageError for one of the reference."""
    hosts = [clock.host for clock in clocks.clocks] if clocks is not None else []
    for host in query.clocks.given if query.clocks is not None else ():
        if hosts.count(host) == 1 and host == hosts[0]:
            raise UsageError(
                f"--clocks {host}=...: that is the clock which offsets of the others are told from"
            )
        if host not in hosts:
            there = ", ".join(sorted(hosts))
            raise NothingFound(f"--clocks {host}=...: no such host here; there are {there}")


def open_query(query: Query, everything: bool = False) -> Source:
    """Return the source of ``query``, not yet read; with no bounds on how much for ``everything``."""
    options = SourceOptions(headers=query.headers, ca=query.ca, progress=query.progress)
    if everything:
        options = replace(options, max_spans=sys.maxsize, max_traces=sys.maxsize)
    if query.timeout is not None:
        options = replace(options, timeout_s=query.timeout)
    if query.max_spans is not None:
        options = replace(options, max_spans=query.max_spans)
    explain_source(query.source)
    return open_source(query.source, options)


def selection_of(query: Query) -> Selection:
    """Return which spans of the source ``query`` needs."""
    return Selection(
        run=query.run,
        attempt=query.attempt,
        trace_ids=tuple(_trace_id(text) for text in query.traces),
        service=query.service,
        operation=query.operation,
        attributes=query.attributes,
        start=query.start if query.since is None else time.time_ns() - query.since,
        end=query.end,
    )


def _names_traces(source: str | None) -> bool:
    """Whether ``source`` is the address of a page that shows traces."""
    address = source or os.environ.get(SOURCE_VARIABLE) or ""
    return address.startswith(("http://", "https://")) and names_traces(address)


def _trace_id(text: str) -> int:
    if not _TRACE_ID.fullmatch(text):
        raise UsageError(f"--trace {text}: a trace id is 1 to 32 hexadecimal digits")
    return int(text, 16)


def _refuse_run_options(telemetry: Telemetry, query: Query) -> None:
    """Raise NothingFound when ``query`` asks for a part of a run and there is none."""
    if query.attempt is not None:
        raise NothingFound(f"{telemetry.uri}: no attempt {query.attempt}; `grademl runs` lists what there is")
    chosen = (("--run", query.run), ("--fit", query.fit), ("--ranks", query.ranks), ("--steps", query.steps))
    for option, value in chosen:
        if value is not None:
            raise NothingFound(f"{telemetry.uri}: {option} selects in a run of ours, and there is none in it")


def _matching_roots(spans: SpanColumns, query: Query) -> list[int]:
    """Return the roots of the traces in which a span is as the query asks for."""
    from grademl_otel.analyzers.graph import trace_roots

    match = matches(spans, selection_of(query))
    wanted = np.zeros(len(spans), bool)  # by number of trace
    wanted[spans.trace_ix[match]] = True
    return [root for root in trace_roots(spans) if wanted[spans.trace_ix[root]]]


def broken_off(telemetry: Telemetry) -> str | None:
    """Return a line for a source that broke off midway, else None."""
    broken = telemetry.ledger.broken
    return f"{telemetry.uri}: {broken}; the answer is about what was read" if broken else None
