# SPDX-License-Identifier: Apache-2.0
"""Where `grademl push` sends to: an address, and the exporter settings of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from grademl_otel.analyzers.errors import UsageError, without_secrets
from grademl_otel.analyzers.secrecy import keep
from grademl_otel.export.settings import GRPC, HTTP, METRICS, TRACES, OtlpSettings, OtlpSettingsError

_GRPC_PORT: Final = 4317
_PATHS: Final = {TRACES: "/v1/traces", METRICS: "/v1/metrics"}
_SCHEMES: Final = {"http": "http", "https": "https", "grpc": "http", "grpcs": "https"}
_EXAMPLE: Final = "write http://host:4318 (HTTP) or grpc://host:4317"


def settings_for(
    address: str,
    headers: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    signal: str = TRACES,
) -> OtlpSettings:
    """Return how to send `TRACES` or `METRICS` to ``address``.

    ``grpc://`` and port 4317 are gRPC, the rest is HTTP with protobuf; headers, certificates, compression and
    time-out are those of $OTEL_EXPORTER_OTLP_*, and ``headers`` win. Raises UsageError.
    """
    shown = without_secrets(address)
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise UsageError(f"--to {shown}: no host and port in it; {_EXAMPLE}") from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise UsageError(f"--to {shown}: {_EXAMPLE}")
    if parts.username or parts.password:
        raise UsageError(f"--to {shown}: no secrets in addresses; pass --header Authorization=... instead")
    grpc = parts.scheme.startswith("grpc") or port == _GRPC_PORT
    path = "" if grpc else parts.path.rstrip("/").removesuffix(_PATHS[TRACES]) + _PATHS[signal]
    query = f"?{parts.query}" if parts.query and not grpc else ""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}"
    chosen = {
        f"{own}_ENDPOINT": f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}{query}",
        f"{own}_PROTOCOL": GRPC if grpc else HTTP,
        f"OTEL_{signal.upper()}_EXPORTER": "",
        f"{own}_INSECURE": "",
        "OTEL_EXPORTER_OTLP_INSECURE": "",
    }
    try:
        settings = OtlpSettings.from_env(signal, {**environ, **chosen})
    except OtlpSettingsError as error:
        raise UsageError(str(error)) from None
    settings = replace(settings, headers={**settings.headers, **{k.lower(): v for k, v in headers.items()}})
    keep(settings.headers.values())
    return settings
