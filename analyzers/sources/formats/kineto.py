# SPDX-License-Identifier: Apache-2.0
"""Traces of profilers: PyTorch's (Kineto), and what else is written for Chrome's trace viewer.

Events have a thread, two times and no parents: what encloses one in time, in its thread, is its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.sources.batch import SpanTarget
from grademl_otel.analyzers.sources.formats import vectors
from grademl_otel.analyzers.sources.formats.decoding import NotJson
from grademl_otel.analyzers.sources.formats.jsonscan import scan
from grademl_otel.analyzers.sources.formats.kineto_links import Flow
from grademl_otel.analyzers.sources.formats.kineto_spans import SYNC_CATEGORIES, Marks, Profile, add_spans
from grademl_otel.analyzers.sources.formats.kineto_values import KINETO, Place, repaired

_NONE: Final = msgspec.Raw(b"{}")
_Number = int | float | str | None
_EVENTS: Final = "traceEvents"
_COMPLETE, _BEGIN, _END, _META = "X", "B", "E", "M"
_INSTANTS: Final = frozenset("iIR")
_FLOWS: Final = frozenset("stf")
_OTHERS: Final = frozenset("SFTpbneONDPVvac()")
_UNKNOWN: Final = "event of no known type"
_SAMPLES: Final = frozenset({"cpu_instant_event"})
"""Categories of instants that are samples: allocations of memory."""
_FAULTS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    name: _Number = ""
    cat: str | None = None
    pid: _Number = None
    tid: _Number = None
    ts: _Number = None
    dur: _Number = None
    id: _Number = None
    bp: str | None = None
    args: msgspec.Raw = _NONE


_events = msgspec.json.Decoder(list[_Event])
_event = msgspec.json.Decoder(_Event)


def read_events(raw: bytes | msgspec.Raw, builder: SpanTarget, ledger: Ledger) -> None:
    """Add the spans of an array of events; raise NotJson, with nothing added, when it is not a whole one."""
    try:
        _events.decode(raw)
    except _FAULTS:
        raise NotJson("not JSON: an array of events that is not whole") from None
    reader = ProfileReader(builder, ledger)
    reader.add(bytes(raw))
    reader.finish({})


def read_profile(members: Mapping[str, msgspec.Raw], builder: SpanTarget, ledger: Ledger) -> None:
    """Add the spans of a document with ``traceEvents``; raise Unreadable when it is none."""
    reader = ProfileReader(builder, ledger)
    reader.add(bytes(members[_EVENTS]))
    reader.finish({key: bytes(value) for key, value in members.items() if key != _EVENTS})


class ProfileReader:
    """Reads a trace in parts; spans are made once all events are there, since they may be in any order."""

    def __init__(self, builder: SpanTarget, ledger: Ledger) -> None:
        self._builder = builder
        self._ledger = ledger
        self._profile = Profile()
        self._begun: dict[Place, list[_Event]] = {}
        self._unreadable = 0
        self._names: dict[str, str] = {}

    def add(self, raw: bytes) -> None:
        """Take an array of events. What Chrome would read is read; raise NotJson when nothing can be."""
        if self._profile.count + 1 >= self._builder.room:  # 1: the span of the whole
            return
        events = self._decoded(raw)
        spans: list[_Event] = []
        for event in events:
            ph = event.ph
            if ph == _COMPLETE:
                spans.append(event)
            elif ph in _INSTANTS:
                if event.cat in _SAMPLES:
                    self._profile.passed_over["sample of memory"] += 1
                else:
                    event.dur = 0
                    spans.append(event)
            else:
                self._other(event, spans)
        if spans:
            self._profile.marks.append(self._marks(spans))
            self._profile.count += len(spans)

    def finish(self, members: Mapping[str, bytes]) -> None:
        """Hand on the spans; ``members`` are the document's others than its events, raw."""
        never_ended = [event for events in self._begun.values() for event in events]
        if never_ended:
            self._profile.marks.append(self._marks(never_ended))  # without a duration: no end
            self._profile.count += len(never_ended)
        if self._unreadable:
            self._ledger.unreadable_lines += self._unreadable
            what = "1 event" if self._unreadable == 1 else f"{self._unreadable:,} events"
            self._ledger.warnings.append(f"{what} of a profile cannot be read; left out")
        add_spans(self._profile, members, self._builder, self._ledger)

    def _other(self, event: _Event, spans: list[_Event]) -> None:
        """Take an event that is none by itself; what it completes is added to ``spans``."""
        place = event.pid, event.tid
        if event.ph == _META:
            self._profile.name(event.name, place, bytes(event.args))
        elif event.ph in _FLOWS:
            self._profile.flows.append(Flow(str(event.ph), event.cat or "", event.id, place, event.ts))
        elif event.ph == _BEGIN:
            self._begun.setdefault(place, []).append(event)
        elif event.ph == _END:
            begun = self._begun.get(place)
            if begun:
                spans.append(_ended(begun.pop(), event))
            else:
                self._profile.passed_over["end without a beginning"] += 1
        elif event.ph == "C":
            self._profile.passed_over["value of a counter"] += 1
        else:
            self._profile.passed_over[f"event of type {event.ph}" if event.ph in _OTHERS else _UNKNOWN] += 1

    def _marks(self, events: list[_Event]) -> Marks:
        start = vectors.microseconds([event.ts for event in events])
        durations = [event.dur for event in events]
        length = vectors.microseconds(durations)
        if None in durations:
            length[[duration is None for duration in durations]] = vectors.NO_TIME
        known = (start >= 0) & (length >= 0)
        with np.errstate(over="ignore"):
            end = start + length
        known &= end >= start
        number = self._profile.number
        return Marks(
            start=start,
            end=np.where(known, end, vectors.NO_TIME),
            names=vectors.shared(
                [name if isinstance(name := event.name, str) else str(name) for event in events], self._names
            ),
            place=_numbered(number.places, [_place(event) for event in events]),
            category=_numbered(number.categories, [event.cat or "" for event in events]),
            args=vectors.raw_column(KINETO, [event.args for event in events]),
        )

    def _decoded(self, raw: bytes) -> list[_Event]:
        try:
            return list(_events.decode(raw))
        except _FAULTS:
            pass
        raw = repaired(raw)
        try:
            return list(_events.decode(raw))
        except _FAULTS:
            return self._one_by_one(raw)

    def _one_by_one(self, raw: bytes) -> list[_Event]:
        """Return the events that can be decoded, and count the others."""
        if not raw.lstrip().startswith(b"["):
            raise NotJson("not a profiler's trace: traceEvents is no array")
        events, at, stop = [], raw.index(b"[") + 1, len(raw)
        while at < stop:
            end, comma = scan(raw, at, stop, True)
            until = comma if comma >= 0 else end if end >= 0 else stop
            one = raw[at:until].strip()
            at = until + 1
            if one:
                try:
                    events.append(_event.decode(one))
                except _FAULTS:
                    self._unreadable += 1
            if comma < 0:
                break
        if not events and not self._profile.count:
            raise NotJson("not a profiler's trace: no event in it can be read")
        return events


def _place(event: _Event) -> Place:
    """Return where ``event`` is. A note on a call that waits has its times: it is beside its stream."""
    return event.pid, ("sync", event.tid) if event.cat in SYNC_CATEGORIES else event.tid


def _ended(begin: _Event, end: _Event) -> _Event:
    """Return the event that begins with the one and ends with the other."""
    start, stop = vectors.microseconds([begin.ts, end.ts]).tolist()
    begin.dur = None if start < 0 or stop < start else (stop - start) / 1000
    if bytes(begin.args) == bytes(_NONE):
        begin.args = end.args
    return begin


def _numbered(known: dict[Any, int], values: list[Any]) -> npt.NDArray[np.int32]:
    for value in dict.fromkeys(values):
        known.setdefault(value, len(known))
    return np.fromiter(map(known.__getitem__, values), np.int32, len(values))
