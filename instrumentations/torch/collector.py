# SPDX-License-Identifier: Apache-2.0
"""Pauses by Python's garbage collector: collections that take long enough to be seen in a step.

The interpreter calls back at the start and the end of each collection, which may come in the middle of
anything, our own hooks included: a pause is only noted, and recorded at the next event of its thread. All
threads stand still meanwhile, so that of one that does not train is told of the main thread.
"""

from __future__ import annotations

import gc
from time import perf_counter_ns
from typing import Any, Final

from grademl_otel.guard import Guard
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.lifecycle import session

SHORTEST_NS: Final = 500_000
"""Collections that take less are not recorded: most of the young generation take a tenth of that."""


def install(patches: Patches) -> None:
    """Register with the collector."""
    pauses = _Pauses()
    gc.callbacks.append(pauses)
    patches.on_restore(lambda: gc.callbacks.remove(pauses))


class _Pauses:
    def __init__(self) -> None:
        self._guard = Guard("gc")
        self._began = 0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        now = perf_counter_ns()
        if phase == "start":
            self._began = now
        elif now - self._began >= SHORTEST_NS and self._began and self._guard.on:
            try:
                recorder = session.recorder
                if recorder is not None:
                    recorder.paused(self._began, now)
            except Exception as error:
                self._guard.failed(error)
