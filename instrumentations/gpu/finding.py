# SPDX-License-Identifier: Apache-2.0
"""Asks GPUs who they are, side by side: one that hangs does not keep the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from grademl_otel.instrumentations.gpu.device import Device
from grademl_otel.instrumentations.gpu.plausible import within
from grademl_otel.sampling.source import Reading, Source, SourceGone

PATIENCE_S: Final = 2.0
"""For GPUs to say who they are; those that take longer are found by a later scan."""

_MOST: Final = 256
"""GPUs of a host; each has threads of its own."""


class Gpu(Source, Protocol):
    """The source of one."""

    gone: bool
    """It was taken out."""


T = TypeVar("T")


class Unidentified:
    """A GPU that does not say who it is: lost before it was found, or hanging."""

    def __init__(self, index: int, error: Exception) -> None:
        self.name = f"gpu {index}"
        self.error: Exception = error
        self.gone = False

    def read(self) -> Sequence[Reading]:
        """Raise what it answered."""
        if self.gone:
            raise SourceGone(self.name)
        raise self.error.with_traceback(None)  # that of the last time would stay, and grow

    def close(self) -> None:
        """Nothing is held."""


class Finder(Generic[T]):
    """The GPUs of one vendor. ``ask`` says who a GPU is, and how to reach it; ``make`` is its source."""

    def __init__(self, ask: Callable[[int], tuple[Device, T]], make: Callable[[Device, T], Gpu]) -> None:
        self._ask = ask
        self._make = make
        self._known: dict[str, Gpu] = {}
        self._unidentified: dict[int, Unidentified] = {}
        self._asked: dict[int, _Identification[T]] = {}

    @property
    def known(self) -> list[Source]:
        """Those that have said who they are."""
        return list(self._known.values())

    def find(self, count: int) -> list[Source]:
        """Ask so many GPUs; return the sources of all of them. Raises `Implausible`."""
        within(count, _MOST, "a count of GPUs")
        for index in range(count):
            asked = self._asked.get(index)
            if asked is None or not asked.is_alive():
                self._asked[index] = _Identification(self._ask, index)
                self._asked[index].start()
        until = time.monotonic() + PATIENCE_S
        for index in range(count):
            self._asked[index].join(max(0.0, until - time.monotonic()))
        return self._keep([self._asked[index] for index in range(count)])

    def _keep(self, identified: list[_Identification[T]]) -> list[Source]:
        found: set[str] = set()
        trouble: dict[int, Exception] = {}
        for each in identified:
            if each.answer is None:
                trouble[each.index] = each.error or TimeoutError("it does not say who it is")
                continue
            device, reach = each.answer
            found.add(device.id)
            known = self._known.get(device.id)
            if known is None or known.gone:
                self._known[device.id] = self._make(device, reach)
        if not trouble:
            # Each has said who it is: what is not among them was taken out, else it may be one of the silent.
            for id in [id for id in self._known if id not in found]:
                self._known.pop(id).gone = True
        self._doubt(trouble, len(identified))
        return [*self._known.values(), *self._unidentified.values()]

    def _doubt(self, trouble: dict[int, Exception], count: int) -> None:
        """Show GPUs that say nothing as sources of their own, as far as they are not known from before."""
        spare = count - len(self._known)
        wanted = dict(sorted(trouble.items())[: max(0, spare)])
        for index in [index for index in self._unidentified if index not in wanted]:
            self._unidentified.pop(index).gone = True
        for index, error in wanted.items():
            known = self._unidentified.get(index)
            if known is None:
                self._unidentified[index] = Unidentified(index, error)
            else:
                known.error = error


class _Identification(threading.Thread, Generic[T]):
    """Asks a GPU who it is."""

    def __init__(self, ask: Callable[[int], tuple[Device, T]], index: int) -> None:
        super().__init__(name=f"grademl gpu {index}", daemon=True)
        self.index = index
        self.answer: tuple[Device, T] | None = None
        self.error: Exception | None = None
        self._ask = ask

    def run(self) -> None:
        try:
            self.answer = self._ask(self.index)
        except Exception as error:
            self.error = error
