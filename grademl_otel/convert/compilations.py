# SPDX-License-Identifier: Apache-2.0
"""What a mark says of a compilation, as attributes of its span."""

from __future__ import annotations

from typing import Final

from grademl_otel import marks, semconv
from grademl_otel.convert.spans import Attributes
from grademl_otel.ring.reader import Mark

_TRIGGERS: Final = {
    marks.COMPILE_FRAME: "frame",
    marks.COMPILE_BACKWARD: "backward",
    marks.COMPILE_CUDA_GRAPH: "cuda_graph",
}
_ERROR_TYPE: Final = "error.type"


def describe_compilation(mark: Mark, detail: str, reason: str, attributes: Attributes) -> str | None:
    """Put what ``mark`` says, with the texts of its ``z`` and ``x``, into ``attributes``; return its error.

    None if it had none.
    """
    frame, version, trigger = marks.unpack_compilation(mark[6])
    function, _, error = detail.partition(":")
    attributes[semconv.COMPILE_TRIGGER] = _TRIGGERS.get(trigger, "frame")
    if function:
        attributes[semconv.COMPILE_FUNCTION] = function
    if frame >= 0 and version >= 0:
        attributes[semconv.COMPILE_ID] = f"{frame}/{version}"
        attributes[semconv.COMPILE_AGAIN] = version > 0 and trigger == marks.COMPILE_FRAME
    if reason:
        attributes[semconv.COMPILE_REASON] = reason
    if not error:
        return None
    attributes[_ERROR_TYPE] = error
    return error
