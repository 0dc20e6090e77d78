# SPDX-License-Identifier: Apache-2.0
"""What the spans of a profile say beside their times: lane, category, what ties calls to a device's work.

All spans are looked at, so their attributes are decoded many at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.path import Lane
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns
from grademl_otel.analyzers.sources.formats.kineto_values import CATEGORY, KINETO, THREAD_NAME

MAIN: Final = "main"
STREAM: Final = "stream-"
"""What the names of lanes of devices begin with."""

_MANY: Final = 1 << 14
_STEP_NAME: Final = re.compile(r"ProfilerStep#?\s*(\d{1,18})$")
_SYNCS: Final = frozenset({"cuda_sync", "xpu_sync"})
"""Categories of notes on who waited for whom."""


class _Shared(
    msgspec.Struct, gc=False, rename={"lane": semconv.LANE, "category": CATEGORY, "thread": THREAD_NAME}
):
    lane: Any = None
    category: Any = None
    thread: Any = None


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


_many = msgspec.json.Decoder(list[tuple[_Shared, _Said]])
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
    ranks = [_integer(resource.get(semconv.RANK)) for resource in spans.resources]
    ranks_of = [None if rank < 0 else rank for rank in ranks]
    ixs = ixs[spans.possible[ixs]]
    lanes: dict[tuple[int | None, Any], int] = {}
    categories: dict[Any, int] = {}
    lane, category, correlation = (np.full(len(ixs), -1, np.int64) for _ in range(3))
    threads: dict[int, str] = {}
    syncs: list[Sync] = []
    collectives: dict[int, Collective] = {}
    steps = {
        number: int(found.group(1))
        for number, name in enumerate(spans.names)
        if (found := _STEP_NAME.match(name))
    }
    for place, (shared, said) in enumerate(_decoded(spans, ixs)):
        if isinstance(shared.lane, str):
            key = (ranks_of[spans.resource_ix[ixs[place]]], shared.lane)
            lane[place] = number = lanes.setdefault(key, len(lanes))
            if isinstance(shared.thread, str):
                threads.setdefault(number, shared.thread)
        category[place] = categories.setdefault(shared.category, len(categories))
        if type(said.correlation) is int and -1 < said.correlation < 1 << 62:
            correlation[place] = said.correlation
        if said.collective is not None:
            collectives[place] = _collective(said)
        if shared.category in _SYNCS:
            ids = map(_integer, (said.device, said.stream, said.waits_on, said.recorded))
            syncs.append(Sync(ranks_of[spans.resource_ix[ixs[place]]], int(correlation[place]), *ids))
    names = list(lanes)
    order = sorted(range(len(names)), key=lambda n: _rank_first(names[n]))
    number_of = np.full(len(names) + 1, -1, np.int64)
    number_of[order] = np.arange(len(names))
    stepping = np.flatnonzero(np.isin(spans.name_ix[ixs], list(steps)))
    return ProfileFacts(
        ixs=ixs,
        lane=number_of[lane],
        lanes=[names[n] for n in order],
        category=category,
        categories=[name if isinstance(name, str) else "" for name in categories],
        correlation=correlation,
        threads={int(number_of[n]): name for n, name in threads.items()},
        syncs=syncs,
        collectives=collectives,
        steps={at: steps[int(spans.name_ix[ixs[at]])] for at in stepping.tolist()},
    )


def _rank_first(lane: Lane) -> tuple[int, bool, str]:
    rank, name = lane
    return -1 if rank is None else rank, name != MAIN, name


def _decoded(spans: SpanColumns, ixs: IntArray) -> Iterator[tuple[_Shared, _Said]]:
    """Yield what each span says; what cannot be decoded says nothing."""
    store = spans.raw_attributes
    for first in range(0, len(ixs), _MANY):
        some = ixs[first : first + _MANY].tolist()
        if all(store.form(ix) == KINETO for ix in some):
            try:
                yield from _many.decode(b"[%b]" % b",".join([store.raw(ix) for ix in some]))
                continue
            except _FAULTS:
                pass
        for ix in some:
            said = store.attributes(ix)
            yield msgspec.convert(said, _Shared), msgspec.convert(said, _Said)


def _collective(said: _Said) -> Collective:
    group = said.members if said.members not in (None, "", "[]") else said.group
    return Collective(str(said.collective), str(group), max(0, _integer(said.size)), _integer(said.number))


def _integer(value: Any) -> int:
    """Return ``value`` where it is a number as ids are; -1 for all else."""
    return value if type(value) is int and -1 <= value < 1 << 62 else -1
