# SPDX-License-Identifier: Apache-2.0
"""Pulls that are interrupted, killed, or meet a server that hangs: the copy stays usable, and goes on."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from grademl_otel.analyzers.cli.progress import ProgressLine
from grademl_otel.analyzers.sources import Selection, open_source
from tests.support.copied import InPieces, run_in_pieces, same
from tests.support.fake_jaeger import FakeJaeger, Reply, serve
from tests.support.servers import wait_until
from tests.support.synthetic import MS, Training, simulate
from tests.support.training import BIN, ROOT, Finished, clean_environ, grademl

PATIENCE_S = 60
"""Only catches a hang."""
PULLING = [sys.executable, "-m", "tests.support.pulling_program"]


@pytest.fixture(scope="module")
def run_lines() -> bytes:
    """More traces than a pull fetches ahead of the one that it copies."""
    return simulate(Training(epochs=1, steps_per_epoch=60, workers=2, fetch_ns=39 * MS)).otlp_lines()


class Slow:
    """Answers for single traces late, or not at all while it `hangs`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.hangs: Callable[[], bool] = lambda: False
        self.over = False
        self.traces = 0

    def __call__(self, path: str) -> Reply | None:
        if path.startswith("/api/v3/traces/"):
            self.traces += 1
            time.sleep(self.seconds)
        while not self.over and self.hangs():
            time.sleep(0.05)
        return None


@contextmanager
def slow_jaeger(lines: bytes, seconds: float = 0.0) -> Iterator[tuple[FakeJaeger, Slow, str]]:
    slow = Slow(seconds)
    with serve(FakeJaeger(lines, intercept=slow)) as fake:
        try:
            yield fake, slow, f"jaeger://127.0.0.1:{fake.port}"
        finally:
            slow.over = True


def started(
    arguments: list[str], folder: Path, stderr: int = subprocess.PIPE, **settings: str
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(BIN / "grademl"), *arguments],
        cwd=folder,
        env=clean_environ(folder, settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def begun(folder: Path) -> int:
    """How many pieces of a copy have been begun; 0 where there is none yet."""
    if not (folder / "manifest.sqlite").exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{folder}/manifest.sqlite?mode=ro", uri=True)) as manifest:
            return int(manifest.execute("SELECT count(*) FROM pieces").fetchone()[0])
    except sqlite3.OperationalError:  # its tables are not there yet
        return 0


def ended(process: subprocess.Popen[bytes]) -> Finished:
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Finished(process.returncode, out.decode(), (err or b"").decode())


def stopped_midway(slow: Slow, address: str, number: signal.Signals, tmp_path: Path) -> Finished:
    """Start a pull, and send it a signal once it has copied some and waits for the next."""
    slow.hangs = lambda: begun(tmp_path / "copy") > 5
    process = started(["pull", address, "-o", "copy", "--timeout", "300"], tmp_path)
    wait_until(lambda: slow.hangs() or process.poll() is not None, "six pieces begun", PATIENCE_S)
    process.send_signal(number)
    stopped = ended(process)
    assert stopped.code == 130
    line = re.fullmatch(
        r"grademl: interrupted: copied (\d+) of (\d+) pieces, \d+ spans;"
        r" run the same command again to go on\n",
        stopped.err,
    )
    assert line, stopped.err
    assert 0 < int(line[1]) < int(line[2])
    return stopped


def test_an_interrupted_pull_says_what_is_usable_and_goes_on(tmp_path: Path, run_lines: bytes) -> None:
    with slow_jaeger(run_lines) as (_, slow, address):
        grademl(["pull", address, "-o", "whole"], tmp_path).ok()
        all_traces, slow.traces = slow.traces, 0
        stopped_midway(slow, address, signal.SIGINT, tmp_path)

        partly = grademl(["report", "copy", "--json"], tmp_path)
        assert partly.code == 3, partly.err
        assert json.loads(partly.out)["completeness"]["verdict"] == "incomplete"
        assert "unfinished copy" in partly.err

        slow.traces, slow.hangs = 0, lambda: False
        grademl(["pull", address, "-o", "copy"], tmp_path).ok()
        assert slow.traces < all_traces, "what was done is not asked for again"
    whole, copy = (open_source(str(tmp_path / name)).read(Selection()) for name in ("whole", "copy"))
    same(whole, copy)


def test_sigterm_is_no_other_than_ctrl_c(tmp_path: Path, run_lines: bytes) -> None:
    with slow_jaeger(run_lines) as (_, slow, address):
        stopped_midway(slow, address, signal.SIGTERM, tmp_path)


def test_a_server_that_hangs_does_not_hold_the_end(tmp_path: Path, run_lines: bytes) -> None:
    for arguments in (["pull", "-o", "copy"], ["report"]):
        with slow_jaeger(run_lines) as (fake, slow, address):
            slow.hangs = lambda: True
            process = started([*arguments, address, "--timeout", "300"], tmp_path)
            wait_until(lambda: bool(fake.requests), "a request", PATIENCE_S)
            process.send_signal(signal.SIGINT)
            stopped = ended(process)
        assert stopped.code == 130
        assert stopped.err.startswith("grademl: interrupted")
        assert stopped.err.count("\n") == 1, stopped.err
        assert stopped.out == ""


def test_no_thread_holds_the_end(tmp_path: Path) -> None:
    """As one that waits for a server of which the command has heard enough."""
    program = """
import threading, time
from grademl_otel.analyzers.cli import app, main
def run(argv):
    threading.Thread(target=time.sleep, args=(300,)).start()
    print("said")
    return 3
app.run = run
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=clean_environ(tmp_path),
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (3, "said\n")


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    program = """
import time
from grademl_otel.analyzers.cli.interrupts import interruptible
with interruptible():
    try:
        print("ready", flush=True)
        time.sleep(300)
    except KeyboardInterrupt:
        print("first", flush=True)
        time.sleep(300)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=clean_environ(tmp_path), text=True
    )
    assert process.stdout is not None
    for word in ("ready", "first"):
        assert process.stdout.readline().strip() == word
        process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == -signal.SIGINT
    process.stdout.close()


def test_pulls_that_are_killed_at_any_moment_go_on(tmp_path: Path) -> None:
    rng = random.Random(11)
    folder, kills = tmp_path / "copy", 0
    environ = {**clean_environ(tmp_path), "PYTHONPATH": str(ROOT)}
    for attempt in range(40):
        process = subprocess.Popen([*PULLING, str(folder), "40", "0.02"], cwd=ROOT, env=environ)
        # From the moment that there is something on the disk, wherever it is then.
        files = len(list(folder.glob("*"))) if folder.exists() else 0
        while process.poll() is None and (not folder.exists() or len(list(folder.glob("*"))) <= files):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.15) if attempt < 4 else 0)
        if attempt < 4:
            process.kill()
        code = process.wait(PATIENCE_S)
        if code == 0:
            break
        kills += code == -signal.SIGKILL
        if kills == 4 or attempt >= 4:
            subprocess.run([*PULLING, str(folder), "40", "0"], cwd=ROOT, env=environ, check=True)
            break
    assert kills >= 2
    same(InPieces(run_in_pieces(40)).read(Selection()), open_source(str(folder)).read(Selection()))


def test_progress_is_drawn_on_a_terminal(tmp_path: Path, run_lines: bytes) -> None:
    screen, terminal = pty.openpty()
    settings = {"TERM": "xterm-256color", "NO_COLOR": "1"}
    try:
        with slow_jaeger(run_lines, 0.25) as (_, _, address):
            process = started(["pull", address, "-o", "copy"], tmp_path, terminal, **settings)
            os.close(terminal)
            shown = b""
            while some := _read(screen):
                shown += some
            assert ended(process).code == 0
    finally:
        os.close(screen)
    assert b"pieces" in shown
    assert b"\x1b[3" not in shown, "no colours"


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 4096)
    except OSError:  # its other end is closed
        return b""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "seconds", "drawn"),
    [
        (_Terminal, "xterm", 2.0, True),
        (_Terminal, "xterm", 0.5, False),
        (_Terminal, "dumb", 2.0, False),
        (_Terminal, "", 2.0, False),
        (io.StringIO, "xterm", 2.0, False),
    ],
)
def test_progress_is_for_long_work_on_terminals(
    stream: type[io.StringIO], term: str, seconds: float, drawn: bool
) -> None:
    now, shown = [0.0], stream()
    line = ProgressLine(shown, {"TERM": term}, lambda: now[0])
    for done in range(3):
        now[0] += seconds / 2
        line("pieces", done, 3)
    line.close()
    line("pieces", 3, 3)
    assert ("pieces" in shown.getvalue()) == drawn
