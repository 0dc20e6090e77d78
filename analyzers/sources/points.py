# SPDX-License-Identifier: Apache-2.0
"""Where readers put metric points and columns come out."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from grademl_otel.analyzers.model.metrics import (
    CUMULATIVE,
    DELTA,
    UNSPECIFIED,
    MetricPoints,
    PointForm,
)

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_TEMPORALITIES: Final = (UNSPECIFIED, DELTA, CUMULATIVE)
Decode = Callable[[Any], dict[str, Any]]


class Metric(NamedTuple):
    """What all points of a metric share."""

    name: str
    unit: str
    kind: int
    temporality: int
    monotonic: bool
    resource_ix: int
    scope_ix: int
    form: PointForm


class PointBuilder:
    """Collects points of any number of files, then yields them as `MetricPoints`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ints = {name: array("q") for name in ("time", "start", "whole", "count")}
        self._small = {name: array("i") for name in _SMALL}
        self._value = array("d")
        self._raws: list[bytes] = []
        self._names: dict[str, int] = {}
        self._units: dict[str, int] = {}
        self._forms: list[PointForm] = []
        self._shared: tuple[_Shared, _Shared] = _Shared(), _Shared()

    def __len__(self) -> int:
        return len(self._raws)

    @property
    def full(self) -> bool:
        return len(self._raws) >= self._most

    def resource(self, raw: bytes, decode: Decode) -> int:
        """Return the index of a resource; its attributes are ``decode(raw)``."""
        return self._shared[0].index(raw, decode)

    def scope(self, raw: bytes, decode: Decode) -> int:
        """Return the index of a scope, which ``decode(raw)`` tells."""
        return self._shared[1].index(raw, decode)

    def add(
        self, metric: Metric, time: int, start: int, value: float | int | None, count: int, raw: bytes
    ) -> None:
        """Append a point; ``value`` is an int where it was written as one, None where there is none.

        What is beyond int64 is none.
        """
        if isinstance(value, int) and not _LEAST <= value <= _MOST:
            value = None
        whole = isinstance(value, int)
        ints = {"time": time, "start": start, "whole": value if isinstance(value, int) else 0, "count": count}
        for name, number in ints.items():
            self._ints[name].append(number if _LEAST <= number <= _MOST else 0)
        if metric.form not in self._forms:
            self._forms.append(metric.form)
        small = (
            self._names.setdefault(metric.name, len(self._names)),
            self._units.setdefault(metric.unit, len(self._units)),
            metric.kind,
            metric.temporality if metric.temporality in _TEMPORALITIES else UNSPECIFIED,
            metric.monotonic,
            whole,
            metric.resource_ix,
            metric.scope_ix,
            self._forms.index(metric.form),
        )
        for name, number in zip(_SMALL, small, strict=True):
            self._small[name].append(number)
        self._value.append(float("nan") if value is None else float(value))
        self._raws.append(raw)

    def finish(self, warnings: list[str]) -> MetricPoints:
        """Return the columns of all points, and with them what was left out."""
        arrays: dict[str, Any] = {name: np.array(values, np.int64) for name, values in self._ints.items()}
        for name, values in self._small.items():
            arrays[name] = np.array(values, _SMALL[name])
        return MetricPoints(
            **arrays,
            value=np.array(self._value, np.float64),
            names=list(self._names),
            units=list(self._units),
            resources=self._shared[0].values,
            scopes=self._shared[1].values,
            forms=self._forms,
            raws=self._raws,
            warnings=warnings,
        )


_SMALL: Final[dict[str, Any]] = {
    "name_ix": np.int32,
    "unit_ix": np.int32,
    "kind": np.int8,
    "temporality": np.int8,
    "monotonic": np.bool_,
    "is_whole": np.bool_,
    "resource_ix": np.int32,
    "scope_ix": np.int32,
    "form_ix": np.int8,
}


class _Shared:
    """Dicts, each once, found again by their raw form."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self._of_raw: dict[bytes, int] = {}
        self._of_value: dict[str, int] = {}

    def index(self, raw: bytes, decode: Decode) -> int:
        ix = self._of_raw.get(raw)
        if ix is None:
            value = decode(raw)
            ix = self._of_value.setdefault(repr(sorted(value.items())), len(self.values))
            if ix == len(self.values):
                self.values.append(value)
            self._of_raw[raw] = ix
        return ix
