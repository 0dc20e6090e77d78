# SPDX-License-Identifier: Apache-2.0
"""How to look at a run of the file store in Jaeger: push sends it there, and looks whether it arrived."""

from __future__ import annotations

import shlex
from pathlib import Path

from grademl_otel.analyzers.reporting.document import SourceInfo

_TRACES = "traces.jsonl"


def to_jaeger(source: SourceInfo) -> str | None:
    """Return a shell command that sends the run to a local Jaeger; None when it is not in a file store."""
    file = _file_of(source)
    if file is None:
        return None
    return f"grademl push {shlex.quote(str(file))} --to http://localhost:4318"


def _file_of(source: SourceInfo) -> Path | None:
    """Return the file of the run: the one that was named, or the one in its folder of the store."""
    path = Path(source.uri)
    try:
        if source.run is None:
            return None
        if path.is_file():
            return path if path.suffix == ".jsonl" else None
        if (path / _TRACES).is_file():
            return path / _TRACES
        found = sorted(path.glob(f"*-{source.run}*/{_TRACES}")) if path.is_dir() else []
    except OSError:
        return None
    return found[-1] if found else None
