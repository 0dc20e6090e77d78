# SPDX-License-Identifier: Apache-2.0
"""How often metrics are sent: as `OTEL_METRIC_EXPORT_INTERVAL` says; into files of long runs less often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DEFAULT_METRICS_EVERY_NS: Final = 10_000_000_000
_SHORTEST_MS: Final = 250.0
"""A relay looks at a ring that often."""
_LONGEST_IN_FILES_NS: Final = 60_000_000_000
_SHARE_IN_FILES: Final = 10


def metrics_every_ns(environ: Mapping[str, str]) -> int:
    """Return the pause between two exports; nonsense is the default, as in the SDK."""
    try:
        milliseconds = float(environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""))
    except ValueError:
        return DEFAULT_METRICS_EVERY_NS
    if not 0 < milliseconds < 1e12:
        return DEFAULT_METRICS_EVERY_NS
    return round(max(milliseconds, _SHORTEST_MS) * 1e6)


class Thinning:
    """Which exports go into a run's file, which must not grow by gigabytes a day.

    They are cumulative: one that is left out costs resolution, no total. The next one comes when a tenth of
    the time since the first has passed since the last, or a minute.
    """

    __slots__ = ("_first_ns", "_last_ns")

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._last_ns = 0

    def takes(self, now_ns: int) -> bool:
        """Return whether that of ``now_ns``, of ``perf_counter``, goes in; it has then."""
        if self._first_ns is None:
            self._first_ns = now_ns
        elif now_ns - self._last_ns < min(
            _LONGEST_IN_FILES_NS, (self._last_ns - self._first_ns) // _SHARE_IN_FILES
        ):
            return False
        self._last_ns = now_ns
        return True
