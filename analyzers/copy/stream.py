# SPDX-License-Identifier: Apache-2.0
"""A builder for copying: what a reader adds goes on at once, and nothing is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import Ledger
from grademl_otel.analyzers.model.raw import RawColumn
from grademl_otel.analyzers.sources.batch import LinkBatch, SpanBatch
from grademl_otel.analyzers.sources.buffer import SpanBuilder

_ARRAYS: Final = (
    "trace_hi", "trace_lo", "span_id", "parent_id", "start", "end", "kind", "status", "flags", "resource_ix",
    "scope_ix",
)  # fmt: skip

_ASKED_FOR: Final = ("trace_hi", "trace_lo", "start")


class SpanStream(SpanBuilder):
    """Hands each batch to ``take``; the indices in it are those of `resources` and `scopes`.

    What readers give twice is handed on twice: repeats are for whoever reads the copy.
    """

    def __init__(self, take: Callable[[SpanBatch], None]) -> None:
        super().__init__(sys.maxsize)
        self._take = take
        self._count = 0
        self._dropped = 0
        self._recent: list[tuple[int, dict[str, npt.NDArray[Any]]]] = []

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        return self.max_spans - self._count

    @property
    def resources(self) -> list[dict[str, Any]]:
        """Attributes of each resource so far, decoded."""
        return self._resources.values

    @property
    def scopes(self) -> list[dict[str, Any]]:
        """Name, version and attributes of each scope so far."""
        return self._scopes.values

    def begin_piece(self) -> None:
        """Forget what may be asked for later: only spans of one piece are."""
        self._recent.clear()
        self._unidentified = self._dropped = 0

    def end_piece(self, ledger: Ledger) -> None:
        """Count in ``ledger`` what the spans of this piece lack, which is no column of them."""
        ledger.unidentified += self._unidentified
        ledger.sdk_dropped += self._dropped

    def add(self, batch: SpanBatch) -> int:
        rows = self._wanted(batch)
        some = batch if rows is None else rows_of(batch, rows)
        if len(some):
            self._unidentified += some.unidentified
            self._dropped += 0 if some.dropped is None else int(some.dropped.sum())
            self._recent.append((self._count, {name: getattr(some, name) for name in _ASKED_FOR}))
            self._count += len(some)
            self._take(some)
        return len(some)

    def close_traces(self, since: int) -> tuple[int, int]:
        closed = super().close_traces(since)
        self._recent.clear()
        return closed

    def _since(self, column: str, since: int) -> npt.NDArray[Any]:
        recent = [arrays[column][max(0, since - at) :] for at, arrays in self._recent]
        return np.concatenate(recent) if recent else np.zeros(0, np.uint64)


def rows_of(batch: SpanBatch, rows: IntArray) -> SpanBatch:
    """Return the spans of ``batch`` at ``rows``, ascending."""
    arrays = {name: getattr(batch, name)[rows] for name in _ARRAYS}
    arrays["dropped"] = None if batch.dropped is None else batch.dropped[rows]
    shared = batch.events is batch.attributes
    attributes = raw_rows(batch.attributes, rows)
    events = None if batch.events is None else attributes if shared else raw_rows(batch.events, rows)
    return replace(
        batch,
        **arrays,
        names=[batch.names[row] for row in rows.tolist()],
        attributes=attributes,
        events=events,
        links=None if batch.links is None else _link_rows(batch.links, rows, len(batch)),
    )


def raw_rows(column: RawColumn, rows: npt.NDArray[np.integer[Any]]) -> RawColumn:
    """Return ``rows`` of ``column``; the bytes are copied."""
    raws = [column[row] for row in rows.tolist()]
    offsets = np.zeros(len(raws) + 1, np.int64)
    np.cumsum([len(raw) for raw in raws], out=offsets[1:])
    return RawColumn(column.form, b"".join(raws), offsets)


def _link_rows(links: LinkBatch, rows: IntArray, count: int) -> LinkBatch:
    new_ix = np.full(count, -1, np.int64)
    new_ix[rows] = np.arange(len(rows))
    span_ix = new_ix[links.span_ix]
    alive = np.flatnonzero(span_ix >= 0)
    return LinkBatch(
        span_ix=span_ix[alive],
        trace_hi=links.trace_hi[alive],
        trace_lo=links.trace_lo[alive],
        span_id=links.span_id[alive],
        kind=[links.kind[ix] for ix in alive.tolist()],
    )
