# SPDX-License-Identifier: Apache-2.0
"""OTLP senders: one serialized request out, one verdict back. Retrying is the pipeline's business.

Verdicts follow the OTLP specification: what may be tried again, with the pause that the collector asked for,
and what it will never take.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any, Final, Literal, Protocol

from grademl_otel.export.settings import GRPC, METRICS, OtlpSettings
from grademl_otel.version import __version__

Outcome = Literal["ok", "retry", "refused", "unsupported"]

_USER_AGENT: Final = f"grademl-otel/{__version__}"
_RETRYABLE_HTTP: Final = frozenset({408, 429, 502, 503, 504})
_UNSUPPORTED_HTTP: Final = frozenset({404, 405, 501})
_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_LONGEST_REASON: Final = 160
_LONGEST_PAUSE_S: Final = 300.0


@dataclass(frozen=True)
class Verdict:
    """What became of a request."""

    outcome: Outcome
    reason: str = ""
    retry_after_s: float | None = None
    """The collector's own wish."""


OK: Final = Verdict("ok")


class Sender(Protocol):
    """Sends requests of one signal to one destination. Not for several threads at once."""

    def send(self, body: bytes) -> Verdict:
        """Send a serialized request; takes the time-out at most; never raises."""

    def close(self) -> None: ...


def open_sender(settings: OtlpSettings) -> Sender:
    """Return a sender; raises OSError when a certificate cannot be read."""
    return GrpcSender(settings) if settings.protocol == GRPC else HttpSender(settings)


class GrpcSender:
    """OTLP over gRPC; the channel connects at the first request and again when it must."""

    def __init__(self, settings: OtlpSettings):
        import grpc

        self._grpc = grpc
        self._timeout = settings.timeout_s
        self._metadata = tuple(settings.headers.items())
        options = (("grpc.primary_user_agent", _USER_AGENT),)
        compression = grpc.Compression.Gzip if settings.gzip else grpc.Compression.NoCompression
        if settings.insecure:
            self._channel = grpc.insecure_channel(settings.endpoint, options, compression)
        else:
            credentials = grpc.ssl_channel_credentials(
                _read(settings.certificate), _read(settings.client_key), _read(settings.client_certificate)
            )
            self._channel = grpc.secure_channel(settings.endpoint, credentials, options, compression)
        # Without serializers requests and responses travel as the bytes that they are.
        self._export: Callable[..., Any] = self._channel.unary_unary(_METHODS[settings.signal])

    def send(self, body: bytes) -> Verdict:
        try:
            self._export(body, timeout=self._timeout, metadata=self._metadata)
        except self._grpc.RpcError as error:
            return self._verdict(error)
        except ValueError as error:  # the channel was closed meanwhile, or a header is impossible
            return Verdict("refused", f"the request cannot be sent: {type(error).__name__}")
        return OK

    def close(self) -> None:
        self._channel.close()

    def _verdict(self, error: Any) -> Verdict:
        status = self._grpc.StatusCode
        code = error.code()
        reason = f"{code.name}: {error.details()}"[:_LONGEST_REASON]
        if code == status.UNIMPLEMENTED:
            return Verdict("unsupported", reason)
        retryable = (
            status.CANCELLED, status.DEADLINE_EXCEEDED, status.RESOURCE_EXHAUSTED, status.ABORTED,
            status.OUT_OF_RANGE, status.UNAVAILABLE, status.DATA_LOSS,
        )  # fmt: skip
        if code not in retryable:
            return Verdict("refused", reason)
        pause = _retry_info(error)
        if (
            code == status.RESOURCE_EXHAUSTED
            and pause is None
            and "message larger" in (error.details() or "")
        ):
            return Verdict("refused", reason)  # it will not get smaller
        return Verdict("retry", reason, pause)


class HttpSender:
    """OTLP over HTTP with protobuf bodies."""

    def __init__(self, settings: OtlpSettings):
        import requests

        self._errors = requests.RequestException
        self._url = settings.endpoint
        self._timeout = settings.timeout_s
        self._gzip = settings.gzip
        self._session = requests.Session()
        self._session.headers.update(settings.headers)
        self._session.headers.update({"Content-Type": "application/x-protobuf", "User-Agent": _USER_AGENT})
        if settings.gzip:
            self._session.headers["Content-Encoding"] = "gzip"
        if settings.certificate:
            self._session.verify = settings.certificate
        if settings.client_certificate and settings.client_key:
            self._session.cert = (settings.client_certificate, settings.client_key)
        elif settings.client_certificate:
            self._session.cert = settings.client_certificate

    def send(self, body: bytes) -> Verdict:
        try:
            response = self._session.post(
                self._url,
                data=gzip.compress(body, 1) if self._gzip else body,
                timeout=self._timeout,
                allow_redirects=False,  # headers may be credentials
            )
        except ValueError as error:  # its text may be the header that cannot be sent, a credential
            return Verdict("refused", f"the request cannot be sent: {type(error).__name__}")
        except self._errors as error:
            return Verdict("retry", _brief(error))
        except OSError as error:  # a certificate that is not there
            return Verdict("refused", f"{type(error).__name__}: {error}")
        code = response.status_code
        if 200 <= code < 300:
            return OK
        reason = f"HTTP {code}"
        if code in _RETRYABLE_HTTP:
            return Verdict("retry", reason, _retry_after(response.headers.get("Retry-After")))
        return Verdict("unsupported" if code in _UNSUPPORTED_HTTP else "refused", reason)

    def close(self) -> None:
        self._session.close()


def refuses_signal(settings: OtlpSettings, verdict: Verdict) -> bool:
    """Return True when the destination has no place for this signal at all: Jaeger takes no metrics."""
    return settings.signal == METRICS and verdict.outcome == "unsupported"


def _brief(error: Exception) -> str:
    """Return an error of requests without the page of wrapped causes that its text is."""
    import requests

    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return "TLS failed"
    return "no connection" if isinstance(error, requests.ConnectionError) else type(error).__name__


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


def _retry_after(text: str | None) -> float | None:
    """Return the pause that a Retry-After header (seconds or a date) asks for."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), _LONGEST_PAUSE_S)


def _retry_info(error: Any) -> float | None:
    """Return the pause that a gRPC status' RetryInfo asks for."""
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        try:
            status = Status.FromString(value)
            for detail in status.details:
                info = RetryInfo()
                if detail.Unpack(info):
                    seconds = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
                    return float(min(max(seconds, 0.0), _LONGEST_PAUSE_S))
        except Exception:  # protobuf's DecodeError; a broken detail is no detail
            return None
    return None
