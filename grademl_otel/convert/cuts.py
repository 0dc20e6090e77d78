# SPDX-License-Identifier: Apache-2.0
"""Where the clock has cut windows into parts, for a relay that sends again what nobody has acknowledged.

All other bounds of a part follow from the marks; these do not, and a part that came twice with other rows
under the same id would be dropped as a copy. So they are left in the ring before such a part is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

_CUT: Final = Struct("<qqq")


class Cut(NamedTuple):
    """A part that was closed before it was full."""

    window: int
    part: int
    end: int
    """Sequence number of the mark that closed its last row; 0 for a part without rows."""


def to_bytes(cuts: Iterable[Cut], room: int) -> bytes:
    """Return the latest of ``cuts`` in at most ``room`` bytes."""
    packed = [_CUT.pack(*cut) for cut in cuts]
    return b"".join(packed[-(room // _CUT.size) :])


def from_bytes(raw: bytes) -> list[Cut]:
    """Return what `to_bytes` wrote; nothing of anything else."""
    if len(raw) % _CUT.size:
        return []
    cuts = [Cut._make(values) for values in _CUT.iter_unpack(raw)]
    return [cut for cut in cuts if min(cut) >= 0]
