# SPDX-License-Identifier: Apache-2.0
"""What the spans of a profile say beside their times: lane, category, what ties calls to a device's work.

All spans are looked at, so their attributes are decoded many at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.path import Lane
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.sources.formats.kineto_spans import SYNC_CATEGORIES
from grademl_otel.analyzers.sources.formats.kineto_values import CATEGORY, KINETO, THREAD_NAME

MAIN: Final = "main"
STREAM: Final = "stream-"
"""What the names of lanes of devices begin with."""
WORKERS: Final = "#_MultiProcessingDataLoaderIter.__next__"
"""How the name ends of what the thread does that takes a batch from the workers of a `DataLoader`."""

_MANY: Final = 1 << 14
_STEP_NAME: Final = re.compile(r"ProfilerStep#?\s*(\d{1,18})$")


class _Shared(
    msgspec.Struct, gc=False, rename={"lane": semconv.LANE, "category": CATEGORY, "thread": THREAD_NAME}
):
    lane: str | None = None
    category: str | None = None
    thread: str | None = None


class _Said(
    msgspec.Struct,
    gc=False,
    rename={
        "stream": "stream",
        "waits_on": "wait_on_stream",
        "recorded": "wait_on_cuda_event_record_corr_id",
        "collective": "Collective name",
        "group": "Process Group Name",
        "members": "Process Group Ranks",
        "size": "Group size",
        "number": "Seq",
    },
):
    correlation: Any = None
    stream: Any = None
    device: Any = None
    waits_on: Any = None
    recorded: Any = None
    collective: Any = None
    group: Any = None
    members: Any = None
    size: Any = None
    number: Any = None


_many: Final = msgspec.json.Decoder(list[tuple[_Shared, _Said]])
_FAULTS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Sync(NamedTuple):
    """A note of the profiler on a call that waits: for a device, a stream, or an event that was recorded."""

    rank: int | None
    correlation: int
    """Of the call that waits."""
    device: int
    stream: int
    """The stream that waits or is waited for; -1 for all of the device."""
    waits_on: int
    """Stream on which the event that is waited for was recorded; -1 where no event is."""
    recorded: int
    """Correlation of the call that recorded it; -1 likewise."""


class Collective(NamedTuple):
    """What a collective is known by on all of its members."""

    name: str
    group: str
    size: int
    """How many members it has; 0 where it does not say."""
    number: int
    """Of those of its group; -1 where it does not say."""


@dataclass(frozen=True)
class ProfileFacts:
    """Facts of the spans ``ixs``, those with possible times; one element each."""

    ixs: IntArray
    """Indices into the columns."""
    lane: IntArray
    """Index into ``lanes``; -1 for none."""
    lanes: Sequence[Lane]
    """Sorted: by rank, the main lane first, then by name."""
    category: IntArray
    """Index into ``categories``."""
    categories: Sequence[str]
    correlation: IntArray
    """-1 for none."""
    threads: dict[int, str]
    """Lane -> name of its thread, where one is told."""
    syncs: list[Sync]
    collectives: dict[int, Collective]
    """Place among ``ixs`` -> what it is known by."""
    steps: dict[int, int]
    """Place among ``ixs`` of an annotation of a step -> number of the step."""

    @property
    def streams(self) -> IntArray:
        """Which of ``lanes`` are streams of devices."""
        return np.flatnonzero([name.startswith(STREAM) for _, name in self.lanes])

    def of_categories(self, wanted: frozenset[str]) -> IntArray:
        """Return the places of the spans of these categories."""
        numbers = [number for number, name in enumerate(self.categories) if name in wanted]
        return np.flatnonzero(np.isin(self.category, numbers))


def profile_facts(spans: SpanColumns, ixs: IntArray) -> ProfileFacts:
    """Return the facts of ``spans`` at ``ixs``."""
    return _Reader(spans, ixs[spans.possible[ixs]]).facts()


class _Reader:
    def __init__(self, spans: SpanColumns, ixs: IntArray) -> None:
        self._spans, self._ixs = spans, ixs
        ranks = [_integer(resource.get(semconv.RANK)) for resource in spans.resources]
        self._ranks = [None if rank < 0 else rank for rank in ranks]
        self._sorts: dict[tuple[str | None, str | None, str | None], int] = {}
        """(lane, category, thread) -> its number."""
        self._syncs: list[Sync] = []
        self._collectives: dict[int, Collective] = {}

    def facts(self) -> ProfileFacts:
        spans, ixs = self._spans, self._ixs
        sort, correlation = np.full(len(ixs), -1, np.int64), np.full(len(ixs), -1, np.int64)
        for first, end in self._runs():
            said = self._decoded(ixs[first:end])
            sort[first:end], correlation[first:end] = self._taken(first, said)
        # What is said of lanes is the same for all of a sort and a resource: few.
        width = max(len(spans.resources), 1)
        keys, of_key = np.unique(sort * width + spans.resource_ix[ixs], return_inverse=True)
        told = list(self._sorts)
        lanes = sorted(
            {lane for key in keys.tolist() if (lane := self._lane(told, *divmod(key, width)))}, key=_order
        )
        number = {lane: at for at, lane in enumerate(lanes)}
        categories = list(dict.fromkeys(category or "" for _, category, _ in told))
        lane_of, category_of = np.full(len(keys), -1, np.int64), np.zeros(len(keys), np.int64)
        threads: dict[int, str] = {}
        for at, key in enumerate(keys.tolist()):
            _, category, thread = told[key // width]
            category_of[at] = categories.index(category or "")
            lane = self._lane(told, *divmod(key, width))
            if lane is not None:
                lane_of[at] = number[lane]
                if thread is not None:
                    threads.setdefault(number[lane], thread)
        return ProfileFacts(
            ixs=ixs,
            lane=lane_of[of_key],
            lanes=lanes,
            category=category_of[of_key],
            categories=categories,
            correlation=correlation,
            threads=threads,
            syncs=self._syncs,
            collectives=self._collectives,
            steps=self._steps(),
        )

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of spans whose attributes were read together, `_MANY` at most."""
        ends = np.flatnonzero(changes(self._spans.raw_attributes.column[self._ixs]))[1:].tolist()
        for first, end in pairwise([0, *ends, len(self._ixs)]):
            for at in range(first, end, _MANY):
                yield at, min(at + _MANY, end)

    def _lane(self, told: Sequence[tuple[str | None, ...]], sort: int, resource: int) -> Lane | None:
        name = told[sort][0]
        return None if name is None else (self._ranks[resource], name)

    def _taken(self, first: int, said: Sequence[tuple[_Shared, _Said]]) -> tuple[list[int], list[int]]:
        """Return sorts and correlations of the spans from place ``first`` on; keep what few of them say."""
        sorts = self._sorts
        for at, (shared, own) in enumerate(said):
            if own.collective is not None:
                self._collectives[first + at] = _collective(own)
            if shared.category in SYNC_CATEGORIES:
                rank = self._ranks[int(self._spans.resource_ix[self._ixs[first + at]])]
                ids = (own.correlation, own.device, own.stream, own.waits_on, own.recorded)
                self._syncs.append(Sync(rank, *map(_integer, ids)))
        return (
            [sorts.setdefault((one.lane, one.category, one.thread), len(sorts)) for one, _ in said],
            [_integer(own.correlation) for _, own in said],
        )

    def _decoded(self, ixs: IntArray) -> Sequence[tuple[_Shared, _Said]]:
        """Return what each span of a run says; what cannot be decoded says nothing."""
        store = self._spans.raw_attributes
        if store.form(int(ixs[0])) == KINETO:
            raws, rows = store.columns[int(store.column[ixs[0]])], store.row[ixs]
            bounds = zip(raws.offsets[rows].tolist(), raws.offsets[rows + 1].tolist(), strict=True)
            try:
                return _many.decode(b"[%b]" % b",".join([raws.data[begin:end] for begin, end in bounds]))
            except _FAULTS:
                pass
        return [_one(store.attributes(ix)) for ix in ixs.tolist()]

    def _steps(self) -> dict[int, int]:
        steps = {
            number: int(found.group(1))
            for number, name in enumerate(self._spans.names)
            if (found := _STEP_NAME.match(name))
        }
        names = self._spans.name_ix[self._ixs]
        return {at: steps[int(names[at])] for at in np.flatnonzero(np.isin(names, list(steps))).tolist()}


def _order(lane: Lane) -> tuple[int, bool, str]:
    rank, name = lane
    return -1 if rank is None else rank, name != MAIN, name


def _one(attributes: dict[str, Any]) -> tuple[_Shared, _Said]:
    texts = (attributes.get(key) for key in (semconv.LANE, CATEGORY, THREAD_NAME))
    shared = _Shared(*(text if isinstance(text, str) else None for text in texts))
    return shared, msgspec.convert(attributes, _Said)


def _collective(said: _Said) -> Collective:
    group = said.members if said.members not in (None, "", "[]") else said.group
    return Collective(str(said.collective), str(group), max(0, _integer(said.size)), _integer(said.number))


def _integer(value: Any) -> int:
    """Return ``value`` where it is a number as ids are; -1 for all else."""
    return value if type(value) is int and -1 <= value < 1 << 62 else -1
