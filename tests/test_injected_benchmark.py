# SPDX-License-Identifier: Apache-2.0
"""What `python -m benchmarks --only injected` measures; how often it is right is no test's business."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bottlenecked import CPU, HOLDING, KINDS, LOCK, NETWORK, WAITING, read
from benchmarks.injected import NOTHING, Answer, answered, planned, rules_of, wanted
from benchmarks.throttled import ask_for
from benchmarks.ways import ROOT
from grademl_otel.analyzers.attribution.rules_file import parse_rules


def test_runs_are_told_apart_and_are_the_same_each_time(tmp_path: Path) -> None:
    for kind in KINDS:
        plans = [planned(kind, True, number) for number in range(25)]
        assert plans == [planned(kind, True, number) for number in range(25)]
        assert len({replace(plan, seed=0) for plan in plans}) == 25
        plans[0].write(tmp_path / "plan")
        assert read(tmp_path / "plan") == plans[0]
        assert len(parse_rules(rules_of(plans[0])).capacities) == (kind in ("disk", NETWORK))


def test_only_the_resource_of_the_phase_is_right() -> None:
    plan = planned(CPU, True, 0)
    right = Answer(plan, plan.phase, CPU, 1.0, wanted(plan), 1.0)
    assert right.is_right
    assert not replace(right, phase="other").is_right
    assert not replace(right, resource="disk").is_right
    free = replace(plan, limited=False)
    assert not replace(right, plan=free).is_right
    assert replace(right, plan=free, phase="", resource=NOTHING).is_right


def test_a_proxy_lets_so_much_through() -> None:
    rate = 4e6
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.throttled", f"{rate}"],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as proxy:  # fmt: skip
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        with socket.create_connection(("127.0.0.1", int(proxy.stdout.readline()))) as connection:
            began = time.perf_counter()
            ask_for(connection, 4_000_000)
            took = time.perf_counter() - began
        proxy.stdin.close()
    assert took > 0.8  # what is in buffers, and made up for, is less than that


@pytest.mark.skipif(sys.platform != "linux", reason="hosts of other systems are not sampled")
def test_who_waits_for_a_lock_is_named_with_who_holds_it(tmp_path: Path) -> None:
    plan = replace(planned(LOCK, True, 0), seconds=1.5, threads=3)
    answer = answered(plan, tmp_path / "run")
    assert wanted(plan) == (WAITING, f"**/{HOLDING}*")
    assert answer.of_wanted > 0.9
