# SPDX-License-Identifier: Apache-2.0
"""The bytes of a file, a pipe or standard input, block by block."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.files import paths

_BLOCK: Final = 1 << 18
_PIPE_S: Final = 30


def blocks_of(path: Path, told: Callable[[int], None] = lambda count: None) -> Iterator[bytes]:
    """Yield the bytes of a file as they are. Raises SourceError where it cannot be opened, OSError later."""
    with opened(path) as stream:
        while block := stream.read(_BLOCK):
            told(len(block))
            yield block


def opened(path: Path) -> IO[bytes]:
    """Open a file, or standard input. Raises SourceError."""
    if str(path) == paths.STDIN:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    try:
        if stat.S_ISFIFO(path.stat().st_mode):
            return _pipe(path)
        return path.open("rb", buffering=0)
    except OSError as error:
        raise paths.unreadable(str(path), error) from None


def _pipe(path: Path) -> IO[bytes]:
    """Open a named pipe, which would otherwise wait for ever for somebody who writes to it."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    waiting = select.poll()
    waiting.register(number, select.POLLIN)
    if not waiting.poll(_PIPE_S * 1000):
        os.close(number)
        raise SourceError(f"{path}: a pipe, and nobody has written to it for {_PIPE_S} s")
    os.set_blocking(number, True)
    return open(number, "rb", buffering=0)
