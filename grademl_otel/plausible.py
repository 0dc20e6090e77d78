# SPDX-License-Identifier: Apache-2.0
"""What a damaged or forged ring may not say: the last look at marks and totals before spans are made of them.

A mark has a check word, which chance seldom gets right; who writes a wrong mark on purpose gets it right.
Totals and the table of open phases have none. Nothing here repairs: what cannot be is not believed, and
counted as lost.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.progress import Progress
from grademl_otel.ring.reader import Mark, OpenPhase

NOTHING: Final[Mark] = (0, 0, 0, 0, 0, -1, 0, 0)
"""Takes the place of a mark that is not believed: sequence numbers must stay consecutive."""

_AHEAD_NS: Final = 1_000_000_000
_MOST_STEPS: Final = 1 << 53
_MOST_DETAIL_BITS: Final = 64
_NS_PER_STEP: Final = 100
_THREADS: Final = 1024
_ROW_KINDS: Final = (0, semconv.FLAG_INCOMPLETE, semconv.FLAG_EVALUATE)
_SCOPE_KINDS: Final = range(marks.SCOPE_OPEN, marks.SCOPE_BOOL + 1)


def believable(mark: Mark, now_ns: int) -> bool:
    """Return True unless ``mark`` lies in the future, runs backwards, or counts below zero."""
    kind, _, t0, t1, serial, x, _, z = mark
    if not 0 <= t0 <= t1 <= now_ns + _AHEAD_NS:
        return False
    if kind == marks.ROW:
        return serial > 0 and 0 <= x < _MOST_STEPS and z >= 0
    if kind == marks.SCOPE_DOUBLE and not _finite(mark[6]):
        return False
    if kind == marks.ROW_CONTEXT:
        return serial > 0 and x in _ROW_KINDS and 0 <= mark[6] < _MOST_STEPS
    if kind in _SCOPE_KINDS or kind in (marks.RUN_INFO, marks.ROW_LINK):
        return serial > 0
    if kind in (marks.ROW_DEVICE, marks.DEVICE_MEMORY):
        return 0 < serial < _MOST_STEPS and min(x, mark[6], z) >= 0
    return serial >= 0 and x >= -1


def believable_totals(totals: Sequence[int], now_ns: int) -> bool:
    """Return True when a process can have added up ``totals`` (`marks.ACC_SLOTS`) since its host booted."""
    if min(totals) < 0 or max(totals) > _THREADS * now_ns:
        return False
    rows = (totals[slot] for slot in (marks.ACC_STEPS, marks.ACC_EVAL_STEPS, marks.ACC_INCOMPLETE))
    return all(count <= now_ns // _NS_PER_STEP for count in rows)


def believable_progress(progress: Progress, now_ns: int) -> bool:
    """Return True when a relay can have left ``progress``: counts, and times that have been."""
    values = asdict(progress)
    scopes = values.pop("scopes")
    window, since = values.pop("window"), values.pop("level_since")
    counts = [*values.pop("windows"), values.values()]
    if not all(0 <= count < _MOST_STEPS for each in counts for count in each):
        return False
    return (
        -1 <= window < _MOST_STEPS
        and progress.run_start <= now_ns
        and -1 <= since <= now_ns
        and progress.level <= _MOST_DETAIL_BITS
        and all(_believable_scope(scope, now_ns) for scope in scopes)
    )


def _believable_scope(scope: Sequence[int], now_ns: int) -> bool:
    serial, parent, index, number, start, lane, *counts = scope
    return (
        serial > 0
        and parent >= 0
        and index >= 0
        and number >= -1
        and 0 <= start <= now_ns
        and lane >= 0
        and all(0 <= count < _MOST_STEPS for count in counts)
    )


def believable_phases(phases: Sequence[OpenPhase], now_ns: int) -> list[OpenPhase]:
    """Return those of ``phases`` that have begun."""
    return [phase for phase in phases if 0 <= phase.t0 <= now_ns]


def _finite(bits: int) -> bool:
    return math.isfinite(struct.unpack("<d", struct.pack("<q", bits))[0])
