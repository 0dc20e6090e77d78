# SPDX-License-Identifier: Apache-2.0
"""What `grademl doctor` says of a Tempo."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.model.run import list_runs
from grademl_otel.analyzers.sources.base import Probe, SourceOptions
from grademl_otel.analyzers.sources.servers.own_runs import AHEAD_NS, LOOKBACKS_NS
from grademl_otel.analyzers.sources.servers.tempo_api import TempoApi
from grademl_otel.analyzers.sources.servers.tempo_reader import TempoReader

_RUNS: Final = 20
_NOBODY: Final = 1
"""A trace id that no tracer makes."""
_ADVICE: Final = {
    "trace_too_large": "raise max_bytes_per_trace, or send shorter traces",
    "live_traces_exceeded": "raise max_traces_per_user",
    "rate_limited": "raise rate_limit_bytes, or send less",
}


def probe(uri: str, api: TempoApi, options: SourceOptions) -> Probe:
    """Return what the server tells of itself and holds; what goes wrong is in the problems."""
    problems: list[str] = []
    notes: list[str] = []
    services: list[str] = []
    reader = TempoReader(uri, api, options)
    version = None
    try:
        api.greet()
        version = api.version()
        api.trace(_NOBODY)
        with suppress(SourceError):
            api.learn_limit()
        services = api.latest_services()
        now = time.time_ns()
        reader.search_runs(None, now - LOOKBACKS_NS[-1], now + AHEAD_NS, _RUNS)
    except SourceError as error:
        problems.append(str(error))
    runs = list_runs(reader.so_far())
    ours = {run.service for run in runs}
    if not problems:
        notes += _discarded(api)
    return Probe(
        kind="Tempo",
        api=_api(api) if api.protobuf is not None else None,
        version=version,
        limits=_limits(api) if api.protobuf is not None else {},
        clock_offset_ns=api.clock.offset_ns if api.clock else None,
        clock_error_ns=api.clock.error_ns if api.clock else None,
        services=tuple(name for name in services if name not in ours),
        runs=tuple(runs),
        notes=tuple(notes),
        problems=tuple(problems),
    )


def _api(api: TempoApi) -> str:
    form = "protobuf" if api.protobuf else "JSON (it gives no protobuf)"
    if api.traces_api == 1:
        return f"traces by API v1 (it has no v2) in {form}; one that is too large is refused"
    return f"traces by API v2 in {form}; one that is too large comes in part, and says so"


def _limits(api: TempoApi) -> dict[str, str]:
    return {
        "traces of a search": f"{api.largest:,}; more are found by shorter searches",
        "time of a search": f"{api.longest_s / 3600:g} h; longer is asked for in parts",
        "newest": "searches leave out the last 30 s by default (query_end_cutoff); ids are found at once",
        "size of a trace": "5 MB by default (max_bytes_per_trace); what comes beyond is dropped silently",
    }


def _discarded(api: TempoApi) -> list[str]:
    """Return what its metrics say of spans that it did not keep."""
    counts = api.discarded()
    if counts is None:
        return ["its metrics cannot be read (/metrics): whether it discarded spans is not known"]
    return [
        f"{count:,} spans were discarded since it started ({reason})"
        + (f": {_ADVICE[reason]}" if reason in _ADVICE else "")
        for reason, count in sorted(counts.items())
        if count
    ] or ["it has discarded no span since it started"]
