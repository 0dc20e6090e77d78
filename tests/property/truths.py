# SPDX-License-Identifier: Apache-2.0
"""Simulated trainings whose true answers are known, and the judge of what the analyzer says of them.

``python -m tests.property.truths --seeds 100`` judges so many trainings of each scenario and prints how many
were answered rightly; the suite does the same with a few seeds (`test_truth`). A scenario is a kind of
training; its seed decides how many ranks and workers there are, which of them is slow, and every jitter.

Right is an answer only if all of it is: the critical path and the lane budget agree with the truth, the path
leads with what truly takes most of it, the verdict names what is wrong, and what cannot be known is said to
be "not observable".
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from grademl_otel import semconv as sc

from ..support.judge import (
    COMMUNICATION,
    COMPUTE,
    LOADER,
    STRAGGLER,
    Check,
    accuses_nobody,
    answer,
    as_grave_as_it_is,
    budget_is_true,
    budget_leads_with,
    gain_is_a_bound,
    leads_with,
    names,
    not_observable,
    opens_with,
    path_is_nearly,
    path_is_true,
    tiles,
)
from ..support.simulator import Job, Pauses, Slow, simulate
from ..support.simulator.training import TRANSFER
from ..support.telemetry import MS, US, S

TABLES_ALONE: Final = 64
"""A level of detail that no step reaches, unless it is long."""


@dataclass(frozen=True)
class Case:
    """One training and what a right answer to it is."""

    job: Job
    checks: Sequence[Check]


def wrong_with(case: Case) -> list[str]:
    """Return what is wrong with the analyzer's answer, one line each."""
    made = simulate(case.job)
    said = answer(made)
    return [line for check in (tiles, budget_is_true, *case.checks) for line in check(made, said)]


Scenario = Callable[[random.Random], Case]


def _step(job: Job) -> int:
    """Return how long a step takes that waits for no data."""
    return job.handoff + job.forward + job.backward + job.optimizer + job.tail


def _loader_bound(share: float, *, inline: bool = False) -> Scenario:
    """Waiting for data is this part of each step."""

    def scenario(dice: random.Random) -> Case:
        job = Job(
            epochs=1, steps=60,  # of a further pass the first batch is waited for, however fast the loader is
            workers=0 if inline else dice.choice((1, 2, 4)), detail_level=dice.choice((0, 2, TABLES_ALONE)),
        )  # fmt: skip
        rest = _step(job)
        made = rest * share / (1 - share) if inline else job.workers * rest / (1 - share)
        job = replace(job, fetch=max(0, round(made) - job.collate), collate=min(job.collate, round(made)))
        leads = [leads_with(sc.DATA_FETCH, sc.DATA_COLLATE)] if share >= (0.6 if inline else 0.2) else []
        return Case(
            job,
            [
                path_is_true,
                as_grave_as_it_is,
                gain_is_a_bound(LOADER, Job.fed_at_once),
                *leads,
            ],
        )

    return scenario


def _compute_bound(dice: random.Random) -> Case:
    """The loader could feed it twice as fast: the path is computing, however busy the workers are."""
    job = Job(workers=dice.choice((1, 2, 4)), detail_level=dice.choice((0, 2, TABLES_ALONE)))
    job = replace(job, fetch=round(_step(job) * job.workers * 0.55) - job.collate)
    return Case(
        job,
        [
            path_is_true,
            opens_with(COMPUTE),
            accuses_nobody(LOADER),
            leads_with(*_COMPUTING, lane="main"),
        ],
    )


def _slow_worker(dice: random.Random) -> Case:
    """One of the workers: batches come in order, so that all wait for it."""
    job = Job(workers=dice.choice((3, 4)), detail_level=dice.choice((0, TABLES_ALONE)))
    slow = dice.randrange(job.workers)
    fetch = round(_step(job) * job.workers * 0.5)
    job = replace(job, fetch=fetch, slow=(Slow(sc.DATA_FETCH, 5.0, worker=slow),))
    return Case(
        job,
        [
            path_is_true,
            opens_with(LOADER),
            leads_with(sc.DATA_FETCH, lane=f"loader-worker-{slow}"),
            gain_is_a_bound(LOADER, Job.fed_at_once),
        ],
    )


_COMPUTING: Final = (sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER)
_ON_DEVICE: Final = tuple(sc.DEVICE_PREFIX + phase for phase in _COMPUTING)


def _ranks(dice: random.Random, **changes: object) -> tuple[Job, int]:
    """Return a training of several ranks and one of them."""
    ranks = dice.choice((2, 2, 3, 3, 4, 8))
    job = replace(Job(ranks=ranks, steps=16, eval_batches=2), **changes)  # type: ignore[arg-type]
    return job, dice.randrange(job.ranks)


def _repaired(job: Job) -> Job:
    return job.without_faults()


def _slow_rank(
    phase: str, factor: float, *, detail: int = 0, hooks: bool = True, **changes: object
) -> Scenario:
    """One of the ranks takes longer for this phase, and all others wait for it."""

    def scenario(dice: random.Random) -> Case:
        job, rank = _ranks(dice, detail_level=detail, hooks=hooks, **changes)
        job = replace(job, slow=(Slow(phase, factor, rank),))
        fetches = phase == sc.DATA_FETCH
        cause = sc.DATA_WAIT if fetches else phase
        checks: list[Check] = [
            path_is_true if hooks and not detail and not job.heard else path_is_nearly(0.06),
            names(STRAGGLER, ranks=[rank], cause=cause, most="" if hooks else "warning"),
            opens_with(STRAGGLER, LOADER) if fetches else opens_with(STRAGGLER),
            gain_is_a_bound(STRAGGLER, _repaired),
            accuses_nobody(LOADER, but=[rank] if fetches else ()),
            leads_with(phase, ranks=[rank]),
        ]
        return Case(job, checks)

    return scenario


def _unseen_backward(dice: random.Random) -> Case:
    """A rank is late in backward, and no collective was recorded: nobody can know which."""
    job, rank = _ranks(dice, hooks=False)
    job = replace(job, slow=(Slow(sc.BACKWARD, 2.0, rank),))
    return Case(job, [not_observable(STRAGGLER), opens_with("not_observable"), accuses_nobody(COMPUTE)])


def _late_after_the_first_bucket(dice: random.Random) -> Case:
    """Late in backward, and no step in detail: at most the true rank may be named."""
    job, rank = _ranks(dice, detail_level=TABLES_ALONE)
    job = replace(job, slow=(Slow(sc.BACKWARD, 2.0, rank),))
    return Case(job, [accuses_nobody(STRAGGLER, LOADER, but=[rank])])


def _alike(dice: random.Random) -> Case:
    """Ranks that are alike: nobody is accused of what is chance."""
    job, _ = _ranks(dice, jitter=0.03)
    return Case(job, [path_is_true, accuses_nobody(STRAGGLER, LOADER, COMMUNICATION), opens_with(COMPUTE)])


def _slow_network(dice: random.Random) -> Case:
    """All-reduces that take longer than the backward beside which they run."""
    job, _ = _ranks(dice, transfer=dice.choice((20, 30)) * MS)
    return Case(
        job,
        [
            path_is_true,
            names(COMMUNICATION, ranks=range(job.ranks)),
            opens_with(COMMUNICATION),
            accuses_nobody(STRAGGLER, LOADER),
            leads_with(TRANSFER),
            gain_is_a_bound(COMMUNICATION, lambda job: replace(job, transfer=0)),
        ],
    )


def _collections(dice: random.Random) -> Case:
    """Garbage is collected for long in some of the steps."""
    job = Job(
        collections=Pauses(dice.choice((3, 4, 5)), 80 * MS), detail_level=dice.choice((0, 2, TABLES_ALONE))
    )
    return Case(job, [path_is_true, leads_with(sc.GC), accuses_nobody(LOADER)])


def _collections_of_ranks(dice: random.Random) -> Case:
    """Another rank collects garbage each time, and all wait for it."""
    job, _ = _ranks(dice, collections=Pauses(8, 120 * MS, staggered=True))
    return Case(job, [path_is_true, leads_with(sc.GC), accuses_nobody(LOADER, COMMUNICATION)])


def _saves(dice: random.Random) -> Case:
    """Checkpoints take more than the steps."""
    job = Job(saves=Pauses(dice.choice((5, 10)), 400 * MS), detail_level=dice.choice((0, 2, TABLES_ALONE)))
    return Case(job, [path_is_true, leads_with(sc.CHECKPOINT_SAVE), accuses_nobody(LOADER)])


def _saves_of_one_rank(dice: random.Random) -> Case:
    """Rank 0 saves, and the others wait for it in the step after."""
    job, _ = _ranks(dice, saves=Pauses(6, 300 * MS, ranks=(0,)))
    return Case(
        job,
        [
            path_is_true,
            leads_with(sc.CHECKPOINT_SAVE, ranks=[0]),
            names(STRAGGLER, ranks=[0], cause=sc.CHECKPOINT_SAVE),
            accuses_nobody(LOADER, COMMUNICATION),
        ],
    )


def _compiles(dice: random.Random) -> Case:
    """The first step compiles for longer than all of them take."""
    ranks = dice.choice((1, 1, 4))
    job = Job(ranks=ranks, compile=2 * S, detail_level=0 if ranks > 1 else dice.choice((0, 2, TABLES_ALONE)))
    return Case(job, [path_is_true, leads_with(sc.COMPILE), names("compile.first"), accuses_nobody(LOADER)])


def _two_hosts(dice: random.Random) -> Case:
    """Two hosts whose clocks are apart, and a slow rank on one of them."""
    job = Job(
        ranks=dice.choice((2, 4)),
        steps=16,
        eval_batches=2,
        offsets={1: dice.choice((-1, 1)) * dice.randrange(1, 900) * MS},
    )
    rank = dice.randrange(job.ranks)
    job = replace(job, slow=(Slow(sc.FORWARD, 2.5, rank),))
    return Case(
        job,
        [
            path_is_true,
            names(STRAGGLER, ranks=[rank], cause=sc.FORWARD),
            opens_with(STRAGGLER),
            leads_with(sc.FORWARD, ranks=[rank]),
        ],
    )


def _evaluates(dice: random.Random) -> Case:
    """Evaluation takes longer than training."""
    job = Job(eval_batches=120, epochs=2, detail_level=dice.choice((0, 2, TABLES_ALONE)))
    return Case(job, [path_is_true, budget_leads_with(sc.EVALUATE), accuses_nobody(LOADER)])


def _device_bound(dice: random.Random) -> Case:
    """The host enqueues and waits for the device."""
    job = Job(device=True, detail_level=dice.choice((0, TABLES_ALONE)))
    return Case(
        job,
        [
            path_is_true,
            accuses_nobody(LOADER),
            leads_with(*_ON_DEVICE, lane="stream"),
        ],
    )


def _device_ahead(dice: random.Random) -> Case:
    """The host waits for data, but the device has work from the steps before: the loader is not the limit."""
    job = Job(device=True, workers=dice.choice((1, 2)), sync_every=10)
    job = replace(job, fetch=round(_step(job) * job.workers * 0.6))
    return Case(job, [path_is_true, accuses_nobody(LOADER), leads_with(*_ON_DEVICE, lane="stream")])


def _micro_batches(dice: random.Random) -> Case:
    """A step takes several batches, and waits for them half of its time."""
    job = Job(micro=dice.choice((2, 3)), workers=dice.choice((1, 2, 4)))
    rest = job.handoff + job.forward + job.backward
    job = replace(job, fetch=round(job.workers * rest / 0.5))
    return Case(job, [path_is_true, opens_with(LOADER), leads_with(sc.DATA_FETCH)])


def _device_starved(dice: random.Random) -> Case:
    """The device is idle while the host waits for data."""
    job = Job(
        device=True, workers=dice.choice((1, 2)), sync_every=dice.choice((1, 10)),
        detail_level=dice.choice((0, TABLES_ALONE)),
    )  # fmt: skip
    job = replace(job, fetch=round(_step(job) * job.workers / 0.5))
    return Case(job, [path_is_true, opens_with(LOADER), leads_with(sc.DATA_FETCH), as_grave_as_it_is])


SCENARIOS: Final[dict[str, Scenario]] = {
    **{f"loader-bound by {share} %": _loader_bound(share / 100) for share in (1, 5, 10, 20, 50, 90)},
    **{
        f"loader-bound by {share} %, no workers": _loader_bound(share / 100, inline=True)
        for share in (1, 5, 10, 20, 50, 90)
    },
    "compute-bound": _compute_bound,
    "one slow worker": _slow_worker,
    "loader-bound, micro-batches": _micro_batches,
    "ranks alike": _alike,
    "one slow rank, by data": _slow_rank(sc.DATA_FETCH, 5.0),
    "one slow rank, by forward": _slow_rank(sc.FORWARD, 2.5),
    "one slow rank, by backward": _slow_rank(sc.BACKWARD, 2.0),
    "by forward, ends heard late": _slow_rank(sc.FORWARD, 2.5, heard=300 * US),
    "by backward, a blocking all-reduce": _slow_rank(sc.BACKWARD, 2.0, blocking=True),
    "by forward, one step in four in detail": _slow_rank(sc.FORWARD, 2.5, detail=2),
    "by data, tables alone": _slow_rank(sc.DATA_FETCH, 5.0, detail=TABLES_ALONE),
    "by forward, tables alone": _slow_rank(sc.FORWARD, 2.5, detail=TABLES_ALONE),
    "by backward, tables alone": _late_after_the_first_bucket,
    "by data, no collectives": _slow_rank(sc.DATA_FETCH, 5.0, hooks=False),
    "by forward, no collectives": _slow_rank(sc.FORWARD, 2.5, hooks=False),
    "by backward, no collectives": _unseen_backward,
    "slow network": _slow_network,
    "garbage collections": _collections,
    "garbage collections, ranks in turn": _collections_of_ranks,
    "checkpoints": _saves,
    "checkpoints of rank 0": _saves_of_one_rank,
    "compiles first": _compiles,
    "two hosts, clocks apart": _two_hosts,
    "evaluation": _evaluates,
    "device-bound": _device_bound,
    "device-bound, the host ahead": _device_ahead,
    "device starved by its loader": _device_starved,
}


def case(name: str, seed: int) -> Case:
    """Return training number ``seed`` of a scenario."""
    found = SCENARIOS[name](random.Random(f"{name}/{seed}"))
    return replace(found, job=replace(found.job, seed=random.Random(f"{name}/{seed}/jitter").getrandbits(32)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.property.truths", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=6, help="trainings of each scenario")
    parser.add_argument("--only", default="", help="scenarios with this in their name")
    parser.add_argument("--verbose", action="store_true", help="what is wrong with each wrong answer")
    asked = parser.parse_args(arguments)
    worst = 1.0
    print(f"| {'scenario':<36} | right of {asked.seeds} |\n|{'-' * 38}|{'-' * 13}|")
    for name in (one for one in SCENARIOS if asked.only in one):
        begun, wrong = time.perf_counter(), {}
        for seed in range(asked.seeds):
            if lines := wrong_with(case(name, seed)):
                wrong[seed] = lines
        right = asked.seeds - len(wrong)
        worst = min(worst, right / asked.seeds)
        took = f"  ({time.perf_counter() - begun:.1f} s)" if asked.verbose else ""
        print(f"| {name:<36} | {right:>11} |{took}", flush=True)
        if asked.verbose:
            for seed, lines in wrong.items():
                print(*(f"    {seed}: {line}" for line in lines[:4]), sep="\n", flush=True)
    return 0 if worst >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
