# SPDX-License-Identifier: Apache-2.0
"""Which event of a profile follows which in another thread: kernels their launch, backward its forward."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.raw import RawColumn
from grademl_otel.analyzers.sources.batch import IdArray, LinkBatch
from grademl_otel.analyzers.sources.formats import vectors
from grademl_otel.analyzers.sources.formats.kineto_values import Place

_FOLLOWS: Final = "follows"
_LAUNCHES: Final = frozenset(
    {
        "cuda_runtime",
        "cuda_driver",
        "xpu_runtime",
        "xpu_driver",
        "mtia_runtime",
        "privateuse1_runtime",
        "Runtime",
    }
)
_OPERATORS: Final = frozenset({"cpu_op", "Operator"})
_OF_LAUNCHES: Final = frozenset({"ac2g", "async_cpu_to_gpu"})
"""Categories of flows that say what the arguments say."""


class _Args(msgspec.Struct, gc=False, rename={"external": "External id", "older": "external id"}):
    correlation: Any = None
    external: Any = None
    older: Any = None


_args = msgspec.json.Decoder(list[_Args])
_one = msgspec.json.Decoder(_Args)


class Flow(NamedTuple):
    """One end of an arrow that the profiler drew."""

    ph: str
    category: str
    id: vectors.Number
    place: Place
    time: vectors.Number
    """us since the trace's base, as written."""


class Bound(NamedTuple):
    """Where events are, as `nesting.nested` sorted them."""

    place: npt.NDArray[np.int32]
    start: IntArray
    end: IntArray
    order: IntArray
    parent: IntArray

    def at(self, places: IntArray, times: IntArray) -> IntArray:
        """Return the innermost event at each (place, time); -1 for none."""
        sorted_place, sorted_start = self.place[self.order], self.start[self.order]
        found = np.full(len(places), -1, np.int64)
        for place in np.unique(places).tolist():
            first, last = np.searchsorted(sorted_place, [place, place + 1]).tolist()
            asked = np.flatnonzero(places == place)
            slots = first - 1 + np.searchsorted(sorted_start[first:last], times[asked], side="right")
            found[asked[slots >= first]] = self.order[slots[slots >= first]]
        # The last that began, or what encloses it, whichever has not ended.
        left = np.flatnonzero(found >= 0)
        while len(left := left[self.end[found[left]] < times[left]]):
            found[left] = self.parent[found[left]]
            left = left[found[left] >= 0]
        return found


@dataclass(frozen=True)
class Pairs:
    """Links between events, by their numbers, sorted by ``later``."""

    later: IntArray
    earlier: IntArray

    def of(self, rows: slice, ids: IdArray, trace_hi: np.uint64, trace_lo: np.uint64) -> LinkBatch | None:
        """Return the links of the events in ``rows``, numbered from its start."""
        first, last = np.searchsorted(self.later, [rows.start, rows.stop]).tolist()
        count = last - first
        if not count:
            return None
        return LinkBatch(
            self.later[first:last] - rows.start,
            np.full(count, trace_hi, np.uint64),
            np.full(count, trace_lo, np.uint64),
            ids[self.earlier[first:last]],
            [_FOLLOWS] * count,
        )


def links_of(
    bound: Bound,
    flows: Sequence[Flow],
    args: Sequence[RawColumn],
    category: npt.NDArray[np.int32],
    categories: Mapping[str, int],
    places: Mapping[Place, int],
    device: Collection[str],
) -> Pairs:
    """Return what follows what; ``args`` are the arguments of all events, in their order."""
    pairs = dict(_of_flows(bound, [flow for flow in flows if flow.category not in _OF_LAUNCHES], places))
    later, earlier = list(pairs), list(pairs.values())
    kernels = _numbered(category, categories, device)
    launched = _launches(kernels, args, category, categories)
    if len(launched) < len(kernels):
        drawn = _of_flows(bound, [flow for flow in flows if flow.category in _OF_LAUNCHES], places)
        for kernel, launch in drawn:
            launched.setdefault(kernel, launch)
    later += launched
    earlier += launched.values()
    both = np.array([later, earlier], np.int64).reshape(2, -1)
    both = both[:, both[0] != both[1]]
    if both.shape[1]:
        both = np.unique(both, axis=1)
    return Pairs(both[0], both[1])


def _launches(
    kernels: IntArray,
    args: Sequence[RawColumn],
    category: npt.NDArray[np.int32],
    categories: Mapping[str, int],
) -> dict[int, int]:
    """Return kernel -> its launch, by the correlation of both, else the operator, by the external id."""
    if not len(kernels):
        return {}
    found: dict[int, int] = {}
    calls = _numbered(category, categories, _LAUNCHES)
    by_correlation = {
        one.correlation: ix for ix, one in _arguments(calls, args) if isinstance(one.correlation, int)
    }
    of_kernel = list(_arguments(kernels, args))
    for ix, one in of_kernel:
        launch = by_correlation.get(one.correlation) if isinstance(one.correlation, int) else None
        if launch is not None:
            found[ix] = launch
    if len(found) < len(of_kernel):
        operators = _numbered(category, categories, _OPERATORS)
        by_external = {key: ix for ix, one in _arguments(operators, args) if (key := _external(one))}
        for ix, one in of_kernel:
            operator = by_external.get(_external(one))
            if ix not in found and operator is not None:
                found[ix] = operator
    return found


def _external(one: _Args) -> int:
    value = one.external if one.external is not None else one.older
    return value if isinstance(value, int) else 0


def _numbered(
    category: npt.NDArray[np.int32], categories: Mapping[str, int], wanted: Collection[str]
) -> IntArray:
    numbers = [number for name, number in categories.items() if name in wanted]
    return np.flatnonzero(np.isin(category, numbers))


def _arguments(events: IntArray, args: Sequence[RawColumn]) -> Iterator[tuple[int, _Args]]:
    """Yield (event, what is wanted of its arguments)."""
    first = 0
    for raws in args:
        some = events[(events >= first) & (events < first + len(raws))].tolist()
        texts = [raws[ix - first] for ix in some]
        try:
            yield from zip(some, _args.decode(b"[%b]" % b",".join(texts)), strict=True)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            for ix, text in zip(some, texts, strict=True):
                try:
                    yield ix, _one.decode(text)
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                    yield ix, _Args()
        first += len(raws)


def _of_flows(bound: Bound, flows: Sequence[Flow], places: Mapping[Place, int]) -> Iterator[tuple[int, int]]:
    """Yield (later, earlier) of the events that arrows begin and end at."""
    known = [flow for flow in flows if flow.place in places]
    at = np.array([places[flow.place] for flow in known], np.int64)
    events = bound.at(at, vectors.microseconds([flow.time for flow in known])).tolist()
    begins = {(flow.category, flow.id): ix for flow, ix in zip(known, events, strict=True) if flow.ph == "s"}
    for flow, ix in zip(known, events, strict=True):
        source = begins.get((flow.category, flow.id), -1) if flow.ph != "s" else -1
        if ix >= 0 and source >= 0:
            yield ix, source
