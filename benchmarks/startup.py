# SPDX-License-Identifier: Apache-2.0
"""What is added to the start of a Python without an ML framework: the SDK's own part, and ours."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.interleaved import compare
from benchmarks.tables import Table, duration, ratio, spread_duration
from benchmarks.ways import EVERYTHING, PLAIN, command, environment

_WITHOUT = "under opentelemetry-instrument, ours disabled"
_WITH = "under opentelemetry-instrument, ours too"
_DISABLED = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "grademl_torch,grademl_gpu"}


def measure(folder: Path, rounds: int) -> Table:
    """Return how long an empty program takes from its start to its end."""

    def way(name: str, settings: Mapping[str, str]) -> list[float]:
        environ = {**environment(folder, name), **settings}
        start = time.perf_counter_ns()
        subprocess.run([*command(name, "-c", "pass")], env=environ, cwd=folder, check=True)
        return [float(time.perf_counter_ns() - start)]

    folder.mkdir(parents=True, exist_ok=True)
    # Nothing is exported in either: an exporter's import would be counted as the SDK's.
    none = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    results = compare(
        {
            PLAIN: lambda: way(PLAIN, {}),
            _WITHOUT: lambda: way(EVERYTHING, none | _DISABLED),
            _WITH: lambda: way(EVERYTHING, none),
        },
        rounds,
    )
    without = results[_WITHOUT]
    rows = [
        [
            name,
            duration(each.typical_ns),
            ratio(each.ratio_to(without)),
            spread_duration(each.added_to(without)) if each is not without else "",
        ]
        for name, each in results.items()
    ]
    return Table(
        f"(d) Start and end of `{Path(sys.executable).name} -c pass`",
        ("", "takes", "ratio to the SDK alone", "added to it"),
        rows,
    )
