# SPDX-License-Identifier: Apache-2.0
"""Profiles into spans: lanes out of threads and streams, parents out of time, links out of arrows."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.graph.path import GAP
from grademl_otel.analyzers.graph.profiles.profile_path import paths_of_traces
from grademl_otel.analyzers.graph.trees.span_tree import trace_roots
from grademl_otel.analyzers.graph.trees.tolerance import DEFAULT_TOLERANCE
from grademl_otel.analyzers.model.columns import Ledger, SpanColumns
from grademl_otel.analyzers.sources import Selection, open_source
from grademl_otel.analyzers.sources.buffer import SpanBuilder
from grademl_otel.analyzers.sources.formats.documents import read_json
from grademl_otel.analyzers.sources.formats.nesting import nested

DATA = Path(__file__).parent.parent / "data" / "profiles"
GPU = DATA / "gpu_rank_1.json"
BASE = 1_790_857_026_000_000_000
Json = dict[str, Any]


def read(text: bytes | str | list[Json] | Json) -> tuple[SpanColumns, Ledger]:
    if not isinstance(text, bytes | str):
        text = json.dumps(text)
    raw = text.encode() if isinstance(text, str) else text
    builder, ledger = SpanBuilder(10**6), Ledger()
    read_json([raw], builder, ledger, "some.json", 1 << 24)
    return builder.finish(ledger), ledger


def event(name: str, start: float, length: float | None, **fields: Any) -> Json:
    made = {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, **fields}
    return {key: value for key, value in made.items() if value is not None}


def named(spans: SpanColumns) -> dict[str, int]:
    return {spans.name(ix): ix for ix in range(len(spans))}


def parents(spans: SpanColumns) -> dict[str, str]:
    return {
        spans.name(ix): spans.name(parent) if parent >= 0 else ""
        for ix, parent in enumerate(spans.parent_ix.tolist())
    }


def lane(spans: SpanColumns, name: str) -> Any:
    return spans.attributes(named(spans)[name])[semconv.LANE]


# --- Nesting ----------------------------------------------------------------------------------------------


def test_the_innermost_event_around_another_is_its_parent() -> None:
    spans, ledger = read(
        [
            event("inner", 20, 10),
            event("outer", 0, 100),
            event("deep", 22, 3),
            event("after", 30, 5),
            event("elsewhere", 22, 3, tid=2),
            event("late", 200, 1),
        ]
    )
    assert parents(spans) == {
        "profile": "",
        "outer": "profile",
        "inner": "outer",
        "deep": "inner",
        "after": "outer",
        "elsewhere": "profile",
        "late": "profile",
    }
    assert ledger.warnings == []
    root = named(spans)["profile"]
    assert (int(spans.start[root]), int(spans.end[root])) == (0, 201_000)


def test_ties_have_one_answer() -> None:
    spans, _ = read(
        [
            event("short", 0, 5),
            event("long", 0, 9),
            event("same", 0, 9),
            event("end", 9, 0),
            event("at", 5, 4),
        ]
    )
    assert parents(spans) == {
        "profile": "",
        "long": "profile",
        "same": "long",
        "short": "same",
        "end": "at",
        "at": "same",
    }


def test_events_that_cross_are_counted_and_are_not_each_others_parents() -> None:
    spans, ledger = read([event("a", 0, 10), event("b", 5, 10), event("c", 6, 3), event("d", 12, 1)])
    assert parents(spans) == {"profile": "", "a": "profile", "b": "profile", "c": "b", "d": "b"}
    assert "1 event of a profile cross others" in ledger.warnings[0]


def test_nesting_is_what_looking_at_all_pairs_says() -> None:
    chance = random.Random(1)
    for _ in range(150):
        count = chance.randrange(1, 25)
        lanes = np.array([chance.randrange(2) for _ in range(count)])
        start = np.array([chance.randrange(12) for _ in range(count)])
        end = start + np.array([chance.randrange(8) for _ in range(count)])
        order, parent, _, _ = nested(lanes, start, end)
        rank = np.argsort(order)
        for ix in range(count):
            around = [
                other
                for other in range(count)
                if lanes[other] == lanes[ix] and rank[other] < rank[ix] and end[other] >= end[ix]
            ]
            assert parent[ix] == max(around, key=lambda other: rank[other], default=-1)
            assert parent[ix] < 0 or start[parent[ix]] <= start[ix]


def test_the_main_thread_is_one_that_does_something() -> None:
    """The note that recording ends looks like the first thread of a process."""
    notes = [
        event("PyTorch Profiler (0)", 0, 90, cat="Trace", pid="Spans", tid="PyTorch Profiler"),
        event("Record Window End", 90, 0, ph="i", pid="", tid="", s="g"),
    ]
    spans, _ = read([*notes, *(event(f"aten::{n}", 10 * n, 5, pid=7, tid=9, cat="cpu_op") for n in range(3))])
    assert {lane(spans, f"aten::{n}") for n in range(3)} == {"main"}
    assert lane(spans, "Record Window End") == "thread-"


def test_the_main_thread_begins_the_steps_whatever_a_stream_repeats_of_them() -> None:
    spans, _ = read(
        [
            event("ProfilerStep#1", 0, 90, cat="gpu_user_annotation", pid=0, tid=7),
            event("aten::mm", 0, 50, pid=7, tid=7, cat="cpu_op"),
            event("ProfilerStep#1", 0, 80, cat="user_annotation", pid=7, tid=9),
            event("aten::add", 10, 50, pid=7, tid=9, cat="cpu_op"),
        ]
    )
    assert (lane(spans, "aten::mm"), lane(spans, "aten::add")) == ("thread-7", "main")


def test_an_arrow_begins_at_the_innermost_call_that_still_runs_however_deep() -> None:
    depth = 2_000
    calls = [event(f"call {n}", n, 4 * depth - 2 * n) for n in range(depth)]  # ends at 4 * depth - n
    arrows = []
    for n in range(depth):
        arrow = {"cat": "fwdbwd", "id": n, "pid": 1, "name": "fwdbwd"}
        arrows.append({**arrow, "ph": "s", "tid": 1, "ts": 4 * depth - n})
        arrows.append({**arrow, "ph": "f", "bp": "e", "tid": 2, "ts": 5 * depth + 2 * n})
        calls.append(event(f"back {n}", 5 * depth + 2 * n, 1, tid=2))
    spans, _ = read([*calls, *arrows])
    name = {int(of): spans.name(ix) for ix, of in enumerate(spans.span_id)}
    links = spans.links
    assert [
        (spans.name(later), name[int(earlier)])
        for later, earlier in zip(links.span_ix.tolist(), links.span_id, strict=True)
    ] == [(f"back {n}", f"call {n}") for n in range(depth)]


# --- A profile of a GPU -----------------------------------------------------------------------------------


def test_a_profile_of_a_gpu_becomes_one_trace_of_lanes() -> None:
    spans, ledger = read(GPU.read_bytes())
    assert len(np.unique(spans.trace_lo)) == 1
    assert len(np.unique(spans.span_id)) == len(spans)
    assert (spans.parent_ix < 0).sum() == 1
    assert lane(spans, "aten::mm") == "main"
    assert lane(spans, "autograd::engine::evaluate_function: MmBackward0") == "thread-4177"
    assert lane(spans, "sm90_xmma_gemm_f32f32") == "stream-0.7"
    nccl = next(name for name in spans.names if name.startswith("nccl"))
    assert lane(spans, nccl) == "stream-0.20"
    found = parents(spans)
    assert found["cudaLaunchKernel"] == "aten::mm"
    assert found["aten::mm"] == "ProfilerStep#3"
    assert found["sm90_xmma_gemm_f32f32"] == "ProfilerStep#3"
    assert found[nccl] == "profile"
    assert ledger.warnings == [
        "of a profile only what takes time is read; passed over: 1 sample of memory, 1 value of a counter"
    ]


def test_times_of_a_profile_are_exact_nanoseconds() -> None:
    spans, ledger = read(GPU.read_bytes())
    ix = named(spans)["aten::mm"]
    assert int(spans.start[ix]) == BASE + 5_301_302_795_110_250
    assert int(spans.end[ix] - spans.start[ix]) == 60_500
    assert not ledger.microseconds


def test_arguments_category_and_thread_are_attributes() -> None:
    spans, _ = read(GPU.read_bytes())
    assert spans.attributes(named(spans)["aten::mm"]) == {
        "External id": 2,
        "Record function id": 0,
        "Input Dims": [[8, 16], [16, 32]],
        "Input type": ["float", "float"],
        "Ev Idx": 1,
        "cat": "cpu_op",
        "thread.name": "thread 4100 (python)",
        semconv.LANE: "main",
    }
    assert spans.attributes(named(spans)["profile"]) == {
        semconv.LANE: "main",
        semconv.EVIDENCE: "inferred",
    }


def test_the_resource_is_the_rank_and_its_devices() -> None:
    spans, _ = read(GPU.read_bytes())
    resource = spans.resource(0)
    assert len(spans.resources) == 1
    assert resource["service.name"] == "pytorch profiler"
    assert resource["host.name"] == "node-a"
    assert (resource[semconv.RANK], resource[semconv.WORLD_SIZE]) == (1, 2)
    assert resource["device.0.name"] == "NVIDIA H100 80GB HBM3"
    assert resource["device.0.numSms"] == 132


def test_kernels_follow_their_launches_and_backward_its_forward() -> None:
    spans, _ = read(GPU.read_bytes())
    ids = {int(own): spans.name(ix) for ix, own in enumerate(spans.span_id.tolist())}
    links = spans.links
    found = {
        (spans.name(ix), ids[to])
        for ix, to in zip(links.span_ix.tolist(), links.span_id.tolist(), strict=True)
    }
    nccl = next(name for name in spans.names if name.startswith("nccl"))
    assert found == {
        ("sm90_xmma_gemm_f32f32", "cudaLaunchKernel"),
        (nccl, "cudaLaunchKernelExC"),
        ("Memcpy HtoD (Pageable -> Device)", "aten::copy_"),  # by the external id: its launch is not there
        ("autograd::engine::evaluate_function: MmBackward0", "aten::mm"),
        ("ProfilerStep#3", "ProfilerStep#3"),
    } - ({("ProfilerStep#3", "ProfilerStep#3")} - found)
    assert set(links.kind) == {"follows"}
    assert np.array_equal(np.unique(links.trace_lo), np.unique(spans.trace_lo))


def test_arrows_stand_in_where_arguments_have_no_correlation() -> None:
    document = json.loads(GPU.read_text())
    for each in document["traceEvents"]:
        if isinstance(each.get("args"), dict):
            for key in ("correlation", "External id"):
                each["args"].pop(key, None)
    spans, _ = read(document)
    links = spans.links
    assert Counter(spans.name(ix)[:4] for ix in links.span_ix.tolist()) == {"sm90": 1, "nccl": 1, "auto": 1}


def test_the_same_file_has_the_same_ids_and_ranks_have_others() -> None:
    document = json.loads(GPU.read_text())
    one, again = read(document)[0], read(json.dumps(document, indent=3))[0]
    assert np.array_equal(one.span_id, again.span_id)
    document["distributedInfo"]["rank"] = 0
    other = read(document)[0]
    assert other.trace_lo[0] != one.trace_lo[0]
    assert not set(other.span_id.tolist()) & set(one.span_id.tolist())


def test_notes_on_waits_are_beside_the_work_of_their_stream() -> None:
    kernel = {"cat": "kernel", "pid": 0, "tid": 7}
    note = {"cat": "cuda_sync", "pid": 0, "tid": 7}
    spans, ledger = read(
        [event("a", 0, 10, **kernel), event("wait", 5, 20, **note), event("b", 12, 3, **kernel)]
    )
    assert parents(spans) == {"profile": "", "a": "profile", "wait": "profile", "b": "profile"}
    assert lane(spans, "wait") == lane(spans, "b") == "stream-0.7"
    assert ledger.warnings == []


def test_ranks_in_one_folder_are_read_together(tmp_path: Path) -> None:
    document = json.loads(GPU.read_text())
    for rank in range(2):
        document["distributedInfo"]["rank"] = rank
        text = json.dumps(document).encode()
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(text))
    for where in (tmp_path, tmp_path / "rank*.json.gz"):
        telemetry = open_source(str(where)).read(Selection())
        assert len(np.unique(telemetry.spans.trace_lo)) == 2
        assert {resource[semconv.RANK] for resource in telemetry.spans.resources} == {0, 1}
        assert len(telemetry.spans) == 2 * len(read(document)[0])


# --- Chrome's format in all its liberty -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},',
        '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},\n',
        '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2}',
        '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},\n]',
        '[\n{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},\n{"ph":"X","name":"b","pi',
        '{"traceEvents":[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},],"displayTimeUnit":"ms"}',
    ],
)
def test_the_end_of_a_list_of_events_may_be_missing(text: str) -> None:
    spans, ledger = read(text)
    assert sorted(spans.names) == ["a", "profile"]
    assert ledger.unreadable_lines == text.endswith("pi")  # an event that is cut


def test_what_json_forbids_and_profilers_write() -> None:
    text = (
        b'{"schemaVersion": 1, "traceEvents": ['
        b'{"ph":"X","name":"C:\\user\\x","pid":1,"tid":1,"ts":1,"dur":2,"args":{"loss":NaN,"b":-Infinity}},'
        b'{"ph":"X","name":"caf\xe9 \x93q\x94","pid":1,"tid":1,"ts":5,"dur":2},'
        b'{"ph":"X","name":"tab\there","pid":1,"tid":1,"ts":9,"dur":2,"args":{"s":"NaN, -Infinity,}"}},'
        b'{"ph":"X","name":"good","pid":1,"tid":1,"ts":12,"dur":2},'
        b"]}"
    )
    spans, ledger = read(text)
    assert set(spans.names) == {"profile", "C:\\user\\x", "café “q”", "tab\there", "good"}
    assert ledger.unreadable_lines == 0
    assert spans.attributes(named(spans)["C:\\user\\x"])["loss"] == "NaN"
    assert spans.attributes(named(spans)["tab\there"])["s"] == "NaN, -Infinity,}"


def test_events_that_are_none_are_left_out_one_by_one_and_counted() -> None:
    text = (
        '[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},{"ph":17},{"ph":"X","name":["x"],"ts":1},'
        '{"ph":"X","name":"b","pid":1,"tid":1,"ts":4,"dur":2}]'
    )
    spans, ledger = read(text)
    assert sorted(spans.names) == ["a", "b", "profile"]
    assert ledger.unreadable_lines == 2
    assert "2 events of a profile cannot be read" in ledger.warnings[0]


def test_begins_and_ends_make_spans() -> None:
    spans, ledger = read(
        [
            event("a", 1, None, ph="B", args={"n": 1}),
            event("b", 2.5, None, ph="B"),
            event("", 3, None, ph="E", args={"n": 2}),
            event("other", 3, None, ph="B", tid=2),
            event("a", 9.001, None, ph="E"),
            event("", 9.5, None, ph="E"),
            event("now", 4, None, ph="i"),
        ]
    )
    found = {spans.name(ix): (int(spans.start[ix]), int(spans.end[ix])) for ix in range(len(spans))}
    assert found["a"] == (1000, 9001)
    assert found["b"] == (2500, 3000)
    assert found["now"] == (4000, 4000)
    assert found["other"] == (3000, 0)
    assert ledger.impossible_times == 1
    assert spans.attributes(named(spans)["b"])["n"] == 2
    assert parents(spans)["now"] == "a"
    assert "1 end without a beginning" in ledger.warnings[0]


def test_impossible_times_are_kept_and_counted() -> None:
    spans, ledger = read(
        [event("good", 10, 5), event("no time", None, 5), event("back", 10, -5), event("text", "soon", 1)]  # type: ignore[arg-type]
    )
    assert len(spans) == 5
    assert ledger.impossible_times == 2
    assert [spans.name(ix) for ix in np.flatnonzero(~spans.possible)] == ["back", "text"]


def test_times_may_be_texts_and_whole_microseconds_since_1970() -> None:
    start = 1_796_113_322_763_869
    spans, _ = read([event("a", start, 7), event("b", f"{start + 1}.25", "1.5")])  # type: ignore[arg-type]
    found = {spans.name(ix): (int(spans.start[ix]), int(spans.end[ix])) for ix in range(len(spans))}
    assert found["a"] == (start * 1000, (start + 7) * 1000)
    assert found["b"] == (start * 1000 + 1250, start * 1000 + 2750)
    assert spans.resource(0) == {"service.name": "chrome trace"}


def test_bounds_hold_with_the_span_over_all() -> None:
    builder, ledger = SpanBuilder(5), Ledger()
    read_json([json.dumps([event(f"e{n}", n, 1) for n in range(50)]).encode()], builder, ledger, "x", 1 << 20)
    assert len(builder) == 5
    assert builder.full


# --- What PyTorch writes, and what is said of it ----------------------------------------------------------

PROGRAM = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.set_num_threads(1)
with profile(
    activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True, profile_memory=True
) as profiler:
    for _ in range(3):
        with record_function("my block"):
            loss = model(torch.randn(4, 8)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile that PyTorch made of a little training."""
    path = tmp_path_factory.mktemp("profile") / "trace.json"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return path


def test_what_pytorch_writes_is_read_whole(profile: Path) -> None:
    spans, ledger = read(profile.read_bytes())
    document = json.loads(profile.read_text(errors="replace"), strict=False)
    events = document["traceEvents"]
    complete = [each for each in events if each["ph"] == "X"]
    instants = [each for each in events if each["ph"] == "i" and each.get("cat") != "cpu_instant_event"]
    assert len(spans) == len(complete) + len(instants) + 1
    assert ledger.unreadable_lines == ledger.duplicates == ledger.impossible_times == 0
    assert spans.resource(0)["service.name"] == "pytorch profiler"
    base = int(document.get("baseTimeNanoseconds", 0))
    times = sorted((base + round(each["ts"] * 1000), round(each["dur"] * 1000)) for each in complete)
    found = sorted(zip(spans.start.tolist(), (spans.end - spans.start).tolist(), strict=True))
    assert len(set(times) - set(found)) <= 0.05 * len(times)  # floats of the test: some round the other way
    lanes = {spans.attributes(ix)[semconv.LANE] for ix in range(len(spans))}
    assert "main" in lanes
    assert {"aten::linear", "aten::addmm"} <= set(spans.names)
    assert "my block" in spans.names
    assert parents(spans)["aten::addmm"] == "aten::linear"
    assert len(spans.links)  # backward follows forward


def test_the_path_of_a_profile_tiles_it_and_gives_nobody_what_was_not_measured(profile: Path) -> None:
    spans, _ = read(profile.read_bytes())
    ((root, path),) = paths_of_traces(spans, trace_roots(spans), DEFAULT_TOLERANCE)
    assert spans.name(root) == "profile"
    assert {section.lane for section in path.sections} == {"main"}
    assert sum(section.end - section.start for section in path.sections) == path.end - path.start
    own = [section for section in path.sections if section.phase == "profile"]
    assert {section.kind for section in own} <= {GAP}


@pytest.mark.parametrize("command", ["report", "critical-path"])
def test_commands_say_something_true_of_a_profile(command: str, profile: Path) -> None:
    for path in (profile, GPU):
        done = subprocess.run(
            [sys.executable, "-c", "from grademl_otel.analyzers.cli import main; main()", command, str(path)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        out = done.stdout
        assert "1 trace" in out
        assert "passed over" in out
        assert "aten::" in out
