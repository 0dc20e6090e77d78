# SPDX-License-Identifier: Apache-2.0
"""Which control groups a process is in: versions, mounts, namespaces, nesting."""

from __future__ import annotations

from pathlib import Path

import pytest

from grademl_otel.instrumentations.host import cgroups, files

from ..support.hosttrees import HostTree, unpack

POD = "kubepods-burstable-pod0d5c8a1e_1b7e_4c2f_9f3a_6a2f4e1f9b11.slice"
CONTAINER = "cri-containerd-" + "a7b3" * 16 + ".scope"
SLURM = ["system.slice", "slurmstepd.scope", "job_42", "step_0", "user", "task_0"]


def _nested(*names: str) -> tuple[str, ...]:
    return tuple("/".join(names[:end]) for end in range(len(names), 0, -1))


@pytest.mark.parametrize(
    ("shape", "controller", "version", "base", "levels"),
    [
        ("bare_metal", "cpu", 2, "", _nested("user.slice", "user-1000.slice", "session-4.scope")),
        ("container_v2", "memory", 2, "", (".",)),
        ("container_v2", "pressure", 2, "", (".",)),
        ("docker_v1", "cpu", 1, "/cpu", (".",)),
        ("docker_v1", "memory", 1, "/memory", (".",)),
        ("docker_v1", "blkio", 1, "/blkio", (".",)),
        ("kubernetes", "cpu", 2, "", _nested("kubepods.slice", "kubepods-burstable.slice", POD, CONTAINER)),
        ("old_kernel", "cpuset", 1, "/cpuset", _nested("system.slice", "slurmd.service")),
        ("old_kernel", "cpuacct", 1, "/cpuacct", _nested("system.slice", "slurmd.service")),
        ("arm64_slurm", "cpu", 2, "", _nested(*SLURM)),
        ("virtual_machine", "memory", 1, "/memory", _nested("jobs", "1")),
    ],
)
def test_groups(
    tmp_path: Path, shape: str, controller: str, version: int, base: str, levels: tuple[str, ...]
) -> None:
    tree = unpack(shape, tmp_path)
    assert cgroups.find(tree.roots, controller) == cgroups.Group(
        version, f"{tree.roots.sys}/fs/cgroup{base}", levels
    )


@pytest.mark.parametrize(
    ("shape", "controller"),
    [
        ("virtual_machine", "cpu"),  # the root of its hierarchy, which limits nothing
        ("virtual_machine", "pressure"),
        ("docker_v1", "pressure"),  # version 2 is told of, and not mounted
        ("old_kernel", "pressure"),
    ],
)
def test_no_groups(tmp_path: Path, shape: str, controller: str) -> None:
    assert cgroups.find(unpack(shape, tmp_path).roots, controller) is None


@pytest.mark.parametrize(
    ("shape", "cpus"),
    [
        ("bare_metal", range(128)),
        ("container_v2", range(32)),
        ("docker_v1", range(16)),
        ("kubernetes", range(8, 24)),
        ("old_kernel", range(4)),
        ("arm64_slurm", range(32)),  # of the step: the task's group has no cpuset of its own
        ("virtual_machine", range(2)),
    ],
)
def test_cpusets(tmp_path: Path, shape: str, cpus: range) -> None:
    assert cgroups.cpuset(unpack(shape, tmp_path).roots) == frozenset(cpus)


def test_the_cpuset_of_a_process_without_groups(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    assert cgroups.cpuset(tree.roots) is None
    tree.write("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t2,4-5\n")
    assert cgroups.cpuset(tree.roots) == frozenset({2, 4, 5})
    tree.write("proc/self/status", "Cpus_allowed_list:\tall\n")
    assert cgroups.cpuset(tree.roots) is None


def _unified(tmp_path: Path, cgroup: str, mount_root: str) -> HostTree:
    tree = HostTree(tmp_path)
    tree.write("proc/self/cgroup", cgroup)
    tree.write("proc/self/mountinfo", f"30 25 0:26 {mount_root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    return tree


def test_a_part_of_the_hierarchy_is_mounted(tmp_path: Path) -> None:
    tree = _unified(tmp_path, "0::/pod 1/box/child\n", r"/pod\0401/box")
    tree.write("sys/fs/cgroup/cgroup.events", "populated 1\n")
    tree.write("sys/fs/cgroup/child/cgroup.events", "populated 1\n")
    found = cgroups.find(tree.roots, "cpu")
    assert found
    assert found.levels == ("child", ".")


@pytest.mark.parametrize("path", ["/../../other", "/not/there", "/a/../b"])
def test_a_path_of_another_namespace_falls_back_on_what_is_mounted(tmp_path: Path, path: str) -> None:
    tree = _unified(tmp_path, f"0::{path}\n", "/")
    tree.write("sys/fs/cgroup/cgroup.events", "populated 1\n")
    found = cgroups.find(tree.roots, "cpu")
    assert found
    assert found.levels == (".",)


def test_the_path_of_a_sibling_is_not_below_the_mount(tmp_path: Path) -> None:
    tree = _unified(tmp_path, "0::/pods/1\n", "/pod")
    tree.write("sys/fs/cgroup/s/1/cgroup.events", "populated 1\n")
    assert cgroups.find(tree.roots, "cpu") is None


def test_the_mount_of_another_place_does_not_count(tmp_path: Path) -> None:
    """A container with a control-group file system of its own, and the host's below /host."""
    tree = HostTree(tmp_path)
    tree.write("proc/self/cgroup", "0::/box\n")
    tree.write(
        "proc/self/mountinfo",
        "30 25 0:26 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        f"31 25 0:26 / {tmp_path}/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    )
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpu\n")
    tree.write("sys/fs/cgroup/box/cgroup.events", "populated 1\n")
    found = cgroups.find(tree.roots, "cpu")
    assert found
    assert found.levels == ("box",)


def test_the_mount_on_top_counts(tmp_path: Path) -> None:
    tree = _unified(tmp_path, "0::/a/b\n", "/")
    mounts = tree.read("proc/self/mountinfo")
    tree.write("proc/self/mountinfo", mounts + mounts.replace(" / /sys", " /a /sys"))
    tree.write("sys/fs/cgroup/cgroup.events", "populated 1\n")
    tree.write("sys/fs/cgroup/b/cgroup.events", "populated 1\n")
    found = cgroups.find(tree.roots, "cpu")
    assert found
    assert found.levels == ("b", ".")


def test_a_group_whose_name_is_no_utf8(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.write("proc/self/cgroup", b"0::/\xff\xfe\n")
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpu\n")
    folder = bytes(tmp_path) + b"/sys/fs/cgroup/\xff\xfe"
    Path(folder.decode("utf-8", "surrogateescape")).mkdir()
    found = cgroups.find(tree.roots, "cpu")
    assert found
    Path(f"{found.folder(found.levels[0])}/cpu.max").write_text("150000 100000\n")
    assert cgroups.quota(found).cpus == 1.5


@pytest.mark.parametrize(
    ("limits", "cpus", "level"),
    [
        (("max 100000", "max 100000"), None, "a/b"),
        (("max 100000", "200000 100000"), 2, "a"),
        (("200000 100000", "200000 100000"), 2, "a/b"),
        (("300000 100000", "200000 100000"), 2, "a"),
        (("50000 100000", "200000 100000"), 0.5, "a/b"),
        (("1000 1000000", "max"), 0.001, "a/b"),
        (("", "200000 100000"), 2, "a"),
        (("0 100000", "200000 0"), None, "a/b"),
        (("-1 100000", "x y"), None, "a/b"),
        (("200000", "200000 100000 7"), None, "a/b"),
    ],
)
def test_the_smallest_quota(tmp_path: Path, limits: tuple[str, str], cpus: float | None, level: str) -> None:
    for folder, limit in zip(("a/b", "a"), limits, strict=True):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "cpu.max").write_text(limit + "\n")
    group = cgroups.Group(2, str(tmp_path), ("a/b", "a"))
    assert cgroups.quota(group) == cgroups.CpuQuota(level, cpus)


@pytest.mark.parametrize(
    ("limits", "limit", "level"),
    [
        (("max", "max"), None, "a/b"),
        (("max", "500"), 500, "a"),
        (("400", "500"), 400, "a/b"),
        (("500", "500"), 500, "a/b"),
        (("9223372036854771712", "500"), 500, "a"),
        (("", "-5"), None, "a/b"),
        (("0", "500"), 0, "a/b"),
    ],
)
def test_the_smallest_memory_limit(
    tmp_path: Path, limits: tuple[str, str], limit: int | None, level: str
) -> None:
    for folder, each in zip(("a/b", "a"), limits, strict=True):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(each + "\n")
    group = cgroups.Group(2, str(tmp_path), ("a/b", "a"))
    assert cgroups.memory_limit(group) == cgroups.MemoryLimit(level, limit)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (b"0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
        (b"5", {5}),
        (b"", None),
        (b"3-1", None),
        (b"1-", None),
        (b"-1", None),
        (b"1,,2", None),
        (b"0-99999999", None),
        (b"a-b", None),
    ],
)
def test_lists_of_numbers(text: bytes, numbers: set[int] | None) -> None:
    assert files.numbers_of_list(text) == numbers
