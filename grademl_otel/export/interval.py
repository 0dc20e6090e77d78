# SPDX-License-Identifier: Apache-2.0
"""How often metrics are sent: as `OTEL_METRIC_EXPORT_INTERVAL` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DEFAULT_METRICS_EVERY_NS: Final = 10_000_000_000
_SHORTEST_MS: Final = 250.0
"""A relay looks at a ring that often."""


def metrics_every_ns(environ: Mapping[str, str]) -> int:
    """Return the pause between two exports; nonsense is the default, as in the SDK."""
    try:
        milliseconds = float(environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""))
    except ValueError:
        return DEFAULT_METRICS_EVERY_NS
    if not 0 < milliseconds < 1e12:
        return DEFAULT_METRICS_EVERY_NS
    return round(max(milliseconds, _SHORTEST_MS) * 1e6)
