# SPDX-License-Identifier: Apache-2.0
"""Where an answer goes: to standard output, or into a file that is whole or not there at all."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grademl_otel.analyzers.errors import GrademlError, UsageError


@dataclass(frozen=True)
class Outcome:
    """What a command ends with: an answer, and the error to report after it, if any."""

    text: str
    path: str | None = None
    """File to write instead of standard output."""
    error: GrademlError | None = None


def deliver(outcome: Outcome) -> None:
    """Print or write the answer, then raise the outcome's error."""
    text = outcome.text if outcome.text.endswith("\n") or not outcome.text else outcome.text + "\n"
    if outcome.path is None or outcome.path == "-":
        _print(text)
    else:
        _write(Path(outcome.path), text)
    if outcome.error is not None:
        raise outcome.error


def _print(text: str) -> None:
    # A terminal or pipe in another encoding must not turn a report into a traceback.
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _write(path: Path, text: str) -> None:
    try:
        if path.exists() and not path.is_file():  # /dev/null, a named pipe: nothing to rename over
            if path.is_dir():
                raise IsADirectoryError(21, "is a directory")
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()  # through a link to the file that it names
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
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
