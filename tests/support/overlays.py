# SPDX-License-Identifier: Apache-2.0
"""Packages that a test wants in front of the environment's own, for one child process: other versions, or
other people's instrumentations, which would join in every traced test if they were simply installed.

An overlay is a folder for `PYTHONPATH`, filled by pip once and kept in the cache of the tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

from .needed import cannot_be_had

_TIMEOUT_S = 300


def overlay(*requirements: str, dependencies: bool = True) -> str:
    """Return a folder with ``requirements`` installed; skip the test, or fail it on CI, when pip cannot."""
    folder, reason = _filled(requirements, dependencies)
    if reason:
        cannot_be_had(f"pip cannot install {' '.join(requirements)}: {reason}")
    return str(folder)


def neighbours(*names: str) -> str:
    """An overlay with ``opentelemetry-<name>`` for each of ``names``, of the environment's own release."""
    release = version("opentelemetry-instrumentation")
    first = f"{release.partition('b')[0]}b0"  # not each is released anew with the others
    return overlay(*(f"opentelemetry-{name}>={first},<={release}" for name in names), dependencies=False)


@cache
def _filled(requirements: tuple[str, ...], dependencies: bool) -> tuple[Path, str]:
    key = "\n".join((sys.version, str(dependencies), *requirements))
    folder = _cache() / "overlays" / hashlib.sha256(key.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder, ""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    options = [] if dependencies else ["--no-deps"]
    try:
        done = subprocess.run(
            [*command, *options, "--target", str(fresh), *requirements],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if done.returncode == 0:
            fresh.rename(folder)
            return folder, ""
        return folder, (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return folder, "" if folder.is_dir() else str(error)  # another session may have been faster
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _cache() -> Path:
    own = os.environ.get("GRADEML_TEST_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "grademl-otel"
