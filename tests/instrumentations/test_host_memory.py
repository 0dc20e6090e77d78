# SPDX-License-Identifier: Apache-2.0
"""Memory and pressure: exact numbers of recorded hosts and control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from grademl_otel.instrumentations.host.cpu import REFRESH
from grademl_otel.instrumentations.host.memory import MemorySource
from grademl_otel.instrumentations.host.pressure import PressureSource

from ..support.hosttrees import HostTree, columns, told, unpack

KB = 1024
GIB = 1 << 30


def test_memory_of_a_host(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    source = MemorySource(tree.roots)
    values = told(source.read())
    assert {key: value for key, value in values.items() if not key.startswith("grademl.host.cgroup")} == {
        "system.memory.limit": 1056000000 * KB,
        "system.memory.usage{system.memory.state=free}": 900000000 * KB,
        "system.memory.usage{system.memory.state=buffers}": 2000000 * KB,
        "system.memory.usage{system.memory.state=cached}": 80000000 * KB,
        "system.memory.usage{system.memory.state=used}": 74000000 * KB,
        "system.memory.linux.available": 980000000 * KB,
        "system.memory.linux.shared": 4000000 * KB,
        "system.paging.usage{system.paging.state=used}": 388604 * KB,
        "system.paging.usage{system.paging.state=free}": 8000000 * KB,
        "grademl.host.memory.dirty": 12300 * KB,
        "grademl.host.memory.used": 76000000 * KB,
        "system.paging.operations{system.paging.direction=in,system.paging.fault.type=major}": 0,
        "system.paging.operations{system.paging.direction=out,system.paging.fault.type=major}": 0,
        "system.paging.faults{system.paging.fault.type=major}": 0,
        "system.paging.faults{system.paging.fault.type=minor}": 0,
        "grademl.host.oom_kills": 0,
    }
    tree.replace("proc/vmstat", "pswpin 100\n", "pswpin 103\n")
    tree.replace("proc/vmstat", "pswpout 250\n", "pswpout 251\n")
    tree.replace("proc/vmstat", "pgfault 900000\n", "pgfault 900100\n")
    tree.replace("proc/vmstat", "pgmajfault 1200\n", "pgmajfault 1230\n")
    tree.replace("proc/vmstat", "oom_kill 2\n", "oom_kill 4\n")
    values = told(source.read())
    assert [value for key, value in values.items() if "paging.operations" in key] == [3, 1]
    assert values["system.paging.faults{system.paging.fault.type=major}"] == 30
    assert values["system.paging.faults{system.paging.fault.type=minor}"] == 70
    assert values["grademl.host.oom_kills"] == 2


@pytest.mark.parametrize(
    ("shape", "used", "capacity"),
    [
        ("bare_metal", 76000000 * KB, 1056000000 * KB),
        ("container_v2", 6500000000, 16 * GIB),
        ("docker_v1", 4000000000, 8 * GIB),
        ("kubernetes", 26000000000, 32 * GIB),
        ("arm64_slurm", 6000000000, 128 * GIB),  # of the job, not of the task
        ("old_kernel", (16384000 - 4000000 - 300000 - 6000000) * KB, 16384000 * KB),
        ("virtual_machine", (24683584 - 23401796) * KB, 24683584 * KB),
    ],
)
def test_what_a_job_may_use(tmp_path: Path, shape: str, used: int, capacity: int) -> None:
    readings = MemorySource(unpack(shape, tmp_path).roots).read()
    assert columns(readings) == {("memory.used", "memory"): used}
    assert [series.capacity for series, _ in readings if series.metric.column] == [capacity]


@pytest.mark.parametrize("shape", ["old_kernel", "virtual_machine", "bare_metal"])
def test_what_is_not_there_is_absent(tmp_path: Path, shape: str) -> None:
    values = told(MemorySource(unpack(shape, tmp_path).roots).read())
    assert ("system.memory.linux.available" in values) == (shape != "old_kernel")
    assert ("grademl.host.oom_kills" in values) == (shape != "old_kernel")
    assert ("system.paging.usage{system.paging.state=used}" in values) == (shape != "virtual_machine")
    assert "grademl.host.cgroup.memory.limit" not in values
    assert "grademl.host.cgroup.memory.usage" in values


def test_a_limit_beyond_what_there_is_does_not_bind(tmp_path: Path) -> None:
    tree = unpack("container_v2", tmp_path)
    tree.write("sys/fs/cgroup/memory.max", f"{131072000 * KB + 1}\n")
    readings = MemorySource(tree.roots).read()
    assert columns(readings) == {("memory.used", "memory"): 41072000 * KB}
    assert [series.capacity for series, _ in readings if series.metric.column] == [131072000 * KB]


def test_events_of_a_limit(tmp_path: Path) -> None:
    tree = unpack("container_v2", tmp_path)
    source = MemorySource(tree.roots)
    source.read()
    tree.write("sys/fs/cgroup/memory.events", "low 0\nhigh 1\nmax 19\noom 4\noom_kill 2\noom_group_kill 0\n")
    values = told(source.read())
    event = "grademl.host.cgroup.memory.events{grademl.host.cgroup.memory.event="
    assert {key.removeprefix(event): value for key, value in values.items() if key.startswith(event)} == {
        "high}": 1,
        "max}": 2,
        "oom}": 3,
        "oom_kill}": 1,
    }


def test_events_of_a_limit_of_version_1(tmp_path: Path) -> None:
    tree = unpack("docker_v1", tmp_path)
    source = MemorySource(tree.roots)
    source.read()
    tree.write("sys/fs/cgroup/memory/memory.failcnt", "44\n")
    tree.write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    values = told(source.read())
    event = "grademl.host.cgroup.memory.events{grademl.host.cgroup.memory.event="
    found = {key.removeprefix(event): value for key, value in values.items() if key.startswith(event)}
    assert found == {"max}": 11, "oom_kill}": 1}


def test_a_limit_above_what_is_mounted_shows_in_version_1(tmp_path: Path) -> None:
    tree = unpack("docker_v1", tmp_path)
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    tree.replace("sys/fs/cgroup/memory/memory.stat", "memory_limit 8589934592", "memory_limit 7000000000")
    assert told(MemorySource(tree.roots).read())["grademl.host.cgroup.memory.limit"] == 7000000000


def test_a_limit_that_changes_is_seen_at_the_next_look(tmp_path: Path) -> None:
    tree = unpack("container_v2", tmp_path)
    source = MemorySource(tree.roots)
    source.read()
    tree.write("sys/fs/cgroup/memory.max", "max\n")
    capacities = []
    for _ in range(REFRESH):
        readings = source.read()
        capacities += [series.capacity for series, _ in readings if series.metric.column]
    assert "grademl.host.cgroup.memory.limit" not in told(readings)
    assert capacities == [16 * GIB] * (REFRESH - 1) + [131072000 * KB]
    assert columns(readings) == {("memory.used", "memory"): 41072000 * KB}


def test_what_a_group_does_not_say_once_is_not_the_hosts(tmp_path: Path) -> None:
    tree = unpack("container_v2", tmp_path)
    source = MemorySource(tree.roots)
    source.read()
    tree.write("sys/fs/cgroup/memory.current", "")
    assert ("memory.used", "memory") not in columns(source.read())
    for _ in range(REFRESH):
        readings = source.read()
    assert columns(readings)["memory.used", "memory"] > 16 << 30, "it says nothing any more"


def test_a_working_set_is_never_negative(tmp_path: Path) -> None:
    tree = unpack("container_v2", tmp_path)
    tree.write("sys/fs/cgroup/memory.current", "1000\n")  # read before memory.stat, which is older
    assert told(MemorySource(tree.roots).read())["grademl.host.cgroup.memory.working_set"] == 0


def test_numbers_that_contradict_each_other_are_left_out(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    tree.replace("proc/meminfo", "MemFree:        900000000", "MemFree:        9000000000")
    tree.replace("proc/meminfo", "SwapFree:       8000000", "SwapFree:       80000000")
    tree.replace("proc/vmstat", "pgfault 900000", "pgfault 9")
    values = told(MemorySource(tree.roots).read())
    assert "system.memory.usage{system.memory.state=used}" not in values
    assert not any(key.startswith("system.paging.usage") for key in values)
    assert "system.paging.faults{system.paging.fault.type=minor}" not in values


# --- Pressure ----------------------------------------------------------------------------------------------


def _total(tree: HostTree, path: str, kind: str, grown: int) -> None:
    lines = [line.rpartition("=") for line in tree.read(path).splitlines()]
    now = [f"{a}={int(b) + grown if a.startswith(kind) else b}\n" for a, _, b in lines]
    tree.write(path, "".join(now))


def test_stalls_of_host_and_group(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    source = PressureSource(tree.roots)
    assert set(told(source.read()).values()) == {0}
    group = "sys/fs/cgroup/user.slice/user-1000.slice/session-4.scope"
    _total(tree, "proc/pressure/cpu", "some", 1_000_000)
    _total(tree, "proc/pressure/cpu", "full", 9_000_000)  # means nothing for a host
    _total(tree, "proc/pressure/io", "some", 250_000)
    _total(tree, "proc/pressure/io", "full", 125_000)
    _total(tree, "proc/pressure/irq", "full", 5)
    _total(tree, f"{group}/cpu.pressure", "full", 500_000)
    _total(tree, f"{group}/memory.pressure", "some", 2_000_000)
    readings = source.read()
    key = "pressure.time{grademl.host.pressure.kind="
    assert {name: value for name, value in told(readings).items() if value} == {
        f"grademl.host.{key}some,grademl.host.pressure.resource=cpu}}": 1.0,
        f"grademl.host.{key}some,grademl.host.pressure.resource=io}}": 0.25,
        f"grademl.host.{key}full,grademl.host.pressure.resource=io}}": 0.125,
        f"grademl.host.{key}full,grademl.host.pressure.resource=irq}}": 5e-6,
        f"grademl.host.cgroup.{key}full,grademl.host.pressure.resource=cpu}}": 0.5,
        f"grademl.host.cgroup.{key}some,grademl.host.pressure.resource=memory}}": 2.0,
    }
    assert columns(readings) == {
        ("pressure.cpu", "host"): 1.0,
        ("pressure.memory", "host"): 0,
        ("pressure.io", "host"): 0.25,
        ("pressure.cpu", "cgroup"): 0,
        ("pressure.memory", "cgroup"): 2.0,
        ("pressure.io", "cgroup"): 0,
    }


@pytest.mark.parametrize(
    ("shape", "of_group"), [("arm64_slurm", False), ("virtual_machine", False), ("kubernetes", True)]
)
def test_groups_without_pressure(tmp_path: Path, shape: str, of_group: bool) -> None:
    devices = {series.device for series, _ in PressureSource(unpack(shape, tmp_path).roots).read()}
    assert devices == ({"host", "cgroup"} if of_group else {"host"})


def test_a_line_that_is_cut_is_none(tmp_path: Path) -> None:
    tree = unpack("virtual_machine", tmp_path)
    tree.write(
        "proc/pressure/io", "some avg10=0.77 avg60=1.03 avg300=0.97 total=21604314\nfull avg10=0 total=62"
    )
    key = "grademl.host.pressure.time{{grademl.host.pressure.kind={},grademl.host.pressure.resource=io}}"
    values = told(PressureSource(tree.roots).read())
    assert key.format("some") in values
    assert key.format("full") not in values


def test_a_kernel_that_was_started_without_it(tmp_path: Path) -> None:
    tree = unpack("container_v2", tmp_path)
    for path in tree.files():
        if "pressure" in path:
            tree.write(path, "")  # in truth reading them fails: EOPNOTSUPP
    with pytest.raises(ValueError, match="stalls"):
        PressureSource(tree.roots).read()
