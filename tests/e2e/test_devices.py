# SPDX-License-Identifier: Apache-2.0
"""Device times from the hooks through ring, relay and file store to the report; the device is simulated."""

from __future__ import annotations

from pathlib import Path

from ..support.rawspans import read_lines
from ..support.training import ROOT, grademl, train

PROGRAM = ROOT / "tests" / "support" / "device_program.py"
STEPS = 60


def test_device_times_from_hook_to_report(tmp_path: Path) -> None:
    settings = {
        "GRADEML_EXPORTER": "file",
        "PYTHONPATH": str(ROOT),
        "GRADEML_RING_DIR": str(tmp_path / "rings"),
    }
    train(PROGRAM, [str(STEPS)], tmp_path, settings).ok()

    (store,) = (tmp_path / "runs").iterdir()
    spans = read_lines(store / "traces.jsonl")
    (run,) = (span for span in spans if span.name == "run")
    assert run["grademl.gpu.id"] == ["GPU-12345678-9abc-def0-1234-56789abcdef0"]
    rows = counted = busy = 0
    for window in (span for span in spans if span.name == "window"):
        table = {key: value.value for key, value in window.attributes.items()}
        rows += len(window.column("start_us"))
        counted += sum(window.column("device.forward.count"))
        busy += sum(window.column("device.forward.busy_us"))
        assert table["grademl.device.memory.peak"] == [2 << 30]
        assert table["grademl.gpu.id"] == ["GPU-12345678-9abc-def0-1234-56789abcdef0"]
    assert rows == STEPS
    # Whether CUDA is in use is seen after the first step.
    assert counted == STEPS - 1
    assert busy >= 3000 * counted - counted

    by_id = {(span.trace_id, span.span_id): span for span in spans}
    on_device = [span for span in spans if span.name == "device.forward"]
    assert on_device
    for span in on_device:
        assert by_id[span.trace_id, span.parent_id].name == "step"
        ((trace, host, attributes),) = span.links
        assert (by_id[trace, host].name, attributes["grademl.link.kind"].value) == ("forward", "host")
        assert by_id[trace, host].start <= span.start
        assert span["grademl.lane"] == "stream-0.0"

    said = grademl(["report", str(store)], tmp_path).ok().out
    assert f"On the device (mean of {STEPS - 3} steps" in said
    assert "host time)" in said
    assert "at most 2.0 GiB allocated, 3.0 GiB reserved at last" in said
