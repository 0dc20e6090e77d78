# SPDX-License-Identifier: Apache-2.0
"""A step that does not end, in a real process under a real relay: the store says what runs since when."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grademl_otel import semconv
from grademl_otel.analyzers.model.run import build_run
from grademl_otel.analyzers.sources import Selection, open_source

from ..support.relays import REPOSITORY, Workplace, until

PROGRAM = """
import time
from tests.support import plain_training

plain_training.session.install()
for _ in range(3):
    plain_training.step()
print("stuck", flush=True)
plain_training.step(lambda: time.sleep(300))
"""


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Workplace]:
    workplace = Workplace(tmp_path, {"GRADEML_EXPORTER": "file"})
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        env=workplace.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        yield workplace
    finally:
        process.kill()
        process.communicate()
        workplace.stop_relays()


def test_a_step_that_hangs_is_seen_while_it_does(stuck: Workplace) -> None:
    since = time.time_ns()

    def silent() -> list[dict[str, object]]:
        return [span for span in stuck.named("window") if "grademl.table.step" not in span["attributes"]]

    until(silent, 60)
    (window, *_) = silent()
    attributes = window["attributes"]
    assert isinstance(attributes, dict)
    assert attributes[semconv.OPEN_PHASE] == "forward"
    assert abs(attributes[semconv.OPEN_SINCE] - since) < 10e9
    assert attributes[semconv.WINDOW_ROWS_SO_FAR] == 3

    (store,) = stuck.store.iterdir()
    run = build_run(open_source(str(store)).read(Selection()))
    assert run is not None
    (ended,) = run.completeness.ended
    assert (ended.how, ended.open_phase) == ("unknown", "forward")
    assert run.completeness.steps_measured == 3
    assert len(run.completeness.reasons) == 1  # it has not reported an end
