# SPDX-License-Identifier: Apache-2.0
"""Where an answer goes: to standard output, or into a file that is whole or not there at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from grademl_otel.analyzers.errors import GrademlError, UsageError

Content = str | Callable[[IO[bytes]], None]
"""Text, or what writes bytes into the file that it is given."""


@dataclass(frozen=True)
class Outcome:
    """What a command ends with: an answer, and the error to report after it, if any."""

    content: Content
    path: str | None = None
    """File to write instead of standard output."""
    error: GrademlError | None = None


def deliver(outcome: Outcome) -> None:
    """Print or write the answer, then raise the outcome's error."""
    if outcome.path is None or outcome.path == "-":
        _print(outcome.content)
    else:
        _write(Path(outcome.path), outcome.content)
    if outcome.error is not None:
        raise outcome.error


def _print(content: Content) -> None:
    if isinstance(content, str):
        # A terminal or pipe in another encoding must not turn a report into a traceback.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(_ended(content).encode(encoding, "replace").decode(encoding))
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
    else:
        content(file)


def _write(path: Path, content: Content) -> None:
    try:
        if path.exists() and not path.is_file():  # /dev/null, a named pipe: nothing to rename over
            if path.is_dir():
                raise IsADirectoryError(21, "is a directory")
            with path.open("wb") as file:
                _put(content, file)
            return
        target = path.resolve()  # through a link to the file that it names
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                _put(content, file)
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write {path}: {reason}; choose another file with -o") from None


def _mode(target: Path) -> int:
    """Return the mode of the file to be replaced, or that of a new file under the process's umask."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
