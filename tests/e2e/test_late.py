# SPDX-License-Identifier: Apache-2.0
"""`grademl_otel.instrument()` in a program that runs already: what was there before is adopted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from grademl_otel import semconv
from tests.support import training
from tests.support.rawspans import RawSpan, read_lines

pytest.importorskip("torch")

FILE_STORE = {"GRADEML_EXPORTER": "file"}

# Everything is there before: copies of functions, an iterator in use, an optimizer, a compiled function.
IN_A_LOOP = """
import sys, threading
import torch
from torch import nn, save
from torch.autograd import backward
from torch.utils.data import DataLoader
import grademl_otel

class Own(nn.Linear):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)

torch.set_num_threads(1)
net = Own(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
workers = int(sys.argv[1])
loader = DataLoader(torch.randn(40, 4), batch_size=4, num_workers=workers)
former = nn.Module.__call__, backward, save, torch.save
for number, x in enumerate(loader):
    if number == 3:
        thread = threading.Thread(target=grademl_otel.instrument)
        thread.start()
        thread.join()
        grademl_otel.instrument()
    optimizer.zero_grad()
    backward(net(x).sum())
    optimizer.step()
save(net.state_dict(), "net.pt")
grademl_otel.uninstrument()
grademl_otel.uninstrument()
assert (nn.Module.__call__, backward, save, torch.save) == former
net(torch.ones(1, 4)).sum().backward()
"""

PLAIN = """
import grademl_otel
grademl_otel.instrument()
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
net = torch.nn.Linear(4, 2)
for x in DataLoader(torch.randn(40, 4), batch_size=4):
    net(x).sum().backward()

print("done")
"""


def spans(folder: Path) -> list[RawSpan]:
    return [span for path in (folder / "runs").glob("*/traces.jsonl") for span in read_lines(path)]


def run_of(folder: Path) -> RawSpan:
    (run,) = [span for span in spans(folder) if span.name == semconv.RUN]
    return run


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_has_begun(workers: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(IN_A_LOOP)
    done = training.train_untraced(script, [str(workers)], tmp_path).ok()
    assert done.out == ""
    said = [line for line in done.err.splitlines() if "recording run" not in line]
    assert len(done.err.splitlines()) - len(said) == 1
    if workers:
        (line,) = said
        assert "loader workers that were started before grademl_otel.instrument()" in line
        assert "call it before the loop" in line
    else:
        assert said == []
    # Seven of ten steps, the first of them without its wait: its batch was there already.
    assert run_of(tmp_path)[semconv.STEPS_TOTAL] == 7
    names = [span.name for span in spans(tmp_path)]
    (epoch,) = [span for span in spans(tmp_path) if span.name == semconv.EPOCH]
    assert epoch[semconv.LOADER_WORKERS] == workers
    assert epoch[semconv.LOADER_BATCH_SIZE] == 4
    assert epoch[semconv.STEPS_TOTAL] == 6
    assert names.count(semconv.CHECKPOINT_SAVE) == 1
    windows = [span for span in spans(tmp_path) if span.name == semconv.WINDOW]
    assert sum(sum(window.column(f"{semconv.DATA_WAIT}.count")) for window in windows) == 6


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["-"], "-"),
        (["-m", "package"], "package"),
        (["-i", "-"], "-"),
    ],
    ids=["stdin", "-m", "prompt"],
)
def test_every_way_to_start_python(arguments: Sequence[str], name: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(PLAIN)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        input=PLAIN + ("\n1 / 0\n" if name == "-" and len(arguments) == 2 else ""),
        env=training.clean_environ(tmp_path, FILE_STORE),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done"), done
    assert done.stderr.count("grademl: ") == 1
    run = run_of(tmp_path)
    assert (run[semconv.STEPS_TOTAL], run[semconv.ENDED], run[semconv.SCRIPT]) == (10, "exit", name)
