# SPDX-License-Identifier: Apache-2.0
"""Finds a run of ours on a server: by the derived ids of its traces where its id is known, else by search."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel import semconv
from grademl_otel.analyzers.errors import NothingFound, UsageError
from grademl_otel.analyzers.model.run import RunSummary
from grademl_otel.analyzers.sources.base import Selection

S: Final = 1_000_000_000
LOOKBACKS_NS: Final = (3600 * S, 24 * 3600 * S, 30 * 24 * 3600 * S)
AHEAD_NS: Final = 3600 * S
"""Clocks of hosts differ: what lies a little in the future counts as now."""
OURS: Final = ((semconv.LANE, "main"),)
"""An attribute of every run span of ours; other programs have operations called run, too."""
LIVE_NS: Final = 2 * AHEAD_NS
"""How far back a run that goes on is looked for by its windows."""
LIVE_WINDOWS: Final = 20
_ATTEMPTS_WITHOUT_A_TRACE: Final = 2
_FULL_ID: Final = re.compile(r"[0-9a-f]{32}")


def find_run(
    selection: Selection,
    name: str,
    has_trace: Callable[[int], bool],
    search: Callable[[int, int], list[RunSummary]],
) -> tuple[str, int] | None:
    """Return (run id, attempt) of the run that is asked for, or None when there is no run of ours.

    ``search`` lists the runs of a time in Unix ns, the latest first. NothingFound when a run is named that is
    not there, UsageError when a beginning of an id is that of several; ``name`` begins the message.
    """
    prefix = selection.run_id.lower() if selection.run_id else None
    if prefix and _FULL_ID.fullmatch(prefix):
        attempt = _attempt(prefix, selection.attempt, has_trace)
        if attempt is not None:
            return prefix, attempt
    now = time.time_ns()
    until = min(now + AHEAD_NS, selection.end) if selection.end is not None else now + AHEAD_NS
    # A run that reaches into the time asked for may have begun long before it.
    since = min(now, until) if selection.start is None else min(until, selection.start)
    for back in LOOKBACKS_NS:
        found = [run for run in search(since - back, until) if _wanted(run, prefix, selection)]
        if found:
            if prefix and len({run.run_id for run in found}) > 1:
                raise UsageError(f"{name}: several runs begin with {prefix}; give more of the id")
            latest = found[0].run_id
            return latest, max(run.attempt for run in found if run.run_id == latest)
    if prefix:
        raise NothingFound(f"{name}: no run {prefix}; see `grademl runs`")
    return None


def _attempt(run_id: str, asked: int | None, has_trace: Callable[[int], bool]) -> int | None:
    """Return the attempt that is asked for, or the last, if it is there."""
    if asked is not None:
        return asked if _has_run(run_id, asked, has_trace) else None
    last, attempt = None, 0
    while attempt - (last if last is not None else -1) <= _ATTEMPTS_WITHOUT_A_TRACE:
        if _has_run(run_id, attempt, has_trace):
            last = attempt
        attempt += 1
    return last


def _has_run(run_id: str, attempt: int, has_trace: Callable[[int], bool]) -> bool:
    """The run's own trace arrives when it ends (or with its first checkpoint), its windows before."""
    kinds = (semconv.TRACE_RUN, semconv.TRACE_WINDOW)
    return any(has_trace(semconv.trace_id(run_id, attempt, kind)) for kind in kinds)


def _wanted(run: RunSummary, prefix: str | None, selection: Selection) -> bool:
    return (
        (prefix is None or run.run_id.lower().startswith(prefix))
        and selection.attempt in (None, run.attempt)
        and (selection.start is None or run.end >= selection.start)
    )


def no_run(name: str, services: Sequence[str]) -> NothingFound:
    """Return what is said where no run of ours was found and nobody has said which other traces."""
    if not services:
        return NothingFound(
            f"{name}: no service in it: nothing has been sent there yet, or it was lost when it restarted"
        )
    return NothingFound(
        f"{name}: no run of ours in the last 30 days; choose other traces with --service"
        f" (there: {', '.join(services[:8])})"
    )


def searched(selection: Selection) -> str:
    """Return in words the time in which traces were looked for."""
    return "in the last 30 days" if selection.start is selection.end is None else "in that time"
