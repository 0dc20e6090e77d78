# SPDX-License-Identifier: Apache-2.0
"""A simulated run with monitors beside it: resource tables on its windows, metrics as OTLP, all by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import Subject, read_subject

from .synthetic import S, Simulated, Training, simulate
from .telemetry import attributes

BEGIN: Final = 1_796_000_000 * S
"""When the runs here start: a whole second."""
NODE: Final = "node-0"
"""What their first host is called."""
BOOT: Final = "5f0c7a52-0000-4000-8000-000000000001"
SLOW: Final = Training(
    start=BEGIN,
    epochs=1,
    steps_per_epoch=10,
    eval_batches=0,
    workers=0,
    fetch_ns=1 * S,
    startup_ns=0,
)
"""Ten steps of a second."""

Told = tuple[str, str, str, Sequence[int], int | None]
"""Kind and column of a resource table, device, numbers, capacity."""


def with_table(
    sim: Simulated, rows: Sequence[Told], at: int = 0, bin_ms: int = 1000, rank: int = 0, which: int = 0
) -> None:
    """Put a table that starts ``at`` s after the run on a window span of ``rank``."""
    windows = [span for owner, span in sim.spans if owner == rank and span["name"] == sc.WINDOW]
    span = windows[which]
    said: dict[str, Any] = {
        sc.RESOURCES_VERSION: 1,
        sc.RESOURCES_START: (BEGIN + at * S - int(span["startTimeUnixNano"])) // 1000,
        sc.RESOURCES_BIN: bin_ms,
        sc.RESOURCES_BINS: len(rows[0][3]),
    }
    for kind in {row[0] for row in rows}:
        devices = list(dict.fromkeys(row[2] for row in rows if row[0] == kind))
        said[f"{sc.RESOURCES_PREFIX}{kind}.id"] = devices
        for column in {row[1] for row in rows if row[0] == kind}:
            mine = {row[2]: row for row in rows if row[:2] == (kind, column)}
            numbers = [number for device in devices for number in mine[device][3]]
            said[f"{sc.RESOURCES_PREFIX}{kind}.{column}"] = numbers
            most = [mine[device][4] for device in devices]
            if any(one is not None for one in most):
                said[f"{sc.RESOURCES_PREFIX}{kind}.{column}.capacity"] = [
                    -1 if one is None else one for one in most
                ]
    span["attributes"] += attributes(said)


def series(
    name: str,
    unit: str,
    kind: str,
    values: Mapping[float, float],
    since: float | None = 0,
    begin: int = BEGIN,
    **of: Any,
) -> dict[str, Any]:
    """Return a metric: seconds after the run's start -> value. ``kind``: gauge, updown or counter.

    ``since``: when a counter began. Underscores in names of attributes that hold two are dots.
    """
    points = [
        {
            "timeUnixNano": str(begin + round(at * S)),
            "asDouble": number if number == number else "NaN",
            "attributes": attributes({key.replace("__", "."): one for key, one in of.items()}),
            **({"startTimeUnixNano": str(begin + round(since * S))} if since is not None else {}),
        }
        for at, number in values.items()
    ]
    if kind == "gauge":
        return {"name": name, "unit": unit, "gauge": {"dataPoints": points}}
    data = {"dataPoints": points, "aggregationTemporality": 2, "isMonotonic": kind == "counter"}
    return {"name": name, "unit": unit, "sum": data}


def export(*metrics: dict[str, Any], host: str | None = NODE, **resource: Any) -> bytes:
    """Return a line of OTLP/JSON with the metrics of a host."""
    said = {"host.name": host, **{key.replace("__", "."): one for key, one in resource.items()}}
    group = {"resource": {"attributes": attributes(said)}, "scopeMetrics": [{"metrics": list(metrics)}]}
    return json.dumps({"resourceMetrics": [group]}).encode() + b"\n"


def subject(folder: Path, sim: Simulated | None = None, *exports: bytes, **options: Any) -> Subject:
    """Return the subject of a run with these metrics beside it."""
    path = (sim or simulate(SLOW)).write_store(folder)
    if exports:
        (path.parent / "metrics.jsonl").write_bytes(b"".join(exports))
    return read(folder, **options)


def read(folder: Path, **options: Any) -> Subject:
    """Return the subject of the run in a folder."""
    return read_subject(Query.of(str(folder), **options))


__all__ = [
    "BEGIN",
    "BOOT",
    "NODE",
    "SLOW",
    "S",
    "export",
    "read",
    "series",
    "simulate",
    "subject",
    "with_table",
]
