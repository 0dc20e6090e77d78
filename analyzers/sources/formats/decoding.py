# SPDX-License-Identifier: Apache-2.0
"""What all readers share: the faults of a document, and the collector switched off while one is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec


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


def decoded_or_none(raw: bytes | str) -> Any:
    """Return what JSON holds; None for what is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def objects_in(raw: bytes) -> list[dict[str, Any]]:
    """Return the objects of an array in JSON; none of what is something else."""
    items = decoded_or_none(raw)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
