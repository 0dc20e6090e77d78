# SPDX-License-Identifier: Apache-2.0
"""Bins of a second and the tables made of them, against what is computed with fractions, and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grademl_otel import semconv
from grademl_otel.catalog.metric import COUNTER, GAUGE, Metric
from grademl_otel.convert.bounds import table_bytes_per_part
from grademl_otel.convert.spans import Attributes, Resource, Span
from grademl_otel.export import otlp
from grademl_otel.sampling.bins import LONGEST_KEPT, Bins, Row
from grademl_otel.sampling.resource_table import Table, encoded_size, fitting
from grademl_otel.sampling.source import Series

S = 1_000_000_000
BYTES = Metric("hw.network.io", "By", COUNTER, "", "", column="network.rx")
BUSY = Metric("system.cpu.time", "s", COUNTER, "", "", column="cpu.busy", scale=1000)
USE = Metric("hw.gpu.utilization", "1", GAUGE, "", "", column="gpu.utilization", scale=1000)


def one(bins: Bins, first: int, end: int) -> list[int]:
    rows = bins.rows(first, end)
    return rows[0].values if rows else [-1] * (end - first)


# --- Bins --------------------------------------------------------------------------------------------------

steps = st.lists(st.tuples(st.integers(1, 3 * S), st.integers(0, 1 << 44)), min_size=1, max_size=30)


@given(st.integers(0, 5 * S), steps)
def test_bins_of_a_counter_add_up_to_what_was_added(begin: int, added: list[tuple[int, int]]) -> None:
    bins, series = Bins(), Series(BYTES, {}, "eth0")
    time, total = begin, 0
    points = [(time, total)]
    bins.add(S, time, [(series, total)])
    for pause, more in added:
        time, total = time + pause, total + more
        points.append((time, total))
        bins.add(S, time, [(series, total)])

    first, end = -(-begin // S), time // S
    values = one(bins, begin // S, end + 3)
    edges = [interpolated(points, edge * S) for edge in range(first, end + 1)]
    whole = [after - before for before, after in pairwise(edges)]
    known = [value for value in values if value != -1]
    # Each bin is what lies between its edges, to less than one; their sum is exact.
    assert known == whole
    assert values[first - begin // S :][: len(whole)] == whole
    if end > first:
        assert sum(known) == edges[-1] - edges[0]


def interpolated(points: Sequence[tuple[int, int]], at: int) -> int:
    """The total at a time between two readings, rounded down."""
    for (t0, c0), (t1, c1) in pairwise(points):
        if t0 <= at <= t1:
            return int(c0 + (Fraction(c1 - c0) * (at - t0) / (t1 - t0)).__floor__())
    assert at == points[0][0]
    return points[0][1]


@given(st.lists(st.tuples(st.integers(1, 4 * S), st.integers(0, 1000)), min_size=1, max_size=30))
def test_bins_of_a_gauge_are_means_over_time(read: list[tuple[int, int]]) -> None:
    bins, series = Bins(), Series(USE, {}, "GPU-1")
    time = before = 0
    held: list[tuple[int, int, int]] = []
    for pause, value in read:
        time += pause
        bins.add(S, time, [(series, value / 1000)])
        if before and time - before <= 2_500_000_000:
            held.append((before, time, value))
        before = time

    values = one(bins, 0, time // S + 2)
    for number, value in enumerate(values):
        pieces = [
            (min(end, (number + 1) * S) - max(start, number * S), level)
            for start, end, level in held
            if start < (number + 1) * S and end > number * S
        ]
        weight = sum(length for length, _ in pieces)
        if number >= time // S or not weight:  # not over yet, or nobody knows
            assert value == -1
        else:
            mean = Fraction(sum(length * level for length, level in pieces), weight)
            assert abs(value - mean) <= Fraction(1, 2)


def test_seconds_of_cpu_time_are_counted_in_whole_milliseconds() -> None:
    bins, series = Bins(), Series(BUSY, {}, "cpu")
    for second in range(101):
        bins.add(S, second * S, [(series, second * 0.7003)])
    values = one(bins, 0, 100)
    assert set(values) == {700, 701}
    assert sum(values) == 70_030


def test_a_device_that_comes_back_adds_nothing_for_the_time_it_was_gone() -> None:
    bins = Bins()
    for series, second, total in (
        (first := Series(BYTES, {}, "eth0"), 0, 100), (first, 1, 150), (first, 2, 170),
        (second_one := Series(BYTES, {}, "eth0"), 5, 7), (second_one, 6, 9),
    ):  # fmt: skip
        bins.add(S, second * S, [(series, total)])
    assert one(bins, 0, 7) == [50, 20, -1, -1, -1, 2, -1]


def test_a_total_that_falls_is_no_number_of_bytes() -> None:
    bins, series = Bins(), Series(BYTES, {}, "eth0")
    for second, total in ((0, 100), (1, 200), (2, 50), (3, 60)):
        bins.add(S, second * S, [(series, total)])
    assert one(bins, 0, 4) == [100, -1, 10, -1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, -0.5])
def test_what_is_no_amount_is_absent(value: float) -> None:
    bins, series = Bins(), Series(USE, {}, "GPU-1")
    for second in range(4):
        bins.add(S, second * S, [(series, value)])
    assert bins.rows(0, 10) == []


def test_a_bin_is_ready_when_all_sources_have_told_of_it() -> None:
    bins, quick, slow = Bins(), Series(BYTES, {}, "eth0"), Series(USE, {}, "GPU-1")
    for second in range(6):
        bins.add(S, second * S, [(quick, second)])
    bins.add(S, 3 * S, [(slow, 1)])
    assert bins.ready(5 * S) == 3
    # One that hangs is waited for for some intervals, and no longer.
    bins.add(S, 8 * S, [(quick, 8)])
    assert bins.ready(8 * S) == 8


def test_owners_see_their_own_processes_only() -> None:
    bins, host, own = Bins(), Series(BYTES, {}, "eth0"), Series(BUSY, {}, "rank 0")
    for second in range(3):
        bins.add(S, second * S, [(host, second)])
        bins.add(S, second * S, [(own, second)], owner="run a")
    assert [row.device for row in bins.rows(0, 2, "run a")] == ["rank 0", "eth0"]
    assert [row.device for row in bins.rows(0, 2, "run b")] == ["eth0"]
    bins.disown("run a")
    assert [row.device for row in bins.rows(0, 2, "run a")] == ["eth0"]


def test_memory_is_bounded() -> None:
    bins, series = Bins(), Series(USE, {}, "GPU-1")
    for second in range(3 * LONGEST_KEPT):
        bins.add(S, second * S, [(series, 0.5)])
    assert bins.size <= LONGEST_KEPT * 9 // 8 + 1
    bins.add(S, 10**6 * LONGEST_KEPT * S, [(series, 0.5)])
    bins.add(S, 10**6 * LONGEST_KEPT * S + S, [(series, 0.5)])
    bins.forget(10**6 * LONGEST_KEPT - 100, 10**6 * LONGEST_KEPT * S)
    assert bins.size <= 101
    bins.forget(10**9 * LONGEST_KEPT, 10**9 * LONGEST_KEPT * S)
    assert (bins.size, bins.rows(0, 1 << 40)) == (0, [])


# --- Tables ------------------------------------------------------------------------------------------------


def read_back(attributes: Attributes, kind: str, column: str) -> dict[str, list[int]]:
    """A column as a reader takes it."""
    prefix = f"{semconv.RESOURCES_PREFIX}{kind}."
    bins: Any = attributes[semconv.RESOURCES_BINS]
    devices: Any = attributes[f"{prefix}id"]
    values: Any = attributes[f"{prefix}{column}"]
    if len(values) == 1:
        values = values * (bins * len(devices))
    assert len(values) == bins * len(devices)
    return {device: values[i * bins : (i + 1) * bins] for i, device in enumerate(devices)}


def row(device: str, values: list[int], column: str = "utilization", adds: bool = False) -> Row:
    return Row("gpu", column, device, adds, 1000, values)


def test_a_table_is_what_the_page_says() -> None:
    rows = [
        row("GPU-a", [1, 2, 3]),
        Row("gpu", "power", "GPU-a", False, 700_000, [5, 5, 5]),
        row("GPU-b", [4, -1, 6]),
        Row("network", "rx", "eth0", True, -1, [0, 0, 0]),
    ]
    table = fitting(rows, 10, 13, 10_000, 1, False)
    assert table is not None
    assert (table.factor, table.bins, table.end) == (1, 3, 13)
    assert table.attributes(-250) == {
        "grademl.resources.version": 1,
        "grademl.resources.start_us": -250,
        "grademl.resources.bin_ms": 1000,
        "grademl.resources.bins": 3,
        "grademl.resources.gpu.id": ["GPU-a", "GPU-b"],
        "grademl.resources.gpu.utilization": [1, 2, 3, 4, -1, 6],
        "grademl.resources.gpu.utilization.capacity": [1000],
        "grademl.resources.gpu.power": [5, 5, 5, -1, -1, -1],
        "grademl.resources.gpu.power.capacity": [700_000, -1],
        "grademl.resources.network.id": ["eth0"],
        "grademl.resources.network.rx": [0],
    }


@given(
    st.lists(st.lists(st.integers(-1, 1 << 40), min_size=40, max_size=40), min_size=1, max_size=5),
    st.integers(200, 6000),
    st.integers(1, 4),
    st.booleans(),
)
def test_tables_fit_tell_in_order_and_lose_nothing(
    numbers: list[list[int]], room: int, spans: int, closing: bool
) -> None:
    rows = [Row("network", f"c{index}", "eth0", True, 1 << 40, own) for index, own in enumerate(numbers)]
    first, end, told = 0, 40, 0
    got = [0] * len(rows)
    while first < end:
        left = [Row(r.kind, r.column, r.device, True, r.capacity, r.values[first:]) for r in rows]
        known = [r for r in left if any(value != -1 for value in r.values)]
        table = fitting(known, first, end, room, spans, closing)
        if table is None:
            break
        assert table.end > first
        attributes = table.attributes(0)
        assert wire_size(attributes) <= encoded_size(attributes)
        assert wire_size(attributes) <= room
        for index in range(len(rows)):
            if f"grademl.resources.network.c{index}" in attributes:
                got[index] += sum(v for v in read_back(attributes, "network", f"c{index}")["eth0"] if v != -1)
        first, told = table.end, told + 1
        if closing:
            assert first == end
    else:
        assert got == [sum(value for value in own if value != -1) for own in numbers]
    if closing:
        assert told <= 1
    if room >= 3000:
        assert first == end or all(v == -1 for own in numbers for v in own[first:])


def wire_size(attributes: Attributes) -> int:
    """Bytes that the real encoder makes of ``attributes``."""

    def body(attributes: Attributes) -> int:
        span = Span("window", 1, 1, 0, 1, 2, attributes)
        (request,) = otlp.trace_requests(Resource({}), [span])
        return len(request.body)

    return body(attributes) - body({})


@pytest.mark.parametrize("world", [1, 8, 64])
def test_eight_gpus_and_sixteen_ports_fit_into_the_room_of_a_part(world: int) -> None:
    """A minute of such a host goes into the parts that its ranks send in a minute."""
    rows: list[Row] = []
    for index in range(8):
        device = f"GPU-{index:08x}-1234-1234-1234-123456789abc"
        for column, level in (
            ("utilization", 990), ("memory", 79 << 30), ("power", 650_000), ("sm_clock", 1980),
            ("memory_clock", 2619), ("pcie_rx", 25 << 30), ("pcie_tx", 25 << 30), ("nvlink_rx", 200 << 30),
            ("nvlink_tx", 200 << 30), ("throttled", 1000),
        ):  # fmt: skip
            rows.append(Row("gpu", column, device, False, level, [level - n for n in range(60)]))
    for index in range(16):
        for column in ("rx", "tx"):
            values = [(45 << 30) + n for n in range(60)]
            rows.append(Row("port", column, f"mlx5_{index}/1", True, 50 << 30, values))
    room = table_bytes_per_part(world)
    ranks_here = min(world, 8)
    first = parts = seconds = 0
    while first < 60:
        left = [Row(r.kind, r.column, r.device, r.adds, r.capacity, r.values[first:]) for r in rows]
        table = fitting(left, first, 60, room, max(2, ranks_here), False)
        assert table is not None
        assert wire_size(table.attributes(1 << 30)) <= room
        seconds, parts, first = max(seconds, table.factor), parts + 1, table.end
    assert seconds == 1
    assert parts <= 8


def test_many_devices_leave_room_for_some() -> None:
    rows = [row(f"GPU-{index:04}", [5] * 10) for index in range(500)]
    table = fitting(rows, 0, 10, 1800, 1, False)
    assert table is not None
    attributes = table.attributes(0)
    assert wire_size(attributes) <= 1800
    assert list(read_back(attributes, "gpu", "utilization")) == [f"GPU-{index:04}" for index in range(16)]


def test_no_room_no_table() -> None:
    assert fitting([row("GPU-a", [1])], 0, 1, 20, 1, False) is None
    assert fitting([], 0, 1, 20_000, 1, False) is None
    assert isinstance(fitting([row("GPU-a", [1])], 0, 1, 2000, 1, True), Table)
