# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of hosts are apart, as far as what happened on two of them tells.

A clock is a host's boot: processes of one host share it, however many ranks they are. Two clocks are tied by
what `clock_ties` finds in the spans: collectives that hosts leave together, and calls that one host answers
while another waits. Offsets go from a reference, that of the lowest rank (of other traces, of most roots),
from clock to clock; each tie adds its error. Where the clocks may as well agree nothing is shifted. Durations
are never changed, and what was read stays as it was: `Clocks.correct` returns other columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.clock_ties import Calls, Meetings, Tie
from grademl_otel.analyzers.model.columns import SpanColumns

_UNKNOWN: Final = 1 << 61
"""An error that no time reaches: the clocks are not tied."""
MARGIN: Final = 3
"""How many times the error of the clocks a difference across hosts must be, to be told."""
_MOST_SHIFT_NS: Final = 1 << 61
_OFFSET: Final = re.compile(r"([+-]?\d{1,12}(?:\.\d{1,6})?)(?:ms)?")
_SILENT_NS: Final = 600_000_000_000
"""How long a rank that goes on may not be heard of, with a margin."""
_HOST: Final = ("host.id", "host.name", "k8s.node.name")
"""What tells a machine, the best first."""


@dataclass(frozen=True)
class ClockRule:
    """What to do about clocks, as ``--clocks`` says."""

    shift: bool = True
    """Whether what the spans tell is applied; offsets are told either way."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Host -> what its clock shows more than the reference, in ns; goes before what the spans tell."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> ClockRule:
        """Return the rule of these values of ``--clocks``: auto, off, HOST=MS; ValueError for others."""
        shift, given = True, {}
        for text in texts:
            host, equals, offset = text.rpartition("=")
            if text in ("auto", "off"):
                shift = text == "auto"
                continue
            match = _OFFSET.fullmatch(offset)
            if not equals or not host or match is None:
                raise ValueError(f"{text!r} is neither auto, off, nor HOST=MS, as in node-1=-30.6")
            given[host] = round(float(match[1]) * 1e6)
        return cls(shift, given)


@dataclass(frozen=True)
class Clock:
    """One host's clock against the reference; times in ns."""

    host: str
    offset_ns: int
    """What it shows more than the reference."""
    error_ns: int | None
    """How far that may be off on either side; None where nothing ties it to the reference."""
    applied: bool
    """Whether its times are shifted by the offset."""
    pairs: int
    """Collectives or calls that tie it to another clock."""


@dataclass(frozen=True)
class Clocks:
    """The clocks of a run, or of traces."""

    clocks: list[Clock]
    """The reference first."""
    of_rank: dict[int, int]
    """Rank -> index into `clocks`; of a run."""
    of_resource: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Index of the resource -> index into `clocks`; -1 for those that were not looked at."""
    corrected: bool = False
    """Whether the times at hand are those that `correct` returned: there is nothing left to shift."""

    def shift(self, rank: IntArray) -> IntArray:
        """Return what to take from times of ``rank`` (an array) to compare them with the reference's."""
        if self.corrected:
            return np.zeros(len(rank), np.int64)
        return self._per_rank(rank, self._offsets)

    def error(self, rank: IntArray) -> IntArray:
        """Return by how much shifted times of ``rank`` may be off."""
        errors = [_UNKNOWN if clock.error_ns is None else clock.error_ns for clock in self.clocks]
        return self._per_rank(rank, errors)

    def number(self, rank: IntArray) -> IntArray:
        """Return the index into `clocks` of each ``rank`` (an array)."""
        return self._per_rank(rank, list(range(len(self.clocks))))

    @property
    def tied(self) -> bool:
        """Whether times of all ranks can be compared."""
        return all(clock.error_ns is not None for clock in self.clocks)

    @property
    def error_ns(self) -> int:
        """The largest error between any two ranks that can be compared."""
        errors = sorted((clock.error_ns or 0 for clock in self.clocks), reverse=True)
        return sum(errors[:2])

    @property
    def margin_ns(self) -> int:
        """What times of two hosts must differ by, at least, for anything to be said of it."""
        return MARGIN * self.error_ns

    def tell(self, ranks: Iterable[int], length_ns: int) -> bool:
        """Whether something of ``length_ns``, as a step, can be compared across ``ranks``."""
        numbers = {self.of_rank[rank] for rank in ranks}
        return len(numbers) < 2 or (self.tied and self.margin_ns < length_ns)

    @property
    def applied(self) -> bool:
        """Whether any clock is shifted."""
        return any(clock.applied for clock in self.clocks)

    def of_resource_ns(self, resource: int) -> int:
        """Return what is taken from the times of spans with this resource."""
        number = int(self.of_resource[resource]) if resource < len(self.of_resource) else -1
        return self._offsets[number] if number >= 0 else 0

    def correct(self, spans: SpanColumns) -> SpanColumns:
        """Return ``spans`` with the times that the reference showed; the same object if none differs."""
        if not self.applied:
            return spans
        taken = np.array([self.of_resource_ns(ix) for ix in range(len(spans.resources))], np.int64)
        shift = np.where(spans.possible, taken[spans.resource_ix], 0)
        return replace(spans, start=spans.start - shift, end=spans.end - shift)

    @property
    def _offsets(self) -> list[int]:
        return [clock.offset_ns if clock.applied else 0 for clock in self.clocks]

    def _per_rank(self, rank: IntArray, values: list[int]) -> IntArray:
        ranks, place = np.unique(rank, return_inverse=True)
        found: IntArray = np.array([values[self.of_rank[one]] for one in ranks.tolist()], np.int64)[place]
        return found


def clocks_of_run(
    spans: SpanColumns, ixs: IntArray, ranks: Sequence[int], rule: ClockRule | None = None
) -> Clocks:
    """Return the clocks of ``ranks`` of a run, whose spans are ``ixs``; the lowest has the reference."""
    named = _Named(spans, ixs)
    first: dict[int, int] = {}
    for resource in named.resources:
        first.setdefault(_rank(spans.resources[resource]), resource)
    of_rank = {rank: named.number(first.get(rank)) for rank in ranks}
    found = _tied(named, rule or ClockRule())
    if rule is None or rule.shift:
        found = replace(found, clocks=_at_one_time(found, spans, ixs))
    return replace(found, of_rank=of_rank)


def clocks_of_traces(spans: SpanColumns, rule: ClockRule | None = None) -> Clocks:
    """Return the clocks of all ``spans``; that of most roots is the reference.

    So it is among those that nothing ties to that one: they are in other traces, whose times nobody compares.
    """
    named = _Named(spans, np.flatnonzero(spans.possible))
    roots = spans.resource_ix[(spans.parent_ix < 0) & spans.possible]
    counted = np.bincount(roots, minlength=len(spans.resources))
    of_key: dict[str, int] = {}
    for resource in named.resources:
        key = clock_key(spans.resources[resource])[0]
        of_key[key] = of_key.get(key, 0) + int(counted[resource])
    for resource in sorted(named.resources, key=lambda ix: -of_key[clock_key(spans.resources[ix])[0]]):
        named.number(resource)
    return _tied(named, rule or ClockRule(), apart=True)


def clock_key(resource: Mapping[str, Any]) -> tuple[str, str]:
    """Return (what tells the clock from others, the name of its host) of a resource."""
    host = str(resource.get("host.name") or "")
    boot = resource.get(semconv.CLOCK_ID)
    if isinstance(boot, str) and boot:
        return boot, host or boot
    for name in _HOST:
        machine = resource.get(name)
        if isinstance(machine, str) and machine:
            return f"{name}={machine}", host or machine
    service = str(resource.get("service.name") or "")
    instance = str(resource.get("service.instance.id") or "")
    return f"service={service}/{instance}", service


class _Named:
    """The clocks of some spans, numbered in the order in which they are asked for."""

    def __init__(self, spans: SpanColumns, ixs: IntArray) -> None:
        self.spans, self.ixs = spans, ixs
        self.resources: list[int] = np.unique(spans.resource_ix[ixs]).tolist()
        self.keys: dict[str, int] = {}
        self.hosts: list[str] = []
        self.of_resource: IntArray = np.full(len(spans.resources), -1, np.int64)

    def number(self, resource: int | None) -> int:
        """Return the number of the clock of ``resource``; of None that of those of which nothing is known."""
        key, host = clock_key(self.spans.resources[resource]) if resource is not None else ("", "")
        if key not in self.keys:
            self.keys[key] = len(self.hosts)
            self.hosts.append(host)
        if resource is not None:
            self.of_resource[resource] = self.keys[key]
        return self.keys[key]


def _tied(named: _Named, rule: ClockRule, apart: bool = False) -> Clocks:
    for resource in named.resources:
        named.number(resource)
    clocks = [Clock(host, 0, None, False, 0) for host in named.hosts]
    if clocks:
        clocks[0] = replace(clocks[0], error_ns=0)
    if len(clocks) > 1:
        clocks = _reach(clocks, _Ties(named.spans, named.ixs, named.of_resource), rule, apart)
    return Clocks(clocks, {}, named.of_resource)


class _Ties:
    """All that ties two of the clocks."""

    def __init__(self, spans: SpanColumns, ixs: IntArray, of_resource: IntArray) -> None:
        self._kinds = (Meetings.of_spans(spans, ixs, of_resource), Calls.of_spans(spans, ixs, of_resource))
        self._neighbours: dict[int, set[int]] = {}
        for kind in self._kinds:
            for one, other in kind.neighbours():
                self._neighbours.setdefault(one, set()).add(other)

    def firsts(self, clocks: Sequence[Clock]) -> set[int]:
        """Return the first of each set of ``clocks`` that met, if by way of others, where none is known."""
        firsts: set[int] = set()
        seen: set[int] = set()
        for number in range(len(clocks)):
            if number in seen:
                continue
            met, unseen = {number}, [number]
            while unseen:
                others = self._neighbours.get(unseen.pop(), set()) - met
                met |= others
                unseen += others
            seen |= met
            if all(clocks[one].error_ns is None for one in met):
                firsts.add(number)
        return firsts

    def of(self, number: int, known: Mapping[int, Clock]) -> list[tuple[Clock, Tie]]:
        """Return the closest tie of clock ``number`` to each of the ``known`` ones that it met."""
        ties = []
        for other in sorted(self._neighbours.get(number, set()) & known.keys()):
            found = [tie for kind in self._kinds if (tie := kind.between(number, other)) is not None]
            if found:
                ties.append((known[other], min(found, key=lambda tie: tie.error_ns)))
        return ties


def _reach(clocks: list[Clock], ties: _Ties, rule: ClockRule, apart: bool) -> list[Clock]:
    """Return ``clocks`` tied to the first: those that met it, then those that met one of these, ...

    Those that did not are tied to the first among them, where they may be ``apart`` from the others.
    """
    clocks = list(clocks)
    for number, clock in enumerate(clocks):
        if number and clock.host in rule.given:
            pairs = sum(tie.pairs for _, tie in ties.of(number, {0: clocks[0]}))
            offset = rule.given[clock.host]
            clocks[number] = replace(clock, offset_ns=offset, error_ns=0, applied=offset != 0, pairs=pairs)
    firsts = ties.firsts(clocks) if apart else set()
    while True:
        known = {
            number: clock
            for number, clock in enumerate(clocks)
            if clock.error_ns is not None or number in firsts
        }
        found = {
            number: _tie(clocks[number], met, rule)
            for number in range(len(clocks))
            if number not in known and (met := ties.of(number, known))
        }
        if not found:
            return clocks
        for number, clock in found.items():
            clocks[number] = clock


def _at_one_time(found: Clocks, spans: SpanColumns, ixs: IntArray) -> list[Clock]:
    """Return the clocks; those that nothing ties, and that show another time altogether, beside the first.

    Ranks of several hosts begin by agreeing on the run's name: there was a moment at which all of them ran. A
    rank whose run span is missing may have run longer than what is here of it, but is heard of every minute.
    """
    of_run = np.zeros(len(ixs), np.bool_)
    if semconv.RUN in spans.names:
        of_run = spans.name_ix[ixs] == spans.names.index(semconv.RUN)
    clock = found.of_resource[spans.resource_ix[ixs]]
    clocks = list(found.clocks)
    for number, one in enumerate(clocks):
        if one.error_ns is not None:
            continue
        mine, first = (_lifetime(spans, ixs[clock == at], of_run[clock == at]) for at in (number, 0))
        if mine is None or first is None:
            continue
        slack = mine[2] + first[2]
        low, high = mine[0] - first[1] - slack, mine[1] - first[0] + slack
        if low > 0 or high < 0:
            offset, error = (low + high) // 2, abs(high - low) // 2 + 1
            clocks[number] = replace(one, offset_ns=offset, error_ns=error, applied=True, pairs=1)
    return clocks


def _lifetime(
    spans: SpanColumns, ixs: IntArray, of_run: npt.NDArray[np.bool_]
) -> tuple[int, int, int] | None:
    """Return when all ranks of a clock, whose spans are ``ixs``, ran: start, end, what these may be off."""
    if not len(ixs):
        return None
    if of_run.any():
        return int(spans.start[ixs[of_run]].max()), int(spans.end[ixs[of_run]].min()), 0
    return int(spans.start[ixs].min()), int(spans.end[ixs].max()), _SILENT_NS


def _tie(clock: Clock, met: Sequence[tuple[Clock, Tie]], rule: ClockRule) -> Clock:
    """Return ``clock`` as tied to the one of those that it ``met`` which it met most."""
    reference, tie = max(met, key=lambda one: one[1].pairs)
    offset = tie.offset_ns + (reference.offset_ns if reference.applied else 0)
    error = tie.error_ns + (reference.error_ns or 0)
    agree = abs(offset) <= error if reference.applied else tie.may_agree
    if not rule.shift:
        error += abs(offset)
    applied = rule.shift and not agree and abs(offset) < _MOST_SHIFT_NS
    return replace(clock, offset_ns=offset, error_ns=error, applied=applied, pairs=tie.pairs)


def _rank(resource: Mapping[str, Any]) -> int:
    rank = resource.get(semconv.RANK, 0)
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else 0
