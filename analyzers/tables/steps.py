# SPDX-License-Identifier: Apache-2.0
"""The tables ``steps`` (a row a step) and ``step_phases`` (a row a phase of a step): the census of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.facts import COMPLETE_LEVEL, Run, StepTable
from grademl_otel.analyzers.model.tables import join_parts
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import TableSchema, flag, number, word
from grademl_otel.analyzers.tables.values import Coded, Makers, Masked, all_alike, known

KINDS: Final = ("train", "evaluate", "incomplete")
TRAIN: Final = 0
_ALWAYS: Final = frozenset({semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD, semconv.COMPILE})
"""Phases that are measured at every level."""
_WITH_WAITS: Final = _ALWAYS | {semconv.DATA_WAIT, semconv.GC}
"""Those that are measured at level 2; docs/levels.md."""
_ONLY_WAITS: Final = 2


def column_of(phase: str) -> str:
    """Return the name of the column with the time of ``phase``."""
    return f"{phase.replace('.', '_')}_ns"


_KEYS: Final = (
    word("run", "id of the run"),
    number("attempt", ""),
    number("rank", ""),
    number("step", "number of the training step, from 0; of an evaluation step the one at which it ran"),
)

STEPS: Final = TableSchema(
    "steps",
    "A step of the run, from its step table: every one, whether it has spans or not. By rank and time. Phases"
    " may lie in each other, and workers fetch and collate beside: they do not sum to the step.",
    (
        *_KEYS,
        word("kind", "train, evaluate, incomplete (broken off by an exception)"),
        number("start_ns", "Unix ns, as are all times here; from step tables, in whole microseconds"),
        number("end_ns", ""),
        number("duration_ns", ""),
        flag("steady", "whether it is one of the steady steps that the report tells of"),
        number("micro", "micro-batches"),
        number("window_number", "of the window that told of it"),
        number("level", "recording level: above 1 not all phases were measured"),
        number(
            "pass", "serial number of the pass over a loader that its batch is of; null: none", nullable=True
        ),
        number("batch", "number of its batch in that pass; null: none", nullable=True),
        number("loader", "of the batch; null: none", nullable=True),
        number("worker", "of the loader, that made the batch; null: none", nullable=True),
        flag("detailed", "whether its spans were kept"),
        flag("outlier", "whether it took twice the median of those before, or longer"),
        flag("skipped", "whether a gradient scaler skipped an update in it; null: unknown", nullable=True),
        *(
            number(column_of(phase), f"time in `{phase}`; null where it was not measured", nullable=True)
            for phase in semconv.PHASES
        ),
    ),
)

STEP_PHASES: Final = TableSchema(
    "step_phases",
    "A phase of a step, also those that the program named itself and what devices did: the columns of `steps`"
    " as rows. Only those that occurred.",
    (
        *_KEYS,
        number("start_ns", "of the step"),
        word("phase", ""),
        number("busy_ns", "how long it ran, added up"),
        number("count", "how many times"),
        number("first_ns", "when it ran first"),
        flag("user", "whether the program named it"),
    ),
)


def steps(material: Material) -> Makers:
    run = material.run
    table = _NONE if run is None else run.steps
    makers: dict[str, Callable[[], object]] = {
        **_keys(run, table, slice(None)),
        "kind": lambda: Coded(kinds(table), KINDS),
        "start_ns": lambda: table.start,
        "end_ns": lambda: table.end,
        "duration_ns": lambda: table.end - table.start,
        "steady": lambda: _steady(run, table),
        "micro": lambda: table.micro,
        "window_number": lambda: table.window,
        "level": lambda: table.level,
        "pass": lambda: known(table.item_pass),
        "batch": lambda: known(table.item_batch),
        "loader": lambda: known(table.item_loader),
        "worker": lambda: known(table.item_worker),
        "detailed": lambda: (table.flags & semconv.FLAG_DETAILED) > 0,
        "outlier": lambda: (table.flags & semconv.FLAG_OUTLIER) > 0,
        "skipped": lambda: Masked((table.flags & semconv.FLAG_SKIPPED) > 0, table.level > COMPLETE_LEVEL),
    }
    for phase in semconv.PHASES:
        makers[column_of(phase)] = _busy(table, phase)
    return makers  # type: ignore[return-value]


def kinds(table: StepTable) -> IntArray:
    """Return for each row the number of its kind."""
    incomplete, evaluate = (
        (table.flags & bit) > 0 for bit in (semconv.FLAG_INCOMPLETE, semconv.FLAG_EVALUATE)
    )
    found: IntArray = np.where(incomplete, 2, np.where(evaluate, 1, 0))
    return found


def step_phases(material: Material) -> Makers:
    run = material.run
    table = _NONE if run is None else run.steps
    names = list(table.busy)
    rows = [np.flatnonzero(table.count[name] > 0) for name in names]
    row = np.concatenate([np.zeros(0, np.int64), *rows])
    phase = np.repeat(np.arange(len(names)), [len(some) for some in rows])
    order = np.argsort(row, kind="stable")  # by step; of one step in the order of the phases
    row, phase = row[order], phase[order]

    def of(columns: dict[str, IntArray]) -> Callable[[], IntArray]:
        def make() -> IntArray:
            joined = [columns[name][some] for name, some in zip(names, rows, strict=True)]
            made: IntArray = np.concatenate([np.zeros(0, np.int64), *joined])[order]
            return made

        return make

    own = np.array([name in table.user for name in names] or [False], np.bool_)
    return {
        **_keys(run, table, row),
        "start_ns": lambda: table.start[row],
        "phase": lambda: Coded(phase, names),
        "busy_ns": of(table.busy),
        "count": of(table.count),
        "first_ns": of(table.first),
        "user": lambda: own[phase],
    }


def _keys(run: Run | None, table: StepTable, rows: slice | IntArray) -> Makers:
    count = len(table.start[rows])
    return {
        "run": lambda: all_alike(count, run.run_id if run is not None else None),
        "attempt": lambda: np.full(count, run.attempt if run is not None else 0, np.int64),
        "rank": lambda: table.rank[rows],
        "step": lambda: table.step[rows],
    }


def _steady(run: Run | None, table: StepTable) -> BoolArray:
    steady = np.zeros(len(table), np.bool_)
    if run is not None:
        from grademl_otel.analyzers.graph import steady_rows  # here, for who asks only for spans

        for rank in run.ranks:
            steady[steady_rows(run, rank)] = True
    return steady


def _busy(table: StepTable, phase: str) -> Callable[[], Masked]:
    def make() -> Masked:
        none = np.zeros(len(table), np.int64)
        absent = (table.level > COMPLETE_LEVEL) & (table.count.get(phase, none) == 0)
        if phase in _ALWAYS:
            absent = none > 0
        elif phase in _WITH_WAITS:
            absent &= table.level > _ONLY_WAITS
        return Masked(table.busy.get(phase, none), absent)

    return make


_NONE: Final = join_parts([])[0]
