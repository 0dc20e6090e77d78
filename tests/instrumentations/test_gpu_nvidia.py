# SPDX-License-Identifier: Apache-2.0
"""GPUs of NVIDIA as they answer when all is well: through the real nvidia-ml-py."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grademl_otel.catalog.gpu import METRICS
from grademl_otel.catalog.metric import COUNTER
from grademl_otel.catalog.sampler import FAILURES
from grademl_otel.instrumentations.gpu import nvml as library
from grademl_otel.instrumentations.gpu import nvmlpcie
from grademl_otel.instrumentations.gpu.nvidia import NvidiaProvider
from grademl_otel.sampling.source import InParts, Reading

from ..support import nvml

pytest.importorskip("pynvml")


def key(reading: Reading) -> str:
    """Return the name of a series: the metric's, and the values of its own attributes."""
    series = reading[0]
    own = [str(series.attributes[each]) for each in series.metric.attributes if each in series.attributes]
    return series.metric.name + (f"{{{','.join(own)}}}" if own else "")


def values(readings: Iterable[Reading], device: str) -> dict[str, Any]:
    """Return what was read of a GPU or of an instance."""
    found = [(key(each), each[1]) for each in readings if each[0].device == device]
    assert len(dict(found)) == len(found), "a series twice"
    return dict(found)


@pytest.fixture
def provider() -> Iterator[NvidiaProvider]:
    made = NvidiaProvider()
    yield made
    made.close()


_QUIET = {
    f"grademl.gpu.throttle.active{{{reason}}}": 0
    for reason in (
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake",
    )
}
_CAPPED = {**_QUIET, "grademl.gpu.throttle.active{sw_power_cap}": 1}

A100 = {
    **_QUIET,
    "hw.gpu.utilization{general}": 0.97,
    "hw.gpu.utilization{encoder}": 0,
    "hw.gpu.utilization{decoder}": 0,
    "grademl.gpu.memory.busy": 0.61,
    "hw.gpu.memory.usage": 40 << 30,
    "hw.gpu.memory.limit": 80 << 30,
    "hw.gpu.memory.utilization": 0.5,
    "grademl.gpu.process.memory{4001}": 42010148864,
    "grademl.gpu.process.memory{4002}": 512 << 20,
    "hw.power": 351.25,
    "grademl.gpu.power.limit": 400,
    "hw.energy": 3512.5,  # 351.25 W for 10 s
    "hw.temperature{gpu}": 61,
    "hw.temperature{memory}": 58,
    "hw.temperature.limit{gpu,critical}": 92,
    "hw.temperature.limit{gpu,throttled}": 89,
    "grademl.gpu.clock{sm}": 1_410_000_000,
    "grademl.gpu.clock{memory}": 1_593_000_000,
    "grademl.gpu.clock.limit{sm}": 1_410_000_000,
    "grademl.gpu.clock.limit{memory}": 1_593_000_000,
    "grademl.gpu.throttled": 0,
    "grademl.gpu.throttle.time{sw_power_cap}": 0.2,
    "grademl.gpu.throttle.time{sync_boost}": 0,
    "hw.gpu.io{receive,nvlink}": 10 * 33554432 * 1024,
    "hw.gpu.io{transmit,nvlink}": 10 * 50331648 * 1024,
    "grademl.gpu.link.limit{nvlink}": 12 * 25_781e6,
    "grademl.gpu.nvlink.links": 12,
    "grademl.gpu.link.limit{pcie}": 16e9 * 128 / 130 / 8 * 16,
    "grademl.gpu.pcie.generation": 4,
    "grademl.gpu.pcie.generation.limit": 4,
    "grademl.gpu.pcie.width": 16,
    "grademl.gpu.pcie.width.limit": 16,
    "hw.errors{ecc.corrected}": 0,
    "hw.errors{ecc.uncorrected}": 0,
    "hw.errors{pcie.replay}": 0,
    "hw.errors{nvlink.crc}": 0,
    "hw.errors{nvlink.replay}": 0,
    "hw.errors{nvlink.recovery}": 0,
    "hw.errors{xid}": 0,
    "grademl.gpu.memory.remapped_rows{ecc.corrected}": 1,
    "grademl.gpu.memory.remapped_rows{ecc.uncorrected}": 0,
}
H100 = {
    **_CAPPED,
    "hw.gpu.utilization{general}": 1,
    "hw.gpu.utilization{encoder}": 0,
    "hw.gpu.utilization{decoder}": 0,
    "grademl.gpu.memory.busy": 0.44,
    "hw.gpu.memory.usage": 60129542144,
    "hw.gpu.memory.limit": 85520809984,
    "hw.gpu.memory.utilization": 60129542144 / 85520809984,
    "grademl.gpu.process.memory{5001}": 55 << 30,
    "hw.power": 668.12,
    "grademl.gpu.power.limit": 700,
    "hw.energy": 6681.2,
    "hw.temperature{gpu}": 64,
    "hw.temperature{memory}": 71,
    "hw.temperature.limit{gpu,critical}": 93,
    "hw.temperature.limit{gpu,throttled}": 90,
    "grademl.gpu.clock{sm}": 1_755_000_000,
    "grademl.gpu.clock{memory}": 2_619_000_000,
    "grademl.gpu.clock.limit{sm}": 1_980_000_000,
    "grademl.gpu.clock.limit{memory}": 2_619_000_000,
    "grademl.gpu.throttled": 1,
    "grademl.gpu.throttle.time{sw_power_cap}": 4,
    "grademl.gpu.throttle.time{sync_boost}": 0,
    "grademl.gpu.throttle.time{sw_thermal_slowdown}": 0,
    "grademl.gpu.throttle.time{hw_thermal_slowdown}": 0,
    "grademl.gpu.throttle.time{hw_power_brake}": 0,
    "hw.gpu.io{receive,nvlink}": 10 * 94371840 * 1024,
    "hw.gpu.io{transmit,nvlink}": 10 * 104857600 * 1024,
    "grademl.gpu.link.limit{nvlink}": 8 * 26_562e6,
    "grademl.gpu.nvlink.links": 8,
    "grademl.gpu.link.limit{pcie}": 32e9 * 128 / 130 / 8 * 16,
    "grademl.gpu.pcie.generation": 5,
    "grademl.gpu.pcie.generation.limit": 5,
    "grademl.gpu.pcie.width": 16,
    "grademl.gpu.pcie.width.limit": 16,
    "hw.errors{ecc.corrected}": 0,
    "hw.errors{ecc.uncorrected}": 0,
    "hw.errors{pcie.replay}": 0,
    "hw.errors{nvlink.crc}": 0,
    "hw.errors{nvlink.replay}": 0,
    "hw.errors{nvlink.recovery}": 0,
    "hw.errors{xid}": 0,
    "grademl.gpu.memory.remapped_rows{ecc.corrected}": 0,
    "grademl.gpu.memory.remapped_rows{ecc.uncorrected}": 0,
}
T4 = {
    **_CAPPED,
    "hw.gpu.utilization{general}": 0.83,
    "hw.gpu.utilization{encoder}": 0.12,
    "hw.gpu.utilization{decoder}": 0.34,
    "grademl.gpu.memory.busy": 0.4,
    "hw.gpu.memory.usage": 9 << 30,
    "hw.gpu.memory.limit": 15 << 30,
    "hw.gpu.memory.utilization": 0.6,
    "grademl.gpu.process.memory{70}": 9556721664,
    "hw.power": 69.85,
    "grademl.gpu.power.limit": 70,
    "hw.energy": 698.5,
    "hw.temperature{gpu}": 74,
    "hw.temperature.limit{gpu,critical}": 96,
    "hw.temperature.limit{gpu,throttled}": 93,
    "grademl.gpu.clock{sm}": 1_080_000_000,
    "grademl.gpu.clock{memory}": 5_000_000_000,
    "grademl.gpu.clock.limit{sm}": 1_590_000_000,
    "grademl.gpu.clock.limit{memory}": 5_001_000_000,
    "grademl.gpu.throttled": 1,
    "grademl.gpu.throttle.time{sw_power_cap}": 10,
    "grademl.gpu.throttle.time{sync_boost}": 0,
    "grademl.gpu.link.limit{pcie}": 8e9 * 128 / 130 / 8 * 16,
    "grademl.gpu.pcie.generation": 3,
    "grademl.gpu.pcie.generation.limit": 3,
    "grademl.gpu.pcie.width": 8,  # the slot has room for 16
    "grademl.gpu.pcie.width.limit": 16,
    "hw.errors{ecc.corrected}": 0,
    "hw.errors{ecc.uncorrected}": 0,
    "hw.errors{pcie.replay}": 0,
    "hw.errors{xid}": 0,
}
MIG = {
    **_QUIET,
    "hw.gpu.memory.usage": 20 << 30,
    "hw.gpu.memory.limit": 80 << 30,
    "hw.gpu.memory.utilization": 0.25,
    "hw.power": 150,
    "grademl.gpu.power.limit": 400,
    "hw.energy": 1500,
    "hw.temperature{gpu}": 45,
    "hw.temperature{memory}": 44,
    "hw.temperature.limit{gpu,critical}": 92,
    "hw.temperature.limit{gpu,throttled}": 89,
    "grademl.gpu.clock{sm}": 1_410_000_000,
    "grademl.gpu.clock{memory}": 1_593_000_000,
    "grademl.gpu.clock.limit{sm}": 1_410_000_000,
    "grademl.gpu.clock.limit{memory}": 1_593_000_000,
    "grademl.gpu.throttled": 0,
    "grademl.gpu.link.limit{pcie}": 16e9 * 128 / 130 / 8 * 16,
    "grademl.gpu.pcie.generation": 4,
    "grademl.gpu.pcie.generation.limit": 4,
    "grademl.gpu.pcie.width": 16,
    "grademl.gpu.pcie.width.limit": 16,
    "hw.errors{ecc.corrected}": 0,
    "hw.errors{ecc.uncorrected}": 0,
    "hw.errors{xid}": 0,
}
LAPTOP = {
    **_QUIET,
    "hw.gpu.utilization{general}": 0.12,
    "hw.gpu.utilization{encoder}": 0,
    "hw.gpu.utilization{decoder}": 0.03,
    "grademl.gpu.memory.busy": 0.05,
    "hw.gpu.memory.usage": 1342177280,
    "hw.gpu.memory.limit": 8585740288,
    "hw.gpu.memory.utilization": 1342177280 / 8585740288,
    "grademl.gpu.process.memory{1804}": 40 << 20,  # that of the other one is not told
    "hw.power": 13.47,
    "hw.temperature{gpu}": 47,
    "hw.temperature.limit{gpu,critical}": 105,
    "hw.temperature.limit{gpu,throttled}": 102,
    "grademl.gpu.clock{sm}": 210_000_000,
    "grademl.gpu.clock{memory}": 405_000_000,
    "grademl.gpu.clock.limit{sm}": 3_105_000_000,
    "grademl.gpu.clock.limit{memory}": 8_001_000_000,
    "grademl.gpu.throttled": 0,  # it is idle, which is no throttling
    "grademl.gpu.link.limit{pcie}": 16e9 * 128 / 130 / 8 * 8,
    "grademl.gpu.pcie.generation": 1,
    "grademl.gpu.pcie.generation.limit": 4,
    "grademl.gpu.pcie.width": 8,
    "grademl.gpu.pcie.width.limit": 8,
    "hw.errors{pcie.replay}": 0,
    "hw.errors{xid}": 0,
}
VGPU = {
    "hw.gpu.utilization{general}": 0.55,
    "hw.gpu.utilization{encoder}": 0,
    "hw.gpu.utilization{decoder}": 0,
    "grademl.gpu.memory.busy": 0.2,
    "hw.gpu.memory.usage": 5 << 30,
    "hw.gpu.memory.limit": 20 << 30,
    "hw.gpu.memory.utilization": 0.25,
    "grademl.gpu.clock{sm}": 1_095_000_000,
    "grademl.gpu.clock{memory}": 1_512_000_000,
}


@pytest.mark.parametrize(
    ("shape", "count", "expected"),
    [
        ("a100", 8, A100),
        ("h100", 8, H100),
        ("t4", 4, T4),
        ("mig", 1, MIG),
        ("laptop", 1, LAPTOP),
        ("vgpu", 1, VGPU),
    ],
)
def test_what_each_kind_of_gpu_says(
    shape: str, count: int, expected: dict[str, float], provider: NvidiaProvider, tmp_path: Path
) -> None:
    """All that it has with the right value, and nothing of what it has not."""
    control = nvml.Control(tmp_path, shape)
    with nvml.in_process(control):
        sources = provider.sources()
        assert [source.name for source in sources] == [f"gpu {id}" for id in control.ids]
        assert len(sources) == count
        sources[0].read()
        control.advance(10)
        for _ in range(60):  # what is read seldom, too
            readings = sources[0].read()
        found = values(readings, control.ids[0])
        for each in [each for each in found if each.endswith("pcie,True}")]:
            assert found.pop(each) >= 0  # made of a rate and the time of this machine
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("shape", nvml.SHAPES)
def test_one_column_of_a_table_is_one_series(shape: str, provider: NvidiaProvider, tmp_path: Path) -> None:
    with nvml.in_process(nvml.Control(tmp_path, shape)):
        for source in provider.sources():
            readings = source.read()
            columns = [(each[0].device, each[0].metric.column) for each in readings if each[0].metric.column]
            assert len(columns) == len(set(columns))
            assert {each[0].metric for each in readings} - set(METRICS) <= {
                each[0].metric for each in readings if each[0].metric.name == "grademl.sampler.failures"
            }


def test_series_are_the_same_objects_in_each_reading(provider: NvidiaProvider, tmp_path: Path) -> None:
    with nvml.in_process(nvml.Control(tmp_path, "a100", count=1)):
        (source,) = provider.sources()
        first, second = ({id(series) for series, _ in source.read()} for _ in range(2))
        assert first == second
        assert provider.sources() == [source]


def test_each_point_says_which_gpu(provider: NvidiaProvider, tmp_path: Path) -> None:
    control = nvml.Control(tmp_path, "a100", count=2)
    with nvml.in_process(control):
        series, _ = provider.sources()[1].read()[0]
    own = {key: value for key, value in series.attributes.items() if key not in series.metric.attributes}
    assert own == {
        "hw.id": control.ids[1],
        "hw.type": "gpu",
        "hw.name": "GPU 1",
        "hw.vendor": "NVIDIA",
        "hw.model": "NVIDIA A100-SXM4-80GB",
        "hw.driver_version": "535.183.01",
        "grademl.gpu.index": 1,
        "grademl.gpu.pci.id": "0000:0f:00.0",
    }
    assert re.fullmatch(r"GPU-[0-9a-f-]{36}", control.ids[1])


def test_capacities_are_the_limits(provider: NvidiaProvider, tmp_path: Path) -> None:
    """From the first reading on."""
    with nvml.in_process(nvml.Control(tmp_path, "a100", count=1)):
        readings = provider.sources()[0].read()
    capacities = {each[0].metric.column: each[0].capacity for each in readings if each[0].metric.column}
    pcie = 16e9 * 128 / 130 / 8 * 16
    assert capacities == {
        "gpu.utilization": 1,
        "gpu.memory": 80 << 30,
        "gpu.power": 400,
        "gpu.sm_clock": 1_410_000_000,
        "gpu.memory_clock": 1_593_000_000,
        "gpu.throttled": 1,
        "gpu.nvlink_rx": 12 * 25_781e6,
        "gpu.nvlink_tx": 12 * 25_781e6,
        "gpu.pcie_rx": pcie,
        "gpu.pcie_tx": pcie,
    }


def test_mig_instances_are_devices_of_their_own(provider: NvidiaProvider, tmp_path: Path) -> None:
    """Memory and processes; of what NVML does not tell of an instance, nothing."""
    control = nvml.Control(tmp_path, "mig")
    with nvml.in_process(control):
        (source,) = provider.sources()
        readings = source.read()
        large, small = control.id(0, 0), control.id(0, 1)
        assert large.startswith("MIG-")
        assert values(readings, large) == {
            "hw.gpu.memory.usage": 18 << 30,
            "hw.gpu.memory.limit": 42681499648,
            "hw.gpu.memory.utilization": (18 << 30) / 42681499648,
            "grademl.gpu.process.memory{9001}": 19227352832,
        }
        assert values(readings, small)["hw.gpu.memory.usage"] == 13 << 20
        attributes = next(series.attributes for series, _ in readings if series.device == small)
        assert attributes["hw.parent"] == control.ids[0]
        assert attributes["hw.model"] == "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
        assert attributes["hw.name"] == "GPU 0 instance 9/0"
        # Instances come and go while the GPU is in use.
        control.remove_instance(1)
        control.add_instance(2)
        for _ in range(31):
            readings = source.read()
        assert {series.device for series, _ in readings} >= {control.ids[0], large, control.id(0, 2)}
        assert small not in {series.device for series, _ in readings}


def test_an_instance_that_is_destroyed_is_gone_at_once(provider: NvidiaProvider, tmp_path: Path) -> None:
    control = nvml.Control(tmp_path, "mig")
    with nvml.in_process(control):
        (source,) = provider.sources()
        source.read()
        control.remove_instance(1)
        control.add_instance(2)
        readings = source.read()
        assert values(readings, control.id(0, 1)) == {}
        assert values(readings, control.ids[0])["hw.power"] == 150
        assert [
            series.attributes["error.type"]
            for series, _ in readings
            if series.metric.name == "grademl.sampler.failures"
        ] == ["processes: NVMLError_NoPermission"], "that of the first reading"
        source.read()  # which looks for instances
        assert values(source.read(), control.id(0, 2))["hw.gpu.memory.limit"] == 42681499648


def test_mig_is_turned_off(provider: NvidiaProvider, tmp_path: Path) -> None:
    """What an undivided GPU supports is asked for again."""
    control = nvml.Control(tmp_path, "mig")
    with nvml.in_process(control):
        (source,) = provider.sources()
        assert "hw.gpu.utilization{general}" not in values(source.read(), control.ids[0])
        for name, value in (("mig.mode", 0), ("utilization.gpu", 50), ("utilization.memory", 20)):
            control.set(name, value)
        for instance in (0, 1):
            control.remove_instance(instance)
        for _ in range(32):
            readings = source.read()
        assert values(readings, control.ids[0])["hw.gpu.utilization{general}"] == 0.5
        assert control.id(0, 0) not in {series.device for series, _ in readings}


def test_xid_errors_are_counted_from_now_on(provider: NvidiaProvider, tmp_path: Path) -> None:
    control = nvml.Control(tmp_path, "a100", count=2)
    control.xid(31)
    with nvml.in_process(control):
        first, second = provider.sources()
        for source in (first, second):
            assert values(source.read(), source.name[4:])["hw.errors{xid}"] == 0
        control.xid(79, gpu=1)
        control.xid(48, gpu=1)
        found = values(second.read(), control.ids[1])
        assert (found["hw.errors{xid}"], found["grademl.gpu.xid"]) == (2, 48)
        assert values(first.read(), control.ids[0])["hw.errors{xid}"] == 0
        assert "grademl.gpu.xid" not in values(first.read(), control.ids[0])


def test_errors_of_links_are_added_up(provider: NvidiaProvider, tmp_path: Path) -> None:
    """On GPUs that have no totals of them."""
    control = nvml.Control(tmp_path, "h100", count=1, links=18)
    with nvml.in_process(control):
        (source,) = provider.sources()
        assert values(source.read(), control.ids[0])["grademl.gpu.nvlink.links"] == 18
        control.set("field.161.3", "ull:5")
        control.set("field.161.17", "ull:2")
        control.set("field.163.0", "ull:4")
        control.set("field.165.9", "ui:0")
        for _ in range(60):
            readings = source.read()
        found = values(readings, control.ids[0])
    assert found["hw.errors{nvlink.replay}"] == 7
    assert found["hw.errors{nvlink.crc}"] == 3
    assert found["hw.errors{nvlink.recovery}"] == 0
    assert found["grademl.gpu.nvlink.links"] == 17


def test_links_that_are_not_connected_or_go_down(provider: NvidiaProvider, tmp_path: Path) -> None:
    """Of those that count, no link's bytes are lost, and none's come twice."""
    control = nvml.Control(tmp_path, "h100", count=1, links=18)
    control.set("field.138.all", None)
    control.set("field.139.all", None)
    for link in range(17):
        control.set(f"field.204.{link}", "ull:1000000 +1000")
    for number in (161, 162, 163, 164, 165):
        control.set(f"field.{number}.17", None)  # not on this board
    received = "hw.gpu.io{receive,nvlink}"
    with nvml.in_process(control):
        (source,) = provider.sources()
        assert values(source.read(), control.ids[0])[received] == 0
        control.advance(2)
        found = values(source.read(), control.ids[0])
        assert (found[received], found["grademl.gpu.nvlink.links"]) == (34_000, 17)
        assert found["hw.errors{nvlink.crc}"] == 0
        control.set("field.204.5", None)
        control.set("field.165.5", "ui:0")
        for _ in range(61):
            source.read()
        control.advance(3)
        found = values(source.read(), control.ids[0])
        assert (found[received], found["grademl.gpu.nvlink.links"]) == (34_000 + 48_000, 16)
        control.set("field.204.all", "ull:5000 +100")
        control.reset_driver()
        with pytest.raises(Exception, match="Uninitialized"):
            source.read()
        source.read()
        control.advance(1)
        assert values(source.read(), control.ids[0])[received] == 82_000 + 100, "a total of all is better"


def test_both_kinds_of_checksums_of_links_are_one(provider: NvidiaProvider, tmp_path: Path) -> None:
    control = nvml.Control(tmp_path, "a100", count=1)
    with nvml.in_process(control):
        (source,) = provider.sources()
        source.read()
        control.set("field.38", "ull:2")
        control.set("field.45", "ull:3")
        for _ in range(10):
            readings = source.read()
    assert values(readings, control.ids[0])["hw.errors{nvlink.crc}"] == 5


def test_a_rate_of_pcie_is_taken_for_the_time_between_readings(
    provider: NvidiaProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = nvml.Control(tmp_path, "a100", count=1)
    clock = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr(nvmlpcie, "time", clock)
    totals = []
    with nvml.in_process(control):
        (source,) = provider.sources()
        for now in (100.0, 101.0, 103.5, 200.0, 201.0):
            clock.perf_counter = lambda now=now: now
            found = values(source.read(), control.ids[0])
            totals.append((found["hw.gpu.io{receive,pcie,True}"], found["hw.gpu.io{transmit,pcie,True}"]))
    # 5.4 and 1.2 GB/s; of the long pause nothing is known.
    assert totals == [(seconds * 5_400_000_000, seconds * 1_200_000_000) for seconds in (0, 1, 3.5, 3.5, 4.5)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("rate", [100, 3_900_000_000, 40_000_000_000, 63_000_000_000])
def test_pcie_counters_of_32_bits_begin_again_any_number_of_times(
    rate: int, late: bool, provider: NvidiaProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = nvml.Control(tmp_path, "h100", count=1)
    control.set("field.198", f"ui:4000000000 +{rate}")
    control.set("field.197", "ui:5 +3000000000")
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)

    def let_pass(seconds: float) -> None:
        clock.now += seconds
        control.advance(seconds)

    monkeypatch.setattr(nvmlpcie, "time", clock)
    with nvml.in_process(control):
        (source,) = provider.sources()
        assert isinstance(source, InParts)
        source.read()
        for second in range(1, 6):
            let_pass(second - clock.now)
            readings = source.read()
            if late and source.rest_after_s:  # the counter may have begun again
                let_pass(0.1)
                assert source.read_rest() == ()
            while source.rest_after_s:
                let_pass(source.rest_after_s)
                readings = [*readings, *source.read_rest()]
            found = values(readings, control.ids[0])
            told = found["hw.gpu.io{receive,pcie,True}"], found["hw.gpu.io{transmit,pcie,True}"]
            assert told == pytest.approx((rate * second, 3_000_000_000 * second), abs=2)


def test_the_other_look_at_pcie_counters_may_always_be_late_or_fail(
    provider: NvidiaProvider, tmp_path: Path
) -> None:
    control = nvml.Control(tmp_path, "h100", count=1)
    control.set("field.198", "ui:4000000000 +100")
    with nvml.in_process(control):
        (source,) = provider.sources()
        assert isinstance(source, InParts)
        source.read()
        control.advance(1)
        time.sleep(0.1)
        source.read()
        rests = []
        while source.rest_after_s:
            time.sleep(0.1)
            rests.append(source.read_rest())
        assert [len(rest) for rest in rests] == [0, 0, 2], "in the end it goes without"
        assert source.read_rest() == ()

        control.advance(1)
        time.sleep(0.1)
        assert "hw.power" in values(source.read(), control.ids[0])
        control.fail("nvmlDeviceGetFieldValues", 999)
        assert source.rest_after_s > 0
        assert source.read_rest() == ()
        assert source.rest_after_s == 0
        control.fail("nvmlDeviceGetFieldValues", 0)
        kinds = [series.attributes for series, _ in source.read() if series.metric is FAILURES]
        assert [kind["error.type"] for kind in kinds] == ["pcie bytes: NVMLError_Unknown"]


def test_pcie_counters_of_more_bits_are_taken_as_they_are(provider: NvidiaProvider, tmp_path: Path) -> None:
    control = nvml.Control(tmp_path, "h100", count=1)
    control.set("field.198", "ull:5000000000 +20000000000")
    with nvml.in_process(control):
        (source,) = provider.sources()
        source.read()
        control.advance(3)
        assert values(source.read(), control.ids[0])["hw.gpu.io{receive,pcie}"] == 60_000_000_000


def test_fans_of_their_own(provider: NvidiaProvider, tmp_path: Path) -> None:
    control = nvml.Control(tmp_path, "t4", count=1)
    for name, value in (("fans", 2), ("fan.speed.0", 45), ("fan.speed.1", 47)):
        control.set(name, value)
    with nvml.in_process(control):
        found = values(provider.sources()[0].read(), control.ids[0])
    assert (found["hw.fan.speed_ratio{0}"], found["hw.fan.speed_ratio{1}"]) == (0.45, 0.47)


def test_a_process_that_ended_is_gone(provider: NvidiaProvider, tmp_path: Path) -> None:
    control = nvml.Control(tmp_path, "a100", count=1)
    with nvml.in_process(control):
        (source,) = provider.sources()
        assert "grademl.gpu.process.memory{4002}" in values(source.read(), control.ids[0])
        control.set("processes.compute", "4001:1000")
        for _ in range(5):
            readings = source.read()
        found = {name: value for name, value in values(readings, control.ids[0]).items() if "process" in name}
        assert found == {"grademl.gpu.process.memory{4001}": 1000}
        first = {id(series): series for series, _ in readings}
        # Another process under the pid of the one that ended is another series.
        control.set("processes.compute", "4002:1")
        for _ in range(5):
            source.read()
        control.set("processes.compute", "4001:2")
        for _ in range(5):
            readings = source.read()
    later = next(series for series, _ in readings if series.attributes.get("process.pid") == 4001)
    assert id(later) not in first


_READ = """
import json
from grademl_otel.instrumentations.gpu import providers
(provider,) = [each for each in providers() if each.name == "nvidia"]
(source,) = provider.sources()
found = {}
for series, value in source.read():
    own = [str(series.attributes[name]) for name in series.metric.attributes if name in series.attributes]
    found[series.metric.name + ",".join(["", *own])] = value
source.close()
provider.close()
print(json.dumps(found))
"""


def _run(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("old_driver", [False, True])
def test_a_process_that_knows_nothing_of_the_stand_in(old_driver: bool, tmp_path: Path) -> None:
    """The unmodified nvidia-ml-py finds it as any driver's; that of an old driver lacks functions."""
    control = nvml.Control(tmp_path, "a100", count=1)
    control.set("fan.speed.0", 33)
    done = _run(_READ, control.environment(old_driver))
    assert done.stderr == ""
    found = json.loads(done.stdout)
    reserved = 681574400
    assert found["hw.gpu.memory.usage"] == (40 << 30) + (reserved if old_driver else 0)
    assert found["grademl.gpu.process.memory,4001"] == 42010148864
    assert found["grademl.gpu.throttled"] == 0
    # The newer one says first how many there are.
    assert found.get("hw.fan.speed_ratio,0") == (0.33 if old_driver else None)


def test_where_there_is_no_driver_there_are_no_gpus(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # found before that of a driver, and no library
    script = _READ.replace("(source,) = provider.sources()", "print(provider.sources()); raise SystemExit")
    done = _run(script, {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_nothing_of_a_vendor_is_imported_before_it_is_asked_for() -> None:
    script = (
        "import sys; from grademl_otel.instrumentations.gpu import providers; made = providers();"
        "print({'pynvml', 'amdsmi'} & set(sys.modules))"
    )
    done = _run(script, {})
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_each_function_that_is_called_exists_in_nvidia_ml_py() -> None:
    import pynvml

    folder = Path(library.__file__).parent
    source = "".join(
        (folder / name).read_text() for name in ("nvidia.py", "nvidia_gpu.py", "nvmlgroups.py", "nvmlpcie.py")
    )
    called = set(re.findall(r"api\.(nvml\w+)", source))
    assert len(called) > 25
    # The library as it was loaded is what the fields of structures are handed to.
    assert {name for name in called if not hasattr(pynvml, name)} == set()
    assert hasattr(pynvml, "nvmlLib")


def test_the_extra_asks_for_what_is_tested() -> None:
    """nvidia-ml-py, not the package that is called pynvml; within the bounds that pyproject.toml gives."""
    from packaging.requirements import Requirement

    requires = [Requirement(each) for each in importlib.metadata.requires("grademl-otel") or ()]
    extra = [each for each in requires if each.marker and each.marker.evaluate({"extra": "gpu"})]
    wanted = [each for each in extra if each.name not in {"opentelemetry-api"} and "nvidia" in each.name]
    assert [each.name for each in wanted] == ["nvidia-ml-py"]
    assert wanted[0].specifier.contains(importlib.metadata.version("nvidia-ml-py"))
    assert library.why_missing() is None


def test_counters_are_counters() -> None:
    names = {metric.name for metric in METRICS if metric.kind == COUNTER}
    assert names == {"hw.energy", "hw.errors", "hw.gpu.io", "grademl.gpu.throttle.time"}


def test_the_other_look_at_pcie_counters_is_left_out_after_another_gpu_was_lost(
    provider: NvidiaProvider, tmp_path: Path
) -> None:
    control = nvml.Control(tmp_path, "h100", count=2)
    with nvml.in_process(control):
        source, other = provider.sources()
        assert isinstance(source, InParts)
        source.read()
        other.read()
        control.advance(1)
        time.sleep(0.1)
        assert "hw.power" in values(source.read(), control.ids[0])
        assert source.rest_after_s > 0
        control.lose(1)
        with pytest.raises(Exception, match="lost"):
            other.read()  # closes the library, so that it is initialized anew
        assert source.read_rest() == ()
        assert source.rest_after_s == 0
        found = source.read()
        assert "hw.power" in values(found, control.ids[0])
        assert not [series for series, _ in found if series.metric is FAILURES]
