# SPDX-License-Identifier: Apache-2.0
"""What is sent to an agent arrives behind the gateway, whatever of it stops, dies and starts in between.

All servers are real. Delivery is at least once, and copies have the same ids: these are counted.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from grademl_otel import semconv as sc
from tests.support import servers, training
from tests.support.pipeline import Pipeline, send, start_pipeline
from tests.support.rawspans import RawSpan, decode, read_jaeger, read_lines
from tests.support.synthetic import Simulated, Span, Training, attributes, lines, simulate

pytestmark = pytest.mark.real

PROGRAM: Final = Path(__file__).parents[1] / "support" / "metered_training.py"
MS: Final = 1_000_000
PERCENT: Final = 10
FAILED: Final = 17
OUTLIER: Final = 23
SLOW: Final = 31
SLOW_MS: Final = 5_000


def spans_of(requests: Sequence[bytes]) -> list[RawSpan]:
    return [span for request in requests for span in decode(json.loads(request))]


def requests_of(sim: Simulated, batch: int = 512) -> list[bytes]:
    return lines(sim.training, sim.spans, batch).splitlines()


def in_jaeger(jaeger: servers.Jaeger, spans: Sequence[RawSpan]) -> list[RawSpan]:
    """Return what Jaeger has of the traces of ``spans``."""
    return read_jaeger(jaeger.query_url, sorted({span.trace_id for span in spans}))


def ids(spans: Sequence[RawSpan]) -> set[tuple[str, str]]:
    return {(span.trace_id, span.span_id) for span in spans}


def wait_for_all(jaeger: servers.Jaeger, sent: Sequence[RawSpan], within_s: float = 30.0) -> None:
    wanted = ids(sent)
    servers.wait_until(lambda: wanted <= ids(in_jaeger(jaeger, sent)), "arriving of every span", within_s)


# --- Undisturbed ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sim() -> Simulated:
    return simulate(
        Training(
            run_id="a9e0" * 8, ranks=2, epochs=2, steps_per_epoch=30, checkpoint_ns=5 * MS, service="whole"
        )
    )


@pytest.fixture(scope="module")
def sent(pipeline: Pipeline, sim: Simulated) -> list[RawSpan]:
    """The spans of a run, which were sent to the agent."""
    requests = requests_of(sim)
    for request in requests:
        send(pipeline.agent.otlp_http, request)
    return spans_of(requests)


def test_every_span_arrives_once_and_unchanged(pipeline: Pipeline, sent: list[RawSpan]) -> None:
    wait_for_all(pipeline.jaeger, sent)

    def by_id(spans: Sequence[RawSpan]) -> list[RawSpan]:
        return sorted(spans, key=lambda span: span.span_id)

    assert by_id(in_jaeger(pipeline.jaeger, sent)) == by_id(sent)


def test_what_no_host_is_told_of_gets_the_agents(pipeline: Pipeline, sim: Simulated) -> None:
    """Only where the sender says none: ranks on other hosts say their own."""
    request = json.loads(requests_of(replace_run(sim, "a9e1" * 8, "hostless"))[0])
    for group in request["resourceSpans"]:
        group["resource"]["attributes"] = [
            each for each in group["resource"]["attributes"] if each["key"] != "host.name"
        ]
    spans = spans_of([json.dumps(request).encode()])
    send(pipeline.agent.otlp_http, json.dumps(request).encode())
    wait_for_all(pipeline.jaeger, spans)
    (host,) = {span.resource["host.name"].value for span in in_jaeger(pipeline.jaeger, spans)}
    assert host


def test_spans_are_counted_by_name_never_by_step(pipeline: Pipeline, sent: list[RawSpan]) -> None:
    forwards = sum(span.name == sc.FORWARD for span in sent)
    calls = 'traces_span_metrics_calls_total{service_name="whole",span_name="forward"}'
    histogram = 'traces_span_metrics_duration_seconds_count{service_name="whole",span_name="forward"}'
    for query in (calls, histogram):
        servers.wait_until(
            lambda query=query: value_of(pipeline.prometheus, query) == forwards, f"counting by {query}"
        )
    (series,) = pipeline.prometheus.query(calls)
    assert set(series["metric"]) == {
        "__name__", "collector_instance_id", "job", "service_name", "span_kind", "span_name", "status_code",
    }  # fmt: skip


def test_every_metric_arrives_with_its_last_value(pipeline: Pipeline) -> None:
    started = time.time_ns()
    for turn in range(1, 6):
        send(pipeline.agent.otlp_http, metrics("undisturbed", turn, started), "metrics")
    wait_for_metrics(pipeline.prometheus, "undisturbed", 5)


def test_a_real_training_arrives_as_its_file_has_it(pipeline: Pipeline, tmp_path: Path) -> None:
    """Its relay sends over gRPC, and writes the same into files."""
    settings = {
        "GRADEML_EXPORTER": "file,otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": pipeline.agent.otlp_grpc,
        "OTEL_SERVICE_NAME": "metered",
    }
    training.train_untraced(PROGRAM, ["2"], tmp_path, settings).ok()
    (file,) = (tmp_path / "runs").glob("*/traces.jsonl")
    stored = read_lines(file)
    assert {sc.RUN, sc.WINDOW, sc.STEP} <= {span.name for span in stored}
    wait_for_all(pipeline.jaeger, stored)
    run = stored[0].resource[sc.RUN_ID].value
    steps = [int(span.attributes[sc.STEPS_TOTAL].value) for span in stored if span.name == sc.RUN]
    query = f'grademl_steps_total{{grademl_run_id="{run}",grademl_step_kind="train"}}'
    servers.wait_until(lambda: [value_of(pipeline.prometheus, query)] == steps, "counting all steps")


def replace_run(sim: Simulated, run_id: str, service: str | None = None) -> Simulated:
    return simulate(replace(sim.training, run_id=run_id, service=service or sim.training.service))


# --- Disturbed --------------------------------------------------------------------------------------------


@pytest.fixture
def own(
    collector_binary: Path, prometheus: servers.Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """A pipeline with a Jaeger of its own, which may be stopped."""
    with ExitStack() as running:
        folder = tmp_path_factory.mktemp("own")
        jaeger = servers.start_jaeger(folder)
        running.enter_context(servers.stopping(jaeger))
        yield start_pipeline(folder, jaeger, prometheus, running)


class Sending(threading.Thread):
    """Sends requests and metrics by turns, again and again until each is taken, as a relay does."""

    def __init__(self, pipeline: Pipeline, requests: list[bytes], service: str) -> None:
        super().__init__(daemon=True)
        self._endpoint = pipeline.agent.otlp_http
        self._requests = requests
        self._service = service
        self._began = time.time_ns()
        self.taken = 0
        self.failed: Exception | None = None

    def run(self) -> None:
        try:
            for turn, request in enumerate(self._requests, 1):
                send(self._endpoint, request, patience_s=30)
                send(self._endpoint, metrics(self._service, turn, self._began), "metrics", patience_s=30)
                self.taken = turn
                time.sleep(0.01)  # so that there is something on its way at every disturbance
        except Exception as error:
            self.failed = error

    def until(self, share: float) -> None:
        """Wait until that share of the requests has been taken."""
        wanted = round(share * len(self._requests))
        servers.wait_until(lambda: self.failed is not None or self.taken >= wanted, f"sending {share:.0%}")
        assert self.failed is None, self.failed


def test_nothing_is_lost_whatever_stops_or_dies(own: Pipeline, tmp_path: Path) -> None:
    sim = simulate(Training(run_id="d157" * 8, ranks=2, epochs=2, steps_per_epoch=40, service="disturbed"))
    requests = requests_of(sim, 8)
    sending = Sending(own, requests, "disturbed")
    own.jaeger.stop()
    sending.start()
    sending.until(0.1)
    own.gateway.kill()
    sending.until(0.2)
    own.gateway_again()
    sending.until(0.3)
    own.gateway.stop()
    sending.until(0.4)
    own.agent.kill()
    own.agent_again()
    sending.until(0.5)
    own.jaeger_again(tmp_path)
    sending.until(0.6)
    own.gateway_again()
    sending.until(0.7)
    own.agent.stop()
    own.agent_again()
    sending.until(0.8)
    own.gateway.kill()
    own.gateway_again()
    sending.until(1.0)
    wait_for_all(own.jaeger, spans_of(requests))
    wait_for_metrics(own.prometheus, "disturbed", len(requests))


# --- Sampled ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampling(
    collector_binary: Path,
    jaeger: servers.Jaeger,
    prometheus: servers.Prometheus,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pipeline]:
    """A pipeline whose gateway keeps a tenth of the steps."""
    settings = {"GRADEML_SAMPLE_PERCENT": str(PERCENT), "GRADEML_SLOW_MS": str(SLOW_MS)}
    with ExitStack() as running:
        yield start_pipeline(tmp_path_factory.mktemp("sampling"), jaeger, prometheus, running, settings)


def remarkable(run_id: str) -> tuple[Simulated, list[bytes]]:
    """Return a run, as it is told, with a step that failed on a rank, an outlier, a slow one."""
    sim = simulate(
        Training(
            run_id=run_id, ranks=2, epochs=2, steps_per_epoch=40, checkpoint_ns=5 * MS, service="sampled"
        )
    )
    spans = copy.deepcopy(sim.spans)
    for rank, span in spans:
        if span["name"] != sc.STEP or rank != 1:
            continue
        if in_step(sim, span, FAILED):
            span["status"] = {"code": 2}
        if in_step(sim, span, OUTLIER):
            span["attributes"] += attributes({sc.STEP_OUTLIER: True})
        if in_step(sim, span, SLOW):
            span["endTimeUnixNano"] = str(int(span["startTimeUnixNano"]) + (SLOW_MS + 1) * MS)
    return sim, lines(sim.training, spans, 64).splitlines()


def in_step(sim: Simulated, span: Span, number: int) -> bool:
    return bool(span["traceId"] == step_trace(sim, number))


def step_trace(sim: Simulated, number: int) -> str:
    trace = sc.trace_id(sim.training.run_id, sim.training.attempt, sc.TRACE_STEP, number, 0)
    return f"{trace:032x}"


def of_share(trace_id: str) -> bool:
    """Whether a trace is of the share that is kept: FNV-1a of salt and id, as the Collector does it."""
    found = 0xCBF29CE484222325
    for byte in b"default-hash-seed" + bytes.fromhex(trace_id):
        found = ((found ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return found <= PERCENT / 100 * ((1 << 64) - 1)


def expected_of(sim: Simulated, sent: Sequence[RawSpan]) -> list[RawSpan]:
    """Return what is to be kept: the run and its windows, whole, and some traces of steps, whole."""
    steps = {span.trace_id for span in sent if span.name == sc.STEP}
    chosen = {step_trace(sim, number) for number in (FAILED, OUTLIER, SLOW)}
    assert chosen <= steps
    kept = chosen | {trace for trace in steps if of_share(trace)}
    assert len(chosen) < len(kept) < len(steps) / 3
    return [span for span in sent if span.trace_id in kept or span.trace_id not in steps]


def test_the_run_its_windows_and_remarkable_steps_are_kept_whole(sampling: Pipeline, tmp_path: Path) -> None:
    sim, requests = remarkable("5a1e" * 8)
    sent = spans_of(requests)
    half = len(requests) // 2
    for request in requests[:half]:
        send(sampling.agent.otlp_http, request)
    sampling.gateway.stop()  # what it has not decided on it decides on now
    sampling.gateway_again()
    for request in requests[half:]:
        send(sampling.agent.otlp_http, request)
    expected = expected_of(sim, sent)
    wait_for_all(sampling.jaeger, expected)
    sampling.gateway.stop()  # nothing is undecided any more
    sampling.gateway_again()
    wait_for_all(sampling.jaeger, expected)
    assert ids(in_jaeger(sampling.jaeger, sent)) == ids(expected)

    said = (
        training.grademl(["report", sampling.jaeger.source, "--run", sim.training.run_id], tmp_path).ok().out
    )
    assert "data  complete (80 of 80 steps" in said
    kept = len({span.trace_id for span in expected if span.name == sc.STEP} & trained(sim))
    assert f"a gateway kept the detail of {kept} of 80 training steps" in said


def test_the_step_that_an_exception_ended_is_kept(sampling: Pipeline) -> None:
    sim = simulate(Training(run_id="5a4e" * 8, epochs=1, steps_per_epoch=40, raises_at=30, service="raised"))
    requests = requests_of(sim)
    sent = spans_of(requests)
    incomplete = [
        span
        for span in sent
        if span.name == sc.STEP and span.attributes[sc.STEP_KIND].value == "incomplete" and not span.status
    ]
    (trace,) = {span.trace_id for span in incomplete}
    assert not of_share(trace)
    for request in requests:
        send(sampling.agent.otlp_http, request)
    wait_for_all(sampling.jaeger, [span for span in sent if span.trace_id == trace])


def trained(sim: Simulated) -> set[str]:
    return {step_trace(sim, number) for number in range(80)}


def test_the_answer_is_that_of_the_whole_run(sampling: Pipeline, pipeline: Pipeline, tmp_path: Path) -> None:
    """Budgets and steps come from the tables, which every gateway passes on."""
    sim = simulate(Training(run_id="5a1f" * 8, ranks=2, epochs=2, steps_per_epoch=40, service="budget"))
    requests = requests_of(sim)
    found = []
    for through, run_id in ((sampling, sim.training.run_id), (pipeline, "5a2f" * 8)):
        some = requests_of(replace_run(sim, run_id))
        for request in some:
            send(through.agent.otlp_http, request)
        sent = spans_of(some)
        kept = [span for span in sent if through is pipeline or span.name in (sc.RUN, sc.WINDOW, sc.EPOCH)]
        wait_for_all(through.jaeger, kept)
        asked = ["report", through.jaeger.source, "--run", run_id, "-f", "json"]
        found.append(json.loads(training.grademl(asked, tmp_path).ok().out))
    sampled, whole = found
    assert len(requests) > 1
    for document in found:
        assert document["completeness"]["verdict"] == "complete"
    for part in ("window", "lane_budget", "step", "verdict", "ranks", "summary"):
        assert sampled[part] == whole[part]


def test_a_gateway_that_is_killed_loses_nothing_of_the_run(sampling: Pipeline) -> None:
    """What tail sampling has not decided on is lost with it, and that is detail of steps only."""
    _, requests = remarkable("5a3e" * 8)
    for number, request in enumerate(requests):
        send(sampling.agent.otlp_http, request)
        if number == len(requests) // 2:
            sampling.gateway.kill()
            sampling.gateway_again()
    sent = spans_of(requests)
    steps = {span.trace_id for span in sent if span.name == sc.STEP}
    wait_for_all(sampling.jaeger, [span for span in sent if span.trace_id not in steps])


def test_of_other_services_the_failed_the_slow_and_a_share_are_kept(sampling: Pipeline) -> None:
    requests = [serving(number, failed=number == 5, slow=number == 7) for number in range(60)]
    sent = spans_of(requests)
    for request in requests:
        send(sampling.agent.otlp_http, request)
    remarkable = {sent[2 * number].trace_id for number in (5, 7)}
    expected = [span for span in sent if span.trace_id in remarkable or of_share(span.trace_id)]
    assert len(remarkable) * 2 < len(expected) < len(sent) / 2
    wait_for_all(sampling.jaeger, expected)
    sampling.gateway.stop()
    sampling.gateway_again()
    assert ids(in_jaeger(sampling.jaeger, sent)) == ids(expected)


def serving(number: int, *, failed: bool, slow: bool) -> bytes:
    """Return a request to a model, and what it did inside: two spans of another instrumentation."""
    start = time.time_ns()
    trace = sha256(f"request {number}".encode()).hexdigest()[:32]
    spans: list[dict[str, Any]] = [
        {"traceId": trace, "spanId": f"{1:016x}", "name": "POST /generate", "kind": 2},
        {"traceId": trace, "spanId": f"{2:016x}", "parentSpanId": f"{1:016x}", "name": "decode", "kind": 1},
    ]
    for span in spans:
        span |= {
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + (SLOW_MS + 1 if slow else 20) * MS),
        }
    if failed:
        spans[1]["status"] = {"code": 2}
    resource = {"attributes": attributes({"service.name": "serving", "host.name": "node-7"})}
    scope = {"scope": {"name": "opentelemetry.instrumentation.asgi"}, "spans": spans}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()


# --- Metrics ----------------------------------------------------------------------------------------------


def metrics(name: str, turn: int, started: int) -> bytes:
    """Return a request with a metric of each kind, as they are at the end of ``turn``."""
    point = {"timeUnixNano": str(time.time_ns()), "startTimeUnixNano": str(started), "attributes": []}
    number = {**point, "asInt": str(turn)}
    spread = {"bucketCounts": [str(turn), "0"], "explicitBounds": [1], "count": str(turn), "sum": turn / 4}
    total = {"aggregationTemporality": 2}
    found = [
        {
            "name": "test.steps",
            "unit": "{step}",
            "sum": {"dataPoints": [number], "isMonotonic": True, **total},
        },
        {"name": "test.memory", "unit": "By", "sum": {"dataPoints": [number], **total}},
        {"name": "test.utilization", "unit": "1", "gauge": {"dataPoints": [{**point, "asDouble": turn / 8}]}},
        {"name": "test.duration", "unit": "s", "histogram": {"dataPoints": [{**point, **spread}], **total}},
    ]
    resource = {"attributes": attributes({"service.name": name, "host.name": "node-3"})}
    scope = {"scope": {"name": "test"}, "metrics": found}
    return json.dumps({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}).encode()


def wait_for_metrics(prometheus: servers.Prometheus, name: str, turn: int) -> None:
    """Wait until the last value of each metric is that of ``turn``."""
    wanted = {
        "test_steps_total": turn,
        "test_memory_bytes": turn,
        "test_utilization_ratio": turn / 8,
        "test_duration_seconds_count": turn,
        "test_duration_seconds_sum": turn / 4,
    }

    def there() -> bool:
        found = {metric: value_of(prometheus, f'{metric}{{job="{name}"}}') for metric in wanted}
        return found == wanted

    servers.wait_until(there, f"arriving of the last values of {name}")


def value_of(prometheus: servers.Prometheus, query: str) -> float | None:
    """Return the value of the only series, None when there is not exactly one."""
    found = prometheus.query(query)
    return float(found[0]["value"][1]) if len(found) == 1 else None
