# SPDX-License-Identifier: Apache-2.0
"""Whoever prints a traceback prints the same one: nothing of ours is in it, and the exception is the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import training

pytest.importorskip("torch")

# The error passes each of our wrappers, with and without a row, and then somebody prints it.
SCRIPT = """
import asyncio, dataclasses, logging, multiprocessing, os, pdb, sys, threading, traceback
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int

class Data(Dataset):
    def __init__(self, error):
        self.error = error
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 3:
            raise self.error
        return torch.full((2,), float(index))

class Net(nn.Module):
    def __init__(self, depth=2, error=None):
        super().__init__()
        self.inner = Net(depth - 1, error) if depth else nn.Linear(2, 2)
        self.error = error
    def forward(self, x):
        if self.error is not None and isinstance(self.inner, nn.Linear):
            raise self.error
        return self.inner(x)

class Refuses(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        raise ArithmeticError("no step")

def in_loader(workers=0):
    iterator = iter(DataLoader(Data(LookupError("row 3")), batch_size=2, num_workers=workers))
    try:
        for x in iterator:
            Net()(x).sum().backward()
    finally:
        if workers:  # not by the garbage collector, which takes them seconds
            iterator._shutdown_workers()

def in_module(error=ValueError("diverged")):
    Net(error=error)(torch.ones(2))

def in_backward():
    torch.ones(1).sum().backward()

def in_hook():
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda grad: 1 / 0)
    Net()(x).sum().backward()

def in_optimizer():
    Refuses(Net().parameters(), 0.1).step()

def in_making():
    torch.optim.SGD([], 0.1)

def in_loading():
    torch.load("/no/such/file")

def in_saving():
    torch.save(lambda: 0, "/no/such/folder/file")

def in_scaler():
    scaler = torch.amp.GradScaler("cpu")
    scaler.step(torch.optim.SGD(Net().parameters(), 0.1))

def in_exhausted():
    iterator = iter(DataLoader([torch.ones(2)]))
    next(iterator)
    next(iterator)

def chained():
    try:
        in_module()
    except ValueError as error:
        error.add_note("a note") if hasattr(error, "add_note") else None
        try:
            in_backward()
        except RuntimeError:
            raise KeyError("third") from error

def grouped():
    errors = []
    for cause in (in_module, in_backward):
        try:
            cause()
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("both", errors)

async def awaited():
    await asyncio.gather(asyncio.to_thread(in_module), return_exceptions=False)

class InUse(threading.Thread):
    def run(self):
        in_module()

CAUSES = [in_loader, in_module, in_backward, in_hook, in_optimizer, in_making, in_loading, in_saving]
CAUSES += [in_scaler, in_exhausted, chained]
if sys.version_info >= (3, 11):
    CAUSES.append(grouped)

def warned():
    weight = torch.ones(2, requires_grad=True)
    torch.optim.SGD([weight, weight], 0.1)
    torch.autograd.backward([weight.sum()], grad_variables=[torch.ones(())])
    torch.save({"weight": 1.0}, "weight.pt")
    torch.load("weight.pt")

def main():
    torch.set_num_threads(1)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # torch.load warns
    warned()
    for cause in CAUSES:
        print(cause.__name__, file=sys.stderr)
        try:
            cause()
        except Exception:
            traceback.print_exc()
    for error in (Frozen(7), KeyError("the same")):
        try:
            in_module(error)
        except Exception as caught:
            print(caught is error, [f.f_code.co_name for f, _ in traceback.walk_tb(caught.__traceback__)])
    try:
        in_module()
    except ValueError:
        logging.exception("logged")
    try:
        in_loader(workers=1)
    except LookupError:
        traceback.print_exc()
    thread = InUse(name="trainer")
    thread.start()
    thread.join()
    child = multiprocessing.get_context("fork").Process(target=in_loader, name="child")
    child.start()
    child.join()
    print(child.exitcode)
    try:
        asyncio.run(awaited())
    except ValueError:
        traceback.print_exc()
        sys.stdout.flush()
        pdb.post_mortem()
    sys.stdout.flush()
    in_module(Frozen(9))

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts the frames of our wrappers back")
def test_every_printed_traceback_is_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plain = training.train_untraced(script, [], tmp_path)
    traced = training.train(script, [], tmp_path, {"GRADEML_EXPORTER": "file"})
    assert plain.err.count("Traceback (most recent call last)") >= 18
    assert "pdb" in plain.out.lower()
    warned = [
        line for line in plain.err.splitlines() if line.startswith(f"{script}:") and "Warning: " in line
    ]
    assert len(warned) >= 2
    ours = [line for line in traced.err.splitlines() if line.startswith("grademl: ")]
    assert all(line.startswith("grademl: recording run") for line in ours)
    assert "grademl_otel" not in traced.err + traced.out
    assert [line for line in traced.err.splitlines() if line not in ours] == plain.err.splitlines()
    assert (traced.code, traced.out) == (plain.code, plain.out)
