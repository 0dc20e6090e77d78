# SPDX-License-Identifier: Apache-2.0
"""What a run span tells of where the run came from, and a run whose name comes late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.spans import Span
from grademl_otel.runinfo import launching_span
from tests.support.mark_script import INFO, RUN_ID, MarkScript, S

PARENT = "fedcba9876543210fedcba9876543210"
TRACE, SPAN = "ab" * 16, "cd" * 8


def run_span(info: marks.RunInfo) -> Span:
    script = MarkScript(info)
    script.close_scope(1, semconv.RUN, S)
    converter = Converter(script.strings)
    spans = converter.feed(script.marks, 1) + converter.finish("exit", [], S)
    (span,) = [span for span in spans if span.name == semconv.RUN]
    return span


def test_the_run_span_links_to_what_it_came_out_of() -> None:
    span = run_span(replace(INFO, parent=f"{PARENT}/2/70", links=((TRACE, SPAN),)))
    assert span.attributes[semconv.RUN_PARENT] == PARENT
    run_of_parent = (
        semconv.trace_id(PARENT, 2, semconv.TRACE_RUN, 0, semconv.run_shard(70)),
        semconv.span_id(PARENT, 2, semconv.RUN, 0, 70),
    )
    assert [(link.trace_id, link.span_id) for link in span.links] == [
        run_of_parent, (int(TRACE, 16), int(SPAN, 16)),
    ]  # fmt: skip
    assert all(link.attributes == {semconv.LINK_KIND: "parent"} for link in span.links)


@pytest.mark.parametrize("parent", ["", PARENT, f"{PARENT}/0", f"{PARENT}/-1/0", f"{PARENT}/x/0", "a/0/0", 7])
@pytest.mark.parametrize("link", [("", SPAN), (TRACE, "0" * 16), (TRACE.upper(), SPAN), (TRACE, "xy" * 8)])
def test_what_is_no_id_links_to_nothing(parent: object, link: tuple[str, str]) -> None:
    span = run_span(replace(INFO, parent=parent, links=(link,)))  # type: ignore[arg-type]
    assert span.links == []
    assert semconv.RUN_PARENT not in span.attributes


def unnamed(name_comes: bool) -> list[Span]:
    """A rank that has made two steps before it knew its run; what is told by then, and at its death."""
    script = MarkScript(INFO)
    kind, lane, t0, t1, row, text, *_ = script.marks[1]
    assert kind == marks.RUN_INFO
    own = replace(INFO, run_id=PARENT)
    script.marks[1] = (kind, lane, t0, t1, row, script.text(f" {own.to_json()}"), marks.PROVISIONAL, 0)
    script.step(1, 0, S, S)
    script.step(2, 1, 2 * S, S)
    converter = Converter(script.strings)
    assert converter.feed(script.marks, 1) == []
    assert converter.progress.told == 0  # whoever comes after this relay reads all of it again
    number = len(script.marks)
    if name_comes:
        script.add(marks.RUN_INFO, 3 * S, 3 * S, 1, x=text)
    spans = converter.feed(script.marks[number:], number + 1)
    return spans + converter.finish("killed", [], 4 * S)


@pytest.mark.parametrize(("name_comes", "run_id"), [(True, RUN_ID), (False, PARENT)])
def test_nothing_is_told_before_the_name_is_known(name_comes: bool, run_id: str) -> None:
    spans = unnamed(name_comes)
    (run,) = [span for span in spans if span.name == semconv.RUN]
    assert run.trace_id == semconv.trace_id(run_id, 0, semconv.TRACE_RUN)
    assert run.attributes[semconv.STEPS_TOTAL] == 2
    assert len([span for span in spans if span.name == semconv.STEP]) == 2


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ()),
        ({"TRACEPARENT": f"00-{TRACE}-{SPAN}-01"}, ((TRACE, SPAN),)),
        ({"TRACEPARENT": f"00-{TRACE}-{SPAN}-00", "TRACESTATE": "a=b"}, ((TRACE, SPAN),)),
        ({"TRACEPARENT": f"00-{'0' * 32}-{SPAN}-01"}, ()),
        ({"TRACEPARENT": f"00-{TRACE}-{SPAN}"}, ()),
        ({"TRACEPARENT": "nonsense"}, ()),
        ({"traceparent": f"00-{TRACE}-{SPAN}-01"}, ()),
    ],
)
def test_the_span_that_a_process_was_launched_in(
    environ: dict[str, str], found: tuple[tuple[str, str], ...]
) -> None:
    assert launching_span(environ) == found
