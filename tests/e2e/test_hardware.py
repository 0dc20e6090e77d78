# SPDX-License-Identifier: Apache-2.0
"""What a relay samples under real trainings, with GPUs of a stand-in for NVIDIA's library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import nvml, training
from tests.support.deaths import Scene
from tests.support.hardware import Column, exports, tables
from tests.support.needed import cannot_be_had
from tests.support.rank_program import free_port
from tests.support.relays import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts of other systems are not sampled")

PROGRAM = training.ROOT / "tests" / "support" / "hardware_program.py"
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "500"}


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[nvml.Control]:
    if find_spec("pynvml") is None:
        cannot_be_had("nvidia-ml-py is not installed")
    control = nvml.Control(tmp_path, "h100", count=2)
    control.run()
    yield control
    control.heal()


def of_kind(found: dict[tuple[str, str, str], Column], kind: str) -> dict[tuple[str, str], Column]:
    return {(device, column): values for (each, device, column), values in found.items() if each == kind}


def test_two_ranks_on_one_host(gpus: nvml.Control, tmp_path: Path) -> None:
    """Each GPU is told once, of both ranks; each rank's processes are its own."""
    scene = Scene(tmp_path, {**gpus.environment(), **OFTEN, "OTEL_SERVICE_NAME": "mine"})
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            training.traced_command(PROGRAM, "6"),
            env={**scene.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        used = []
        for program in ranks:
            out, err = program.communicate(timeout=120)
            assert program.returncode == 0, err
            used.append(float(out))
        until(lambda: len(scene.runs()) == 2)
        until(lambda: scene.log.read_text().count("finished ") == 2)
    finally:
        for program in ranks:
            program.kill()
        scene.clear()

    found = tables(scene.spans())
    gpu = of_kind(found, "gpu")
    assert {device for device, _ in gpu} == set(gpus.ids)
    for device in gpus.ids:
        assert gpu[device, "utilization"].capacities == {1000}
        assert all(0 <= value <= 1000 for value in gpu[device, "utilization"].values.values())
        assert len(gpu[device, "memory"].values) >= 3
        assert max(gpu[device, "memory"].values.values()) <= max(gpu[device, "memory"].capacities)
    for rank, seconds in enumerate(used):
        cpu = found["process", f"rank {rank}", "cpu"]
        assert 0 < cpu.total <= seconds * 1000 + 20  # what it used itself, to the kernel's tick
        assert found["process", f"rank {rank}", "memory"].total > 0
    assert {device for device, _ in of_kind(found, "process")} == {"rank 0", "rank 1"}
    assert found["cpu", "cpu", "busy"].total > 0
    assert found["cpu", "cpu", "busy"].capacities

    (folder,) = scene.store.iterdir()
    told = list(exports(folder / "metrics.jsonl"))
    of_ranks = [each for each in told if semconv.RANK in each[0]]
    of_host = [each for each in told if semconv.RANK not in each[0]]
    assert len(of_host) >= 2
    starts: dict[str, set[int]] = {}
    for resource, points in of_host:
        assert resource["service.name"] == "mine"
        assert not {semconv.RUN_ID, "process.pid"} & set(resource)
        known = [(point.metric, sorted(point.attributes.items())) for point in points]
        assert all(known.count(each) == 1 for each in known)
        assert not any(point.metric.startswith("process.") for point in points)
        for point in points:
            if point.metric == "hw.gpu.utilization":
                starts.setdefault(point.attributes["hw.id"], set())
            if point.metric == "hw.energy":
                starts.setdefault(point.attributes["hw.id"], set()).add(point.start_ns)
    assert set(starts) == set(gpus.ids)
    assert all(len(each) == 1 for each in starts.values())
    processes = [
        (resource[semconv.RANK], point.value)
        for resource, points in of_ranks
        for point in points
        if point.metric == "process.memory.usage"
    ]
    assert {rank for rank, _ in processes} == {0, 1}
    assert all(value > 1 << 20 for _, value in processes)

    report = training.grademl(["report", str(folder)], tmp_path).ok()
    assert "2 processes" in report.out or "2 ranks" in report.out


def test_a_gpu_that_hangs_delays_nobody(gpus: nvml.Control, tmp_path: Path) -> None:
    good, bad = gpus.ids
    gpus.hang("nvmlDeviceGetUtilizationRates", 600, gpu=1)
    scene = Scene(tmp_path, {**gpus.environment(), **OFTEN})
    program = scene.start("wait", 1)
    try:
        until(lambda: of_kind(tables(scene.spans()), "gpu"))
        assert scene.stop(program)[0] == 0
        (relay,) = scene.relays()
        until(lambda: scene.says("finished "))
        os.kill(relay, signal.SIGTERM)
        until(lambda: not scene.relays(), 10)  # it does not wait for that call
        assert scene.says("done")
    finally:
        program.kill()
        scene.clear()
    assert {device for device, _ in of_kind(tables(scene.spans()), "gpu")} == {good}
    (folder,) = scene.store.iterdir()
    ids = {
        point.attributes["hw.id"]
        for _, points in exports(folder / "metrics.jsonl")
        for point in points
        if point.metric == "hw.gpu.utilization"
    }
    assert ids == {good}
    assert bad not in ids


def test_a_killed_training_tells_of_its_last_seconds(gpus: nvml.Control, tmp_path: Path) -> None:
    scene = Scene(tmp_path, {**gpus.environment(), "GRADEML_GPU_INTERVAL": "0"})
    program = scene.start("wait", 1)
    try:
        until(lambda: ("cpu", "cpu", "busy") in tables(scene.spans()))
        told = tables(scene.spans())
        os.kill(scene.trainer(), signal.SIGKILL)
        program.communicate(timeout=30)
        run = scene.run()
        until(lambda: scene.says("finished "))
    finally:
        program.kill()
        scene.clear()
    assert run[semconv.ENDED] == "killed"
    found = tables(scene.spans())  # and no second twice
    assert of_kind(found, "gpu") == {}
    cpu = found["cpu", "cpu", "busy"]
    assert len(cpu.values) >= len(told["cpu", "cpu", "busy"].values)
    assert max(cpu.values) + 1000 <= run.end / 1e6 + 1000
    (folder,) = scene.store.iterdir()
    names = {point.metric for _, points in exports(folder / "metrics.jsonl") for point in points}
    assert "system.cpu.time" in names
    assert not any(name.startswith("hw.gpu") for name in names)


def test_the_relay_after_a_killed_one_tells_no_second_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, OFTEN)
    program = scene.start("wait", 1)
    try:
        until(lambda: tables(scene.spans()))
        scene.kill_relay()
        before = len(tables(scene.spans())["memory", "memory", "used"].values)
        until(lambda: len(tables(scene.spans())["memory", "memory", "used"].values) > before)
        assert scene.stop(program)[0] == 0
        until(lambda: scene.says("finished "))
    finally:
        program.kill()
        scene.clear()
    unique = {(span.trace_id, span.span_id): span for span in scene.spans()}
    assert tables(unique.values())


def test_nothing_is_sampled_where_nothing_is_wanted(gpus: nvml.Control, tmp_path: Path) -> None:
    settings = {"GRADEML_GPU_INTERVAL": "0", "GRADEML_HOST_INTERVAL": "0", **OFTEN}
    scene = Scene(tmp_path, {**gpus.environment(), **settings})
    program = scene.start("wait", 1)
    try:
        until(lambda: scene.spans())
        (relay,) = scene.relays()
        threads = {path.read_text() for path in Path(f"/proc/{relay}/task").glob("*/comm")}
        maps = Path(f"/proc/{relay}/maps").read_text()
        assert scene.stop(program)[0] == 0
        until(lambda: scene.says("finished "))
    finally:
        program.kill()
        scene.clear()
    assert len(threads) == 1
    assert "nvidia-ml" not in maps
    assert tables(scene.spans()) == {}
    (folder,) = scene.store.iterdir()
    assert all(semconv.RANK in resource for resource, _ in exports(folder / "metrics.jsonl"))
