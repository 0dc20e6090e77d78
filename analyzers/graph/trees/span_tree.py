# SPDX-License-Identifier: Apache-2.0
"""Spans as trees: children, roots, and the few attributes that a walk needs, decoded once."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.graph.path import Lane
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.model.columns import BLOCKING, SpanColumns

THREAD: Final = "thread.id"
_KEYS = tuple(key.encode() for key in (semconv.LANE, THREAD, semconv.ITEM, semconv.STEP_NUMBER))
"""All that a walk asks for: of most spans of others nothing needs to be decoded."""


Unit = tuple[str, object, object]
"""What does one thing at a time: ("lane", rank, name) or ("thread", resource, id)."""


class SpanFacts(msgspec.Struct, frozen=True, gc=False):
    """What a walk needs of a span's attributes; what is absent or of an unexpected type is None."""

    lane: Lane | None
    """The one that the span names itself."""
    unit: Unit | None
    """The lane or thread that runs it, one thing at a time."""
    item: str | None
    step: int | None
    inferred: bool
    """Whether nobody measured it, as the span over a profile that has none."""


class SpanTree:
    """Children of every span, and decoded facts on demand; one serves many walks over the same columns."""

    def __init__(self, spans: SpanColumns) -> None:
        self.spans = spans
        self.start, self.end, self.parent = _view(spans.start), _view(spans.end), _view(spans.parent_ix)
        self.kind, self.name, self.resource = (
            _view(spans.kind),
            _view(spans.name_ix),
            _view(spans.resource_ix),
        )
        order = np.argsort(spans.parent_ix, kind="stable")
        # Roots and orphans (negative parents) sort first and are nobody's children.
        first = np.searchsorted(spans.parent_ix[order], np.arange(len(spans) + 1, dtype=np.int64))
        self._order, self._first = _view(order), _view(first)
        self._ranks = [
            rank if isinstance(rank := r.get(semconv.RANK), int) else None for r in spans.resources
        ]
        self._places = [repr(sorted(map(repr, r.items()))) for r in spans.resources]
        self._waits = [name in semconv.WAIT_PHASES for name in spans.names]
        self._facts: dict[int, SpanFacts] = {}
        self._digests: dict[int, bytes] = {}
        self._lanes_around: dict[int, Lane | None] = {}
        self._blockers = linked_spans(spans, BLOCKING)

    def children(self, ix: int) -> memoryview[int]:
        """Return the children of span ``ix``, in no particular order."""
        return self._order[self._first[ix] : self._first[ix + 1]]

    def blockers(self, ix: int) -> list[int]:
        """Return the spans that span ``ix`` names in links of kind ``blocking``."""
        return self._blockers.get(ix, [])

    def facts(self, ix: int) -> SpanFacts:
        facts = self._facts.get(ix)
        if facts is None:
            told = self.spans.raw_attributes.may_have(ix, _KEYS)
            facts = self._facts[ix] = self._of(ix, self.spans.attributes(ix)) if told else _NOTHING
        return facts

    def _of(self, ix: int, attributes: Mapping[str, Any]) -> SpanFacts:
        lane, thread = attributes.get(semconv.LANE), attributes.get(THREAD)
        item, step = attributes.get(semconv.ITEM), attributes.get(semconv.STEP_NUMBER)
        place = (self.rank(ix), lane) if isinstance(lane, str) else None
        unit: Unit | None = None
        if place is not None:
            unit = ("lane", *place)
        elif isinstance(thread, int | str):
            unit = ("thread", self.resource[ix], thread)
        return SpanFacts(
            lane=place,
            unit=unit,
            item=item if isinstance(item, str) else None,
            step=step if isinstance(step, int) and 0 <= step < 2**63 else None,
            inferred=attributes.get(semconv.EVIDENCE) == "inferred",
        )

    def rank(self, ix: int) -> int | None:
        return self._ranks[self.resource[ix]]

    def lane(self, ix: int) -> Lane | None:
        """Return the lane that span ``ix`` names itself."""
        return self.facts(ix).lane

    def lane_around(self, ix: int) -> Lane | None:
        """Return the lane of span ``ix``: its own, else that of its nearest ancestor with one."""
        lanes = self._lanes_around
        unnamed: list[int] = []
        while ix >= 0 and ix not in lanes:
            lanes[ix] = self.lane(ix)
            if lanes[ix] is not None:
                break
            unnamed.append(ix)
            ix = self.parent[ix]
        around = lanes.get(ix)
        lanes.update(dict.fromkeys(unnamed, around))
        return around

    def unit(self, ix: int) -> Unit | None:
        """Return the lane or thread that runs span ``ix``, one thing at a time; None when unknown."""
        return self.facts(ix).unit

    def is_wait(self, ix: int) -> bool:
        return self._waits[self.name[ix]]

    def digest(self, ix: int, known: dict[int, bytes] | None = None) -> bytes:
        """Return a digest of the subtree of ``ix`` that no order of spans, id or shift in time changes.

        ``known`` are those of spans below, and become more; the tree's own if none are given.
        """
        digests = self._digests if known is None else known
        pending, begun = [ix], {ix}
        while pending:
            at = pending[-1]
            # What has begun and is not done is above: only in a cycle of parents.
            missing = [child for child in self.children(at) if child not in digests and child not in begun]
            if missing:
                pending += missing
                begun.update(missing)
                continue
            pending.pop()
            start, facts, spans = self.start[at], self.facts(at), self.spans
            unit = facts.unit and (facts.unit[0], facts.unit[2])  # no numbers of resources
            linked = sorted(
                (self.start[ix] - start, self.end[ix] - start, spans.name(ix)) for ix in self.blockers(at)
            )
            own = (
                self.end[at] - start, spans.name(at), self.kind[at], self._places[self.resource[at]],
                unit, facts.item, facts.step, linked,
            )  # fmt: skip
            below = sorted(
                f"{self.start[child] - start}:".encode() + digests[child]
                for child in self.children(at)
                if child in digests
            )
            digests[at] = blake2b(repr((own, below)).encode(), digest_size=16).digest()
        return digests[ix]


def _view(column: npt.NDArray[Any]) -> memoryview[int]:
    """Return ``column`` with elements that are numbers of Python, which a walk gets many times faster."""
    return np.ascontiguousarray(column).data


_NOTHING: Final = SpanFacts(None, None, None, None, False)


def trace_roots(spans: SpanColumns) -> list[int]:
    """Return the root of each trace, ordered by start.

    Of several, a span without a parent goes before an orphan, then the longest, the earliest, the first by
    name, by what lies below it. In a trace whose parents form only cycles, the same order chooses among all
    spans. Roots that start, end and are called alike are ordered by their trace ids.
    """
    if not len(spans):
        return []
    usable, trace = spans.possible, spans.trace_ix
    # 0 root, 1 orphan, 2 child; a span with impossible times only when its trace has no other.
    standing = np.where(spans.parent_ix == -1, 0, np.where(spans.parent_ix < 0, 1, 2)) + 3 * ~usable
    rooted = np.zeros(len(spans), bool)  # by number of trace
    rooted[trace[standing == 0]] = True
    some = np.flatnonzero((standing == 0) | ~rooted[trace])
    alphabetical = np.argsort(np.argsort(np.array(spans.names, dtype=object), kind="stable"), kind="stable")
    duration = spans.end[some] - spans.start[some]
    keys = (alphabetical[spans.name_ix[some]], spans.start[some], -duration, standing[some], trace[some])
    order = np.lexsort(keys)
    first = np.flatnonzero(changes(trace[some[order]]))
    roots = some[order[first]]
    _settle_alike(spans, some[order], changes(*(key[order] for key in keys)), first, roots)
    by_start = np.lexsort((alphabetical[spans.name_ix[roots]], spans.end[roots], spans.start[roots]))
    found: list[int] = roots[by_start].tolist()
    return found


def _settle_alike(
    spans: SpanColumns, order: IntArray, differs: BoolArray, first: IntArray, roots: IntArray
) -> None:
    """Of ``roots``, the ``first`` of each trace in this ``order``, let what lies below tell those alike."""
    tied = np.flatnonzero(~np.append(differs[1:], True)[first])
    if not len(tied):
        return
    tree, unlike = SpanTree(spans), np.append(np.flatnonzero(differs), len(order))
    for number in tied.tolist():
        begin = int(first[number])
        until = int(unlike[np.searchsorted(unlike, begin, side="right")])
        # Each anew: one in a cycle with another has a digest that is not that of what lies below the other.
        roots[number] = min(order[begin:until].tolist(), key=lambda ix: tree.digest(ix, {}))


def linked_spans(spans: SpanColumns, kind: str) -> dict[int, list[int]]:
    """Return span -> the spans that it names in links of this ``kind``."""
    links = spans.links
    wanted = [i for i, each in enumerate(links.kind) if each == kind]
    if not wanted:
        return {}
    targets = {(int(links.trace_hi[i]), int(links.trace_lo[i]), int(links.span_id[i])): -1 for i in wanted}
    for ix in np.flatnonzero(np.isin(spans.span_id, links.span_id[wanted])).tolist():
        key = (int(spans.trace_hi[ix]), int(spans.trace_lo[ix]), int(spans.span_id[ix]))
        if key in targets:
            targets[key] = ix
    found: dict[int, list[int]] = {}
    for i in wanted:
        target = targets[int(links.trace_hi[i]), int(links.trace_lo[i]), int(links.span_id[i])]
        if target >= 0:
            found.setdefault(int(links.span_ix[i]), []).append(target)
    return found
