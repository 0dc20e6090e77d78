# SPDX-License-Identifier: Apache-2.0
"""The folder of a copy: whose it is, one writer at a time, no file in it that its manifest does not name."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.copy import MANIFEST
from grademl_otel.analyzers.copy.manifest import Manifest
from grademl_otel.analyzers.errors import UsageError

_LOCK: Final = ".pull.lock"
_FILE: Final = re.compile(r"(?:spans|metrics)-(\d{4,})\.parquet")
_PART: Final = re.compile(r"\.(?:spans|metrics)-\d{4,}\.parquet\.part")
_MANIFEST_FILES: Final = (MANIFEST, f"{MANIFEST}-wal", f"{MANIFEST}-shm", f"{MANIFEST}-journal")


def spans_name(number: int) -> str:
    """Return the name of the spans file with this number."""
    return f"spans-{number:04d}.parquet"


def metrics_name(number: int) -> str:
    """Return the name of the metrics file with this number."""
    return f"metrics-{number:04d}.parquet"


def part_name(name: str) -> str:
    """Return the name of a file while it is written."""
    return f".{name}.part"


def file_number(name: str) -> int:
    """Return the number in the name of a file of ours; 0 for any other name."""
    match = _FILE.fullmatch(name)
    return int(match[1]) if match else 0


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write ``path`` into UsageError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write {path}: {reason}; is there room, and is the folder yours?") from None


def to_disk(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create ``folder`` if it is not there and hold it for one pull; one that stays empty is removed again.

    Raises UsageError when another pull holds it, it cannot be written, or holds files that are none of ours.
    """
    new = not folder.exists()
    if not new and not folder.is_dir():
        raise UsageError(f"{folder}: a file; a copy is a folder, name one with -o")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _check_ours(folder)
        lock = (folder / _LOCK).open("ab")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder}: another `grademl pull` is at work there; wait for it to end"
            ) from None
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:
            if not (folder / MANIFEST).exists():
                _remove_empty(folder, new)
    finally:
        lock.close()


def _remove_empty(folder: Path, new: bool) -> None:
    with suppress(OSError):
        (folder / _LOCK).unlink()
        if new:
            folder.rmdir()


def _check_ours(folder: Path) -> None:
    names = {entry.name for entry in folder.iterdir()}
    strangers = sorted(name for name in names if not _is_ours(name))
    if MANIFEST not in names and strangers:
        raise UsageError(
            f"{folder}: holds {strangers[0]} and is no copy; name an empty folder or a new one with -o"
        )


def _is_ours(name: str) -> bool:
    return name in (_LOCK, *_MANIFEST_FILES) or bool(_FILE.fullmatch(name) or _PART.fullmatch(name))


def remove_copy(folder: Path) -> None:
    """Remove the copy in a locked folder; the manifest first, so that no file is named that is not there."""
    with writing(folder):
        for name in _MANIFEST_FILES:
            (folder / name).unlink(missing_ok=True)
        for entry in folder.iterdir():
            if _FILE.fullmatch(entry.name) or _PART.fullmatch(entry.name):
                entry.unlink()


def tidy(folder: Path, manifest: Manifest) -> None:
    """Make the manifest and the files of a locked folder agree, whatever ended the last pull.

    A file that is missing or cut is forgotten, and what was in it is read again; one that no piece needs any
    more, and one that the manifest does not name, is removed.
    """
    with writing(folder):
        sizes = {entry.name: entry.stat().st_size for entry in folder.iterdir() if not entry.is_dir()}
        manifest.forget_files([file.name for file in manifest.files() if sizes.get(file.name) != file.bytes])
        manifest.forget_files([file.name for file in manifest.files() if not file.parts])
        manifest.forget_metrics(
            [m.file for m in manifest.metrics() if m.file and sizes.get(m.file) != m.bytes]
        )
        named = {*(file.name for file in manifest.files()), *(part.file for part in manifest.metrics())}
        for name in sizes:
            if (_FILE.fullmatch(name) and name not in named) or _PART.fullmatch(name):
                (folder / name).unlink()
