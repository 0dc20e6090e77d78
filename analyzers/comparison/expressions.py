# SPDX-License-Identifier: Apache-2.0
"""Expressions of `grademl check` and of `grademl diff --fail-on`: what is measured, and what it must be.

::

    expression := measure [operator value]
    measure    := name | function "(" name ")"
    operator   := "<" | "<=" | ">" | ">=" | "=" | "==" | "!="
    value      := number [unit] | word
    unit       := "%" | "pp" | "ns" | "us" | "ms" | "s" | "m" | "h" | "/s"

A name is any text without an operator, as ``data.wait`` or ``GET /cart``; one with an operator, or with a
function's parentheses, stands in double quotes. Which names there are is told by `measures`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from grademl_otel.analyzers.errors import UsageError

SHARE: Final = "share"
POINTS: Final = "points"
TIME: Final = "time"
NUMBER: Final = "number"
WORD: Final = "word"

FUNCTIONS: Final = ("median", "mean", "own", "path", "budget", "finding", "errors")
"""And the percentiles, `p1` to `p99`."""
OPERATORS: Final = ("<=", ">=", "==", "!=", "<", ">", "=")

_UNIT_NS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_OPERATOR: Final = re.compile("|".join(OPERATORS))
_NUMBER: Final = re.compile(r"[+-]?(\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:e[+-]?\d{1,3})?", re.IGNORECASE)
_WORD: Final = re.compile(r"[A-Za-z][\w.:-]*")
_CALL: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_PERCENTILE: Final = re.compile(r"p([1-9]\d?)")
_LONGEST: Final = 1_000


@dataclass(frozen=True)
class Value:
    """What stands behind the operator: a number in ns, as a fraction, or as it is; or a word."""

    kind: str
    """`SHARE`, `POINTS` (of percent), `TIME`, `NUMBER` or `WORD`."""
    number: float
    text: str
    """As it was written."""


@dataclass(frozen=True)
class Expression:
    """One expression; without an operator it is the name of something that holds or does not."""

    text: str
    name: str
    function: str | None = None
    operator: str | None = None
    value: Value | None = None

    @property
    def quantile(self) -> float | None:
        """The quantile that the function asks for: 0.5 of ``median``; None where it is no percentile."""
        if self.function == "median":
            return 0.5
        found = _PERCENTILE.fullmatch(self.function or "")
        return int(found[1]) / 100 if found else None

    @property
    def measure(self) -> str:
        """What is measured, as it is written."""
        return self.name if self.function is None else f"{self.function}({self.name})"

    def holds(self, measured: float | str) -> bool:
        """Return whether ``measured``, in the unit of the value, is as the expression says."""
        if self.value is None:
            return bool(measured)
        limit: float | str = self.value.text if isinstance(measured, str) else self.value.number
        if self.operator in ("=", "==", "!="):
            return (measured == limit) == (self.operator != "!=")
        if isinstance(measured, str) or isinstance(limit, str):
            return False
        if self.operator in ("<", "<="):
            return measured < limit or (self.operator == "<=" and measured == limit)
        return measured > limit or (self.operator == ">=" and measured == limit)


def parse(text: str) -> Expression:
    """Return the expression that ``text`` is; UsageError, which marks the place with ``^``, for none."""
    if len(text) > _LONGEST:
        raise UsageError(f"an expression has {_LONGEST:,} characters at most")
    split = _operator(text)
    left = text if split is None else text[: split.start()]
    function, name = _measure(text, left)
    if split is None:
        return Expression(text, name, function)
    operator = "=" if split[0] == "==" else split[0]
    return Expression(text, name, function, operator, _value(text, split.end()))


def has_operator(text: str) -> bool:
    """Return whether ``text`` compares something, so that it is an expression, right or wrong."""
    return _operator(text) is not None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the known names most like ``name``; empty where none is."""
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=2, cutoff=0.5)
    near += [one for one in sorted(folded) if name and name.casefold() in one and one not in near][:2]
    return f"; did you mean {' or '.join(folded[one] for one in near[:2])}?" if near else ""


def _operator(text: str) -> re.Match[str] | None:
    """Return the first operator outside of quotes."""
    at = 0
    while at < len(text):
        if text[at] == '"':
            closing = text.find('"', at + 1)
            if closing < 0:
                raise _wrong(text, at, "a quote that is not closed")
            at = closing + 1
        elif (found := _OPERATOR.match(text, at)) is not None:
            return found
        else:
            at += 1
    return None


def _measure(text: str, left: str) -> tuple[str | None, str]:
    call = _CALL.match(left)
    if call is None or not _is_function(call[1]):
        name = _name(text, left, 0)
        if call is not None and (near := suggestion(call[1], FUNCTIONS)) and left.rstrip().endswith(")"):
            raise _wrong(text, call.start(1), f"no function {call[1]!r}{near}")
        return None, name
    end = len(left.rstrip())
    if left[end - 1] != ")" or end <= call.end():
        raise _wrong(text, end, f"the ')' of {call[1]}( is missing")
    return call[1], _name(text, left[call.end() : end - 1], call.end())


def _is_function(word: str) -> bool:
    return word in FUNCTIONS or _PERCENTILE.fullmatch(word) is not None


def _name(text: str, part: str, begins: int) -> str:
    stripped = part.strip()
    if len(stripped) >= 2 and stripped[0] == stripped[-1] == '"' and '"' not in stripped[1:-1]:
        stripped = stripped[1:-1]
    elif (quote := part.find('"')) >= 0:
        raise _wrong(text, begins + quote, "a quote within a name: put all of the name in quotes")
    if not stripped:
        raise _wrong(text, begins, "the name of what is measured is missing")
    return stripped


def _value(text: str, begins: int) -> Value:
    rest = text[begins:]
    begins += len(rest) - len(rest.lstrip())
    rest = rest.strip()
    if not rest:
        raise _wrong(text, begins, "the value is missing, as in step_time<200ms")
    number = _NUMBER.match(rest)
    if number is None:
        if _WORD.fullmatch(rest):
            return Value(WORD, 0.0, rest)
        raise _wrong(text, begins, "neither a number with a unit (%, us, ms, s, m, h) nor a word")
    amount, unit = float(number[0].replace(",", "")), rest[number.end() :].strip()
    if unit == "%":
        return Value(SHARE, amount / 100, rest)
    if unit == "pp":
        return Value(POINTS, amount / 100, rest)
    if unit in _UNIT_NS:
        return Value(TIME, amount * _UNIT_NS[unit], rest)
    if unit in ("", "/s"):
        return Value(NUMBER, amount, rest)
    raise _wrong(text, begins + number.end(), f"no unit {unit!r}: one of %, pp, ns, us, ms, s, m, h, /s")


def _wrong(text: str, at: int, what: str) -> UsageError:
    return UsageError(f"{what}, at ^ in: {text[:at]}^{text[at:]}")
