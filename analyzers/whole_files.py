# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there: written under another name beside their place, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from grademl_otel.analyzers.errors import UsageError


def write_whole(path: Path, put: Callable[[IO[bytes]], object]) -> int:
    """Let ``put`` write into what becomes ``path``; return how many bytes that is, 0 for a pipe or device.

    Raises UsageError where it cannot be written; whatever ``put`` raises leaves no file, or the one before.
    """
    try:
        if path.exists() and not path.is_file():  # /dev/null, a named pipe: nothing to rename over
            if path.is_dir():
                raise IsADirectoryError(21, "is a directory")
            with path.open("wb") as file:
                put(file)
            return 0
        target = path.resolve()  # through a link to the file that it names
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(descriptor, "wb") as file:
                put(file)
            size = os.stat(name).st_size
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
        return size
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
