# SPDX-License-Identifier: Apache-2.0
"""Steps that others refer to, or lie inside of a span of the user's, and steps that a sampler drops."""

from __future__ import annotations

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import MAX_OPEN_ROWS, Converter
from grademl_otel.convert.spans import Link, Span
from tests.support.mark_script import MS, OFFSET, RUN_ID, MarkScript, S

EVALUATION = semconv.FLAG_EVALUATE


def trace_of(kind: str, number: int) -> int:
    return semconv.trace_id(RUN_ID, 0, kind, number)


def span_of(serial: int) -> int:
    return semconv.span_id(RUN_ID, 0, "step", serial, 0)


def ask(script: MarkScript, serial: int, number: int, flags: int = 0, at: int = 0) -> None:
    script.add(marks.ROW_CONTEXT, at, at, serial, x=flags, y=number)


def converted(script: MarkScript) -> list[Span]:
    converter = Converter(script.strings)
    return converter.feed(script.marks, 1) + converter.finish("exit", [], 3600 * S)


def steps(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.name == "step"]


def flags(spans: list[Span]) -> list[int]:
    """The column of all windows, unfolded."""
    found: list[int] = []
    for span in spans:
        if span.name == "window":
            column = list(span.attributes["grademl.table.flags"])  # type: ignore[arg-type]
            rows = len(span.attributes["grademl.table.start_us"])  # type: ignore[arg-type]
            found += column * rows if len(column) == 1 else column
    return found


def busy(step_count: int, asked: bool) -> MarkScript:
    """Steps of half a ms, far more than are kept."""
    script = MarkScript()
    for number in range(step_count):
        if asked:
            ask(script, number + 1, number, at=number * MS)
        script.step(number + 1, number, number * MS, MS // 2)
    return script


def test_a_step_that_was_foreseen_rightly_is_one_like_any_other() -> None:
    script = MarkScript()
    ask(script, 7, 0)
    script.step(7, 0, MS, 10 * MS)
    spans = converted(script)
    (step,) = steps(spans)
    assert (step.trace_id, step.span_id) == (trace_of("step", 0), span_of(7))
    assert {span.parent_id for span in spans if span.name == "forward"} == {span_of(7)}
    assert step.attributes["grademl.weight"] == 1
    assert flags(spans) == [semconv.FLAG_DETAILED]


def test_what_was_foreseen_wrongly_lies_in_the_trace_that_was_told_and_says_what_it_is() -> None:
    script = MarkScript()
    ask(script, 1, 0)
    script.phase("forward", MS, 2 * MS, 1)
    script.row(1, 0, MS, 3 * MS, flags=EVALUATION)
    script.step(2, 0, 4 * MS, MS)
    spans = converted(script)
    evaluation, training = steps(spans)
    assert (evaluation.trace_id, evaluation.span_id) == (trace_of("step", 0), span_of(1))
    assert evaluation.attributes["grademl.step.kind"] == "evaluate"
    assert (training.trace_id, training.span_id) == (trace_of("step", 0), span_of(2))
    # Nobody is to look for the evaluation's detail in the trace that its number names.
    assert flags(spans) == [EVALUATION, semconv.FLAG_DETAILED]


def test_every_step_that_was_asked_has_its_span_and_as_much_detail_as_is_afforded() -> None:
    count = 4000
    plain, asked = converted(busy(count, asked=False)), converted(busy(count, asked=True))
    assert len(steps(asked)) == count
    assert {span.span_id for span in steps(asked)} == {span_of(number + 1) for number in range(count)}
    detailed = {span.parent_id for span in asked if span.name == "forward"}
    usual = {span.parent_id for span in plain if span.name == "forward"}
    assert usual < detailed
    assert len(detailed) < len(usual) + 200
    alone = [span for span in steps(asked) if span.span_id not in detailed]
    assert {span.attributes["grademl.weight"] for span in alone} == {0}
    marked = [flag & semconv.FLAG_DETAILED != 0 for flag in flags(asked)]
    assert marked.count(True) == len(detailed)


def test_a_rank_without_a_share_of_the_trace_still_has_the_span_that_others_refer_to() -> None:
    script = MarkScript(rank=16_000, world_size=16_384)
    ask(script, 1, 0)
    script.step(1, 0, MS, 10 * MS)
    script.step(2, 1, 12 * MS, 10 * MS)
    spans = converted(script)
    (step,) = steps(spans)
    assert step.span_id == semconv.span_id(RUN_ID, 0, "step", 1, 16_000)
    # In a trace of its own: thousands of ranks, and what others add, do not meet in one.
    assert step.trace_id == semconv.trace_id(RUN_ID, 0, "step", 0, 16_000)
    assert not [span for span in spans if span.name == "forward"]
    assert flags(spans) == [0, 0]


def test_a_span_of_the_users_around_a_step_is_linked() -> None:
    trace, span = (1 << 127) + 5, (1 << 63) + 7
    script = MarkScript()
    script.add(
        marks.ROW_LINK, MS, MS, 1,
        x=marks.pack_half(trace >> 64), y=marks.pack_half(trace & (1 << 64) - 1), z=marks.pack_half(span),
    )  # fmt: skip
    script.step(1, 0, MS, 10 * MS)
    (step,) = steps(converted(script))
    assert step.parent_id == 0
    assert step.links[1:] == [Link(trace, span, {"grademl.link.kind": "parent"})]


def test_a_step_that_the_sampler_drops_is_in_the_table_only() -> None:
    script = MarkScript()
    for number in range(20):
        script.phase("forward", number * S, number * S + MS, number + 1)
        slow = 900 * MS if number == 15 else 10 * MS
        script.row(number + 1, number, number * S, number * S + slow, flags=marks.UNSAMPLED)
    spans = converted(script)
    assert not steps(spans)
    assert flags(spans) == [semconv.FLAG_OUTLIER if number == 15 else 0 for number in range(20)]


def test_a_row_whose_end_never_comes_has_its_span_when_others_refer_to_it() -> None:
    script = MarkScript()
    script.phase("forward", 5 * MS, 6 * MS, 1)
    ask(script, 1, 0, at=7 * MS)
    ask(script, 2, 0, at=9 * MS)
    first, second = steps(converted(script))
    assert (first.span_id, first.start_ns, first.end_ns) == (span_of(1), OFFSET + 5 * MS, OFFSET + 7 * MS)
    assert (second.span_id, second.start_ns, second.end_ns) == (span_of(2), OFFSET + 9 * MS, OFFSET + 9 * MS)
    assert {span.attributes["grademl.step.kind"] for span in (first, second)} == {"incomplete"}


def test_rows_that_are_given_up_for_others_are_told_at_once() -> None:
    script = MarkScript()
    for serial in range(1, MAX_OPEN_ROWS + 2):
        ask(script, serial, 0, at=serial)
    told = Converter(script.strings).feed(script.marks, 1)
    assert [span.span_id for span in told] == [span_of(1)]


def test_a_successor_tells_what_was_asked_of_a_row_that_was_open() -> None:
    script = MarkScript()
    script.step(1, 0, MS, MS)
    ask(script, 2, 1, at=3 * MS)
    before = len(script.marks)
    script.step(2, 1, 3 * MS, MS)
    first = Converter(script.strings)
    told = first.feed(script.marks[:before], 1)
    progress = first.progress
    second = Converter(script.strings, progress)
    told += second.feed(script.marks[progress.told :], progress.told + 1) + second.finish("exit", [], S)
    assert [span.span_id for span in steps(told)] == [span_of(1), span_of(2)]
