# SPDX-License-Identifier: Apache-2.0
"""Ten thousand mutated inputs for each kind of source: columns that hold together, or one line; nothing else.

`tests/property/mutated.py` reads them; what it found is in tests/analyzers/test_damaged_input.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from grademl_otel.analyzers.errors import GrademlError

from ..support import every_format as formats
from ..support.foreign_formats import jaeger_v1, zipkin
from .mutated import LINES, MESSAGES, MUTATIONS, SMALL, SOURCES, in_memory, one_line

ROOT: Final = Path(__file__).resolve().parents[2]
WORKERS: Final = 2
PATIENCE_S: Final = 900
"""Only catches a hang."""


@pytest.fixture(scope="module")
def results() -> dict[str, list[dict[str, Any]]]:
    """What the workers said of each source; a worker that dies says it of the source that it was at."""
    command = [sys.executable, "-m", "tests.property.mutated"]
    workers = [
        subprocess.Popen(
            [*command, str(number), str(WORKERS)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(WORKERS)
    ]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SOURCES}
    for worker in workers:
        try:
            out, err = worker.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            for each in workers:
                each.kill()
            out, err = worker.communicate()
        said = [json.loads(line) for line in out.splitlines()]
        for one in said:
            found[one["source"]].append(one)
        for name in list(SOURCES)[len(said) :]:
            found[name].append({"fault": f"worker ended with {worker.returncode}: {err.decode()[-3000:]}"})
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_mutated_inputs(name: str, results: dict[str, list[dict[str, Any]]]) -> None:
    ends: Counter[str] = Counter()
    for each in results[name]:
        assert "fault" not in each, each["fault"]
        ends.update(each["ends"])
    assert ends.total() == MUTATIONS
    # Mutations that are all refused, or all harmless, would test little.
    assert ends["columns"] > MUTATIONS // 50, ends
    assert ends.total() - ends["columns"] > MUTATIONS // 50, ends


# --- Cuts -------------------------------------------------------------------------------------------------

CUT: Final[dict[str, bytes]] = {
    "OTLP JSON lines": LINES,
    "OTLP protobuf": MESSAGES[0],
    "Collector protobuf": formats.framed(MESSAGES),
    "Collector protobuf zstd": formats.framed(MESSAGES, compress=True),
    "gzip": formats.gz(LINES),
    "zstd": formats.zstd(LINES),
    "Jaeger JSON": jaeger_v1(SMALL),
    "Jaeger v3": formats.jaeger_v3(SMALL),
    "Zipkin": zipkin(SMALL),
}


@pytest.mark.parametrize("name", CUT)
def test_what_a_cut_took_is_told(name: str) -> None:
    """Cut at each byte: fewer spans than there were are never taken for all, but between two documents."""
    data = CUT[name]
    whole = len(in_memory(data).spans)
    silent = []
    for end in range(len(data)):
        try:
            telemetry = in_memory(data[:end])
        except GrademlError as error:
            one_line(str(error))
            continue
        ledger = telemetry.ledger
        if len(telemetry.spans) < whole and not (ledger.unreadable_lines or ledger.broken or ledger.warnings):
            silent.append(end)
    # The first document ends there: what follows could not be missed.
    boundaries = {
        "OTLP JSON lines": [LINES.index(b"\n"), LINES.index(b"\n") + 1],
        "Collector protobuf": [len(formats.framed(MESSAGES[:1]))],
        "Collector protobuf zstd": [len(formats.framed(MESSAGES[:1], compress=True))],
    }
    assert silent == boundaries.get(name, [])
