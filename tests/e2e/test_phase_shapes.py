# SPDX-License-Identifier: Apache-2.0
"""Phases of unchanged loops as the file store has them: one script that runs several shapes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import read_lines

pytest.importorskip("torch")

from tests.support.phase_shapes import SHAPES

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "phase_shapes.py"
NAMES = (
    *("zero_grad_of_the_optimizer", "checkpointed_functions", "reentrant_modules", "scaler_that_skips"),
    *("update_by_hand", "lbfgs", "accumulation", "ppo", "a_recomputation_that_raises"),
)


def test_the_file_store_has_the_phases_of_the_script(tmp_path: Path) -> None:
    expected = [SHAPES[name][1] for name in NAMES]
    settings = {"GRADEML_EXPORTER": "file", "PYTHONPATH": str(training.ROOT)}
    done = training.train(SCRIPT, NAMES, tmp_path, settings).ok()
    assert "is not recorded" not in done.err
    (folder,) = (tmp_path / "runs").iterdir()
    windows = [span for span in read_lines(folder / "traces.jsonl") if span.name == semconv.WINDOW]

    beside = semconv.FLAG_OUTLIER | semconv.FLAG_DETAILED
    counts = Counter(flag & ~beside for window in windows for flag in window.column("flags"))
    assert counts == {
        0: sum(shape.train - shape.skipped for shape in expected),
        semconv.FLAG_SKIPPED: sum(shape.skipped for shape in expected),
        semconv.FLAG_EVALUATE: sum(shape.evaluate for shape in expected),
        semconv.FLAG_INCOMPLETE: sum(shape.incomplete for shape in expected),
    }
    for phase in ("data.wait", "forward", "recompute", "backward", "optimizer"):
        seen = sum(sum(window.column(f"{phase}.count")) for window in windows)
        assert seen == sum(shape.phases.get(phase, 0) for shape in expected), phase
    # Without a loader the first one of a loop comes before any row, and one after the last update.
    zeroed = sum(shape.phases.get("zero_grad", 0) for shape in expected)
    seen = sum(sum(window.column("zero_grad.count")) for window in windows)
    assert zeroed - len(NAMES) <= seen <= zeroed
