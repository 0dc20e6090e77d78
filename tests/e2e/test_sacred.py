# SPDX-License-Identifier: Apache-2.0
"""The user's program is sacred: the same numbers, exits and messages with and without recording."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import RawSpan, read_lines

pytest.importorskip("torch")

FILE_STORE = {"GRADEML_EXPORTER": "file"}

TRAINING = """
import random, sys
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return torch.full((8,), index / 64) + noise, index % 3

def main(options):
    random.seed(1); np.random.seed(2); torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    training = DataLoader(Noisy(), batch_size=8, shuffle=True, **options)
    held_out = DataLoader(Noisy(), batch_size=16)
    for epoch in range(2):
        net.train()
        for x, y in training:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
        net.eval()
        with torch.no_grad():
            print(sum(net(x).sum().item() for x, _ in held_out).hex())
    print(random.random(), np.random.rand(), torch.rand(1).item())

if __name__ == "__main__":
    main(eval(sys.argv[1]))
"""

ENDINGS = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if sys.argv[1] == "dataset" and index == 5:
            raise LookupError("row 5 is missing")
        return torch.full((2,), float(index))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
    def forward(self, x):
        if sys.argv[1] == "forward" and x.max() > 3:
            raise ArithmeticError("too large")
        return self.inner(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in DataLoader(Data(), batch_size=2):
    loss = net(x).sum()
    if sys.argv[1] == "backward":
        loss = loss.detach()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1] == "exit":
        sys.exit(3)
    if sys.argv[1] == "cause":
        try:
            net(None)
        except Exception as error:
            raise RuntimeError("second") from error
"""

KILLED = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(400_000, 4)), batch_size=4)
with open(sys.argv[1], "w") as progress:
    for number, (x,) in enumerate(loader, 1):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        time.sleep(0.002)
        progress.write("x"); progress.flush()
"""

CHILDREN = """
import sys
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def work(steps, fails=False):
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(4 * steps, 4)), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    if fails:
        raise LookupError("no more")

if __name__ == "__main__":
    torch.set_num_threads(1)
    context = mp.get_context(sys.argv[1])
    if sys.argv[2] == "parent":
        work(3)
    if sys.argv[2] == "fails":
        child = context.Process(target=work, args=(4, True))
        child.start()
        child.join()
        sys.exit(child.exitcode)
    children = [context.Process(target=work, args=(5 + number,)) for number in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
"""


BY_HAND = """
import torch
from torch import nn
import grademl_otel

net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).sum().backward()
        optimizer.step()

forward = nn.Module.__call__
train(2)
grademl_otel.instrument()
grademl_otel.instrument()
train(5)
grademl_otel.uninstrument()
train(3)
assert nn.Module.__call__ is forward
"""


def _script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def _without_our_line(err: str) -> str:
    return "".join(
        line for line in err.splitlines(keepends=True) if not line.startswith("grademl: recording run")
    )


def _spans(folder: Path) -> dict[str, list[RawSpan]]:
    """The spans of each run in the folder's store."""
    return {path.parent.name: read_lines(path) for path in (folder / "runs").glob("*/traces.jsonl")}


def _rows(spans: list[RawSpan]) -> int:
    windows = [span for span in spans if span.name == semconv.WINDOW]
    return sum(len(window.column("step")) for window in windows)


@pytest.mark.parametrize(
    "options", ["{}", "{'num_workers': 2}", "{'num_workers': 2, 'persistent_workers': True}"]
)
def test_losses_and_random_streams_are_bit_equal(options: str, tmp_path: Path) -> None:
    script = _script(tmp_path, TRAINING)
    plain = training.train_untraced(script, [options], tmp_path).ok()
    traced = training.train(script, [options], tmp_path, FILE_STORE).ok()
    assert len(plain.out.splitlines()) == 2 * (8 + 1) + 1
    assert traced.out == plain.out
    assert [_rows(spans) for spans in _spans(tmp_path).values()] == [2 * (8 + 4)]


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_data_of_workers_started_otherwise_are_the_same(start_method: str, tmp_path: Path) -> None:
    script = _script(tmp_path, TRAINING)
    options = f"{{'num_workers': 2, 'multiprocessing_context': {start_method!r}}}"
    plain = training.train_untraced(script, [options], tmp_path).ok()
    traced = training.train(script, [options], tmp_path, FILE_STORE).ok()
    assert traced.out == plain.out
    (spans,) = _spans(tmp_path).values()
    lanes = {span[semconv.LANE] for span in spans if span.name == semconv.DATA_FETCH}
    assert lanes >= {"loader-worker-0", "loader-worker-1"}


@pytest.mark.parametrize(
    ("ending", "code", "error"),
    [
        ("none", 0, None),
        ("exit", 3, None),
        ("dataset", 1, "LookupError"),
        ("forward", 1, "ArithmeticError"),
        ("backward", 1, "RuntimeError"),
        ("cause", 1, "RuntimeError"),
    ],
)
def test_exit_codes_and_messages_are_the_same(
    ending: str, code: int, error: str | None, tmp_path: Path
) -> None:
    script = _script(tmp_path, ENDINGS)
    plain = training.train_untraced(script, [ending], tmp_path)
    traced = training.train(script, [ending], tmp_path, FILE_STORE)
    assert traced.code == plain.code == code
    assert traced.out == plain.out
    assert _without_our_line(traced.err) == plain.err
    (spans,) = _spans(tmp_path).values()
    (run,) = [span for span in spans if span.name == semconv.RUN]
    assert run[semconv.ENDED] == ("exit" if error is None else "exception")
    assert run.attributes["error.type"].value == error if error else "error.type" not in run.attributes


def _wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds:g} s"
        time.sleep(0.05)


def test_a_killed_training_has_lost_at_most_its_last_second(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    program = subprocess.Popen(
        training.traced_command(_script(tmp_path, KILLED), str(progress)),
        cwd=tmp_path,
        env=training.clean_environ(tmp_path, FILE_STORE),
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(lambda: progress.exists() and progress.stat().st_size > 300, "progress")
        done = progress.stat().st_size
        time.sleep(1)
    finally:
        program.kill()
    assert program.wait() == -signal.SIGKILL
    at_death = progress.stat().st_size

    def ended() -> bool:
        return any(span.name == semconv.RUN for spans in _spans(tmp_path).values() for span in spans)

    _wait_for(ended, "end of the run")
    (spans,) = _spans(tmp_path).values()
    (run,) = [span for span in spans if span.name == semconv.RUN]
    assert run[semconv.ENDED] == run[semconv.TERMINATED] == "killed"
    assert done <= run[semconv.STEPS_TOTAL] <= at_death + 1
    assert done <= _rows(spans) <= at_death + 2  # the step that was running may be there, as incomplete
    (epoch,) = [span for span in spans if span.name == semconv.EPOCH]
    assert epoch[semconv.TERMINATED] == "killed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("parent", ["parent", "idle"])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_children_that_train_are_recorded(start_method: str, parent: str, tmp_path: Path) -> None:
    script = _script(tmp_path, CHILDREN)
    training.train(script, [start_method, parent], tmp_path, FILE_STORE).ok()
    runs = _spans(tmp_path)
    steps = sorted(
        run[semconv.STEPS_TOTAL] for spans in runs.values() for run in spans if run.name == semconv.RUN
    )
    # A forked child is silent until its own first backward; its first batch was asked for before.
    assert steps == ([3] if parent == "parent" else []) + [5, 6]
    assert sum(_rows(spans) for spans in runs.values()) == sum(steps)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_fails_says_so(tmp_path: Path) -> None:
    done = training.train(_script(tmp_path, CHILDREN), ["fork", "fails"], tmp_path, FILE_STORE)
    assert done.code == 1
    assert "LookupError: no more" in done.err
    (spans,) = _spans(tmp_path).values()
    (run,) = [span for span in spans if span.name == semconv.RUN]
    assert (run[semconv.ENDED], run["error.type"], run[semconv.STEPS_TOTAL]) == (
        "exception",
        "LookupError",
        4,
    )


def test_a_script_that_instruments_itself(tmp_path: Path) -> None:
    training.train_untraced(_script(tmp_path, BY_HAND), [], tmp_path).ok()
    (spans,) = _spans(tmp_path).values()
    (run,) = [span for span in spans if span.name == semconv.RUN]
    assert run[semconv.STEPS_TOTAL] == _rows(spans) == 5
    assert run.resource[semconv.FRAMEWORK_NAME].value == "torch"
