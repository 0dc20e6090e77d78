# SPDX-License-Identifier: Apache-2.0
"""Spans of checkpoints: what they say, and how the background part of one ends."""

from __future__ import annotations

from typing import Literal

import pytest

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.spans import Span

from ..support.mark_script import MS, OFFSET, MarkScript

SCOPE = marks.SCOPE_INDEX[semconv.CHECKPOINT_SAVE]


def background(script: MarkScript, serial: int, at: int, number: int = 0, parent: int = 1) -> None:
    script.add(marks.SCOPE_OPEN, at, at, serial, x=parent, y=SCOPE, z=number, lane="checkpoint")
    script.scope_text(serial, semconv.CHECKPOINT_FORMAT, "distributed")


def converted(script: MarkScript, how: Literal["exit", "killed"] = "exit") -> list[Span]:
    converter = Converter(script.strings)
    return [*converter.feed(script.marks, 1), *converter.finish(how, [], 100 * MS)]


def saves(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.name == semconv.CHECKPOINT_SAVE]


def test_a_mark_says_format_and_error() -> None:
    script = MarkScript()
    detail = script.text("safetensors:OSError")
    script.add(marks.phase_kind("checkpoint.save"), 1 * MS, 2 * MS, 0, x=-1, z=detail)
    (save,) = saves(converted(script))
    assert save.error == "OSError"
    assert save.attributes == {
        "grademl.lane": "main", "grademl.checkpoint.format": "safetensors", "error.type": "OSError",
    }  # fmt: skip


def test_both_parts_say_whose_they_are() -> None:
    script = MarkScript()
    script.open_scope(2, "epoch", 1 * MS, number=0)
    script.step(10, 0, 2 * MS, 2 * MS, pass_serial=2)
    text = script.text("distributed")
    script.add(marks.phase_kind("checkpoint.save"), 4 * MS, 5 * MS, 11, x=7, z=text)
    background(script, 3, 5 * MS, number=7)
    script.row(11, 1, 4 * MS, 6 * MS, pass_serial=2)
    script.scope_int(3, semconv.BYTES, 4096)
    script.scope_bool(3, semconv.CHECKPOINT_COMPLETED, True)
    script.close_scope(3, "checkpoint.save", 30 * MS)
    script.close_scope(2, "epoch", 40 * MS)
    spans = converted(script)
    blocking, behind = saves(spans)
    common = {"grademl.checkpoint": 7, "grademl.checkpoint.format": "distributed"}
    assert blocking.attributes == {
        "grademl.lane": "main", "grademl.step": 1, "grademl.checkpoint.part": "blocking", **common,
    }  # fmt: skip
    assert behind.attributes == {
        "grademl.lane": "checkpoint", "grademl.checkpoint.part": "background",
        "grademl.checkpoint.completed": True, "grademl.bytes": 4096, **common,
    }  # fmt: skip
    assert (behind.start_ns, behind.end_ns) == (5 * MS + OFFSET, 30 * MS + OFFSET)
    assert behind.trace_id == blocking.trace_id
    run = next(span for span in spans if span.name == "run")
    assert behind.parent_id == run.span_id
    assert behind.error is None
    (window,) = [span for span in spans if span.name == "window"]
    assert window.attributes["grademl.table.checkpoint.save.count"] == [0, 1]


def test_what_is_saved_meanwhile_does_not_lie_in_it() -> None:
    script = MarkScript()
    script.open_scope(2, "epoch", 1 * MS, number=0)
    background(script, 3, 2 * MS)
    script.phase("checkpoint.save", 4 * MS, 5 * MS)
    script.close_scope(2, "epoch", 40 * MS)
    spans = converted(script)
    epoch = next(span for span in spans if span.name == "epoch")
    assert saves(spans)[0].parent_id == epoch.span_id


@pytest.mark.parametrize("how", ["exit", "killed"])
def test_one_that_does_not_end(how: Literal["exit", "killed"]) -> None:
    script = MarkScript()
    background(script, 2, 5 * MS, number=3)
    script.step(10, 0, 6 * MS, 2 * MS)
    if how == "exit":
        script.close_scope(1, "run", 50 * MS)
    (save,) = saves(converted(script, how))
    assert save.attributes["grademl.checkpoint.completed"] is False
    assert save.attributes["grademl.checkpoint"] == 3
    assert save.end_ns == (50 * MS if how == "exit" else 8 * MS) + OFFSET
    assert save.error == (None if how == "exit" else "killed")
    assert ("grademl.terminated" in save.attributes) == (how == "killed")


def test_one_that_failed() -> None:
    script = MarkScript()
    background(script, 2, 5 * MS)
    script.scope_bool(2, semconv.CHECKPOINT_COMPLETED, False)
    script.close_scope(2, "checkpoint.save", 9 * MS, "OSError")
    (save,) = saves(converted(script))
    assert save.error == "OSError"
    assert save.attributes["error.type"] == "OSError"
    assert save.attributes["grademl.checkpoint.completed"] is False


def test_a_relay_that_takes_over_ends_it_under_its_name() -> None:
    script = MarkScript()
    background(script, 2, 5 * MS, number=3)
    script.step(10, 0, 6 * MS, 2 * MS)
    first = Converter(script.strings)
    first.feed(script.marks, 1)
    progress, told = first.progress, len(script.marks)
    script.scope_bool(2, semconv.CHECKPOINT_COMPLETED, True)
    script.close_scope(2, "checkpoint.save", 9 * MS)
    second = Converter(script.strings, progress)
    spans = second.feed(script.marks[told:], told + 1)
    (save,) = saves([*spans, *second.finish("exit", [], 10 * MS)])
    assert save.attributes["grademl.checkpoint"] == 3
    assert save.attributes["grademl.checkpoint.completed"] is True
    (alone,) = saves(converted(script))
    assert (save.span_id, save.parent_id) == (alone.span_id, alone.parent_id)


def test_many_of_them_share_the_places_of_phases() -> None:
    script = MarkScript(rank=1, world_size=64)
    for number in range(40):
        background(script, 2 + number, (2 * number + 1) * MS, number)
        script.close_scope(2 + number, "checkpoint.save", (2 * number + 2) * MS)
    spans = converted(script)
    run = next(span for span in spans if span.name == "run")
    assert 0 < len(saves(spans)) < 40
    assert run.attributes["grademl.left_out.phases"] == 40 - len(saves(spans))
    assert "grademl.left_out.passes" not in run.attributes
