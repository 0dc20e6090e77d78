# SPDX-License-Identifier: Apache-2.0
"""Columns as batches again, as readers give them: for who writes spans, some thousand at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.copy.stream import raw_rows
from grademl_otel.analyzers.model.columns import Links, SpanColumns
from grademl_otel.analyzers.model.raw import NOTHING, RawColumn, RawStore
from grademl_otel.analyzers.sources.batch import LinkBatch, SpanBatch
from grademl_otel.analyzers.sources.formats.otlp_values import OTLP_JSON

_MOST: Final = 8_192
_PLAIN: Final = (
    "trace_hi", "trace_lo", "span_id", "parent_id", "start", "end", "kind", "status", "flags", "resource_ix",
    "scope_ix",
)  # fmt: skip


def batches(spans: SpanColumns, ixs: IntArray | None = None) -> Iterator[SpanBatch]:
    """Yield the spans at ``ixs`` (ascending; None: all), a batch of one form each; resources keep numbers."""
    chosen = np.arange(len(spans)) if ixs is None else ixs
    links = _Sorted(spans.links)
    attributes, events = spans.raw_attributes.column[chosen], spans.raw_events.column[chosen]
    changes = np.flatnonzero((np.diff(attributes) != 0) | (np.diff(events) != 0)) + 1
    for begin, end in pairwise([0, *changes.tolist(), len(chosen)]):
        for at in range(begin, end, _MOST):
            yield _batch(spans, chosen[at : min(at + _MOST, end)], links)


def _batch(spans: SpanColumns, ixs: IntArray, links: _Sorted) -> SpanBatch:
    attributes = _raws(spans.raw_attributes, ixs)
    none = RawColumn(OTLP_JSON, b"", np.zeros(len(ixs) + 1, np.int64))
    return SpanBatch(
        **{name: getattr(spans, name)[ixs] for name in _PLAIN},
        names=[spans.names[name] for name in spans.name_ix[ixs].tolist()],
        attributes=none if attributes is None else attributes,
        events=_raws(spans.raw_events, ixs),
        links=links.of(ixs),
    )


def _raws(store: RawStore, ixs: IntArray) -> RawColumn | None:
    """Return what the spans at ``ixs`` have, all in one column of ``store``; None for nothing."""
    if store.column[ixs[0]] == NOTHING:
        return None
    column, rows = store.columns[int(store.column[ixs[0]])], store.row[ixs]
    if (np.diff(rows) == 1).all():
        return RawColumn(column.form, column.data, column.offsets[int(rows[0]) : int(rows[-1]) + 2])
    return raw_rows(column, rows)


class _Sorted:
    """Links in the order of their spans."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._order = np.argsort(links.span_ix, kind="stable")
        self._span_ix = links.span_ix[self._order]

    def of(self, ixs: IntArray) -> LinkBatch | None:
        """Return the links of the spans at ``ixs``, by their place there; None where there are none."""
        low, high = np.searchsorted(self._span_ix, [ixs[0], ixs[-1] + 1])
        own = self._span_ix[low:high]
        place = np.searchsorted(ixs, own)
        kept = np.flatnonzero(ixs[np.minimum(place, len(ixs) - 1)] == own)
        if not len(kept):
            return None
        rows, links = self._order[low:high][kept], self._links
        return LinkBatch(
            span_ix=place[kept],
            trace_hi=links.trace_hi[rows],
            trace_lo=links.trace_lo[rows],
            span_id=links.span_id[rows],
            kind=[links.kind[row] for row in rows.tolist()],
        )
