# SPDX-License-Identifier: Apache-2.0
"""The counters of a GPU of NVIDIA: which field values each is made of, and what becomes of them.

Fields differ between generations: totals over all links where there are such, else a field of each link, and
these are added up. What a GPU has is found out once (`supported`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grademl_otel.catalog import gpu as catalog
from grademl_otel.catalog.metric import COUNTER, Metric
from grademl_otel.convert.spans import Value
from grademl_otel.instrumentations.gpu import nvml, plausible
from grademl_otel.instrumentations.gpu.device import Device
from grademl_otel.instrumentations.gpu.nvmlfields import ALL, Answer, Field, Fields, value
from grademl_otel.instrumentations.gpu.plausible import Total, within
from grademl_otel.instrumentations.gpu.probes import Verdict
from grademl_otel.sampling.source import Reading

Failed = Callable[[str, Exception], None]
"""Told of what failed by itself: a name and the error."""

EVERY_LINK: Final = 0xFFFFFFFE
"""As a scope: the field of each link, added up."""
_LINK_COUNT: Final = 91
_LINK_SPEED, _LINK_SPEED_OF, _LINK_STATE = 90, 164, 165
_ACTIVE: Final = (1, 3)
_MOST_LINKS: Final = 36
"""Of one GPU; the newest have 18."""


@dataclass(frozen=True, slots=True)
class Group:
    """What becomes a point: ``alternatives`` are fields that say the same, the better first."""

    name: str
    metric: Metric
    values: tuple[Value, ...]
    """Of the attributes of the metric."""
    alternatives: tuple[tuple[tuple[Field, ...], int], ...]
    """Fields that are added up, and the factor between what they count and what ``unit`` is of."""
    rate: float = 0
    """The most that the counter can count in a second, after the factor; of a gauge the most it can be."""
    unit: float = 1
    """What is exported is what was counted times this."""
    every: int = 1

    @property
    def is_energy(self) -> bool:
        return self.metric is catalog.ENERGY


def _one(number: int, scope: int = 0, factor: int = 1) -> tuple[tuple[Field, ...], int]:
    return ((number, scope),), factor


def _nvlink(metric: Metric, direction: str, *fields: tuple[tuple[Field, ...], int]) -> Group:
    values = (direction, "nvlink")
    return Group(f"nvlink {direction}", metric, values, fields, plausible.BYTE_RATE)


def _errors(kind: str, *fields: tuple[tuple[Field, ...], int], every: int = 10) -> Group:
    return Group(kind, catalog.ERRORS, (kind,), fields, plausible.ERROR_RATE, 1, every)


def _throttle(reason: str, *numbers: int) -> Group:
    fields = tuple(_one(number) for number in numbers)
    return Group(
        f"time of {reason}", catalog.THROTTLE_TIME, (reason,), fields, plausible.NANOSECOND_RATE, 1e-9
    )


_GROUPS: Final = (
    Group("memory temperature", catalog.TEMPERATURE, ("memory",), (_one(82),), plausible.CELSIUS),
    Group("energy", catalog.ENERGY, (), (_one(83),), plausible.MILLIJOULE_RATE, 1e-3),
    _nvlink(catalog.NVLINK_RECEIVE, "receive", _one(139, ALL, 1024), _one(204, ALL), _one(204, EVERY_LINK)),
    _nvlink(catalog.NVLINK_TRANSMIT, "transmit", _one(138, ALL, 1024), _one(202, ALL), _one(202, EVERY_LINK)),
    _throttle("sw_power_cap", 74),
    _throttle("sync_boost", 76),
    _throttle("sw_thermal_slowdown", 269),
    _throttle("hw_thermal_slowdown", 270),
    _throttle("hw_power_brake", 271),
    _errors("ecc.corrected", _one(3), every=1),
    _errors("ecc.uncorrected", _one(4), every=1),
    _errors("pcie.replay", _one(94)),
    _errors("nvlink.crc", (((38, 0), (45, 0)), 1), _one(163, EVERY_LINK)),
    _errors("nvlink.replay", _one(52), _one(161, EVERY_LINK)),
    _errors("nvlink.recovery", _one(59), _one(162, EVERY_LINK), _one(215, EVERY_LINK)),
    Group("corrected remaps", catalog.REMAPPED_ROWS, ("ecc.corrected",), (_one(142),), 1 << 20, 1, 60),
    Group("uncorrected remaps", catalog.REMAPPED_ROWS, ("ecc.uncorrected",), (_one(143),), 1 << 20, 1, 60),
)


class Counters:
    """Totals of one GPU; they go on when the library is initialized anew."""

    def __init__(self, device: Device) -> None:
        self.nvlink_capacity: float | None = None
        """By/s in one direction; None as long as nobody knows."""
        self._device = device
        self._totals: dict[str, Total] = {}
        self._fields: dict[str, tuple[Field, ...]] = {}
        """What each of these is made of."""

    def begin(self, groups: Iterable[Group]) -> None:
        """Go on with these groups: a sum of other fields than before says nothing of the time in between."""
        for group in groups:
            ((fields, _),) = group.alternatives
            if self._fields.setdefault(group.name, fields) != fields:
                self._fields[group.name] = fields
                if group.name in self._totals:
                    self._totals[group.name].restart()

    def reading(self, group: Group, raw: int, at: float) -> Reading:
        """Return the point of ``group``, whose fields say ``raw``. Raises `Implausible`."""
        capacity = None
        if group.metric.kind != COUNTER:
            within(raw, group.rate, f"a {group.name}")
        else:
            total = self._totals.get(group.name)
            if total is None:
                total = self._totals[group.name] = Total(group.rate)
            raw = total.add(raw, at)
            if group.metric in (catalog.NVLINK_RECEIVE, catalog.NVLINK_TRANSMIT):
                capacity = self.nvlink_capacity
        series = self._device.series(group.metric, *group.values, capacity=capacity)
        return series, raw if group.unit == 1 else raw * group.unit

    def energy(self, millijoule: int) -> list[Reading]:
        """Return the energy of a GPU that has no field of it. Raises `Implausible`."""
        group = next(group for group in _GROUPS if group.is_energy)
        return [self.reading(group, millijoule, time.perf_counter())]


def supported(api: Any, handle: object, failed: Failed) -> list[Group]:
    """Return the groups that this GPU has, each with its first alternative that it supports.

    What fails otherwise is taken for supported. Raises NVMLError for what means the device as a whole.
    """
    links = _link_count(api, handle)
    candidates = [
        (group, fields, factor)
        for group in _GROUPS
        for each, factor in group.alternatives
        if (fields := _of_links(each, links))
    ]
    asked = list(dict.fromkeys(field for _, fields, _ in candidates for field in fields))
    try:
        answers = Fields(api, handle, asked).read()
    except Exception as error:
        verdict = nvml.verdict(error)
        if verdict is Verdict.DEVICE:
            raise
        if verdict is Verdict.UNSUPPORTED:
            return []
        failed("counters", error)
        answers = [(0, 0, bytes(8))] * len(asked)
    absent = {
        field
        for field, (_, result, _) in zip(asked, answers, strict=True)
        if result and nvml.verdict(api.NVMLError(result)) is Verdict.UNSUPPORTED
    }
    chosen: dict[str, Group] = {}
    for group, asked_for, factor in candidates:
        fields = asked_for
        if asked_for == _of_links([(asked_for[0][0], EVERY_LINK)], links):
            fields = tuple(field for field in asked_for if field not in absent)  # some may not be connected
        if group.name not in chosen and fields and not absent.intersection(fields):
            chosen[group.name] = Group(
                group.name,
                group.metric,
                group.values,
                ((fields, factor),),
                group.rate,
                group.unit,
                group.every,
            )
    return list(chosen.values())


class _Slot:
    """Where the answers for a group are, and what came of the last ones."""

    __slots__ = ("answered", "fields", "group", "reading")

    def __init__(self, group: Group, fields: slice) -> None:
        self.group = group
        self.fields = fields
        self.answered: list[Answer] | None = None
        self.reading: Reading | None = None


class Reader:
    """Reads groups in one call."""

    def __init__(
        self, api: Any, handle: object, groups: Iterable[Group], counters: Counters, failed: Failed
    ) -> None:
        self._api = api
        self._handle = handle
        self._counters = counters
        self._failed = failed
        self._slots: list[_Slot] = []
        self._keep(groups)

    def read(self) -> Sequence[Reading]:
        """Return a point of each group; what fails by itself is told to ``failed``."""
        readings: list[Reading] = []
        absent: list[Group] = []
        answers = self._fields.read()
        now = time.perf_counter()
        for slot in self._slots:
            answered = answers[slot.fields]
            if answered != slot.answered:  # most counters are those of errors, and stand still
                slot.answered = None
                try:
                    slot.reading = self._reading(slot.group, answered, now)
                except Exception as error:
                    verdict = nvml.verdict(error)
                    if verdict is Verdict.DEVICE:
                        raise
                    if verdict is Verdict.UNSUPPORTED:
                        absent.append(slot.group)
                    else:
                        self._failed(slot.group.name, error)
                    continue
                slot.answered = answered
            if slot.reading is not None:
                readings.append(slot.reading)
        if absent:
            self._keep([slot.group for slot in self._slots if slot.group not in absent])
        return readings

    def _reading(self, group: Group, answered: Sequence[Answer], now: float) -> Reading | None:
        raw = 0
        for kind, result, content in answered:
            if result:
                raise self._api.NVMLError(result)
            raw += value(kind, content)
        if not raw and group.metric is catalog.TEMPERATURE:
            return None  # so some say that they have no sensor
        return self._counters.reading(group, raw * group.alternatives[0][1], now)

    def _keep(self, groups: Iterable[Group]) -> None:
        self._slots.clear()
        asked: list[Field] = []
        for group in groups:
            fields = group.alternatives[0][0]
            self._slots.append(_Slot(group, slice(len(asked), len(asked) + len(fields))))
            asked += fields
        self._fields = Fields(self._api, self._handle, asked)


def active_links(api: Any, handle: object) -> tuple[int | None, float]:
    """Return how many NVLinks are active, None where there are none, and what they carry together in one
    direction, By/s; 0: unknown. Raises NVMLError.
    """
    count = _link_count(api, handle)
    if not count:
        return None, 0
    states = Fields(api, handle, [(_LINK_STATE, link) for link in range(count)]).read()
    speeds = Fields(api, handle, [(_LINK_SPEED_OF, link) for link in range(count)]).read()
    active = [link for link, state in enumerate(states) if _is_active(api, handle, link, state)]
    common = Fields(api, handle, [(_LINK_SPEED, 0)]).read()[0]
    megabytes = 0
    for link in active:
        kind, result, content = speeds[link] if not speeds[link][1] else common
        if result:
            return len(active), 0
        megabytes += within_speed(value(kind, content))
    return len(active), megabytes * 1e6


def _is_active(api: Any, handle: object, link: int, state: Answer) -> bool:
    kind, result, content = state
    if not result:
        return value(kind, content) in _ACTIVE
    try:
        return bool(api.nvmlDeviceGetNvLinkState(handle, link) == 1)
    except Exception as error:
        if nvml.verdict(error) is not Verdict.UNSUPPORTED:
            raise
        return False  # there is no such link on this board


def within_speed(megabytes: int) -> int:
    """Return the speed of a link, MB/s; raises `Implausible`."""
    return int(within(megabytes, 1_000_000, "a speed of a link"))


def _link_count(api: Any, handle: object) -> int:
    """Return how many NVLinks there are; 0 also where the driver does not tell."""
    try:
        kind, result, content = Fields(api, handle, [(_LINK_COUNT, 0)]).read()[0]
        count = 0 if result else value(kind, content)
    except Exception as error:
        if nvml.verdict(error) is Verdict.DEVICE:
            raise
        return 0
    return count if 0 <= count <= _MOST_LINKS else 0


def _of_links(fields: Sequence[Field], links: int) -> tuple[Field, ...]:
    """Return ``fields`` with `EVERY_LINK` spelled out; nothing without links, for what is of links."""
    found: list[Field] = []
    for number, scope in fields:
        if scope == EVERY_LINK:
            found += [(number, link) for link in range(links)]
        elif scope != ALL or links:
            found.append((number, scope))
    return tuple(found)
