# SPDX-License-Identifier: Apache-2.0
"""Device times through the hooks of torch, with a simulated CUDA beside a training on the CPU."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from grademl_otel import marks, semconv
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch import cuda as cuda_hooks
from grademl_otel.lifecycle import session

from ..support.fakecuda import FakeCuda
from ..support.listwriter import ListWriter, Mark
from ..support.step_shapes import X, Y, loader, net, sgd, update
from .conftest import Recording

NAMES = {marks.device_kind(name): name for name in semconv.DEVICE_PHASES}


@pytest.fixture
def cuda(recording: Recording) -> Iterator[FakeCuda]:
    """Torch trains on the CPU; what asks for streams and events finds these."""
    simulated = FakeCuda(clock=time.perf_counter_ns, allocated={0: (100, 200, 300)})
    patches = Patches()
    cuda_hooks.follow(patches, simulated, every=0)
    yield simulated
    session.end()
    patches.restore()


class Training:
    """Of one model without a loader: a step ends where the next one's forward begins."""

    def __init__(self) -> None:
        self.module = net()
        self.optimizer = sgd(self.module)

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            update(self.module, self.optimizer, X, Y)


@pytest.fixture
def train(cuda: FakeCuda) -> Training:
    return Training()


def told(writer: ListWriter) -> list[Mark]:
    return [mark for mark in writer.marks if mark.kind in NAMES]


def test_each_phase_of_each_step_but_the_first(recording: Recording, cuda: FakeCuda) -> None:
    module = net()
    optimizer = sgd(module)
    for x, y in loader():
        update(module, optimizer, x, y)
    written = recording.finish()

    steps = {mark.row: mark for mark in written.rows}
    counts = Counter((mark.row, NAMES[mark.kind]) for mark in told(written))
    first, *others = sorted(steps)
    assert counts == {(row, name): 1 for row in others for name in ("forward", "backward", "optimizer")}
    assert first not in {row for row, _ in counts}, "whether CUDA is in use is looked at after it"
    hosts = {(m.row, m.t0) for name in ("forward", "backward", "optimizer") for m in written.phases(name)}
    assert {(mark.row, mark.y) for mark in told(written)} <= hosts
    assert {written.strings[mark.lane] for mark in told(written)} == {"stream-0.0"}
    assert all(mark.y <= mark.t0 <= mark.t1 for mark in told(written))
    assert {mark.row: mark.x for mark in written.of_kind(marks.ROW_DEVICE)} == dict.fromkeys(others, 0)
    memory = written.of_kind(marks.DEVICE_MEMORY)[0]
    assert (memory.row, memory.x, memory.y, memory.z) == (1, 100, 200, 300)
    totals = written.totals[marks.ACC_PHASE_COUNT + semconv.PHASE_INDEX["forward"]]
    assert totals == len(steps), "the device adds nothing to the host's totals"


def test_rows_say_whether_more_is_to_come(recording: Recording, cuda: FakeCuda, train: Training) -> None:
    train(2)
    cuda.current_stream().held = True
    train(3)
    cuda.current_stream().held = False
    written = recording.finish()

    order = [
        (m.kind == marks.ROW, m.row, bool(marks.unpack_row(m.y)[0] & marks.DEVICE_LATER))
        for m in written.marks
        if m.kind in (marks.ROW, marks.ROW_DEVICE)
    ]
    announced = {row for is_row, row, later in order if is_row and later}
    assert len(announced) == 3
    for row in announced:
        positions = [at for at, (_, other, _) in enumerate(order) if other == row]
        assert [order[at][0] for at in positions] == [True, False], "first the row, then that all is told"


def test_until_cuda_is_initialized_nothing_is_asked(recording: Recording, cuda: FakeCuda) -> None:
    cuda.initialized = False  # the simulation raises where it would be initialized
    module = net()
    optimizer = sgd(module)
    for _ in range(3):
        update(module, optimizer, X, Y)
    assert cuda.calls == []
    assert session.recorder is not None
    assert session.recorder.device is None
    cuda.initialized = True
    session.look_around()
    for _ in range(3):
        update(module, optimizer, X, Y)
    written = recording.finish()

    assert Counter(NAMES[mark.kind] for mark in told(written))["backward"] == 3


def test_program_that_computes_on_another_device_than_the_current_one(
    recording: Recording, cuda: FakeCuda
) -> None:
    cuda.allocated = {1: (1, 2, 3)}  # the simulation raises where a context would be made on device 0
    Training()(5)
    written = recording.finish()

    assert set(cuda.calls) == {"memory_stats"}
    assert told(written) == []


def test_setting_that_forbids_it(
    recording: Recording, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADEML_DEVICE_TIME", "0")
    Training()(5)
    recording.finish()

    assert cuda.calls == []


def test_phases_that_are_not_measured_are_not_on_the_device(
    recording: Recording, cuda: FakeCuda, train: Training
) -> None:
    train(3)
    recorder = session.recorder
    assert recorder is not None
    recorder.governor.level = 2
    recorder._work_at(2, time.perf_counter_ns())
    before = len(told(recording.writer))
    calls = Counter(cuda.calls)["record"]
    module, batches = net(), loader()
    optimizer = sgd(module)
    for x, y in batches:
        update(module, optimizer, x, y)
    assert Counter(cuda.calls)["record"] - calls < 8, "a tie of the clocks now and then"
    assert len(told(recording.writer)) - before <= 3, "those of the step before"
    recorder._work_at(0, time.perf_counter_ns())
    for x, y in batches:
        update(module, optimizer, x, y)
    assert len(told(recording.writer)) - before > 15


def test_captured_steps(recording: Recording, cuda: FakeCuda, train: Training) -> None:
    train(2)
    graph = cuda.CUDAGraph()
    graph.capture_begin()
    train(2)  # the simulation raises at each call
    graph.capture_end()
    train(2)
    written = recording.finish()

    assert len(written.rows) == 6
    kinds = Counter(NAMES[mark.kind] for mark in told(written))
    assert 2 <= kinds["optimizer"] <= 4


def test_other_threads_have_their_own_edges(recording: Recording, cuda: FakeCuda, train: Training) -> None:
    train(2)
    threads = [threading.Thread(target=lambda: Training()(20)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = recording.finish()

    rows = {mark.row for mark in written.rows}
    counts = Counter((mark.row, NAMES[mark.kind]) for mark in told(written))
    assert set(counts.values()) == {1}
    assert {row for row, _ in counts} <= rows
    assert len(counts) >= 3 * 3 * 20 - 3
    told_of = Counter(mark.row for mark in written.of_kind(marks.ROW_DEVICE))
    assert set(told_of.values()) == {1}


def test_phases_that_raise(recording: Recording, cuda: FakeCuda, train: Training) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("in forward")

    train(2)
    for _ in range(100):
        with pytest.raises(ValueError, match="in forward"):
            Fails()(X)
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).sum().backward()
    train(2)
    recording.finish()

    used = {id(event) for event in cuda.events if event.records}
    assert len(used) <= len(cuda.events) <= 512


def test_device_that_fails(
    recording: Recording, cuda: FakeCuda, train: Training, capfd: pytest.CaptureFixture[str]
) -> None:
    train(3)
    cuda.failing = "query"
    train(3)
    calls = len(cuda.calls)
    train(3)
    written = recording.finish()

    assert len(written.rows) == 9
    assert len(cuda.calls) == calls
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "device" in line] == [
        "grademl: torch: device time is not recorded: CudaError: CUDA error: query failed"
    ]
    later = {m.row for m in written.rows if marks.unpack_row(m.y)[0] & marks.DEVICE_LATER}
    assert later <= {mark.row for mark in written.of_kind(marks.ROW_DEVICE)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_does_not_touch_the_device(
    recording: Recording, cuda: FakeCuda, train: Training
) -> None:
    train(3)
    calls = len(cuda.calls)
    child = os.fork()
    if child == 0:
        cuda.initialized = False  # as `torch.cuda.is_initialized` says in a forked child
        recorder = session.recorder
        os._exit(0 if recorder is None and len(cuda.calls) == calls else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_everything_is_given_back(recording: Recording) -> None:
    simulated = FakeCuda(clock=time.perf_counter_ns)
    methods, looked = dict(vars(simulated.CUDAGraph)), session.look_at_device
    patches = Patches()
    cuda_hooks.follow(patches, simulated)
    assert session.look_at_device is not looked
    patches.restore()

    assert dict(vars(simulated.CUDAGraph)) == methods
    assert session.look_at_device is looked


def test_what_is_used_of_torch_exists() -> None:
    """The simulation has no other names than the torch at hand; no GPU is needed to look."""
    for name in (
        "is_initialized", "is_current_stream_capturing", "current_device", "current_stream", "Event",
        "device_count", "memory_stats_as_nested_dict",
    ):  # fmt: skip
        assert callable(getattr(torch.cuda, name))
    assert {"capture_begin", "capture_end"} <= set(vars(torch.cuda.CUDAGraph))
    for name in ("record", "query", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))
    if hasattr(torch._C, "_cuda_getDeviceCount"):  # else this torch was built without CUDA
        assert {"device_index", "stream_id"} <= set(dir(torch.cuda.Stream))
    assert not torch.cuda.is_initialized()
