# SPDX-License-Identifier: Apache-2.0
"""The control groups that a process is in: versions 1 and 2, both at once, nested, and inside containers.

A controller is in version 1 where ``/proc/self/cgroup`` names it, else in version 2. The path told there
begins at the root of the control-group namespace; what is mounted may begin elsewhere (a container of version
1 sees its own group as the whole mount). The mount table tells where. What lies above cannot be seen.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from grademl_otel.instrumentations.host import files
from grademl_otel.sampling.roots import Roots

_OF_ROOT: Final = ("release_agent", "cgroup.sane_behavior")
"""Files that of version 1 only the root of the hierarchy has, which limits nothing."""
_NOT_OF_ROOT: Final = "cgroup.events"
"""Of version 2 all others have this one."""
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
_UNLIMITED: Final = 1 << 60
"""Version 1 says so for no limit: the most pages there can be, in bytes."""


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of a process in one controller."""

    version: int
    base: str
    """The folder that is mounted."""
    levels: tuple[str, ...]
    """Paths below it, ``a/b``, ``a``, and at last ``.``; the innermost first. Never the hierarchy's root."""

    def folder(self, level: str) -> str:
        return self.base if level == "." else f"{self.base}/{level}"


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """The smallest quota, or none."""

    level: str
    """Whose it is; the innermost where there is none."""
    cpus: float | None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The smallest limit, or none."""

    level: str
    limit: int | None
    """In bytes."""


def find(roots: Roots, controller: str) -> Group | None:
    """Return this process's groups in a controller; None where it is in none that can be seen.

    ``controller`` is one of version 1: cpu, cpuacct, cpuset, memory, blkio. In version 2, whose folder is the
    same for all, which of its files are there is for the caller to see.
    """
    path, version = _path(files.maybe(roots.proc / "self" / "cgroup"), controller)
    base = _base(roots, controller, version)
    if base is None or path is None:
        return None
    below = _below_mount(path, _mount_root(roots, base, controller, version))
    levels = _levels(base, below)
    if not levels and below:
        levels = _levels(base, "")  # told by another namespace's names: what is mounted is all that there is
    levels = tuple(level for level in levels if level != "." or not _is_root(base, version))
    return Group(version, base, levels) if levels else None


def quota(group: Group) -> CpuQuota:
    """Return the smallest quota of all levels; of equal ones the innermost."""
    least, holder = None, group.levels[0]
    for level in group.levels:
        cpus = _quota(group.version, group.folder(level))
        if cpus is not None and (least is None or cpus < least):
            least, holder = cpus, level
    return CpuQuota(holder, least)


def memory_limit(group: Group) -> MemoryLimit:
    """Return the smallest limit of all levels; of equal ones the innermost."""
    least, holder = None, group.levels[0]
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    for level in group.levels:
        limit = files.first_number(f"{group.folder(level)}/{name}")
        if limit is not None and limit < _UNLIMITED and (least is None or limit < least):
            least, holder = limit, level
    if group.version == 1:
        # What is above the mount shows here, too.
        stat = files.keyed(files.maybe(f"{group.folder(holder)}/memory.stat"))
        limit = stat.get(b"hierarchical_memory_limit")
        if limit is not None and limit < _UNLIMITED and (least is None or limit < least):
            least = limit
    return MemoryLimit(holder, least)


def cpuset(roots: Roots) -> frozenset[int] | None:
    """Return the CPUs that the process may run on, by its group, else by its status; None if nobody tells."""
    group = find(roots, "cpuset")
    if group:
        name = "cpuset.cpus.effective" if group.version == 2 else "cpuset.effective_cpus"
        for each in (name, "cpuset.cpus"):
            for level in group.levels:
                told = files.maybe(f"{group.folder(level)}/{each}")
                cpus = files.numbers_of_list(told) if told.strip() else None
                if cpus:
                    return cpus
    for line in files.maybe(roots.proc / "self" / "status").splitlines():
        if line.startswith(b"Cpus_allowed_list:"):
            return files.numbers_of_list(line.partition(b":")[2]) or None
    return None


def _quota(version: int, folder: str) -> float | None:
    if version == 2:
        words = files.maybe(f"{folder}/cpu.max").split()
        of, period = (files.number(words[0]), files.number(words[1])) if len(words) == 2 else (None, None)
    else:
        of = files.first_number(f"{folder}/cpu.cfs_quota_us")  # -1: none
        period = files.first_number(f"{folder}/cpu.cfs_period_us")
    return of / period if of and period else None


def _path(cgroup: bytes, controller: str) -> tuple[str | None, int]:
    """Return the path in a controller as /proc/self/cgroup tells it, and the version of that."""
    unified, wanted = None, controller.encode()
    for line in cgroup.splitlines():
        parts = line.split(b":", 2)
        if len(parts) != 3:
            continue
        if wanted in parts[1].split(b","):
            return _text(parts[2]), 1
        if parts[0] == b"0" and not parts[1]:
            unified = _text(parts[2])
    return unified, 2


def _text(path: bytes) -> str:
    # Names need not be UTF-8; this is how Python opens them again.
    return path.decode("utf-8", "surrogateescape")


def _base(roots: Roots, controller: str, version: int) -> str | None:
    """Return the folder in which this controller is mounted."""
    parent = f"{roots.sys}/fs/cgroup"
    if version == 2:
        both = (parent, f"{parent}/unified")
        return next((at for at in both if os.path.exists(f"{at}/cgroup.controllers")), None)
    if os.path.isdir(f"{parent}/{controller}"):
        return f"{parent}/{controller}"
    try:
        names = os.listdir(parent)
    except OSError:
        return None
    together = [name for name in names if controller in name.split(",")]
    return f"{parent}/{min(together)}" if together else None


def _mount_root(roots: Roots, base: str, controller: str, version: int) -> str:
    """Return which folder of the hierarchy is mounted there, ``/`` for all of it."""
    best, found = -1, "/"
    for line in files.maybe(roots.proc / "self" / "mountinfo").splitlines():
        if b" - cgroup" not in line:
            continue
        left, _, right = line.partition(b" - ")
        mount, of = left.split(), right.split()
        if len(mount) < 5 or len(of) < 3 or of[0] != (b"cgroup2" if version == 2 else b"cgroup"):
            continue
        if version == 1 and controller.encode() not in of[2].split(b","):
            continue
        point = _text(_OCTAL.sub(lambda each: bytes([int(each[1], 8)]), mount[4]))
        # The end only: /sys may stand elsewhere. The longest end is the mount itself.
        fits = len(point) if base.endswith(point) else 0
        if fits and fits >= best:  # of the same place the later mount is on top
            best = fits
            found = _text(_OCTAL.sub(lambda each: bytes([int(each[1], 8)]), mount[3]))
    return found


def _below_mount(path: str, root: str) -> str:
    """Return what is left of a path below the folder that is mounted, without slashes at the ends."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path.strip("/")


def _levels(base: str, below: str) -> tuple[str, ...]:
    """Return all groups from the one below ``base`` up; none where that is not there."""
    parts = below.split("/") if below else []
    if ".." in parts or not os.path.isdir("/".join((base, *parts))):
        return ()
    return (*("/".join(parts[:end]) for end in range(len(parts), 0, -1)), ".")


def _is_root(base: str, version: int) -> bool:
    if version == 2:
        return not os.path.exists(f"{base}/{_NOT_OF_ROOT}")
    return any(os.path.exists(f"{base}/{name}") for name in _OF_ROOT)
