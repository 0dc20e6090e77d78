# SPDX-License-Identifier: Apache-2.0
"""Runs in a notebook, with a real kernel: what is one run, what is none, and what the cells show."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import RawSpan, read_lines
from tests.support.relays import until

pytest.importorskip("torch")
pytest.importorskip("ipykernel")
pytest.importorskip("jupyter_client")
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from tests.support.kernels import Kernel, Shown, kernel

FILE_STORE = {"GRADEML_EXPORTER": "file"}
LINE = re.compile(r"grademl: record(?:ing|ed) run ([0-9a-f]{32}) to \./runs; report: grademl \./runs\n")

SETUP = """
import threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(torch.randn(40, 4), batch_size=4)
def step(x):
    optimizer.zero_grad()
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
def epoch():
    for x in loader:
        step(x)
"""


def runs(folder: Path) -> list[RawSpan]:
    """The run spans in the folder's store, in the order of their starts."""
    paths = (folder / "runs").glob("*/traces.jsonl")
    spans = [span for path in paths for span in read_lines(path) if span.name == semconv.RUN]
    return sorted(spans, key=lambda span: span.start)


class Notebook:
    """A kernel in a folder; each cell tells what it showed and which runs ended with it."""

    def __init__(self, kernel: Kernel, folder: Path):
        self.kernel = kernel
        self.folder = folder
        self._ended: set[str] = {str(run.resource[semconv.RUN_ID].value) for run in runs(folder)}

    def cell(self, source: str, interrupt_at: str = "") -> tuple[Shown, list[RawSpan]]:
        shown = self.kernel.run(source, interrupt_at)
        ended = [run for run in runs(self.folder) if run.resource[semconv.RUN_ID].value not in self._ended]
        self._ended |= {str(run.resource[semconv.RUN_ID].value) for run in ended}
        return shown, ended


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel in which torch, a model, an optimizer and a loader were there before us."""
    folder = tmp_path_factory.mktemp("notebook")
    with kernel(folder, training.clean_environ(folder, FILE_STORE)) as running:
        assert running.run(SETUP) == Shown()
        assert running.run("%load_ext grademl_otel") == Shown()
        yield Notebook(running, folder)


def steps(ended: list[RawSpan]) -> list[int]:
    return [run[semconv.STEPS_TOTAL] for run in ended]


def told(shown: Shown) -> str:
    """The id in the one line that the cell shows of us."""
    line = LINE.fullmatch(shown.err)
    assert line, shown
    return line[1]


def test_a_cell_that_trains_is_a_run_and_so_is_each_time_it_is_run_again(notebook: Notebook) -> None:
    notebook.cell("time.sleep(0.5)")
    for _ in range(2):
        shown, ended = notebook.cell("time.sleep(0.05)\nepoch()\nprint('done')")
        assert shown.out == "done\n"
        (run,) = ended
        assert (run[semconv.STEPS_TOTAL], run[semconv.ENDED]) == (10, "exit")
        assert run[semconv.SCRIPT] == "notebook"
        assert told(shown) == run.resource[semconv.RUN_ID].value
        # It begins with its cell: the preparation counts, the thinking before does not.
        assert run.end - run.start >= 50_000_000
        assert run.end - run.start < 20_000_000_000


def test_cells_that_train_nothing_leave_nothing(notebook: Notebook) -> None:
    cells = (
        "print('hello')",
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)",
        "x = next(iter(loader)); x.shape",
        "net(x).shape",
        "net(x[:, :2])",
        "this is no Python",
        "try_loader = DataLoader(torch.randn(8, 4), num_workers=1)",
    )
    for source in cells:
        shown, ended = notebook.cell(source)
        assert (shown.err, ended) == ("", []), source
    shown, ended = notebook.cell("epoch()")
    assert steps(ended) == [10]
    assert told(shown)


def test_a_loop_without_a_loader_is_a_run(notebook: Notebook) -> None:
    _, ended = notebook.cell("for _ in range(7): step(torch.ones(2, 4))")
    assert steps(ended) == [7]


def test_steps_by_hand_are_one_run_until_a_loop_ends_it(notebook: Notebook) -> None:
    lines = []
    for source in ("step(x)", "step(x)", "2 + 2", "prit(x)", "step(x)"):
        shown, ended = notebook.cell(source)
        lines.append(shown.err)
        assert ended == []
    assert LINE.fullmatch(lines[0])
    assert lines[1:] == [""] * 4
    shown, ended = notebook.cell("for _ in range(4): step(x)")
    assert steps(ended) == [7]
    assert shown.err == ""
    (run,) = ended
    assert "error.type" not in run.attributes


def test_a_loop_may_be_spread_over_cells(notebook: Notebook) -> None:
    for source in ("it = iter(loader)", "step(next(it))", "step(next(it)); step(next(it))"):
        _, ended = notebook.cell(source)
        assert ended == []
    _, ended = notebook.cell("for x in it: step(x)")
    assert steps(ended) == [10]


def test_a_loop_that_is_left_is_over(notebook: Notebook) -> None:
    _, ended = notebook.cell("for number, x in enumerate(loader):\n    step(x)\n    if number == 3: break")
    assert steps(ended) == [4]


def test_the_pause_between_cells_is_no_part_of_a_step(notebook: Notebook) -> None:
    notebook.cell("it = iter(loader); step(next(it))")
    notebook.cell("time.sleep(1.5)")
    _, ended = notebook.cell("for x in it: step(x)")
    (run,) = ended
    (path,) = (notebook.folder / "runs").glob(f"*-{run.resource[semconv.RUN_ID].value}/traces.jsonl")
    durations = [
        duration
        for span in read_lines(path)
        if span.name == semconv.WINDOW
        for duration in span.column("dur_us")
    ]
    assert max(durations) < 1_500_000


def test_a_cell_that_fails_ends_its_run_and_the_next_one_works(notebook: Notebook) -> None:
    shown, ended = notebook.cell("for number, x in enumerate(loader):\n    step(x)\n    assert number < 5")
    assert shown.error == "AssertionError"
    (run,) = ended
    assert (run[semconv.STEPS_TOTAL], run[semconv.ENDED]) == (6, "exception")
    assert run.attributes["error.type"].value == "AssertionError"
    assert not any("grademl_otel" in line for line in shown.traceback)
    assert steps(notebook.cell("epoch()")[1]) == [10]


def test_an_interrupt_ends_the_run_and_the_next_one_works(notebook: Notebook) -> None:
    loop = "for number in range(100000):\n    step(x); time.sleep(0.01)\n    number == 5 and print('go')"
    shown, ended = notebook.cell(loop, interrupt_at="go")
    assert shown.error == "KeyboardInterrupt"
    (run,) = ended
    assert run[semconv.ENDED] == "exception"
    assert run.attributes["error.type"].value == "KeyboardInterrupt"
    assert run[semconv.STEPS_TOTAL] >= 6
    assert steps(notebook.cell("epoch()")[1]) == [10]


def test_a_thread_that_trains_goes_on_after_its_cell(notebook: Notebook) -> None:
    source = "def work():\n    for _ in range(40): epoch(); time.sleep(0.02)\n"
    _, ended = notebook.cell(
        source + "thread = threading.Thread(target=work); thread.start(); time.sleep(0.2)"
    )
    assert ended == []
    _, ended = notebook.cell("thread.join()")
    assert steps(ended) == [400]


def test_data_are_what_they_were_and_the_output_is_not_touched(notebook: Notebook) -> None:
    shown, _ = notebook.cell("import sys; print(sys.stdout.__class__.__name__); epoch(); print('é', end='')")
    assert shown.out == "OutStream\né"
    told(shown)


def test_unloaded_and_loaded_again(notebook: Notebook) -> None:
    assert notebook.cell("%unload_ext grademl_otel") == (Shown(), [])
    assert notebook.cell("epoch()") == (Shown(), [])
    assert notebook.cell("get_ipython().events.callbacks['post_run_cell']")[0].err == ""
    assert notebook.cell("%load_ext grademl_otel") == (Shown(), [])
    assert steps(notebook.cell("epoch()")[1]) == [10]


def test_the_end_of_a_kernel_loses_nothing(notebook: Notebook) -> None:
    """The last test of this kernel: it is killed in the middle of a loop, and restarted; then shut down."""
    notebook.cell("it = iter(loader); step(next(it)); step(next(it)); time.sleep(0.5)")
    before = len(runs(notebook.folder))
    notebook.kernel.restart(now=True)
    until(lambda: len(runs(notebook.folder)) > before)
    run = runs(notebook.folder)[-1]
    assert (run[semconv.STEPS_TOTAL], run[semconv.ENDED]) == (2, "killed")

    notebook.cell(f"import grademl_otel; grademl_otel.instrument()\n{SETUP}")
    notebook.cell("it = iter(loader); step(next(it)); step(next(it)); step(next(it))")
    notebook.kernel.stop()
    run = runs(notebook.folder)[-1]
    assert (run[semconv.STEPS_TOTAL], run[semconv.ENDED]) == (3, "exit")


def test_a_kernel_under_opentelemetry_instrument(tmp_path: Path) -> None:
    instrument = str(training.BIN / "opentelemetry-instrument")
    environ = training.clean_environ(tmp_path, FILE_STORE)
    with kernel(tmp_path, environ, instrument) as running:
        notebook = Notebook(running, tmp_path)
        assert notebook.cell(SETUP + "time.sleep(0.1)") == (Shown(), [])
        for _ in range(2):
            shown, ended = notebook.cell("epoch()")
            assert steps(ended) == [10]
            told(shown)
        running.stop()
    assert len(runs(tmp_path)) == 2


def test_ipython_in_a_terminal(tmp_path: Path) -> None:
    source = f"{SETUP}\n%load_ext grademl_otel\nepoch()\nprint('done')"
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", source],
        cwd=tmp_path,
        env={**training.clean_environ(tmp_path, FILE_STORE), "IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done
    assert LINE.fullmatch(done.stderr)
    assert steps(runs(tmp_path)) == [10]


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for name, value in training.clean_environ(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GRADEML_STORE")  # it reports on what lies beside it
    notebook = nbformat.read(training.ROOT / "examples" / "notebook" / "slow_loader.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=120, resources=resources)
    client.km = KernelManager(transport="ipc", ip=str(tmp_path / "kernel"))
    client.km._kernel_spec = KernelSpec(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output.output_type == "error"] == []
    written = "".join(output.text for output in outputs if output.output_type == "stream")
    assert written.count("grademl: recorded run ") == 2
    shown = {
        "".join(cell.source.splitlines()[-1:]): output.data
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "execute_result"
    }
    report = shown["before"]["text/html"]
    assert report.index("complete (32 of 32 steps") < report.index("The trainer waits for data")
    assert "VERDICT  The trainer waits for data" in shown["before"]["text/plain"]
    assert "Critical path by phase" in shown["path"]["text/html"]
    frame = shown['path.to_pandas()[["key", "path_ns", "path_share"]].head()']["text/plain"]
    assert "data.fetch" in frame
    share = next(data["text/plain"] for source, data in shown.items() if "data_wait_ns" in source)
    assert float(re.search(r"\d\.\d+", share)[0]) > 0.5  # type: ignore[index]
    difference = next(data["text/html"] for source, data in shown.items() if source.startswith("difference"))
    assert "data.wait" in difference
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "The trainer waits for data" in page
