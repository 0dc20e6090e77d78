# SPDX-License-Identifier: Apache-2.0
"""The answer of `grademl resources` as data: what `--json` prints and the text is made from.

Times are integers in ns, use is in units of the metric times seconds. What is not known is null, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.reporting.document import CompletenessInfo, SourceInfo, Window
from grademl_otel.analyzers.shown import Records, Shown

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.answer import Found
    from grademl_otel.analyzers.subject import Subject

RESOURCES_SCHEMA: Final = "grademl.resources/1"


@dataclass(frozen=True)
class MetricEntry:
    """One metric of one resource, in the time of the window."""

    resource: str
    """Its path, as ``/host[name=node-1]/gpu[id=GPU-...]``."""
    metric: str
    """Its type, as ``gpu.utilization``."""
    unit: str
    """By/s, W, 1, {cpu}."""
    capacity: float | None
    """The most that a value can be; null where nobody told."""
    mean: float | None
    """Of the time in which it was observed; null where that is none."""
    peak: float | None
    """The largest average over an interval."""
    utilization: float | None
    """The mean as a part of the capacity."""
    full_ns: int | None
    """How long it was full; null without a capacity."""
    observed_ns: int
    coverage: float
    """Part of the window in which it was observed."""
    used: float
    """All that was used, in the unit times seconds; without what is above the capacity."""
    unattributed: float | None
    """What is no phase's of that; null where no phase has a rule for it. This and what phases used sum
    to ``used``, unless --phase or --ranks leave some out."""
    sources: list[str]
    """Who told it."""


@dataclass(frozen=True)
class UseEntry:
    """What phases used of all metrics of one type."""

    key: str
    """Type path or path of the phases, or the rank."""
    metric: str
    """Type of the metrics, as ``gpu.utilization``."""
    unit: str
    used: float
    """In the unit times seconds."""
    available: float | None
    """What they could have used in the same time; null where a capacity is not known."""
    utilization: float | None
    """``used`` as a part of ``available``."""
    mean: float | None
    """``used`` by second of the phases; null where they took no time."""
    share: float | None
    """Of all that was used of these metrics in the window; null where that is nothing."""
    observed_ns: int
    """Time of the phases in which the metrics were observed, those side by side added up."""


@dataclass(frozen=True)
class PhaseEntry:
    """Some phases, and how long nothing that was observed kept them from being faster."""

    key: str
    phases: int
    busy_ns: int
    """Time of all of them, those side by side added up."""
    known_ns: int | None
    """Of that the time in which it is known of a resource how full it was; null where nobody asked."""
    free_ns: int | None
    """Of that the time in which none was full."""
    without_overhead_ns: int | None
    """How long they took if no two uses of resources overlapped and nothing else took time."""


@dataclass(frozen=True)
class BottleneckEntry:
    """How long some phases were kept from being faster by one type of resources that they use."""

    key: str
    resource: str
    """Type of resources: gpu, cpu, disk, network."""
    known_ns: int
    """Time of the phases in which it is known how full it was."""
    full_ns: int
    """Of that: they used all that they could, or all phases together all there is."""
    share: float
    """``full_ns`` as a part of ``known_ns``."""
    globally_ns: int
    """Of that: all there is was used."""
    uniquely_ns: int
    """Of that: nothing else was full."""
    gain_ns: int
    """They would take so much less if it were endlessly fast, and the use of others took as long: an upper
    bound of each alone; never to be added up."""


@dataclass(frozen=True)
class AffectedEntry:
    """Phases of one type that an issue makes shorter."""

    type: str
    """Type path."""
    phases: int
    gain_ns: int
    """Of all of them, those side by side added up; below 0: they would be longer."""


@dataclass(frozen=True)
class IssueEntry:
    """What would make the whole faster, as simulated. Gains of several are never to be added up."""

    kind: str
    """``bottleneck``: phases are shorter by the time in which one type of resources was all that was full.
    ``imbalance``: phases that could exchange work take equally long."""
    of: str
    """Type path of the phases that are changed."""
    cause: str
    """The type of resources; of an imbalance the type path within which work is uneven."""
    phases: int
    """How many are changed."""
    removed_ns: int
    """By how much these would be shorter, all together."""
    gain_ns: int
    """By so much the whole would be shorter, if what waits for others waits as long as ever."""
    least_ns: int
    """At least, if what ends waits gets no faster."""
    most_ns: int
    """At most, if there are no waits."""
    relative: float
    """The gain as a part of the whole as measured."""
    relative_simulated: float
    """As a part of what the simulator gives it without overhead."""
    affected: list[AffectedEntry]
    """Phases with parts that would be shorter, the largest gain first."""


@dataclass(frozen=True, kw_only=True)
class ResourcesDocument(Shown, screen="reporting.resources_screen"):
    """Schema `grademl.resources/1`: what used which resources, and what was full."""

    schema: str = RESOURCES_SCHEMA
    source: SourceInfo
    completeness: CompletenessInfo
    incomplete_because: list[str]
    warnings: list[str]
    window: Window
    by: str
    """What ``key`` is: type, phase or rank."""
    verdict: list[str]
    """The answer in words, a line each."""
    phases: list[PhaseEntry]
    """The longest first."""
    bottlenecks: list[BottleneckEntry]
    """By phase, in their order; the longest first."""
    use: list[UseEntry]
    """By phase, in their order."""
    metrics: list[MetricEntry]
    issues: list[IssueEntry]
    """The largest gain first."""
    simulation: list[str]
    """What is to be known of how gains were simulated, a line each."""
    omitted: dict[str, int]
    """How many of these lists are not in them, by their names."""
    problems: list[str]
    """What could not be used, or is doubtful, a line each."""
    abstained: list[Abstained]
    """What is not told, and how to get it."""

    @property
    def notes(self) -> list[str]:
        """Every reservation about the spans, a line each, the gravest first."""
        return [*self.incomplete_because, *self.completeness.conflicts, *self.warnings]

    def about(self, subject: Subject, found: Found) -> ResourcesDocument:
        """Return the answer with what it was made of, from which `to_html` draws."""
        made = replace(self)
        object.__setattr__(made, "_made_of", (subject, found))  # no field: it is no part of the answer
        return made

    def to_html(self) -> str:
        """Return the page of ``grademl resources -f html``: one file with charts that needs nothing else.

        Raises UsageError for an answer that was not made from a source here.
        """
        from grademl_otel.analyzers.html.resources_page import resources_page

        made_of: tuple[Subject, Found] | None = vars(self).get("_made_of")
        if made_of is None:
            raise UsageError("this answer does not know its source; make it with `analyzers.resource_model`")
        return resources_page(*made_of, self)

    def _tables(self) -> Mapping[str, Records]:
        return {
            "use": Records(UseEntry, self.use),
            "phases": Records(PhaseEntry, self.phases),
            "bottlenecks": Records(BottleneckEntry, self.bottlenecks),
            "metrics": Records(MetricEntry, self.metrics),
            "issues": Records(IssueEntry, self.issues),
            "abstained": Records(Abstained, self.abstained),
        }
