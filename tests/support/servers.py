# SPDX-License-Identifier: Apache-2.0
"""Real servers for the tests: Jaeger, Collectors, Prometheus, on free loopback ports, each in a folder.

Each server runs as a child process with a log file; one that does not come up, or dies, fails the test with
the end of its log. Their own telemetry is off, so that nothing but the ports given here is bound.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
REAL_PARTS = ROOT / "tools" / "real_parts.py"
COLLECTOR_CONFIGS = ROOT / "collector-config"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
LOG_TAIL_LINES = 25
PORT_ATTEMPTS = 3

S = TypeVar("S", bound="Server")


class ServerFailed(RuntimeError):
    """A server did not come up or has died; the message ends with the tail of its log."""


class PartUnavailable(RuntimeError):
    """The server's binary cannot be had on this machine; the message says why."""


@cache
def binary(part: str) -> Path:
    """Path of the `jaeger`, `collector` or `prometheus`, built if it must be. Raises `PartUnavailable`."""
    done = subprocess.run([sys.executable, str(REAL_PARTS), part], capture_output=True, text=True)
    if done.returncode != 0:
        raise PartUnavailable((done.stderr.strip().splitlines() or [f"{part}: unknown reason"])[-1])
    return Path(done.stdout.strip())


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago, all different."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()


@dataclass
class Server:
    """A running server process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def log_tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def check_alive(self) -> None:
        code = self.process.poll()
        if code is not None:
            raise ServerFailed(f"{self.name} ended with code {code}; its log ends:\n{self.log_tail()}")

    def kill(self) -> None:
        """End it as the kernel or a power cut would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end (it then flushes what it holds); kill it when it does not. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class Jaeger(Server):
    """A Jaeger with memory storage."""

    query_port: int
    query_grpc: str
    """`host:port` of the gRPC query API."""
    otlp_grpc: str
    """`http://host:port`, as OTEL_EXPORTER_OTLP_ENDPOINT takes it."""
    otlp_http: str

    @property
    def query_url(self) -> str:
        return f"http://127.0.0.1:{self.query_port}"

    def stop(self) -> None:
        """At once: its memory is nothing to flush, and asked politely it waits for its clients to go."""
        self.kill()

    @property
    def source(self) -> str:
        """The address as `grademl` takes it."""
        return f"jaeger://127.0.0.1:{self.query_port}"

    @property
    def ports(self) -> list[int]:
        """All that it listens on, as `start_jaeger` takes them."""
        return [
            self.query_port,
            *(int(each.rpartition(":")[2]) for each in (self.query_grpc, self.otlp_grpc, self.otlp_http)),
        ]


@dataclass
class Collector(Server):
    """A Collector that runs one of the pipelines of collector-config/."""

    otlp_grpc: str
    otlp_http: str
    data: Path
    """The folder that its files and its queue are in."""
    again: Callable[[], Collector] = field(repr=False)
    """Starts the same once more, after this one has ended: same files, settings, ports and data."""

    @property
    def endpoint(self) -> str:
        """`host:port` of OTLP over gRPC, as `GRADEML_GATEWAY_ENDPOINT` takes it."""
        return self.otlp_grpc.removeprefix("http://")


@dataclass
class Prometheus(Server):
    """A Prometheus that takes OTLP, with the settings of collector-config/prometheus."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query: `{"metric": labels, "value": [time, str]}` each."""
        asked = urllib.parse.urlencode({"query": expression})
        found = _get_json(f"{self.url}/api/v1/query?{asked}")["data"]["result"]
        assert isinstance(found, list)
        return found

    def names(self) -> list[str]:
        """Return the names of all metrics that it has."""
        found = _get_json(f"{self.url}/api/v1/label/__name__/values")["data"]
        return [str(name) for name in found]


def start_jaeger(folder: Path, ports: Sequence[int] | None = None) -> Jaeger:
    """Run a Jaeger with an empty memory; ``ports`` are those of one that has ended, else free ones."""

    def attempt() -> Jaeger:
        query, query_grpc, grpc, http = ports or free_ports(4)
        config = folder / "jaeger.yaml"
        filled = JAEGER_CONFIG.format(query=query, query_grpc=query_grpc, otlp_grpc=grpc, otlp_http=http)
        config.write_text(filled, encoding="utf-8")
        log = folder / "jaeger.log"
        process = spawn([str(binary("jaeger")), "--config", str(config)], folder, log)
        server = Jaeger(
            name="jaeger",
            process=process,
            log=log,
            query_port=query,
            query_grpc=f"127.0.0.1:{query_grpc}",
            otlp_grpc=f"http://127.0.0.1:{grpc}",
            otlp_http=f"http://127.0.0.1:{http}",
        )
        _wait_ready(server, f"{server.query_url}/api/v3/services", [query_grpc, grpc, http])
        return server

    return with_fresh_ports(attempt)


def start_collector(
    config: str | Sequence[str],
    folder: Path,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    *,
    extra: str = "",
    ports: Sequence[int] | None = None,
) -> Collector:
    """Run collector-config/`config` with its data in `folder`; several files add to the first one.

    Its listeners (gRPC, HTTP, health) are on `ports`, by default on free ones. `extra` is YAML that is merged
    last, so that a test need not wait as long as users want it to.
    """
    configs = [config] if isinstance(config, str) else list(config)

    def attempt() -> Collector:
        grpc, http, health = ports or free_ports(3)
        data = folder / "data"
        settings = {
            "GRADEML_COLLECTOR_GRPC": f"127.0.0.1:{grpc}",
            "GRADEML_COLLECTOR_HTTP": f"127.0.0.1:{http}",
            "GRADEML_COLLECTOR_HEALTH": f"127.0.0.1:{health}",
            "GRADEML_COLLECTOR_DATA": str(data),
            **(environ or {}),
        }
        quiet = folder / "quiet.yaml"
        quiet.write_text(QUIET, encoding="utf-8")
        log = folder / "collector.log"
        command = [str(binary("collector")), *flags]
        paths = [*(COLLECTOR_CONFIGS / each for each in configs), quiet]
        if extra:
            paths.append(folder / "extra.yaml")
            paths[-1].write_text(extra, encoding="utf-8")
        for path in paths:
            command += ["--config", str(path)]
        server = Collector(
            name=f"collector {configs[0]}",
            process=spawn(command, folder, log, settings),
            log=log,
            otlp_grpc=f"http://127.0.0.1:{grpc}",
            otlp_http=f"http://127.0.0.1:{http}",
            data=data,
            again=lambda: start_collector(
                configs, folder, environ, flags, extra=extra, ports=(grpc, http, health)
            ),
        )
        _wait_ready(server, f"http://127.0.0.1:{health}/", [grpc, http])
        return server

    return with_fresh_ports(attempt)


def start_prometheus(folder: Path) -> Prometheus:
    """Run a Prometheus with collector-config/prometheus/prometheus.yml, which takes OTLP."""

    def attempt() -> Prometheus:
        (port,) = free_ports(1)
        log = folder / "prometheus.log"
        command = [
            str(binary("prometheus")),
            f"--config.file={COLLECTOR_CONFIGS / 'prometheus' / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-otlp-receiver",
        ]
        server = Prometheus("prometheus", spawn(command, folder, log), log, f"http://127.0.0.1:{port}")
        _wait_ready(server, f"{server.url}/-/ready", [port])
        return server

    return with_fresh_ports(attempt)


@contextmanager
def stopping(server: S) -> Iterator[S]:
    try:
        yield server
    finally:
        server.stop()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Poll `condition` until it holds; an AssertionError naming `what` when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout_s:.0f} s")
        time.sleep(0.1)


def spawn(
    command: Sequence[str], folder: Path, log: Path, settings: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    # OTEL_* and GRADEML_* of the caller would configure the server's own telemetry or its pipeline.
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GRADEML_"))}
    with log.open("wb") as output:
        return subprocess.Popen(
            list(command),
            cwd=folder,
            env={**environ, **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the terminal is for pytest, which then stops the servers
        )


def _wait_ready(server: Server, url: str, ports: Sequence[int]) -> None:
    _wait(server, lambda: _answers(url) and all(_accepts(port) for port in ports))


def wait_ports(server: Server, ports: Sequence[int]) -> None:
    """Wait until `server` listens on all `ports`."""
    _wait(server, lambda: all(_accepts(port) for port in ports))


def _wait(server: Server, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready():
        server.check_alive()
        if time.monotonic() > deadline:
            server.stop()
            raise ServerFailed(f"{server.name} not ready in {START_TIMEOUT_S:.0f} s:\n{server.log_tail()}")
        time.sleep(0.1)


def _get_json(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        return json.load(answer)


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def with_fresh_ports(attempt: Callable[[], S]) -> S:
    """Between finding a port free and a server's binding it, another process may take it: try again."""
    for left in reversed(range(PORT_ATTEMPTS)):
        try:
            return attempt()
        except ServerFailed as error:
            if left == 0 or "address already in use" not in str(error):
                raise
    raise AssertionError("unreachable")


def hasty(*exporters: str, queue_bytes: int | None = None) -> str:
    """Return YAML after which these exporters of collector-config/ send at once, and try again at once.

    ``queue_bytes`` is how much has room in the queue of each.
    """
    small = "" if queue_bytes is None else SMALL.format(all=queue_bytes, part=queue_bytes // 2)
    return "exporters:\n" + "".join(HASTE.format(exporter=exporter) + small for exporter in exporters)


HASTE = """\
  {exporter}:
    retry_on_failure:
      initial_interval: 200ms
      max_interval: 500ms
    sending_queue:
      batch:
        flush_timeout: 100ms
"""

SMALL = """\
        min_size: 1000
        max_size: {part}
      queue_size: {all}
"""

QUIET = """\
service:
  telemetry:
    metrics:
      level: none
"""

JAEGER_CONFIG = """\
service:
  extensions: [jaeger_storage, jaeger_query]
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [jaeger_storage_exporter]
  telemetry:
    metrics:
      level: none
extensions:
  jaeger_query:
    storage:
      traces: memory
    http:
      endpoint: 127.0.0.1:{query}
    grpc:
      endpoint: 127.0.0.1:{query_grpc}
  jaeger_storage:
    backends:
      memory:
        memory:
          max_traces: 100000
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: 127.0.0.1:{otlp_grpc}
      http:
        endpoint: 127.0.0.1:{otlp_http}
exporters:
  jaeger_storage_exporter:
    trace_storage: memory
"""
