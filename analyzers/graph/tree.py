# SPDX-License-Identifier: Apache-2.0
"""The critical path of a span tree.

The walk goes backwards from the root's end. At the cursor it takes the child that ended last (at equal ends
the one that started first, and a wait-class phase only when nothing else ended then), works through it the
same way, and goes on at its start; what no child covers belongs to the parent. Children are clipped to their
parent's already clipped window, so that the sections tile the root's duration exactly, in integers.

What may not block its parent does not enter this way: a CONSUMER child of a PRODUCER, and a *concurrent*
child, whose `grademl.lane` differs from its parent's. A concurrent span enters only at the end of a wait that
an observed edge ends: the queue (the same `grademl.item` on both) or a link of kind ``blocking``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.graph.path import (
    GAP,
    HANDOFF,
    UNEXPLAINED,
    WORK,
    EnteredBy,
    Path,
    Section,
    kind_of,
)
from grademl_otel.analyzers.graph.tolerance import DEFAULT_TOLERANCE, OverlapTolerance
from grademl_otel.analyzers.model.columns import KIND_CONSUMER, KIND_PRODUCER, IntArray, SpanColumns

_CHILD = EnteredBy("child")
_PROGRAM = EnteredBy("program")
_QUEUE = EnteredBy("queue")
_LINK = EnteredBy("link")

_CONTAINERS = frozenset(
    {
        semconv.RUN, semconv.FIT, semconv.EPOCH, semconv.EVALUATE,
        semconv.PREDICT, semconv.TRIAL, semconv.WINDOW, semconv.STEP,
    }
)  # fmt: skip
"""Spans of ours that only hold others: their own time is a gap, not work."""

_BLOCKING = "blocking"


@dataclass(frozen=True)
class _Facts:
    """What the walk needs of a span's attributes, decoded once."""

    lane: str | None
    thread: object
    item: str | None
    step: int | None


class SpanTree:
    """Children of every span, and decoded facts on demand; one serves many walks over the same columns."""

    def __init__(self, spans: SpanColumns) -> None:
        self.spans = spans
        self._order: IntArray = np.argsort(spans.parent_ix, kind="stable")
        # Roots and orphans (negative parents) sort first and are nobody's children.
        self._first: IntArray = np.searchsorted(
            spans.parent_ix[self._order], np.arange(len(spans) + 1, dtype=np.int64)
        )
        self._facts: dict[int, _Facts] = {}
        self._blockers = _blocking_links(spans)

    def children(self, ix: int) -> list[int]:
        """Return the children of span ``ix``, in no particular order."""
        found: list[int] = self._order[self._first[ix] : self._first[ix + 1]].tolist()
        return found

    def blockers(self, ix: int) -> list[int]:
        """Return the spans that span ``ix`` names in links of kind ``blocking``."""
        return self._blockers.get(ix, [])

    def facts(self, ix: int) -> _Facts:
        """Return the decoded facts of span ``ix``; attributes of an unexpected type count as absent."""
        facts = self._facts.get(ix)
        if facts is None:
            attributes = self.spans.attributes(ix)
            lane, item = attributes.get(semconv.LANE), attributes.get(semconv.ITEM)
            step = attributes.get(semconv.STEP_NUMBER)
            facts = self._facts[ix] = _Facts(
                lane=lane if isinstance(lane, str) else None,
                thread=attributes.get("thread.id"),
                item=item if isinstance(item, str) else None,
                step=step if isinstance(step, int) else None,
            )
        return facts

    def rank(self, ix: int) -> int | None:
        rank = self.spans.resource(ix).get(semconv.RANK)
        return rank if isinstance(rank, int) else None

    def lane(self, ix: int) -> tuple[int | None, str] | None:
        """Return the (rank, lane) that span ``ix`` names; equal names of two ranks are two lanes."""
        lane = self.facts(ix).lane
        return None if lane is None else (self.rank(ix), lane)

    def concurrent(self, ix: int, parent: int) -> bool:
        """Return whether span ``ix`` runs in another lane than its parent, as far as both are known."""
        own, theirs = self.lane(ix), self.lane(parent)
        return own is not None and theirs is not None and own != theirs

    def is_wait(self, ix: int) -> bool:
        return self.spans.name(ix) in semconv.WAIT_PHASES


def tree_path(
    spans: SpanColumns,
    root_ix: int,
    overlap_tolerance: OverlapTolerance = DEFAULT_TOLERANCE,
    tree: SpanTree | None = None,
) -> Path:
    """Return the critical path of the tree under span ``root_ix``, over that span's ``[start, end)``.

    A root that ends before it starts, or at once, has an empty path. ``tree`` saves building the index again.
    """
    return _Walk(tree or SpanTree(spans), root_ix, overlap_tolerance).path()


def trace_paths(
    spans: SpanColumns, overlap_tolerance: OverlapTolerance = DEFAULT_TOLERANCE
) -> list[tuple[int, Path]]:
    """Return one (root, path) per trace, ordered by the start of the roots; see `trace_roots`."""
    tree = SpanTree(spans)
    return [(root, tree_path(spans, root, overlap_tolerance, tree)) for root in trace_roots(spans)]


def trace_roots(spans: SpanColumns) -> list[int]:
    """Return the root of each trace, ordered by start.

    Of several, a span without a parent goes before an orphan, then the longest, the earliest, the first by
    name. In a trace whose parents form only cycles, the same order chooses among all spans.
    """
    if not len(spans):
        return []
    usable = spans.possible
    # 0 root, 1 orphan, 2 child; a span with impossible times only when its trace has no other.
    standing = np.where(spans.parent_ix == -1, 0, np.where(spans.parent_ix < 0, 1, 2)) + 3 * ~usable
    alphabetical = np.argsort(np.argsort(np.array(spans.names, dtype=object), kind="stable"), kind="stable")
    order = np.lexsort(
        (
            alphabetical[spans.name_ix],
            spans.start,
            -(spans.end - spans.start),
            standing,
            spans.trace_lo,
            spans.trace_hi,
        )
    )
    hi, lo = spans.trace_hi[order], spans.trace_lo[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    roots = order[first]
    by_start = np.lexsort((alphabetical[spans.name_ix[roots]], spans.end[roots], spans.start[roots]))
    found: list[int] = roots[by_start].tolist()
    return found


def _blocking_links(spans: SpanColumns) -> dict[int, list[int]]:
    links = spans.links
    wanted = [i for i, kind in enumerate(links.kind) if kind == _BLOCKING]
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


@dataclass
class _Piece:
    """A span clipped to the window in which it can matter."""

    ix: int
    lo: int
    hi: int


@dataclass
class _Frame:
    """A span that the walk is in."""

    piece: _Piece
    lane: tuple[int | None, str] | None
    """(rank, lane), its own or inherited; None when no ancestor tells."""
    entered_by: EnteredBy
    children: list[_Piece]
    """Those that may block it, in the order in which the walk asks for them."""
    concurrent: bool = False
    """Entered through an observed edge from another lane."""
    at: int = 0


@dataclass
class _Walk:
    tree: SpanTree
    root: int
    tolerance: OverlapTolerance
    clipped_ns: int = 0
    overlap_ns: int = 0
    sections: list[Section] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._spans = self.tree.spans
        self._nested: dict[int, list[_Piece]] = {}
        self._digests: dict[int, bytes] = {}
        self._by_item: dict[str, list[_Piece]] = {}
        self._concurrent: dict[int, _Piece] = {}
        self._lane_mates: dict[tuple[int, tuple[int | None, str]], list[_Piece]] = {}
        self._jumped: set[int] = set()

    def path(self) -> Path:
        start, end = int(self._spans.start[self.root]), int(self._spans.end[self.root])
        end = max(start, end)
        self._go_back(start, end)
        self.sections.reverse()
        return Path(start, end, tuple(self.sections), self.clipped_ns, self.overlap_ns)

    def _go_back(self, start: int, end: int) -> None:
        cursor = end
        resumed_at = None  # where the walk came back from another lane
        left: tuple[object, ...] | None = None  # the lane of the sibling that starts at the cursor
        entered_by = _PROGRAM
        stack = [self._frame(_Piece(self.root, start, end), None, _PROGRAM)]
        while stack:
            frame = stack[-1]
            piece = frame.piece
            child = self._next_child(frame, cursor, cursor == resumed_at)
            if child is not None:
                hi = min(child.hi, cursor)
                if hi < cursor:
                    self._emit(piece, hi, cursor, entered_by, self._own_kind(piece.ix))
                    cursor, left = hi, None
                entered_by = _PROGRAM if left and left == self._shared_lane(child.ix) else _CHILD
                left = None
                stack.append(self._frame(_Piece(child.ix, child.lo, hi), frame.lane, entered_by))
                blocker, edge = self._blocker(stack[-1].piece, truncated=hi < child.hi)
                if blocker is not None:
                    if blocker.hi < cursor:
                        self._emit(stack[-1].piece, blocker.hi, cursor, entered_by, HANDOFF)
                    cursor, entered_by = blocker.hi, edge
                    stack.append(self._frame(blocker, None, edge, concurrent=True))
                continue
            if piece.lo < cursor:
                self._emit(piece, piece.lo, cursor, entered_by, self._own_kind(piece.ix))
                cursor = piece.lo
                entered_by = _CHILD
            stack.pop()
            left = self._shared_lane(piece.ix)
            if frame.concurrent:
                left = None
                before = self._lane_predecessor(frame)
                if before is not None:
                    if before.hi < cursor:
                        self._emit(piece, before.hi, cursor, _PROGRAM, GAP)
                    cursor, entered_by = before.hi, _PROGRAM
                    stack.append(self._frame(before, None, _PROGRAM, concurrent=True))
                else:
                    resumed_at, entered_by = cursor, _CHILD

    # --- the children of a frame --------------------------------------------------------------------------

    def _frame(
        self,
        piece: _Piece,
        inherited: tuple[int | None, str] | None,
        entered_by: EnteredBy,
        concurrent: bool = False,
    ) -> _Frame:
        lane = self.tree.lane(piece.ix) or inherited
        return _Frame(piece, lane, entered_by, self._candidates(piece, lane), concurrent)

    def _candidates(self, piece: _Piece, lane: tuple[int | None, str] | None) -> list[_Piece]:
        """Return the clipped children of ``piece`` that may block it, latest end first."""
        spans = self._spans
        producer = spans.kind[piece.ix] == KIND_PRODUCER
        blocking = [
            _Piece(mate.ix, mate.lo, min(mate.hi, piece.hi))
            for mate in self._nested.pop(piece.ix, ())
            if mate.lo < piece.hi
        ]
        beside: list[tuple[tuple[int | None, str], _Piece]] = []
        for ix in self.tree.children(piece.ix):
            start, end = int(spans.start[ix]), int(spans.end[ix])
            # A child that is the root closes a cycle of parents; one that ends before it starts has no place.
            if ix == self.root or end < start or (producer and spans.kind[ix] == KIND_CONSUMER):
                continue
            child = _Piece(ix, max(start, piece.lo), min(end, piece.hi))
            self.clipped_ns += (end - start) - max(0, child.hi - child.lo)
            if child.hi <= child.lo:
                continue
            child_lane = self.tree.lane(ix)
            if lane is not None and child_lane is not None and child_lane != lane:
                beside.append((child_lane, child))
            else:
                blocking.append(child)
        if beside:
            self._register(piece.ix, beside)
        return self._in_order(self._settle(piece, blocking))

    def _settle(self, parent: _Piece, children: list[_Piece]) -> list[_Piece]:
        """Let siblings of one lane nest or end where the next starts, for a lane does one thing at a time."""
        lanes: dict[tuple[object, ...], list[_Piece]] = {}
        for child in children:
            key = self._shared_lane(child.ix)
            if key is not None:
                lanes.setdefault(key, []).append(child)
        allowed = self.tolerance.of(parent.hi - parent.lo)
        nested: set[int] = set()
        for key, mates in lanes.items():
            if len(mates) < 2:
                continue
            mates.sort(key=lambda mate: (mate.lo, -mate.hi))
            around: list[_Piece] = []
            for mate in mates:
                while around and around[-1].hi <= mate.lo:
                    around.pop()
                if around:
                    outer = around[-1]
                    same = (outer.lo, outer.hi) == (mate.lo, mate.hi)
                    if mate.hi <= outer.hi and not same and key[0] == "lane":
                        self._nested.setdefault(outer.ix, []).append(mate)
                        nested.add(id(mate))
                    elif outer.lo < mate.lo and outer.hi <= mate.hi and outer.hi - mate.lo <= allowed:
                        self.overlap_ns += outer.hi - mate.lo
                        outer.hi = mate.lo
                        around.pop()
                around.append(mate)
        return [child for child in children if id(child) not in nested] if nested else children

    def _shared_lane(self, ix: int) -> tuple[object, ...] | None:
        """Return what identifies the lane or thread of span ``ix``; None when it is not known."""
        facts = self.tree.facts(ix)
        if facts.lane is not None:
            return ("lane", self.tree.rank(ix), facts.lane)
        if facts.thread is not None:
            return ("thread", int(self._spans.resource_ix[ix]), facts.thread)
        return None

    def _in_order(self, children: list[_Piece]) -> list[_Piece]:
        """Sort by the rule of the walk; what is alike to the last bit is told apart by its subtree only."""

        def key(child: _Piece) -> tuple[int, bool, int, str]:
            return (-child.hi, self.tree.is_wait(child.ix), child.lo, self._spans.name(child.ix))

        ordered: list[_Piece] = []
        for _, alike in groupby(sorted(children, key=key), key=key):
            group = list(alike)
            ordered += sorted(group, key=lambda child: self._digest(child.ix)) if len(group) > 1 else group
        return ordered

    def _digest(self, ix: int) -> bytes:
        """Return a digest of the subtree of ``ix`` that no order, id or shift in time changes."""
        spans, digests = self._spans, self._digests
        pending = [ix]
        while pending:
            at = pending[-1]
            below = [child for child in self.tree.children(at) if child != self.root]
            missing = [child for child in below if child not in digests]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            facts = self.tree.facts(at)
            origin = int(spans.start[self.root])
            own = (
                int(spans.start[at]) - origin, int(spans.end[at]) - origin, spans.name(at),
                int(spans.kind[at]), self.tree.rank(at), facts.lane, str(facts.thread), facts.item,
                facts.step,
            )  # fmt: skip
            text = repr(own).encode() + b"".join(sorted(digests[child] for child in below))
            digests[at] = blake2b(text, digest_size=16).digest()
        return digests[ix]

    @staticmethod
    def _next_child(frame: _Frame, cursor: int, resumed: bool) -> _Piece | None:
        """Return the next child on the path and move past it; None when the rest is the frame's own.

        Where the walk comes back from another lane it lands in the middle of what this lane was doing: then
        the child around the cursor is on the path too, up to the cursor.
        """
        lo = frame.piece.lo
        while frame.at < len(frame.children):
            child = frame.children[frame.at]
            frame.at += 1
            if (child.hi <= cursor or (resumed and child.lo < cursor)) and child.lo < cursor > lo:
                return child
        return None

    # --- other lanes --------------------------------------------------------------------------------------

    def _register(self, parent: int, beside: list[tuple[tuple[int | None, str], _Piece]]) -> None:
        """Remember concurrent children, and what lies below them, as possible ends of waits."""
        for lane, piece in beside:
            self._lane_mates.setdefault((parent, lane), []).append(piece)
            for below in self._subtree(piece):
                self._concurrent[below.ix] = below
                item = self.tree.facts(below.ix).item
                if item is not None:
                    self._by_item.setdefault(item, []).append(below)
        for lane in {lane for lane, _ in beside}:
            self._lane_mates[parent, lane].sort(key=lambda piece: (piece.hi, piece.lo))

    def _subtree(self, top: _Piece) -> Iterator[_Piece]:
        spans = self._spans
        pending = [top]
        while pending:
            piece = pending.pop()
            yield piece
            for ix in self.tree.children(piece.ix):
                lo, hi = max(int(spans.start[ix]), piece.lo), min(int(spans.end[ix]), piece.hi)
                if lo < hi and ix != self.root:
                    pending.append(_Piece(ix, lo, hi))

    def _blocker(self, wait: _Piece, truncated: bool) -> tuple[_Piece | None, EnteredBy]:
        """Return what ended ``wait``, the last of all that ended within it, and the edge that says so."""
        if truncated or not (self._concurrent or self.tree.blockers(wait.ix)):
            return None, _CHILD
        found: list[tuple[int, int, bytes, _Piece, EnteredBy]] = []
        item = self.tree.facts(wait.ix).item
        if item is not None and self.tree.is_wait(wait.ix):
            found += [self._ranked(piece, _QUEUE) for piece in self._by_item.get(item, ())]
        for ix in self.tree.blockers(wait.ix):
            if ix in self._concurrent:
                found.append(self._ranked(self._concurrent[ix], _LINK))
        found = [
            entry for entry in found if wait.lo < entry[3].hi <= wait.hi and entry[3].ix not in self._jumped
        ]
        if not found:
            return None, _CHILD
        _, _, _, piece, edge = max(found, key=lambda entry: entry[:3])
        self._jumped.add(piece.ix)
        return piece, edge

    def _ranked(self, piece: _Piece, edge: EnteredBy) -> tuple[int, int, bytes, _Piece, EnteredBy]:
        return piece.hi, -piece.lo, self._digest(piece.ix), piece, edge

    def _lane_predecessor(self, frame: _Frame) -> _Piece | None:
        """Return what the other lane did just before, if it went from one to the next without a pause."""
        if frame.lane is None:
            return None
        parent = int(self._spans.parent_ix[frame.piece.ix])
        mates = self._lane_mates.get((parent, frame.lane), [])
        at = bisect_right(mates, frame.piece.lo, key=lambda mate: mate.hi) if mates else 0
        while at > 0 and mates[at - 1].ix in self._jumped:
            at -= 1
        if at == 0:
            return None
        before = mates[at - 1]
        length = int(self._spans.end[self.root]) - int(self._spans.start[self.root])
        if frame.piece.lo - before.hi > self.tolerance.of(length):
            return None
        self._jumped.add(before.ix)
        return before

    # --- sections -----------------------------------------------------------------------------------------

    def _own_kind(self, ix: int) -> str:
        name = self._spans.name(ix)
        if name in semconv.WAIT_PHASES:
            # With work inside, as of a loader without workers, the rest of the wait is overhead of that work.
            return WORK if self.tree.children(ix) else UNEXPLAINED
        if name in _CONTAINERS and self.tree.facts(ix).lane is not None:
            return GAP
        return kind_of(name)

    def _emit(self, piece: _Piece, start: int, end: int, entered_by: EnteredBy, kind: str) -> None:
        facts = self.tree.facts(piece.ix)
        self.sections.append(
            Section(
                start=start,
                end=end,
                phase=self._spans.name(piece.ix),
                kind=kind,
                rank=self.tree.rank(piece.ix),
                lane=facts.lane or "",
                step=facts.step,
                item=facts.item,
                span_ix=piece.ix,
                entered_by=entered_by,
            )
        )
