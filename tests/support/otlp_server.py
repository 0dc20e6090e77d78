# SPDX-License-Identifier: Apache-2.0
"""Small OTLP receivers in a thread, which answer as a test tells them."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Answer:
    """How to answer a request: an HTTP status or the name of a gRPC status."""

    http: int = 200
    grpc: str = "OK"
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass
class Receiver:
    """What arrived, and what to answer next."""

    port: int = 0
    answer: Callable[[str], Answer] = lambda signal: Answer()
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    """Requests that were accepted."""
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    attempts: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path (or signal) and headers of every request."""

    @property
    def span_names(self) -> list[str]:
        return [
            span.name
            for request in self.traces
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]

    @property
    def span_ids(self) -> list[bytes]:
        return [
            span.span_id
            for request in self.traces
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]


@contextmanager
def http_receiver(port: int = 0) -> Iterator[Receiver]:
    """An OTLP/HTTP receiver on a free port of loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.attempts.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            signal = "metrics" if "metrics" in self.path else "traces"
            answer = receiver.answer(signal)
            time.sleep(answer.delay_s)
            if answer.http == 200:
                if signal == "traces":
                    receiver.traces.append(ExportTraceServiceRequest.FromString(body))
                else:
                    receiver.metrics.append(ExportMetricsServiceRequest.FromString(body))
            try:
                self.send_response(answer.http)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:  # the client did not wait
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def grpc_receiver(with_metrics: bool = True) -> Iterator[Receiver]:
    """An OTLP/gRPC receiver on a free port of loopback; without metrics it is like Jaeger."""
    receiver = Receiver()

    def handle(signal: str, context: grpc.ServicerContext) -> None:
        receiver.attempts.append((signal, {key: str(value) for key, value in context.invocation_metadata()}))
        answer = receiver.answer(signal)
        time.sleep(answer.delay_s)
        if answer.grpc != "OK":
            context.abort(getattr(grpc.StatusCode, answer.grpc), "told to")

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(
            self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
        ) -> ExportTraceServiceResponse:
            handle("traces", context)
            receiver.traces.append(request)
            return ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(
            self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
        ) -> ExportMetricsServiceResponse:
            handle("metrics", context)
            receiver.metrics.append(request)
            return ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    if with_metrics:
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0)
