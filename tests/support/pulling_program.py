# SPDX-License-Identifier: Apache-2.0
"""Pulls a simulated run, in as many pieces as told and with a pause before each: `FOLDER PIECES PAUSE_S`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from grademl_otel.analyzers.copy import writer
from grademl_otel.analyzers.copy.pull import origin_of, pull
from grademl_otel.analyzers.sources import Selection
from tests.support.copied import InPieces, run_in_pieces

if __name__ == "__main__":
    folder, parts, pause = sys.argv[1:]
    writer._SPANS_A_FILE = 60  # type: ignore[misc]
    source = InPieces(run_in_pieces(int(parts)), before_piece=lambda key: time.sleep(float(pause)))
    pull(source, Path(folder), origin_of("pieces", "pieces", Selection(), None))
