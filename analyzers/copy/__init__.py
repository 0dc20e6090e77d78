# SPDX-License-Identifier: Apache-2.0
"""Copies of telemetry: on disk as Parquet, to be resumed and read offline, and on to a collector."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from typing import Final

MANIFEST: Final = "manifest.sqlite"
_PARQUET: Final = ".parquet"


def is_copy(path: str) -> bool:
    """Whether ``path`` is the folder of a copy, or a Parquet file, which can only be one of a copy."""
    # isfile of os.path: what we may not look at is none, and no error here.
    return isfile(Path(path) / MANIFEST) or (path.endswith(_PARQUET) and isfile(path))
