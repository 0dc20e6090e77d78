# SPDX-License-Identifier: Apache-2.0
"""The temporal breakdown of devices and main threads, against answers worked out by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from grademl_otel.analyzers.graph.breakdown import (
    IDLE_KINDS,
    SHORT_NS,
    TemporalBreakdown,
    profile_breakdown,
    run_breakdown,
    temporal_breakdown,
)
from grademl_otel.analyzers.graph.trees.span_tree import trace_roots
from grademl_otel.analyzers.queries import Query
from grademl_otel.analyzers.subject import read_subject

from ..support.profiles import Profile
from ..support.synthetic import MS, Training, simulate

US = 1000


def of(profile: Profile) -> TemporalBreakdown:
    spans = profile.spans()
    (found,) = profile_breakdown(spans, trace_roots(spans))
    assert tiles(found)
    return found


def tiles(one: TemporalBreakdown) -> bool:
    parts = (one.compute_ns, one.communication_ns, one.overlap_ns, one.memory_ns, *one.idle.values())
    return sum(parts) == one.wall_ns and min(parts) >= 0


def test_what_a_device_did_at_every_instant() -> None:
    profile = Profile(rank=3)
    profile.op("op", 0, 200)
    profile.kernel("compute", (1, 2), 10, 60)
    profile.kernel("ncclDevKernel_AllReduce", (3, 4), 40, 90, stream=20)  # 20 us beside, 30 us alone
    profile.kernel("Memcpy HtoD", (5, 6), 80, 120, stream=21)  # 10 us beside, 30 us alone
    found = of(profile)
    assert (found.rank, found.lane, found.wall_ns) == (3, "device 0", 200 * US)
    assert found.compute_ns == 30 * US
    assert found.overlap_ns == 20 * US
    assert found.communication_ns == 30 * US
    assert found.memory_ns == 30 * US
    assert found.idle == {"host wait": 90 * US}
    assert found.overlap_share == pytest.approx(0.4)


def test_kinds_of_idleness() -> None:
    profile = Profile()
    profile.op("op", 0, 400)
    profile.kernel("late", (20, 25), 30, 100)  # 30 us: nothing was launched before
    profile.kernel("queued", (40, 45), 102, 150)  # 2 us: from one kernel to the next
    profile.kernel("held up", (50, 55), 180, 250)  # 30 us: launched long before
    profile.kernel("launched late", (260, 265), 270, 300)  # 20 us
    profile.kernel("by whom", None, 310, 340)  # 10 us
    found = of(profile)
    assert found.idle == {
        "host wait": (30 + 20 + 60) * US,
        "other": 30 * US,
        "unknown": 10 * US,
        "kernel wait": 2 * US,
    }
    assert set(found.idle) == set(IDLE_KINDS)
    assert SHORT_NS < 30 * US


def test_accelerators_other_than_gpus_are_devices() -> None:
    """As PyTorch writes MTIA's: the category tells, as streams have no labels."""
    profile, given = Profile(), 31
    profile.op("aten::empty", 0, 5)
    profile.event("mtia_runtime", "runFunction", 5, 10, correlation=given)
    profile.op("aten::mul", 10, 100)
    for name, start, end in (("mul-dtype_Float", 20, 60), ("dma_request", 60, 90)):
        profile.event("mtia_ccp_events", name, start, end, tid=4, correlation=given)
    for event in profile.events[-2:]:
        event["pid"] = 9
    found = of(profile)
    assert (found.lane, found.compute_ns, found.memory_ns) == ("device 9", 40 * US, 30 * US)
    assert found.idle == {"host wait": 30 * US}


def test_each_device_has_its_own() -> None:
    profile = Profile()
    profile.op("op", 0, 100)
    profile.kernel("on 0", (1, 2), 10, 60)
    profile.device = 1
    profile.kernel("on 1", (3, 4), 20, 40)
    spans = profile.spans()
    found = profile_breakdown(spans, trace_roots(spans))
    assert {(one.lane, one.compute_ns) for one in found} == {("device 0", 50 * US), ("device 1", 20 * US)}
    assert all(map(tiles, found))


@pytest.mark.parametrize("seed", range(4))
def test_the_parts_are_what_looking_at_each_instant_says(seed: int) -> None:
    chance = random.Random(seed)
    profile = Profile()
    profile.op("op", 0, 300)
    busy = np.zeros((3, 300), bool)
    for stream, (sort, name) in (
        (7, (0, "k")),
        (8, (0, "k")),
        (20, (1, "ncclKernel_x")),
        (30, (2, "Memcpy x")),
    ):
        at = 0
        while at < 280:
            start = at + chance.randrange(0, 20)
            at = min(start + chance.randrange(1, 20), 300)
            profile.kernel(name, (max(0, start - 5), max(1, start - 4)), start, at, stream=stream)
            busy[sort, start:at] = True
    chance.shuffle(profile.events)
    found = of(profile)
    computes, talks, copies = busy
    assert found.compute_ns == np.count_nonzero(computes & ~talks) * US
    assert found.communication_ns == np.count_nonzero(talks & ~computes) * US
    assert found.overlap_ns == np.count_nonzero(talks & computes) * US
    assert found.memory_ns == np.count_nonzero(copies & ~talks & ~computes) * US


def test_a_run_says_what_its_main_threads_did(tmp_path: Path) -> None:
    training = Training(ranks=2, buckets=4, workers=2, more_ns={(1, "backward"): 2 * MS})
    simulate(training).write_store(tmp_path)
    subject = read_subject(Query(str(tmp_path)))
    found = temporal_breakdown(subject)
    assert subject.run is not None
    assert found == run_breakdown(subject.run)
    assert [(one.rank, one.lane) for one in found] == [(0, "main"), (1, "main")]
    assert all(map(tiles, found))
    assert {one.wall_ns for one in found} == {subject.run.end - subject.run.start}
    early, late = found
    assert early.idle["ranks.wait"] == training.epochs * training.steps_per_epoch * 2 * MS
    assert "ranks.wait" not in late.idle
    assert early.idle["start-up"] == training.startup_ns
    # The last bucket is not hidden by anything; the others run beside backward.
    steps = training.epochs * training.steps_per_epoch
    assert late.communication_ns == steps * training.allreduce_ns // training.buckets
    assert late.overlap_ns == steps * training.allreduce_ns * 3 // training.buckets


def test_checkpoints_and_transfers_are_told(tmp_path: Path) -> None:
    simulate(Training(checkpoint_ns=20 * MS, transfer_ns=MS, workers=0)).write_store(tmp_path)
    (found,) = temporal_breakdown(read_subject(Query(str(tmp_path))))
    assert tiles(found)
    assert found.idle["checkpoint.save"] == 2 * 20 * MS
    assert found.memory_ns >= 2 * 20 * MS
    assert found.idle["data.wait"] > 0  # what a loader without workers does in the main thread, too


def test_a_profile_without_devices_has_that_of_its_main_thread() -> None:
    profile = Profile(rank=2)
    profile.op("op", 0, 100)
    profile.event("user_annotation", "gloo:all_reduce", 80, 150, tid=555)  # 20 us beside, 50 us waited for
    profile.op("end", 160, 200)
    found = of(profile)
    assert (found.rank, found.lane, found.wall_ns) == (2, "main", 200 * US)
    assert (found.compute_ns, found.overlap_ns, found.communication_ns) == (120 * US, 20 * US, 50 * US)
    assert found.idle == {"untraced": 10 * US}


def test_a_main_thread_that_takes_a_batch_from_workers_waits_for_data() -> None:
    profile = Profile()
    profile.op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0, 100)
    profile.op("aten::set_", 90, 95)
    profile.op("aten::mm", 100, 150)
    found = of(profile)
    assert found.idle == {"data.wait": 95 * US}
    assert found.compute_ns == 55 * US


def test_traces_that_are_no_profiles_have_none(tmp_path: Path) -> None:
    span = {"traceId": "1" * 32, "id": "2" * 16, "name": "a", "timestamp": 5, "duration": 7}
    (tmp_path / "some.json").write_text(json.dumps([span]))
    assert temporal_breakdown(read_subject(Query(str(tmp_path / "some.json")))) == []
