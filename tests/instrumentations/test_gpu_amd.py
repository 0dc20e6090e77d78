# SPDX-License-Identifier: Apache-2.0
"""GPUs of AMD, by a stand-in for the module amdsmi; none of it was run on such a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grademl_otel import messages
from grademl_otel.catalog.metric import COUNTER
from grademl_otel.catalog.sampler import FAILURES
from grademl_otel.instrumentations.gpu import amd, finding, providers
from grademl_otel.instrumentations.gpu.amd import AmdProvider
from grademl_otel.instrumentations.gpu.plausible import Implausible
from grademl_otel.sampling.source import Reading, SourceGone

from ..support import fakeamdsmi
from ..support.fakeamdsmi import INSTINCT, RADEON, AmdSmiLibraryException, FakeAmdSmi
from .test_gpu_nvidia import values


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the user was told."""
    told: list[str] = []
    monkeypatch.setattr(messages, "_shown", set())
    monkeypatch.setattr(messages, "warn", told.append)
    return told


def _installed(monkeypatch: pytest.MonkeyPatch, *kinds: dict[str, Any]) -> tuple[FakeAmdSmi, AmdProvider]:
    fake = FakeAmdSmi(*kinds)
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    return fake, AmdProvider(driver="/")


def failures(readings: Sequence[Reading]) -> dict[str, int | float]:
    return {str(series.attributes["error.type"]): n for series, n in readings if series.metric is FAILURES}


def test_what_an_instinct_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, provider = _installed(monkeypatch, INSTINCT, INSTINCT)
    source, _ = provider.sources()
    source.read()
    gpu = fake.gpus[0]
    gpu["energy"]["energy_accumulator"] += 2_000_000
    gpu["ecc"]["correctable_count"] += 2
    gpu["metrics"]["xgmi_read_data_acc"][1] += 10
    for _ in range(10):
        readings = source.read()
    assert values(readings, gpu["uuid"]) == pytest.approx(
        {
            "hw.gpu.utilization{general}": 0.96,
            "grademl.gpu.memory.busy": 0.41,
            "hw.gpu.memory.usage": 103070826496,
            "hw.gpu.memory.limit": 206141652992,
            "hw.gpu.memory.utilization": 0.5,
            "grademl.gpu.process.memory{6001}": 102005473280,
            "hw.power": 702,
            "grademl.gpu.power.limit": 750,
            "hw.energy": 2_000_000 * 15.25e-6,
            "hw.temperature{gpu}": 71,
            "hw.temperature{memory}": 58,
            "hw.temperature.limit{gpu,throttled}": 100,
            "hw.temperature.limit{gpu,critical}": 105,
            "grademl.gpu.clock{sm}": 2_061_000_000,
            "grademl.gpu.clock{memory}": 1_300_000_000,
            "grademl.gpu.clock.limit{sm}": 2_100_000_000,
            "grademl.gpu.clock.limit{memory}": 1_300_000_000,
            "grademl.gpu.throttled": 1,
            "hw.gpu.io{receive,xgmi}": 10 * 1024,
            "hw.gpu.io{transmit,xgmi}": 0,
            "grademl.gpu.link.limit{pcie}": 32e9 * 128 / 130 / 8 * 16,
            "grademl.gpu.pcie.generation": 5,
            "grademl.gpu.pcie.generation.limit": 5,
            "grademl.gpu.pcie.width": 16,
            "grademl.gpu.pcie.width.limit": 16,
            "hw.errors{ecc.corrected}": 2,
            "hw.errors{ecc.uncorrected}": 0,
            "hw.errors{pcie.replay}": 0,
        }
    )
    columns = [series.metric.column for series, _ in readings if series.metric.column]
    assert len(columns) == len(set(columns))
    attributes = readings[0][0].attributes
    assert (
        attributes.items()
        >= {
            "hw.id": gpu["uuid"],
            "hw.type": "gpu",
            "hw.vendor": "AMD",
            "hw.model": "AMD Instinct MI300X",
            "hw.driver_version": "6.10.5",
            "grademl.gpu.index": 0,
            "grademl.gpu.pci.id": "0000:05:00.0",
        }.items()
    )


def test_what_a_card_says_by_an_older_version(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    """Other keys, W in place of uW, GT/s in place of MT/s; what it does not tell is absent."""
    fake, provider = _installed(monkeypatch, RADEON)
    (source,) = provider.sources()
    source.read()
    fake.gpus[0]["energy"]["power"] += 4_000_000
    readings = source.read()
    assert values(readings, fake.gpus[0]["uuid"]) == pytest.approx(
        {
            "hw.gpu.utilization{general}": 0.96,
            "grademl.gpu.memory.busy": 0.41,
            "hw.gpu.memory.usage": 1000,
            "hw.gpu.memory.limit": 25753026560,
            "hw.gpu.memory.utilization": 1000 / 25753026560,
            "hw.power": 98,
            "grademl.gpu.power.limit": 303,
            "hw.energy": 4_000_000 * 15.25e-6,
            "hw.temperature{gpu}": 52,
            "hw.fan.speed_ratio{0}": 0.2,
            "grademl.gpu.clock{sm}": 1_500_000_000,
            "grademl.gpu.clock.limit{sm}": 2_500_000_000,
            "grademl.gpu.throttled": 0,
            "grademl.gpu.link.limit{pcie}": 16e9 * 128 / 130 / 8 * 16,
            "grademl.gpu.pcie.generation": 1,
            "grademl.gpu.pcie.generation.limit": 4,
            "grademl.gpu.pcie.width": 16,
            "grademl.gpu.pcie.width.limit": 16,
        }
    )
    assert "hw.model" not in readings[0][0].attributes
    assert lines == []


def test_a_call_that_fails_and_nonsense_are_counted(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    fake, provider = _installed(monkeypatch, INSTINCT)
    (source,) = provider.sources()
    before = set(values(source.read(), fake.gpus[0]["uuid"]))
    fake.gpus[0]["power"] = fakeamdsmi.UNKNOWN
    fake.gpus[0]["activity"]["gfx_activity"] = 65_000
    fake.gpus[0]["memory"]["VRAM"] = (100, 200)
    readings = source.read()
    assert before - set(values(readings, fake.gpus[0]["uuid"])) == {
        "hw.power",
        "hw.gpu.utilization{general}",
        "grademl.gpu.memory.busy",
        "hw.gpu.memory.usage",
        "hw.gpu.memory.limit",
        "hw.gpu.memory.utilization",
    }
    assert failures(readings) == {
        "power: AmdSmiLibraryException": 1,
        "utilization: Implausible": 1,
        "memory: Implausible": 1,
    }
    assert len(lines) == 3


def test_a_driver_that_goes_and_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, provider = _installed(monkeypatch, INSTINCT)
    (source,) = provider.sources()
    source.read()
    fake.initialized = False
    fake.failing = fakeamdsmi.DRIVER_NOT_LOADED
    for _ in range(2):
        with pytest.raises(AmdSmiLibraryException):
            source.read()
    fake.failing = 0
    assert values(source.read(), fake.gpus[0]["uuid"])["hw.power"] == 702
    assert provider.sources() == [source]
    taken = fake.gpus.pop()
    assert provider.sources() == []
    with pytest.raises(SourceGone):
        source.read()
    fake.gpus.append(taken)
    (again,) = provider.sources()
    assert values(again.read(), taken["uuid"])["hw.power"] == 702
    provider.close()
    assert not fake.initialized


def test_one_that_hangs_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, provider = _installed(monkeypatch, INSTINCT, INSTINCT, INSTINCT)
    ask, healed = fake.amdsmi_get_gpu_device_uuid, threading.Event()

    def hang(handle: Any) -> str:
        if handle.index == 1:
            assert healed.wait(60)
        return str(ask(handle))

    monkeypatch.setattr(fake, "amdsmi_get_gpu_device_uuid", hang)
    monkeypatch.setattr(finding, "PATIENCE_S", 0.05)
    try:
        first, last, silent = provider.sources()
        assert [
            values(each.read(), gpu["uuid"])["hw.power"]
            for each, gpu in zip((first, last), fake.gpus[::2], strict=True)
        ] == [702, 702]
        with pytest.raises(TimeoutError):
            silent.read()
    finally:
        healed.set()
    monkeypatch.setattr(finding, "PATIENCE_S", 60)
    assert {each.name for each in provider.sources()} == {f"gpu {gpu['uuid']}" for gpu in fake.gpus}
    with pytest.raises(SourceGone):
        silent.read()


def test_without_amdsmi_or_a_driver_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str]
) -> None:
    assert [each.name for each in providers()] == ["nvidia", "amd"]
    assert AmdProvider(driver=str(tmp_path / "none")).sources() == []
    assert lines == []
    monkeypatch.setattr(amd.importlib.util, "find_spec", lambda name: None)
    provider = AmdProvider(driver="/")
    for _ in range(2):
        assert provider.sources() == []
    assert lines == ["GPUs of AMD are not read: amdsmi cannot be used: it is not installed (ROCm brings it)"]


_ODD = st.one_of(
    st.sampled_from(["N/A", None, "", float("nan"), float("inf"), True, -1, 0, 2**64 - 1, [], {}, 1e300]),
    st.integers(-(2**64), 2**64),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(sorted(INSTINCT)), st.integers(0, 9), _ODD), max_size=8))
def test_whatever_amdsmi_says_no_value_is_impossible(
    changes: list[tuple[str, int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, provider = _installed(monkeypatch, INSTINCT)
    (source,) = provider.sources()
    totals: dict[int, int | float] = {}
    for name, index, odd in [("driver", 0, "N/A"), *changes]:
        told = fake.gpus[0][name]
        if isinstance(told, dict) and told:
            told[sorted(told)[index % len(told)]] = odd
        elif name not in ("uuid", "bdf"):
            fake.gpus[0][name] = odd if isinstance(odd, (int, list)) else told
        try:
            readings = source.read()
        except (AmdSmiLibraryException, SourceGone, Implausible):
            continue
        for series, value in readings:
            assert type(value) in (int, float)
            assert 0 <= value < 2**63, series.metric
            assert not series.metric.name.endswith("utilization") or value <= 1
            assert series.capacity is None or 0 < series.capacity < 1e16
            if series.metric.kind == COUNTER:
                assert value >= totals.get(id(series), 0)
                totals[id(series)] = value
