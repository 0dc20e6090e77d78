# SPDX-License-Identifier: Apache-2.0
"""The user's OTLP exporter settings, read by the rules of the OpenTelemetry specification and as its SDK
reads them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.util.re import parse_env_headers

from grademl_otel.destination import without_credentials

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"

TRACES: Final = "traces"
METRICS: Final = "metrics"

DEFAULT_TIMEOUT_S: Final = 10.0
_DEFAULT_ENDPOINT: Final = {GRPC: "http://localhost:4317", HTTP: "http://localhost:4318"}
_EXPORTER_PROTOCOL: Final = {"otlp_proto_http": HTTP, "otlp_proto_grpc": GRPC}


class OtlpSettingsError(Exception):
    """A setting cannot be followed; the message names the variable and what it should be."""


@dataclass(frozen=True)
class OtlpSettings:
    """Where one signal goes and how. Held in memory only: headers and keys are never written anywhere."""

    signal: str
    protocol: str
    endpoint: str
    """gRPC: ``host:port``; HTTP: the full URL."""
    insecure: bool
    """gRPC without TLS."""
    headers: dict[str, str] = field(repr=False)
    timeout_s: float
    gzip: bool
    certificate: str | None
    client_key: str | None
    client_certificate: str | None

    @classmethod
    def from_env(cls, signal: str, environ: Mapping[str, str]) -> OtlpSettings:
        """Read the settings of ``signal`` (`TRACES` or `METRICS`); raises `OtlpSettingsError`."""
        read = _Reader(signal, environ)
        protocol = _protocol(signal, read, environ)
        endpoint, insecure = (_grpc_target if protocol == GRPC else _http_url)(signal, read)
        return cls(
            signal=signal,
            protocol=protocol,
            endpoint=endpoint,
            insecure=insecure,
            headers=dict(parse_env_headers(read("HEADERS") or "", liberal=True)),
            timeout_s=_timeout(read),
            gzip=(read("COMPRESSION") or "none").lower() == "gzip",
            certificate=read("CERTIFICATE"),
            client_key=read("CLIENT_KEY"),
            client_certificate=read("CLIENT_CERTIFICATE"),
        )


def destination_name(signals: Iterable[OtlpSettings]) -> str:
    """Return 16 hex digits, the same for settings that lead to the same place.

    Headers belong to the place: they name the tenant. The secret in ``authorization`` does not, nor does how
    the connection is made: whoever puts a token or a certificate right tomorrow finds what waited for it.
    """
    parts = []
    for settings in signals:
        parts += [settings.signal, _without_password(settings.endpoint)]
        parts += [
            f"{name}={_without_secret(name, value)}" for name, value in sorted(settings.headers.items())
        ]
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _without_password(endpoint: str) -> str:
    scheme, separator, rest = endpoint.rpartition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{at}{place}"


def _without_secret(name: str, value: str) -> str:
    """Return a header's value without the secret, but with the user's name of HTTP's basic scheme."""
    if name != "authorization":
        return value
    scheme, _, credentials = value.partition(" ")
    if scheme.lower() != "basic":
        return scheme
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[0].hex()
    except (binascii.Error, ValueError):
        return scheme


class _Reader:
    """Looks a setting up, the signal's own first."""

    def __init__(self, signal: str, environ: Mapping[str, str]):
        self._environ = environ
        self.own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"
        self.base = "OTEL_EXPORTER_OTLP_"

    def __call__(self, name: str) -> str | None:
        return self.of_signal(name) or self.of_base(name)

    def of_signal(self, name: str) -> str | None:
        return self._environ.get(self.own + name, "").strip() or None

    def of_base(self, name: str) -> str | None:
        return self._environ.get(self.base + name, "").strip() or None


def _protocol(signal: str, read: _Reader, environ: Mapping[str, str]) -> str:
    exporter = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip()
    if exporter in _EXPORTER_PROTOCOL:
        return _EXPORTER_PROTOCOL[exporter]
    # `opentelemetry-instrument`'s distro makes gRPC the default.
    protocol = (read("PROTOCOL") or GRPC).lower()
    if protocol == "http/json":
        return HTTP  # every receiver of OTLP/HTTP takes protobuf as well
    if protocol not in (GRPC, HTTP):
        raise OtlpSettingsError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r}: expected {GRPC} or {HTTP}")
    return protocol


def _grpc_target(signal: str, read: _Reader) -> tuple[str, bool]:
    endpoint = read("ENDPOINT") or _DEFAULT_ENDPOINT[GRPC]
    scheme, separator, _ = endpoint.partition("://")
    insecure = (read("INSECURE") or "").lower()
    if not separator:
        return endpoint, insecure == "true"
    target = urlsplit(endpoint).netloc.rpartition("@")[2]  # gRPC has no use for a user and a password
    if not target:
        raise OtlpSettingsError(
            f"{read.base}ENDPOINT={without_credentials(endpoint)!r}: expected http://host:port"
        )
    if scheme.lower() == "https":
        return target, False
    return target, insecure == "true" if insecure else scheme.lower() == "http"


def _http_url(signal: str, read: _Reader) -> tuple[str, bool]:
    own = read.of_signal("ENDPOINT")
    # The signal's own endpoint is used as it is; the common one is a base.
    url = own or (read.of_base("ENDPOINT") or _DEFAULT_ENDPOINT[HTTP]).rstrip("/") + f"/v1/{signal}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise OtlpSettingsError(
            f"{read.base}ENDPOINT={without_credentials(url)!r}: expected http://host:port"
        )
    return url, parts.scheme == "http"


def _timeout(read: _Reader) -> float:
    """Return the time-out in s; like the Python SDK, and unlike the specification, the number is seconds."""
    text = read("TIMEOUT")
    try:
        value = float(text) if text else DEFAULT_TIMEOUT_S
    except ValueError:
        return DEFAULT_TIMEOUT_S
    return value if value > 0 else DEFAULT_TIMEOUT_S
