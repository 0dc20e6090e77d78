# SPDX-License-Identifier: Apache-2.0
"""Where a page comes from: what was read, with what, and the command that makes it again.

Nothing here depends on when the page is made, or on which machine: the same input gives the same page.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from grademl_otel.analyzers.graph.trees.tolerance import DEFAULT_TOLERANCE, OverlapTolerance
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.document import ReportDocument
from grademl_otel.analyzers.reporting.resources_document import ResourcesDocument
from grademl_otel.analyzers.selection import StepRange
from grademl_otel.analyzers.sources.registry import SOURCE_VARIABLE
from grademl_otel.analyzers.sources.servers.jaeger_address import asked_in, merged
from grademl_otel.analyzers.subject import selection_of
from grademl_otel.version import __version__


def provenance(document: ReportDocument | ResourcesDocument) -> list[tuple[str, str]]:
    """Return (what, value) of the source and of what read it."""
    source = document.source
    found = [("Source", source.uri), ("Traces", f"{source.traces:,}")]
    if source.run is not None:
        found += [("Run", source.run), ("Attempt", f"{source.attempt}")]
    found += [
        ("Begins at", f"{document.window.origin_unix_ns} ns since 1970 (Unix time); times count from there"),
        ("Schema", document.schema),
        ("Made by", f"grademl {__version__}"),
    ]
    return found


def command(query: Query, document: ReportDocument | ResourcesDocument, *what: str) -> str:
    """Return the shell command that asks the same again; headers, which may be secret, are left out."""
    source = document.source
    words = ["grademl", *what, source.uri]
    if source.run is not None:
        words += ["--run", source.run, "--attempt", f"{source.attempt}"]
    if query.fit is not None:
        words += ["--fit", f"{query.fit}"]
    # What the address asks for, as that of a trace in Jaeger, is not in the source's own.
    given = query.source or os.environ.get(SOURCE_VARIABLE)
    asked = merged(selection_of(replace(query, since=None)), asked_in(given))
    for trace in asked.trace_ids:
        words += ["--trace", f"{trace:x}"]
    for option, value in (("--service", asked.service), ("--operation", asked.operation)):
        words += [] if value is None else [option, value]
    for key, text in asked.attributes:
        words += ["--attribute", f"{key}={text}"]
    if query.since is not None:
        words += ["--since", f"{query.since}ns"]
    for option, at in (("--from", asked.start), ("--to", asked.end)):
        words += [] if at is None else [option, _seconds(at)]
    if query.ranks is not None:
        words += ["--ranks", ",".join(map(str, query.ranks))]
    if query.steps is not None:
        words += ["--steps", _steps(query.steps)]
    if query.tolerance not in (None, DEFAULT_TOLERANCE):
        words += ["--overlap-tolerance", _tolerance(query.tolerance)]
    if query.clocks is not None:
        words += [] if query.clocks.shift else ["--clocks", "off"]
        for host, offset in query.clocks.given.items():
            words += ["--clocks", f"{host}={offset / 1e6:.6f}"]
    if not query.inferred:
        words.append("--no-inferred")
    return shlex.join(words)


def _seconds(ns: int) -> str:
    whole, rest = divmod(ns, 1_000_000_000)
    return f"{whole}.{rest:09}"


def _steps(steps: StepRange) -> str:
    if steps.last is not None:
        return f"last:{steps.last}"
    return f"{steps.first}:{'' if steps.end is None else steps.end}"


def _tolerance(tolerance: OverlapTolerance) -> str:
    if not tolerance.limit_ns:
        return "0"
    return f"{tolerance.limit_ns}ns" if tolerance.fraction >= 1 else f"{tolerance.fraction * 100:g}%"
