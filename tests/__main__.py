# SPDX-License-Identifier: Apache-2.0
"""The test suite as several pytest processes, as many at a time as there are cores: `make test`.

    python -m tests [ARGUMENTS OF PYTEST]

Each process is given the same arguments and runs one group of `groups`. What a group prints comes whole, one
group after another; then come all failures again, and the sum of all counts. The exit code is that of pytest.
Ctrl-C ends all of them in order, a second one at once.

For a debugger or `-s` call pytest itself, which runs the whole suite in one process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final

from tests.groups import GROUPS

ROOT: Final = Path(__file__).resolve().parents[1]
_FAILED, _INTERRUPTED, _NO_TESTS = 1, 2, 5
_HELD: Final = 1024
"""Bytes: what a group prints before its first test is held back until it is known whether it has any."""


class Group:
    """One group of tests: its process, and what that prints."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        command = [sys.executable, "-m", "pytest", "--group", name, "-o", f"cache_dir=.pytest_cache/{name}"]
        colour = ["--color=yes"] if sys.stdout.isatty() else []
        with (folder / name).open("wb") as into:
            self.process = subprocess.Popen(
                [*command, *colour, *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us alone; from here each group gets it once
            )
        self._output = (folder / name).open("rb")
        self._held = b""
        self._printing = False

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def has_tests(self) -> bool:
        return self.process.returncode != _NO_TESTS

    def print_some(self) -> bool:
        """Print what is there and not printed yet; return whether that was all there will ever be."""
        over = not self.runs
        self._held += self._output.read()
        self._printing = self._printing or len(self._held) > _HELD or (over and self.has_tests)
        if self._printing:
            sys.stdout.buffer.write(self._held)
            sys.stdout.buffer.flush()
            self._held = b""
        return over

    def lines(self) -> list[str]:
        self._output.seek(0)
        return re.sub(r"\x1b\[[\d;]*m", "", self._output.read().decode(errors="replace")).splitlines()

    def interrupt(self) -> None:
        if self.runs:
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        if self.runs:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def run(arguments: Sequence[str], at_once: int, folder: Path) -> list[Group]:
    """Run all groups, ``at_once`` at a time, and print what they print in their order."""
    waiting = list(GROUPS)
    groups: list[Group] = []
    printed = 0
    try:
        while waiting or printed < len(groups):
            while waiting and sum(group.runs for group in groups) < at_once:
                groups.append(Group(waiting.pop(0), arguments, folder))
            if groups[printed].print_some():
                printed += 1
            else:
                time.sleep(0.1)
    except KeyboardInterrupt:
        _end(groups)
        for group in groups[printed:]:
            group.print_some()
    return groups


def _end(groups: Sequence[Group]) -> None:
    """Have all groups end in order, their servers too; at once when Ctrl-C comes again."""
    try:
        for group in groups:
            group.interrupt()
        for group in groups:
            group.process.wait()
    except KeyboardInterrupt:
        for group in groups:
            group.kill()


def summary(groups: Sequence[Group], took_s: float) -> list[str]:
    """Return the failures of all groups, and a last line as pytest has it."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    for group in groups:
        lines = group.lines()
        last = next((line for line in reversed(lines) if re.search(r" in [\d.]+s\b", line)), "")
        found = re.findall(r"(\d+) (passed|failed|skipped|deselected|xfailed|xpassed|warning|error)", last)
        counts.update({name: int(number) for number, name in found})
        failures += [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        code = group.process.returncode
        if code == _INTERRUPTED or not (found or code == _NO_TESTS):
            failures.append(f"group {group.name} ended early, with code {code}")
    # Each group leaves out what others run.
    del counts["deselected"]
    plural = {"warning": "warnings", "error": "errors"}
    told = ", ".join(f"{n} {plural.get(name, name) if n != 1 else name}" for name, n in counts.items() if n)
    took = timedelta(seconds=round(took_s))
    return [*failures, f"=== {told or 'no tests ran'} in {took_s:.2f}s ({took}) ==="]


def main(arguments: Sequence[str]) -> int:
    # Who starts us in the background has it ignored, and so would all tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="grademl-tests-") as folder:
        groups = run(arguments, cores, Path(folder))
        print("\n".join(["", *summary(groups, time.monotonic() - began)]), flush=True)
    if len(groups) < len(GROUPS):
        return _INTERRUPTED
    codes = {group.process.returncode for group in groups}
    if codes == {_NO_TESTS}:
        return _NO_TESTS
    # A negative code is that of a signal.
    return max((code if code > 0 else _FAILED for code in codes - {0, _NO_TESTS}), default=0)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
