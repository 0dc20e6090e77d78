# SPDX-License-Identifier: Apache-2.0
"""A simulated data loader: workers, a bounded queue to each, and delivery in order."""

from __future__ import annotations

from typing import Final

from grademl_otel import semconv as sc

from ..telemetry import Activity, Row
from .rank import Rank
from .tasks import MAIN, Lane, Task, then

LOADER_START: Final = "loader start"


class Loader:
    """One pass over a data set by one rank.

    Batch ``i`` is made by worker ``i % W``. The indices of the first ``W x prefetch`` are put when the pass
    begins, and one more each time that a batch was taken; a worker begins with a batch when it is through
    with the one before and its index was put.
    """

    def __init__(self, rank: Rank, loader: int) -> None:
        self._rank, self._job = rank, rank.job
        self._taken: list[Task] = []
        self._lanes: list[Lane] = [
            (rank.rank, f"loader{loader or ''}-worker-{worker}") for worker in range(self._job.workers)
        ]
        self._free = [then(lane, LOADER_START, self._job.spawn, rank.at) for lane in self._lanes]

    def take(self, row: Row, batch: int) -> None:
        """Have the main lane wait for a batch of ``row``."""
        rank, job, item = self._rank, self._job, f"{row.pass_serial}:{batch}"
        if not self._lanes:
            with rank.phase(row, sc.DATA_WAIT):
                begun = rank.now
                fetched = rank.work(sc.DATA_FETCH, job.fetch).end
                collated = rank.work(sc.DATA_COLLATE, job.collate).end
                rank.go(job.handoff)
            wait = row.phases[-1]
            wait.item = item
            row.phases += [
                Activity(sc.DATA_FETCH, MAIN, begun, fetched, item, inside=wait),
                Activity(sc.DATA_COLLATE, MAIN, fetched, collated, item, inside=wait),
            ]
            return
        worker = batch % job.workers
        ahead = batch - job.workers * job.prefetch
        lane, needs = self._lanes[worker], [self._free[worker]]
        if ahead >= 0:
            needs.append(self._taken[ahead])
        fetch = then(lane, sc.DATA_FETCH, self._takes(sc.DATA_FETCH, job.fetch, worker), *needs)
        collate = then(lane, sc.DATA_COLLATE, self._takes(sc.DATA_COLLATE, job.collate, worker), fetch)
        self._free[worker] = collate
        with rank.phase(row, sc.DATA_WAIT):
            self._taken.append(rank.go(job.handoff, collate))
        row.phases[-1].item = item
        row.phases += [Activity(task.phase, lane[1], task.start, task.end, item) for task in (fetch, collate)]

    def _takes(self, phase: str, mean: int, worker: int) -> int:
        return self._job.takes(phase, mean, self._rank.dice, self._rank.rank, worker)
