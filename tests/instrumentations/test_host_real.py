# SPDX-License-Identifier: Apache-2.0
"""The host that the tests run on: what is read agrees with what the system tells otherwise."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from grademl_otel.instrumentations.host import cgroups, providers
from grademl_otel.instrumentations.host.cpu import CpuSource
from grademl_otel.instrumentations.host.memory import MemorySource
from grademl_otel.sampling.roots import Roots

from ..support.hosttrees import told

_MOUNTS = Path("/proc/self/mountinfo")

pytestmark = [
    pytest.mark.skipif(not _MOUNTS.exists(), reason="no Linux here"),
    pytest.mark.skipif(
        _MOUNTS.exists() and "lxcfs" in _MOUNTS.read_text(errors="replace"),
        reason="LXCFS tells other numbers in /proc than system calls do",
    ),
]


def test_every_source_says_something() -> None:
    (provider,) = providers(Roots())
    sources = provider.sources()
    assert {"cpu", "memory"} <= {source.name for source in sources}
    for source in sources:
        readings = source.read()
        told(readings)
        assert all(value >= 0 for _, value in readings)


def test_cpus_that_this_process_may_run_on() -> None:
    allowed = cgroups.cpuset(Roots())
    assert allowed is not None
    assert os.sched_getaffinity(0) <= allowed
    values = told(CpuSource(Roots()).read())
    assert 0 < values["grademl.host.cpu.capacity"] <= len(allowed)
    assert values["system.cpu.logical.count"] == os.sysconf("SC_NPROCESSORS_ONLN")


def test_time_that_this_process_burns_is_counted() -> None:
    source = CpuSource(Roots())
    before = told(source.read())
    began = time.process_time()
    while time.process_time() - began < 0.5:
        sum(range(100_000))  # to ask for the time alone would be the kernel's
    after = told(source.read())
    user = "system.cpu.time{cpu.mode=user}"
    nice = "system.cpu.time{cpu.mode=nice}"
    # The kernel counts by samples, or exactly; half is less than it can be wrong by.
    assert after[user] + after[nice] - before[user] - before[nice] > 0.2
    assert after["grademl.host.cpu.busy"] - before["grademl.host.cpu.busy"] > 0.2
    assert 0 < after["grademl.host.cpu.busiest"] <= 1
    assert after["grademl.host.run_queue"] >= 1  # this one


def test_memory_of_this_host() -> None:
    values = told(MemorySource(Roots()).read())
    assert values["system.memory.limit"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    states = [value for key, value in values.items() if key.startswith("system.memory.usage")]
    assert sum(states) == values["system.memory.limit"]
    assert 0 < values["grademl.host.memory.used"] < values["system.memory.limit"]
