# SPDX-License-Identifier: Apache-2.0
"""GPUs of NVIDIA that fail, talk nonsense, hang, come and go; the sampler and the real nvidia-ml-py."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grademl_otel import messages
from grademl_otel.catalog import gpu as catalog
from grademl_otel.catalog.metric import COUNTER
from grademl_otel.catalog.sampler import FAILURES
from grademl_otel.instrumentations.gpu import finding, nvidia
from grademl_otel.instrumentations.gpu import nvml as library
from grademl_otel.instrumentations.gpu.nvidia import NvidiaProvider
from grademl_otel.instrumentations.gpu.nvmlpcie import Summed, Wrapping
from grademl_otel.instrumentations.gpu.plausible import Implausible, Total
from grademl_otel.sampling.sampler import Sampler
from grademl_otel.sampling.source import Reading, Source, SourceGone

from ..support import nvml
from .test_gpu_nvidia import values

pynvml = pytest.importorskip("pynvml")

WITHIN_S = 20.0
"""For what happens in other threads."""


@pytest.fixture
def provider() -> Iterator[NvidiaProvider]:
    made = NvidiaProvider()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the user was told."""
    told: list[str] = []
    monkeypatch.setattr(messages, "_shown", set())
    monkeypatch.setattr(messages, "warn", told.append)
    return told


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[nvml.Control]:
    with nvml.in_process(nvml.Control(tmp_path, "a100", count=2)) as control:
        yield control


def failures(readings: Sequence[Reading]) -> dict[str, int | float]:
    return {str(series.attributes["error.type"]): n for series, n in readings if series.metric is FAILURES}


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)


# A call fails


def test_a_call_that_fails_costs_only_its_own_value(
    a100: nvml.Control, provider: NvidiaProvider, lines: list[str]
) -> None:
    source, _ = provider.sources()
    before = set(values(source.read(), a100.ids[0]))
    a100.fail("nvmlDeviceGetPowerUsage", nvml.UNKNOWN, gpu=0)
    readings = [source.read() for _ in range(8)]
    assert before - set(values(readings[0], a100.ids[0])) == {"hw.power"}
    assert failures(readings[0]) == {"power: NVMLError_Unknown": 1}
    # Tried again after pauses of 1, 3 and 7 readings.
    assert [failures(each)["power: NVMLError_Unknown"] for each in readings] == [1, 1, 2, 2, 2, 2, 3, 3]
    assert lines == [f"gpu {a100.ids[0]}: power cannot be read: NVMLError_Unknown: Unknown Error"]
    a100.heal()
    for _ in range(8):
        last = source.read()
    assert values(last, a100.ids[0])["hw.power"] == 351.25
    assert failures(last) == {"power: NVMLError_Unknown": 3}, "what was counted stays"


@pytest.mark.parametrize("error", [nvml.NO_PERMISSION, nvml.UNKNOWN, nvml.TIMEOUT, 777])
def test_errors_of_all_kinds_are_counted(error: int, a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, _ = provider.sources()
    source.read()
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlEventSetWait_v2"):
        a100.fail(function, error)
    readings = source.read()
    found = values(readings, a100.ids[0])
    assert "hw.power" in found
    assert not {"hw.gpu.memory.usage", "hw.energy"} & set(found)
    counted = {each.split(":")[0] for each in failures(readings)}
    # An event set that says "time-out" has no events.
    assert counted == {"memory", "counters"} | ({"xid"} if error != nvml.TIMEOUT else set())


def test_a_field_that_fails_costs_only_its_own_value(a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, _ = provider.sources()
    before = set(values(source.read(), a100.ids[0]))
    a100.set("field.139.all", f"!{nvml.UNKNOWN}")
    readings = source.read()
    assert before - set(values(readings, a100.ids[0])) == {"hw.gpu.io{receive,nvlink}"}
    assert failures(readings) == {"nvlink receive: NVMLError_Unknown": 1}


def test_when_each_call_fails_the_reading_fails(a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, other = provider.sources()
    source.read()
    a100.fail("*", nvml.UNKNOWN, gpu=0)
    # What is repeated between seldom calls is still what was read; the rest is gone, and counted.
    assert failures(source.read())
    assert "hw.power" not in values(source.read(), a100.ids[0])
    assert "hw.power" in values(other.read(), a100.ids[1])
    fresh = NvidiaProvider()
    a100.heal()
    found, _ = fresh.sources()
    a100.fail("*", nvml.UNKNOWN, gpu=0)
    with pytest.raises(pynvml.NVMLError_Unknown):
        found.read()
    a100.heal()
    assert values(found.read(), a100.ids[0])["hw.power"] == 351.25, "at once: the sampler makes the pauses"
    fresh.close()


def test_what_is_not_supported_is_asked_for_once(
    tmp_path: Path, provider: NvidiaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"nvmlDeviceGetPowerUsage": 0, "nvmlDeviceGetUtilizationRates": 0}
    for name in calls:
        real = getattr(pynvml, name)

        def counted(handle: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            calls[name] += 1
            return real(handle)

        monkeypatch.setattr(pynvml, name, counted)
    control = nvml.Control(tmp_path, "vgpu")
    with nvml.in_process(control):
        (source,) = provider.sources()
        for _ in range(5):
            source.read()
        assert calls == {"nvmlDeviceGetPowerUsage": 1, "nvmlDeviceGetUtilizationRates": 5}
        # After the driver was reset it may be another driver.
        control.set("power.usage", 200_000)
        control.reset_driver()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            source.read()
        assert values(source.read(), control.ids[0])["hw.power"] == 200


# Garbage

GARBAGE: list[tuple[str, object, str]] = [
    ("utilization.gpu", 4_000_000_000, "hw.gpu.utilization{general}"),
    ("utilization.gpu", 101, "hw.gpu.utilization{general}"),
    ("clock.1", 0xFFFFFFFF, "grademl.gpu.clock{sm}"),
    ("clock.2", 30_000, "grademl.gpu.clock{memory}"),
    ("memory.used", (80 << 30) + 1, "hw.gpu.memory.usage"),
    ("memory.total", 0, "hw.gpu.memory.limit"),
    ("memory.total", 2**64 - 1, "hw.gpu.memory.limit"),
    ("power.usage", 0xFFFFFFFF, "hw.power"),
    ("temperature.0", 0xFFFFFFFF, "hw.temperature{gpu}"),
    ("field.82", "ui:255000", "hw.temperature{memory}"),
    ("field.82", "odd:58", "hw.temperature{memory}"),
    ("field.82", "d:nan", "hw.temperature{memory}"),
    ("field.83", "sll:-5", "hw.energy"),
    ("field.83", 2**63, "hw.energy"),
    ("field.138.all", "d:inf", "hw.gpu.io{transmit,nvlink}"),
    ("throttle.reasons", 2**64 - 1, "grademl.gpu.throttled"),
]


@pytest.mark.parametrize(("name", "garbage", "series"), GARBAGE)
def test_nonsense_is_no_value(
    name: str, garbage: object, series: str, a100: nvml.Control, provider: NvidiaProvider, lines: list[str]
) -> None:
    source, _ = provider.sources()
    right = values(source.read(), a100.ids[0])
    usual = a100.get(name)
    a100.set(name, garbage)
    readings = source.read()
    assert series not in values(readings, a100.ids[0])
    assert "hw.errors{xid}" in values(readings, a100.ids[0])
    assert [kind.split(": ")[1] for kind in failures(readings)] == ["Implausible"]
    assert len(lines) == 1
    a100.set(name, usual)
    for _ in range(2):
        readings = source.read()
    assert values(readings, a100.ids[0])[series] == right[series]


@pytest.mark.parametrize(
    ("name", "garbage", "series"),
    [
        ("utilization.encoder", 0xFFFFFFFF, "hw.gpu.utilization{encoder}"),
        ("power.limit", 0, "grademl.gpu.power.limit"),
        ("clock.max.1", 0xFFFFFFFF, "grademl.gpu.clock.limit{sm}"),
        ("temperature.limit.0", 4_294_967_295, "hw.temperature.limit{gpu,critical}"),
        ("pcie.width", 0, "grademl.gpu.pcie.width"),
        ("pcie.generation.max", 77, "grademl.gpu.link.limit{pcie}"),
        ("pcie.throughput.1", 0xFFFFFFFF, "hw.gpu.io{receive,pcie,True}"),
        ("field.90", "ui:4294967295", "grademl.gpu.nvlink.links"),
        ("fans", 0xFFFFFFFF, "hw.fan.speed_ratio{0}"),
    ],
)
def test_nonsense_in_what_is_read_seldom(
    name: str, garbage: object, series: str, a100: nvml.Control, provider: NvidiaProvider
) -> None:
    a100.set(name, garbage)
    source, _ = provider.sources()
    readings = source.read()
    assert series not in values(readings, a100.ids[0])
    assert [kind.split(": ")[1] for kind in failures(readings)] == ["Implausible"]
    assert all(s.capacity is None or 0 < s.capacity < 1e15 for s, _ in readings)


def test_nonsense_now_and_then_is_never_believed(a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, _ = provider.sources()
    usual = a100.get("field.83")
    source.read()
    for _ in range(4):
        a100.set("field.83", 2**60)
        assert "hw.energy" not in values(source.read(), a100.ids[0])
        a100.set("field.83", usual)
        assert values(source.read(), a100.ids[0])["hw.energy"] == 0


def test_what_is_read_seldom_and_fails_is_not_repeated(a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, _ = provider.sources()
    limits = {"grademl.gpu.pcie.generation", "grademl.gpu.pcie.width"}
    assert limits <= set(values(source.read(), a100.ids[0]))
    a100.fail("nvmlDeviceGetCurrPcieLinkWidth", nvml.UNKNOWN)
    for _ in range(9):
        assert limits <= set(values(source.read(), a100.ids[0]))
    for _ in range(2):
        assert not limits & set(values(source.read(), a100.ids[0]))


def test_memory_at_0_degrees_is_no_sensor(a100: nvml.Control, provider: NvidiaProvider) -> None:
    a100.set("field.82", "ui:0")
    readings = provider.sources()[0].read()
    assert "hw.temperature{memory}" not in values(readings, a100.ids[0])
    assert failures(readings) == {}


def test_strings_that_are_no_text(a100: nvml.Control, provider: NvidiaProvider) -> None:
    a100.set("name", r"NVIDIA \xff\xfeA100")
    a100.set("uuid", r"GPU-\x80odd")
    a100.set("driver.version", r"\xc3\x28", gpu=None)
    a100.set("pci.bus_id", r"\xff")
    source, other = provider.sources()
    assert source.name == "gpu GPU-\ufffdodd"
    readings = source.read()
    attributes = readings[0][0].attributes
    assert attributes["hw.model"] == "NVIDIA \ufffd\ufffdA100"
    assert attributes["hw.driver_version"] == "\ufffd("
    assert "grademl.gpu.pci.id" not in attributes
    assert values(readings, "GPU-\ufffdodd")["hw.power"] == 351.25
    assert provider.sources() == [source, other]


# A GPU is lost, or the driver


def test_a_lost_gpu_is_one_and_comes_back(a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, other = provider.sources()
    source.read()
    a100.advance(2)
    source.read()
    a100.lose(0)
    for _ in range(3):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            source.read()
        assert values(other.read(), a100.ids[1])["hw.power"] == 351.25
    assert list(provider.sources()) == [source, other], "it is still counted, and may come back"
    a100.heal()
    a100.advance(3)
    assert values(source.read(), a100.ids[0])["hw.energy"] == 351.25 * 5


def test_the_library_is_initialized_anew_for_a_lost_gpu(
    a100: nvml.Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a while, and only when nobody is in a call; handles of the others are found anew."""
    opened = library.Library()
    provider = NvidiaProvider(opened)
    source, other = provider.sources()
    for each in (source, other):
        each.read()
    a100.lose(0)
    for _ in range(3):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            source.read()
    assert opened.generation == 2, "once, not each time"
    assert values(other.read(), a100.ids[1])["hw.power"] == 351.25
    monkeypatch.setattr(opened, "_lost_again_at", -math.inf)
    monkeypatch.setattr(library, "_IDLE_S", 0.05)
    with opened.call(), pytest.raises(pynvml.NVMLError_GpuIsLost):
        source.read()
    other.read()
    assert opened.generation == 2, "somebody was in a call"
    provider.close()


def test_others_are_read_while_a_lost_gpu_waits_for_the_end_of_calls(
    a100: nvml.Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = library.Library()
    provider = NvidiaProvider(opened)
    source, other = provider.sources()
    for each in (source, other):
        each.read()
    a100.lose(0)
    monkeypatch.setattr(library, "_IDLE_S", 600)

    def read_the_lost_one() -> None:
        with suppress(pynvml.NVMLError_GpuIsLost):
            source.read()

    waiting = threading.Thread(target=read_the_lost_one)
    with opened.call():
        waiting.start()
        eventually(lambda: opened._lost_again_at > 0)
        assert values(other.read(), a100.ids[1])["hw.power"] == 351.25
        assert waiting.is_alive()
    waiting.join(60)
    other.read()
    assert opened.generation == 2
    provider.close()


def test_one_that_was_lost_before_it_was_found(a100: nvml.Control, provider: NvidiaProvider) -> None:
    a100.lose(0)
    found = provider.sources()
    assert [each.name for each in found] == [f"gpu {a100.ids[1]}", "gpu 0"]
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        found[1].read()
    assert provider.sources() == found
    a100.heal()
    again = provider.sources()
    assert sorted(each.name for each in again) == sorted(f"gpu {id}" for id in a100.ids)
    with pytest.raises(SourceGone):
        found[1].read()


def test_a_reset_of_the_driver_is_one_failure(a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, other = provider.sources()
    totals = []
    for _ in range(3):
        totals.append(values(source.read(), a100.ids[0])["hw.gpu.io{receive,nvlink}"])
        a100.advance(1)
    a100.reset_driver()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        source.read()
    a100.advance(1)
    totals.append(values(source.read(), a100.ids[0])["hw.gpu.io{receive,nvlink}"])
    second = 33554432 * 1024
    since_reset = (654321 + 33554432) * 1024  # all that the counter says now
    assert totals == [0, second, 2 * second, 2 * second + since_reset]
    assert values(other.read(), a100.ids[1])["hw.power"] == 351.25


def test_a_driver_that_is_away_for_a_while(a100: nvml.Control, provider: NvidiaProvider) -> None:
    source, _ = provider.sources()
    source.read()
    a100.fail("*", nvml.DRIVER_NOT_LOADED)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            source.read()
    assert source in provider.sources()
    a100.heal()
    assert values(source.read(), a100.ids[0])["hw.power"] == 351.25


def test_a_driver_that_comes_later(a100: nvml.Control, provider: NvidiaProvider) -> None:
    a100.fail("nvmlInitWithFlags", nvml.DRIVER_NOT_LOADED)
    assert provider.sources() == []
    a100.fail("nvmlInitWithFlags", nvml.NO_PERMISSION)
    with pytest.raises(pynvml.NVMLError_NoPermission):
        provider.sources()
    a100.heal()
    assert len(provider.sources()) == 2


# GPUs come and go


def test_hot_plug(a100: nvml.Control, provider: NvidiaProvider) -> None:
    first, second = provider.sources()
    for source in (first, second):
        source.read()
    third = a100.add()
    found = provider.sources()
    assert [each.name for each in found] == [f"gpu {id}" for id in a100.ids]
    assert list(found[:2]) == [first, second]
    assert values(found[2].read(), a100.id(third))["hw.power"] == 351.25
    a100.remove(0)
    assert list(provider.sources()) == [second, found[2]]
    with pytest.raises(SourceGone):
        first.read()
    assert values(second.read(), a100.ids[0])["hw.power"] == 351.25


def test_no_gpu_at_all(tmp_path: Path, provider: NvidiaProvider) -> None:
    with nvml.in_process(nvml.Control(tmp_path, "a100", count=0)):
        assert provider.sources() == []


# Calls that hang


def test_a_count_that_cannot_be_starts_no_threads(
    a100: nvml.Control, provider: NvidiaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2**32 - 1)
    with pytest.raises(Implausible, match="a count of GPUs of 4294967295"):
        provider.sources()


def test_a_gpu_that_hangs_does_not_stop_the_others(a100: nvml.Control, provider: NvidiaProvider) -> None:
    sampler = Sampler([provider], interval_s=0.05)
    sampler.start()

    def of(id: str) -> list[int]:
        return [each.time_ns for each in sampler.latest() if each.series.device == id]

    eventually(lambda: bool(of(a100.ids[0])) and bool(of(a100.ids[1])))
    a100.hang("nvmlDeviceGetUtilizationRates", 600, gpu=0)
    hung_since = time.perf_counter_ns()
    eventually(lambda: not of(a100.ids[0]))  # what it said is no longer fresh
    assert max(of(a100.ids[1])) > hung_since
    late = [each for each in sampler.latest() if each.series.metric.name == "grademl.sampler.late"]
    assert [each.series.attributes["grademl.sampler.source"] for each in late if each.value > 3] == [
        f"gpu {a100.ids[0]}"
    ]
    a100.heal()
    eventually(lambda: bool(of(a100.ids[0])))
    assert sampler.stop(WITHIN_S)


def test_one_that_hangs_before_it_is_found(
    a100: nvml.Control, provider: NvidiaProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "PATIENCE_S", 0.2)
    a100.hang("nvmlDeviceGetHandleByIndex_v2", 600, gpu=0)
    found = provider.sources()
    assert [each.name for each in found] == [f"gpu {a100.ids[1]}", "gpu 0"]
    with pytest.raises(TimeoutError):
        found[1].read()
    waiting = threading.active_count()
    assert provider.sources() == found
    assert threading.active_count() <= waiting, "it is not asked again while it hangs"
    a100.heal()
    eventually(lambda: f"gpu {a100.ids[0]}" in [each.name for each in provider.sources()])


# The package


def test_the_package_called_pynvml_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleSpec("pynvml", None, is_package=True)
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: package)
    assert "nvidia-ml-py" in str(library.why_missing())
    assert NvidiaProvider().sources() == []


def test_it_is_said_where_there_is_a_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str]
) -> None:
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)
    provider = NvidiaProvider()
    assert provider.sources() == []
    assert lines == []
    (tmp_path / "version").write_text("NVRM version: 535")
    monkeypatch.setattr(nvidia, "_DRIVER", str(tmp_path / "version"))
    for _ in range(3):
        assert provider.sources() == []
    assert lines == ["GPUs are not read: nvidia-ml-py is not installed: pip install 'grademl-otel[gpu]'"]


# Totals


def test_a_total_does_not_believe_a_jump_at_once() -> None:
    total = Total(rate=1000)
    assert [total.add(raw, at) for at, raw in enumerate((500, 900, 1500))] == [0, 400, 1000]
    with pytest.raises(Implausible):
        total.add(2**40, 3)
    assert total.add(2000, 4) == 1500, "it was nonsense"
    with pytest.raises(Implausible):
        total.add(2**40, 5)
    assert total.add(2**40 + 300, 6) == 1800, "it stays there: a counter that was set anew"
    assert total.add(2**40 + 400, 7) == 1900


def test_a_total_of_a_counter_that_begins_again() -> None:
    total = Total(rate=1000)
    total.add(5000, 0)
    assert total.add(700, 1) == 700
    assert total.add(699, 2) == 700, "a dip"
    assert total.add(710, 3) == 710


@given(
    start=st.integers(0, 2**32 - 1),
    rates=st.lists(st.integers(0, 60_000_000_000), min_size=1, max_size=5),
    seconds=st.sampled_from([0.05, 1.0, 10.0]),
)
def test_a_counter_that_begins_again_unseen(start: int, rates: list[int], seconds: float) -> None:
    """Each rate holds until the reading that tells it: exact as long as it stays, else nearly."""
    total, counted, known, wrong = Wrapping(), 0, rates[0], 0.0
    total.add(start, 100.0, None, 63e9)
    for number, rate in enumerate(rates, 1):
        counted += round(rate * seconds)
        total.add((start + counted) % 2**32, 100 + number * seconds, rate, 63e9)
        wrong += abs(rate - known) / 2 * seconds + 2**31 if rate != known else 0
        known = rate
        assert abs(total.total - counted) <= wrong
        assert (total.total - counted) % 2**32 == 0


def test_a_counter_that_begins_again_before_anybody_knows_how_fast_it_counts() -> None:
    total = Wrapping()
    total.add(2**32 - 10, 1, None, 63e9)
    total.add(90, 2, None, 63e9)
    assert total.total == 100, "at least"
    total.restart()
    total.add(5000, 3, None, 63e9)
    assert total.total == 100, "of a driver that was reset nothing is known"
    total.add(6000, 30, 40e9, 63e9)
    assert total.total == 100, "nor of a long pause"


@pytest.mark.parametrize("total", [Wrapping(), Summed()])
def test_readings_that_are_far_apart_are_no_pauses(total: Wrapping | Summed) -> None:
    for at in (0, 3600, 7200):
        if isinstance(total, Summed):
            total.add(1e6, at)
        else:
            total.add(at * 1_000_000 % 2**32, at, 1e6, 63e9)
    assert total.total == 7_200_000_000


def test_a_counter_that_turns_out_to_be_wide() -> None:
    total = Wrapping()
    total.add(5, 1, None, 63e9)
    for raw in (2**64 - 1, 2**40):
        with pytest.raises(Implausible):
            total.add(raw, 2, None, 63e9)
        total.add(105, 2, None, 63e9)
        assert (total.total, total.is_wide) == (100, False), "it was nonsense"
    with pytest.raises(Implausible):
        total.add(2**32 + 7, 3, None, 63e9)
    total.add(2**32 + 9, 4, None, 63e9)
    total.add(2**32 + 11, 5, None, 63e9)
    assert (total.total, total.is_wide) == (2, True), "another series, which begins at 0"


# Anything at all

KEYS = (
    *("utilization.gpu", "utilization.memory", "utilization.encoder", "utilization.period", "memory.total"),
    *("memory.used", "memory.reserved", "power.usage", "power.limit", "temperature.0", "temperature.limit.0"),
    *("clock.1", "clock.2", "clock.max.1", "throttle.reasons", "pcie.generation", "pcie.width", "fans"),
    *("pcie.throughput.0", "processes.compute", "events", "mig.mode", "mig.max", "uuid", "name", "field.3"),
    *("field.38", "field.74", "field.82", "field.83", "field.90", "field.91", "field.94", "field.138.all"),
    *("field.197", "field.198"),
)
FUNCTIONS = (
    *("*", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues"),
    *("nvmlDeviceGetHandleByUUID", "nvmlEventSetWait_v2", "nvmlDeviceGetMigMode", "nvmlInitWithFlags"),
    *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents"),
)
ANYTHING = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from(
        [0, 1, 100, 2**31, 2**32 - 1, 2**64 - 1, "d:nan", "d:-inf", "d:1e308", "odd:1", "", r"\xff"]
    ),
    st.integers(0, 1000).map(lambda error: f"!{error}"),
    st.integers(0, 2**40).map(lambda base: f"ull:{base} +{base}"),
    st.text("0123456789:,!+ ", max_size=12),
    st.none(),
)
ACTIONS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(KEYS), ANYTHING),
    st.tuples(st.just("fail"), st.sampled_from(FUNCTIONS), st.integers(1, 999)),
    st.tuples(st.just("advance"), st.integers(0, 5)),
    st.sampled_from([("reset_driver",), ("heal",), ("lose", 0), ("xid", 13)]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=12))
def test_whatever_the_driver_says_no_value_is_impossible(actions: list[Any], tmp_path: Path) -> None:
    """A reading raises what says that there is none, or is made of values that can be."""
    control = nvml.Control(tmp_path, "a100", count=1)
    totals: dict[int, int | float] = {}
    with nvml.in_process(control):
        provider = NvidiaProvider()
        (source,) = provider.sources()
        for action, *arguments in [("advance", 0), *actions]:
            getattr(control, action)(*arguments)
            _check(source, totals)
            for found in _found(provider):
                _check(found, totals)
        control.heal()
        source.close()
        provider.close()


def _found(provider: NvidiaProvider) -> Sequence[Source]:
    try:
        return provider.sources()
    except (pynvml.NVMLError, Implausible):
        return []


def _check(source: Source, totals: dict[int, int | float]) -> None:
    try:
        readings = source.read()
    except (pynvml.NVMLError, SourceGone, Implausible):
        return
    used: dict[str, float] = {}
    for series, value in readings:
        metric = series.metric
        assert type(value) in (int, float)
        assert 0 <= value < 2**63, metric
        if metric.name.endswith("utilization") or metric is catalog.MEMORY_BUSY:
            assert value <= 1
        if metric is catalog.POWER:
            assert value <= 20_000
        if metric in (catalog.MEMORY_USAGE, catalog.MEMORY_LIMIT):
            used[metric.name + series.device] = value
        if metric.kind == COUNTER:
            assert value >= totals.get(id(series), 0), metric
            totals[id(series)] = value
        assert series.capacity is None or 0 < series.capacity < 1e16
    for name, value in used.items():
        if name.startswith("hw.gpu.memory.usage"):
            assert value <= used[name.replace("usage", "limit")]
