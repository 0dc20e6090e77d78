# SPDX-License-Identifier: Apache-2.0
"""What is inside a step and no boundary of it: transfers, syncs, pauses, generation; who must not notice."""

from __future__ import annotations

import _thread
import gc
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from grademl_otel import marks, semconv
from grademl_otel.governor import BOUNDARIES, EVERYTHING, ROOTS, levels
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch import collector, devicecalls, recompute
from grademl_otel.instrumentations.torch.inner import InnerPhase
from tests.instrumentations.conftest import Recording
from tests.support.listwriter import ListWriter, Mark

X = torch.arange(16.0).reshape(8, 2)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))


def update(module: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = module(X).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def rows_of(written: ListWriter, name: str) -> list[int]:
    """Indices of the rows that the marks of a phase lie in; -1: in none."""
    serials = [row.row for row in written.rows]
    return [serials.index(mark.row) if mark.row in serials else -1 for mark in written.phases(name)]


def inside(mark: Mark, row: Mark) -> bool:
    return row.t0 <= mark.t0 <= mark.t1 <= row.t1


# --- Tensors on a device, which this machine need not have ------------------------------------------------


class Away:
    """Says which tensors are on the device."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        self._tensors.append(tensor)
        return tensor

    def on_host(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu and not any(tensor is other for other in self._tensors)


@pytest.fixture
def away() -> Iterator[Away]:
    """The methods of tensors are hooked, as after the initialization of a device."""
    made, patches = Away(), Patches()
    devicecalls.hook_tensors(patches, made.on_host)
    yield made
    patches.restore()
    assert "item" not in vars(torch.Tensor)


def test_values_that_are_read_from_a_device_are_syncs_and_batches_sent_to_one_transfers(
    recording: Recording, away: Away
) -> None:
    m = net()
    o = torch.optim.SGD(m.parameters(), 0.01)
    for _ in range(2):
        X.to("meta")
        X.to(torch.float64)
        X.to("cpu")
        loss = away.send(update(m, o))
        assert loss.item() == loss.tolist() == float(loss)
        assert bool(loss > -1)
        loss.cpu()
        loss.to(torch.float64, copy=True)
    host = update(m, o)
    assert (host.item(), int(host), bool(host)) == (float(host), int(host.tolist()), True)
    written = recording.finish()
    assert rows_of(written, semconv.DATA_TRANSFER) == [-1, 1]
    # `item`, `tolist`, `float`, `cpu` and the copy, after a step without a loader: part of the next.
    assert rows_of(written, semconv.DEVICE_SYNC) == [1] * 5 + [2] * 5
    for index, row in enumerate(written.rows):
        own = [mark for mark in written.phases(semconv.DEVICE_SYNC) if mark.row == row.row]
        assert all(inside(mark, row) for mark in own), index
    assert written.running == []


def test_a_copy_to_the_host_that_does_not_block_is_no_sync(recording: Recording, away: Away) -> None:
    m = net()
    o = torch.optim.SGD(m.parameters(), 0.01)
    loss = away.send(update(m, o))
    loss.to(torch.float64, non_blocking=True)
    update(m, o)
    written = recording.finish()
    assert written.phases(semconv.DEVICE_SYNC) == []
    assert len(written.phases(semconv.DATA_TRANSFER)) == 1


def test_parameters_that_are_moved_with_their_module_are_no_batch(recording: Recording, away: Away) -> None:
    m = net()
    o = torch.optim.SGD(m.parameters(), 0.01)
    update(m, o)
    m.to("meta")
    update(net(), o)
    assert recording.finish().phases(semconv.DATA_TRANSFER) == []


def seen_by_subclasses() -> list[Any]:
    """What `__torch_function__` gets of calls on a tensor, in a subclass and in a mode."""
    seen: list[Any] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def calls(tensor: torch.Tensor) -> None:
        tensor.item()
        tensor.tolist()
        float(tensor)
        int(tensor)
        bool(tensor)
        tensor.cpu()
        tensor.to(torch.float64)
        tensor.to("meta")

    calls(torch.tensor(2.0).as_subclass(Watched))
    with Mode():
        calls(torch.tensor(2.0))
    return seen


def test_subclasses_and_modes_see_what_they_would_see(recording: Recording) -> None:
    methods = {name: getattr(torch.Tensor, name) for name in ("item", "to", "cpu", "__bool__", "tolist")}
    expected = seen_by_subclasses()
    patches = Patches()
    devicecalls.hook_tensors(patches, lambda tensor: False)
    try:
        assert seen_by_subclasses() == expected
        assert all(getattr(torch.Tensor, name) is method for name, method in methods.items())
        with torch.device("cpu"):  # a mode of torch's own
            assert X.sum().item() == 120
    finally:
        patches.restore()


def compiled(function: Any, x: torch.Tensor) -> tuple[list[str], int, Any]:
    """What Dynamo makes of ``function``, in one graph and in several: graphs, number of breaks, results."""
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    results: list[Any] = []
    torch._dynamo.utils.counters.clear()
    for fullgraph in (True, False):
        torch._dynamo.reset()
        call = torch.compile(function, backend=backend, fullgraph=fullgraph)
        for _ in range(3):
            try:
                results.append(call(x).tolist())
            except torch._dynamo.exc.Unsupported as error:
                results.append(type(error))
    counters = torch._dynamo.utils.counters
    breaks = counters["graph_break"] + counters["unimplemented"]
    return graphs, sum(breaks.values()), results


class Subclass(torch.Tensor):
    pass


MODULE = net()
COMPILED = {
    "copies": lambda x: x.to(torch.float64).to("cpu").cpu(),
    "a value": lambda x: x + x.sum().item() + int(x.sum()),
    "a branch": lambda x: x + 1 if x.sum() > 3 else x,
    "a method of the class": lambda x: x + torch.Tensor.item(x.sum()),
    "a module that moves": lambda x: MODULE.to("cpu")(x),
}


@pytest.mark.parametrize("name", [*COMPILED, "a subclass"])
def test_dynamo_finds_tensors_as_they_are(recording: Recording, name: str) -> None:
    pytest.importorskip("torch._dynamo")
    function, x = COMPILED.get(name, COMPILED["copies"]), X
    if name == "a subclass":
        x = X.as_subclass(Subclass)
    expected = compiled(function, x)
    torch._dynamo.reset()
    patches = Patches()
    devicecalls.hook_tensors(patches, torch.Tensor.is_quantized.__get__)
    try:
        assert "item" in vars(torch.Tensor)
        assert compiled(function, x) == expected
        assert "item" not in vars(torch.Tensor)
        levels.set(ROOTS)
        levels.set(EVERYTHING)
        assert "item" not in vars(torch.Tensor)
    finally:
        levels.set(EVERYTHING)
        patches.restore()


def test_export_finds_tensors_as_they_are(recording: Recording, away: Away) -> None:
    class Copies(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float64)

    assert "item" in vars(torch.Tensor)
    torch.export.export(Copies(), (X,), strict=True)
    assert "item" not in vars(torch.Tensor)


def test_warnings_and_traces_name_the_line_of_the_program(recording: Recording, away: Away) -> None:
    loss = away.send(torch.tensor(1.0, requires_grad=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.tensor(1 + 2j).to(torch.float32)
        assert float(loss) == loss.item() == 1
    assert {warning.filename for warning in caught} == {__file__}
    # Of the graph, before it is made simpler.
    graph = str(torch.jit.trace(lambda x: x.to(torch.float64) + away.send(x.sin()).cpu(), X).graph)
    assert Path(__file__).name in graph
    assert "grademl" not in graph


def test_methods_of_a_tensor_are_what_they_were(recording: Recording, away: Away) -> None:
    x = away.send(torch.tensor(2.0))
    for name in ("item", "to", "cpu", "cuda", "tolist"):
        method = getattr(x, name)
        assert method.__name__ == name
        assert method.__doc__ == getattr(torch.Tensor, name).__doc__
        assert pickle.loads(pickle.dumps(method)).__name__ == name


def test_a_copy_to_what_a_tensor_of_a_subclass_is_on_is_its_call_alone(
    recording: Recording, away: Away
) -> None:
    seen: list[str] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    other = torch.zeros(2, dtype=torch.float64).as_subclass(Watched)
    seen.clear()
    X.to(other)
    assert seen == ["to"]


def test_errors_show_no_frame_of_ours(recording: Recording, away: Away) -> None:
    m = net()
    update(m, torch.optim.SGD(m.parameters(), 0.01))
    for call in (lambda: torch.empty(2, device="meta").tolist(), lambda: X.to("nonsense")):
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            call()
        files = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
        if sys.version_info >= (3, 11):  # Python 3.10 puts the frame of a wrapper back
            assert files == [Path(__file__).name] * 2
    assert recording.finish().running == []


def test_hooks_wait_for_a_device_and_are_gone_with_the_rest(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [call for call, _ in torch.cuda._queued_calls if "grademl" in call.__module__]
    assert len(ours) == (0 if torch.cuda.is_initialized() else 1)
    device = SimpleNamespace(_queued_calls=[], is_initialized=lambda: False)
    patches = Patches()
    devicecalls._when_initialized(device, patches)  # type: ignore[arg-type]
    ((initialize, lines),) = device._queued_calls
    assert "".join(lines)  # torch joins them where a call fails
    hooked = "item" in vars(torch.Tensor)
    monkeypatch.setattr(devicecalls, "has_compiled", lambda: True)
    initialize()
    assert ("item" in vars(torch.Tensor)) == hooked
    monkeypatch.setattr(devicecalls, "has_compiled", lambda: False)
    initialize()
    assert "item" in vars(torch.Tensor)
    patches.restore()
    assert ("item" in vars(torch.Tensor)) == hooked
    assert device._queued_calls == []


def test_waits_for_a_device_that_is_in_use(recording: Recording) -> None:
    m = net()
    o = torch.optim.SGD(m.parameters(), 0.01)
    phase = InnerPhase("device.sync", devicecalls.SYNC)
    waited: list[str] = []
    used = devicecalls.synchronizing(waited.append, phase, lambda: True)
    unused = devicecalls.synchronizing(waited.append, phase, lambda: False)
    for _ in range(2):
        update(m, o)
        used("used")
        unused("unused")
    update(m, o)
    assert waited == ["used", "unused"] * 2
    assert rows_of(recording.finish(), semconv.DEVICE_SYNC) == [1, 2]


# --- Movers of frameworks ----------------------------------------------------------------------------------


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules to import, which are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, module: str, text: str) -> None:
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    for parent in path.parents:
        if parent == folder:
            break
        (parent / "__init__.py").touch()
    path.write_text(text)


MOVER = """
def move_data_to_device(batch, device):
    if isinstance(batch, list):
        return [move_data_to_device(each, device) for each in batch]
    return batch.to(device)
"""


def test_a_batch_that_a_framework_moves_is_one_transfer(
    recording: Recording, away: Away, packages: Path
) -> None:
    operations = pytest.importorskip("accelerate.utils.operations")
    write(packages, "lightning_fabric.utilities.apply_func", MOVER)
    from accelerate import data_loader
    from lightning_fabric.utilities import apply_func  # type: ignore[import-not-found]

    assert data_loader.send_to_device is operations.send_to_device  # type: ignore[attr-defined]
    m = net()
    o = torch.optim.SGD(m.parameters(), 0.01)
    movers = (apply_func.move_data_to_device, operations.send_to_device)
    for move in movers:
        for (x,) in DataLoader(TensorDataset(X), batch_size=4):
            move([x, [x, x]], "meta")
            move([x, x], device="cpu")
            update(m, o)
    with pytest.raises(TypeError, match="device"):
        operations.send_to_device(X)
    written = recording.finish()
    assert rows_of(written, semconv.DATA_TRANSFER) == [0, 1, 2, 3]
    rows = {row.row: row for row in written.rows}
    assert all(inside(mark, rows[mark.row]) for mark in written.phases(semconv.DATA_TRANSFER))


# --- Generation --------------------------------------------------------------------------------------------

GENERATION = """
import torch

class GenerationMixin:
    @torch.no_grad()
    def generate(self, x, tokens, assistant=None):
        for _ in range(tokens):
            x = self(x)
            if assistant is not None:
                assistant.generate(x, 2)
        if tokens == 0:
            raise ValueError("no tokens")
        return x
"""


def test_a_generation_is_one_evaluation_step_of_many_forwards(recording: Recording, packages: Path) -> None:
    write(packages, "transformers.generation.utils", GENERATION)
    from transformers.generation.utils import GenerationMixin  # type: ignore[import-not-found]

    class Model(GenerationMixin, nn.Linear):  # type: ignore[misc]
        pass

    m, assistant = Model(2, 2), Model(2, 2)
    o = torch.optim.SGD(m.parameters(), 0.01)
    for _ in range(2):
        for _ in range(3):
            m.generate(X, 5)
        with pytest.raises(ValueError, match="no tokens") as caught:
            m.generate(X, 0)
        if sys.version_info >= (3, 11):
            assert len(traceback.extract_tb(caught.value.__traceback__)) == 3  # `no_grad` has a frame, too
        update(m, o)
    m.generate(X, 2, assistant=assistant)
    m(X)
    written = recording.finish()
    kinds = [marks.unpack_row(row.y)[0] for row in written.rows]
    assert (
        kinds
        == [semconv.FLAG_EVALUATE] * 3 + [0] + [semconv.FLAG_EVALUATE] * 3 + [0] + [semconv.FLAG_EVALUATE] * 2
    )
    forwards = rows_of(written, semconv.FORWARD)
    assert [forwards.count(row) for row in range(10)] == [5, 5, 5, 1, 5, 5, 5, 1, 6, 1]


# --- Pauses ------------------------------------------------------------------------------------------------


def test_collections_that_take_long_are_pauses_of_the_step_they_come_in(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pausing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gc.collect()
            return x.sum().requires_grad_()

    gc.disable()
    try:
        monkeypatch.setattr(collector, "SHORTEST_NS", 0)
        gc.collect()
        m = Pausing()
        for x in DataLoader(X, batch_size=4):
            m(x).backward()
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        m(X)
        monkeypatch.setattr(collector, "SHORTEST_NS", 1 << 62)
        m(X)
        written = recording.finish()
    finally:
        gc.enable()
    # The one in another thread comes between two rows.
    assert rows_of(written, semconv.GC) == [0, 1, -1, 2]
    rows = {row.row: row for row in written.rows}
    assert all(inside(mark, rows[mark.row]) for mark in written.phases(semconv.GC) if mark.row in rows)


# --- Zero gradients, levels, threads -----------------------------------------------------------------------


def test_gradients_that_are_set_to_zero_count_once_and_in_their_thread(recording: Recording) -> None:
    class Adam(torch.optim.Adam):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)

    class Net(nn.Linear):
        def zero_grad(self, set_to_none: bool = True) -> None:
            o.zero_grad(set_to_none)

    m = Net(2, 1)
    o = Adam(m.parameters())

    def train() -> None:
        mine = net()
        own = torch.optim.SGD(mine.parameters(), 0.01)
        for _ in range(3):
            update(mine, own)

    for _ in range(3):
        m(X).sum().backward()
        o.step()
        m.zero_grad()
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    written = recording.finish()
    zeroed = written.phases(semconv.ZERO_GRAD)
    assert [written.strings[mark.lane] for mark in zeroed] == ["main"] * 3 + ["thread-1"] * 3
    assert len(written.rows) == 6


def test_a_thread_that_does_not_train_gets_no_lane(recording: Recording, away: Away) -> None:
    m = net()
    loss = away.send(update(m, torch.optim.SGD(m.parameters(), 0.01)))
    thread = threading.Thread(target=lambda: (loss.item(), m.zero_grad(), X.to("meta")))
    thread.start()
    thread.join()
    written = recording.finish()
    assert written.phases(semconv.DEVICE_SYNC) == written.phases(semconv.DATA_TRANSFER) == []
    assert "thread-1" not in written.strings


def test_what_is_inside_a_step_is_not_hooked_where_only_boundaries_are_recorded(
    recording: Recording, away: Away
) -> None:
    hooked = torch.optim.Optimizer.zero_grad
    try:
        levels.set(ROOTS)
        assert torch.optim.Optimizer.zero_grad is hooked
        levels.set(BOUNDARIES)
        assert torch.optim.Optimizer.zero_grad is not hooked
        levels.set(EVERYTHING)
        assert torch.optim.Optimizer.zero_grad is hooked
    finally:
        levels.set(EVERYTHING)


class Elsewhere(torch.autograd.Function):
    """Has a part of its backward run in a thread that `threading` does not know, as autograd does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, work: Any) -> torch.Tensor:
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        done = _thread.allocate_lock()
        done.acquire()

        def run() -> None:
            try:
                ctx.work()
            finally:
                done.release()

        _thread.start_new_thread(run, ())
        with done:
            return gradients[0], None


def test_checkpointing_that_looks_different_is_left_alone() -> None:
    """A frame, or a context, that keeps what it is to run again under another name."""

    class Frame:
        def __init__(self, function: Any) -> None:
            self.function = function

    phase = InnerPhase("recomputation", 0)
    made = Frame.__new__(Frame)
    recompute._wrap_frame(Frame.__init__, phase)(made, print)
    assert made.function is print
    backward = recompute._wrap_backward(lambda ctx, *args: (ctx, *args), phase)
    context = object()
    assert backward(context, 1) == (context, 1)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_runs_again_in_a_thread_of_autograds_is_of_the_step_that_waits(
    recording: Recording, reentrant: bool
) -> None:
    m = net()
    o = torch.optim.SGD(m.parameters(), 0.01)
    for _ in range(2):
        x = X.clone().requires_grad_()
        part = checkpoint(lambda x: m(x).sin(), x, use_reentrant=reentrant).sum()
        Elsewhere.apply(m(X), part.backward).sum().backward()
        o.step()
        o.zero_grad()
    written = recording.finish()
    assert rows_of(written, semconv.RECOMPUTE) == [0, 1]
    for again, whole in zip(written.phases(semconv.RECOMPUTE), written.phases(semconv.BACKWARD), strict=True):
        assert inside(again, whole)
        assert again.lane == whole.lane
    assert "thread-1" not in written.strings
