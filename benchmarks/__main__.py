# SPDX-License-Identifier: Apache-2.0
"""Measure what recording and reading cost, and how near the truth answers are.

It is printed as Markdown, and written into docs/costs.md and docs/attribution.md.

python -m benchmarks
python -m benchmarks --quick --only steps --only startup
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from benchmarks import (
    attributing,
    attribution,
    conversion,
    detectors,
    graph,
    injected,
    longrun,
    micro,
    querying,
    sampling,
    sources,
    startup,
    tables,
)
from benchmarks.interleaved import compare
from benchmarks.tables import Table, duration, ratio, size
from benchmarks.ways import AGAIN, EVERYTHING, PLAIN, PROFILER, RECORDED, SDK, Worker, workers

_TARGETS_MS = (0.5, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class Extent:
    """How much is run."""

    rounds: int
    seconds_per_way: float
    """Of training, for each length of a step."""
    long_run: int
    """Steps."""
    model_batches: int
    traces: int
    """Of a thousand spans each, that are read."""
    plot: Path | None
    """Where the growth up to three million spans is drawn; None: it is not measured."""
    paths: Path | None
    """The same of critical paths."""
    turns: int
    """Of sampling."""
    turn_s: float
    hta: str | None = None
    """A Python that has Holistic Trace Analysis."""
    collector: Path | None = None
    """A Collector that has hostmetrics."""


FULL = Extent(
    rounds=16,
    seconds_per_way=6.0,
    long_run=100_000,
    model_batches=20,
    traces=1_000,
    plot=sources.PLOT,
    paths=graph.PLOT,
    turns=4,
    turn_s=15.0,
)
QUICK = Extent(
    rounds=4,
    seconds_per_way=0.5,
    long_run=5_000,
    model_batches=2,
    traces=20,
    plot=None,
    paths=None,
    turns=1,
    turn_s=4.0,
)


def steps(folder: Path, extent: Extent) -> Iterator[Table]:
    """(b): steps of several lengths, in all ways."""
    base, each = _calibrated(folder / "calibration")
    for target in _TARGETS_MS:
        place = folder / f"{target}"
        repeats = max(1, round((target * 1e6 - base) / each))
        number = max(1, round(extent.seconds_per_way * 1000 / target / extent.rounds))
        names = (PLAIN, AGAIN, RECORDED, EVERYTHING, SDK, PROFILER)
        with workers(names, ("benchmarks.training", str(repeats), str(number)), place) as made:
            results = compare({name: worker.block for name, worker in made.items()}, extent.rounds)
        yield tables.of_steps(
            f"(b) Training steps of about {target:g} ms",
            results,
            PLAIN,
            f"{extent.rounds} blocks of {number} steps of each way. A tail without steps has no figure.",
        )


def _calibrated(folder: Path) -> tuple[float, float]:
    """ns of a step without its multiplications, and of one of them in each layer."""

    def took(repeats: int) -> float:
        worker = Worker(PLAIN, ("benchmarks.training", str(repeats), "20"), folder / f"{repeats}")
        try:
            return min(sum(block) / len(block) for block in (worker.block() for _ in range(3)))
        finally:
            worker.end()

    few, many = took(1), took(33)
    each = max((many - few) / 32, 1.0)
    return few - each, each


def whole_models(folder: Path, extent: Extent) -> Iterator[Table]:
    """(c): training of a CNN and inference of a ResNet-50, with their peak memory."""
    names = (PLAIN, AGAIN, RECORDED, EVERYTHING, PROFILER)
    for model, title, batches in (
        ("cnn", "CNN on images of MNIST's shape, training", extent.model_batches),
        ("resnet50", "ResNet-50, inference", max(1, extent.model_batches // 4)),
    ):
        rounds = max(4, extent.rounds // 2)
        with workers(names, ("benchmarks.models", model, str(batches)), folder / model) as made:
            results = compare({name: worker.block for name, worker in made.items()}, rounds)
            peaks = {name: float(worker.answer["peak"]) for name, worker in made.items()}
        plain = results[PLAIN]
        rows = [
            [
                name,
                duration(way.typical_ns / batches),
                ratio(way.ratio_to(plain)),
                size(peaks[name]),
                f"{peaks[name] / peaks[PLAIN]:.3f}",
            ]
            for name, way in results.items()
        ]
        yield Table(
            f"(c) {title}",
            ("", "batch", f"ratio to {PLAIN}", "peak memory", f"ratio to {PLAIN}"),
            rows,
            f"Blocks of {batches} batches; torch.profiler around each block, its start and stop counted.",
        )


def ddp(folder: Path, extent: Extent) -> Iterator[Table]:
    """(g): two ranks with eight buckets."""
    number = max(2, round(extent.seconds_per_way * 20 / extent.rounds))
    names = (PLAIN, AGAIN, RECORDED, EVERYTHING)
    with workers(names, ("benchmarks.training", "1", str(number)), folder, ranks=2) as made:
        results = compare({name: worker.block for name, worker in made.items()}, extent.rounds)
    yield tables.of_steps(
        "(g) DistributedDataParallel: 2 ranks on gloo, 8 buckets of 1 MB",
        results,
        PLAIN,
        f"Steps of rank 0; {extent.rounds} blocks of {number} steps of each way.",
    )


PARTS: dict[str, Callable[[Path, Extent], Iterator[Table]]] = {
    "micro": lambda folder, extent: iter([micro.measure(2 * extent.rounds)]),
    "steps": steps,
    "models": whole_models,
    "startup": lambda folder, extent: iter([startup.measure(folder, extent.rounds)]),
    "relay": lambda folder, extent: iter([conversion.measure(extent.rounds)]),
    "memory": lambda folder, extent: iter(longrun.measure(folder, extent.long_run)),
    "ddp": ddp,
    "read": lambda folder, extent: sources.read(
        folder, extent.traces, max(1, extent.rounds // 5), extent.plot
    ),
    "pull": lambda folder, extent: sources.pull(folder, max(20, extent.traces * 3 // 10)),
    "query": lambda folder, extent: querying.measure(folder, extent.traces, max(1, extent.rounds // 3)),
    "graph": lambda folder, extent: graph.measure(
        folder, 1_000 * extent.traces, max(1, extent.rounds // 5), extent.paths, extent.hta
    ),
    "sampling": lambda folder, extent: chain(
        sampling.measure(folder / "host", extent.turns, extent.turn_s, extent.collector),
        [detectors.measure(folder / "facts", 2 * extent.rounds)],
    ),
    "attributing": lambda folder, extent: attributing.measure(
        folder, extent.traces / FULL.traces, max(1, extent.rounds // 5)
    ),
    "attribution": lambda folder, extent: attribution.measure(
        folder, max(1, extent.turns - 1), 3 * extent.turn_s
    ),
}
PARTS["injected"] = lambda folder, extent: injected.measure(
    folder, *((25, 5) if extent.turns > QUICK.turns else (1, 1))
)
_PLACES = {
    "read": tables.READING,
    "pull": tables.READING,
    "graph": tables.GRAPH,
    "query": tables.QUERY,
    "sampling": tables.SAMPLING,
    "attributing": tables.ATTRIBUTING,
    "attribution": tables.TRUTH,
    "injected": tables.INJECTED,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it: to see that it runs")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be repeated")
    parser.add_argument("--no-write", action="store_true", help="leave the pages in docs/ as they are")
    parser.add_argument(
        "--hta", help="a Python that has HolisticTraceAnalysis, to measure beside ours (graph)"
    )
    parser.add_argument(
        "--collector", type=Path, help="a Collector that has hostmetrics, to measure beside ours (sampling)"
    )
    arguments = parser.parse_args()
    extent = replace(QUICK if arguments.quick else FULL, hta=arguments.hta, collector=arguments.collector)
    places = {arguments.hta: "PYTHON", str(arguments.collector): "OTELCOL"}
    told = [places.get(each, each) for each in sys.argv[1:]]  # no place of this machine
    heading = tables.heading(" ".join(["python -m benchmarks", *told]))
    results: dict[tuple[str, str], list[str]] = {}
    print(heading, flush=True)
    began = time.monotonic()
    # Relays of its runs still work in the folder for some seconds.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name in arguments.only or PARTS:
            if arguments.no_write and extent.plot is not None:
                extent = replace(
                    extent,
                    plot=Path(folder) / sources.PLOT.name,
                    paths=Path(folder) / graph.PLOT.name,
                )
            for table in PARTS[name](Path(folder) / name, extent):
                place = _PLACES.get(name, (tables.BEGIN, tables.END))
                results.setdefault(place, [heading]).append(table.to_markdown())
                print(results[place][-1], flush=True)
            print(f"<!-- {name} done after {time.monotonic() - began:.0f} s -->\n", flush=True)
    if not arguments.no_write:
        for place, texts in results.items():
            tables.write("\n".join(texts), tables.page_of(place), place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
