# SPDX-License-Identifier: Apache-2.0
"""What a relay samples: tables told once per run whoever tells, metrics once per host, nothing that waits."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import marks, semconv
from grademl_otel.catalog.metric import COUNTER, GAUGE, UPDOWN, Metric
from grademl_otel.config import Settings
from grademl_otel.convert.spans import Metric as Exported
from grademl_otel.convert.spans import Resource, Span
from grademl_otel.export.interval import Thinning
from grademl_otel.pump import Alone, Beside
from grademl_otel.relay.hardware import Hardware
from grademl_otel.relay.hostresource import host_resource
from grademl_otel.relay.processes import JobProcesses
from grademl_otel.sampling.bins import Bins
from grademl_otel.sampling.election import SENDS_GPUS, Elections
from grademl_otel.sampling.sampler import Sampler
from grademl_otel.sampling.source import Provider, Reading, Series, Source, SourceGone

from ..support.mark_script import INFO, OFFSET, RUN_ID, S
from ..support.relays import until

RECEIVED = Metric("hw.network.io", "By", COUNTER, "Bytes.", "", column="network.rx")
USE = Metric("hw.gpu.utilization", "1", GAUGE, "Use.", "", column="gpu.utilization", scale=1000)
CPU = Metric("process.cpu.time", "s", COUNTER, "CPU.", "", column="process.cpu", scale=1000)
MEMORY = Metric("process.memory.usage", "By", UPDOWN, "Memory.", "", column="process.memory")
DIGEST = "0123456789abcdef01234567"


class Way:
    """Stands for the sinks of a relay, and for that of its host."""

    metrics_every_ns = 10 * S

    def __init__(self) -> None:
        self.opened: list[Resource] = []
        self.taken: list[Sequence[Exported]] = []

    def open_otlp(self, resource: Resource) -> Way:
        self.opened.append(resource)
        return self

    def take_metrics(self, metrics: Sequence[Exported], final: bool) -> None:
        self.taken.append(metrics)


class Counting:
    """A provider with one source, which counts its readings."""

    def __init__(
        self, name: str = "fake", act: Callable[[], None] = lambda: None, kind: str = "network"
    ) -> None:
        self.name = name
        self.act = act
        self.series = Series(RECEIVED, {"hw.id": name, "hw.type": kind}, name)
        self.readings = 0

    def sources(self) -> Sequence[Source]:
        return [self]

    def read(self) -> Sequence[Reading]:
        self.act()
        self.readings += 1
        return [(self.series, self.readings)]

    def close(self) -> None: ...


def hardware(
    folder: Path, providers: Sequence[Provider] = (), way: Way | None = None, **environ: str
) -> Hardware:
    environ = {"GRADEML_HOST_INTERVAL": "0.1", **environ}
    sinks: Any = way or Way()
    read = Settings.from_env(environ)
    return Hardware(
        read, environ, sinks, folder, DIGEST, lambda _: [(provider, 0.1) for provider in providers]
    )


def with_history(folder: Path, seconds: int) -> tuple[Hardware, int]:
    """One that has sampled for so long, 100 + n bytes in the n-th second; and its first second."""
    made = hardware(folder)
    first = time.perf_counter_ns() // S - seconds
    series, total = Series(RECEIVED, {}, "eth0"), 0
    for number in range(seconds + 1):
        made._bins.add(S, (first + number) * S, [(series, total)])
        total += 100 + number
    return made, first


def window(start: int = 0) -> Span:
    return Span(semconv.WINDOW, 1, 2, 0, OFFSET + start, OFFSET + start + S)


def run_span(end: int) -> Span:
    return Span(semconv.RUN, 1, 3, 0, OFFSET, OFFSET + end)


def told(spans: Sequence[Span], column: str = "network.rx") -> dict[int, int]:
    """What the tables of ``spans`` say by second of perf_counter; fails where two say the same second."""
    found: dict[int, int] = {}
    for span in spans:
        attributes: Any = span.attributes
        values = attributes.get(semconv.RESOURCES_PREFIX + column)
        if values is None:
            continue
        bins, length = attributes[semconv.RESOURCES_BINS], attributes[semconv.RESOURCES_BIN]
        values = values * bins if len(values) == 1 else values
        assert len(values) == bins
        for index, value in enumerate(values):
            begin = (
                span.start_ns - OFFSET + attributes[semconv.RESOURCES_START] * 1000 + index * length * 10**6
            )
            number = round(begin / S)
            assert abs(begin - number * S) < 1000
            assert number not in found
            found[number] = value
    return found


# --- Tables ------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10 * S)), max_size=12), st.permutations(range(4)))
def test_each_second_is_told_once_whoever_tells(windows: list[tuple[int, int]], order: list[int]) -> None:
    made, first = with_history(Path("/nowhere"), 40)
    ranks = [made.beside(1 + rank, alive=False) for rank in range(4)]
    for number, rank in enumerate(ranks):
        rank.begin(replace(INFO, rank=number, world_size=4), (first + 2) * S + 5)
    spans = []
    for number, start in windows:
        spans.append(window(start))
        ranks[number].attach(spans[-1:], False)
    now = time.perf_counter_ns()
    for number in order:
        spans += [window(), run_span(now)]
        ranks[number].attach(spans[-2:], True)
    assert told(spans) == {first + number: 100 + number for number in range(2, 40)}
    assert not any(semconv.RESOURCES_BINS in span.attributes for span in spans if span.name == semconv.RUN)


def test_a_run_without_windows_has_it_all_on_the_last_run_span(tmp_path: Path) -> None:
    made, first = with_history(tmp_path, 20)
    ranks = [made.beside(1 + rank, alive=False) for rank in range(2)]
    for number, rank in enumerate(ranks):
        rank.begin(replace(INFO, rank=number, world_size=2), first * S)
    spans = [run_span(time.perf_counter_ns()), run_span((first + 15) * S + 1)]
    ranks[1].attach(spans[:1], True)
    assert semconv.RESOURCES_BINS not in spans[0].attributes
    ranks[0].attach(spans[1:], True)
    assert told(spans) == {first + number: 100 + number for number in range(20)}


def test_nothing_is_told_of_the_time_after_the_run(tmp_path: Path) -> None:
    made, first = with_history(tmp_path, 20)
    rank = made.beside(1, alive=False)
    rank.begin(INFO, first * S)
    span = run_span((first + 5) * S + 1)
    rank.attach([span], True)
    assert told([span]) == {first + number: 100 + number for number in range(6)}


def test_runs_side_by_side_are_told_all_of_it_each(tmp_path: Path) -> None:
    made, first = with_history(tmp_path, 20)
    for info in (INFO, replace(INFO, attempt=1), replace(INFO, run_id="f" * 32)):
        rank = made.beside(1, alive=False)
        rank.begin(info, (first + 4) * S)
        span = window()
        rank.attach([span], False)
        assert told([span]) == {first + number: 100 + number for number in range(4, 20)}


def test_a_rank_that_comes_when_the_others_are_gone_tells_no_second_again(tmp_path: Path) -> None:
    made, first = with_history(tmp_path, 20)
    spans = [run_span((first + 5) * S), run_span((first + 9) * S)]
    for number, span in enumerate(spans):
        rank = made.beside(1 + number, alive=False)
        rank.begin(replace(INFO, rank=number, world_size=2), first * S)
        rank.attach([span], True)
        rank.end()
    assert told(spans) == {first + number: 100 + number for number in range(9)}


def test_a_second_that_no_span_had_room_for_is_told_later(tmp_path: Path) -> None:
    made, first = with_history(tmp_path, 200)
    for index in range(300):
        series = Series(RECEIVED, {}, f"port{index}")
        for number in range(201):
            made._bins.add(S, (first + number) * S, [(series, number * (1 << 40))])
    rank = made.beside(1, alive=False)
    rank.begin(replace(INFO, world_size=64), first * S)
    spans = [window() for _ in range(20)]
    for span in spans:
        rank.attach([span], False)
    tables: list[dict[str, Any]] = [
        dict(span.attributes) for span in spans if semconv.RESOURCES_BINS in span.attributes
    ]
    assert len(tables) > 1
    assert tables[0][semconv.RESOURCES_BIN] > 1000  # so many seconds are more than the next spans could take
    assert tables[0]["grademl.resources.network.id"][0] == "eth0"
    added = 0
    for table in tables:
        bins = table[semconv.RESOURCES_BINS]
        added += sum(table["grademl.resources.network.rx"][:bins])
    covered = sum(table[semconv.RESOURCES_BINS] * table[semconv.RESOURCES_BIN] for table in tables) // 1000
    assert covered > 190
    assert added == sum(100 + number for number in range(covered))


def test_no_tables_where_nothing_is_sampled(tmp_path: Path) -> None:
    made = hardware(tmp_path, GRADEML_GPU_INTERVAL="0", GRADEML_HOST_INTERVAL="0")
    assert not made.wanted
    assert isinstance(made.beside(1, alive=True), Alone)


# --- Processes ---------------------------------------------------------------------------------------------


class Tree:
    """A process: one second of CPU time for each reading, so many bytes."""

    def __init__(self, pid: int, device: str) -> None:
        self.name = f"process {pid}"
        self.cpu, self.memory = Series(CPU, {}, device), Series(MEMORY, {}, device)
        self.pid = pid
        self.seconds = 0.0

    def read(self) -> Sequence[Reading]:
        if self.pid == 13:
            raise PermissionError("not yours")
        if self.pid == 404:
            raise SourceGone
        self.seconds += 1
        return [(self.cpu, self.seconds), (self.memory, 1000 * self.pid)]

    def close(self) -> None: ...


def test_processes_are_told_of_in_their_own_run_only() -> None:
    bins, now = Bins(), [0]
    processes = JobProcesses(Tree, bins, S, lambda: now[0])
    processes.follow("ring 1", 1, "rank 0", "a")
    processes.follow("ring 2", 2, "rank 1", "a")
    processes.follow("ring 3", 3, "rank 0", "b")
    processes.follow("ring 4", 404, "rank 1", "b")
    for second in range(5):
        now[0] = (second + 1) * S
        assert processes.read() == ()
    assert {(row.device, row.column): row.values for row in bins.rows(1, 5, "a")} == {
        ("rank 0", "cpu"): [1000] * 4,
        ("rank 0", "memory"): [1000] * 4,
        ("rank 1", "cpu"): [1000] * 4,
        ("rank 1", "memory"): [2000] * 4,
    }
    assert {row.device for row in bins.rows(1, 5, "b")} == {"rank 0"}
    assert [(s.series.metric.name, s.value, s.start_ns) for s in processes.latest("ring 2")] == [
        ("process.cpu.time", 5.0, S),
        ("process.memory.usage", 2000, S),
    ]
    now[0] = 60 * S
    assert processes.latest("ring 2") == []
    processes.leave("ring 2")
    processes.read()
    assert [sample.value for sample in processes.latest("ring 1")] == [6.0, 1000]
    assert processes.latest("ring 2") == []


def test_a_process_that_begins_its_next_run_is_followed_on() -> None:
    bins = Bins()
    processes = JobProcesses(Tree, bins, S)
    processes.follow("first ring", 1, "rank 0", "first run")
    processes.read()
    processes.follow("second ring", 1, "rank 0", "second run")
    processes.leave("first ring")
    processes.read()
    assert processes.latest("first ring") == []
    assert len(processes.latest("second ring")) == 2


def test_two_processes_of_one_rank_are_kept_apart(tmp_path: Path) -> None:
    made = hardware(tmp_path)
    followed: list[str] = []
    processes: Any = SimpleNamespace(follow=lambda ring, pid, device, owner: followed.append(device))
    made._processes = processes
    for pid, info in (
        (1, INFO),
        (2, INFO),
        (1, INFO),
        (3, replace(INFO, attempt=1)),
        (4, replace(INFO, rank=1)),
    ):
        made.beside(pid, alive=True).begin(info, 0)
    assert followed == ["rank 0", "rank 0 process 2", "rank 0 process 1", "rank 0", "rank 1"]


def test_a_process_that_cannot_be_read_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    processes = JobProcesses(Tree, Bins(), S // 20)
    processes.follow("ring 1", 13, "rank 0", "a")
    processes.follow("ring 2", 2, "rank 1", "a")
    sampler = Sampler([processes], 0.05)
    sampler.start()
    try:
        # After some failures of a source its next reading is seconds away.
        until(lambda: any(sample.value >= 20 for sample in processes.latest("ring 2")[:1]), 5)
    finally:
        sampler.stop()
    of_processes = [record for record in caplog.records if record.name.endswith(".processes")]
    assert [record.getMessage() for record in of_processes] == [
        "rank 0, process 13: cannot be read: PermissionError: not yours"
    ]


def test_where_no_process_can_be_read_the_sampler_is_told() -> None:
    processes = JobProcesses(Tree, Bins(), S)
    processes.follow("ring 1", 13, "rank 0", "a")
    processes.follow("ring 2", 404, "rank 1", "a")
    with pytest.raises(PermissionError):
        processes.read()


# --- Metrics -----------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., tuple[Hardware, list[Beside]]]]:
    """Starts a relay's sampling with a ring for each info."""
    started: list[Hardware] = []

    def begin(way: Way, *infos: marks.RunInfo, gpus: str = "") -> tuple[Hardware, list[Beside]]:
        providers = [Counting(), *(Counting(gpu, kind="gpu") for gpu in gpus)]
        made = hardware(tmp_path, providers, way)
        started.append(made)
        rings = [made.beside(os.getpid(), alive=False) for _ in infos]
        for ring, info in zip(rings, infos, strict=True):
            ring.begin(info, time.perf_counter_ns())
        until(lambda: {sample.series.device for sample in made._samples()} >= {"fake", *gpus})
        return made, rings

    yield begin
    for each in started:
        each.close()


def due(made: Hardware) -> int:
    return time.perf_counter_ns() + 3600 * S


def test_metrics_go_into_each_runs_folder_once(begun: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    infos = [
        replace(INFO, rank=rank, world_size=2, run_id=run, store=str(store), resource={"grademl.rank": rank})
        for run in (RUN_ID, "f" * 32)
        for rank in (0, 1)
    ]
    made, rings = begun(Way(), *infos)
    made.turn(due(made))
    assert not store.exists()  # a run of which nobody is to hear may still be nothing
    folders = [store / f"20260101T000000Z-{run}" for run in (RUN_ID, "f" * 32)]
    for folder in folders:
        folder.mkdir(parents=True)
    made.turn(due(made) + 3600 * S)
    for ring in rings:
        ring.end()
        ring.end()
    for folder in folders:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
        assert len(lines) == 2  # one at its time, one at the end
        for line in lines:
            (group,) = json.loads(line)["resourceMetrics"]
            keys = {attribute["key"] for attribute in group["resource"]["attributes"]}
            assert {"host.name", "os.type", "service.name", "grademl.clock.id"} <= keys
            assert not keys & {"grademl.rank", "process.pid"}
            metrics = {metric["name"]: metric for metric in group["scopeMetrics"][0]["metrics"]}
            (point,) = metrics["hw.network.io"]["sum"]["dataPoints"]
            assert int(point["asInt"]) > 0
            assert 0 < int(point["startTimeUnixNano"]) <= int(point["timeUnixNano"])
            # By the clock of the run, as its spans.
            assert 0 <= time.perf_counter_ns() + OFFSET - int(point["timeUnixNano"]) < 60 * S


def test_a_clock_that_was_set_since_the_last_run_is_looked_at_anew(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, right = Way(), time.time_ns
    info = replace(INFO, exporters=("otlp",))
    with monkeypatch.context() as before:
        before.setattr(time, "time_ns", lambda: right() - 3600 * S)
        made, rings = begun(way, info)
        made.turn(due(made))
    made.beside(1, alive=False).begin(info, 0)  # beside the first, whose time goes on as it began
    made.turn(due(made) + 3600 * S)
    for ring in (*rings, *made._runs[info.run_id, info.attempt].rings):
        ring.end()
    made.beside(1, alive=False).begin(replace(info, run_id="f" * 32), 0)
    made.turn(due(made) + 7200 * S)
    behind = [right() - metric.time_ns for metrics in way.taken for metric in metrics[:1]]
    assert [round(each / 3600 / S) for each in behind] == [1, 1, 1, 0]


def test_one_relay_of_a_host_sends_to_a_collector(begun: Any, tmp_path: Path) -> None:
    ways = [Way(), Way()]
    info = replace(INFO, exporters=("otlp",))
    (first, rings), (second, _) = (begun(way, info) for way in ways)
    for made in (first, second):
        made.turn(due(made))
    assert [len(way.taken) for way in ways] == [1, 0]
    assert [resource.attributes["service.name"] for resource in ways[0].opened] == ["grademl-host"]
    rings[0].end()  # it has nothing to send from now on
    second.turn(due(second) + 3600 * S)
    assert [len(way.taken) for way in ways] == [2, 1]
    assert not list(tmp_path.glob("*-0000*"))


def devices(metrics: Sequence[Exported]) -> list[Any]:
    points = [point for metric in metrics if metric.name == "hw.network.io" for point in metric.points]  # type: ignore[union-attr]
    return [point.attributes["hw.id"] for point in points]


def test_each_gpu_is_told_by_a_relay_that_sees_it(begun: Any, tmp_path: Path) -> None:
    """As in containers that share a /dev/shm, each with GPUs of its own, and where NVML is missing."""
    ways = [Way(), Way(), Way()]
    info = replace(INFO, exporters=("otlp", "file"), store=str(tmp_path))
    (tmp_path / f"x-{RUN_ID}").mkdir()
    (bare, rings), (first, its_rings), (second, _) = (
        begun(way, info, gpus=gpus) for way, gpus in zip(ways, ("", "ab", "bc"), strict=True)
    )
    observer = Elections(tmp_path, DIGEST)
    bare.turn(due(bare))
    assert not observer.others(SENDS_GPUS)
    for made in (first, second):
        made.turn(due(made))
    assert observer.others(SENDS_GPUS)
    assert [[devices(each) for each in way.taken] for way in ways] == [[["fake"]], [["a", "b"]], [["c"]]]
    written = (tmp_path / f"x-{RUN_ID}" / "metrics.jsonl").read_bytes()
    assert [sorted(devices_written(line)) for line in written.splitlines()] == [["fake"], ["a", "b"], ["c"]]
    its_rings[0].end()
    rings[0].end()
    second.turn(due(second) + 3600 * S)
    assert devices(ways[2].taken[-1]) == ["fake", "b", "c"]


def devices_written(line: bytes) -> list[str]:
    (group,) = json.loads(line)["resourceMetrics"]
    return [
        attribute["value"]["stringValue"]
        for metric in group["scopeMetrics"][0]["metrics"]
        if metric["name"] == "hw.network.io"
        for point in metric["sum"]["dataPoints"]
        for attribute in point["attributes"]
        if attribute["key"] == "hw.id"
    ]


def test_files_of_long_runs_get_metrics_less_often(begun: Any, tmp_path: Path) -> None:
    thinning = Thinning()
    taken = [second for second in range(0, 86_400, 10) if thinning.takes(second * S)]
    assert taken[:14] == [*range(0, 120, 10), 130, 150]
    assert {after - before for before, after in pairwise(taken[-100:])} == {60}
    assert max(after - before for before, after in pairwise(taken)) == 60

    made, rings = begun(Way(), replace(INFO, store=str(tmp_path)))
    folder = tmp_path / f"x-{RUN_ID}"
    folder.mkdir()
    (run,) = made._runs.values()
    assert all(run.thinning.takes(at) for at in (0, time.perf_counter_ns()))
    made.turn(due(made))
    assert not (folder / "metrics.jsonl").exists()
    rings[0].end()
    assert len((folder / "metrics.jsonl").read_bytes().splitlines()) == 1  # the last values are always there


def test_no_metrics_where_the_user_wants_none(begun: Any, tmp_path: Path) -> None:
    way = Way()
    made, rings = begun(way, replace(INFO, exporters=("otlp", "file"), store=str(tmp_path), metrics=False))
    (tmp_path / f"x-{RUN_ID}").mkdir()
    made.turn(due(made))
    rings[0].end()
    assert way.taken == []
    assert list((tmp_path / f"x-{RUN_ID}").iterdir()) == []


def test_a_source_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    release, entered = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(60)

    good, way = Counting("good"), Way()
    made = hardware(tmp_path, [Counting("bad", hang), good], way)
    ring = made.beside(os.getpid(), alive=False)
    ring.begin(replace(INFO, exporters=("otlp",)), 0)
    try:
        until(lambda: good.readings > 2 and entered.is_set())
        ring.attach([window()], False)
        made.turn(due(made))
        (metrics,) = way.taken
        (io,) = (metric for metric in metrics if metric.name == "hw.network.io")
        assert [point.attributes["hw.id"] for point in io.points] == ["good"]  # type: ignore[union-attr]
        ring.end()
    finally:
        made.close()  # returns, though the call still goes on
        assert not release.is_set()
        release.set()


@pytest.mark.parametrize("error", [ImportError("no such library"), RuntimeError("odd")])
def test_what_cannot_be_found_is_not_sampled(error: Exception, tmp_path: Path) -> None:
    tried = threading.Event()

    def find(_: Settings) -> list[tuple[Provider, float]]:
        tried.set()
        raise error

    sinks: Any = Way()
    made = Hardware(Settings.from_env({}), {}, sinks, tmp_path, DIGEST, find)
    ring = made.beside(1, alive=False)
    ring.begin(INFO, 0)
    until(tried.is_set)
    span = window()
    ring.attach([span], False)
    made.turn(due(made))
    assert list(ring.metrics()) == []
    ring.end()
    made.close()
    assert span.attributes == {}


def test_without_threads_to_be_had_it_is_closed_all_the_same_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made, again = hardware(tmp_path, [Counting()]), hardware(tmp_path, [Counting()])
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        for each in (made, again):
            each.beside(1, alive=False).begin(INFO, 0)
    made.close()
    again.beside(2, alive=False).begin(replace(INFO, rank=1, world_size=2), 0)
    until(again._samples)
    again.close()


def test_what_starts_while_it_is_closed_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which threads start slowly: nobody waits until the sampler has all of its own."""
    started, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Empty(Provider):
        name = "empty"

        def sources(self) -> Sequence[Source]:
            return ()

        def close(self) -> None:
            closed.set()

    start = Sampler.start

    def slow(sampler: Sampler) -> None:
        start(sampler)
        started.set()
        go_on.wait(10)

    monkeypatch.setattr(Sampler, "start", slow)
    made = hardware(tmp_path, [Empty()])
    made.beside(1, alive=False).begin(INFO, 0)
    assert started.wait(10)
    made.close()
    go_on.set()
    until(closed.is_set)


def test_what_is_found_when_it_is_closed_is_let_go(tmp_path: Path) -> None:
    looking, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Held(Counting):
        def close(self) -> None:
            closed.set()

    provider = Held()

    def find(_: Settings) -> list[tuple[Provider, float]]:
        looking.set()
        go_on.wait(10)
        return [(provider, 0.1)]

    sinks: Any = Way()
    made = Hardware(Settings.from_env({}), {}, sinks, tmp_path, DIGEST, find)
    made.beside(1, alive=False).begin(INFO, 0)
    assert looking.wait(10)
    made.close()
    go_on.set()
    until(closed.is_set, 5)
    assert provider.readings == 0


def test_the_resource_of_a_host_is_of_no_rank() -> None:
    run = {
        "host.name": "node-7", "host.id": "abc", "service.name": "trainer", "process.pid": 12,
        "grademl.rank": 3, "cloud.region": "eu-1", "telemetry.sdk.name": "opentelemetry",
    }  # fmt: skip
    told = dict(
        host_resource({"OTEL_RESOURCE_ATTRIBUTES": "team=a%20b,host.name=other, =x,y"}, run).attributes
    )
    assert told.pop("grademl.clock.id")
    assert told.pop("os.type")
    assert told == {
        "host.name": "other", "host.id": "abc", "cloud.region": "eu-1", "team": "a b",
        "service.name": "grademl-host", "service.instance.id": "other",
    }  # fmt: skip
    named = host_resource({"OTEL_SERVICE_NAME": "mine"}, run).attributes
    assert (named["service.name"], named["service.instance.id"]) == ("mine", "node-7")
