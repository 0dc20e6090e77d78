# SPDX-License-Identifier: Apache-2.0
"""What the user probably meant by a SOURCE that is not there: a command, or a file with a similar name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.errors import SourceError, UsageError

COMMANDS: Final = ("report", "runs", "critical-path", "path", "ranks", "export", "pull", "push", "doctor")
_HOST_AND_PORT: Final = re.compile(r"[^/:]+:\d{1,5}/?")
_NOT_A_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|.*[*?\[]")


def explain_source(source: str | None) -> None:
    """Raise, when ``source`` is a path to nothing, with the nearest command or file; return otherwise."""
    if source is None or source in ("", "-") or _NOT_A_PATH.match(source) or not _is_absent(source):
        return
    if source in COMMANDS:
        raise UsageError(f"the command comes first: grademl {source} [SOURCE] [options]")
    if "/" not in source and (near := difflib.get_close_matches(source, COMMANDS, n=1)):
        raise UsageError(f"{source}: neither a command nor a file; did you mean `grademl {near[0]}`?")
    if _HOST_AND_PORT.fullmatch(source):
        raise SourceError(f"{source}: no such file; a server is written jaeger://{source}, tempo://{source}")
    folder, name = Path(source).parent, Path(source).name
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        raise SourceError(f"{source}: no such file or folder") from None
    hint = ""
    if near := difflib.get_close_matches(name, names, n=1):
        hint = f"; did you mean {folder / near[0]}?"
    raise SourceError(f"{source}: no such file or folder{hint}")


def or_near(word: str, words: Iterable[str]) -> str:
    """Return a question for the one of ``words`` that is most like ``word``, else a list of all."""
    there = list(words)
    if near := difflib.get_close_matches(word.lower(), there, n=1):
        return f"did you mean {near[0]}?"
    return f"there are {', '.join(there)}" if there else "there is none"


def _is_absent(path: str) -> bool:
    """Whether nothing is there; what we may not look at is for its reader to tell."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
