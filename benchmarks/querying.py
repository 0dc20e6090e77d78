# SPDX-License-Identifier: Apache-2.0
"""A grouped query over spans from a copy: in the process by its parts, the whole command, DuckDB by hand.

    python -m benchmarks.querying COPY

answers it in this process and prints one line of JSON: seconds of each part, wall and CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.sources import COPY, environment, written
from benchmarks.tables import Table, duration
from benchmarks.telemetry import SPANS_PER_TRACE

SQL: Final = "SELECT service, name, count(*), median(duration_ns) FROM spans GROUP BY ALL"
_BY_HAND: Final = """import sys, duckdb
duckdb.sql('SELECT resource_ix, name, count(*), median("end" - start) FROM read_parquet(?) GROUP BY ALL',
           params=[sys.argv[1] + "/*.parquet"]).fetchall()"""
_COMMAND: Final = "from grademl_otel.analyzers.cli import main; main()"
_LIBRARIES: Final = "import duckdb, pyarrow.dataset"
PARTS: Final = ("spans into columns", "the three columns as Arrow", "DuckDB on them")


def measure(folder: Path, traces: int, rounds: int) -> Iterator[Table]:
    """Yield the table of a query over ``traces`` of a thousand spans each."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = str(written(folder, COPY, traces))
    whole: dict[str, list[str]] = {
        "`grademl query`, the whole command": ["-c", _COMMAND, "query", copy, "-c", SQL],
        "DuckDB on the same files by hand, the whole process": ["-c", _BY_HAND, copy],
        "Python that imports DuckDB and pyarrow.dataset": ["-c", _LIBRARIES],
    }
    parts: dict[str, list[tuple[float, float]]] = {name: [] for name in PARTS}
    processes: dict[str, list[tuple[float, float]]] = {name: [] for name in whole}
    for _ in range(rounds):
        done = _python(["-m", "benchmarks.querying", copy])
        for name, taken in json.loads(done).items():
            parts[name].append((taken[0], taken[1]))
        for name, arguments in whole.items():
            start, cpu = time.monotonic(), _children_s()
            _python(arguments)
            processes[name].append((time.monotonic() - start, _children_s() - cpu))
    yield Table(
        f"(l) {traces * SPANS_PER_TRACE:,} spans of a copy, grouped by service and name",
        ("", "takes", "CPU time"),
        [
            *([f"in the process: {name}", *_times(taken)] for name, taken in parts.items()),
            ["in the process, together", *_times(_together(parts))],
            *([name, *_times(taken)] for name, taken in processes.items()),
        ],
        f"`{SQL}`; medians of {rounds}. By hand repeats are not dropped, parents not sought, what is missing"
        " not told. pyarrow.dataset imports pandas where that is installed, as here.",
    )


def _times(taken: list[tuple[float, float]]) -> list[str]:
    """Return the medians of (wall, CPU)."""
    return [duration(median(column) * 1e9) for column in zip(*taken, strict=True)]


def _together(parts: Mapping[str, list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the sums of each round."""
    rounds = zip(*parts.values(), strict=True)
    return [(sum(wall for wall, _ in one), sum(cpu for _, cpu in one)) for one in rounds]


def _python(arguments: list[str]) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment()).stdout


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    import duckdb
    import pyarrow.dataset  # noqa: F401  what DuckDB asks Arrow's tables with

    from grademl_otel.analyzers.queries import Query
    from grademl_otel.analyzers.subject import read_subject
    from grademl_otel.analyzers.tables import table

    taken: dict[str, tuple[float, float]] = {}

    def timed(name: str, work: Callable[[], object]) -> object:
        start, cpu = time.monotonic(), time.process_time()
        found = work()
        taken[name] = time.monotonic() - start, time.process_time() - cpu
        return found

    about = timed(PARTS[0], lambda: read_subject(Query.of(sys.argv[1])))
    spans = timed(PARTS[1], lambda: table(about, "spans", ["service", "name", "duration_ns"]))  # type: ignore[arg-type]
    connection = duckdb.connect()
    connection.register("spans", spans)
    timed(PARTS[2], lambda: connection.execute(SQL).fetchall())
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
