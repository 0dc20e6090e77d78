# SPDX-License-Identifier: Apache-2.0
"""A batch out of spans given one by one, for readers that see few at a time."""

from __future__ import annotations

import numpy as np

from grademl_otel.analyzers.model.raw import Form, RawColumn
from grademl_otel.analyzers.sources.batch import LinkBatch, SpanBatch

_MAX_TIME = 2**63 - 1
_MASK64 = 2**64 - 1
Row = tuple[int, int, int, str, int, int, int, int, int, bytes]


class Rows:
    """Spans as tuples: trace, span, parent, name, start, end, kind, status, resource_ix, raw attributes."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._rows: list[Row] = []
        self._links: list[tuple[int, int, int, str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> None:
        self._rows.append(row)

    def link(self, trace: int, span: int, kind: str) -> None:
        """Append a link of the span added last."""
        self._links.append((len(self._rows) - 1, trace, span, kind))

    def batch(self) -> SpanBatch:
        """Return the spans added."""
        columns = zip(*self._rows, strict=True) if self._rows else iter([()] * 10)
        trace, span, parent, name, start, end, kind, status, resource_ix, raw = map(list, columns)
        possible = [0 <= a <= _MAX_TIME and 0 <= b <= _MAX_TIME for a, b in zip(start, end, strict=True)]
        ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
        link_of, link_trace, link_id, link_kind = (
            map(list, zip(*self._links, strict=True)) if self._links else ([],) * 4
        )
        return SpanBatch(
            trace_hi=np.array([t >> 64 for t in trace], np.uint64),
            trace_lo=np.array([t & _MASK64 for t in trace], np.uint64),
            span_id=np.array(span, np.uint64),
            parent_id=np.array(parent, np.uint64),
            start=np.array([t if ok else 0 for t, ok in zip(start, possible, strict=True)], np.int64),
            end=np.array([t if ok else 0 for t, ok in zip(end, possible, strict=True)], np.int64),
            names=name,
            kind=np.array([k if 0 <= k <= 5 else 0 for k in kind], np.int8),
            status=np.array([s if 0 <= s <= 2 else 0 for s in status], np.int8),
            flags=np.zeros(len(span), np.uint32),
            resource_ix=np.array(resource_ix, np.int32),
            scope_ix=np.full(len(span), -1, np.int32),
            attributes=RawColumn(self._form, b"".join(raw), ends),
            links=LinkBatch(
                np.array(link_of, np.int64),
                np.array([t >> 64 for t in link_trace], np.uint64),
                np.array([t & _MASK64 for t in link_trace], np.uint64),
                np.array(link_id, np.uint64),
                link_kind,
            ),
        )
