# SPDX-License-Identifier: Apache-2.0
r"""Patterns of the path language as regular expressions over whole paths, for ``path_matches`` in SQL.

The language is that of `execution.patterns`, from the root down; a path is what the column ``path`` of phases
holds. A pattern that goes up (``..``) selects by what else is in the tree, which a path alone does not tell.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from grademl_otel.analyzers.execution.patterns import DEEP, HERE, UP, Component, InvalidPattern, Pattern

_LEVEL: Final = r"/(?:\\.|[^\\/])+"
"""A level of a path: no name holds a ``/`` that is not escaped."""
_ROOT: Final = "/"


@lru_cache(maxsize=256)
def path_regex(pattern: str) -> str:
    """Return what matches the whole of a path exactly if ``pattern`` selects it. Raises InvalidPattern."""
    compiled = Pattern(pattern)
    levels, last = "", len(compiled.steps) - 1
    for at, step in enumerate(compiled.steps):
        if isinstance(step, Component):
            levels += f"/{step.regex}"
        elif step == DEEP:
            levels += f"(?:{_LEVEL}){'+' if at == last else '*'}"
        elif step == UP:
            raise InvalidPattern(f"{pattern!r}: '..' needs the tree; in SQL a path is matched downwards")
    if not levels:
        return _ROOT
    # The root, whose path is a mere slash, is selected by what need not go down.
    stays = all(step in (HERE, DEEP) for step in compiled.steps) and compiled.steps[-1] == HERE
    return f"(?s:{levels}|{_ROOT})" if stays else f"(?s:{levels})"
