# SPDX-License-Identifier: Apache-2.0
"""Which relay serves a process: one per user, PID and IPC namespace, and destination settings.

Headers and credentials of a destination stay in the environment of the relay that was started with it; they
are never written to a ring or a spool. So two processes may share a relay only if their settings are the
same, and the digest of those settings names the relay, its rings and its spool. Settings that differ from
process to process but travel in the ring (service name, resource attributes, run id) are left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from grademl_otel.ring import layout
from grademl_otel.version import __version__

DIGEST_LENGTH: Final = 16
"""Hex digits: 64 bits, of which collisions would only ever happen among one user's own settings."""

_PREFIX: Final = "OTEL_EXPORTER_"
_NAMES: Final = frozenset(
    {
        "OTEL_TRACES_EXPORTER",
        "OTEL_METRICS_EXPORTER",
        "GRADEML_SPOOL_DIR",
        "GRADEML_RELAY_LOG",
        "XDG_STATE_HOME",
        "HOME",
        "GRPC_PROXY",
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
        for name, value in sorted(environ.items())
        if name.upper().startswith(_PREFIX) or name.upper() in _NAMES
    }


def destination_digest(environ: Mapping[str, str]) -> str:
    """Return 16 hex digits that two processes share exactly when one relay may serve both."""
    parts = [f"{__version__}/{layout.VERSION}", str(os.getuid()), *map(str, namespaces())]
    parts += [f"{name}={value}" for name, value in destination_settings(environ).items()]
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:DIGEST_LENGTH]


def spool_digest(environ: Mapping[str, str]) -> str:
    """Return 16 hex digits for the destination alone: a relay of a later boot or container resends the same
    spool.
    """
    parts = [f"{name}={value}" for name, value in destination_settings(environ).items()]
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:DIGEST_LENGTH]


def namespaces() -> tuple[int, int]:
    """Return the inodes of this process' PID and IPC namespaces; 0 where the system has none."""
    return _inode("/proc/self/ns/pid"), _inode("/proc/self/ns/ipc")


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
