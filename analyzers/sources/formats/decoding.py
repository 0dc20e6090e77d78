# SPDX-License-Identifier: Apache-2.0
"""What all readers share: the faults of a document, and the collector switched off while one is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


class Unreadable(Exception):
    """A document is not what its reader reads; the text says why, in a few words."""


class NotJson(Unreadable):
    """It is no JSON at all, or not one whole document."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Switch the cyclic collector off while parsing: it otherwise takes most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
