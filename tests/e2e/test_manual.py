# SPDX-License-Identifier: Apache-2.0
"""A program without any framework that says itself what its steps and phases are."""

from __future__ import annotations

import json
from pathlib import Path

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import read_lines

PROGRAM = """
import sys, time
sys.modules["torch"] = None  # an import of it fails
import grademl_otel

def batches():
    with grademl_otel.phase("data.wait"):
        time.sleep(0.004)
    return [1, 2, 3]

@grademl_otel.phase
def tokenize(batch):
    time.sleep(0.002)

with grademl_otel.phase("read the vocabulary"):
    time.sleep(0.05)
for number in range(40):
    with grademl_otel.step(samples=3):
        tokenize(batches())
        with grademl_otel.phase("forward"):
            time.sleep(0.001)
with grademl_otel.step(kind="evaluate"):
    tokenize(None)
try:
    with grademl_otel.step(), grademl_otel.phase("explode"):
        raise ValueError("of the user")
except ValueError:
    print("done")
"""


def test_it_is_recorded_and_reported(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(PROGRAM)
    settings = {
        "GRADEML_EXPORTER": "file",
        "GRADEML_RING_DIR": str(tmp_path),
        "OTEL_SERVICE_NAME": "by hand",
        "GRADEML_BUDGET": "100",
    }
    done = training.train(script, (), tmp_path, settings)
    assert (done.code, done.out) == (0, "done\n")
    assert len(done.err.splitlines()) == 1, done.err
    (folder,) = (tmp_path / "runs").iterdir()
    spans = read_lines(folder / "traces.jsonl")
    (run,) = (span for span in spans if span.name == "run")
    assert [run[f"grademl.{name}"] for name in ("steps", "eval_steps", "incomplete_steps")] == [40, 1, 1]

    steps = {span.span_id: span for span in spans if span.name == "step"}
    assert {span["grademl.evidence"] for span in steps.values()} == {"observed"}
    tokenized = [span for span in spans if span.name == "tokenize"]
    assert {span.parent_id for span in tokenized} <= steps.keys()
    assert {(span["grademl.phase"], span["grademl.evidence"]) for span in tokenized} == {
        ("tokenize", "observed")
    }
    for name, in_kinds in (
        ("tokenize", ("train", "evaluate")), ("forward", ("train",)), ("data.wait", ("train",)),
    ):  # fmt: skip
        kept = [span_id for span_id, span in steps.items() if span["grademl.step.kind"] in in_kinds]
        found = [span.parent_id for span in spans if span.name == name]
        assert sorted(found) == sorted(kept), name
    (vocabulary,) = (span for span in spans if span.name == "read the vocabulary")
    assert (vocabulary.parent_id, vocabulary.trace_id) == (run.span_id, run.trace_id)
    (explosion,) = (span for span in spans if span.name == "explode")
    assert explosion["error.type"] == "ValueError"
    assert explosion.status == 2

    rows = 0
    for window in (span for span in spans if span.name == semconv.WINDOW):
        assert set(window.column("user.tokenize.count")) <= {0, 1}
        rows += len(window.column("start_us"))
    assert rows == 42

    report = json.loads(training.grademl(["report", str(tmp_path / "runs"), "--json"], tmp_path).ok().out)
    phases = {phase["phase"] for phase in report["step"]["phases"]}
    assert {"tokenize", "data.wait", "forward"} <= phases
    assert "read the vocabulary" in {row["phase"] for row in report["lane_budget"]}
