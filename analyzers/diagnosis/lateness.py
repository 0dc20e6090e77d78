# SPDX-License-Identifier: Apache-2.0
"""Who keeps the others waiting: how often, by how much, with what, and how likely that is by chance.

Late is told against the median of the other ranks in the same step, so that the speed of all does not matter.
What fixing a rank would gain goes by the next slowest: the others would wait for that one then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, exp, lgamma, log
from typing import Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.ranks import Comparison
from grademl_otel.analyzers.graph.runs.main_lane import OTHER

STEADY: Final = "steady"
NOW_AND_THEN: Final = "now and then"
CHANGING: Final = "changing"

RECURS: Final = 0.8
"""Part of the steps in which the same ranks must come last, or part of the cost that must be theirs."""
COVERED_SHARE: Final = 0.8
"""Part of the lateness that phases must cover to be named as its cause."""
_AS_LATE: Final = 0.5
"""A rank that is late by at least this part of what the latest is belongs to the same group."""
_NOTICED: Final = 0.01
"""Part of a step by which a rank must be behind the next one to count as last."""
_MOST_CAUSES: Final = 3


@dataclass(frozen=True)
class Cause:
    """A phase that takes the late ranks longer than the others; mean ns over the steps they were last in."""

    phase: str
    more_ns: float


@dataclass(frozen=True)
class Lateness:
    """The ranks that keep the others waiting; means over the steps in which one of them was last."""

    pattern: str
    """`STEADY`, `NOW_AND_THEN` (few steps, but nearly all of the cost), or `CHANGING`: no ranks stand out."""
    ranks: list[int]
    """The latest first; when they change, the one that is last most often."""
    n: int
    """Steps that were compared."""
    last: int
    """Steps in which one of `ranks` was last, noticeably."""
    late_ns: float
    """How much later than the median of the others."""
    gain: float
    """Part of all steps' time that is lost to `ranks`; when they change, to the slowest of each step."""
    chance: float
    """Probability that any so many ranks are last so often when all are alike."""
    causes: list[Cause]
    covered: float
    """Part of `late_ns` that `causes` cover."""
    next_limit: str
    """The phase that the other ranks spend most of their time in."""


def lateness(found: Comparison, margin_ns: float = 0.0) -> Lateness | None:
    """Return who keeps the others waiting in ``found``; None when nobody does by more than ``margin_ns``."""
    late, length = found.late.astype(np.float64), found.length.astype(np.float64)
    behind = behind_others(found)
    mean = behind.mean(axis=0)
    if mean.max() <= 0:
        return None
    group = np.flatnonzero(mean >= _AS_LATE * mean.max())
    group = group[np.argsort(-mean[group], kind="stable")]
    if 2 * len(group) > late.shape[1]:
        group = group[:1]
    whole, last = length.mean(axis=1), late.argmax(axis=1)
    noticed = np.maximum(margin_ns, _NOTICED * whole)
    lost = late.max(axis=1) - _slowest_but(late, group)
    mine = np.isin(last, group) & (lost > noticed)
    lost = np.where(mine, lost, 0.0)
    every = late.max(axis=1) - late.mean(axis=1)
    if mine.mean() >= RECURS:
        pattern = STEADY
    elif mine.any() and lost.sum() >= RECURS * _lost_to_anyone(late, noticed).sum():
        pattern = NOW_AND_THEN
    else:
        pattern = CHANGING
        group = np.array([np.bincount(last).argmax()])
        mine, lost = np.isin(last, group), every
    if not mine.any() or lost.mean() <= margin_ns:
        return None
    causes, covered = _causes(found, group, mine)
    return Lateness(
        pattern=pattern,
        ranks=[found.ranks[int(ix)] for ix in group],
        n=len(found),
        last=int(np.count_nonzero(mine)),
        late_ns=float(behind[mine][:, group].max(axis=1).mean()),
        gain=float(lost.sum() / whole.sum()) if whole.sum() else 0.0,
        chance=chance_of(int(np.count_nonzero(mine)), len(found), len(group), late.shape[1]),
        causes=causes,
        covered=covered,
        next_limit=_busiest(found, group),
    )


def of_all_steps(late: Lateness, every: Comparison, some: Comparison, margin_ns: float = 0.0) -> Lateness:
    """Return ``late``, which is of ``some`` steps in detail, with the gain that it has in all of them.

    By how late the same ranks are in ``every`` step by what is known of all, against the steps of ``some``.
    """
    whole, part = lateness(every, margin_ns), lateness(every.of_steps_in(some), margin_ns)
    if whole is None or part is None or part.gain <= 0:
        return late
    if any((one.pattern, one.ranks) != (late.pattern, late.ranks) for one in (whole, part)):
        return late
    return replace(late, gain=min(1.0, late.gain * whole.gain / part.gain))


def chance_of(last: int, steps: int, group: int, ranks: int) -> float:
    """Return how likely some ``group`` of ``ranks`` like ranks come last in ``last`` or more of ``steps``."""
    share = group / ranks
    if share >= 1 or last <= 0:
        return 1.0
    tail = sum(
        exp(
            lgamma(steps + 1) - lgamma(k + 1) - lgamma(steps - k + 1)
            + k * log(share) + (steps - k) * log(1 - share)
        )
        for k in range(last, steps + 1)
    )  # fmt: skip
    return min(1.0, tail * comb(ranks, group))


def behind_others(found: Comparison) -> npt.NDArray[np.float64]:
    """Return by how many ns each rank is later, in each step, than the median of the others."""
    late = found.late.astype(np.float64)
    return late - _median_of_others(late)


def last_in_steps(found: Comparison) -> IntArray:
    """Return for each rank the number of steps in which it came noticeably later than all others."""
    late = found.late.astype(np.float64)
    lost = _lost_to_anyone(late, _NOTICED * found.length.mean(axis=1))
    return np.bincount(late.argmax(axis=1)[lost > 0], minlength=late.shape[1])


def _median_of_others(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return for each element the median of the other elements of its row."""
    order = np.argsort(values, axis=1, kind="stable")
    place = np.argsort(order, axis=1, kind="stable")
    ascending = np.take_along_axis(values, order, 1)
    others = values.shape[1] - 1

    def at(k: int) -> npt.NDArray[np.float64]:
        """The k-th smallest of the others."""
        return np.where(k < place, ascending[:, k, None], ascending[:, k + 1, None])

    median: npt.NDArray[np.float64] = (at((others - 1) // 2) + at(others // 2)) / 2
    return median


def _slowest_but(late: npt.NDArray[np.float64], group: IntArray) -> npt.NDArray[np.float64]:
    """Return for each step how late the latest rank out of ``group`` is."""
    others = np.setdiff1d(np.arange(late.shape[1]), group)
    slowest: npt.NDArray[np.float64] = late[:, others].max(axis=1)
    return slowest


def _lost_to_anyone(
    late: npt.NDArray[np.float64], noticed: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return for each step what the last rank costs against the next one, where it is noticed."""
    top = np.sort(late, axis=1)
    lost = top[:, -1] - top[:, -2]
    return np.where(lost > noticed, lost, 0.0)


def _causes(found: Comparison, group: IntArray, mine: BoolArray) -> tuple[list[Cause], float]:
    """Return the phases that make ``group`` late in the steps ``mine``, and the part of it they cover."""
    late = found.late.astype(np.float64)
    last = group[late[mine][:, group].argmax(axis=1)]
    at = (np.arange(len(last)), last)
    behind = float(behind_others(found)[mine][at].mean())
    more = {
        phase: float((own[mine] - _median_of_others(own.astype(np.float64))[mine])[at].mean())
        for phase, own in found.own.items()
    }
    causes: list[Cause] = []
    covered = 0.0
    for phase in sorted(more, key=lambda phase: (-more[phase], phase))[:_MOST_CAUSES]:
        if more[phase] <= 0 or covered >= COVERED_SHARE * behind:
            break
        causes.append(Cause(phase, more[phase]))
        covered += more[phase]
    return causes, covered / behind if behind > 0 else 0.0


def _busiest(found: Comparison, group: IntArray) -> str:
    others = np.setdiff1d(np.arange(len(found.ranks)), group)
    spent = {phase: int(own[:, others].sum()) for phase, own in found.own.items()}
    return max(spent, key=lambda phase: spent[phase], default=OTHER)
