# SPDX-License-Identifier: Apache-2.0
"""The critical path as a track of its own, and the arrows: from section to section, from lane to lane.

An arrow leads from the slice in which the path was to a mark in the slice that it goes on in, at that moment:
what waited has begun before what it waited for, and an arrow leads from what begins first. The mark is called
as the edge is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.exports.perfetto.found import Found
from grademl_otel.analyzers.exports.perfetto.packets import Note, Packets
from grademl_otel.analyzers.exports.perfetto.rows import side_by_side
from grademl_otel.analyzers.exports.perfetto.slices import rows_of
from grademl_otel.analyzers.graph.intervals import Canvas
from grademl_otel.analyzers.graph.path import KINDS, Sections
from grademl_otel.analyzers.model.arrays import changes
from grademl_otel.analyzers.tables.material import MadePath

NAME: Final = "critical path"
LANES: Final = "lanes of the path"
_ABOUT: Final = "What the end waited for, back to the start: the sections follow each other without a gap."
JUMP: Final = "path"
"""Category of the marks where the path goes from one lane to another."""


@dataclass(frozen=True)
class Jumps:
    """Where the path goes from one lane to another, as arrays in order of the sections."""

    section: IntArray
    """The section after which it does."""
    source: IntArray
    """The slice in which it was."""
    target: IntArray
    """The slice in which it goes on."""
    at: IntArray
    """Unix ns."""

    def __len__(self) -> int:
        return len(self.at)


def jumps_of(made: MadePath, found: Found) -> Jumps:
    """Return the jumps of which both slices are known."""
    sections = made.sections
    slices = _or_next(_slices_of(sections, found), np.cumsum(changes(made.path, sections.lane)))
    lane, start = (np.append(column, -1)[slices] for column in (found.slices.lane, found.slices.start))
    at = np.flatnonzero(
        (made.path[1:] == made.path[:-1]) & (slices[1:] >= 0) & (slices[:-1] >= 0) & (lane[1:] != lane[:-1])
    )
    return Jumps(at, slices[at], slices[at + 1], np.maximum(sections.end[at], start[at + 1]))


def _or_next(slices: IntArray, stretch: IntArray) -> IntArray:
    """Return ``slices``; where there is none, as before a worker's first fetch, the next of that stretch."""
    count = len(slices)
    known = np.where(slices >= 0, np.arange(count), count)
    later = np.minimum.accumulate(known[::-1])[::-1]
    same = (later < count) & (np.append(stretch, -1)[later] == stretch)
    filled: IntArray = np.where(same, np.append(slices, -1)[later], -1)
    return filled


def _slices_of(sections: Sections, found: Found) -> IntArray:
    """Return the slice in which each section lies: of its span, else the innermost of its lane; else -1."""
    slices = found.slices
    chosen = np.full(len(sections), -1, np.int64)
    some = np.flatnonzero(sections.span_ix >= 0)
    chosen[some] = found.slice_of_span[sections.span_ix[some]]
    lanes = _lanes_of(sections, found)
    if found.process_of_rank:
        # Waiting for what a span of another lane did is part of this one.
        chosen[(chosen >= 0) & (np.append(slices.lane, -1)[chosen] != lanes)] = -1
    at = np.maximum(chosen, 0)
    if len(slices):
        held = (slices.start[at] <= sections.start) & (slices.end[at] >= sections.end)
        chosen[~held] = -1
    for lane in np.unique(lanes[(chosen < 0) & (lanes >= 0)]).tolist():
        left = np.flatnonzero((chosen < 0) & (lanes == lane))
        chosen[left] = _innermost(found, lane, sections.start[left])
    return chosen


def _lanes_of(sections: Sections, found: Found) -> IntArray:
    """Return the lane of slices that each section is in; -1 for none."""
    number = {(lane.process, lane.name): at for at, lane in enumerate(found.slices.lanes)}
    known = [
        number.get((found.process_of_rank.get(-1 if rank is None else rank, -1), name), -1)
        for rank, name in sections.lanes
    ]
    lanes: IntArray = np.array(known or [-1], np.int64)[sections.lane]
    return lanes


def _innermost(found: Found, lane: int, moments: IntArray) -> IntArray:
    """Return the innermost slice of ``lane`` at each of ``moments``; -1 where there is none."""
    slices = found.slices
    mine = np.flatnonzero((slices.lane == lane) & (slices.end > slices.start))
    mine = mine[np.lexsort((slices.depth[mine], -slices.end[mine], slices.start[mine]))]
    if not len(mine):
        return np.full(len(moments), -1, np.int64)
    start, end = slices.start[mine], slices.end[mine]
    canvas = Canvas.over(int(start.min()), int(end.max()), start, end)
    owner = canvas.blank()
    canvas.paint(owner, start, end, mine)
    at = np.searchsorted(canvas.bounds, moments, side="right") - 1
    inside = (at >= 0) & (at < len(owner))
    innermost: IntArray = np.where(inside, owner[np.clip(at, 0, len(owner) - 1)], -1)
    return innermost


def write_path(made: MadePath, found: Found, packets: Packets) -> int:
    """Write the sections onto tracks, paths side by side onto several; return the arrows between them.

    In that track is another: the lanes in which the path was, one after the other.
    """
    sections = made.sections
    if not len(sections):
        return 0
    track_of_path = _tracks(made)
    count = int(track_of_path.max()) + 1
    tracks = [packets.track(NAME, -1, 0, _ABOUT) for _ in range(count)]
    inner = [packets.track(LANES, tracks[0], 0) for _ in range(count)]
    track = track_of_path[made.path]
    follows = np.zeros(len(sections) + 1, np.bool_)
    follows[1:-1] = made.path[1:] == made.path[:-1]
    order = np.lexsort((sections.start, track))
    for at, number in rows_of(order, track[order]):
        flows = (at + 1,) if follows[at + 1] else ()
        ends = (at,) if follows[at] else ()
        name, kind = sections.phases[int(sections.phase[at])], KINDS[int(sections.kind[at])]
        notes = _notes(sections, found, at)
        packets.begin(tracks[number], int(sections.start[at]), name, kind, notes, flows, ends)
        packets.end(tracks[number], int(sections.end[at]))
    for first, last in _stretches(made, order):
        number = int(track[first])
        packets.begin(inner[number], int(sections.start[first]), _lane(sections, first), "lane")
        packets.end(inner[number], int(sections.end[last]))
    return int(follows.sum())


def _stretches(made: MadePath, order: IntArray) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of the sections, in ``order``, of a path that are in one lane together."""
    path, lane = made.path[order], made.sections.lane[order]
    begins = np.flatnonzero(changes(path, lane))
    last = np.append(begins[1:], len(order)) - 1
    yield from zip(order[begins].tolist(), order[last].tolist(), strict=True)


def _lane(sections: Sections, at: int) -> str:
    rank, name = sections.lanes[int(sections.lane[at])]
    return name if rank is None else f"rank {rank} {name}"


def _tracks(made: MadePath) -> IntArray:
    """Return the number of the track of each path: the first that no other has at that time."""
    count = int(made.path.max()) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(low, made.path, made.sections.start)
    np.maximum.at(high, made.path, made.sections.end)
    return side_by_side(np.minimum(low, high), high)


def _notes(sections: Sections, found: Found, at: int) -> Iterator[Note]:
    rank, lane = sections.lanes[int(sections.lane[at])]
    if rank is not None:
        yield "rank", rank
    yield "lane", lane
    if sections.step[at] >= 0:
        yield "step", int(sections.step[at])
    if sections.item[at] >= 0:
        yield "item", sections.items[int(sections.item[at])]
    if sections.span_ix[at] >= 0:
        ix = int(sections.span_ix[at])
        yield "trace_id", found.spans.trace_id_hex(ix)
        yield "span_id", found.spans.span_id_hex(ix)
        if service := found.spans.service(ix):
            yield "service", service
    # How the walk, which goes back in time, came to it: from the section after it.
    yield from edge_notes(sections, at)


def edge_notes(sections: Sections, at: int) -> Iterator[Note]:
    """Yield what leads from section ``at`` to the next, and what proves it."""
    entered = sections.entrances[int(sections.entered[at])]
    yield "edge", entered.edge
    yield "evidence", entered.evidence
    yield "confidence", entered.confidence
