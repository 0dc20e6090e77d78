# SPDX-License-Identifier: Apache-2.0
"""Pointer doubling (Wyllie 1979): what lies along a chain of pointers, in log2 of its length steps on arrays.

Each element points at another, or at itself where a chain ends. In each round it takes over what the element
knows that it points at, and then points where that one points: at twice the distance. A ring has no end; the
bound on the rounds ends it, and what it yields means nothing.
"""

from __future__ import annotations

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray


def narrowed(up: IntArray, lo: IntArray, hi: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return where each chain ends, the most of ``lo`` along it, and the least of ``hi``."""
    up, lo, hi = up.copy(), lo.copy(), hi.copy()
    active: IntArray = np.arange(len(up))
    for _ in range(len(up).bit_length() + 1):
        at = up[active]
        lo[active], hi[active] = np.maximum(lo[active], lo[at]), np.minimum(hi[active], hi[at])
        further = up[at]
        up[active] = further
        active = active[further != at]
        if not len(active):
            break
    return up, lo, hi


def all_along(up: IntArray, marked: BoolArray) -> BoolArray:
    """Return whether all elements of each chain are ``marked``."""
    up, marked = up.copy(), marked.copy()
    active = np.flatnonzero(marked)
    for _ in range(len(up).bit_length() + 1):
        at = up[active]
        on, further = marked[at], up[at]
        marked[active] = on
        up[active] = further
        active = active[on & (further != at)]
        if not len(active):
            break
    return marked


def reached(firsts: IntArray, following: IntArray) -> BoolArray:
    """Return which elements are on the chains that begin with ``firsts``."""
    found = np.zeros(len(following), bool)
    found[firsts] = True
    for _ in range(len(following).bit_length() + 1):
        known = np.flatnonzero(found)
        new = following[known]
        new = new[~found[new]]
        if not len(new):
            break
        found[new] = True
        following = following[following]
    return found
