# SPDX-License-Identifier: Apache-2.0
"""What a mark says of a checkpoint, as attributes of its span."""

from __future__ import annotations

from typing import Final

from grademl_otel import semconv
from grademl_otel.convert.spans import Attributes
from grademl_otel.ring.reader import Mark

CHECKPOINTS: Final = frozenset({semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD})
"""Phases that are checkpoints."""
_ERROR_TYPE: Final = "error.type"


def describe_checkpoint(mark: Mark, detail: str, attributes: Attributes) -> str | None:
    """Put what ``mark`` says, with its ``detail``, into ``attributes``; return its error, None if none."""
    number, size = mark[5], mark[6]
    form, _, error = detail.partition(":")
    if form:
        attributes[semconv.CHECKPOINT_FORMAT] = form
    if number >= 0:
        attributes[semconv.CHECKPOINT_PART] = "blocking"
        attributes[semconv.CHECKPOINT_NUMBER] = number
    if size > 0:
        attributes[semconv.BYTES] = size
    if not error:
        return None
    attributes[_ERROR_TYPE] = error
    return error
