# SPDX-License-Identifier: Apache-2.0
"""`--fail-on` of two sides, and the checks of one: which expressions hold, and of which nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grademl_otel.analyzers.comparison.asked import pair, quantity
from grademl_otel.analyzers.comparison.document import FAILED, NOT_KNOWN, PASSED, Number, Result
from grademl_otel.analyzers.comparison.expressions import SHARE, Expression
from grademl_otel.analyzers.comparison.judging import Pair, in_unit, judged, too_few, too_few_for
from grademl_otel.analyzers.comparison.measures import COUNT, NS, TRUTH, Quantity
from grademl_otel.analyzers.comparison.of_run import SCOPES, RunMeasures
from grademl_otel.analyzers.comparison.of_traces import TraceMeasures
from grademl_otel.analyzers.comparison.pairs import RunPairs, TracePairs, named
from grademl_otel.analyzers.comparison.resampling import interval, spread

UP_TO_CHANCE = "the limit lies within the interval: another run may be on its other side"


def check(expression: Expression, found: RunMeasures | TraceMeasures) -> Result:
    """Return whether ``expression`` holds of what was measured. The value decides; the interval informs."""
    asked = quantity(expression, found)
    number = asked.number
    if number is None:
        return _result(expression, NOT_KNOWN, asked.unit, reason=asked.reason)
    few = None
    if asked.sample is not None and expression.name not in SCOPES:  # one checkpoint is as long as it is
        few = too_few(len(asked.sample), "step" if isinstance(found, RunMeasures) else "trace")
    if few is not None:
        return _result(expression, NOT_KNOWN, asked.unit, reason=few)
    value: Number | str | bool = number
    if asked.unit == TRUTH:
        value = bool(number)
    elif not isinstance(number, str):
        value = in_unit(number, asked.unit)
    low_high = _interval(asked)
    note = None
    if low_high is not None and expression.value is not None:
        low, high = low_high
        note = UP_TO_CHANCE if low <= expression.value.number <= high and low < high else None
    found_so = _result(
        expression,
        PASSED if expression.holds(number) else FAILED,
        asked.unit,
        value,
        None if low_high is None else [in_unit(end, asked.unit) for end in low_high],
        n=asked.n,
        reason=note,
    )
    if asked.unit == NS and asked.sample is not None and expression.function is None:
        return replace(found_so, measure=named(expression.name, asked.statistic))
    return found_so


def _interval(asked: Quantity) -> tuple[float, float] | None:
    """Return the interval of a value; None where nothing tells its noise."""
    if asked.sample is None or too_few_for(asked) is not None:
        return None
    found = spread(asked.sample, asked.statistic)
    return interval(found) if found.known else None


def fail_on(expressions: Sequence[Expression], pairs: RunPairs | TracePairs) -> list[Result]:
    """Return which of ``expressions`` hold of the difference: those fail.

    One fails where the difference is beyond noise and beyond the limit. What cannot be compared is not known,
    which is no pass.
    """
    found = [pair(expression, pairs) for expression in expressions]
    comparisons = judged(found)
    return [_held(one, of, comparisons) for one, of in zip(expressions, found, strict=True)]


def _held(expression: Expression, found: Pair, comparisons: int) -> Result:
    told = found.difference(comparisons)
    exact = found.told and found.a.unit == COUNT and found.a.sample is None
    if told.difference is None or (told.interval is None and not exact):
        return _result(expression, NOT_KNOWN, told.unit, reason=told.reason)
    assert expression.value is not None
    relative = expression.value.kind == SHARE
    if relative and told.relative is None:
        return _result(expression, NOT_KNOWN, told.unit, reason="A has none of it: there is no part of that")
    scale = float(told.a) if relative and told.a is not None else 1.0
    measured = told.difference / scale
    ends = [measured, measured] if told.interval is None else [end / scale for end in told.interval]
    beyond = ends[0] > 0 or ends[1] < 0
    status, note = PASSED, None
    if expression.holds(measured) and beyond:
        status = FAILED
    elif expression.holds(measured):
        note = "beyond the limit, and not beyond noise"
    elif any(expression.holds(end) for end in ends):
        note = "the interval reaches beyond the limit: more steps would tell"
    n = [count for count in (told.n_a, told.n_b) if count is not None]
    return replace(
        _result(
            expression,
            status,
            told.unit,
            told.difference,
            told.interval,
            told.relative,
            min(n) if n else None,
            note,
        ),
        measure=found.measure,
    )


def _result(
    expression: Expression,
    status: str,
    unit: str,
    value: Number | str | bool | None = None,
    interval: list[Number] | None = None,
    relative: float | None = None,
    n: int | None = None,
    reason: str | None = None,
) -> Result:
    return Result(expression.text, expression.measure, status, unit, value, interval, relative, n, reason)
