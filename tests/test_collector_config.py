# SPDX-License-Identifier: Apache-2.0
"""Every pipeline of collector-config/ is accepted by a real Collector, and does what its first line says."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import StartCollector
from .support import servers

CONFIGS = sorted(servers.COLLECTOR_CONFIGS.glob("*.yaml"))
README = servers.COLLECTOR_CONFIGS / "README.md"
ADDITIONS = {
    "agent.yaml": ("agent-host.yaml", "agent-gateways.yaml"),
    "gateway.yaml": ("gateway-tempo.yaml",),
}
"""Files that add to another one, and are nothing alone."""
ALONE = [
    path.name for path in CONFIGS if path.name not in {each for some in ADDITIONS.values() for each in some}
]
COMBINATIONS = [
    (name, *some)
    for name in ALONE
    for number in range(len(ADDITIONS.get(name, ())) + 1)
    for some in combinations(ADDITIONS.get(name, ()), number)
]

pytestmark = pytest.mark.real


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_a_real_collector_accepts_the_files(
    names: tuple[str, ...], collector_binary: Path, tmp_path: Path
) -> None:
    paths = [servers.COLLECTOR_CONFIGS / name for name in names]
    done = _validate(collector_binary, paths, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_real_collector_refuses_a_wrong_file(collector_binary: Path, tmp_path: Path) -> None:
    """So that the test above could fail."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(CONFIGS[0].read_text().replace("memory_limiter", "memory_limitter"))
    assert _validate(collector_binary, [wrong], tmp_path).returncode != 0


@pytest.mark.parametrize("settings", [{}, {"GRADEML_SAMPLE_PERCENT": "12.5", "GRADEML_DECISION_WAIT": "2m"}])
def test_a_gateway_takes_its_settings(
    settings: dict[str, str], collector_binary: Path, tmp_path: Path
) -> None:
    done = _validate(collector_binary, [servers.COLLECTOR_CONFIGS / "gateway.yaml"], tmp_path, settings)
    assert done.returncode == 0, done.stderr


def test_a_gateway_refuses_a_setting_that_is_none(collector_binary: Path, tmp_path: Path) -> None:
    wrong = {"GRADEML_DECISION_WAIT": "soon"}
    done = _validate(collector_binary, [servers.COLLECTOR_CONFIGS / "gateway.yaml"], tmp_path, wrong)
    assert done.returncode != 0


@pytest.mark.parametrize("number", range(2))
def test_the_files_that_the_readme_shows_are_accepted(
    number: int, collector_binary: Path, tmp_path: Path
) -> None:
    shown = re.findall(r"```yaml\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(shown) == 2
    own = tmp_path / "own.yaml"
    own.write_text(shown[number])
    done = _validate(collector_binary, [servers.COLLECTOR_CONFIGS / "gateway.yaml", own], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_the_readme_tells_of_the_file(config: Path) -> None:
    assert re.search(rf"^\| `{re.escape(config.name)}` \|", README.read_text(), flags=re.MULTILINE)
    assert config.read_text().startswith("# ")


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


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_what_is_sent_on_waits_on_disk_for_ever_and_fits_a_message(names: tuple[str, ...]) -> None:
    """Of every exporter that a pipeline uses; one that writes files has no queue."""
    merged: dict[str, Any] = {}
    for name in names:
        merged = _merged(merged, yaml.safe_load((servers.COLLECTOR_CONFIGS / name).read_text()))
    pipelines = merged["service"]["pipelines"].values()
    connectors = set(merged.get("connectors", {}))
    used = {name for pipeline in pipelines for name in pipeline["exporters"]} - connectors
    assert used
    for name in used:
        exporter = merged["exporters"][name]
        if name.startswith("file/"):
            continue
        queue = exporter["sending_queue"]
        assert exporter["retry_on_failure"]["max_elapsed_time"] == "0s", name
        assert (queue["storage"], queue["sizer"]) == ("file_storage", "bytes"), name
        assert queue["batch"]["max_size"] < 4 << 20, name
    for name, pipeline in merged["service"]["pipelines"].items():
        if "tail_sampling" in pipeline["processors"]:
            for exporter in pipeline["exporters"]:
                assert merged["exporters"][exporter]["sending_queue"]["block_on_overflow"], (name, exporter)


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
    agent = collector(
        "agent-jaeger.yaml", {"GRADEML_JAEGER_ENDPOINT": jaeger.otlp_grpc.removeprefix("http://")}
    )
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


def test_two_collectors_on_a_host_tell_of_themselves(collector: StartCollector) -> None:
    """What waits, and how much has room; the names are those of the README."""
    ports = servers.free_ports(2)
    aloud = "service: {telemetry: {metrics: {level: normal}}}\n"  # other tests have it off
    nobody = f"127.0.0.1:{servers.free_ports(1)[0]}"
    agents = [
        collector(
            "agent.yaml",
            {"GRADEML_COLLECTOR_METRICS_PORT": str(port), "GRADEML_GATEWAY_ENDPOINT": nobody},
            extra=aloud,
        )
        for port in ports
    ]
    for agent in agents:
        _send(agent.otlp_http, _request(_unique_trace(), padding=5_000))

    def told(port: int) -> dict[str, float]:
        """Return the numbers of the exporter of traces, and of the receiver."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        mine = [line for line in lines if "otlp_grpc/traces" in line or "receiver=" in line]
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in mine}

    for port in ports:
        servers.wait_until(lambda port=port: told(port)["otelcol_exporter_queue_size"] > 5_000, "waiting")
        assert told(port)["otelcol_exporter_queue_capacity"] == 268435456
        assert told(port)["otelcol_receiver_refused_spans"] == 0
    names = set(re.findall(r"`(otelcol_exporter_queue\w+|otelcol_receiver\w+)`", README.read_text()))
    assert names
    assert names <= set(told(ports[0]))


def test_all_spans_of_a_trace_go_to_one_of_several_gateways(collector: StartCollector) -> None:
    """And what one of them cannot take waits for it."""
    gateways = [collector("file.yaml") for _ in range(2)]
    agent = collector(
        ["agent.yaml", "agent-gateways.yaml"],
        {"GRADEML_GATEWAYS": f"[{', '.join(gateway.endpoint for gateway in gateways)}]"},
        extra=servers.hasty("load_balancing"),
    )
    traces = [_unique_trace() for _ in range(40)]

    def send(again: int) -> None:
        for trace in traces:
            _send(agent.otlp_http, _request(trace, trace + again))

    def arrived() -> list[dict[str, set[str]]]:
        found: list[dict[str, set[str]]] = []
        for gateway in gateways:
            of_trace: dict[str, set[str]] = {}
            for span in _written(gateway.data / "traces.jsonl"):
                of_trace.setdefault(span["traceId"], set()).add(span["spanId"])
            found.append(of_trace)
        return found

    def all_of(spans: int) -> bool:
        return sum(len(some) for one in arrived() for some in one.values()) == spans * len(traces)

    send(0)
    servers.wait_until(lambda: all_of(1), "arriving of the first spans")
    gateways[0].stop()
    send(1)
    again = gateways[0].again()
    with servers.stopping(again):
        servers.wait_until(lambda: all_of(2), "arriving of the second spans")
    first, second = (set(one) for one in arrived())
    assert all((first, second))
    assert not first & second


@pytest.mark.parametrize(
    ("said", "host"), [({}, None), ({"OTEL_RESOURCE_ATTRIBUTES": "host.name=node-5"}, "node-5")]
)
def test_an_agent_tells_of_its_host(
    said: dict[str, str], host: str | None, collector: StartCollector
) -> None:
    """By the name that it is told, as in a container it must be."""
    gateway = collector("file.yaml")
    collector(
        ["agent.yaml", "agent-host.yaml"],
        {"GRADEML_GATEWAY_ENDPOINT": gateway.endpoint, "GRADEML_HOST_METRICS_INTERVAL": "1s", **said},
        extra=servers.hasty("otlp_grpc/metrics"),
    )
    written = gateway.data / "metrics.jsonl"
    wanted = {"system.cpu.time", "system.memory.usage", "system.network.io"}

    def told() -> dict[str, set[str]]:
        """Name of each metric -> the hosts that it is told of."""
        found: dict[str, set[str]] = {}
        for request in _requests(written):
            for group in request["resourceMetrics"]:
                said = {each["key"]: each["value"] for each in group["resource"]["attributes"]}
                for scope in group["scopeMetrics"]:
                    for metric in scope["metrics"]:
                        found.setdefault(metric["name"], set()).add(said["host.name"]["stringValue"])
        return found

    servers.wait_until(lambda: wanted <= set(told()), "telling of the host")
    assert {each for name in wanted for each in told()[name]} == {host or socket.gethostname()}


def test_an_agent_whose_queue_is_full_refuses_and_keeps_what_it_took(collector: StartCollector) -> None:
    """What is refused stays with the sender, which comes again."""
    ports = servers.free_ports(3)
    agent = collector(
        "agent.yaml",
        {"GRADEML_GATEWAY_ENDPOINT": f"127.0.0.1:{ports[0]}"},
        extra=servers.hasty("otlp_grpc/traces", queue_bytes=100_000),
    )
    taken: list[int] = []
    refused: list[int] = []
    while not refused:
        trace = _unique_trace()
        try:
            _send(agent.otlp_http, _request(trace, padding=20_000))
            taken.append(trace)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 502, 503, 504):  # those after which OTLP sends again
                raise
            refused.append(trace)
        assert len(taken) < 50
    gateway = collector("file.yaml", ports=ports)

    def arrived() -> set[str]:
        return {span["traceId"] for span in _written(gateway.data / "traces.jsonl")}

    servers.wait_until(lambda: len(arrived()) >= len(taken), "arriving of all that was taken")
    assert arrived() == {f"{trace:032x}" for trace in taken}
    assert len(taken) > 1
    _send(agent.otlp_http, _request(refused[0]))
    servers.wait_until(lambda: f"{refused[0]:032x}" in arrived(), "taking it after all")


def test_a_gateway_whose_queue_is_full_throws_nothing_away_that_it_chose(collector: StartCollector) -> None:
    """Behind tail sampling there is nobody who would come again."""
    ports = servers.free_ports(3)
    gateway = collector(
        "gateway.yaml",
        {
            "GRADEML_JAEGER_ENDPOINT": f"127.0.0.1:{ports[0]}",
            "GRADEML_SAMPLE_PERCENT": "99.9999",
            "GRADEML_DECISION_WAIT": "1s",
        },
        extra=servers.hasty("otlp_grpc/jaeger", queue_bytes=100_000),
    )
    traces = [_unique_trace() for _ in range(20)]
    for trace in traces:
        _send(gateway.otlp_http, _request(trace, padding=20_000))
    log = gateway.log
    servers.wait_until(lambda: b"Exporting failed" in log.read_bytes(), "trying to send what was chosen")
    backend = collector("file.yaml", ports=ports)

    def arrived() -> set[str]:
        return {span["traceId"] for span in _written(backend.data / "traces.jsonl")}

    servers.wait_until(lambda: len(arrived()) == len(traces), "arriving of all that was chosen")


def test_a_gateway_keeps_outliers_within_limits(collector: StartCollector) -> None:
    backend = collector("file.yaml")
    gateway = collector(
        "gateway.yaml",
        {
            "GRADEML_JAEGER_ENDPOINT": backend.endpoint,
            "GRADEML_SAMPLE_PERCENT": "0",
            "GRADEML_SAMPLE_OUTLIERS": "1",
            "GRADEML_DECISION_WAIT": "1s",
        },
        extra=servers.hasty("otlp_grpc/jaeger"),
    )
    for _ in range(30):
        request = _request(_unique_trace())
        spans = _spans(request)
        spans[0]["attributes"].append({"key": "grademl.step.outlier", "value": {"boolValue": True}})
        spans += [{**spans[0], "spanId": f"{number:016x}"} for number in range(1, 400)]
        request["resourceSpans"][0]["scopeSpans"][0]["spans"] = spans
        _send(gateway.otlp_http, request)
    written = backend.data / "traces.jsonl"
    within = 10_000 // 400
    servers.wait_until(
        lambda: written.exists() and written.read_bytes().count(b'"spanId"') >= within * 400, "keeping some"
    )
    gateway.stop()  # nothing is undecided any more
    failed = _unique_trace()
    request = _request(failed)
    _spans(request)[0]["status"] = {"code": 2}
    with servers.stopping(gateway.again()) as again:
        _send(again.otlp_http, request)
        servers.wait_until(lambda: f"{failed:032x}".encode() in written.read_bytes(), "keeping what failed")
    assert len({span["traceId"] for span in _written(written)}) == within + 1


def test_a_gateway_sends_the_same_to_tempo(collector: StartCollector) -> None:
    jaeger, tempo = collector("file.yaml"), collector("file.yaml")
    gateway = collector(
        ["gateway.yaml", "gateway-tempo.yaml"],
        {"GRADEML_JAEGER_ENDPOINT": jaeger.endpoint, "GRADEML_TEMPO_ENDPOINT": tempo.endpoint},
        extra=servers.hasty("otlp_grpc/jaeger", "otlp_grpc/tempo"),
    )
    traces = [_unique_trace() for _ in range(5)]
    for trace in traces:
        _send(gateway.otlp_http, _request(trace))
    for backend in (jaeger, tempo):
        servers.wait_until(
            lambda backend=backend: len(_written(backend.data / "traces.jsonl")) >= len(traces), "arriving"
        )
        arrived = [span["traceId"] for span in _written(backend.data / "traces.jsonl")]
        assert sorted(arrived) == sorted(f"{trace:032x}" for trace in traces)


# --- Helpers ----------------------------------------------------------------------------------------------


def _validate(
    binary: Path, configs: Sequence[Path], folder: Path, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # The default data folder needs not exist, nor be writable, on a machine that runs the tests.
    environ = {**os.environ, "GRADEML_COLLECTOR_DATA": str(folder / "data"), **(settings or {})}
    command = [str(binary), "validate"]
    for config in configs:
        command += ["--config", str(config)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return two configurations as the Collector merges them: maps are, lists are replaced."""
    found = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


def _requests(file: Path) -> list[dict[str, Any]]:
    """Return what a file of `file.yaml` holds so far."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def _written(file: Path) -> list[dict[str, Any]]:
    return [span for request in _requests(file) for span in _spans(request)]


def _unique_trace() -> int:
    return int.from_bytes(os.urandom(16), "big") | 1 << 127


def _request(trace: int, span_id: int | None = None, padding: int = 0) -> dict[str, Any]:
    now = time.time_ns()
    integers = {"arrayValue": {"values": [{"intValue": "3"}, {"intValue": "4"}]}}
    span = {
        "traceId": f"{trace:032x}",
        "spanId": f"{(trace if span_id is None else span_id) & (1 << 64) - 1 or 1:016x}",
        "name": "window",
        "kind": 1,
        "startTimeUnixNano": str(now - 1_000_000),
        "endTimeUnixNano": str(now),
        "attributes": [
            {"key": "grademl.table.step", "value": integers},
            {"key": "padding", "value": {"stringValue": "x" * padding}},
        ],
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
