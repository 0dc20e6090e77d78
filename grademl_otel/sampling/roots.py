# SPDX-License-Identifier: Apache-2.0
"""Where the kernel tells of this host: ``/proc`` and ``/sys``, or where a container has those of its host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders that stand for ``/proc`` and ``/sys``."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Roots:
        """Return those of ``GRADEML_PROC`` and ``GRADEML_SYS``, else of the names that the Collector's
        host metrics have for them, ``HOST_PROC`` and ``HOST_SYS``.
        """
        environ = os.environ if environ is None else environ
        proc = environ.get("GRADEML_PROC") or environ.get("HOST_PROC") or "/proc"
        sys = environ.get("GRADEML_SYS") or environ.get("HOST_SYS") or "/sys"
        return cls(Path(proc), Path(sys))
