# SPDX-License-Identifier: Apache-2.0
"""All that a program may ask of PyTorch, in one process: prints what it saw, one JSON object a line.

Run twice, as it is and recorded, it must print the same. A line is ``[section, name, what was seen]``. The
sections: 200 steps of each loop shape, to the last bit; what is done with modules besides training; how often
Dynamo compiles; errors with their tracebacks; warnings with the lines that they blame; hooks of the user's.

As a script: ``python unchanged_program.py [section ...]``; `tests.instrumentations.test_unchanged` compares.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
import json
import os
import pickle
import random
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = 200
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))

Seen = Callable[[], Any]
SECTIONS: dict[str, dict[str, Seen]] = {}


def part_of(section: str) -> Callable[[Seen], Seen]:
    """Enter a function in a section under its name."""

    def enter(function: Seen) -> Seen:
        SECTIONS.setdefault(section, {})[function.__name__] = function
        return function

    return enter


def digest(*values: Any) -> str:
    """A hash of tensors, containers and plain values, by all their bits."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            add((str(value.dtype), tuple(value.shape)))
            sha.update(value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, np.ndarray):
            sha.update(value.tobytes())
        elif isinstance(value, dict):
            for key in value:
                add((key, value[key]))
        elif isinstance(value, list | tuple):
            sha.update(f"{len(value)}".encode())
            for each in value:
                add(each)
        elif isinstance(value, float):
            sha.update(value.hex().encode())
        else:
            sha.update(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode())

    add(values)
    return sha.hexdigest()[:16]


def seed() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def streams() -> str:
    """Where the random streams are."""
    return digest(torch.get_rng_state(), list(np.random.get_state()), list(random.getstate()))


# --- Loops -----------------------------------------------------------------------------------------------


def trained(losses: list[float], *parts: Any) -> list[str]:
    """What a training leaves: its losses, its modules and optimizers, the random streams."""
    assert len(losses) == STEPS
    return [digest(losses), *(digest(part.state_dict()) for part in parts), streams()]


def data(samples: int, *shape: int, classes: int = 3) -> TensorDataset:
    return TensorDataset(torch.randn(samples, *shape), torch.randint(0, classes, (samples,)))


def batches(dataset: Dataset[Any], size: int = 4, **options: Any) -> Iterator[Any]:
    """`STEPS` batches, in as many passes as it takes."""
    loader = DataLoader(dataset, batch_size=size, **options)
    given = 0
    while True:
        for batch in loader:
            if given == STEPS:
                return
            given += 1
            yield batch


def perceptron(inputs: int = 8, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


@part_of("loops")
def convolutions() -> Any:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    losses = []
    for x, y in batches(data(32, 1, 8, 8), shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return trained(losses, net, optimizer)


@part_of("loops")
def dropout_and_evaluation() -> Any:
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    held_out = DataLoader(data(16, 8), batch_size=8)
    losses, scores = [], []
    for number, (x, y) in enumerate(batches(data(40, 8), shuffle=True)):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number % 50 == 49:
            net.eval()
            with torch.no_grad():
                scores.append(sum(net(x).sum().item() for x, _ in held_out))
            net.train()
    return [digest(scores), *trained(losses, net, optimizer)]


@part_of("loops")
def recurrent() -> Any:
    net, head = nn.LSTM(4, 8, batch_first=True, num_layers=2, dropout=0.2), nn.Linear(8, 3)
    optimizer = torch.optim.RMSprop([*net.parameters(), *head.parameters()], 0.01)
    losses = []
    for x, y in batches(data(32, 5, 4)):
        optimizer.zero_grad()
        out, _ = net(x)
        loss = F.cross_entropy(head(out[:, -1]), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return trained(losses, net, head, optimizer)


@part_of("loops")
def transformer() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(net.parameters(), 0.003)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=STEPS + 1)
    losses = []
    for x, y in batches(data(32, 4, 8), shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).mean(1), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return trained(losses, net, optimizer, scheduler)


@part_of("loops")
def two_networks_against_each_other() -> Any:
    maker, judge = perceptron(4, 8), perceptron(8, 1)
    of_maker = torch.optim.Adam(maker.parameters(), 0.01)
    of_judge = torch.optim.Adam(judge.parameters(), 0.01)
    losses = []
    for x, _ in batches(data(32, 8)):
        made = maker(torch.randn(len(x), 4))
        of_judge.zero_grad()
        real = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
        real.backward()
        of_judge.step()
        of_maker.zero_grad()
        fake = F.softplus(-judge(made)).mean()
        fake.backward()
        of_maker.step()
        losses.append(real.item() + fake.item())
    return trained(losses, maker, judge, of_maker, of_judge)


@part_of("loops")
def penalty_on_gradients() -> Any:
    net = perceptron(8, 1)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    losses = []
    for x, _ in batches(data(32, 8)):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        loss = net(x).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return trained(losses, net, optimizer)


@part_of("loops")
def accumulation() -> Any:
    net = perceptron()
    optimizer = torch.optim.Adagrad(net.parameters(), 0.05)
    losses = []
    for number, (x, y) in enumerate(batches(data(32, 8))):
        loss = F.cross_entropy(net(x), y) / 4
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return trained(losses, net, optimizer)


@part_of("loops")
def mixed_precision_and_skipped_steps() -> Any:
    net = perceptron()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5, init_scale=2.0**100)
    losses = []
    for x, y in batches(data(32, 8)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return trained(losses, net, optimizer, scaler)


@part_of("loops")
def closures() -> Any:
    net = perceptron()
    optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=3, line_search_fn="strong_wolfe")
    losses = []
    for x, y in batches(data(32, 8)):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(closure)))
    return trained(losses, net, optimizer)


@part_of("loops")
def activation_checkpointing() -> Any:
    first = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU())
    second, head = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3)), nn.Linear(16, 3)
    net = nn.ModuleList([first, second, head])
    optimizer = torch.optim.NAdam(net.parameters(), 0.01)
    losses = []
    for x, y in batches(data(32, 8)):
        x.requires_grad_()
        hidden = checkpoint(first, x, use_reentrant=True)
        hidden = checkpoint(second, hidden, use_reentrant=False)
        loss = F.cross_entropy(head(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return trained(losses, net, optimizer)


@part_of("loops")
def optimizers_inside_the_backward() -> Any:
    net = perceptron()
    optimizers = {each: torch.optim.SGD([each], 0.1, momentum=0.9) for each in net.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    losses = []
    for x, y in batches(data(32, 8)):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        losses.append(loss.item())
    return trained(losses, net, *optimizers.values())


@part_of("loops")
def averaged_weights() -> Any:
    net = perceptron()
    average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda old, new, _: 0.9 * old + 0.1 * new)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
    losses, first = [], copy.deepcopy(net)
    for x, y in batches(data(32, 8)):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y) + 0.1 * F.mse_loss(net(x), first(x).detach())
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
        scheduler.step(loss.item())
        losses.append(loss.item())
    return trained(losses, net, average, optimizer, scheduler)


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return torch.full((8,), index / 100) + noise, index % 3


@part_of("loops")
def random_data_of_workers() -> Any:
    net = perceptron()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for x, y in batches(Noisy(), shuffle=True, num_workers=2, persistent_workers=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return trained(losses, net, optimizer)


@part_of("loops")
def rewards_without_a_loader() -> Any:
    policy = perceptron(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), 0.01)
    losses, state = [], torch.zeros(4)
    for _ in range(STEPS):
        gains, odds = [], []
        for _ in range(3):
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            state = torch.roll(state, 1) * 0.5 + action + random.random()
            odds.append(choice.log_prob(action))
            gains.append(float(state.sum()))
        loss = -(torch.stack(odds) * torch.tensor(gains)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return trained(losses, policy, optimizer)


@part_of("loops")
def a_compiled_module() -> Any:
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    compiled = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for x, y in batches(data(32, 8)):
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return trained(losses, net, compiled, optimizer)


@part_of("loops")
def a_compiled_step() -> Any:
    torch._dynamo.reset()
    net = perceptron()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    @torch.compile(backend="eager")
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x, y).item() for x, y in batches(data(32, 8))]
    return trained(losses, net, optimizer)


# --- What is done with modules ---------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)) * 2


X = torch.arange(12.0).reshape(3, 4) / 12


def used() -> Net:
    """A module that was called, and trained for a step."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return net


@part_of("modules")
def copies() -> Any:
    net = used()
    twin = copy.deepcopy(net)
    return [digest(twin.state_dict(), twin(X)), sorted(vars(twin)), digest(copy.copy(net)(X))]


@part_of("modules")
def pickles() -> Any:
    net = used()
    optimizer = torch.optim.Adam(net.parameters())
    net(X).sum().backward()
    optimizer.step()
    raw = pickle.dumps((net, optimizer, DataLoader(data(8, 4), batch_size=2)))
    again, _, loader = pickle.loads(raw)
    return [b"grademl" in raw, digest(again(X), [x for x, _ in loader])]


@part_of("modules")
def saved() -> Any:
    buffer = io.BytesIO()
    torch.save(used(), buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    return [hashlib.sha256(buffer.getvalue()).hexdigest(), digest(again(X))]


@part_of("modules")
def scripts() -> Any:
    net = used()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced, scripted = torch.jit.trace(net, X), torch.jit.script(net)
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    graphs = [str(traced.inlined_graph), str(scripted.inlined_graph)]
    graphs = [re.sub(r" # \S+:\d+:\d+", "", graph) for graph in graphs]
    return [graphs, digest(traced(X), scripted(X), torch.jit.load(buffer)(X))]


@part_of("modules")
def symbolic_graphs() -> Any:
    net = used()
    traced = torch.fx.symbolic_trace(net)
    made = torch.fx.experimental.proxy_tensor.make_fx(lambda x: net(x).relu())(X)
    return [traced.code, str(traced.graph), str(made.graph), digest(traced(X), made(X))]


@part_of("modules")
def exported() -> Any:
    program = torch.export.export(used(), (X,))
    return [str(program.graph), str(program.graph_signature), digest(program.module()(X))]


@part_of("modules")
def functions_of_functions() -> Any:
    net = used()
    weights = dict(net.named_parameters())

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, weights, (x,)).sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, X)
    jacobian = torch.func.jacrev(lambda x: net(x))(X[0])
    stacked, _ = torch.func.stack_module_state([used(), used()])
    return [digest(gradients), digest(jacobian), digest(stacked)]


@part_of("modules")
def quantized() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(used(), {nn.Linear})
    return [str(small), digest(small(X))]


@part_of("modules")
def names_of_functions() -> Any:
    functions = [
        *(nn.Module.__call__, torch.compile, torch.autograd.backward, torch.autograd.grad),
        *(torch.save, torch.load, torch.optim.Optimizer.zero_grad, torch.optim.Optimizer.__init__),
        *(nn.Module.zero_grad, torch.utils.data.DataLoader.__iter__),
    ]
    return [
        [each.__module__, each.__qualname__, str(inspect.signature(each)), each.__doc__] for each in functions
    ]


@part_of("modules")
def surroundings() -> Any:
    return [
        {name: str(signal.getsignal(name)).split(" at ")[0] for name in signal.valid_signals()},
        [torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled()],
        [torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled],
        [warnings.filters == FILTERS, sys.getrecursionlimit(), sys.gettrace() is None, os.getcwd()],
        sys.argv[1:],
    ]


FILTERS = list(warnings.filters)


# --- Dynamo ----------------------------------------------------------------------------------------------


class Counted:
    """How often Dynamo compiles something, with a back end that counts."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self.graphs: list[str] = []

    def backend(self, graph: Any, inputs: Any) -> Any:
        self.graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    def compile(self, function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=self.backend, **options)

    def seen(self, *results: Any) -> Any:
        counters = torch._dynamo.utils.counters
        breaks = {re.sub(r"0x[0-9a-f]+", "", str(why)): n for why, n in counters["graph_break"].items()}
        graphs = [re.sub(r"# File: \S+:\d+ in |0x[0-9a-f]+", "", graph) for graph in self.graphs]
        return [len(graphs), graphs, dict(counters["frames"]), breaks, digest(*results)]


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.net = nn.Linear(4, 4), Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.net(x)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), Broken()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


@part_of("dynamo")
def a_module() -> Any:
    counted = Counted()
    compiled = counted.compile(Net())
    return counted.seen(compiled(X), compiled(X))


@part_of("dynamo")
def a_module_in_place() -> Any:
    counted = Counted()
    net = Net()
    net.compile(backend=counted.backend)
    results = [net(X), net(X)]
    net(X).sum().backward()
    net.eval()
    return counted.seen(results, net(X))


@part_of("dynamo")
def a_module_in_one_graph() -> Any:
    counted = Counted()
    net = Net()
    compiled, forward = counted.compile(net, fullgraph=True), counted.compile(net.forward, fullgraph=True)
    net.compile(backend=counted.backend, fullgraph=True)
    return counted.seen(compiled(X), forward(X), net(X))


@part_of("dynamo")
def functions_in_one_graph() -> Any:
    counted = Counted()
    net = Net()
    inner = counted.compile(lambda x: net(x).relu(), fullgraph=True)

    @counted.compile
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1

    return counted.seen(inner(X), outer(X), counted.compile(inner, fullgraph=True)(X))


@part_of("dynamo")
def a_method_and_options() -> Any:
    counted = Counted()

    class Model:
        def __init__(self) -> None:
            self.net = Net()

        @torch.compile(backend=counted.backend, dynamic=False)
        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    model = Model()
    names = [model.predict.__name__, model.predict.__qualname__, str(inspect.signature(model.predict))]
    return [names, counted.seen(model.predict(X), model.predict(X[:2]))]


@part_of("dynamo")
def functions_as_they_come_back() -> Any:
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    counted = Counted()
    off, compiled = torch.compile(plain, disable=True), counted.compile(plain)
    again = counted.compile(compiled)
    known = [name for name in sorted(vars(compiled)) if "id" not in name]
    unwrapped = inspect.unwrap(compiled) is plain
    return [off is plain, known, unwrapped, counted.seen(off(X), compiled(X), again(X))]


@part_of("dynamo")
def many_modules() -> Any:
    """More than the limit of compilations of one function: each has code of its own."""
    counted = Counted()
    nets = []
    for number in range(12):
        names: dict[str, Any] = {}
        exec(f"def forward(self, x):\n    return self.head(x) * {number}\n", names)
        nets.append(type(f"Net{number}", (Net,), {"forward": names["forward"]})())
    compiled = [counted.compile(net) for net in nets]
    return counted.seen([each(X) for each in compiled for _ in range(2)])


@part_of("dynamo")
def blocks_of_a_module() -> Any:
    counted = Counted()
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)))
    for block in net:
        block.compile(backend=counted.backend)
    outer = nn.Sequential(*(counted.compile(Net().body) for _ in range(3)))
    return counted.seen(net(X), net(X), outer(X))


@part_of("dynamo")
def breaks_in_a_module() -> Any:
    counted = Counted()
    compiled, in_place = counted.compile(Around()), Around()
    results = [compiled(X), compiled(X)]
    in_place.compile(backend=counted.backend)
    return counted.seen(results, in_place(X), in_place(X))


@part_of("dynamo")
def modules_with_hooks() -> Any:
    counted = Counted()
    net = Net()
    net.head.register_forward_hook(lambda module, args, out: out + 1)
    outer = Net()
    outer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return counted.seen(counted.compile(net)(X), counted.compile(outer)(X))


@part_of("dynamo")
def other_shapes() -> Any:
    counted = Counted()
    net = Net()
    compiled, still = counted.compile(net), counted.compile(Net(), dynamic=False)
    results = [compiled(torch.ones(size, 4)) for size in range(1, 6)]
    return counted.seen(results, [still(torch.ones(size, 4)) for size in (2, 3, 4)])


@part_of("dynamo")
def the_limit_of_compilations() -> Any:
    counted = Counted()
    compiled = counted.compile(Net(), dynamic=False)
    return counted.seen([compiled(torch.ones(size, 4)) for size in range(1, 12)])


@part_of("dynamo")
def explained() -> Any:
    torch._dynamo.reset()
    plain = torch._dynamo.explain(Net())(X)
    broken = torch._dynamo.explain(Around())(X)
    return [[each.graph_count, each.graph_break_count, each.op_count] for each in (plain, broken)]


@part_of("dynamo of steps")
def breaks_in_a_function() -> Any:
    counted = Counted()
    net = Around()
    compiled = counted.compile(lambda x: net(x).relu())
    return counted.seen(compiled(X), compiled(X))


@part_of("dynamo of steps")
def a_whole_step() -> Any:
    counted = Counted()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @counted.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    return counted.seen([step(X) for _ in range(3)], net.state_dict())


@part_of("dynamo of steps")
def gradients_by_hand() -> Any:
    counted = Counted()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @counted.compile
    def updates(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        net.zero_grad()
        first, *_ = torch.autograd.grad(net(x).sum(), list(net.parameters()))
        return first + 1

    inner = torch.func.grad(lambda x: (x * net(x).sum()).sum())
    results = [
        counted.compile(inner, fullgraph=True)(X),
        counted.compile(torch.func.vmap(inner), fullgraph=True)(X),
    ]
    return counted.seen([updates(X) for _ in range(3)], results)


@part_of("dynamo of steps")
def the_step_of_an_optimizer() -> Any:
    counted = Counted()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = counted.compile(optimizer.step)
    for _ in range(3):
        net(X).sum().backward()
        step()
    return counted.seen(net.state_dict())


# --- Errors ----------------------------------------------------------------------------------------------


def error_of(function: Callable[[], Any]) -> Any:
    """The error of ``function`` with its traceback, and those behind it."""
    try:
        function()
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        text = re.sub(r"0x[0-9a-f]+|\(pid\(s\) [\d, ]+\)", "", text)
        return [type(error).__name__, str(error)[:500].split("0x")[0], text if WHOLE else ""]
    raise AssertionError("no error")


WHOLE = sys.version_info >= (3, 11)
"""Python 3.10 puts frames back into a traceback that is raised again, see `grademl_otel.tracebacks`."""


class Failing(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner is not None:
            return self.inner(x)
        raise ArithmeticError("too large")


class FailingData(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise LookupError("row 5 is missing")
        return torch.ones(2)


@part_of("errors")
def in_a_forward() -> Any:
    return error_of(lambda: Failing(nn.Sequential(Failing()))(X))


@part_of("errors")
def of_shapes() -> Any:
    return error_of(lambda: Net()(torch.ones(3, 5)))


@part_of("errors")
def of_arguments() -> Any:
    return [
        error_of(lambda: Net()()),
        error_of(lambda: torch.compile(lambda x: x, mode="nonsense")(X)),
        error_of(lambda: torch.compile(None, None)),
        error_of(lambda: torch.optim.SGD([], 0.1)),
        error_of(lambda: torch.save({})),
    ]


@part_of("errors")
def in_a_backward() -> Any:
    loss = Net()(X).sum()
    loss.backward()
    return [error_of(lambda: X.sum().backward()), error_of(loss.backward)]


@part_of("errors")
def in_hooks() -> Any:
    def fails(*_: Any) -> None:
        raise LookupError("in a hook")

    net = Net()
    net.head.register_forward_hook(fails)
    before = error_of(lambda: net(X))
    other = Net()
    other.head.weight.register_hook(fails)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    optimizer.register_step_pre_hook(fails)
    return [before, error_of(lambda: other(X).sum().backward()), error_of(optimizer.step)]


@part_of("errors")
def in_loaders() -> Any:
    def collate(samples: Any) -> Any:
        raise TypeError("no batch of these")

    return [
        error_of(lambda: list(DataLoader(FailingData(), batch_size=2))),
        error_of(lambda: list(DataLoader(FailingData(), batch_size=2, num_workers=1))),
        error_of(lambda: list(DataLoader(data(4, 4), collate_fn=collate))),
    ]


@part_of("errors")
def in_a_closure() -> Any:
    net = Net()

    def closure() -> Any:
        raise ValueError("no loss")

    return error_of(lambda: torch.optim.LBFGS(net.parameters()).step(closure))


@part_of("errors")
def of_checkpoints() -> Any:
    return [
        error_of(lambda: torch.load("no-such-file.pt")),
        error_of(lambda: torch.save(lambda: None, io.BytesIO())),
        error_of(lambda: Net().load_state_dict({})),
        error_of(lambda: checkpoint(Failing(), X.clone().requires_grad_(), use_reentrant=False)),
    ]


@part_of("errors")
def in_compilations() -> Any:
    def bad(graph: Any, inputs: Any) -> Any:
        raise ValueError("no such machine")

    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return Failing()(x)

    torch._dynamo.reset()
    return [
        error_of(lambda: torch.compile(Net(), backend=bad)(X)),
        error_of(lambda: torch.compile(breaks, backend="eager", fullgraph=True)(X)),
        error_of(lambda: torch.compile(breaks, backend="eager")(X)),
        error_of(lambda: torch.compile(Failing(), backend="eager")(X)),
    ]


@part_of("errors")
def raised_again() -> Any:
    def twice() -> None:
        try:
            Net()(None)
        except Exception as error:
            raise RuntimeError("second") from error

    return error_of(twice)


# --- Warnings --------------------------------------------------------------------------------------------


def warnings_of(function: Callable[[], Any]) -> Any:
    """The warnings of ``function``, and the lines that they are said of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [[w.category.__name__, str(w.message), Path(w.filename).name, w.lineno] for w in caught]


class Warning_(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for level in (1, 2, 3):
            warnings.warn(f"level {level}", stacklevel=level)
        return x


@part_of("warnings")
def of_the_user() -> Any:
    return warnings_of(lambda: nn.Sequential(Warning_())(X))


@part_of("warnings")
def of_torch() -> Any:
    def do() -> None:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
        optimizer.step()
        net(X).sum().backward(create_graph=True)
        net(X).sum().backward()
        DataLoader(data(4, 4), num_workers=1000)
        list(DataLoader(data(4, 4), num_workers=0, batch_size=2))
        net.head.register_full_backward_hook(lambda *_: None)
        net(X).sum().backward()
        torch.jit.trace(Net(), X)

    return warnings_of(do)


# --- Hooks of the user's ---------------------------------------------------------------------------------


@part_of("hooks")
def in_their_order() -> Any:
    log: list[str] = []

    def says(text: str, result: Any = None) -> Callable[..., Any]:
        def hook(*_: Any, **__: Any) -> Any:
            log.append(text)
            return result

        return hook

    net = Net()
    modules = nn.modules.module
    handles = [
        modules.register_module_forward_pre_hook(says("all: before forward")),
        modules.register_module_forward_hook(says("all: after forward")),
        net.register_forward_pre_hook(says("before forward")),
        net.register_forward_pre_hook(says("before forward, first"), prepend=True),
        net.register_forward_hook(says("after forward")),
        net.head.register_forward_hook(says("after forward of a part")),
        net.register_full_backward_pre_hook(says("before backward")),
        net.register_full_backward_hook(says("after backward")),
        net.head.weight.register_hook(says("gradient")),
        net.head.weight.register_post_accumulate_grad_hook(says("gradient added")),
        net._register_state_dict_hook(says("state")),
        net.register_state_dict_pre_hook(says("before state")),
        net.register_load_state_dict_post_hook(says("state loaded")),
    ]
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer.register_step_pre_hook(says("before step"))
    optimizer.register_step_post_hook(says("after step"))
    optimizer.register_state_dict_pre_hook(says("before state of optimizer"))
    handles.append(register_optimizer_step_post_hook(says("all: after step")))
    for _ in range(2):
        optimizer.zero_grad()
        net(X.clone().requires_grad_()).sum().backward()
        optimizer.step()
    net.load_state_dict(net.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    for handle in handles:
        handle.remove()
    return [log, digest(net.state_dict(), net(X)), streams()]


@part_of("hooks")
def that_change_results() -> Any:
    net = Net()
    net.body.register_forward_hook(lambda module, args, out: out * 2)
    net.head.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True
    )
    net.head.weight.register_hook(lambda gradient: gradient * 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: (args, kwargs))
    net(X).sum().backward()
    optimizer.step()
    return digest(net(X), net.state_dict())


def answer(function: Callable[[], Any]) -> Any:
    """What ``function`` returns; where this PyTorch cannot do what it does, the error's type in a dict."""
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        return {"cannot": type(error).__name__}


def main() -> None:
    torch.set_num_threads(1)
    for section, parts in SECTIONS.items():
        if len(sys.argv) > 1 and section not in sys.argv[1:]:
            continue
        for name, function in parts.items():
            seed()
            print(json.dumps([section, name, answer(function)]), flush=True)


if __name__ == "__main__":
    main()
