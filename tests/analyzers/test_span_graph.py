# SPDX-License-Identifier: Apache-2.0
"""The event graphs of profiles, and their critical paths, against answers worked out by hand."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest

from grademl_otel.analyzers.answers import critical_path
from grademl_otel.analyzers.cli.app import run
from grademl_otel.analyzers.graph.event_graph import EDGE_KINDS, EventGraph
from grademl_otel.analyzers.graph.path import EVIDENCE, KINDS, Path
from grademl_otel.analyzers.graph.profiles.flatten import innermost
from grademl_otel.analyzers.graph.profiles.profile_path import (
    graph_path,
    paths_of_traces,
    profile_path,
    profiles,
)
from grademl_otel.analyzers.graph.profiles.span_graph import span_graph
from grademl_otel.analyzers.graph.trees.span_tree import trace_roots
from grademl_otel.analyzers.graph.trees.tolerance import DEFAULT_TOLERANCE
from grademl_otel.analyzers.model.columns import IntArray, SpanColumns
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.reporting.document import PathInfo
from grademl_otel.analyzers.subject import read_subject

from ..support.jaeger_cases import jaeger_document
from ..support.profiles import AUTOGRAD, BASE_NS, Profile, spans_of

Row = tuple[float, float, str, str, str]


def graph_of(spans: SpanColumns) -> EventGraph:
    graph = span_graph(spans, trace_roots(spans))
    lane, start, end = graph.lane, graph.start, graph.end
    assert np.all(end > start)
    same = lane[1:] == lane[:-1]
    assert np.all((lane[1:] > lane[:-1]) | (same & (start[1:] >= end[:-1])))
    edges = graph.edges
    assert np.all((edges.at >= start[edges.source]) & (edges.at <= end[edges.source]))
    assert np.all(edges.at <= np.where(edges.to_end, end[edges.target], start[edges.target]))
    return graph


def sections(path: Path) -> list[Row]:
    """(start, end, name, kind, lane), in us since the profile's base; what a kind and a name share as one."""
    assert path.sections[0].start == path.start
    assert path.sections[-1].end == path.end
    assert all(one.end == other.start for one, other in zip(path.sections, path.sections[1:], strict=False))
    found: list[Row] = []
    for one in path.sections:
        row = ((one.start - BASE_NS) / 1000, (one.end - BASE_NS) / 1000, one.phase, one.kind, one.lane)
        if found and found[-1][2:] == row[2:]:
            row = (found.pop()[0], *row[1:])
        found.append(row)
    return found


def path_of(profile: Profile, inferred: bool = True) -> list[Row]:
    spans = profile.spans()
    graph_of(spans)
    (root,) = trace_roots(spans)
    assert profiles(spans, [root]) == [root]
    return sections(profile_path(spans, root, inferred))


def _around(lane: IntArray, start: IntArray, length: IntArray, here: int, time: int) -> list[int]:
    within = (lane == here) & (start <= time) & (time < start + length)
    return np.flatnonzero(within).tolist()


def edges_of(profile: Profile, kind: str) -> list[tuple[str, str, float, bool, str]]:
    """(name of the source, of the target, when, whether to its end, evidence), in order of time."""
    graph = graph_of(profile.spans())
    edges = graph.edges
    found = []
    for i in np.argsort(edges.at, kind="stable").tolist():
        if EDGE_KINDS[edges.kind[i]] == kind:
            source, target = (graph.phases[graph.phase[of[i]]] for of in (edges.source, edges.target))
            at = (int(edges.at[i]) - BASE_NS) / 1000
            found.append((source, target, at, bool(edges.to_end[i]), EVIDENCE[edges.evidence[i]]))
    return found


# --- Calls to lanes ---------------------------------------------------------------------------------------


def test_a_lane_does_what_the_innermost_call_of_each_instant_does() -> None:
    chance = random.Random(3)
    for _ in range(300):
        count = chance.randrange(12)
        lane, start, length = (
            np.array([chance.randrange(most) for _ in range(count)], np.int64) for most in (2, 20, 10)
        )
        pieces = innermost(lane, start, start + length)
        expected = {
            (here, time): max(around, key=lambda ix: (start[ix], -length[ix], ix))
            for here in range(2)
            for time in range(30)
            if (around := _around(lane, start, length, here, time))
        }
        found = {
            (int(pieces.lane[at]), time): int(pieces.owner[at])
            for at in range(len(pieces))
            for time in range(int(pieces.start[at]), int(pieces.end[at]))
        }
        assert found == expected
        assert sum((pieces.end - pieces.start).tolist()) == len(found)  # none twice


def test_pieces_are_found_by_lane_and_time() -> None:
    two = np.array([0, 1]), np.array([10, 5]), np.array([20, 15])
    pieces = innermost(*two)
    lane, time = np.array([0, 0, 0, 1, 1, 2]), np.array([10, 20, 9, 5, 15, 7])
    assert pieces.within(lane, time).tolist() == [0, -1, -1, 1, -1, -1]
    assert pieces.until(lane, time).tolist() == [-1, 0, -1, -1, 1, -1]


# --- Hosts and devices ------------------------------------------------------------------------------------


def launch_bound() -> Profile:
    """Each kernel is done long before the next is launched."""
    profile = Profile()
    for n, name in enumerate("abc"):
        profile.op(f"op {name}", 100 * n, 100 * n + 90)
        profile.kernel(f"kernel {name}", (100 * n + 40, 100 * n + 50), 100 * n + 55, 100 * n + 65)
    profile.call("cudaDeviceSynchronize", 290, 300)
    return profile


def test_where_the_host_is_late_the_path_is_that_of_the_host() -> None:
    found = path_of(launch_bound())
    assert {row[4] for row in found} == {"main"}
    assert sum(row[1] - row[0] for row in found if row[2].startswith("op")) == 240
    assert found[-1] == (290, 300, "cudaDeviceSynchronize", "work", "main")  # there was nothing to wait for


def kernel_bound() -> Profile:
    """The host is far ahead, and waits in the end."""
    profile = Profile()
    for n, name in enumerate("abc"):
        profile.op(f"op {name}", 20 * n, 20 * n + 20)
        profile.kernel(f"kernel {name}", (20 * n + 5, 20 * n + 10), 12 + 101 * n, 112 + 101 * n)
    profile.call("cudaDeviceSynchronize", 60, 320)
    profile.op("after", 320, 350)
    return profile


def test_where_the_device_is_late_the_path_is_that_of_its_stream() -> None:
    assert path_of(kernel_bound()) == [
        (0, 5, "op a", "work", "main"),
        (5, 10, "cudaLaunchKernel", "work", "main"),
        (10, 12, "kernel a", "handoff", "stream-0.7"),
        (12, 112, "kernel a", "work", "stream-0.7"),
        (112, 113, "kernel b", "gap", "stream-0.7"),
        (113, 213, "kernel b", "work", "stream-0.7"),
        (213, 214, "kernel c", "gap", "stream-0.7"),
        (214, 314, "kernel c", "work", "stream-0.7"),
        (314, 320, "cudaDeviceSynchronize", "handoff", "main"),
        (320, 350, "after", "work", "main"),
    ]


def test_a_launch_that_has_yet_to_return_when_its_kernel_starts() -> None:
    profile = Profile()
    profile.op("op", 0, 20)
    profile.kernel("kernel", (5, 15), 11, 30)
    assert edges_of(profile, "device") == [("cudaLaunchKernel", "kernel", 11, False, "observed")]
    assert path_of(profile) == [
        (0, 5, "op", "work", "main"),
        (5, 11, "cudaLaunchKernel", "work", "main"),
        (11, 30, "kernel", "work", "stream-0.7"),  # what ended last is where the path begins
    ]


def test_a_kernel_that_starts_before_its_launch_is_tied_to_nothing() -> None:
    profile = Profile()
    profile.op("op", 0, 50)
    profile.kernel("kernel", (20, 25), 19, 30)
    assert edges_of(profile, "device") == []


def test_the_call_that_waits_for_a_device_waits_for_all_of_its_streams() -> None:
    profile = kernel_bound()
    profile.kernel("other", (52, 54), 60, 318, stream=9)
    assert edges_of(profile, "device")[-2:] == [
        ("kernel c", "cudaDeviceSynchronize", 314, True, "observed"),
        ("other", "cudaDeviceSynchronize", 318, True, "observed"),
    ]
    names = [row[2] for row in path_of(profile)]
    assert "other" in names
    assert "kernel c" not in names


def test_what_is_given_to_a_stream_later_is_not_waited_for() -> None:
    profile = Profile()
    profile.op("op", 0, 10)
    profile.kernel("before", (2, 4), 6, 100)
    profile.call("cudaDeviceSynchronize", 12, 105)
    profile.kernel("after", (20, 22), 101, 104, tid=300)  # of another thread, while the first one waits
    profile.op("end", 105, 110)
    ends = [edge for edge in edges_of(profile, "device") if edge[3]]
    assert ends == [("before", "cudaDeviceSynchronize", 100, True, "observed")]


def stream_sync(until: float = 104) -> Profile:
    profile = Profile()
    profile.op("op", 0, 10)
    profile.kernel("waited for", (2, 4), 6, 100, stream=7)
    profile.kernel("longer", (5, 7), 9, 180, stream=9)
    profile.call("cudaStreamSynchronize", 12, until)
    profile.op("end", until, 200)
    return profile


def test_the_stream_that_a_call_waits_for_is_told_by_time() -> None:
    profile = stream_sync()
    ends = [edge for edge in edges_of(profile, "device") if edge[3]]
    assert ends == [("waited for", "cudaStreamSynchronize", 100, True, "inferred")]
    assert (100, 104, "cudaStreamSynchronize", "handoff", "main") in path_of(profile)
    graph = graph_of(profile.spans())
    inferred = graph.edges.evidence == EVIDENCE.index("inferred")
    assert graph.edges.confidence[inferred].tolist() == [0.9]


def test_without_inferred_edges_such_a_wait_is_not_explained() -> None:
    assert (12, 104, "cudaStreamSynchronize", "unexplained", "main") in path_of(stream_sync(), inferred=False)


def test_a_wait_that_ends_with_no_work_is_not_explained() -> None:
    assert (12, 150, "cudaStreamSynchronize", "unexplained", "main") in path_of(stream_sync(until=150))


def test_a_note_says_which_stream_a_call_waits_for() -> None:
    profile = stream_sync(until=190)
    profile.note("Stream Synchronize", profile.correlation, 9)
    ends = [edge for edge in edges_of(profile, "device") if edge[3]]
    assert ends == [("longer", "cudaStreamSynchronize", 180, True, "observed")]


def test_a_copy_that_blocks_its_caller_ends_it() -> None:
    profile = Profile()
    profile.op("op", 0, 10)
    profile.kernel("kernel", (2, 4), 6, 50)
    profile.kernel("Memcpy DtoH", (12, 64), 51, 60, call="cudaMemcpy")
    profile.op("end", 64, 80)
    assert path_of(profile)[-3:] == [
        (51, 60, "Memcpy DtoH", "transfer", "stream-0.7"),
        (60, 64, "cudaMemcpy", "handoff", "main"),
        (64, 80, "end", "work", "main"),
    ]


def test_a_copy_that_blocks_works_until_the_device_begins() -> None:
    profile = Profile()
    profile.op("op", 0, 10)
    profile.kernel("Memcpy HtoD", (10, 60), 20, 55, call="hipMemcpyWithStream")
    profile.op("end", 60, 80)
    assert path_of(profile) == [
        (0, 10, "op", "work", "main"),
        (10, 20, "hipMemcpyWithStream", "work", "main"),
        (20, 55, "Memcpy HtoD", "transfer", "stream-0.7"),
        (55, 60, "hipMemcpyWithStream", "handoff", "main"),
        (60, 80, "end", "work", "main"),
    ]


# --- Streams that wait for each other ---------------------------------------------------------------------


def two_streams() -> tuple[Profile, int, int]:
    """A kernel of stream 20 is launched early and waits for one of stream 7, by an event."""
    profile = Profile()
    profile.op("op", 0, 20)
    profile.kernel("first", (2, 4), 6, 100)
    recorded = profile.call("cudaEventRecord", 5, 6)
    profile.kernel("unrelated", (6, 7), 8, 98, stream=9)
    waits = profile.call("cudaStreamWaitEvent", 8, 9)
    profile.kernel("second", (10, 12), 102, 150, stream=20)
    profile.call("cudaDeviceSynchronize", 20, 155)
    profile.op("end", 155, 160)
    return profile, recorded, waits


def test_a_note_says_which_event_a_stream_waits_for() -> None:
    profile, recorded, waits = two_streams()
    said = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": recorded, "wait_on_cuda_event_id": 3}
    profile.note("Stream Wait Event", waits, 20, **said)
    assert ("first", "second", 100, False, "observed") in edges_of(profile, "device")
    assert (6, 100, "first", "work", "stream-0.7") in path_of(profile, inferred=False)


def test_without_a_note_time_tells_what_held_a_stream_up() -> None:
    profile, _, _ = two_streams()
    assert ("first", "second", 100, False, "inferred") in edges_of(profile, "device")
    assert (100, 102, "second", "handoff", "stream-0.20") in path_of(profile)
    assert "first" not in {row[2] for row in path_of(profile, inferred=False)}


def test_a_stream_that_was_not_told_to_wait_did_not() -> None:
    profile, _, _ = two_streams()
    profile.events = [event for event in profile.events if event["name"] != "cudaStreamWaitEvent"]
    assert not [edge for edge in edges_of(profile, "device") if edge[1] == "second" and edge[0] == "first"]


def test_what_was_given_to_a_device_later_held_nothing_up() -> None:
    profile, _, _ = two_streams()
    profile.kernel("later", (13, 14), 16, 101, stream=9)
    assert ("first", "second", 100, False, "inferred") in edges_of(profile, "device")


# --- Threads ----------------------------------------------------------------------------------------------


def backward() -> Profile:
    profile = Profile()
    profile.event("user_annotation", "ProfilerStep#4", 0, 200)
    profile.op("forward", 10, 40)
    for n in range(3):
        profile.op(f"autograd::engine::evaluate_function: {n}", 50 + 30 * n, 75 + 30 * n, AUTOGRAD)
    profile.op("optimizer", 150, 190)
    return profile


def test_backward_in_a_thread_of_its_own_is_on_the_path() -> None:
    found = path_of(backward())
    assert found[:3] == [
        (0, 10, "ProfilerStep#4", "work", "main"),
        (10, 40, "forward", "work", "main"),
        (40, 50, "ProfilerStep#4", "work", "main"),
    ]
    assert [row[4] for row in found].count("thread-177") == 5  # three operators, and two pauses of the engine
    assert found[-3:] == [
        (135, 150, "ProfilerStep#4", "work", "main"),
        (150, 190, "optimizer", "work", "main"),
        (190, 200, "ProfilerStep#4", "work", "main"),
    ]
    assert {edge[4] for edge in edges_of(backward(), "program")} == {"inferred"}


@pytest.mark.parametrize(("by", "service"), [("phase", ""), ("operation", "pytorch profiler ")])
def test_the_steps_of_a_profile_are_one_key(by: str, service: str, tmp_path: FilePath) -> None:
    profile = Profile()
    for step in range(3):
        profile.event("user_annotation", f"ProfilerStep#{step}", 100 * step, 100 * step + 100)
        profile.op("forward", 100 * step + 10, 100 * step + 40)
    found = critical_path(Query(str(profile.write(tmp_path / "profile.json"))), by=by).found
    assert {entry.key: (entry.path_ns, entry.total_ns) for entry in found.summary} == {
        f"{service}ProfilerStep*": (210_000, 300_000),
        f"{service}forward": (90_000, 90_000),
        f"{service}profile": (0, 300_000),
    }
    assert isinstance(found.path, PathInfo)
    assert {section.phase for section in found.path.sections} >= {"ProfilerStep#0", "ProfilerStep#2"}


def test_a_thread_that_works_does_not_wait_for_backward() -> None:
    profile = backward()
    profile.op("something", 45, 140)
    assert edges_of(profile, "program") == []
    assert {row[4] for row in path_of(profile)} == {"main"}


def test_what_a_thread_does_after_the_wait_is_no_part_of_it() -> None:
    profile = backward()
    profile.op("autograd::engine::evaluate_function: late", 140, 170, AUTOGRAD)
    ends = [edge for edge in edges_of(profile, "program") if edge[3]]
    assert ends == [("autograd::engine::evaluate_function: 2", "ProfilerStep#4", 135, True, "inferred")]
    graph = graph_of(profile.spans())
    assert set(graph.edges.confidence.tolist()) == {0.75}


def test_arrows_from_forward_to_backward_are_edges() -> None:
    profile = backward()
    ends = {"pid": 100, "cat": "fwdbwd", "name": "fwdbwd", "id": 5}
    profile.events += [
        {"ph": "s", "tid": 100, "ts": 10, **ends},
        {"ph": "f", "tid": AUTOGRAD, "ts": 50, "bp": "e", **ends},
    ]
    name = "autograd::engine::evaluate_function: 0"
    assert ("forward", name, 40, False, "observed") in edges_of(profile, "program")


def test_steps_are_told_in_all_lanes() -> None:
    profile = backward()
    profile.kernel("late", (60, 62), 210, 230, tid=AUTOGRAD)
    graph = graph_of(profile.spans())
    late = [n for n in range(len(graph)) if graph.phases[graph.phase[n]] == "late"]
    assert [int(graph.step[n]) for n in late] == [4]  # launched in the step, done after it


# --- What changes nothing ---------------------------------------------------------------------------------


def simulated(seed: int) -> Profile:
    """Some launches, kernels of two streams, and waits, at random."""
    chance = random.Random(seed)
    profile, at, free = Profile(), 0, {7: 0, 20: 0}
    for n in range(30):
        length = chance.randrange(10, 40)
        profile.op(f"op {n % 4}", at, at + length)
        stream = chance.choice((7, 7, 20))
        begin = max(at + 8, free[stream] + 1)
        free[stream] = begin + chance.randrange(3, 60)
        if chance.random() < 0.3:
            profile.call("cudaStreamWaitEvent", at + 1, at + 2)
        profile.kernel(f"kernel {n % 5}", (at + 3, at + 6), begin, free[stream], stream=stream)
        at += length
        if chance.random() < 0.2:
            stream = chance.choice((7, 20))
            done = max(at + 2, free[stream] + 3)
            profile.call("cudaStreamSynchronize", at, done)
            at = done
    return profile


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_events_and_a_shift_in_time_change_nothing(seed: int) -> None:
    profile = simulated(seed)
    expected = path_of(profile)
    assert sum(row[1] - row[0] for row in expected) == max(e["ts"] + e["dur"] for e in profile.events)
    random.Random(seed).shuffle(profile.events)
    assert path_of(profile) == expected
    spans = profile.spans(BASE_NS + 777)
    (root,) = trace_roots(spans)
    moved = profile_path(spans, root)
    shifted = [(start - BASE_NS - 777) for start in moved.sections.start.tolist()]
    spans = profile.spans()
    (root,) = trace_roots(spans)
    assert [start - BASE_NS for start in profile_path(spans, root).sections.start.tolist()] == shifted


def test_the_order_of_edges_changes_nothing() -> None:
    graph = graph_of(simulated(3).spans())
    low, high = int(graph.start.min()), int(graph.end.max())
    expected = graph_path(graph, low, high)
    order = np.random.default_rng(1).permutation(len(graph.edges))
    columns = {name: getattr(graph, name) for name in EventGraph.__dataclass_fields__}
    shuffled = EventGraph(**{**columns, "edges": graph.edges.where(order)})
    assert graph_path(shuffled, low, high).sections == expected.sections
    assert {KINDS[kind] for kind in expected.sections.kind.tolist()} >= {"work", "handoff"}


def test_a_profile_in_which_nothing_ended_has_an_empty_path(tmp_path: FilePath) -> None:
    profile = Profile()
    profile.events.append({"ph": "B", "name": "open", "pid": 100, "tid": 100, "ts": 5})
    path = profile.write(tmp_path / "profile.json")
    document = critical_path(Query(str(path))).found
    assert isinstance(document.path, PathInfo)
    assert (document.path.total_ns, document.path.sections, document.breakdown) == (0, [], [])


# --- Several ranks ----------------------------------------------------------------------------------------


def two_ranks(number: int | None = 5, late_us: float = 100, **fields: Any) -> tuple[Profile, Profile]:
    """Rank 1 comes to the collective ``late_us`` later than rank 0, by its host."""
    found = []
    for rank in range(2):
        profile = Profile(rank=rank, world=2, **(fields if rank else {}))
        late = late_us * rank
        profile.op(f"work of rank {rank}", 0, 40 + late)
        said: dict[str, Any] = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2}
        said |= {} if number is None else {"Seq": number}
        launch = (20 + late, 25 + late)
        profile.kernel("ncclDevKernel_AllReduce_Sum", launch, 30 + late, 60 + late_us, 20, **said)
        profile.call("cudaDeviceSynchronize", 40 + late, 65 + late_us)
        profile.op("end", 65 + late_us, 80 + late_us - rank)
        found.append(profile)
    return found[0], found[1]


def paths_together(*profiles: Profile, inferred: bool = True) -> list[list[Row]]:
    spans = spans_of(*profiles)
    graph_of(spans)
    roots = trace_roots(spans)
    return [sections(path) for _, path in paths_of_traces(spans, roots, DEFAULT_TOLERANCE, inferred)]


def test_the_wait_in_a_collective_leads_to_the_rank_that_came_last() -> None:
    (found,) = paths_together(*two_ranks())
    assert found == [
        (0, 120, "work of rank 1", "work", "main"),
        (120, 125, "cudaLaunchKernel", "work", "main"),
        (125, 130, "ncclDevKernel_AllReduce_Sum", "handoff", "stream-0.20"),
        (130, 160, "ncclDevKernel_AllReduce_Sum", "transfer", "stream-0.20"),
        (160, 165, "cudaDeviceSynchronize", "handoff", "main"),
        (165, 180, "end", "work", "main"),
    ]


@pytest.mark.parametrize(("number", "evidence"), [(5, "attribute"), (None, "inferred")])
def test_what_tells_that_kernels_are_the_same_collective(number: int | None, evidence: str) -> None:
    spans = spans_of(*two_ranks(number))
    graph = graph_of(spans)
    (edge,) = np.flatnonzero(graph.edges.kind == EDGE_KINDS.index("collective")).tolist()
    assert EVIDENCE[graph.edges.evidence[edge]] == evidence
    assert graph.rank[graph.edges.source[edge]] == 1
    assert graph.rank[graph.edges.target[edge]] == 0
    assert len(paths_together(*two_ranks(number), inferred=False)) == (1 if number else 2)


def test_ranks_without_a_collective_in_common_have_a_path_each() -> None:
    one, other = two_ranks()
    other.events = [event for event in other.events if not event["name"].startswith("nccl")]
    assert len(paths_together(one, other)) == 2


def test_a_group_of_unknown_size_may_be_all_ranks_of_the_job() -> None:
    """The one that is not here may have come last."""
    for world, paths in ((2, 1), (3, 2)):
        profiles = two_ranks(None)
        for profile in profiles:
            profile.world = world
            for event in profile.events:
                event["args"].pop("Group size", None)
        assert len(paths_together(*profiles)) == paths


def test_a_collective_of_which_a_member_is_missing_is_not_told_apart() -> None:
    one, other = two_ranks()
    for event in (*one.events, *other.events):
        if event["name"].startswith("nccl"):
            event["args"]["Group size"] = 3
    assert len(paths_together(one, other)) == 2


def test_clocks_that_contradict_each_other_tie_nothing() -> None:
    one, other = two_ranks(host="node-b")
    for event in other.events:
        event["ts"] += 500
    found = paths_together(one, other)
    assert len(found) == 2
    assert any(row[3] == "wait" for row in found[0])  # waiting and transfer: not told apart


def test_clocks_that_contradict_some_collectives_are_not_believed_for_the_others() -> None:
    one, other = two_ranks(host="node-b")
    for profile, apart in ((one, 0), (other, 200)):
        for n in range(4):
            start = 1000 * (n + 1)
            said: dict[str, Any] = {"Collective name": "allreduce", "Group size": 2, "Seq": 10 + n}
            # One in four ends on rank 0 before it begins on rank 1.
            late = apart * (n == 0)
            begin = start + 10 + late
            profile.kernel("ncclKernel_AllReduce", (start, start + 2), begin, begin + 80, 20, **said)
    assert len(paths_together(one, other)) == 2


def gloo_ranks() -> tuple[Profile, Profile]:
    """All-reduces of gloo in threads of its own; rank 1 computes longer, and nobody says who waits."""
    found = []
    for rank in range(2):
        profile, late = Profile(rank=rank, world=2), 300 * rank
        profile.op(f"work of rank {rank}", 0, 100 + late)
        profile.op("c10d::allreduce_", 110 + late, 130 + late)
        profile.event("user_annotation", "gloo:all_reduce", 120 + late, 450, tid=555)
        profile.op("end", 460, 480 - rank)
        found.append(profile)
    return found[0], found[1]


def test_collectives_in_threads_of_gloo_lead_to_the_rank_that_came_last() -> None:
    (found,) = paths_together(*gloo_ranks())
    assert found == [
        (0, 400, "work of rank 1", "work", "main"),
        (400, 410, "profile", "gap", "main"),
        (410, 420, "c10d::allreduce_", "work", "main"),
        (420, 450, "gloo:all_reduce", "transfer", "thread-555"),
        (450, 460, "profile", "gap", "main"),
        (460, 480, "end", "work", "main"),
    ]


def test_nothing_in_a_profile_explains_a_wait_for_the_workers_of_a_loader() -> None:
    profile, taken = Profile(), "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    profile.op(taken, 0, 100)
    profile.op("aten::mm", 100, 150)
    assert path_of(profile) == [
        (0, 100, taken, "unexplained", "main"),
        (100, 150, "aten::mm", "work", "main"),
    ]


def test_a_thread_that_goes_on_much_later_did_not_wait_for_gloo() -> None:
    one, _ = gloo_ranks()
    for event in one.events:
        event["ts"] += 2000 * (event["name"] == "end")
    assert {row[4] for row in path_of(one)} == {"main"}


def late_wakers(left: Sequence[int]) -> Profile:
    """A thread that waits 20 ms for each collective of gloo, and goes on only so many ms after its end."""
    profile = Profile()
    for n, late in enumerate(left):
        at = 100_000 * n
        profile.op("compute", at, at + 10_000)
        profile.event("user_annotation", "gloo:all_reduce", at + 9_900, at + 30_000, tid=555)
        profile.op("after", at + 30_000 + 1000 * late, at + 90_000)
    return profile


def test_on_a_busy_host_a_thread_goes_on_late_after_gloo() -> None:
    """Four of five within a quarter of the wait show that it waits; then even one of ten ms does."""
    path = path_of(late_wakers((0, 2, 4, 10, 5)))
    assert [row for row in path if row[2] == "gloo:all_reduce"] == [
        (100_000 * n + 9_900, 100_000 * n + 30_000, "gloo:all_reduce", "wait", "thread-555") for n in range(5)
    ]


@pytest.mark.parametrize("left", [(0, 2, 4, 10, 10), (2, 2, 2, 2), (30,) * 8])
def test_collectives_that_end_anywhere_are_not_waited_for(left: Sequence[int]) -> None:
    path = path_of(late_wakers(left))
    assert sum(row[2] == "gloo:all_reduce" for row in path) == left.count(0)


GLOO = """
import sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
x = torch.ones(64)
dist.all_reduce(x)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(3):
        with record_function("compute"):
            time.sleep(0.1 * rank)
        dist.all_reduce(x)
        profiler.step()
profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
"""


def test_two_real_ranks_of_which_one_is_late(tmp_path: FilePath) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GLOO, str(rank), str(tmp_path)], env=environment, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            error = rank.communicate(timeout=300)[1]
            assert rank.returncode == 0, error.decode()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    subject = read_subject(Query(str(tmp_path / "rank*.json")))
    ((_, path),) = subject.paths()
    assert int(path.sections.duration.sum()) == path.total_ns
    spent: dict[tuple[str, int | None], int] = {}
    for one in path.sections:
        key = one.phase, one.rank
        spent[key] = spent.get(key, 0) + one.duration
    # The first step may be that of the rank whose profiler was up later.
    assert spent["compute", 1] >= 200_000_000
    assert spent.get(("compute", 0), 0) < spent["compute", 1] / 2


# --- In other forms, and in answers -----------------------------------------------------------------------


def as_otlp(spans: SpanColumns) -> bytes:
    """Return ``spans`` as an exporter of spans would send them."""
    made = []
    links: dict[int, list[int]] = {}
    for ix, span_id in zip(spans.links.span_ix.tolist(), spans.links.span_id.tolist(), strict=True):
        links.setdefault(ix, []).append(span_id)
    for ix in range(len(spans)):
        said = spans.attributes(ix)
        values = [
            {
                "key": key,
                "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
            }
            for key, value in said.items()
            if isinstance(value, int | str)
        ]
        made.append(
            {
                "traceId": spans.trace_id_hex(ix),
                "spanId": spans.span_id_hex(ix),
                "parentSpanId": f"{int(spans.parent_id[ix]):016x}" if spans.parent_id[ix] else "",
                "name": spans.name(ix),
                "startTimeUnixNano": str(int(spans.start[ix])),
                "endTimeUnixNano": str(int(spans.end[ix])),
                "attributes": values,
                "links": [
                    {"traceId": spans.trace_id_hex(ix), "spanId": f"{to:016x}"} for to in links.get(ix, ())
                ],
            }
        )
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}).encode()


def test_spans_of_others_that_name_streams_have_the_same_path(tmp_path: FilePath) -> None:
    spans = kernel_bound().spans()
    (root,) = trace_roots(spans)
    path = tmp_path / "some.jsonl"
    path.write_bytes(as_otlp(spans))
    ((_, found),) = read_subject(Query(str(path))).paths()
    expected = profile_path(spans, root)
    for column in ("start", "end", "kind"):
        assert np.array_equal(getattr(found.sections, column), getattr(expected.sections, column))
    assert [one.phase for one in found.sections] == [one.phase for one in expected.sections]


def test_traces_whose_spans_name_no_streams_are_answered_as_trees(tmp_path: FilePath) -> None:
    spans = kernel_bound().spans()
    path = tmp_path / "some.jsonl"
    path.write_bytes(as_otlp(spans).replace(b"stream-", b"worker-"))
    subject = read_subject(Query(str(path)))
    assert profiles(subject.telemetry.spans, trace_roots(subject.telemetry.spans)) == []
    assert len(subject.paths()) == 1


def test_a_text_says_why_more_of_something_is_on_the_path_than_there_is(
    tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    path, why = tmp_path / "profile.json", "on path: with what went by before it began"
    assert run(["critical-path", str(kernel_bound().write(path))]) == 0
    assert why in capsys.readouterr().out
    profile = Profile()
    profile.op("op", 0, 100)
    assert run(["critical-path", str(profile.write(path))]) == 0
    assert why not in capsys.readouterr().out


def test_answers_tell_of_streams_and_devices(tmp_path: FilePath) -> None:
    path = kernel_bound().write(tmp_path / "profile.json")
    document = critical_path(Query(str(path))).found
    assert isinstance(document.path, PathInfo)
    assert sum(one.end_ns - one.start_ns for one in document.path.sections) == document.path.total_ns
    of_key = {row.key: row for row in document.summary}
    assert of_key["kernel b"].path_ns == 101_000  # with the gap before it
    assert (of_key["kernel b"].total_ns, of_key["kernel b"].drag_ns) == (100_000, 100_000)
    assert of_key["op b"].path_ns == 0
    assert of_key["op b"].slack_ns > 0
    (device,) = document.breakdown
    assert (device.lane, device.compute_ns, device.wall_ns) == ("device 0", 300_000, 350_000)


@pytest.mark.parametrize("told", ["see grademl.lane and stream-0.7", "\x7f"], ids=["named", "escaped"])
def test_spans_that_only_speak_of_lanes_are_no_profile(told: str, tmp_path: FilePath) -> None:
    """Bytes that may be a lane's are none: an escaped letter, as JSON may write DEL, may hide any key."""
    document = jaeger_document("A[0,1000) B<A[100,400)")
    for span in document["data"][0]["spans"]:
        span["tags"].append({"key": "note", "type": "string", "value": told})
    source = tmp_path / "trace.json"
    source.write_text(json.dumps(document))
    path = critical_path(Query.of(str(source))).found.path
    assert isinstance(path, PathInfo)
    assert [one.phase for one in path.sections] == ["A", "B", "A"]
