# SPDX-License-Identifier: Apache-2.0
"""The conversion under marks that no recorder writes: it neither raises nor emits an impossible span."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import marks, semconv
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.progress import Progress
from grademl_otel.convert.spans import Resource, Span
from grademl_otel.export import otlp, otlpjson
from grademl_otel.ring.reader import Mark, OpenPhase

from ..support.mark_script import MarkScript

small = st.integers(-2, 40)
wild = st.one_of(small, st.integers(-(1 << 63), (1 << 63) - 1))
times = st.one_of(st.integers(0, 10**12), wild)
kinds = st.one_of(
    st.integers(0, 80),
    st.sampled_from([marks.ROW, marks.SCOPE_OPEN, marks.SCOPE_CLOSE]),
    st.sampled_from([marks.ROW_DEVICE, marks.DEVICE_MEMORY, marks.device_kind(semconv.FORWARD)]),
    st.integers(0, 65_535),
)
any_mark = st.tuples(kinds, st.integers(0, 65_535), times, times, wild, wild, wild, wild)


def consistent(spans: list[Span]) -> None:
    for span in spans:
        assert 0 < span.trace_id < 1 << 128
        assert 0 < span.span_id < 1 << 64
        assert 0 <= span.parent_id < 1 << 64
        assert 0 < span.start_ns <= span.end_ns < 1 << 64
        lengths = {
            len(value)  # type: ignore[arg-type]
            for key, value in span.attributes.items()
            if key.startswith(semconv.TABLE_PREFIX) and key != semconv.TABLE_VERSION
        }
        assert len(lengths - {1}) <= 1
        assert max(lengths, default=0) <= semconv.MAX_ROWS_PER_PART
    # Whatever came out can be written, every integer included.
    list(otlp.trace_requests(Resource({}), spans))
    otlpjson.trace_line(Resource({}), spans)


@settings(max_examples=100, deadline=None)
@given(
    batches=st.lists(st.lists(any_mark, max_size=30), max_size=4),
    phases=st.lists(st.tuples(st.integers(0, 65_535), st.integers(0, 65_535), wild), max_size=3),
    how=st.sampled_from(["exit", "killed"]),
    now=times,
)
def test_any_marks(batches: list[list[Mark]], phases: list[tuple[int, int, int]], how: str, now: int) -> None:
    script = MarkScript()
    script.text("main")
    converter = Converter(script.strings)
    spans = converter.feed(script.marks, 1)
    sequence = len(script.marks) + 1
    for batch in batches:
        spans += converter.feed(batch, sequence)
        sequence += len(batch)
        spans += converter.flush(now)
        progress = converter.progress
        assert 0 <= progress.told <= progress.fed == sequence - 1
        raw = progress.to_bytes(560)
        assert not raw or Progress.from_bytes(raw) is not None or max(map(abs, flat(progress))) >= 1 << 62
    spans += converter.finish(how, [OpenPhase(*phase) for phase in phases], now)  # type: ignore[arg-type]
    consistent(spans)


def flat(progress: Progress) -> list[int]:
    return [
        progress.run_serial,
        progress.run_start,
        progress.next_step,
        *(n for s in progress.scopes for n in s),
    ]


@settings(max_examples=50, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 400), max_size=6),
    durations=st.lists(st.integers(1, 300), min_size=1, max_size=100),
    behind=st.integers(0, 20),
)
def test_batches_make_no_difference(cuts: list[int], durations: list[int], behind: int) -> None:
    """However the marks are cut into batches, the spans and their order are the same.

    Every second row has device times, which come ``behind`` rows later.
    """
    script = MarkScript()
    at = 0
    for step, duration in enumerate(durations):
        script.step(10 + step, step, at, duration * 1_000_000)
        at += duration * 1_000_000
        if step % 2:
            kind, lane, t0, t1, serial, number, packed, samples = script.marks[-1]
            later = packed | marks.DEVICE_LATER
            script.marks[-1] = kind, lane, t0, t1, serial, number, later, samples
        if step >= behind and (step - behind) % 2:
            serial = 10 + step - behind
            script.add(marks.device_kind(semconv.FORWARD), at - 1, at, serial, y=0, lane="stream-0.0")
            script.add(marks.ROW_DEVICE, at, at, serial, x=0)
    whole = Converter(script.strings)
    expected = [*whole.feed(script.marks, 1), *whole.finish("exit", [], at)]
    parts = Converter(script.strings)
    found = []
    edges = sorted({0, *(min(cut, len(script.marks)) for cut in cuts), len(script.marks)})
    for start, end in pairwise(edges):
        found += parts.feed(script.marks[start:end], start + 1)
    found += parts.finish("exit", [], at)

    assert [(s.name, s.start_ns, s.end_ns, s.attributes) for s in found] == [
        (s.name, s.start_ns, s.end_ns, s.attributes) for s in expected
    ]
    # Nothing is lost and nothing overlaps: the rows tile the run.
    rows = [
        (window.start_ns + 1000 * start, 1000 * duration)
        for window in found
        if window.name == semconv.WINDOW
        for start, duration in zip(column(window, "start_us"), column(window, "dur_us"), strict=True)
    ]
    assert [duration for _, duration in rows] == [duration * 1_000_000 for duration in durations]
    assert all(a + b == c for (a, b), (c, _) in pairwise(rows))


def column(window: Span, name: str) -> list[int]:
    rows = len(window.attributes["grademl.table.start_us"])  # type: ignore[arg-type]
    values = list(window.attributes[f"grademl.table.{name}"])  # type: ignore[arg-type]
    return values * rows if len(values) == 1 else values  # type: ignore[return-value]
