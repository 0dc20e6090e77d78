# SPDX-License-Identifier: Apache-2.0
"""A fault anywhere in what the hooks call costs a line, never the user's training."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from grademl_otel import semconv  # noqa: E402
from grademl_otel.activerun import ActiveRun  # noqa: E402
from grademl_otel.instrumentations.torch import TorchInstrumentor, data  # noqa: E402
from grademl_otel.lifecycle import session  # noqa: E402
from grademl_otel.recorder import Recorder  # noqa: E402
from grademl_otel.steps import StepMachine  # noqa: E402
from tests.support.listwriter import ListTransport, ListWriter  # noqa: E402

from .conftest import Recording  # noqa: E402

FROM_THE_GARBAGE_COLLECTOR = ("release", "optimizer_gone")  # an append to a list each


def train(folder: Path) -> list[float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for _ in range(2):
        for (inputs,) in DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4):
            optimizer.zero_grad()
            loss = net(inputs).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            with trace.get_tracer("theirs").start_as_current_span("inside"):
                losses.append(loss.item())
        with torch.no_grad():
            net(inputs)
        torch.save(net.state_dict(), folder / "checkpoint.pt")
        torch.load(folder / "checkpoint.pt")
    scaler.scale(net(inputs).sum() * float("inf")).backward()
    scaler.step(optimizer)  # skipped
    return losses


@pytest.mark.parametrize("kind", [Recorder, StepMachine, ActiveRun, ListWriter, ListTransport])
def test_each_method_may_fail(
    kind: type, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(session, "_open_ring", lambda *_: (ListWriter(), ListTransport()))
    expected = train(tmp_path)
    session.end()
    for name, method in list(vars(kind).items()):
        if name.startswith("__") or name in FROM_THE_GARBAGE_COLLECTOR or not callable(method):
            continue

        def fail(*_: Any, fault: str = name, **__: Any) -> Any:
            raise RuntimeError(fault)

        TorchInstrumentor().uninstrument()
        TorchInstrumentor().instrument(skip_dep_check=True)  # a hook that has failed stays off
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(kind, name, fail)
            broken.setattr(session, "_refused", False)
            assert train(tmp_path) == expected, name
            session.end()


class Meeting(torch.autograd.Function):
    """A backward that tells that it has begun and waits until it may end."""

    @staticmethod
    def forward(context: Any, inputs: Any, began: threading.Event, may_end: threading.Event) -> Any:
        context.events = began, may_end
        return inputs * 1

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        began, may_end = context.events
        began.set()
        assert may_end.wait(20)
        return gradient, None, None


def test_backwards_of_two_threads_that_overlap_are_both_over_at_last(recording: Recording) -> None:
    def backward(events: tuple[threading.Event, threading.Event]) -> None:
        Meeting.apply(torch.ones(1, requires_grad=True), *events).sum().backward()

    events = [(threading.Event(), threading.Event()) for _ in range(2)]
    threads = [threading.Thread(target=backward, args=(pair,)) for pair in events]
    for thread, (began, _) in zip(threads, events, strict=True):
        thread.start()
        assert began.wait(20)
    recorder = session.recorder
    assert recorder is not None
    second = recorder.backward_owner
    for thread, (_, may_end) in zip(threads, events, strict=True):
        assert recorder.backward_owner is second
        assert second is not None
        assert second.in_backward
        may_end.set()
        thread.join()
    assert not second.in_backward
    recorder.finish()
    assert recorder.resting_since() is not None


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (StepMachine, "begin_wait"),
        (data, "_samples"),
        (StepMachine, "end_forward"),
        (StepMachine, "begin_backward"),
        (StepMachine, "end_backward"),
        (StepMachine, "aside"),
    ],
)
def test_an_interrupt_in_what_is_ours_leaves_nothing_half_done(
    owner: Any, name: str, recording: Recording, tmp_path: Path
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    recorder = session.recorder
    assert recorder is not None
    machine, before = recorder.here(), len(recording.writer.phases(semconv.CHECKPOINT_SAVE))
    assert not machine.waiting
    assert not machine.in_backward
    steps = recorder.finished_steps()
    train(tmp_path)
    train(tmp_path)
    assert recorder.finished_steps() - steps >= 8
    assert len(recording.writer.phases(semconv.CHECKPOINT_SAVE)) == before + 4
