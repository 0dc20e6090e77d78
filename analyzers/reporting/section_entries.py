# SPDX-License-Identifier: Apache-2.0
"""The sections of a path as entries of the answer, which are made when one is looked at.

A long run has a million of them, of which a text shows ten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.graph.path import Section, Sections
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.reporting.document import Edge, SectionEntry, SpanIds


class SectionEntries(Sequence[SectionEntry]):
    """Sections by time, with times in ns from ``origin``, which is in Unix ns."""

    def __init__(self, sections: Sections, origin: int, spans: SpanColumns) -> None:
        self._sections, self._origin, self._spans = sections, origin, spans

    @property
    def arrays(self) -> Sections:
        """The sections themselves, with times in Unix ns."""
        return self._sections

    @property
    def origin(self) -> int:
        """Unix ns."""
        return self._origin

    def __len__(self) -> int:
        return len(self._sections)

    @overload
    def __getitem__(self, at: int) -> SectionEntry: ...
    @overload
    def __getitem__(self, at: slice) -> SectionEntries: ...
    def __getitem__(self, at: int | slice) -> SectionEntry | SectionEntries:
        found = self._sections[at]
        if isinstance(found, Section):
            return self._entry(found)
        return SectionEntries(found, self._origin, self._spans)

    def __iter__(self) -> Iterator[SectionEntry]:
        return map(self._entry, self._sections)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} sections>"  # of which there may be a million

    def longest(self, most: int) -> SectionEntries:
        """Return the ``most`` longest, of equal ones the earliest, in the order of time."""
        chosen = np.sort(longest_first(self._sections)[:most])
        return SectionEntries(self._sections.take(chosen), self._origin, self._spans)

    def services(self) -> list[str]:
        """Return the service of each; empty where its span, or the resource of that, names none."""
        named = [*(str(one.get("service.name", "")) for one in self._spans.resources), ""]
        ix = self._sections.span_ix
        found = np.full(len(ix), -1, np.int64)
        found[ix >= 0] = self._spans.resource_ix[ix[ix >= 0]]
        return [named[at] for at in found.tolist()]

    def _entry(self, section: Section) -> SectionEntry:
        ix, by = section.span_ix, section.entered_by
        ids = None if ix is None else SpanIds(self._spans.trace_id_hex(ix), self._spans.span_id_hex(ix))
        return SectionEntry(
            start_ns=section.start - self._origin,
            end_ns=section.end - self._origin,
            phase=section.phase,
            kind=section.kind,
            rank=section.rank,
            lane=section.lane,
            step=section.step,
            item=section.item,
            span=ids,
            entered_by=Edge(by.edge, by.evidence, by.confidence),
        )


def longest_first(sections: Sections) -> IntArray:
    """Return the places of ``sections``, the longest first, of equal ones the earliest."""
    order: IntArray = np.argsort(-sections.duration, kind="stable")
    return order
