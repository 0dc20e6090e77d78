# SPDX-License-Identifier: Apache-2.0
"""The oldest OpenTelemetry that pyproject.toml lets in, in front of the environment's own, the newest."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from grademl_otel import semconv
from tests.support import training
from tests.support.otlp_server import http_receiver
from tests.support.overlays import overlay

_OTLP = tuple(f"exporter-otlp{end}" for end in ("", "-proto-common", "-proto-grpc", "-proto-http"))
OF_THE_SDK = ("api", "sdk", "proto", *_OTLP)
OF_THE_INSTRUMENTATIONS = ("instrumentation", "distro", "semantic-conventions")
UNITS = (
    *("core/test_context", "core/test_neighbours", "core/test_hooks", "core/test_inprocess"),
    *("core/test_otlp", "instrumentations/test_gpu_instrumentor"),
)
SHAPES = training.ROOT / "tests" / "support" / "step_shapes.py"
PROGRAM = """
import runpy, sys
from opentelemetry.instrumentation.version import __version__ as instrumentation
from opentelemetry.sdk.version import __version__ as sdk
print("versions", sdk, instrumentation, file=sys.stderr)
sys.argv = ["step_shapes.py", "train_eval"]
runpy.run_path(%r, run_name="__main__")
"""


def least(distribution: str) -> str:
    """The lowest version of ``distribution`` that ours asks for."""
    for text in requires("grademl-otel") or ():
        requirement = Requirement(text)
        if requirement.name == distribution:
            (version,) = (each.version for each in requirement.specifier if each.operator == ">=")
            return version
    raise AssertionError(f"{distribution} is no dependency")


@pytest.fixture(scope="module")
def oldest() -> str:
    wanted = [f"opentelemetry-{name}=={least('opentelemetry-sdk')}" for name in OF_THE_SDK]
    release = least("opentelemetry-instrumentation")
    wanted += [f"opentelemetry-{name}=={release}" for name in OF_THE_INSTRUMENTATIONS]
    return overlay(*wanted, dependencies=False)


def test_what_touches_opentelemetry_passes_its_tests_with_the_oldest(oldest: str, tmp_path: Path) -> None:
    files = [str(training.ROOT / "tests" / f"{name}.py") for name in UNITS]
    environ = training.clean_environ(tmp_path, {"PYTHONPATH": oldest})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        cwd=training.ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=training.TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_training_is_recorded_with_the_oldest(oldest: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM % str(SHAPES))
    versions = f"versions {least('opentelemetry-sdk')}"
    with http_receiver() as receiver:
        settings = {
            "PYTHONPATH": oldest,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_LOGS_EXPORTER": "none",
        }
        relayed = training.train(script, [], tmp_path, settings).ok()
    assert versions in relayed.err
    (run,) = [span for span in receiver.spans if span.name == semconv.RUN]
    counts = {each.key: each.value.int_value for each in run.attributes}
    assert (counts[semconv.STEPS_TOTAL], counts[semconv.EVAL_STEPS_TOTAL]) == (16, 8)
    assert semconv.STEP in receiver.span_names

    console = {"PYTHONPATH": oldest, "OTEL_TRACES_EXPORTER": "console"}
    in_process = training.train(script, [], tmp_path, console).ok()
    assert versions in in_process.err
    decoder, spans, rest = json.JSONDecoder(), [], in_process.out.strip()
    while rest:
        span, end = decoder.raw_decode(rest)
        spans.append(span)
        rest = rest[end:].lstrip()
    (run_attributes,) = [span["attributes"] for span in spans if span["name"] == semconv.RUN]
    assert (run_attributes[semconv.STEPS_TOTAL], run_attributes[semconv.EVAL_STEPS_TOTAL]) == (16, 8)
    assert semconv.STEP in {span["name"] for span in spans}
