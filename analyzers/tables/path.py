# SPDX-License-Identifier: Apache-2.0
"""The table ``path``: one row a section of the critical path of the run, or of each trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import TableSchema, fraction, number, text, word
from grademl_otel.analyzers.tables.values import (
    Coded,
    Hex,
    Makers,
    Masked,
    Values,
    all_alike,
    distinct,
    known,
)

if TYPE_CHECKING:
    from grademl_otel.analyzers.graph import Sections

PATH: Final = TableSchema(
    "path",
    "A section of the critical path: of the run, or of each trace that matches. The sections of one path tile"
    " its time without gap or overlap.",
    (
        number("section_ix", "its place, from 0: path by path, by time"),
        number("path_ix", "number of the path, from 0, by the start of its root; of a run 0"),
        word("run", "id of the run; null where the path is that of a trace", nullable=True),
        text("root_trace_id", "trace whose path it is; null for a run", nullable=True),
        number("root_ix", "number of the root's span; null for a run", nullable=True),
        number("start_ns", "Unix ns"),
        number("end_ns", "Unix ns"),
        number("duration_ns", ""),
        word("phase", "phase, or name of the span"),
        word("kind", "work, wait, transfer, handoff, gap, unexplained"),
        number("rank", "null where it is of none", nullable=True),
        word("lane", "null where its span names none", nullable=True),
        number("step", "number of the training step; null: part of none", nullable=True),
        word("item", "pass:batch of what a worker made; null: none", nullable=True),
        number("span_ix", "null for what comes from a step table", nullable=True),
        text("trace_id", "of that span", nullable=True),
        text("span_id", "of that span", nullable=True),
        word("service", "of that span; empty where it names none", nullable=True),
        word("edge", "how the path came to it: program, child, queue, collective, device, link, learned"),
        word("evidence", "of that: observed, attribute, inferred"),
        fraction("confidence", "of that: 1 for what is no guess"),
    ),
)


def path(material: Material) -> Makers:
    from grademl_otel.analyzers.graph.path import KINDS  # here, for who asks only for other tables

    made = material.made_path
    sections, spans = made.sections, material.spans
    entrances = sections.entrances
    ix = sections.span_ix
    absent = ix < 0

    def ids(*halves: str) -> Callable[[], Values]:
        def make() -> Values:
            at = np.where(absent, 0, ix)
            return Hex(tuple(_of(getattr(spans, half), at) for half in halves), absent)

        return make

    def service() -> Coded:
        codes, words = distinct([str(one.get("service.name", "")) for one in spans.resources])
        of_span = np.full(len(ix), -1, np.int64)
        of_span[~absent] = codes[spans.resource_ix[ix[~absent]]]
        return Coded(of_span, words)

    def root(values: Any) -> Any:
        return _of(values, np.maximum(made.root, 0))

    def entered(what: str) -> Callable[[], Coded]:
        def make() -> Coded:
            codes, words = distinct([getattr(one, what) for one in entrances])
            return Coded(codes[sections.entered], words)

        return make

    return {
        "section_ix": lambda: np.arange(len(sections)),
        "path_ix": lambda: made.path,
        "run": lambda: all_alike(len(sections), material.run.run_id if material.run is not None else None),
        "root_trace_id": lambda: Hex((root(spans.trace_hi), root(spans.trace_lo)), made.root < 0),
        "root_ix": lambda: known(made.root),
        "start_ns": lambda: sections.start,
        "end_ns": lambda: sections.end,
        "duration_ns": lambda: sections.duration,
        "phase": lambda: Coded(sections.phase, sections.phases),
        "kind": lambda: Coded(sections.kind, KINDS),
        "rank": lambda: _ranks(sections),
        "lane": lambda: _lanes(sections),
        "step": lambda: known(sections.step),
        "item": lambda: Coded(sections.item, sections.items),
        "span_ix": lambda: known(ix),
        "trace_id": ids("trace_hi", "trace_lo"),
        "span_id": ids("span_id"),
        "service": service,
        "edge": entered("edge"),
        "evidence": entered("evidence"),
        "confidence": lambda: np.array([one.confidence for one in entrances], np.float64)[sections.entered],
    }


def _of(values: Any, at: IntArray) -> Any:
    """Return ``values[at]``; without values, which is where nothing is asked for, zeros."""
    return values[at] if len(values) else np.zeros(len(at), values.dtype)


def _ranks(sections: Sections) -> Masked:
    ranks = [-1 if rank is None else rank for rank, _ in sections.lanes]
    return known(np.array(ranks, np.int64)[sections.lane])


def _lanes(sections: Sections) -> Coded:
    codes, words = distinct([lane or None for _, lane in sections.lanes])
    return Coded(codes[sections.lane], words)
