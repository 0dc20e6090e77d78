# SPDX-License-Identifier: Apache-2.0
"""One simulated process: its main lane, what a recorder sees of it, and where its time truly went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from grademl_otel import semconv as sc

from ..telemetry import Activity, Pass, RankRecord, Row
from .job import Dice, Job
from .tasks import MAIN, Task, first, then

OTHER: Final = "other"
"""Time of a step outside its phases."""
_APART: Final = (sc.CHECKPOINT_SAVE, sc.COMPILE)
"""What is no part of the phase that it lies in."""


class Rank(RankRecord):
    """A rank; ``now`` follows its main lane."""

    def __init__(self, job: Job, rank: int, dice: Dice) -> None:
        super().__init__(rank, job.start)
        self.job, self.dice, self.lane = job, dice, (rank, MAIN)
        self.at: Task = first(self.lane, job.start)
        self.budget: Counter[str] = Counter()
        self.inside: Counter[tuple[str, str]] = Counter()
        self.evaluating = False
        self.collectives = 0
        self.open_pass: Pass | None = None
        self._phases: list[str] = []
        self._passes = 1  # the run's own scope is the first
        self._serial = 0

    def takes(self, phase: str, mean: int) -> int:
        return self.job.takes(phase, mean, self.dice, self.rank)

    def go(self, takes: int, *needs: Task, phase: str = "") -> Task:
        """Go on for ``takes`` ns, once all ``needs`` are over, in the phase that is open or in ``phase``."""
        name = phase or self._phases[-1]
        self.at, before = then(self.lane, name, takes, self.at, *needs), self.at
        self.now = self.at.end
        outermost = name if name in _APART or not self._phases else self._phases[0]
        outermost = sc.EVALUATE if self.evaluating else outermost
        self.budget[outermost] += self.at.end - before.end
        if name != outermost:
            self.inside[outermost, name] += self.at.end - before.end
        return self.at

    def work(self, phase: str, mean: int) -> Task:
        """Go on with a phase that takes ``mean`` ns on average."""
        return self.go(self.takes(phase, mean), phase=phase)

    @contextmanager
    def phase(self, row: Row, name: str, **said: Any) -> Iterator[None]:
        """What a recorder sees as one phase of the main lane."""
        begun = self.now
        self._phases.append(name)
        yield
        self._phases.pop()
        if self.now > begun:
            row.phases.append(Activity(name, MAIN, begun, self.now, said=said))
            if name in _APART:
                scope = Pass(self.rank, name, begun, self.now, inside=self.open_pass, said=said)
                self.passes.append(scope)

    # --- passes and rows ----------------------------------------------------------------------------------

    @contextmanager
    def pass_over(self, loader: int, name: str, epoch: int | None) -> Iterator[Pass]:
        self._passes += 1
        scope = Pass(self.rank, name, self.now, serial=self._passes, loader=loader, epoch=epoch)
        self.passes.append(scope)
        self.open_pass, self.evaluating = scope, name == sc.EVALUATE
        yield scope
        scope.end = self.now
        self.open_pass, self.evaluating = None, False

    def open_row(self, scope: Pass, batch: int) -> Row:
        self._serial += 1
        kind = "evaluate" if self.evaluating else "train"
        return Row(
            rank=self.rank,
            serial=self._serial,
            kind=kind,
            step=self.step,
            number=self.eval_step if self.evaluating else self.step,
            start=self.now,
            pass_serial=scope.serial,
            batch=batch,
            loader=scope.loader,
            worker=batch % self.job.workers if self.job.workers else -1,
            epoch=scope.epoch,
            micro=1 if self.evaluating else self.job.micro,
        )

    def close_row(self, row: Row, scope: Pass, run_id: str) -> None:
        self.go(self.takes(OTHER, self.job.tail), phase=OTHER)
        row.end = self.now
        row.detailed = (
            row.duration >= sc.SLOW_STEP_NS or sc.detail_bits(run_id, row.step) >= self.job.detail_level
        )
        self.rows.append(row)
        if row.kind == "train":
            self.step += 1
            scope.steps += 1
        else:
            self.eval_step += 1
            scope.eval_steps += 1
