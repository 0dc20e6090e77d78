# SPDX-License-Identifier: Apache-2.0
"""`uninstrument()` leaves the process as it was: every attribute of every module that we could have touched
is the identical object again, however often.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import training

pytest.importorskip("torch")

PROGRAM = """
import gc, json, os, sys, threading
import torch
import torch.utils.data.dataloader, torch.distributed, torch.multiprocessing, torch.serialization
from torch import nn
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
trace.set_tracer_provider(provider)

import grademl_otel
from grademl_otel.instrumentations.torch import TorchInstrumentor
from grademl_otel.lifecycle import session
from tests.support.listwriter import ListTransport, ListWriter

session._open_ring = lambda *_: (ListWriter(), ListTransport())
LOOKED_AT = {"torch", "multiprocessing", "copy", "copyreg", "pickle", "threading", "opentelemetry", "sys"}


def contents(value):
    if isinstance(value, dict):
        return tuple((repr(key)[:80], id(each)) for key, each in list(value.items()))
    return tuple(map(id, value))


def snapshot():
    # Identity of all that is reachable by name: attributes of modules and classes, and what hangs in hooks.
    found = {}
    for name, module in list(sys.modules.items()):
        if module is None or name.split(".")[0] not in LOOKED_AT:
            continue
        for key, value in list(vars(module).items()):
            if key == "__warningregistry__":
                continue  # of warnings that were shown, whoever caused them
            found[f"{name}:{key}"] = id(value)
            if isinstance(value, (dict, list)) and ("hook" in key.lower() or "dispatch" in key.lower()):
                found[f"{name}:{key} holds"] = contents(value)
            if isinstance(value, type) and value.__module__ == name:
                for attribute, each in list(vars(value).items()):
                    counter = isinstance(each, int)  # torch numbers the handles of its hooks
                    if not counter and not attribute.startswith(("__abstract", "_abc_", "__annotations")):
                        found[f"{name}:{key}.{attribute}"] = id(each)
    found["processors"] = contents(provider._active_span_processor._span_processors)
    found["span"] = id(trace.get_current_span())
    found["threads"] = tuple(sorted(thread.name for thread in threading.enumerate()))
    found["descriptors"] = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return found


def train():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
        with trace.get_tracer("mine").start_as_current_span("inside"):
            pass
    torch.save(net.state_dict(), os.devnull)
    return optimizer


def differences(before, after):
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def alive():
    gc.collect()
    kinds = ("Recorder", "StepMachine", "Patches", "UserTags", "StepContexts", "StepSpan", "Neighbours")
    return {
        kind: sum(type(each).__name__ == kind and type(each).__module__.startswith("grademl_otel")
                  for each in gc.get_objects())
        for kind in kinds
    }


answer = {}
instrumentor = TorchInstrumentor()
train()  # what torch imports and makes on first use is there
grademl_otel.instrument(); train(); grademl_otel.uninstrument()  # what we import is there
before = snapshot()
answer["false before"] = instrumentor.is_instrumented_by_opentelemetry
grademl_otel.instrument()
answer["touched"] = differences(before, snapshot())
answer["true while"] = instrumentor.is_instrumented_by_opentelemetry
grademl_otel.instrument()  # twice is once
train()
answer["steps"] = session.recorder.finished_steps()
kept = train()  # an optimizer of the run that outlives it
grademl_otel.uninstrument()
answer["left"] = differences(before, snapshot())
answer["false after"] = instrumentor.is_instrumented_by_opentelemetry
grademl_otel.uninstrument()
train()
answer["no run"] = session.recorder is None
kept.step()
del kept
for number in range(50):
    grademl_otel.instrument()
    train()
    assert session.recorder.finished_steps() == 2, session.recorder.finished_steps()
    grademl_otel.uninstrument()
    if number == 4:
        few = alive()
answer["left after 50"] = differences(before, snapshot())
answer["grown"] = {kind: count - few[kind] for kind, count in alive().items() if count > few[kind]}
os.environ["OTEL_SDK_DISABLED"] = "true"
grademl_otel.instrument()
answer["disabled"] = instrumentor.is_instrumented_by_opentelemetry
answer["left when disabled"] = differences(before, snapshot())
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("uninstrument")
    script = folder / "program.py"
    script.write_text(PROGRAM)
    settings = {"GRADEML_EXPORTER": "file", "PYTHONPATH": str(training.ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=training.clean_environ(Path(folder), settings),
        capture_output=True,
        text=True,
        timeout=training.TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_everything_that_was_touched_is_the_identical_object_again(answer: dict[str, Any]) -> None:
    assert "torch.autograd:backward" in answer["touched"]
    assert "torch.nn.modules.module:Module.__call__" in answer["touched"]
    assert any(key.endswith("hooks holds") for key in answer["touched"])
    assert answer["left"] == []


def test_the_instrumentor_says_whether_it_is_at_work(answer: dict[str, Any]) -> None:
    assert not answer["false before"]
    assert answer["true while"]
    assert answer["steps"] == 2
    assert not answer["false after"]
    assert answer["no run"]
    assert not answer["disabled"]
    assert answer["left when disabled"] == []


def test_fifty_times_leave_nothing_behind(answer: dict[str, Any]) -> None:
    assert answer["left after 50"] == []
    assert answer["grown"] == {}
