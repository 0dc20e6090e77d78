# SPDX-License-Identifier: Apache-2.0
"""Paths of phases for people: without what all of them begin with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from grademl_otel.analyzers.execution.model import SELF_NAME

_LEVEL: Final = re.compile(r"/((?:\\.|[^\\/])*)")
"""Of a path; a special character within a name stands behind a backslash."""


def levels(path: str) -> list[str]:
    """Return the identifiers that ``path`` consists of; of what is no path itself alone."""
    return _LEVEL.findall(path) if path.startswith("/") else [path]


def shortened(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return (what all ``paths`` begin with, what is left of each): of each one level at least."""
    split = [levels(path) for path in paths]
    common = 0
    # Self time is that of something: it does not stand alone.
    least = min((len(each) - 1 - (each[-1:] == [SELF_NAME]) for each in split), default=0)
    while common < least and len({each[common] for each in split}) == 1:
        common += 1
    begin = "".join(f"/{level}" for level in split[0][:common]) if split else ""
    return begin, ["/".join(each[common:]) or "/" for each in split]


def phase_name(path: str) -> str:
    """Return the name of the phase whose path this is, of self time that of what it is the time of."""
    names = [level.partition("[")[0] for level in levels(path)]
    while len(names) > 1 and names[-1] == SELF_NAME:
        names.pop()
    return names[-1]
