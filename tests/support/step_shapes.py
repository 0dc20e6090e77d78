# SPDX-License-Identifier: Apache-2.0
"""24 common shapes of a PyTorch training script, each with what a person would count.

`SHAPES` maps a name to (function, expected). What is expected: training and evaluation steps, passes over
loaders (epochs and evaluations together), and where it matters micro-batches per step and incomplete steps.
As a script: ``python step_shapes.py NAME`` runs one shape.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

X = torch.randn(64, 8)
Y = torch.randint(0, 3, (64,))
DATASET = TensorDataset(X, Y)


@dataclass(frozen=True)
class Expected:
    """What a person counts in a shape."""

    train: int
    passes: int
    evaluate: int = 0
    incomplete: int = 0
    micro: int = 1


Shape = Callable[[], None]
SHAPES: dict[str, tuple[Shape, Expected]] = {}


def shape(**expected: int) -> Callable[[Shape], Shape]:
    """Enter a function among the shapes under its name."""

    def enter(function: Shape) -> Shape:
        SHAPES[function.__name__] = function, Expected(**expected)
        return function

    return enter


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def loader(batch_size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(DATASET, batch_size=batch_size, **options)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.1)


def update(module: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(module(x), y).backward()
    optimizer.step()


@shape(train=16, passes=2)
def plain() -> None:
    m = net()
    o = sgd(m)
    batches = loader()
    for _ in range(2):
        for x, y in batches:
            update(m, o, x, y)


@shape(train=4, passes=2, micro=4)
def grad_accum() -> None:
    m = net()
    o = sgd(m)
    batches = loader()
    for _ in range(2):
        for i, (x, y) in enumerate(batches):
            F.cross_entropy(m(x), y).backward()
            if (i + 1) % 4 == 0:
                o.step()
                o.zero_grad()


@shape(train=8, passes=1)
def gan() -> None:
    g, d = net(), nn.Linear(3, 1)
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for x, _ in loader():
        od.zero_grad()
        d(g(x).detach()).mean().backward()
        od.step()
        og.zero_grad()
        d(g(x)).mean().backward()
        og.step()


@shape(train=20, passes=0)
def no_loader() -> None:
    m = net()
    o = sgd(m)
    for _ in range(20):
        update(m, o, X, Y)


@shape(train=20, passes=0)
def gan_no_loader() -> None:
    g, d = net(), nn.Linear(3, 1)
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for _ in range(20):
        od.zero_grad()
        d(g(X).detach()).mean().backward()
        od.step()
        og.zero_grad()
        d(g(X)).mean().backward()
        og.step()


@shape(train=6, passes=0)
def wgan_critic5_no_loader() -> None:
    g, d = net(), nn.Linear(3, 1)
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for _ in range(6):
        for _ in range(5):
            od.zero_grad()
            d(g(X).detach()).mean().backward()
            od.step()
        og.zero_grad()
        d(g(X)).mean().backward()
        og.step()


@shape(train=16, evaluate=8, passes=4)
def train_eval() -> None:
    m = net()
    o = sgd(m)
    training, validation = loader(), loader(16)
    for _ in range(2):
        m.train()
        for x, y in training:
            update(m, o, x, y)
        m.eval()
        with torch.no_grad():
            for x, _ in validation:
                m(x)


@shape(train=8, evaluate=8, passes=3)
def mid_epoch_eval() -> None:
    m = net()
    o = sgd(m)
    training, validation = loader(), loader(16)
    for i, (x, y) in enumerate(training):
        update(m, o, x, y)
        if i in (3, 7):
            with torch.no_grad():
                for a, _ in validation:
                    m(a)


@shape(train=6, passes=2)
def early_break() -> None:
    m = net()
    o = sgd(m)
    batches = loader()
    for _ in range(2):
        for i, (x, y) in enumerate(batches):
            if i == 3:
                break
            update(m, o, x, y)


@shape(train=10, passes=10)
def next_iter_loader() -> None:
    m = net()
    o = sgd(m)
    batches = loader(shuffle=True)
    for _ in range(10):
        x, y = next(iter(batches))
        update(m, o, x, y)


@shape(train=4, passes=1)
def lbfgs() -> None:
    m = net()
    o = torch.optim.LBFGS(m.parameters(), max_iter=3)
    for x, y in loader(16):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            return loss

        o.step(closure)  # type: ignore[arg-type]


@shape(train=8, passes=1)
def teacher_student() -> None:
    teacher, m = net(), net()
    o = sgd(m)
    for x, _ in loader():
        with torch.no_grad():
            target = teacher(x)
        o.zero_grad()
        F.mse_loss(m(x), target).backward()
        o.step()


@shape(train=8, passes=1)
def zip_two_loaders() -> None:
    m = net()
    o = sgd(m)
    for (x, y), (u, _) in zip(loader(), loader(), strict=True):
        o.zero_grad()
        (F.cross_entropy(m(x), y) + m(u).mean()).backward()
        o.step()


@shape(train=24, passes=1)
def cycle_loader() -> None:
    m = net()
    o = sgd(m)
    batches = itertools.cycle(loader())
    for _ in range(24):
        x, y = next(batches)
        update(m, o, x, y)


@shape(train=8, passes=1)
def inner_loop_5() -> None:
    m = net()
    o = sgd(m)
    for x, y in loader():
        for _ in range(5):
            update(m, o, x, y)


@shape(train=16, passes=2)
def workers2() -> None:
    m = net()
    o = sgd(m)
    batches = loader(num_workers=2, persistent_workers=True)
    for _ in range(2):
        for x, y in batches:
            update(m, o, x, y)


@shape(train=8, passes=1)
def grad_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    m = net()
    o = sgd(m)
    for x, y in loader():
        o.zero_grad()
        F.cross_entropy(checkpoint(m, x, use_reentrant=False), y).backward()
        o.step()


@shape(train=8, passes=1)
def scaler_skip() -> None:
    m = net()
    o = sgd(m)
    scaler = torch.amp.GradScaler("cpu")
    for i, (x, y) in enumerate(loader()):
        o.zero_grad()
        loss = F.cross_entropy(m(x), y)
        if i == 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(o)
        scaler.update()


@shape(train=8, passes=1)
def opt_in_backward() -> None:
    m = net()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()  # type: ignore[index]
        optimizers[p].zero_grad()  # type: ignore[index]

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in loader():
        F.cross_entropy(m(x), y).backward()


@shape(train=7, incomplete=1, passes=1)
def raises_mid_step() -> None:
    m = net()
    o = sgd(m)
    try:
        for i, (x, y) in enumerate(loader()):
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            if i == 7:
                raise ValueError("boom")
            loss.backward()
            o.step()
    except ValueError:
        pass


@shape(train=0, evaluate=8, passes=1)
def inference_loader() -> None:
    m = net().eval()
    with torch.inference_mode():
        for x, _ in loader():
            m(x)


@shape(train=0, evaluate=20, passes=0)
def inference_no_loader() -> None:
    m = net().eval()
    with torch.inference_mode():
        for _ in range(20):
            m(X)


@shape(train=8, passes=1)
def iterable_ds() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for i in range(64):
                yield X[i], Y[i]

    m = net()
    o = sgd(m)
    for x, y in DataLoader(Stream(), batch_size=8):
        update(m, o, x, y)


@shape(train=12, passes=0)
def manual_batches_list() -> None:
    m = net()
    o = sgd(m)
    batches = [(X[i * 8 : i * 8 + 8], Y[i * 8 : i * 8 + 8]) for i in range(6)]
    for _ in range(2):
        for x, y in batches:
            F.cross_entropy(m(x), y).backward()
            o.step()
            o.zero_grad()


if __name__ == "__main__":
    SHAPES[sys.argv[1]][0]()
