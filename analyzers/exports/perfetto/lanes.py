# SPDX-License-Identifier: Apache-2.0
"""Processes, lanes and their slices, written track by track, each in order of time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.exports.perfetto.found import Found
from grademl_otel.analyzers.exports.perfetto.packets import Note, Packets
from grademl_otel.analyzers.exports.perfetto.path import JUMP, Jumps, edge_notes
from grademl_otel.analyzers.exports.perfetto.rows import tracks_of
from grademl_otel.analyzers.exports.perfetto.slices import Slices, rows_of
from grademl_otel.analyzers.exports.perfetto.spans import MAIN
from grademl_otel.analyzers.graph.path import Sections


@dataclass(frozen=True)
class Arrows:
    """The arrows between lanes, by the slices that they begin at, and end in."""

    begins: dict[int, list[int]]
    """Slice -> numbers of arrows."""
    marks: dict[int, list[tuple[int, int, int]]]
    """Slice -> (Unix ns, number of the arrow, section after which it leads here), by time."""
    sections: Sections

    @classmethod
    def of(cls, jumps: Jumps, sections: Sections) -> Arrows:
        """Number the arrows of ``jumps``, after those between sections."""
        begins: dict[int, list[int]] = defaultdict(list)
        marks: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        columns = (jumps.section.tolist(), jumps.source.tolist(), jumps.target.tolist(), jumps.at.tolist())
        first = len(sections) + 1
        for number, (section, source, target, at) in enumerate(zip(*columns, strict=True), first):
            begins[source].append(number)
            marks[target].append((at, number, section))
        for found in marks.values():
            found.sort()
        return cls(begins, marks, sections)


def write_lanes(found: Found, packets: Packets, processes: list[int], arrows: Arrows) -> None:
    """Write all slices; ``processes`` are the tracks of the processes.

    The other lanes of a process are in its main one, where it has one: a process has no order of its own.
    """
    slices = found.slices
    order = np.lexsort((slices.depth, -slices.end, slices.start, slices.lane))
    lanes = slices.lane[order]
    shown = sorted(range(len(slices.lanes)), key=lambda at: _place(slices, at))
    main: dict[int, int] = {}
    for place, lane in enumerate(shown):
        first, end = np.searchsorted(lanes, (lane, lane + 1))
        if end > first:
            one = slices.lanes[lane]
            described = one.name, main.get(one.process, processes[one.process]), place
            track = _write_lane(slices, order[first:end], packets, described, arrows)
            if one.name == MAIN:
                main[one.process] = track


def _place(slices: Slices, lane: int) -> tuple[object, ...]:
    one = slices.lanes[lane]
    return slices.processes[one.process].order, one.order


def _write_lane(
    slices: Slices, chosen: IntArray, packets: Packets, described: tuple[str, int, int], arrows: Arrows
) -> int:
    """Write the ``chosen`` slices of a lane, in order, onto as many tracks as they need; return the first."""
    track = tracks_of(slices, chosen, slices.lanes[int(slices.lane[chosen[0]])].nesting)
    by_track = np.argsort(track, kind="stable")
    bounds = np.searchsorted(track[by_track], np.arange(int(track.max()) + 2))
    tracks = [packets.track(*described) for _ in bounds[1:]]
    for number, first, end in zip(tracks, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        _write_track(slices, chosen[by_track[first:end]], packets, number, arrows)
    return tracks[0]


def _write_track(slices: Slices, chosen: IntArray, packets: Packets, track: int, arrows: Arrows) -> None:
    """Write slices that nest or are apart, sorted by (start, longest first), and the marks in them."""
    open_: list[tuple[int, list[tuple[int, int, int]]]] = []
    """(end, marks that are left, the latest first) of the slices that have not ended, the innermost last."""

    def until(time: int) -> None:
        """End what ends by ``time``, and make the marks of what goes on up to then."""
        while open_:
            end, marks = open_[-1]
            while marks and marks[-1][0] < time:
                _mark(packets, track, arrows.sections, marks.pop())
            if end > time:
                break
            open_.pop()
            packets.end(track, end)

    columns = (chosen, slices.start[chosen], slices.end[chosen], slices.name[chosen], slices.category[chosen])
    names, categories = slices.names, slices.categories
    for ix, start, end, name, category in rows_of(*columns):
        until(start)
        flows = arrows.begins.get(ix, ())
        packets.begin(track, start, names[name], categories[category], slices.notes(ix), flows)
        open_.append((end, arrows.marks.get(ix, [])[::-1]))
    until(1 << 63)


def _mark(packets: Packets, track: int, sections: Sections, mark: tuple[int, int, int]) -> None:
    at, number, section = mark
    edge = sections.entrances[int(sections.entered[section])].edge
    notes: list[Note] = [*edge_notes(sections, section)]
    packets.begin(track, at, edge, JUMP, notes, ends=(number,), instant=True)
