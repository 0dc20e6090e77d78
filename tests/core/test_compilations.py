# SPDX-License-Identifier: Apache-2.0
"""Marks of compilations, and the spans that come of them."""

from __future__ import annotations

import pytest

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.spans import Span
from tests.support.mark_script import MarkScript

MS = 1_000_000
KIND = marks.phase_kind(semconv.COMPILE)


@pytest.mark.parametrize("frame", [-1, 0, 7, 1 << 40])
@pytest.mark.parametrize("version", [-1, 0, 12, 1 << 30])
@pytest.mark.parametrize("what", [marks.COMPILE_FRAME, marks.COMPILE_BACKWARD, marks.COMPILE_CUDA_GRAPH])
def test_numbers_survive_packing_as_far_as_they_fit(frame: int, version: int, what: int) -> None:
    packed = marks.pack_compilation(frame, version, what)
    assert 0 <= packed < 1 << 63
    assert marks.unpack_compilation(packed) == (min(frame, 0x7FFFFFFE), min(version, 0xFFFFFE), what)


def test_a_compilation_lies_in_the_run_and_says_what_it_was() -> None:
    script = MarkScript()
    script.open_scope(2, "epoch", 1 * MS, number=0)
    own = marks.pack_compilation(3, 1, marks.COMPILE_FRAME)
    why, name = script.text("size mismatch"), script.text("Net.forward")
    script.phase("forward", 2 * MS, 9 * MS, 10)
    script.add(KIND, 3 * MS, 8 * MS, 10, x=why, y=own, z=name)
    script.phase("backward", 9 * MS, 10 * MS, 10)
    script.row(10, 5, 2 * MS, 11 * MS, pass_serial=2)
    script.close_scope(2, "epoch", 12 * MS)
    spans = _converted(script)
    (compiled,) = [span for span in spans if span.name == semconv.COMPILE]
    (epoch,) = [span for span in spans if span.name == semconv.EPOCH]
    assert (compiled.trace_id, compiled.parent_id) == (epoch.trace_id, epoch.span_id)
    assert compiled.attributes == {
        "grademl.lane": "main",
        "grademl.step": 5,
        "grademl.compile.id": "3/1",
        "grademl.compile.function": "Net.forward",
        "grademl.compile.trigger": "frame",
        "grademl.compile.recompile": True,
        "grademl.compile.reason": "size mismatch",
    }
    assert compiled.error is None
    (window,) = [span for span in spans if span.name == semconv.WINDOW]
    assert window.attributes["grademl.table.compile.busy_us"] == [5000]
    assert window.attributes["grademl.table.compile.count"] == [1]


def test_one_that_failed_and_a_backward() -> None:
    script = MarkScript()
    first = marks.pack_compilation(-1, -1, marks.COMPILE_FRAME)
    second = marks.pack_compilation(0, 2, marks.COMPILE_BACKWARD)
    script.add(KIND, 1 * MS, 2 * MS, 0, x=-1, y=first, z=script.text("f:Unsupported"))
    script.add(KIND, 3 * MS, 4 * MS, 0, x=-1, y=second, z=0)
    failed, backward = [span for span in _converted(script) if span.name == semconv.COMPILE]
    assert failed.error == failed.attributes["error.type"] == "Unsupported"
    assert failed.attributes["grademl.compile.function"] == "f"
    assert "grademl.compile.id" not in failed.attributes
    assert backward.attributes["grademl.compile.trigger"] == "backward"
    assert backward.attributes["grademl.compile.recompile"] is False
    assert "grademl.compile.function" not in backward.attributes


def _converted(script: MarkScript) -> list[Span]:
    converter = Converter(script.strings)
    return [*converter.feed(script.marks, 1), *converter.finish("exit", [], 20 * MS)]
