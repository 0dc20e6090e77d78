# SPDX-License-Identifier: Apache-2.0
"""The table ``phases``: the execution model, one row a phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.tables.inherited import depths, inherited
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import TableSchema, flag, number, text, word
from grademl_otel.analyzers.tables.values import Coded, Makers, Ready, Values, distinct, known

if TYPE_CHECKING:
    from grademl_otel.analyzers.execution.model import Phases
    from grademl_otel.analyzers.execution.whole import ExecutionModel

PHASES: Final = TableSchema(
    "phases",
    "A phase of the [execution model](execution-model.md), in preorder: a parent before what is part of it."
    " Of a part of a run (`--ranks`, `--steps`, `--fit`) that part, else all that was read.",
    (
        number("phase_ix", "its number, from 0, the root"),
        number("parent_ix", "number of its parent; null for the root", nullable=True),
        text("path", "identifiers from below the root, each after a `/`; no two phases have one"),
        word("type", "the same with the tags of types only: equal for phases of one type"),
        word("name", "without tags"),
        number("start_ns", "Unix ns"),
        number("end_ns", "Unix ns"),
        number("duration_ns", "from start to end; 0 for one that ends before it starts"),
        number("busy_ns", "how long it ran: of self time the sum of the gaps, else its duration"),
        number("depth", "how many phases it is part of"),
        flag("leaf", "whether it has no parts; what also runs itself has a part `self`"),
        word("run", "id of the run that it is part of; null: of none", nullable=True),
        number("attempt", "null: of none", nullable=True),
        number("rank", "null: of none, or of several", nullable=True),
        number("step", "number of the training step that it is, or is part of; null: of none", nullable=True),
        word("host", "where it ran; null: not told", nullable=True),
        flag("derived", "whether nobody recorded it: it begins and ends with its parts"),
        flag("missing", "whether spans name it as their parent and it did not arrive"),
        flag("self_time", "whether it stands for the time of its parent in which no other part of that ran"),
        flag("inferred", "whether its length is known and its place is not: a sum over several of a step"),
        flag("beside", "whether it, or what it is part of, runs in another lane than the parent of that"),
        number("span_ix", "its span; null for what is from a step table, or derived", nullable=True),
    ),
)


def phases(material: Material) -> Makers:
    from grademl_otel.analyzers.execution import model as of  # the model is for who asks for this table

    model = material.model
    if model is None:
        return dict.fromkeys(PHASES.column_names, _no_rows)
    found, tree = model.phases, model.phases

    def has(mark: int) -> Callable[[], BoolArray]:
        return lambda: found.has(mark)

    return {
        "phase_ix": lambda: np.arange(len(found)),
        "parent_ix": lambda: known(found.parent),
        "path": lambda: _paths(model),
        "type": lambda: _types(model),
        "name": lambda: _names(found),
        "start_ns": lambda: found.start,
        "end_ns": lambda: found.end,
        "duration_ns": lambda: found.duration,
        "busy_ns": lambda: found.busy,
        "depth": lambda: depths(found.size),
        "leaf": lambda: found.leaves,
        "run": lambda: _run(found),
        "attempt": lambda: known(_of_kind(found, "attempt")),
        "rank": lambda: known(_of_kind(found, "rank", none_in="attempt")),
        "step": lambda: known(_of_kind(found, "step", none_in="attempt")),
        "host": lambda: Coded(found.host, found.hosts),
        "derived": has(of.DERIVED),
        "missing": has(of.MISSING),
        "self_time": has(of.SELF),
        "inferred": has(of.INFERRED),
        "beside": lambda: found.has(of.BESIDE) | tree.below(found.has(of.BESIDE)),
        "span_ix": lambda: known(found.span_ix),
    }


def _no_rows() -> Values:
    return []


def _names(phases: Phases) -> Coded:
    codes, words = distinct([kind.name for kind in phases.all_kinds])
    return Coded(codes[phases.kind], words)


def _paths(model: ExecutionModel) -> Ready:
    from grademl_otel.analyzers.tables.phase_paths import paths

    return Ready(paths(model.phases, "phases"))


def _types(model: ExecutionModel) -> Ready:
    from grademl_otel.analyzers.tables.phase_paths import coded_paths

    return Ready(coded_paths(model.types, model.phases.type))


def _counting(phases: Phases, key: str) -> IntArray:
    """Return the phases that count ``key``, as ranks and steps of runs do."""
    counts = np.array([kind.counted == key for kind in phases.all_kinds], np.bool_)
    return np.flatnonzero(counts[phases.kind])


def _of_kind(phases: Phases, key: str, none_in: str | None = None) -> IntArray:
    """Return the number by ``key`` of each phase, or of the nearest that it is part of; -1 for none.

    What is part of a phase by ``none_in``, as the attempt of a run that a step has launched, does not inherit
    what lies further out.
    """
    own = _counting(phases, key)
    numbers = phases.number[own]
    if none_in is not None:
        reset = _counting(phases, none_in)
        own, numbers = np.append(own, reset), np.append(numbers, np.full(len(reset), -1, np.int64))
        order = np.argsort(own, kind="stable")
        own, numbers = own[order], numbers[order]
    return inherited(phases.size, own, numbers)


def _run(phases: Phases) -> Coded:
    runs = np.unique(phases.parent[_counting(phases, "attempt")]).astype(np.int64)
    codes, words = distinct([dict(phases.tags(node)).get("id") for node in runs.tolist()])
    return Coded(inherited(phases.size, runs, codes), words)
