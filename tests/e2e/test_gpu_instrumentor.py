# SPDX-License-Identifier: Apache-2.0
"""Inference servers under `opentelemetry-instrument`: their GPUs, once, and nothing that they notice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import nvml, training
from tests.support.otlp_server import Receiver, http_receiver

SERVER = Path(__file__).resolve().parents[1] / "support" / "inference_program.py"
TRAINING = SERVER.with_name("plain_training.py")
WAIT_S = 120
LOOK = """
import sys, threading
from opentelemetry import metrics
provider = metrics.get_meter_provider()
for _ in range(3):
    getattr(provider, "force_flush", lambda: None)()
    for thread in threading.enumerate():
        if thread.name == "grademl gpu":
            thread.join()
print("pynvml" in sys.modules, any(t.name.startswith("grademl") for t in threading.enumerate()))
"""
"""Collects metrics as often as it takes, and shows whether anything of NVIDIA's was loaded or started."""
AWAIT_SAMPLES = """
import time
from grademl_otel.instrumentations.gpu.instrumentor import GpuInstrumentor
observer = GpuInstrumentor()._observer
while not (observer._sampler and any(s.series.metric.name == "hw.power" for s in observer._sampler.latest())):
    time.sleep(0.02)
time.sleep(0.3)  # until an export that nobody takes is under way
print("sampled", flush=True)
"""


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[nvml.Control]:
    control = nvml.Control(tmp_path, "a100", count=2)
    yield control
    control.heal()


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with http_receiver() as receiver:
        yield receiver


def settings(control: nvml.Control, port: int) -> dict[str, str]:
    """Metrics five times a second, over HTTP to ``port``; rings, elections in a folder of the test's own."""
    return {
        **control.environment(),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_LOGS_EXPORTER": "none",
        "GRADEML_GPU_INTERVAL": "0.1",
        "GRADEML_HOST_INTERVAL": "0",
        "GRADEML_RING_DIR": str(control.path.parent),
    }


def instrumented(*command: str) -> list[str]:
    return [str(training.BIN / "opentelemetry-instrument"), sys.executable, *command]


@contextmanager
def serving(folder: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        instrumented(str(SERVER)),
        cwd=folder,
        env=training.clean_environ(folder, environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def training_on(folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """A training that goes on until the block ends, and must end well then; it is killed if it does not."""
    process = subprocess.Popen(
        instrumented(str(TRAINING), "10", "wait", str(folder / "steps")),
        cwd=folder,
        env=training.clean_environ(folder, environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
        (folder / "steps.stop").touch()
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
    finally:
        process.kill()
        process.communicate()


def asked(process: subprocess.Popen[str]) -> Any:
    """The server's answer to a request, its first."""
    assert process.stdout is not None
    url = f"http://127.0.0.1:{int(process.stdout.readline())}"
    body = json.dumps({"inputs": [1.0, 2.0, 3.0]}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=WAIT_S) as answer:
        return json.load(answer)


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := true()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
    return found


def points(receiver: Receiver, since: int = 0) -> list[tuple[str, str, str, int | float]]:
    """Service, metric, GPU and value of each point of hardware that has arrived, in order."""
    return [
        (service_of(resource), metric.name, gpu, point.as_int or point.as_double)
        for request in receiver.metrics[since:]
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in (*metric.gauge.data_points, *metric.sum.data_points)
        if (gpu := next((a.value.string_value for a in point.attributes if a.key == "hw.id"), ""))
    ]


def service_of(resource: Any) -> str:
    return next((a.value.string_value for a in resource.resource.attributes if a.key == "service.name"), "")


def tellers(receiver: Receiver, since: int = 0) -> set[str]:
    return {service for service, *_ in points(receiver, since)}


def test_a_server_tells_of_its_gpus(gpus: nvml.Control, collector: Receiver, tmp_path: Path) -> None:
    gpus.set("temperature.0", 77, gpu=1)
    with serving(tmp_path, {**settings(gpus, collector.port), "OTEL_SERVICE_NAME": "llm"}) as server:
        assert asked(server) == {"outputs": [4.5, 0.0]}
        wanted = {
            ("llm", "hw.temperature", gpus.ids[0], 61),
            ("llm", "hw.temperature", gpus.ids[1], 77),
            ("llm", "hw.power", gpus.ids[0], 351.25),
            ("llm", "hw.gpu.utilization", gpus.ids[0], 0.97),
            ("llm", "hw.gpu.memory.usage", gpus.ids[1], 42949672960),
            ("llm", "hw.energy", gpus.ids[0], 3512.5),
        }
        until(lambda: ("hw.energy", gpus.ids[0]) in {each[1:3] for each in points(collector)})
        gpus.advance(10)
        until(lambda: wanted <= set(points(collector)))
        units = {
            metric.name: metric.unit
            for request in collector.metrics
            for scope in request.resource_metrics[0].scope_metrics
            for metric in scope.metrics
        }
        assert (units["hw.power"], units["hw.energy"], units["hw.gpu.memory.usage"]) == ("W", "J", "By")
        assert "grademl.sampler.cost" in units
        _, err = server.communicate("", timeout=WAIT_S)
    assert (server.returncode, err) == (0, "")


def test_of_several_workers_one_tells_and_another_takes_over(
    gpus: nvml.Control, collector: Receiver, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        environ = settings(gpus, collector.port)
        workers = {
            name: stack.enter_context(serving(tmp_path, {**environ, "OTEL_SERVICE_NAME": name}))
            for name in ("w0", "w1", "w2")
        }
        for worker in workers.values():
            asked(worker)
        (first,) = until(lambda: tellers(collector))
        seen = len(collector.metrics)
        until(lambda: len(collector.metrics) > seen + 8)
        assert tellers(collector) == {first}
        workers[first].send_signal(signal.SIGKILL)
        workers[first].wait(WAIT_S)
        until(lambda: tellers(collector) - {first})
        assert len(tellers(collector)) == 2


def test_beside_a_training_the_relay_tells(gpus: nvml.Control, collector: Receiver, tmp_path: Path) -> None:
    environ = settings(gpus, collector.port)
    with serving(tmp_path, {**environ, "OTEL_SERVICE_NAME": "llm"}) as server:
        asked(server)
        until(lambda: tellers(collector) == {"llm"})
        with training_on(tmp_path, {**environ, "OTEL_SERVICE_NAME": "trainer"}):
            until(lambda: tellers(collector) - {"llm"})
            # In an export or two the server has seen the relay; from then on its exports tell of no GPU.
            seen = [0]

            def only_the_relay() -> bool:
                told = tellers(collector, seen[0])
                if "llm" in told:
                    seen[0] = len(collector.metrics)
                    return False
                return bool(told) and len(collector.metrics) > seen[0] + 6

            until(only_the_relay)
            assert len(tellers(collector, seen[0])) == 1


def test_a_training_without_a_relay_tells_by_itself(
    gpus: nvml.Control, collector: Receiver, tmp_path: Path
) -> None:
    """Where spans are converted in the training process no relay is there to sample."""
    environ = {**settings(gpus, collector.port), "OTEL_SERVICE_NAME": "trainer", "GRADEML_IN_PROCESS": "1"}
    with training_on(tmp_path, environ):
        until(lambda: {gpu for _, name, gpu, _ in points(collector) if name == "hw.power"} == set(gpus.ids))
        assert tellers(collector) == {"trainer"}


def test_a_short_program_loads_nothing(gpus: nvml.Control, collector: Receiver, tmp_path: Path) -> None:
    environ = {**settings(gpus, collector.port), "PYTHONPROFILEIMPORTTIME": "1"}
    del environ["OTEL_METRIC_EXPORT_INTERVAL"]
    done = training.run(instrumented("-c", "pass"), tmp_path, training.clean_environ(tmp_path, environ)).ok()
    assert "grademl_otel.instrumentations.gpu.observer" in done.err
    assert "pynvml" not in done.err
    assert "grademl_otel.sampling" not in done.err
    assert (points(collector), list(tmp_path.glob("grademl-*"))) == ([], [])


def test_settings_that_forbid_it_and_a_reader_that_asks(
    gpus: nvml.Control, collector: Receiver, tmp_path: Path
) -> None:
    forbidding: Sequence[dict[str, str]] = (
        {"GRADEML_GPU_INTERVAL": "0"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "grademl_gpu"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"},
        {"OTEL_METRICS_EXPORTER": "none"},
        {"OTEL_SDK_DISABLED": "true"},
        {"GRADEML_RELAY": "1"},
    )
    shown = []
    for each in ({}, *forbidding):
        environ = training.clean_environ(tmp_path, {**settings(gpus, collector.port), **each})
        shown.append(training.run(instrumented("-c", LOOK), tmp_path, environ).ok().out)
    assert shown[0].endswith(" True\n"), "allowed, it does start"
    assert shown[1:] == ["False False\n"] * len(forbidding)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("answer", ["refuses", "is silent"])
def test_the_end_of_a_program_waits_for_no_collector(
    gpus: nvml.Control, tmp_path: Path, protocol: str, answer: str
) -> None:
    """With a collector that does not answer, whatever there is to send would keep the program for 30 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environ = {
            **settings(gpus, 9 if answer == "refuses" else silent.getsockname()[1]),
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "100",
            "OTEL_TRACES_EXPORTER": "none",
        }
        started = time.monotonic()
        done = subprocess.run(
            instrumented("-c", AWAIT_SAMPLES),
            cwd=tmp_path,
            env=training.clean_environ(tmp_path, environ),
            capture_output=True,
            text=True,
            timeout=18,
        )
    print(f"{protocol}, {answer}: {time.monotonic() - started:.1f} s")
    assert (done.returncode, done.stdout, "grademl" in done.stderr) == (0, "sampled\n", False)


def test_without_nvml_a_server_is_not_disturbed(tmp_path: Path, collector: Receiver) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "GRADEML_RING_DIR": str(tmp_path),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
    }
    done = training.run(instrumented("-c", LOOK), tmp_path, training.clean_environ(tmp_path, environ)).ok()
    assert done.err == ""
