# SPDX-License-Identifier: Apache-2.0
"""Who keeps the others waiting, and what is only transfer: simulated runs whose truth is known."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import analyzers
from grademl_otel import semconv as sc
from grademl_otel.analyzers.cli.app import run as run_command
from grademl_otel.analyzers.diagnosis import communication, compute, stragglers
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.diagnosis.finding import CRITICAL, WARNING, Finding, Judgement
from grademl_otel.analyzers.diagnosis.lateness import (
    CHANGING,
    NOW_AND_THEN,
    STEADY,
    behind_others,
    chance_of,
    lateness,
    of_all_steps,
)
from grademl_otel.analyzers.errors import EXIT_NOTHING_FOUND
from grademl_otel.analyzers.graph import run_path
from grademl_otel.analyzers.graph.ranks import COLLECTIVES, Comparison, compare_ranks
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.facts import Scope
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.reporting import tables
from grademl_otel.analyzers.reporting.document import EndedInfo
from grademl_otel.analyzers.reporting.header import waiting_in_vain
from tests.support.build import R, S, raw_attributes, run_from, run_of
from tests.support.synthetic import MS, Training, simulate

TOGETHER = Training(
    ranks=4, epochs=1, steps_per_epoch=24, workers=0, fetch_ns=0, collate_ns=0, handoff_ns=0,
    forward_ns=50 * MS, backward_ns=50 * MS, optimizer_ns=0, tail_ns=0, allreduce_ns=5 * MS, eval_batches=0,
)  # fmt: skip


def training(**changes: object) -> Training:
    return Training(**{**vars(TOGETHER), **changes})  # type: ignore[arg-type]


def evidence(finding: Finding) -> dict[str, float]:
    return {one.signal: one.value for one in finding.evidence}


def named(run: Run) -> Finding:
    (finding,) = stragglers.judge(run).findings
    return finding


# --- traceml#252: a slow backward is equally long on all ranks ---------------------------------------------


@pytest.mark.parametrize(("how", "transfer"), [({"explicit": True}, 5), ({"buckets": 5}, 1)])
def test_a_rank_that_computes_longer_is_named(how: dict[str, object], transfer: int) -> None:
    """Computing takes 100, 300, 100, 100 ms; all leave the all-reduce together, at 305 ms (or 301)."""
    found = diagnose(run_of(training(compute_scale={1: 3.0}, **how)))
    (finding,) = found.findings
    assert (finding.id, finding.severity, finding.where.ranks) == (stragglers.RULE, CRITICAL, [1])
    signals, step = evidence(finding), 300 + transfer
    assert signals["ranks.lost.share"] == pytest.approx(200 / step)  # 65.6 % of 305 ms
    assert signals["arrives.late"] == 200 * MS
    assert (signals["forward.more"], signals["backward.more"]) == (100 * MS, 100 * MS)
    assert signals["others.wait.share"] == pytest.approx(200 / step)
    assert finding.gain is not None
    assert finding.gain.interval == (0.0, pytest.approx(200 / step))
    assert found.verdict is not None
    assert found.verdict.lines[0] == (
        "Rank 1 (of 4) arrives last in 21 of 21 steps, 200 ms after the others: its backward and its forward."
    )
    assert found.verdict.lines[1].endswith("they are not slow themselves.")
    assert [one.rule for one in found.abstained] == ["input.storage"]


def test_a_backward_alone_names_nobody_and_calls_nobody_balanced() -> None:
    """The same with one span `backward` a rank, equally long on all: not observable."""
    run = run_of(training(more_ns={(1, sc.BACKWARD): 200 * MS}))
    found = diagnose(run)
    assert found.findings == []
    (doubt,) = [one for one in found.abstained if one.rule == stragglers.RULE]
    assert "not observable" in doubt.missing
    assert found.verdict is not None
    assert found.verdict.id == "not_observable"
    assert not any("sets the pace" in line for line in found.verdict.lines)


def test_a_rank_that_waits_for_its_data_is_named() -> None:
    """Fetching takes 10, 10, 200, 10 ms, computing 90; the all-reduce ends at 295 ms on all."""
    slow = training(
        fetch_ns=10 * MS, fetch_scale={2: 20.0}, forward_ns=45 * MS, backward_ns=45 * MS, explicit=True
    )
    found = diagnose(run_of(slow))
    finding = found.findings[0]
    assert (finding.id, finding.severity, finding.where.ranks) == (stragglers.RULE, CRITICAL, [2])
    assert evidence(finding)["ranks.lost.share"] == pytest.approx(190 / 295)  # 64.4 %
    assert evidence(finding)["data.wait.more"] == 190 * MS
    assert "data loader of rank 2" in finding.fix[0]
    assert found.verdict is not None
    assert found.verdict.lines[0].endswith("190 ms after the others: its data.wait.")
    # The loader rule says the same of that rank; the collective of the others is held against nobody.
    assert {one.id: one.where.ranks for one in found.findings} == {stragglers.RULE: [2], "input.loader": [2]}


@pytest.mark.parametrize("torch", ["2.6.0+cu124", "2.14.1", "nightly"])
def test_a_metric_that_is_averaged_does_not_show_what_backward_waited_for(torch: str) -> None:
    """Without hooks only the program's own all-reduce is seen: backward has brought all ranks together."""
    slow = training(explicit=True, barrier_first=True, more_ns={(1, sc.BACKWARD): 200 * MS}, torch=torch)
    found = diagnose(run_of(slow))
    assert found.findings == []
    (doubt,) = [one for one in found.abstained if one.rule == stragglers.RULE]
    assert "not observable" in doubt.missing
    assert found.verdict is not None
    assert found.verdict.id == "not_observable"


@pytest.mark.parametrize("how", [{"explicit": True}, {"buckets": 5}])
def test_of_alike_ranks_nothing_is_said(how: dict[str, object]) -> None:
    judgement = stragglers.judge(run_of(training(**how)))
    assert (judgement.findings, judgement.abstained, judgement.verdict) == ([], [], None)


# --- Who, how often, how much ------------------------------------------------------------------------------


def compared(
    late: list[list[int]], length: int = 100 * MS, own: dict[str, list[list[int]]] | None = None
) -> Comparison:
    table = np.array(late, np.int64)
    return Comparison(
        source=COLLECTIVES,
        ranks=list(range(table.shape[1])),
        step=np.arange(len(table)),
        late=table - table.min(axis=1, keepdims=True),
        length=np.full(table.shape, length),
        own={name: np.array(ns) for name, ns in (own or {}).items()},
        wait=None,
        transfer=None,
        overlapped=None,
    )


def test_two_late_ranks_are_one_cause() -> None:
    """Repairing one of them gains nothing: the other is as late."""
    found = lateness(compared([[0, 30 * MS, 1 * MS, 30 * MS, 0]] * 20))
    assert found is not None
    assert (found.pattern, found.ranks, found.last) == (STEADY, [1, 3], 20)
    assert found.gain == pytest.approx(0.29)  # up to the next, who is 1 ms late


def test_what_a_repair_gains_goes_by_the_next_slowest() -> None:
    found = lateness(compared([[0, 0, 20 * MS, 50 * MS]] * 20))
    assert found is not None
    assert found.ranks == [3]
    assert found.late_ns == 50 * MS
    assert found.gain == pytest.approx(0.30)


def test_a_fast_rank_keeps_nobody_waiting() -> None:
    assert lateness(compared([[40 * MS, 40 * MS, 40 * MS, 0]] * 20)) is None


def test_few_long_pauses_of_one_rank() -> None:
    late = [[0, 0, 0, 0]] * 18 + [[900 * MS, 0, 0, 0]] * 2
    found = lateness(compared(late, own={sc.CHECKPOINT_SAVE: [[0] * 4] * 18 + [[900 * MS, 0, 0, 0]] * 2}))
    assert found is not None
    assert (found.pattern, found.ranks, found.last) == (NOW_AND_THEN, [0], 2)
    assert [(cause.phase, cause.more_ns) for cause in found.causes] == [(sc.CHECKPOINT_SAVE, 900 * MS)]
    assert found.gain == pytest.approx(0.9)


def test_another_rank_is_last_from_step_to_step() -> None:
    found = lateness(
        compared([[30 * MS if rank == step % 4 else 0 for rank in range(4)] for step in range(21)])
    )
    assert found is not None
    assert (found.pattern, found.ranks, found.last) == (CHANGING, [0], 6)
    assert found.gain == pytest.approx(0.3 * 3 / 4)


def test_less_than_the_clocks_are_off_is_no_lateness() -> None:
    table = compared([[0, 30 * MS]] * 20)
    assert lateness(table, 29 * MS) is not None
    assert lateness(table, 30 * MS) is None


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_ranks_are_interchangeable(data: st.DataObject) -> None:
    """Other names for the ranks, or a time at which all are later: the same ranks, steps and gain."""
    ranks = data.draw(st.integers(2, 6))
    row = st.lists(st.integers(0, 10**8), min_size=ranks, max_size=ranks, unique=True)
    late = data.draw(st.lists(row, min_size=1, max_size=12))
    names = data.draw(st.permutations(range(ranks)))
    there = [[step[names.index(rank)] + 7 * MS for rank in range(ranks)] for step in late]
    one, other = lateness(compared(late)), lateness(compared(there))
    if one is None or other is None or one.pattern == CHANGING:
        assert (one is None) == (other is None)
        return
    assert {names[rank] for rank in one.ranks} == set(other.ranks)
    assert (one.pattern, one.last) == (other.pattern, other.last)
    assert one.gain == pytest.approx(other.gain)
    # No repair gains more than what the last is late against the first.
    assert one.gain <= sum(max(step) - min(step) for step in late) / (100 * MS * len(late)) + 1e-9


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(2, 4)
)
def test_after_the_others_is_after_their_median(late: list[list[int]], ranks: int) -> None:
    table = compared([row[:ranks] for row in late])
    for step, row in enumerate(table.late.tolist()):
        for rank, own in enumerate(row):
            others = row[:rank] + row[rank + 1 :]
            assert behind_others(table)[step, rank] == own - median(others)


def test_a_gain_of_some_steps_is_brought_to_all() -> None:
    """In the steps in detail the rank is 30 ms late, in all of them 20 on average: two thirds of the gain."""
    every = compared([[0, 30 * MS], [0, 10 * MS]] * 10)
    some = every.of_steps_in(replace(every, step=np.arange(0, 20, 2)))
    late = lateness(some)
    assert late is not None
    assert late.gain == pytest.approx(0.3)
    assert of_all_steps(late, every, some).gain == pytest.approx(0.2)
    assert of_all_steps(late, every, every) == late
    other = compared([[30 * MS, 0]] * 20)  # which says that it is another rank
    assert of_all_steps(late, other, some) == late


def test_chance_is_the_binomial_tail() -> None:
    for last, steps, group, ranks in (
        (20, 20, 1, 2),
        (5, 20, 1, 4),
        (9, 10, 2, 5),
        (0, 5, 1, 3),
        (3, 3, 2, 2),
    ):
        p = Fraction(group, ranks)
        tail = sum(comb(steps, k) * p**k * (1 - p) ** (steps - k) for k in range(last, steps + 1))
        assert chance_of(last, steps, group, ranks) == pytest.approx(
            min(1.0, float(tail) * comb(ranks, group))
        )
    assert chance_of(100_000, 100_000, 1, 2) == 0.0
    assert all(chance_of(k, 50, 1, 4) >= chance_of(k + 1, 50, 1, 4) for k in range(50))


def step_of(ranks: int, rank: int, step: int, start: int, issue: int, end: int) -> list[S]:
    """A step of a rank with an all-reduce from ``issue`` to its end."""
    name, resource = f"{rank}.{step}", {sc.RANK: rank}
    lane = {sc.LANE: "main", sc.STEP_NUMBER: step}
    key = {sc.COLLECTIVE_KEY: f"0:{step}", sc.COLLECTIVE_SIZE: ranks, sc.COLLECTIVE_COMPLETED: True}
    kind = {**lane, sc.STEP_KIND: "train"}
    return [
        S(name, start, end, None, sc.STEP, attributes=kind, resource=resource),
        S(f"c{name}", issue, end, name, sc.COLLECTIVE, attributes={**lane, **key}, resource=resource),
    ]


# --- Causes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"explicit": True}, {"buckets": 4}])
@pytest.mark.parametrize("phase", [sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER])
def test_the_phase_that_makes_a_rank_late(phase: str, how: dict[str, object]) -> None:
    finding = named(run_of(training(more_ns={(3, phase): 60 * MS}, **how)))
    assert finding.where.ranks == [3]
    assert evidence(finding)[f"{phase}.more"] == pytest.approx(60 * MS, abs=1)
    assert not [
        signal for signal in evidence(finding) if signal.endswith(".more") and not signal.startswith(phase)
    ]


def test_without_detail_the_first_collective_of_each_step_tells() -> None:
    short = training(
        forward_ns=5 * MS, backward_ns=5 * MS, buckets=4, more_ns={(3, sc.FORWARD): 6 * MS}, detail_level=40
    )
    found = diagnose(run_of(short))
    finding = found.findings[0]
    assert (finding.id, finding.where.ranks) == (stragglers.RULE, [3])
    assert finding.gain is None  # how late it is after the first collective is not known
    assert evidence(finding)["forward.more"] == pytest.approx(6 * MS, abs=2_000)
    assert found.verdict is not None
    assert found.verdict.lines[0].endswith("6.0 ms after the others: its forward.")
    # Late within backward, after the first bucket: that is not seen, and said.
    hidden = stragglers.judge(run_of(replace(short, more_ns={}, compute_scale={}, buckets=1)))
    assert [one.rule for one in hidden.abstained] == [stragglers.RULE]
    assert "no step has its collectives on all ranks" in hidden.abstained[0].missing


def test_what_one_rank_does_between_its_steps() -> None:
    """Rank 0 saves for 400 ms after every tenth step, the other waits in the next all-reduce."""
    rows, spans, scopes = [], [], []
    for rank in (0, 1):
        at = 0
        for step in range(40):
            pause = 400 * MS if step % 10 == 9 else 0
            start, end = at + (pause if rank == 0 else 0), at + pause + 50 * MS
            if pause and rank == 0:
                scopes.append(Scope(sc.CHECKPOINT_SAVE, 0, at, at + pause, 0, {sc.LANE: "main"}))
            issue = start + 40 * MS
            spans += step_of(2, rank, step, start, issue, end)
            said: dict[str, Any] = {"attributes": {sc.LANE: "main"}, "resource": {sc.RANK: rank}}
            spans.append(S(f"f{rank}.{step}", start, issue, f"{rank}.{step}", sc.FORWARD, **said))
            table = {sc.FORWARD: (start, 40 * MS, 1), sc.COLLECTIVE: (issue, end - issue, 1)}
            rows.append(R(start, end, step, rank, phases=table))
            at = end
    run = run_from(rows, 0, rows[-1].end, spans=spans, scopes=scopes)
    judgement = stragglers.judge(run)
    (finding,) = judgement.findings
    assert (finding.where.ranks, finding.severity) == ([0], WARNING)
    assert evidence(finding)["checkpoint.save.more"] == 400 * MS
    assert judgement.verdict is not None
    assert judgement.verdict.lines[0] == (
        "Rank 0 (of 2) keeps the others waiting now and then: in 4 of 37 steps, 400 ms after the others:"
        " its checkpoint.save."
    )


def test_ranks_with_unequal_batches_are_out_of_balance() -> None:
    """Each step another rank has 60 ms more to do."""
    rows, spans = [], []
    for rank in range(4):
        for step in range(24):
            start = step * 100 * MS
            issue, end = start + (90 if step % 4 == rank else 30) * MS, start + 100 * MS
            spans += step_of(4, rank, step, start, issue, end)
            rows.append(R(start, end, step, rank, phases={sc.COLLECTIVE: (issue, end - issue, 1)}))
    judgement = stragglers.judge(run_from(rows, 0, 2400 * MS, spans=spans))
    (finding,) = judgement.findings
    assert (finding.id, finding.severity, finding.where.ranks) == (
        stragglers.IMBALANCE,
        CRITICAL,
        [0, 1, 2, 3],
    )
    assert evidence(finding)["ranks.wait.share"] == pytest.approx(0.45)
    assert judgement.verdict is not None
    assert "wait for the slowest of them 45 % of each step" in judgement.verdict.lines[0]


# --- What cannot be said -----------------------------------------------------------------------------------


def lost(training: Training, *ranks: int) -> Run:
    simulated = simulate(training)
    return run_of(
        replace(simulated, spans=[(rank, span) for rank, span in simulated.spans if rank not in ranks])
    )


def test_with_a_rank_missing_the_last_that_was_seen_is_no_culprit() -> None:
    run = lost(training(explicit=True, fetch_scale={}, more_ns={(1, sc.FORWARD): 60 * MS}), 3)
    judgement = stragglers.judge(run)
    assert judgement.findings == []
    (doubt,) = judgement.abstained
    assert doubt.missing.startswith("only 3 of 4 ranks are here")


def test_on_a_device_the_issue_is_not_the_arrival() -> None:
    run = run_of(training(buckets=4, more_ns={(3, sc.FORWARD): 60 * MS}))
    on_device = replace(run, device="cuda:0", spans=_incomplete(run.spans))
    judgement = stragglers.judge(on_device)
    assert judgement.findings == []
    assert "cuda:0 is not recorded" in judgement.abstained[0].missing


def _incomplete(spans: SpanColumns) -> SpanColumns:
    """Spans with attributes as they are where the ends of collectives are not observed."""
    said = [spans.attributes(ix) for ix in range(len(spans))]
    given = [
        {**one, sc.COLLECTIVE_COMPLETED: False} if sc.COLLECTIVE_COMPLETED in one else one for one in said
    ]
    return replace(spans, raw_attributes=raw_attributes(given))


def test_what_was_not_measured_is_not_judged() -> None:
    """At level 2 there are waits for data and the bounds of steps, and no collectives."""
    rows = [R(step * MS, (step + 1) * MS, step, rank, level=2) for rank in (0, 1) for step in range(40)]
    judgement = stragglers.judge(run_from(rows, 0, 40 * MS))
    assert judgement.findings == []
    assert [one.missing for one in judgement.abstained] == ["recorded at level 2"]


def test_what_is_inferred_is_a_warning_without_a_gain() -> None:
    """Nothing but phases: rank 2 begins backward 60 ms after the others, and all end together."""
    judgement = stragglers.judge(run_of(training(more_ns={(2, sc.FORWARD): 60 * MS})))
    (finding,) = judgement.findings
    assert (finding.where.ranks, finding.severity, finding.gain) == ([2], WARNING, None)
    assert evidence(finding)["forward.more"] == 60 * MS
    assert judgement.verdict is not None
    assert "is inferred" in judgement.verdict.lines[1]


def test_waiting_for_nobody_in_particular_is_no_computing() -> None:
    """Two ranks, one of them last in 12 of 20 steps: that may be chance, and is not called balance either."""
    rows, spans = [], []
    for rank in (0, 1):
        for step in range(23):
            late = rank == (0 if step % 5 < 3 else 1)
            start, end = step * 100 * MS, (step + 1) * 100 * MS
            issue = end - (5 * MS if late else 45 * MS)
            spans += step_of(2, rank, step, start, issue, end)
            rows.append(R(start, end, step, rank, phases={sc.COLLECTIVE: (issue, end - issue, 1)}))
    found = diagnose(run_from(rows, 0, 2300 * MS, spans=spans))
    assert [one.id for one in found.findings] == [stragglers.IMBALANCE]
    only = compute.judge(run_from(rows, 0, 2300 * MS, spans=spans))
    assert only.findings == []
    assert only.verdict is not None
    assert only.verdict.lines == ["The ranks wait for each other 20 % of each step; for which is not known."]


def test_ranks_that_do_not_train_together_are_not_compared() -> None:
    """Backward ends when it ends: nothing says that one waits for the other."""
    rows = []
    for rank, length in ((0, 100 * MS), (1, 130 * MS)):
        for step in range(30):
            start = step * length
            rows.append(
                R(start, start + length, step, rank, phases={sc.BACKWARD: (start, length - 10 * MS, 1)})
            )
    judgement = stragglers.judge(run_from(rows, 0, 3900 * MS))
    assert judgement.findings == []
    assert "not observable" in judgement.abstained[0].missing


Part = tuple[int, int, str, int, str]
"""Issue and end in ms since the step should begin, group, members, operation."""


def steps_with(parts_of: list[list[Part]], steps: int = 30, detail: bool = True) -> Run:
    """Return a run whose ranks do the same in each step of 100 ms: ``parts_of`` each of them."""
    rows, spans = [], []
    for rank, parts in enumerate(parts_of):
        where = {sc.RANK: rank}
        for step in range(steps):
            begin = (step + 1) * 100 * MS
            start, end = begin + min(0, parts[0][0]) * MS, begin + (100 + min(0, parts[0][0])) * MS
            lane, name = {sc.LANE: "main", sc.STEP_NUMBER: step}, f"{rank}.{step}"
            kind = {**lane, sc.STEP_KIND: "train"}
            spans.append(S(name, start, end, None, sc.STEP, attributes=kind, resource=where))
            for place, (issue, over, group, members, op) in enumerate(parts):
                said = {
                    **lane,
                    sc.COLLECTIVE_KEY: f"{group}:{step}",
                    sc.COLLECTIVE_SIZE: members,
                    sc.COLLECTIVE_OP: op,
                    sc.COLLECTIVE_COMPLETED: True,
                }
                at, until = begin + issue * MS, begin + over * MS
                own = f"{name}.{place}"
                spans.append(S(own, at, until, name, sc.COLLECTIVE, attributes=said, resource=where))
            busy = sum(over - issue for issue, over, *_ in parts) * MS
            first = begin + parts[0][0] * MS
            rows.append(R(start, end, step, rank, phases={sc.COLLECTIVE: (first, busy, len(parts))}))
    return run_from(rows, 0, (steps + 2) * 100 * MS, spans=spans if detail else [])


def test_stages_of_a_pipeline_in_balance_are_not_late() -> None:
    """Each waits half of the time for the other; the first sends when it has computed."""
    stages: list[list[Part]] = [
        [(20, 21, "forward", 2, "send"), (21, 71, "backward", 2, "recv")],
        [(-29, 21, "forward", 2, "recv"), (70, 71, "backward", 2, "send")],
    ]
    judgement = stragglers.judge(steps_with(stages))
    assert judgement == Judgement([], [])


def test_a_rank_keeps_only_those_waiting_that_it_meets() -> None:
    """Rank 3 is late in its group of four; the pair beside it never meets the four."""
    four: list[Part] = [(60, 92, "four", 4, "all_reduce")]
    late: list[Part] = [(90, 92, "four", 4, "all_reduce")]
    pair: list[Part] = [(90, 92, "pair", 2, "all_reduce")]
    finding = named(steps_with([four, four, four, late, pair, pair]))
    assert finding.where.ranks == [3]
    # By way of others they do, even where the rank that waits has a group in common with each.
    joined: list[Part] = [(10, 92, "four", 4, "all_reduce"), (92, 93, "both", 2, "all_reduce")]
    other: list[Part] = [(90, 92, "pair", 2, "all_reduce"), (92, 93, "both", 2, "all_reduce")]
    (found, *_) = compare_ranks(steps_with([joined, four, four, late, other, pair]))
    assert found.late[0].tolist() == [0, 50 * MS, 50 * MS, 80 * MS, 80 * MS, 80 * MS]


def test_who_comes_late_to_the_first_collective_and_costs_nobody_time() -> None:
    """Rank 1 is long in forward and catches up: where the ranks wait they come together."""
    last: Part = (90, 92, "last", 2, "all_reduce")
    parts: list[list[Part]] = [[(at, at + 1, "first", 2, "gather"), last] for at in (40, 70)]
    judgement = stragglers.judge(steps_with(parts))
    assert judgement.findings == []
    assert "nobody is seen to wait for it" in judgement.abstained[0].missing


def test_hosts_without_a_common_collective_cannot_be_compared() -> None:
    run = run_of(
        training(forward_ns=5 * MS, backward_ns=5 * MS, buckets=2, detail_level=40, skew_ns={2: 90 * MS})
    )
    judgement = stragglers.judge(run)
    assert judgement.findings == []
    assert "nothing ties the clock of node-2" in judgement.abstained[0].missing


@pytest.mark.parametrize("skew", [{3: -70 * MS, 1: 300 * MS}, {2: 5000 * MS}])
def test_the_barrier_of_backward_needs_no_common_clock(skew: dict[int, int]) -> None:
    """Nothing ties the hosts, but each rank's own clock tells how long it was in backward."""
    run = run_of(training(more_ns={(3, sc.FORWARD): 60 * MS}, skew_ns=skew))
    assert not run.clocks.tell(run.ranks, 200 * MS)  # type: ignore[union-attr]
    finding = named(run)
    assert (finding.where.ranks, finding.severity, finding.gain) == ([3], WARNING, None)
    assert evidence(finding)["arrives.late"] == 60 * MS
    assert evidence(finding)["forward.more"] == 60 * MS


@pytest.mark.parametrize("skew", [{}, {3: 5000 * MS}, {3: -70 * MS, 1: 300 * MS}])
def test_clocks_of_hosts_change_nothing(skew: dict[int, int]) -> None:
    finding = named(run_of(training(buckets=4, more_ns={(3, sc.FORWARD): 60 * MS}, skew_ns=skew)))
    assert finding.where.ranks == [3]
    assert evidence(finding)["arrives.late"] == pytest.approx(60 * MS, abs=1)


def test_ends_before_arrivals_are_no_ground() -> None:
    run = run_of(training(explicit=True, more_ns={(3, sc.FORWARD): 60 * MS}))
    one = np.flatnonzero(run.spans.name_ix == run.spans.names.index(sc.COLLECTIVE))[::4]
    end = run.spans.end.copy()
    end[one] = run.spans.start[one] + 1
    judgement = stragglers.judge(replace(run, spans=replace(run.spans, end=end)))
    assert judgement.findings == []
    assert "end before their last member has arrived" in judgement.abstained[0].missing


# --- The path says the same --------------------------------------------------------------------------------

RECORDED: dict[str, dict[str, object]] = {
    "blocking": {"explicit": True},
    "buckets": {"buckets": 4},
    "buckets, some in detail": {"buckets": 4, "detail_level": 1},
    "blocking, tables alone": {"explicit": True, "detail_level": 40},
    "buckets, tables alone": {"buckets": 4, "detail_level": 40},
    "nothing": {},
}


def short(**changes: object) -> Training:
    """Steps of 14 ms and more, that tables alone can tell of."""
    return training(forward_ns=5 * MS, backward_ns=8 * MS, allreduce_ns=1 * MS, **changes)


@pytest.mark.parametrize("how", RECORDED)
@pytest.mark.parametrize("phase", [sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER])
def test_findings_and_path_name_the_same(how: str, phase: str) -> None:
    run = run_of(short(more_ns={(2, phase): 12 * MS}, **RECORDED[how]))
    path = run_path(run)
    work: Counter[int | None] = Counter()
    for section in path.sections:
        if section.phase in (sc.FORWARD, sc.BACKWARD, sc.OPTIMIZER):
            work[section.rank] += section.duration
    judgement = stragglers.judge(run)
    if how == "nothing" and phase == sc.BACKWARD:
        # Equally long on all: the path stays where it is, and nobody is named.
        assert judgement.findings == []
        assert "not observable" in judgement.abstained[0].missing
        assert list(work) == [max(run.ranks, key=lambda rank: (run.rank_bounds[rank][1], -rank))]
        return
    if how == "buckets, tables alone" and phase == sc.BACKWARD:
        # By a quarter of it the rank is late for the first of them: the path goes by it, the rule names it.
        assert {rank for one in judgement.findings for rank in one.where.ranks} <= {2}
    else:
        assert [one.where.ranks for one in judgement.findings] == [[2]]
    assert work[2] > 0.9 * sum(work.values())
    guessed = how == "nothing" or "tables" in how
    ways = {s.entered_by.evidence for s in path.sections if s.entered_by.edge == "collective"}
    if "some" not in how:
        assert ways <= ({"inferred"} if guessed else {"observed"})
    if guessed:
        assert CRITICAL not in [one.severity for one in judgement.findings]


@pytest.mark.parametrize("how", RECORDED)
def test_of_alike_ranks_the_path_follows_none_for_what_is_inferred(how: str) -> None:
    run = run_of(short(**RECORDED[how]))
    assert stragglers.judge(run).findings == []
    if how == "nothing" or "tables" in how:
        assert len({section.rank for section in run_path(run).sections}) == 1


def test_without_inference_nothing_calls_computing_what_may_be_waiting() -> None:
    run = run_of(short(**RECORDED["buckets, tables alone"]))
    for inferred, verdict in ((True, "compute.bound"), (False, "not_observable")):
        found = diagnose(run, inferred)
        assert found.verdict is not None
        assert found.verdict.id == verdict
        doubts = [one.missing for one in found.abstained]
        assert inferred != any("not observable" in doubt for doubt in doubts)


@pytest.mark.parametrize("allreduce", [1, 40])
def test_transfers_are_on_the_path_as_far_as_they_are_found(allreduce: int) -> None:
    run = run_of(training(explicit=True, allreduce_ns=allreduce * MS))
    path = run_path(run)
    moved = sum(s.duration for s in path.sections if s.kind == "transfer")
    share = moved / path.total_ns
    findings = communication.judge(run).findings
    assert bool(findings) == (allreduce == 40)
    assert share == pytest.approx(allreduce * 24 * MS / path.total_ns)
    if findings:
        found = evidence(findings[0])["collective.transfer.share"]
        assert share == pytest.approx(found, rel=0.15)  # of the run, where the other is of its steady steps


# --- Communication -----------------------------------------------------------------------------------------


def test_transfers_that_nothing_overlaps() -> None:
    run = run_of(training(explicit=True, allreduce_ns=50 * MS))
    found = diagnose(run)
    assert [one.id for one in found.findings] == [communication.RULE, "compute.bound"]
    finding = found.findings[0]
    assert finding.severity == CRITICAL
    signals = evidence(finding)
    assert signals["collective.transfer.share"] == pytest.approx(1 / 3)
    assert (signals["collectives"], signals["collective.bytes"]) == (1, 1_000_000)
    assert found.verdict is not None
    assert found.verdict.lines[0].startswith(
        "Communication takes 33 % of each step: 50 ms that nothing overlaps"
    )


def test_transfers_beside_computing_cost_nothing() -> None:
    """40 of 50 ms are under way while backward computes; the last 10 ms are 9 % of the step."""
    assert communication.judge(run_of(training(buckets=5, allreduce_ns=50 * MS))).findings == []


def test_waiting_for_a_slow_rank_is_no_communication() -> None:
    run = run_of(training(explicit=True, compute_scale={1: 3.0}))
    assert communication.judge(run).findings == []
    assert [one.id for one in diagnose(run).findings] == [stragglers.RULE]


# --- In the report -----------------------------------------------------------------------------------------


def test_ranks_in_the_report(tmp_path: Path) -> None:
    simulate(training(buckets=5, compute_scale={1: 3.0})).write_store(tmp_path)
    document = analyzers.report(tmp_path)
    assert document.ranks is not None
    assert (document.ranks.source, document.ranks.evidence, document.ranks.steps) == (
        COLLECTIVES,
        "observed",
        21,
    )
    for entry in document.ranks.ranks:
        assert entry.wait_ns is not None
        assert entry.transfer_ns is not None
        # What a rank did, waited and transferred is all of its step.
        own = sum(phase.ns for phase in entry.own)
        assert own + entry.wait_ns + entry.transfer_ns == pytest.approx(entry.step_ns, abs=3)
    slow = document.ranks.ranks[1]
    assert (slow.rank, slow.late_ns, slow.last_steps, slow.wait_ns) == (1, 200 * MS, 21, 0)
    assert [(phase.phase, phase.ns) for phase in slow.own] == [("backward", 150 * MS), ("forward", 150 * MS)]
    text = analyzers.render(document)
    assert "VERDICT  Rank 1 (of 4) arrives last in 21 of 21 steps" in text
    lines = text.splitlines()
    table = [" ".join(line.split()) for line in lines[lines.index("Ranks (means of 21 steps)") :][1:6]]
    assert table[0] == "rank step own work waits transfer overlapped late by last in"
    assert table[1] == "1 301 ms 300 ms 0 us 1.0 ms 4.0 ms 200 ms 21"
    assert [row[0] for row in table[1:]] == ["1", "0", "2", "3"]
    markdown = tables.write(document, "markdown")
    assert "## Ranks (means of 21 steps)" in markdown
    assert "| 1 | 301 ms | 300 ms | 0 us | 1.0 ms | 4.0 ms | 200 ms | 21 |" in markdown


def test_the_same_from_jaeger(tmp_path: Path) -> None:
    """Whose times are in microseconds, cut."""
    odd = training(buckets=5, compute_scale={1: 3.0001}, allreduce_ns=5 * MS + 1_237)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(simulate(odd).jaeger_v1()))
    document = analyzers.report(path)
    assert [finding.id for finding in document.findings] == [stragglers.RULE]
    assert document.findings[0].where.ranks == [1]
    assert document.ranks is not None
    assert document.ranks.source == COLLECTIVES
    assert document.ranks.ranks[0].wait_ns == pytest.approx(200 * MS, rel=0.001)


def test_alike_ranks_are_data_but_no_text(tmp_path: Path) -> None:
    simulate(training(buckets=5)).write_store(tmp_path)
    document = analyzers.report(tmp_path)
    assert document.ranks is not None
    assert [entry.late_ns for entry in document.ranks.ranks] == [0, 0, 0, 0]
    assert "Ranks (" not in analyzers.render(document)


def test_one_rank_has_no_table(tmp_path: Path) -> None:
    simulate(training(ranks=1)).write_store(tmp_path)
    document = analyzers.report(tmp_path)
    assert document.ranks is None
    assert not [one for one in document.abstained if one.rule.startswith("ranks.")]


def test_a_path_goes_by_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    """Nobody waits on it: of a collective only the transfer is on the path, and before it rank 1."""
    simulate(training(explicit=True, compute_scale={1: 3.0})).write_store(tmp_path)
    document = analyzers.critical_path(tmp_path)
    sections = document.path.sections  # type: ignore[union-attr]
    collectives = [s for s in sections if s.phase == "collective"]
    assert {(s.kind, s.end_ns - s.start_ns) for s in collectives} == {("transfer", 5 * MS)}
    assert len(collectives) == 24
    computing = [s for s in sections if s.phase in (sc.FORWARD, sc.BACKWARD)]
    assert sum(s.end_ns - s.start_ns for s in computing if s.rank == 1) == 24 * 300 * MS
    assert {s.rank for s in computing} == {1}
    assert all(one.end_ns == other.start_ns for one, other in pairwise(sections))


def test_clocks_are_in_the_document(tmp_path: Path) -> None:
    simulate(training(buckets=5, skew_ns={2: 300 * MS})).write_store(tmp_path)
    clocks = analyzers.report(tmp_path).completeness.clocks
    assert [(clock.host, clock.offset_ns, clock.applied) for clock in clocks] == [
        ("node-0", 0, False),
        ("node-2", 300 * MS, True),
    ]


@pytest.mark.parametrize(
    ("ends", "line"),
    [
        ("0 killed collective, 1 killed collective.wait, 2 killed collective, 3 killed forward",
         "ranks 0, 1, 2 were in a collective; not in it: rank 3 (in forward)"),
        ("0 unknown collective, 1 exit None, 2 killed None",
         "rank 0 was in a collective; not in it: rank 1 (ended), rank 2 (in other)"),
        ("0 killed collective, 1 killed collective", None),
        ("0 killed backward, 1 exit None", None),
        ("0 exit collective, 1 exit None", None),
    ],
)  # fmt: skip
def test_who_had_not_come_to_the_last_collective(ends: str, line: str | None) -> None:
    ended = []
    for one in ends.split(", "):
        rank, how, phase = one.split()
        ended.append(EndedInfo(int(rank), how, 5, 0, None if phase == "None" else phase, None, None))
    assert waiting_in_vain(ended) == line


def test_the_report_says_who_had_not_come(tmp_path: Path) -> None:
    dead = simulate(training(ranks=3, explicit=True, killed_at=15))
    for rank, span in dead.spans:
        for said in span["attributes"]:
            if said["key"] == sc.OPEN_PHASE and rank != 1:
                said["value"] = {"stringValue": sc.COLLECTIVE}
    dead.write_store(tmp_path)
    text = analyzers.render(analyzers.report(tmp_path))
    assert "ended  ranks 0, 2 were in a collective; not in it: rank 1 (in backward)" in text


# --- grademl ranks -----------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run_command(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_shows_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = training(ranks=12, buckets=5, compute_scale={7: 3.0}, skew_ns={7: 30_600_000})
    simulate(slow).write_store(tmp_path)
    code, text, _ = command(capsys, "ranks", str(tmp_path))
    assert code == 0
    assert "VERDICT  Rank 7 (of 12) arrives last in 21 of 21 steps" in text
    lines = text.splitlines()
    rows = lines[lines.index("Ranks (means of 21 steps)") + 2 :][:12]
    assert [int(row.split()[0]) for row in rows] == [7, *(rank for rank in range(12) if rank != 7)]
    assert "clock  node-7 +30.6 ms +- 1.0, 120 pairs" in text
    short = analyzers.render(analyzers.report(tmp_path))  # which shows the latest ones only
    assert "Ranks (means of 21 steps, the 8 latest of 12)" in short
    code, table, _ = command(capsys, "ranks", str(tmp_path), "-f", "csv")
    heading, *exact = (line.split(",") for line in table.splitlines())
    assert heading[:4] == ["rank", "step_ns", "own_ns", "wait_ns"]
    assert [int(row[3]) for row in exact] == [0 if rank == 7 else 200 * MS for rank in range(12)]
    code, text, _ = command(capsys, "ranks", str(tmp_path), "--json")
    document = json.loads(text)
    assert document["schema"] == "grademl.ranks/1"
    assert document == analyzers.to_dict(analyzers.ranks(tmp_path))
    assert document["ranks"] == analyzers.to_dict(analyzers.report(tmp_path))["ranks"]
    assert [finding["id"] for finding in document["findings"]] == [stragglers.RULE]


def test_alike_ranks_are_said_to_be_when_asked(tmp_path: Path) -> None:
    simulate(training(buckets=5)).write_store(tmp_path)
    text = analyzers.render(analyzers.ranks(tmp_path))
    assert "VERDICT  No rank keeps the others waiting for 10 % of the step or more." in text
    simulate(training(run_id="f" * 32)).write_store(tmp_path / "unseen")
    unseen = analyzers.ranks(tmp_path / "unseen")
    assert unseen.verdict is None
    assert "Not judged  ranks.straggler" in analyzers.render(unseen)
    assert "| 0 | 105 ms | 50 ms | ? | ? | ? | 0 us | 0 |" in tables.write(unseen, "markdown")


def test_a_single_rank_is_compared_with_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(training(ranks=1)).write_store(tmp_path)
    code, out, err = command(capsys, "ranks", str(tmp_path))
    assert (code, out) == (EXIT_NOTHING_FOUND, "")
    assert "nothing to compare it with" in err
    assert err.count("\n") == 1
