# SPDX-License-Identifier: Apache-2.0
"""The clock of an asynchronous device, tied to the host's.

Events tell the time between them by the device's clock. What is certain of each in the host's time: it was
reached after it was recorded, and before it was seen to be over. An event that contradicts the tie moves it,
so that it follows the drift of the clocks; lengths are of the device's clock alone.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

NEW_ANCHOR_NS: Final = 2_000_000_000
"""Older anchors are replaced: times since one come as 32-bit floats in ms."""


class Event(Protocol):
    """A point of a stream."""

    def query(self) -> bool:
        """Whether the stream has got to where the event was recorded."""

    def elapsed_time(self, end: Any, /) -> float:
        """Time in ms from this event to ``end``; both are over, and of one device."""


class Timeline:
    """Places events of one device in the host's time, by one of them whose host time is known: the anchor."""

    def __init__(self) -> None:
        self._anchor: Event | None = None
        self._host = 0
        """When the anchor was reached; ns."""

    def tie(self, anchor: Event, earliest: int, latest: int) -> list[Event]:
        """``anchor`` was reached between ``earliest`` and ``latest``; return what is of no more use."""
        former = [] if self._anchor is None else [self._anchor]
        self._anchor, self._host = anchor, (earliest + latest) // 2
        return former

    def place(
        self, start: Event, end: Event, issued: int, until: int, seen: int
    ) -> tuple[int, int, list[Event]]:
        """Return when ``start`` and ``end`` were reached, and the events that are of no more use.

        They were reached after ``issued`` and ``until``, and over at ``seen``.
        """
        length = max(0, round(start.elapsed_time(end) * 1e6))
        earliest, latest = max(issued, until - length), seen - length
        anchor = self._anchor
        if anchor is None:
            self._anchor, self._host = start, min(earliest, latest)
            return self._host, self._host + length, [end]
        since = round(anchor.elapsed_time(start) * 1e6)
        at = min(max(self._host + since, earliest), latest)
        if abs(since) > NEW_ANCHOR_NS:
            self._anchor, self._host = start, at
            return at, at + length, [anchor, end]
        self._host = at - since
        return at, at + length, [start, end]
