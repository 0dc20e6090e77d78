# SPDX-License-Identifier: Apache-2.0
"""Telemetry as columns: what every source yields and every analysis starts from. Never an object per span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IndexArray, IntArray
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.raw import Event, RawStore

STATUS_UNSET: Final = 0
STATUS_OK: Final = 1
STATUS_ERROR: Final = 2

KIND_UNSPECIFIED: Final = 0
KIND_INTERNAL: Final = 1
KIND_SERVER: Final = 2
KIND_CLIENT: Final = 3
KIND_PRODUCER: Final = 4
KIND_CONSUMER: Final = 5

BLOCKING: Final = "blocking"
"""Kind of a link: the span could not end before the one that it names."""

NO_PARENT: Final = -1
ORPHAN: Final = -2


@dataclass(frozen=True)
class Links:
    """Span links, one element per link."""

    span_ix: IntArray
    """Index of the span that carries the link."""
    trace_hi: npt.NDArray[np.uint64]
    trace_lo: npt.NDArray[np.uint64]
    span_id: npt.NDArray[np.uint64]
    kind: list[str]
    """run, parent, blocking or follows (the default)."""

    def __len__(self) -> int:
        return len(self.span_ix)

    def take(self, kept: IntArray, count: int) -> Links:
        """Return the links of the spans at ``kept``, of ``count`` there are, by their new numbers."""
        new_ix = np.full(count, -1, np.int64)
        new_ix[kept] = np.arange(len(kept))
        span_ix = new_ix[self.span_ix]
        alive = np.flatnonzero(span_ix >= 0)
        return Links(
            span_ix=span_ix[alive],
            trace_hi=self.trace_hi[alive],
            trace_lo=self.trace_lo[alive],
            span_id=self.span_id[alive],
            kind=[self.kind[ix] for ix in alive.tolist()],
        )


@dataclass(frozen=True)
class SpanColumns:
    """Spans as parallel arrays of one length; times are int64 Unix ns.

    ``parent_ix`` is the index of the parent span within these columns; -1 for a root; -2 when a parent id is
    given but no such span is here (an orphan), or that would make the span its own ancestor. Attributes and
    events stay as they were read; `attributes` and `events` decode those of one span.
    """

    trace_hi: npt.NDArray[np.uint64]
    trace_lo: npt.NDArray[np.uint64]
    span_id: npt.NDArray[np.uint64]
    parent_id: npt.NDArray[np.uint64]
    """0 for none."""
    parent_ix: IntArray
    start: IntArray
    end: IntArray
    name_ix: IndexArray
    names: list[str]
    kind: npt.NDArray[np.int8]
    status: npt.NDArray[np.int8]
    flags: npt.NDArray[np.uint32]
    """As in OTLP: the lowest byte is that of the trace context."""
    resource_ix: IndexArray
    resources: list[dict[str, Any]]
    """Attributes of each distinct resource, decoded; `service.name` among them."""
    scope_ix: IndexArray
    """-1 for none."""
    scopes: list[dict[str, Any]]
    """Each distinct scope: ``name``, ``version``, ``attributes``."""
    links: Links
    raw_attributes: RawStore
    raw_events: RawStore

    def __len__(self) -> int:
        return len(self.start)

    @property
    def possible(self) -> npt.NDArray[np.bool_]:
        """Mask of the spans with possible times; the others are left out of every analysis."""
        possible: npt.NDArray[np.bool_] = (self.end >= self.start) & (self.end != 0)
        return possible

    def name(self, ix: int) -> str:
        return self.names[int(self.name_ix[ix])]

    def attributes(self, ix: int) -> dict[str, Any]:
        """Return the decoded attributes of span ``ix``; read-only: equal ones may be shared."""
        return self.raw_attributes.attributes(ix)

    def events(self, ix: int) -> Sequence[Event]:
        """Return the decoded events of span ``ix``, in the order given."""
        return self.raw_events.events(ix)

    def resource(self, ix: int) -> dict[str, Any]:
        return self.resources[int(self.resource_ix[ix])]

    def scope(self, ix: int) -> dict[str, Any] | None:
        """Return name, version and attributes of the scope of span ``ix``; None where it has none."""
        scope = int(self.scope_ix[ix])
        return None if scope < 0 else self.scopes[scope]

    def service(self, ix: int) -> str:
        """Return the service of span ``ix``; empty where its resource names none."""
        return str(self.resource(ix).get("service.name", ""))

    @cached_property
    def trace_ix(self) -> IntArray:
        """Number of the trace of each span, from 0, in the order of trace ids."""
        hi, lo = self.trace_hi, self.trace_lo
        begins = np.flatnonzero(changes(hi, lo))  # spans of one trace mostly stand together
        order = np.lexsort((lo[begins], hi[begins]))
        number = np.empty(len(begins), np.int64)
        number[order] = np.cumsum(changes(hi[begins][order], lo[begins][order])) - 1
        return np.repeat(number, np.diff(np.append(begins, len(self))))

    @cached_property
    def clocks(self) -> list[str]:
        """Names of the distinct clocks: ids of host boots, else names of hosts."""
        return list(dict.fromkeys(name for name in map(clock_name, self.resources) if name))

    @cached_property
    def clock(self) -> IndexArray:
        """Number of the clock of each span in `clocks`; -1 where its resource tells neither boot nor host."""
        number = {name: ix for ix, name in enumerate(self.clocks)}
        of_resource = [number.get(clock_name(resource), -1) for resource in self.resources]
        clock: IndexArray = np.array(of_resource or [-1], np.int32)[self.resource_ix]
        return clock

    def trace_id_hex(self, ix: int) -> str:
        return f"{int(self.trace_hi[ix]):016x}{int(self.trace_lo[ix]):016x}"

    def span_id_hex(self, ix: int) -> str:
        return f"{int(self.span_id[ix]):016x}"


def clock_name(resource: dict[str, Any]) -> str:
    """Return whose clock times of ``resource`` are by: a host's boot, else its name; empty: not told."""
    return str(resource.get(semconv.CLOCK_ID) or resource.get("host.name") or "")


@dataclass
class Ledger:
    """What a source lost, repaired or refused while reading; every field is counted, nothing is silent."""

    duplicates: int = 0
    """Exact repeats of a span; the first was kept."""
    conflicting: int = 0
    """Spans with trace, id and kind of an earlier one and other content; the first was kept."""
    sdk_dropped: int = 0
    """Attributes, events and links of spans that the SDK left out because of its own limits, as it says."""
    unidentified: int = 0
    """Spans without a trace id or an id of their own, or with what is none; left out."""
    passed_over: int = 0
    """Requests of metrics and logs among the spans; nothing of the spans is missing."""
    microseconds: bool = False
    """Whether times of some spans were given in whole microseconds: lengths are 1 us too short at most."""
    moved: int = 0
    """Spans that Jaeger's clock-skew adjustment moved before it gave them out; a raw answer moves none."""
    moved_most_ns: int = 0
    """How far one of them was moved, at most."""
    impossible_times: int = 0
    """Spans with end < start or without an end; kept in the columns, left out of every analysis."""
    unreadable_lines: int = 0
    partial_traces: list[str] = field(default_factory=list)
    """Trace ids (hex) that the server said, or the caps prove, were cut."""
    near_cap: list[str] = field(default_factory=list)
    """One line each: traces whose size is that at which their server cuts them silently. Counts that the run
    tells of itself are better evidence, where there are any."""
    capped: bool = False
    """Whether reading stopped, or detail was left out, at the bound on the number of spans."""
    broken: str | None = None
    """One line: why reading broke off midway; what had been read is here. The command ends with code 3."""
    warnings: list[str] = field(default_factory=list)
    """One line each, for people."""


@dataclass(frozen=True)
class Telemetry:
    """All that was read from one source."""

    uri: str
    spans: SpanColumns
    ledger: Ledger
