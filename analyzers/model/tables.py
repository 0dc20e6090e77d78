# SPDX-License-Identifier: Apache-2.0
"""Decodes the step tables of window spans and puts the parts of a run together into one census."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.facts import StepTable

_US: Final = 1000
_MAX_ROWS: Final = 1 << 20
_MAX_US: Final = 1 << 50  # 35 years; keeps every sum of times within int64
_MAX_START: Final = 1 << 62
_MAX_WINDOW: Final = 1 << 40
_MAX_PART: Final = 1 << 20
_VERSION: Final = 1
_MAIN: Final = "main"


class MalformedTable(ValueError):
    """A table contradicts itself or is of a version that is not known here; the text says how."""


@dataclass(frozen=True)
class TablePart:
    """The table of one window span, unfolded; times absolute Unix ns, all arrays of one length."""

    rank: int
    window: int
    part: int
    last: bool
    steps_so_far: int
    eval_steps_so_far: int
    rows_so_far: int
    columns: dict[str, IntArray]
    """`step`, `start`, `end`, `micro`, `flags`, `item.*`."""
    phases: dict[str, dict[str, IntArray]] = field(default_factory=dict)
    """Phase -> `first`, `busy`, `count`."""
    lanes: tuple[str, ...] = (_MAIN,)
    """Names of the lanes of the rows; `lane` among the columns is an index into them."""
    world_size: int = 0
    """As this rank says; 0 where it does not know."""
    record_level: int = 0
    """How much was measured of the rows: 0 and 1 all phases, 2 and more fewer of them."""
    record_reason: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """What the window span says beside its table."""

    @property
    def rows(self) -> int:
        return len(self.columns["start"])

    @property
    def training_rows(self) -> IntArray:
        """Return the indices of the rows that are training steps."""
        not_training = semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE
        found: IntArray = np.flatnonzero((self.columns["flags"] & not_training) == 0)
        return found


def decode_table(attributes: Mapping[str, Any], rank: int, window_start: int) -> TablePart:
    """Return the table in a window span's attributes; raises MalformedTable."""
    if not 0 <= window_start < _MAX_START:
        raise MalformedTable(f"step table of a window that starts at {window_start} ns")
    version = attributes.get(semconv.TABLE_VERSION)
    if version != _VERSION:
        raise MalformedTable(f"step table of version {version!r}; this release reads version {_VERSION}")
    raw = {
        key[len(semconv.TABLE_PREFIX) :]: int_array(key, value)
        for key, value in attributes.items()
        if key.startswith(semconv.TABLE_PREFIX) and key != semconv.TABLE_VERSION
    }
    rows = max((len(array) for array in raw.values()), default=0)
    if not raw:  # nothing closed: a step that runs, or hangs
        raw = {name: np.zeros(0, np.int64) for name in ("step", "start_us", "dur_us")}
    table = {name: _unfold(name, array, rows) for name, array in raw.items()}
    missing = [name for name in ("step", "start_us", "dur_us") if name not in table]
    if missing:
        raise MalformedTable(f"step table without {', '.join(missing)}")
    start_us, dur_us = table["start_us"], table["dur_us"]
    if np.any(dur_us < 0):
        raise MalformedTable("step table with a negative duration")
    columns = {
        "step": table["step"],
        "start": window_start + start_us * _US,
        "end": window_start + (start_us + dur_us) * _US,
    }
    for name in ("micro", "flags"):
        columns[name] = table.get(name, np.zeros(rows, np.int64))
    for name in ("item.pass", "item.batch", "item.loader", "item.worker"):
        columns[name] = table.get(name, np.full(rows, -1, np.int64))
    lanes = _lanes(attributes)
    columns["lane"] = table.get("lane", np.zeros(rows, np.int64))
    if np.any((columns["lane"] < 0) | (columns["lane"] >= len(lanes))):
        raise MalformedTable(f"step table with a lane beyond the {len(lanes)} that it names")
    reason = attributes.get(semconv.WINDOW_RECORD_REASON)
    phases = _phases(table, window_start)
    if "steps" in table:
        columns, phases = _one_row_a_step(columns, phases, table["steps"])
    return TablePart(
        rank=rank,
        window=_int(attributes, semconv.WINDOW_NUMBER, _MAX_WINDOW),
        part=_int(attributes, semconv.WINDOW_PART, _MAX_PART),
        last=bool(attributes.get(semconv.WINDOW_LAST, False)),
        steps_so_far=_int(attributes, semconv.WINDOW_STEPS_SO_FAR),
        eval_steps_so_far=_int(attributes, semconv.WINDOW_EVAL_SO_FAR),
        rows_so_far=_int(attributes, semconv.WINDOW_ROWS_SO_FAR),
        columns=columns,
        phases=phases,
        lanes=lanes,
        record_level=_int(attributes, semconv.WINDOW_RECORD_LEVEL),
        record_reason=reason if isinstance(reason, str) else None,
        attributes={k: v for k, v in attributes.items() if not k.startswith(semconv.TABLE_PREFIX)},
    )


def _one_row_a_step(
    columns: dict[str, IntArray], phases: dict[str, dict[str, IntArray]], steps: IntArray
) -> tuple[dict[str, IntArray], dict[str, dict[str, IntArray]]]:
    """Return the table with a row for each step: those that were counted together get their mean length."""
    if np.any((steps < 1) | (steps > semconv.MAX_STEPS_PER_ROW)) or steps.sum() > _MAX_ROWS:
        raise MalformedTable("step table with a row of no steps, or of too many")
    source = np.repeat(np.arange(len(steps)), steps)
    place = np.arange(len(source)) - np.repeat(np.cumsum(steps) - steps, steps)
    start, length, of = columns["start"], columns["end"] - columns["start"], steps[source]
    split = {name: column[source] for name, column in columns.items()}
    split["step"] = split["step"] + place
    split["start"] = start[source] + length[source] * place // of
    split["end"] = start[source] + length[source] * (place + 1) // of
    return split, {
        phase: {name: column[source] for name, column in values.items()} for phase, values in phases.items()
    }


def _lanes(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    value = attributes.get(semconv.WINDOW_LANES)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            value = [value]  # a server that gives an array of one as its element
    if value is None:
        return (_MAIN,)
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise MalformedTable(f"{semconv.WINDOW_LANES} is no array of names")
    return tuple(value)


def _phases(table: Mapping[str, IntArray], window_start: int) -> dict[str, dict[str, IntArray]]:
    phases = {}
    for name, count in table.items():
        phase, _, column = name.rpartition(".")
        if column != "count" or not phase:
            continue
        try:
            first, busy = table[f"{phase}.first_us"], table[f"{phase}.busy_us"]
        except KeyError as missing:
            raise MalformedTable(f"step table without {missing.args[0]}") from None
        phases[phase] = {
            "first": np.where(count > 0, window_start + first * _US, 0),
            "busy": np.where(count > 0, busy * _US, 0),
            "count": count,
        }
    return phases


def int_array(key: str, value: Any) -> IntArray:
    """Return an array attribute as int64; JSON strings are taken too (Jaeger's v1 API)."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise MalformedTable(f"{key} is neither an array nor a JSON array") from None
    if isinstance(value, int) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list) or not value:
        raise MalformedTable(f"{key} is no array of integers")
    if len(value) > _MAX_ROWS:
        raise MalformedTable(f"{key} has {len(value):,} elements")
    try:
        numbers = [int(element) for element in value]
    except (TypeError, ValueError, OverflowError):
        raise MalformedTable(f"{key} is no array of integers") from None
    if max(numbers) > _MAX_US or min(numbers) < -_MAX_US:
        raise MalformedTable(f"{key} is out of range")
    return np.array(numbers, np.int64)


def _unfold(name: str, array: IntArray, rows: int) -> IntArray:
    if len(array) == rows:
        return array
    if len(array) == 1:
        return np.repeat(array, rows)
    raise MalformedTable(f"column {name} has {len(array)} elements of {rows}")


def _int(attributes: Mapping[str, Any], key: str, limit: int = 1 << 53) -> int:
    value = attributes.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise MalformedTable(f"{key} is no count: {value!r}")
    return value


def join_parts(parts: Sequence[TablePart]) -> tuple[StepTable, int]:
    """Return (the census, ns of overlap cut away); rows are sorted by (rank, start).

    Rows of one rank never overlap: where they do (another clock, a damaged table) the earlier is cut.
    """
    names = (
        "step",
        "start",
        "end",
        "micro",
        "flags",
        "item.pass",
        "item.batch",
        "item.loader",
        "item.worker",
    )
    joined = {name: _concatenated([part.columns[name] for part in parts]) for name in names}
    rank = _concatenated([np.full(part.rows, part.rank, np.int64) for part in parts])
    window = _concatenated([np.full(part.rows, part.window, np.int64) for part in parts])
    level = _concatenated([np.full(part.rows, part.record_level, np.int64) for part in parts])
    order = np.lexsort((joined["step"], joined["start"], rank))
    rank = rank[order]
    start, end = joined["start"][order], joined["end"][order]
    overlap = 0
    if len(order) > 1:
        next_start = np.where(rank[1:] == rank[:-1], start[1:], end[:-1])
        cut = np.maximum(end[:-1] - next_start, 0)
        overlap = int(cut.sum())
        end = np.append(end[:-1] - cut, end[-1])
    found = {phase for part in parts for phase in part.phases}
    phases = [phase for phase in semconv.PHASES if phase in found]
    phases += sorted(found - set(phases))
    user = {phase.removeprefix(semconv.USER_PREFIX) for phase in phases if _is_user(phase)}

    def shown(phase: str) -> str:
        return phase.removeprefix(semconv.USER_PREFIX) if _is_user(phase) else phase

    def of_phase(phase: str, column: str) -> IntArray:
        return _concatenated(
            [
                part.phases[phase][column] if phase in part.phases else np.zeros(part.rows, np.int64)
                for part in parts
            ]
        )[order]

    table = StepTable(
        rank=rank,
        step=joined["step"][order],
        start=start,
        end=end,
        micro=joined["micro"][order],
        flags=joined["flags"][order],
        window=window[order],
        level=level[order],
        item_pass=joined["item.pass"][order],
        item_batch=joined["item.batch"][order],
        item_loader=joined["item.loader"][order],
        item_worker=joined["item.worker"][order],
        first={shown(phase): of_phase(phase, "first") for phase in phases},
        busy={shown(phase): of_phase(phase, "busy") for phase in phases},
        count={shown(phase): of_phase(phase, "count") for phase in phases},
        user=frozenset(user),
    )
    return table, overlap


def _is_user(phase: str) -> bool:
    """Whether ``phase`` is one that the program named; a name that is taken stays as it is."""
    name = phase.removeprefix(semconv.USER_PREFIX)
    return name != phase and name != "" and name not in semconv.PHASE_INDEX and name not in semconv.RESERVED


def _concatenated(arrays: Sequence[IntArray]) -> IntArray:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
