# SPDX-License-Identifier: Apache-2.0
"""The relay's copy of a ring without a name, for the case that the process and its relay die together.

Sealed memory is gone with the last process that holds it. So the relay repeats in a file of its folder what
it reads, byte for byte a ring, which the next relay adopts like any other. It is as old as the relay's last
look, a quarter of a second at most while the relay keeps up.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from grademl_otel.ring import layout
from grademl_otel.ring.place import create_private, has_room, remove
from grademl_otel.ring.reader import RingReader

_log = logging.getLogger(__name__)

_CHUNK: Final = 1 << 20


class Mirror:
    """The copy at ``path``; where there is no room for it there is none, which the log says once."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor = -1
        self._next = 1
        self._strings = 0
        self._given_up = False

    def update(self, reader: RingReader) -> None:
        """Take over what ``reader`` has read since the last time, and the header; raises `RingCorrupt`."""
        if self._given_up:
            return
        try:
            if self._descriptor < 0:
                self._begin(reader)
            else:
                self._follow(reader)
        except OSError as error:
            _log.warning("%s: no copy is kept: %s", self.path, error)
            self.remove()
            self._given_up = True

    def close(self) -> None:
        """Leave the copy as it is."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Remove the copy."""
        self.close()
        remove(self.path)
        remove(self.path.with_suffix(layout.NASCENT_SUFFIX))

    def _begin(self, reader: RingReader) -> None:
        """Copy everything, then put it in the place of what an earlier relay left."""
        size = reader.geometry.size
        if not has_room(self.path.parent, size):
            raise OSError(f"not sixteen times {size} bytes free")
        nascent = self.path.with_suffix(layout.NASCENT_SUFFIX)
        remove(nascent)
        self._descriptor = create_private(nascent)
        self._next, self._strings = reader.next, reader.string_bytes_used
        self._copy(reader, layout.HEADER_BYTES, size - layout.HEADER_BYTES)
        self._copy(reader, 0, layout.HEADER_BYTES)
        os.rename(nascent, self.path)

    def _follow(self, reader: RingReader) -> None:
        """Copy what is new; the header last, as it says how far the rest may be believed."""
        slots, size = reader.geometry.slots, layout.SLOT.size
        first, number = self._next % slots, min(reader.next - self._next, slots)
        until_end = min(number, slots - first)
        self._copy(reader, reader.geometry.first_slot + first * size, until_end * size)
        self._copy(reader, reader.geometry.first_slot, (number - until_end) * size)
        self._next = reader.next
        used = reader.string_bytes_used
        self._copy(reader, layout.HEADER_BYTES + self._strings, used - self._strings)
        self._strings = max(used, self._strings)
        self._copy(reader, 0, layout.HEADER_BYTES)

    def _copy(self, reader: RingReader, offset: int, length: int) -> None:
        end = offset + length
        while offset < end:
            data = reader.raw(offset, min(_CHUNK, end - offset))
            if os.pwrite(self._descriptor, data, offset) < len(data):
                raise OSError("no room")
            offset += len(data)
