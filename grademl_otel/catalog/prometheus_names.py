# SPDX-License-Identifier: Apache-2.0
"""What Prometheus calls a metric that it takes by OTLP, where its names are translated with suffixes.

That is `translation_strategy: UnderscoreEscapingWithSuffixes` (its default): what is no letter, digit or
colon becomes one underscore, the unit is appended, then `total` to counters and `ratio` to gauges of unit 1.
tests/real/test_dashboards.py asks a real Prometheus whether this is so.

Standard library only: dashboards are written with it, and the analyzer knows by it what it asks for.
"""

from __future__ import annotations

import re
from typing import Final

GAUGE: Final = "gauge"
UPDOWN: Final = "updowncounter"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"

_UNITS: Final = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "min": "minutes",
    "h": "hours",
    "d": "days",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "W": "watts",
    "J": "joules",
    "V": "volts",
    "A": "amperes",
    "Cel": "celsius",
    "Hz": "hertz",
    "%": "percent",
    "1": "",
}
_PER: Final = {"s": "second", "min": "minute", "h": "hour", "d": "day"}


def metric_name(name: str, unit: str, kind: str) -> str:
    """Return the name of the series of a metric.

    Those of a `HISTOGRAM` have ``_bucket``, ``_sum`` or ``_count`` behind it.
    """
    tokens = _tokens(name)
    for suffix in _unit_tokens(unit):
        if suffix not in tokens:
            tokens.append(suffix)
    last = "total" if kind == COUNTER else "ratio" if kind == GAUGE and unit == "1" else ""
    if last:
        tokens = [*(token for token in tokens if token != last), last]
    joined = "_".join(tokens)
    return f"_{joined}" if joined[:1].isdigit() else joined


def label_name(attribute: str) -> str:
    """Return the label that an attribute becomes."""
    return re.sub(r"\W", "_", attribute, flags=re.ASCII)


def _unit_tokens(unit: str) -> list[str]:
    """``By/s`` gives bytes, per_second; what stands in braces is an annotation and no unit."""
    if "{" in unit:
        unit = re.sub(r"\{[^}]*\}", "", unit)
    main, _, per = unit.strip().partition("/")
    tokens = [_UNITS.get(main, "_".join(_tokens(main)))]
    if per:
        tokens.append("per_" + _PER.get(per, "_".join(_tokens(per))))
    return [token for token in tokens if token]


def _tokens(text: str) -> list[str]:
    return [token for token in re.split(r"[^a-zA-Z0-9:]+", text) if token]
