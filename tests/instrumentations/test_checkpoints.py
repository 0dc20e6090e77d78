# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of all formats: one span each, with its size and its error; and those that are written in the
background.
"""

from __future__ import annotations

import gc
import io
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from grademl_otel import marks, semconv
from grademl_otel.instrumentations.torch import TorchInstrumentor
from grademl_otel.lifecycle import session
from tests.instrumentations.conftest import Recording
from tests.support.listwriter import ListWriter, Mark

dcp = pytest.importorskip("torch.distributed.checkpoint")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.filterwarnings("ignore")  # that there is no process group, and old names

STATE = {"weight": torch.arange(600.0), "step": torch.tensor(3)}


def state() -> dict[str, Any]:
    return {name: value.clone() for name, value in STATE.items()}


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@pytest.fixture
def training(recording: Recording) -> Recording:
    """A run that has made a step."""
    net = nn.Linear(4, 2)
    step(net, torch.optim.SGD(net.parameters(), 0.1))
    return recording


def details(written: ListWriter, name: str) -> list[str]:
    return [written.strings[mark.z] for mark in written.phases(name)]


# --- Which calls are checkpoints -------------------------------------------------------------------------


def test_a_file_of_torch(training: Recording, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(STATE, path)
    torch.load(path)
    written = training.finish()
    assert details(written, semconv.CHECKPOINT_SAVE) == ["torch"]
    assert details(written, semconv.CHECKPOINT_LOAD) == ["torch"]
    size = path.stat().st_size
    assert [mark.y for mark in written.phases(semconv.CHECKPOINT_SAVE)] == [size]
    assert all(mark.x == -1 for mark in written.phases(semconv.CHECKPOINT_SAVE))


def test_safetensors_in_files_and_in_bytes(training: Recording, tmp_path: Path) -> None:
    path, model = tmp_path / "state.safetensors", tmp_path / "model.safetensors"
    net = nn.Linear(3, 3)
    safetensors.save_file(state(), path)
    loaded = safetensors.load_file(filename=str(path))
    safetensors.save_model(net, filename=str(model))
    safetensors.load_model(net, str(model))
    data = safetensors.save(state())
    again = safetensors.load(data)
    assert all(torch.equal(loaded[name], again[name]) for name in STATE)
    written = training.finish()
    sizes = [path.stat().st_size, model.stat().st_size, len(data)]
    for name in (semconv.CHECKPOINT_SAVE, semconv.CHECKPOINT_LOAD):
        assert details(written, name) == ["safetensors"] * 3
        assert [mark.y for mark in written.phases(name)] == sizes


def test_a_folder_that_is_written_by_one_process(training: Recording, tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path / "checkpoint")
    loaded = {name: torch.zeros_like(value) for name, value in STATE.items()}
    dcp.load(loaded, checkpoint_id=str(tmp_path / "checkpoint"))
    assert all(torch.equal(loaded[name], STATE[name]) for name in STATE)
    written = training.finish()
    (save,), (load,) = written.phases(semconv.CHECKPOINT_SAVE), written.phases(semconv.CHECKPOINT_LOAD)
    assert details(written, semconv.CHECKPOINT_SAVE) == details(written, semconv.CHECKPOINT_LOAD)
    assert details(written, semconv.CHECKPOINT_SAVE) == ["distributed"]
    assert save.y == sum(path.stat().st_size for path in (tmp_path / "checkpoint").glob("*.distcp"))
    assert load.y == 0


def test_writers_in_threads_are_part_of_their_checkpoint(training: Recording, tmp_path: Path) -> None:
    """What `torch.save` writes there, torch.distributed.checkpoint asked for."""
    writer = dcp.FileSystemWriter(tmp_path / "checkpoint", thread_count=3)
    dcp.save({**state(), "text": "an object", "other": [1, 2]}, storage_writer=writer)
    written = training.finish()
    assert details(written, semconv.CHECKPOINT_SAVE) == ["distributed"]
    assert "thread-1" not in written.strings


def test_the_former_names_of_the_distributed_functions(training: Recording, tmp_path: Path) -> None:
    if not hasattr(dcp, "save_state_dict"):
        pytest.skip("this torch has no save_state_dict any more")
    dcp.save_state_dict(state(), dcp.FileSystemWriter(tmp_path), no_dist=True)
    dcp.load_state_dict(state(), dcp.FileSystemReader(tmp_path), no_dist=True)
    written = training.finish()
    assert details(written, semconv.CHECKPOINT_SAVE) == ["distributed"]
    assert details(written, semconv.CHECKPOINT_LOAD) == ["distributed"]
    assert written.phases(semconv.CHECKPOINT_SAVE)[0].y > 0


def test_many_files_of_one_model_stand_beside_each_other(training: Recording, tmp_path: Path) -> None:
    for shard in range(40):
        safetensors.save_file(state(), tmp_path / f"model-{shard:05}.safetensors")
    saves = training.finish().phases(semconv.CHECKPOINT_SAVE)
    assert len(saves) == 40
    assert all(before.t1 <= after.t0 for before, after in pairwise(saves))


@pytest.mark.parametrize("library", ["torch", "safetensors"])
def test_what_fails_says_with_which_error(library: str, training: Recording, tmp_path: Path) -> None:
    path = tmp_path / "no such folder" / "model"
    save = torch.save if library == "torch" else safetensors.save_file
    with pytest.raises(Exception, match=r"no such folder|No such file") as failure:
        save(state(), path)
    written = training.finish()
    assert details(written, semconv.CHECKPOINT_SAVE) == [f"{library}:{type(failure.value).__name__}"]
    assert [mark.y for mark in written.phases(semconv.CHECKPOINT_SAVE)] == [0]
    assert written.running == []
    if sys.version_info >= (3, 11):
        assert not any(
            "instrumentations" in str(each.path) and "torch" in each.path.name for each in failure.traceback
        )


def test_a_distributed_one_that_fails(training: Recording, tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path)
    with pytest.raises(BaseException, match=r"nothing of the kind|Missing key|CheckpointException"):
        dcp.load({"nothing of the kind": torch.zeros(2)}, checkpoint_id=tmp_path)
    written = training.finish()
    (detail,) = details(written, semconv.CHECKPOINT_LOAD)
    assert detail.startswith("distributed:")
    assert written.running == []


def test_a_dataset_that_keeps_its_samples_so_saves_no_checkpoint(
    recording: Recording, tmp_path: Path
) -> None:
    safetensors.save_file(state(), tmp_path / "sample")

    class Samples(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> torch.Tensor:
            return safetensors.load_file(tmp_path / "sample")["weight"][:4]

    net = nn.Linear(4, 2)
    for batch in DataLoader(Samples(), batch_size=2):
        net(batch)
    assert recording.finish().phases(semconv.CHECKPOINT_LOAD) == []


def test_what_is_loaded_before_anything_else_is_part_of_the_run(recording: Recording, tmp_path: Path) -> None:
    safetensors.save_file(state(), tmp_path / "start")
    safetensors.load_file(tmp_path / "start")
    assert session.recorder is None
    net = nn.Linear(4, 2)
    step(net, torch.optim.SGD(net.parameters(), 0.1))
    written = recording.finish()
    assert details(written, semconv.CHECKPOINT_LOAD) == ["safetensors"]


def test_a_save_in_the_loop_belongs_to_its_step(recording: Recording, tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, (inputs,) in enumerate(DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2)):
        net(inputs).sum().backward()
        optimizer.step()
        if number == 1:
            dcp.save(state(), checkpoint_id=tmp_path)
    written = recording.finish()
    (save,) = written.phases(semconv.CHECKPOINT_SAVE)
    assert save.row == written.rows[1].row


# --- In the background -----------------------------------------------------------------------------------


class Held(dcp.FileSystemWriter if hasattr(dcp, "FileSystemWriter") else object):  # type: ignore[misc]
    """A writer that waits until it may write, and fails if it is to."""

    def __init__(self, path: Path, fails: bool = False) -> None:
        super().__init__(path)
        self.begun, self.may_write = threading.Event(), threading.Event()
        self.fails = fails

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        self.begun.set()
        assert self.may_write.wait(60)
        if self.fails:
            raise OSError("the disk is gone")
        return super().write_data(*args, **kwargs)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one: older versions save in the background only with one."""
    file = tmp_path / "rendezvous"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def scopes(written: ListWriter) -> list[tuple[Mark, Mark | None, dict[str, int]]]:
    """Opening, closing and values of the background parts."""
    index = marks.SCOPE_INDEX[semconv.CHECKPOINT_SAVE]
    closed = {mark.row: mark for mark in written.of_kind(marks.SCOPE_CLOSE)}
    return [
        (mark, closed.get(mark.row), written.scope_values(mark.row))
        for mark in written.of_kind(marks.SCOPE_OPEN)
        if mark.y == index
    ]


def finished(future: Future[Any]) -> Any:
    """The result of a future whose callbacks have run as well."""
    try:
        return future.result(60)
    finally:
        for thread in threading.enumerate():
            if thread.name.startswith(("ThreadPoolExecutor", "AsyncCheckpoint")):
                thread.join(60)


def test_the_training_goes_on_while_a_state_is_written(
    group: None, training: Recording, tmp_path: Path
) -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    writer = Held(tmp_path / "checkpoint")
    future = dcp.async_save(state(), storage_writer=writer)
    assert writer.begun.wait(60)
    for _ in range(3):
        step(net, optimizer)
    writer.may_write.set()
    finished(future)
    written = training.finish()
    (blocking,) = written.phases(semconv.CHECKPOINT_SAVE)
    ((begin, end, values),) = scopes(written)
    assert end is not None
    assert begin.z == blocking.x >= 0
    assert written.strings[begin.lane] == written.strings[end.lane] == "checkpoint"
    assert begin.t0 <= blocking.t1 + 1_000_000_000
    during = [row for row in written.rows if begin.t0 <= row.t0 and row.t1 <= end.t0]
    assert len(during) >= 2  # the last one ends with the run
    assert blocking.t1 <= during[0].t0
    assert (end.x, end.z) == (0, 0)
    assert values[semconv.CHECKPOINT_COMPLETED] == 1
    assert values[semconv.BYTES] == sum(
        path.stat().st_size for path in (tmp_path / "checkpoint").glob("*.distcp")
    )
    # No row and no total has the time that nobody waited for.
    index = semconv.PHASE_INDEX[semconv.CHECKPOINT_SAVE]
    assert written.totals[marks.ACC_PHASE_COUNT + index] == 1
    assert written.totals[marks.ACC_PHASE_SUM_NS + index] == blocking.t1 - blocking.t0


def test_two_that_are_written_at_once_have_lanes_of_their_own(
    group: None, training: Recording, tmp_path: Path
) -> None:
    writers = [Held(tmp_path / name) for name in ("first", "second")]
    futures = []
    for writer in writers:
        futures.append(dcp.async_save(state(), storage_writer=writer))
        assert writer.begun.wait(60)
    for writer in writers:
        writer.may_write.set()
    for future in futures:
        finished(future)
    writer = Held(tmp_path / "third")
    writer.may_write.set()
    finished(dcp.async_save(state(), storage_writer=writer))
    written = training.finish()
    found = scopes(written)
    assert [written.strings[begin.lane] for begin, _, _ in found] == [
        "checkpoint", "checkpoint-1", "checkpoint",
    ]  # fmt: skip
    assert [mark.x for mark in written.phases(semconv.CHECKPOINT_SAVE)] == [0, 1, 2]
    assert [begin.z for begin, _, _ in found] == [0, 1, 2]


def test_one_that_fails_in_the_background(group: None, training: Recording, tmp_path: Path) -> None:
    writer = Held(tmp_path / "checkpoint", fails=True)
    writer.may_write.set()
    future = dcp.async_save(state(), storage_writer=writer)
    with pytest.raises(BaseException, match="the disk is gone") as failure:
        finished(future)
    written = training.finish()
    assert details(written, semconv.CHECKPOINT_SAVE) == ["distributed"]
    ((_, end, values),) = scopes(written)
    assert end is not None
    assert end.x == 1
    assert written.strings[end.z] == type(failure.value).__name__
    assert values[semconv.CHECKPOINT_COMPLETED] == 0


def test_one_whose_run_ends_before_it(group: None, training: Recording, tmp_path: Path) -> None:
    writer = Held(tmp_path / "checkpoint")
    future = dcp.async_save(state(), storage_writer=writer)
    assert writer.begun.wait(60)
    written = training.finish()
    many = len(written.marks)
    writer.may_write.set()
    finished(future)
    ((_, end, _),) = scopes(written)
    assert end is None  # the relay closes it, as one that was not completed
    assert len(written.marks) == many


def test_one_that_raises_before_anything_is_in_the_background(
    group: None, training: Recording, tmp_path: Path
) -> None:
    class Fails:
        def state_dict(self) -> dict[str, Any]:
            raise ArithmeticError("no state")

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    with pytest.raises(ArithmeticError, match="no state"):
        dcp.async_save({"model": Fails()}, checkpoint_id=tmp_path)
    written = training.finish()
    assert details(written, semconv.CHECKPOINT_SAVE) == ["distributed:ArithmeticError"]
    assert written.phases(semconv.CHECKPOINT_SAVE)[0].x == -1
    assert scopes(written) == []


def test_nothing_of_the_state_is_kept_alive(group: None, training: Recording, tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner()
    future = dcp.async_save(state(), storage_writer=dcp.FileSystemWriter(tmp_path), planner=planner)
    finished(future)
    del planner
    gc.collect()
    ours = [each for each in gc.get_objects() if type(each).__name__ == "_Request"]
    assert all(not request.same for request in ours)


def test_a_response_with_two_futures_ends_with_the_upload(
    training: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `async_save` returns where the stager copies in the background."""
    from grademl_otel.instrumentations.torch import distributed_checkpoint
    from grademl_otel.instrumentations.torch.checkpointing import outermost

    staged: Future[None] = Future()
    uploaded: Future[None] = Future()
    calls = distributed_checkpoint._AsyncSave("async_save", distributed_checkpoint._Background())
    save = outermost(
        lambda **_: SimpleNamespace(staging_completion=staged, upload_completion=uploaded), calls
    )
    save(checkpoint_id="nowhere")
    staged.set_result(None)
    assert scopes(training.writer)[0][1] is None
    uploaded.set_result(None)
    assert scopes(training.writer)[0][1] is not None
    training.finish()


# --- What is left as it was ------------------------------------------------------------------------------


def _functions() -> dict[tuple[str, str], Any]:
    import torch.distributed.checkpoint.state_dict_loader as loader
    import torch.distributed.checkpoint.state_dict_saver as saver

    owners: tuple[ModuleType, ...] = (torch, torch.serialization, dcp, loader, saver, safetensors)
    names = (
        *("save", "load", "async_save", "save_state_dict", "load_state_dict"),
        *("save_file", "load_file", "save_model", "load_model"),
    )
    return {
        (owner.__name__, name): vars(owner)[name] for owner in owners for name in names if name in vars(owner)
    }


def test_all_of_it_is_given_back(recording: Recording) -> None:
    hooked = _functions()
    TorchInstrumentor().uninstrument()
    given_back = _functions()
    assert hooked.keys() == given_back.keys()
    for key, function in given_back.items():
        assert hooked[key] is not function, key
        assert hooked[key].__wrapped__ is function, key
    TorchInstrumentor().instrument(skip_dep_check=True)
    assert all(function is not given_back[key] for key, function in _functions().items())


def test_copies_from_before_the_hooks_are_hooked(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TorchInstrumentor().uninstrument()
    script = ModuleType("a_script_of_before")
    script.keep, script.write = safetensors.save_file, dcp.save  # type: ignore[attr-defined]
    before = script.keep, script.write
    monkeypatch.setitem(sys.modules, script.__name__, script)
    TorchInstrumentor().instrument(skip_dep_check=True)
    net = nn.Linear(4, 2)
    step(net, torch.optim.SGD(net.parameters(), 0.1))
    script.keep(state(), tmp_path / "one")
    script.write(state(), checkpoint_id=tmp_path / "two")
    TorchInstrumentor().uninstrument()
    assert (script.keep, script.write) == before
    assert details(recording.writer, semconv.CHECKPOINT_SAVE) == ["safetensors", "distributed"]


def test_warnings_name_the_line_that_they_name_without_us(recording: Recording, tmp_path: Path) -> None:
    def warned(folder: str) -> list[tuple[str, str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dcp.save(state(), checkpoint_id=tmp_path / folder)
            torch.save(STATE, io.BytesIO())
        return [(str(each.message), each.filename, each.lineno) for each in caught]

    ours = warned("ours")
    TorchInstrumentor().uninstrument()
    assert ours == warned("theirs") != []
