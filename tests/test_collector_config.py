# SPDX-License-Identifier: Apache-2.0
"""Every pipeline of collector-config/ is accepted by a real Collector, and does what its first line says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import StartCollector
from .support import servers

CONFIGS = sorted(servers.COLLECTOR_CONFIGS.glob("*.yaml"))
README = servers.COLLECTOR_CONFIGS / "README.md"

pytestmark = pytest.mark.real


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_a_real_collector_accepts_the_file(config: Path, collector_binary: Path, tmp_path: Path) -> None:
    done = _validate(collector_binary, config, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_real_collector_refuses_a_wrong_file(collector_binary: Path, tmp_path: Path) -> None:
    """So that the test above could fail."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(CONFIGS[0].read_text().replace("memory_limiter", "memory_limitter"))
    assert _validate(collector_binary, wrong, tmp_path).returncode != 0


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_every_setting_has_a_default_and_is_in_the_readme(config: Path) -> None:
    settings = re.findall(r"\$\{env:(\w+)(:-)?", config.read_text())
    assert settings
    table = README.read_text()
    for name, default in settings:
        assert default, f"{name} has no default"
        assert f"`{name}`" in table, f"{name} is not explained"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_the_limiter_is_first_and_no_deprecated_batch_processor_is_used(config: Path) -> None:
    pipelines = yaml.safe_load(config.read_text())["service"]["pipelines"]
    assert pipelines
    for pipeline in pipelines.values():
        assert pipeline["processors"][0] == "memory_limiter"
        assert "batch" not in pipeline["processors"]


def test_file_pipeline_writes_one_request_a_line(collector: StartCollector) -> None:
    server = collector("file.yaml")
    traces = server.data / "traces.jsonl"
    for number in range(2):
        _send(server.otlp_http, _request(trace=0xF11E + number))
    servers.wait_until(lambda: traces.exists() and traces.read_bytes().count(b"\n") >= 2, "writing both")
    lines = [json.loads(line) for line in traces.read_bytes().split(b"\n") if line]
    assert [_spans(line)[0]["traceId"] for line in lines] == [f"{0xF11E:032x}", f"{0xF11F:032x}"]
    table = {a["key"]: a["value"] for a in _spans(lines[0])[0]["attributes"]}
    assert table["grademl.table.step"] == {"arrayValue": {"values": [{"intValue": "3"}, {"intValue": "4"}]}}


def test_file_pipeline_appends_after_a_restart(collector: StartCollector) -> None:
    server = collector("file.yaml")
    traces = server.data / "traces.jsonl"
    _send(server.otlp_http, _request(trace=1))
    servers.wait_until(lambda: traces.exists() and b"\n" in traces.read_bytes(), "writing the first")
    server.stop()
    again = collector("file.yaml", {"GRADEML_COLLECTOR_DATA": str(server.data)})
    _send(again.otlp_http, _request(trace=2))
    servers.wait_until(lambda: traces.read_bytes().count(b"\n") == 2, "writing the second")


def test_agent_delivers_to_jaeger(collector: StartCollector, jaeger: servers.Jaeger) -> None:
    agent = collector("agent-jaeger.yaml", {"GRADEML_JAEGER_ENDPOINT": jaeger.otlp_grpc.removeprefix("http://")})
    trace = _unique_trace()
    _send(agent.otlp_http, _request(trace))
    servers.wait_until(lambda: _in_jaeger(jaeger, trace), "arriving in Jaeger")


def test_agent_keeps_what_an_absent_jaeger_could_not_take(
    collector: StartCollector, jaeger: servers.Jaeger
) -> None:
    """The queue is on disk: it outlives the agent, and the next one delivers it."""
    nobody = f"127.0.0.1:{servers.free_ports(1)[0]}"
    agent = collector("agent-jaeger.yaml", {"GRADEML_JAEGER_ENDPOINT": nobody})
    trace = _unique_trace()
    _send(agent.otlp_http, _request(trace))
    agent.stop()
    assert not _in_jaeger(jaeger, trace)
    collector(
        "agent-jaeger.yaml",
        {
            "GRADEML_JAEGER_ENDPOINT": jaeger.otlp_grpc.removeprefix("http://"),
            "GRADEML_COLLECTOR_DATA": str(agent.data),
        },
    )
    servers.wait_until(lambda: _in_jaeger(jaeger, trace), "arriving in Jaeger after all")


# --- Helpers ----------------------------------------------------------------------------------------------


def _validate(binary: Path, config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # The default data folder needs not exist, nor be writable, on a machine that runs the tests.
    environ = {**os.environ, "GRADEML_COLLECTOR_DATA": str(folder / "data")}
    command = [str(binary), "validate", "--config", str(config)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


def _unique_trace() -> int:
    return int.from_bytes(os.urandom(16), "big") | 1 << 127


def _request(trace: int) -> dict[str, Any]:
    now = time.time_ns()
    integers = {"arrayValue": {"values": [{"intValue": "3"}, {"intValue": "4"}]}}
    span = {
        "traceId": f"{trace:032x}",
        "spanId": f"{trace & (1 << 64) - 1 or 1:016x}",
        "name": "window",
        "kind": 1,
        "startTimeUnixNano": str(now - 1_000_000),
        "endTimeUnixNano": str(now),
        "attributes": [{"key": "grademl.table.step", "value": integers}],
    }
    service = {"key": "service.name", "value": {"stringValue": "collector-config-test"}}
    return {
        "resourceSpans": [
            {"resource": {"attributes": [service]}, "scopeSpans": [{"scope": {"name": "t"}, "spans": [span]}]}
        ]
    }


def _spans(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [s for rs in request["resourceSpans"] for ss in rs["scopeSpans"] for s in ss["spans"]]


def _send(endpoint: str, request: dict[str, Any]) -> None:
    body = json.dumps(request).encode()
    post = urllib.request.Request(
        f"{endpoint}/v1/traces", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(post, timeout=10) as answer:
        assert answer.status == 200


def _in_jaeger(jaeger: servers.Jaeger, trace: int) -> bool:
    try:
        with urllib.request.urlopen(
            f"{jaeger.query_url}/api/v3/traces/{trace:032x}?rawTraces=true", timeout=10
        ) as answer:
            return len(_spans(json.load(answer)["result"])) == 1
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
