# SPDX-License-Identifier: Apache-2.0
"""The hot path of a ring's writing end: in C where that was compiled, else in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grademl_otel import marks, semconv
from grademl_otel.ring import layout, plaincore

__all__ = ["COMPILED", "Core", "core_over"]

if TYPE_CHECKING:
    from grademl_otel.ring.plaincore import Core
else:
    try:
        from grademl_otel.ring import _core

        Core = _core.Core if _core.INTERFACE == plaincore.INTERFACE else plaincore.Core
    except ImportError:
        Core = plaincore.Core

COMPILED: Final = Core is not plaincore.Core
"""Whether the hot path is that in C."""
_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in semconv.STEP_DURATION_BOUNDS_S)


def core_over(memory: object, geometry: layout.Geometry, kind: type[Core] = Core) -> Core:
    """Return what writes into ``memory``, which is laid out as a ring of this geometry."""
    return kind(
        memory, geometry.first_slot, geometry.slots, layout.ACCUMULATORS, marks.ACC_SLOTS, marks.MAX_PHASES,
        layout.OPEN_PHASES, _BOUNDS_NS,
    )  # fmt: skip
