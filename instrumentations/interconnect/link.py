# SPDX-License-Identifier: Apache-2.0
"""What a link carries."""

from __future__ import annotations

import re
from typing import Final

_RATE: Final = re.compile(rb"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: \([0-9]+X ?([A-Z0-9]*)\))?")
_CODED: Final = {b"": 0.8, b"SDR": 0.8, b"DDR": 0.8, b"QDR": 0.8, b"FDR": 150 / 154}
"""Share of the rate that is data: 8 of 10 bits; of FDR 54.55 of the 56 Gb/s that it is called. The names of
the others (FDR10, EDR, HDR, NDR, XDR) are of their data.
"""
_MOST_MBITS: Final = 100_000_000
"""No link is as fast; some drivers say -1 without its sign."""


def port_limit(rate: bytes, layer: str) -> float | None:
    """Return the By/s that a port carries, whose file ``rate`` says ``200 Gb/sec (4X HDR)``; None: not told.

    ``layer`` is its ``link_layer``: on Ethernet the rate is that of data whatever InfiniBand speed it is
    given the name of.
    """
    found = _RATE.match(rate)
    if found is None:
        return None
    share = _CODED.get(found[2] or b"", 1.0) if layer == "InfiniBand" else 1.0
    return float(found[1]) * share * 1e9 / 8 or None


def interface_limit(mbits: int | None) -> float | None:
    """Return the By/s of an interface whose file ``speed`` says ``mbits``; None: not told."""
    return mbits * 1e6 / 8 if mbits is not None and 0 < mbits < _MOST_MBITS else None
