# SPDX-License-Identifier: Apache-2.0
"""That data are incomplete, where who opens the trace sees it: on a track beside the critical path."""

from __future__ import annotations

from typing import Final

from grademl_otel.analyzers.exports.perfetto.packets import Packets
from grademl_otel.analyzers.model.facts import Completeness

NAME: Final = "incomplete data"
_REASONS: Final = "reasons"
_MOST_REASONS: Final = 16


def write_missing(found: Completeness, packets: Packets, start: int, end: int) -> None:
    """Write why data are incomplete, where they are, as slices of ``[start, end)``, Unix ns."""
    reasons = found.reasons
    if found.verdict != "incomplete" or not reasons:
        return
    track = packets.track(NAME, -1, 0)
    packets.begin(track, start, f"incomplete: {reasons[0]}", NAME)
    packets.end(track, end)
    # A track with others in it is shown at the top, one without in a group that is closed.
    for reason in reasons[:_MOST_REASONS]:
        inner = packets.track(_REASONS, track, 0)
        packets.begin(inner, start, reason, NAME)
        packets.end(inner, end)
