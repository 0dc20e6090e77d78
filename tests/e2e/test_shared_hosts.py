# SPDX-License-Identifier: Apache-2.0
"""Hosts that are shared: containers with one /dev/shm, two users, and a user who is there first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import deaths, training
from tests.support.rawspans import RawSpan, read_lines
from tests.support.relays import until

if not sys.platform.startswith("linux"):
    pytest.skip("namespaces and /dev/shm are Linux's", allow_module_level=True)

PROGRAM = training.ROOT / "tests" / "support" / "plain_training.py"
SHARED = Path("/dev/shm")
STRANGER = 64_117
"""The first of some user ids that nobody has."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may write to; pytest's own are for one user."""
    path = Path(tempfile.mkdtemp(prefix="shared-host-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _start(wrapper: Sequence[str], folder: Path, place: str, *arguments: str) -> subprocess.Popen[str]:
    """Train in the folder ``place``, with a store there; all other settings are those of its neighbours."""
    here = folder / place
    here.mkdir()
    here.chmod(0o777)
    return subprocess.Popen(
        [*wrapper, sys.executable, str(PROGRAM), *arguments],
        cwd=here,
        env=_environ(folder, {"GRADEML_STORE": str(here / "runs")}),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _environ(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    ours = {"GRADEML_EXPORTER": "file", "PYTHONPATH": str(training.ROOT), "TMPDIR": str(folder)}
    environ = {**training.clean_environ(folder, ours), **settings}
    environ.pop("XDG_RUNTIME_DIR", None)
    return environ


def _finish(process: subprocess.Popen[str]) -> str:
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 0, err
    return err


def _run(folder: Path, place: str) -> RawSpan:
    """The one run in the store of a place."""
    (path,) = (folder / place / "runs").glob("*/traces.jsonl")
    (run,) = (span for span in read_lines(path) if span.name == semconv.RUN)
    return run


def test_containers_that_share_a_folder_for_rings(folder: Path) -> None:
    """In both the trainer has the same process id; each has a relay of its own, which dies with it."""
    container = deaths.as_container()
    log = folder / "steps"
    longer = _start(container, folder, "longer", "40", "wait", str(log))
    until(lambda: log.exists() and log.stat().st_size > 10)
    for steps in (20, 30):
        assert "recording run" in _finish(_start(container, folder, f"{steps}", str(steps), "return"))
    Path(f"{log}.stop").touch()
    _finish(longer)
    runs = {place: _run(folder, place) for place in ("20", "30", "longer")}
    steps = {place: run[semconv.STEPS_TOTAL] for place, run in runs.items()}
    assert steps == {"20": 21, "30": 31, "longer": log.stat().st_size + 1}
    assert {run[semconv.ENDED] for run in runs.values()} == {"exit"}
    assert len({run.resource["process.pid"].value for run in runs.values()}) == 1
    assert len({run.trace_id for run in runs.values()}) == 3


def test_two_users(folder: Path) -> None:
    others = [deaths.as_user(STRANGER), deaths.as_user(STRANGER + 1)]
    with ExitStack() as cleaning:
        for uid in (STRANGER, STRANGER + 1):
            cleaning.callback(shutil.rmtree, SHARED / f"grademl-{uid}", ignore_errors=True)
        running = [
            _start(other, folder, str(number), str(20 + number), "return")
            for number, other in enumerate(others)
        ]
        errors = [_finish(each) for each in running]
        assert all(err.count("grademl: ") == 1 for err in errors), errors
        for number in range(2):
            run = _run(folder, str(number))
            assert (run[semconv.STEPS_TOTAL], run[semconv.ENDED]) == (21 + number, "exit")
            private = SHARED / f"grademl-{STRANGER + number}"
            assert private.stat().st_uid == STRANGER + number
            assert private.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("planted", ["a folder", "a link", "a file"])
def test_another_user_was_there_first(planted: str, folder: Path) -> None:
    """What somebody planted in the place of our folder is neither used nor touched; the run is recorded."""
    uid = STRANGER + 2 + ["a folder", "a link", "a file"].index(planted)
    stranger = deaths.as_user(uid)
    if os.getuid() != 0:
        pytest.skip("only root can leave a folder for a user who does not exist")
    trap, target = SHARED / f"grademl-{uid}", folder / "target"
    target.mkdir()
    target.chmod(0o777)
    if planted == "a folder":
        trap.mkdir()
        trap.chmod(0o777)
    elif planted == "a link":
        trap.symlink_to(target)
    else:
        trap.touch()
    try:
        err = _finish(_start(stranger, folder, "train", "20", "return"))
        assert err.count("grademl: ") == 1, err
        assert _run(folder, "train")[semconv.STEPS_TOTAL] == 21
        assert list(target.iterdir()) == []
        if planted == "a folder":
            assert list(trap.iterdir()) == []
    finally:
        trap.rmdir() if planted == "a folder" else trap.unlink()
