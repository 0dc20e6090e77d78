# SPDX-License-Identifier: Apache-2.0
"""Whether a Collector would take its files, asked of the real one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def validate(
    binary: Path, configs: Sequence[Path], environ: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run ``otelcol validate`` with these files, merged, and settings; its data would be in ``folder``."""
    command = [str(binary), "validate", *(f"--config={path}" for path in configs)]
    settings = {**os.environ, **environ, "GRADEML_COLLECTOR_DATA": str(folder / "data")}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60)
