# SPDX-License-Identifier: Apache-2.0
"""A run's folder as a recorder leaves it, with what a host did each second in the tables of its windows.

Eight ranks fetch, compute and meet in an all-reduce; each has a GPU, a port, a network and a disk beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import FloatArray
from tests.support.synthetic import S, Simulated, Training, simulate
from tests.support.telemetry import Span, attributes

_PLACE: Final = "benchmark.table"
"""Attribute of a span in whose place the table is put: millions of numbers are no Python objects."""
_BEGIN: Final = 1_796_000_000 * S
_ROWS_OF_A_SPAN: Final = 64


class _Column(NamedTuple):
    """What is known of one kind of device."""

    kind: str
    name: str
    capacity: int
    """In the unit of the table; of counters per second."""
    computing: float
    """How full it is while ranks compute,"""
    waiting: float
    """and while they wait for data."""


_GPU: Final = (
    _Column("gpu", "utilization", 1000, 0.99, 0.0),
    _Column("gpu", "memory", 141_000_000_000, 0.8, 0.8),
    _Column("gpu", "power", 700_000, 0.9, 0.15),
    _Column("gpu", "sm_clock", 1980, 0.95, 0.2),
    _Column("gpu", "memory_clock", 3200, 1.0, 1.0),
    _Column("gpu", "throttled", 1000, 0.2, 0.0),
    _Column("gpu", "pcie_rx", 64_000_000_000, 0.1, 0.3),
    _Column("gpu", "pcie_tx", 64_000_000_000, 0.1, 0.0),
    _Column("gpu", "nvlink_rx", 450_000_000_000, 0.4, 0.0),
    _Column("gpu", "nvlink_tx", 450_000_000_000, 0.4, 0.0),
)
_EACH: Final = (
    *_GPU,
    _Column("port", "rx", 50_000_000_000, 0.3, 0.0),
    _Column("port", "tx", 50_000_000_000, 0.3, 0.0),
    _Column("network", "rx", 12_500_000_000, 0.05, 0.6),
    _Column("network", "tx", 12_500_000_000, 0.05, 0.0),
    _Column("disk", "read", 7_000_000_000, 0.0, 0.97),
    _Column("disk", "write", 5_000_000_000, 0.05, 0.0),
    _Column("disk", "busy", 1000, 0.1, 0.99),
    _Column("process", "memory", 200_000_000_000, 0.5, 0.5),
    _Column("process", "cpu", 16_000, 0.1, 0.7),
)
"""Of every rank."""
_ONE: Final = (
    _Column("cpu", "busy", 192_000, 0.1, 0.6),
    _Column("cpu", "throttled", 192_000, 0.0, 0.1),
    _Column("memory", "used", 2_000_000_000_000, 0.5, 0.5),
    *(_Column("pressure", name, 1000, 0.0, 0.3) for name in ("cpu", "memory", "io")),
)
"""Of the host."""
_CALLED: Final = {
    "gpu": "GPU-{}",
    "port": "mlx5_{}",
    "network": "eth{}",
    "disk": "nvme{}n1",
    "process": "rank {}",
}


class Written(NamedTuple):
    """What there is in a folder."""

    points: int
    """In its tables."""
    spans: int


def write(folder: Path, steps: int, ranks: int = 8) -> Written:
    """Write a training of ``steps`` of each rank, of 54 s each, into ``folder``."""
    sim = simulate(
        Training(
            start=_BEGIN, ranks=ranks, epochs=1, steps_per_epoch=steps, eval_batches=0, workers=0,
            device="cuda", fetch_ns=4 * S, collate_ns=S, transfer_ns=S // 2, forward_ns=16 * S,
            backward_ns=26 * S, optimizer_ns=2 * S, allreduce_ns=4 * S, explicit=True,
            compute_scale={ranks - 1: 1.02}, rows_per_part=_ROWS_OF_A_SPAN,
        )
    )  # fmt: skip
    waiting = _waiting(sim)
    windows = [span for rank, span in sim.spans if rank == 0 and span["name"] == sc.WINDOW]
    tables: list[Iterator[str]] = []
    points = 0
    for span in windows:
        start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        first, after = (start - _BEGIN) // S, (end - _BEGIN) // S
        span["attributes"] += attributes({_PLACE: len(tables)})
        offset = _BEGIN + first * S - start
        tables.append(_table(waiting[first:after], offset // 1000, ranks, len(tables)))
        points += (after - first) * (len(_EACH) * ranks + len(_ONE))
    for rank, span in sim.spans:
        if span["name"] == sc.RUN:
            span["attributes"] += attributes({sc.GPU_ID: [_CALLED["gpu"].format(rank)]})
    path = folder / sim.folder / "traces.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8") as file:
        rest = sim.otlp_lines().decode()
        for number, table in enumerate(tables):
            before, _, rest = rest.partition(_text(attributes({_PLACE: number})))
            file.write(before)
            for piece in table:
                file.write(piece)
        file.write(rest)
    return Written(points, len(sim.spans))


def _waiting(sim: Simulated) -> FloatArray:
    """Return the part of each second of the run in which rank 0 waited for data."""
    start, end = sim.bounds[0]
    edges = np.arange((end - start) // S + 2) * S
    waits = [one for row in sim.rows_of() for one in row.phases if one.name == sc.DATA_WAIT]
    time = np.array([side - start for one in waits for side in (one.start, one.end)], np.int64)
    lasts = time[1::2] - time[::2]
    done = np.concatenate((np.zeros(1), np.cumsum(lasts))).repeat(2)[1:-1]
    found: FloatArray = np.clip(np.diff(np.interp(edges, time, done)) / S, 0.0, 1.0)
    return found


def _table(waiting: FloatArray, offset_us: int, ranks: int, seed: int) -> Iterator[str]:
    """Yield the attributes of a table of bins of a second, a column at a time, as OTLP/JSON."""
    chance = np.random.default_rng(seed)
    yield _text(
        attributes(
            {
                sc.RESOURCES_VERSION: 1,
                sc.RESOURCES_START: offset_us,
                sc.RESOURCES_BIN: 1000,
                sc.RESOURCES_BINS: len(waiting),
            }
        )
    )
    for columns, number in ((_EACH, ranks), (_ONE, 1)):
        for kind in dict.fromkeys(column.kind for column in columns):
            devices = [_CALLED.get(kind, "").format(each) for each in range(number)]
            yield "," + _text(attributes({f"{sc.RESOURCES_PREFIX}{kind}.id": devices}))
        for column in columns:
            key = f"{sc.RESOURCES_PREFIX}{column.kind}.{column.name}"
            level = column.computing * (1.0 - waiting) + column.waiting * waiting
            level = level * chance.uniform(0.95, 1.03, (number, len(level)))
            values = (column.capacity * np.minimum(level, 1.0)).astype(np.int64).reshape(-1).tolist()
            numbers = '"},{"intValue":"'.join(map(str, values))
            yield f',{{"key":"{key}","value":{{"arrayValue":{{"values":[{{"intValue":"{numbers}"}}]}}}}}}'
            yield "," + _text(attributes({f"{key}.capacity": [column.capacity] * number}))


def _text(values: list[Span]) -> str:
    """Return attributes as they stand in a line, without what is around them."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)[1:-1]
