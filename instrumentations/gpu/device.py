# SPDX-License-Identifier: Apache-2.0
"""What every point of a GPU says of it, and its series: each made once."""

from __future__ import annotations

from collections.abc import Collection

from grademl_otel.catalog.metric import Metric
from grademl_otel.convert.spans import Attributes, Value
from grademl_otel.sampling.source import Series


class Device:
    """A GPU or an instance of one; ``id`` is its UUID, ``attributes`` are those of all its points."""

    def __init__(self, id: str, attributes: Attributes) -> None:
        self.id = id
        self.attributes: Attributes = {"hw.id": id, "hw.type": "gpu", **attributes}
        self._series: dict[tuple[Metric, tuple[Value, ...]], Series] = {}

    def series(self, metric: Metric, *values: Value, capacity: float | None = None) -> Series:
        """Return the series of ``metric``; ``values`` are those of its attributes, in their order.

        Attributes at the end of which no value is given are left out. ``capacity`` is set anew if given.
        """
        series = self._series.get((metric, values))
        if series is None:
            own = dict(zip(metric.attributes, values))  # noqa: B905
            series = Series(metric, {**self.attributes, **own}, self.id)
            self._series[metric, values] = series
        if capacity is not None:
            series.capacity = capacity
        return series

    def keep(self, metric: Metric, values: Collection[tuple[Value, ...]]) -> None:
        """Forget the series of ``metric`` with other values than these: what they were of is no more."""
        for key in [key for key in self._series if key[0] is metric and key[1] not in values]:
            del self._series[key]


def pci_id(text: str) -> str:
    """Return a PCI address as Linux writes it: 0000:07:00.0."""
    domain, separator, rest = text.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}" if separator and not domain[:-4].strip("0") else text.strip().lower()


def pcie_rate(generation: int, lanes: int) -> float | None:
    """Return what a link can carry in one direction, in By/s, without the overhead of its encoding."""
    of_lane = _OF_LANE.get(generation)
    return of_lane * lanes if of_lane is not None else None


_OF_LANE = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
"""By/s; generations 1 and 2 send 10 bits for 8, later ones 130 for 128, the sixth packets of 256 bytes."""
