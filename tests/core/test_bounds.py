# SPDX-License-Identifier: Apache-2.0
"""No trace grows past what a store takes: spans and bytes, counted with the real conversion and encoder.

Ranks do not talk, so the traces of 16,384 ranks are added up from those of a few: of ranks with the same
bounds each sends what the one of them does that is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grademl_otel import marks, semconv
from grademl_otel.convert.bounds import (
    admitted,
    cells_per_part,
    spans_of_run,
    spans_of_step,
    table_bytes_of_run,
    table_bytes_per_part,
    worker_spans_per_part,
)
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.spans import Resource, Span
from grademl_otel.export import otlp

from ..support.mark_script import MS, RUN_ID, MarkScript, S

WORLDS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 100, 127, 128, 1000, 1024, 4097, 16_383, 16_384]
DAY = 24 * 3600 * S


# --- The bounds as numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
def test_steps_of_all_ranks_fit_one_trace(world: int) -> None:
    each = [spans_of_step(rank, world) for rank in range(world)]
    assert sum(each) <= semconv.MAX_SPANS_PER_TRACE
    assert each == sorted(each, reverse=True)
    assert each[0] >= 250


@pytest.mark.parametrize("world", WORLDS)
def test_scopes_of_the_ranks_of_a_shard_fit_one_trace(world: int) -> None:
    shards: Counter[int] = Counter()
    for rank in range(world):
        assert spans_of_run(rank, world) >= 14
        shards[semconv.run_shard(rank)] += 1 + spans_of_run(rank, world)
    assert max(shards.values()) <= semconv.MAX_SPANS_PER_TRACE


@pytest.mark.parametrize("world", WORLDS)
def test_parts_of_windows_fit_one_trace(world: int) -> None:
    parts: Counter[int] = Counter()
    for rank in range(min(world, 40)):
        for part in range(40):
            parts[semconv.window_shard(rank, part, world)] += 1
    assert max(parts.values()) * (1 + worker_spans_per_part(world)) <= semconv.MAX_SPANS_PER_TRACE
    assert max(parts.values()) * cells_per_part(world) <= 300_000
    assert max(parts.values()) * table_bytes_per_part(world) <= TABLES


@given(st.integers(0, 2000), st.integers(0, 5000))
def test_no_more_are_admitted_than_there_is_room_for(room: int, number: int) -> None:
    given_places = [each for each in range(number) if admitted(each, room)]
    assert len(given_places) <= room
    assert given_places[: (room + 1) // 2] == list(range(min(number, (room + 1) // 2)))


def test_a_run_of_any_length_is_seen_to_its_end() -> None:
    late = [each for each in range(900_000, 1_000_000) if admitted(each, 500)]
    assert 0 < len(late) < 40


# --- The bounds as traces ----------------------------------------------------------------------------------


@dataclass
class Sent:
    """What one rank sent, by trace."""

    spans: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Spans and bytes of each part of a window with what loader workers did, by the id of the window span."""
    times: list[int] = field(default_factory=list)
    """Ends of its spans, in the order sent."""
    last: dict[str, Span] = field(default_factory=dict)

    def take(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.spans[span.trace_id] += 1
            (request,) = otlp.trace_requests(RESOURCE, [span])
            size = len(request.body)
            self.bytes[span.trace_id] += size
            if span.name == semconv.WINDOW or span.name in semconv.WORKER_PHASES:
                part = span.span_id if span.name == semconv.WINDOW else span.parent_id
                spans_so_far, bytes_so_far = self.parts.get(part, (0, 0))
                self.parts[part] = spans_so_far + 1, bytes_so_far + size
            self.times.append(span.end_ns)
            self.last[span.name] = span


RESOURCE = Resource({})
REQUESTS = 100_000
"""Bytes of resources and scopes around the spans of a trace: 50 requests of 2 KB."""
TABLES = 1_200_000
"""Bytes of resource tables in one trace of a window."""


def simulated(
    script: MarkScript,
    steps: Iterable[tuple[int, int]],
    length: int,
    phases: Iterable[str],
    evaluations: int = 0,
) -> Sent:
    """Convert a run with these training steps, all phases and loader workers in each."""
    converter, sent = Converter(script.strings), Sent()
    fed = 0

    def convert(now: int) -> None:
        nonlocal fed
        sent.take(converter.feed(script.marks, fed + 1))
        fed += len(script.marks)
        script.marks.clear()
        sent.take(converter.flush(now))

    serial = 10
    script.open_scope(2, "epoch", 0, number=0)
    end = 0
    for number, start in steps:
        piece = length // (len(phases) + 1)
        for index, name in enumerate(phases):
            lane = f"loader-worker-{number % 7}" if name in semconv.WORKER_PHASES else "main"
            # Each number of the table has all digits that it can have.
            t0 = start + index * piece - (3 * length if name in semconv.WORKER_PHASES else 0)
            t0 = max(t0 + number % 977 * 1000 % max(piece, 1), 0)
            script.phase(
                name, t0, t0 + piece - number % 13 * 1000 % piece, serial, item=(2, number), lane=lane
            )
        end = start + length
        script.row(serial, number, start, end, micro=1 + number % 3, pass_serial=2, samples=32)
        serial += 1
        for index in range(evaluations):
            at = end + index * MS
            script.phase(semconv.FORWARD, at, at + MS // 2, serial)
            script.row(serial, number + 1, at, at + MS, flags=semconv.FLAG_EVALUATE, pass_serial=2)
            serial += 1
        if len(script.marks) > 4000:
            convert(end)
    convert(end)
    sent.take(converter.finish("exit", [], end))
    return sent


COMMON = ["data.wait", "data.fetch", "data.collate", "forward", "backward", "optimizer"]
WORST = [name for name in semconv.PHASES if name not in ("compile", "checkpoint.load", "gc")]


@pytest.mark.parametrize(("world", "rank"), [(1, 0), (2, 1), (4, 3), (16, 15), (64, 63), (16_384, 16_000)])
def test_windows_of_full_tables(world: int, rank: int) -> None:
    """Ranks of 3 ms steps with 13 phases each, in a window of 4,096: the largest tables that there are."""
    first = semconv.window_first_step(300)
    steps = ((first + n, 3 * MS * (first + n)) for n in range(1100))
    sent = simulated(MarkScript(rank=rank, world_size=world), steps, 3 * MS, WORST)

    assert len(sent.parts) > 2
    parts = semconv.ranks_per_shard(world) * semconv.parts_per_shard(world)
    assert max(spans for spans, _ in sent.parts.values()) * parts <= semconv.MAX_SPANS_PER_TRACE
    largest = max(size for _, size in sent.parts.values()) * parts
    assert largest + TABLES + REQUESTS <= semconv.MAX_BYTES_PER_TRACE


@pytest.mark.parametrize("world", [1, 3, 8, 64, 1000, 16_384])
@pytest.mark.parametrize("micro", [1, 4, 60])
def test_traces_of_a_step_over_all_ranks(world: int, micro: int) -> None:
    """All ranks keep the step: those of one class of `spans_of_step` send alike."""
    phases = ["data.wait", "forward", "backward"] * micro + ["optimizer"]
    total_spans, total_bytes = 0, 0
    classes = Counter(spans_of_step(rank, world) for rank in range(world))
    for room, members in classes.items():
        rank = next(rank for rank in range(world) if spans_of_step(rank, world) == room)
        sent = simulated(MarkScript(rank=rank, world_size=world), [(0, 0)], 200 * MS * micro, phases)
        trace = semconv.trace_id(RUN_ID, 0, semconv.TRACE_STEP, 0)
        total_spans += sent.spans[trace] * members
        total_bytes += sent.bytes[trace] * members
    assert 0 < total_spans <= semconv.MAX_SPANS_PER_TRACE
    assert total_bytes + REQUESTS <= semconv.MAX_BYTES_PER_TRACE


@pytest.mark.parametrize("world", [1, 2, 64, 65, 16_384])
def test_run_traces_of_a_thousand_epochs_with_checkpoints(world: int) -> None:
    ranks = {rank: spans_of_run(rank, world) for rank in range(min(world, semconv.RANKS_PER_RUN_SHARD))}
    spans, size = 0, 0
    for room, members in Counter(ranks.values()).items():
        rank = next(rank for rank, own in ranks.items() if own == room)
        script = MarkScript(rank=rank, world_size=world)
        for epoch in range(1000):
            at = epoch * 60 * S
            script.open_scope(2 * epoch + 2, "epoch", at, number=epoch)
            for key in (semconv.LOADER_ID, semconv.LOADER_WORKERS, semconv.LOADER_PREFETCH):
                script.scope_int(2 * epoch + 2, key, 1 << 40)
            script.phase("checkpoint.save", at + S, at + 2 * S, number=1 << 50)
            script.close_scope(2 * epoch + 2, "epoch", at + 50 * S)
            script.open_scope(2 * epoch + 3, "evaluate", at + 51 * S)
            script.close_scope(2 * epoch + 3, "evaluate", at + 59 * S)
        sent = Sent()
        converter = Converter(script.strings)
        sent.take([*converter.feed(script.marks, 1), *converter.finish("exit", [], 60_000 * S)])
        (trace,) = sent.spans
        run = sent.last["run"].attributes
        assert run["grademl.left_out.passes"] + run["grademl.left_out.phases"] == 3001 - sent.spans[trace]  # type: ignore[operator]
        assert run["grademl.spans.emitted"] == sent.spans[trace]
        assert sent.last["epoch"].attributes["grademl.epoch"] > 900 or room < 100  # type: ignore[operator]
        spans += sent.spans[trace] * members
        size += sent.bytes[trace] * members
    tables = sum(table_bytes_of_run(rank, world) for rank in ranks)
    assert spans <= semconv.MAX_SPANS_PER_TRACE
    assert size + tables + REQUESTS <= semconv.MAX_BYTES_PER_TRACE


# --- Days --------------------------------------------------------------------------------------------------


def sampled(length: int, days: int, begin: int, rows: int) -> Iterator[tuple[int, int]]:
    """Steps of the windows before ``begin``, and ``rows`` more after so many days, each ``length`` long."""
    for number in range(semconv.window_first_step(begin)):
        yield number, number * length
    late = semconv.window_first_step(semconv.window_of_step(days * DAY // length))
    for number in range(late, late + rows):
        yield number, number * length


@pytest.mark.parametrize(
    ("length", "days", "begin", "rows", "evaluations"),
    [(MS, 30, 8, 4200, 0), (S // 2, 30, 5, 600, 0), (30 * S, 30, 4, 300, 0), (S, 5, 5, 300, 6)],
    ids=["steps of 1 ms", "steps of 0.5 s", "steps of 30 s", "more evaluation than training"],
)
def test_a_run_of_days(length: int, days: int, begin: int, rows: int, evaluations: int) -> None:
    steps = sampled(length, days, begin, rows)
    sent = simulated(MarkScript(), steps, length * 9 // 10, [*COMMON, "checkpoint.save"], evaluations)

    assert max(sent.spans.values()) <= semconv.MAX_SPANS_PER_TRACE
    assert max(sent.bytes.values()) + TABLES + REQUESTS <= semconv.MAX_BYTES_PER_TRACE
    by_minute = Counter(end // (60 * S) for end in sent.times)
    assert max(by_minute.values()) <= 60 * 200, "spans in the busiest minute"
    assert sent.last["run"].attributes["grademl.left_out.phases"] > 0  # type: ignore[operator]


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from([MS, 20 * MS]), min_size=2, max_size=4))
def test_kept_sets_are_nested_across_ranks(lengths: list[int]) -> None:
    """However different their steps and so their levels: what the coarsest keeps, all keep."""
    kept = []
    levels = []
    for rank, length in enumerate(lengths):
        script = MarkScript(rank=rank, world_size=len(lengths))
        for number in range(1500):
            script.step(10 + number, number, number * length, length)
        converter = Converter(script.strings)
        spans = [*converter.feed(script.marks, 1), *converter.finish("exit", [], 1500 * length)]
        kept.append({s.attributes["grademl.step"] for s in spans if s.name == "step"})
        found = {}
        for span in spans:
            if span.name == "window":
                found[span.attributes["grademl.window"]] = span.attributes["grademl.window.detail_level"]
        levels.append(found)
    for number in range(1500):
        window = semconv.window_of_step(number)
        coarsest = max(own[window] for own in levels)  # type: ignore[type-var]
        if semconv.detail_bits(RUN_ID, number) >= coarsest:  # type: ignore[operator]
            assert all(number in own for own in kept)


def test_evaluation_without_training_raises_the_level_in_its_window() -> None:
    script = MarkScript()
    for number in range(20_000):
        script.phase("forward", number * MS, number * MS + MS // 2, 10 + number)
        script.row(10 + number, 5, number * MS, (number + 1) * MS, flags=semconv.FLAG_EVALUATE)
    converter = Converter(script.strings)
    spans = [*converter.feed(script.marks, 1), *converter.finish("exit", [], 20 * S)]
    levels = [s.attributes["grademl.window.detail_level"] for s in spans if s.name == "window"]
    assert levels == sorted(levels)  # type: ignore[type-var]
    assert sum(s.name != "window" for s in spans) < 20 * 200 + 3000


def test_incomplete_steps_have_a_budget() -> None:
    script = MarkScript()
    for number in range(5000):
        script.phase("forward", number * MS, number * MS + MS // 2, 10 + number)
        script.row(10 + number, 5, number * MS, (number + 1) * MS, flags=semconv.FLAG_INCOMPLETE)
    converter = Converter(script.strings)
    spans = [*converter.feed(script.marks, 1), *converter.finish("exit", [], 5 * S)]
    assert sum(s.name == "step" for s in spans) < 400


def test_rows_that_stand_for_several_steps_count_as_these() -> None:
    script = MarkScript()
    for number in range(0, 48, 16):
        packed = marks.pack_row(marks.SEVERAL, 0, 0)
        script.add(marks.ROW, number * MS, (number + 16) * MS, 10 + number, x=number, y=packed, z=16)
    converter = Converter(script.strings)
    spans = [*converter.feed(script.marks, 1), *converter.finish("exit", [], 48 * MS)]
    windows = [s.attributes for s in spans if s.name == "window"]
    assert [w["grademl.window"] for w in windows] == [0, 1]
    assert [w["grademl.window.cumulative_steps"] for w in windows] == [16, 48]
    assert all(w["grademl.window.last"] for w in windows)
    assert [w["grademl.table.steps"] for w in windows] == [[16], [16]]
    assert not any(s.name == "step" for s in spans)


def test_ranks_of_which_nobody_knows_how_many_there_are() -> None:
    """Children of multiprocessing without a process group: each takes what one of very many may."""
    assert sum(spans_of_step(rank, 0) for rank in range(20_000)) <= semconv.MAX_SPANS_PER_TRACE
    assert sum(1 + spans_of_run(rank, 0) for rank in range(64)) <= semconv.MAX_SPANS_PER_TRACE
    assert semconv.ranks_per_shard(0) * semconv.parts_per_shard(0) * cells_per_part(0) <= 300_000
