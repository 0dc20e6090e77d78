# SPDX-License-Identifier: Apache-2.0
"""Network interfaces: their traffic from ``/proc/net/dev``, what they are from ``/sys/class/net``.

Which of them: all that stand on hardware, ``lo``, and what a container has in their place. What stands on
others (bonds, bridges, VLANs), and the hosts' ends of containers' interfaces, would count the same bytes
again. See docs/interconnect.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from grademl_otel.catalog import interconnect as catalog
from grademl_otel.catalog.metric import Metric
from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.interconnect.files import number, read_all, read_bytes, shown
from grademl_otel.instrumentations.interconnect.link import interface_limit
from grademl_otel.sampling.counters import Running, dips
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import Reading, Series, Source

_MOST: Final = 64
"""Interfaces that are reported one by one; of more, the busiest."""
_MANY: Final = 256
"""Where there are more, ``/proc/net/dev`` takes the kernel longer than files of those that are reported."""
_RARELY: Final = 10
"""Each so many readings it is looked what interfaces there are, and how fast they are."""
_RARELY_OF_MANY: Final = 60
_MOST_BYTES: Final = 16_000_000
_FIELDS: Final = 12
"""At least so many numbers has a line."""
_LOOPBACK: Final = "lo"
_OTHERS: Final = "others"
_ETHERNET: Final = b"1"
_INFINIBAND: Final = b"32"
_ANYWHERE: Final = b"00000000"

_COLUMNS: Final[tuple[tuple[int, str, Metric, str], ...]] = (
    (0, "rx_bytes", catalog.RECEIVED, catalog.RECEIVE),
    (8, "tx_bytes", catalog.TRANSMITTED, catalog.TRANSMIT),
    (1, "rx_packets", catalog.PACKETS, catalog.RECEIVE),
    (9, "tx_packets", catalog.PACKETS, catalog.TRANSMIT),
    (2, "rx_errors", catalog.INTERFACE_ERRORS, catalog.RECEIVE),
    (10, "tx_errors", catalog.INTERFACE_ERRORS, catalog.TRANSMIT),
    (3, "rx_dropped", catalog.DROPPED, catalog.RECEIVE),
    (11, "tx_dropped", catalog.DROPPED, catalog.TRANSMIT),
)
"""Place in a line of ``/proc/net/dev``, file in ``statistics``, metric, direction. Bytes first."""
_PLACES: Final = tuple(place for place, _, _, _ in _COLUMNS)
_BYTES: Final = _PLACES[:2]
"""These are read every time, the others when it is looked what there is."""


class _Interface:
    """One that is reported by itself."""

    __slots__ = ("_line", "_numbers", "_paths", "_readings", "_runnings", "physical", "series")

    def __init__(self, name: str, folder: str, physical: bool):
        self.physical = physical
        device = shown(name)
        self._paths = [f"{folder}/{name}/statistics/{_COLUMNS[column][1]}" for column in range(len(_BYTES))]
        self._runnings = [Running() for _ in _COLUMNS]
        self.series = [
            Series(metric, {catalog.INTERFACE: device, catalog.DIRECTION: direction}, device)
            for _, _, metric, direction in _COLUMNS
        ]
        self._line = b""
        self._numbers = [-1] * len(_COLUMNS)
        """What it said last, and in the following what that came to."""
        self._readings: list[Reading] = [(series, 0) for series in self.series]

    def limit(self, limit: float | None) -> None:
        """Set what it carries, in By/s."""
        self.series[0].capacity = self.series[1].capacity = limit

    def of_line(self, line: bytes, whole: bool) -> list[Reading]:
        """Return its readings, of the ``whole`` line or of bytes alone: what is not read stands as it was.

        Raises ValueError where there are no numbers.
        """
        if whole or line != self._line:
            self._of_numbers(_numbers(line, _PLACES if whole else _BYTES))
            self._line = line
        return self._readings

    def of_files(self) -> list[Reading]:
        """Return the same from its files, of bytes alone. Raises OSError, ValueError."""
        self._line = b""
        self._of_numbers([_number(read_bytes(path)) for path in self._paths])
        return self._readings

    def _of_numbers(self, numbers: list[int]) -> None:
        """Take the numbers of all columns, or of the first ones."""
        readings = self._readings.copy()
        for column, raw in enumerate(numbers):
            if raw != self._numbers[column]:  # errors and drops seldom change
                readings[column] = self.series[column], self._runnings[column].add(raw)
                self._numbers[column] = raw
        self._readings = readings


class _Others:
    """All that are not reported by themselves, as one."""

    def __init__(self) -> None:
        self._members: dict[str, list[int]] = {}
        """What each said last."""
        self._totals = [0] * len(_COLUMNS)
        self._series = [
            Series(metric, {catalog.INTERFACE: _OTHERS, catalog.DIRECTION: direction}, _OTHERS)
            for _, _, metric, direction in _COLUMNS
        ]

    def read(self, lines: dict[str, bytes]) -> list[Reading]:
        """Return the readings of all of ``lines`` together."""
        members: dict[str, list[int]] = {}
        for name, line in lines.items():
            try:
                numbers = _numbers(line)
            except ValueError:
                if name not in self._members:
                    continue
                numbers = self._members[name]
            members[name] = numbers
            for column, (now, before) in enumerate(
                zip(numbers, self._members.get(name, numbers), strict=True)
            ):
                if now >= before:
                    self._totals[column] += now - before
                elif dips(before, now):
                    numbers[column] = before
                else:
                    self._totals[column] += now
        self._members = members
        return list(zip(self._series, self._totals, strict=True))


def _number(text: bytes) -> int:
    value = number(text)
    if value is None:
        raise ValueError(f"no number: {text[:40]!r}")
    return value


def _numbers(line: bytes, places: tuple[int, ...] = _PLACES) -> list[int]:
    fields = line.split()
    if len(fields) < _FIELDS:
        raise ValueError(f"a line of {len(fields)} numbers")
    numbers = [fields[place] for place in places]
    if not b"".join(numbers).isdigit():
        raise ValueError(f"no numbers: {line[:80]!r}")
    return list(map(int, numbers))


class Traffic:
    """The source of what passes through interfaces."""

    name = "network"

    def __init__(self, dev: str, routes: str, folder: str):
        """``dev`` and ``routes`` are the paths of ``/proc/net/dev`` and ``route``, ``folder`` of
        ``/sys/class/net``.
        """
        self._dev = dev
        self._routes = routes
        self._folder = folder
        self._chosen: dict[str, _Interface] = {}
        self._rest: frozenset[str] = frozenset()
        self._physical: dict[str, bool] = {}
        self._own: dict[str, bool] = {}
        """Both of those that are there."""
        self._others = _Others()
        self._by_files = False
        self._until_survey = 0
        self._counts = {
            kind: Series(catalog.DEVICES, _counted_as(kind), "network")
            for kind in ("single", "summed", "omitted")
        }
        self._devices: list[Reading] = []

    @property
    def chosen(self) -> dict[str, _Interface]:
        """Those that are reported one by one now, by the name of the file; replaced when they change."""
        return self._chosen

    def read(self) -> list[Reading]:
        """Return what passed since the first reading. Raises OSError; ValueError where it reads no number."""
        found: list[Reading] = []
        problem: Exception | None = None
        if self._until_survey > 0 and self._by_files:
            self._until_survey -= 1
            for interface in self._chosen.values():
                try:
                    found += interface.of_files()
                except (OSError, ValueError) as error:
                    problem = error
        else:
            lines = _lines(read_all(self._dev, _MOST_BYTES))
            whole = self._until_survey <= 0 or not self._chosen.keys() <= lines.keys()
            if whole:
                self._of_rest(lines)  # whoever is told of by itself from now on, was not until now
                self._survey(lines)
            self._until_survey -= 1
            for name, interface in self._chosen.items():
                try:
                    found += interface.of_line(lines[name], whole)
                except ValueError as error:
                    problem = error
            found += self._of_rest(lines)
        if problem is not None:
            self._until_survey = 0
            if not found:
                raise problem
        return found + self._devices

    def close(self) -> None:
        """It holds nothing."""

    def _of_rest(self, lines: dict[str, bytes]) -> list[Reading]:
        if not self._rest:
            return []
        return self._others.read({name: lines[name] for name in self._rest & lines.keys()})

    def _survey(self, lines: dict[str, bytes]) -> None:
        """Choose anew: those that were reported by themselves stay so while they are there."""
        known = self._physical
        self._physical = {
            name: known[name] if name in known else os.path.lexists(f"{self._folder}/{name}/device")
            for name in lines
        }
        # Of few it is looked at anew: a bridge gets what it stands on.
        self._own = {
            name: is_own for name, is_own in self._own.items() if name in lines and len(lines) > _MANY
        }
        worth = self._worth(lines)
        chosen = {name: interface for name, interface in self._chosen.items() if name in worth}
        fresh = [name for name in lines if name in worth and name not in chosen]
        if len(worth) > _MOST:
            fresh.sort(
                key=lambda name: _bytes(lines[name]), reverse=True
            )  # where equal, in the kernel's order
        for name in fresh[: max(0, _MOST - len(chosen))]:
            chosen[name] = _Interface(name, self._folder, self._physical[name])
        self._rest = frozenset(worth - chosen.keys())
        if _LOOPBACK in lines:
            chosen[_LOOPBACK] = self._chosen.get(_LOOPBACK) or _Interface(_LOOPBACK, self._folder, False)
        self._chosen = chosen
        self._by_files = (
            len(lines) > _MANY
            and not self._rest
            and all(os.path.exists(f"{self._folder}/{name}/statistics") for name in chosen)
        )
        self._until_survey = _RARELY_OF_MANY if self._by_files else _RARELY
        omitted = len(lines) - len(chosen) - len(self._rest)
        numbers = {"single": len(chosen), "summed": len(self._rest), "omitted": omitted}
        self._devices = [(self._counts[kind], value) for kind, value in numbers.items()]

    def _worth(self, names: Iterable[str]) -> set[str]:
        """Return those whose bytes are told of, but for `lo`."""
        physical = {name for name, is_physical in self._physical.items() if is_physical}
        virtual = {name for name in names if name not in physical and name != _LOOPBACK}
        routed, by_default = self._routed()
        if physical:
            # A host, or a container that has a card beside the interface that it was given.
            return physical | {name for name in by_default & virtual if self._is_own(name)}
        own = {name for name in routed & virtual if self._is_own(name)}
        return own or {name for name in virtual if self._is_own(name)}

    def _routed(self) -> tuple[set[str], set[str]]:
        """Return the interfaces that have routes, and those that have a default route."""
        try:
            lines = read_all(self._routes, _MOST_BYTES).splitlines()[1:]
        except OSError:
            return set(), set()
        routes = [fields for line in lines if len(fields := line.split()) > 7]
        defaults = {os.fsdecode(fields[0]) for fields in routes if fields[1] == fields[7] == _ANYWHERE}
        return {os.fsdecode(fields[0]) for fields in routes}, defaults

    def _is_own(self, name: str) -> bool:
        """Whether a virtual interface is an end of a link, and no way to others that are told of."""
        if name not in self._own:
            self._own[name] = self._look_at(name)
        return self._own[name]

    def _look_at(self, name: str) -> bool:
        folder = f"{self._folder}/{name}"
        try:
            kind = read_bytes(f"{folder}/type").strip()
            on_others = any(each.startswith("lower_") for each in os.listdir(folder))
        except OSError:
            return True  # there is no /sys: nothing is known
        return kind in (_ETHERNET, _INFINIBAND) and not on_others


def _counted_as(kind: str) -> Attributes:
    return {catalog.DEVICE_KIND: "interface", catalog.REPORTING: kind}


def _lines(data: bytes) -> dict[str, bytes]:
    """Return the numbers of each line of ``/proc/net/dev``, by the name of its interface."""
    lines: dict[str, bytes] = {}
    for line in data.splitlines()[2:]:
        name, colon, numbers = line.rpartition(b":")
        if colon:
            lines[os.fsdecode(name.strip())] = numbers
    return lines


def _bytes(line: bytes) -> int:
    try:
        received, transmitted, *_ = _numbers(line)
    except ValueError:
        return -1
    return received + transmitted


class Links:
    """The source of what links are: apart from what passes, since asking a driver for it can take long."""

    name = "network links"

    def __init__(self, traffic: Traffic, folder: str):
        self._traffic = traffic
        self._folder = folder
        self._series: dict[str, tuple[Series, Series]] = {}
        self._found: list[Reading] = []
        self._of: dict[str, _Interface] | None = None
        self._until_look = 0

    def read(self) -> list[Reading]:
        """Return whether they are up, and what they carry, as it was when that was looked at."""
        chosen = self._traffic.chosen
        if self._until_look <= 0 or chosen is not self._of:
            self._found = self._look(chosen)
            self._of = chosen
            self._until_look = _RARELY
        self._until_look -= 1
        return self._found

    def close(self) -> None:
        """It holds nothing."""

    def _look(self, chosen: dict[str, _Interface]) -> list[Reading]:
        found: list[Reading] = []
        series: dict[str, tuple[Series, Series]] = {}
        for name, interface in chosen.items():
            if name == _LOOPBACK:
                continue
            series[name] = up, limit = self._series.get(name) or _of_link(shown(name))
            state = self._read(name, "operstate")
            by_s: float | None = None
            if interface.physical and state != b"down":  # the speed of a virtual one is made up
                by_s = interface_limit(number(self._read(name, "speed")))
            interface.limit(by_s)
            if by_s is not None:
                found.append((limit, by_s))
            if state and state != b"unknown":
                found.append((up, int(state == b"up")))
        self._series = series
        return found

    def _read(self, name: str, file: str) -> bytes:
        try:
            return read_bytes(f"{self._folder}/{name}/{file}").strip()
        except OSError:
            return b""  # EINVAL: it is down, or virtual


def _of_link(name: str) -> tuple[Series, Series]:
    attributes: Attributes = {"hw.id": name, "hw.type": "network", "hw.name": name}
    return Series(catalog.UP, attributes, name), Series(catalog.LIMIT, attributes, name)


class Interfaces:
    """Finds the interfaces of this host, or of the container it is."""

    name = "network"

    def __init__(self, roots: Roots):
        net = f"{roots.proc}/net"
        if str(roots.proc) != "/proc" and os.path.exists(f"{roots.proc}/1/net/dev"):
            # A host's /proc in a container: its `net` is that of whoever looks, the host's that of its first
            # process.
            net = f"{roots.proc}/1/net"
        self._dev = f"{net}/dev"
        folder = f"{roots.sys}/class/net"
        traffic = Traffic(self._dev, f"{net}/route", folder)
        self._sources: tuple[Source, ...] = (traffic, Links(traffic, folder))

    def sources(self) -> tuple[Source, ...]:
        """Return both sources, always the same; nothing where the kernel tells of no interfaces."""
        return self._sources if os.path.exists(self._dev) else ()

    def close(self) -> None:
        """It holds nothing."""
