# SPDX-License-Identifier: Apache-2.0
"""The event graph of a run beyond its loader: ranks, collectives, devices, what is written beside, links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.graph import Path, run_graph, run_path
from grademl_otel.analyzers.graph.event_graph import EDGE_KINDS, EventGraph
from grademl_otel.analyzers.model.facts import Completeness, Run
from grademl_otel.analyzers.reporting.untold_waits import untold_waits
from grademl_otel.analyzers.selection import StepRange, select_steps

from ..support.build import R, S, raw_attributes, run_from, run_of
from ..support.synthetic import MS, Training

Phase = tuple[str, int, int]
"""Name, start and end in ms."""


def of_ranks(*ranks: Sequence[Phase], beside: Sequence[S] = (), **more: Any) -> Run:
    """Return one step of each rank with these phases in detail; times in ms from 0."""
    spans, rows = [], []
    ends = [max(stop for _, _, stop in phases) for phases in ranks]
    more.setdefault("bounds", {rank: (0, stop * MS) for rank, stop in enumerate(ends)})
    for rank, phases in enumerate(ranks):
        resource = {semconv.RANK: rank}
        stop = ends[rank]
        lane = {semconv.LANE: "main", semconv.STEP_NUMBER: 0}
        spans.append(S(f"s{rank}", 0, stop * MS, name="step", attributes=lane, resource=resource))
        for number, (name, start, until) in enumerate(phases):
            said = lane | (collective(name.split("#")[1]) if "#" in name else {})
            spans.append(
                S(
                    f"p{rank}.{number}", start * MS, until * MS, f"s{rank}",
                    name=name.split("#")[0], attributes=said, resource=resource,
                )
            )  # fmt: skip
        rows.append(R(0, stop * MS, rank=rank))
    return run_from(rows, 0, max(ends) * MS, spans=[*spans, *beside], **more)


def collective(key: str, size: int = 2, op: str = "all_reduce", **more: Any) -> dict[str, Any]:
    return {
        semconv.COLLECTIVE_KEY: f"group:{key}" if ":" not in key else key,
        semconv.COLLECTIVE_OP: op,
        semconv.COLLECTIVE_SIZE: size,
        semconv.COLLECTIVE_COMPLETED: True,
        semconv.COLLECTIVE_BLOCKING: True,
    } | more


def comm(key: str, rank: int, issue: int, end: int, **more: Any) -> S:
    """Return a collective beside the main lane; times in ms."""
    said = collective(key, **more) | {semconv.COLLECTIVE_BLOCKING: False, semconv.LANE: "comm"}
    return S(
        f"c{key}.{rank}", issue * MS, end * MS, f"s{rank}",
        name="collective", attributes=said, resource={semconv.RANK: rank},
    )  # fmt: skip


def saying(run: Run, more: Callable[[int], dict[str, Any]]) -> Run:
    """Return ``run`` with ``more`` attributes of each span."""
    said = [dict(run.spans.attributes(ix)) | more(ix) for ix in range(len(run.spans))]
    return replace(run, spans=replace(run.spans, raw_attributes=raw_attributes(said)))


def of_size(members: int, run: Run) -> Run:
    return saying(run, lambda ix: {semconv.COLLECTIVE_SIZE: members})


def brief(path: Path) -> list[str]:
    """Return each section as rank:lane, phase, the first letter of its kind and its times in ms."""
    return [f"{s.rank}:{s.lane} {s.phase}/{s.kind[0]} {s.start // MS}-{s.end // MS}" for s in path.sections]


def path_of(run: Run, **how: Any) -> Path:
    path, cursor = run_path(run, **how), run.start
    for section in path.sections:
        assert section.start == cursor < section.end
        cursor = section.end
    assert cursor == run.end
    return path


def lanes_of(graph: EventGraph, rank: int = 0) -> set[str]:
    used = np.unique(graph.lane)
    return {name for at, (of, name) in enumerate(graph.lanes) if of == rank and at in used}


# --- collectives ------------------------------------------------------------------------------------------

WAITING = [("forward", 0, 20), ("collective#1", 20, 60), ("optimizer", 60, 80)]
LATE = [("forward", 0, 50), ("collective#1", 50, 60), ("optimizer", 60, 70)]


def test_a_wait_in_a_collective_leads_to_the_rank_that_came_last() -> None:
    path = path_of(of_ranks(WAITING, LATE))
    assert brief(path) == [
        "1:main forward/w 0-50", "0:main collective/t 50-60", "0:main optimizer/w 60-80",
    ]  # fmt: skip
    assert [s.entered_by.edge for s in path.sections] == ["collective", "program", "program"]
    assert {s.entered_by.evidence for s in path.sections} == {"observed"}


def test_the_path_stays_with_a_rank_that_waited_for_nobody() -> None:
    late = [*LATE[:2], ("optimizer", 60, 90)]
    assert brief(path_of(of_ranks(WAITING, late))) == [
        "1:main forward/w 0-50", "1:main collective/t 50-60", "1:main optimizer/w 60-90",
    ]  # fmt: skip


def test_with_a_member_missing_nothing_leads_to_another_rank() -> None:
    path = path_of(of_size(3, of_ranks(WAITING, LATE)))
    assert {s.rank for s in path.sections} == {0}
    (together,) = (s for s in path.sections if s.phase == "collective")
    assert (together.kind, together.duration) == ("wait", 40 * MS)


def told_of(run: Run) -> list[str]:
    return [one.missing for one in untold_waits(run, run_path(run))]


def test_the_answer_says_why_the_path_does_not_tell_for_whom_a_collective_waits() -> None:
    run = of_ranks(WAITING, LATE)
    assert told_of(run) == []
    text = "50 % of the path is in collectives of which it is not told who came last: "
    assert told_of(of_size(3, run)) == [text + "of 2 that were recorded 2 lack members here"]
    unended = saying(run, lambda _: {semconv.COLLECTIVE_COMPLETED: False})
    assert told_of(unended) == [text + "of 2 that were recorded 2 have no recorded end"]
    alone = replace(run, ranks=[0], steps=run.steps.where(run.steps.rank == 0))
    (of_another,) = told_of(alone)
    assert of_another.endswith("of 1 that were recorded 1 ended by a rank left out, or that no clock tells")


def test_of_a_rank_that_is_not_looked_at_its_arrival_counts_and_its_lane_is_not_there() -> None:
    run = of_ranks(WAITING, LATE)
    alone = replace(run, ranks=[0], steps=run.steps.where(run.steps.rank == 0))
    assert brief(path_of(alone)) == [
        "0:main forward/w 0-20", "0:main collective/w 20-50", "0:main collective/t 50-60",
        "0:main optimizer/w 60-80",
    ]  # fmt: skip


def test_where_clocks_of_hosts_do_not_tell_a_wait_stays_a_wait() -> None:
    run = saying(of_ranks(WAITING, LATE), lambda _: {semconv.COLLECTIVE_OP: "broadcast"})
    hosts = [dict(resource) | {"host.name": f"h{at}"} for at, resource in enumerate(run.spans.resources)]
    path = path_of(replace(run, spans=replace(run.spans, resources=hosts)))
    assert {s.rank for s in path.sections} == {0}


def test_a_receiver_waits_for_its_sender_and_a_sender_that_left_early_for_nobody() -> None:
    def run(sent: int, left: int, came: int, done: int) -> Run:
        two = of_ranks(
            [("forward", 0, sent), ("collective#1", sent, left), ("backward", left, 80)],
            [("forward", 0, came), ("collective#1", came, done), ("backward", done, 100)],
        )
        ops = ("send", "recv")
        return saying(two, lambda ix: {semconv.COLLECTIVE_OP: ops[two.spans.resource(ix)[semconv.RANK]]})

    assert brief(path_of(run(sent=50, left=51, came=20, done=55))) == [
        "0:main forward/w 0-50", "1:main collective/t 50-55", "1:main backward/w 55-100",
    ]  # fmt: skip
    early = run_graph(run(sent=10, left=12, came=50, done=55))
    kinds = [EDGE_KINDS[kind] for kind in early.edges.kind]
    assert kinds.count("collective") == 1  # of the receiver, which waited for nothing: it was sent before
    assert not early.edges.to_end[kinds.index("collective")]


def test_four_ranks_wait_for_the_last_and_would_for_the_others() -> None:
    arrivals = [20, 50, 30, 40]
    run = of_ranks(
        *([("forward", 0, at), ("collective#1", at, 60), ("optimizer", 60, 70)] for at in arrivals)
    )
    run = of_size(4, run)
    assert brief(path_of(run))[0] == "1:main forward/w 0-50"
    edges = run_graph(run).edges
    ends = edges.where(edges.to_end)
    assert len(ends) == 3 * 3  # of each that waited
    assert sorted(set((ends.at // MS).tolist())) == [20, 30, 40, 50]
    assert len(edges) == 4 * 3  # the last would start its transfer when the second last came


# --- beside the main lane ---------------------------------------------------------------------------------


def test_what_backward_waits_for_at_its_end_leads_through_the_communication_lane() -> None:
    """Two buckets, each 20 long: the second is issued at 40 while the first is under way until 45."""
    phases = [("forward", 0, 10), ("backward", 10, 65), ("optimizer", 65, 70)]
    beside = [
        comm(key, rank, issue, end) for rank in (0, 1) for key, issue, end in (("1", 25, 45), ("2", 40, 65))
    ]
    path = path_of(of_ranks(phases, phases, beside=beside))
    assert brief(path) == [
        "0:main forward/w 0-10", "0:main backward/w 10-25", "0:comm collective/t 25-45",
        "0:comm collective/t 45-65", "0:main optimizer/w 65-70",
    ]  # fmt: skip
    edges = [s.entered_by.edge for s in path.sections]
    assert edges == ["program", "program", "program", "collective", "program"]


def test_a_bucket_that_another_rank_brings_late_leads_to_its_backward() -> None:
    phases = [("forward", 0, 10), ("backward", 10, 65), ("optimizer", 65, 70)]
    beside = [comm("1", 0, 25, 65), comm("1", 1, 60, 65)]
    path = path_of(of_ranks(phases, phases, beside=beside))
    assert brief(path) == [
        "1:main forward/w 0-10", "1:main backward/w 10-60", "0:comm collective/t 60-65",
        "0:main optimizer/w 65-70",
    ]  # fmt: skip
    graph = run_graph(of_ranks(phases, phases, beside=beside))
    assert lanes_of(graph) == {"main", "comm"}


def test_one_that_is_issued_when_backward_ends_is_what_it_waits_for() -> None:
    """The last bucket of rank 0, which came last to it, takes no time; the first is long through."""
    phases = [("forward", 0, 10), ("backward", 10, 60), ("optimizer", 60, 70)]
    beside = [comm("1", 0, 20, 40), comm("1", 1, 40, 40), comm("2", 0, 60, 60), comm("2", 1, 50, 60)]
    path = path_of(of_ranks(phases, phases, beside=beside))
    assert brief(path) == [
        "0:main forward/w 0-10", "0:main backward/w 10-60", "0:main optimizer/w 60-70",
    ]  # fmt: skip


def test_groups_and_what_overtakes_have_lanes_of_their_own() -> None:
    phases = [("forward", 0, 100)]
    beside = [comm(key, 0, issue, end, size=1) for key, issue, end in (
        ("a:1", 0, 50), ("a:2", 10, 60), ("a:3", 20, 30), ("b:1", 5, 70),
    )]  # fmt: skip
    graph = run_graph(of_ranks(phases, beside=beside))
    busy = {
        name: [
            (int(start) // MS, int(end) // MS)
            for start, end in zip(graph.start[mine], graph.end[mine], strict=True)
        ]
        for at, (_, name) in enumerate(graph.lanes)
        for mine in [graph.of_lane(at)]
    }
    assert busy == {
        "main": [(0, 100)], "comm": [(0, 50), (50, 60)], "comm-1": [(5, 70)], "comm-2": [(20, 30)],
    }  # fmt: skip


def test_collectives_that_are_through_at_the_same_time_are_one_after_the_other() -> None:
    phases = [("backward", 0, 50), ("optimizer", 50, 60)]
    beside = [comm("1", 0, 10, 50, size=1), comm("2", 0, 40, 50, size=1)]
    assert brief(path_of(of_ranks(phases, beside=beside))) == [
        "0:main backward/w 0-10", "0:comm collective/t 10-50", "0:main optimizer/w 50-60",
    ]  # fmt: skip


def test_one_whose_end_nobody_saw_is_no_activity() -> None:
    beside = [comm("1", 0, 10, 50, size=1, **{semconv.COLLECTIVE_COMPLETED: False})]
    assert lanes_of(run_graph(of_ranks([("backward", 0, 60)], beside=beside))) == {"main"}


# --- devices ----------------------------------------------------------------------------------------------


def on_a_device(steps: int, host: int, device: int, sync: bool = True) -> Run:
    """Return steps in which the host launches forward in ``host`` ms, what takes ``device`` ms there."""
    length = max(host, device) + 2
    rows = []
    for step in range(steps):
        at = step * length * MS
        phases = {
            "forward": (at, host * MS, 1),
            "device.forward": (at + MS, device * MS, 1),
        }
        if sync:
            phases["device.sync"] = (at + host * MS, (length - host) * MS, 1)
        rows.append(R(at, at + length * MS, step=step, phases=phases))
    return run_from(rows, 0, steps * length * MS)


def test_a_wait_for_the_device_leads_through_what_it_did() -> None:
    path = path_of(on_a_device(2, host=3, device=20))
    assert brief(path) == [
        "0:device device.forward/h 0-1", "0:device device.forward/w 1-21", "0:main device.sync/h 21-22",
        "0:device device.forward/h 22-23", "0:device device.forward/w 23-43", "0:main device.sync/h 43-44",
    ]  # fmt: skip
    assert {s.entered_by.edge for s in path.sections} == {"device", "program"}


def test_with_detail_what_a_device_did_several_times_in_a_step_has_its_place() -> None:
    """Two micro-batches: the table has only their sums."""
    phases = [("forward", 0, 1), ("forward", 1, 2), ("device.sync", 2, 30)]
    lane = {semconv.LANE: "stream-0.7", semconv.STEP_NUMBER: 0}
    beside = [
        S(
            f"d{at}", start * MS, end * MS, "s0", name="device.forward", attributes=lane,
            resource={semconv.RANK: 0}, links=[(f"p0.{at}", "host")],
        )
        for at, (start, end) in enumerate([(1, 15), (15, 29)])
    ]  # fmt: skip
    path = path_of(of_ranks(phases, beside=beside))
    assert brief(path) == [
        "0:stream-0.7 device.forward/h 0-1", "0:stream-0.7 device.forward/w 1-15",
        "0:stream-0.7 device.forward/w 15-29", "0:main device.sync/h 29-30",
    ]  # fmt: skip
    assert [s.span_ix is None for s in path.sections] == [True, False, False, False]


def test_a_device_that_is_done_before_it_is_waited_for_is_not_on_the_path() -> None:
    path = path_of(on_a_device(2, host=30, device=5))
    assert {s.lane for s in path.sections} == {"main"}
    assert {s.kind for s in path.sections if s.phase == "device.sync"} == {"handoff"}


def test_without_device_times_a_wait_for_the_device_is_unexplained() -> None:
    run = on_a_device(1, host=3, device=20)
    steps = replace(
        run.steps,
        **{
            part: {k: v for k, v in getattr(run.steps, part).items() if k != "device.forward"}
            for part in ("first", "busy", "count")
        },
    )
    path = path_of(replace(run, steps=steps))
    assert brief(path) == ["0:main forward/w 0-3", "0:main device.sync/u 3-22"]


# --- links, and what is left out --------------------------------------------------------------------------


def test_a_blocking_link_leads_to_the_span_that_was_waited_for() -> None:
    waiting = S(
        "w", 20 * MS, 80 * MS, "s0", name="device.sync",
        attributes={semconv.LANE: "main"}, resource={semconv.RANK: 0}, links=[("x", "blocking")],
    )  # fmt: skip
    other = S(
        "x", 10 * MS, 70 * MS, name="upload",
        attributes={semconv.LANE: "uploader"}, resource={semconv.RANK: 0},
    )  # fmt: skip
    path = path_of(of_ranks([("forward", 0, 20), ("optimizer", 80, 90)], beside=[waiting, other]))
    assert brief(path) == [
        "0:main forward/w 0-10", "0:uploader upload/w 10-70", "0:main device.sync/h 70-80",
        "0:main optimizer/w 80-90",
    ]  # fmt: skip
    assert [s.entered_by.edge for s in path.sections] == ["child", "link", "program", "program"]


def test_a_process_that_ended_early_is_nothing_afterwards() -> None:
    run = of_ranks(WAITING, LATE, bounds={0: (0, 80 * MS), 1: (0, 70 * MS)})
    graph = run_graph(run)
    mine = graph.of_lane(list(graph.lanes).index((1, "main")))
    assert graph.end[mine].max() == 70 * MS


def test_without_inferred_edges_only_what_was_observed_is_followed() -> None:
    training = Training(epochs=1, steps_per_epoch=30, eval_batches=0, workers=2, fetch_ns=40 * MS)
    run = run_of(training)
    assert {s.entered_by.evidence for s in path_of(run, inferred=False).sections} <= {"observed", "inferred"}
    assert not any(
        s.entered_by.evidence == "inferred" and s.entered_by.edge != "program"
        for s in path_of(run, inferred=False).sections
    )
    everything, observed = run_graph(run).edges, run_graph(run, inferred=False).edges
    assert len(everything) - len(observed) == 2 * 2  # the first items of the pass


# --- simulated trainings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"explicit": True}, {"buckets": 4}])
@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_rank_that_is_late_is_on_the_path_whichever_it_is(how: dict[str, Any], late: int) -> None:
    training = Training(
        ranks=3, epochs=1, steps_per_epoch=12, eval_batches=0, workers=0, fetch_ns=MS,
        compute_scale={late: 2.0}, **how,
    )  # fmt: skip
    path = path_of(run_of(training))
    by = {
        (phase, rank): sum(s.duration for s in path.sections if (s.phase, s.rank) == (phase, rank))
        for phase in ("forward", "backward")
        for rank in range(3)
    }
    assert by["forward", late] == 12 * 2 * training.forward_ns
    assert by["backward", late] == 12 * 2 * training.backward_ns
    assert sum(by.values()) == by["forward", late] + by["backward", late]
    assert {s.kind for s in path.sections if s.phase == "collective"} == {"transfer"}


def test_steps_choose_a_part_of_the_graph_with_its_other_ranks() -> None:
    training = Training(
        ranks=2,
        epochs=1,
        steps_per_epoch=12,
        eval_batches=0,
        workers=0,
        compute_scale={1: 2.0},
        explicit=True,
    )
    run = select_steps(run_of(training), StepRange(4, 6))
    path = path_of(run)
    assert {s.step for s in path.sections} == {4, 5}
    assert {s.rank for s in path.sections if s.phase == "forward"} == {1}


def test_a_run_without_ranks_has_an_empty_graph() -> None:
    run = replace(run_from([], 0, 10, bounds={}), completeness=Completeness())
    assert len(run_graph(run)) == 0
