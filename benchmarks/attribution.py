# SPDX-License-Identifier: Apache-2.0
"""How near the truth it is what is made of averages over intervals.

    python -m benchmarks --only attribution

A truth on a grid of 10 ms, simulated or measured on programs that run here, is averaged as a monitor does,
given to `grademl resources` as CSV, and upsampled: without phases (the average, held), by rules that are
given, and by rules that are fitted. What is attributed to phases side by side is compared with the clocks of
the threads that they ran in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import burning
from benchmarks.interleaved import Spread
from benchmarks.simulated import FITTED, SCENARIOS, simulate
from benchmarks.spanfiles import HOST, SPANS
from benchmarks.tables import Table
from benchmarks.upsampled import INTERVALS_S, Truth, attributed, metric_of, on_grid, truth_of
from benchmarks.ways import EVERYTHING, ROOT, environment
from grademl_otel.analyzers.attribution.answer import Found
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import Subject, read_subject

HELD, GIVEN, FIT = "without phases", "rules given", "rules fitted"
WAYS: Final = (HELD, GIVEN, FIT)
PROGRAMS: Final = {
    burning.TRAINING: "training, 2 threads",
    burning.FEW: "threads, one for each core",
    burning.MANY: "threads, three for each core",
}
IN_DETAIL_S: Final = 1.0
"""What of attribution is told by type of work."""

_SIMULATED_S: Final = 60.0
_NO_MONITORS: Final = {"GRADEML_HOST_INTERVAL": "0", "GRADEML_GPU_INTERVAL": "0"}
"""What is observed is what is written here."""
_OF_THREADS: Final = (
    ("hash", "variable = 1"),
    ("parse", "variable = 1"),
    ("compress", "variable = 0.5"),
    ("fetch", "exact = 0.1"),  # who sleeps so much gets a core at once, however many want one
)
_RULES: Final = {
    burning.TRAINING: (
        ("forward", "exact = 1"),
        ("backward", "exact = 2"),
        ("optimizer", "exact = 1"),
        ("decode", "variable = 0.5"),
        ("checkpoint.save", "variable = 0.5"),
    ),
    burning.FEW: _OF_THREADS,
    burning.MANY: _OF_THREADS,
}
"""What one would write who knows the program."""

Errors = dict[tuple[str, float], list[float]]
"""By way and interval."""


def measure(folder: Path, rounds: int, seconds: float) -> Iterator[Table]:
    """Return how far off all is: of ``rounds`` runs of each program for so many seconds.

    Raises subprocess.CalledProcessError.
    """
    yield simulated(folder / "simulated", 3 * rounds, _SIMULATED_S)
    measured = {
        program: [_run(program, seconds, number, folder / f"{program}-{number}") for number in range(rounds)]
        for program in PROGRAMS
    }
    by_others = percent([run.by_others for runs in measured.values() for run in runs])
    yield _upsampled(
        "Upsampled to 10 ms: CPU time of programs on this machine",
        {PROGRAMS[program]: _of_runs(runs) for program, runs in measured.items()},
        f"Relative error as above, of {rounds} runs of {seconds:g} s each. Truth: the clocks of all threads "
        "that work, read every 10 ms. Fitted: what is built in. Of the cores, other programs had "
        f"{by_others}: that is in the truth, and no rule knows it.",
    )
    yield from _attribution(
        {program: runs for program, runs in measured.items() if program in burning.THREADS}
    )


# --- Upsampling -------------------------------------------------------------------------------------------


def simulated(folder: Path, seeds: int, seconds: float) -> Table:
    """Return the errors of upsampling what is simulated, from so many seeds of so many seconds."""
    results: dict[str, Errors] = {}
    for name, scenario in SCENARIOS.items():
        errors = results[name] = {}
        for seed in range(seeds):
            place = folder / f"{len(results)}-{seed}"
            place.mkdir(parents=True)
            truth = simulate(scenario, seconds, seed, place / SPANS)
            rules = {GIVEN: place / "given.toml", FIT: place / "fitted.toml"}
            rules[GIVEN].write_text(scenario.rules(), "utf-8")
            rules[FIT].write_text(FITTED, "utf-8")
            _add_errors(_Run(place, truth, read_subject(Query.of(str(place / SPANS))), rules), errors)
    return _upsampled(
        "Upsampled to 10 ms: simulated",
        results,
        "Relative error (sum of differences over sum of the truth, on a grid of 10 ms) by the interval of "
        f"the observations: median [quartiles] of {seeds} seeds of {seconds:g} s. Three types of phases of "
        "20 ms to 2 s, that use 0.5, 1.5 and 4; two lanes of them (four where more is wanted than there is).",
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """A truth, and what is known of it."""

    folder: Path
    truth: Truth
    subject: Subject
    rules: Mapping[str, Path | None]
    """By way; None: what is built in."""
    used: Sequence[tuple[str, int, int]] = ()
    """(name, start in Unix ns, CPU ns by the thread's clock) of spans."""
    by_others: float = 0.0
    """Part of the time of all cores that other programs had meanwhile."""

    def found(self, way: str, seconds: float) -> Found:
        """Return what is made of averages over so many seconds. Raises ValueError for a rule for nothing."""
        file = self.folder / f"{seconds}.csv"
        if not file.exists():
            self.truth.within_whole(max(INTERVALS_S)).write(file, seconds)
        found = attributed(self.subject, file, self.rules[way])
        for rule in found.attributed.rules.rules:
            if found.attributed.assignment.selects_nothing(rule):
                raise ValueError(f"{rule.where}: no phase is called {rule.phase}")
        return found


def _of_runs(runs: Sequence[_Run]) -> Errors:
    errors: Errors = {}
    for run in runs:
        _add_errors(run, errors)
    return errors


def _add_errors(run: _Run, errors: Errors) -> None:
    truth = run.truth.within_whole(max(INTERVALS_S))
    for seconds in INTERVALS_S:
        for way in WAYS:
            estimate = truth.held(seconds) if way == HELD else on_grid(run.found(way, seconds), truth)
            errors.setdefault((way, seconds), []).append(truth.error(estimate))


def _upsampled(title: str, results: Mapping[str, Errors], note: str) -> Table:
    rows = [
        [name, way, *(percent(errors[way, seconds]) for seconds in INTERVALS_S)]
        for name, errors in results.items()
        for way in WAYS
    ]
    return Table(title, ("", "", *_heads()), rows, note)


# --- Programs that run here -------------------------------------------------------------------------------


def _run(program: str, seconds: float, seed: int, folder: Path) -> _Run:
    folder.mkdir(parents=True)
    began, busy, own = time.perf_counter(), _busy_s(), os.times()
    subprocess.run(
        [sys.executable, "-m", "benchmarks.burning", program, f"{seconds}", f"{seed}", str(folder)],
        env={**environment(folder, EVERYTHING), **_NO_MONITORS}, cwd=ROOT, check=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    cores_s, now = (time.perf_counter() - began) * (os.cpu_count() or 1), os.times()
    own_s = now.children_user + now.children_system - own.children_user - own.children_system
    others_s = max(_busy_s() - busy - own_s, 0.0)
    answer = json.loads((folder / burning.CLOCKS).read_text("utf-8"))
    is_training = program == burning.TRAINING
    # A run knows its host itself; CSV without one is of the only one there is.
    truth = truth_of(np.array(answer["readings"], np.int64), len(burning.CORES), "" if is_training else HOST)
    rules = folder / "rules.toml"
    rules.write_text("builtin = false\n" + "\n".join(map(_rule, _RULES[program])), "utf-8")
    source = folder / "runs" if is_training else folder / SPANS
    return _Run(
        folder,
        truth,
        read_subject(Query.of(str(source))),
        {GIVEN: rules, FIT: None},
        [tuple(each) for each in answer.get("used", ())],
        others_s / cores_s,
    )


def _busy_s() -> float:
    """Return how long the cores of this machine have been busy, and had by its hypervisor."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _rule(of: tuple[str, str]) -> str:
    name, how = of
    return f'[[rule]]\nphase = "**/{name}*"\nmetric = "cpu.busy"\n{how}\n'


# --- Attribution ------------------------------------------------------------------------------------------


def _attribution(measured: Mapping[str, Sequence[_Run]]) -> Iterator[Table]:
    """Return what is attributed to spans side by side, beside the clocks of their threads."""
    rows, detail = [], []
    for program, runs in measured.items():
        for way in (GIVEN, FIT):
            by_type: dict[float, list[float]] = {}
            by_span: dict[float, list[float]] = {}
            of_work: dict[str, list[float]] = {}
            for run in runs:
                for seconds in INTERVALS_S:
                    types, spans = compared(run.found(way, seconds), run.truth, run.used)
                    by_type.setdefault(seconds, []).extend(map(abs, types.values()))
                    by_span.setdefault(seconds, []).extend(map(abs, spans))
                    if seconds == IN_DETAIL_S:
                        for name, error in types.items():
                            of_work.setdefault(name, []).append(error)
            for what, errors in (("type", by_type), ("span", by_span)):
                cells = (percent(errors[seconds]) for seconds in INTERVALS_S)
                rows.append([PROGRAMS[program], way, what, *cells])
            cells = (percent(of_work[name], "+") for name, _ in _OF_THREADS)
            detail.append([PROGRAMS[program], way, *cells])
    spans_in_all = sum(len(run.used) for runs in measured.values() for run in runs)
    yield Table(
        "Attributed to spans side by side, beside the clocks of their threads",
        ("", "", "error by", *_heads()),
        rows,
        "|attributed - clock| / clock: median [quartiles] over types of work and runs, and over "
        f"{spans_in_all} single spans. Four types: hashing (all the time on a core), parsing (the same, with "
        "Python's lock), compressing (half of the time) and fetching (a tenth).",
    )
    yield Table(
        f"The same by type of work, from averages over {IN_DETAIL_S:g} s",
        ("", "", *(name for name, _ in _OF_THREADS)),
        detail,
        "(attributed - clock) / clock: median [quartiles] over runs.",
    )


def compared(
    found: Found, truth: Truth, used: Sequence[tuple[str, int, int]]
) -> tuple[dict[str, float], list[float]]:
    """Return (error by type, error of each span) of what is attributed to spans, relative to their clocks.

    ``used`` is (name, start in Unix ns, CPU ns) of spans; those that end after ``truth`` are left out.
    """
    model = found.model
    leaves, usage, _, _ = found.attributed.of_leaves(metric_of(found))
    within = truth.within_whole(max(INTERVALS_S)).edges[[0, -1]]
    attributed_to = {
        (model.types.name[model.phases.type[leaf]], int(model.phases.start[leaf])): value
        for leaf, value in zip(leaves.tolist(), usage.tolist(), strict=True)
        if within[0] <= model.phases.start[leaf] and model.phases.end[leaf] <= within[1]
    }
    pairs: dict[str, list[tuple[float, float]]] = {}
    for name, start, ns in used:
        if ns > 0 and (name, start) in attributed_to:
            pairs.setdefault(name, []).append((attributed_to[name, start], ns / 1e9))
    of_types = {
        name: sum(got for got, _ in each) / sum(had for _, had in each) - 1 for name, each in pairs.items()
    }
    return of_types, [got / had - 1 for each in pairs.values() for got, had in each]


def percent(values: Sequence[float], sign: str = "") -> str:
    """Return the median of ``values`` with their quartiles."""
    low, middle, high = (100 * each for each in Spread.of(values))
    return f"{middle:{sign}.1f} % [{low:{sign}.1f}, {high:{sign}.1f}]"


def _heads() -> tuple[str, ...]:
    return tuple(f"{seconds:g} s" for seconds in INTERVALS_S)
