# SPDX-License-Identifier: Apache-2.0
"""Settings that make no sense: one line each, and the training is recorded as if they were not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.nonsense import NONSENSE
from tests.support.rawspans import read_lines

pytest.importorskip("torch")

SCRIPT = """
import sys
if "late" in sys.argv:
    import grademl_otel
    grademl_otel.instrument()
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
net = torch.nn.Linear(4, 2)
for x in DataLoader(torch.randn(40, 4), batch_size=4):
    net(x).sum().backward()
print("done")
sys.exit(3)
"""


def recorded(folder: Path, settings: Mapping[str, str], late: bool = False) -> list[str]:
    """The lines that a training with only these settings writes to stderr; it must be recorded in full."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GRADEML_", "XDG_", "PYTHON"))}
    command = [sys.executable, "-c", SCRIPT]
    command = [*command, "late"] if late else [str(training.BIN / "opentelemetry-instrument"), *command]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "HOME": str(folder), **settings},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=training.TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (3, "done\n"), done
    (path,) = (folder / "grademl-runs").glob("*/traces.jsonl")
    (run,) = [span for span in read_lines(path) if span.name == semconv.RUN]
    assert (run[semconv.STEPS_TOTAL], run[semconv.ENDED]) == (10, "exit")
    assert all(line.isprintable() for line in done.stderr.splitlines())
    return done.stderr.splitlines()


def test_nonsense_in_every_variable_at_once(tmp_path: Path) -> None:
    settings = {name: values[0] for name, values in NONSENSE.items()}
    lines = recorded(tmp_path, {**settings, "GRADEML_EXPORTR": "otlp"})
    *complaints, announcement = lines
    assert announcement.startswith("grademl: recording run ")
    for name in NONSENSE:
        (line,) = [line for line in complaints if line.startswith(f"grademl: {name}=")]
        assert "expected" in line
        assert line.endswith("the default is used")
    assert complaints[-1] == "grademl: no such setting: GRADEML_EXPORTR (did you mean GRADEML_EXPORTER?)"
    assert len(complaints) == len(NONSENSE) + 1


def test_nonsense_in_what_says_how_to_send(tmp_path: Path) -> None:
    settings = {
        "GRADEML_EXPORTER": "file,otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "pigeon",
        "OTEL_EXPORTER_OTLP_HEADERS": "hunter2",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "soon",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "zip",
    }
    lines = recorded(tmp_path, settings, late=True)
    assert len(lines) == 5
    assert not any("hunter2" in line for line in lines)
    assert lines[0].startswith("grademl: OTEL_EXPORTER_OTLP_TIMEOUT='soon': expected")
    assert lines[1].startswith("grademl: OTEL_EXPORTER_OTLP_TRACES_COMPRESSION='zip': expected gzip")
    assert lines[2].startswith("grademl: OTEL_EXPORTER_OTLP_HEADERS: expected name=value")
    assert lines[3].startswith("grademl: recording run ")
    assert "OTEL_EXPORTER_OTLP_PROTOCOL='pigeon': expected grpc or http/protobuf" in lines[4]
