# SPDX-License-Identifier: Apache-2.0
"""What can be measured of a run, by name; docs/comparing.md tells what each means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.comparison.measures import (
    COUNT,
    FRACTION,
    NS,
    RATE,
    TRUTH,
    WORDS,
    Quantity,
    absent,
    unknown,
)
from grademl_otel.analyzers.comparison.resampling import MEAN, MEDIAN, Sample, Statistic
from grademl_otel.analyzers.comparison.usual import usual
from grademl_otel.analyzers.diagnosis.engine import RULES, diagnose
from grademl_otel.analyzers.diagnosis.facts import recorded_in_part
from grademl_otel.analyzers.diagnosis.finding import INFO, Judgement
from grademl_otel.analyzers.diagnosis.trust import missing_of
from grademl_otel.analyzers.graph import lane_budget
from grademl_otel.analyzers.graph.budget import LaneBudgetRow, steady_durations, steady_level
from grademl_otel.analyzers.graph.exposed import ExposedWait, exposed_wait
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_PARTS
from grademl_otel.analyzers.graph.runs.main_lane import NAMES, WORK_SCOPES, MainLanes
from grademl_otel.analyzers.graph.runs.run_path import run_path
from grademl_otel.analyzers.subject import Subject

SCOPES: Final = (*WORK_SCOPES, sc.EVALUATE, sc.EPOCH)
"""What outside of steps has a length of its own each time."""
_COUNTED_LEVEL: Final = 3
"""Level from which on a row is the mean of several steps."""
_SAME_SAMPLES: Final = 0.9
"""Part of the steps with detail that must have equally many samples, for all to be taken to."""
_WORST_END: Final = ("killed", "exception", "unknown", "exit")


class RunMeasures:
    """The quantities of one run. Steps are the steady ones of all ranks, as in its report."""

    def __init__(self, about: Subject) -> None:
        assert about.run is not None
        self.about, self.run = about, about.run

    def prepare(self) -> None:
        """Make what comes of the lanes: these are kept of one run, and two are asked in turn."""
        for made in ("_steady", "_main", "_pieces", "_budget", "_path", "_exposed"):
            getattr(self, made)

    @cached_property
    def _steady(self) -> tuple[IntArray, IntArray]:
        return steady_durations(self.run)

    @property
    def rows(self) -> IntArray:
        """The steady rows of the step table, all ranks'."""
        return self._steady[0]

    @cached_property
    def level(self) -> int:
        """The recording level of the steady steps; 0 where all phases were measured."""
        return max((steady_level(self.run, rank) for rank in self.run.ranks), default=0)

    @cached_property
    def _main(self) -> MainLanes:
        return activities(self.run).main

    @cached_property
    def _unit(self) -> tuple[IntArray, int]:
        """The number of the step of each row, from 0, and how many there are."""
        numbers, unit = np.unique(self.run.steps.step[self.rows], return_inverse=True)
        return unit.reshape(-1), len(numbers)

    @cached_property
    def _pieces(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Column (index into the steady rows), name, outermost name and length of the pieces in steps."""
        main = self._main
        place = np.full(len(self.run.steps) + 1, -1, np.int64)  # the last: outside of rows
        place[self.rows] = np.arange(len(self.rows))
        column = place[main.row]
        scopes = np.isin(main.top, [NAMES.index(name) for name in WORK_SCOPES])
        mine = np.flatnonzero((column >= 0) & ~scopes)
        return column[mine], main.name[mine], main.top[mine], (main.end - main.start)[mine]

    @cached_property
    def _step_ns(self) -> FloatArray:
        return self._steady[1].astype(np.float64)

    def _phase_ns(self, phase: str) -> FloatArray:
        if phase.startswith(sc.DEVICE_PREFIX):
            return self.run.steps.busy[phase][self.rows].astype(np.float64)
        column, name, top, length = self._pieces
        number = NAMES.index(phase)
        at = np.flatnonzero((name == number) | (top == number))
        return np.bincount(column[at], length[at], len(self.rows)).astype(np.float64)

    @cached_property
    def phases(self) -> list[str]:
        """Outermost phases of the steady steps, the longest first, then the parts of collectives."""
        _, name, top, length = self._pieces
        outer = np.bincount(top, length, len(NAMES))
        parts = np.bincount(name, length, len(NAMES))
        wholes = [NAMES[at] for at in np.argsort(-outer, kind="stable").tolist() if outer[at] > 0]
        inside = [part for part in COLLECTIVE_PARTS if parts[NAMES.index(part)] and part not in wholes]
        return wholes + inside + self._device_phases

    @cached_property
    def _device_phases(self) -> list[str]:
        steps = self.run.steps
        found = [f"{sc.DEVICE_PREFIX}{phase}" for phase in sc.DEVICE_PHASES]
        return [name for name in found if name in steps.busy and steps.busy[name][self.rows].any()]

    def names(self) -> list[str]:
        """Return every name that can be asked for."""
        fixed = ["step_time", "samples_per_s", "exposed_wait", "wall", "steps", "ranks", "ended", "findings"]
        fixed += ["tracer", "dropped", "complete", "orphans", "spans"]
        return [*fixed, *self.phases, *sorted(self._inner - set(self.phases)), *SCOPES]

    @cached_property
    def _inner(self) -> set[str]:
        return {NAMES[at] for at in np.unique(self._pieces[1]).tolist()}

    # --- Quantities -------------------------------------------------------------------------------------

    def step_time(self, statistic: Statistic = MEDIAN) -> Quantity:
        """Return the length of a steady step, in ns."""
        reason = self.untold()
        if reason is None and self.level >= _COUNTED_LEVEL and statistic.quantile is not None:
            reason = f"{self._recorded}; a row is the mean of several steps"
        return unknown(NS, reason) if reason else self._of_rows(NS, self._step_ns, statistic)

    @cached_property
    def usual_step(self) -> Quantity:
        """The step as its median, or as its mean where that hides time."""
        return usual(self.step_time)

    def phase(self, name: str, statistic: Statistic = MEDIAN, share: bool = False) -> Quantity:
        """Return the time of a phase in a steady step; with ``share`` its part of all steady steps."""
        unit = FRACTION if share else NS
        reason = self.untold() or self.unmeasured(name)
        if reason is not None:
            return unknown(unit, reason)
        there = name in self._inner or name in self.phases
        values = self._phase_ns(name) if there else np.zeros(len(self.rows))
        told: BoolArray | None = None
        if name in COLLECTIVE_PARTS:
            told = self._main.told[self.rows]
            if not told.any():
                return unknown(unit, "no step tells waiting for other ranks and transfer apart")
        if share:
            return self._of_rows(unit, values, MEAN, told, self._step_ns)
        return self._of_rows(unit, values, statistic, told)

    def unmeasured(self, phase: str) -> str | None:
        """Return why ``phase`` was not measured in the steady steps; None where it was."""
        if self.level >= _COUNTED_LEVEL or (self.level and phase not in (sc.DATA_WAIT, sc.GC)):
            return self._recorded
        if phase.startswith(sc.DEVICE_PREFIX) and phase not in self._device_phases:
            return "the device's times were not recorded"
        return None

    def samples_per_s(self, statistic: Statistic = MEAN) -> Quantity:
        """Return the samples of all ranks a second, from the samples that nearly all steps have: those of all
        steady steps over their time. A median, of single steps, would leave out the time of the others.
        """
        step = self.step_time(statistic)
        if not step.known:
            return unknown(RATE, str(step.reason))
        samples = self.samples
        if samples is None:
            return unknown(RATE, "the steps with detail do not tell equally many samples")
        of_all = np.full(len(self.rows), samples * len(self.run.ranks) * 1e9)
        if statistic.quantile is None:
            return self._of_rows(RATE, of_all, statistic, over=self._step_ns)
        values = np.divide(of_all, self._step_ns, out=np.zeros(len(self.rows)), where=self._step_ns > 0)
        return self._of_rows(RATE, values, statistic)

    @cached_property
    def samples(self) -> int | None:
        """Samples of a step of one rank, where nine of ten steady steps with detail have equally many."""
        steps, run = self.run.steps, self.run
        told = [
            (rank, step, samples)
            for (rank, step, _), ix in run.step_spans.items()
            if isinstance(samples := run.spans.attributes(ix).get(sc.STEP_SAMPLES), int)
        ]
        ranks, numbers, samples = np.array(told, np.int64).reshape(-1, 3).T
        span = int(steps.step.max(initial=0)) + 1
        steady = steps.rank[self.rows] * span + steps.step[self.rows]
        found = samples[np.isin(ranks * span + numbers, steady)]
        if not len(found):
            return None
        values, counts = np.unique(found, return_counts=True)
        most = int(counts.argmax())
        return int(values[most]) if counts[most] >= _SAME_SAMPLES * len(found) else None

    def scope(self, name: str, statistic: Statistic = MEDIAN) -> Quantity:
        """Return the length of one checkpoint, compilation, evaluation or epoch."""
        spans = sorted((s.start, s.end) for s in self.run.scopes if s.name == name)
        if not spans:
            return absent(NS, f"there is no {name}")
        values = np.array([end - start for start, end in spans], np.float64)
        return Quantity(NS, Sample(values, np.arange(len(values)), len(values)), statistic)

    def path(self, phase: str) -> Quantity:
        """Return the share of ``phase`` in the critical path within steady steps."""
        if reason := self.untold() or self.unmeasured(phase):
            return unknown(FRACTION, reason)
        length, number, phases, unit, units = self._path
        if not len(length):
            return unknown(FRACTION, "the critical path touches no steady step")
        mine = number == (phases.index(phase) if phase in phases else -1)
        return Quantity(FRACTION, Sample(np.where(mine, length, 0.0), unit, units, length), MEAN)

    def on_path(self) -> list[str]:
        """Return the phases on the critical path within steady steps, the longest first."""
        length, number, phases, _, _ = self._path
        sums = np.bincount(number, length, len(phases))
        return [phases[at] for at in np.argsort(-sums, kind="stable").tolist() if sums[at] > 0]

    @cached_property
    def _path(self) -> tuple[FloatArray, IntArray, Sequence[str], IntArray, int]:
        """Of the sections of the critical path within steady steps: length, number of the phase, the phases,
        number of the step; and how many steps there are.
        """
        sections = run_path(self.run, self.about.query.inferred).sections
        # The first batch of a pass waits for the workers to start, and counts against nobody.
        later = self.rows[self.run.steps.item_batch[self.rows] != 0]
        steady = np.unique(self.run.steps.step[later])
        at = np.flatnonzero(np.isin(sections.step, steady))
        unit = np.searchsorted(steady, sections.step[at])
        length = sections.duration[at].astype(np.float64)
        return length, sections.phase[at], sections.phases, unit, len(steady)

    def budget(self, part: str, share: bool = False) -> Quantity:
        """Return the time under ``part`` in the lane budget of the rank with most of it."""
        ns = max((row.ns for row in self._budget if row.phase == part), default=0)
        wall = self.run.end - self.run.start
        return Quantity(FRACTION, value=ns / max(1, wall), once=True) if share else _once(NS, ns)

    @cached_property
    def _budget(self) -> list[LaneBudgetRow]:
        return [row for row in lane_budget(self.run) if row.within is None]

    @cached_property
    def budget_parts(self) -> list[str]:
        """The names in the lane budget of any rank."""
        return sorted({row.phase for row in self._budget})

    @cached_property
    def _exposed(self) -> list[ExposedWait]:
        found = (exposed_wait(self.run, rank) for rank in self.run.ranks)
        return [wait for wait in found if wait is not None]

    def exposed_wait(self) -> Quantity:
        """Return the part of the steady steps in which the device was idle while they waited for data."""
        reason = self.untold() or self.unmeasured(sc.DATA_WAIT)
        if reason is not None:
            return unknown(FRACTION, reason)
        found = self._exposed
        waited = self._phase_ns(sc.DATA_WAIT).sum()
        if not waited:
            return Quantity(FRACTION, value=0.0, once=True)
        if not found or not all(wait.told for wait in found):
            return unknown(FRACTION, "what the device did during too much of the waiting is not known")
        idle = sum(wait.share * wait.wait_ns for wait in found)
        return Quantity(FRACTION, value=idle / float(self._step_ns.sum()), once=True)

    def plain(self) -> Mapping[str, Quantity]:
        """Return what is counted, or told in a word, by its name."""
        run, complete = self.run, self.run.completeness
        training = (run.steps.flags & (sc.FLAG_EVALUATE | sc.FLAG_INCOMPLETE)) == 0
        per_rank = np.unique(run.steps.rank[training], return_counts=True)[1]
        ends = {ended.how for ended in complete.ended if ended.rank in run.ranks} or {"unknown"}
        cost = complete.tracer_cost_fraction
        return {
            "wall": _once(NS, run.end - run.start),
            "steps": Quantity(COUNT, value=int(per_rank.max(initial=0))),
            "ranks": Quantity(COUNT, value=len(run.ranks)),
            "ended": Quantity(WORDS, value=next((how for how in _WORST_END if how in ends), "unknown")),
            "tracer": unknown(FRACTION, "the end of the run, which tells it, is not here")
            if cost is None
            else Quantity(FRACTION, value=cost, once=True),
            "dropped": Quantity(COUNT, value=complete.tracer_dropped),
            "complete": unknown(TRUTH, "nothing tells what should be here")
            if complete.verdict == "unverifiable"
            else Quantity(TRUTH, value=float(complete.verdict == "complete")),
            "orphans": Quantity(COUNT, value=complete.orphans),
            "spans": Quantity(COUNT, value=complete.spans_received),
        }

    @cached_property
    def judgement(self) -> Judgement:
        """What the report finds."""
        return diagnose(self.run, self.about.query.inferred)

    def findings(self) -> Quantity:
        """Return how many warnings and critical findings there are; not known where a rule abstained."""
        grave = [one for one in self.judgement.findings if one.severity != INFO]
        doubts = [one for one in self.judgement.abstained if one.rule in RULES]
        if doubts and not grave:
            return unknown(COUNT, f"{doubts[0].rule} could not be judged: {doubts[0].missing}")
        return Quantity(COUNT, value=len(grave))

    def finding(self, rule: str) -> Quantity:
        """Return the severity of a finding; ``none`` where its rule was judged and does not hold."""
        for one in self.judgement.findings:
            if one.id == rule:
                return Quantity(WORDS, value=one.severity)
        for abstained in self.judgement.abstained:
            if abstained.rule == rule:
                return unknown(WORDS, f"it could not be judged: {abstained.missing}")
        return Quantity(WORDS, value="none")

    def step_p50_of(self, rank: int) -> tuple[int, float] | None:
        """Return how many steady steps ``rank`` has here, and their median in ns; None without any."""
        mine = self._step_ns[self.run.steps.rank[self.rows] == rank]
        return (len(mine), float(np.median(mine))) if len(mine) else None

    def untold(self) -> str | None:
        """Return why the steady steps tell no numbers; None where they do."""
        if (missing := missing_of(self.run)) is not None:
            return missing
        return None if len(self.rows) else "there is no steady step"

    @property
    def _recorded(self) -> str:
        return recorded_in_part(self.run, self.run.ranks) or "not recorded"

    def _of_rows(
        self,
        unit: str,
        values: FloatArray,
        statistic: Statistic,
        told: BoolArray | None = None,
        over: FloatArray | None = None,
    ) -> Quantity:
        step, units = self._unit
        if told is not None and not told.all():
            values, over = values[told], None if over is None else over[told]
            kept, step = np.unique(step[told], return_inverse=True)
            step, units = step.reshape(-1), len(kept)
        return Quantity(unit, Sample(values, step, units, over), statistic)


def _once(unit: str, value: int) -> Quantity:
    return Quantity(unit, value=value, once=True)
