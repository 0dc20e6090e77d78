# SPDX-License-Identifier: Apache-2.0
"""Packets of Perfetto's trace format (TrackEvent), written one by one as they are made.

Nothing is held but the words that packets refer to by number, and of these at most `_MOST_WORDS`. Times are
Unix ns by the clock REALTIME, which the trace says to be its own, so that every time is shown as it is.

See https://perfetto.dev/docs/reference/synthetic-track-event and `perfetto_trace.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import IO, Any, Final

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BuiltinClock,
    CounterDescriptor,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

from grademl_otel.analyzers.model.side_tables import as_json
from grademl_otel.analyzers.printable import clean, clean_lines

Note = tuple[str, Any]
"""Key and value of what is told of a slice."""

_MOST_WORDS: Final = 1 << 16
_MOST_TEXT: Final = 500
"""Characters of a value."""
_BLOCK: Final = 1 << 20
"""Bytes that are written at once."""
_USES: Final = 256
_INT64: Final = range(-(1 << 63), 1 << 63)
_SEQUENCE: Final = 1
_PACKET: Final = b"\x0a"
"""Before each packet: field 1 of `Trace`, with a length."""

_CLEARED, _NEEDED = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, TracePacket.SEQ_NEEDS_INCREMENTAL_STATE


class Packets:
    """Writes packets into ``file``. Tracks have numbers, from 1; -1 as a parent stands for none."""

    def __init__(self, file: IO[bytes], start: int) -> None:
        """``start``: Unix ns, about where the trace begins."""
        self._file = file
        self._held = bytearray()
        self._tracks = 0
        self._words: dict[str, dict[str, int]] = {"name": {}, "category": {}, "key": {}}
        self._event, self._uses = TracePacket(), _USES
        self._ending = TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_NEEDED)
        self._ending.track_event.type = TrackEvent.TYPE_SLICE_END
        self._begin(start)

    def _begin(self, start: int) -> None:
        packet = TracePacket(trusted_packet_sequence_id=_SEQUENCE)
        realtime, boottime = BuiltinClock.BUILTIN_CLOCK_REALTIME, BuiltinClock.BUILTIN_CLOCK_BOOTTIME
        packet.clock_snapshot.primary_trace_clock = realtime
        for clock in (realtime, boottime):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=start)
        self._write(packet)
        packet = TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_CLEARED)
        packet.trace_packet_defaults.timestamp_clock_id = realtime
        self._write(packet)

    # --- tracks -------------------------------------------------------------------------------------------

    def process(self, name: str, pid: int, order: int, labels: Sequence[str]) -> int:
        """Add a process, and return its track."""
        # The name is not shown. Without one, more than fifty of them would stand before the critical path.
        track = self._track("process", parent=-1, order=order)
        track.process_ordering = TrackDescriptor.PROCESS_ORDERING_EXPLICIT
        track.process.pid = pid
        track.process.process_name = clean(name)
        track.process.legacy_sort_index = order
        track.process.process_labels.extend(map(clean, labels))
        return self._added(track)

    def track(self, name: str, parent: int, order: int, about: str = "") -> int:
        """Add a track for slices. Those of one name and parent are shown as one, those in it by ``order``."""
        track = self._track(name, parent, order)
        track.child_ordering = TrackDescriptor.EXPLICIT
        if about:
            track.description = about
        return self._added(track)

    def counter(self, name: str, parent: int, order: int, unit: str) -> int:
        """Add a track for numbers."""
        track = self._track(name, parent, order)
        track.counter.unit = CounterDescriptor.UNIT_UNSPECIFIED
        track.counter.unit_name = clean(unit)
        return self._added(track)

    def _track(self, name: str, parent: int, order: int) -> TrackDescriptor:
        self._tracks += 1
        track = TrackDescriptor(uuid=self._tracks, name=clean(name), sibling_order_rank=order)
        if parent >= 0:
            track.parent_uuid = parent
        return track

    def _added(self, track: TrackDescriptor) -> int:
        packet = TracePacket(trusted_packet_sequence_id=_SEQUENCE, track_descriptor=track)
        self._write(packet)
        number: int = track.uuid
        return number

    # --- events -------------------------------------------------------------------------------------------

    def begin(
        self,
        track: int,
        time: int,
        name: str,
        category: str,
        notes: Iterable[Note] = (),
        flows: Sequence[int] = (),
        ends: Sequence[int] = (),
        instant: bool = False,
    ) -> None:
        """Begin a slice, or add one that is but a moment. Arrows begin at it (``flows``), or end."""
        packet = self._at(time)
        event = packet.track_event
        event.type = TrackEvent.TYPE_INSTANT if instant else TrackEvent.TYPE_SLICE_BEGIN
        event.track_uuid = track
        if number := self._number("name", name, packet.interned_data.event_names):
            event.name_iid = number
        else:
            event.name = _word(name)
        if number := self._number("category", category, packet.interned_data.event_categories):
            event.category_iids.append(number)
        else:
            event.categories.append(_word(category))
        if flows:
            event.flow_ids.extend(flows)
        if ends:
            event.terminating_flow_ids.extend(ends)
        add, keys = event.debug_annotations.add, self._words["key"]
        for key, value in notes:
            number = keys.get(key, 0) or self._number("key", key, packet.interned_data.debug_annotation_names)
            note = add(name_iid=number) if number else add(name=_word(key))
            _put(note, value)
        self._write(packet)

    def end(self, track: int, time: int) -> None:
        """End the slice of ``track`` that began last."""
        packet = self._ending
        packet.timestamp = time
        packet.track_event.track_uuid = track
        self._write(packet)

    def count(self, track: int, time: int, value: float) -> None:
        """Add a number, which holds until the next one of its track."""
        packet = self._at(time)
        packet.track_event.type = TrackEvent.TYPE_COUNTER
        packet.track_event.track_uuid = track
        packet.track_event.double_counter_value = value
        self._write(packet)

    def finish(self) -> None:
        """Write what is held."""
        self._file.write(self._held)
        self._held.clear()

    def _at(self, time: int) -> TracePacket:
        if not self._uses:
            # To make one takes as long as to fill it; what is cleared keeps its memory, and more and more.
            self._event, self._uses = TracePacket(), _USES
        self._uses -= 1
        packet = self._event
        packet.Clear()
        packet.timestamp = time
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDED
        return packet

    def _number(self, what: str, word: str, told: Any) -> int:
        """Return the number by which events refer to ``word``; 0 where it has none, and stands for itself.

        ``told`` is where the packet tells of a word that no packet before it did.
        """
        words = self._words[what]
        number = words.get(word, 0)
        if not number and len(words) < _MOST_WORDS:
            number = words[word] = len(words) + 1
            told.add(iid=number, name=_word(word))
        return number

    def _write(self, packet: TracePacket) -> None:
        data = packet.SerializeToString()
        held = self._held
        held += _PACKET
        length = len(data)
        while length > 127:
            held.append(length & 127 | 128)
            length >>= 7
        held.append(length)
        held += data
        if len(held) >= _BLOCK:
            self.finish()


@lru_cache(4096)
def _word(text: str) -> str:
    return clean(text)


def _put(note: Any, value: Any) -> None:
    if isinstance(value, str):
        plain = len(value) <= _MOST_TEXT and value.isprintable()
        note.string_value = value if plain else _short(value)
    elif isinstance(value, bool):
        note.bool_value = value
    elif isinstance(value, int) and value in _INT64:
        note.int_value = value
    elif isinstance(value, float):
        note.double_value = value
    else:
        note.string_value = _short(str(value) if isinstance(value, int) else as_json(value))


def _short(text: str) -> str:
    return clean_lines(text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}...")
