# SPDX-License-Identifier: Apache-2.0
"""Slack and drag of any small training, against simulating it again with the change that they speak of."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc
from grademl_otel.analyzers.graph import run_graph
from grademl_otel.analyzers.graph.schedule import Schedule

from ..support.judge import answer
from ..support.simulator import Delay, Job, Simulation, Slow, simulate
from ..support.telemetry import MS
from .jobs import PHASES, jobs

ALONE = (sc.FORWARD, sc.OPTIMIZER, sc.DATA_FETCH)
"""Phases of which each is one activity of the graph."""


def schedule_of(made: Simulation) -> Schedule:
    run = answer(made).run
    return Schedule.of(run_graph(run), run.start, run.end)


def worker_of(lane: str) -> int | None:
    found = re.fullmatch(r"loader\d*-worker-(\d+)", lane)
    return int(found[1]) if found else None


@given(jobs(detail=(0,)))
@settings(max_examples=25, deadline=None)
def test_drag_is_what_a_phase_of_no_length_saves(job: Job) -> None:
    job = replace(job, device=False)
    made = simulate(job)
    schedule = schedule_of(made)
    names = list(schedule.graph.phases)
    for phase in (*PHASES, sc.GC, sc.CHECKPOINT_SAVE):
        if phase in names:
            drag = schedule.drag(schedule.graph.phase == names.index(phase))
            without = simulate(replace(job, slow=(*job.slow, Slow(phase, 0.0)))).truth.wall
            assert abs(drag - (made.truth.wall - without)) <= 0.002 * made.truth.wall


@given(jobs(detail=(0,)), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_slack_is_how_much_longer_one_may_take(job: Job, dice: random.Random) -> None:
    """By so much longer it changes nothing; by 5 ms more, all takes 5 ms longer, to the nanosecond."""
    job = replace(job, device=False, collections=None, compile=0)
    made = simulate(job)
    schedule = schedule_of(made)
    graph, slack = schedule.graph, schedule.slack()
    assert slack.min() == 0
    every = [
        (graph.phases[phase], *graph.lanes[lane])
        for phase, lane in zip(graph.phase.tolist(), graph.lane.tolist(), strict=True)
    ]
    kinds = [(phase, rank, worker_of(lane)) for phase, rank, lane in every]
    one = dice.choice([at for at, (phase, *_) in enumerate(every) if phase in ALONE])
    alike = np.array([at for at, kind in enumerate(kinds) if kind == kinds[one]])
    nth = int(np.count_nonzero(graph.start[alike] < graph.start[one]))
    phase, rank, worker = kinds[one]
    assert rank is not None
    for more, longer in ((int(slack[one]), 0), (int(slack[one]) + 5 * MS, 5 * MS)):
        delayed = simulate(replace(job, delays=(Delay(phase, rank, worker, nth, more),)))
        assert delayed.truth.wall == made.truth.wall + longer
