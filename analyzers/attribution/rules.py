# SPDX-License-Identifier: Apache-2.0
"""Rules: how phases use metrics, and what stops them, as data; and what they come to for types of phases.

A rule is for phases (a pattern of type paths) and metrics (their types; ``*`` stands for any text). It holds
for the phases that it selects and for all that is part of them, until a rule for a part says otherwise. Of
two for the same phase and metric the later one holds, and what a user wrote goes before what is built in. A
phase without a rule uses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.attribution.observations import EXACT, NONE, VARIABLE
from grademl_otel.analyzers.execution.model import Types
from grademl_otel.analyzers.execution.patterns import Pattern
from grademl_otel.analyzers.resource_model.settings import Capacity

FIT: Final = 3
"""A phase uses a share as `VARIABLE`, by a weight that the observations tell (`fit`)."""
RANK: Final = "**/run*/attempt/rank"
"""Pattern of the ranks of runs of ours."""
RULES: Final[Mapping[int, str]] = {NONE: "none", EXACT: "exact", VARIABLE: "variable", FIT: "fit"}


@dataclass(frozen=True)
class Rule:
    """How some phases use some metrics."""

    phase: str
    """Pattern of type paths, from the root: ``**/step/forward``."""
    metric: str
    """Type of a metric: ``gpu.utilization``, ``disk.*``."""
    kind: int
    """`NONE`, `EXACT`, `VARIABLE`, `FIT`."""
    amount: float = 0.0
    """Units of the metric of an exact rule, the weight of a variable one."""
    unless: tuple[str, ...] = ()
    """Not in ranks that have a phase of one of these names."""
    with_peers: bool = False
    """Only in ranks of several."""
    resource: str | None = None
    """Pattern of a resource's path: of these alone; None for all."""
    where: str = ""
    """Where it is written: ``rules.toml:12``."""

    @cached_property
    def pattern(self) -> Pattern:
        return Pattern(self.phase)

    @cached_property
    def metrics(self) -> re.Pattern[str]:
        return glob(self.metric)


@dataclass(frozen=True)
class Blocking:
    """What stops some phases: while it goes on, they use nothing."""

    phase: str
    """Pattern of the type paths of those that are stopped."""
    by: str | None = None
    """Pattern of the type paths of phases of the same process that stop them."""
    metric: str | None = None
    """Or the type of a metric of the same host, GPU or process that does."""
    at_least: float = 0.0
    """From this value of the metric on."""
    none: bool = False
    """Nothing of what earlier rules say stops them."""
    where: str = ""

    @cached_property
    def pattern(self) -> Pattern:
        return Pattern(self.phase)

    @cached_property
    def blockers(self) -> Pattern | None:
        return None if self.by is None else Pattern(self.by)


@dataclass(frozen=True)
class RuleSet:
    """What is built in, and what the user adds."""

    built_in: Sequence[Rule] = ()
    rules: Sequence[Rule] = ()
    blocking: Sequence[Blocking] = ()
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a host -> what else it is called."""
    capacities: tuple[Capacity, ...] = ()


def glob(text: str) -> re.Pattern[str]:
    """Return what matches ``text``, in which ``*`` stands for any text."""
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


@dataclass(frozen=True, eq=False)
class OfTypes:
    """What rules come to for one metric: of each type of phases its rule."""

    kind: npt.NDArray[np.int8]
    amount: FloatArray


class Assignment:
    """The rules of a rule set for the types of one execution model."""

    def __init__(self, types: Types, rules: RuleSet, with_peers: BoolArray | None = None) -> None:
        """``with_peers``: mask of the types in ranks of several; None for all."""
        self._types, self._rules = types, rules
        self._with_peers = np.ones(len(types), np.bool_) if with_peers is None else with_peers
        self._selected: dict[tuple[str, tuple[str, ...]], IntArray] = {}
        self._made: dict[tuple[int, ...], OfTypes] = {}
        self._of_metric: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def of_metric(self, metric: str, user: Iterable[int] | None = None) -> OfTypes:
        """Return the rules for metrics of type ``metric``.

        ``user``: numbers of those of the user's rules that may apply to this resource; None for all.
        """
        if metric not in self._of_metric:
            layers = ((rule.metrics for rule in layer) for layer in (self._rules.built_in, self._rules.rules))
            built_in, own = (
                tuple(ix for ix, one in enumerate(layer) if one.fullmatch(metric)) for layer in layers
            )
            self._of_metric[metric] = built_in, own
        built_in, own = self._of_metric[metric]
        if user is not None:
            own = tuple(ix for ix in own if ix in set(user))
        key = (*built_in, -1, *own)
        if key not in self._made:
            kind, amount = np.zeros(len(self._types), np.int8), np.zeros(len(self._types))
            for layer, chosen in ((self._rules.built_in, built_in), (self._rules.rules, own)):
                self._paint([layer[ix] for ix in chosen], kind, amount)
            self._made[key] = OfTypes(kind, amount)
        return self._made[key]

    def selects_nothing(self, rule: Rule | Blocking) -> bool:
        """Whether no type of phases is what ``rule`` is for."""
        return not len(rule.pattern.matches(self._types))

    def selected(self, pattern: str, unless: tuple[str, ...] = ()) -> IntArray:
        """Return the types that ``pattern`` selects, less those in ranks with a phase named in ``unless``."""
        key = pattern, unless
        if key not in self._selected:
            found = Pattern(pattern).matches(self._types)
            if unless and len(found):
                found = found[~self._in_rank_with(unless)[found]]
            self._selected[key] = found
        return self._selected[key]

    def below(self, pattern: str) -> BoolArray:
        """Return the mask of the types that ``pattern`` selects, and of all that is part of them."""
        mask = np.zeros(len(self._types), np.bool_)
        for node in self.selected(pattern).tolist():
            mask[self._types.subtree(node)] = True
        return mask

    def _paint(self, rules: Sequence[Rule], kind: npt.NDArray[np.int8], amount: FloatArray) -> None:
        """Let each of ``rules`` hold for what it selects and all below, the innermost last."""
        last: dict[int, Rule] = {}
        for rule in rules:
            found = self.selected(rule.phase, rule.unless)
            if rule.with_peers:
                found = found[self._with_peers[found]]
            last.update(dict.fromkeys(found.tolist(), rule))
        for node in sorted(last):  # preorder: what is within another comes after it
            part = self._types.subtree(node)
            kind[part], amount[part] = last[node].kind, last[node].amount

    def _in_rank_with(self, names: tuple[str, ...]) -> BoolArray:
        """Return the mask of the types in a rank that has a phase of one of these names."""
        types = self._types
        mask = np.zeros(len(types), np.bool_)
        called = np.array([each in names for each in types.name], np.bool_)
        for rank in ranks_of(types).tolist():
            part = types.subtree(rank)
            mask[part] = called[part].any()
        return mask


def ranks_of(types: Types) -> IntArray:
    """Return the types that are ranks of runs of ours."""
    return Pattern(RANK).matches(types)
