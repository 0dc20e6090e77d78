# SPDX-License-Identifier: Apache-2.0
"""Span columns from a few words: for tests of what starts from columns, without a source in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grademl_otel.analyzers.model.columns import KIND_INTERNAL, Links, SpanColumns


@dataclass(frozen=True)
class S:
    """One span: its id (also its operation name, unless ``name`` says otherwise), parent and times."""

    id: str
    start: int
    end: int
    parent: str | None = None
    name: str | None = None
    trace: int = 1
    kind: int = KIND_INTERNAL
    attributes: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[tuple[str, str]] = ()
    """(id of the span pointed at, kind of link)."""


def columns(spans: Sequence[S]) -> SpanColumns:
    """Return the columns of ``spans``; a parent that is not among them makes an orphan."""
    index = {span.id: ix for ix, span in enumerate(spans)}
    ids = {span.id: ix + 1 for ix, span in enumerate(spans)}
    names = sorted({span.name or span.id for span in spans})
    resources: list[dict[str, Any]] = []
    resource_ix = []
    for span in spans:
        if dict(span.resource) not in resources:
            resources.append(dict(span.resource))
        resource_ix.append(resources.index(dict(span.resource)))
    links = [(ix, target, kind) for ix, span in enumerate(spans) for target, kind in span.links]
    n = len(spans)
    return SpanColumns(
        trace_hi=np.zeros(n, dtype=np.uint64),
        trace_lo=np.array([span.trace for span in spans], dtype=np.uint64),
        span_id=np.array([ids[span.id] for span in spans], dtype=np.uint64),
        parent_id=np.array([ids.get(span.parent or "", 0) for span in spans], dtype=np.uint64),
        parent_ix=np.array(
            [-1 if span.parent is None else index.get(span.parent, -2) for span in spans], dtype=np.int64
        ),
        start=np.array([span.start for span in spans], dtype=np.int64),
        end=np.array([span.end for span in spans], dtype=np.int64),
        name_ix=np.array([names.index(span.name or span.id) for span in spans], dtype=np.int64),
        names=names,
        kind=np.array([span.kind for span in spans], dtype=np.int8),
        status=np.zeros(n, dtype=np.int8),
        resource_ix=np.array(resource_ix, dtype=np.int64),
        resources=resources,
        links=Links(
            span_ix=np.array([ix for ix, _, _ in links], dtype=np.int64),
            trace_hi=np.zeros(len(links), dtype=np.uint64),
            trace_lo=np.array([spans[ix].trace for ix, _, _ in links], dtype=np.uint64),
            span_id=np.array([ids[target] for _, target, _ in links], dtype=np.uint64),
            kind=[kind for _, _, kind in links],
        ),
        raw_attributes=[dict(span.attributes) for span in spans],
        decode=dict,
    )
