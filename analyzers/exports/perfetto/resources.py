# SPDX-License-Identifier: Apache-2.0
"""What was observed of resources as counters, a track a host: what only the resource tables of spans tell.

What metrics beside the spans tell is written by `counters`, as it was measured.
"""

from __future__ import annotations

from typing import Final

from grademl_otel.analyzers.exports.perfetto.packets import Packets
from grademl_otel.analyzers.resource_model.assemble import resources_of
from grademl_otel.analyzers.resource_model.of_tables import SOURCE
from grademl_otel.analyzers.subject import Subject

_TRACK: Final = "resources"
_ABOUT: Final = "Averages, each from its time to the next; nothing is written where nothing was observed."


def write_resources(about: Subject, packets: Packets) -> int:
    """Write all metrics whose only source is resource tables; return how many numbers that is."""
    model = resources_of(about)
    tracks: dict[str, int] = {}
    written = 0
    for place, metric in enumerate(model.metrics):
        if tuple(metric.sources) != (SOURCE,) or not len(metric.observed):
            continue
        host, _, resource = model.path(metric.resource).removeprefix("/").partition("/")
        if host not in tracks:
            tracks[host] = packets.track(f"{_TRACK} of {host}", -1, len(tracks) + 1, _ABOUT)
        name = f"{resource or host} {metric.name}"
        track = packets.counter(name, tracks[host], place, metric.unit)
        seen = metric.observed
        for time, value in zip(seen.start.tolist(), seen.value.tolist(), strict=True):
            packets.count(track, time, value)
        written += len(seen)
    return written
