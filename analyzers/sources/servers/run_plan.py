# SPDX-License-Identifier: Apache-2.0
"""Which traces a run of ours consists of, computed instead of searched for.

A run's trace, its windows' and its steps' have ids that follow from the run's id. How many windows there are
is learnt from the run span's count of steps, or, while it is not there, by going on until nothing is found;
which steps have detail is in the windows' tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from grademl_otel import semconv
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.model.recording import sampled_ranks
from grademl_otel.analyzers.model.run import build_run, window_parts

_BATCH: Final = 16
_MISSES: Final = 3
"""Windows in a row that may be missing while it is not known how many there are."""
_GIVE_UP: Final = 256
"""Windows in a row that may be missing in any case: over a million steps."""


@dataclass
class DetailedSteps:
    """Trace ids of the steps with detail; the coarsest sample first, so that a bound leaves a fair one."""

    certain: list[int] = field(default_factory=list)
    guessed: list[int] = field(default_factory=list)
    """Of incomplete steps: their number is known only if every row before them was closed. Of all where a
    gateway keeps the traces of some only."""


class RunPlan:
    """What to fetch next of one attempt of one run."""

    def __init__(self, run_id: str, attempt: int) -> None:
        self.run_id = run_id
        self.attempt = attempt
        self._ranks = 1
        self._run_shards = 1
        self._groups = 1
        """Groups of ranks whose windows up to `_next` were asked for."""
        self._last_window: int | None = None
        self._asked: set[tuple[int, int]] = set()
        self._full_shards: set[tuple[int, int]] = set()
        """(window, shard) whose last part is there, so that a further shard may exist."""
        self._next = 0
        self._latest_found = -1

    def run_trace(self) -> int:
        """Return the trace that holds the scopes of rank 0."""
        return self._trace(semconv.TRACE_RUN)

    def further_run_traces(self) -> list[int]:
        """Return the traces that hold the scopes of ranks far from 0, those not returned before."""
        known, self._run_shards = self._run_shards, semconv.run_shard(self._ranks - 1) + 1
        return [self._trace(semconv.TRACE_RUN, 0, shard) for shard in range(known, self._run_shards)]

    def learn(self, telemetry: Telemetry) -> None:
        """Take account of what was read so far."""
        run = build_run(telemetry, self.run_id, self.attempt)
        if run is None:
            return
        self._ranks = max(
            self._ranks, run.completeness.ranks_expected or 1, *(rank + 1 for rank in run.ranks)
        )
        if run.run_spans and run.completeness.steps_expected is not None:
            # Evaluation after the last step may have opened the next window.
            last = semconv.window_of_step(run.completeness.steps_expected)
            self._last_window = max(last, self._last_window or 0)
        for part in window_parts(telemetry, self.run_id, self.attempt):
            if part.window < self._next:  # what was not asked for proves nothing
                self._latest_found = max(self._latest_found, part.window)
            if (part.part + 1) % semconv.parts_per_shard(part.world_size) == 0:
                shard = semconv.window_shard(part.rank, part.part, part.world_size)
                self._full_shards.add((part.window, shard))

    def next_windows(self) -> list[int]:
        """Return trace ids of windows to ask for, none when all were."""
        wanted = [(window, shard + 1) for window, shard in sorted(self._full_shards)]
        # More ranks than was known when these windows were asked for.
        groups = -(-self._ranks // semconv.RANKS_PER_SHARD)
        wanted += self._shards(range(self._next), range(self._groups, groups))
        self._groups = groups
        wanted = [shard for shard in wanted if shard not in self._asked]
        if not wanted:
            last = self._latest_found + _MISSES
            if self._last_window is not None:
                last = min(self._last_window, self._latest_found + _GIVE_UP)
            stop = min(last + 1, self._next + _BATCH)
            wanted = self._shards(range(self._next, stop), range(groups))
            self._next = max(self._next, stop)
        self._asked.update(wanted)
        return [self._trace(semconv.TRACE_WINDOW, window, shard) for window, shard in wanted]

    def _shards(self, windows: range, groups: range) -> list[tuple[int, int]]:
        """Return (window, shard) of the first parts of the ranks in ``groups``."""
        firsts = [semconv.window_shard(group * semconv.RANKS_PER_SHARD, 0, 0) for group in groups]
        return [(window, shard) for window in windows for shard in firsts]

    def detailed_steps(self, telemetry: Telemetry) -> DetailedSteps:
        """Return the traces of the steps that the tables say have detail."""
        found: dict[int, tuple[int, int]] = {}
        guessed: dict[int, None] = {}
        parts = window_parts(telemetry, self.run_id, self.attempt)
        sampled = bool(sampled_ranks({}, parts))
        for part in parts:
            flags = part.columns["flags"].tolist()
            steps = part.columns["step"].tolist()
            evaluated = part.eval_steps_so_far - sum(1 for flag in flags if flag & semconv.FLAG_EVALUATE)
            for row, (flag, step) in enumerate(zip(flags, steps, strict=True)):
                number = evaluated
                evaluated += bool(flag & semconv.FLAG_EVALUATE)
                if not flag & semconv.FLAG_DETAILED:
                    continue
                rank = -semconv.detail_bits(self.run_id, step), step
                if flag & semconv.FLAG_INCOMPLETE:
                    serial = part.rows_so_far - len(flags) + row + 1
                    guessed[self._trace(semconv.TRACE_INCOMPLETE_STEP, serial)] = None
                elif flag & semconv.FLAG_EVALUATE:
                    found[self._trace(semconv.TRACE_EVAL_STEP, number)] = rank
                else:
                    found[self._trace(semconv.TRACE_STEP, step)] = rank
        certain = sorted(found, key=found.__getitem__)
        if sampled:
            return DetailedSteps([], [*certain, *guessed])
        return DetailedSteps(certain, list(guessed))

    def _trace(self, kind: str, number: int = 0, shard: int = 0) -> int:
        return semconv.trace_id(self.run_id, self.attempt, kind, number, shard)
