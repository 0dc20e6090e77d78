# SPDX-License-Identifier: Apache-2.0
"""What the streams of devices did, as their profiler saw it, and which call gave each piece of it to them."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.profiles.profile_facts import ProfileFacts, profile_facts
from grademl_otel.analyzers.model.columns import SpanColumns

COMPUTE: Final = 0
COMMUNICATION: Final = 1
COPY: Final = 2

GLOO: Final = "gloo:"
"""What the names of gloo's collectives begin with, in threads of the host."""
CALLS: Final = frozenset(
    {
        "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime",
        "Runtime",
    }
)  # fmt: skip
"""Categories of calls to the library of a device."""
_NO_WORK: Final = frozenset({"gpu_user_annotation", "user_annotation", "cuda_sync", "cuda_event", "xpu_sync"})
"""Categories of what stands in a stream's lane and is none of its work."""
_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
_COPYING: Final = ("Memcpy", "Memset", "dma_request")
"""How names of copies begin; the last are those of MTIA."""
_COMMUNICATION: Final = re.compile(r"(nccl|rccl|oneccl|hccl|msccl)|.*(ncclDev|ncclKernel)", re.IGNORECASE)


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and collectives of all streams, sorted by (lane, start, end). Times are Unix ns."""

    place: IntArray
    """Place among the facts."""
    lane: IntArray
    start: IntArray
    end: IntArray
    sort: IntArray
    """`COMPUTE`, `COMMUNICATION` or `COPY`."""
    launch: IntArray
    """Place of the call that gave it to the stream; -1 where that is not known."""
    by_call: BoolArray
    """Whether that is the call itself; else only the operator around it is known."""
    launched: IntArray
    """When the call began. A stream works in order: where the call is not known, that before it was."""

    def __len__(self) -> int:
        return len(self.place)

    def of_lane(self, lane: int) -> slice:
        """Return the slice of the work of ``lane``."""
        first, end = np.searchsorted(self.lane, (lane, lane + 1)).tolist()
        return slice(first, end)


@dataclass(frozen=True)
class ProfileWork:
    """What the spans of some profiles say, and the work of their devices."""

    facts: ProfileFacts
    follows: tuple[IntArray, IntArray]
    """See `followed`."""
    work: DeviceWork


_latest: tuple[weakref.ref[SpanColumns], tuple[int, ...], ProfileWork] | None = None


def profile_work(spans: SpanColumns, roots: Sequence[int]) -> ProfileWork:
    """Return what the traces under ``roots`` say; the latest is kept, as several analyses ask in a row."""
    global _latest
    latest, asked = _latest, tuple(sorted(roots))  # one read: another thread may replace it
    if latest is not None and latest[0]() is spans and latest[1] == asked:
        return latest[2]
    facts = profile_facts(spans, np.flatnonzero(np.isin(spans.trace_ix, spans.trace_ix[list(roots)])))
    follows = followed(spans, facts)
    found = ProfileWork(facts, follows, device_work(spans, facts, follows))
    _latest = (weakref.ref(spans), asked, found)
    return found


def device_work(spans: SpanColumns, facts: ProfileFacts, follows: tuple[IntArray, IntArray]) -> DeviceWork:
    """Return the work of the streams; ``follows``: see `followed`."""
    on_stream = np.zeros(len(facts.lanes) + 1, np.bool_)
    on_stream[facts.streams] = True
    start, end = spans.start[facts.ixs], spans.end[facts.ixs]
    works = on_stream[facts.lane] & (end > start)
    works[facts.of_categories(_NO_WORK)] = False
    place = np.flatnonzero(works)
    place = place[np.lexsort((end[place], start[place], facts.lane[place]))]
    launch = np.full(len(facts.ixs), -1, np.int64)
    later, earlier = follows
    given = works[later] & ~on_stream[facts.lane[earlier]]
    launch[later[given]] = earlier[given]
    launch = launch[place]
    calls = np.zeros(len(facts.ixs) + 1, np.bool_)
    calls[facts.of_categories(CALLS)] = True
    begun = np.where(launch >= 0, start[launch], np.iinfo(np.int64).min)
    lane = facts.lane[place]
    for one in np.unique(lane).tolist():
        first, stop = np.searchsorted(lane, (one, one + 1)).tolist()
        np.maximum.accumulate(begun[first:stop], out=begun[first:stop])
    return DeviceWork(
        place=place,
        lane=lane,
        start=start[place],
        end=end[place],
        sort=_sorts(spans, facts, place),
        launch=launch,
        by_call=calls[launch] | (facts.category[launch] < 0),
        launched=np.minimum(begun, start[place]),
    )


def host_collectives(spans: SpanColumns, facts: ProfileFacts) -> DeviceWork:
    """Return the collectives that threads of the host work on, those of gloo, as work of their lanes."""
    names = [number for number, name in enumerate(spans.names) if name.startswith(GLOO)]
    start, end = spans.start[facts.ixs], spans.end[facts.ixs]
    talks = np.isin(spans.name_ix[facts.ixs], names) & (facts.lane >= 0) & (end > start)
    place = np.flatnonzero(talks)
    place = place[np.lexsort((end[place], start[place], facts.lane[place]))]
    none = np.full(len(place), -1, np.int64)
    return DeviceWork(
        place=place,
        lane=facts.lane[place],
        start=start[place],
        end=end[place],
        sort=np.full(len(place), COMMUNICATION, np.int64),
        launch=none,
        by_call=none > 0,
        launched=start[place],
    )


def _sorts(spans: SpanColumns, facts: ProfileFacts, place: IntArray) -> IntArray:
    names = [
        COMMUNICATION if _COMMUNICATION.match(name) else COPY if name.startswith(_COPYING) else COMPUTE
        for name in spans.names
    ]
    sort = np.array(names or [COMPUTE], np.int64)[spans.name_ix[facts.ixs]]
    sort[facts.of_categories(_COPIES)] = COPY
    sort[facts.of_categories(frozenset({"collective_comm"}))] = COMMUNICATION
    sort[list(facts.collectives)] = COMMUNICATION
    return sort[place]


def followed(spans: SpanColumns, facts: ProfileFacts) -> tuple[IntArray, IntArray]:
    """Return (later, earlier): places of spans that a link ties to one of them which they follow."""
    links = spans.links
    place = np.full(len(spans), -1, np.int64)
    place[facts.ixs] = np.arange(len(facts.ixs))
    asked = np.flatnonzero(place[links.span_ix] >= 0)
    order = np.argsort(spans.span_id[facts.ixs], kind="stable")
    ids = spans.span_id[facts.ixs][order]
    at = np.minimum(np.searchsorted(ids, links.span_id[asked]), max(len(ids) - 1, 0))
    if not len(ids):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    target = facts.ixs[order[at]]
    same = spans.span_id[target] == links.span_id[asked]
    same &= (spans.trace_hi[target] == links.trace_hi[asked]) & (
        spans.trace_lo[target] == links.trace_lo[asked]
    )
    later, earlier = place[links.span_ix[asked[same]]], order[at][same]
    told = (facts.lane[later] >= 0) & (facts.lane[earlier] >= 0)
    return later[told], earlier[told]
