# SPDX-License-Identifier: Apache-2.0
"""Where an answer goes: to standard output, or into a file that is whole or not there at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from grademl_otel.analyzers.errors import GrademlError, UsageError
from grademl_otel.analyzers.printable import encodable
from grademl_otel.analyzers.whole_files import write_whole

Content = str | Generator[str, None, None] | Callable[[IO[bytes]], object]
"""Text, whole or piece by piece as it comes, or what writes bytes into the file that it is given."""


@dataclass(frozen=True)
class Outcome:
    """What a command ends with: an answer, and the error to report after it, if any."""

    content: Content
    path: str | None = None
    """File to write instead of standard output."""
    error: GrademlError | None = None


def deliver(outcome: Outcome) -> None:
    """Print or write the answer, and close what can be closed of it; then raise the outcome's error."""
    content = outcome.content
    try:
        if outcome.path is None or outcome.path == "-":
            _print(content)
        else:
            write_whole(Path(outcome.path), lambda file: _put(content, file))
    finally:
        if (close := getattr(content, "close", None)) is not None:
            close()
    if outcome.error is not None:
        raise outcome.error


def _print(content: Content) -> None:
    if isinstance(content, str):
        # A terminal or pipe in another encoding must not turn a report into a traceback.
        sys.stdout.write(encodable(_ended(content), sys.stdout.encoding or "utf-8"))
    elif isinstance(content, Generator):
        for piece in content:
            sys.stdout.write(encodable(piece, sys.stdout.encoding or "utf-8"))
    elif sys.stdout.isatty():
        raise UsageError("these are bytes that a terminal cannot show; give a file with -o")
    else:
        content(sys.stdout.buffer)
    sys.stdout.flush()


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"


def _put(content: Content, file: IO[bytes]) -> None:
    if isinstance(content, str):
        file.write(_ended(content).encode())
    elif isinstance(content, Generator):
        for piece in content:
            file.write(piece.encode())
    else:
        content(file)
