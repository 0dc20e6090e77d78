# SPDX-License-Identifier: Apache-2.0
"""Shapes of a training process: threads, coroutines, forks and children leave every step where it belongs.

All shapes run in one program (`process_zoo`), each in a run of its own, once plain and once recorded.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import RawSpan, read_lines
from tests.support.relays import until

pytest.importorskip("torch")
if not hasattr(os, "fork"):
    pytest.skip("this system has no fork", allow_module_level=True)

from tests.support import process_zoo

PROGRAM = training.ROOT / "tests" / "support" / "process_zoo.py"
TRAINING_CHILDREN = process_zoo.TRAINING_CHILDREN + 1 + 3
"""Of the shapes `forks`, `forks_in_order` and `c_forks`."""


@dataclass
class Zoo:
    plain: training.Finished
    traced: training.Finished
    steps: dict[str, int]
    """Of each shape."""
    runs: dict[str, list[RawSpan]]
    """The spans of the program's own runs, by their names."""
    of_children: list[list[RawSpan]]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "rings").mkdir()
    # Whatever recording costs: this is about what it does, and the steps are tiny.
    settings = {
        "GRADEML_EXPORTER": "file",
        "GRADEML_RING_DIR": str(folder / "rings"),
        "GRADEML_BUDGET": "100",
    }
    shapes = list(process_zoo.SHAPES)
    plain = training.train_untraced(PROGRAM, shapes, folder / "plain").ok()
    traced = training.train(PROGRAM, shapes, folder, settings).ok()
    stored: list[list[RawSpan]] = []

    def complete() -> bool:
        stored[:] = [read_lines(path) for path in (folder / "runs").glob("*/traces.jsonl")]
        ended = sum(span.name == semconv.RUN for spans in stored for span in spans)
        return ended == len(shapes) + TRAINING_CHILDREN  # the relay sees to those that ended by `os._exit`

    until(complete)
    runs, of_children = {}, []
    for spans in stored:
        (run,) = (span for span in spans if span.name == semconv.RUN)
        if semconv.RUN_NAME in run.attributes:
            runs[run[semconv.RUN_NAME]] = spans
        else:
            of_children.append(spans)
    steps = {**process_zoo.STEPS, "forks": int((folder / "steps").read_text())}
    return Zoo(plain, traced, steps, runs, of_children)


def _without_announcements(err: str) -> str:
    lines = err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("grademl: recording run"))


def test_what_the_program_prints_is_the_same(zoo: Zoo) -> None:
    assert zoo.traced.out == zoo.plain.out
    assert _without_announcements(zoo.traced.err) == zoo.plain.err
    # One line for each run; the programs that it starts print none.
    assert zoo.traced.err.count("grademl: ") == len(process_zoo.SHAPES) + TRAINING_CHILDREN


@pytest.mark.parametrize("shape", process_zoo.SHAPES)
def test_steps_of(shape: str, zoo: Zoo) -> None:
    spans = zoo.runs[shape]
    (run,) = (span for span in spans if span.name == semconv.RUN)
    assert run[semconv.ENDED] == "exit"
    assert run[semconv.STEPS_TOTAL] == zoo.steps[shape]
    assert (run[semconv.EVAL_STEPS_TOTAL], run[semconv.INCOMPLETE_STEPS_TOTAL]) == (0, 0)
    assert run[semconv.TRACER_DROPPED] == 0
    numbers = [number for span in spans if span.name == semconv.WINDOW for number in span.column("step")]
    assert sorted(numbers) == list(range(zoo.steps[shape]))


def test_threads_keep_their_steps_apart(zoo: Zoo) -> None:
    per_lane: Counter[str] = Counter()
    for window in (span for span in zoo.runs["threads"] if span.name == semconv.WINDOW):
        lanes = window[semconv.WINDOW_LANES] if semconv.WINDOW_LANES in window.attributes else ["main"]
        of_rows = window.column("lane") if len(lanes) > 1 else [0] * len(window.column("step"))
        per_lane.update(lanes[index] for index in of_rows)
    assert sorted(per_lane.values()) == [25 + number for number in range(process_zoo.THREADS)]
    epochs = [span for span in zoo.runs["threads"] if span.name == semconv.EPOCH]
    assert {epoch[semconv.LANE]: epoch[semconv.STEPS_TOTAL] for epoch in epochs} == per_lane


def test_children_that_train_have_a_run_of_their_own(zoo: Zoo) -> None:
    """One that ends by `os._exit` has not closed its last step."""
    ends = Counter()
    for spans in zoo.of_children:
        (run,) = (span for span in spans if span.name == semconv.RUN)
        ends[run[semconv.ENDED], run[semconv.STEPS_TOTAL]] += 1
    # `forks`, `forks_in_order`, `c_forks`
    assert ends == {("killed", 0): process_zoo.TRAINING_CHILDREN, ("exit", 1): 1, ("killed", 20): 3}
