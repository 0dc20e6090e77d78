# SPDX-License-Identifier: Apache-2.0
"""What the user probably meant by a SOURCE that is not there: a command, or a file with a similar name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.errors import SourceError, UsageError

COMMANDS: Final = (
    "report", "runs", "critical-path", "path", "ranks", "resources", "diff", "check", "query", "export",
    "pull", "push", "doctor", "completion", "help",
)  # fmt: skip
_ALSO: Final = {
    "list": "runs", "ls": "runs", "show": "report", "sql": "query", "compare": "diff", "stragglers": "ranks",
    "metrics": "resources", "bottlenecks": "resources", "attribution": "resources",
    "perfetto": "export --to perfetto", "flamegraph": "export --to folded",
}  # fmt: skip
"""What other tools call it."""
_HOST_AND_PORT: Final = re.compile(r"[^/:]+:\d{1,5}/?")
_NOT_A_PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|.*[*?\[]")


def explain_source(source: str | None) -> None:
    """Raise, when ``source`` is a path to nothing, with the nearest command or file; return otherwise."""
    if source is None or source in ("", "-") or _NOT_A_PATH.match(source) or not _is_absent(source):
        return
    if source in COMMANDS:
        raise UsageError(f"the command comes first: grademl {source} [SOURCE] [options]")
    if "/" not in source and (meant := _ALSO.get(source) or near(source, COMMANDS)):
        raise UsageError(f"{source}: neither a command nor a file; did you mean `grademl {meant}`?")
    if _HOST_AND_PORT.fullmatch(source):
        raise SourceError(f"{source}: no such file; a server is written jaeger://{source}, tempo://{source}")
    of, mark, run = source.rpartition("#")
    if mark and of and run and not _is_absent(of):  # which `grademl diff` takes, and no other command
        raise SourceError(f"{source}: no such file or folder; one run of it is written {of} --run {run}")
    folder, name = Path(source).parent, Path(source).name
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        raise SourceError(f"{source}: no such file or folder") from None
    similar = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {folder / similar[0]}?" if similar else ""
    raise SourceError(f"{source}: no such file or folder{hint}")


def near(word: str, words: Iterable[str]) -> str | None:
    """Return the one of ``words`` that is most like ``word``; None when none is."""
    found = difflib.get_close_matches(word.lower(), list(words), n=1)
    return found[0] if found else None


def or_near(word: str, words: Iterable[str]) -> str:
    """Return a question for the one of ``words`` that is most like ``word``, else a list of all."""
    there = list(words)
    if meant := near(word, there):
        return f"did you mean {meant}?"
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
