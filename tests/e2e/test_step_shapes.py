# SPDX-License-Identifier: Apache-2.0
"""Each of the 24 step shapes as an unchanged script: the file store has what a person counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import read_lines

pytest.importorskip("torch")

from tests.support.step_shapes import SHAPES

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "step_shapes.py"
PASSES = (semconv.EPOCH, semconv.EVALUATE)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_file_store_has_the_steps_and_passes_of_the_script(name: str, tmp_path: Path) -> None:
    expected = SHAPES[name][1]
    training.train(SCRIPT, [name], tmp_path, {"GRADEML_EXPORTER": "file"}).ok()
    (run_folder,) = (tmp_path / "runs").iterdir()
    spans = read_lines(run_folder / "traces.jsonl")

    windows = [span for span in spans if span.name == semconv.WINDOW]
    flags = [flag for window in windows for flag in window.column("flags")]
    kinds = Counter(flag & (semconv.FLAG_EVALUATE | semconv.FLAG_INCOMPLETE) for flag in flags)
    assert kinds[0] == expected.train
    assert kinds[semconv.FLAG_EVALUATE] == expected.evaluate
    assert kinds[semconv.FLAG_INCOMPLETE] == expected.incomplete
    micro = {value for window in windows for value in window.column("micro")}
    assert micro == {expected.micro}
    assert sum(span.name in PASSES for span in spans) == expected.passes

    (run,) = [span for span in spans if span.name == semconv.RUN]
    assert run[semconv.STEPS_TOTAL] == expected.train
    assert run[semconv.EVAL_STEPS_TOTAL] == expected.evaluate
    assert run[semconv.INCOMPLETE_STEPS_TOTAL] == expected.incomplete
    assert run[semconv.ENDED] == "exit"
    in_passes = [span for span in spans if span.name in PASSES]
    assert sum(span[semconv.STEPS_TOTAL] for span in in_passes) <= expected.train
