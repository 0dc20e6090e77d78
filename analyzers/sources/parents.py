# SPDX-License-Identifier: Apache-2.0
"""Who is whose parent, over all spans at once: repeats, ids that are shared, orphans, rings.

Almost always every span id occurs once; then one sort of the ids and one of the parents' ids settle all.
Only spans whose ids occur more often are looked at by trace and kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import KIND_CLIENT, KIND_SERVER, NO_PARENT, ORPHAN

IdArray = npt.NDArray[np.uint64]
KindArray = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]


def repeats(
    order: IntArray, trace_hi: IdArray, trace_lo: IdArray, span_id: IdArray, kind: KindArray
) -> tuple[IntArray, IntArray]:
    """Return the spans, ascending, whose (trace, id, kind) an earlier has, and the first such of each.

    ``order`` sorts the spans by their ids.
    """
    ids = span_id[order]
    same = ids[1:] == ids[:-1]
    if not same.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    some = order[_either(same)]
    keys = (span_id, trace_hi, trace_lo, kind)
    apart = changes(*(key[some] for key in keys))
    if bool(np.any(apart[1:] & ~changes(span_id[some])[1:])):  # of one id, and not of one key
        some = some[np.lexsort([key[some] for key in reversed(keys)])]
        apart = changes(*(key[some] for key in keys))
    begins = np.flatnonzero(apart)
    firsts = np.repeat(np.minimum.reduceat(some, begins), np.diff(np.append(begins, len(some))))
    again = np.flatnonzero(some != firsts)
    again = again[np.argsort(some[again])]
    return some[again], firsts[again]


def resolve(
    order: IntArray,
    trace_hi: IdArray,
    trace_lo: IdArray,
    span_id: IdArray,
    parent_id: IdArray,
    kind: KindArray,
    start: IntArray,
) -> tuple[IntArray, int]:
    """Return (parent_ix, number of rings cut); see `SpanColumns.parent_ix`.

    ``order`` sorts the spans by their ids; no two have the same trace, id and kind.
    Where a CLIENT and a SERVER span share one id (Zipkin's style), children belong to the SERVER span, and
    the SERVER span is a child of the CLIENT span.
    """
    ids = span_id[order]
    parent_ix, shared = _by_id(order, ids, parent_id)
    there = np.flatnonzero(parent_ix >= 0)
    at = parent_ix[there]
    elsewhere = (trace_lo[at] != trace_lo[there]) | (trace_hi[at] != trace_hi[there])
    parent_ix[there[elsewhere]] = ORPHAN
    same = ids[1:] == ids[:-1]
    if same.any():
        owners = order[_either(same)]
        both = ((span_id, parent_id), (trace_hi, trace_hi), (trace_lo, trace_lo))
        keys = _numbered([np.concatenate((own[owners], wanted[shared])) for own, wanted in both])
        _among_shared(parent_ix, owners, keys[: len(owners)], shared, keys[len(owners) :], kind)
    return parent_ix, _cut_rings(parent_ix, start)


def _by_id(order: IntArray, ids: IdArray, parent_id: IdArray) -> tuple[IntArray, IntArray]:
    """Return the span that has each parent id, and the spans whose parent id several spans have."""
    parent_ix = np.full(len(parent_id), NO_PARENT, np.int64)
    given = np.flatnonzero(parent_id)
    if not len(given):
        return parent_ix, given
    given = given[np.argsort(parent_id[given])]
    wanted = parent_id[given]
    apart = changes(wanted)
    distinct = wanted[apart]  # ascending, so that the search goes through the ids once
    slot = np.minimum(np.searchsorted(ids, distinct), len(ids) - 1)
    found = ids[slot] == distinct
    several = found & (ids[np.minimum(slot + 1, len(ids) - 1)] == distinct) & (slot + 1 < len(ids))
    of = np.cumsum(apart) - 1
    parent_ix[given] = np.where(found, order[slot], ORPHAN)[of]
    return parent_ix, given[several[of]]


def _among_shared(
    parent_ix: IntArray,
    owners: IntArray,
    owner_key: IntArray,
    child: IntArray,
    child_key: IntArray,
    kind: KindArray,
) -> None:
    """Settle, in place, the parents whose ids several spans have, and that of twins."""
    kinds = kind[owners]
    by_key = np.lexsort((kinds != KIND_CLIENT, kinds != KIND_SERVER, owner_key))
    owners, owner_key, kinds = owners[by_key], owner_key[by_key], kinds[by_key]
    slot = np.minimum(np.searchsorted(owner_key, child_key), len(owners) - 1)
    parent_ix[child] = np.where(owner_key[slot] == child_key, owners[slot], ORPHAN)
    server = np.flatnonzero(
        (owner_key[1:] == owner_key[:-1]) & (kinds[:-1] == KIND_SERVER) & (kinds[1:] == KIND_CLIENT)
    )
    parent_ix[owners[server]] = owners[server + 1]


def _either(same: Mask) -> Mask:
    """Return which elements are equal to a neighbour, of a mask of those equal to the next."""
    one: Mask = np.append(same, False) | np.append(False, same)
    return one


def _numbered(keys: list[npt.NDArray[Any]]) -> IntArray:
    """Return for each row of ``keys`` a number, the same for equal rows only."""
    order = np.lexsort(keys)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(changes(*(key[order] for key in keys)))
    return number


def _cut_rings(parent_ix: IntArray, start: IntArray) -> int:
    """Make an orphan of the earliest span of each ring of parents, in place; return the number of rings."""
    n = len(parent_ix)
    if bool(np.all(parent_ix < np.arange(n))):
        return 0  # whoever follows parents comes to ever smaller numbers
    ancestor = np.append(np.where(parent_ix < 0, n, parent_ix), n)
    for _ in range(n.bit_length()):
        if bool(np.all(ancestor == n)):
            return 0
        ancestor = ancestor[ancestor]
    rings = 0
    walk_of = np.zeros(n, np.int64)  # 0: not walked yet
    for walk, first in enumerate(np.flatnonzero(ancestor[:n] != n).tolist(), 1):
        at, chain = first, []
        while at >= 0 and walk_of[at] == 0:
            walk_of[at] = walk
            chain.append(at)
            at = int(parent_ix[at])
        if at >= 0 and walk_of[at] == walk:
            ring = chain[chain.index(at) :]
            parent_ix[min(ring, key=lambda i: (int(start[i]), i))] = ORPHAN
            rings += 1
    return rings
