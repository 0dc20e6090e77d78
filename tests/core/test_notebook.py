# SPDX-License-Identifier: Apache-2.0
"""When the cells of a shell end a run, and when nobody hears of it; with real kernels: e2e/test_notebooks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from grademl_otel import marks
from grademl_otel.lifecycle import Session
from grademl_otel.loops import LoaderFacts, Pass
from grademl_otel.marks import RunInfo
from grademl_otel.recorder import Recorder
from tests.support.listwriter import ListTransport, ListWriter

now = time.perf_counter_ns


class Events:
    """IPython's registry of callbacks."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[..., None]]] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, event: str, callback: Callable[..., None]) -> None:
        self.callbacks[event].append(callback)

    def unregister(self, event: str, callback: Callable[..., None]) -> None:
        self.callbacks[event].remove(callback)


class Shell:
    """A shell with a session of ours in it."""

    def __init__(self) -> None:
        self.events = Events()
        self.user_ns: dict[str, Any] = {}
        self.writers: list[ListWriter] = []
        self.session = Session(self._open)

    def _open(self, *_: Any) -> tuple[ListWriter, ListTransport]:
        self.writers.append(ListWriter())
        return self.writers[-1], ListTransport()

    def cell(self, work: Callable[[], None] = lambda: None, error: BaseException | None = None) -> None:
        for callback in self.events.callbacks["pre_run_cell"]:
            callback(SimpleNamespace())
        work()
        for callback in self.events.callbacks["post_run_cell"]:
            callback(SimpleNamespace(error_in_exec=error))

    def recorder(self) -> Recorder:
        recorder = self.session.begin(training=True)
        assert recorder is not None
        return recorder

    def step(self) -> None:
        machine = self.recorder().here()
        at = now()
        machine.begin_backward(at)
        machine.end_backward(at, now())
        machine.stepped(1, at, now())

    def steps(self, number: int) -> Callable[[], None]:
        def work() -> None:
            machine = self.recorder().here()
            for _ in range(number):
                at = now()
                machine.begin_forward(at, 1)
                machine.end_forward(at, now(), True, 1, 0)
                self.step()

        return work

    def look(self) -> None:
        """Try the model on something."""
        machine = self.recorder().here()
        at = now()
        machine.begin_forward(at, 1)
        machine.end_forward(at, now(), True, 1, 0)

    @property
    def active(self) -> bool:
        return self.session.recorder is not None

    def info(self) -> RunInfo:
        (mark,) = self.writers[-1].of_kind(marks.RUN_INFO)
        return RunInfo.from_json(self.writers[-1].strings[mark.x])


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "GRADEML_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRADEML_EXPORTER", "file")
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert shell.session.install()
    yield shell
    shell.session.uninstall()
    assert shell.events.callbacks == {"pre_run_cell": [], "post_run_cell": []}


def test_a_loop_is_a_run_and_is_told_when_it_is_over(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        shell.cell(shell.steps(3))
        assert not shell.active
        assert len(shell.writers) == number
        assert capsys.readouterr().err.startswith("grademl: recorded run ")
    assert shell.info().needs_work


def test_single_steps_go_on_until_there_is_a_loop(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        shell.cell(shell.steps(1))
        shell.cell()
        shell.cell(error=NameError("typo"))
        assert shell.active
    assert capsys.readouterr().err.count("recording run") == 1
    shell.cell(shell.steps(2))
    assert not shell.active
    assert capsys.readouterr().err == ""
    assert len(shell.writers) == 1


def test_an_iterator_that_may_give_more_keeps_the_run(shell: Shell) -> None:
    passes: list[Pass] = []

    def two_batches() -> None:
        machine = shell.recorder().here()
        if not passes:
            passes.append(machine.iterator_made(LoaderFacts(0), now()))
        for _ in range(2):
            at = now()
            machine.begin_wait(passes[0], at)
            machine.end_wait(passes[0], at, now(), 4)
            shell.step()

    for _ in range(3):
        shell.cell(two_batches)
        assert shell.active
    assert shell.recorder().finished_steps() == 6
    shell.cell(lambda: shell.recorder().here().release(passes[0], now()))
    assert not shell.active


def test_a_look_at_the_model_is_told_to_nobody(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.cell(shell.look)
    assert not shell.active
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "told"), [(KeyboardInterrupt(), "KeyboardInterrupt"), (SystemExit(0), ""), (None, "")]
)
def test_what_ends_a_cell_ends_its_run(shell: Shell, error: BaseException | None, told: str) -> None:
    shell.cell(shell.steps(4), error)
    assert not shell.active
    (close,) = [
        mark for mark in shell.writers[0].of_kind(marks.SCOPE_CLOSE) if mark.y == marks.SCOPE_INDEX["run"]
    ]
    assert shell.writers[0].strings[close.z] == told


def test_a_run_begins_with_its_cell(shell: Shell) -> None:
    time.sleep(0.01)
    began = now()

    def prepared() -> None:
        time.sleep(0.01)
        shell.steps(2)()

    shell.cell(prepared)
    (opened,) = [
        mark for mark in shell.writers[0].of_kind(marks.SCOPE_OPEN) if mark.y == marks.SCOPE_INDEX["run"]
    ]
    assert began <= opened.t0 < began + 10_000_000


def test_the_name_of_the_notebook(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = shell.session.cells
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert cells.script("ipython") == "ipython"
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert cells.script("ipykernel_launcher.py") == "notebook"
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/mnist.ipynb")
    assert cells.script("ipykernel_launcher.py") == "mnist.ipynb"
    shell.user_ns["__vsc_ipynb_file__"] = "/home/me/code.ipynb"
    assert cells.script("ipykernel_launcher.py") == "code.ipynb"


def test_a_fault_of_ours_is_one_line(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.recorder()
    for fault in (RuntimeError("odd"), KeyboardInterrupt()):
        shell.session.recorder.pause = lambda fault=fault: (_ for _ in ()).throw(fault)  # type: ignore
        shell.cell()
    assert capsys.readouterr().err == "grademl: the run goes on after its cell: RuntimeError: odd\n"
