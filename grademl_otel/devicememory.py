# SPDX-License-Identifier: Apache-2.0
"""How much memory of each device is in use, looked at about once a second.

The numbers are the framework's own, and nothing of them is reset: its peaks are for the user to reset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Final, NamedTuple, Protocol

from grademl_otel import marks
from grademl_otel.guard import Guard
from grademl_otel.recorder import MAIN_LANE

EVERY_NS: Final = 1_000_000_000
_SCAN_EVERY: Final = 64
"""Looks after which all devices are looked at again, not only those that were in use."""


class Memory(NamedTuple):
    """What a framework's allocator holds of a device, in bytes."""

    device: int
    allocated: int
    reserved: int
    peak: int
    """Allocated at most, since the program began or since it reset that."""


class Allocators(Protocol):
    """The allocators of one framework. A call may raise: then nothing more is asked."""

    def memory(self, devices: Sequence[int] | None, /) -> list[Memory]:
        """The memory of ``devices``; None stands for all of which any is reserved."""


class Book(Protocol):
    """Where it is written; see `recorder.Recorder`."""

    @property
    def write(self) -> Callable[..., None]: ...
    def lane(self, name: str) -> int: ...


class MemorySamples:
    """The memory of the devices during one run; no method raises. ``clock`` is in ns."""

    def __init__(
        self, allocators: Allocators, book: Book, guard: Guard, clock: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._allocators = allocators
        self._book = book
        self._guard = guard
        self._clock = clock
        self._last = 0
        self._looks = 0
        self.in_use: list[int] = []
        """Devices of which any memory was reserved at the last look at all of them."""

    def measure(self) -> None:
        """Write how much is in use, once a second at most."""
        now = self._clock()
        if not self._guard.on or now - self._last < EVERY_NS:
            return
        self._last = now
        try:
            found = self._allocators.memory(self.in_use if self._looks % _SCAN_EVERY else None)
            self._looks += 1
            self.in_use = [memory.device for memory in found]
            lane = self._book.lane(MAIN_LANE)
            for device, allocated, reserved, peak in found:
                self._book.write(marks.DEVICE_MEMORY, lane, now, now, device + 1, allocated, reserved, peak)
        except Exception as error:
            self._guard.off(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
