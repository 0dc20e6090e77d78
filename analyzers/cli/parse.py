# SPDX-License-Identifier: Apache-2.0
"""Values of options that need more than a number: times, durations, ranks, steps, headers, tolerances.

Types of the analysis are loaded when there is such a value: help and completion do without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import click

from grademl_otel.analyzers.suggest import near

if TYPE_CHECKING:
    from grademl_otel.analyzers.graph.trees.tolerance import OverlapTolerance
    from grademl_otel.analyzers.selection import StepRange

_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s|m|h|d)")
_MAX_RANKS: Final = 1_000_000


def duration_ns(text: str) -> int:
    """Return ``1h``, ``15m``, ``2.5s``, ``50us`` in ns; ValueError when it is none of these."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30s, 15m, 1h or 2d")
    return round(float(match[1]) * _UNIT_NS[match[2]])


def share(text: str) -> float:
    """Return ``5%`` or ``0.05`` as a fraction below 1; ValueError when it is neither."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match is not None else 1.0
    if value >= 1:
        raise ValueError(f"{text!r} is not a share such as 1% or 0.01")
    return value


def time_ns(text: str) -> int:
    """Return a time given as ISO 8601 (local when it names no zone) or in Unix seconds, in Unix ns."""
    if re.fullmatch(r"\d{9,11}(\.\d+)?", text.strip()):
        whole, _, fraction = text.strip().partition(".")
        return int(whole) * 1_000_000_000 + int((fraction + "000000000")[:9])
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-12-01T10:33 or Unix seconds") from None
    whole_us = moment.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (whole_us.days * 86_400 + whole_us.seconds) * 1_000_000_000 + whole_us.microseconds * 1_000


def attribute(text: str) -> tuple[str, str]:
    """Return (key, value as text) of ``KEY=VALUE``; the key may hold no ``=``."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise ValueError(f"{text!r} is not an attribute such as http.route=/pay")
    return key, value


def ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a list such as ``0-3,7``, sorted."""
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a list of ranks such as 0-3,7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > _MAX_RANKS:
            raise ValueError(f"{part.strip()!r} is not a range of ranks")
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))


def steps(text: str) -> StepRange | None:
    """Return the steps of ``100:200`` (end excluded; either may be absent), ``last:500``, ``all`` (None)."""
    from grademl_otel.analyzers.selection import StepRange

    if text.strip() == "all":
        return None
    if match := re.fullmatch(r"last:(\d{1,12})", text.strip()):
        return StepRange(last=int(match[1]))
    if match := re.fullmatch(r"(\d{1,12})?:(\d{1,12})?", text.strip()):
        first, end = (int(group) if group else None for group in match.groups())
        if first is None or end is None or first < end:
            return StepRange(first=first or 0, end=end)
    raise ValueError(f"{text!r} is not a range of steps such as 100:200, last:500 or all")


def tolerance(text: str) -> OverlapTolerance:
    """Return the overlap of siblings that is cut: ``1%``, ``50us``, ``0``."""
    from grademl_otel.analyzers.graph.trees.tolerance import OverlapTolerance

    return OverlapTolerance.parse(text)


if TYPE_CHECKING:
    _Choice = click.Choice[str]
    _ParamType = click.ParamType[Any]
else:  # not generic at runtime before click 8.4
    _Choice, _ParamType = click.Choice, click.ParamType


class Parsed(_ParamType):
    """A click type made of one of the functions above."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


class Choice(_Choice):
    """One of some words; a word that is none of them is told which one is near."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            meant = near(str(value), map(str, self.choices))
            if meant is None:
                raise
            raise click.BadParameter(
                f"{error.message.rstrip('.')}; did you mean {meant}?", ctx, param
            ) from None
