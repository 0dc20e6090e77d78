# SPDX-License-Identifier: Apache-2.0
"""`grademl export --to perfetto`: a trace for Perfetto's user interface and its trace processor.

docs/perfetto.md tells what is on which track, and how to open it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import IO

from grademl_otel.analyzers.exports.perfetto.counters import write_counters
from grademl_otel.analyzers.exports.perfetto.found import found_in
from grademl_otel.analyzers.exports.perfetto.lanes import Arrows, write_lanes
from grademl_otel.analyzers.exports.perfetto.missing import write_missing
from grademl_otel.analyzers.exports.perfetto.packets import Packets
from grademl_otel.analyzers.exports.perfetto.path import jumps_of, write_path
from grademl_otel.analyzers.exports.perfetto.resources import write_resources
from grademl_otel.analyzers.exports.perfetto.slices import Slices, pids
from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables.material import material


def write(about: Subject, file: IO[bytes]) -> dict[str, int]:
    """Write ``about`` into ``file``; return how much of what that is.

    The same subject gives the same bytes. Raises NothingFound where no trace matches.
    """
    found, made = found_in(about), material(about)
    sections = made.made_path.sections
    begins = [int(one.start.min()) for one in (found.slices, sections) if len(one)]
    ends = [int(one.end.max()) for one in (found.slices, sections) if len(one)]
    start = min(begins, default=0)
    packets = Packets(file, start)
    between = write_path(made.made_path, found, packets)
    write_missing(about.completeness, packets, start, max(ends, default=start))
    processes = _processes(found.slices, packets)
    jumps = jumps_of(made.made_path, found)
    write_lanes(found, packets, processes, Arrows.of(jumps, sections))
    tracks: dict[Hashable, int] = {key: processes[number] for key, number in found.slices.keys.items()}
    samples = write_counters(made, packets, tracks) + write_resources(about, packets)
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


def _processes(slices: Slices, packets: Packets) -> list[int]:
    """Add the processes, and return their tracks."""
    every = slices.processes
    numbers, tracks = pids(every), [0] * len(every)
    for place, at in enumerate(sorted(range(len(every)), key=lambda at: every[at].order)):
        tracks[at] = packets.process(every[at].name, numbers[at], place, every[at].labels)
    return tracks
