# SPDX-License-Identifier: Apache-2.0
"""One colour for each phase, the same in every chart and table, as a class of `charts.css`.

Phases of one kind have related colours, told apart by lightness as well as hue. What others call their
operations has one of twelve more: within `telling_apart` in the order of the names that it is given, so that
the first twelve differ, else by a hash of the name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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
_NUMBERED: Final = re.compile(r"#\d+$|(?<=^ProfilerStep)\*$")
"""Steps of a profile, which are one operation, and how all of them are called together."""

WAITS: Final = frozenset((WAIT, HANDOFF, UNEXPLAINED))
"""Kinds of sections that are drawn with stripes."""
_WAITS: Final = sc.WAIT_PHASES | {RANKS_WAIT}


_given: ContextVar[Mapping[str, str]] = ContextVar("_given")


@contextmanager
def telling_apart(names: Iterable[str]) -> Iterator[None]:
    """Give others' operations different colours, those named first, on the page that is made meanwhile."""
    others = dict.fromkeys(_NUMBERED.sub("", name) for name in names if _known(name) is None)
    token = _given.set({name: f"p-x{at % _OTHERS}" for at, name in enumerate(others)})
    try:
        yield
    finally:
        _given.reset(token)


def phase_class(phase: str) -> str:
    """Return the class of ``phase``, or of an operation of a foreign span."""
    name = _NUMBERED.sub("", phase)
    return _known(name) or _given.get({}).get(name) or _hashed(name)


def _known(phase: str) -> str | None:
    return _CLASSES.get(phase) or _CLASSES.get(phase.removeprefix(sc.DEVICE_PREFIX))


def _hashed(phase: str) -> str:
    return f"p-x{zlib.crc32(phase.encode('utf-8', 'surrogatepass')) % _OTHERS}"


def is_wait(phase: str) -> bool:
    """Return whether all of ``phase`` is waiting, which is drawn with stripes."""
    return phase in _WAITS
