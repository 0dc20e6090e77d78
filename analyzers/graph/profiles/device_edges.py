# SPDX-License-Identifier: Apache-2.0
"""What calls and streams wait for: kernels for their launch, calls for a device, streams for each other.

Where the profiler notes which stream or event a call waits for, that is observed. Else it is told by time:
the call ends within `SOON_NS` after work that was given to the device before. That is inferred, and the less
sure the more streams it could have been.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, FloatArray, IntArray
from grademl_otel.analyzers.graph.event_graph import DEVICE, Edges
from grademl_otel.analyzers.graph.path import ATTRIBUTE, INFERRED, OBSERVED
from grademl_otel.analyzers.graph.profiles.device_work import DeviceWork
from grademl_otel.analyzers.graph.profiles.flatten import LanePieces
from grademl_otel.analyzers.graph.profiles.profile_facts import STREAM, ProfileFacts, Sync
from grademl_otel.analyzers.model.columns import SpanColumns

SOON_NS: Final = 20_000
"""Within this a call returns after what it waited for ended, and a kernel starts after what held it up."""
SURE: Final = 0.9
"""Confidence in what is told by time, where only one stream fits."""

_NAME: Final = re.compile(r"(?:cuda|cu|hip|musa)([A-Z]\w*?)(?:_ptsz|_ptds|_v\d+)*$")
_OF_DEVICE: Final = frozenset({"DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize"})
_OF_STREAM: Final = frozenset({"StreamSynchronize"})
_OF_EVENT: Final = frozenset({"EventSynchronize"})
_COPIES: Final = frozenset(
    {"Memcpy", "MemcpyWithStream", "MemcpyDtoH", "MemcpyHtoD", "MemcpyDtoD", "Memcpy2D"}
)
"""Copies whose call returns when they are done."""
_BETWEEN_STREAMS: Final = frozenset({"StreamWaitEvent"})
_NO_NOTE: Final = Sync(None, -1, -1, -1, -1, -1)


@dataclass
class DeviceWaits:
    """Edges of devices, and which calls waited."""

    edges: list[Edges] = field(default_factory=list)
    waiting: list[IntArray] = field(default_factory=list)
    """Places of the calls that waited for a device, whether or not it is known for what."""
    copying: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Those of them that give it a copy first: until that begins they work."""


class DeviceEdges:
    """Finds the edges between the pieces of calls and those of ``work``."""

    def __init__(self, spans: SpanColumns, facts: ProfileFacts, pieces: LanePieces, work: DeviceWork) -> None:
        self._spans, self._facts, self._pieces, self._work = spans, facts, pieces, work
        self._start, self._end = spans.start[facts.ixs], spans.end[facts.ixs]
        self._lanes = [
            lane for lane in facts.streams.tolist() if work.of_lane(lane).stop > work.of_lane(lane).start
        ]
        self._first = pieces.within(work.lane, work.start)
        """Piece with which each work begins."""
        self._last = pieces.until(work.lane, work.end)
        names = [found.group(1) if (found := _NAME.match(name)) else "" for name in spans.names]
        self._names = np.array([*names, ""], object)
        self._notes = {(note.rank, note.correlation): note for note in facts.syncs if note.correlation >= 0}
        self._rank_of = [rank for rank, _ in facts.lanes]

    def all(self) -> DeviceWaits:
        """Return all edges of devices."""
        found = DeviceWaits([self._launches(), *self._between_streams()])
        self._of_device(found)
        self._of_streams(found)
        self._of_copies(found)
        return found

    def _launches(self) -> Edges:
        """A kernel starts no earlier than its launch; it may start while the call has yet to return."""
        work = self._work
        begun = self._start[work.launch]
        some = np.flatnonzero((work.launch >= 0) & (begun <= work.start) & (self._first >= 0))
        call = work.launch[some]
        at = np.minimum(self._end[call], work.start[some])
        lane = self._facts.lane[call]
        source = np.where(at > begun[some], self._pieces.until(lane, at), self._pieces.within(lane, at))
        known = source >= 0
        some = some[known]
        edges = Edges.of(DEVICE, source[known], at[known], self._first[some])
        return _with_evidence(edges, ~work.by_call[some], ATTRIBUTE)

    # --- Calls that wait ----------------------------------------------------------------------------------

    def _of_device(self, found: DeviceWaits) -> None:
        """A call that waits for a device ends no earlier than all that the device was given before."""
        calls = self._calls(_OF_DEVICE)
        waited = np.zeros(len(calls), np.bool_)
        device = np.array([self._note(call).device for call in calls.tolist()], np.int64)
        for lane in self._lanes:
            asked = np.flatnonzero(
                self._same_rank(calls, lane) & ((device < 0) | (device == self._device(lane)[1]))
            )
            before = self._given(lane, self._start[calls[asked]])
            waited[asked] |= self._busy_at(before, self._start[calls[asked]])
            found.edges.append(self._ended(calls[asked], before))
        found.waiting.append(calls[waited])

    def _of_streams(self, found: DeviceWaits) -> None:
        """A call that waits for a stream, or an event in it: the one noted, else the one that time tells."""
        calls = self._calls(_OF_STREAM | _OF_EVENT)
        noted = np.array([self._noted(call) for call in calls.tolist()], np.int64).reshape(-1, 2)
        waited = np.zeros(len(calls), np.bool_)
        best = np.full(len(calls), -1, np.int64)
        fitting = np.zeros(len(calls), np.int64)
        for lane in self._lanes:
            told = np.flatnonzero(noted[:, 0] == lane)
            before = self._given(lane, noted[told, 1])
            waited[told] |= self._busy_at(before, self._start[calls[told]])
            found.edges.append(self._ended(calls[told], before))
            asked = np.flatnonzero((noted[:, 0] < 0) & self._same_rank(calls, lane))
            before = self._given(lane, self._start[calls[asked]])
            busy = self._busy_at(before, self._start[calls[asked]])
            waited[asked] |= busy
            apart = self._end[calls[asked]] - self._work.end[before]
            fits = busy & (abs(apart) <= SOON_NS)
            fitting[asked] += fits
            later = fits & ((best[asked] < 0) | (self._work.end[before] > self._work.end[best[asked]]))
            best[asked[later]] = before[later]
        told = np.flatnonzero(best >= 0)
        found.edges.append(self._ended(calls[told], best[told], SURE / np.maximum(fitting[told], 1)))
        found.waiting.append(calls[waited])

    def _of_copies(self, found: DeviceWaits) -> None:
        """A call that copies and returns when that is done."""
        copying = np.zeros(len(self._facts.ixs), np.bool_)
        copying[self._calls(_COPIES)] = True
        some = np.flatnonzero((self._work.launch >= 0) & copying[self._work.launch])
        found.edges.append(self._ended(self._work.launch[some], some))
        found.waiting.append(self._work.launch[some])
        found.copying = self._work.launch[some]

    def _ended(self, calls: IntArray, work: IntArray, confidence: FloatArray | None = None) -> Edges:
        """Return edges from the ends of ``work`` (-1 for none) to the ends of ``calls``."""
        at = np.minimum(self._work.end[work], self._end[calls])
        known = (work >= 0) & (self._work.end[work] <= self._end[calls] + SOON_NS) & (self._last[work] >= 0)
        known &= at >= self._work.start[work]
        target = self._pieces.until(self._facts.lane[calls], self._end[calls])
        known &= target >= 0
        source = self._pieces.until(self._work.lane[work], at)
        source = np.where(source >= 0, source, self._last[work])
        known &= (at >= self._pieces.start[source]) & (at <= self._pieces.end[source])
        chosen = np.flatnonzero(known)
        how = OBSERVED if confidence is None else INFERRED
        sure = 1.0 if confidence is None else confidence[chosen]
        return Edges.of(
            DEVICE, source[chosen], at[chosen], target[chosen], to_end=True, evidence=how, confidence=sure
        )

    # --- Streams that wait for each other -----------------------------------------------------------------

    def _between_streams(self) -> Iterable[Edges]:
        """A stream that was told to wait for an event in another starts nothing before that."""
        calls = self._calls(_BETWEEN_STREAMS)
        first, before = [], []
        untold = []
        for call in calls.tolist():
            note = self._note(call)
            waiting, on = self._lane_of(note, note.stream), self._lane_of(note, note.waits_on)
            recorded = self._recorded.get((note.rank, note.recorded))
            if waiting is None or on is None or recorded is None:
                untold.append(call)
                continue
            target = self._next_in(waiting, int(self._start[call]))
            source = int(self._given(on, np.array([recorded], np.int64))[0])
            if target >= 0 and source >= 0:
                first.append(target)
                before.append(source)
        yield self._held(np.array(first, np.int64), np.array(before, np.int64))
        yield from self._told_by_time(np.array(untold, np.int64))

    def _told_by_time(self, calls: IntArray) -> Iterable[Edges]:
        """What is launched next by the thread waits for work of another stream that ended just before it."""
        work, target = self._work, self._launched_next(calls)
        own = np.maximum(target - 1, 0)
        follows = (target > 0) & (work.lane[own] == work.lane[target])
        free = np.where(follows, work.end[own], np.iinfo(np.int64).min)
        free = np.maximum(free, np.minimum(self._end[work.launch[target]], work.start[target]))
        best, fitting = np.full(len(target), -1, np.int64), np.zeros(len(target), np.int64)
        for lane in self._lanes:
            some = work.of_lane(lane)
            ended = some.start - 1 + np.searchsorted(work.end[some], work.start[target], "right")
            there = (ended >= some.start) & (work.lane[target] != lane)
            there &= self._same_device(work.lane[target], lane)
            there &= (work.end[ended] > free) & (work.start[target] - work.end[ended] <= SOON_NS)
            there &= work.launched[ended] < work.launched[target]
            fitting += there
            later = there & ((best < 0) | (work.end[ended] > work.end[best]))
            best[later] = ended[later]
        told = np.flatnonzero(best >= 0)
        yield self._held(target[told], best[told], SURE / np.maximum(fitting[told], 1))

    def _launched_next(self, calls: IntArray) -> IntArray:
        """Return the work that is launched first after any of ``calls``, by the same thread."""
        given = np.flatnonzero(self._work.launch >= 0)
        given = given[np.argsort(self._start[self._work.launch[given]], kind="stable")]
        thread = self._facts.lane[self._work.launch[given]]
        found = [np.zeros(0, np.int64)]
        for one in np.unique(self._facts.lane[calls]).tolist():
            mine = given[thread == one]
            asked = self._start[calls[self._facts.lane[calls] == one]]
            at = np.searchsorted(self._start[self._work.launch[mine]], asked)
            found.append(mine[at[at < len(mine)]])
        return np.unique(np.concatenate(found))

    def _held(self, first: IntArray, before: IntArray, confidence: FloatArray | None = None) -> Edges:
        """Return edges from the ends of the work ``before`` to the starts of ``first``."""
        work = self._work
        known = (
            (self._first[first] >= 0) & (self._last[before] >= 0) & (work.end[before] <= work.start[first])
        )
        chosen = np.flatnonzero(known)
        how = OBSERVED if confidence is None else INFERRED
        sure = 1.0 if confidence is None else confidence[chosen]
        return Edges.of(
            DEVICE, self._last[before[chosen]], work.end[before[chosen]], self._first[first[chosen]],
            evidence=how, confidence=sure,
        )  # fmt: skip

    # --- Who is meant -------------------------------------------------------------------------------------

    def _calls(self, names: frozenset[str]) -> IntArray:
        """Return the places of the calls of these names, in order of time."""
        of_name = np.isin(self._names, list(names))
        places = np.flatnonzero(of_name[self._spans.name_ix[self._facts.ixs]] & (self._facts.lane >= 0))
        places = places[
            (self._end[places] > self._start[places])
            & ~np.isin(self._facts.lane[places], self._facts.streams)
        ]
        return places[np.lexsort((self._facts.lane[places], self._start[places]))]

    def _given(self, lane: int, time: IntArray) -> IntArray:
        """Return the last work of the stream ``lane`` given to it before each ``time``; -1 for none."""
        some = self._work.of_lane(lane)
        at = some.start - 1 + np.searchsorted(self._work.launched[some], time)
        return np.where(at >= some.start, at, -1)

    def _next_in(self, lane: int, time: int) -> int:
        """Return the first work of the stream ``lane`` given to it after ``time``; -1 for none."""
        some = self._work.of_lane(lane)
        at = some.start + int(np.searchsorted(self._work.launched[some], time, "right"))
        return at if at < some.stop else -1

    def _busy_at(self, work: IntArray, time: IntArray) -> BoolArray:
        busy: BoolArray = (work >= 0) & (self._work.end[work] > time)
        return busy

    def _note(self, call: int) -> Sync:
        key = self._rank(call), int(self._facts.correlation[call])
        return self._notes.get(key, _NO_NOTE)

    def _noted(self, call: int) -> tuple[int, int]:
        """Return the stream that ``call`` waits for, and until when work was given that it waits for."""
        note = self._note(call)
        if note.recorded >= 0:
            lane, until = self._lane_of(note, note.waits_on), self._recorded.get((note.rank, note.recorded))
        else:
            lane, until = self._lane_of(note, note.stream), int(self._start[call])
        return (-1, 0) if lane is None or until is None else (lane, until)

    @cached_property
    def _recorded(self) -> dict[tuple[int | None, int], int]:
        """(rank, correlation) -> when the call began, of those that recorded an event."""
        wanted = {note.recorded for note in self._facts.syncs if note.recorded >= 0}
        some = np.isin(self._facts.correlation, list(wanted)) & ~np.isin(
            self._facts.lane, self._facts.streams
        )
        return {
            (self._rank(place), int(self._facts.correlation[place])): int(self._start[place])
            for place in np.flatnonzero(some & (self._facts.lane >= 0)).tolist()
        }

    def _lane_of(self, note: Sync, stream: int) -> int | None:
        """Return the lane of ``stream`` on the device of ``note``."""
        lane = note.rank, f"{STREAM}{note.device}.{stream}"
        known = note.device >= 0 and stream >= 0 and lane in self._facts.lanes
        return self._facts.lanes.index(lane) if known else None

    def _rank(self, place: int) -> int | None:
        return self._rank_of[int(self._facts.lane[place])]

    def _device(self, lane: int) -> tuple[int | None, int]:
        """Return (rank, number of the device) whose stream ``lane`` is."""
        number = self._facts.lanes[lane][1][len(STREAM) :].partition(".")[0]
        return self._rank_of[lane], int(number) if number.isdigit() else -1

    def _same_rank(self, places: IntArray, lane: int) -> BoolArray:
        mates = [n for n, rank in enumerate(self._rank_of) if rank == self._rank_of[lane]]
        return np.isin(self._facts.lane[places], mates)

    def _same_device(self, lanes: IntArray, lane: int) -> BoolArray:
        mates = [n for n in self._lanes if self._device(n) == self._device(lane)]
        return np.isin(lanes, mates)


def _with_evidence(edges: Edges, mask: BoolArray, evidence: str) -> Edges:
    """Return ``edges``, those of ``mask`` with this ``evidence``."""
    some = edges.where(np.flatnonzero(mask))
    other = Edges.of(DEVICE, some.source, some.at, some.target, evidence=evidence)
    return Edges.join([edges.where(np.flatnonzero(~mask)), other])
