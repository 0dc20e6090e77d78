# SPDX-License-Identifier: Apache-2.0
"""How phases of one type repeat within one parent: the four ways of Grade10.

What the parent says in `grademl.repeats` counts; else the times of its children and what is known, not
inferred, of their dependencies. Only instances that run concurrently can exchange work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from grademl_otel.analyzers.execution.dependencies import Dependencies
from grademl_otel.analyzers.execution.model import INFERRED, SELF, Phases, Types

ONCE: Final = "once"
"""No parent has two."""
SEQUENTIAL: Final = "sequential"
"""One after another."""
CONCURRENT: Final = "concurrent"
"""Side by side, nothing between them: they are interchangeable."""
DAG: Final = "dag"
"""Side by side, some after others, as is known of them."""
REPEATS: Final = (ONCE, SEQUENTIAL, CONCURRENT, DAG)


def repeatability(
    phases: Phases, types: Types, told: Dependencies, said: Mapping[int, str] | None = None
) -> list[str]:
    """Return for each type one of `REPEATS`.

    ``told`` are dependencies that are not inferred. ``said`` is what types of parents say of the types below
    them that repeat.
    """
    # Self time and sums over several have no place of their own.
    at = np.flatnonzero((phases.flags & (SELF | INFERRED)) == 0)
    at = at[np.lexsort((phases.type[at], phases.parent[at]))]  # stable: by start
    again = (np.diff(phases.parent[at]) == 0) & (np.diff(phases.type[at]) == 0)
    beside = again & (phases.start[at][1:] < phases.end[at][:-1])
    repeats, overlaps = np.zeros(len(types), np.bool_), np.zeros(len(types), np.bool_)
    repeats[phases.type[at[1:][again]]] = True
    overlaps[phases.type[at[1:][beside]]] = True
    of_one = phases.type[told.source] == phases.type[told.target]
    depends = np.zeros(len(types), np.bool_)
    depends[phases.type[told.target[of_one]]] = True
    found = []
    for node in range(len(types)):
        spoken = (said or {}).get(int(types.parent[node]))
        if not repeats[node]:
            found.append(ONCE)
        elif spoken is not None:
            found.append(spoken)
        elif not overlaps[node]:
            found.append(SEQUENTIAL)
        else:
            found.append(DAG if depends[node] else CONCURRENT)
    return found
