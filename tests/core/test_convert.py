# SPDX-License-Identifier: Apache-2.0
"""The conversion against tables and trees computed by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from grademl_otel import marks, semconv
from grademl_otel.convert import cuts
from grademl_otel.convert.converter import Converter
from grademl_otel.convert.detail import LevelGovernor, OutlierDetector
from grademl_otel.convert.progress import Progress
from grademl_otel.convert.spans import Span
from grademl_otel.convert.windows import part_interval
from grademl_otel.ring.reader import OpenPhase

from ..support.mark_script import INFO, MS, OFFSET, RUN_ID, MarkScript, S

RUN_TRACE = semconv.trace_id(RUN_ID, 0, "run")
RUN_SPAN = semconv.span_id(RUN_ID, 0, "run", 0, 0)


def converted(script: MarkScript, end: int = 10 * S, how: str = "exit", **finish: Any) -> list[Span]:
    converter = Converter(script.strings)
    spans = converter.feed(script.marks, 1)
    return spans + converter.finish(how, finish.get("open_phases", []), end, finish.get("totals"))  # type: ignore[arg-type]


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def only(spans: list[Span], name: str) -> Span:
    found = named(spans, name)
    assert len(found) == 1, f"{len(found)} spans named {name}"
    return found[0]


def table(span: Span) -> dict[str, Any]:
    prefix = semconv.TABLE_PREFIX
    return {key[len(prefix) :]: value for key, value in span.attributes.items() if key.startswith(prefix)}


# --- Run and passes ---------------------------------------------------------------------------------------


def test_run_span() -> None:
    script = MarkScript(start=5 * MS)
    script.scope_text(1, semconv.DEVICE, "cpu")
    script.close_scope(1, "run", 900 * MS)
    totals = [0] * marks.ACC_SLOTS
    totals[marks.ACC_STEPS], totals[marks.ACC_EVAL_STEPS], totals[marks.ACC_COST_NS] = 7, 3, 895 * MS // 100

    run = only(converted(script, totals=totals), "run")

    assert (run.trace_id, run.span_id, run.parent_id) == (RUN_TRACE, RUN_SPAN, 0)
    assert (run.start_ns, run.end_ns) == (OFFSET + 5 * MS, OFFSET + 900 * MS)
    assert run.error is None
    assert run.attributes == {
        "grademl.lane": "main",
        "grademl.script": "train.py",
        "grademl.exporters": ["file"],
        "grademl.device": "cpu",
        "grademl.steps": 7,
        "grademl.eval_steps": 3,
        "grademl.incomplete_steps": 0,
        "grademl.tracer.cost_fraction": pytest.approx(0.01),
        "grademl.tracer.dropped": 0,
        "grademl.spans.emitted": 1,
        "grademl.ended": "exit",
    }


def test_run_of_another_rank_is_a_child_of_rank_zero() -> None:
    run = only(converted(MarkScript(rank=3, world_size=4)), "run")

    assert run.parent_id == RUN_SPAN
    assert run.span_id == semconv.span_id(RUN_ID, 0, "run", 0, 3)


def test_run_that_ended_by_an_exception() -> None:
    script = MarkScript()
    script.close_scope(1, "run", S, error="ZeroDivisionError")

    run = only(converted(script), "run")

    assert run.error == "ZeroDivisionError"
    assert run.attributes["error.type"] == "ZeroDivisionError"
    assert run.attributes["grademl.ended"] == "exception"
    assert "grademl.terminated" not in run.attributes


def test_passes_are_named_at_their_close() -> None:
    script = MarkScript()
    script.open_scope(2, "epoch", 1 * MS, number=0)
    script.scope_int(2, semconv.LOADER_ID, 0)
    script.scope_bool(2, semconv.LOADER_IN_ORDER, True)
    script.scope_double(2, "ratio", 0.5)
    script.step(10, 0, 2 * MS, 2 * MS, pass_serial=2)
    script.open_scope(3, "epoch", 5 * MS, parent=2, number=1)
    script.phase(semconv.FORWARD, 5 * MS, 6 * MS, 11)
    script.row(11, 1, 5 * MS, 6 * MS, flags=semconv.FLAG_EVALUATE, pass_serial=3)
    script.close_scope(3, "evaluate", 7 * MS)
    script.close_scope(2, "epoch", 9 * MS)

    spans = converted(script)
    epoch, evaluate = only(spans, "epoch"), only(spans, "evaluate")

    assert epoch.parent_id == RUN_SPAN
    assert evaluate.parent_id == epoch.span_id
    assert epoch.trace_id == evaluate.trace_id == RUN_TRACE
    assert (epoch.start_ns - OFFSET, epoch.end_ns - OFFSET) == (1 * MS, 9 * MS)
    assert epoch.attributes == {
        "grademl.lane": "main",
        "grademl.loader.id": 0,
        "grademl.loader.in_order": True,
        "ratio": 0.5,
        "grademl.steps": 1,
        "grademl.eval_steps": 0,
        "grademl.epoch": 0,
    }
    assert epoch.attributes["grademl.loader.in_order"] is True
    assert evaluate.attributes == {"grademl.lane": "main", "grademl.steps": 0, "grademl.eval_steps": 1}


# --- Window table -----------------------------------------------------------------------------------------


def test_table_by_hand() -> None:
    script = MarkScript()
    script.open_scope(2, "epoch", 0, number=0)
    script.scope_int(2, semconv.LOADER_ID, 4)
    # The first batch was fetched by worker 1, before the window begins.
    script.phase("data.fetch", 1_000_500, 2_000_000, 10, item=(2, 0), lane="loader4-worker-1")
    script.phase("data.wait", 3_000_000, 3_400_900, 10, item=(2, 0))
    script.phase("forward", 3_500_000, 4_000_000, 10)
    script.phase("backward", 4_000_000, 4_600_000, 10)
    script.row(10, 0, 3_000_000, 5_000_700, pass_serial=2, samples=32)
    # Two micro-batches; fetched inline.
    script.phase("data.fetch", 5_100_000, 5_200_000, 11, item=(2, 1))
    script.phase("data.wait", 5_000_700, 5_300_000, 11, item=(2, 1))
    script.phase("forward", 5_300_000, 5_400_600, 11)
    script.phase("data.wait", 5_400_600, 5_500_000, 11, item=(2, 2))
    script.phase("forward", 5_500_000, 5_600_900, 11)
    script.row(11, 1, 5_000_700, 6_000_000, micro=2, pass_serial=2)
    script.phase("forward", 6_100_000, 6_200_000, 12)
    script.row(12, 2, 6_100_000, 6_200_000, flags=semconv.FLAG_EVALUATE, micro=0)

    window = only(converted(script), "window")

    assert (window.start_ns, window.end_ns) == (OFFSET + 3_000_000, OFFSET + 6_200_000)
    assert window.trace_id == semconv.trace_id(RUN_ID, 0, "window", 0, 0)
    assert window.span_id == semconv.span_id(RUN_ID, 0, "window", 0, 0, 0)
    assert window.parent_id == 0
    assert [(link.trace_id, link.span_id, link.attributes) for link in window.links] == [
        (RUN_TRACE, RUN_SPAN, {"grademl.link.kind": "run"})
    ]
    assert table(window) == {
        "version": 1,
        "step": [0, 1, 2],
        "start_us": [0, 2000, 3100],
        "dur_us": [2000, 1000, 100],
        "micro": [1, 2, 0],
        "flags": [8, 8, 4 | 8],
        "item.pass": [2, 2, -1],
        "item.batch": [0, 1, -1],
        "item.loader": [4, 4, -1],
        "item.worker": [1, -1, -1],
        "data.wait.first_us": [0, 2000, -1],
        "data.wait.busy_us": [400, 398, 0],
        "data.wait.count": [1, 2, 0],
        "data.fetch.first_us": [-2000, 2100, -1],
        "data.fetch.busy_us": [999, 100, 0],
        "data.fetch.count": [1, 1, 0],
        "forward.first_us": [500, 2300, 3100],
        "forward.busy_us": [500, 201, 100],
        "forward.count": [1, 2, 1],
        "backward.first_us": [1000, -1, -1],
        "backward.busy_us": [600, 0, 0],
        "backward.count": [1, 0, 0],
    }
    attributes = {key: value for key, value in window.attributes.items() if ".table." not in key}
    assert attributes == {
        "grademl.window": 0,
        "grademl.window.part": 0,
        "grademl.window.last": True,
        "grademl.window.cumulative_steps": 2,
        "grademl.window.cumulative_eval_steps": 1,
        "grademl.window.cumulative_rows": 3,
        "grademl.window.detail_level": 0,
        "grademl.window.record_level": 0,
        "grademl.script": "train.py",
        # Three steps of 1 + 3, 1 + 5 and 1 + 1 spans, one fetch of a worker, this one.
        "grademl.spans.emitted": 4 + 6 + 2 + 1 + 1,
        "grademl.tracer.dropped": 0,
    }


def test_equal_columns_are_folded_and_one_row_is_one_element() -> None:
    script = MarkScript()
    for step in range(3):
        script.step(10 + step, step, (10 + step) * 10 * MS, 10 * MS)
    columns = table(only(converted(script), "window"))
    assert columns["step"] == [0, 1, 2]
    assert columns["start_us"] == [0, 10_000, 20_000]
    assert columns["dur_us"] == [10_000]
    assert columns["forward.busy_us"] == [4000]
    assert columns["item.worker"] == [-1]

    script = MarkScript()
    script.step(10, 0, 0, 10 * MS)
    assert all(
        len(value) == 1 for key, value in table(only(converted(script), "window")).items() if key != "version"
    )


def rows_of(spans: list[Span]) -> int:
    return sum(len(table(window)["start_us"]) for window in named(spans, "window"))


def test_windows_follow_the_step_number() -> None:
    script = MarkScript()
    for step in range(60):
        script.step(10 + step, step, step * MS, MS)

    windows = named(converted(script), "window")

    assert [(w.attributes["grademl.window"], len(table(w)["start_us"])) for w in windows] == [
        (0, 16),
        (1, 32),
        (2, 12),
    ]
    assert [w.attributes["grademl.window.last"] for w in windows] == [True, True, True]
    assert [w.attributes["grademl.window.cumulative_rows"] for w in windows] == [16, 48, 60]


def test_window_of_a_killed_run_is_not_its_last_part() -> None:
    script = MarkScript()
    for step in range(20):
        script.step(10 + step, step, step * MS, MS)

    windows = named(converted(script, how="killed"), "window")

    assert [w.attributes["grademl.window.last"] for w in windows] == [True, False]


def test_window_whose_last_step_was_lost_is_not_complete() -> None:
    script = MarkScript()
    for step in (*range(10), *range(16, 20)):
        script.step(10 + step, step, step * MS, MS)

    windows = named(converted(script), "window")

    assert [w.attributes["grademl.window.last"] for w in windows] == [False, True]


def test_parts_are_cut_by_time() -> None:
    script = MarkScript()
    for step in range(12):
        script.step(10 + step, step, step * S, S)

    windows = named(converted(script, end=12 * S), "window")

    assert [len(table(w)["start_us"]) for w in windows] == [5, 5, 2]
    assert [w.attributes["grademl.window.part"] for w in windows] == [0, 1, 2]
    assert [w.attributes["grademl.window.last"] for w in windows] == [False, False, True]
    assert len({w.span_id for w in windows}) == 3
    assert len({w.trace_id for w in windows}) == 1


def test_parts_are_cut_at_512_rows() -> None:
    script = MarkScript()
    first = semconv.window_first_step(7)
    for step in range(first, first + 1100):
        script.row(10 + step, step, step * 1000, step * 1000 + 1000)

    windows = named(converted(script), "window")

    assert [len(table(w)["start_us"]) for w in windows] == [512, 512, 76]


def test_flush_sends_rows_while_a_long_step_runs() -> None:
    script = MarkScript()
    script.step(10, 0, 0, 2 * S)
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    assert converter.flush(4 * S) == []
    assert [span.name for span in converter.flush(5 * S)] == ["window"]
    assert converter.flush(60 * S) == []


@pytest.mark.parametrize(
    ("age_s", "interval_s"), [(0, 5), (59, 5), (60, 5), (120, 10), (720, 60), (10**6, 60)]
)
def test_part_interval(age_s: int, interval_s: int) -> None:
    assert part_interval(age_s * S) == interval_s * S


def test_parts_of_16_share_a_trace() -> None:
    script = MarkScript()
    for step in range(16, 48):  # window 1; each step is long enough to be a part of its own
        script.step(10 + step, step, step * 60 * S, 60 * S)

    windows = named(converted(script), "window")
    shards = Counter(window.trace_id for window in windows)

    assert shards == {
        semconv.trace_id(RUN_ID, 0, "window", 1, 0): 16,
        semconv.trace_id(RUN_ID, 0, "window", 1, 1): 16,
    }


# --- Detail -----------------------------------------------------------------------------------------------


def test_step_tree() -> None:
    script = MarkScript()
    script.open_scope(2, "epoch", 0, number=0)
    script.phase("data.wait", 10 * MS, 14 * MS, 10, item=(2, 5))
    script.phase("data.fetch", 11 * MS, 12 * MS, 10, item=(2, 5))
    script.phase("data.collate", 12 * MS, 13 * MS, 10, item=(2, 5))
    script.phase("forward", 14 * MS, 15 * MS, 10)
    script.phase("recompute", 16 * MS, 17 * MS, 10)
    script.phase("backward", 15 * MS, 18 * MS, 10)
    script.phase("data.fetch", 1 * MS, 3 * MS, 10, item=(2, 5), lane="loader-worker-0")
    script.row(10, 0, 10 * MS, 20 * MS, micro=1, pass_serial=2, samples=64)

    spans = converted(script)
    step = only(spans, "step")

    assert step.trace_id == semconv.trace_id(RUN_ID, 0, "step", 0)
    assert step.span_id == semconv.span_id(RUN_ID, 0, "step", 10, 0)
    assert step.parent_id == 0
    assert (step.links[0].trace_id, step.links[0].span_id) == (RUN_TRACE, RUN_SPAN)
    assert step.attributes == {
        "grademl.lane": "main",
        "grademl.step": 0,
        "grademl.step.kind": "train",
        "grademl.step.micro": 1,
        "grademl.weight": 1,
        "grademl.evidence": "inferred",
        "grademl.step.samples": 64,
        "grademl.epoch": 0,
    }
    wait, backward = only(spans, "data.wait"), only(spans, "backward")
    inline, remote = named(spans, "data.fetch")
    if inline.attributes["grademl.lane"] != "main":
        inline, remote = remote, inline
    assert wait.parent_id == backward.parent_id == only(spans, "forward").parent_id == step.span_id
    assert only(spans, "recompute").parent_id == backward.span_id
    assert inline.parent_id == only(spans, "data.collate").parent_id == wait.span_id
    assert wait.attributes == {"grademl.lane": "main", "grademl.step": 0, "grademl.item": "2:5"}
    assert backward.attributes == {"grademl.lane": "main", "grademl.step": 0}
    window = only(spans, "window")
    assert (remote.trace_id, remote.parent_id) == (window.trace_id, window.span_id)
    assert remote.attributes == {"grademl.lane": "loader-worker-0", "grademl.step": 0, "grademl.item": "2:5"}


def test_evaluation_and_incomplete_steps_have_traces_of_their_own() -> None:
    script = MarkScript()
    script.step(10, 0, 0, MS)
    for serial in (11, 12):
        script.phase("forward", serial * MS, (serial + 1) * MS, serial)
        script.row(serial, 1, serial * MS, (serial + 1) * MS, flags=semconv.FLAG_EVALUATE)
    script.phase("forward", 20 * MS, 21 * MS, 13)
    script.row(13, 1, 20 * MS, 21 * MS, flags=semconv.FLAG_INCOMPLETE)

    steps = named(converted(script), "step")

    assert [step.trace_id for step in steps] == [
        semconv.trace_id(RUN_ID, 0, "step", 0),
        semconv.trace_id(RUN_ID, 0, "evalstep", 0),
        semconv.trace_id(RUN_ID, 0, "evalstep", 1),
        semconv.trace_id(RUN_ID, 0, "incomplete", 13),
    ]
    assert steps[3].span_id == semconv.span_id(RUN_ID, 0, "step", 13, 0)
    kinds = [step.attributes["grademl.step.kind"] for step in steps]
    assert kinds == ["train", "evaluate", "evaluate", "incomplete"]
    assert [step.attributes["grademl.step"] for step in steps] == [0, 1, 1, 1]


def fast_run(steps: int, outlier: int = -1, duration: int = MS) -> list[Span]:
    script = MarkScript()
    at = 0
    for step in range(steps):
        length = 4 * duration if step == outlier else duration
        script.step(10 + step, step, at, length)
        at += length
    return converted(script, end=at)


def test_updates_that_were_skipped_are_said() -> None:
    script = MarkScript()
    for serial, skipped in ((1, 0), (2, 2)):
        at = serial * S
        for number in (1, 1) if skipped else (0, 0):
            script.phase("optimizer", at, at + MS, serial, number=number)
        script.row(serial, serial - 1, at, at + 200 * MS)

    spans = converted(script)

    flags = table(only(spans, "window"))["flags"]
    assert [flag & semconv.FLAG_SKIPPED for flag in flags] == [0, semconv.FLAG_SKIPPED]
    assert [span.attributes.get("grademl.step.skipped") for span in named(spans, "step")] == [None, 2]


def test_kept_steps_are_those_that_the_level_says() -> None:
    spans = fast_run(2000)
    kept = {
        step.attributes["grademl.step"]: step.attributes["grademl.weight"] for step in named(spans, "step")
    }
    expected = {}
    for window in named(spans, "window"):
        level = window.attributes["grademl.window.detail_level"]
        first = semconv.window_first_step(window.attributes["grademl.window"])  # type: ignore[arg-type]
        for step in range(
            first, min(2000, semconv.window_first_step(window.attributes["grademl.window"] + 1))
        ):  # type: ignore[operator]
            if semconv.detail_bits(RUN_ID, step) >= level:  # type: ignore[operator]
                expected[step] = 1 << level  # type: ignore[operator]
    levels = [window.attributes["grademl.window.detail_level"] for window in named(spans, "window")]

    assert kept == expected
    assert levels == sorted(levels)
    assert max(levels) >= 5  # type: ignore[type-var]
    detailed = [flags for w in named(spans, "window") for flags in unfolded(w, "flags") if flags & 8]
    assert len(detailed) == len(kept)
    assert rows_of(spans) == 2000


def unfolded(window: Span, column: str) -> list[int]:
    values, rows = table(window)[column], len(table(window)["start_us"])
    return list(values) * rows if len(values) == 1 else list(values)


def test_outlier_is_kept_out_of_turn_with_weight_zero() -> None:
    outlier = next(s for s in range(1500, 2000) if semconv.detail_bits(RUN_ID, s) == 0)
    spans = fast_run(2000, outlier)

    step = next(step for step in named(spans, "step") if step.attributes["grademl.step"] == outlier)
    flags = [flag for window in named(spans, "window") for flag in unfolded(window, "flags")]

    assert step.attributes["grademl.weight"] == 0
    told = [each for each in named(spans, "step") if "grademl.step.outlier" in each.attributes]
    assert told == [step]
    assert step.attributes["grademl.step.outlier"] is True
    assert flags[outlier] == semconv.FLAG_OUTLIER | semconv.FLAG_DETAILED
    assert sum(flag & semconv.FLAG_OUTLIER for flag in flags) == 1


def test_slow_steps_are_all_kept() -> None:
    spans = fast_run(200, duration=100 * MS)

    assert len(named(spans, "step")) == 200
    assert {step.attributes["grademl.weight"] for step in named(spans, "step")} == {1}


def test_emission_stays_near_the_target() -> None:
    seconds = 20
    spans = fast_run(seconds * 1000)
    detail = sum(span.name not in ("run", "window") for span in spans)

    # Windows of the beginning are dense; after them the governor holds 100 a second.
    assert detail < 100 * seconds + 1000


def test_governor_moves_by_one_and_not_for_ever() -> None:
    governor = LevelGovernor()
    for window in range(200):
        governor.count(10**6, window * S)
        governor.next((window + 1) * S)
        assert governor.level <= window + 1
    assert governor.level == 40
    for window in range(200, 300):
        governor.next((window + 1) * S)
    assert governor.level == 0


def test_outliers_need_a_history_and_a_budget() -> None:
    detector = OutlierDetector()
    assert not any(detector.is_outlier(length) for length in (1, 100, 1, 100, 1, 100, 1, 100))
    steady = OutlierDetector()
    assert not any(steady.is_outlier(10) for _ in range(64))
    assert not steady.is_outlier(20)
    assert steady.is_outlier(21)
    spent = sum(steady.afford(10, 0) for _ in range(1000))
    assert spent == 50
    assert not steady.afford(26, S)
    assert steady.afford(25, 2 * S)


def test_step_of_very_many_phases_is_cut() -> None:
    script = MarkScript()
    for index in range(3000):
        script.phase("forward", index * 1000, index * 1000 + 900, 10)
    script.phase("data.wait", 3_000_000, 3_100_000, 10)
    script.row(10, 0, 0, 4 * MS)

    spans = converted(script)

    assert len(spans) <= semconv.MAX_SPANS_PER_TRACE + 2
    columns = table(only(spans, "window"))
    assert columns["forward.count"] == [3000]
    assert columns["forward.busy_us"] == [2700]
    assert columns["data.wait.count"] == [1]


# --- Phases outside of rows -------------------------------------------------------------------------------


def test_checkpoints_go_into_the_run_trace() -> None:
    script = MarkScript()
    script.phase("checkpoint.load", 1 * MS, 2 * MS, number=4096)
    script.open_scope(2, "epoch", 3 * MS, number=0)
    script.phase("backward", 4 * MS, 5 * MS, 10)
    script.phase("checkpoint.save", 5 * MS, 7 * MS, 10)
    script.row(10, 0, 3 * MS, 8 * MS, pass_serial=2)
    script.phase("forward", 8 * MS, 9 * MS)
    script.phase("gc", 9 * MS, 10 * MS)
    script.close_scope(2, "epoch", 11 * MS)

    spans = converted(script)
    load, save, epoch = only(spans, "checkpoint.load"), only(spans, "checkpoint.save"), only(spans, "epoch")

    assert load.trace_id == save.trace_id == RUN_TRACE
    assert load.parent_id == RUN_SPAN
    assert load.attributes == {"grademl.lane": "main", "grademl.bytes": 4096}
    assert save.parent_id == epoch.span_id
    assert save.attributes == {"grademl.lane": "main", "grademl.step": 0}
    assert only(spans, "gc").parent_id == epoch.span_id
    assert named(spans, "forward") == []
    assert table(only(spans, "window"))["checkpoint.save.busy_us"] == [2000]


def test_phases_of_a_row_that_never_closes_stand_outside() -> None:
    script = MarkScript()
    script.phase("data.wait", 1 * MS, 2 * MS, 10)
    script.phase("checkpoint.save", 2 * MS, 3 * MS, 10)

    spans = converted(script)

    assert [span.name for span in spans] == ["checkpoint.save", "run"]
    assert "grademl.step" not in spans[0].attributes


def test_run_trace_is_bounded() -> None:
    script = MarkScript()
    for index in range(3000):
        script.phase("gc", index * MS, index * MS + 1)

    spans = converted(script)
    assert 600 < len(spans) <= 1000
    assert only(spans, "run").attributes["grademl.left_out.phases"] == 3001 - len(spans)


def test_rows_whose_mark_was_lost_are_given_up() -> None:
    script = MarkScript()
    for serial in range(10, 2000):
        script.phase("forward", serial * MS, serial * MS + 1, serial)
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    assert len(converter._open_rows) <= 256


# --- Deaths -----------------------------------------------------------------------------------------------


def test_killed_in_a_forward_after_a_step() -> None:
    script = MarkScript()
    script.open_scope(2, "epoch", 0, number=0)
    script.step(10, 0, 0, 10 * MS, pass_serial=2)
    script.phase("data.wait", 10 * MS, 12 * MS, 11, item=(2, 1))
    script.phase("forward", 12 * MS, 13 * MS, 11)
    forward = OpenPhase(script.text("main"), marks.phase_kind("forward"), 14 * MS)
    other = OpenPhase(script.text("checkpoint-thread"), marks.phase_kind("checkpoint.save"), 15 * MS)

    spans = converted(script, how="killed", end=99 * S, open_phases=[other, forward])
    run, epoch, window = only(spans, "run"), only(spans, "epoch"), only(spans, "window")

    assert run.error == epoch.error == "killed"
    assert run.attributes["grademl.ended"] == run.attributes["grademl.terminated"] == "killed"
    assert epoch.attributes["grademl.terminated"] == "killed"
    assert run.attributes["grademl.open_phase"] == "forward"
    assert run.attributes["grademl.incomplete_steps"] == 1
    assert run.end_ns == epoch.end_ns == OFFSET + 13 * MS
    columns = table(window)
    assert columns["flags"] == [8, 2 | 8]
    assert columns["step"] == [0, 1]
    assert columns["dur_us"] == [10_000, 3000]
    assert columns["item.batch"] == [0, 1]
    assert window.attributes["grademl.window.last"] is False


def test_killed_while_it_waited_for_data() -> None:
    script = MarkScript()
    script.step(10, 0, 0, 10 * MS)
    script.phase("data.fetch", 10 * MS, 12 * MS, 11, item=(2, 1), lane="loader-worker-0")

    spans = converted(script, how="killed")

    assert table(only(spans, "window"))["step"] == [0]
    assert "grademl.open_phase" not in only(spans, "run").attributes


@pytest.mark.parametrize("provisional", [False, True])
def test_a_run_whose_beginning_is_lost_is_told_from_there_on(provisional: bool) -> None:
    script = MarkScript()
    if provisional:
        script.strings = [f" {text}" if text.startswith("{") else text for text in script.strings]
    lapped = len(script.marks)
    script.step(10, 7, 30 * MS, 10 * MS)
    script.scope_text(1, "grademl.run.name", "long")
    converter = Converter(script.strings)
    converter.lost = lapped
    spans = converter.feed(script.marks[lapped:], lapped + 1)
    assert (converter.info is None) == provisional
    spans += converter.finish("killed", [], 99 * S)

    run = only(spans, "run")
    assert (run.start_ns, run.end_ns) == (OFFSET + 30 * MS, OFFSET + 40 * MS)
    assert run.attributes["grademl.run.name"] == "long"
    assert run.attributes["grademl.tracer.dropped"] == lapped
    assert table(only(spans, "window"))["step"] == [7]


def test_killed_when_gradients_were_zeroed_for_the_step_after() -> None:
    script = MarkScript()
    script.step(10, 0, 0, 10 * MS)
    script.phase("forward", 10 * MS, 12 * MS, 11)
    script.phase("optimizer", 12 * MS, 13 * MS, 11)
    script.phase("zero_grad", 13 * MS, 14 * MS, 12)

    columns = table(only(converted(script, how="killed"), "window"))

    assert columns["step"] == [0, 1]
    assert columns["flags"] == [8, 2 | 8]
    assert columns["dur_us"] == [10_000, 3000]


def test_killed_after_the_run_had_ended() -> None:
    script = MarkScript()
    script.close_scope(1, "run", 5 * MS)

    run = only(converted(script, how="killed"), "run")

    assert run.attributes["grademl.ended"] == "exit"
    assert run.error is None
    assert run.end_ns == OFFSET + 5 * MS


def test_nothing_comes_of_a_ring_without_a_run() -> None:
    converter = Converter([""])

    assert converter.feed([(1, 0, 0, 1, 0, -1, 0, 0)] * 10_000, 1) == []
    assert converter.finish("killed", [], 1) == []


def test_finish_twice_tells_once() -> None:
    script = MarkScript()
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    assert len(converter.finish("exit", [], 1)) == 1
    assert converter.finish("exit", [], 1) == []


def test_impossible_marks_make_no_spans() -> None:
    script = MarkScript()
    script.add(1, 10, 5, 3)
    script.add(1, -10, 5, 3)
    script.add(999, 1, 2, 3)
    script.add(marks.SCOPE_OPEN, 1, 1, 50, x=1, y=99)
    script.add(marks.SCOPE_CLOSE, 1, 1, 51, x=0, y=2)
    script.add(marks.SCOPE_TEXT, 1, 1, 1, x=9999, y=-4)
    script.row(10, -5, 1, 2)
    script.row(11, 1 << 61, 2, 3)

    spans = converted(script)

    assert Counter(span.name for span in spans) == {"run": 1, "window": 2, "step": 2}
    assert all(span.start_ns <= span.end_ns for span in spans)


def test_run_info_may_come_late() -> None:
    script = MarkScript()
    info = script.marks.pop()
    script.step(10, 0, 0, MS)
    script.marks.append(info)

    assert rows_of(converted(script)) == 1


# --- A second relay ---------------------------------------------------------------------------------------


def whole_run() -> MarkScript:
    script = MarkScript()
    script.open_scope(2, "epoch", 0, number=0)
    for step in range(300):
        script.step(10 + step, step, step * 20 * MS, 20 * MS, pass_serial=2)
        if step % 100 == 50:
            script.phase("checkpoint.save", step * 20 * MS + 1, step * 20 * MS + 2, 0)
        if step % 100 == 70:
            script.phase("forward", step * 20 * MS + MS, step * 20 * MS + 2 * MS, 1000 + step)
            script.row(
                1000 + step, step + 1, step * 20 * MS, (step + 1) * 20 * MS, flags=semconv.FLAG_EVALUATE
            )
    script.close_scope(2, "epoch", 6 * S)
    script.open_scope(3, "evaluate", 6 * S)
    script.close_scope(3, "evaluate", 7 * S)
    script.close_scope(1, "run", 8 * S)
    return script


def identity(span: Span) -> tuple[Any, ...]:
    return (span.name, span.trace_id, span.start_ns, span.end_ns, span.error)


@pytest.mark.parametrize("cut", [1, 2, 3, 50, 333, 777, 1000, 1204, 1205, 1207])
@pytest.mark.parametrize("lapped", [False, True])
def test_second_converter_tells_the_rest_and_nothing_twice(cut: int, lapped: bool) -> None:
    script = whole_run()
    whole = converted(script)
    first = Converter(script.strings)
    told = first.feed(script.marks[:cut], 1)
    progress = Progress.from_bytes(first.progress.to_bytes(560))
    assert progress is not None
    # The ring may have lapped what was told; what was not told is still there.
    start = min(progress.told, cut) if lapped else 0
    second = Converter(script.strings, progress)
    told += second.feed(script.marks[start:], start + 1)
    told += second.finish("exit", [], 10 * S)

    assert Counter(map(identity, told)) == Counter(map(identity, whole))
    assert len({span.span_id for span in told}) == len(told)
    assert [unfolded(w, "step") for w in named(told, "window")] == [
        unfolded(w, "step") for w in named(whole, "window")
    ]
    for key in ("grademl.window.cumulative_rows", "grademl.window.part", "grademl.spans.emitted"):
        assert [w.attributes[key] for w in named(told, "window")] == [
            w.attributes[key] for w in named(whole, "window")
        ]
    assert only(told, "epoch").attributes["grademl.steps"] == 300
    assert only(told, "run").attributes["grademl.steps"] == 300


@pytest.mark.parametrize("acknowledged", [0, 40, 180, 440, 900, 3000])
def test_what_is_sent_again_is_what_was_sent(acknowledged: int) -> None:
    """Also where the clock has cut it, and where the level of detail had begun to move."""
    script = MarkScript()
    for number in range(2000):
        script.step(10 + number, number, number * 2 * MS, MS)
    first = Converter(script.strings)
    first.feed(script.marks[:acknowledged], 1)
    first.flush(6 * S)
    progress = Progress.from_bytes(first.progress.to_bytes(560))
    told: list[Span] = []
    for end in (acknowledged + 600, acknowledged + 1200, 6000):
        told += first.feed(script.marks[acknowledged:end], acknowledged + 1)
        told += first.flush(script.marks[end - 1][3] + 6 * S)  # the part is due
        told += first.flush(script.marks[end - 1][3] + 60 * S, [OpenPhase(0, marks.PHASE_BASE, 1)])
        acknowledged = end
    assert any(cut.end for cut in first.cuts)
    assert any(not cut.end for cut in first.cuts)

    second = Converter(script.strings, progress, cuts.from_bytes(cuts.to_bytes(first.cuts, 512)))
    again = second.feed(script.marks[:6000], 1)

    without_rows = [
        span for span in told if span.name == semconv.WINDOW and "grademl.table.step" not in span.attributes
    ]
    assert len(without_rows) == 3
    for span in (*told, *again):
        for key in (semconv.OPEN_PHASE, semconv.OPEN_SINCE, semconv.SPANS_EMITTED):
            span.attributes.pop(key, None)
    assert again == [span for span in told if span not in without_rows]


def test_second_converter_goes_on_with_all_windows_of_threads_side_by_side() -> None:
    script = MarkScript()
    for number in range(20):
        for thread, first_step in enumerate((0, 100)):
            script.row(10 + 2 * number + thread, first_step + number, number * MS, (number + 1) * MS)
    first = Converter(script.strings)
    told = first.feed(script.marks[:12], 1)
    second = Converter(script.strings, Progress.from_bytes(first.progress.to_bytes(560)))
    told += second.feed(script.marks, 1)
    told += second.finish("exit", [], 10 * S)

    assert len({span.span_id for span in told}) == len(told)
    steps = [step for window in named(told, "window") for step in unfolded(window, "step")]
    assert sorted(steps) == [*range(20), *range(100, 120)]


def test_cuts_of_garbage_are_none() -> None:
    cut = cuts.Cut(1, 2, 3)
    assert cuts.from_bytes(b"x" * 25) == []
    assert cuts.from_bytes(cuts.to_bytes([cuts.Cut(-1, 2, 3), cut], 512)) == [cut]
    assert cuts.from_bytes(cuts.to_bytes([cut] * 20, 50)) == [cut, cut]


def test_forged_cut_keeps_no_part_open_for_ever() -> None:
    script = MarkScript()
    for number in range(20):
        script.step(10 + number, number, number * MS, MS)
    converter = Converter(script.strings, cuts=[cuts.Cut(0, 0, 1 << 60)])
    told = converter.feed(script.marks[:40], 1)
    told += converter.flush(6 * S)
    assert len(named(told, "window")) == 1


def test_progress_of_garbage_is_none() -> None:
    for raw in (b"", b"{}", b"[]", b'{"told":"x","fed":1}', b"[1,2,[[1]]]", b"7", b"\xff"):
        assert Progress.from_bytes(raw) is None
    whole = Progress(1, 2).to_bytes(560)
    assert Progress.from_bytes(whole) == Progress(1, 2)
    for raw in (whole[:-3] + b"[[1]]]", whole[:-3] + b"7]", whole.replace(b"[1,", b'["x",')):
        assert Progress.from_bytes(raw) is None


def test_progress_fits_its_room() -> None:
    progress = Progress(1, 2, scopes=[[10**15] * 9 for _ in range(50)])
    raw = progress.to_bytes(560)

    assert len(raw) <= 560
    parsed = Progress.from_bytes(raw)
    assert parsed is not None
    assert parsed.scopes == progress.scopes[: len(parsed.scopes)]


def test_info_is_what_the_ring_said() -> None:
    script = MarkScript()
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    assert converter.info == INFO
    assert converter.run_start_unix_ns == OFFSET


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "short"}, {"run_id": 7}, {"rank": "0"}, {"rank": -1}, {"world_size": True},
        {"perf_to_unix_ns": 1.5}, {"exporters": (1,)}, {"store": None}, {"resource": [1]},
    ],
)  # fmt: skip
def test_implausible_run_info_makes_no_run(change: dict[str, Any]) -> None:
    assert converted(MarkScript(**change)) == []


def test_resource_attributes_that_otlp_cannot_hold_are_left_out() -> None:
    good = {"a": "x", "b": True, "c": 1, "d": 2.5, "e": ["x", "y"], "f": []}
    bad = {"g": None, "h": 1 << 70, "i": [1, "a"], "j": {"k": 1}, "l": [None]}
    script = MarkScript(resource={**good, **bad})
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    assert converter.info is not None
    assert converter.info.resource == good


def test_text_that_is_no_run_info_makes_no_run() -> None:
    for text in ("", "{}", "[]", "null", '{"attempt":1}', "\x00"):
        script = MarkScript()
        script.strings[script.strings.index(script.info.to_json())] = text
        assert converted(script) == []


# --- What runs now ----------------------------------------------------------------------------------------


def test_long_step_is_seen_while_it_runs() -> None:
    script = MarkScript()
    script.step(10, 0, 0, 2 * S)
    script.phase("data.wait", 2 * S, 3 * S, 11)
    backward = OpenPhase(script.text("main"), marks.phase_kind("backward"), 4 * S)
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    first = only(converter.flush(5 * S, [backward]), "window")
    silent = [converter.flush(at * S, [backward]) for at in range(6, 40)]
    told = [only(spans, "window") for spans in silent if spans]

    assert table(first)["step"] == [0]
    assert first.attributes["grademl.open_phase"] == "backward"
    assert first.attributes["grademl.open_since"] == OFFSET + 4 * S
    # After 5 s without a row, 10 s after that, 20 s after that.
    assert [window.end_ns - OFFSET for window in told] == [10 * S, 20 * S]
    for number, window in enumerate(told):
        assert table(window) == {"version": 1}
        assert window.attributes["grademl.window.part"] == number + 1
        assert window.attributes["grademl.window.cumulative_rows"] == 1
        assert window.attributes["grademl.open_phase"] == "backward"
        assert window.attributes["grademl.open_since"] == OFFSET + 4 * S


def test_nothing_is_said_of_a_process_that_does_nothing() -> None:
    script = MarkScript()
    script.step(10, 0, 0, 2 * S)
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    assert len(converter.flush(5 * S)) == 1
    assert [converter.flush(at * S) for at in (20, 90, 4000)] == [[], [], []]


def test_phase_of_a_damaged_ring_is_not_said_to_run() -> None:
    script = MarkScript()
    script.step(10, 0, 0, 2 * S)
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)
    future, wild = (OpenPhase(1, marks.phase_kind("backward"), at) for at in (6 * S, 1 << 62))

    window = only(converter.flush(5 * S, [future, wild, OpenPhase(1, 999, 1)]), "window")

    assert "grademl.open_phase" not in window.attributes


def test_cut_closes_what_is_not_due() -> None:
    script = MarkScript()
    script.step(10, 0, 0, MS)
    converter = Converter(script.strings)
    converter.feed(script.marks, 1)

    assert [span.name for span in converter.cut()] == ["window"]
    assert converter.cut() == []


# --- Lanes ------------------------------------------------------------------------------------------------


def test_rows_of_threads_tell_their_lane() -> None:
    script = MarkScript()
    for step in range(4):
        lane = "main" if step % 2 else "thread-1"
        script.add(
            marks.ROW, step * MS, (step + 2) * MS, 10 + step, x=step, y=marks.pack_row(0, 1, 0), lane=lane
        )
    window = only(converted(script), "window")

    assert table(window)["lane"] == [0, 1, 0, 1]
    assert window.attributes["grademl.window.lanes"] == ["thread-1", "main"]


def test_rows_of_one_lane_fold_its_column_away() -> None:
    script = MarkScript()
    script.add(marks.ROW, 0, MS, 10, x=0, y=marks.pack_row(0, 1, 0), lane="thread-1")
    other, plain = only(converted(script), "window"), MarkScript()
    plain.step(10, 0, 0, MS)
    main = only(converted(plain), "window")

    assert "lane" not in table(other)
    assert other.attributes["grademl.window.lanes"] == ["thread-1"]
    assert "lane" not in table(main)
    assert "grademl.window.lanes" not in main.attributes


# --- What windows say of the run --------------------------------------------------------------------------


def test_windows_name_device_and_script_also_after_a_second_start() -> None:
    script = MarkScript()
    script.scope_text(1, semconv.DEVICE, "cpu")
    script.scope_int(1, semconv.WINDOW_RECORD_LEVEL, 2)
    script.scope_text(1, semconv.WINDOW_RECORD_REASON, "own cost 3 %")
    script.step(10, 0, 0, MS)
    first = Converter(script.strings)
    told = first.feed(script.marks, 1) + first.cut()
    progress = Progress.from_bytes(first.progress.to_bytes(560))
    lapped = len(script.marks)
    script.step(11, 1, MS, MS)
    second = Converter(script.strings, progress)
    told += second.feed(script.marks[lapped:], lapped + 1) + second.finish("killed", [], 3 * MS)

    windows = named(told, "window")
    assert len(windows) == 2
    for window in windows:
        assert window.attributes["grademl.device"] == "cpu"
        assert window.attributes["grademl.script"] == "train.py"
        assert window.attributes["grademl.window.record_level"] == 2
        assert window.attributes["grademl.window.record_reason"] == "own cost 3 %"
    assert only(told, "run").attributes["grademl.device"] == "cpu"


def test_rows_of_a_part_were_recorded_at_one_level() -> None:
    script = MarkScript()
    script.step(10, 0, 0, MS)
    script.scope_int(1, semconv.WINDOW_RECORD_LEVEL, 1)
    script.step(11, 1, MS, MS)

    windows = named(converted(script), "window")

    assert [w.attributes["grademl.window.record_level"] for w in windows] == [0, 1]
    assert [table(w)["step"] for w in windows] == [[0], [1]]


# --- Ids --------------------------------------------------------------------------------------------------


def test_marks_told_twice_make_identical_spans() -> None:
    script = whole_run()
    once, again = converted(script), converted(script)

    assert once == again
    ids = [(span.trace_id, span.span_id) for span in once]
    assert len(set(ids)) == len(ids)


def test_ids_of_ranks_and_marks_differ() -> None:
    bases = [semconv.span_id(RUN_ID, 0, "mark", 0, rank) for rank in range(8)]
    ids = {semconv.event_id(base, sequence) for base in bases for sequence in range(1, 2000)}

    assert len(ids) == 8 * 1999
    assert all(0 < each < 1 << 64 for each in ids)


# --- Bounds of the run's trace ----------------------------------------------------------------------------


def test_children_of_passes_that_are_left_out_hang_on_the_next_one_out() -> None:
    script = MarkScript(rank=5, world_size=64)
    for number in range(40):
        epoch, evaluation, at = 2 * number + 2, 2 * number + 3, 10 * number * MS
        script.open_scope(epoch, "epoch", at, number=number)
        script.open_scope(evaluation, "evaluate", at + MS, parent=epoch)
        script.phase("checkpoint.save", at + 2 * MS, at + 3 * MS)
        script.close_scope(evaluation, "evaluate", at + 4 * MS)
        script.close_scope(epoch, "epoch", at + 5 * MS)
    spans = converted(script)
    run = only(spans, "run")
    ids = {span.span_id for span in spans}
    passes = [span for span in spans if span.name in ("epoch", "evaluate")]

    assert all(span.parent_id in ids for span in spans if span is not run)
    assert 4 < len(passes) <= 7
    assert run.attributes["grademl.left_out.passes"] == 80 - len(passes)
    assert run.attributes["grademl.left_out.phases"] == 40 - len(named(spans, "checkpoint.save"))


def test_runs_of_many_ranks_share_traces_by_64() -> None:
    trees = {rank: only(converted(MarkScript(rank=rank, world_size=200)), "run") for rank in (0, 63, 64, 70)}

    assert trees[63].trace_id == trees[0].trace_id == RUN_TRACE
    assert trees[63].parent_id == trees[0].span_id
    assert trees[64].trace_id == trees[70].trace_id == semconv.trace_id(RUN_ID, 0, "run", 0, 1)
    assert trees[64].parent_id == 0
    assert trees[70].parent_id == trees[64].span_id
