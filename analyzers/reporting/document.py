# SPDX-License-Identifier: Apache-2.0
"""The answers as data: what `--json` prints, and what the text is made from, so that the two cannot differ.

Times are integers in ns relative to `Window.origin_unix_ns`, a string, since epoch ns exceed 2^53. Sections
and what was omitted sum to the path's total and to the wall time exactly; per rank the lane budget sums to
the wall time exactly. What is not known is null, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from grademl_otel.analyzers.diagnosis.finding import Abstained, Finding, Verdict
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.printable import clean_json
from grademl_otel.analyzers.shown import Records, Shown

if TYPE_CHECKING:
    import networkx as nx

    from grademl_otel.analyzers.model.facts import RunSummary
    from grademl_otel.analyzers.reporting.section_entries import SectionEntries
    from grademl_otel.analyzers.subject import Subject

CRITICAL_PATH_SCHEMA: Final = "grademl.critical_path/1"
REPORT_SCHEMA: Final = "grademl.report/1"
RUNS_SCHEMA: Final = "grademl.runs/1"
RANKS_SCHEMA: Final = "grademl.ranks/1"


@dataclass(frozen=True)
class SourceInfo:
    """What was read. The run's fields are null when no span of ours was found."""

    uri: str
    run: str | None
    attempt: int | None
    fit: int | None
    """Number of the fit within the run, from 1; 0 where no fit was recorded."""
    traces: int


@dataclass(frozen=True)
class SpanCounts:
    expected: int | None
    received: int


@dataclass(frozen=True)
class RankCounts:
    expected: int | None
    present: list[int]


@dataclass(frozen=True)
class StepCounts:
    expected: int | None
    measured: int
    detailed_all_ranks: int


@dataclass(frozen=True)
class ClockOffset:
    """One host's clock against that of the first one."""

    host: str
    offset_ns: int
    error_ns: int
    applied: bool
    """Whether its times are shifted by that; durations never change."""
    pairs: int
    """Collectives or calls that tell it; 0 for the first one."""


@dataclass(frozen=True)
class Tracer:
    dropped: int | None
    cost_fraction: float | None


@dataclass(frozen=True)
class CompletenessInfo:
    """The verdict that precedes every answer."""

    verdict: str
    spans: SpanCounts
    ranks: RankCounts
    steps: StepCounts
    orphans: int
    roots: int
    windows_missing: list[int]
    partial_traces: list[str]
    conflicts: list[str]
    clipped_ns: int
    overlap_ns: int
    clocks: list[ClockOffset]
    tracer: Tracer


@dataclass(frozen=True)
class StepWindow:
    """Training steps of the window; null when there are none."""

    first: int | None
    last: int | None
    warmup_excluded: int


@dataclass(frozen=True)
class Window:
    origin_unix_ns: str
    wall_ns: int
    steps: StepWindow


@dataclass(frozen=True)
class Percentiles:
    p50: int
    p95: int


@dataclass(frozen=True)
class BudgetEntry:
    """One piece of a rank's main lane; the pieces of a rank tile its wall time."""

    rank: int
    phase: str
    ns: int
    share: float
    per_step_ns: Percentiles | None


class SpanIds(msgspec.Struct, frozen=True, gc=False):
    trace_id: str
    span_id: str


class Edge(msgspec.Struct, frozen=True, gc=False):
    edge: str
    evidence: str
    confidence: float


class SectionEntry(msgspec.Struct, frozen=True, gc=False):
    """One piece of the critical path; `span` is null for activities that come from a table."""

    start_ns: int
    end_ns: int
    phase: str
    kind: str
    rank: int | None
    lane: str
    step: int | None
    item: str | None
    span: SpanIds | None
    entered_by: Edge


@dataclass(frozen=True)
class Omitted:
    sections: int
    ns: int


@dataclass(frozen=True)
class PathInfo:
    total_ns: int
    sections: SectionEntries
    """A sequence of `SectionEntry`."""
    omitted: Omitted


@dataclass(frozen=True)
class PopulationEntry:
    """One key over many traces: its section time per trace, in ns, and as a share of all section time."""

    key: str
    service: str
    operation: str
    """Or a phase within it, of which its attributes tell."""
    kind: str
    """Of the span: internal, server, client, producer, consumer or unspecified."""
    evidence: str
    """``attribute`` of a phase that only attributes tell of, else ``observed``."""
    traces: int
    """Traces on whose path the key is."""
    path_ns: int
    share: float
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    tail_minus_median_ns: int | None
    """Mean of the slowest 5 % of the traces minus mean of the middle tenth. These four are null where parts
    of all traces are missing, or reading stopped."""


@dataclass(frozen=True)
class PopulationInfo:
    """Stands in place of the sections when several traces are analysed together."""

    total_ns: int
    population: list[PopulationEntry]
    omitted: Omitted


@dataclass(frozen=True)
class SummaryEntry:
    """One key of the path; null is what is not known, or not defined."""

    key: str
    path_ns: int
    path_share: float
    blocked_ns: int | None
    """Time that main lanes stood still for it."""
    total_ns: int | None
    """Time in it, on the path or not, with all that ran within."""
    self_ns: int | None
    """The same without what ran within."""
    slack_ns: int | None
    """How much later the tightest of it could end before the whole ends later; 0 on the path."""
    drag_ns: int | None
    """How much earlier the whole would end if all of it took no time, and all else as long as it did. No
    gain: what bounds a queue, or is chosen by who comes first, is no length."""


@dataclass(frozen=True)
class IdleTime:
    kind: str
    ns: int


@dataclass(frozen=True)
class ExposedInfo:
    """The waiting for data in steady steps, by what the device did meanwhile; the last three sum to it."""

    steps: int
    """Of which that is known."""
    wait_ns: int
    idle_ns: int
    """It had nothing to do: exposed."""
    busy_ns: int
    unknown_ns: int


@dataclass(frozen=True)
class BreakdownEntry:
    """What one main thread or device did, in ns; the parts and all kinds of idleness sum to `wall_ns`."""

    rank: int | None
    lane: str
    """``main``, or ``device 0``."""
    wall_ns: int
    compute_ns: int
    """Computing alone."""
    communication_ns: int
    """Communicating alone: the exposed part."""
    overlap_ns: int
    """Both at once."""
    memory_ns: int
    """Copying, and nothing else."""
    idle: list[IdleTime]
    """The longest first."""
    overlap_share: float | None
    """Part of the communication that computing hides; null without communication."""
    exposed_wait: ExposedInfo | None
    """Of a main thread; null where it waits for no data, or nothing is known of the device in it."""


@dataclass(frozen=True)
class Replay:
    """How well the replay reproduces the run."""

    step_error: dict[str, float]
    wait_error: float
    usable: bool


@dataclass(frozen=True)
class EndedInfo:
    """How one rank's process ended; `last_mark_ns` and `open_since_ns` count from the window's origin."""

    rank: int
    how: str
    last_step: int | None
    last_mark_ns: int
    open_phase: str | None
    open_since_ns: int | None
    error: str | None
    silent_ns: int = 0
    """Of one that may still go on: how long other ranks were heard of after it."""


@dataclass(frozen=True, kw_only=True)
class CriticalPathDocument(Shown, screen="reporting.path_screen"):
    """Schema `grademl.critical_path/1`."""

    schema: str = CRITICAL_PATH_SCHEMA
    source: SourceInfo
    completeness: CompletenessInfo
    window: Window
    lane_budget: list[BudgetEntry]
    path: PathInfo | PopulationInfo
    summary: list[SummaryEntry]
    findings: list[Finding]
    abstained: list[Abstained]
    replay: Replay | None
    """Null: there is no replay yet."""

    incomplete_because: list[str]
    """Why the verdict is ``incomplete``, a line each."""
    warnings: list[str]
    """What reading had to leave out, a line each."""
    ended: list[EndedInfo] = field(default_factory=list)
    """How each rank of a run ended; none of traces of others."""
    breakdown: list[BreakdownEntry] = field(default_factory=list)
    """Of the main thread of each rank of a run, of each device of a profile; none of other traces."""

    @property
    def notes(self) -> list[str]:
        """Every reservation about the data, a line each, the gravest first."""
        return [*self.incomplete_because, *self.completeness.conflicts, *self.warnings]

    def to_networkx(self) -> nx.DiGraph:
        """Return the path as a chain: its sections as nodes in order of time, numbered from 0.

        Nodes have the fields of `SectionEntry` that are known, ids of spans as ``trace_id`` and ``span_id``;
        edges how the walk came from the later to the earlier. Raises UsageError for several traces together,
        for which there is no one path, and for a path too long to be drawn.
        """
        from grademl_otel.analyzers.reporting.drawn import chain

        return chain(self)

    def _tables(self) -> Mapping[str, Records]:
        path = self.path
        if isinstance(path, PopulationInfo):
            found = {"population": Records(PopulationEntry, path.population)}
        else:
            found = {
                "summary": Records(SummaryEntry, self.summary),
                "sections": Records(SectionEntry, path.sections),
            }
        return {
            **found,
            "lane_budget": Records(BudgetEntry, self.lane_budget),
            "breakdown": Records(BreakdownEntry, self.breakdown),
            "findings": Records(Finding, self.findings),
            "abstained": Records(Abstained, self.abstained),
            "ended": Records(EndedInfo, self.ended),
        }


@dataclass(frozen=True)
class LoaderInfo:
    loader: int
    workers: int
    prefetch: int | None
    batch_size: int | None
    persistent: bool


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of a device as the allocator of one rank counts it, in bytes, see devices.md."""

    rank: int
    device: int
    allocated: int
    reserved: int
    peak: int


@dataclass(frozen=True)
class RunInfo:
    script: str
    name: str
    parent: str | None
    device: str | None
    ranks: int
    epochs: int
    steps: int
    eval_steps: int
    fits: int
    """How many the run has; 0 where none was recorded."""
    loaders: list[LoaderInfo]
    memory: list[MemoryInfo]
    """Of asynchronous devices; empty where none was recorded."""
    ended: list[EndedInfo]


@dataclass(frozen=True)
class PhaseShare:
    """A phase of the steady step; `within` names the phase that it is a part of, else null."""

    phase: str
    share: float
    mean_ns: int
    p50_ns: int
    p95_ns: int
    within: str | None


@dataclass(frozen=True)
class DevicePhase:
    phase: str
    share: float
    mean_ns: int


@dataclass(frozen=True)
class DeviceInfo:
    """What an asynchronous device did in the mean of `n` steady steps, whose lengths are the host's."""

    n: int
    step_ns: int
    idle_ns: int
    """Outside of all phases."""
    behind_p50_ns: int
    """From the end of a step on the host to that on the device."""
    phases: list[DevicePhase]


@dataclass(frozen=True)
class StepInfo:
    """The steady training step over all ranks; `few` when there are too few of them to rely on.

    With `host_time` its phases are how long the host took to enqueue the work; `device`, if not null, is how
    long that took.
    """

    n: int
    few: bool
    mean_ns: int
    p50_ns: int
    p95_ns: int
    phases: list[PhaseShare]
    host_time: bool
    device: DeviceInfo | None


@dataclass(frozen=True)
class PhaseTime:
    phase: str
    ns: int


@dataclass(frozen=True)
class RankEntry:
    """One rank beside the others: means per step, in ns."""

    rank: int
    step_ns: int
    late_ns: int | None
    """How much later than the median of the others it came to what all wait for; below 0: earlier. Null where
    the clocks of the hosts do not tell."""
    last_steps: int | None
    """Steps in which it came later than all others; likewise."""
    wait_ns: int | None
    """Its main lane waiting for other ranks."""
    transfer_ns: int | None
    """Its main lane standing still in collectives with all ranks there."""
    overlapped_ns: int | None
    """Collectives that ran beside its main lane while that went on."""
    own: list[PhaseTime]
    """What its main lane did else, by phase, the longest first."""


@dataclass(frozen=True)
class RanksInfo:
    """Ranks side by side, in the steps by which they can be compared."""

    source: str
    """What tells who was late: ``collectives``, ``first collective`` (of each step) or ``backward``."""
    evidence: str
    steps: int
    ranks: list[RankEntry]


@dataclass(frozen=True, kw_only=True)
class ReportDocument(CriticalPathDocument, screen="reporting.report_screen"):
    """Schema `grademl.report/1`: the critical path's document and what the report says beside it."""

    schema: str = REPORT_SCHEMA
    run: RunInfo | None
    verdict: Verdict | None
    step: StepInfo | None
    ranks: RanksInfo | None
    """Null for a single rank, and where nothing tells when ranks waited for each other."""

    @classmethod
    def of(
        cls,
        found: CriticalPathDocument,
        *,
        run: RunInfo | None = None,
        verdict: Verdict | None = None,
        step: StepInfo | None = None,
        ranks: RanksInfo | None = None,
    ) -> ReportDocument:
        """Return ``found`` in the form of a report; of traces that are not ours there is no more to say."""
        same = {name: value for name, value in vars(found).items() if name != "schema"}
        return cls(**same, run=run, verdict=verdict, step=step, ranks=ranks)

    def about(self, subject: Subject) -> ReportDocument:
        """Return the report with what it is about, from which `to_html` draws."""
        made = replace(self)
        object.__setattr__(made, "_subject", subject)  # no field: it is no part of the answer
        return made

    def to_html(self) -> str:
        """Return the page of ``grademl report -f html``: one file with charts that needs nothing else.

        Raises UsageError for a report that was not made from a source here.
        """
        from grademl_otel.analyzers.answers import page_of

        subject: Subject | None = vars(self).get("_subject")
        if subject is None:
            raise UsageError("this report does not know its source; make it with `analyzers.report`")
        return page_of(subject).html

    def _tables(self) -> Mapping[str, Records]:
        run, step, ranks = self.run, self.step, self.ranks
        found = dict(super()._tables())
        of_run = {
            "lane_budget": found.pop("lane_budget"),
            "step": Records(PhaseShare, [] if step is None else step.phases),
            "ranks": Records(RankEntry, [] if ranks is None else ranks.ranks),
            "loaders": Records(LoaderInfo, [] if run is None else run.loaders),
            "memory": Records(MemoryInfo, [] if run is None else run.memory),
        }
        return {**found, **of_run} if run is None else {**of_run, **found}


@dataclass(frozen=True)
class RunEntry:
    run: str
    attempt: int
    fit: int
    script: str
    service: str
    start_unix_ns: str
    wall_ns: int
    ranks: int
    steps: int
    ended: str
    name: str
    """The user's own, else empty."""
    parent: str | None
    """Run whose process started this one's."""
    path: str | None
    verdict: str | None
    """On the completeness of its data; null where they were not all read for the list."""

    @classmethod
    def of(cls, run: RunSummary) -> RunEntry:
        return cls(
            run=run.run_id,
            attempt=run.attempt,
            fit=0,
            script=run.script,
            service=run.service,
            start_unix_ns=str(run.start),
            wall_ns=max(0, run.end - run.start),
            ranks=run.ranks,
            steps=run.steps,
            ended=run.ended,
            name=run.name,
            parent=run.parent,
            path=run.path,
            verdict=run.verdict,
        )


@dataclass(frozen=True, kw_only=True)
class RunsDocument(Shown, screen="reporting.runs_screen"):
    """Schema `grademl.runs/1`."""

    schema: str = RUNS_SCHEMA
    source: str
    """Address of the source."""
    runs: list[RunEntry]
    services: list[str]
    """Services whose spans belong to no run of ours."""
    warnings: list[str]

    def _tables(self) -> Mapping[str, Records]:
        return {"runs": Records(RunEntry, self.runs)}


@dataclass(frozen=True, kw_only=True)
class RanksDocument(Shown, screen="reporting.ranks_screen"):
    """Schema `grademl.ranks/1`: the ranks of a run side by side, and what they do to each other."""

    schema: str = RANKS_SCHEMA
    source: SourceInfo
    completeness: CompletenessInfo
    window: Window
    verdict: Verdict | None
    """Null where nothing is to be said, or nothing can be: `abstained` tells which."""
    ranks: RanksInfo | None
    findings: list[Finding]
    abstained: list[Abstained]
    incomplete_because: list[str]
    warnings: list[str]
    ended: list[EndedInfo]

    @property
    def notes(self) -> list[str]:
        """Every reservation about the data, a line each, the gravest first."""
        return [*self.incomplete_because, *self.completeness.conflicts, *self.warnings]

    def _tables(self) -> Mapping[str, Records]:
        return {
            "ranks": Records(RankEntry, [] if self.ranks is None else self.ranks.ranks),
            "findings": Records(Finding, self.findings),
            "abstained": Records(Abstained, self.abstained),
            "ended": Records(EndedInfo, self.ended),
        }


Document = CriticalPathDocument | RunsDocument | RanksDocument


def to_dict(document: Shown) -> dict[str, Any]:
    """Return ``document`` as plain dicts, lists, numbers and strings."""
    return document.to_dict()


def to_json(document: Shown, *, indent: bool = True) -> str:
    """Return ``document`` as JSON text without a final newline; one line when not indented."""
    return document.to_json(indent=indent)


def to_json_lines(document: Shown) -> str:
    """Return JSON text of one line for each answer: the document itself, or each run of a list."""
    if isinstance(document, RunsDocument):
        return "\n".join(clean_json(msgspec.json.encode(run).decode()) for run in document.runs)
    return to_json(document, indent=False)
