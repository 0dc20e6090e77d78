# SPDX-License-Identifier: Apache-2.0
"""What a span carries beside its fields, kept as it was read and decoded only for who asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Event:
    """Something that happened at one moment of a span; ``time`` in Unix ns."""

    time: int
    name: str
    attributes: dict[str, Any]


class Form(Protocol):
    """How raw bytes of one span are written; what cannot be decoded is left out, never an error."""

    @property
    def name(self) -> str:
        """Stable: copies on disk name it."""

    def attributes(self, raw: bytes) -> dict[str, Any]:
        """Return the attributes: str, int, float, bool, bytes, None, or lists and dicts of these."""

    def events(self, raw: bytes) -> Sequence[Event]:
        """Return the events, in the order given."""


@dataclass(frozen=True)
class RawColumn:
    """Raw bytes of ``len(offsets) - 1`` spans, one after the other, all of one form."""

    form: Form
    data: bytes
    offsets: IntArray
    """Where each begins in ``data``, and where the last ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, ix: int) -> bytes:
        return self.data[int(self.offsets[ix]) : int(self.offsets[ix + 1])]
