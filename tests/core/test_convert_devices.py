# SPDX-License-Identifier: Apache-2.0
"""What devices did for a step, from marks to spans and columns."""

from __future__ import annotations

from typing import Any

import pytest

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.held import MAX_HELD
from grademl_otel.convert.progress import Progress
from grademl_otel.convert.spans import Span
from grademl_otel.plausible import believable

from ..support.mark_script import MS, OFFSET, MarkScript, S
from .test_convert import converted, named, only, table

STREAM = "stream-0.0"


class DeviceScript(MarkScript):
    def on_device(self, name: str, t0: int, t1: int, row: int, host_start: int, lane: str = STREAM) -> None:
        self.add(marks.device_kind(name), t0, t1, row, x=-1, y=host_start, lane=lane)

    def all_told(self, row: int, at: int, lost: int = 0) -> None:
        self.add(marks.ROW_DEVICE, at, at, row, x=lost)

    def lagging_step(self, serial: int, step: int, t0: int, later: bool = True) -> None:
        """A step of 10 ms on the host."""
        self.phase("forward", t0, t0 + 4 * MS, serial)
        self.phase("backward", t0 + 4 * MS, t0 + 10 * MS, serial)
        self.row(serial, step, t0, t0 + 10 * MS, flags=marks.DEVICE_LATER if later else 0)

    def device_part(self, serial: int, t0: int, lag: int, lost: int = 0) -> None:
        """What the device did for it, ``lag`` later, in 9 ms."""
        self.on_device("forward", t0 + lag, t0 + lag + 3 * MS, serial, t0)
        self.on_device("backward", t0 + lag + 3 * MS, t0 + lag + 9 * MS, serial, t0 + 4 * MS)
        self.all_told(serial, t0 + lag + 10 * MS, lost)


def three_lagging_steps(lag: int = 15 * MS) -> DeviceScript:
    """The times of each step come while the next but one runs."""
    script = DeviceScript()
    for step in range(3):
        script.lagging_step(10 + step, step, step * 10 * MS)
    for step in range(3):
        script.device_part(10 + step, step * 10 * MS, lag)
    return script


def test_columns_of_their_own() -> None:
    (window,) = named(converted(three_lagging_steps()), "window")
    found = table(window)

    assert found["step"] == [0, 1, 2]
    assert found["forward.busy_us"] == [4000]
    assert found["device.forward.first_us"] == [15_000, 25_000, 35_000]
    assert found["device.forward.busy_us"] == [3000]
    assert found["device.backward.first_us"] == [18_000, 28_000, 38_000]
    assert found["device.backward.busy_us"] == [6000]
    assert found["device.backward.count"] == [1]
    assert found["flags"] == [semconv.FLAG_DETAILED]
    assert semconv.DEVICE_DROPPED not in window.attributes


def test_spans_in_a_lane_of_their_own_linked_to_those_of_the_host() -> None:
    spans = converted(three_lagging_steps())
    step = next(span for span in named(spans, "step") if span.attributes["grademl.step"] == 1)
    mine = [span for span in spans if span.trace_id == step.trace_id]
    forward, on_device = only(mine, "forward"), only(mine, "device.forward")

    assert sorted(span.name for span in mine) == sorted(
        ["step", "forward", "backward", "device.forward", "device.backward"]
    )
    assert on_device.parent_id == step.span_id
    assert (on_device.start_ns - OFFSET, on_device.end_ns - OFFSET) == (25 * MS, 28 * MS)
    assert on_device.attributes == {"grademl.lane": STREAM, "grademl.step": 1}
    (link,) = on_device.links
    assert (link.trace_id, link.span_id) == (forward.trace_id, forward.span_id)
    assert link.attributes == {"grademl.link.kind": "host"}
    (of_backward,) = only(mine, "device.backward").links
    assert of_backward.span_id == only(mine, "backward").span_id


def test_rows_are_told_in_their_order() -> None:
    """Nothing is sent of the rows behind one that waits, and then all of them."""
    script = three_lagging_steps()
    converter = Converter(script.strings)
    told: list[list[int]] = []
    for number, mark in enumerate(script.marks, 1):
        steps = [
            span.attributes["grademl.step"] for span in converter.feed([mark], number) if span.name == "step"
        ]
        if steps:
            told.append(steps)  # type: ignore[arg-type]

    assert told == [[0], [1], [2]]

    backwards = DeviceScript()
    for step in range(3):
        backwards.lagging_step(10 + step, step, step * 10 * MS)
    for step in (2, 1, 0):
        backwards.device_part(10 + step, step * 10 * MS, 15 * MS)
    spans = converted(backwards)
    assert [span.attributes["grademl.step"] for span in named(spans, "step")] == [0, 1, 2]
    assert table(only(spans, "window"))["device.forward.count"] == [1]


def test_times_that_are_known_before_the_row_ends() -> None:
    script = DeviceScript()
    script.phase("forward", 0, 4 * MS, 10)
    script.on_device("forward", 1 * MS, 3 * MS, 10, 0)
    script.all_told(10, 5 * MS)  # by another thread, right before the row is written
    script.row(10, 0, 0, 5 * MS, flags=marks.DEVICE_LATER)
    converter = Converter(script.strings)

    spans = converter.feed(script.marks, 1)

    assert len(named(spans, "device.forward")) == 1


def test_what_is_lost_is_said() -> None:
    script = DeviceScript()
    script.lagging_step(10, 0, 0)
    script.all_told(10, 11 * MS, lost=2)
    script.lagging_step(11, 1, 10 * MS)
    script.device_part(11, 10 * MS, 2 * MS, lost=1)

    window = only(converted(script), "window")

    assert window.attributes[semconv.DEVICE_DROPPED] == 3
    assert table(window)["device.forward.count"] == [0, 1]
    assert table(window)["device.forward.first_us"] == [-1, 12_000]


@pytest.mark.parametrize("how", ["exit", "killed"])
def test_the_end_waits_for_nothing(how: str) -> None:
    script = DeviceScript()
    for step in range(3):
        script.lagging_step(10 + step, step, step * 10 * MS)
    script.device_part(10, 0, 15 * MS)

    spans = converted(script, how=how)

    assert table(only(spans, "window"))["step"] == [0, 1, 2]
    assert table(only(spans, "window"))["device.forward.count"] == [1, 0, 0]


def test_rows_do_not_wait_for_a_device_that_hangs() -> None:
    script = DeviceScript()
    script.lagging_step(10, 0, 0)
    converter = Converter(script.strings)
    spans = converter.feed(script.marks, 1)
    assert named(spans, "step") == []
    assert named(converter.flush(6 * S), "step") == []

    spans = converter.flush(11 * S)
    late = DeviceScript()
    late.device_part(10, 0, 12 * S)
    spans += converter.feed(late.marks[2:], len(script.marks) + 1)
    spans += converter.finish("exit", [], 13 * S)

    assert table(only(spans, "window"))["step"] == [0]
    assert len(named(spans, "step")) == 1
    assert named(spans, "device.forward") == []


def test_a_lost_mark_holds_back_some_rows_only() -> None:
    script = DeviceScript()
    script.lagging_step(10, 0, 0)
    for step in range(1, MAX_HELD + 1):
        script.lagging_step(10 + step, step, step * 10 * MS, later=False)
    converter = Converter(script.strings)

    spans = converter.feed(script.marks, 1)

    assert sum(len(table(span)["start_us"]) for span in named(spans, "window")) > MAX_HELD // 2


def test_a_change_of_level_waits_for_nothing() -> None:
    script = DeviceScript()
    script.lagging_step(10, 0, 0)
    script.scope_int(1, semconv.WINDOW_RECORD_LEVEL, 2)
    script.device_part(10, 0, 20 * MS)
    script.lagging_step(11, 1, 10 * MS, later=False)

    before, after = named(converted(script), "window")

    assert (before.attributes[semconv.WINDOW_RECORD_LEVEL], table(before)["step"]) == (0, [0])
    assert (after.attributes[semconv.WINDOW_RECORD_LEVEL], table(after)["step"]) == (2, [1])


def test_passes_that_end_before_their_last_rows_are_told() -> None:
    script = DeviceScript()
    script.open_scope(2, "epoch", 0, number=5)
    script.phase("forward", 0, 4 * MS, 10)
    script.row(10, 0, 0, 4 * MS, flags=marks.DEVICE_LATER, pass_serial=2)
    script.close_scope(2, "epoch", 5 * MS)
    script.all_told(10, 6 * MS)

    assert only(converted(script), "step").attributes["grademl.epoch"] == 5


@pytest.mark.parametrize("at", range(1, 30, 3))
def test_a_relay_that_takes_over_tells_the_same(at: int) -> None:
    script = three_lagging_steps()
    script.lagging_step(20, 3, 30 * MS)
    script.device_part(20, 30 * MS, 30 * MS)
    whole = Converter(script.strings)
    expected = whole.feed(script.marks, 1) + whole.finish("exit", [], S)

    first = Converter(script.strings)
    told = first.feed(script.marks[:at], 1) + first.cut()
    raw = first.progress.to_bytes(4096)
    progress = Progress.from_bytes(raw)
    assert progress is not None
    second = Converter(script.strings, progress, first.cuts)
    told += second.feed(script.marks[progress.told :], progress.told + 1)
    told += second.finish("exit", [], S)

    def of_steps(spans: list[Span]) -> list[tuple[Any, ...]]:
        return sorted(
            (s.span_id, s.trace_id, s.parent_id, s.name, s.start_ns, s.end_ns, str(s.links))
            for s in spans
            if s.name not in ("window", "run")
        )

    assert of_steps(told) == of_steps(expected)
    rows = [step for window in named(told, "window") for step in table(window)["step"]]
    assert sorted(rows) == [0, 1, 2, 3]
    busy = 0
    for found in map(table, named(told, "window")):
        each = found.get("device.backward.busy_us", [0])
        busy += sum(each) if len(each) > 1 else each[0] * len(found["start_us"])
    assert busy == 4 * 6000


def test_memory_of_devices_is_said_by_each_window() -> None:
    script = DeviceScript()
    script.add(marks.DEVICE_MEMORY, MS, MS, 1, x=10, y=20, z=30)
    script.add(marks.DEVICE_MEMORY, MS, MS, 3, x=11, y=21, z=31)
    script.step(10, 15, 0, 10 * MS)
    script.add(marks.DEVICE_MEMORY, 12 * MS, 12 * MS, 1, x=40, y=50, z=60)
    script.step(11, 16, 10 * MS, 10 * MS)

    first, second = named(converted(script), "window")

    keys = (
        semconv.DEVICE_MEMORY_INDEX, semconv.DEVICE_MEMORY_ALLOCATED, semconv.DEVICE_MEMORY_RESERVED,
        semconv.DEVICE_MEMORY_PEAK,
    )  # fmt: skip
    assert [first.attributes[key] for key in keys] == [[0, 2], [10, 11], [20, 21], [30, 31]]
    assert [second.attributes[key] for key in keys] == [[0, 2], [40, 11], [50, 21], [60, 31]]


def test_gpus_of_a_rank_are_named_by_its_windows_and_its_run() -> None:
    script = DeviceScript()
    script.step(10, 15, 0, 10 * MS)
    script.scope_text(1, semconv.GPU_ID, "GPU-a")
    script.step(11, 47, 10 * MS, 10 * MS)
    script.scope_text(1, semconv.GPU_ID, "GPU-a,GPU-b")
    script.step(12, 48, 20 * MS, 10 * MS)
    spans = converted(script)
    assert [window.attributes.get(semconv.GPU_ID) for window in named(spans, "window")] == [
        None, ["GPU-a"], ["GPU-a", "GPU-b"],
    ]  # fmt: skip
    assert only(spans, "run").attributes[semconv.GPU_ID] == ["GPU-a", "GPU-b"]


def test_a_relay_that_takes_over_knows_the_gpus() -> None:
    script = DeviceScript()
    script.scope_text(1, semconv.GPU_ID, "GPU-a,GPU-b")
    script.step(10, 15, 0, 10 * MS)
    before = Converter(script.strings)
    before.feed(script.marks, 1)
    fed = len(script.marks)
    progress = Progress.from_bytes(before.progress.to_bytes(1000))
    script.step(11, 31, 10 * MS, 10 * MS)
    after = Converter(script.strings, progress)
    spans = [*after.feed(script.marks[fed:], fed + 1), *after.finish("exit", [], 30 * MS)]
    for name in ("window", "run"):
        assert only(spans, name).attributes[semconv.GPU_ID] == ["GPU-a", "GPU-b"]


def test_without_a_device_nothing_is_said_of_one() -> None:
    script = MarkScript()
    script.step(10, 0, 0, 10 * MS)

    window = only(converted(script), "window")

    assert [key for key in window.attributes if "device" in key] == []


def test_killed_in_a_step_of_which_the_device_has_done_a_part() -> None:
    script = DeviceScript()
    script.phase("forward", 0, 4 * MS, 10)
    script.on_device("forward", 2 * MS, 9 * MS, 10, 0)

    spans = converted(script, how="killed")

    row = only(spans, "step")
    assert (row.start_ns - OFFSET, row.end_ns - OFFSET) == (0, 4 * MS)
    assert table(only(spans, "window"))["device.forward.busy_us"] == [7000]


@pytest.mark.parametrize(
    ("kind", "row", "x", "y", "z", "expected"),
    [
        (marks.ROW_DEVICE, 1, 0, 0, 0, True),
        (marks.ROW_DEVICE, 0, 0, 0, 0, False),
        (marks.ROW_DEVICE, 1, -1, 0, 0, False),
        (marks.DEVICE_MEMORY, 1, 1, 1, 1, True),
        (marks.DEVICE_MEMORY, 1, 1, -1, 1, False),
        (marks.DEVICE_MEMORY, 0, 1, 1, 1, False),
    ],
)
def test_what_is_believed(kind: int, row: int, x: int, y: int, z: int, expected: bool) -> None:
    assert believable((kind, 1, 5, 5, row, x, y, z), 10) == expected
