# SPDX-License-Identifier: Apache-2.0
"""OTLP senders: one serialized request out, one verdict back. Retrying is the pipeline's business.

Verdicts follow the OTLP specification: what may be tried again, with the pause that the collector asked for,
and what it will never take. In one thing they are more patient: credentials and certificates that do not
serve can be put right, so that what they would have delivered may be tried again, too.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from grademl_otel.export.otlp import rejected
from grademl_otel.export.settings import GRPC, METRICS, OtlpSettings
from grademl_otel.version import __version__

if TYPE_CHECKING:
    import requests

Outcome = Literal["ok", "retry", "refused", "too large", "unsupported"]

_USER_AGENT: Final = f"grademl-otel/{__version__}"
_RETRYABLE_HTTP: Final = frozenset({401, 403, 407, 408, 429, 502, 503, 504})
_LASTING_HTTP: Final = frozenset({401, 403, 407})
_UNSUPPORTED_HTTP: Final = frozenset({404, 405, 501})
_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_MAX_ANSWER_BYTES: Final = 64 * 1024
"""As much as is read of an answer; one that means anything is far shorter."""
_LONGEST_REASON: Final = 120
NO_CONNECTION: Final = "no connection"
_UNREACHABLE: Final = "Failed to connect to remote host"
"""Stands in gRPC's account of each address when nothing listens there, and not when TLS fails."""
_LONGEST_PAUSE_S: Final = 300.0
_VERBOSITY: Final = "GRPC_VERBOSITY"
_CHANNEL_OPTIONS: Final = (
    ("grpc.primary_user_agent", _USER_AGENT),
    # The pipeline has pauses of its own; a channel that waits for two minutes would miss the collector's
    # return.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2000),
)

_IS_IT_RUNNING: Final = "is it running, is OTEL_EXPORTER_OTLP_ENDPOINT right?"
_IS_IT_THE_PATH: Final = "is the path in OTEL_EXPORTER_OTLP_ENDPOINT right?"
_IS_IT_THE_PORT: Final = "is OTEL_EXPORTER_OTLP_ENDPOINT right? (port 4318 takes spans, 16686 shows them)"
_ARE_THEY_THE_CREDENTIALS: Final = "are the credentials in OTEL_EXPORTER_OTLP_HEADERS right?"
_IS_IT_THE_CERTIFICATE: Final = "is OTEL_EXPORTER_OTLP_CERTIFICATE right?"
_TOO_LARGE: Final = "a larger limit there would let it in"
_HTTP_ADVICE: Final = {
    401: _ARE_THEY_THE_CREDENTIALS,
    403: _ARE_THEY_THE_CREDENTIALS,
    404: _IS_IT_THE_PATH,
    405: _IS_IT_THE_PATH,
    413: _TOO_LARGE,
}


@dataclass(frozen=True)
class Verdict:
    """What became of a request."""

    outcome: Outcome
    reason: str = ""
    retry_after_s: float | None = None
    """The collector's own wish."""
    advice: str = ""
    """What the user may do about it."""
    rejected: int = 0
    """Spans of a request that was taken (``ok``) which were not, for good."""
    lasting: bool = field(default=False, compare=False)
    """Of ``retry``: nothing changes until a person does, as with credentials and certificates."""


OK: Final = Verdict("ok")
NO_ANSWER_YET: Final = Verdict("retry", "no answer yet", advice=_IS_IT_RUNNING)
"""What is to be said of a request before its verdict."""


class Sender(Protocol):
    """Sends requests of one signal to one destination. Not for several threads at once."""

    def send(self, body: bytes) -> Verdict:
        """Send a serialized request; takes the time-out at most; never raises."""

    def close(self) -> None: ...


def open_sender(settings: OtlpSettings) -> Sender:
    """Return a sender; one that explains itself where a certificate or a header does not serve."""
    if settings.protocol == GRPC and not all(map(_is_metadata, settings.headers.values())):
        return _NoSender(_unsendable("a header holds what no header may"))  # gRPC itself prints it
    try:
        return GrpcSender(settings) if settings.protocol == GRPC else HttpSender(settings)
    except OSError as error:
        return _NoSender(_certificate(error))


class _NoSender:
    """Stands for a sender that cannot be had as things are; what it would send can wait."""

    def __init__(self, verdict: Verdict):
        self._verdict = verdict

    def send(self, body: bytes) -> Verdict:
        return self._verdict

    def close(self) -> None: ...


class GrpcSender:
    """OTLP over gRPC; the channel connects at the first request and again when it must."""

    def __init__(self, settings: OtlpSettings):
        grpc = self._grpc = _quiet_grpc()
        self._timeout = settings.timeout_s
        self._metadata = tuple(settings.headers.items())
        compression = grpc.Compression.Gzip if settings.gzip else grpc.Compression.NoCompression
        if settings.insecure:
            self._channel = grpc.insecure_channel(settings.endpoint, _CHANNEL_OPTIONS, compression)
        else:
            credentials = grpc.ssl_channel_credentials(
                _read(settings.certificate), _read(settings.client_key), _read(settings.client_certificate)
            )
            self._channel = grpc.secure_channel(settings.endpoint, credentials, _CHANNEL_OPTIONS, compression)
        # Without serializers requests and responses travel as the bytes that they are.
        self._export: Callable[..., Any] = self._channel.unary_unary(_METHODS[settings.signal])
        self._signal = settings.signal

    def send(self, body: bytes) -> Verdict:
        try:
            answer = self._export(body, timeout=self._timeout, metadata=self._metadata)
        except self._grpc.RpcError as error:
            return self._verdict(error)
        except ValueError as error:
            return _unsendable(type(error).__name__)
        return _taken(self._signal, answer)

    def close(self) -> None:
        self._channel.close()

    def _verdict(self, error: Any) -> Verdict:
        status = self._grpc.StatusCode
        code = error.code()
        details = error.details() or ""
        reason = NO_CONNECTION if _UNREACHABLE in details else _short(f"{code.name}: {details}")
        if code == status.UNIMPLEMENTED:
            return Verdict("unsupported", reason, advice=_IS_IT_THE_PATH)
        if code in (status.UNAUTHENTICATED, status.PERMISSION_DENIED):
            return Verdict("retry", reason, advice=_ARE_THEY_THE_CREDENTIALS, lasting=True)
        retryable = (
            status.CANCELLED, status.DEADLINE_EXCEEDED, status.RESOURCE_EXHAUSTED, status.ABORTED,
            status.OUT_OF_RANGE, status.UNAVAILABLE, status.DATA_LOSS,
        )  # fmt: skip
        if code not in retryable:
            return Verdict("refused", reason)
        pause = _retry_info(error)
        if code == status.RESOURCE_EXHAUSTED and pause is None and "message larger" in details:
            return Verdict("too large", reason, advice=_TOO_LARGE)
        return Verdict("retry", reason, pause, _IS_IT_RUNNING if code == status.UNAVAILABLE else "")


class HttpSender:
    """OTLP over HTTP with protobuf bodies."""

    def __init__(self, settings: OtlpSettings):
        import requests

        self._requests = requests
        self._signal = settings.signal
        self._url = settings.endpoint
        self._timeout = settings.timeout_s
        self._gzip = settings.gzip
        self._session = requests.Session()
        self._session.headers.update(settings.headers)
        self._session.headers.update({"Content-Type": "application/x-protobuf", "User-Agent": _USER_AGENT})
        if settings.gzip:
            self._session.headers["Content-Encoding"] = "gzip"
        for path in (settings.certificate, settings.client_key, settings.client_certificate):
            _read(path)  # requests would say only that TLS failed
        self._trusted = settings.certificate
        if settings.client_certificate and settings.client_key:
            self._session.cert = (settings.client_certificate, settings.client_key)
        elif settings.client_certificate:
            self._session.cert = settings.client_certificate

    def send(self, body: bytes) -> Verdict:
        try:
            with self._session.post(
                self._url,
                data=gzip.compress(body, 1) if self._gzip else body,
                timeout=self._timeout,
                verify=self._trusted,  # the session's own would give way to REQUESTS_CA_BUNDLE
                allow_redirects=False,  # headers may be credentials
                stream=True,  # the answer may be anything, and endless
            ) as response:
                return self._verdict(response)
        except ValueError as error:
            return _unsendable(type(error).__name__)
        except self._requests.RequestException as error:
            return self._no_answer(error)
        except OSError as error:
            return _certificate(error)

    def _verdict(self, response: requests.Response) -> Verdict:
        code = response.status_code
        if 200 <= code < 300 and _is_page(response):
            return Verdict("unsupported", "a web page for an answer", advice=_IS_IT_THE_PORT)
        if 200 <= code < 300:
            return _taken(self._signal, _beginning(response))
        reason, advice = f"HTTP {code}", _HTTP_ADVICE.get(code, "")
        if code in _RETRYABLE_HTTP:
            pause = _retry_after(response.headers.get("Retry-After"))
            return Verdict("retry", reason, pause, advice, lasting=code in _LASTING_HTTP)
        if code == 413:
            return Verdict("too large", reason, advice=advice)
        if code in _UNSUPPORTED_HTTP:
            return Verdict("unsupported", reason, advice=advice)
        if 300 <= code < 400:
            return Verdict("refused", f"{reason}, a redirect, which is not followed", advice=_IS_IT_THE_PATH)
        return Verdict("refused", reason, advice=advice)

    def _no_answer(self, error: Exception) -> Verdict:
        """Return what to make of an error of requests; its text is a page of wrapped causes."""
        errors = self._requests.exceptions
        if isinstance(error, errors.Timeout):
            return Verdict("retry", "no answer in time", advice=_IS_IT_RUNNING)
        if isinstance(error, errors.SSLError):
            return Verdict("retry", "TLS failed", advice=_IS_IT_THE_CERTIFICATE, lasting=True)
        reason = NO_CONNECTION if isinstance(error, errors.ConnectionError) else type(error).__name__
        return Verdict("retry", reason, advice=_IS_IT_RUNNING)

    def close(self) -> None:
        self._session.close()


def refuses_signal(settings: OtlpSettings, verdict: Verdict) -> bool:
    """Return True when the destination has no place for this signal at all: Jaeger takes no metrics."""
    return settings.signal == METRICS and verdict.outcome == "unsupported"


def _quiet_grpc() -> Any:
    """Return gRPC, its core started with the verbosity that its documents call the default.

    Left to itself it writes a line to stderr for each handshake that fails, in a training process to the
    user's. It reads the environment once, when the first channel is made, and nothing else sets it.
    """
    chosen = os.environ.get(_VERBOSITY)
    if chosen is None:
        os.environ[_VERBOSITY] = "ERROR"
    try:
        import grpc

        grpc.insecure_channel("localhost:1").close()
    finally:
        if chosen is None:
            os.environ.pop(_VERBOSITY, None)
    return grpc


def _taken(signal: str, answer: bytes) -> Verdict:
    """Return the verdict of an answer that says yes, perhaps to a part only."""
    number, message = rejected(signal, answer)
    return Verdict("ok", _short(message), rejected=number) if number else OK


def _unsendable(why: str) -> Verdict:
    """Return the verdict on a header that cannot be sent; its text is not shown, it may be a credential."""
    reason = f"the request cannot be sent: {why}"
    return Verdict("retry", reason, advice=_ARE_THEY_THE_CREDENTIALS, lasting=True)


def _is_metadata(value: str) -> bool:
    return value.isascii() and value.isprintable()


def _certificate(error: OSError) -> Verdict:
    reason = _short(f"{error.filename}: {error.strerror}" if error.strerror else str(error))
    return Verdict("retry", reason, advice=_IS_IT_THE_CERTIFICATE, lasting=True)


def _is_page(response: requests.Response) -> bool:
    """Whether a person's browser was answered: user interfaces, Jaeger's too, say yes to any address."""
    return str(response.headers.get("Content-Type", "")).lower().startswith("text/html")


def _beginning(response: requests.Response) -> bytes:
    """Return the body of an answer, empty when it breaks off: its status has said what matters."""
    try:
        return bytes(response.raw.read(_MAX_ANSWER_BYTES, decode_content=True))
    except Exception:  # urllib3's own, a decoder's, a socket's
        return b""


def _short(text: str) -> str:
    """Return what a server said as a part of one line."""
    printable = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(printable.split())[:_LONGEST_REASON]


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
