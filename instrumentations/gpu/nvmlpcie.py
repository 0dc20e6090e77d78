# SPDX-License-Identifier: Apache-2.0
"""Bytes over PCIe.

Drivers that count give 32 bits: on a link of 63 GB/s they begin again 15 times a second, and two readings
tell the remainder only. Where the link can carry as much, the counters are read twice, 20 ms apart (nobody
sleeps for that: `PcieBytes.rest_after_s`), and the rate in between tells how often they have begun again
since the last reading. So the total is exact while the traffic is steady, and an estimate otherwise. Where
nothing is counted there is only a rate, of 20 ms as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from grademl_otel.catalog import gpu as catalog
from grademl_otel.catalog.metric import Metric
from grademl_otel.convert.spans import Value
from grademl_otel.instrumentations.gpu import nvml, plausible
from grademl_otel.instrumentations.gpu.device import Device
from grademl_otel.instrumentations.gpu.nvmlfields import Field, Fields, value
from grademl_otel.instrumentations.gpu.plausible import Implausible, Total, within
from grademl_otel.instrumentations.gpu.probes import Verdict
from grademl_otel.sampling.source import Reading


@dataclass(frozen=True, slots=True)
class _Way:
    metric: Metric
    direction: str
    field: Field
    """Of its counter."""
    number: int
    """Of its rate."""


_WAYS: Final = (
    _Way(catalog.PCIE_RECEIVE, "receive", (198, 0), 1),
    _Way(catalog.PCIE_TRANSMIT, "transmit", (197, 0), 0),
)
_FIELDS: Final = tuple(way.field for way in _WAYS)
_MODULUS: Final = 1 << 32
_WINDOW_S: Final = 0.02
_TRIES: Final = 3
"""For a window that is short enough; a busy host may come late to its end."""
_PAUSE_S: Final = 20.0
_PAUSE: Final = 3.0
"""What is longer than both this and so many times the shortest time between two readings is a pause, of which
nothing is known."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Between two looks at the counters: each what they said, and when."""

    at: float
    raws: Sequence[int]
    """What the reading is about."""
    began: float
    begin: Sequence[int]
    """The first look, or, of a window that became too long, the look at its end."""
    tries: int
    """That are left."""


class PcieBytes:
    """The totals of one GPU; they go on when the library is initialized anew."""

    def __init__(self, device: Device) -> None:
        self.capacity: float | None = None
        """By/s in one direction; None as long as nobody knows."""
        self._device = device
        self._counted = tuple(Wrapping() for _ in _WAYS)
        self._summed = tuple(Summed() for _ in _WAYS)
        self._window: _Window | None = None
        self._fields: Fields | None = None

    @property
    def rest_after_s(self) -> float:
        """Seconds until `read_rest` is due; 0 where the last reading is complete."""
        return 0.0 if self._window is None else _WINDOW_S

    def forget(self) -> None:
        """Leave the last reading as it is."""
        self._window = None

    def open(self, api: Any, handle: object) -> Callable[[], Sequence[Reading]]:
        """Return what reads both totals of a GPU from now on, or begins to; it raises NVMLError and
        `Implausible`.

        What fails is taken for counting. Raises NVMLError for what means the device as a whole.
        """
        for total in self._counted:
            total.restart()
        fields = Fields(api, handle, _FIELDS)
        try:
            _ask(api, fields)
        except Exception as error:
            verdict = nvml.verdict(error)
            if verdict is Verdict.DEVICE:
                raise
            if verdict is Verdict.UNSUPPORTED:
                return partial(self._read_rates, api, handle)
        return partial(self._read_counters, api, fields)

    def _read_counters(self, api: Any, fields: Fields) -> Sequence[Reading]:
        at, raws = _ask(api, fields)
        if any(total.is_ambiguous(at, self._most) for total in self._counted):
            self._fields = fields
            self._window = _Window(at, raws, at, raws, _TRIES)
            return ()
        return self._counted_until(at, raws, (None, None))

    def read_rest(self, api: Any) -> Sequence[Reading]:
        """Look again, at the end of a window; raises NVMLError and `Implausible`.

        Where that comes too late, there is another window, at most so many in all.
        """
        window, fields = self._window, self._fields
        self._window = None
        if window is None or fields is None:
            return ()
        later, now = _ask(api, fields)
        seconds = later - window.began
        if seconds * self._most < _MODULUS:
            rates = [(end - begin) % _MODULUS / seconds for begin, end in zip(window.begin, now, strict=True)]
            return self._counted_until(window.at, window.raws, rates)
        if window.tries == 1:
            return self._counted_until(window.at, window.raws, (None, None))
        self._window = _Window(window.at, window.raws, later, now, window.tries - 1)
        return ()

    @property
    def _most(self) -> float:
        return plausible.PCIE_RATE if self.capacity is None else self.capacity

    def _counted_until(
        self, at: float, raws: Sequence[int], rates: Sequence[float | None]
    ) -> Sequence[Reading]:
        readings: list[Reading] = []
        for total, raw, rate, way in zip(self._counted, raws, rates, _WAYS, strict=True):
            total.add(raw, at, rate, self._most)
            readings.append(self._reading(way, total.total, is_estimated=not total.is_wide))
        return readings

    def _read_rates(self, api: Any, handle: object) -> Sequence[Reading]:
        readings: list[Reading] = []
        for total, way in zip(self._summed, _WAYS, strict=True):
            kilobytes = api.nvmlDeviceGetPcieThroughput(handle, way.number)
            within(kilobytes, plausible.PCIE_KILOBYTES, "a throughput of PCIe")
            total.add(kilobytes * 1000, time.perf_counter())
            readings.append(self._reading(way, round(total.total), is_estimated=True))
        return readings

    def _reading(self, way: _Way, total: int, is_estimated: bool) -> Reading:
        told: tuple[Value, ...] = (way.direction, "pcie", *([True] if is_estimated else []))
        return self._device.series(way.metric, *told, capacity=self.capacity), total


def _ask(api: Any, fields: Fields) -> tuple[float, list[int]]:
    """Return when, in seconds, and what the counters say. Raises NVMLError, `Implausible`."""
    answers = fields.read()
    at = time.perf_counter()
    for _, result, _ in answers:
        if result:
            raise api.NVMLError(result)
    return at, [value(kind, content) for kind, _, content in answers]


class _Pauses:
    """Tells pauses from the usual time between two readings, whatever that is."""

    __slots__ = ("_usual",)

    def __init__(self) -> None:
        self._usual = math.inf

    def is_one(self, seconds: float) -> bool:
        self._usual = min(self._usual, seconds)
        return seconds > max(_PAUSE_S, _PAUSE * self._usual)


class Summed:
    """What passed at a rate that each reading tells, taken for all of the time since the last one."""

    __slots__ = ("_at", "_pauses", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self._at: float | None = None
        self._pauses = _Pauses()

    def add(self, rate: float, at: float) -> None:
        """Take what passes in a second at ``at``, in seconds."""
        if self._at is not None and not self._pauses.is_one(at - self._at):
            self.total += rate * (at - self._at)
        self._at = at


class Wrapping:
    """What a counter of 32 bits has counted since it was first read, however often it began again.

    One that says more than 32 bits hold is wide: it never begins again. That is believed at once at first,
    later when it is said twice; the total begins anew then.
    """

    __slots__ = ("_at", "_last", "_odd", "_pauses", "_rate", "_wide", "is_wide", "total")

    def __init__(self) -> None:
        self._pauses = _Pauses()
        self._begin(is_wide=False)

    def _begin(self, is_wide: bool) -> None:
        self.total = 0
        self.is_wide = is_wide
        self._wide = Total(plausible.BYTE_RATE)
        self._last: int | None = None
        self._at = 0.0
        self._rate: float | None = None
        self._odd = False

    def restart(self) -> None:
        """What it says next has nothing to do with what it said last."""
        self._last = self._rate = None

    def is_ambiguous(self, at: float, most: float) -> bool:
        """Whether it may have begun again more than once by ``at``, where it counts ``most`` in a second."""
        return not self.is_wide and self._last is not None and (at - self._at) * most >= _MODULUS

    def add(self, raw: int, at: float, rate: float | None, most: float) -> None:
        """Take what it says at ``at``, in seconds, and what it counts in a second just now, if that is known.

        Raises `Implausible`.
        """
        is_wide = raw >= _MODULUS
        if not 0 <= raw < 1 << 63 or (is_wide != self.is_wide and self._at and not self._odd):
            self._odd = True
            raise Implausible(f"a counter of {raw}")
        if is_wide != self.is_wide:
            self._begin(is_wide)
        if is_wide:
            self.total = self._wide.add(raw, at)
        elif self._last is not None and not self._pauses.is_one(at - self._at):
            self.total += self._grown(raw, self._last, at - self._at, rate, most)
        self._last, self._at, self._rate, self._odd = raw, at, rate, False

    def _grown(self, raw: int, last: int, seconds: float, rate: float | None, most: float) -> int:
        remainder = (raw - last) % _MODULUS
        rates = [each for each in (self._rate, rate) if each is not None]
        if seconds * most < _MODULUS or not rates:
            return remainder
        expected = min(sum(rates) / len(rates), most) * seconds
        return remainder + round(max(0.0, expected - remainder) / _MODULUS) * _MODULUS
