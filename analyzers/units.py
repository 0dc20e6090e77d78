# SPDX-License-Identifier: Apache-2.0
"""Numbers for people: times, shares and counts in few characters."""

from __future__ import annotations

_NS_PER_MS = 1e6
_NS_PER_S = 1e9


def milliseconds(ns: float) -> str:
    """Return a step-sized time in about three digits: 850 us, 4.2 ms, 217 ms, 4.52 s, 12.4 s."""
    if ns < 999.5e3:
        return f"{ns / 1e3:.0f} us"
    if ns < 9.95e6:
        return f"{ns / _NS_PER_MS:.1f} ms"
    if ns < 999.5e6:
        return f"{ns / _NS_PER_MS:.0f} ms"
    return f"{ns / _NS_PER_S:.2f} s" if ns < 9.995e9 else f"{ns / _NS_PER_S:,.1f} s"


def seconds(ns: float) -> str:
    """Return a run-sized time in seconds with one digit: 260.4 s; below 0.05 s as `milliseconds`."""
    return f"{ns / _NS_PER_S:,.1f} s" if ns >= 0.05e9 else milliseconds(ns)


def duration(ns: float) -> str:
    """Return a duration in words: 850 ms, 9.2 s, 4 min 49 s, 2 h 5 min."""
    whole = round(ns / _NS_PER_S)
    if whole < 60:
        return seconds(ns) if ns >= _NS_PER_S else milliseconds(ns)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(ns / _NS_PER_S / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def clock(ns: float) -> str:
    """Return a duration as a clock shows it: 4:49, 2:05:10; below a minute as `duration`."""
    whole = round(ns / _NS_PER_S)
    if whole < 60:
        return duration(ns)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def size(number: int) -> str:
    """Return a number of bytes in about three digits: 812 B, 4.2 KiB, 217 MiB, 11.4 GiB."""
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1023.5:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value < 99.95 and unit != "B" else f"{value:,.0f} {unit}"


def percent(share: float) -> str:
    """Return a share of 0 to 1 without digits that mean nothing: 54 %, 0.3 %, 0 %."""
    value = share * 100
    if value >= 9.95 or value == 0:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.05 else "<0.1 %"


def count(number: int, noun: str) -> str:
    """Return a counted noun: 1 epoch, 1,200 steps."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
