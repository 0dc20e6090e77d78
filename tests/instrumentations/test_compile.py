# SPDX-License-Identifier: Apache-2.0
"""Compilations and compiled functions: what is written of them, and that nothing of it is felt."""

from __future__ import annotations

import sys
import threading
from time import perf_counter_ns
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo.convert_frame")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from grademl_otel import marks, semconv  # noqa: E402
from grademl_otel.governor import BOUNDARIES, UPDATES  # noqa: E402
from grademl_otel.lifecycle import session  # noqa: E402
from tests.instrumentations.conftest import Recording  # noqa: E402
from tests.support.listwriter import ListWriter, Mark  # noqa: E402

DATA = TensorDataset(torch.arange(40.0).reshape(10, 4))
X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    torch._dynamo.reset()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.01)


def train(function: Any, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for (x,) in loader:
        optimizer.zero_grad()
        function(x).sum().backward()
        optimizer.step()


def compilations(written: ListWriter) -> list[tuple[str, int, int]]:
    """Of each one: the function, with the error after a colon, which time it is, and what is compiled."""
    found = []
    for mark in written.phases(semconv.COMPILE):
        _, version, what = marks.unpack_compilation(mark.y)
        found.append((written.strings[mark.z], version, what))
    return found


def inside(inner: Mark, outer: Mark) -> bool:
    return outer.t0 <= inner.t0 <= inner.t1 <= outer.t1


@pytest.mark.parametrize("in_place", [False, True])
def test_a_module_is_compiled_in_the_forward_of_the_step_that_needs_it(
    recording: Recording, in_place: bool
) -> None:
    net = Net()
    optimizer = sgd(net)
    if in_place:
        net.compile(backend="eager")
    compiled = net if in_place else torch.compile(net, backend="eager")
    train(compiled, optimizer, DataLoader(DATA, batch_size=4))
    written = recording.finish()
    assert compilations(written) == [("Net.forward", 0, 0), ("Net.forward", 1, 0)]
    first, second = written.phases(semconv.COMPILE)
    forwards = written.phases(semconv.FORWARD)
    assert inside(first, forwards[0])
    assert inside(second, forwards[2])  # its batch has two samples
    assert [first.row, second.row] == [forwards[0].row, forwards[2].row]
    assert first.x == -1
    assert "size mismatch" in written.strings[second.x]
    assert written.row_kinds() == {0: 3}
    assert [written.strings[mark.z] for mark in forwards] == ["Net"] * 3


def test_a_module_of_torchs_own_is_called_by_its_name(recording: Recording) -> None:
    torch.compile(nn.Sequential(nn.Linear(4, 2)), backend="eager")(X)
    assert compilations(recording.finish()) == [("Sequential.forward", 0, marks.COMPILE_FRAME)]


def test_a_compiled_function_is_a_forward(recording: Recording) -> None:
    net = Net()

    @torch.compile(backend="eager")
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        """Text."""
        return net(x).sum()

    train(loss_of, sgd(net), DataLoader(DATA, batch_size=5))
    for x in (X, X):
        torch.compile(net.forward, backend="eager")(x).sum().backward()
    written = recording.finish()
    names = [written.strings[mark.z] for mark in written.phases(semconv.FORWARD)]
    assert names == ["loss_of"] * 2 + ["Net.forward"] * 2
    assert (loss_of.__name__, loss_of.__doc__) == ("loss_of", "Text.")


def test_compiled_functions_in_what_is_recorded_are_part_of_it(recording: Recording) -> None:
    scaled = torch.compile(lambda x: x * 2, backend="eager")

    class Outer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled(x)

    outer = torch.compile(lambda x: scaled(x) + 1, backend="eager")
    Outer()(X)
    outer(X)
    list(DataLoader([X], collate_fn=lambda samples: scaled(samples[0])))
    X.clone().requires_grad_().register_hook(scaled)
    written = recording.finish()
    assert [written.strings[mark.z] for mark in written.phases(semconv.FORWARD)] == ["Outer", "<lambda>"]


@pytest.mark.parametrize("with_loader", [True, False])
def test_a_compiled_step_is_a_step(recording: Recording, with_loader: bool) -> None:
    net = Net()
    optimizer = sgd(net)

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    for x in DataLoader(DATA, batch_size=5) if with_loader else [(X,)] * 2:
        step(x[0])
    written = recording.finish()
    assert written.row_kinds() == {0: 2}
    forwards, backwards = written.phases(semconv.FORWARD), written.phases(semconv.BACKWARD)
    assert len(forwards) == len(backwards) == len(written.phases(semconv.OPTIMIZER)) == 2
    assert all(one.t1 <= other.t0 for one, other in zip(forwards, backwards, strict=True))
    assert [one.row for one in forwards] == [one.row for one in backwards]
    assert not written.running


def test_a_compiled_step_of_an_optimizer_is_no_forward(recording: Recording) -> None:
    net = Net()
    optimizer = sgd(net)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        net(X).sum().backward()
        step()
    written = recording.finish()
    assert written.row_kinds() == {0: 3}
    assert [written.strings[mark.z] for mark in written.phases(semconv.FORWARD)] == ["Net"] * 3
    assert len(written.phases(semconv.OPTIMIZER)) == 3
    assert not written.running


def test_a_compiled_function_that_raises_is_over(recording: Recording) -> None:
    @torch.compile(backend="eager")
    def fails(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        raise LookupError("no more")

    with pytest.raises(LookupError) as caught:
        fails(X)
    if sys.version_info >= (3, 11):  # see `grademl_otel.tracebacks`
        assert all("grademl" not in str(entry.path) for entry in caught.traceback)
    Net()(X)
    written = recording.finish()
    assert [written.strings[mark.z] for mark in written.phases(semconv.FORWARD)] == ["fails", "Net"]
    assert not written.running


def test_gradients_that_are_traced_are_no_backward(recording: Recording) -> None:
    """Whatever this torch says of itself while it compiles with AOTAutograd."""
    compiled = torch.compile(Net(), backend="aot_eager")
    compiled(X).sum().backward()
    written = recording.finish()
    (backward,) = written.phases(semconv.BACKWARD)
    assert backward.t0 >= written.phases(semconv.FORWARD)[0].t1


def test_a_backward_that_is_compiled_when_it_is_needed(recording: Recording) -> None:
    if not hasattr(torch._dynamo.callback, "CallbackTrigger"):
        pytest.skip("this torch compiles backwards with their forwards")
    net = Net()
    compiled = torch.compile(net, backend="aot_eager")
    compiled(X).sum().backward()
    written = recording.finish()
    found = compilations(written)
    assert found == [("Net.forward", 0, marks.COMPILE_FRAME), ("Net.forward", 0, marks.COMPILE_BACKWARD)]
    assert inside(written.phases(semconv.COMPILE)[1], written.phases(semconv.BACKWARD)[0])


def test_a_compilation_that_fails(recording: Recording) -> None:
    def bad(graph: Any, inputs: Any) -> Any:
        raise ValueError("no such machine")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no such machine"):
        torch.compile(Net(), backend=bad)(X)
    written = recording.finish()
    assert compilations(written)[0] == ("Net.forward:BackendCompilerFailed", 0, marks.COMPILE_FRAME)
    assert not written.running


def test_what_is_compiled_before_the_run_is_its_first(recording: Recording) -> None:
    torch._dynamo.optimize("eager")(lambda x: x + 1)(X)  # not a call of `torch.compile`
    Net()(X)
    written = recording.finish()
    assert compilations(written) == [("<lambda>", 0, marks.COMPILE_FRAME)]
    assert written.phases(semconv.COMPILE)[0].row == 0


def test_compilations_are_recorded_at_each_level(recording: Recording) -> None:
    net = Net()
    net(X).sum().backward()
    sgd(net).step()
    recorder = session.recorder
    assert recorder is not None
    for level in (BOUNDARIES, UPDATES):
        recorder.governor.level = level
        recorder._work_at(level, perf_counter_ns())
        torch._dynamo.reset()
        torch.compile(Net(), backend="eager")(X)
    written = recording.finish()
    assert [name for name, _, _ in compilations(written)] == ["Net.forward"] * 2


def test_threads_compile_for_themselves(recording: Recording) -> None:
    Net()(X)
    thread = threading.Thread(target=torch.compile(Net(), backend="eager"), args=(X,))
    thread.start()
    thread.join()
    written = recording.finish()
    (mark,) = written.phases(semconv.COMPILE)
    assert written.strings[mark.lane] == "thread-1"


def test_an_error_of_ours_does_not_reach_a_compilation(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Net()(X)
    assert session.recorder is not None

    def fails(*_: Any) -> None:
        raise OSError("ours")

    monkeypatch.setattr(session.recorder, "here", fails)
    compiled = torch.compile(Net(), backend="aot_eager", dynamic=False)
    for size in range(1, 6):
        compiled(torch.ones(size, 4)).sum().backward()
    said = [line for line in capsys.readouterr().err.splitlines() if "compilation" in line]
    assert said == ["grademl: torch: compilation is not recorded: OSError: ours"]
