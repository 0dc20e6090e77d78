# SPDX-License-Identifier: Apache-2.0
"""One attempt of one run, assembled from spans and step tables by key (run, attempt, rank, step, item)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import STATUS_ERROR, IntArray, SpanColumns, Telemetry
from grademl_otel.analyzers.model.completeness import judge
from grademl_otel.analyzers.model.devices import given_up, memory_of
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
from grademl_otel.analyzers.model.recording import in_words, left_out, reductions
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
_MAIN: Final = "main"
_MAX_RANKS: Final = 1 << 17
_ENDS_WORST_FIRST: Final = ("killed", "exception", "unknown", "exit")


@dataclass(frozen=True)
class _Identity:
    """Whose spans a resource's are."""

    run_id: str
    attempt: int
    rank: int
    world_size: int | None


def _identity(resource: dict[str, Any]) -> _Identity | None:
    run_id = resource.get(semconv.RUN_ID)
    if not isinstance(run_id, str) or not run_id or not run_id.isascii():
        return None
    return _Identity(
        run_id,
        _whole(resource.get(semconv.ATTEMPT)) or 0,
        _whole(resource.get(semconv.RANK), _MAX_RANKS) or 0,
        _whole(resource.get(semconv.WORLD_SIZE), _MAX_RANKS),
    )


def _whole(value: Any, limit: int = 1 << 31) -> int | None:
    """Return ``value`` if it is an integer from 0 to ``limit``, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit else None


class _Attempt:
    """The spans of one attempt, by rank and by name; impossible times are left out."""

    def __init__(
        self, spans: SpanColumns, run_id: str, attempt: int, identities: list[_Identity | None]
    ) -> None:
        self.spans = spans
        self.run_id = run_id
        self.attempt = attempt
        self.identity_of = identities
        ours = np.array(
            [i is not None and (i.run_id, i.attempt) == (run_id, attempt) for i in identities], np.bool_
        )
        self.ixs: IntArray = np.flatnonzero(ours[spans.resource_ix]).astype(np.int64)
        self.possible_ixs: IntArray = self.ixs[spans.possible[self.ixs]]
        rank_of = np.array([i.rank if i else -1 for i in identities], np.int64)
        self.rank_of_span: IntArray = rank_of[spans.resource_ix]
        self.ranks: list[int] = [int(rank) for rank in np.unique(self.rank_of_span[self.possible_ixs])]
        members = [i for i, mine in zip(identities, ours, strict=True) if mine and i]
        self.world_size = max((i.world_size for i in members if i.world_size is not None), default=None)
        shards = sorted({0, *map(semconv.run_shard, self.ranks)})
        traces = [semconv.trace_id(run_id, attempt, semconv.TRACE_RUN, 0, shard) for shard in shards]
        self.in_run_trace = np.isin(spans.trace_lo, np.array([t & (1 << 64) - 1 for t in traces], np.uint64))
        self.in_run_trace &= np.isin(spans.trace_hi, np.array([t >> 64 for t in traces], np.uint64))

    def named(self, name: str) -> IntArray:
        """Return the indices, ascending, of the spans called ``name``."""
        if name not in self.spans.names:
            return np.zeros(0, np.int64)
        called = self.spans.name_ix[self.possible_ixs] == self.spans.names.index(name)
        found: IntArray = self.possible_ixs[called]
        return found

    def world_size_of(self, ix: int) -> int:
        """Return how many ranks the process of a span says that there are; 0 where it does not say."""
        identity = self.identity_of[int(self.spans.resource_ix[ix])]
        return (identity.world_size or 0) if identity is not None else 0

    def rank(self, ix: int) -> int:
        return int(self.rank_of_span[ix])


def _attempts(telemetry: Telemetry) -> Iterator[_Attempt]:
    identities = [_identity(resource) for resource in telemetry.spans.resources]
    keys = {(i.run_id, i.attempt): None for i in identities if i is not None}
    for run_id, attempt in keys:
        found = _Attempt(telemetry.spans, run_id, attempt, identities)
        if len(found.possible_ixs):
            yield found


def list_runs(telemetry: Telemetry) -> list[RunSummary]:
    """Return the runs and attempts in ``telemetry``, the latest first."""
    found = [_summary(attempt) for attempt in _attempts(telemetry)]
    return sorted(found, key=lambda run: (run.start, run.attempt), reverse=True)


def foreign_services(telemetry: Telemetry) -> list[str]:
    """Return the names of the services with spans that belong to no run of ours, sorted."""
    used = {int(ix) for ix in np.unique(telemetry.spans.resource_ix)}
    names = {
        str(resource.get("service.name", ""))
        for ix, resource in enumerate(telemetry.spans.resources)
        if ix in used and _identity(resource) is None
    }
    return sorted(names - {""})


def _summary(attempt: _Attempt) -> RunSummary:
    spans, ixs = attempt.spans, attempt.possible_ixs
    run_spans = _run_spans(attempt)[0]
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


def build_run(telemetry: Telemetry, run_id: str | None = None, attempt: int | None = None) -> Run | None:
    """Assemble a run (the latest, and its last attempt, by default); None when there is no span of it.

    ``run_id`` may be the beginning of one.
    """
    prefix = (run_id or "").lower()
    wanted = [a for a in _attempts(telemetry) if a.run_id.lower().startswith(prefix)]
    if not wanted:
        return None
    latest = max(wanted, key=_started).run_id
    attempts = [a for a in wanted if a.run_id == latest and attempt in (None, a.attempt)]
    if not attempts:
        return None
    return _assemble(max(attempts, key=lambda a: a.attempt), telemetry)


def window_parts(telemetry: Telemetry, run_id: str, attempt: int) -> list[TablePart]:
    """Return the step tables of one attempt that can be read, sorted by (rank, window, part)."""
    for found in _attempts(telemetry):
        if (found.run_id, found.attempt) == (run_id, attempt):
            return _parts(found, Evidence(telemetry.ledger, found.ranks, found.world_size))
    return []


def _started(attempt: _Attempt) -> int:
    return int(attempt.spans.start[attempt.possible_ixs].min())


def _assemble(attempt: _Attempt, telemetry: Telemetry) -> Run:
    spans = attempt.spans
    evidence = Evidence(telemetry.ledger, attempt.ranks, attempt.world_size)
    run_spans, twice = _run_spans(attempt)
    evidence.conflicts += twice
    parts = _parts(attempt, evidence)
    mine, lanes, beside = busiest_lanes(parts)
    steps, evidence.overlap_ns = join_parts(mine)
    census = join_parts(parts)[0] if beside else steps
    bounds = _bounds(attempt, run_spans, census)
    step_spans, kinds = _step_spans(attempt, lanes)
    reduced = reductions(mine)
    evidence.parts = parts
    evidence.run_attributes = {rank: spans.attributes(ix) for rank, ix in run_spans.items()}
    evidence.ended = [_how_ended(attempt, rank, run_spans.get(rank), parts, bounds) for rank in attempt.ranks]
    # A step that others refer to has its own span where its phases are not kept.
    phases = (*semconv.PHASES, *steps.user)
    whole = {int(ix) for name in phases for ix in spans.parent_ix[attempt.named(name)]}
    evidence.detailed = {
        key[:2] for key, kind in kinds.items() if kind == "train" and step_spans[key] in whole
    }
    evidence.count_spans(spans, attempt.ixs, attempt.rank_of_span, attempt.in_run_trace)
    evidence.compare_detail(spans, step_spans, steps)
    scopes = _scopes(attempt)
    said = _said_of_run(evidence.run_attributes, parts)
    device = said.get(semconv.DEVICE)
    completeness = judge(evidence, census)
    completeness.notes = [*beside, *left_out(evidence.run_attributes, parts), *in_words(reduced)]
    completeness.notes += given_up(parts)
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


def _run_spans(attempt: _Attempt) -> tuple[dict[int, int], list[str]]:
    """Return (rank -> index of its run span, the conflicts found)."""
    found: dict[int, int] = {}
    conflicts = []
    for ix in attempt.named(semconv.RUN):
        rank = attempt.rank(int(ix))
        if rank in found:
            conflicts.append(f"rank {rank} has several run spans; the first counts")
        else:
            found[rank] = int(ix)
    return found, conflicts


def _parts(attempt: _Attempt, evidence: Evidence) -> list[TablePart]:
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
            continue
        found[key] = part
        evidence.note_window(rank, attributes)
    return [found[key] for key in sorted(found)]


def _bounds(attempt: _Attempt, run_spans: dict[int, int], steps: StepTable) -> dict[int, tuple[int, int]]:
    """Return each rank's start and end of its main lane, always around its rows."""
    spans, ixs = attempt.spans, attempt.possible_ixs
    workers = [spans.names.index(name) for name in semconv.WORKER_PHASES if name in spans.names]
    main = ~np.isin(spans.name_ix[ixs], workers)
    bounds = {}
    for rank in attempt.ranks:
        if rank in run_spans:
            seen = np.array([run_spans[rank]], np.int64)
        else:
            of_rank = attempt.rank_of_span[ixs] == rank
            seen = ixs[of_rank & main] if np.any(of_rank & main) else ixs[of_rank]
        rows = steps.of_rank(rank)
        starts = np.concatenate((spans.start[seen], steps.start[rows]))
        ends = np.concatenate((spans.end[seen], steps.end[rows]))
        if len(starts):
            bounds[rank] = int(starts.min()), int(ends.max())
    return bounds


def _scopes(attempt: _Attempt) -> list[Scope]:
    spans = attempt.spans
    names = [ix for ix, name in enumerate(spans.names) if name != semconv.RUN]
    chosen = np.isin(spans.name_ix, names) & attempt.in_run_trace
    ours = attempt.possible_ixs[chosen[attempt.possible_ixs]]
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
        loader_id = _whole(scope.attributes.get(semconv.LOADER_ID))
        if loader_id is None or loader_id in loaders:
            continue
        loaders[loader_id] = Loader(
            loader_id=loader_id,
            workers=_whole(scope.attributes.get(semconv.LOADER_WORKERS)) or 0,
            prefetch=_whole(scope.attributes.get(semconv.LOADER_PREFETCH)),
            batch_size=_whole(scope.attributes.get(semconv.LOADER_BATCH_SIZE)),
            persistent=bool(scope.attributes.get(semconv.LOADER_PERSISTENT, False)),
            in_order=bool(scope.attributes.get(semconv.LOADER_IN_ORDER, True)),
        )
    return loaders


def _step_spans(
    attempt: _Attempt, lanes: Mapping[int, str]
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


def _how_ended(
    attempt: _Attempt,
    rank: int,
    run_span: int | None,
    parts: Sequence[TablePart],
    bounds: dict[int, tuple[int, int]],
) -> HowEnded:
    spans = attempt.spans
    mine = [part for part in parts if part.rank == rank]
    trained = [int(part.columns["step"][row]) for part in mine for row in part.training_rows[-1:]]
    last_step = max(trained, default=None)
    last_mark = bounds[rank][1] if rank in bounds else 0
    if run_span is None:
        latest = mine[-1].attributes if mine else {}
        running, since = latest.get(semconv.OPEN_PHASE), latest.get(semconv.OPEN_SINCE)
        return HowEnded(
            rank,
            "unknown",
            last_step,
            last_mark,
            open_phase=running if isinstance(running, str) else None,
            open_since_unix_ns=_whole(since, 1 << 63),
        )
    attributes = spans.attributes(run_span)
    how = "killed" if semconv.TERMINATED in attributes else str(attributes.get(semconv.ENDED, "unknown"))
    open_phase, error = attributes.get(semconv.OPEN_PHASE), attributes.get("error.type")
    return HowEnded(
        rank=rank,
        how=how,
        last_step=last_step,
        last_mark_unix_ns=last_mark,
        open_phase=None if open_phase is None else str(open_phase),
        error=None if error is None else str(error),
    )
