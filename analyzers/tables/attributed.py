# SPDX-License-Identifier: Apache-2.0
"""The table ``attributed``: what each leaf of the execution model used of each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import TableSchema, fraction, number, word
from grademl_otel.analyzers.tables.values import Coded, Makers, Masked, Values, distinct, known

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.answer import Found
    from grademl_otel.analyzers.execution.whole import ExecutionModel

ATTRIBUTED: Final = TableSchema(
    "attributed",
    "What a leaf of `phases` used of a metric of a resource, metric by metric; last of each metric what no"
    " phase used. Only of phases that [a rule](attribution.md) says use it. The rows of a metric sum to all"
    " that was observed of it, but for what exceeds its capacity. Of a part of a run (`--ranks`, `--steps`,"
    " `--fit`) the rows of that part; others have used what they used all the same.",
    (
        number("phase_ix", "the leaf; null: no phase, or one that a part of a run has cut", nullable=True),
        word("type", "its type path; null: what no phase used", nullable=True),
        number("rank", "null: of none", nullable=True),
        word("resource", "path of the resource"),
        word("metric", "its type: that of the resource, a dot, its name"),
        word("unit", ""),
        word("host", "that the resource belongs to; null: not told", nullable=True),
        fraction("used", "in the unit times seconds"),
        fraction(
            "available",
            "what it could have used; null: the capacity is not known, or no phase",
            nullable=True,
        ),
        number("observed_ns", "how long the metric was observed while it ran"),
        fraction("capacity", "of the metric; null: nobody told", nullable=True),
        word("rule", "exact, variable; null: no phase", nullable=True),
        fraction(
            "amount", "units of an exact rule, the weight of a variable one; null: no phase", nullable=True
        ),
        number(
            "full_ns",
            "how long the metric was a bottleneck of it: full, or all that it could use; null: not known",
            nullable=True,
        ),
        number("uniquely_full_ns", "how long it was the only one; null: not known", nullable=True),
    ),
)


def attributed(material: Material) -> Makers:
    found = material.attributed
    if found is None:
        return dict.fromkeys(ATTRIBUTED.column_names, list)
    rows = _Rows(found, material)
    resources = found.resources

    def of_metric(values: Callable[[int], str | None]) -> Callable[[], Values]:
        def make() -> Values:
            codes, words = distinct([values(ix) for ix in range(len(resources.metrics))])
            return Coded(codes[rows.metric], words)

        return make

    return {
        "phase_ix": lambda: known(rows.phase_ix),
        "type": lambda: rows.type,
        "rank": lambda: known(rows.rank),
        "resource": of_metric(lambda ix: resources.path(resources.metrics[ix].resource)),
        "metric": of_metric(lambda ix: resources.metrics[ix].type),
        "unit": of_metric(lambda ix: resources.metrics[ix].unit),
        "host": of_metric(rows.host),
        "used": lambda: rows.used.used,
        "available": lambda: _finite(rows.used.available),
        "observed_ns": lambda: np.rint(rows.used.observed * 1e9).astype(np.int64),
        "capacity": lambda: _finite(
            np.array([one.observed.capacity for one in resources.metrics])[rows.metric]
        ),
        "rule": lambda: rows.rule,
        "amount": lambda: rows.amount,
        "full_ns": lambda: rows.full("full"),
        "uniquely_full_ns": lambda: rows.full("uniquely_full"),
    }


class _Used(NamedTuple):
    used: FloatArray
    available: FloatArray
    """NaN where it is not known."""
    observed: FloatArray


class _Rows:
    """The rows, column by column; what several of them need once."""

    def __init__(self, found: Found, material: Material) -> None:
        self._found, self._material = found, material
        self._attributed = found.attributed

    # --- Which rows there are -------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> list[tuple[int, IntArray]]:
        """(metric, its leaves) of all metrics that phases use."""
        leaf_of = self._attributed.activity.leaf
        return [
            (metric, leaves[self._asked[leaves]])
            for metric in range(len(self._attributed))
            if self._attributed.use(metric).is_used
            for leaves in [np.unique(leaf_of[self._attributed.periods(metric)])]
        ]

    @cached_property
    def _asked(self) -> BoolArray:
        """The mask of the leaves that are told: of a part of a run its own, else all."""
        if self._material.about.is_part:
            return self._found.keys.of_phase >= 0
        return np.ones(len(self._found.model.phases), np.bool_)

    @cached_property
    def leaf(self) -> IntArray:
        """By row; -1 for what no phase used."""
        return _together(np.append(leaves, -1) for _, leaves in self._parts)

    @cached_property
    def metric(self) -> IntArray:
        return _together(np.full(len(leaves) + 1, metric) for metric, leaves in self._parts)

    @cached_property
    def _is_leaf(self) -> BoolArray:
        mask: BoolArray = self.leaf >= 0
        return mask

    # --- Whose they are -------------------------------------------------------------------------------------

    @cached_property
    def phase_ix(self) -> IntArray:
        model, shown = self._found.model, self._material.model
        if shown is None or not len(self.leaf):
            return np.full(len(self.leaf), -1, np.int64)
        number = np.arange(len(model.phases)) if shown is model else _numbers_in(model, shown)
        return np.where(self._is_leaf, number[self.leaf], -1)

    @cached_property
    def type(self) -> Coded:
        model = self._found.model
        types = np.where(self._is_leaf, model.phases.type[self.leaf], -1) if len(self.leaf) else self.leaf
        used = np.unique(types[types >= 0])
        codes = np.where(types >= 0, np.searchsorted(used, types), -1)
        return Coded(codes, [model.types.path(node) for node in used.tolist()])

    @cached_property
    def rank(self) -> IntArray:
        from grademl_otel.analyzers.attribution.keys import ranks_of_phases

        ranks = ranks_of_phases(self._found.model.phases)
        return np.where(self._is_leaf, ranks[self.leaf], -1) if len(self.leaf) else self.leaf

    def host(self, metric: int) -> str | None:
        resource = self._found.resources.metrics[metric].resource
        return self._attributed.mapped.machine(resource)

    # --- What they used -------------------------------------------------------------------------------------

    @cached_property
    def used(self) -> _Used:
        parts = [np.stack(self._of_metric(metric, leaves)) for metric, leaves in self._parts]
        columns = np.concatenate(parts, axis=1) if parts else np.zeros((3, 0))
        return _Used(*columns)

    def _of_metric(self, metric: int, leaves: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        from grademl_otel.analyzers.attribution.totals import clipped, integral

        of, *values = self._attributed.of_leaves(metric)
        at = np.searchsorted(of, leaves)
        used, available, observed = (each[at] for each in values)
        if not math.isfinite(self._attributed.resources.metrics[metric].observed.capacity):
            available = np.full(len(available), np.nan)  # also of those who ran while nothing was observed
        rest = self._attributed.background(metric)
        window = self._found.window if self._material.about.is_part else (-_LONG, _LONG)
        length = clipped(rest.edges, window)
        background = integral(rest.usage, length)
        seen = float(length[~np.isnan(rest.usage)].sum())
        return np.append(used, background), np.append(available, np.nan), np.append(observed, seen)

    @cached_property
    def _signature(self) -> IntArray:
        """By leaf the index of its signature; -1 for those that were never active."""
        of = np.full(len(self._found.model.phases), -1, np.int64)
        of[self._attributed.activity.leaf] = self._attributed.signatures.of_period
        return of

    @cached_property
    def rule(self) -> Coded:
        from grademl_otel.analyzers.attribution.rules import RULES

        rules = _together(
            np.append(self._attributed.use(metric).rule[self._signature[leaves]], -1)
            for metric, leaves in self._parts
        )
        return Coded(rules, [RULES[one] for one in sorted(RULES)])

    @cached_property
    def amount(self) -> Masked:
        amounts = [
            np.append(self._attributed.use(metric).amount[self._signature[leaves]], 0.0)
            for metric, leaves in self._parts
        ]
        values = np.concatenate(amounts) if amounts else np.zeros(0)
        return Masked(values, ~self._is_leaf)

    # --- How full it was ------------------------------------------------------------------------------------

    def full(self, name: str) -> Masked:
        from grademl_otel.analyzers.attribution.groupings import METRIC

        grouped = self._found.bottlenecks.by(METRIC)
        resources = self._found.resources
        number = {name: ix for ix, name in enumerate(grouped.names)}
        group = np.array(
            [number.get(resources.metric_path(ix), -1) for ix in range(len(resources.metrics))], np.int64
        )
        width = len(grouped.names) + 1
        there = grouped.rows.phase * width + grouped.rows.group
        order = np.argsort(there, kind="stable")
        wanted = self.leaf * width + group[self.metric]
        at = np.minimum(np.searchsorted(there[order], wanted), max(len(there) - 1, 0))
        if not len(there):
            return Masked(np.zeros(len(wanted), np.int64), np.ones(len(wanted), np.bool_))
        found = (there[order][at] == wanted) & self._is_leaf & (group[self.metric] >= 0)
        values = getattr(grouped.rows, name)[order][at]
        return Masked(np.where(found, np.rint(values * 1e9), 0).astype(np.int64), ~found)


_LONG: Final = 1 << 62


def _together(parts: Iterator[npt.NDArray[np.generic]]) -> IntArray:
    found = list(parts)
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)


def _finite(values: FloatArray) -> Masked:
    absent = ~np.isfinite(values)
    return Masked(np.where(absent, 0.0, values), absent)


def _numbers_in(model: ExecutionModel, shown: ExecutionModel) -> IntArray:
    """Return for each phase of ``model`` the number of the same one of ``shown``; -1 where it is not there.

    The same is what is of one type and one rank, and begins and ends at the same times.
    """
    from grademl_otel.analyzers.attribution.keys import ranks_of_phases

    numbers: dict[str, int] = {}
    keys = []
    for one in (model, shown):
        paths: Sequence[str] = [one.types.path(node) for node in range(len(one.types))]
        codes = np.array([numbers.setdefault(path, len(numbers)) for path in paths], np.int64)
        phases = one.phases
        keys.append(np.stack((codes[phases.type], ranks_of_phases(phases), phases.start, phases.end), axis=1))
    every = np.concatenate(keys)
    _, same = np.unique(every, axis=0, return_inverse=True)
    same = same.reshape(-1)
    number = np.full(int(same.max(initial=0)) + 1, -1, np.int64)
    number[same[len(model.phases) :]] = np.arange(len(shown.phases))
    return number[same[: len(model.phases)]]
