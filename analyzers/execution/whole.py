# SPDX-License-Identifier: Apache-2.0
"""The execution model of all that was read: every attempt of every run, and every trace of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.execution import told
from grademl_otel.analyzers.execution.assembly import assemble
from grademl_otel.analyzers.execution.conflicts import Conflicts
from grademl_otel.analyzers.execution.dependencies import Dependencies, inferred, legal
from grademl_otel.analyzers.execution.draft import ROOT, Draft
from grademl_otel.analyzers.execution.meetings import NO_MEETING, Meetings, meetings, no_meetings
from grademl_otel.analyzers.execution.model import BESIDE, DERIVED, Phases, Types
from grademl_otel.analyzers.execution.of_run import add_attempt
from grademl_otel.analyzers.execution.of_traces import SpanIdentity, add_traces, foreign, roots
from grademl_otel.analyzers.execution.owners import (
    CONTEXT,
    LOG,
    MOST_LOGS,
    MOST_SOUGHT,
    PARENT,
    RUN,
    Claim,
    application_ids,
    linked,
    logged,
    settle,
)
from grademl_otel.analyzers.execution.patterns import Pattern
from grademl_otel.analyzers.execution.repeatability import repeatability
from grademl_otel.analyzers.graph.inferences.learned_siblings import learned_siblings
from grademl_otel.analyzers.graph.path import EVIDENCE, INFERRED
from grademl_otel.analyzers.model.attempts import identity
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.shown import Shown
from grademl_otel.analyzers.units import count

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, eq=False, repr=False)
class ExecutionModel(Shown, screen="reporting.model_screen"):
    """All that ran, as one tree; how its types repeat, and what came after what.

    As text, JSON and tables it is told by its types.
    """

    phases: Phases
    types: Types
    dependencies: Dependencies
    repeats: Sequence[str]
    """Of each type, one of `repeatability.REPEATS`."""
    conflicts: Sequence[str]
    """What was told twice, or cannot be, a line each."""
    meetings: Meetings = field(default_factory=no_meetings)
    """Where ranks waited for each other."""
    verdict: str | None = None
    """On the completeness of what was read; None where nobody looked."""
    incomplete_because: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.phases)

    def __repr__(self) -> str:
        return f"<execution model: {len(self.phases):,} phases of {len(self.types):,} types>"

    def select(self, pattern: str | Pattern, origin: int = 0) -> IntArray:
        """Return the phases that ``pattern`` selects, ascending; from ``origin``, when it is relative.

        Raises InvalidPattern and NoMatch, see `patterns`.
        """
        return _compiled(pattern).select(self.phases, origin)

    def select_types(self, pattern: str | Pattern, origin: int = 0) -> IntArray:
        """Return the types that ``pattern`` selects by their type paths, ascending."""
        return _compiled(pattern).select(self.types, origin)

    def busy_by_type(self) -> IntArray:
        """Return the time of the phases of each type, those side by side added up, in ns."""
        sums: IntArray = np.zeros(len(self.types), np.int64)
        np.add.at(sums, self.phases.type, self.phases.busy)
        return sums

    def dependencies_of_types(self) -> list[tuple[int, int, str, int]]:
        """Return (before, after, the best evidence, between how many phases) of types, sorted."""
        told, of_phase = self.dependencies, self.phases.type
        pairs: dict[tuple[int, int], tuple[int, int]] = {}
        columns = (of_phase[told.source], of_phase[told.target], told.evidence)
        for before, later, evidence in zip(*(column.tolist() for column in columns), strict=True):
            best, number = pairs.get((before, later), (evidence, 0))
            pairs[before, later] = min(best, evidence), number + 1
        return [(*pair, EVIDENCE[best], number) for pair, (best, number) in sorted(pairs.items())]

    def to_networkx(self) -> nx.MultiDiGraph:
        """Return the types as a graph, see `drawn.types_networkx`; UsageError where there are too many."""
        from grademl_otel.analyzers.execution.drawn import types_networkx
        from grademl_otel.analyzers.graph.drawn import TooLarge

        try:
            return types_networkx(self)
        except TooLarge as refusal:
            raise UsageError(str(refusal)) from None

    def _document(self) -> Shown:
        from grademl_otel.analyzers.reporting.model_document import model_document

        return model_document(self)

    def observed(self) -> ExecutionModel:
        """Return the model without dependencies that are inferred (``--no-inferred``)."""
        return replace(self, dependencies=self.dependencies.observed())


def _compiled(pattern: str | Pattern) -> Pattern:
    return Pattern(pattern) if isinstance(pattern, str) else pattern


def execution_model(
    spans: SpanColumns,
    runs: Sequence[Run],
    identity_of: SpanIdentity | None = None,
    others: bool = True,
) -> ExecutionModel:
    """Return the execution model of ``runs`` (attempts, of the same telemetry), and of what is in ``spans``
    beside runs of ours, unless ``others`` is false. Without runs it is of all spans.

    ``spans`` have the times of others by one clock; those of a run are as the run has them.
    """
    draft = Draft()
    phase_of_span = np.full(len(spans), -1, np.int64)
    meeting_of_span = np.full(len(spans), NO_MEETING, np.int64)
    run_phases = _add_runs(draft, runs, phase_of_span, meeting_of_span)
    ours = [bool(runs) and identity(resource) is not None for resource in spans.resources]
    theirs = foreign(spans, np.array(ours or [False], np.bool_)) if others else np.zeros(0, np.int64)
    conflicts = Conflicts()
    if circular := add_traces(draft, spans, theirs, identity_of or SpanIdentity(), phase_of_span):
        conflicts.add(f"the parents of {count(circular, 'span')} lead back to the span itself")
    claims = _claims(draft, spans, runs, run_phases, theirs, phase_of_span, conflicts)
    settled = settle(draft, claims, _words(spans, run_phases, phase_of_span, claims), conflicts)
    of_runs = set(run_phases.values())
    for child, owner in settled.items():
        if draft.is_within(owner, of_runs):
            draft.mark(child, BESIDE)  # another process: a rank's time is that of its main lane
    phases, types, place = assemble(draft)
    placed = np.where(phase_of_span >= 0, place[phase_of_span], -1)
    known, said = told.told(spans, phases, placed, conflicts)
    lawful = legal(phases, known, conflicts)
    return ExecutionModel(
        phases=phases,
        types=types,
        dependencies=Dependencies.join([lawful, *_guessed(spans, theirs, placed, phases, lawful)]),
        repeats=repeatability(phases, types, lawful, said),
        conflicts=conflicts.lines,
        meetings=meetings(phases, meeting_of_span),
    )


def _guessed(
    spans: SpanColumns, theirs: IntArray, placed: IntArray, phases: Phases, told: Dependencies
) -> tuple[Dependencies, Dependencies]:
    """Return what only times tell: of operations that repeat all of them together, else of each alone.

    Spans are at ``placed`` among the phases. Children of a parent of which some are ``told`` are left out.
    """
    found = learned_siblings(spans, theirs)
    source, target = placed[found.source], placed[found.target]
    usable = (source >= 0) & (target >= 0)
    # In the order of siblings, as the frontiers are: so both together make no circle.
    usable &= (phases.parent[source] == phases.parent[target]) & (source < target)
    usable &= ~np.isin(phases.parent[target], phases.parent[told.target])
    learned = Dependencies.of(np.stack([source[usable], target[usable]], axis=1), INFERRED)
    alone = inferred(phases, told)
    return learned, alone.where(np.flatnonzero(~np.isin(alone.target, learned.target)))


def _add_runs(
    draft: Draft, runs: Sequence[Run], phase_of_span: IntArray, meeting_of_span: IntArray
) -> dict[str, int]:
    """Add the ``runs``; return run id -> the phase of all of its attempts."""
    found: dict[str, int] = {}
    for run in runs:
        if run.run_id not in found:
            kind = draft.kind(semconv.RUN, {"script": run.script or None})
            label = draft.label({"id": run.run_id, "name": run.name or None})
            found[run.run_id] = draft.add_one(kind, ROOT, label=label, flags=DERIVED)
        add_attempt(draft, run, found[run.run_id], phase_of_span, meeting_of_span)
    return found


def _claims(
    draft: Draft,
    spans: SpanColumns,
    runs: Sequence[Run],
    run_phases: Mapping[str, int],
    others: IntArray,
    phase_of_span: IntArray,
    conflicts: Conflicts,
) -> list[Claim]:
    """Return who is said to have launched what."""
    run_of_span = {ix: run for run in runs for ix in run.run_spans.values()}
    of_root = set(roots(spans, others).tolist())
    claims = []
    for ix, target in linked(spans, PARENT):
        owner = int(phase_of_span[target])
        run = run_of_span.get(ix)
        if owner < 0 or (run is None and ix not in of_root):
            continue
        child = run_phases[run.run_id] if run is not None else int(phase_of_span[ix])
        launcher = run_of_span.get(target)
        by_run = run is not None and launcher is not None and launcher.run_id == run.parent
        claims.append(Claim(child, owner, RUN if by_run else CONTEXT))
    claims += _begun_in_a_run(spans, runs, roots(spans, others), phase_of_span)
    owned = {claim.child for claim in claims}
    for run in runs:
        child = run_phases[run.run_id]
        if run.parent is not None and run.parent in run_phases and child not in owned:
            claims.append(Claim(child, run_phases[run.parent], RUN))
    owned = {claim.child for claim in claims}
    sought = {run_id: phase for run_id, phase in run_phases.items() if phase not in owned}
    for name, ix in application_ids(spans, roots(spans, others)).items():
        if (phase := int(phase_of_span[ix])) not in owned:
            sought.setdefault(name, phase)
    for name, child in sorted(sought.items())[:MOST_SOUGHT]:
        owners = [int(phase_of_span[ix]) for ix in logged(spans, others, name)]
        owners = [one for one in owners if one != child and not draft.is_above(child, one)]
        if len(owners) > MOST_LOGS:
            conflicts.add(f"{count(len(owners), 'span')} have logged {name}: none has launched it")
        else:
            claims += [Claim(child, one, LOG) for one in owners]
    return claims


def _begun_in_a_run(
    spans: SpanColumns, runs: Sequence[Run], begun: IntArray, phase_of_span: IntArray
) -> Iterator[Claim]:
    """Yield the claims of ranks on traces of others whose roots, ``begun``, carry the id of their run."""
    ranks: dict[tuple[str, int], list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for run in runs:
        for rank, ix in run.run_spans.items():
            ranks[run.run_id, rank].append((run.rank_bounds[rank], int(phase_of_span[ix])))
    told = spans.raw_attributes.that_may_have(semconv.RUN_ID.encode(), begun)
    for ix in begun[told].tolist():
        attributes, start = spans.attributes(ix), int(spans.start[ix])
        rank = attributes.get(semconv.RANK, 0)
        known = ranks.get((str(attributes.get(semconv.RUN_ID)), rank if isinstance(rank, int) else 0), ())
        for (low, high), owner in known:
            if low <= start < high:
                yield Claim(int(phase_of_span[ix]), owner, RUN)


def _words(
    spans: SpanColumns,
    run_phases: Mapping[str, int],
    phase_of_span: IntArray,
    claims: Sequence[Claim],
) -> dict[int, str]:
    """Return what the phases in ``claims`` are called in a conflict, and what holds several of them."""
    words = {phase: f"run {run_id}" for run_id, phase in run_phases.items()}
    asked = {phase for claim in claims for phase in (claim.child, claim.owner)} - words.keys()
    for ix in np.flatnonzero(np.isin(phase_of_span, list(asked))).tolist():
        words[int(phase_of_span[ix])] = f"{spans.name(ix)} (span {spans.span_id_hex(ix)})"
    return words
