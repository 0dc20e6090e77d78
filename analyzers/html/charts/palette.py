# SPDX-License-Identifier: Apache-2.0
"""One colour for each phase, the same in every chart and table, as a class of `charts.css`.

Phases of one kind have related colours, told apart by lightness as well as hue. What others call their
operations has one of twelve more, by a hash of the name: the same on every page.
"""

from __future__ import annotations

import zlib
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.graph.path import HANDOFF, UNEXPLAINED, WAIT
from grademl_otel.analyzers.graph.runs.collective_parts import COLLECTIVE_TRANSFER, RANKS_WAIT
from grademl_otel.analyzers.graph.runs.main_lane import (
    EPOCH_GAP,
    IDLE,
    LOADER_START,
    OTHER,
    START_UP,
    TEARDOWN,
    UNTRACED,
)

_CLASSES: Final = {
    sc.DATA_WAIT: "p-data-wait",
    sc.DATA_FETCH: "p-data-fetch",
    sc.DATA_COLLATE: "p-data-collate",
    sc.DATA_TRANSFER: "p-data-transfer",
    sc.FORWARD: "p-forward",
    sc.RECOMPUTE: "p-recompute",
    sc.BACKWARD: "p-backward",
    sc.OPTIMIZER: "p-optimizer",
    sc.ZERO_GRAD: "p-zero-grad",
    sc.COLLECTIVE: "p-collective",
    COLLECTIVE_TRANSFER: "p-collective",
    sc.COLLECTIVE_WAIT: "p-ranks-wait",
    RANKS_WAIT: "p-ranks-wait",
    sc.DEVICE_SYNC: "p-device-sync",
    sc.CHECKPOINT_SAVE: "p-save",
    sc.CHECKPOINT_LOAD: "p-load",
    sc.COMPILE: "p-compile",
    sc.GC: "p-gc",
    sc.LOG: "p-log",
    sc.EVALUATE: "p-evaluate",
    START_UP: "p-start-up",
    EPOCH_GAP: "p-epoch-gap",
    TEARDOWN: "p-teardown",
    IDLE: "p-idle",
    UNTRACED: "p-untraced",
    OTHER: "p-other",
    LOADER_START: "p-loader-start",
}
_OTHERS: Final = 12

WAITS: Final = frozenset((WAIT, HANDOFF, UNEXPLAINED))
"""Kinds of sections that are drawn with stripes."""
_WAITS: Final = sc.WAIT_PHASES | {RANKS_WAIT}


def phase_class(phase: str) -> str:
    """Return the class of ``phase``, or of an operation of a foreign span."""
    known = _CLASSES.get(phase.removeprefix(sc.DEVICE_PREFIX))
    if known is not None:
        return known
    return f"p-x{zlib.crc32(phase.encode('utf-8', 'surrogatepass')) % _OTHERS}"


def is_wait(phase: str) -> bool:
    """Return whether all of ``phase`` is waiting, which is drawn with stripes."""
    return phase in _WAITS
