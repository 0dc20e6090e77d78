# SPDX-License-Identifier: Apache-2.0
"""By which names a rank says which GPUs it uses; what is not certain is left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from grademl_otel import marks, semconv
from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch import cuda as cuda_hooks
from grademl_otel.instrumentations.torch.gpuids import gpu_ids
from grademl_otel.lifecycle import session

from ..support.fakecuda import FakeCuda
from ..support.step_shapes import X, Y, net, sgd, update
from .conftest import Recording

A = "12345678-9abc-def0-1234-56789abcdef0"
B = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


def device(uuid: str | None, name: str = "NVIDIA H100 80GB HBM3") -> SimpleNamespace:
    return SimpleNamespace(name=name) if uuid is None else SimpleNamespace(name=name, uuid=uuid)


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        ([device(A), device(B)], None, [f"GPU-{A}", f"GPU-{B}"]),
        ([device(A.upper())], "3", [f"GPU-{A}"]),
        ([device(f"GPU-{A}")], None, [f"GPU-{A}"]),
        ([device(A)], f"GPU-{B}", [f"GPU-{A}"]),  # changed since CUDA read it
        ([device(None)], f"GPU-{A}", [f"GPU-{A}"]),  # a torch that knows none
        ([device(None), device(None)], f" GPU-{A} , GPU-{B}", [f"GPU-{A}", f"GPU-{B}"]),
        ([device(None)], "GPU-1234", []),  # the beginning of one
        ([device(None)], "0", []),
        ([device(None)], None, []),
        ([device(A, "NVIDIA A100 MIG 1g.5gb")], f"MIG-{B}", [f"MIG-{B}"]),
        ([device(A, "NVIDIA A100 MIG 1g.5gb")], f"MIG-GPU-{B}/7/0", [f"MIG-GPU-{B}/7/0"]),
        ([device(A, "NVIDIA A100 MIG 1g.5gb")], "0", []),
        ([device(A), device(A)], None, [f"GPU-{A}"]),
        ([device("no uuid")], ",,\0", []),
    ],
)
def test_names(devices: list[SimpleNamespace], visible: str | None, expected: list[str]) -> None:
    cuda = SimpleNamespace(get_device_properties=devices.__getitem__)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_ids(cuda, range(len(devices)), environ) == expected


@pytest.fixture
def cuda(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    simulated = FakeCuda(clock=time.perf_counter_ns, devices=2, uuids={0: A, 1: B})
    patches = Patches()
    cuda_hooks.follow(patches, simulated, every=0)
    yield simulated
    session.end()
    patches.restore()


def said(recording: Recording) -> list[str]:
    writer = recording.writer
    return [
        writer.strings[mark.y]
        for mark in writer.marks
        if mark.kind == marks.SCOPE_TEXT and writer.strings[mark.x] == semconv.GPU_ID
    ]


def test_a_run_says_which_it_uses_once(cuda: FakeCuda, recording: Recording) -> None:
    module = net()
    optimizer = sgd(module)
    for _ in range(20):
        update(module, optimizer, X, Y)
    assert said(recording) == [f"GPU-{A}"]


def test_a_device_without_properties_costs_its_name_only(
    cuda: FakeCuda, recording: Recording, capfd: pytest.CaptureFixture[str]
) -> None:
    cuda.initialized = True
    cuda.get_device_properties = lambda device: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    module = net()
    optimizer = sgd(module)
    for _ in range(20):
        update(module, optimizer, X, Y)
    assert said(recording) == []
    assert any(mark.kind == marks.DEVICE_MEMORY for mark in recording.writer.marks)
    assert "GPUs" not in capfd.readouterr().err


def test_that_this_torch_has_what_is_asked() -> None:
    properties = getattr(torch._C, "_CudaDeviceProperties", None)
    if properties is None:
        pytest.skip("built without CUDA")
    assert hasattr(properties, "uuid")
    assert hasattr(properties, "name")
