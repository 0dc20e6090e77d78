# SPDX-License-Identifier: Apache-2.0
"""Who used what, on a day of a job: CPU and wall time and peak memory of attribution, fits and the command.

    python -m benchmarks.attributing WAY SIZE|PATH

does one of these in this process and prints one line of JSON. What is needed first (phases, observations) is
made before the clock starts; the memory of all of it counts.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.sources import environment
from benchmarks.tables import Table, duration, size

if TYPE_CHECKING:
    from grademl_otel.analyzers.attribution.rules import Blocking

Work = Callable[[], int]
"""What is measured; returns how many signatures, issues, weights or bytes came out."""

DAY: Final = 86_400
STEPS: Final = 1_588
"""Of each of 8 ranks: 100,000 phases."""
TYPES: Final = 1_000
INTERVALS: Final = 200_000
_SECOND: Final = 1_000_000_000


def measure(folder: Path, part: float, rounds: int) -> Iterator[Table]:
    """Yield the tables for a ``part`` (above 0, up to 1) of a day, of its steps and of the intervals."""
    from benchmarks import tabled

    folder.mkdir(parents=True, exist_ok=True)
    seconds, steps = round(part * DAY), max(8, round(part * STEPS))
    ways = {"attributed": ("attributed", f"{steps},{seconds}"), "stopped": ("stopped", f"{steps},{seconds}")}
    results = _in_turn(ways, rounds)
    phases, points = (int(results["attributed"][0][name]) for name in ("phases", "points"))
    names = {
        "attributed": "all attributed; bottlenecks and issues by type of resource",
        "stopped": "the same where much is stopped; bottlenecks in all four ways, issues by metric",
    }
    yield Table(
        f"(o) {points:,} points and {phases:,} phases",
        ("", "takes", "CPU time", "peak memory", "of that before", "periods", "stops", "issues"),
        [
            [
                names[way],
                *_times(each),
                size(max(one["before"] for one in each)),
                *(f"{int(each[0][name]):,}" for name in ("periods", "stops", "issues")),
            ]
            for way, each in results.items()
        ],
        f"8 GPUs with 20 metrics each, once a second, and the steps of 8 ranks; medians of {rounds}. By the "
        "rules that are built in: 72 of the metrics are fitted, 32 nobody uses.",
    )
    intervals = round(part * INTERVALS)
    fits = _in_turn({way: (way, str(intervals)) for way in WAYS if way.startswith("fit")}, rounds)
    yield Table(
        f"(o) The fit of {TYPES:,} types over {intervals:,} intervals",
        ("types that are active", "takes", "CPU time", "peak memory", "instances"),
        [
            [way.partition(", ")[2], *_times(each), f"{int(each[0]['instances']):,}"]
            for way, each in fits.items()
        ],
    )
    written = tabled.write(folder / "store", steps)
    (command,) = _in_turn({"command": ("command", str(folder / "store"))}, rounds).values()
    yield Table(
        f"(o) `grademl resources` on {written.spans:,} spans with {written.points:,} points in their tables",
        ("", "takes", "CPU time", "peak memory"),
        [["the whole command, from a file of the relay to JSON", *_times(command)]],
    )


def _times(each: Sequence[Mapping[str, float]]) -> list[str]:
    return [
        *(duration(median(one[name] for one in each) * 1e9) for name in ("wall_s", "cpu_s")),
        size(max(one["peak"] for one in each)),
    ]


def _in_turn(ways: Mapping[str, tuple[str, str]], rounds: int) -> dict[str, list[Mapping[str, float]]]:
    """Measure each way once a round, in turning order, each time in a process of its own."""
    results: dict[str, list[Mapping[str, float]]] = {name: [] for name in ways}
    order = list(ways)
    for number in range(rounds):
        turn = number % len(order)
        for name in order[turn:] + order[:turn]:
            command = [sys.executable, "-m", "benchmarks.attributing", *ways[name]]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    return results


# --- In a process of its own --------------------------------------------------------------------------------

Told = dict[str, float]
"""What else is told of a way, of its input and of what came out."""


def attributed(of: str, told: Told) -> Work:
    """Attribute a job, and find its bottlenecks and issues."""
    from grademl_otel.analyzers.attribution.groupings import RESOURCE_TYPE

    return _attributing(of, told, (), (RESOURCE_TYPE,), RESOURCE_TYPE)


def stopped(of: str, told: Told) -> Work:
    """Do the same where phases are stopped much of the time, by every grouping; issues are by metric."""
    from grademl_otel.analyzers.attribution.groupings import GROUPINGS, METRIC
    from grademl_otel.analyzers.attribution.rules import Blocking

    rules = (
        Blocking("**/rank/**", metric="gpu.throttled", at_least=0.25),
        Blocking("**/rank/**", by="**/step/optimizer"),
    )
    return _attributing(of, told, rules, GROUPINGS, METRIC)


def _attributing(
    of: str, told: Told, blocking: Sequence[Blocking], groupings: Sequence[str], of_issues: str
) -> Work:
    from benchmarks.monitored import job
    from grademl_otel.analyzers.attribution.attribute import Attributed
    from grademl_otel.analyzers.attribution.builtin import BUILT_IN
    from grademl_otel.analyzers.attribution.groupings import bottlenecks_of
    from grademl_otel.analyzers.attribution.issues import issues_of
    from grademl_otel.analyzers.attribution.rules import RuleSet

    steps, seconds = map(int, of.split(","))
    made = job(steps, seconds)
    told["phases"], told["points"] = len(made.model), made.points

    def work() -> int:
        found = Attributed(made.model, made.resources, RuleSet(BUILT_IN, (), blocking), made.gpus)
        for use in found:
            if use.is_used:
                found.of_types(use.metric)
                found.balance(use.metric)
        bottlenecks = bottlenecks_of(found)
        for grouping in groupings:
            bottlenecks.by(grouping)
        issues = issues_of(made.model, bottlenecks, of_issues)
        told["periods"], told["stops"] = len(found.activity), len(found.blocked)
        told["issues"] = len(issues) + issues.left_out
        return len(issues)

    return work


def _fit(lasts: int) -> Callable[[str, Told], Work]:
    """Return the way that fits instances, 100 of each type, that last about so many intervals."""

    def way(of: str, told: Told) -> Work:
        from grademl_otel.analyzers.attribution.fit import active_instances, best_fit
        from grademl_otel.analyzers.attribution.observations import Observations

        chance, intervals = np.random.default_rng(1), int(of)
        number = max(TYPES, intervals // 2)
        column = np.arange(number) % TYPES
        start = np.sort(chance.integers(0, intervals * _SECOND, number))
        end = start + chance.integers(_SECOND, 2 * lasts * _SECOND, number)
        edges = np.arange(intervals + 1, dtype=np.int64) * _SECOND
        seen = Observations(edges[:-1], edges[1:], np.zeros(intervals))
        value = np.full(intervals, 10.0)
        weight = chance.uniform(0.0, 2.0, TYPES)
        for some in np.array_split(np.arange(number), max(1, number * lasts // 5_000_000)):
            value += active_instances(seen, start[some], end[some], column[some], TYPES) @ weight
        seen = Observations(seen.start, seen.end, value * chance.uniform(0.98, 1.02, intervals))
        told["instances"] = number
        return lambda: len(best_fit(seen, start, end, column, TYPES).weight)

    return way


def command(of: str, told: Told) -> Work:
    """Answer `grademl resources` on what is at the path ``of``."""

    def work() -> int:
        from grademl_otel.analyzers.cli.app import run

        answer = Path(of).with_suffix(".json")
        if code := run(["resources", of, "-f", "json", "-o", str(answer)]):
            raise RuntimeError(f"grademl resources {of} ended with {code}")
        return answer.stat().st_size

    return work


WAYS: Final[dict[str, Callable[[str, Told], Work]]] = {
    "attributed": attributed,
    "stopped": stopped,
    "fit, few at a time": _fit(4),
    "fit, half at a time": _fit(1_000),
    "command": command,
}


def main() -> None:
    told: Told = {}
    work = WAYS[sys.argv[1]](sys.argv[2], told)
    gc.collect()
    before = _peak()
    start, wall = time.process_time(), time.monotonic()
    work()
    taken = {"cpu_s": time.process_time() - start, "wall_s": time.monotonic() - wall}
    print(json.dumps({**taken, "before": before, "peak": _peak(), **told}))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
