# SPDX-License-Identifier: Apache-2.0
"""CPUs: exact numbers of recorded hosts, quotas and cpusets, CPUs that come and go, times that go back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel.instrumentations.host.counting import TICKS, Counted, Forward
from grademl_otel.instrumentations.host.cpu import REFRESH, CpuSource, _Logical, _Table
from grademl_otel.instrumentations.host.frequency import FrequencySource, spread
from grademl_otel.sampling.source import Reading, Series

from ..support.hosttrees import HostTree, columns, told, unpack


def _stat(
    cpus: dict[int, tuple[int, ...]], tail: str = "ctxt 1\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n"
) -> str:
    rows = [*cpus.values()]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    lines = ["cpu  " + " ".join(map(str, totals))]
    lines += [f"cpu{cpu} " + " ".join(map(str, row)) for cpu, row in cpus.items()]
    return "\n".join(lines) + "\nintr 5 0 1 2\n" + tail


def _host(tmp_path: Path, cpus: dict[int, tuple[int, ...]]) -> HostTree:
    tree = HostTree(tmp_path)
    tree.write("proc/stat", _stat(cpus))
    return tree


def _busy(user: int, idle: int = 0) -> tuple[int, ...]:
    return (user, 0, 0, idle, 0, 0, 0, 0, 0, 0)


def test_modes_of_128_cpus(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    source = CpuSource(tree.roots)
    first = told(source.read())
    # Nothing was counted yet; amounts are what they are.
    assert {key: value for key, value in first.items() if value} == {
        "system.cpu.logical.count": 128,
        "grademl.host.cpu.capacity": 128,
        "grademl.host.run_queue": 3,
        "grademl.host.blocked": 1,
        "grademl.host.load_average.1m": 12.5,
    }
    assert sum(key.startswith("grademl.host.cpu.logical.busy") for key in first) == 128

    #  user nice system idle iowait irq softirq steal: each by itself, of CPU 5
    before = next(line for line in tree.read("proc/stat").splitlines() if line.startswith("cpu5 "))
    words = [int(word) for word in before.split()[1:]]
    after = [word + grown for word, grown in zip(words, (1, 2, 4, 8, 16, 32, 64, 128, 0, 0), strict=True)]
    totals = tree.read("proc/stat").splitlines()[0].split()[1:]
    grown_totals = [int(a) + b - c for a, b, c in zip(totals, after, words, strict=True)]
    tree.replace("proc/stat", before, "cpu5 " + " ".join(map(str, after)))
    tree.replace(
        "proc/stat", "cpu  " + " ".join(totals) + "\n", "cpu  " + " ".join(map(str, grown_totals)) + "\n"
    )
    tree.replace("proc/stat", "ctxt 5000000", "ctxt 5000123")
    tree.replace("proc/stat", "processes 70000", "processes 70007")
    second = told(source.read())
    modes = {key: value for key, value in second.items() if key.startswith("system.cpu.time")}
    assert modes == {
        "system.cpu.time{cpu.mode=user}": 1 / TICKS,
        "system.cpu.time{cpu.mode=nice}": 2 / TICKS,
        "system.cpu.time{cpu.mode=system}": 4 / TICKS,
        "system.cpu.time{cpu.mode=idle}": 8 / TICKS,
        "system.cpu.time{cpu.mode=iowait}": 16 / TICKS,
        "system.cpu.time{cpu.mode=interrupt}": 96 / TICKS,
        "system.cpu.time{cpu.mode=steal}": 128 / TICKS,
    }
    busy = 1 + 2 + 4 + 32 + 64 + 128
    assert second["grademl.host.cpu.busy"] == busy / TICKS
    assert second["grademl.host.cpu.logical.busy{cpu.logical_number=5}"] == busy / TICKS
    assert second["grademl.host.cpu.logical.busy{cpu.logical_number=6}"] == 0
    assert second["grademl.host.cpu.busiest"] == busy / (busy + 8 + 16)
    assert second["grademl.host.context_switches"] == 123
    assert second["system.process.created"] == 7


@pytest.mark.parametrize(
    ("shape", "capacity", "cpus", "quota"),
    [
        ("bare_metal", 128, 128, None),
        ("container_v2", 4, 32, 4),
        ("docker_v1", 2.5, 16, 2.5),
        ("kubernetes", 6, 16, 6),
        ("old_kernel", 4, 4, None),
        ("arm64_slurm", 32, 32, None),
        ("virtual_machine", 2, 2, None),
    ],
)
def test_what_a_job_may_use(
    tmp_path: Path, shape: str, capacity: float, cpus: int, quota: float | None
) -> None:
    readings = CpuSource(unpack(shape, tmp_path).roots).read()
    values = told(readings)
    assert values["grademl.host.cpu.capacity"] == capacity
    assert values.get("grademl.host.cgroup.cpu.quota") == quota
    assert sum(key.startswith("grademl.host.cpu.logical.busy") for key in values) == cpus
    assert [series.capacity for series, _ in readings if series.metric.column == "cpu.busy"] == [capacity]
    assert ("cpu.throttled", "cpu") in columns(readings) or quota is None


def test_a_quota_counts_the_time_of_its_group(tmp_path: Path) -> None:
    tree = unpack("container_v2", tmp_path)
    source = CpuSource(tree.roots)
    source.read()
    # The host's other 28 CPUs are none of the container's business.
    tree.replace("proc/stat", "cpu0 1000", "cpu0 900000")
    tree.write(
        "sys/fs/cgroup/cpu.stat",
        "usage_usec 9500000\nuser_usec 1\nnr_periods 130\nnr_throttled 25\nthrottled_usec 4750000\n",
    )
    readings = source.read()
    values = told(readings)
    assert values["grademl.host.cpu.busy"] == 2.5
    assert values["grademl.host.cgroup.cpu.time"] == 2.5
    assert values["grademl.host.cgroup.cpu.periods"] == 30
    assert values["grademl.host.cgroup.cpu.throttled_periods"] == 5
    assert columns(readings) == {("cpu.busy", "cpu"): 2.5, ("cpu.throttled", "cpu"): 1.25}


def test_a_quota_of_version_1_in_nanoseconds(tmp_path: Path) -> None:
    tree = unpack("docker_v1", tmp_path)
    source = CpuSource(tree.roots)
    source.read()
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "124500000000\n")
    tree.write(
        "sys/fs/cgroup/cpu,cpuacct/cpu.stat", "nr_periods 510\nnr_throttled 41\nthrottled_time 9250000000\n"
    )
    values = told(source.read())
    assert values["grademl.host.cpu.busy"] == 1.5
    assert values["grademl.host.cgroup.cpu.throttled"] == 0.25
    assert values["grademl.host.cgroup.cpu.throttled_periods"] == 1


def test_a_quota_of_the_level_that_binds(tmp_path: Path) -> None:
    tree = unpack("kubernetes", tmp_path)
    above = "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice"
    pod = f"{above}/kubepods-burstable-pod0d5c8a1e_1b7e_4c2f_9f3a_6a2f4e1f9b11.slice"
    source = CpuSource(tree.roots)
    source.read()
    usage = tree.read(f"{pod}/cpu.stat")
    tree.write(f"{pod}/cpu.stat", usage.replace("usage_usec 300000000", "usage_usec 303000000"))
    assert told(source.read())["grademl.host.cpu.busy"] == 0  # the container's own
    # The pod shrinks below the container: from the next look on, what counts is the pod's time.
    tree.write(f"{pod}/cpu.max", "200000 100000\n")
    for _ in range(REFRESH):
        values = told(source.read())
    assert values["grademl.host.cpu.capacity"] == 2
    assert values["grademl.host.cpu.busy"] == 0  # what the pod used before is not of this time
    tree.write(f"{pod}/cpu.stat", usage.replace("usage_usec 300000000", "usage_usec 304000000"))
    assert told(source.read())["grademl.host.cpu.busy"] == 1


def test_without_its_time_a_quota_is_told_but_not_the_capacity_of_what_is_busy(tmp_path: Path) -> None:
    tree = unpack("docker_v1", tmp_path)
    tree.remove("sys/fs/cgroup/cpu,cpuacct/cpuacct.usage")
    source = CpuSource(tree.roots)
    source.read()
    readings = source.read()
    assert told(readings)["grademl.host.cpu.capacity"] == 2.5
    assert [series.capacity for series, _ in readings if series.metric.column == "cpu.busy"] == [16]


@pytest.mark.parametrize("damaged", ["sys/fs/cgroup/cpu.stat", "proc/stat"])
def test_what_cannot_be_read_once_is_counted_once_and_later(tmp_path: Path, damaged: str) -> None:
    tree = unpack("container_v2", tmp_path)
    source = CpuSource(tree.roots)
    source.read()
    whole = tree.read(damaged)
    tree.replace("proc/stat", "cpu0 1000", "cpu0 900000")
    tree.replace("sys/fs/cgroup/cpu.stat", "usage_usec 7000000", "usage_usec 8000000")
    tree.write(damaged, "ctxt 5\n" if damaged == "proc/stat" else "usage")
    source.read()
    tree.write(damaged, whole)
    tree.write("sys/fs/cgroup/cpu.stat", "usage_usec 9500000\n")
    readings = source.read()
    assert columns(readings)["cpu.busy", "cpu"] == 2.5
    assert [series.capacity for series, _ in readings if series.metric.column == "cpu.busy"] == [4]


def test_cpus_come_and_go(tmp_path: Path) -> None:
    tree = _host(tmp_path, {0: _busy(100), 1: _busy(200), 2: _busy(300)})
    source = CpuSource(tree.roots)
    source.read()
    tree.write("proc/stat", _stat({0: _busy(101), 2: _busy(302)}))
    values = told(source.read())
    assert values["system.cpu.logical.count"] == 2
    assert values["grademl.host.cpu.busy"] == 3 / TICKS
    assert "grademl.host.cpu.logical.busy{cpu.logical_number=1}" not in values
    tree.write("proc/stat", _stat({0: _busy(101), 1: _busy(204), 2: _busy(302), 7: _busy(5)}))
    values = told(source.read())
    assert values["system.cpu.logical.count"] == 4
    assert values["grademl.host.cpu.logical.busy{cpu.logical_number=1}"] == 4 / TICKS
    assert values["grademl.host.cpu.logical.busy{cpu.logical_number=7}"] == 0
    assert values["grademl.host.cpu.busy"] == 7 / TICKS
    assert values["grademl.host.cpu.capacity"] == 4


def test_the_first_cpu_may_be_off(tmp_path: Path) -> None:
    tree = _host(tmp_path, {3: _busy(1), 4: _busy(2)})
    assert told(CpuSource(tree.roots).read())["system.cpu.logical.count"] == 2


def test_a_cpuset_of_other_numbers_is_not_believed(tmp_path: Path) -> None:
    # LXCFS numbers the CPUs of a container from 0 on; its cpuset has the host's numbers.
    tree = _host(tmp_path, {0: _busy(1), 1: _busy(2)})
    tree.write("proc/self/status", "Cpus_allowed_list:\t64-65\n")
    assert told(CpuSource(tree.roots).read())["grademl.host.cpu.capacity"] == 2


def test_times_that_go_backwards_add_nothing(tmp_path: Path) -> None:
    tree = _host(tmp_path, {0: (1000, 0, 0, 5000, 300, 0, 0, 0)})
    source = CpuSource(tree.roots)
    source.read()
    told_iowait = []
    for iowait, user in ((250, 990), (300, 1000), (310, 1001)):
        tree.write("proc/stat", _stat({0: (user, 0, 0, 5000, iowait, 0, 0, 0)}))
        values = told(source.read())
        told_iowait.append(
            (values["system.cpu.time{cpu.mode=iowait}"], values["system.cpu.time{cpu.mode=user}"])
        )
    assert told_iowait == [(0, 0), (0, 0), (10 / TICKS, 1 / TICKS)]


def test_the_busiest_is_the_one_that_a_thread_has_for_itself(tmp_path: Path) -> None:
    tree = _host(tmp_path, {0: _busy(0, 0), 1: _busy(0, 0), 2: _busy(0, 0)})
    source = CpuSource(tree.roots)
    assert "grademl.host.cpu.busiest" not in told(source.read())
    tree.write("proc/stat", _stat({0: _busy(50, 50), 1: _busy(0, 100), 2: _busy(99, 1)}))
    assert told(source.read())["grademl.host.cpu.busiest"] == 0.99
    # Nothing at all since then: nobody was busy, and nobody was idle.
    assert "grademl.host.cpu.busiest" not in told(source.read())


def test_nobody_is_busier_than_all_the_time(tmp_path: Path) -> None:
    tree = _host(tmp_path, {0: _busy(0, 100), 1: _busy(0, 100)})
    source = CpuSource(tree.roots)
    source.read()
    tree.write("proc/stat", _stat({0: _busy(50, 90), 1: _busy(3, 102)}))  # idle went backwards
    assert told(source.read())["grademl.host.cpu.busiest"] == 0.6


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("cpu1 1 2 3", {0}),
        ("cpu1 a b c d e f g h i j", {0}),
        ("cpu1 1 2 3 4 5 6 7 8 9 10 11 12", {0}),
        ("cpux 1 2 3 4 5 6 7 8 9 10", {0}),
        ("cpu1 -1 2 3 4 5 6 7 8 9 10", {0}),
        ("cpu0 1 2 3 4 5 6 7 8 9 10", {0}),  # twice
        ("cpu1 1 2 3 cpu1 5 6 7 8 9 10", {0}),
        ("cpu1 " + "9" * 30 + " 2 3 4 5 6 7 8 9 10", {0}),
        ("cpu00 1 2 3 4 5 6 7 8 9 10", {0}),
        ("cpu1 1_0 2 3 4 5 6 7 8 9 10", {0}),
        ("cpu1 1 2 3 4 5 6 7 8 9 10", {0, 1}),
        ("", {0}),
        ("\xff\xfe \x00", {0}),
    ],
)
def test_lines_that_are_none(line: str, good: set[int]) -> None:
    text = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n" + line + "\nintr 1 2 3\nctxt 4\n"
    table = _Table(text.encode("latin-1"))
    assert set(table.names) == {b"cpu%d" % cpu for cpu in good}
    assert table.totals == [0, *range(1, 11)]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_table(data: bytes) -> None:
    for text in (
        data,
        b"cpu " + data,
        b"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 " + data + b"\ncpu1 1 1 1 1 1 1 1 1 1 1\n",
    ):
        table = _Table(text)
        assert len(table.names) == len(table.busy) == len(table.idle) == len(set(table.names))


_ROW = st.lists(st.integers(0, 10**9), min_size=10, max_size=10)


@settings(max_examples=50)
@given(st.dictionaries(st.integers(0, 300), _ROW, min_size=1, max_size=20))
def test_a_table_says_what_a_reader_of_lines_says(rows: dict[int, list[int]]) -> None:
    text = _stat({cpu: tuple(row) for cpu, row in rows.items()}).encode()
    table = _Table(text)
    names = [b"cpu%d" % cpu for cpu in rows]
    busy = [sum(row[each] for each in (0, 1, 2, 5, 6, 7)) for row in rows.values()]
    idle = [row[3] + row[4] for row in rows.values()]
    assert (table.names, table.busy, table.idle) == (names, busy, idle)
    assert table.totals[1:] == [sum(column) for column in zip(*rows.values(), strict=True)]
    # As a whole and line by line, and with names that are known: the same.
    slow = _Table(b"cpu  1 1 1 1 1 1 1 1 1 1\ncpuspoiled 1\n" + text.partition(b"\n")[2])
    fast = _Table(text, table.names)
    assert (slow.names, slow.busy, slow.idle) == (fast.names, fast.busy, fast.idle) == (names, busy, idle)


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 1000), min_size=1), min_size=1, max_size=8))
def test_many_cpus_are_counted_as_each_by_itself(history: list[dict[int, int]]) -> None:
    """CPUs come and go, their times go forward, back and begin anew."""
    logical, alone = _Logical(), {cpu: Forward() for cpu in range(6)}
    for times in history:
        before = {cpu: forward.total for cpu, forward in alone.items()}
        for cpu, busy in times.items():
            alone[cpu].add(busy)
        text = _stat({cpu: _busy(busy) for cpu, busy in times.items()})
        readings: list[Reading] = []
        grown = logical.read(_Table(text.encode(), logical.names), frozenset({0, 1, 2, 3}), readings)
        allowed = {0, 1, 2, 3} & times.keys() or times.keys()
        seen = {series.attributes["cpu.logical_number"]: value for series, value in readings}
        if times.keys() & {0, 1, 2, 3}:
            assert seen == {cpu: alone[cpu].total / TICKS for cpu in allowed}
            assert grown == sum(alone[cpu].total - before[cpu] for cpu in allowed)
        else:
            assert seen.keys() == allowed


@given(st.lists(st.integers(0, 10**6)))
def test_forward_never_falls_and_counts_what_grew(raws: list[int]) -> None:
    forward, totals = Forward(), []
    for raw in raws:
        totals.append(forward.add(raw))
    assert totals == sorted(totals)
    ascending = Forward()
    assert [ascending.add(raw) for raw in sorted(raws)] == [raw - min(raws) for raw in sorted(raws)]


def test_another_counter_goes_on_from_the_total() -> None:
    from grademl_otel.catalog.host import CREATED

    counted = Counted(Series(CREATED, {}, "cpu"))
    readings: list[Reading] = []
    for raw in (100, 107):
        counted.add(raw, readings)
    counted.elsewhere()
    for maybe in (5, 6, None, -1, 1 << 64):
        counted.add(maybe, readings)
    assert [value for _, value in readings] == [0, 7, 7, 8]


def test_frequencies_of_some_cpus(tmp_path: Path) -> None:
    tree = unpack("bare_metal", tmp_path)
    source = FrequencySource(tree.roots, list(range(0, 128, 8)))
    values = told(source.read())
    assert values == {
        f"system.cpu.frequency{{cpu.logical_number={cpu}}}": 1e9 * 2 + cpu * 1e6 for cpu in range(0, 128, 16)
    }
    tree.write("sys/devices/system/cpu/cpu16/cpufreq/scaling_cur_freq", "0\n")  # is off
    tree.write("sys/devices/system/cpu/cpu32/cpufreq/scaling_cur_freq", "<unknown>\n")
    tree.remove("sys/devices/system/cpu/cpu48/cpufreq/scaling_cur_freq")
    assert len(source.read()) == 5


@given(st.sets(st.integers(0, 500)), st.integers(1, 20))
def test_spread(cpus: set[int], most: int) -> None:
    chosen = spread(list(cpus), most)
    assert len(chosen) == min(most, len(cpus))
    assert set(chosen) <= cpus
    assert chosen == sorted(set(chosen))
