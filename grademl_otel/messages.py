# SPDX-License-Identifier: Apache-2.0
"""What the user is told while a program runs: one line on stderr for each thing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final


def warn(text: str) -> None:
    """Write one line to stderr, whatever is in ``text``; silent where stderr is closed or broken."""
    try:
        sys.stderr.write(f"grademl: {_one_line(text)}\n")
        sys.stderr.flush()
    except Exception:  # the user's own stderr may raise anything
        pass


def complain(complaints: Iterable[str]) -> None:
    """Show each complaint once in the life of this process and of those that it forks."""
    for complaint in complaints:
        if complaint not in _shown:
            _shown.add(complaint)
            warn(complaint)


_shown: Final[set[str]] = set()


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
