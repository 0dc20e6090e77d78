# SPDX-License-Identifier: Apache-2.0
"""Disks: which of them count, exact numbers, times that wrap, disks that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from grademl_otel.instrumentations.host.disks import MOST_DISKS, DiskSource

from ..support.hosttrees import HostTree, columns, told, unpack


def _devices(source: DiskSource) -> set[str]:
    return {series.device for series, _ in source.read()} - {"cgroup"}


@pytest.mark.parametrize(
    ("shape", "devices"),
    [
        ("bare_metal", {"nvme0n1", "nvme1n1"}),  # no partitions, RAID, volume, loop; nvme2n1 was never used
        ("container_v2", {"nvme0n1"}),  # by their names alone
        ("docker_v1", {"sda", "sdb"}),
        ("kubernetes", {"nvme0n1"}),
        ("old_kernel", {"sda"}),
        ("arm64_slurm", {"nvme0n1", "nvme1n1"}),
        ("virtual_machine", {"vda"}),
    ],
)
def test_disks_that_stand_for_themselves(tmp_path: Path, shape: str, devices: set[str]) -> None:
    assert _devices(DiskSource(unpack(shape, tmp_path).roots)) == devices


def test_numbers_of_a_disk(tmp_path: Path) -> None:
    tree = unpack("kubernetes", tmp_path)
    source = DiskSource(tree.roots)
    assert set(told(source.read()).values()) == {0}
    before = tree.read("proc/diskstats").splitlines()[0]
    tree.replace(
        "proc/diskstats",
        before,
        " 259       0 nvme0n1 1007 10 80100 750 2011 20 160200 1400 3 2200 1400 5 0 4096 7 30 9",
    )
    readings = source.read()
    values = told(readings)
    of = "disk.io.direction={},system.device=nvme0n1"
    assert {key: value for key, value in values.items() if "cgroup" not in key} == {
        f"system.disk.operations{{{of.format('read')}}}": 7,
        f"system.disk.io{{{of.format('read')}}}": 51200,
        f"system.disk.operation_time{{{of.format('read')}}}": 0.25,
        f"system.disk.operations{{{of.format('write')}}}": 11,
        f"system.disk.io{{{of.format('write')}}}": 102400,
        f"system.disk.operation_time{{{of.format('write')}}}": 0.5,
        "system.disk.io_time{system.device=nvme0n1}": 1.0,
    }
    assert columns(readings) == {
        ("disk.read", "nvme0n1"): 51200,
        ("disk.write", "nvme0n1"): 102400,
        ("disk.busy", "nvme0n1"): 1.0,
    }
    assert {series.capacity for series, _ in readings if series.metric.column == "disk.busy"} == {1}


@pytest.mark.parametrize(
    ("head", "devices"),
    [
        ("1 0 8 1 1 0 8 1 0 1 1", {"nvme0n1", "nvme3n1"}),  # since Linux 6.4 they count as well
        ("0 0 0 0 0 0 0 0 0 0 0", {"nvme0c0n1", "nvme0c1n1", "nvme3n1"}),
    ],
)
@pytest.mark.parametrize("head_first", [True, False])
def test_paths_to_a_disk_count_where_the_disk_does_not(
    tmp_path: Path, head: str, devices: set[str], head_first: bool
) -> None:
    tree = HostTree(tmp_path)
    paths = "".join(f" 0 0 nvme0c{path}n1 1 0 8 1 1 0 8 1 0 1 1\n" for path in range(2))
    lines = [f" 259 1 nvme0n1 {head}\n", paths]
    tree.write(
        "proc/diskstats",
        "".join(lines if head_first else lines[::-1]) + " 259 2 nvme3n1 1 0 8 1 1 0 8 1 0 1 1\n",
    )
    source = DiskSource(tree.roots)
    source.read()
    assert _devices(source) == devices


def test_times_of_32_bits_wrap(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    source = DiskSource(tree.roots)
    source.read()
    tree.replace(
        "proc/diskstats",
        "nvme1n1 500000 0 4000000000 4294960000 100 0 4096 60 0 4294967290 5000",
        "nvme1n1 500001 0 5000000000 704 100 0 4096 60 0 494 5000",
    )
    values = told(source.read())
    assert values["system.disk.operation_time{disk.io.direction=read,system.device=nvme1n1}"] == 8.0
    assert values["system.disk.io_time{system.device=nvme1n1}"] == 0.5
    assert values["system.disk.io{disk.io.direction=read,system.device=nvme1n1}"] == 512 * 10**9


def test_disks_come_and_go(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    source = DiskSource(tree.roots)
    source.read()
    lines = tree.read("proc/diskstats").splitlines(keepends=True)
    tree.write("proc/diskstats", "".join(line for line in lines if "nvme1n1" not in line))
    assert _devices(source) == {"nvme0n1"}
    used = "".join(lines).replace("nvme2n1 0 0 0 0", "nvme2n1 1 0 8 1")
    tree.write("proc/diskstats", used)
    assert _devices(source) == {"nvme0n1", "nvme1n1", "nvme2n1"}
    # What came back counts from 0 on, as it may be another disk.
    values = told(source.read())
    assert values["system.disk.io{disk.io.direction=read,system.device=nvme1n1}"] == 0


def test_thousands_of_disks(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    many = "".join(f" 8 {number} sd{_letters(number)} 1 0 8 1 1 0 8 1 0 1 1\n" for number in range(3000))
    tree.write("proc/diskstats", many)
    source = DiskSource(tree.roots)
    first = _devices(source)
    assert len(first) == MOST_DISKS
    assert _devices(source) == first
    # One of them is taken away: another has its place.
    lines = tree.read("proc/diskstats").splitlines(keepends=True)
    tree.write("proc/diskstats", "".join(lines[1:]))
    _devices(source)
    assert len(_devices(source) - first) == 1


def _letters(number: int) -> str:
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("a") + letter) + name
    return name


def test_bytes_of_the_group(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    source = DiskSource(tree.roots)
    source.read()
    group = "sys/fs/cgroup/user.slice/user-1000.slice/session-4.scope"
    # What the RAID reads, its disks read: it counts once.
    tree.write(
        f"{group}/io.stat",
        "259:0 rbytes=4096100 wbytes=8192010 rios=100\n259:3 rbytes=1001000 wbytes=1 rios=10\n"
        "9:0 rbytes=9999999 wbytes=9999999 rios=110\n259:4 rbytes=5 wbytes=5\n",
    )
    values = told(source.read())
    assert values["grademl.host.cgroup.disk.io{disk.io.direction=read}"] == 1100
    assert values["grademl.host.cgroup.disk.io{disk.io.direction=write}"] == 11


def test_bytes_of_the_group_of_version_1(tmp_path: Path) -> None:
    tree = unpack("docker_v1", tmp_path)
    source = DiskSource(tree.roots)
    source.read()
    path = "sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes"
    # The second line is of a disk that the group had not used so far.
    tree.write(path, tree.read(path).replace("8:0 Read 4096", "8:0 Read 5096").replace("253:0", "8:16"))
    values = told(source.read())
    assert values["grademl.host.cgroup.disk.io{disk.io.direction=read}"] == 1000
    assert values["grademl.host.cgroup.disk.io{disk.io.direction=write}"] == 0


@pytest.mark.parametrize("name", ["cciss/c0d0", "\xff\xfe", "a" * 300, "..", "x\x00y"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    tree = HostTree(tmp_path)
    tree.write("proc/diskstats", f" 8 0 {name} 1 0 8 1 1 0 8 1 0 1 1\n".encode("latin-1"))
    assert len(DiskSource(tree.roots).read()) == 7


def test_no_disks_are_no_failure_but_nonsense_is_one(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.write("proc/diskstats", "")
    source = DiskSource(tree.roots)
    assert source.read() == []
    tree.write("proc/diskstats", "what is this\n")
    with pytest.raises(ValueError, match="disks"):
        source.read()
