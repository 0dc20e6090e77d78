# SPDX-License-Identifier: Apache-2.0
"""Which collectives are meetings of ranks, and which phases arrive and are held there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.execution import ExecutionModel, execution_model
from grademl_otel.analyzers.execution.meetings import NO_MEETING, note_meetings

from ..support.build import run_of
from ..support.synthetic import Training
from .test_collectives import C, joined

EVERYONE = [C(0, 1, 10, 50), C(1, 1, 40, 50)]
STRAGGLING = Training(
    ranks=2, epochs=1, steps_per_epoch=4, eval_batches=0, explicit=True, compute_scale={1: 1.5}
)


def noted(parts: Sequence[C], before: int = NO_MEETING) -> list[int]:
    """Return the meeting of each part, and of one span more, which has that of ``before``."""
    meeting_of_span = np.full(len(parts) + 1, NO_MEETING, np.int64)
    meeting_of_span[-1] = before
    note_meetings(meeting_of_span, joined(parts))
    return [int(number) for number in meeting_of_span]


def test_members_of_one_collective_meet() -> None:
    assert noted(EVERYONE) == [0, 0, NO_MEETING]
    again = [replace(one, number=2, issue=one.issue + 100, end=150) for one in EVERYONE]
    first, second, third, last, _ = noted([*EVERYONE, *reversed(again)])
    assert first == second != third == last


def test_meetings_of_other_attempts_are_others() -> None:
    assert noted(EVERYONE, before=7) == [8, 8, 7]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([EVERYONE[0], replace(EVERYONE[1], lane="comm")], id="beside its thread"),
        pytest.param([replace(one, op="broadcast") for one in EVERYONE], id="not for all"),
        pytest.param([replace(one, size=3) for one in EVERYONE], id="a member is not here"),
        pytest.param([EVERYONE[0], replace(EVERYONE[1], completed=False)], id="no end was seen"),
        pytest.param([*EVERYONE, C(1, 1, 45, 50)], id="told twice"),
        pytest.param([EVERYONE[0], replace(EVERYONE[1], rank=0, issue=12)], id="one rank twice"),
        pytest.param([C(0, 1, 10, 50, size=1)], id="alone"),
        pytest.param([EVERYONE[0], replace(EVERYONE[1], size=3)], id="of two sizes"),
    ],
)
def test_these_are_no_meetings(parts: Sequence[C]) -> None:
    assert set(noted(parts)) == {NO_MEETING}


def test_nothing_has_no_meetings() -> None:
    meeting_of_span = np.full(1, NO_MEETING, np.int64)
    note_meetings(meeting_of_span, joined(EVERYONE[:1]))
    assert meeting_of_span.tolist() == [NO_MEETING]


def met(training: Training) -> tuple[ExecutionModel, Counter[str]]:
    """Return the model, and how many leaves with each name are held in meetings."""
    run = run_of(training)
    model = execution_model(run.spans, [run])
    return model, Counter(model.phases.name(node) for node in model.meetings.held.tolist())


def test_the_wait_is_held_and_of_the_last_the_transfer() -> None:
    model, held = met(STRAGGLING)
    assert held == {"ranks.wait": 4, "collective.transfer": 4}
    phases, meetings = model.phases, model.meetings
    assert {phases.name(node) for node in meetings.arrival.tolist()} == {sc.COLLECTIVE}
    assert (phases.parent[meetings.held] == meetings.arrival).all()
    of = Counter(
        (number, phases.path(node).split("/rank[")[1][:6])
        for number, node in zip(meetings.number.tolist(), meetings.arrival.tolist(), strict=True)
    )
    assert set(of.values()) == {1}
    assert len(of) == 8
    steps = {(number, int(phases.number[phases.parent[node]])) for number, node in zip(
        meetings.number.tolist(), meetings.arrival.tolist(), strict=True)}  # fmt: skip
    assert len(steps) == 4, "those of one step meet"


@pytest.mark.parametrize(
    "training",
    [
        replace(STRAGGLING, detail_level=64),
        replace(STRAGGLING, buckets=3, explicit=False),
        replace(STRAGGLING, allreduce_ns=0),
    ],
    ids=["steps without detail", "beside backward", "the last takes no time"],
)
def test_what_has_no_place_or_no_arrival_is_none(training: Training) -> None:
    model, _ = met(training)
    assert not len(model.meetings.arrival)
