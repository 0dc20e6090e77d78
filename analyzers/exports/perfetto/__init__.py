# SPDX-License-Identifier: Apache-2.0
"""`grademl export --to perfetto`: a trace for Perfetto's user interface and its trace processor.

docs/perfetto.md tells what is on which track, and how to open it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import IO

from grademl_otel.analyzers.exports.perfetto.counters import write_counters
from grademl_otel.analyzers.exports.perfetto.found import Found, found_in
from grademl_otel.analyzers.exports.perfetto.lanes import Arrows, write_lanes
from grademl_otel.analyzers.exports.perfetto.packets import Packets
from grademl_otel.analyzers.exports.perfetto.path import NAME, jumps_of, write_path
from grademl_otel.analyzers.exports.perfetto.slices import Process, pids
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables.material import material


def write(about: Subject, file: IO[bytes]) -> dict[str, int]:
    """Write ``about`` into ``file``; return how much of what that is.

    The same subject gives the same bytes. Raises NothingFound where no trace matches.
    """
    found, made = found_in(about), material(about)
    sections = made.made_path.sections
    begins = [int(one.start.min()) for one in (found.slices, sections) if len(one)]
    packets = Packets(file, min(begins, default=0))
    path, processes = _processes(found, packets)
    between = write_path(made.made_path, found, packets, path)
    jumps = jumps_of(made.made_path, found)
    write_lanes(found, packets, processes, Arrows.of(jumps, sections))
    tracks: dict[Hashable, int] = {key: processes[number] for key, number in found.slices.keys.items()}
    samples = write_counters(made, packets, tracks)
    packets.finish()
    counts = {
        "spans": len(found.slices) - found.from_table,
        "table slices": found.from_table,
        "sections": len(sections),
        "arrows": between + len(jumps),
        "samples": samples,
        "impossible spans": found.impossible,
    }
    return {word: number for word, number in counts.items() if number or word == "spans"}


def _processes(found: Found, packets: Packets) -> tuple[int, list[int]]:
    """Add the processes; return the track of that of the path, and those of all others."""
    every = [Process(NAME, None, (-1,)), *found.slices.processes]
    numbers = pids(every)
    shown = sorted(range(len(every)), key=lambda at: every[at].order)
    tracks = [0] * len(every)
    for place, at in enumerate(shown):
        one = every[at]
        tracks[at] = packets.process(one.name, numbers[at], place, one.labels)
    return tracks[0], tracks[1:]
