# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that several ranks write, and such as are written while the program trains on, ends or dies."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import rank_program, saving_program, training
from tests.support.rawspans import RawSpan, read_lines
from tests.support.relays import until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch was built without gloo"
)

PROGRAM = Path(saving_program.__file__)


def _run(folder: Path, how: str, world: int, ends: int = 0) -> list[RawSpan]:
    """The spans of a job whose ranks end with the status ``ends``."""
    (folder / "rings").mkdir()
    port = str(rank_program.free_port())
    ranks = []
    for rank in range(world):
        settings = {"GRADEML_EXPORTER": "file", "GRADEML_RING_DIR": str(folder / "rings")}
        settings |= {"RANK": str(rank), "WORLD_SIZE": str(world), "PORT": port}
        command = training.traced_command(PROGRAM, str(folder / "checkpoint"), how)
        ranks.append(
            subprocess.Popen(
                command, cwd=folder, env=training.clean_environ(folder, settings), text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    for each in ranks:
        _, err = each.communicate(timeout=training.TIMEOUT_S)
        assert each.returncode == ends, err[-4000:]
        assert "Traceback" not in err
    found: list[RawSpan] = []

    def complete() -> bool:
        found[:] = [span for path in (folder / "runs").glob("*/traces.jsonl") for span in read_lines(path)]
        return sum(span.name == semconv.RUN for span in found) == world

    until(complete)
    return found


def _of(spans: list[RawSpan], rank: int, name: str) -> list[RawSpan]:
    return [span for span in spans if span.name == name and span.resource[semconv.RANK].value == rank]


def _row_counts(spans: list[RawSpan], rank: int) -> list[int]:
    """How often each step of the table saved."""
    counts: list[int] = []
    for window in _of(spans, rank, semconv.WINDOW):
        rows = len(window.column("start_us"))
        counts += window.column("checkpoint.save.count") or [0] * rows
    return counts


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RawSpan]]:
    """Two ranks that end in order while a state is written."""
    folder = tmp_path_factory.mktemp("job")
    return folder / "checkpoint", _run(folder, "ends", world=2)


def _size(folder: Path, rank: int) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"__{rank}_*.distcp"))


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_says_what_it_wrote(job: tuple[Path, list[RawSpan]], rank: int) -> None:
    folder, spans = job
    save = min(_of(spans, rank, "checkpoint.save"), key=lambda span: span.start)
    (load,) = _of(spans, rank, "checkpoint.load")
    assert save[semconv.BYTES] == _size(folder / "saved", rank) > 4000
    for span in (save, load):
        assert span[semconv.CHECKPOINT_FORMAT] == "distributed"
        assert span[semconv.STEP_NUMBER] == saving_program.SAVED_AT
        assert span[semconv.LANE] == "main"
        assert semconv.CHECKPOINT_PART not in span.attributes


@pytest.mark.parametrize("rank", [0, 1])
def test_the_program_ends_while_the_state_is_written(job: tuple[Path, list[RawSpan]], rank: int) -> None:
    """Python waits for the thread that writes it, and so does the run."""
    folder, spans = job
    _, blocking, behind = sorted(_of(spans, rank, "checkpoint.save"), key=lambda span: span.end)
    (run,) = _of(spans, rank, semconv.RUN)
    assert blocking[semconv.CHECKPOINT_PART] == "blocking"
    assert behind[semconv.CHECKPOINT_PART] == "background"
    assert blocking[semconv.CHECKPOINT_NUMBER] == behind[semconv.CHECKPOINT_NUMBER] == 0
    assert behind[semconv.CHECKPOINT_COMPLETED] is True
    assert behind[semconv.LANE] == "checkpoint"
    assert behind.parent_id == run.span_id
    assert behind.end <= run.end
    assert behind[semconv.BYTES] == _size(folder / "behind", rank)
    saved = [step for step, number in enumerate(_row_counts(spans, rank)) if number]
    assert saved == [saving_program.SAVED_AT, saving_program.BEHIND_AT]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no signals that kill")
def test_the_process_dies_while_the_state_is_written(tmp_path: Path) -> None:
    spans = _run(tmp_path, "killed", world=1, ends=-signal.SIGKILL)
    _, blocking, behind = sorted(_of(spans, 0, "checkpoint.save"), key=lambda span: span.end)
    (run,) = _of(spans, 0, semconv.RUN)
    assert blocking[semconv.CHECKPOINT_NUMBER] == behind[semconv.CHECKPOINT_NUMBER]
    assert semconv.TERMINATED not in blocking.attributes
    assert behind[semconv.TERMINATED] == "killed"
    assert behind[semconv.CHECKPOINT_COMPLETED] is False
    assert semconv.BYTES not in behind.attributes
    assert behind.status == 2
    assert behind.end == run.end
