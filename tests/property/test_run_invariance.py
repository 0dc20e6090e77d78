# SPDX-License-Identifier: Apache-2.0
"""Any small training: its path is the true one, and what does not matter changes nothing in it.

The trainings are simulated (`tests.support.simulator`), so the true path of each is known.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc

from ..support.judge import Answer, answer, answer_to, budget_is_true, path_is_true, tiles
from ..support.simulator import Job, Simulation, simulate
from ..support.telemetry import Span, lines
from .jobs import PHASES, jobs


def told(said: Answer, start: int = 0, *, scale: int = 1) -> tuple[list[Any], list[Any]]:
    """Return the path and the budget without what names spans, in parts of ``scale`` since ``start``."""
    sections = [
        ((s.start - start) / scale, (s.end - start) / scale, s.phase, s.kind, s.rank, s.lane, s.step, s.item)
        for s in said.path.sections
    ]
    return sections, [(row.rank, row.within, row.phase, row.ns / scale) for row in said.budget]


@contextmanager
def store() -> Iterator[File]:
    with tempfile.TemporaryDirectory() as folder:
        yield File(folder)


@given(jobs())
@settings(max_examples=80, deadline=None)
def test_the_path_of_any_training_is_the_true_one(job: Job) -> None:
    if job.micro > 1:
        job = replace(job, detail_level=0)  # sums of several batches have no place in time
    made = simulate(job)
    said = answer(made)
    assert not [line for check in (tiles, budget_is_true, path_is_true) for line in check(made, said)]


@given(jobs(), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_the_order_of_spans_changes_nothing(job: Job, dice: random.Random) -> None:
    made = simulate(job)
    spans = made.spans()
    dice.shuffle(spans)
    with store() as folder:
        assert told(answer_to(made.write_store(folder, spans))) == told(answer(made))


@given(jobs(), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_how_spans_lie_in_files_changes_nothing(job: Job, dice: random.Random) -> None:
    made = simulate(job)
    parts: dict[int, list[tuple[int, Span]]] = {}
    for span in made.spans():
        parts.setdefault(dice.randrange(3), []).append(span)
    with store() as folder:
        for part, spans in parts.items():
            (folder / f"{part}.jsonl").write_bytes(lines(made.recording, spans))
        assert told(answer_to(folder)) == told(answer(made))


@given(jobs(detail=(0,)), st.text("abc", min_size=1, max_size=5), st.integers(-(10**17), 10**17))
@settings(max_examples=15, deadline=None)
def test_other_ids_and_another_time_change_nothing(job: Job, name: str, later: int) -> None:
    other = replace(job, name=name, start=job.start + later)
    assert told(answer(simulate(other)), other.start) == told(answer(simulate(job)), job.start)


@given(jobs(detail=(0,)), st.integers(2, 7))
@settings(max_examples=15, deadline=None)
def test_a_slower_clock_makes_all_times_longer_alike(job: Job, times: int) -> None:
    job = replace(job, device=False)  # what a device did is told in microseconds, which do not scale
    made = simulate(job)
    assert told(answer(made.slowed(times)), job.start, scale=times) == told(answer(made), job.start)


@given(st.integers(1, 8), st.integers(2, 6), st.sampled_from((0, 64)))
@settings(max_examples=15, deadline=None)
def test_a_step_that_repeats_counts_as_often(steps: int, times: int, detail: int) -> None:
    once = Job(epochs=1, eval_batches=0, workers=0, jitter=0.0, steps=steps, detail_level=detail)
    in_steps = (*PHASES, sc.DATA_COLLATE, sc.DATA_WAIT, "other")

    def totals(made: Simulation) -> Counter[str]:
        spent: Counter[str] = Counter()
        for section in answer(made).path.sections:
            spent[section.phase] += section.duration if section.phase in in_steps else 0
        return spent

    several = replace(once, steps=steps * times)
    assert totals(simulate(several)) == Counter(
        {phase: ns * times for phase, ns in totals(simulate(once)).items()}
    )
