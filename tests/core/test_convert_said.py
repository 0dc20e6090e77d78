# SPDX-License-Identifier: Apache-2.0
"""Phases and steps that the program says itself, from marks to spans, tables and metrics."""

from __future__ import annotations

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.spans import Span
from grademl_otel.convert.totals import metrics_of
from tests.support.mark_script import MarkScript

MS = 1_000_000
FIRST, SECOND = marks.USER_KINDS[0], marks.USER_KINDS[1]


def named(script: MarkScript, kind: int, name: str, t0: int, t1: int, row: int = 0, error: str = "") -> None:
    script.add(kind, t0, t1, row, y=script.text(error), z=script.text(name))


def converted(script: MarkScript, killed: bool = False) -> list[Span]:
    converter = Converter(script.strings)
    spans = converter.feed(script.marks, 1)
    return spans + converter.finish("killed" if killed else "exit", (), 10_000 * MS)


def test_a_phase_of_the_programs_own_is_a_span_and_a_column() -> None:
    script = MarkScript()
    script.add(marks.ROW_SAID, 100 * MS, 100 * MS, 1, x=0)
    named(script, FIRST, "tokenize", 110 * MS, 150 * MS, 1)
    named(script, SECOND, "pad", 120 * MS, 130 * MS, 1, error="ValueError")
    script.row(1, 0, 100 * MS, 300 * MS)
    named(script, FIRST, "tokenize", 400 * MS, 450 * MS)
    spans = converted(script)
    (step,) = (span for span in spans if span.name == "step")
    inner, outer = (next(span for span in spans if span.name == name) for name in ("pad", "tokenize"))
    assert step.attributes["grademl.evidence"] == "observed"
    assert (outer.parent_id, inner.parent_id) == (step.span_id, outer.span_id)
    assert outer.attributes == {
        "grademl.lane": "main",
        "grademl.step": 0,
        "grademl.phase": "tokenize",
        "grademl.evidence": "observed",
    }
    assert (inner.error, inner.attributes["error.type"]) == ("ValueError", "ValueError")
    (window,) = (span for span in spans if span.name == "window")
    table = {key: value for key, value in window.attributes.items() if ".user." in key}
    assert table == {
        "grademl.table.user.tokenize.first_us": [10_000],
        "grademl.table.user.tokenize.busy_us": [40_000],
        "grademl.table.user.tokenize.count": [1],
        "grademl.table.user.pad.first_us": [20_000],
        "grademl.table.user.pad.busy_us": [10_000],
        "grademl.table.user.pad.count": [1],
    }
    outside = [span for span in spans if span.name == "tokenize" and span is not outer]
    (run,) = (span for span in spans if span.name == "run")
    assert [(span.trace_id, span.parent_id) for span in outside] == [(run.trace_id, run.span_id)]


def test_a_step_that_the_program_told_and_died_in_is_an_incomplete_one() -> None:
    script = MarkScript()
    script.add(marks.ROW_SAID, 100 * MS, 100 * MS, 1, x=0)
    named(script, FIRST, "tokenize", 110 * MS, 150 * MS, 1)
    spans = converted(script, killed=True)
    (step,) = (span for span in spans if span.name == "step")
    offset = script.info.perf_to_unix_ns
    assert (step.start_ns - offset, step.end_ns - offset) == (100 * MS, 150 * MS)
    assert step.attributes["grademl.step.kind"] == "incomplete"


def test_a_ring_cannot_make_them_look_like_spans_of_ours() -> None:
    script = MarkScript()
    for number, name in enumerate(("run", "window", "gc", "a\nb", "x" * 200, "")):
        named(script, marks.USER_KINDS[number], name, 10 * number, 10 * number + 5)
    names = [span.name for span in converted(script)][:-1]
    assert names == ["user.run", "user.window", "user.gc", "a b", "x" * 64, "phase"]


def test_totals_have_their_names() -> None:
    script = MarkScript()
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)
    totals = [0] * marks.ACC_SLOTS
    totals[marks.ACC_USER_NAMES + 1] = script.text("pad")
    totals[marks.ACC_PHASE_SUM_NS + SECOND - marks.PHASE_BASE] = 1_500_000_000
    totals[marks.ACC_PHASE_COUNT + SECOND - marks.PHASE_BASE] = 3
    converter.learn_names(totals)
    metrics = metrics_of(totals, 0, (0, 0, 0), 0, 1, converter.name_of)
    (phases,) = (metric for metric in metrics if metric.name == semconv.METRIC_PHASE_TIME)
    assert [(point.attributes, point.value) for point in phases.points] == [({"grademl.phase": "pad"}, 1.5)]
