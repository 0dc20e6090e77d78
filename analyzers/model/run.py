# SPDX-License-Identifier: Apache-2.0
"""One attempt of one run, assembled from spans and step tables by key (run, attempt, rank, step, item)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.attempts import Attempt, attempts, identity, whole
from grademl_otel.analyzers.model.clocks import ClockRule
from grademl_otel.analyzers.model.columns import STATUS_ERROR, Telemetry
from grademl_otel.analyzers.model.completeness import judge, spans_here
from grademl_otel.analyzers.model.devices import given_up, memory_of
from grademl_otel.analyzers.model.ending import how_ended, without_last
from grademl_otel.analyzers.model.evidence import Evidence, count_of
from grademl_otel.analyzers.model.facts import (
    Completeness,
    HowEnded,
    Loader,
    Run,
    RunSummary,
    Scope,
    StepTable,
    names_itself,
)
from grademl_otel.analyzers.model.lanes import busiest_lanes, without_others
from grademl_otel.analyzers.model.recording import (
    in_words,
    kept_by_gateway,
    left_out,
    reductions,
    sampled_ranks,
)
from grademl_otel.analyzers.model.tables import MalformedTable, TablePart, decode_table, join_parts

__all__ = [
    "Completeness",
    "HowEnded",
    "Loader",
    "Run",
    "RunSummary",
    "Scope",
    "StepTable",
    "build_run",
    "build_runs",
    "foreign_services",
    "list_runs",
    "window_parts",
]

_SCOPES: Final = frozenset(
    {
        semconv.FIT,
        semconv.EPOCH,
        semconv.EVALUATE,
        semconv.PREDICT,
        semconv.TRIAL,
        semconv.CHECKPOINT_SAVE,
        semconv.CHECKPOINT_LOAD,
        semconv.COMPILE,
    }
)
_PASSES: Final = (semconv.EPOCH, semconv.EVALUATE)
_MAIN: Final = "main"
_ENDS_WORST_FIRST: Final = ("killed", "exception", "unknown", "exit")


def list_runs(telemetry: Telemetry, *, whole: bool = False) -> list[RunSummary]:
    """Return the runs and attempts in ``telemetry``, the latest first; with verdicts if it is ``whole``."""
    found = []
    for attempt in attempts(telemetry):
        verdict = _assemble(attempt, telemetry, None).completeness.verdict if whole else None
        found.append(replace(_summary(attempt), verdict=verdict))
    return sorted(found, key=lambda run: (run.start, run.attempt), reverse=True)


def foreign_services(telemetry: Telemetry) -> list[str]:
    """Return the names of the services with spans that belong to no run of ours, sorted."""
    used = {int(ix) for ix in np.unique(telemetry.spans.resource_ix)}
    names = {
        str(resource.get("service.name", ""))
        for ix, resource in enumerate(telemetry.spans.resources)
        if ix in used and identity(resource) is None
    }
    return sorted(names - {""})


def _summary(attempt: Attempt) -> RunSummary:
    spans, ixs = attempt.spans, attempt.possible_ixs
    run_spans = attempt.run_spans()[0]
    ends = {str(spans.attributes(ix).get(semconv.ENDED, "unknown")) for ix in run_spans.values()}
    if len(run_spans) < len(attempt.ranks):
        ends.add("unknown")
    windows = [spans.attributes(int(ix)) for ix in attempt.named(semconv.WINDOW)]
    known = (attributes for attributes in windows if semconv.SCRIPT in attributes)
    first = spans.attributes(run_spans[min(run_spans)]) if run_spans else next(known, {})
    steps = [count_of(spans.attributes(ix), semconv.STEPS_TOTAL) for ix in run_spans.values()]
    steps += [count_of(attributes, semconv.WINDOW_STEPS_SO_FAR) for attributes in windows]
    return RunSummary(
        run_id=attempt.run_id,
        attempt=attempt.attempt,
        script=str(first.get(semconv.SCRIPT, "")),
        service=str(spans.resource(int(ixs[0])).get("service.name", "")),
        start=int(spans.start[ixs].min()),
        end=int(spans.end[ixs].max()),
        ranks=len(attempt.ranks),
        steps=max(steps, default=0),
        ended=next((end for end in _ENDS_WORST_FIRST if end in ends), "unknown"),
        name=str(first.get(semconv.RUN_NAME, "")),
        parent=_parent(first),
    )


def _parent(said: Mapping[str, Any]) -> str | None:
    parent = said.get(semconv.RUN_PARENT)
    return None if parent is None else str(parent)


def build_run(
    telemetry: Telemetry,
    run_id: str | None = None,
    attempt: int | None = None,
    clocks: ClockRule | None = None,
) -> Run | None:
    """Assemble a run (the latest, and its last attempt, by default); None when there is no span of it.

    ``run_id`` may be the beginning of one. Times of all hosts are brought to those of one clock, as far as
    they can be and ``clocks`` says.
    """
    prefix = (run_id or "").lower()
    wanted = [a for a in attempts(telemetry) if a.run_id.lower().startswith(prefix)]
    if not wanted:
        return None
    latest = max(wanted, key=lambda one: one.started).run_id
    chosen = [a for a in wanted if a.run_id == latest and attempt in (None, a.attempt)]
    if not chosen:
        return None
    return _assemble(max(chosen, key=lambda a: a.attempt), telemetry, clocks)


def build_runs(telemetry: Telemetry, clocks: ClockRule | None = None, built: Run | None = None) -> list[Run]:
    """Assemble every attempt of every run, by start; times as in `build_run`.

    ``built``: the one that `build_run` made of the same telemetry by the same ``clocks``, if it did.
    """
    return [
        built
        if built is not None and (built.run_id, built.attempt) == (one.run_id, one.attempt)
        else _assemble(one, telemetry, clocks)
        for one in sorted(attempts(telemetry), key=_order)
    ]


def _order(attempt: Attempt) -> tuple[int, str, int]:
    return attempt.started, attempt.run_id, attempt.attempt


def window_parts(telemetry: Telemetry, run_id: str, attempt: int) -> list[TablePart]:
    """Return the step tables of one attempt that can be read, sorted by (rank, window, part)."""
    for found in attempts(telemetry):
        if (found.run_id, found.attempt) == (run_id, attempt):
            return _parts(found, Evidence(telemetry.ledger, found.ranks, found.world_size))
    return []


def _assemble(attempt: Attempt, telemetry: Telemetry, rule: ClockRule | None) -> Run:
    attempt.correct(rule)
    spans = attempt.spans
    evidence = Evidence(telemetry.ledger, attempt.ranks, attempt.world_size)
    run_spans, twice = attempt.run_spans()
    evidence.conflicts += [*attempt.conflicts, *twice]
    parts = _parts(attempt, evidence)
    mine, lanes, beside = busiest_lanes(parts)
    steps, evidence.overlap_ns = join_parts(mine)
    census = join_parts(parts)[0] if beside else steps
    bounds = _bounds(attempt, run_spans, census)
    step_spans, kinds = _step_spans(attempt, lanes)
    reduced = reductions(mine)
    evidence.parts = parts
    evidence.run_attributes = {rank: spans.attributes(ix) for rank, ix in run_spans.items()}
    evidence.ended = [how_ended(attempt, rank, run_spans.get(rank), parts, bounds) for rank in attempt.ranks]
    # A step that others refer to has its own span where its phases are not kept.
    phases = (*semconv.PHASES, *steps.user)
    whole = {int(ix) for name in phases for ix in spans.parent_ix[attempt.named(name)]}
    evidence.detailed = {
        key[:2] for key, kind in kinds.items() if kind == "train" and step_spans[key] in whole
    }
    evidence.sampled = sampled_ranks(evidence.run_attributes, parts)
    trained = {key[:2] for key, kind in kinds.items() if kind == "train"}
    sampling, evidence.steps_lacking = kept_by_gateway(evidence.sampled, steps, trained)
    evidence.count_spans(spans, attempt.ixs, attempt.rank_of_span, attempt.in_run_trace(attempt.ixs))
    evidence.compare_detail(spans, step_spans, steps)
    steps, unfinished = without_last(steps, evidence.ended)
    scopes = _scopes(attempt)
    said = _said_of_run(evidence.run_attributes, parts)
    device = said.get(semconv.DEVICE)
    evidence.of_cut_traces = spans_here(spans, telemetry.ledger.partial_traces)
    evidence.bounds = {
        rank: (min((s.start for s in scopes if s.rank == rank and s.name in _PASSES), default=low), high)
        for rank, (low, high) in bounds.items()
    }
    completeness = judge(evidence, census)
    completeness.notes = [*beside, *sampling, *left_out(evidence.run_attributes, parts), *in_words(reduced)]
    completeness.notes += [*given_up(parts), *unfinished, *attempt.untied()]
    return Run(
        run_id=attempt.run_id,
        attempt=attempt.attempt,
        script=str(said.get(semconv.SCRIPT, "")),
        device=None if device is None else str(device),
        ranks=attempt.ranks,
        start=min(start for start, _ in bounds.values()),
        end=max(end for _, end in bounds.values()),
        rank_bounds=bounds,
        scopes=without_others(scopes, lanes, steps),
        run_spans=run_spans,
        loaders=_loaders(scopes),
        steps=steps,
        step_spans=step_spans,
        spans=spans,
        span_ixs=attempt.ixs,
        completeness=completeness,
        name=str(said.get(semconv.RUN_NAME, "")),
        parent=_parent(said),
        user_phases=steps.user | {scope.name for scope in scopes if scope.user},
        reduced=reduced,
        memory=memory_of(mine),
        clocks=attempt.clocks,
    )


def _said_of_run(
    run_attributes: Mapping[int, Mapping[str, Any]], parts: Sequence[TablePart]
) -> dict[str, Any]:
    """Return what the run says of itself: its first rank's run span; before there is one, its windows."""
    said: dict[str, Any] = {}
    for part in parts:
        for key in (semconv.SCRIPT, semconv.DEVICE):
            if key in part.attributes:
                said.setdefault(key, part.attributes[key])
    return said | dict(run_attributes[min(run_attributes)] if run_attributes else {})


def _parts(attempt: Attempt, evidence: Evidence) -> list[TablePart]:
    """Return the decoded tables of the window spans, sorted by (rank, window, part)."""
    spans = attempt.spans
    found: dict[tuple[int, int, int], TablePart] = {}
    for ix in attempt.named(semconv.WINDOW):
        rank, attributes = attempt.rank(int(ix)), spans.attributes(int(ix))
        try:
            part = decode_table(attributes, rank, int(spans.start[ix]))
            part = replace(part, world_size=attempt.world_size_of(int(ix)))
        except MalformedTable as fault:
            evidence.malformed.append(f"rank {rank}, window span {spans.span_id_hex(int(ix))}: {fault}")
            continue
        key = (rank, part.window, part.part)
        if key in found:
            evidence.conflicts.append(f"rank {rank} sent part {part.part} of window {part.window} twice")
            if spans.span_id[ix] != attempt.span_id_of(semconv.WINDOW, part.window, rank, part.part):
                continue  # of two owners the one with the id that the run gives it
        found[key] = part
        evidence.note_window(rank, attributes)
    return [found[key] for key in sorted(found)]


def _bounds(attempt: Attempt, run_spans: dict[int, int], steps: StepTable) -> dict[int, tuple[int, int]]:
    """Return each rank's start and end of its main lane, always around its rows.

    The run span of a process that was killed ends at its last mark. Its windows tell how long it was there.
    """
    spans, ixs = attempt.spans, attempt.possible_ixs
    workers = [spans.names.index(name) for name in semconv.WORKER_PHASES if name in spans.names]
    main = ~np.isin(spans.name_ix[ixs], workers)
    windows = attempt.named(semconv.WINDOW)
    bounds = {}
    for rank in attempt.ranks:
        of_rank = attempt.rank_of_span[ixs] == rank
        if rank in run_spans:
            own = np.array([run_spans[rank]], np.int64)
            killed = semconv.TERMINATED in spans.attributes(run_spans[rank])
            seen = np.concatenate((own, windows[attempt.rank_of_span[windows] == rank])) if killed else own
        else:
            seen = ixs[of_rank & main] if np.any(of_rank & main) else ixs[of_rank]
        rows = steps.of_rank(rank)
        starts = np.concatenate((spans.start[seen], steps.start[rows]))
        ends = np.concatenate((spans.end[seen], steps.end[rows]))
        if len(starts):
            bounds[rank] = int(starts.min()), int(ends.max())
    return bounds


def _scopes(attempt: Attempt) -> list[Scope]:
    spans = attempt.spans
    ours = attempt.possible_ixs[attempt.in_run_trace(attempt.possible_ixs)]
    ours = ours[spans.name_ix[ours] != (spans.names.index(semconv.RUN) if semconv.RUN in spans.names else -1)]
    scopes = [
        Scope(
            name=spans.name(ix),
            rank=attempt.rank(ix),
            start=int(spans.start[ix]),
            end=int(spans.end[ix]),
            span_ix=ix,
            attributes=spans.attributes(ix),
            error=bool(spans.status[ix] == STATUS_ERROR),
            user=user,
        )
        for ix in map(int, ours)
        if (user := names_itself(spans, ix)) or spans.name(ix) in _SCOPES
    ]
    return sorted(scopes, key=lambda scope: (scope.rank, scope.start, -scope.end))


def _loaders(scopes: list[Scope]) -> dict[int, Loader]:
    loaders: dict[int, Loader] = {}
    for scope in scopes:
        loader_id = whole(scope.attributes.get(semconv.LOADER_ID))
        if loader_id is None or loader_id in loaders:
            continue
        loaders[loader_id] = Loader(
            loader_id=loader_id,
            workers=whole(scope.attributes.get(semconv.LOADER_WORKERS)) or 0,
            prefetch=whole(scope.attributes.get(semconv.LOADER_PREFETCH)),
            batch_size=whole(scope.attributes.get(semconv.LOADER_BATCH_SIZE)),
            persistent=bool(scope.attributes.get(semconv.LOADER_PERSISTENT, False)),
            in_order=bool(scope.attributes.get(semconv.LOADER_IN_ORDER, True)),
        )
    return loaders


def _step_spans(
    attempt: Attempt, lanes: Mapping[int, str]
) -> tuple[dict[tuple[int, int, int], int], dict[tuple[int, int, int], str]]:
    """Return the step spans of each rank's lane by (rank, step, start), and the kind of each."""
    spans = attempt.spans
    found: dict[tuple[int, int, int], int] = {}
    kinds: dict[tuple[int, int, int], str] = {}
    for ix in map(int, attempt.named(semconv.STEP)):
        attributes = spans.attributes(ix)
        number = attributes.get(semconv.STEP_NUMBER)
        rank = attempt.rank(ix)
        if not isinstance(number, int) or attributes.get(semconv.LANE) not in (None, lanes.get(rank, _MAIN)):
            continue
        key = (rank, number, int(spans.start[ix]))
        found[key] = ix
        kinds[key] = str(attributes.get(semconv.STEP_KIND, ""))
    return found, kinds
