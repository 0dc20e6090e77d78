# SPDX-License-Identifier: Apache-2.0
"""What a reader hands to the builder: the spans of one piece of input as parallel arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.raw import RawColumn

IdArray = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class CodedNames(Sequence[str]):
    """Names of spans by number, for who reads them so: a million of few make no million of objects."""

    codes: npt.NDArray[np.int32]
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> CodedNames: ...
    def __getitem__(self, at: int | slice) -> str | CodedNames:
        if isinstance(at, slice):
            return CodedNames(self.codes[at], self.words)
        return self.words[int(self.codes[at])]


@dataclass(frozen=True)
class LinkBatch:
    """Links of the spans of a batch, one element a link."""

    span_ix: IntArray
    """Index of the span within the batch."""
    trace_hi: IdArray
    trace_lo: IdArray
    span_id: IdArray
    kind: Sequence[str]


@dataclass(frozen=True)
class SpanBatch:
    """Spans in the order read. Readers repair nothing: duplicates, order and parents are the builder's.

    A batch of a thousand spans costs little more than one of three, so readers of small traces collect some.
    """

    trace_hi: IdArray
    trace_lo: IdArray
    span_id: IdArray
    parent_id: IdArray
    """0 for none."""
    start: IntArray
    """Unix ns; what is no time (absent, negative, beyond int64) is 0 in both start and end."""
    end: IntArray
    names: Sequence[str]
    """One a span; interned by the builder."""
    kind: npt.NDArray[np.int8]
    status: npt.NDArray[np.int8]
    flags: npt.NDArray[np.uint32]
    resource_ix: npt.NDArray[np.int32]
    """From `SpanBuilder.resource`."""
    scope_ix: npt.NDArray[np.int32]
    """From `SpanBuilder.scope`; -1 for none."""
    attributes: RawColumn
    events: RawColumn | None = None
    """None where no span of the batch has an event; may be the same object as ``attributes``."""
    links: LinkBatch | None = None
    dropped: IntArray | None = None
    """Attributes, events and links that the SDK left out of each span, as it says; None for none of all."""
    unidentified: int = 0
    """Spans beside these that have no id, and cannot be any column's."""

    def __len__(self) -> int:
        return len(self.start)


class SpanTarget(Protocol):
    """What a reader puts spans into: a `SpanBuilder`, or what holds them back for one."""

    @property
    def room(self) -> int:
        """How many more spans are taken; readers stop where it is 0."""

    def resource(self, key: Hashable, decode: Callable[[Any], dict[str, Any]]) -> int:
        """Return the index of the resource whose raw form is ``key``; its attributes are ``decode(key)``."""

    def scope(self, key: Hashable, decode: Callable[[Any], dict[str, Any]]) -> int:
        """Return the index of the scope whose raw form is ``key``; see `SpanBuilder.scope`."""

    def add(self, batch: SpanBatch) -> int:
        """Append spans; return how many were taken."""
