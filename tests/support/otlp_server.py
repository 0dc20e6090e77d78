# SPDX-License-Identifier: Apache-2.0
"""Small OTLP receivers in a thread, which answer as a test tells them."""

from __future__ import annotations

import gzip
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
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
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .httpserver import EndingServer


@dataclass
class Answer:
    """How to answer a request: an HTTP status or the name of a gRPC status."""

    http: int = 200
    grpc: str = "OK"
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Before the request is taken."""
    late_s: float = 0.0
    """Between the taking and the answer."""
    retry_s: float | None = None
    """RetryInfo of a gRPC status."""
    rejected: int = 0
    """Spans that a partial success leaves out: the last ones of the request."""
    raw: bytes | None = None
    """Sent in place of an HTTP answer."""
    reset: bool = False
    """Break the connection off in the middle of the request."""


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
    max_bytes: int = 1 << 30
    """Larger requests are refused as too large; over gRPC the server itself does it, with its first limit."""

    @property
    def spans(self) -> list[Span]:
        return [span for request in self.traces for span in spans_of(request)]

    @property
    def span_names(self) -> list[str]:
        return [span.name for span in self.spans]

    @property
    def span_ids(self) -> list[bytes]:
        return [span.span_id for span in self.spans]

    def take_traces(self, request: ExportTraceServiceRequest, answer: Answer) -> ExportTraceServiceResponse:
        response = ExportTraceServiceResponse()
        if answer.rejected:
            spans = request.resource_spans[0].scope_spans[0].spans
            del spans[len(spans) - answer.rejected :]
            response.partial_success.rejected_spans = answer.rejected
            response.partial_success.error_message = "no more room\nfor those"
        self.traces.append(request)
        return response


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    return [
        span
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


@contextmanager
def http_receiver(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """An OTLP/HTTP receiver on a free port of loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            receiver.attempts.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            signal = "metrics" if "metrics" in self.path else "traces"
            answer = receiver.answer(signal)
            if answer.reset:
                self.rfile.read(length // 2)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            body = self.rfile.read(length)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            time.sleep(answer.delay_s)
            status = 413 if len(body) > receiver.max_bytes else answer.http
            said = b""
            if status == 200 and signal == "traces":
                request = ExportTraceServiceRequest.FromString(body)
                said = receiver.take_traces(request, answer).SerializeToString()
            elif status == 200:
                receiver.metrics.append(ExportMetricsServiceRequest.FromString(body))
            time.sleep(answer.late_s)
            try:
                if answer.raw is not None:
                    self.wfile.write(answer.raw)
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)
            except OSError:  # the client did not wait
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = EndingServer(("127.0.0.1", port), Handler)
    if tls is not None:
        # The handshake belongs to the connection's own thread, and may fail.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def grpc_receiver(with_metrics: bool = True, port: int = 0, max_bytes: int = 4 << 20) -> Iterator[Receiver]:
    """An OTLP/gRPC receiver on a free port of loopback; without metrics it is like Jaeger."""
    receiver = Receiver(max_bytes=max_bytes)

    def handle(signal: str, context: grpc.ServicerContext) -> Answer:
        receiver.attempts.append((signal, {key: str(value) for key, value in context.invocation_metadata()}))
        answer = receiver.answer(signal)
        time.sleep(answer.delay_s)
        if answer.grpc != "OK":
            code = getattr(grpc.StatusCode, answer.grpc)
            if answer.retry_s is not None:
                status = Status(code=code.value[0])
                status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=int(answer.retry_s))))
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(code, "told to")
        return answer

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(
            self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
        ) -> ExportTraceServiceResponse:
            answer = handle("traces", context)
            response = receiver.take_traces(request, answer)
            time.sleep(answer.late_s)
            return response

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(
            self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
        ) -> ExportMetricsServiceResponse:
            answer = handle("metrics", context)
            receiver.metrics.append(request)
            time.sleep(answer.late_s)
            return ExportMetricsServiceResponse()

    options = (("grpc.max_receive_message_length", max_bytes), ("grpc.so_reuseport", 0))
    pool = ThreadPoolExecutor(8)
    server = grpc.server(pool, options=options)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    if with_metrics:
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    receiver.port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0).wait(10)
        pool.shutdown(wait=False)  # one may still be told to answer late
