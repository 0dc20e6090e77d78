# SPDX-License-Identifier: Apache-2.0
"""Shapes of training loops beyond the 24 of `step_shapes`, each with the rows and phases a person counts.

`SHAPES` maps a name to (function, expected). As a script: ``python phase_shapes.py NAME ...`` runs those.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.step_shapes import X, Y, loader, net, sgd, update


@dataclass(frozen=True)
class Expected:
    """What a person counts in a shape; phases by their names, those that are not named are not there."""

    train: int = 0
    evaluate: int = 0
    incomplete: int = 0
    skipped: int = 0
    phases: dict[str, int] = field(default_factory=dict)


Shape = Callable[[], None]
SHAPES: dict[str, tuple[Shape, Expected]] = {}


def shape(
    train: int = 0, evaluate: int = 0, incomplete: int = 0, skipped: int = 0, **phases: int
) -> Callable[[Shape], Shape]:
    """Enter a function among the shapes under its name; ``data_wait=3`` stands for the phase `data.wait`."""
    named = {name if name == "zero_grad" else name.replace("_", "."): n for name, n in phases.items()}

    def enter(function: Shape) -> Shape:
        SHAPES[function.__name__] = function, Expected(train, evaluate, incomplete, skipped, named)
        return function

    return enter


BATCHES = [(X[at : at + 8], Y[at : at + 8]) for at in range(0, 32, 8)]


def loss_of(module: nn.Module, x: torch.Tensor = X, y: torch.Tensor = Y) -> torch.Tensor:
    return F.cross_entropy(module(x), y)


# --- Gradients to zero -----------------------------------------------------------------------------------


@shape(train=8, data_wait=8, forward=8, backward=8, optimizer=8, zero_grad=8)
def zero_grad_of_the_optimizer() -> None:
    m = net()
    o = sgd(m)
    for x, y in loader():
        update(m, o, x, y)


@shape(train=4, forward=4, backward=4, optimizer=4, zero_grad=4)
def zero_grad_of_the_module() -> None:
    m = net()
    o = sgd(m)
    for x, y in BATCHES:
        loss_of(m, x, y).backward()
        o.step()
        m.zero_grad()


@shape(train=2, data_wait=8, forward=8, backward=8, optimizer=2, zero_grad=2)
def accumulation() -> None:
    m = net()
    o = sgd(m)
    for i, (x, y) in enumerate(loader()):
        (loss_of(m, x, y) / 4).backward()
        if i % 4 == 3:
            o.step()
            o.zero_grad()


# --- Activation checkpointing ------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """Two blocks that run again in the backward, each of two modules and a function."""

    def __init__(self, reentrant: bool, plain: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)])
        self.head = nn.Linear(8, 3)
        self.reentrant = reentrant
        self.plain = plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            function = (lambda x, block=block: block[1](block[0](x)).sin()) if self.plain else block
            x = checkpoint(function, x, use_reentrant=self.reentrant)
        return self.head(x)


def _checkpointing(reentrant: bool, plain: bool) -> None:
    m = Checkpointed(reentrant, plain)
    o = sgd(m)
    x = X.clone().requires_grad_()  # the reentrant kind wants an input with a gradient
    for _ in range(3):
        o.zero_grad()
        F.cross_entropy(m(x), Y).backward()
        o.step()


@shape(train=3, forward=3, backward=3, recompute=6, optimizer=3, zero_grad=3)
def checkpointed_modules() -> None:
    _checkpointing(reentrant=False, plain=False)


@shape(train=3, forward=3, backward=3, recompute=6, optimizer=3, zero_grad=3)
def checkpointed_functions() -> None:
    _checkpointing(reentrant=False, plain=True)


@shape(train=3, forward=3, backward=3, recompute=6, optimizer=3, zero_grad=3)
def reentrant_modules() -> None:
    _checkpointing(reentrant=True, plain=False)


@shape(train=3, forward=3, backward=3, recompute=6, optimizer=3, zero_grad=3)
def reentrant_functions() -> None:
    _checkpointing(reentrant=True, plain=True)


@shape(train=2, forward=2, backward=2, recompute=4, optimizer=2)
def checkpoints_in_a_checkpoint() -> None:
    m = net()
    o = sgd(m)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return m(x).sin()

    def outer(x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(inner, x, use_reentrant=False)
        return x * x.detach()

    for x, y in BATCHES[:2]:
        F.cross_entropy(checkpoint(outer, x, use_reentrant=False), y).backward()
        o.step()


@shape(train=3, forward=6, backward=3, recompute=6, optimizer=3, zero_grad=3)
def reentrant_roots() -> None:
    m = nn.Linear(8, 8)
    o = sgd(m)
    for x, _ in BATCHES[:3]:
        o.zero_grad()
        for _ in range(2):
            x = checkpoint(m, x.requires_grad_(), use_reentrant=True)
        x.sum().backward()
        o.step()


# --- Mixed precision, several optimizers -------------------------------------------------------------------


@shape(train=6, skipped=2, forward=6, backward=6, optimizer=6, zero_grad=6)
def scaler_that_skips() -> None:
    m = net()
    o = sgd(m)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for i in range(6):
        o.zero_grad()
        loss = loss_of(m) * (float("inf") if i in (1, 4) else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(o)
        scaler.step(o)
        scaler.update()


@shape(train=8, data_wait=8, forward=32, backward=16, optimizer=16, zero_grad=16)
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


@shape(train=4, forward=4, backward=4)
def optimizers_in_the_backward() -> None:
    m = net()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}

    def step(p: torch.Tensor) -> None:
        optimizers[p].step()  # type: ignore[index]
        optimizers[p].zero_grad()  # type: ignore[index]

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in BATCHES:
        loss_of(m, x, y).backward()


@shape(train=2, data_wait=2, forward=6, backward=6, optimizer=2, zero_grad=6)
def lbfgs() -> None:
    m = net()
    o = torch.optim.LBFGS(m.parameters(), max_iter=3, tolerance_grad=0, tolerance_change=0)
    for x, y in loader(32):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            o.zero_grad()
            loss = loss_of(m, x, y)
            loss.backward()
            return loss

        o.step(closure)  # type: ignore[arg-type]


# --- Gradients by hand -------------------------------------------------------------------------------------


@shape(train=4, forward=4, backward=4)
def update_by_hand() -> None:
    m = net()
    for x, y in BATCHES:
        gradients = torch.autograd.grad(loss_of(m, x, y), list(m.parameters()))
        with torch.no_grad():
            for p, g in zip(m.parameters(), gradients, strict=True):
                p -= 0.1 * g


@shape(train=8, data_wait=8, forward=8, backward=8)
def update_by_hand_of_all_parameters() -> None:
    m = net()
    for x, y in loader():
        gradients = torch.autograd.grad(loss_of(m, x, y), m.parameters())
        with torch.no_grad():
            for p, g in zip(m.parameters(), gradients, strict=True):
                p -= 0.1 * g


@shape(train=4, forward=4, backward=4)
def functional() -> None:
    m = net()
    parameters = {name: p.detach() for name, p in m.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(m, parameters, (x,)), y)

    for x, y in BATCHES:
        gradients = torch.func.grad(loss)(parameters, x, y)
        parameters = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}


@shape(train=3, forward=9, backward=9, optimizer=3, zero_grad=3)
def maml() -> None:
    m = net()
    o = sgd(m)
    for _ in range(3):
        o.zero_grad()
        fast = dict(m.named_parameters())
        for _ in range(2):
            loss = F.cross_entropy(torch.func.functional_call(m, fast, (X,)), Y)
            gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), gradients, strict=True)}
        F.cross_entropy(torch.func.functional_call(m, fast, (X,)), Y).backward()
        o.step()


@shape(train=4, data_wait=4, forward=24, backward=12, optimizer=8, zero_grad=8)
def wgan_gp() -> None:
    g, d = nn.Linear(8, 8), nn.Linear(8, 1)
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for x, _ in loader(16):
        od.zero_grad()
        fake = g(x).detach()
        between = (x + fake).mul(0.5).requires_grad_()
        (slope,) = torch.autograd.grad(d(between).sum(), between, create_graph=True)
        (d(fake).mean() - d(x).mean() + (slope.norm(2, 1) - 1).square().mean()).backward()
        od.step()
        og.zero_grad()
        (-d(g(x)).mean()).backward()
        og.step()


@shape(train=4, evaluate=4, forward=8, backward=12, optimizer=4, zero_grad=4)
def forces_in_training_and_evaluation() -> None:
    m = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    o = sgd(m)

    def forces(x: torch.Tensor, training: bool) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(m(x).sum(), x, create_graph=training)
        return -gradient

    for x, _ in BATCHES:
        o.zero_grad()
        forces(x, training=True).square().mean().backward()
        o.step()
    m.eval()
    for x, _ in BATCHES:
        forces(x, training=False)


# --- Evaluation --------------------------------------------------------------------------------------------


@shape(train=16, evaluate=8, data_wait=24, forward=24, backward=16, optimizer=16, zero_grad=16)
def evaluation_that_forgot_no_grad() -> None:
    m = net()
    o = sgd(m)
    training, validation = loader(), loader(16)
    for _ in range(2):
        for x, y in training:
            update(m, o, x, y)
        for x, y in validation:
            loss_of(m, x, y)


@shape(train=8, evaluate=6, forward=14, backward=8, optimizer=8, zero_grad=8)
def the_same_without_a_loader() -> None:
    m = net()
    o = sgd(m)
    for _ in range(2):
        m.train()
        for x, y in BATCHES:
            update(m, o, x, y)
        m.eval()
        for x, y in BATCHES[:3]:
            loss_of(m, x, y)


class Generator(nn.Module):
    """Generates as the models of transformers do: one forward a token."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


@shape(evaluate=12, forward=12)
def a_loop_of_forwards() -> None:
    m = Generator().eval()
    with torch.no_grad():
        for _ in range(12):
            m(X)


# --- Reinforcement learning: no loader, and forwards that nobody trains on ---------------------------------


@shape(train=6, evaluate=16, forward=28, backward=6, optimizer=6, zero_grad=6)
def ppo() -> None:
    policy, value = nn.Linear(8, 3), nn.Linear(8, 1)
    o = torch.optim.Adam([*policy.parameters(), *value.parameters()])
    for _ in range(2):
        rollout = []
        with torch.no_grad():
            for at in range(8):
                seen = X[at : at + 1]
                rollout.append((seen, policy(seen).argmax(1)))
        seen, acted = (torch.cat(column) for column in zip(*rollout, strict=True))
        for _ in range(3):
            o.zero_grad()
            (F.cross_entropy(policy(seen), acted) + value(seen).square().mean()).backward()
            o.step()


@shape(train=5, evaluate=5, forward=15, backward=5, optimizer=5, zero_grad=5)
def dqn() -> None:
    q, target = nn.Linear(8, 3), nn.Linear(8, 3)
    o = sgd(q)
    for at in range(5):
        with torch.no_grad():
            q(X[at : at + 1]).argmax()
        wanted = q(X).max(1).values
        with torch.no_grad():
            given = target(X).max(1).values
        o.zero_grad()
        F.mse_loss(wanted, given).backward()
        o.step()


@shape(train=3, forward=30, backward=3, optimizer=3, zero_grad=3)
def reinforce() -> None:
    policy = nn.Linear(8, 3)
    o = sgd(policy)
    for _ in range(3):
        chances = [policy(X[at : at + 1]).log_softmax(1)[0, 0] for at in range(10)]
        o.zero_grad()
        (-torch.stack(chances).sum()).backward()
        o.step()


# --- Learning rates ----------------------------------------------------------------------------------------


def _scheduled(made: Callable[[Any], Any], metric: bool = False) -> None:
    m = net()
    o = sgd(m)
    schedule = made(o)
    for _ in range(2):
        for x, y in BATCHES:
            update(m, o, x, y)
        schedule.step(*([1.0] if metric else []))


@shape(train=8, forward=8, backward=8, optimizer=8, zero_grad=8)
def step_lr() -> None:
    _scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 1))


@shape(train=8, forward=8, backward=8, optimizer=8, zero_grad=8)
def plateau() -> None:
    _scheduled(torch.optim.lr_scheduler.ReduceLROnPlateau, metric=True)


@shape(train=8, forward=8, backward=8, optimizer=8, zero_grad=8)
def sequential_and_chained() -> None:
    lr = torch.optim.lr_scheduler

    def made(o: Any) -> Any:
        warm, cool = lr.LinearLR(o, total_iters=1), lr.ExponentialLR(o, 0.9)
        return lr.ChainedScheduler([lr.SequentialLR(o, [warm, cool], [1]), lr.ConstantLR(o)])

    _scheduled(made)


@shape(train=8, evaluate=8, data_wait=16, forward=16, backward=8, optimizer=8, zero_grad=8)
def averaged_weights() -> None:
    m = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    o = sgd(m)
    averaged = torch.optim.swa_utils.AveragedModel(m)
    schedule = torch.optim.swa_utils.SWALR(o, 0.05)
    for x, y in loader():
        update(m, o, x, y)
        averaged.update_parameters(m)
        schedule.step()
    torch.optim.swa_utils.update_bn(loader(), averaged)


# --- What goes wrong ---------------------------------------------------------------------------------------


@shape(train=2, incomplete=1, forward=3, backward=3, recompute=3, optimizer=2, zero_grad=2)
def a_recomputation_that_raises() -> None:
    m = net()
    o = sgd(m)
    calls = iter(range(100))

    def function(x: torch.Tensor) -> torch.Tensor:
        if next(calls) == 3:
            raise ValueError("boom")
        return m(x).sin()

    for _ in range(3):
        loss = F.cross_entropy(checkpoint(function, X, use_reentrant=False), Y)
        try:
            loss.backward()
        except ValueError:
            continue
        o.step()
        o.zero_grad()


@shape(train=2, incomplete=1, forward=3, backward=3)
def a_gradient_that_raises() -> None:
    m = net()
    for i in range(3):
        loss = loss_of(m)
        try:
            gradients = torch.autograd.grad(loss.detach() if i == 1 else loss, list(m.parameters()))
        except RuntimeError:
            continue
        with torch.no_grad():
            for p, g in zip(m.parameters(), gradients, strict=True):
                p -= 0.1 * g


if __name__ == "__main__":
    for name in sys.argv[1:]:
        SHAPES[name][0]()
        gc.collect()  # what is left of its optimizers takes no part in the next one
