# SPDX-License-Identifier: Apache-2.0
"""Which relay serves a process: one per user, PID and IPC namespace, and destination settings.

Headers and credentials of a destination stay in the environment of the relay that was started with it; they
are never written to a ring or a spool. So two processes may share a relay only if their settings are the
same, and the digest of those settings names the relay, its rings and its spool. Settings that differ from
process to process but travel in the ring (service name, resource attributes, run id) are left out.

The digest has two parts: the settings, and the namespaces. What a container leaves behind can be delivered
by a relay of another one that agrees in the first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from grademl_otel.config import with_absolute_paths
from grademl_otel.identity import clock_id
from grademl_otel.ring import layout
from grademl_otel.version import __version__

SETTINGS_DIGITS: Final = 16
"""Hex digits: 64 bits, of which collisions would only ever happen among one user's own settings."""
DIGEST_LENGTH: Final = 24
"""Hex digits of the whole: the settings, then the namespaces."""

_PREFIX: Final = "OTEL_EXPORTER_"
_NAMES: Final = frozenset(
    {
        "OTEL_TRACES_EXPORTER",
        "OTEL_METRICS_EXPORTER",
        "OTEL_METRIC_EXPORT_INTERVAL",
        "GRADEML_SPOOL_DIR",
        "GRADEML_SPOOL_BYTES",
        "GRADEML_RELAY_LOG",
        "GRADEML_GPU_INTERVAL",
        "GRADEML_HOST_INTERVAL",
        "GRADEML_PROC",
        "GRADEML_SYS",
        "HOST_PROC",
        "HOST_SYS",
        "XDG_STATE_HOME",
        "HOME",
        "NETRC",
        "GRPC_PROXY",
        "NO_GRPC_PROXY",
        "ALL_PROXY",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "SSL_CERT_FILE",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    }
)


def destination_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` that decide where telemetry goes and how."""
    return {
        name: value
        for name, value in sorted(with_absolute_paths(environ).items())
        if name.upper().startswith(_PREFIX) or name.upper() in _NAMES
    }


def destination_digest(environ: Mapping[str, str]) -> str:
    """Return `DIGEST_LENGTH` hex digits that two processes share exactly when one relay may serve both.

    The first `SETTINGS_DIGITS` of them are the same in all namespaces.
    """
    parts = [f"{__version__}/{layout.VERSION}", str(os.getuid())]
    settings = _digits([*parts, *_assignments(environ)], SETTINGS_DIGITS)
    return settings + _digits([*map(str, namespaces())], DIGEST_LENGTH - SETTINGS_DIGITS)


def namespaces() -> tuple[int, int]:
    """Return the inodes of this process' PID and IPC namespaces; 0 where the system has none."""
    return _inode("/proc/self/ns/pid"), _inode("/proc/self/ns/ipc")


def clock_number() -> int:
    """Return a number that two processes share when their ``perf_counter_ns`` is the same clock."""
    return int(_digits([clock_id(), str(_inode("/proc/self/ns/time"))], 16), 16)


def _assignments(environ: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in destination_settings(environ).items()]


def _digits(parts: list[str], length: int) -> str:
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:length]


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
