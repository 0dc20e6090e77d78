# SPDX-License-Identifier: Apache-2.0
"""Which files a path, a folder or a glob stands for, and which of them belong together."""

from __future__ import annotations

import glob as globbing
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.errors import NothingFound, SourceError
from grademl_otel.analyzers.sources.base import Selection
from grademl_otel.analyzers.sources.narrow import ambiguous

TRACES: Final = "traces.jsonl"
METRICS: Final = "metrics.jsonl"
STDIN: Final = "-"
_PACKED: Final = ("", ".gz", ".zst")
_PLAIN_SUFFIXES: Final = (".jsonl", ".json", ".ndjson", ".otlp", ".pb", ".binpb", ".proto")
SUFFIXES: Final = tuple(plain + packed for plain in _PLAIN_SUFFIXES for packed in _PACKED)
"""Which files of a folder are read; what is in them is told by their content."""
_RUN_FOLDER: Final = re.compile(r"\d{8}T\d{6}Z-(.+)")
_ROTATED: Final = re.compile(
    r"(?P<stem>.+)-(?P<time>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3})(?:-[a-z]+)?(?P<suffix>\.[^.]+)?(?P<packed>\.gz|\.zst)?"
)
"""What the Collector calls a rotated file; new versions say at the end why it was rotated, as ``-size``."""
_GLOB: Final = re.compile(r"[*?]|\[[^]]+\]")

Series = tuple[Path, ...]
"""A file, the ones that it was before it was rotated, in order of time, before it."""


def groups(where: str, selection: Selection | None) -> list[list[Series]]:
    """Return what to read, what is of one run together; of run folders only those selected.

    A run has several folders when its ranks or attempts started at different times. Without a selection all
    runs are returned, the latest first. Raises SourceError, and NothingFound where no file is meant.
    """
    if where == STDIN:
        return [[(Path(STDIN),)]]
    path = Path(where)
    if _GLOB.search(where) and not os.path.exists(path):
        return [[series] for series in _matching(where)]
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise SourceError(f"{where}: no such file or folder") from None
    except OSError as error:
        raise unreadable(where, error) from None
    if not is_folder:
        return [[_with_rotated(path)]]
    if os.path.exists(path / TRACES):
        return [[_with_rotated(path / TRACES)]]
    folders = run_folders(path)
    loose = _in_folder(path)
    if not folders and not loose:
        raise NothingFound(
            f"{where}: neither a run nor a trace file in this folder (run folders hold {TRACES};"
            f" trace files end in {', '.join(_PLAIN_SUFFIXES)}, perhaps with .gz or .zst)"
        )
    if selection is not None and folders:
        folders, loose = _selected(folders, loose, selection, where)
    by_run: dict[str, list[Series]] = {}
    for folder in folders:
        by_run.setdefault(_run_id(folder) or folder.name, []).append(_with_rotated(folder / TRACES))
    return [*by_run.values(), *([loose] if loose else [])]


def run_folders(path: Path) -> list[Path]:
    """Return the run folders in ``path``, the latest first."""
    found = [entry for entry in _entries(path) if _is_file(entry / TRACES, bool(_run_id(entry)))]
    return sorted(found, key=lambda entry: entry.name, reverse=True)


def metric_files(series: Iterable[Series]) -> list[Series]:
    """Return the files that may hold metrics of what is in ``series``: these, and those beside run traces."""
    files: list[Series] = []
    for one in series:
        beside = one[-1].with_name(METRICS)
        files.append(_with_rotated(beside) if one[-1].name == TRACES and _is_file(beside) else one)
    return list(dict.fromkeys(files))


def may_be_read_again(path: Path) -> bool:
    """Whether a file gives the same once more, as no pipe does; true where nobody can tell."""
    try:
        return str(path) != STDIN and stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True


def _selected(
    folders: list[Path], loose: list[Series], selection: Selection, where: str
) -> tuple[list[Path], list[Series]]:
    """The folder of the run that is asked for; the latest by default; all when names do not tell."""
    if selection.trace_ids or selection.service or selection.start or selection.end:
        return folders, loose
    if selection.run_id is None:
        latest = _run_id(folders[0])
        return [folder for folder in folders if latest and _run_id(folder) == latest] or folders[:1], []
    named = [folder for folder in folders if _run_id(folder).lower().startswith(selection.run_id.lower())]
    if len({_run_id(folder) for folder in named}) > 1:
        raise ambiguous(where, selection.run_id)
    return (named, []) if named else (folders, loose)


def _run_id(folder: Path) -> str:
    match = _RUN_FOLDER.fullmatch(folder.name)
    return match.group(1) if match else ""


def _matching(pattern: str) -> list[Series]:
    """Return the files that a glob means: those that match, and the trace files of folders that match."""
    found = [Path(name) for name in sorted(globbing.glob(pattern, recursive=True))]
    if not found:
        raise NothingFound(f"{pattern}: no file matches")
    if pattern.endswith("**"):  # all below: only what looks like telemetry, as in a folder
        found = [path for path in found if os.path.isdir(path)]
    files: list[Path] = []
    for path in found:
        files += _telemetry(path) if os.path.isdir(path) else [path]
    if not files:
        raise NothingFound(f"{pattern}: only folders without trace files match")
    return _series(dict.fromkeys(files))


def _in_folder(path: Path) -> list[Series]:
    return _series(_telemetry(path))


def _telemetry(path: Path) -> list[Path]:
    return sorted(entry for entry in _entries(path) if entry.name.endswith(SUFFIXES) and _is_file(entry))


def _is_file(path: Path, if_hidden: bool = True) -> bool:
    """Whether there is such a file; ``if_hidden`` where we may not look: who reads it then says why not."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError:
        return if_hidden
    except OSError:
        return False


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError as error:
        raise unreadable(str(path), error) from None


def _with_rotated(path: Path) -> Series:
    """Return ``path`` behind the files that it was before; alone where it is one of those itself."""
    if _ROTATED.fullmatch(path.name) or not _is_file(path):
        return (path,)
    beside = [entry for entry in _entries(path.parent) if _live_name(entry) == path.name]
    return next(series for series in _series([*beside, path]) if path in series)


def _series(paths: Iterable[Path]) -> list[Series]:
    """Put together what belongs together, in the order in which it is first met."""
    together: dict[Path, list[Path]] = {}
    for path in paths:
        together.setdefault(path.with_name(_live_name(path) or path.name), []).append(path)
    return [tuple(sorted(series, key=_age)) for series in together.values()]


def _age(path: Path) -> tuple[bool, str, str]:
    match = _ROTATED.fullmatch(path.name)
    return match is None, match.group("time") if match else "", path.name


def _live_name(path: Path) -> str | None:
    """Return the name that a rotated file had; None for any other file."""
    match = _ROTATED.fullmatch(path.name)
    return match.group("stem") + (match.group("suffix") or "") if match else None


def unreadable(where: str, error: OSError) -> SourceError:
    """Return the error for a file or folder that the system does not let us read."""
    return SourceError(f"{where}: cannot be read: {reason(error)}")


def reason(error: OSError) -> str:
    """Return why, in the system's words."""
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
