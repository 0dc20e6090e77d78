# SPDX-License-Identifier: Apache-2.0
"""What is said of collectives, from marks to spans and columns; by hand."""

from __future__ import annotations

import pytest

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import Converter
from grademl_otel.plausible import believable

from ..support.mark_script import MS, OFFSET, MarkScript, S
from .test_convert import converted, named, only, table

GROUP = "00112233445566ff/4"


class CollectiveScript(MarkScript):
    def collective(
        self,
        t0: int,
        t1: int,
        row: int,
        number: int | None = 0,
        operation: str = "all_reduce",
        size: int = 400,
        completed: bool = True,
        blocking: bool = False,
    ) -> None:
        item = -1 if number is None else marks.pack_item(self.text(GROUP), number)
        own, lane = marks.pack_collective(size, completed, blocking), "main" if blocking else "comm"
        kind = marks.phase_kind(semconv.COLLECTIVE)
        self.add(kind, t0, t1, row, x=item, y=own, z=self.text(operation), lane=lane)

    def beside(self, row: int, at: int, count: int) -> None:
        self.add(marks.ROW_BESIDE, at, at, row, x=count)

    def plain_step(self, serial: int, step: int, t0: int) -> None:
        """10 ms of which backward is the last 6."""
        self.phase(semconv.FORWARD, t0, t0 + 4 * MS, serial)
        self.phase(semconv.BACKWARD, t0 + 4 * MS, t0 + 10 * MS, serial)
        self.row(serial, step, t0, t0 + 10 * MS)


def test_attributes() -> None:
    script = CollectiveScript()
    script.collective(1 * MS, 3 * MS, 10, number=7)
    script.collective(4 * MS, 5 * MS, 10, number=8, operation="barrier", size=0, blocking=True)
    script.collective(6 * MS, 7 * MS, 10, number=None, operation="recv", size=8, completed=False)
    script.plain_step(10, 0, 0)

    beside, blocking, unnamed = named(converted(script), "collective")

    assert beside.attributes == {
        "grademl.lane": "comm",
        "grademl.step": 0,
        "grademl.collective": "00112233445566ff:7",
        "grademl.collective.op": "all_reduce",
        "grademl.collective.size": 4,
        "grademl.collective.blocking": False,
        "grademl.collective.completed": True,
        "grademl.bytes": 400,
    }
    assert (beside.start_ns - OFFSET, beside.end_ns - OFFSET) == (1 * MS, 3 * MS)
    assert blocking.attributes["grademl.collective"] == "00112233445566ff:8"
    assert blocking.attributes["grademl.lane"] == "main"
    assert blocking.attributes["grademl.collective.blocking"] is True
    assert unnamed.attributes["grademl.collective.completed"] is False
    assert not {"grademl.collective", "grademl.collective.size"} & set(unnamed.attributes)


def test_parents() -> None:
    """One that blocks lies in its phase, those beside the thread in the step, and none in another."""
    script = CollectiveScript()
    script.collective(1 * MS, 3 * MS, 10, blocking=True)
    script.collective(5 * MS, 9 * MS, 10)
    script.collective(6 * MS, 8 * MS, 10)
    script.plain_step(10, 0, 0)

    spans = converted(script)
    step, forward = only(spans, "step"), only(spans, "forward")

    blocking, *beside = named(spans, "collective")
    assert blocking.parent_id == forward.span_id
    assert [span.parent_id for span in beside] == [step.span_id] * 2


def test_columns() -> None:
    script = CollectiveScript()
    script.collective(6 * MS, 9 * MS, 10)
    script.collective(5 * MS, 8 * MS, 10)
    script.plain_step(10, 0, 0)
    script.plain_step(11, 1, 10 * MS)

    found = table(only(converted(script), "window"))

    assert found["collective.first_us"] == [5000, -1]
    assert found["collective.busy_us"] == [6000, 0]
    assert found["collective.count"] == [2, 0]


def test_a_row_waits_for_what_goes_on() -> None:
    script = CollectiveScript()
    script.collective(5 * MS, 8 * MS, 10, number=0)
    script.beside(10, 10 * MS, count=3)
    script.plain_step(10, 0, 0)
    script.plain_step(11, 1, 10 * MS)
    script.collective(6 * MS, 23 * MS, 10, number=1)
    complete = len(script.marks)
    script.collective(7 * MS, 24 * MS, 10, number=2)
    converter = Converter(script.strings)

    assert named(converter.feed(script.marks[:complete], 1), "step") == []
    spans = converter.feed(script.marks[complete:], complete + 1)
    spans += converter.finish("exit", [], S)

    first, second = named(spans, "step")
    assert [span.parent_id for span in named(spans, "collective")] == [first.span_id] * 3
    assert (first.attributes["grademl.step"], second.attributes["grademl.step"]) == (0, 1)
    found = table(only(spans, "window"))
    assert found["collective.count"] == [3, 0]
    assert found["collective.busy_us"] == [37_000, 0]


def test_all_had_ended_when_the_row_was_written() -> None:
    """The thread counted before another had written its mark, which came all the same before the row."""
    script = CollectiveScript()
    script.beside(10, 10 * MS, count=2)
    script.collective(5 * MS, 8 * MS, 10, number=0)
    script.collective(6 * MS, 8 * MS, 10, number=1)
    script.plain_step(10, 0, 0)

    assert len(named(Converter(script.strings).feed(script.marks, 1), "step")) == 1


def test_those_that_block_are_not_waited_for() -> None:
    script = CollectiveScript()
    script.collective(1 * MS, 2 * MS, 10, number=0, blocking=True)
    script.beside(10, 10 * MS, count=1)
    script.plain_step(10, 0, 0)
    converter = Converter(script.strings)
    assert named(converter.feed(script.marks, 1), "step") == []


@pytest.mark.parametrize("how", ["clock", "exit", "killed"])
def test_one_that_never_ends(how: str) -> None:
    script = CollectiveScript()
    script.beside(10, 10 * MS, count=1)
    script.plain_step(10, 0, 0)
    converter = Converter(script.strings)
    spans = converter.feed(script.marks, 1)
    assert named(spans, "step") == []

    if how == "clock":
        spans = converter.flush(11 * S)
        late = CollectiveScript()
        late.strings = script.strings
        count = len(late.marks)
        late.collective(5 * MS, 12 * S, 10)
        assert converter.feed(late.marks[count:], len(script.marks) + 1) == []  # it was told without
        spans += converter.finish("exit", [], 13 * S)
    else:
        spans = converter.finish(how, [], S)  # type: ignore[arg-type]

    assert len(named(spans, "step")) == 1
    assert "collective.count" not in table(only(spans, "window"))
    assert named(spans, "collective") == []


def test_one_of_a_row_that_does_not_begin_with_it() -> None:
    """Without a loader, a collective of the first forward is the first that is heard of its row."""
    script = CollectiveScript()
    script.plain_step(10, 0, 0)
    script.collective(11 * MS, 12 * MS, 11)
    script.plain_step(11, 1, 10 * MS)

    assert table(only(converted(script), "window"))["collective.count"] == [0, 1]


def test_what_is_believed() -> None:
    script = CollectiveScript()
    script.collective(1 * MS, 2 * MS, 10)
    script.beside(10, 2 * MS, count=1)
    assert all(believable(mark, S) for mark in script.marks[-2:])
    assert not believable((marks.ROW_BESIDE, 1, 0, 0, -1, 1, 0, 0), S)
