# SPDX-License-Identifier: Apache-2.0
"""What the rules look at: one rank's steady steps, and what its data loader did in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from grademl_otel import semconv as sc
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.diagnosis.finding import Abstained
from grademl_otel.analyzers.graph import activities, steady_level, steady_rows, step_breakdown
from grademl_otel.analyzers.graph.device import DeviceStep, device_step, is_asynchronous
from grademl_otel.analyzers.graph.exposed import ExposedWait, exposed_wait
from grademl_otel.analyzers.graph.runs.collective_parts import RANKS_WAIT
from grademl_otel.analyzers.graph.runs.main_lane import OTHER, WORK_SCOPES
from grademl_otel.analyzers.model.run import Run, StepTable

_WAITING: Final = (sc.DATA_WAIT, *sc.WORKER_PHASES)


@dataclass(frozen=True)
class StepFacts:
    """Means over one rank's steady steps, in ns a step."""

    rank: int
    n: int
    step_ns: float
    wait_ns: float
    """Time the main thread was inside `data.wait`, be it in a phase that the program named."""
    compute_ns: dict[str, float]
    """Every other phase of the main lane, and `other`; with `wait_ns` they sum to `step_ns`."""
    ranks_ns: float = 0.0
    """The part of these, if it is known, in which the main thread waited for other ranks."""
    idle: ExposedWait | None = None
    """How much of `wait_ns` an asynchronous device had nothing to do; None on a CPU, and where nobody knows.
    """
    device: DeviceStep | None = None
    """What an asynchronous device did in these steps; None without its times."""
    parts_ns: dict[str, dict[str, float]] = field(default_factory=dict)
    """What these phases hold that is not the wait: phase -> part -> time."""

    @property
    def exposed_share(self) -> float:
        """Part of the step in which the device has nothing to do but wait for data: at most, where too little
        of that is known."""
        if self.idle is None:
            return self.wait_share
        return self.wait_share * (self.idle.share if self.idle.told else self.idle.at_most)

    @property
    def wait_share(self) -> float:
        return self.wait_ns / self.step_ns if self.step_ns else 0.0

    @property
    def busiest(self) -> str:
        """The phase, other than the wait, that takes most of the step."""
        return max(self.compute_ns, key=lambda phase: self.compute_ns[phase], default=OTHER)


@dataclass(frozen=True)
class LoaderFacts:
    """What the loader that feeds the training steps did, over the steady steps of one rank."""

    workers: int
    """0 when batches are made inside `data.wait`."""
    loaders: int
    """Loaders that a step takes batches of; of several these facts are about the one waited for most."""
    n: int
    """Steps looked at: the first batch of each pass is left out, it waits for the workers to start."""
    step_ns: float
    wait_ns: float
    """Mean time of these steps, and of the waiting in them."""
    batches: float
    """Mean number of batches that a step takes."""
    make_ns: float
    """Mean time to make the batches of one step (fetch and collate), in ns of one worker."""
    batch_p50_ns: float
    """Median time to make one batch."""
    n_made: int
    """Steps whose batches have a recorded making."""
    empty: int
    """Steps in which the batch was not ready when the main thread asked for it."""
    n_asked: int
    """Steps for which that can be told: one wait for one batch of the loader."""
    unready_share: float
    """Part of the waiting that was over when the batch was ready; the rest is handing it over."""
    busy_share: float
    """Part of the workers' time in which they were making batches, 0 to 1."""

    @property
    def wait_share(self) -> float:
        return self.wait_ns / self.step_ns if self.step_ns else 0.0

    @property
    def compute_ns(self) -> float:
        """Mean time of a step without the waiting: how often it needs a batch."""
        return max(0.0, self.step_ns - self.wait_ns)

    @property
    def empty_share(self) -> float:
        return self.empty / self.n_asked if self.n_asked else 0.0


def recorded_in_part(run: Run, ranks: Iterable[int]) -> str | None:
    """Return at which level, and why, the first of ``ranks`` whose steady steps lack phases was recorded."""
    for rank in ranks:
        if level := steady_level(run, rank):
            reasons = [
                one.reason for one in run.reduced if (one.rank, one.level) == (rank, level) and one.reason
            ]
            return f"recorded at level {level}" + "".join(f": {reason}" for reason in reasons)
    return None


def not_measured(run: Run, rule: str, ranks: Iterable[int]) -> Abstained | None:
    """Return why ``rule`` cannot be judged of ``ranks``; None where all phases were measured."""
    missing = recorded_in_part(run, ranks)
    if missing is None:
        return None
    how = "train some hundred steps with GRADEML_BUDGET=100, which records everything whatever it costs"
    return Abstained(rule, missing, how)


def step_facts(run: Run, rank: int) -> StepFacts | None:
    """Return the means of ``rank``'s steady steps; None when it has none."""
    steps = step_breakdown(run, rank)
    if not steps.steps:
        return None
    mean = {phase.phase: phase.total_ns / steps.steps for phase in steps.phases if phase.within is None}
    wait = mean.pop(sc.DATA_WAIT, 0.0)
    parts: dict[str, dict[str, float]] = {phase: {} for phase in mean}
    for phase in steps.phases:
        if phase.within not in parts:
            continue
        ns = phase.total_ns / steps.steps
        if phase.phase in _WAITING:  # `with phase("get batch"): batch = next(it)`
            mean[phase.within] -= ns
            wait += ns
        else:
            parts[phase.within][phase.phase] = ns
    ranks = sum(phase.total_ns for phase in steps.phases if phase.phase == RANKS_WAIT) / steps.steps
    idle, device = None, None
    if is_asynchronous(run):
        idle, device = exposed_wait(run, rank), device_step(run, rank)
    return StepFacts(rank, steps.steps, steps.total_ns / steps.steps, wait, mean, ranks, idle, device, parts)


def loader_facts(run: Run, rank: int) -> LoaderFacts | None:
    """Return what the training loader did in ``rank``'s steady steps.

    None when no step consumed a batch of a loader, or no making of a batch was recorded.
    """
    steady = steady_rows(run, rank)
    if (several := _of_several(run, steady)) is not None:
        return several
    rows = _without_first_batches(run, steady)
    if not len(rows):
        return None
    ids, counts = np.unique(rows.item_loader, return_counts=True)
    loader_id = int(ids[counts.argmax()])
    rows = rows.where(rows.item_loader == loader_id)
    zeros: IntArray = np.zeros(len(rows), dtype=np.int64)
    made = sum((rows.busy.get(phase, zeros) for phase in sc.WORKER_PHASES), start=zeros)
    batches = rows.count.get(sc.DATA_FETCH, zeros)
    known = batches > 0
    if not known.any():
        return None
    loader = run.loaders.get(loader_id)
    workers = loader.workers if loader is not None else int(rows.item_worker.max()) + 1
    queue = _queue(rows)
    beside = sum((rows.busy.get(scope, zeros) for scope in WORK_SCOPES), start=zeros)
    whole, wait = rows.end - rows.start, rows.busy.get(sc.DATA_WAIT, zeros)
    wall = int(whole[known].sum()) * max(1, workers)
    return LoaderFacts(
        workers=workers,
        loaders=1,
        n=len(rows),
        step_ns=float((whole - beside).mean()),
        wait_ns=float(wait.mean()),
        batches=float(batches[known].mean()),
        make_ns=float(made[known].mean()),
        batch_p50_ns=float(np.median(made[known] / batches[known])),
        n_made=int(known.sum()),
        empty=int(np.count_nonzero(queue.late)),
        n_asked=len(queue.late),
        unready_share=int(np.minimum(queue.late, queue.wait).sum()) / max(1, int(queue.wait.sum())),
        busy_share=min(1.0, int(made[known].sum()) / wall) if wall else 0.0,
    )


def _of_several(run: Run, rows: IntArray) -> LoaderFacts | None:
    """Return the facts of the loader that is waited for most; None unless steps take batches of several.

    The table adds up what a step took of all its loaders: only steps with detail tell them apart.
    """
    if not np.any(run.steps.count.get(sc.DATA_WAIT, np.zeros(len(run.steps), np.int64))[rows] > 1):
        return None
    found = activities(run)
    waits, items = found.waits, found.items
    later = np.flatnonzero(np.isin(waits.row, rows) & (waits.batch > 0)).tolist()
    pairs = [(wait, at) for wait in later if (at := found.item_of_wait(wait)) is not None]
    wait, item = np.array(pairs, np.int64).reshape(-1, 2).T
    takes = np.unique(np.stack((waits.row[wait], items.loader[item])), axis=1)
    taken, loaders = np.unique(takes[0]), np.unique(takes[1])
    if takes.shape[1] == len(taken):
        return None
    waited = waits.end[wait] - waits.start[wait]
    loader_id = max(loaders.tolist(), key=lambda loader: int(waited[items.loader[item] == loader].sum()))
    mine = items.loader[item] == loader_id
    wait, item, waited = wait[mine], item[mine], waited[mine]
    made = items.fetched[item] - items.start[item] + items.end[item] - items.collating[item]
    late = np.maximum(items.end[item] - waits.start[wait], 0)
    loader = run.loaders.get(loader_id)
    workers = loader.workers if loader else int(items.worker[items.loader == loader_id].max()) + 1
    step = int((run.steps.end[taken] - run.steps.start[taken]).sum())
    return LoaderFacts(
        workers=workers,
        loaders=len(loaders),
        n=len(taken),
        step_ns=step / len(taken),
        wait_ns=int(waited.sum()) / len(taken),
        batches=len(item) / len(taken),
        make_ns=int(made.sum()) / len(taken),
        batch_p50_ns=float(np.median(made)),
        n_made=len(taken),
        empty=int(np.count_nonzero(late)),
        n_asked=len(late),
        unready_share=int(np.minimum(late, waited).sum()) / max(1, int(waited.sum())),
        busy_share=min(1.0, int(made.sum()) / (step * max(1, workers))) if step else 0.0,
    )


def _without_first_batches(run: Run, rows: IntArray) -> StepTable:
    """Return those of ``rows`` that took a batch of a loader, and not the first of a pass."""
    chosen = np.zeros(len(run.steps), dtype=bool)
    chosen[rows] = True
    chosen &= run.steps.item_batch > 0
    # A pass that began inside a step which the program told is no epoch, and its loader has no number. One
    # such pass after the other is taken for one loader; of several in turn nobody knows whose a batch is.
    if np.any(np.diff(run.steps.item_pass[chosen & (run.steps.item_loader < 0)]) < 0):
        chosen &= run.steps.item_loader >= 0
    return run.steps.where(chosen)


@dataclass(frozen=True)
class _Queue:
    """Of each step with one wait for one batch, in ns: how long it waited, and how late the batch was."""

    wait: IntArray
    late: IntArray
    """From the asking to the end of the making; 0 when the batch was there."""


def _queue(rows: StepTable) -> _Queue:
    zeros: IntArray = np.zeros(len(rows), dtype=np.int64)
    one = rows.count.get(sc.DATA_WAIT, zeros) == 1
    ready = zeros
    for phase in sc.WORKER_PHASES:
        count = rows.count.get(phase, zeros)
        one &= count == 1 if phase == sc.DATA_FETCH else count <= 1
        end = rows.first.get(phase, zeros) + rows.busy.get(phase, zeros)
        ready = np.where(count == 1, np.maximum(ready, end), ready)
    late = np.maximum(ready - rows.first.get(sc.DATA_WAIT, zeros), 0)
    return _Queue(rows.busy.get(sc.DATA_WAIT, zeros)[one], late[one])
