# SPDX-License-Identifier: Apache-2.0
"""A run of a few steps, recorded the way a user's program is, into a folder that is removed afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from grademl_otel.analyzers.errors import GrademlError
from grademl_otel.analyzers.examination.here import BAD, OK, Check, instrument_command
from grademl_otel.analyzers.model.run import build_run
from grademl_otel.analyzers.sources import Selection, open_source

_STEPS: Final = 20
_PROGRAM: Final = f"""
import time, grademl_otel
for _ in range({_STEPS}):
    with grademl_otel.step(samples=1), grademl_otel.phase("work"):
        time.sleep(0.002)
"""
_TIMEOUT_S: Final = 60.0
_SETTLES_S: Final = 5.0
_WHAT: Final = "trial"
_ASIDE: Final = ("GRADEML_RUN_ID", "GRADEML_SPOOL_DIR", "GRADEML_RELAY_LOG")


def record(environ: Mapping[str, str]) -> Check:
    """Record a run of a few steps with the settings of ``environ``, into files; return what came of it."""
    command = instrument_command()
    if command is None:
        return Check(_WHAT, BAD, "nothing was recorded: no opentelemetry-instrument", "see above")
    with tempfile.TemporaryDirectory(prefix="grademl-doctor-", ignore_cleanup_errors=True) as folder:
        began = time.monotonic()
        fault = _run([command, sys.executable, "-c", _PROGRAM], _environment(environ, Path(folder)), folder)
        if fault is not None:
            return Check(
                _WHAT, BAD, fault, f"run it yourself: {Path(command).name} python -c 'import grademl_otel'"
            )
        return _judged(Path(folder) / "store", began)


def _environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name not in _ASIDE}
    return {
        **kept,
        "GRADEML_EXPORTER": "file",
        "GRADEML_STORE": str(folder / "store"),
        "GRADEML_SPOOL_DIR": str(folder / "spool"),
    }


def _run(command: list[str], environ: dict[str, str], folder: str) -> str | None:
    """Run ``command``; return why it failed, None when it did not."""
    said = Path(folder) / "stderr"  # no pipe: what the program leaves running would keep it open
    try:
        with said.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
    except OSError as error:
        return f"cannot start {command[0]}: {(error.strerror or str(error)).lower()}"
    try:
        code = process.wait(_TIMEOUT_S)
    except BaseException as error:  # Ctrl-C, too: nothing is left running
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return f"it did not end within {_TIMEOUT_S:g} s"
    if not code:
        return None
    lines = [line for line in said.read_text("utf-8", "replace").splitlines() if line.strip()]
    return f"it ended with {code}: {lines[-1][:200] if lines else 'no message'}"


def _judged(store: Path, began: float) -> Check:
    """Wait until the telemetry is there: the relay writes on when the program has ended."""
    until = time.monotonic() + _SETTLES_S
    found = "nothing was written"
    while True:
        try:
            run = build_run(open_source(str(store)).read(Selection()))
            if run is not None and run.completeness.verdict == "complete" and len(run.steps) == _STEPS:
                took = time.monotonic() - began
                return Check(_WHAT, OK, f"{_STEPS} steps were recorded and read back in {took:.1f} s")
            if run is not None:
                found = "; ".join(run.completeness.reasons) or f"{len(run.steps)} of {_STEPS} steps"
        except GrademlError:
            pass
        if time.monotonic() > until:
            return Check(
                _WHAT,
                BAD,
                f"what was recorded is not whole: {found}",
                "set GRADEML_RELAY_LOG to a file and look",
            )
        time.sleep(0.1)
