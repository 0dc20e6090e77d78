# SPDX-License-Identifier: Apache-2.0
"""Agent and gateway before Jaeger and Prometheus, all real, that can be ended and started while in use."""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from . import servers


@dataclass
class Pipeline:
    """OTLP goes into the agent, from there to the gateway, from there to Jaeger and Prometheus."""

    agent: servers.Collector
    gateway: servers.Collector
    jaeger: servers.Jaeger
    prometheus: servers.Prometheus
    running: ExitStack

    def agent_again(self) -> None:
        """Start the agent again, which has ended."""
        self.agent = self._again(self.agent)

    def gateway_again(self) -> None:
        self.gateway = self._again(self.gateway)

    def jaeger_again(self, folder: Path) -> None:
        """Start a Jaeger where one has ended; it has forgotten everything."""
        self.jaeger = servers.start_jaeger(folder, self.jaeger.ports)
        self.running.enter_context(servers.stopping(self.jaeger))

    def _again(self, ended: servers.Collector) -> servers.Collector:
        started = ended.again()
        self.running.enter_context(servers.stopping(started))
        return started


def start_pipeline(
    folder: Path,
    jaeger: servers.Jaeger,
    prometheus: servers.Prometheus,
    running: ExitStack,
    settings: Mapping[str, str] | None = None,
) -> Pipeline:
    """Run a gateway with these settings and an agent until ``running`` ends; both send on at once."""

    def start(name: str, environ: Mapping[str, str], exporters: tuple[str, ...]) -> servers.Collector:
        place = folder / name
        place.mkdir()
        server = servers.start_collector(f"{name}.yaml", place, environ, extra=servers.hasty(*exporters))
        running.enter_context(servers.stopping(server))
        return server

    to = {
        "GRADEML_JAEGER_ENDPOINT": jaeger.otlp_grpc.removeprefix("http://"),
        "GRADEML_PROMETHEUS_URL": prometheus.url,
        "GRADEML_SPAN_METRICS_INTERVAL": "1s",
        "GRADEML_DECISION_WAIT": "1s",
    }
    gateway = start("gateway", {**to, **(settings or {})}, ("otlp_grpc/jaeger", "otlp_http/prometheus"))
    agent = start(
        "agent", {"GRADEML_GATEWAY_ENDPOINT": gateway.endpoint}, ("otlp_grpc/traces", "otlp_grpc/metrics")
    )
    return Pipeline(agent, gateway, jaeger, prometheus, running)


def send(endpoint: str, body: bytes, signal: str = "traces", patience_s: float = 0.0) -> None:
    """Send an OTLP/JSON request, and again while it is not taken, as a relay does; raises when none is."""
    post = urllib.request.Request(
        f"{endpoint}/v1/{signal}", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                post, timeout=10
            ) as answer:
                assert answer.status == 200
                return
        except (OSError, http.client.HTTPException):  # among them what is refused: HTTPError is an OSError
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
