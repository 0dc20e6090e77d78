# SPDX-License-Identifier: Apache-2.0
"""Performance issues: what would be gained without a bottleneck, or if work were spread evenly.

What is gained is simulated (`replay`): phases that run beside others, or wait for them, gain nothing where
the others take as long as ever. Gains of two issues are never added up: each is that of the issue alone.

**Bottleneck.** In the baseline each leaf takes as long as anything was a bottleneck of it (its time without
that is overhead; what is not known is no overhead), and then less by the time in which one group of metrics
was its only bottleneck, in all leaves of one type (Grade10). ``MEASURED`` leaves the overhead in.

**Imbalance.** All phases of a set that could exchange work take as long as the mean of them (`balance`).

**Waits** for other ranks end when the last of them has arrived, where it is known when each did. Other
waits (for data, for devices) are as long as others make them, and who ends them is not in the model. ``gain``
is what there is if they stay as long as they are (of an imbalance: if they vanish; they are what it makes).
It is at least ``least``, if what ends them gets no faster, and at most ``most``, if there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.balance import Exchange, exchanges
from grademl_otel.analyzers.attribution.groupings import RESOURCE_TYPE, Bottlenecks, Grouped
from grademl_otel.analyzers.execution.meetings import called
from grademl_otel.analyzers.execution.model import BESIDE, SELF
from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER
from grademl_otel.analyzers.replay.phases import Limit
from grademl_otel.analyzers.replay.recorded import Recorded, recorded
from grademl_otel.analyzers.units import count

BOTTLENECK: Final = "bottleneck"
IMBALANCE: Final = "imbalance"

NO_OVERHEAD: Final = "no overhead"
MEASURED: Final = "measured"

MOST_BOTTLENECKS: Final = 64
MOST_IMBALANCES: Final = 32
"""So many are simulated, those with most to gain in their leaves."""
_CELLS: Final = 8_000_000
"""Durations that are simulated at once, at most;"""
_ENOUGH: Final = 1_000_000
"""so many, where that are"""
_SETS: Final = 8
"""sets enough: of more the memory is all that grows."""
_NS: Final = 1e9


@dataclass(frozen=True, eq=False)
class Issue:
    """One thing that could be better, and what would be gained. Seconds."""

    kind: str
    """`BOTTLENECK`, `IMBALANCE`."""
    cause: str
    """The group of metrics, or what stops phases; of an imbalance the type within which work is uneven."""
    target: int
    """Type of the phases that would be shorter."""
    phases: int
    """How many of them would change."""
    removed: float
    """By how much they would be shorter, all together; of an imbalance the longest ones."""
    beside: bool
    """Whether some of them run beside others: their gain is not in ``gain``, but in ``most``."""
    gain: float
    """Of the whole (`Issues.tops`); of several the mean."""
    least: float
    most: float
    of_measured: float
    """``gain`` as part of what the whole took."""
    of_simulated: float
    """As part of what it takes in the baseline."""
    affected: IntArray
    """Phases with children that would be shorter (or longer), in preorder."""
    gains: FloatArray
    """Of each of them."""

    def of_phase(self, phase: int) -> float:
        """Return what ``phase``, which consists of others, would gain."""
        at = int(np.searchsorted(self.affected, phase))
        return float(self.gains[at]) if at < len(self.affected) and self.affected[at] == phase else 0.0


class AtPhase(NamedTuple):
    """One issue as it is seen from one phase."""

    issue: Issue
    gain: float
    of_measured: float
    of_simulated: float


@dataclass(frozen=True, eq=False)
class Issues:
    """All issues of an execution model, those first with which most would be gained."""

    model: ExecutionModel
    all: Sequence[Issue]
    baseline: str
    tops: IntArray
    """The whole: the innermost phase that all others are part of; or all traces, where there are several."""
    measured: FloatArray
    """Seconds of each phase."""
    simulated: FloatArray
    """Seconds of each phase in the baseline."""
    left_out: int
    """Issues that were not simulated, with less to gain in their leaves than any that were."""
    notes: Sequence[str]
    """What is to be known of the simulation, a line each."""

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Issue]:
        return iter(self.all)

    def of_phase(self, phase: int) -> list[AtPhase]:
        """Return the issues that affect ``phase``, which consists of others, most gain first."""
        found = []
        for issue in self.all:
            if gain := issue.of_phase(phase):
                shares = (_share(gain, times[phase]) for times in (self.measured, self.simulated))
                found.append(AtPhase(issue, gain, *shares))
        return sorted(found, key=lambda one: -one.gain)

    def of_type(self, kind: int) -> list[AtPhase]:
        """Return the issues that affect phases of type ``kind``, with the mean gain of one of them."""
        nodes = np.flatnonzero(self.model.phases.type == kind)
        found = []
        for issue in self.all:
            gain = float(issue.gains[np.isin(issue.affected, nodes)].sum())
            if gain:
                shares = (
                    _share(gain, float(times[nodes].sum())) for times in (self.measured, self.simulated)
                )
                found.append(AtPhase(issue, gain / len(nodes), *shares))
        return sorted(found, key=lambda one: -one.gain)


def issues_of(
    model: ExecutionModel,
    bottlenecks: Bottlenecks | None,
    grouping: str = RESOURCE_TYPE,
    *,
    baseline: str = NO_OVERHEAD,
    inferred: bool = True,
    limits: Sequence[Limit] = (),
) -> Issues:
    """Return the issues of ``model``; without ``bottlenecks`` those of balance.

    ``limits``: how many of some phases run at once. Without what is ``inferred`` nothing is taken to wait for
    anything of which nobody told that it does.
    """
    grouped = None if bottlenecks is None else bottlenecks.by(grouping)
    return _Search(model, recorded(model, inferred), grouped, baseline, limits).issues()


@dataclass(frozen=True, eq=False)
class _Change:
    """What becomes of durations, and how it is told."""

    kind: str
    cause: str
    target: int
    phases: IntArray
    """Those with another duration."""
    duration: IntArray
    removed: int


class _Search:
    def __init__(
        self,
        model: ExecutionModel,
        run: Recorded,
        grouped: Grouped | None,
        baseline: str,
        limits: Sequence[Limit],
    ) -> None:
        self.model, self.run, self.grouped = model, run, grouped
        self.baseline, self.limits = baseline if grouped is not None else MEASURED, limits
        if baseline not in (NO_OVERHEAD, MEASURED):
            raise ValueError(f"{baseline!r} is no baseline")
        phases = model.phases
        self.inner = np.flatnonzero(phases.inner)
        self.left_out = 0
        self.base = self._base()
        self.tops = self._tops()

    def issues(self) -> Issues:
        simulated = self._durations(self.base)
        waiting = self.run.waits.any()
        free = self._without_waits(self.base)
        free_durations = self._durations(free) if waiting else simulated
        changes = self._bottlenecks()
        found = self._simulated(changes, simulated, free_durations)
        found += self._balanced(simulated, free, free_durations)
        found = [one for one in found if one.most > 0 or len(one.affected)]
        found.sort(key=lambda one: (-one.gain, -one.most, one.kind, one.cause, one.target))
        return Issues(
            model=self.model,
            all=found,
            baseline=self.baseline,
            tops=self.tops,
            measured=self.model.phases.duration / _NS,
            simulated=simulated / _NS,
            left_out=self.left_out,
            notes=self._notes(),
        )

    # --- What is simulated ----------------------------------------------------------------------------------

    def _base(self) -> IntArray:
        duration = self.run.busy.copy()
        if self.grouped is None or self.baseline == MEASURED:
            return duration
        overhead = np.rint(self.grouped.never_full * _NS).astype(np.int64)
        duration[self.grouped.phase] = np.maximum(duration[self.grouped.phase] - overhead, 0)
        return duration

    def _bottlenecks(self) -> list[_Change]:
        """Return what becomes of leaves without each of their bottlenecks."""
        if self.grouped is None:
            return []
        rows = self.grouped.rows
        cut = np.rint(rows.uniquely_full * _NS).astype(np.int64)
        cut = np.minimum(cut, np.maximum(self.base[rows.phase], 0))
        some = np.flatnonzero(cut > 0)
        phase, cut = rows.phase[some], cut[some]
        types = len(self.model.types)
        keys, of_key = np.unique(
            rows.group[some] * types + self.model.phases.type[phase], return_inverse=True
        )
        of_key = of_key.reshape(-1)
        removed = np.bincount(of_key, cut, len(keys))
        order = np.argsort(of_key, kind="stable")
        bounds = np.searchsorted(of_key[order], np.arange(len(keys) + 1))
        chosen = np.lexsort((keys, -removed))
        self.left_out += max(0, len(chosen) - MOST_BOTTLENECKS)
        found = []
        for key in chosen[:MOST_BOTTLENECKS].tolist():
            mine = order[bounds[key] : bounds[key + 1]]
            nodes = phase[mine]
            found.append(
                _Change(
                    BOTTLENECK,
                    self.grouped.names[int(keys[key]) // types],
                    int(keys[key]) % types,
                    nodes,
                    self.base[nodes] - cut[mine],
                    int(cut[mine].sum()),
                )
            )
        return found

    def _simulated(self, changes: Sequence[_Change], base: IntArray, free_base: IntArray) -> list[Issue]:
        """Return the issues of ``changes`` of leaves."""
        found: list[Issue] = []
        waiting = bool(self.run.waits.any())
        phases = max(len(self.base), 1)
        width = max(1, min(_CELLS // phases, max(_SETS, _ENOUGH // phases)))
        floor_base = self._of_tops(self._floored(self.base)) if waiting else np.zeros(0)
        for low in range(0, len(changes), width):
            part = changes[low : low + width]
            columns = np.repeat(self.base[:, None], len(part), axis=1)
            for column, change in enumerate(part):
                columns[change.phases, column] = change.duration
            took = self._durations(columns)
            if waiting:
                free = self._durations(self._without_waits(columns))
                floored = self._floored(columns)
            for column, change in enumerate(part):
                gains = base - took[:, column]
                least = most = float(self._of_tops(gains).mean())
                if waiting:
                    least = float((floor_base - self._of_tops(floored[:, column])).mean())
                    most = float(self._of_tops(base - free[:, column]).mean())
                    most = min(most, float(change.removed))
                found.append(self._issue(change, gains, base, least, most))
        return found

    def _balanced(self, base: IntArray, free: IntArray, free_base: IntArray) -> list[Issue]:
        """Return the issues of work that is not spread evenly, as if nothing waited."""
        candidates: list[tuple[int, Exchange]] = []
        for exchange in exchanges(self.model, ~self._work):
            if (uneven := exchange.uneven(free_base)) > 0:
                candidates.append((uneven, exchange))
        candidates.sort(key=lambda one: (-one[0], one[1].scope, one[1].target))
        self.left_out += max(0, len(candidates) - MOST_IMBALANCES)
        waiting = bool(self.run.waits.any())
        floor_base = self._of_tops(self._floored(self.base)) if waiting else np.zeros(0)
        found = []
        for uneven, exchange in candidates[:MOST_IMBALANCES]:
            columns = free.copy()
            columns[exchange.members] = exchange.balanced(free_base)
            took = self._durations(columns)
            # It is a gain of what holds both who gives work away and who takes it.
            holds = self._of_types(exchange.scope) & (took >= 0)
            gains = np.where(holds, free_base - took, 0)
            change = _Change(
                IMBALANCE,
                self.model.types.path(exchange.scope),
                exchange.target,
                exchange.members,
                columns[exchange.members],
                uneven,
            )
            gain = least = float(self._of_tops(gains).mean())
            if self._hold_waits[exchange.members].any():
                least = 0.0
            elif waiting:
                least = max(float((floor_base - self._of_tops(self._floored(columns))).mean()), 0.0)
            found.append(self._issue(change, gains, free_base, least, gain))
        return [one for one in found if one.gain >= 0 and (one.gains > 0).any()]

    @cached_property
    def _work(self) -> BoolArray:
        """Mask of the phases that are work: no transfer, and nothing in which ranks meet.

        These are as long as the slowest rank makes them. Other waits take no time where nothing waits.
        """
        run, phases = self.run, self.model.phases
        work = ~(run.meets | called(phases, COLLECTIVE_TRANSFER))
        return work & ~phases.holding(run.graph.arrives_in[: len(phases)] >= 0)

    @cached_property
    def _hold_waits(self) -> BoolArray:
        """Mask of the phases in which something waits for nobody knows whom."""
        return self.model.phases.holding(self.run.waits)

    def _of_types(self, kind: int) -> BoolArray:
        """Return the mask of the phases of type ``kind`` and of all that such are part of."""
        mask = np.zeros(len(self.model.types), np.bool_)
        mask[[kind, *self.model.types.ancestors(kind)]] = True
        found: BoolArray = mask[self.model.phases.type]
        return found

    def _issue(self, change: _Change, gains: IntArray, base: IntArray, least: float, most: float) -> Issue:
        affected = self.inner[gains[self.inner] != 0]
        gain = float(self._of_tops(gains).mean())
        beside = self._beside[change.phases].any()
        measured = self._of_tops(self.model.phases.duration)
        return Issue(
            kind=change.kind,
            cause=change.cause,
            target=change.target,
            phases=len(change.phases),
            removed=change.removed / _NS,
            beside=bool(beside),
            gain=gain / _NS,
            least=min(least, gain) / _NS,
            most=max(most, gain) / _NS,
            of_measured=_share(gain * len(self.tops), float(measured.sum())),
            of_simulated=_share(gain * len(self.tops), float(self._of_tops(base).sum())),
            affected=affected,
            gains=gains[affected] / _NS,
        )

    # --- Replays --------------------------------------------------------------------------------------------

    def _durations(self, duration: IntArray) -> IntArray:
        """Return how long each phase takes; -1 below those with a duration."""
        ran = self.run.replay(duration, self.limits)
        took = np.where(ran.start < 0, -1, ran.end - ran.start)
        # Self time lies around the children; as a leaf it takes what it has.
        own = self.model.phases.has(SELF)
        took[own] = np.where(took[own] < 0, -1, duration[own])
        return took

    def _without_waits(self, duration: IntArray) -> IntArray:
        waits = self.run.waits.reshape(-1, *[1] * (duration.ndim - 1))
        return np.where(waits, 0, duration)

    def _floored(self, duration: IntArray) -> IntArray:
        """Return how long each phase takes if no wait ends before it did."""
        phases = self.model.phases
        until = np.where(self.run.waits, np.maximum(phases.end - self.run.origin, 0), 0)
        ran = self.run.replay(self._without_waits(duration), self.limits, until)
        return ran.end - ran.start

    def _of_tops(self, values: IntArray) -> IntArray:
        found: IntArray = values[self.tops]
        return found

    def _tops(self) -> IntArray:
        phases = self.model.phases
        node = 0
        while True:
            children = phases.children(node)
            children = children[phases.inner[children] & ~phases.has(BESIDE)[children]]
            all_of_it = len(phases.children(node)) == len(children) == 1
            if not all_of_it:
                break
            node = int(children[0])
        if node == 0 and len(children):
            return children.astype(np.int64)
        return np.array([node], np.int64)

    @cached_property
    def _beside(self) -> BoolArray:
        phases = self.model.phases
        beside = phases.has(BESIDE)
        return beside | phases.below(beside)

    def _notes(self) -> list[str]:
        run, notes = self.run, []
        if run.inferred:
            notes.append(
                f"{run.inferred:,} of {run.inferred + run.known:,} dependencies are inferred from times "
                "alone: what came later is taken to have waited"
            )
        if run.contradicted:
            notes.append(
                f"{count(run.contradicted, 'phase')} began before what they depend on had ended, or before "
                "their parent: they are simulated later than they ran"
            )
        if waits := int(np.count_nonzero(run.waits & (run.busy > 0))):
            notes.append(
                f"{count(waits, 'wait')} for others: who ended them is not simulated, so gains have a range"
            )
        if self.limits:
            notes.append("with a limit on what runs at once a shorter phase can make others later")
        return notes


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
