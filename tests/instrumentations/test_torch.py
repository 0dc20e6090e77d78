# SPDX-License-Identifier: Apache-2.0
"""What the hooks of torch write, and that they leave the program as it was."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.fetch import _BaseDatasetFetcher
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import grademl_otel
from grademl_otel import marks, semconv
from grademl_otel.instrumentations.torch import TorchInstrumentor
from grademl_otel.instrumentations.torch import worker as our_worker
from grademl_otel.instrumentations.torch.worker import MOST_HELD, TimedIndex, wrap_receive
from grademl_otel.lifecycle import session
from tests.instrumentations.conftest import Recording
from tests.support.listwriter import ListWriter, Mark

DATA = TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def train(net: nn.Module, loader: Any, optimizer: torch.optim.Optimizer) -> None:
    for x, _ in loader:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.01)


def lane(written: ListWriter, mark: Mark) -> str:
    return written.strings[mark.lane]


def inside(inner: Mark, outer: Mark) -> bool:
    return outer.t0 <= inner.t0 <= inner.t1 <= outer.t1


# --- What is written -------------------------------------------------------------------------------------


def test_the_phases_of_a_step_in_their_order(recording: Recording) -> None:
    net = Net()
    train(net, DataLoader(DATA, batch_size=4), sgd(net))
    written = recording.finish()
    names = (semconv.DATA_WAIT, semconv.FORWARD, semconv.BACKWARD, semconv.OPTIMIZER)
    for row in written.rows:
        phases = [mark for name in names for mark in written.phases(name) if mark.row == row.row]
        assert len(phases) == 4
        assert all(before.t1 <= after.t0 for before, after in pairwise(phases))
        assert all(row.t0 <= mark.t0 <= mark.t1 <= row.t1 for mark in phases)
        assert row.z == 4
    forward = written.phases(semconv.FORWARD)[0]
    assert written.strings[forward.z] == "Net"


def test_batches_made_in_the_wait(recording: Recording) -> None:
    net = Net()
    train(net, DataLoader(DATA, batch_size=4), sgd(net))
    written = recording.finish()
    waits = written.phases(semconv.DATA_WAIT)
    fetches, collates = written.phases(semconv.DATA_FETCH), written.phases(semconv.DATA_COLLATE)
    assert len(waits) == len(fetches) == len(collates) == 3
    for wait, fetch, collate in zip(waits, fetches, collates, strict=True):
        assert wait.x == fetch.x == collate.x
        assert inside(fetch, wait)
        assert inside(collate, wait)
        assert fetch.t1 == collate.t0
        assert wait.lane == fetch.lane


@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_batches_made_by_workers(recording: Recording, start_method: str) -> None:
    net = Net()
    loader = DataLoader(DATA, batch_size=2, num_workers=2, multiprocessing_context=start_method)
    train(net, loader, sgd(net))
    written = recording.finish()
    waits = written.phases(semconv.DATA_WAIT)
    fetches, collates = written.phases(semconv.DATA_FETCH), written.phases(semconv.DATA_COLLATE)
    assert [mark.x for mark in waits] == [mark.x for mark in fetches] == [mark.x for mark in collates]
    assert [lane(written, mark) for mark in fetches] == ["loader-worker-0", "loader-worker-1"] * 3
    for wait, fetch, collate in zip(waits, fetches, collates, strict=True):
        assert fetch.t0 <= fetch.t1 == collate.t0 <= collate.t1 <= wait.t1
        assert wait.row == fetch.row


def test_persistent_workers_out_of_order_and_a_second_loader(recording: Recording) -> None:
    net = Net()
    optimizer = sgd(net)
    first = DataLoader(DATA, batch_size=4, num_workers=1)
    order: dict[str, Any] = {"in_order": False} if torch.__version__ >= (2, 6) else {}
    second = DataLoader(DATA, batch_size=2, num_workers=2, persistent_workers=True, **order)
    train(net, first, optimizer)
    for _ in range(2):
        train(net, second, optimizer)
    written = recording.finish()
    assert len(written.phases(semconv.DATA_FETCH)) == 3 + 6 + 6
    lanes = {lane(written, mark) for mark in written.phases(semconv.DATA_FETCH)}
    assert lanes == {"loader-worker-0", "loader1-worker-0", "loader1-worker-1"}
    assert written.passes() == [semconv.EPOCH] * 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for value in range(6):
            yield torch.full((2,), float(value))


def test_iterable_data_and_no_batching(recording: Recording) -> None:
    net = Net()
    batched = list(DataLoader(Stream(), batch_size=2, num_workers=2))
    single = [net(x) for x, _ in DataLoader(DATA, batch_size=None)]
    assert len(batched) == 6
    assert len(single) == 12
    written = recording.finish()
    assert len(written.phases(semconv.DATA_FETCH)) == 6 + 12


def test_what_the_loader_says_of_itself(recording: Recording) -> None:
    net = Net()
    train(net, DataLoader(DATA, batch_size=4, num_workers=1, prefetch_factor=3), sgd(net))
    written = recording.finish()
    serial = written.of_kind(marks.SCOPE_OPEN)[1].row
    values = written.scope_values(serial)
    assert values[semconv.LOADER_ID] == 0
    assert values[semconv.LOADER_WORKERS] == 1
    assert values[semconv.LOADER_PREFETCH] == 3
    assert values[semconv.LOADER_BATCH_SIZE] == 4
    assert values[semconv.LOADER_IN_ORDER] == 1


def test_a_loader_made_anew_each_epoch_keeps_its_number(recording: Recording) -> None:
    net = Net()
    optimizer = sgd(net)
    for _ in range(4):
        train(net, DataLoader(DATA, batch_size=4), optimizer)
    written = recording.finish()
    loaders = [
        mark.y for mark in written.of_kind(marks.SCOPE_INT) if written.strings[mark.x] == semconv.LOADER_ID
    ]
    assert loaders == [0] * 4


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(3, 2), 3),
        ([torch.zeros(4), torch.zeros(9)], 4),
        ({"x": (torch.zeros(5, 1),)}, 5),
        (torch.zeros(()), 0),
        ("text", 0),
        ([], 0),
        ([[[[torch.zeros(2)]]]], 0),
    ],
)
def test_samples_are_counted_where_they_can_be(recording: Recording, batch: Any, samples: int) -> None:
    net = Net()
    for _ in DataLoader([0], batch_size=1, collate_fn=lambda _: batch):  # type: ignore[arg-type]
        net(torch.zeros(1, 2))
    (row,) = recording.finish().rows
    assert row.z == samples


def test_only_the_root_of_modules_is_a_forward(recording: Recording) -> None:
    Net()(torch.zeros(1, 2))
    assert len(recording.finish().phases(semconv.FORWARD)) == 1


def test_a_module_inside_a_dataset_belongs_to_the_fetching(recording: Recording) -> None:
    encoder = Net()

    class Encoded(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            return encoder(torch.full((2,), float(index))).detach()

    net = Net()
    for x in DataLoader(Encoded(), batch_size=2):
        net(x)
    written = recording.finish()
    assert len(written.phases(semconv.FORWARD)) == 2
    assert written.row_kinds() == {semconv.FLAG_EVALUATE: 2}


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_no_forward(recording: Recording, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    net = Net()
    optimizer = sgd(net)
    for x, _ in DataLoader(DATA, batch_size=4):
        optimizer.zero_grad()
        checkpoint(net, x.requires_grad_(), use_reentrant=reentrant).sum().backward()
        optimizer.step()
    written = recording.finish()
    forwards, again = written.phases(semconv.FORWARD), written.phases(semconv.RECOMPUTE)
    backwards = written.phases(semconv.BACKWARD)
    assert len(forwards) == len(again) == len(backwards) == 3
    assert all(inside(*pair) for pair in zip(again, backwards, strict=True))


def test_a_subclass_that_calls_its_parents_step_is_one_step(recording: Recording) -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    net = Net()
    train(net, DataLoader(DATA, batch_size=4), Twice(net.parameters(), 0.01))
    written = recording.finish()
    assert len(written.phases(semconv.OPTIMIZER)) == 3
    assert written.row_kinds() == {0: 3}


def test_a_step_that_raised_does_not_hide_the_later_ones(recording: Recording) -> None:
    net = Net()
    optimizer = sgd(net)

    def closure() -> float:
        raise ValueError("diverged")

    for number, (x, _) in enumerate(DataLoader(DATA, batch_size=2)):
        net(x).sum().backward()
        if number == 1:
            with pytest.raises(ValueError, match="diverged"):
                optimizer.step(closure)
        else:
            optimizer.step()
    written = recording.finish()
    assert len(written.phases(semconv.OPTIMIZER)) == 5
    assert written.running == []


def test_two_threads_train_in_lanes_of_their_own(recording: Recording) -> None:
    def work() -> None:
        net = Net()
        train(net, DataLoader(DATA, batch_size=2), sgd(net))

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    written = recording.finish()
    assert [lane(written, row) for row in written.rows] == ["main"] * 6 + ["thread-1"] * 6
    assert [row.x for row in written.rows] == list(range(12))


def test_an_optimizer_may_be_built_in_another_thread_than_the_one_that_uses_it(recording: Recording) -> None:
    net = Net()

    def work(optimizer: torch.optim.Optimizer) -> None:
        for _ in range(5):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    optimizers = [sgd(net) for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        while optimizers:  # each is gone before the next one is used
            pool.submit(work, optimizers.pop()).result()
            gc.collect()
    written = recording.finish()
    assert [lane(written, row) for row in written.rows] == ["thread-1"] * 15
    assert [row.x for row in written.rows] == list(range(15))


def test_a_forked_childs_first_pass_is_seen_from_its_first_backward_on(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "child", True)
    net = Net()
    train(net, DataLoader(DATA, batch_size=2), sgd(net))
    written = recording.finish()
    assert len(written.phases(semconv.DATA_WAIT)) == 5
    assert written.row_kinds() == {0: 6}
    assert written.passes() == [semconv.EPOCH]


def test_scripted_and_compiled_modules_by_their_names(recording: Recording) -> None:
    scripted = torch.jit.script(Net())
    compiled = torch.compile(Net(), backend="eager")
    optimizer = sgd(compiled)
    for _ in range(5):  # more often than a hook may fail
        for network in (scripted, compiled):
            network(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    written = recording.finish()
    names = [written.strings[mark.z] for mark in written.phases(semconv.FORWARD)]
    assert names == [type(scripted).__name__, "Net"] * 5


def test_replicas_in_threads_of_their_own_are_part_of_the_forward(recording: Recording) -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Net(), Net()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results: list[torch.Tensor] = []
            threads = [threading.Thread(target=lambda p=part: results.append(p(x))) for part in self.parts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return results[0] + results[1]

    net = Parallel()
    train(net, DataLoader(DATA, batch_size=4), sgd(net))
    written = recording.finish()
    assert [written.strings[mark.z] for mark in written.phases(semconv.FORWARD)] == ["Parallel"] * 3
    assert written.row_kinds() == {0: 3}
    assert "thread-1" not in written.strings


def test_checkpoints_once_each_with_their_size(recording: Recording, tmp_path: Path) -> None:
    net = Net()
    optimizer = sgd(net)
    path = tmp_path / "model.pt"
    torch.save(net.state_dict(), path)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    torch.load(path)
    torch.load(f=str(path))
    buffer.seek(0)
    torch.load(buffer)
    assert optimizer is not None
    written = recording.finish()
    saves, loads = written.phases(semconv.CHECKPOINT_SAVE), written.phases(semconv.CHECKPOINT_LOAD)
    size = path.stat().st_size
    assert [mark.y for mark in saves] == [size, len(buffer.getvalue())]
    assert [mark.y for mark in loads] == [size, size, 0]


def test_a_checkpoint_loaded_before_anything_else_is_there(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"x": torch.zeros(2)}, path)
    torch.load(path)
    assert session.recorder is None  # saving and loading alone make no run
    net = Net()
    train(net, DataLoader(DATA), sgd(net))
    written = recording.finish()
    assert len(written.phases(semconv.CHECKPOINT_SAVE)) == 1
    assert len(written.phases(semconv.CHECKPOINT_LOAD)) == 1


def test_errors_of_the_user_pass_unchanged(recording: Recording) -> None:
    class Broken(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            raise LookupError("row 7 is missing")

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("too large")

    with pytest.raises(LookupError, match="row 7 is missing"):
        next(iter(DataLoader(Broken())))
    with pytest.raises(LookupError, match="row 7 is missing") as failure:
        next(iter(DataLoader(Broken(), num_workers=1)))
    assert "grademl" not in str(failure.value)  # the worker's traceback, as text
    with pytest.raises(ArithmeticError, match="too large"):
        Fails()(torch.zeros(1))
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.zeros(1).backward()
    assert recording.finish().running == []


# --- What is left as it was ------------------------------------------------------------------------------


def _patched() -> dict[str, Any]:
    optimizers = sys.modules["torch.optim.optimizer"]
    return {
        "call": nn.Module.__dict__["__call__"],
        "backward": torch.autograd.__dict__["backward"],
        "init": torch.optim.Optimizer.__dict__["__init__"],
        "scaler": torch.amp.GradScaler.__dict__["step"],
        "iter": DataLoader.__dict__["__iter__"],
        "wait": _MultiProcessingDataLoaderIter.__dict__["_next_data"],
        "inline wait": _SingleProcessDataLoaderIter.__dict__["_next_data"],
        "receive": _MultiProcessingDataLoaderIter.__dict__["_try_get_data"],
        "worker": torch_worker.__dict__["_worker_loop"],
        "save": torch.__dict__["save"],
        "serialization.save": torch.serialization.__dict__["save"],
        "load": torch.__dict__["load"],
        "auto_collation": _BaseDatasetFetcher.__dict__.get("auto_collation"),
        "collate_fn": _BaseDatasetFetcher.__dict__.get("collate_fn"),
        "before": len(optimizers._global_optimizer_pre_hooks),
        "after": len(optimizers._global_optimizer_post_hooks),
    }


def test_uninstrument_gives_back_the_identical_objects() -> None:
    before = _patched()
    grademl_otel.instrument()
    during = _patched()
    grademl_otel.uninstrument()
    after = _patched()
    assert all(during[name] is not before[name] for name in before)
    assert all(after[name] is before[name] for name in before)


def test_iterators_made_while_instrumented_go_on_afterwards(recording: Recording) -> None:
    batches = iter(DataLoader(DATA, batch_size=4))
    working = iter(DataLoader(DATA, batch_size=4, num_workers=1))
    next(batches)
    next(working)
    TorchInstrumentor().uninstrument()
    assert len(list(batches)) == 2
    assert len(list(working)) == 2


def test_wrappers_look_like_what_they_wrap(recording: Recording) -> None:
    assert torch.save.__name__ == "save"
    assert inspect.signature(torch.load).parameters.keys() >= {"f", "map_location"}
    assert torch.autograd.backward.__doc__


def test_modules_optimizers_and_loaders_copy_and_pickle(recording: Recording) -> None:
    net = Net()
    optimizer = sgd(net)
    loader = DataLoader(DATA, batch_size=4)
    train(net, loader, optimizer)
    for thing in (net, optimizer, loader):
        assert b"grademl" not in pickle.dumps(thing)
        copy.deepcopy(thing)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    assert b"grademl_otel" not in buffer.getvalue()


def test_a_timed_index_is_an_int_and_survives_pickling() -> None:
    index = TimedIndex(7, worker=1, got=10, collate=20, done=30)
    again = pickle.loads(pickle.dumps(index))
    assert type(again) is TimedIndex
    assert again == 7
    assert (again.worker, again.got, again.collate, again.done) == (1, 10, 20, 30)


def test_times_that_nobody_asks_for_do_not_pile_up() -> None:
    class Iterator:
        pass

    iterator: Any = Iterator()
    iterator._grademl_stamp = stamp = SimpleNamespace(records={}, last=-1)
    numbers = count()

    def receive(self: Any) -> Any:
        return True, (TimedIndex(next(numbers), worker=1, got=10, collate=20, done=30), "batch")

    wrapped = wrap_receive(receive)
    for number in range(3 * MOST_HELD):
        assert wrapped(iterator) == (True, (number, "batch"))
    assert 0 < len(stamp.records) <= MOST_HELD


def test_a_worker_loop_of_another_shape_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_loop(kind: int, queues: list[Any]) -> None: ...

    monkeypatch.setattr(torch_worker, "_worker_loop", other_loop)
    call = nn.Module.__call__
    grademl_otel.instrument()
    try:
        assert torch_worker._worker_loop is other_loop
        assert nn.Module.__call__ is not call  # the other hooks are in place
    finally:
        grademl_otel.uninstrument()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "worker" in lines[0]


def test_a_hook_that_breaks_inside_never_reaches_the_user(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    optimizer = sgd(net)
    recorder = session.recorder
    assert recorder is not None
    machine = recorder.here()

    def broken(*_: Any) -> Any:
        raise RuntimeError("ours")

    for name in ("begin_forward", "end_forward", "begin_wait", "end_wait", "end_backward", "stepped"):
        monkeypatch.setattr(machine, name, broken)
    for _ in range(4):
        train(net, DataLoader(DATA, batch_size=4), optimizer)
    err = capsys.readouterr().err
    assert err.count("forward is not recorded") == 1
    assert "RuntimeError: ours" in err


def test_compiling_a_module_makes_one_graph(recording: Recording) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    net = Net()
    optimizer = sgd(net)
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    train(compiled, DataLoader(DATA, batch_size=4), optimizer)
    written = recording.finish()
    assert len(graphs) == 1
    forwards = written.phases(semconv.FORWARD)
    assert [written.strings[mark.z] for mark in forwards] == ["Net"] * 3
    assert written.row_kinds() == {0: 3}


def test_the_stand_in_is_found_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(our_worker.timed_loop)) is our_worker.timed_loop


def test_a_loop_that_goes_on_after_its_run_is_counted_in_the_next(recording: Recording) -> None:
    net = Net()
    optimizer, loader = sgd(net), DataLoader(DATA, batch_size=4)
    for number, (x, _) in enumerate(loader):
        if number == 1:
            first = recording.finish()
            recording.writer = ListWriter()
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    second = recording.finish()
    steps = [[mark.x for mark in written.rows] for written in (first, second)]
    assert steps == [[0], list(range(len(loader) - 1))]
    # The wait for the batch in hand belongs to the first run, those for the others to the second.
    assert len(second.phases(semconv.DATA_WAIT)) == len(loader) - 2
    assert second.passes() == [semconv.EPOCH]
