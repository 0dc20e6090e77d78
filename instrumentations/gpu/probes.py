# SPDX-License-Identifier: Apache-2.0
"""Reading a device by many calls, each of which may be unsupported, fail, or talk nonsense by itself.

What a device does not support is found out once. A call that fails costs nobody else's value: it is counted,
told once, and tried again after growing pauses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from grademl_otel.catalog.sampler import FAILURES
from grademl_otel.messages import complain
from grademl_otel.sampling.source import Reading, Series

_log = logging.getLogger(__name__)

_LONGEST_PAUSE: Final = 63
_MOST_KINDS: Final = 64
"""Of failures that are counted by themselves."""


class Verdict(Enum):
    """What an error of a call means."""

    UNSUPPORTED = "unsupported"
    """There is no such thing; it need not be asked for again."""
    CALL = "call"
    """This call failed."""
    DEVICE = "device"
    """Nothing can be read of the device."""


class Probe:
    """A call, or a few that belong together, every ``every`` readings; in between its values are repeated."""

    __slots__ = ("every", "kept", "name", "owner", "pause", "read", "wait")

    def __init__(
        self, name: str, read: Callable[[], Sequence[Reading]], every: int = 1, owner: str = ""
    ) -> None:
        self.name = name
        self.read = read
        self.every = every
        self.owner = owner
        """Which part of the device it is of; see `Probes.drop`."""
        self.kept: Sequence[Reading] = ()
        self.wait = 0
        """Readings until it is called again."""
        self.pause = 0
        """What it waited after its last failure."""


class Probes:
    """The probes of the source called ``source``; ``verdict`` says what an error means."""

    def __init__(self, source: str, verdict: Callable[[Exception], Verdict]) -> None:
        self._source = source
        self._verdict = verdict
        self._probes: list[Probe] = []
        self._failures: dict[str, tuple[Series, int]] = {}

    def add(self, probe: Probe) -> None:
        self._probes.append(probe)

    def clear(self) -> None:
        """Drop all probes; what was counted stays."""
        self._probes.clear()

    def drop(self, owner: str) -> None:
        """Drop the probes of a part of the device."""
        self._probes = [probe for probe in self._probes if probe.owner != owner]

    def read(self) -> list[Reading]:
        """Return what all of them read. Raises what means that the device cannot be read, or the last error
        when every call failed.
        """
        readings: list[Reading] = []
        error: Exception | None = None
        for probe in tuple(self._probes):
            if probe.wait:
                probe.wait -= 1
                readings += probe.kept
                continue
            try:
                found = probe.read()
            except Exception as failure:
                probe.kept = ()
                verdict = self._verdict(failure)
                if verdict is Verdict.DEVICE:
                    raise
                if verdict is Verdict.UNSUPPORTED:
                    if probe in self._probes:
                        self._probes.remove(probe)
                    continue
                error = failure
                probe.wait = probe.pause = min(2 * probe.pause + 1, _LONGEST_PAUSE)
                self.failed(probe.name, failure)
                continue
            probe.pause, probe.wait = 0, probe.every - 1
            readings += found
            if probe.every > 1:
                probe.kept = found
        if not readings and error is not None:
            for probe in self._probes:  # who reads this source makes its pauses
                probe.wait = probe.pause = 0
            raise error
        readings += self._failures.values()
        return readings

    def failed(self, name: str, error: Exception) -> None:
        """Count a failure of a part of a reading."""
        kind = f"{name}: {type(error).__name__}"
        known = self._failures.get(kind)
        if known is None:
            if len(self._failures) >= _MOST_KINDS:
                kind = "others"
                known = self._failures.get(kind)
            else:
                tell(f"{self._source}: {name} cannot be read: {type(error).__name__}: {_shown(error)}")
        if known is None:
            attributes = dict(zip(FAILURES.attributes, (self._source, kind), strict=True))
            known = (Series(FAILURES, {**attributes}, self._source), 0)
        self._failures[kind] = (known[0], known[1] + 1)


def tell(line: str) -> None:
    """Tell, once, on stderr, and in the log of a relay, whose stderr nobody sees."""
    complain([line])
    _log.debug("%s", line)


def _shown(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # drivers' messages may be no text
        return "?"
