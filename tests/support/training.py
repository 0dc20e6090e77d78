# SPDX-License-Identifier: Apache-2.0
"""Run training scripts and `grademl` as a user does: as commands, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train_cnn.py"
BIN = Path(sys.executable).parent
TIMEOUT_S = 240


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    def ok(self) -> Finished:
        assert self.code == 0, f"exit code {self.code}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return self


def clean_environ(folder: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without the caller's telemetry settings; what we write goes below `folder`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GRADEML_", "PYTHON"))}
    ours = {"GRADEML_STORE": str(folder / "runs"), "GRADEML_SPOOL_DIR": str(folder / "spool")}
    ours["GRADEML_BUDGET"] = "100"  # what is recorded does not depend on how busy the machine is
    # Threads that wait for each other make a small network many times slower where the cores are busy.
    kept["OMP_NUM_THREADS"] = "1"
    return {**kept, **ours, **(settings or {})}


def traced_command(script: Path, *arguments: str) -> list[str]:
    return [str(BIN / "opentelemetry-instrument"), sys.executable, str(script), *arguments]


def train(script: Path, arguments: Sequence[str], folder: Path, settings: Mapping[str, str]) -> Finished:
    """Run `script` under `opentelemetry-instrument` in `folder`."""
    return run(traced_command(script, *arguments), folder, clean_environ(folder, settings))


def train_untraced(
    script: Path, arguments: Sequence[str], folder: Path, settings: Mapping[str, str] | None = None
) -> Finished:
    return run([sys.executable, str(script), *arguments], folder, clean_environ(folder, settings))


def grademl(arguments: Sequence[str], folder: Path, settings: Mapping[str, str] | None = None) -> Finished:
    """Run the command `grademl` in `folder`."""
    return run([str(BIN / "grademl"), *arguments], folder, clean_environ(folder, settings))


def run(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Finished:
    """Run any command in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
