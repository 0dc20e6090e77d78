# SPDX-License-Identifier: Apache-2.0
"""What happened beside the steps: epochs, evaluation, checkpoints, compilations, collections, how it ended.

Each is a band over time, of all ranks together; of each kind the `MOST` longest are told, and how many
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.runs.activities import activities
from grademl_otel.analyzers.graph.runs.main_lane import NAMES
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.facts import COMPLETE_LEVEL, HowEnded, Run, Scope
from grademl_otel.analyzers.units import count

MOST: Final = 120
"""Bands of one kind."""
_BADLY: Final = {
    "killed": "was killed",
    "exception": "ended by an exception",
    "unknown": "has not reported an end",
}
_PHASES: Final = (
    ("evaluation", sc.EVALUATE),
    ("checkpoint", sc.CHECKPOINT_SAVE),
    ("restore", sc.CHECKPOINT_LOAD),
    ("compile", sc.COMPILE),
    ("gc", sc.GC),
)


@dataclass(frozen=True)
class Band:
    """``[start, end)`` in ns from the origin, and what it was; it may have no length."""

    start: int
    end: int
    what: str


@dataclass(frozen=True)
class Bands:
    """Those of one kind, in order of time."""

    kind: str
    bands: list[Band]
    count: int
    """How many there are, with those that are not among ``bands``."""


@dataclass(frozen=True)
class _Found:
    """All of one kind: arrays of Unix ns, and what each was, by its place."""

    start: IntArray
    end: IntArray
    what: Callable[[int], str]

    @classmethod
    def of(cls, bands: Sequence[tuple[int, int, str]]) -> _Found:
        start, end = (np.array([band[at] for band in bands], np.int64) for at in (0, 1))
        return cls(start, end, lambda at: bands[at][2])


def bands_of_run(run: Run, origin: int) -> list[Bands]:
    """Return all kinds of which there are any; times from ``origin``, in Unix ns."""
    kinds = (
        *_scopes(run),
        *_phases(run),
        ("reduced", _united(run, run.steps.level > COMPLETE_LEVEL)),
        ("missing", _holes(run)),
        ("window", _windows(run)),
        ("end", _ends(run)),
    )
    return [_bounded(kind, found, origin) for kind, found in kinds if len(found.start)]


def _bounded(kind: str, found: _Found, origin: int) -> Bands:
    kept = np.argsort(found.start - found.end, kind="stable")[:MOST]
    kept = kept[np.lexsort((found.end[kept], found.start[kept]))]
    bands = [
        Band(start - origin, end - origin, found.what(at))
        for at, start, end in zip(
            kept.tolist(), found.start[kept].tolist(), found.end[kept].tolist(), strict=True
        )
    ]
    return Bands(kind, bands, len(found.start))


def _scopes(run: Run) -> Iterable[tuple[str, _Found]]:
    """Return epochs, trials and phases of the program's own, of the first rank that has each kind."""
    kinds: tuple[tuple[str, Callable[[Scope], bool]], ...] = (
        ("epoch", lambda scope: scope.name == sc.EPOCH),
        ("trial", lambda scope: scope.name == sc.TRIAL),
        ("own phase", lambda scope: scope.user),
    )
    for kind, wanted in kinds:
        mine = [scope for scope in run.scopes if wanted(scope)]
        first = [scope for scope in mine if scope.rank == mine[0].rank]
        yield kind, _Found.of([(scope.start, scope.end, _called(scope)) for scope in first])


def _called(scope: Scope) -> str:
    number = scope.attributes.get(sc.EPOCH_NUMBER)
    return f"{scope.name} {number}" if isinstance(number, int) else scope.name


def _phases(run: Run) -> Iterable[tuple[str, _Found]]:
    """Return what main lanes did in the phases that interrupt a training, of all ranks together."""
    main = activities(run).main
    for kind, phase in _PHASES:
        mine = np.flatnonzero((main.name == NAMES.index(phase)) | (main.top == NAMES.index(phase)))
        start, end = _union(main.start[mine], main.end[mine])
        yield kind, _Found(start, end, lambda _, phase=phase: phase)  # type: ignore[misc]


def _united(run: Run, mask: npt.NDArray[np.bool_]) -> _Found:
    return _Found(*_union(run.steps.start[mask], run.steps.end[mask]), lambda _: "not all phases recorded")


def _union(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return intervals, those that overlap or touch as one."""
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > until[:-1])[: len(start)])
    last = np.append(first[1:], len(start)) - 1
    return start[first], until[last[: len(first)]]


def _holes(run: Run) -> _Found:
    return _Found.of(
        [
            (low, high, f"steps of rank {rank} are missing")
            for rank, coverage in sorted(run.completeness.coverage.items())
            if rank in run.ranks
            for low, high in coverage.holes
        ]
    )


def _windows(run: Run) -> _Found:
    """Return the windows of the first rank, in which its steps were sent."""
    mine = run.steps.of_rank(run.ranks[0]) if run.ranks else slice(0)
    start, end, window = run.steps.start[mine], run.steps.end[mine], run.steps.window[mine]
    first = np.flatnonzero(changes(window)) if len(window) else np.zeros(0, np.int64)
    last = np.append(first[1:], len(window)) - 1
    last = last[: len(first)]
    size = last - first + 1
    return _Found(
        start[first], end[last], lambda at: f"window {window[first[at]]}, {count(int(size[at]), 'step')}"
    )


def _ends(run: Run) -> _Found:
    ended = [one for one in run.completeness.ended if one.how in _BADLY and one.rank in run.ranks]
    return _Found.of([(one.last_mark_unix_ns, one.last_mark_unix_ns, _end(one)) for one in ended])


def _end(ended: HowEnded) -> str:
    where = f" in {ended.open_phase}" if ended.open_phase else ""
    error = f" ({ended.error})" if ended.error else ""
    return f"rank {ended.rank} {_BADLY[ended.how]}{where}{error}"
