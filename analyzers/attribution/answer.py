# SPDX-License-Identifier: Apache-2.0
"""From a subject and a question to what was found: all that ran, attributed, and of it what is asked for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from os import fspath
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.attribution.activity import Activity
from grademl_otel.analyzers.attribution.attribute import Attributed, MetricUse, Signatures
from grademl_otel.analyzers.attribution.blocking import Blocked
from grademl_otel.analyzers.attribution.bottlenecks import FULL_FROM
from grademl_otel.analyzers.attribution.builtin import BUILT_IN
from grademl_otel.analyzers.attribution.groupings import RESOURCE_TYPE, Bottlenecks, Grouped
from grademl_otel.analyzers.attribution.issues import Issues, issues_of
from grademl_otel.analyzers.attribution.keys import Keys, keys_of, ranks_of_phases
from grademl_otel.analyzers.attribution.mapping import gpus_of
from grademl_otel.analyzers.attribution.question import Question
from grademl_otel.analyzers.attribution.rules import RuleSet, glob
from grademl_otel.analyzers.attribution.rules_file import read_rules
from grademl_otel.analyzers.attribution.usage import Attribution
from grademl_otel.analyzers.errors import NothingFound
from grademl_otel.analyzers.execution.model import Phases
from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.model.facts import Run
from grademl_otel.analyzers.modelled import model_of, runs_of
from grademl_otel.analyzers.resource_model.assemble import resources_of
from grademl_otel.analyzers.resource_model.model import ResourceModel
from grademl_otel.analyzers.resource_model.settings import ResourceSettings
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.suggest import or_near

HOW_TO_GET: Final = (
    "record with GRADEML_HOST_INTERVAL and GRADEML_GPU_INTERVAL above 0 (both are 1 s by default), or name"
    " what a monitor knows of that time: --prometheus URL, --metrics PATH, --csv FILE"
)
_MADE: Final = "attributed"


@dataclass(frozen=True, eq=False)
class Found:
    """What was found, in the time and of the phases that the question is about.

    All that ran at the same time takes part in the attribution, also what is not asked for.
    """

    question: Question
    attributed: Attributed
    keys: Keys
    window: tuple[int, int]
    """Unix ns."""
    inferred: bool = True
    """Whether to go by what only times tell, too."""

    @property
    def model(self) -> ExecutionModel:
        return self.attributed.model

    @property
    def resources(self) -> ResourceModel:
        return self.attributed.resources

    @property
    def length(self) -> int:
        """Of the window, in ns."""
        return self.window[1] - self.window[0]

    @cached_property
    def metrics(self) -> list[int]:
        """Those that are asked for. Raises NothingFound where a pattern for them matches none."""
        every, asked = range(len(self.resources.metrics)), self.question.metric
        if asked is None:
            return list(every)
        pattern = glob(asked)
        found = [ix for ix in every if pattern.fullmatch(self.resources.metrics[ix].type)]
        if not found:
            there = dict.fromkeys(one.type for one in self.resources.metrics)
            raise NothingFound(f"--metric {asked}: no metric of that type; {or_near(asked, there)}")
        return found

    def key_of_users(self, metric: int) -> IntArray:
        """Return the key of each user of ``metric`` in its attribution; -1 for those not asked for."""
        periods = self.attributed.periods(metric)
        return self.keys.of_phase[self.attributed.activity.leaf[periods]]

    def drawn(self) -> Iterator[tuple[str, str, list[tuple[Attribution, IntArray]]]]:
        """Yield (type, unit, (attribution, key of its users) of each metric) of types that phases use.

        Those of which the capacity is known go first, the fullest first.
        """
        of_type: dict[tuple[str, str], list[int]] = {}
        for metric in self.metrics:
            one = self.resources.metrics[metric]
            if self.attributed.use(metric).is_used and len(one.observed):
                of_type.setdefault((one.type, one.unit), []).append(metric)
        order = sorted(of_type, key=lambda key: (-max(map(self._fullness, of_type[key])), key))
        for key in order:
            parts = [(self.attributed.attribution(one), self.key_of_users(one)) for one in of_type[key]]
            yield (*key, parts)

    def _fullness(self, metric: int) -> float:
        seen = self.resources.metrics[metric].observed
        return float(np.average(seen.value, weights=seen.end - seen.start)) / seen.capacity

    @cached_property
    def bottlenecks(self) -> Bottlenecks:
        """What kept phases from being faster within the window."""
        stops = [rule.by or rule.metric or "" for rule in self.attributed.rules.blocking]
        return _Remembering(_Within(self.attributed, self.window), stops)

    @cached_property
    def issues(self) -> Issues:
        """What would make the whole faster."""
        return issues_of(self.model, self.bottlenecks, inferred=self.inferred)

    @property
    def full_from(self) -> float:
        return FULL_FROM


class _Remembering(Bottlenecks):
    """Bottlenecks that are made once for each grouping."""

    def by(self, grouping: str = RESOURCE_TYPE) -> Grouped:
        if grouping not in self._grouped:
            self._grouped[grouping] = super().by(grouping)
        return self._grouped[grouping]

    @cached_property
    def _grouped(self) -> dict[str, Grouped]:
        return {}


class _Within:
    """An attribution, of whose activity only what lies in a window is looked at."""

    def __init__(self, attributed: Attributed, window: tuple[int, int]) -> None:
        self._attributed = attributed
        self.resources: ResourceModel = attributed.resources
        self.signatures: Signatures = attributed.signatures
        activity, blocked = attributed.activity, attributed.blocked
        start, end = (np.clip(side, *window) for side in (activity.start, activity.end))
        # Periods keep their numbers; those outside have no length.
        self.activity = Activity(activity.leaf, start, end)
        start, end = (np.clip(side, *window) for side in (blocked.start, blocked.end))
        some = end > start
        self.blocked = Blocked(blocked.leaf[some], start[some], end[some], blocked.by[some])

    def use(self, metric: int, /) -> MetricUse:
        return self._attributed.use(metric)

    def attribution(self, metric: int, /) -> Attribution:
        return self._attributed.attribution(metric)


def find(about: Subject, question: Question | None = None) -> Found:
    """Return what was found. Raises NothingFound where no resource was observed, and says how to get it."""
    question = question or Question()
    whole = _whole(about)
    made: dict[Hashable, Attributed] = about.made.setdefault(_MADE, {})
    key = tuple(map(str, question.additions))
    if key not in made:
        made[key] = _attributed(whole, question)
    attributed = made[key]
    phases = attributed.model.phases
    among, window = _asked_for(about, phases)
    keys = keys_of(attributed.model, question.by, question.phase, question.depth, among)
    if not keys.names:
        raise NothingFound(f"{about.telemetry.uri}: no phase of that part of it is what --phase selects")
    return Found(question, attributed, keys, window, about.query.inferred)


def _whole(about: Subject) -> Subject:
    """Return the subject with all of its runs: who else was there is told by what was read."""
    if not about.is_part:
        return about
    kept: Subject | None = about.made.get("whole")
    if kept is None:
        query = replace(about.query, fit=None, ranks=None, steps=None)
        kept = about.made["whole"] = Subject(about.telemetry, about.run, query, about.clocks)
    return kept


def _attributed(about: Subject, question: Question) -> Attributed:
    rules = RuleSet(BUILT_IN) if question.rules is None else read_rules(fspath(question.rules))
    settings = ResourceSettings(
        metrics=tuple(fspath(one) for one in question.metrics),
        prometheus=question.prometheus,
        headers=question.headers,
        csv=tuple(fspath(one) for one in question.csv),
        aliases=rules.aliases,
        capacities=rules.capacities,
    )
    resources = resources_of(about, settings)
    if not resources.metrics:
        why = f" ({resources.problems[0]})" if resources.problems else ""
        raise NothingFound(f"{about.telemetry.uri}: no resource was observed{why}; {HOW_TO_GET}")
    return Attributed(model_of(about), resources, rules, gpus_of(runs_of(about)))


def _asked_for(about: Subject, phases: Phases) -> tuple[BoolArray, tuple[int, int]]:
    """Return (the mask of the leaves that the query is about, the time in Unix ns that it is about)."""
    run = about.run
    if run is None:
        there = phases.leaves & (phases.end > phases.start)
        return phases.leaves, (
            int(phases.start[there].min(initial=_LAST)),
            int(phases.end[there].max(initial=0)),
        )
    among = np.zeros(len(phases), np.bool_)
    for node in _attempts(phases, run).tolist():
        among[phases.subtree(node)] = True
    if about.query.ranks is not None:
        among &= np.isin(ranks_of_phases(phases), run.ranks)
    among &= phases.leaves & (phases.end > run.start) & (phases.start < run.end)
    return among, (run.start, run.end)


def _attempts(phases: Phases, run: Run) -> npt.NDArray[np.int64]:
    """Return the phases that are this attempt of ``run``."""
    counts = np.array([kind.counted == "attempt" for kind in phases.all_kinds] or [False], np.bool_)
    nodes = np.flatnonzero(counts[phases.kind] & (phases.number == run.attempt))
    mine = [dict(phases.tags(int(phases.parent[node]))).get("id") == run.run_id for node in nodes.tolist()]
    return nodes[np.array(mine, np.bool_)] if len(nodes) else nodes


_LAST: Final = (1 << 63) - 1
