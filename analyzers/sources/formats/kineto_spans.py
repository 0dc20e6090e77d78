# SPDX-License-Identifier: Apache-2.0
"""From a profiler's events to spans: one trace, lanes out of threads and streams, parents out of time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import KIND_INTERNAL, Ledger
from grademl_otel.analyzers.model.raw import RawColumn
from grademl_otel.analyzers.sources.batch import IdArray, LinkBatch, SpanBatch, SpanTarget
from grademl_otel.analyzers.sources.formats import vectors
from grademl_otel.analyzers.sources.formats.kineto_links import Bound, Flow, links_of
from grademl_otel.analyzers.sources.formats.kineto_values import KINETO, Place, decoded, resource, shared
from grademl_otel.analyzers.sources.formats.nesting import nested
from grademl_otel.analyzers.units import count

ROOT: Final = "profile"
"""Name of the span over all of a trace."""
DEVICE_CATEGORIES: Final = frozenset(
    {
        "kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "concurrent_kernel", "collective_comm",
        "mtia_ccp_events",  # of MTIA
        "Kernel", "Memcpy", "Memset",  # before PyTorch 1.13
    }
)  # fmt: skip
SYNC_CATEGORIES: Final = frozenset({"cuda_sync", "xpu_sync"})
"""Categories of notes on calls that wait for a device, a stream or an event."""
NOTES: Final = frozenset({"Trace"})
"""Categories of what the profiler says of itself: that it was on."""
_PYTORCH_CATEGORIES: Final = frozenset({"cpu_op", "python_function", "user_annotation", "Operator"})
_STEP: Final = "ProfilerStep"
_DIGITS: Final = re.compile(r"\d+")
_MAIN: Final = "main"
_LAST_TIME: Final = 2**63 - 1


@dataclass(frozen=True)
class Marks:
    """Events with two times, one element an event; ns since the trace's base."""

    start: IntArray
    end: IntArray
    """`vectors.NO_TIME` where it is not known."""
    names: list[str]
    place: npt.NDArray[np.int32]
    category: npt.NDArray[np.int32]
    args: RawColumn


@dataclass
class Numbers:
    """Value -> its number."""

    places: dict[Place, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)


@dataclass
class Profile:
    """The events of one trace."""

    marks: list[Marks] = field(default_factory=list)
    count: int = 0
    flows: list[Flow] = field(default_factory=list)
    number: Numbers = field(default_factory=Numbers)
    names: dict[tuple[str, Any, Any], str] = field(default_factory=dict)
    """(``process_name``, ``process_labels`` or ``thread_name``; pid; tid, None for those of a process)."""
    passed_over: Counter[str] = field(default_factory=Counter)

    def name(self, what: Any, place: Place, args: bytes) -> None:
        """Take an event that names a process or a thread."""
        values = decoded(args)
        text = values.get("name", values.get("labels")) if isinstance(values, dict) else None
        if isinstance(what, str) and isinstance(text, str):
            pid, tid = place
            self.names[what, pid, tid if what == "thread_name" else None] = text


def add_spans(profile: Profile, members: Mapping[str, bytes], builder: SpanTarget, ledger: Ledger) -> None:
    """Add the spans of a trace to ``builder``, and to ``ledger`` what is no span."""
    if profile.passed_over:
        parts = [(*words.partition(" "), number) for words, number in sorted(profile.passed_over.items())]
        what = ", ".join(f"{count(number, noun)} {rest}" for noun, _, rest, number in parts)
        ledger.warnings.append(f"of a profile only what takes time is read; passed over: {what}")
    if profile.marks:
        _Spans(profile, members, builder).add(ledger)


class _Spans:
    def __init__(self, profile: Profile, members: Mapping[str, bytes], builder: SpanTarget) -> None:
        self._profile = profile
        self._builder = builder
        marks = profile.marks
        self._start = np.concatenate([some.start for some in marks])
        self._end = np.concatenate([some.end for some in marks])
        self._place = np.concatenate([some.place for some in marks])
        self._category = np.concatenate([some.category for some in marks])
        self._base = _integer(members.get("baseTimeNanoseconds"))
        self._known = self._end >= 0
        attributes = resource(members, bool(_PYTORCH_CATEGORIES & set(profile.number.categories)))
        key = ("kineto", repr(sorted(attributes.items())))
        self._resource_ix = builder.resource(key, lambda _: attributes)
        self._seed = self._digest(repr((self._base, key, decoded(members.get("trace_id", b"")))))

    def add(self, ledger: Ledger) -> None:
        lanes = self._lanes()
        # What has no end encloses nothing; it is put at the place where it began.
        ends = np.where(self._known, self._end, self._start)
        order, parent, crossings, _ = nested(self._place, self._start, ends)
        if crossings:
            what = "1 event" if crossings == 1 else f"{crossings:,} events"
            ledger.warnings.append(
                f"{what} of a profile cross others of their thread, which are not their parents"
            )
        hi, lo = self._seed
        ids = _ids(lo, len(self._start) + 1)
        bound = Bound(self._place, self._start, ends, order, parent)
        links = links_of(
            bound, self._profile.flows, [some.args for some in self._profile.marks], self._category,
            self._profile.number.categories, self._profile.number.places, DEVICE_CATEGORIES,
        )  # fmt: skip
        self._add_root(ids[0], lanes)
        parents = np.where(parent < 0, ids[0], ids[1:][parent])
        first = 0
        while self._profile.marks:
            marks = self._profile.marks.pop(0)
            rows = slice(first, first + len(marks.start))
            start, end = self._absolute(marks.start, marks.end)
            self._builder.add(
                self._batch(
                    ids[1:][rows], parents[rows], start, end, marks.names,
                    vectors.raw_column(KINETO, self._raws(marks, lanes)), links.of(rows, ids[1:], hi, lo),
                )
            )  # fmt: skip
            first = rows.stop

    def _add_root(self, own: np.uint64, lanes: Mapping[int, str]) -> None:
        """Add the span over all: nobody measured it."""
        start = int(self._start[self._start >= 0].min(initial=_LAST_TIME))
        end = int(self._end.max(initial=vectors.NO_TIME))
        whole = np.array([start if start < _LAST_TIME else 0]), np.array([end])
        raw = shared(_MAIN, None, None) + b'{"%b":"inferred"}]' % semconv.EVIDENCE.encode()
        self._builder.add(
            self._batch(
                np.array([own]), np.zeros(1, np.uint64), *self._absolute(*whole), [ROOT],
                vectors.raw_column(KINETO, [raw]), None,
            )
        )  # fmt: skip

    def _batch(
        self,
        own: IdArray,
        parents: IdArray,
        start: IntArray,
        end: IntArray,
        names: Sequence[str],
        raws: RawColumn,
        links: LinkBatch | None,
    ) -> SpanBatch:
        count, (hi, lo) = len(own), self._seed
        return SpanBatch(
            trace_hi=np.full(count, hi, np.uint64),
            trace_lo=np.full(count, lo, np.uint64),
            span_id=own,
            parent_id=parents,
            start=start,
            end=end,
            names=names,
            kind=np.full(count, KIND_INTERNAL, np.int8),
            status=np.zeros(count, np.int8),
            flags=np.zeros(count, np.uint32),
            resource_ix=np.full(count, self._resource_ix, np.int32),
            scope_ix=np.full(count, -1, np.int32),
            attributes=raws,
            links=links,
        )

    def _absolute(self, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
        """Return Unix ns; 0 for what is not known. Without a base a trace begins when its clock did."""
        last = _LAST_TIME - self._base
        start = np.where((start >= 0) & (start <= last), start + self._base, 0)
        return start, np.where((end >= 0) & (end <= last), end + self._base, 0)

    def _raws(self, marks: Marks, lanes: Mapping[int, str]) -> list[bytes]:
        """Return raw attributes: what is shared by a lane and category, and the arguments."""
        places = list(self._profile.number.places)
        categories = list(self._profile.number.categories)
        width = len(categories)
        key = marks.place.astype(np.int64) * width + marks.category
        begins = {}
        for one in np.unique(key).tolist():
            place = places[one // width]
            thread = self._profile.names.get(("thread_name", *place))
            begins[one] = shared(lanes[one // width], categories[one % width], thread)
        data, bounds = bytes(marks.args.data), marks.args.offsets.tolist()
        return [
            begins[one] + data[begin:end] + b"]"
            for one, begin, end in zip(key.tolist(), bounds, bounds[1:], strict=False)
        ]

    def _lanes(self) -> dict[int, str]:
        """Return the lane of each place: streams of devices, the main thread, other threads."""
        places, categories = self._profile.number.places, self._profile.number.categories
        told = DEVICE_CATEGORIES | SYNC_CATEGORIES
        device = {number for name, number in categories.items() if name in told}
        on_device = set(np.unique(self._place[np.isin(self._category, sorted(device))]).tolist())
        lanes = {}
        for (pid, tid), ix in places.items():
            labels = self._profile.names.get(("process_labels", pid, None), "")
            if ix in on_device or labels.startswith("GPU"):
                lanes[ix] = f"stream-{_digits(pid)}.{_digits(tid)}"
        threads = [ix for ix in places.values() if ix not in lanes]
        main = self._main_thread(threads)
        for (_, tid), ix in places.items():
            if ix not in lanes:
                lanes[ix] = _MAIN if ix == main else f"thread-{tid}"
        return lanes

    def _main_thread(self, threads: list[int]) -> int | None:
        """Return the thread that begins the steps, else the first of a process, else the busiest one.

        Where the profiler notes moments, and that it was on, is no thread unless there is no other.
        """
        notes = [number for name, number in self._profile.number.categories.items() if name in NOTES]
        does = self._place[(self._end > self._start) & ~np.isin(self._category, notes)]
        threads = [ix for ix in np.unique(does).tolist() if ix in threads] or threads
        if not threads:
            return None
        for marks in self._profile.marks:
            steps = [ix for ix, name in enumerate(marks.names) if name.startswith(_STEP)]
            for place in marks.place[steps].tolist():
                if place in threads:  # streams have annotations of steps, too
                    return int(place)
        of_process = [
            ix for (pid, tid), ix in self._profile.number.places.items() if pid == tid and ix in threads
        ]
        count = np.bincount(does, minlength=len(self._profile.number.places))
        return max(of_process or threads, key=lambda ix: int(count[ix]))

    def _digest(self, head: str) -> tuple[np.uint64, np.uint64]:
        """Return a trace id that the same trace has whenever and in whatever pieces it is read."""
        of = blake2b(head.encode("utf-8", "replace"), digest_size=16)
        for array in (self._start, self._end):
            of.update(np.ascontiguousarray(array[: 1 << 12]).tobytes())
            of.update(len(array).to_bytes(8, "big"))
        for name in islice(chain.from_iterable(marks.names for marks in self._profile.marks), 1 << 12):
            of.update(name.encode("utf-8", "replace"))
        digest = of.digest()
        return np.uint64(int.from_bytes(digest[:8], "big") | 1), np.uint64(int.from_bytes(digest[8:], "big"))


def _ids(seed: np.uint64, count: int) -> IdArray:
    """Return ids that differ (a permutation of 64 bits: splitmix64), none of them 0."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64) + seed
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: IdArray = np.where(x == 0, np.uint64(1), x ^ (x >> np.uint64(31)))
    return found


def _integer(raw: bytes | None) -> int:
    value = decoded(raw) if raw else 0
    return value if isinstance(value, int) and 0 <= value <= _LAST_TIME else 0


def _digits(value: Any) -> str:
    if isinstance(value, tuple):  # notes beside a stream, see `kineto`
        value = value[1]
    found = _DIGITS.search(str(value))
    return found.group() if found else str(value)
