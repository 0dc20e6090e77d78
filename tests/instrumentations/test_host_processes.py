# SPDX-License-Identifier: Apache-2.0
"""Process trees: exact sums, deaths, orphans, pids that are used again; and the real /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.instrumentations.host.counting import TICKS
from grademl_otel.instrumentations.host.processes import MOST_PROCESSES, ProcessTree, _Process, _Tally
from grademl_otel.sampling.roots import Roots
from grademl_otel.sampling.source import SourceGone

from ..support.hosttrees import HostTree, columns, told

PAGE = os.sysconf("SC_PAGE_SIZE")
TREE_CPU = "grademl.process.tree.cpu.time{process.pid=10}"


@dataclass
class Proc:
    """A process as the kernel tells of it."""

    pid: int
    parent: int = 1
    user: int = 0
    system: int = 0
    reaped: int = 0
    threads: int = 1
    started: int = 500
    pages: int = 100
    name: str = "python3"
    io: dict[str, int] = field(default_factory=dict)

    def write(self, tree: HostTree) -> None:
        # pid (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime ...
        tree.write(
            f"proc/{self.pid}/stat",
            f"{self.pid} ({self.name}) S {self.parent} 1 1 0 -1 4194304 {self.user * 3} 9 {self.system} 8 "
            f"{self.user} {self.system} {self.reaped} 0 20 0 {self.threads} 0 {self.started} 3133440 "
            f"{self.pages} 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
        )
        if self.io:
            tree.write(f"proc/{self.pid}/io", "".join(f"{key}: {value}\n" for key, value in self.io.items()))


class Host:
    """Processes that come and go, in a tree of files."""

    def __init__(self, root: Path, children_files: bool = True) -> None:
        self.tree = HostTree(root)
        self.processes: dict[int, Proc] = {}
        self.children_files = children_files

    def add(self, process: Proc) -> Proc:
        self.processes[process.pid] = process
        self.write()
        return process

    def end(self, pid: int, waited_for: bool = True) -> None:
        ended = self.processes.pop(pid)
        parent = self.processes.get(ended.parent)
        if waited_for and parent:
            parent.reaped += ended.user + ended.system + ended.reaped
        for process in self.processes.values():
            if process.parent == pid:
                process.parent = 1
        for path in self.tree.files():
            if path.startswith(f"proc/{pid}/"):
                self.tree.remove(path)
        self.write()

    def write(self) -> None:
        for process in self.processes.values():
            process.write(self.tree)
            children = [str(each.pid) for each in self.processes.values() if each.parent == process.pid]
            if self.children_files:
                self.tree.write(f"proc/{process.pid}/task/{process.pid}/children", " ".join(children) + " ")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_process_and_its_workers(host: Host) -> None:
    io = {"rchar": 1000, "wchar": 100, "syscr": 1, "syscw": 1, "read_bytes": 4096, "write_bytes": 0}
    root = host.add(Proc(10, user=100, system=50, threads=20, pages=5000, io=dict(io)))
    worker = host.add(Proc(11, parent=10, user=7, threads=2, pages=300, name="a) b (c", io=dict(io)))
    host.add(Proc(12, parent=1))  # nobody's
    host.tree.write("proc/10/schedstat", "5000000000 1000000000 77\n")
    tree = ProcessTree(10, host.tree.roots)
    first = told(tree.read())
    assert {key: value for key, value in first.items() if value} == {
        "process.memory.usage{process.pid=10}": 5000 * PAGE,
        "process.thread.count{process.pid=10}": 20,
        "grademl.process.tree.count{process.pid=10}": 2,
        "grademl.process.tree.thread.count{process.pid=10}": 22,
        "grademl.process.tree.memory{process.pid=10}": 5300 * PAGE,
    }
    root.user, root.system, worker.user = 130, 60, 107
    worker.io.update(rchar=3000, write_bytes=8192)
    host.tree.write("proc/10/schedstat", "5000000000 1250000000 78\n")
    host.write()
    for _ in range(5):
        readings = tree.read()
    values = told(readings)
    assert values["process.cpu.time{cpu.mode=user,process.pid=10}"] == 30 / TICKS
    assert values["process.cpu.time{cpu.mode=system,process.pid=10}"] == 10 / TICKS
    assert values["process.paging.faults{process.pid=10,system.paging.fault.type=minor}"] == 90
    assert values["process.paging.faults{process.pid=10,system.paging.fault.type=major}"] == 10
    assert values["grademl.process.main_thread.delay{process.pid=10}"] == 0.25
    assert values["grademl.process.tree.io{disk.io.direction=read,process.pid=10}"] == 2000
    assert values["grademl.process.tree.io{disk.io.direction=write,process.pid=10}"] == 0
    assert values["grademl.process.tree.disk.io{disk.io.direction=write,process.pid=10}"] == 8192
    assert columns(readings) == {("process.cpu", "10"): 140 / TICKS, ("process.memory", "10"): 5000 * PAGE}


def test_attributes_and_device_of_whoever_asks(host: Host) -> None:
    host.add(Proc(10))
    tree = ProcessTree(10, host.tree.roots, {"grademl.rank": 3}, "rank 3")
    assert {series.device for series, _ in tree.read()} == {"rank 3"}
    assert all(series.attributes["grademl.rank"] == 3 for series, _ in tree.read())


def test_what_a_dead_worker_used_stays_and_counts_once(host: Host) -> None:
    host.add(Proc(10, user=100))
    worker = host.add(Proc(11, parent=10, user=40))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    worker.user = 50
    host.write()
    assert told(tree.read())[TREE_CPU] == 10 / TICKS
    worker.user = 57  # after it was last seen
    host.end(11)
    assert told(tree.read())[TREE_CPU] == 17 / TICKS
    assert told(tree.read())[TREE_CPU] == 17 / TICKS


def test_a_worker_that_nobody_waited_for(host: Host) -> None:
    root = host.add(Proc(10, user=100))
    host.add(Proc(11, parent=10, user=40))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.end(11, waited_for=False)
    assert told(tree.read())[TREE_CPU] == 0
    for _ in range(2):
        root.user += 5
        host.write()
        values = told(tree.read())
    assert values[TREE_CPU] == 10 / TICKS


def test_a_short_life_between_two_readings(host: Host) -> None:
    host.add(Proc(10))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.add(Proc(11, parent=10, user=33))
    host.end(11)
    assert told(tree.read())[TREE_CPU] == 33 / TICKS


def test_a_worker_that_is_met_later_was_started_later(host: Host) -> None:
    host.add(Proc(10))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.add(Proc(11, parent=10, user=8))
    assert told(tree.read())[TREE_CPU] == 8 / TICKS


def test_the_parent_was_read_before_it_waited(host: Host) -> None:
    """Its line is from before the wait, its child is gone already: counted at the next reading, and once."""
    root = host.add(Proc(10))
    host.add(Proc(11, parent=10, user=40))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.end(11, waited_for=False)
    assert told(tree.read())[TREE_CPU] == 0
    root.reaped = 45
    host.write()
    assert told(tree.read())[TREE_CPU] == 5 / TICKS


def test_orphans_are_still_of_the_tree(host: Host) -> None:
    host.add(Proc(10))
    host.add(Proc(11, parent=10, user=1))
    grandchild = host.add(Proc(12, parent=11, user=2))
    tree = ProcessTree(10, host.tree.roots)
    assert told(tree.read())["grademl.process.tree.count{process.pid=10}"] == 3
    host.end(11)
    grandchild.user = 9
    host.write()
    values = told(tree.read())
    assert values["grademl.process.tree.count{process.pid=10}"] == 2
    assert values[TREE_CPU] == 7 / TICKS
    host.end(12)  # waited for by init: what it used stays
    assert told(tree.read())[TREE_CPU] == 7 / TICKS


def test_two_generations_end_at_once(host: Host) -> None:
    """What a grandchild used comes back through its parent, which is gone, too."""
    host.add(Proc(10))
    host.add(Proc(11, parent=10, user=1))
    grandchild = host.add(Proc(12, parent=11))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    grandchild.user = 50
    host.write()
    assert told(tree.read())[TREE_CPU] == 50 / TICKS
    host.end(12)
    host.end(11)
    assert told(tree.read())[TREE_CPU] == 50 / TICKS
    assert told(tree.read())[TREE_CPU] == 50 / TICKS


def test_a_pid_that_is_used_again(host: Host) -> None:
    host.add(Proc(10))
    host.add(Proc(11, parent=10, user=40, started=600))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.end(11)
    host.add(Proc(11, parent=1, user=9000, started=700))  # nobody's
    values = told(tree.read())
    assert values["grademl.process.tree.count{process.pid=10}"] == 1
    assert values[TREE_CPU] == 0
    host.end(11)
    host.add(Proc(11, parent=10, user=3, started=800))
    values = told(tree.read())
    assert values["grademl.process.tree.count{process.pid=10}"] == 2
    assert values[TREE_CPU] == 3 / TICKS


@pytest.mark.parametrize("again", [False, True])
def test_gone_with_its_process(host: Host, again: bool) -> None:
    host.add(Proc(10))
    host.add(Proc(11, parent=10))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.end(10)
    if again:
        host.add(Proc(10, started=900))
    with pytest.raises(SourceGone):
        tree.read()
    tree.close()


def test_a_line_that_is_cut_is_no_end(host: Host) -> None:
    process = host.add(Proc(10))
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.tree.write("proc/10/stat", "10 (python3) S 1")
    with pytest.raises(ValueError, match="cut"):
        tree.read()
    process.write(host.tree)
    tree.read()


def test_children_of_other_threads_are_found_in_time(host: Host) -> None:
    host.add(Proc(10))
    host.add(Proc(11, parent=10, user=1))
    host.tree.write("proc/10/task/10/children", "")
    tree = ProcessTree(10, host.tree.roots)
    tree.read()
    host.tree.write("proc/10/task/17/children", "11 ")
    counts = {told(tree.read())["grademl.process.tree.count{process.pid=10}"] for _ in range(30)}
    assert counts == {1, 2}


def test_kernels_that_list_no_children(tmp_path: Path) -> None:
    host = Host(tmp_path, children_files=False)
    host.add(Proc(10))
    host.add(Proc(12, parent=11))  # a grandchild with a higher and a lower neighbour
    host.add(Proc(11, parent=10))
    host.add(Proc(13, parent=1))
    host.tree.write("proc/14/stat", "nonsense")
    tree = ProcessTree(10, host.tree.roots)
    assert told(tree.read())["grademl.process.tree.count{process.pid=10}"] == 3
    host.add(Proc(15, parent=12, user=6))
    for _ in range(5):
        values = told(tree.read())
    assert values["grademl.process.tree.count{process.pid=10}"] == 4
    assert values[TREE_CPU] == 6 / TICKS


def test_thousands_of_children(host: Host) -> None:
    host.processes = {10: Proc(10), **{pid: Proc(pid, parent=10) for pid in range(20, 1020)}}
    host.write()
    tree = ProcessTree(10, host.tree.roots)
    assert told(tree.read())["grademl.process.tree.count{process.pid=10}"] == MOST_PROCESSES


def test_bytes_of_another_user_are_absent(host: Host) -> None:
    host.add(Proc(10))
    values = told(ProcessTree(10, host.tree.roots).read())
    assert not any(".io" in key for key in values)
    assert "grademl.process.main_thread.delay{process.pid=10}" not in values


def test_pids_of_another_namespace_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """/host/proc of a container: this process has another pid there."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "self").symlink_to("999999")
    tree = ProcessTree(os.getpid(), Roots(proc, tmp_path / "sys"))
    assert told(tree.read())[f"process.thread.count{{process.pid={os.getpid()}}}"] >= 1


# --- Random lives ------------------------------------------------------------------------------------------


class Life:
    """Processes that run, start others, and end; the truth is how many ticks were spent in all of them."""

    def __init__(self) -> None:
        self.root = _Process(1, None)
        self.alive = {self.root: [0, 0]}
        """Ticks of each: its own, and of children that it waited for."""
        self.parents: dict[_Process, _Process] = {}
        self.truth = 0

    def run(self, which: int, ticks: int) -> None:
        list(self.alive.values())[which % len(self.alive)][0] += ticks
        self.truth += ticks

    def start(self, which: int) -> None:
        parent = list(self.alive)[which % len(self.alive)]
        child = _Process(len(self.parents) + 2, parent)
        self.alive[child] = [0, 0]
        self.parents[child] = parent

    def end(self, which: int, waited_for: bool) -> None:
        process = list(self.alive)[which % len(self.alive)]
        if process is self.root:
            return
        ticks = sum(self.alive.pop(process))
        process.is_alive = False
        parent = self.parents[process]
        if waited_for and parent in self.alive:
            self.alive[parent][1] += ticks

    def told(self) -> dict[_Process, tuple[int, int]]:
        return {process: (own, reaped) for process, (own, reaped) in self.alive.items()}


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 9), st.integers(0, 100)),
        st.tuples(st.just("start"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("read")),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(_EVENTS)
def test_a_tally_never_falls_and_never_counts_twice(events: list[tuple[Any, ...]]) -> None:
    life, tally = Life(), _Tally()
    tally.update(life.told())
    totals = []
    for name, *arguments in [*events, ("read",)]:
        if name == "read":
            tally.update(life.told())
            totals.append(tally.total)
            assert tally.total <= life.truth
        else:
            getattr(life, name)(*arguments)
    assert totals == sorted(totals)


@settings(max_examples=300)
@given(_EVENTS)
def test_nothing_is_lost_where_all_are_waited_for_and_seen(events: list[tuple[Any, ...]]) -> None:
    """Parents outlive their children and wait for them: then the tally is the truth, to the tick."""
    life, tally = Life(), _Tally()
    tally.update(life.told())
    for name, *arguments in [*events, ("read",)]:
        if name == "end":
            leaf = list(life.alive)[arguments[0] % len(life.alive)]
            while children := [each for each in life.alive if life.parents.get(each) is leaf]:
                leaf = children[0]
            arguments = [list(life.alive).index(leaf), True]
        if name == "read":
            tally.update(life.told())
            assert tally.total == life.truth
        else:
            getattr(life, name)(*arguments)


# --- The real /proc ----------------------------------------------------------------------------------------

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")

CHECK = """
import os, resource, subprocess, sys
from grademl_otel.instrumentations.host.processes import ProcessTree
from grademl_otel.sampling.roots import Roots

def used():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)

def read():
    return {(series.metric.name, series.attributes.get("cpu.mode")): value for series, value in tree.read()}

BURN = '''
import sys, time
while time.process_time() < 0.3:
    pass
print("burnt", flush=True)
sys.stdin.read()
'''
cpu = "grademl.process.tree.cpu.time", None
tree = ProcessTree(os.getpid(), Roots())
before = used()
first = read()
assert first[cpu] == 0, first
child = subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert child.stdout.readline() == b"burnt\\n"
running = read()
assert running["grademl.process.tree.count", None] == 2, running
# 0.3 s and what Python took to start; what a line of /proc says is cut to whole ticks of 10 ms.
assert running[cpu] >= 0.25, running
own = running["process.cpu.time", "user"] + running["process.cpu.time", "system"]
assert own < running[cpu], running
child.communicate()
ended = read()
assert ended["grademl.process.tree.count", None] == 1, ended
assert running[cpu] <= ended[cpu] <= used() - before + 0.1, (running, ended, used())
assert ended["process.thread.count", None] == 1
rss = int(open("/proc/self/status").read().partition("VmRSS:")[2].split()[0]) * 1024
assert rss / 4 < ended["process.memory.usage", None] < rss * 4
print("agrees")
"""


@linux
def test_a_tree_agrees_with_what_the_kernel_tells_its_process() -> None:
    """In a process of its own: this one may have any children."""
    checked = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, timeout=120)
    assert (checked.stdout, checked.returncode) == ("agrees\n", 0), checked.stderr


@linux
def test_a_real_process_ends() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        tree = ProcessTree(process.pid, Roots())
        tree.read()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        tree.read()  # nobody has waited for it: it still has its number
    with pytest.raises(SourceGone):
        tree.read()


@linux
def test_readings_while_children_come_and_go() -> None:
    """Totals never fall, whatever moment a child ends in."""
    tree, totals = ProcessTree(os.getpid(), Roots()), []
    key = f"grademl.process.tree.cpu.time{{process.pid={os.getpid()}}}"
    for _ in range(100):
        child = subprocess.Popen(["true"])
        totals.append(told(tree.read())[key])
        child.wait()
        totals.append(told(tree.read())[key])
    assert totals == sorted(totals)
