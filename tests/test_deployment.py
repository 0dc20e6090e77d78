# SPDX-License-Identifier: Apache-2.0
"""The compose file and the dashboards, as far as they can be judged without a Docker engine and a Grafana.
What Collector and Jaeger accept is asked of the real ones.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from grademl_otel import semconv
from grademl_otel.catalog import METRICS, prometheus_names

from .conftest import StartCollector
from .support import dashboards, manifests, servers
from .support.pipeline import send
from .support.validated import validate

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "collector-config"
DOCUMENT = ROOT / "docs" / "deployment.md"
COMPOSE = CONFIGS / "compose" / "compose.yaml"

TRACE_ID = "0123456789abcdef0123456789abcdef"
TRACE = {
    "resourceSpans": [
        {
            "resource": {
                "attributes": [{"key": "service.name", "value": {"stringValue": "deployment-test"}}]
            },
            "scopeSpans": [
                {
                    "scope": {"name": "t"},
                    "spans": [
                        {
                            "traceId": TRACE_ID,
                            "spanId": "0123456789abcdef",
                            "name": "step",
                            "kind": 1,
                            "startTimeUnixNano": str(time.time_ns() - 10**9),
                            "endTimeUnixNano": str(time.time_ns()),
                        }
                    ],
                }
            ],
        }
    ]
}

Json = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> Json:
    return manifests.read(COMPOSE)


# --- Compose ----------------------------------------------------------------------------------------------


def test_the_compose_file_is_one_by_the_specification() -> None:
    done = _check_compose(COMPOSE)
    assert done.returncode == 0, done.stdout


def test_a_wrong_compose_file_is_refused(compose: Json, tmp_path: Path) -> None:
    """So that the test above could fail."""
    compose["services"]["agent"]["volume"] = compose["services"]["agent"]["volumes"]
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(yaml.safe_dump(compose))
    assert _check_compose(wrong).returncode != 0


def test_every_mounted_file_is_there_and_is_the_one_that_is_read(compose: Json) -> None:
    for name, service in compose["services"].items():
        inside = set()
        for source, target, *mode in _volumes(service):
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), (name, source)
                assert mode == ["ro"], (name, source)
                inside.add(target)
            else:
                assert source in compose["volumes"], (name, source)
        for argument in service.get("command", ()):
            option, _, path = argument.partition("=")
            if option.lstrip("-") in ("config", "config.file"):
                assert path in inside, (name, argument)


def test_nothing_listens_beyond_this_machine(compose: Json) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert len(published) >= 6
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port), port
    assert len(set(published)) == len(published)


def test_services_have_no_more_rights_than_they_need(compose: Json) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "privileged" not in service, name
        assert service.get("cap_add", []) == (["CHOWN"] if name == "folders" else []), name


def test_servers_that_are_not_root_own_their_folders(compose: Json) -> None:
    """A new volume belongs to root: each that is written by the user 10001 is handed over first."""
    prepared = {source for source, *_rest in _volumes(compose["services"]["folders"])}
    given = [target for _source, target, *_rest in _volumes(compose["services"]["folders"])]
    assert compose["services"]["folders"]["command"] == ["chown", "10001:10001", *given]
    for name, service in compose["services"].items():
        if service.get("user") == "10001:10001" and name != "health":
            written = {source for source, *_rest in _volumes(service) if not source.startswith(".")}
            assert written, name
            assert written <= prepared, name
            assert service["depends_on"]["folders"] == {"condition": "service_completed_successfully"}, name


def test_names_of_other_services_exist(compose: Json) -> None:
    services = set(compose["services"])
    for name, service in compose["services"].items():
        for setting, value in service.get("environment", {}).items():
            if setting.endswith(("_ENDPOINT", "_URL")):
                host = re.sub(r"^https?://", "", value).partition(":")[0]
                assert host in services, (name, setting)
    assert list(_asked_health()) == compose["services"]["health"]["depends_on"]
    for source in _data_sources():
        host = re.sub(r"^https?://", "", source["url"]).partition(":")[0]
        assert host in services, source


def test_grafana_reads_what_is_mounted(compose: Json) -> None:
    mounted = {target: source for source, target, *_mode in _volumes(compose["services"]["grafana"])}
    (provider,) = manifests.read(CONFIGS / "grafana" / "provisioning" / "dashboards" / "grademl.yaml")[
        "providers"
    ]
    folder = (COMPOSE.parent / mounted[provider["options"]["path"]]).resolve()
    assert folder == dashboards.FOLDER
    home = compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).relative_to(provider["options"]["path"])).exists()


def test_versions_are_those_that_the_tests_run(compose: Json) -> None:
    parts = dashboards.module(ROOT / "tools" / "real_parts.py")
    collector = parts._collector_modules()[0][1].removeprefix("v")
    prometheus = re.fullmatch(r"v0\.(\d)(\d\d)\.(\d+)", parts.PROMETHEUS_VERSION)
    assert prometheus
    expected = {
        "otel/opentelemetry-collector-contrib": collector,
        "prom/prometheus": f"v{prometheus[1]}.{int(prometheus[2])}.{prometheus[3]}",
        # Releases of Jaeger had two numbers: v1.76.0 is v2.13.0, and what is built of it here is the latter.
        "jaegertracing/jaeger": {"v1.76.0": "2.13.0"}[parts.JAEGER_VERSION],
    }
    images = [service["image"] for service in compose["services"].values()]
    images += [container["image"] for container in manifests.containers(manifests.plain())]
    seen = set()
    for image in images:
        name, _, tag = image.partition(":")
        assert tag, f"{image} is not pinned"
        assert tag != "latest"
        assert tag == expected.get(name, tag), image
        seen.add(name)
    assert set(expected) <= seen


def test_settings_are_those_of_the_pipelines(compose: Json) -> None:
    for name in ("agent", "gateway"):
        service = compose["services"][name]
        read = "".join(
            (COMPOSE.parent / source).read_text()
            for source, *_rest in _volumes(service)
            if source.startswith(".")
        )
        for setting in service["environment"]:
            assert f"${{env:{setting}:-" in read, (name, setting)


@pytest.mark.real
@pytest.mark.parametrize("name", ["agent", "gateway"])
def test_the_real_collector_accepts_what_compose_gives_it(
    name: str, compose: Json, collector_binary: Path, tmp_path: Path
) -> None:
    service = compose["services"][name]
    by_target = {target: COMPOSE.parent / source for source, target, *_rest in _volumes(service)}
    configs = [by_target[argument.removeprefix("--config=")] for argument in service["command"]]
    done = validate(collector_binary, configs, _defaults(service["environment"]), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.real
def test_the_real_jaeger_keeps_traces_when_it_is_killed(collector: StartCollector, tmp_path: Path) -> None:
    jaeger = _start_jaeger(tmp_path)
    try:
        agent = collector("agent-jaeger.yaml", {"GRADEML_JAEGER_ENDPOINT": jaeger.otlp})
        send(agent.otlp_http, json.dumps(TRACE).encode())
        servers.wait_until(jaeger.has_trace, "arriving in Jaeger")
        assert _answer(f"http://{jaeger.health}{_asked_health()['jaeger']}") is not None
    finally:
        jaeger.kill()
    again = _start_jaeger(tmp_path)
    try:
        servers.wait_until(again.has_trace, "finding what was there before")
    finally:
        again.kill()


# --- Between machines -------------------------------------------------------------------------------------


@pytest.mark.real
def test_what_the_docs_say_of_tls_works(
    collector: StartCollector, jaeger: servers.Jaeger, tmp_path: Path
) -> None:
    """Agent and gateway show each other certificates; without one, nobody sends."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(tmp_path / "tls.crt", append=True)
    blocks = re.findall(r"^  ```yaml\n(.+?)^  ```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    of_gateway, of_agent = (textwrap.dedent(block).replace("/etc/otelcol", str(tmp_path)) for block in blocks)
    gateway = collector(
        "gateway.yaml",
        {"GRADEML_JAEGER_ENDPOINT": jaeger.otlp_grpc.removeprefix("http://")},
        extra=of_gateway,
    )
    port = gateway.otlp_grpc.rpartition(":")[2]
    agent = collector("agent.yaml", {"GRADEML_GATEWAY_ENDPOINT": f"localhost:{port}"}, extra=of_agent)
    send(agent.otlp_http, json.dumps(TRACE).encode())
    found = f"{jaeger.query_url}/api/v3/traces/{TRACE_ID}?rawTraces=true"
    servers.wait_until(lambda: _answer(found) is not None, "arriving in Jaeger")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    assert _is_served(int(port), trusting) is False
    trusting.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert _is_served(int(port), trusting) is True


# --- Dashboards -------------------------------------------------------------------------------------------


def test_dashboards_are_current() -> None:
    pages = dashboards.tool("all_pages").pages_by_file()
    assert dashboards.load() == json.loads(json.dumps(pages)), "run python tools/dashboards"
    assert set(pages) >= {"overview.json", "gpu.json", "ranks.json"}


def test_every_metric_of_the_dashboards_is_recorded() -> None:
    known = _known_series()
    asked = [query for name, page in dashboards.load().items() for query in dashboards.asked(name, page)]
    assert len(asked) > 50
    for query in asked:
        names = dashboards.metrics_in(query.expr)
        assert names, query
        assert names <= known, query
    for page in dashboards.load().values():
        for selector, _label in dashboards.variables(page).values():
            assert re.split(r"[{]", selector)[0] in known, selector


def test_a_misspelt_metric_would_be_found() -> None:
    assert dashboards.metrics_in('sum(rate(grademl_step_total{job="a"}[5m]))') - _known_series()
    with pytest.raises(KeyError):
        dashboards.tool("asking").series("hw.gpu.utilisation")


def test_alerts_ask_for_what_is_recorded() -> None:
    rules = [rule for group in _rules()["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules:
        names = dashboards.metrics_in(rule["expr"]) | set(re.findall(r"\b(\w+_total)\b(?![{])", rule["expr"]))
        assert names, rule["alert"]
        assert names <= _known_series(), rule["alert"]


def test_dashboards_have_the_shape_that_grafana_expects() -> None:
    uids = set()
    sources = {source["uid"]: source["type"] for source in _data_sources()}
    for name, page in dashboards.load().items():
        uids.add(page["uid"])
        defined = {variable["name"]: variable for variable in page["templating"]["list"]}
        for variable in defined.values():
            if variable["type"] == "datasource":
                assert sources[variable["current"]["value"]] == variable["query"]
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(page["panels"]) + json.dumps(page["templating"])))
        assert used - {"__rate_interval", "__range", "__all", "__data", "__value"} <= set(defined), name
        panels = page["panels"]
        assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
        taken: set[tuple[int, int]] = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, f"{name}: {panel['title']} lies on another one"
            assert place["x"] + place["w"] <= 24
            taken |= cells
            if panel["type"] != "row":
                assert panel["title"]
                assert panel["description"]
                letters = [target["refId"] for target in panel["targets"]]
                assert len(set(letters)) == len(letters)
    assert len(uids) == len(dashboards.load())


def test_prometheus_promotes_what_the_dashboards_group_by() -> None:
    promoted = manifests.read(CONFIGS / "prometheus" / "prometheus.yml")["otlp"][
        "promote_resource_attributes"
    ]
    assert tuple(promoted) == dashboards.tool("asking").PROMOTED
    assert semconv.RUN_ID in promoted


# --- Helpers ----------------------------------------------------------------------------------------------


def _volumes(service: Json) -> Iterator[list[str]]:
    """Source, target and mode of each."""
    return (volume.split(":") for volume in service.get("volumes", ()))


def _defaults(environment: Json) -> dict[str, str]:
    """``${NAME:-value}`` as compose fills it in when nobody sets NAME."""
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for name, value in environment.items()}


def _check_compose(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@dataclass
class _Jaeger:
    """Jaeger as compose runs it, but for its ports and the place of its data."""

    server: servers.Server
    health: str
    query: str
    otlp: str

    def kill(self) -> None:
        self.server.process.kill()
        self.server.process.wait()

    def has_trace(self) -> bool:
        found = _answer(f"http://{self.query}/api/v3/traces/{TRACE_ID}?rawTraces=true")
        return found is not None and TRACE_ID in found


def _start_jaeger(folder: Path) -> _Jaeger:
    written = (COMPOSE.parent / "jaeger.yaml").read_text()

    def attempt() -> _Jaeger:
        text = written.replace("/var/lib/jaeger/", f"{folder}/data/")
        ports = servers.free_ports(4)
        for own, free in zip((13133, 16686, 4317, 16685), ports, strict=True):
            assert text.count(f"0.0.0.0:{own}\n") == 1
            text = text.replace(f"0.0.0.0:{own}\n", f"127.0.0.1:{free}\n")
        assert "0.0.0.0" not in text
        config, quiet = folder / "jaeger.yaml", folder / "quiet.yaml"
        config.write_text(text)
        quiet.write_text(servers.QUIET)
        command = [str(servers.binary("jaeger")), "--config", str(config), "--config", str(quiet)]
        log = folder / "jaeger.log"
        server = servers.Server("jaeger", servers.spawn(command, folder, log), log)
        servers.wait_ports(server, ports)
        return _Jaeger(server, *(f"127.0.0.1:{port}" for port in ports[:3]))

    return servers.with_fresh_ports(attempt)


def _asked_health() -> dict[str, str]:
    """The path at which compose asks each server's health, by the server's name."""
    test = " ".join(manifests.read(COMPOSE)["services"]["health"]["healthcheck"]["test"])
    return dict(re.findall(r"(\w+):\d+(/\w*)", test))


def _answer(url: str) -> str | None:
    """The body of an answer of status 200."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
            body: str = answer.read().decode()
            return body
    except urllib.error.HTTPError:
        return None


def _is_served(port: int, context: ssl.SSLContext) -> bool:
    """Whether the server on this port speaks HTTP/2 with who has this context, by its first frame."""
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("localhost", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            return bool(secure.recv(9))
    except (ssl.SSLError, ConnectionError):
        return False


def _data_sources() -> list[Json]:
    path = CONFIGS / "grafana" / "provisioning" / "datasources" / "grademl.yaml"
    found: list[Json] = manifests.read(path)["datasources"]
    return found


def _rules() -> Json:
    return manifests.read(CONFIGS / "prometheus" / "rules.yml")


def _known_series() -> set[str]:
    """What Prometheus has of all that is recorded."""
    tool = dashboards.tool("asking")
    known = {prometheus_names.metric_name(metric.name, metric.unit, metric.kind) for metric in METRICS}
    for name, (unit, kind) in tool.TRAINING.items():
        series = prometheus_names.metric_name(name, unit, kind)
        histogram = kind == prometheus_names.HISTOGRAM
        known |= {f"{series}_{part}" for part in ("bucket", "sum", "count")} if histogram else {series}
    return known
