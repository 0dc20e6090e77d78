# SPDX-License-Identifier: Apache-2.0
"""A run that is going on in this process: its ring, its name, its ties to OpenTelemetry, and its end.

A rank that trains before its process group exists does not know yet which run it is part of: its run has a
provisional name until `ActiveRun.settle` finds the real one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from grademl_otel import agreement, marks, semconv
from grademl_otel.config import Settings
from grademl_otel.destination import Destination
from grademl_otel.messages import warn
from grademl_otel.naming import Named
from grademl_otel.recorder import MAIN_LANE, RUN_SCOPE, Recorder, Writer
from grademl_otel.runinfo import renamed

if TYPE_CHECKING:
    from grademl_otel.neighbours import Neighbours

_RUN: Final = marks.SCOPE_INDEX[semconv.RUN]
_ALONE_AFTER_NS: Final = 20_000_000_000
_ALONE_AFTER_ROWS: Final = 256
"""A rank that trains for so long before its process group exists has a run of its own."""

Open = Callable[[Settings, Destination, Any], tuple[Writer, Any]]


class ActiveRun:
    """One run: `recorder` writes it, and calls `tick` about once a second.

    ``look_around`` is called at each tick. ``forked`` is that of `Recorder`.
    """

    def __init__(
        self,
        settings: Settings,
        writer: Writer,
        transport: Any,
        info: marks.RunInfo,
        named: Named,
        look_around: Callable[[], None],
        forked: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.info = info
        """What the run says of itself."""
        self.firm = named.firm
        """Its name will not change any more."""
        self.alone = False
        """It has a name of its own only because no process group came; one that comes ends it."""
        self.recorder = Recorder(writer, self, count(RUN_SCOPE + 1), forked)
        self.recorder.governor.budget = settings.budget / 100
        self.recorder.unnamed = not named.firm
        self._writer = writer
        self._transport = transport
        self._look_around = look_around
        self._neighbours: Neighbours | None = None
        self._unnamed_since = 0
        """When the first row was there of a run whose name is not firm."""
        self._device_told = False

    # --- Start -----------------------------------------------------------------------------------------

    def open(self, at: int) -> None:
        """Write that the run began at ``at``."""
        self._write_info(at)
        self._writer.write(marks.SCOPE_OPEN, self._lane, at, at, RUN_SCOPE, 0, _RUN, -1)

    def settle(self, rename: Callable[[], Named], at_the_end: bool = False) -> Named | None:
        """Name the run for good if that is possible by now; return the name when it has just become firm.

        It does when the process group exists, has not come for long, or cannot come any more.
        """
        if self.firm:
            return None
        now = time.perf_counter_ns()
        self._unnamed_since = self._unnamed_since or now
        waited = now - self._unnamed_since > _ALONE_AFTER_NS or self.recorder.rows > _ALONE_AFTER_ROWS
        if not (waited or at_the_end or agreement.group_exists()):
            return None
        named = rename()
        if not (waited or at_the_end or named.firm):
            return None
        self.firm, self.alone = True, not named.firm
        self.recorder.unnamed = False
        self.info = renamed(self.info, named)
        self._write_info(now)
        return named

    @property
    def has_relay(self) -> bool:
        """Whether another process reads the marks of this run."""
        return bool(self._transport.mode == "relay")

    def meet_neighbours(self, records_grad: Callable[[], bool]) -> None:
        """Tie the run to the OpenTelemetry of the user's program; see `neighbours`."""
        try:
            from grademl_otel.neighbours import Neighbours

            self._neighbours = Neighbours(self.recorder, self.info, records_grad)
        except Exception as error:
            warn(f"spans do not nest in the steps: {type(error).__name__}: {error}")

    # --- Meanwhile -------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """About once a second: look after all that may have changed, and after the transport."""
        self._look_around()
        self._transport.tick(now_ns)

    def look_at_neighbours(self) -> bool:
        """See whether OpenTelemetry has been set up meanwhile; False where the run has no ties to it."""
        if self._neighbours is None:
            return False
        self._neighbours.look()
        return True

    def share(self, provider: Any) -> None:
        """Have the processors of ``provider`` receive the spans as well."""
        self._transport.share(provider)

    def tell_device(self, device: Callable[[], str | None]) -> None:
        """Put the device on the run's span, once there is one."""
        if self._device_told:
            return
        name = device()
        if name:
            self._device_told = True
            now = time.perf_counter_ns()
            key, value = self._writer.intern(semconv.DEVICE), self._writer.intern(name)
            self._writer.write(marks.SCOPE_TEXT, self._lane, now, now, RUN_SCOPE, key, value)

    # --- End -------------------------------------------------------------------------------------------

    def leave_neighbours(self, forked: bool = False) -> bool:
        """Cut the ties to OpenTelemetry; False where there were none."""
        neighbours, self._neighbours = self._neighbours, None
        if neighbours is None:
            return False
        neighbours.leave(forked)
        return True

    def close(self, error: str | None, at: int | None) -> None:
        """Write the run's end, at ``at`` or now, and wait until its telemetry is on its way."""
        now = time.perf_counter_ns() if at is None else at
        kind = self._writer.intern(error) if error else 0
        self._writer.write(marks.SCOPE_CLOSE, self._lane, now, now, RUN_SCOPE, 1 if error else 0, _RUN, kind)
        self.recorder.mute()  # daemon threads may still train
        self._transport.close(self.settings.exit_wait_s)

    def abandon(self) -> None:
        """In a forked child: ring, relay and run are the parent's."""
        self.leave_neighbours(forked=True)
        self.recorder.mute()
        self._transport.abandon()

    def _write_info(self, at: int) -> None:
        # A name that may change starts with a space: whoever looks for the run among the texts goes on.
        text = self.info.to_json() if self.firm else f" {self.info.to_json()}"
        state = 0 if self.firm else marks.PROVISIONAL
        self._writer.write(marks.RUN_INFO, self._lane, at, at, RUN_SCOPE, self._writer.intern(text), state, 0)

    @property
    def _lane(self) -> int:
        return self.recorder.lane(MAIN_LANE)


def open_ring(settings: Settings, destination: Destination, provider: Any) -> tuple[Writer, Any]:
    """Open a ring, and the way out of it that ``destination`` and this system allow."""
    from grademl_otel.ring.writer import RingUnavailable, RingWriter
    from grademl_otel.transport import open_transport

    in_process = (
        settings.in_process
        or destination.through_provider
        or not sys.platform.startswith(("linux", "darwin"))
    )
    try:
        writer = RingWriter.create(settings)
    except RingUnavailable:
        writer = RingWriter.in_memory(settings)
        in_process = True
    taken = provider if destination.through_provider else None
    return writer, open_transport(writer, settings, "in-process" if in_process else "relay", taken)
