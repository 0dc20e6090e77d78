# SPDX-License-Identifier: Apache-2.0
"""Telemetry as columns: what every source yields and every analysis starts from. Never an object per span."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

STATUS_UNSET: Final = 0
STATUS_OK: Final = 1
STATUS_ERROR: Final = 2

KIND_UNSPECIFIED: Final = 0
KIND_INTERNAL: Final = 1
KIND_SERVER: Final = 2
KIND_CLIENT: Final = 3
KIND_PRODUCER: Final = 4
KIND_CONSUMER: Final = 5

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


@dataclass(frozen=True)
class SpanColumns:
    """Spans as parallel arrays of one length; times are int64 Unix ns.

    ``parent_ix`` is the index of the parent span within these columns; -1 for a root; -2 when a parent id is
    given but no such span is here (an orphan), or that would make the span its own ancestor. Attributes are
    one dict per *distinct raw form*, decoded lazily by `attributes`.
    """

    trace_hi: npt.NDArray[np.uint64]
    trace_lo: npt.NDArray[np.uint64]
    span_id: npt.NDArray[np.uint64]
    parent_id: npt.NDArray[np.uint64]
    parent_ix: IntArray
    start: IntArray
    end: IntArray
    name_ix: IntArray
    names: list[str]
    kind: npt.NDArray[np.int8]
    status: npt.NDArray[np.int8]
    resource_ix: IntArray
    resources: list[dict[str, Any]]
    """Attributes of each distinct resource, decoded; `service.name` among them."""
    links: Links
    raw_attributes: list[Any]
    """One undecoded attribute collection per span, in a form that `decode` understands; use `attributes`."""
    decode: Any
    """Callable: raw attributes -> dict[str, str | int | float | bool | list | bytes | None]."""

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
        decoded: dict[str, Any] = self.decode(self.raw_attributes[ix])
        return decoded

    def resource(self, ix: int) -> dict[str, Any]:
        return self.resources[int(self.resource_ix[ix])]

    def trace_id_hex(self, ix: int) -> str:
        return f"{int(self.trace_hi[ix]):016x}{int(self.trace_lo[ix]):016x}"

    def span_id_hex(self, ix: int) -> str:
        return f"{int(self.span_id[ix]):016x}"


@dataclass
class Ledger:
    """What a source lost, repaired or refused while reading; every field is counted, nothing is silent."""

    duplicates: int = 0
    """Exact repeats of (trace, span, kind); the first was kept."""
    impossible_times: int = 0
    """Spans with end < start or without an end; kept in the columns, left out of every analysis."""
    unreadable_lines: int = 0
    partial_traces: list[str] = field(default_factory=list)
    """Trace ids (hex) that the server said, or the caps prove, were cut."""
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
