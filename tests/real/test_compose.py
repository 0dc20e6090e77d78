# SPDX-License-Identifier: Apache-2.0
"""What the compose file starts works together, with its own files, arguments and settings.

Collector, Jaeger and Prometheus are real, but for their containers. Tempo is missing, as none can be had, and
nothing waits for it.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import servers
from tests.support.training import clean_environ, grademl, run

pytestmark = pytest.mark.real

COMPOSE = servers.COLLECTOR_CONFIGS / "compose" / "compose.yaml"
PROGRAM = Path(__file__).parents[1] / "support" / "metered_training.py"
BINARIES = {"agent": "collector", "gateway": "collector", "jaeger": "jaeger", "prometheus": "prometheus"}
LISTENS = {"jaeger": (4317, 16685, 16686, 13133), "prometheus": (9090,)}
"""Ports that are in a server's own file, or its default."""
JOB = "compose"


@dataclass
class Stack:
    """Services of the compose file, each as a process with volumes that are folders."""

    folder: Path
    services: dict[str, Any]
    running: ExitStack
    ports: dict[tuple[str, int], int] = field(default_factory=dict)

    def address(self, service: str, port: int) -> str:
        """Where this port of the service is here; the same each time."""
        if (service, port) not in self.ports:
            (self.ports[service, port],) = servers.free_ports(1)
        return f"127.0.0.1:{self.ports[service, port]}"

    def start(self, name: str) -> servers.Server:
        service = self.services[name]
        inside = {}
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            inside[target] = COMPOSE.parent / source if source.startswith(".") else self.folder / source
        place = self.folder / f"{name}-process"
        place.mkdir()
        arguments = [self._argument(name, each, inside, place) for each in service["command"]]
        settings = {
            setting: self._addresses(name, self._default(str(value)))
            for setting, value in service.get("environment", {}).items()
        }
        if BINARIES[name] == "collector":
            settings["GRADEML_COLLECTOR_DATA"] = str(inside["/var/lib/otelcol"])
        if name == "jaeger":  # of itself it tells the usual port, in its container its own
            settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{self.address(name, 4317)}"
            settings["OTEL_BSP_SCHEDULE_DELAY"] = "50"
        if name == "prometheus":
            arguments.append(f"--web.listen-address={self.address(name, 9090)}")
        else:
            (place / "quiet.yaml").write_text(servers.QUIET)
            arguments.append(f"--config={place / 'quiet.yaml'}")
        command = [str(servers.binary(BINARIES[name])), *arguments]
        log = place / "log"
        server = servers.Server(name, servers.spawn(command, place, log, settings), log)
        self.running.callback(server.process.kill)
        servers.wait_ports(server, [port for (of, _), port in self.ports.items() if of == name])
        return server

    def _argument(self, name: str, argument: str, inside: dict[str, Path], place: Path) -> str:
        option, _, value = self._default(argument).partition("=")
        if value not in inside:
            return f"{option}={value}" if value else option
        if name != "jaeger":
            return f"{option}={inside[value]}"
        # Its addresses and folders are in its file.
        text = self._addresses(name, inside[value].read_text())
        copy = place / Path(value).name
        copy.write_text(text.replace("/var/lib/jaeger/", f"{inside['/var/lib/jaeger']}/"))
        return f"{option}={copy}"

    def _default(self, text: str) -> str:
        return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)

    def _addresses(self, name: str, text: str) -> str:
        """Ports of all services, this one's own among them, as they are here."""
        names = "|".join(self.services)
        return re.sub(
            rf"\b(0\.0\.0\.0|127\.0\.0\.1|{names}):(\d+)\b",
            lambda match: self.address(match[1] if match[1] in self.services else name, int(match[2])),
            text,
        )


@pytest.fixture(scope="module")
def stack(
    collector_binary: Path,
    jaeger: servers.Jaeger,
    prometheus: servers.Prometheus,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    # These fixtures skip where a server cannot be had; the stack runs servers of its own.
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    with ExitStack() as running:
        made = Stack(tmp_path_factory.mktemp("compose"), services, running)
        for name, ports in LISTENS.items():
            for port in ports:
                made.address(name, port)
        for name in ("prometheus", "jaeger", "gateway", "agent"):
            made.start(name)
        yield made


def test_a_training_that_is_sent_to_the_agent_is_seen_everywhere(stack: Stack, tmp_path: Path) -> None:
    settings = {
        "GRADEML_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{stack.address('agent', 4317)}",
        "OTEL_SERVICE_NAME": JOB,
    }
    trained = run([sys.executable, str(PROGRAM), "3"], tmp_path, clean_environ(tmp_path, settings))
    assert trained.code == 0, trained.err
    steps = json.loads(trained.out)["train"]
    series = f'grademl_steps_total{{job="{JOB}",grademl_step_kind="train"}}'
    asked = urllib.parse.urlencode({"query": series})
    url = f"http://{stack.address('prometheus', 9090)}/api/v1/query?{asked}"
    servers.wait_until(
        lambda: [float(each["value"][1]) for each in _get(url)["data"]["result"]] == [steps],
        "arriving of all steps in Prometheus",
    )
    source = f"jaeger://{stack.address('jaeger', 16686)}"

    def told() -> str:
        return grademl(["report", source], tmp_path).out

    servers.wait_until(lambda: f"complete ({steps} of {steps} steps" in told(), "arriving of all in Jaeger")
    # Jaeger has been asked many times by now, and stores nothing of that.
    assert _get(f"http://{stack.address('jaeger', 16686)}/api/services")["data"] == [JOB]


def _get(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        return json.load(answer)
