# SPDX-License-Identifier: Apache-2.0
"""The resource model of a run: tables, metrics and CSV files beside it, what each means, and what is told."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from grademl_otel.analyzers.errors import GrademlError, SourceError, UsageError
from grademl_otel.analyzers.model.clocks import ClockRule
from grademl_otel.analyzers.resource_model import naming
from grademl_otel.analyzers.resource_model.assemble import resources_of
from grademl_otel.analyzers.resource_model.model import ResourceMetric, ResourceModel
from grademl_otel.analyzers.resource_model.settings import Capacity, ResourceSettings
from grademl_otel.catalog import METRICS
from grademl_otel.catalog.metric import COUNTER
from tests.support.monitored import (
    BEGIN,
    BOOT,
    NODE,
    SLOW,
    S,
    export,
    series,
    simulate,
    subject,
    with_table,
)

TOOL = Path(__file__).resolve().parents[2] / "tools" / "document_resources.py"
Piece = tuple[float, float, float]


def found(model: ResourceModel) -> dict[str, ResourceMetric]:
    return {model.metric_path(ix): metric for ix, metric in enumerate(model.metrics)}


def pieces(metric: ResourceMetric) -> list[Piece]:
    """Return (start and end in s after the run's start, value)."""
    seen = metric.observed
    return [
        ((start - BEGIN) / S, (end - BEGIN) / S, value)
        for start, end, value in zip(seen.start.tolist(), seen.end.tolist(), seen.value.tolist(), strict=True)
    ]


def about_line(model: ResourceModel, words: str) -> str:
    """Return the one problem that has these words."""
    (line,) = (line for line in model.problems if words in line)
    return line


# --- Names --------------------------------------------------------------------------------------------------


def test_every_column_of_resource_tables_has_a_meaning_of_the_same_dimension() -> None:
    for metric in METRICS:
        if metric.column:
            meaning = naming.of_type(metric.column)
            assert meaning is not None, metric.column
            assert meaning.counter == (metric.kind == COUNTER)
            assert metric.name in {row.metric for row in naming.OTLP if row.name == meaning.name}


def test_rows_are_of_metrics_of_the_catalog_and_their_factors_are_known() -> None:
    catalogued = {metric.name for metric in METRICS}
    for row in (*naming.OTLP, *naming.EXPORTERS):
        assert row.factor > 0
        assert row in naming.EXPORTERS or row.metric in catalogued
    for metric, rows in naming.by_prometheus_name().items():
        if "." not in metric:
            assert all("." not in key for row in rows for key in (*row.id, *row.where, *row.over))


# --- Resource tables ----------------------------------------------------------------------------------------


def test_tables_are_averages_rates_and_capacities_in_the_units_of_the_metrics(tmp_path: Path) -> None:
    sim = simulate(SLOW)
    with_table(
        sim,
        [
            ("gpu", "utilization", "GPU-a", [500, 1000, -1, 250], 1000),
            ("gpu", "power", "GPU-a", [250_000, 300_000, 350_000, 0], 700_000),
            ("gpu", "sm_clock", "GPU-a", [1980] * 4, None),
            ("cpu", "busy", "cpu", [1500, 2000, 0, 500], 2000),
            ("network", "rx", "eth0", [10, 20, 30, 40], 100),
            ("process", "cpu", "rank 0", [1000, 1000, 1000, 1000], None),
        ],
        at=1,
    )
    model = resources_of(subject(tmp_path, sim))
    metrics = found(model)
    gpu = metrics["/host[name=node-0]/gpu[id=GPU-a]:utilization"]
    assert pieces(gpu) == [(1, 2, 0.5), (2, 3, 1.0), (4, 5, 0.25)]
    assert (gpu.type, gpu.unit, gpu.observed.capacity, gpu.sources) == (
        "gpu.utilization", "1", 1.0, ("resource tables",)
    )  # fmt: skip
    power = metrics["/host[name=node-0]/gpu[id=GPU-a]:power"]
    assert [value for *_, value in pieces(power)] == [250, 300, 350, 0]
    assert (power.unit, power.observed.capacity) == ("W", 700)
    assert pieces(metrics["/host[name=node-0]/gpu[id=GPU-a]:sm_clock"])[0][2] == 1.98e9
    cpu = metrics["/host[name=node-0]/cpu:busy"]
    assert [value for *_, value in pieces(cpu)] == [1.5, 2.0, 0.0, 0.5]
    assert (cpu.unit, cpu.observed.capacity) == ("{cpu}", 2.0)
    assert metrics["/host[name=node-0]/network[id=eth0]:rx"].observed.capacity == 100
    process = metrics["/host[name=node-0]/process[id=rank 0]:cpu"]
    assert process.observed.capacity == 2.0  # it can have no more than its host
    owner = model.resources[process.resource]
    assert (owner.machine, owner.tags["rank"], owner.tags["run"]) == (NODE, "0", SLOW.run_id)
    host = model.resources[owner.parent]
    assert (host.type, host.id, host.parent, host.machine) == ("host", NODE, -1, NODE)
    assert model.machine_of(BOOT) == NODE


def test_bins_of_other_lengths_are_rates_all_the_same(tmp_path: Path) -> None:
    sim = simulate(SLOW)
    with_table(sim, [("disk", "busy", "sda", [500, 1000], 1000)], bin_ms=2000)
    metric = found(resources_of(subject(tmp_path, sim)))["/host[name=node-0]/disk[id=sda]:busy"]
    assert pieces(metric) == [(0, 2, 0.25), (2, 4, 0.5)]


def test_a_table_that_contradicts_itself_is_told_and_the_others_count(tmp_path: Path) -> None:
    sim = simulate(replace(SLOW, steps_per_epoch=70))
    with_table(sim, [("cpu", "busy", "cpu", [1000, 1000], 2000)])
    with_table(sim, [("cpu", "busy", "cpu", [-7, 1000], 2000)], at=60, which=1)
    model = resources_of(subject(tmp_path, sim))
    assert pieces(found(model)["/host[name=node-0]/cpu:busy"]) == [(0, 1, 1), (1, 2, 1)]
    assert about_line(model, "cannot be read").startswith("1 resource table ")


def test_a_column_of_a_later_release_is_named(tmp_path: Path) -> None:
    sim = simulate(SLOW)
    with_table(sim, [("gpu", "joy", "GPU-a", [1, 2], None), ("cpu", "busy", "cpu", [1, 2], 2000)])
    model = resources_of(subject(tmp_path, sim))
    assert list(found(model)) == ["/host[name=node-0]/cpu:busy"]
    assert "gpu.joy" in about_line(model, "does not know")


def test_clocks_of_hosts_are_brought_together_as_those_of_spans(tmp_path: Path) -> None:
    ahead = 3 * S
    sim = simulate(replace(SLOW, ranks=2, skew_ns={1: ahead}))
    with_table(sim, [("cpu", "busy", "cpu", [1000] * 3, 2000)], at=1)
    with_table(sim, [("cpu", "busy", "cpu", [500] * 3, 2000)], at=1 + 3, rank=1)
    line = export(series("grademl.host.cpu.busiest", "1", "gauge", {5: 0.5, 6: 0.5}), host="node-1",
                  grademl__clock__id=BOOT[:-1] + "2")  # fmt: skip
    rule = ClockRule.parse(["node-1=3000"])
    metrics = found(resources_of(subject(tmp_path, sim, line, clocks=rule)))
    assert [one[:2] for one in pieces(metrics["/host[name=node-0]/cpu:busy"])] == [(1, 2), (2, 3), (3, 4)]
    assert [one[:2] for one in pieces(metrics["/host[name=node-1]/cpu:busy"])] == [(1, 2), (2, 3), (3, 4)]
    assert [one[:2] for one in pieces(metrics["/host[name=node-1]/cpu:busiest"])] == [(1, 2), (2, 3)]


# --- Metrics ------------------------------------------------------------------------------------------------


def test_gauges_counters_and_limits_of_otlp(tmp_path: Path) -> None:
    line = export(
        series("hw.gpu.utilization", "1", "gauge", {1: 0.5, 2: 0.75, 3: math.nan, 4: 1}, hw__id="GPU-a",
               hw__gpu__task="general"),
        series("hw.gpu.utilization", "1", "gauge", {1: 0.1, 2: 0.1}, hw__id="GPU-a", hw__gpu__task="encoder"),
        series("hw.gpu.memory.usage", "By", "updown", {1: 5, 2: 6}, hw__id="GPU-a"),
        series("hw.gpu.memory.limit", "By", "updown", {1: 80, 2: 80}, hw__id="GPU-a"),
        series("hw.gpu.io", "By", "counter", {1: 10, 2: 30}, hw__id="GPU-a", grademl__gpu__link__type="pcie",
               network__io__direction="receive"),
        series("grademl.gpu.link.limit", "By/s", "updown", {1: 64, 2: 64}, hw__id="GPU-a",
               grademl__gpu__link__type="pcie"),
        series("system.network.io", "By", "counter", {2: 8, 4: 10}, network__interface__name="eth0",
               network__io__direction="transmit"),
        series("hw.network.bandwidth.limit", "By/s", "updown", {2: 125, 4: 125}, hw__id="eth0"),
        series("grademl.host.pressure.time", "s", "counter", {1: 0.5, 2: 0.75},
               grademl__host__pressure__resource="io", grademl__host__pressure__kind="some"),
        series("grademl.host.pressure.time", "s", "counter", {1: 0.1, 2: 0.1},
               grademl__host__pressure__resource="io", grademl__host__pressure__kind="full"),
    )  # fmt: skip
    model = resources_of(subject(tmp_path, None, line))
    metrics = found(model)
    gpu = "/host[name=node-0]/gpu[id=GPU-a]"
    assert pieces(metrics[f"{gpu}:utilization"]) == [(0, 1, 0.5), (1, 2, 0.75), (3, 4, 1)]
    memory = metrics[f"{gpu}:memory"]
    assert (pieces(memory), memory.observed.capacity) == ([(0, 1, 5), (1, 2, 6)], 80)
    pcie = metrics[f"{gpu}:pcie_rx"]
    assert (pieces(pcie), pcie.observed.capacity, pcie.unit) == ([(0, 1, 10), (1, 2, 20)], 64, "By/s")
    network = metrics["/host[name=node-0]/network[id=eth0]:tx"]
    assert (pieces(network), network.observed.capacity) == ([(0, 2, 4), (2, 4, 1)], 125)
    pressure = metrics["/host[name=node-0]/pressure[id=host]:io"]
    assert (pieces(pressure), pressure.observed.capacity) == ([(0, 1, 0.5), (1, 2, 0.25)], 1)
    assert about_line(model, "with no number").startswith("1 metric point ")
    assert {metric.sources for metric in model.metrics} == {("metrics",)}


def test_a_counter_that_began_anew(tmp_path: Path) -> None:
    name, of = "system.disk.io", {"system__device": "sda", "disk__io__direction": "read"}
    line = export(
        series(name, "By", "counter", {1: 100, 2: 200}, since=0, **of),
        series(name, "By", "counter", {4: 30, 5: 40}, since=3, **of),
        # Another program of the host counts the same disk at times of its own: that adds nothing.
        series(name, "By", "counter", {3: 100, 5: 140}, since=1, **of),
    )
    metric = found(resources_of(subject(tmp_path, None, line)))["/host[name=node-0]/disk[id=sda]:read"]
    assert pieces(metric) == [(0, 1, 100), (1, 2, 100), (2, 3, 0), (3, 4, 30), (4, 5, 10)]


def test_units_that_are_not_theirs_are_converted_or_named(tmp_path: Path) -> None:
    line = export(
        series("hw.gpu.utilization", "%", "gauge", {1: 50, 2: 50}, hw__id="GPU-a"),
        series("hw.power", "furlong", "gauge", {1: 1, 2: 1}, hw__id="GPU-a", hw__type="gpu"),
        series("hw.gpu.memory.usage", "W", "updown", {1: 1, 2: 1}, hw__id="GPU-a"),
        series("grademl.host.cpu.busy", "s", "gauge", {1: 1, 2: 1}),
        series("hw.gpu.joy", "1", "gauge", {1: 1, 2: 1}, hw__id="GPU-a"),
        series("my.app.queue", "1", "gauge", {1: 1, 2: 1}),
        series("grademl.gpu.memory.busy", "1", "gauge", {1: 1, 2: 1}),
    )
    model = resources_of(subject(tmp_path, None, line))
    assert list(found(model)) == ["/host[name=node-0]/gpu[id=GPU-a]:utilization"]
    assert pieces(model.metrics[0])[0][2] == 0.5
    told = about_line(model, "unit that is not theirs")
    assert "hw.power ('furlong', not 'W')" in told
    assert "hw.gpu.memory.usage ('W', not 'By')" in told
    assert "grademl.host.cpu.busy" in about_line(model, "a gauge where a counter is known")
    assert "grademl.gpu.memory.busy" in about_line(model, "which device")
    assert "hw.gpu.joy" in about_line(model, "does not know")
    assert not any("my.app.queue" in line for line in model.problems)


def test_names_of_the_collectors_hostmetrics(tmp_path: Path) -> None:
    """CPUs one by one, states under the name of older releases, partitions and virtual interfaces."""
    busy = [
        series("system.cpu.time", "s", "counter", {0: 0, 2: each, 4: 2 * each}, None, cpu=cpu, state=state)
        for cpu in ("cpu0", "cpu1", "cpu2")
        for state, each in (("user", 0.5), ("system", 0.25), ("idle", 1.0), ("wait", 0.25))
    ]
    line = export(
        *busy,
        series("system.memory.usage", "By", "updown", {0: 4, 2: 5}, state="used"),
        series("system.memory.usage", "By", "updown", {0: 6, 2: 5}, state="free"),
        *(
            series("system.disk.io", "By", "counter", {0: 0, 2: 20}, None, device=disk, direction="read")
            for disk in ("sda", "sda1", "dm-0")
        ),
        *(
            series(
                "system.network.io", "By", "counter", {0: 0, 2: 20}, None, device=name, direction="receive"
            )
            for name in ("eth0", "vethab12", "lo")
        ),
    )
    model = resources_of(subject(tmp_path, None, line))
    metrics = found(model)
    cpu = metrics["/host[name=node-0]/cpu:busy"]
    assert pieces(cpu) == [(0, 2, pytest.approx(3 * 0.375)), (2, 4, pytest.approx(3 * 0.375))]
    assert cpu.observed.capacity == 3
    memory = metrics["/host[name=node-0]/memory:used"]
    assert (pieces(memory), memory.observed.capacity) == ([(0, 2, 5)], math.inf)
    assert {path for path in metrics if "disk" in path or "network" in path} == {
        "/host[name=node-0]/disk[id=sda]:read",
        "/host[name=node-0]/network[id=eth0]:rx",
        "/host[name=node-0]/network[id=lo]:rx",
    }
    assert "dm-0, sda1" in about_line(model, "disks")
    assert "vethab12" in about_line(model, "networks")
    assert "memory.used" in about_line(model, "nothing tells the capacity")


def test_what_is_of_the_host_stands_in_only_where_nothing_is_of_the_job(tmp_path: Path) -> None:
    host_wide = series("system.cpu.time", "s", "counter", {0: 0, 2: 20}, None, cpu__mode="user")
    online = series("system.cpu.logical.count", "{cpu}", "updown", {0: 64, 2: 64})
    of_job = series("grademl.host.cpu.busy", "s", "counter", {0: 0, 2: 3}, None)
    allowed = series("grademl.host.cpu.capacity", "{cpu}", "updown", {0: 4, 2: 4})
    alone = found(resources_of(subject(tmp_path / "a", None, export(host_wide, online))))
    both = found(resources_of(subject(tmp_path / "b", None, export(host_wide, online, of_job, allowed))))
    path = "/host[name=node-0]/cpu:busy"
    assert (pieces(alone[path]), alone[path].observed.capacity) == ([(0, 2, 10)], 64)
    assert (pieces(both[path]), both[path].observed.capacity) == ([(0, 2, 1.5)], 4)


def test_processes_are_those_of_runs_or_of_services(tmp_path: Path) -> None:
    points = series("process.memory.usage", "By", "updown", {1: 7, 2: 8})
    model = resources_of(
        subject(
            tmp_path,
            None,
            export(points, grademl__run__id=SLOW.run_id, grademl__attempt=0, grademl__rank=0),
            export(points, service__name="db", process__pid=7, host="node-9"),
        )
    )
    assert set(found(model)) == {
        "/host[name=node-0]/process[id=rank 0]:memory",
        "/host[name=node-9]/process[id=pid 7]:memory",
    }


# --- Several monitors ---------------------------------------------------------------------------------------


def test_tables_and_metrics_of_one_sampler_are_one_series(tmp_path: Path) -> None:
    sim = simulate(SLOW)
    with_table(sim, [("cpu", "busy", "cpu", [1000, 3000, 2000], 4000)], at=2)
    counted = {0.0: 0.0, 2.0: 1.0, 5.0: 7.0, 10.0: 12.0}
    line = export(series("grademl.host.cpu.busy", "s", "counter", counted, None))
    model = resources_of(subject(tmp_path, sim, line))
    metric = found(model)["/host[name=node-0]/cpu:busy"]
    assert pieces(metric) == [(0, 2, 0.5), (2, 3, 1), (3, 4, 3), (4, 5, 2), (5, 10, 1)]
    assert metric.sources == ("resource tables", "metrics")
    assert not any("says" in line for line in model.problems)


def test_monitors_that_disagree_are_told_and_the_finer_counts(tmp_path: Path) -> None:
    sim = simulate(replace(SLOW, steps_per_epoch=60))
    with_table(sim, [("gpu", "power", "GPU-a", [300_000] * 60, 700_000)])
    file = tmp_path / "smi.csv"
    rows = "".join(f"{BEGIN // S + at},node-0,gpu,GPU-a,power,200,W\n" for at in range(0, 60, 2))
    file.write_text("time,host,resource,id,metric,value,unit\n" + rows)
    model = resources_of(subject(tmp_path / "runs", sim), ResourceSettings(csv=(str(file),)))
    line = about_line(model, "says")
    assert "gpu.power of GPU-a on node-0: resource tables says 300, csv " in line
    assert {value for *_, value in pieces(found(model)["/host[name=node-0]/gpu[id=GPU-a]:power"])} == {300}


def test_units_that_differ_and_values_that_differ_are_told_apart(tmp_path: Path) -> None:
    sim = simulate(replace(SLOW, steps_per_epoch=60))
    with_table(sim, [("gpu", "power", "GPU-a", [300_000] * 60, 700_000)])
    head, (watts, bytes_) = (
        "time,host,resource,id,metric,value,unit\n",
        (tmp_path / "a.csv", tmp_path / "b.csv"),
    )
    for file, unit in ((watts, "W"), (bytes_, "By")):
        file.write_text(
            head
            + "".join(
                f"{BEGIN // S + at},node-0,lustre,,m{ix:02},2,{unit}\n" for ix in range(11) for at in (1, 2)
            )
            + "".join(f"{BEGIN // S + at},node-0,gpu,GPU-a,power,200,W\n" for at in range(0, 60, 2))
        )
    model = resources_of(
        subject(tmp_path / "runs", sim), ResourceSettings(csv=tuple(map(str, (watts, bytes_))))
    )
    units = [line for line in model.problems if "another unit" in line]
    assert len(units) == 9
    assert units[0] == f"lustre.m00: csv {bytes_} has it in another unit than csv {watts} (W): left out"
    assert units[8] == "and 3 more metrics that monitors have in another unit"
    assert len([line for line in model.problems if "says 300" in line]) == 2
    assert not any("monitors disagree" in line for line in model.problems)


# --- Capacities ---------------------------------------------------------------------------------------------


def capacity(metric: str, value: float, unit: str = "", resource: str | None = None) -> Capacity:
    return Capacity(metric, value, unit, resource, "rules.toml:3")


NETWORK = export(
    *(
        series("system.network.io", "By", "counter", {0: 0, 2: 20}, None, network__interface__name=name,
               network__io__direction=way)
        for name in ("eth0", "eth1") for way in ("receive", "transmit")
    )
)  # fmt: skip


def test_the_user_gives_capacities_and_the_last_one_counts(tmp_path: Path) -> None:
    given = (
        capacity("network.*", 10, "Gbit/s"),
        capacity("network.rx", 5, "MBy/s", "/host*/network[id=eth1]"),
        capacity("disk.read", 5, "MBy/s"),
    )
    model = resources_of(subject(tmp_path, None, NETWORK), ResourceSettings(capacities=given))
    assert {path: metric.observed.capacity for path, metric in found(model).items()} == {
        "/host[name=node-0]/network[id=eth0]:rx": 1.25e9,
        "/host[name=node-0]/network[id=eth0]:tx": 1.25e9,
        "/host[name=node-0]/network[id=eth1]:rx": 5e6,
        "/host[name=node-0]/network[id=eth1]:tx": 1.25e9,
    }
    assert about_line(model, "disk.read").startswith("rules.toml:3: a capacity is given for disk.read, and")
    assert not any("nothing tells the capacity" in line for line in model.problems)


def test_a_capacity_that_nobody_knows_is_told_once_with_how_to_give_it(tmp_path: Path) -> None:
    model = resources_of(subject(tmp_path, None, NETWORK))
    assert all(math.isinf(metric.observed.capacity) for metric in model.metrics)
    line = about_line(model, "capacity")
    assert "network.rx, network.tx" in line
    assert '[[capacity]] metric = "network.rx" value = ... unit = "By/s"' in line


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            capacity("network.rx", 5, "W"),
            r"^rules.toml:3: the capacity of network.rx is in By/s; 'W' is another",
        ),
        (capacity("network.rx", 5, "furlong"), r"'furlong' is no unit that is known$"),
        (capacity("network.rx", 0, "By/s"), r"^rules.toml:3: a capacity of 0 holds nothing$"),
        (capacity("network.rx", math.nan, "By/s"), r"holds nothing$"),
        (capacity("network.rx", 5, "By/s", "/host[/x"), r"^rules.toml:3: .*host\["),
        (capacity("network.rx", 5, "By/s", "../x"), r"named from the root"),
    ],
)
def test_a_wrong_capacity_is_one_line(tmp_path: Path, wrong: Capacity, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resources_of(subject(tmp_path, None, NETWORK), ResourceSettings(capacities=(wrong,)))


def test_a_capacity_that_is_exceeded_is_told(tmp_path: Path) -> None:
    model = resources_of(
        subject(tmp_path, None, NETWORK), ResourceSettings(capacities=(capacity("network.rx", 1, "By/s"),))
    )
    assert "network[id=eth0]:rx up to 10 of 1" in about_line(model, "exceeded")


# --- Gaps, times, hosts -------------------------------------------------------------------------------------


def test_gaps_are_told_with_their_length(tmp_path: Path) -> None:
    sim = simulate(replace(SLOW, steps_per_epoch=60))
    with_table(sim, [("cpu", "busy", "cpu", [1000] * 20 + [-1] * 15 + [1000] * 25, 4000)])
    model = resources_of(subject(tmp_path, sim))
    line = about_line(model, "not seen")
    assert line.startswith("cpu.busy of node-0: not seen once, for 15")
    assert len(model.metrics[0].observed) == 45


def test_times_that_do_not_meet_those_of_the_phases(tmp_path: Path) -> None:
    early = export(series("grademl.host.cpu.busiest", "1", "gauge", {-7200: 0.5, -7199: 0.5}))
    model = resources_of(subject(tmp_path, None, early))
    assert not model.metrics
    line = about_line(model, "do not meet")
    assert line.startswith("metrics: its times do not meet those of the phases: it ends 2 h 0 min before")


def test_hosts_that_do_not_match_are_told_and_aliases_bring_them_together(tmp_path: Path) -> None:
    line = export(series("grademl.host.cpu.busiest", "1", "gauge", {1: 0.5, 2: 0.5}), host="ip-10-0-0-1")
    about = subject(tmp_path, None, line)
    apart = resources_of(about)
    assert [one.machine for one in apart.resources] == ["ip-10-0-0-1"] * 2
    assert '[hosts] node-0 = ["ip-10-0-0-1"]' in about_line(apart, "no phase ran on ip-10-0-0-1")
    assert "node-0" in about_line(apart, "nothing is known of the resources")
    together = resources_of(about, ResourceSettings(aliases={"node-0": ("ip-10-0-0-1",)}))
    assert {one.machine for one in together.resources} == {NODE}
    assert not any("no phase ran" in line for line in together.problems)


def test_two_hosts_are_apart(tmp_path: Path) -> None:
    sim = simulate(replace(SLOW, ranks=2, hosts={1: 1}))
    with_table(sim, [("gpu", "utilization", "GPU-0", [500], 1000)])
    with_table(sim, [("gpu", "utilization", "GPU-0", [250], 1000)], rank=1)
    metrics = found(resources_of(subject(tmp_path, sim)))
    assert {path: metric.observed.value.tolist() for path, metric in metrics.items()} == {
        "/host[name=node-0]/gpu[id=GPU-0]:utilization": [0.5],
        "/host[name=node-1]/gpu[id=GPU-0]:utilization": [0.25],
    }


def test_a_host_that_is_not_named_matches_all(tmp_path: Path) -> None:
    line = export(series("grademl.host.cpu.busiest", "1", "gauge", {1: 0.5, 2: 0.5}), host=None)
    model = resources_of(subject(tmp_path, None, line))
    assert [(one.type, one.id, one.machine) for one in model.resources] == [
        ("host", "", None), ("cpu", "", None)
    ]  # fmt: skip
    assert model.metric_path(0) == "/host/cpu:busiest"


def test_without_any_monitor_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    model = resources_of(subject(tmp_path))
    assert (list(model.resources), list(model.metrics), list(model.problems)) == ([], [], [])


def test_further_metrics_are_read_from_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "agent.jsonl"
    elsewhere.write_bytes(export(series("grademl.host.cpu.busiest", "1", "gauge", {1: 0.5, 2: 0.5})))
    settings = ResourceSettings(metrics=(str(elsewhere),))
    model = resources_of(subject(tmp_path / "runs"), settings)
    assert model.metrics[0].sources == (f"metrics of {elsewhere}",)
    with pytest.raises(GrademlError, match="no such"):
        resources_of(subject(tmp_path / "again"), ResourceSettings(metrics=(str(tmp_path / "none"),)))


# --- CSV files ----------------------------------------------------------------------------------------------


def of_csv(tmp_path: Path, text: str) -> ResourceModel:
    file = tmp_path / "seen.csv"
    file.write_text(text, encoding="utf-8")
    return resources_of(subject(tmp_path / "runs"), ResourceSettings(csv=(str(file),)))


T = BEGIN // S


def iso(at: int, hours: int) -> str:
    """Return a time as it is written where clocks show so many hours more."""
    moment = datetime.fromtimestamp(at, tz=timezone(timedelta(hours=hours)))
    return moment.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    "times",
    [
        (f"{T + 1}", f"{T + 2}"),
        (f"{T + 1}000", f"{T + 2}000"),
        (f"{T + 1}000000", f"{T + 2}000000"),
        (f"{T + 1}000000000", f"{T + 2}000000000"),
        (f"{T + 1}.000", f"{T + 2}.000000000"),
        (iso(T + 1, 0), iso(T + 2, 1)),
        (
            iso(T + 1, 0).replace("Z", ".000000000Z"),
            iso(T + 2, -3).replace("T", " ").replace("-03:00", ".0-03:00"),
        ),
    ],
)
def test_times_of_csv(tmp_path: Path, times: tuple[str, str]) -> None:
    model = of_csv(
        tmp_path, "time,host,resource,metric,value\n" + "".join(f"{at},node-0,cpu,busy,1\n" for at in times)
    )
    assert pieces(model.metrics[0]) == [(0, 1, 1), (1, 2, 1)]


def test_gauges_counters_intervals_and_capacities_of_csv(tmp_path: Path) -> None:
    model = of_csv(
        tmp_path,
        "time,start,host,resource,id,metric,value,unit,kind,capacity\n"
        f"{T + 1},,node-0,gpu,GPU-a,utilization,50,%,gauge,\n"
        f"{T + 2},,node-0,gpu,GPU-a,utilization,100,%,,100\n"
        f"{T + 1},,node-0,disk,sda,read,1000,kBy,counter,2\n"
        f"{T + 3},,node-0,disk,sda,read,1004,kBy,counter,2\n"
        f"{T + 2},{T},node-0,lustre,scratch,read,7,MB/s,,9\n"
        f"{T + 9},{T + 8},node-0,lustre,scratch,read,8,MB/s,,\n"
        f"{T + 1},,node-0,cpu,,busy,1.5,,,\n"
        f"{T + 2},,node-0,cpu,,busy,N/A,,,\n"
        "\n",
    )
    told = {
        path: (pieces(metric), metric.unit, metric.observed.capacity) for path, metric in found(model).items()
    }
    assert told == {
        "/host[name=node-0]/gpu[id=GPU-a]:utilization": ([(0, 1, 0.5), (1, 2, 1.0)], "1", 1.0),
        "/host[name=node-0]/disk[id=sda]:read": ([(1, 3, 2000)], "By/s", 2000),
        "/host[name=node-0]/lustre[id=scratch]:read": ([(0, 2, 7), (8, 9, 8)], "MB/s", 9),
        "/host[name=node-0]/cpu:busy": ([(0, 1, 1.5)], "{cpu}", math.inf),
    }
    assert about_line(model, "without a value").endswith(
        "1 row without a value, or with one below 0 or above 1e+30, left out"
    )


def test_rows_that_say_nothing_of_any_time_or_are_of_another_unit_are_told(tmp_path: Path) -> None:
    model = of_csv(
        tmp_path,
        f"time,resource,metric,value,unit\n{T},cpu,busy,1,\n{T},gpu,power,1,By\n{T + 1},gpu,power,1,By\n",
    )
    assert not model.metrics
    assert "cpu.busy: 1 row" in about_line(model, "say nothing of any time")
    assert "gpu.power in By, which is no W" in about_line(model, "left out")


HEAD = "time,resource,metric,value"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"seen.csv: empty; its first line names the columns"),
        ("time,resource,metrik,value\n", r"seen.csv:1: unknown column 'metrik'; did you mean metric\?"),
        ("time,resource,value\n", r"seen.csv:1: no column metric; needed are time, resource, metric, value"),
        ("time,time,resource,metric,value\n", r"seen.csv:1: a column stands there twice"),
        (f"{HEAD}\n1,2\n", r"seen.csv:2: 2 cells, where the first line has 4"),
        (f"{HEAD}\nsoon,cpu,busy,1\n", r"seen.csv:2: time 'soon' is neither Unix time .* nor ISO 8601"),
        (f"{HEAD}\n2026-11-30T01:33:21,cpu,busy,1\n", r"seen.csv:2: time '2026.*' is neither"),
        (f"{HEAD}\n{T},cpu,busy,much\n", r"seen.csv:2: value 'much' is no number"),
        (f"{HEAD}\n{T},,busy,1\n", r"seen.csv:2: no resource"),
        (f"{HEAD}\n{T},gpu/0,busy,1\n", r"seen.csv:2: resource 'gpu/0' is the type of one"),
        (f"{HEAD},unit\n{T},cpu,busy,1,furlong\n", r"seen.csv:2: unknown unit 'furlong'; known are 1, %"),
        (f"{HEAD},kind\n{T},cpu,busy,1,sum\n", r"seen.csv:2: kind 'sum' is none of gauge, counter"),
        (f"{HEAD},start\n{T},cpu,busy,1,{T}\n", r"seen.csv:2: start is not before time"),
        (
            f"{HEAD},unit\n{T},cpu,x,1,s\n{T},cpu,x,1,W\n",
            r"seen.csv:3: cpu x is a gauge in W; in line 2 it is",
        ),
        (f"{HEAD}\n{'1' * 5000},cpu,busy,1\n", r"seen.csv:2: time '1+' is neither Unix time"),
        (f"{HEAD}\n1.{'1' * 5000},cpu,busy,1\n", r"seen.csv:2: time '1\.1+' is neither Unix time"),
        (f"{HEAD}\n1e400,cpu,busy,1\n", r"seen.csv:2: time '1e400' is neither Unix time"),
        (f"{HEAD}\n{T},cpu,{'x' * 200_000},1\n", r"seen.csv: not CSV in UTF-8: field larger than"),
        (f'{HEAD}\n{T},"a\nb/",busy,1\n', r"seen.csv:3: resource 'a\\nb/' is the type of one"),
    ],
)
def test_bad_csv_is_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        of_csv(tmp_path, text)


def test_no_csv_and_no_text(tmp_path: Path) -> None:
    about = subject(tmp_path / "runs")
    with pytest.raises(SourceError, match="no such file"):
        resources_of(about, ResourceSettings(csv=(str(tmp_path / "none.csv"),)))
    (tmp_path / "binary.csv").write_bytes(b"time,\xff\xfe\x00")
    with pytest.raises(UsageError, match="not CSV in UTF-8"):
        resources_of(about, ResourceSettings(csv=(str(tmp_path / "binary.csv"),)))


def test_the_page_has_the_table_that_the_code_has() -> None:
    spec = importlib.util.spec_from_file_location("document_resources", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    there = (TOOL.parents[1] / "docs" / "resources.md").read_text("utf-8")
    assert tool.page(there) == there, "run tools/document_resources.py"
