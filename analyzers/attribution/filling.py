# SPDX-License-Identifier: Apache-2.0
"""Sharing amounts among parts by weight, none above its limit: many amounts at once, on arrays.

The greedy pass of GradeML's upsampling serves those first that are full soonest and shares anew what they
leave. That is water filling: with one level λ for all parts of an amount, each gets min(λ · weight, limit).
"""

from __future__ import annotations

import numpy as np

from grademl_otel.analyzers.arrays import FloatArray, IntArray


def fill(
    first: IntArray, fraction: FloatArray, weight: FloatArray, limit: FloatArray, amount: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return (what each part gets, what is left of each amount).

    ``first`` (n): index of the first part of each amount; its parts are those up to the next one's, at least
    one. By part (m): ``fraction`` (> 0), how much one unit of what it gets takes of the amount; ``weight``
    (≥ 0; 0: gets nothing) and ``limit`` (≥ 0, may be infinite) of what it gets. ``amount`` (n, ≥ 0).
    So the fractions times what the parts get, and what is left, sum to the amount.
    """
    if not (weight.any() and amount.any()):
        return np.zeros(len(fraction)), amount.copy()
    number = np.diff(np.append(first, len(fraction)))
    owner = np.repeat(np.arange(len(first)), number)
    taken = fraction * weight
    whole = np.add.reduceat(taken, first)
    level = np.divide(amount, whole, out=np.zeros(len(first)), where=whole > 0)
    got: FloatArray = level[owner] * weight
    left = np.where(whole > 0, 0.0, amount)
    limited = np.logical_or.reduceat(got > limit, first)
    if limited.any():
        parts = np.flatnonzero(limited[owner])
        begin = np.flatnonzero(np.diff(owner[parts], prepend=-1))
        got[parts], left[limited] = _fill_limited(
            begin, number[limited], fraction[parts], weight[parts], limit[parts], amount[limited]
        )
    return got, left


def _fill_limited(
    first: IntArray,
    number: IntArray,
    fraction: FloatArray,
    weight: FloatArray,
    limit: FloatArray,
    amount: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """`fill` for amounts (> 0) of which some parts are full."""
    parts = len(fraction)
    owner = np.repeat(np.arange(len(first)), number)
    of_part = amount[owner]
    limit = np.minimum(limit, of_part / fraction)  # no part gets more than all
    willing = (weight > 0) & (limit > 0)
    # Which parts will be full: in the order in which a rising level fills them, those before the first for
    # which the level, were it not full, stays below its own. In parts of the amount and of all weights, so
    # that sums over many amounts of different size lose nothing.
    taken = np.where(willing, fraction * weight, 0.0)
    of_all = np.add.reduceat(taken, first)[owner]
    share = np.divide(taken, of_all, out=np.zeros(parts), where=of_all > 0)
    full = np.where(willing, fraction * limit / of_part, 0.0)
    fills_at = np.divide(full, share, out=np.full(parts, np.inf), where=share > 0)
    order = np.lexsort((fills_at, owner))
    rest = 1.0 - _before(share[order], first, number)
    level = np.divide(
        1.0 - _before(full[order], first, number), rest, out=np.full(parts, np.inf), where=rest > 0
    )
    stays = np.where(level <= fills_at[order], np.arange(parts), parts)
    last = np.minimum.reduceat(stays, first)
    is_full = np.zeros(parts, np.bool_)
    is_full[order] = np.arange(parts) < last[owner]
    is_full &= willing
    # The level itself from sums of that amount alone.
    left = np.maximum(amount - np.add.reduceat(np.where(is_full, fraction * limit, 0.0), first), 0.0)
    open_weight = np.add.reduceat(np.where(is_full, 0.0, taken), first)
    height = np.divide(left, open_weight, out=np.zeros(len(first)), where=open_weight > 0)
    shared = np.where(willing, np.minimum(height[owner] * weight, limit), 0.0)
    return np.where(is_full, limit, shared), np.where(open_weight > 0, 0.0, left)


def _before(values: FloatArray, first: IntArray, number: IntArray) -> FloatArray:
    """Return for each part the sum of those before it of the same amount."""
    sums: FloatArray = np.cumsum(values) - values
    return sums - np.repeat(sums[first], number)
