# SPDX-License-Identifier: Apache-2.0
"""Two hundred forks from a second thread while the first one writes marks: nothing of the parent's is harmed.

Without a framework, so that each fork costs little; with one see `test_processes`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import RawSpan, read_lines
from tests.support.relays import until

FORKS = 200
TRAINING = 4

PROGRAM = f"""
import atexit, os, threading
from grademl_otel.lifecycle import session
from tests.support.plain_training import step

def fork_all():
    for number in range({FORKS}):
        child = os.fork()
        if child == 0:
            if number % {FORKS // TRAINING} == 0:
                step(); step()
            if number % 3 == 0:
                atexit._run_exitfuncs()  # as a child that ends like a script
            os._exit(number % 100)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

session.install()
statuses, done = [], 1
step()
forker = threading.Thread(target=fork_all)
forker.start()
while forker.is_alive():
    step()
    done += 1
assert statuses == [number % 100 for number in range({FORKS})]
print(done)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forks_while_another_thread_marks(tmp_path: Path) -> None:
    (tmp_path / "rings").mkdir()
    settings = {
        "GRADEML_EXPORTER": "file",
        "GRADEML_RING_DIR": str(tmp_path / "rings"),
        "PYTHONPATH": str(training.ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=training.clean_environ(tmp_path, settings),
        capture_output=True,
        text=True,
        timeout=training.TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == done.stderr.count("grademl: recording run") == 1 + TRAINING
    steps = int(done.stdout)  # no child printed anything
    runs: list[list[RawSpan]] = []

    def complete() -> bool:
        runs[:] = [read_lines(path) for path in (tmp_path / "runs").glob("*/traces.jsonl")]
        return sum(span.name == semconv.RUN for spans in runs for span in spans) == 1 + TRAINING

    until(complete)  # the relay sees to those that ended by `os._exit`
    ends = Counter(
        (span[semconv.ENDED], span[semconv.STEPS_TOTAL], span[semconv.TRACER_DROPPED])
        for spans in runs
        for span in spans
        if span.name == semconv.RUN
    )
    # Without an orderly end the last step of a child is not known to be over.
    assert ends == {("exit", steps, 0): 1, ("exit", 2, 0): 2, ("killed", 1, 0): 2}
    (ours,) = (spans for spans in runs if len(_numbers(spans)) > 2)
    assert sorted(_numbers(ours)) == list(range(steps))


def _numbers(spans: list[RawSpan]) -> list[int]:
    """The step numbers of all rows; each row of a window has its own, or there is one row."""
    column = f"{semconv.TABLE_PREFIX}step"
    windows = (span for span in spans if span.name == semconv.WINDOW and column in span.attributes)
    return [number for window in windows for number in window[column]]
