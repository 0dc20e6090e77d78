# SPDX-License-Identifier: Apache-2.0
"""Units as UCUM writes them, as far as resources have any, and what people write for them."""

from __future__ import annotations

import re
from typing import Final

_SCALES: Final[dict[str, tuple[str, float]]] = {
    "1": ("1", 1),
    "%": ("1", 0.01),
    "s": ("s", 1),
    "ms": ("s", 1e-3),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "min": ("s", 60),
    "h": ("s", 3600),
    "By": ("By", 1),
    "kBy": ("By", 1e3),
    "MBy": ("By", 1e6),
    "GBy": ("By", 1e9),
    "TBy": ("By", 1e12),
    "KiBy": ("By", 2**10),
    "MiBy": ("By", 2**20),
    "GiBy": ("By", 2**30),
    "TiBy": ("By", 2**40),
    "bit": ("By", 1 / 8),
    "kbit": ("By", 1e3 / 8),
    "Mbit": ("By", 1e6 / 8),
    "Gbit": ("By", 1e9 / 8),
    "W": ("W", 1),
    "mW": ("W", 1e-3),
    "kW": ("W", 1e3),
    "J": ("J", 1),
    "mJ": ("J", 1e-3),
    "kJ": ("J", 1e3),
    "Hz": ("Hz", 1),
    "kHz": ("Hz", 1e3),
    "MHz": ("Hz", 1e6),
    "GHz": ("Hz", 1e9),
}
"""Unit -> (base of its dimension, how many of these it is)."""
_WRITTEN: Final = {
    "ratio": "1",
    "percent": "%",
    "seconds": "s",
    "milliseconds": "ms",
    "cores": "{cpu}",
    "B": "By",
    "bytes": "By",
    "kB": "kBy",
    "KB": "kBy",
    "MB": "MBy",
    "GB": "GBy",
    "TB": "TBy",
    "KiB": "KiBy",
    "MiB": "MiBy",
    "GiB": "GiBy",
    "TiB": "TiBy",
    "watts": "W",
    "hertz": "Hz",
}
"""What files and rules write for it."""
_ANNOTATION: Final = re.compile(r"\{[^{}]*\}")
KNOWN: Final = ", ".join(_SCALES)


def factor(told: str, wanted: str) -> float | None:
    """Return what a value in ``told`` is times to be one in ``wanted``; None: unknown, or another dimension.

    What stands in braces counts things, and is a number: ``{cpu}`` is as ``1``, ``{packet}/s`` as ``1/s``.
    """
    one, other = _parsed(told), _parsed(wanted)
    if one is None or other is None or one[0] != other[0]:
        return None
    return one[1] / other[1]


def is_known(unit: str) -> bool:
    return _parsed(unit) is not None


def _parsed(unit: str) -> tuple[str, float] | None:
    above, slash, below = unit.strip().partition("/")
    top = _single(above)
    bottom = _single(below) if slash else ("1", 1.0)
    if top is None or bottom is None:
        return None
    scale = top[1] / bottom[1]
    if top[0] == bottom[0]:
        return "1", scale
    return (top[0] if bottom[0] == "1" else f"{top[0]}/{bottom[0]}"), scale


def _single(unit: str) -> tuple[str, float] | None:
    unit = _WRITTEN.get(unit, unit)
    bare = _ANNOTATION.sub("", unit)
    if unit and not bare:
        bare = "1"
    found = _SCALES.get(_WRITTEN.get(bare, bare))
    return None if found is None else (found[0], float(found[1]))
