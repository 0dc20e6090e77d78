# SPDX-License-Identifier: Apache-2.0
"""Critical paths of traces, runs and profiles: CPU time, memory, growth, beside yardsticks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.interleaved import Spread
from benchmarks.plot import chart
from benchmarks.profiles import write_profile
from benchmarks.tables import Table, duration, ratio, size, today

PLOT: Final = Path(__file__).resolve().parents[1] / "docs" / "paths.svg"
_PEER: Final = Path(__file__).with_name("peer_hta.py")
_SAMPLE: Final = 10_000
"""Spans that are enough for the time of one, where a way takes long."""
_PEER_EVENTS: Final = 100_000
"""What HTA does in a minute."""
_POINTS: Final = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)
_MOST: Final = 1_000_000
"""Events of a profile, a file of 200 MB, or rows of a run, which then take 2 GB."""

_Result = Mapping[str, float]


def measure(folder: Path, spans: int, rounds: int, plot: Path | None, hta: str | None) -> Iterator[Table]:
    """Yield the tables for ``spans`` spans, rows and events; ``hta``: a Python that has HTA."""
    folder.mkdir(parents=True, exist_ok=True)
    yield _trees(spans, rounds)
    yield _shapes(max(1_000, spans // 100), rounds)
    yield _runs(min(spans, _MOST), max(1, rounds // 2))
    yield _profiles(folder, spans, max(1, rounds // 2), hta)
    if plot is not None:
        yield _growth(folder, plot)


def _trees(spans: int, rounds: int) -> Table:
    sample = min(_SAMPLE, spans)
    results = _in_turn(
        {
            "trees": ("trees", spans),
            "sorting": ("sorting", spans),
            "one by one": ("one by one", sample),
            "networkx": ("networkx", sample),
        },
        rounds,
    )
    names = {
        "trees": "all paths and their summary",
        "sorting": "numpy sorts the spans by (parent, end)",
        "one by one": f"the walk from span to span ({sample:,} spans)",
        "networkx": f"networkx: DAG and its longest path ({sample:,} spans)",
    }
    rows = []
    for way, each in results.items():
        number = spans if way in ("trees", "sorting") else sample
        rows.append([names[way], *_cells(each, number), _ratio(results["trees"], spans, each, number)])
    return Table(
        f"(k) {spans:,} spans in traces of 1,000, from columns",
        ("", "CPU time", "a span", "peak memory", "ours a span, as a ratio to it"),
        rows,
        "Random trees, in which half of the calls follow one another. Each in a process of its own; memory "
        "is that of Python, the libraries and the columns, too.",
    )


def _shapes(number: int, rounds: int) -> Table:
    rows = []
    for name, way, count in (
        ("siblings back to back", "siblings", number),
        ("spans, each in the one before", "nested", number),
        ("siblings with time between", "apart", 10 * number),
    ):
        results = _in_turn({way: (way, count), "": (f"{way}, one by one", count)}, rounds)
        cells = [duration(median(one["cpu_s"] for one in each) * 1e9) for each in results.values()]
        rows.append([f"{count:,} {name}", *cells, _ratio(results[way], count, results[""], count)])
    return Table(
        "(k) One trace of a shape that is hard for a recursive walk",
        ("", "CPU time", "by the walk from span to span", "ratio"),
        rows,
    )


def _runs(number: int, rounds: int) -> Table:
    results = _in_turn(
        {"run": ("run", number), "ranks": ("ranks", number), "sorting": ("sorting", number)}, rounds
    )
    names = {
        "run": "1 rank, which waits for two workers",
        "ranks": "8 ranks, with an all-reduce in each step",
        "sorting": "numpy sorts as many spans by (parent, end)",
    }
    rows = [
        [names[way], *_cells(each, number), _ratio(each, number, results["sorting"], number)]
        for way, each in results.items()
    ]
    return Table(
        f"(k) A run of {number:,} rows, from step tables: event graph and path",
        ("", "CPU time", "a row", "peak memory", "ratio to sorting"),
        rows,
    )


def _profiles(folder: Path, events: int, rounds: int, hta: str | None) -> Table:
    large, small = folder / "large.json", folder / "small.json"
    number, fewer = write_profile(large, min(events, _MOST)), min(events, _PEER_EVENTS)
    fewer = write_profile(small, fewer)
    results = _in_turn({"profile": ("profile", large), "reading": ("reading", large)}, rounds)
    rows = [
        ["reading, event graph, path", f"{number:,}", *_cells(results["profile"], number)],
        ["reading alone", f"{number:,}", *_cells(results["reading"], number)],
    ]
    note = "Threads, two streams, collectives, waits for the device; the file is read as it is."
    if hta is None:
        note += " HTA was not measured: `--hta PYTHON` names a Python that has it."
    else:
        ours, peer = [_measured("profile", small)], [_peer(hta, small)]
        rows += [
            ["the same of a smaller one", f"{fewer:,}", *_cells(ours, fewer)],
            ["HTA, of the smaller one", f"{fewer:,}", *_cells(peer, fewer)],
        ]
        note += f" Ours takes {_ratio(ours, fewer, peer, fewer)} of HTA's time."
    for path in (large, small):
        path.unlink()
    return Table(
        "(k) A profile of a GPU, from the file to the path",
        ("", "events", "CPU time", "an event", "peak memory"),
        rows,
        note,
    )


def _growth(folder: Path, plot: Path) -> Table:
    lines: dict[str, list[tuple[float, float]]] = {}
    peaks: dict[str, float] = {}
    path = folder / "profile.json"
    for name, way in (
        ("traces", "trees"),
        ("rows of 1 rank", "run"),
        ("rows of 8 ranks", "ranks"),
        ("profile, read", "profile"),
    ):
        for number in _POINTS:
            if way != "trees" and number > _MOST:
                continue
            many = write_profile(path, number) if way == "profile" else number
            tries = [_measured(way, path if way == "profile" else many) for _ in range(_tries(number))]
            lines.setdefault(name, []).append((many, min(one["cpu_s"] for one in tries)))
            peaks[name] = max(one["peak"] for one in tries)
    path.unlink()
    plot.write_text(chart("Critical paths", "spans, rows, events", "CPU s", lines, today()), "utf-8")
    rows = []
    for name, line in lines.items():
        each = [duration(cpu_s / number * 1e9) for number, cpu_s in line]
        rows.append([name, *each, *[""] * (len(_POINTS) - len(line)), size(peaks[name])])
    return Table(
        f"(k) The same from {_POINTS[0]:,} to {_POINTS[-1]:,}",
        ("CPU time of one", *(f"{number:,}" for number in _POINTS), "peak memory, the largest"),
        rows,
        f"What is done once counts much in the small ones. Drawn in [{plot.name}]({plot.name}).",
    )


def _tries(number: int) -> int:
    return 3 if number <= 100_000 else 1


def _in_turn(ways: Mapping[str, tuple[str, object]], rounds: int) -> dict[str, list[_Result]]:
    """Measure each way once a round, in turning order."""
    results: dict[str, list[_Result]] = {name: [] for name in ways}
    order = list(ways)
    for number in range(rounds):
        turn = number % len(order)
        for name in order[turn:] + order[:turn]:
            results[name].append(_measured(*ways[name]))
    return results


def _measured(way: str, of: object) -> _Result:
    return _answered([sys.executable, "-m", "benchmarks.walking", way, str(of)])


def _peer(python: str, path: Path) -> _Result:
    return _answered([python, str(_PEER), str(path)])


def _answered(command: list[str]) -> _Result:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "GRADEML_"))}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    result: _Result = json.loads(done.stdout.splitlines()[-1])
    return result


def _cells(each: list[_Result], number: int) -> list[str]:
    cpu_s = median(one["cpu_s"] for one in each)
    return [duration(cpu_s * 1e9), duration(cpu_s / number * 1e9), size(max(one["peak"] for one in each))]


def _ratio(ours: list[_Result], number: int, theirs: list[_Result], others: int) -> str:
    """Return the ratio of CPU times of one, round by round."""
    pairs = zip(ours, theirs, strict=True)
    return ratio(Spread.of([one["cpu_s"] / number / (other["cpu_s"] / others) for one, other in pairs]))
