# SPDX-License-Identifier: Apache-2.0
"""What standard output is: how wide, and whether colours are wanted on it.

By the conventions of no-color.org and bixense.com/clicolors: ``NO_COLOR`` forbids, then ``FORCE_COLOR`` or
``CLICOLOR_FORCE`` ask for, then ``CLICOLOR=0`` and ``TERM=dumb`` forbid, then a terminal has colours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, TextIO

PLAIN_WIDTH: Final = 110
"""Columns when the output is not a terminal."""
MIN_WIDTH: Final = 40
_MAX_WIDTH: Final = 1000


def is_terminal(stream: TextIO) -> bool:
    """Whether ``stream`` is shown to somebody; not if it is closed."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def wants_color(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether colours are to be written to ``stream``."""
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if environ.get("CLICOLOR") == "0" or environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def columns(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many columns ``stream`` has: by ``COLUMNS``, the terminal, or `PLAIN_WIDTH`."""
    given = environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given[:9]) > 0:
        return min(max(MIN_WIDTH, int(given[:9])), _MAX_WIDTH)
    if not is_terminal(stream):
        return PLAIN_WIDTH
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        found = 0
    return min(max(MIN_WIDTH, found or PLAIN_WIDTH), _MAX_WIDTH)
