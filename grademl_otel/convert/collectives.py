# SPDX-License-Identifier: Apache-2.0
"""What a mark says of a collective, as attributes of its span."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.spans import Attributes
from grademl_otel.ring.reader import Mark

COLLECTIVE: Final = marks.phase_kind(semconv.COLLECTIVE)
"""Kind of the marks of collectives."""


def describe_collective(mark: Mark, text: Callable[[int], str]) -> Attributes:
    """Return what ``mark`` says beside what every phase does; ``text`` gives the text of an id.

    A collective has no key when its group could not be named, as a receive whose sender was never known.
    """
    item, own, operation = mark[5:]
    size, completed, blocking = marks.unpack_collective(own)
    attributes: Attributes = {
        semconv.COLLECTIVE_BLOCKING: blocking,
        semconv.COLLECTIVE_COMPLETED: completed,
        semconv.BYTES: size,
    }
    if name := text(operation):
        attributes[semconv.COLLECTIVE_OP] = name
    if item >= 0:
        group, number = marks.unpack_item(item)
        members, _, count = text(group).partition("/")
        if members and count.isdecimal():
            attributes[semconv.COLLECTIVE_KEY] = f"{members}:{number}"
            attributes[semconv.COLLECTIVE_SIZE] = int(count)
    return attributes
