# SPDX-License-Identifier: Apache-2.0
"""Which measures of two runs, or of two sets of traces, stand beside each other, and which must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.comparison.judging import Pair
from grademl_otel.analyzers.comparison.measures import Quantity
from grademl_otel.analyzers.comparison.of_run import SCOPES, RunMeasures
from grademl_otel.analyzers.comparison.of_traces import Operation, TraceMeasures, title
from grademl_otel.analyzers.comparison.resampling import MEAN, MEDIAN, Statistic
from grademl_otel.analyzers.comparison.usual import steadier, usual_pair
from grademl_otel.analyzers.graph.device import is_asynchronous
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.runs.main_lane import START_UP

P95: Final = Statistic(0.95)
_ENQUEUED: Final = frozenset(sc.DEVICE_PHASES)
"""What an asynchronous device does later than the host says."""
_OF_RANKS: Final = frozenset({sc.COLLECTIVE, sc.COLLECTIVE_WAIT, *COLLECTIVE_PARTS})
_ON_PATH: Final = 8
"""Phases of the critical path that are compared at most, the longest."""
_OPERATIONS: Final = 50


@dataclass
class Pairs:
    """What is compared, in the order in which it is shown."""

    found: list[Pair] = field(default_factory=list)
    negligible: list[str] = field(default_factory=list)
    """Phases below the threshold on both sides."""


class RunPairs:
    """Those of two runs."""

    def __init__(self, a: RunMeasures, b: RunMeasures, threshold: float) -> None:
        self.a, self.b, self._threshold = a, b, threshold
        self._same_ranks = len(a.run.ranks) == len(b.run.ranks)

    def all(self) -> Pairs:
        """Return the step, its phases, the critical path, what is outside of steps, the whole.

        Where the mean stands for the step it does for its phases too: they add up to it.
        """
        pairs = Pairs([self._step, self.step_time(P95), self.samples_per_s()])
        for phase in self._phases():
            pair = self.usual_phase(phase)
            larger = max(_value(pair.a), _value(pair.b))
            if pair.refused is None and pair.a.known and pair.b.known and larger < pair.matters:
                pairs.negligible.append(phase)
            else:
                pairs.found.append(pair)
        on_path = list(dict.fromkeys([*self.a.on_path()[:_ON_PATH], *self.b.on_path()[:_ON_PATH]]))
        for phase in on_path:
            pair = self.path(phase)
            if pair.reason is not None or max(_value(pair.a), _value(pair.b)) >= pair.matters:
                pairs.found.append(pair)
        if sc.DATA_WAIT in self.a.phases + self.b.phases:
            pairs.found.append(self.exposed_wait())
        pairs.found += [usual_pair(partial(self.scope, name)) for name in SCOPES if self._has_scope(name)]
        pairs.found += [self.budget(part) for part in self._parts()]
        pairs.found.append(self.wall())
        return pairs

    def step_time(self, statistic: Statistic = MEDIAN) -> Pair:
        quantities = self.a.step_time(statistic), self.b.step_time(statistic)
        return self._pair(named("step_time", statistic), "step", *quantities)

    @cached_property
    def _step(self) -> Pair:
        return usual_pair(self.step_time)

    def usual_step(self) -> Pair:
        """Return the step as its median, or as its mean where that hides time."""
        return self._step

    def samples_per_s(self, statistic: Statistic = MEAN) -> Pair:
        """Return the samples over the time of all steady steps; of a quantile, of single steps."""
        name = "samples_per_s"
        if statistic.quantile is not None:
            name = "median(samples_per_s)" if statistic == MEDIAN else named(name, statistic)
        quantities = self.a.samples_per_s(statistic), self.b.samples_per_s(statistic)
        return self._pair(name, "step", *quantities, self._of_ranks())

    def usual_phase(self, name: str) -> Pair:
        """Return a phase as its median; as its mean where that is how the step is told, or it hides time."""
        return usual_pair(partial(self.phase, name), means=self._step.a.statistic == MEAN)

    def phase(self, name: str, statistic: Statistic = MEDIAN) -> Pair:
        """Return a phase of the steady step; what matters is measured by the step."""
        refused = None
        if name in _OF_RANKS:
            refused = self._of_ranks()
        elif name in _ENQUEUED and is_asynchronous(self.a.run) != is_asynchronous(self.b.run):
            refused = "one is how long the host took to enqueue the work, the other the work itself"
        a, b = self.a.phase(name, statistic), self.b.phase(name, statistic)
        matters = self._threshold * _value(self.a.step_time(MEAN))
        return Pair(named(name, statistic), "phase", a, b, matters, refused)

    def path(self, phase: str) -> Pair:
        a, b = self.a.path(phase), self.b.path(phase)
        return Pair(f"path({phase})", "path", a, b, self._threshold, self._of_ranks())

    def exposed_wait(self) -> Pair:
        return Pair("exposed_wait", "step", self.a.exposed_wait(), self.b.exposed_wait())

    def scope(self, name: str, statistic: Statistic = MEDIAN) -> Pair:
        quantities = self.a.scope(name, statistic), self.b.scope(name, statistic)
        return self._pair(named(name, statistic), "scope", *quantities)

    def budget(self, part: str, share: bool = False) -> Pair:
        """Return a part of the lane budget. Totals of runs of other lengths say nothing of each other."""
        refused = None if part in (START_UP, sc.COMPILE) else self._of_length() or self._of_ranks()
        quantities = self.a.budget(part, share), self.b.budget(part, share)
        return Pair(f"budget({part})", "budget", *quantities, refused=refused)

    def wall(self) -> Pair:
        quantities = self.a.plain()["wall"], self.b.plain()["wall"]
        return Pair("wall", "run", *quantities, refused=self._of_length() or self._of_ranks())

    @property
    def _both(self) -> tuple[RunMeasures, RunMeasures]:
        return self.a, self.b

    def _pair(self, name: str, kind: str, a: Quantity, b: Quantity, refused: str | None = None) -> Pair:
        return Pair(name, kind, a, b, self._threshold * _value(a), refused)

    def _phases(self) -> list[str]:
        """Return the phases of both, those that take longest first."""
        names = dict.fromkeys([*self.a.phases, *self.b.phases])
        return sorted(names, key=lambda name: (-self._longer(name), name))

    def _longer(self, name: str) -> float:
        return max(_value(side.phase(name, MEAN)) for side in self._both)

    def _has_scope(self, name: str) -> bool:
        return any(scope.name == name for side in self._both for scope in side.run.scopes)

    def _parts(self) -> list[str]:
        """Return the parts of the lane budgets outside of steps that are worth a line."""
        outside = set(self.a.budget_parts + self.b.budget_parts) - set(self.a.phases + self.b.phases)
        outside -= {"other"}
        shares = {part: max(_value(side.budget(part, True)) for side in self._both) for part in outside}
        shown = [part for part in outside if shares[part] >= self._threshold]
        return sorted(shown, key=lambda part: (-shares[part], part))

    def _of_ranks(self) -> str | None:
        ranks = len(self.a.run.ranks), len(self.b.run.ranks)
        return (
            None if self._same_ranks else f"it depends on the number of ranks ({ranks[0]:,} and {ranks[1]:,})"
        )

    def _of_length(self) -> str | None:
        steps = [side.plain()["steps"].number for side in self._both]
        if steps[0] == steps[1]:
            return None
        return f"the runs have {steps[0]:,} and {steps[1]:,} steps: totals say nothing of each other"


class TracePairs:
    """Those of two sets of traces."""

    def __init__(self, a: TraceMeasures, b: TraceMeasures, threshold: float) -> None:
        self.a, self.b, self._threshold = a, b, threshold

    def all(self) -> Pairs:
        """Return the traces, their errors, and the operations with most time."""
        pairs = Pairs([steadier(self.duration), self.duration(P95), self.errors()])
        operations = dict.fromkeys([*self.a.operations()[:_OPERATIONS], *self.b.operations()[:_OPERATIONS]])
        for of in operations:
            pairs.found.append(steadier(partial(self.operation, title(of), [of], [of])))
        wall = self._threshold * _value(self.a.duration(MEAN))
        for of in operations:
            pair = self.own(title(of), [of], [of])
            if max(_value(pair.a), _value(pair.b)) >= wall:
                pairs.found.append(pair)
        for of in operations:
            pair = self.path(title(of), [of], [of])
            if max(_value(pair.a), _value(pair.b)) >= self._threshold:
                pairs.found.append(pair)
        return pairs

    def duration(self, statistic: Statistic = MEDIAN) -> Pair:
        a, b = self.a.duration(statistic), self.b.duration(statistic)
        return Pair(named("duration", statistic), "trace", a, b, self._threshold * _value(a))

    def errors(self, name: str | None = None) -> Pair:
        if name is None:
            return Pair("errors", "trace", self.a.errors(), self.b.errors())
        a, b = (side.errors(side.called(name)) for side in (self.a, self.b))
        return Pair(f"errors({name})", "operation", a, b)

    def operation(
        self, name: str, in_a: list[Operation], in_b: list[Operation], statistic: Statistic = MEDIAN
    ) -> Pair:
        a = self.a.operation(self._there(self.a, in_a), statistic)
        b = self.b.operation(self._there(self.b, in_b), statistic)
        return Pair(named(name, statistic), "operation", a, b, self._threshold * _value(a))

    def own(self, name: str, in_a: list[Operation], in_b: list[Operation]) -> Pair:
        a, b = self.a.own(self._there(self.a, in_a)), self.b.own(self._there(self.b, in_b))
        return Pair(f"own({name})", "own", a, b, self._threshold * _value(self.a.duration(MEAN)))

    def path(self, name: str, in_a: list[Operation], in_b: list[Operation]) -> Pair:
        a, b = self.a.path(self._there(self.a, in_a)), self.b.path(self._there(self.b, in_b))
        return Pair(f"path({name})", "path", a, b, self._threshold)

    @staticmethod
    def _there(side: TraceMeasures, which: list[Operation]) -> list[Operation]:
        there = set(side.operations())
        return [of for of in which if of in there]


def named(name: str, statistic: Statistic) -> str:
    """Return the name of a measure with the function that makes it, none for a median."""
    if statistic.quantile is None:
        return f"mean({name})"
    return name if statistic == MEDIAN else f"p{round(statistic.quantile * 100)}({name})"


def _value(quantity: Quantity) -> float:
    """Return the value; 0 where it is not known."""
    number = quantity.number
    return float(number) if isinstance(number, (int, float)) else 0.0
