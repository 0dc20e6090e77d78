# SPDX-License-Identifier: Apache-2.0
"""The run of a process from which this one descends, found by its ring.

So a training that another one starts as a command, through a shell or not, can name it, and nothing is put
into the user's environment for that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from grademl_otel.identity import is_run_id
from grademl_otel.marks import RunInfo
from grademl_otel.ring.layout import POINTER_SUFFIX, SUFFIX
from grademl_otel.ring.reader import RingCorrupt, RingReader
from grademl_otel.ring.sealed import Pointer

_MAX_ANCESTORS: Final = 32
_RUN_INFO_START: Final = '{"attempt":'


def run_of_ancestor(folders: Iterable[Path]) -> RunInfo | None:
    """Return the run of the nearest process from which this one descends and whose ring is in ``folders``."""
    pids = list(_ancestors())
    runs: dict[int, RunInfo] = {}
    for folder in folders:
        for path, pid in _rings(folder):
            if pid in pids and pid not in runs:
                info = _run_of(path, pid)
                if info is not None:
                    runs[pid] = info
    return next((runs[pid] for pid in pids if pid in runs), None)


def _ancestors() -> Iterator[int]:
    """Pids of this process' ancestors, the nearest first; only its parent's where there is no /proc."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        if pid <= 1:
            return
        yield pid
        try:
            # After the name, which may hold anything: state, parent.
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _rings(folder: Path) -> Iterator[tuple[Path, int]]:
    """Rings in ``folder`` and the process that each belongs to."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = folder / name
        if name.endswith(POINTER_SUFFIX):
            try:
                yield path, Pointer.read(path).pid
            except OSError:
                continue
        elif name.endswith(SUFFIX):
            pid = _owner(path)
            if pid is not None:
                yield path, pid


def _owner(path: Path) -> int | None:
    try:
        reader = RingReader.open(path)
    except (RingCorrupt, OSError):
        return None
    reader.close()
    return int(reader.pid)


def _run_of(path: Path, pid: int) -> RunInfo | None:
    """Whose ring this is; None when it is at its end, or does not say."""
    try:
        reader = RingReader.open(path)
    except (RingCorrupt, OSError):
        return None
    try:
        if reader.pid != pid or reader.closing:
            return None
        reader.read(0)  # its texts
        for text in reversed(reader.strings):
            if text.startswith(_RUN_INFO_START):
                info = RunInfo.from_json(text)
                return info if is_run_id(info.run_id) else None
        return None
    except (RingCorrupt, OSError, ValueError, TypeError, KeyError):
        return None
    finally:
        reader.close()
