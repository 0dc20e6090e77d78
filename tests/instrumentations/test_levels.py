# SPDX-License-Identifier: Apache-2.0
"""What the hooks of torch do at each recording level, and that all of it is given back."""

from __future__ import annotations

import copy
import io
import pickle
from time import perf_counter_ns
from typing import Any

import cloudpickle
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo.convert_frame")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter  # noqa: E402

from grademl_otel import marks, semconv  # noqa: E402
from grademl_otel.governor import BOUNDARIES, EVERYTHING, ROOTS, UPDATES  # noqa: E402
from grademl_otel.instrumentations.torch import TorchInstrumentor, forward  # noqa: E402

from .conftest import Recording  # noqa: E402

PLAIN_CALL = nn.Module.__dict__["__call__"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1))

    def forward(self, inputs: Any) -> Any:
        return self.body(inputs)


class OwnCall(nn.Module):
    """A module that has a ``__call__`` of its own, as some libraries' do."""

    def __call__(self, *arguments: Any) -> Any:
        return super().__call__(*arguments) * 2

    def forward(self, inputs: Any) -> Any:
        return inputs


@pytest.fixture(autouse=True)
def only_what_this_test_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others in this process may have compiled something, after which no test would see a hook move."""
    frames = torch._dynamo.convert_frame
    before = frames.FRAME_COUNTER
    monkeypatch.setattr(forward, "has_compiled", lambda: before < frames.FRAME_COUNTER)


def go_to(recording: Recording, level: int) -> None:
    from grademl_otel.lifecycle import session

    recorder = session.recorder
    assert recorder is not None
    recorder.governor.level = level
    recorder._work_at(level, perf_counter_ns())


def train(network: nn.Module, steps: int = 3) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(4 * steps, 4), torch.randn(4 * steps, 1))
    losses = []
    for inputs, targets in DataLoader(data, batch_size=4):
        loss = ((network(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def forwards(recording: Recording) -> list[str]:
    return [recording.writer.strings[mark.z] for mark in recording.writer.phases(semconv.FORWARD)]


def test_roots_only(recording: Recording) -> None:
    network = Net()
    train(network)
    everywhere = nn.Module.__dict__["__call__"]
    go_to(recording, ROOTS)
    assert nn.Module.__dict__["__call__"] is not everywhere
    assert "__call__" in Net.__dict__
    assert "__call__" not in nn.Linear.__dict__
    before = len(forwards(recording))
    network(torch.ones(1, 4))
    assert forwards(recording)[before:] == ["Net"]


def test_a_root_whose_class_is_also_used_inside(recording: Recording) -> None:
    network = Net()
    train(nn.Linear(4, 1))
    network.body(torch.ones(1, 4))  # a Sequential with another one inside
    network.body[1](torch.ones(1, 4))
    go_to(recording, ROOTS)
    before = len(forwards(recording))
    network.body(torch.ones(1, 4))
    network.body[1](torch.ones(1, 4))
    network(torch.ones(1, 4))  # never seen as a root: what is called inside it is taken for one
    assert forwards(recording)[before : before + 2] == ["Sequential", "Linear"]


def test_a_class_that_is_new_is_seen_from_the_next_pass_on(recording: Recording) -> None:
    network = Net()
    train(network)
    go_to(recording, ROOTS)

    class Evaluator(nn.Module):
        def forward(self, inputs: Any) -> Any:
            return network(inputs)

    evaluator = Evaluator()
    loader = DataLoader(TensorDataset(torch.ones(24, 4)), batch_size=4)
    before = len(forwards(recording))
    with torch.no_grad():
        for (inputs,) in loader:
            evaluator(inputs)
    assert forwards(recording)[before:] == ["Evaluator"] * 6
    assert "__call__" in Evaluator.__dict__


def test_a_class_that_is_pickled_by_value_takes_nothing_of_ours_along(recording: Recording) -> None:
    class Local(Net):
        pass

    class LocalCall(Local):
        def __call__(self, *arguments: Any) -> Any:
            return super().__call__(*arguments) * 2

    for module in (Local(), LocalCall()):
        train(module)
    go_to(recording, ROOTS)
    assert "__call__" in Local.__dict__
    modules = [Local(), LocalCall()]
    expected = [module(torch.ones(1, 4)).tolist() for module in modules]
    read = _Elsewhere(io.BytesIO(cloudpickle.dumps(modules))).load()
    before = len(forwards(recording))
    assert [module(torch.ones(1, 4)).tolist() for module in read] == expected
    assert len(forwards(recording)) == before
    with pytest.raises(TypeError, match="missing"):
        read[0]()


class _Elsewhere(pickle.Unpickler):
    """Reads where this package is not."""

    def find_class(self, module: str, name: str) -> Any:
        assert not module.startswith("grademl_otel")
        return super().find_class(module, name)


def test_a_call_of_its_own_is_kept(recording: Recording) -> None:
    module, own = OwnCall(), OwnCall.__dict__["__call__"]
    train(nn.Linear(4, 1))
    assert module(3) == 6
    go_to(recording, ROOTS)
    assert module(3) == 6
    before = len(forwards(recording))
    module(3)
    assert forwards(recording)[before:] == ["OwnCall"]
    go_to(recording, UPDATES)
    assert OwnCall.__dict__["__call__"] is own


@pytest.mark.parametrize("level", [ROOTS, BOUNDARIES, UPDATES])
def test_losses_are_the_same(recording: Recording, level: int) -> None:
    torch.manual_seed(0)
    expected = train(Net(), 6)
    torch.manual_seed(0)
    network = Net()
    go_to(recording, level)
    assert train(network, 6) == expected


def test_boundaries_have_no_marks_inside_a_step(recording: Recording) -> None:
    network = Net()
    train(network)
    go_to(recording, BOUNDARIES)
    before = len(recording.writer.marks)
    train(network, 5)
    names = {
        semconv.PHASES[mark.kind - marks.PHASE_BASE]
        for mark in recording.writer.marks[before:]
        if mark.kind < marks.ROW
    }
    assert names == {semconv.DATA_WAIT}
    rows = [mark for mark in recording.writer.marks[before:] if mark.kind == marks.ROW]
    # Evaluation is still told from training, though its forward has no mark.
    with torch.no_grad():
        for (inputs,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4):
            network(inputs)
    assert [marks.unpack_row(mark.y)[0] for mark in rows] == [0] * 5
    assert marks.unpack_row(recording.writer.rows[-1].y)[0] == semconv.FLAG_EVALUATE


def test_updates_leave_no_hook_in_the_hot_path(recording: Recording) -> None:
    network = Net()
    train(network)
    go_to(recording, UPDATES)
    assert nn.Module.__dict__["__call__"] is PLAIN_CALL
    assert "__call__" not in Net.__dict__
    assert "grademl" not in torch.autograd.backward.__code__.co_filename
    assert "grademl" not in vars(_SingleProcessDataLoaderIter)["_next_data"].__code__.co_filename


def test_updates_are_counted_and_a_pass_brings_the_hooks_back(recording: Recording) -> None:
    from grademl_otel.lifecycle import session

    class Nested(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    network = Net()
    # Made before that of `train` is, so that none of them has its address when it is gone.
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    nested = Nested(network.parameters(), lr=0.1)
    train(network)
    go_to(recording, UPDATES)
    assert session.recorder is not None
    before = session.recorder.totals.steps
    for _ in range(70):
        optimizer.step()
    settled = session.recorder.totals.steps
    for _ in range(80):
        nested.step()  # counted once each, from when the other is taken for gone
    assert settled == before + 70 - 64
    assert session.recorder.totals.steps == settled + 80 - 64
    train(network)
    assert session.recorder.level == BOUNDARIES
    assert session.recorder.totals.steps == settled + 80 - 64 + 3


@pytest.mark.parametrize("level", [EVERYTHING, ROOTS])
def test_what_others_do_with_modules(recording: Recording, level: int) -> None:
    network = Net()
    train(nn.Linear(4, 1))
    expected = network(torch.ones(2, 4))
    go_to(recording, level)
    assert torch.equal(copy.deepcopy(network)(torch.ones(2, 4)), expected)
    assert torch.equal(pickle.loads(pickle.dumps(network.body))(torch.ones(2, 4)), expected)
    traced = torch.fx.symbolic_trace(nn.Sequential(network.body[0], network.body[1]))
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0.0", "0.1", "1"]
    scripted = torch.jit.trace(network, torch.ones(2, 4))
    assert torch.equal(scripted(torch.ones(2, 4)), expected)
    exported = torch.export.export(network, (torch.ones(2, 4),), strict=False)
    assert torch.equal(exported.module()(torch.ones(2, 4)), expected)


@pytest.mark.skipif(torch.__version__ < (2, 6), reason="this Dynamo does not see through the wrapper twice")
def test_nothing_moves_once_dynamo_has_compiled(recording: Recording) -> None:
    network = Net()
    train(network)
    compiled = torch.compile(lambda inputs: network(inputs), backend="eager", fullgraph=True)
    compiled(torch.ones(1, 4))
    before = torch._dynamo.convert_frame.FRAME_COUNTER
    for level in (ROOTS, UPDATES, BOUNDARIES):
        go_to(recording, level)
        compiled(torch.ones(1, 4))
    assert before == torch._dynamo.convert_frame.FRAME_COUNTER


def test_everything_is_given_back_from_the_level_of_roots(recording: Recording) -> None:
    train(Net())
    go_to(recording, ROOTS)
    assert "__call__" in Net.__dict__
    TorchInstrumentor().uninstrument()
    assert nn.Module.__dict__["__call__"] is PLAIN_CALL
    assert "__call__" not in Net.__dict__


def test_what_others_patch_meanwhile_stays(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Net()
    train(network)
    go_to(recording, UPDATES)
    calls: list[str] = []

    def patched(name: str, original: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls.append(name)
            return original(*arguments, **keywords)

        return call

    theirs = patched("backward", torch.autograd.backward), patched("module", nn.Module.__call__)
    monkeypatch.setattr(torch.autograd, "backward", theirs[0])
    monkeypatch.setattr(nn.Module, "__call__", theirs[1])
    for level in (BOUNDARIES, ROOTS, EVERYTHING):
        go_to(recording, level)
        assert torch.autograd.backward is theirs[0]
        assert nn.Module.__dict__["__call__"] is theirs[1]
    calls.clear()
    network(torch.ones(1, 4)).sum().backward()
    assert calls.count("backward") == 1
    assert "module" in calls


def test_what_others_patch_over_ours_stays(recording: Recording) -> None:
    network = Net()
    train(network)
    ours = nn.Module.__dict__["__call__"]

    def theirs(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return ours(self, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patched:  # theirs is gone before ours is, or ours would stay
        patched.setattr(nn.Module, "__call__", theirs)
        for level in (ROOTS, BOUNDARIES, UPDATES, EVERYTHING):
            go_to(recording, level)
            assert nn.Module.__dict__["__call__"] is theirs
            assert "__call__" not in Net.__dict__
        before = len(forwards(recording))
        network(torch.ones(1, 4))
        assert forwards(recording)[before:] == ["Net"]
