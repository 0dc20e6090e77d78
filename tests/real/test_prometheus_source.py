# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus as a source of resources: what was sent is read back exactly, under every name it has."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.resource_model import prometheus_api
from grademl_otel.analyzers.resource_model.assemble import resources_of
from grademl_otel.analyzers.resource_model.model import ResourceMetric, ResourceModel
from grademl_otel.analyzers.resource_model.prometheus_api import Prometheus, as_arrays
from grademl_otel.analyzers.resource_model.settings import ResourceSettings
from grademl_otel.analyzers.sources.base import SourceOptions
from grademl_otel.analyzers.subject import Subject
from tests.support import monitored, servers
from tests.support.monitored import SLOW, S, export, series
from tests.support.pipeline import send
from tests.support.synthetic import simulate

pytestmark = pytest.mark.real

HOST = "prometheus-source-1"
OTHER = "prometheus-source-2"
TICKS = range(-30, 61)


@pytest.fixture(scope="module")
def begin() -> int:
    """A whole second half a minute ago: Prometheus takes nothing from the future."""
    return (int(time.time()) - 90) * S


@pytest.fixture(scope="module")
def fed(prometheus: servers.Prometheus, begin: int) -> servers.Prometheus:
    """It has a minute and a half of a host with a GPU as our sampler sends it, and as exporters tell it."""

    def counter(name: str, unit: str, per_second: float, reset_at: int | None = None, **of: str) -> dict:  # type: ignore[type-arg]
        values = {
            float(at): per_second * (at + 31 if reset_at is None or at < reset_at else at - reset_at)
            for at in TICKS
        }
        return series(name, unit, "counter", values, None, begin, **of)

    def gauge(name: str, unit: str, value: float, **of: str) -> dict:  # type: ignore[type-arg]
        return series(name, unit, "gauge", {float(at): value + at for at in TICKS}, None, begin, **of)

    def constant(name: str, unit: str, value: float, kind: str = "updown", **of: str) -> dict:  # type: ignore[type-arg]
        return series(name, unit, kind, {float(at): value for at in TICKS}, None, begin, **of)

    ours = export(
        gauge("hw.power", "W", 100, hw__id="GPU-a", hw__type="gpu"),
        constant("grademl.gpu.power.limit", "W", 300, "gauge", hw__id="GPU-a", hw__type="gpu"),
        counter("grademl.host.cpu.busy", "s", 1.5),
        constant("grademl.host.cpu.capacity", "{cpu}", 4),
        counter("system.cpu.time", "s", 0.5, cpu__mode="user"),
        counter("hw.network.io", "By", 1e6, 10, hw__id="mlx5_0/1", network__io__direction="receive"),
        host=HOST,
        service__name="grademl-host",
        service__instance__id=HOST,
    )
    exporter = "10.1.2.3:9100"
    node = export(
        constant("node_uname_info", "", 1, "gauge", nodename=HOST),
        *(counter("node_cpu_seconds_total", "", 0.25, cpu=cpu, mode="user") for cpu in "0123"),
        *(counter("node_cpu_seconds_total", "", 0.75, cpu=cpu, mode="idle") for cpu in "0123"),
        gauge("node_memory_MemTotal_bytes", "", 1000),
        constant("node_memory_MemAvailable_bytes", "", 600, "gauge"),
        counter("node_disk_io_time_seconds_total", "", 0.5, device="sda"),
        counter("node_disk_io_time_seconds_total", "", 0.5, device="sda1"),
        host=None,
        service__name="node",
        service__instance__id=exporter,
    )
    dcgm = export(
        constant("DCGM_FI_DEV_GPU_UTIL", "", 50, "gauge", UUID="GPU-b", Hostname=HOST, modelName="H200"),
        constant("DCGM_FI_DEV_FB_USED", "", 1000, "gauge", UUID="GPU-b", Hostname=HOST),
        constant("DCGM_FI_DEV_FB_FREE", "", 3000, "gauge", UUID="GPU-b", Hostname=HOST),
        host=None,
        service__name="dcgm",
        service__instance__id="10.1.2.3:9400",
    )
    elsewhere = export(counter("grademl.host.cpu.busy", "s", 3), host=OTHER, service__instance__id=OTHER)
    for body in (ours, node, dcgm, elsewhere):
        send(f"{prometheus.url}/api/v1/otlp", body, "metrics", patience_s=5)
    # What is taken can be asked for at once, but for a race of its own caches.
    servers.wait_until(
        lambda: len(prometheus.query(f'node_uname_info{{nodename="{HOST}"}}[10m]')) == 1, "storing"
    )
    return prometheus


def about(tmp_path: Path, begin: int, host: str = HOST) -> Subject:
    """A run of ten seconds on ``host``."""
    sim = simulate(replace(SLOW, start=begin))
    path = sim.write_store(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"node-0", host.encode()))
    return monitored.read(tmp_path)


def found(model: ResourceModel) -> dict[str, ResourceMetric]:
    return {model.metric_path(ix): metric for ix, metric in enumerate(model.metrics)}


def means(metric: ResourceMetric) -> set[float]:
    return set(metric.observed.value.round(6).tolist())


def test_what_was_sent_is_read_back_exactly(fed: servers.Prometheus, tmp_path: Path, begin: int) -> None:
    model = resources_of(about(tmp_path, begin), ResourceSettings(prometheus=(fed.url,)))
    metrics = found(model)
    host = f"/host[name={HOST}]"
    power = metrics[f"{host}/gpu[id=GPU-a]:power"]
    inside = {(at, 100.0 + at) for at in range(1, 10)}
    at = ((power.observed.end - begin) // S).tolist()
    assert inside <= set(zip(at, power.observed.value.tolist(), strict=True))
    assert (power.observed.end - power.observed.start == S).all()
    assert (power.observed.capacity, power.unit, power.type) == (300, "W", "gpu.power")
    assert means(metrics[f"{host}/cpu:busy"]) == {1.5}  # of what the job may use, not of the host
    assert metrics[f"{host}/cpu:busy"].observed.capacity == 4
    assert means(metrics[f"{host}/memory:used"]) == {float(400 + at) for at in range(1, 12)}
    assert means(metrics[f"{host}/disk[id=sda]:busy"]) == {0.5}
    assert f"{host}/disk[id=sda1]:busy" not in metrics
    assert means(metrics[f"{host}/gpu[id=GPU-b]:utilization"]) == {0.5}
    memory = metrics[f"{host}/gpu[id=GPU-b]:memory"]
    assert (means(memory), memory.observed.capacity) == ({1000 * 2.0**20}, 4000 * 2.0**20)
    port = metrics[rf"{host}/port[id=mlx5_0\/1]:rx"]
    # It began anew after ten seconds: what it counts then is what was added.
    assert means(port) <= {1e6, 0.0}
    assert {metric.sources for metric in model.metrics} == {(f"prometheus {fed.url}",)}
    assert {one.machine for one in model.resources} == {HOST}
    assert any("sda1" in line for line in model.problems)


def test_what_the_job_may_use_stands_in_for_by_the_host(fed: servers.Prometheus, begin: int) -> None:
    server = Prometheus(fed.url, {}, SourceOptions())
    names = ["node_cpu_seconds_total"]
    labels = server.series(names, begin, begin + 10 * S)
    assert {one["cpu"] for one in labels if one["instance"] == "10.1.2.3:9100"} == set("0123")
    server.close()


def test_windows_come_together_without_a_seam(
    fed: servers.Prometheus, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Prometheus(fed.url, {}, SourceOptions())

    def samples() -> dict[int, float]:
        matching = {"host_name": [HOST]}
        asked = server.samples(["hw_power_watts"], matching, begin - 40 * S, begin + 70 * S)
        read: dict[int, float] = {}
        for batch in asked:
            for one in batch:
                times, values = as_arrays(one.values)
                for at, value in zip(times.tolist(), values.tolist(), strict=True):
                    assert read.setdefault((at - begin) // S, value) == value
        return read

    expected = {at: 100.0 + at for at in TICKS}
    assert samples() == expected
    monkeypatch.setattr(prometheus_api, "_WINDOW_NS", 7 * S)
    assert samples() == expected
    server.close()


def test_a_host_that_prometheus_calls_otherwise_is_told_and_can_be_said(
    fed: servers.Prometheus, tmp_path: Path, begin: int
) -> None:
    subject = about(tmp_path, begin, "pod-7")
    model = resources_of(subject, ResourceSettings(prometheus=(fed.url,)))
    assert not model.metrics
    (line,) = (line for line in model.problems if "none of the hosts" in line)
    assert HOST in line or "more" in line
    assert "[hosts] pod-7 =" in line
    named = resources_of(
        subject, ResourceSettings(prometheus=(fed.url,), aliases={"pod-7": (HOST, "10.1.2.3")})
    )
    assert {one.machine for one in named.resources} == {"pod-7"}
    assert "/host[name=pod-7]/gpu[id=GPU-b]:utilization" in found(named)


def test_times_that_do_not_meet_are_told(fed: servers.Prometheus, tmp_path: Path, begin: int) -> None:
    model = resources_of(about(tmp_path, begin + 80 * S), ResourceSettings(prometheus=(fed.url,)))
    assert not model.metrics
    assert any("do not meet those of the phases" in line for line in model.problems)


def test_an_address_without_a_prometheus_is_one_line(jaeger: servers.Jaeger) -> None:
    server = Prometheus(jaeger.query_url, {}, SourceOptions(timeout_s=5))
    with pytest.raises(SourceError, match=r"^prometheus http://.*/api/v1"):
        server.names(0, 10 * S)
    server.close()


def test_no_number_is_none() -> None:
    assert [str(one) for one in as_arrays([(1.5, "NaN"), (2, "+Inf"), (3, "x"), (4, "2")])[1]] == [
        "nan", "inf", "nan", "2.0"
    ]  # fmt: skip
    assert math.isclose(as_arrays([(1.5, "1")])[0][0], 1_500_000_000)
