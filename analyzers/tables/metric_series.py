# SPDX-License-Identifier: Apache-2.0
"""Points of metrics as series: which one follows which, and what each one added.

A cumulative sum counts since its start, and each start is a count of its own (OpenTelemetry's metrics data
model, "resets and gaps"; so two writers of one series do not mix): the first point of one has added all that
it counts. Where one that can only grow falls, it began anew without saying so, and has added all, too.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.metrics import CUMULATIVE, DELTA, GAUGE, SUM, SUMMARY, MetricPoints
from grademl_otel.analyzers.model.side_tables import as_json
from grademl_otel.analyzers.tables.values import Masked, Numbers

_NONE: Final = -1
_SAFE: Final = 2.0**62
"""Differences of integers within these bounds are integers of 64 bits."""


class MetricSeries:
    """The series of points; everything by point, as arrays of the length of ``points``. Times in Unix ns."""

    def __init__(self, points: MetricPoints, shift: IntArray) -> None:
        """``shift``: what to take from the times of each resource."""
        self._points = points
        taken = shift[points.resource_ix]
        self.time = Masked(np.where(points.time > 0, points.time - taken, 0), points.time <= 0)
        self.start = Masked(np.where(points.start > 0, points.start - taken, 0), points.start <= 0)

    @cached_property
    def attributes(self) -> list[str]:
        """Those of each point, as JSON with sorted keys."""
        points, known = self._points, dict[tuple[int, bytes], str]()
        found = []
        for ix, (form, raw) in enumerate(zip(points.form_ix.tolist(), points.raws, strict=True)):
            key = (form, points.forms[form].attributes_raw(raw))
            text = known.get(key)
            if text is None:
                text = known[key] = as_json(dict(sorted(points.attributes(ix).items())))
            found.append(text)
        return found

    @cached_property
    def of_point(self) -> IntArray:
        """Number of the series of each point, from 0, by first appearance."""
        points, numbers = self._points, dict[tuple[object, ...], int]()
        keys = zip(
            points.name_ix.tolist(), points.unit_ix.tolist(), points.kind.tolist(),
            points.temporality.tolist(), points.monotonic.tolist(), points.resource_ix.tolist(),
            points.scope_ix.tolist(), self.attributes, strict=True,
        )  # fmt: skip
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)

    @cached_property
    def before(self) -> IntArray:
        """The point before each one in its series, of cumulative ones with the same start; -1 for the first.

        Points that tell no time have none before them, and are before none.
        """
        timed = np.flatnonzero(~self.time.absent)
        start = np.where(self._cumulative, self.start.numbers, 0)
        order = timed[np.lexsort((timed, self.time.numbers[timed], start[timed], self.of_point[timed]))]
        before = np.full(len(self._points), _NONE, np.int64)
        follows = np.flatnonzero((np.diff(self.of_point[order]) == 0) & (np.diff(start[order]) == 0))
        before[order[follows + 1]] = order[follows]
        return before

    @cached_property
    def _fell(self) -> BoolArray:
        """Mask of the points that can only grow and are less than the one before: they began anew."""
        points, before = self._points, np.maximum(self.before, 0)
        fell: BoolArray = points.monotonic & (points.kind == SUM) & (points.value < points.value[before])
        fell |= self._counted & (points.count < points.count[before])
        fell &= self._cumulative & (self.before >= 0)
        return fell

    @cached_property
    def since(self) -> Masked:
        """Since when each one has added: the time of the point before, or its start."""
        before = self.time.numbers[np.maximum(self.before, 0)]
        begun = ~self.start.absent & (self._own | (self._cumulative & (self.before < 0)))
        since = np.where(begun, self.start.numbers, before)
        return Masked(since, self.time.absent | (~begun & (self.before < 0)))

    @cached_property
    def delta(self) -> Masked:
        """What each one added to the value; exact where both were written as integers."""
        points, before = self._points, np.maximum(self.before, 0)
        whole = points.is_whole & points.is_whole[before] & (np.abs(points.value) < _SAFE)
        whole &= np.abs(points.value[before]) < _SAFE
        exact = np.where(whole, points.whole, 0) - np.where(whole, points.whole[before], 0)
        with np.errstate(invalid="ignore"):  # of two infinities
            differs = np.where(whole, exact.astype(np.float64), points.value - points.value[before])
        added = self._added(points.value, differs)
        return Masked(added.numbers, added.absent | np.isnan(added.numbers))

    @cached_property
    def count_delta(self) -> Masked:
        """What each one added to the count of a histogram or summary."""
        points, before = self._points, np.maximum(self.before, 0)
        added = self._added(points.count, points.count - points.count[before])
        return Masked(added.numbers, added.absent | ~self._counted)

    def _added(self, total: Numbers, differs: Numbers) -> Masked:
        """Return ``total`` of what counts from its own start, else how it ``differs`` from the one before."""
        follows = self._cumulative & (self.before >= 0)
        first = self._cumulative & (self.before < 0) & ~self.start.absent & ~self.time.absent
        return Masked(np.where(follows & ~self._fell, differs, total), ~(self._own | first | follows))

    @property
    def _own(self) -> BoolArray:
        """Mask of points that tell what they added."""
        own: BoolArray = (self._points.temporality == DELTA) & (self._points.kind != GAUGE)
        return own

    @cached_property
    def _cumulative(self) -> BoolArray:
        """Mask of points that count since their start; a summary does, though it has no temporality."""
        points = self._points
        cumulative: BoolArray = (points.temporality == CUMULATIVE) & (points.kind != GAUGE)
        cumulative |= points.kind == SUMMARY
        return cumulative

    @cached_property
    def _counted(self) -> BoolArray:
        """Mask of points that tell how many values there were."""
        counted: BoolArray = (self._points.kind != GAUGE) & (self._points.kind != SUM)
        return counted
