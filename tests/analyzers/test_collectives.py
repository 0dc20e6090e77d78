# SPDX-License-Identifier: Apache-2.0
"""Collectives joined across ranks: arrivals, waiting and transfer, and the clocks of hosts they tie."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import semconv as sc
from grademl_otel.analyzers.graph import activities, lane_budget, step_breakdown
from grademl_otel.analyzers.graph.ranks import compare_ranks
from grademl_otel.analyzers.model.collectives import Collectives, collectives_of
from grademl_otel.analyzers.model.run import Run
from tests.support.build import R, S, run_from, run_of
from tests.support.synthetic import MS, US, Training

GROUP = "0123456789abcdef"
ALL = "all_reduce"


@dataclass(frozen=True)
class C:
    """One rank's part in a collective."""

    rank: int
    number: int
    issue: int
    end: int
    op: str = ALL
    size: int = 2
    lane: str = "main"
    completed: bool = True
    host: str = "a"


def span(one: C) -> S:
    """Return ``one`` as it is recorded."""
    return S(
        f"{one.rank}-{one.number}-{one.issue}-{one.lane}",
        one.issue,
        one.end,
        name=sc.COLLECTIVE,
        attributes={
            sc.LANE: one.lane,
            sc.COLLECTIVE_KEY: f"{GROUP}:{one.number}",
            sc.COLLECTIVE_OP: one.op,
            sc.COLLECTIVE_SIZE: one.size,
            sc.COLLECTIVE_BLOCKING: one.lane == "main",
            sc.COLLECTIVE_COMPLETED: one.completed,
            sc.BYTES: 8,
        },
        resource={sc.RANK: one.rank, sc.CLOCK_ID: one.host, "host.name": one.host},
    )


def joined(parts: Sequence[C]) -> Collectives:
    high = max(part.end for part in parts) + 1
    rows = [R(0, high, rank=rank) for rank in sorted({part.rank for part in parts})]
    return collectives_of(run_from(rows, 0, high, spans=[span(part) for part in parts]))


def waits(found: Collectives) -> dict[tuple[int, int], tuple[int, int]]:
    """(rank, issue) -> (wait, transfer)."""
    return {
        (int(found.rank[ix]), int(found.issue[ix])): (int(found.wait[ix]), int(found.transfer[ix]))
        for ix in range(len(found))
    }


def test_the_last_to_arrive_does_not_wait() -> None:
    found = joined([C(rank, 7, at, 305, size=4) for rank, at in enumerate((100, 300, 100, 120))])
    assert waits(found) == {(0, 100): (200, 5), (1, 300): (0, 5), (2, 100): (200, 5), (3, 120): (180, 5)}
    assert found.apart.all()
    assert found.violations == 0


def test_without_a_member_or_an_end_nothing_is_told_apart() -> None:
    missing = joined([C(0, 1, 10, 90, size=3), C(1, 1, 50, 90, size=3)])
    assert missing.present.tolist() == [2, 2]
    assert not missing.apart.any()
    unseen = joined([C(0, 1, 10, 12, completed=False), C(1, 1, 50, 90)])
    assert unseen.apart.tolist() == [False, True]
    assert waits(unseen)[1, 50] == (0, 40)


def test_who_leaves_before_the_last_comes_did_not_wait_for_it() -> None:
    """The sender is through before the receiver asks; the root of a broadcast waits for nobody."""
    found = joined([C(0, 1, 100, 120, "send"), C(1, 1, 500, 540, "recv")])
    assert waits(found) == {(0, 100): (0, 20), (1, 500): (0, 40)}
    found = joined([C(0, 1, 100, 120, "send"), C(1, 1, 40, 130, "recv")])
    assert waits(found) == {(0, 100): (0, 20), (1, 40): (60, 30)}
    found = joined(
        [
            C(0, 1, 200, 210, "broadcast", 3),
            C(1, 1, 50, 220, "broadcast", 3),
            C(2, 1, 400, 410, "broadcast", 3),
        ]
    )
    assert waits(found) == {(0, 200): (0, 10), (1, 50): (150, 20), (2, 400): (0, 10)}
    assert found.violations == 0


def test_an_end_before_the_last_arrival_is_counted() -> None:
    found = joined([C(0, 1, 0, 50_000), C(1, 1, 90_000, 95_000)])
    assert found.violations == 1
    assert waits(found)[0, 0] == (50_000, 0)


def test_spans_without_a_key_have_no_partners() -> None:
    lost = S("x", 5, 9, name=sc.COLLECTIVE, attributes={sc.COLLECTIVE_SIZE: "two"}, resource={sc.RANK: 0})
    run = run_from([R(0, 100)], 0, 100, spans=[lost])
    found = collectives_of(run)
    assert (len(found), found.apart.any(), found.row.tolist()) == (1, False, [0])


def test_a_run_without_collectives_has_none() -> None:
    assert len(collectives_of(run_from([R(0, 100)], 0, 100))) == 0


# --- Properties --------------------------------------------------------------------------------------------


@st.composite
def exchanges(draw: st.DrawFn) -> list[C]:
    """Collectives of 2 to 5 ranks, of equals and one-sided, whole or not, all ends as they can be."""
    ranks = draw(st.integers(2, 5))
    parts = []
    for number in range(draw(st.integers(1, 5))):
        op = draw(st.sampled_from([ALL, "barrier", "broadcast", "send"]))
        members = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=ranks, unique=True))
        issue = {rank: draw(st.integers(1, 1000)) + 10_000 * number for rank in members}
        last = max(issue.values())
        for rank in members:
            low = last if op in (ALL, "barrier") else issue[rank]
            end = low + draw(st.integers(0, 500))
            parts.append(C(rank, number, issue[rank], end, op, len(members) + draw(st.integers(0, 1))))
    return parts


def brute_force(parts: Sequence[C]) -> dict[tuple[int, int], tuple[int, int]]:
    found = {}
    for own in parts:
        arrivals = [part.issue for part in parts if part.number == own.number]
        until = max(at for at in arrivals if at <= own.end)
        found[own.rank, own.issue] = (until - own.issue, own.end - until)
    return found


@settings(max_examples=60, deadline=None)
@given(exchanges(), st.randoms(use_true_random=False), st.integers(0, 10**9))
def test_waiting_is_that_of_the_definition(parts: list[C], order: random.Random, shift: int) -> None:
    found = joined(parts)
    assert waits(found) == brute_force(parts)
    assert np.array_equal(found.wait + found.transfer, found.busy)
    assert (found.wait >= 0).all()
    assert (found.transfer >= 0).all()
    shuffled = list(parts)
    order.shuffle(shuffled)
    assert waits(joined(shuffled)) == waits(found)
    # Ranks by other names, and another time: the same waiting.
    names = list(range(5))
    order.shuffle(names)
    other = joined([C(names[p.rank], p.number, p.issue + shift, p.end + shift, p.op, p.size) for p in parts])
    renamed = {(names[rank], issue + shift): value for (rank, issue), value in waits(found).items()}
    assert waits(other) == renamed


# --- Clocks ------------------------------------------------------------------------------------------------


def meeting(
    number: int, at: dict[int, int], hosts: dict[int, tuple[str, int]], transfer: int = 40
) -> list[C]:
    """A collective to which ranks come ``at`` true times; hosts: rank -> (name, what it shows more)."""
    last = max(at.values())
    return [
        C(
            rank,
            number,
            true + hosts[rank][1],
            last + transfer + hosts[rank][1],
            size=len(at),
            host=hosts[rank][0],
        )
        for rank, true in at.items()
    ]


def test_clocks_of_one_host_are_one() -> None:
    (clock,) = joined(meeting(0, {0: 10, 1: 30}, {0: ("a", 0), 1: ("a", 0)})).clocks.clocks
    assert (clock.offset_ns, clock.error_ns, clock.applied) == (0, 0, False)


def test_another_hosts_clock_is_shifted_for_comparing() -> None:
    hosts = {0: ("a", 0), 1: ("b", 5_000_000), 2: ("b", 5_000_000)}
    parts = [
        part
        for number in range(6)
        for part in meeting(number, {0: 10_000 * number, 1: 10_000 * number + 700, 2: 10_000 * number}, hosts)
    ]
    found = joined(parts)
    _, other = found.clocks.clocks
    assert (other.host, other.offset_ns, other.applied, other.pairs) == ("b", 5_000_000, True, 6)
    assert other.error_ns == 40
    assert found.violations == 0
    assert {int(wait) for wait in found.wait[found.rank == 0]} == {700}
    assert {int(wait) for wait in found.wait[found.rank == 1]} == {0}
    assert found.issue[found.rank == 1][0] == 5_000_700  # times stay as they were recorded


def test_clocks_that_may_as_well_agree_are_not_shifted() -> None:
    found = joined(
        [p for n in range(5) for p in meeting(n, {0: 1000 * n, 1: 1000 * n + 9}, {0: ("a", 0), 1: ("b", 30)})]
    )
    assert [clock.applied for clock in found.clocks.clocks] == [False, False]
    assert found.clocks.error_ns >= 30


def test_clocks_are_tied_by_way_of_others() -> None:
    """Ranks 0 and 2 are never in one group; both are in one with rank 1."""
    hosts = {0: ("a", 0), 1: ("b", 1_000_000), 2: ("c", -2_000_000), 3: ("d", 0)}
    parts = [p for n in range(4) for p in meeting(2 * n, {0: 1000 * n, 1: 1000 * n}, hosts)]
    parts += [p for n in range(4) for p in meeting(2 * n + 1, {1: 1000 * n, 2: 1000 * n}, hosts)]
    parts += [C(3, 99, 0, 50, size=1, host="d")]
    found = joined([C(**{**vars(p), "issue": p.issue + 3_000_000, "end": p.end + 3_000_000}) for p in parts])
    clocks = {clock.host: clock for clock in found.clocks.clocks}
    assert clocks["b"].offset_ns == 1_000_000
    assert clocks["c"].offset_ns == -2_000_000
    assert clocks["c"].error_ns == 80  # each tie adds its own
    assert clocks["d"].error_ns is None
    assert not found.clocks.tied


# --- In the main lane --------------------------------------------------------------------------------------

TOGETHER = Training(
    ranks=4, epochs=1, steps_per_epoch=24, workers=0, fetch_ns=0, collate_ns=0, handoff_ns=0,
    forward_ns=50 * MS, backward_ns=50 * MS, optimizer_ns=0, tail_ns=0, allreduce_ns=5 * MS, eval_batches=0,
)  # fmt: skip


def training(**changes: object) -> Training:
    return Training(**{**vars(TOGETHER), **changes})  # type: ignore[arg-type]


def phases(run: Run, rank: int) -> dict[tuple[str, str | None], int]:
    """(phase, within) -> ns of a step."""
    found = step_breakdown(run, rank)
    return {(phase.phase, phase.within): phase.total_ns // found.steps for phase in found.phases}


def test_a_blocking_collective_splits_into_waiting_and_transfer() -> None:
    run = run_of(training(explicit=True, compute_scale={1: 3.0}))
    assert phases(run, 0) == {
        ("collective", None): 205 * MS,
        ("ranks.wait", "collective"): 200 * MS,
        ("collective.transfer", "collective"): 5 * MS,
        ("backward", None): 50 * MS,
        ("forward", None): 50 * MS,
    }
    assert phases(run, 1)["collective", None] == 5 * MS
    assert ("ranks.wait", "collective") not in phases(run, 1)
    for rank in run.ranks:
        budget = [row for row in lane_budget(run) if row.rank == rank and row.within is None]
        assert sum(row.ns for row in budget) == run.end - run.start


def test_backward_waits_for_the_last_bucket_that_it_issued() -> None:
    """Five buckets, each 10 ms of backward: those of the slow rank are issued every 30 ms."""
    run = run_of(training(buckets=5, compute_scale={1: 3.0}))
    fast, slow = phases(run, 0), phases(run, 1)
    assert fast["ranks.wait", "backward"] == 200 * MS  # from its last bucket to the last of rank 1
    assert fast["collective.transfer", "backward"] == 1 * MS
    assert fast["backward", None] == 251 * MS
    assert slow["backward", None] == 151 * MS
    assert ("ranks.wait", "backward") not in slow
    (found, by_table) = compare_ranks(run)
    assert found.overlapped is not None
    # Beside: all five from the first issue on, less what the thread stood still.
    assert (found.overlapped // len(found)).tolist() == [40 * MS, 4 * MS, 40 * MS, 40 * MS]
    assert (found.late == [0, 200 * MS, 0, 0]).all()
    # At the first bucket the rank is late by its forward and a fifth of its backward.
    assert (by_table.late // MS == [0, 120, 0, 0]).all()


def test_a_thread_that_waits_for_its_own_collective_later() -> None:
    """Issued at 10, computing until 40, then `Work.wait` until the end; the other rank arrives at 70."""
    rows, spans = [], []
    for rank, (issue, waits_at) in enumerate(((10, 40), (70, 80))):
        res, lane = {sc.RANK: rank}, {sc.LANE: "main", sc.STEP_NUMBER: 0}
        spans += [
            S(
                f"step{rank}",
                0,
                120 * MS,
                name=sc.STEP,
                attributes={**lane, sc.STEP_KIND: "train"},
                resource=res,
            ),
            S(
                f"wait{rank}",
                waits_at * MS,
                100 * MS,
                f"step{rank}",
                sc.COLLECTIVE_WAIT,
                attributes=lane,
                resource=res,
            ),
        ]
        spans.append(span(C(rank, 1, issue * MS, 100 * MS, lane="comm")))
        table = {
            sc.COLLECTIVE: (issue * MS, (100 - issue) * MS, 1),
            sc.COLLECTIVE_WAIT: (waits_at * MS, (100 - waits_at) * MS, 1),
        }
        rows.append(R(0, 120 * MS, rank=rank, phases=table))
    run = run_from(rows, 0, 120 * MS, spans=spans)
    assert activities(run).main.told.all()
    assert phases(run, 0) == {
        ("collective.wait", None): 60 * MS,
        ("ranks.wait", "collective.wait"): 30 * MS,
        ("collective.transfer", "collective.wait"): 30 * MS,
        ("other", None): 60 * MS,
    }
    assert phases(run, 1)["collective.transfer", "collective.wait"] == 20 * MS


def test_steps_without_detail_do_not_dilute_the_waiting() -> None:
    """Every second step, about, has detail; the table of the others cannot tell waiting from transfer."""
    short = training(
        forward_ns=5 * MS, backward_ns=5 * MS, allreduce_ns=1 * MS, steps_per_epoch=60, explicit=True,
        compute_scale={1: 3.0}, detail_level=1,
    )  # fmt: skip
    run = run_of(short)
    told = activities(run).main.told
    assert 0 < told.sum() < len(told)
    found = phases(run, 0)
    assert found["collective", None] == pytest.approx(21 * MS, abs=2 * US)
    assert found["ranks.wait", "collective"] == pytest.approx(20 * MS, abs=20 * US)
    assert found["collective.transfer", "collective"] == pytest.approx(1 * MS, abs=20 * US)


def test_a_table_alone_does_not_say_where_buckets_were() -> None:
    run = run_of(training(forward_ns=5 * MS, backward_ns=5 * MS, buckets=5, detail_level=40))
    assert not activities(run).main.told.any()
    assert phases(run, 0) == {("backward", None): 6 * MS, ("forward", None): 5 * MS}
