# SPDX-License-Identifier: Apache-2.0
"""From an expression to what it asks for: a quantity of one side, or a pair of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NoReturn

from grademl_otel import semconv as sc
from grademl_otel.analyzers.comparison.expressions import (
    NUMBER,
    POINTS,
    SHARE,
    TIME,
    WORD,
    Expression,
    suggestion,
)
from grademl_otel.analyzers.comparison.judging import Pair
from grademl_otel.analyzers.comparison.measures import COUNT, FRACTION, NS, RATE, TRUTH, WORDS, Quantity
from grademl_otel.analyzers.comparison.of_run import SCOPES, RunMeasures
from grademl_otel.analyzers.comparison.of_traces import TraceMeasures
from grademl_otel.analyzers.comparison.pairs import RunPairs, TracePairs
from grademl_otel.analyzers.comparison.resampling import MEAN, MEDIAN, Statistic
from grademl_otel.analyzers.comparison.usual import steadier, usual, usual_pair
from grademl_otel.analyzers.diagnosis.engine import RULES
from grademl_otel.analyzers.errors import UsageError

SEVERITIES: Final = ("none", "info", "warning", "critical")
ENDS: Final = ("exit", "exception", "killed", "unknown")

_KINDS: Final = {
    NS: (TIME,), FRACTION: (SHARE,), RATE: (NUMBER,), COUNT: (NUMBER,), WORDS: (WORD,), TRUTH: (),
}  # fmt: skip
_EXAMPLES: Final = {
    NS: "a time, as 200ms", FRACTION: "a share, as 10%", RATE: "a number, as 1000", COUNT: "a number, as 8",
    WORDS: "a word, as exit", TRUTH: "nothing: `complete` stands alone",
}  # fmt: skip
_WORDS: Final = {"ended": ENDS, "finding": SEVERITIES}


def quantity(expression: Expression, found: RunMeasures | TraceMeasures) -> Quantity:
    """Return what ``expression`` asks of ``found``; UsageError where there is no such measure, or its value
    is of another kind.
    """
    share = expression.value is not None and expression.value.kind == SHARE
    asked = (
        _of_run(expression, found, share) if isinstance(found, RunMeasures) else _of_traces(expression, found)
    )
    _check_value(expression, asked.unit)
    return asked


def _of_run(expression: Expression, found: RunMeasures, share: bool) -> Quantity:
    name, function = expression.name, expression.function
    if function == "path":
        return found.path(_known(expression, [*found.phases, *found.on_path()], sc.PHASES))
    if function == "budget":
        return found.budget(_known(expression, found.budget_parts, _budget_names(found)), share)
    if function == "finding":
        return found.finding(_known(expression, RULES))
    if function in ("own", "errors"):
        raise UsageError(f"{expression.measure}: that is told of traces; this is a run")
    if name == "step_time":
        return _usual(expression, found.step_time, found)
    if name == "samples_per_s":
        return found.samples_per_s(MEAN if function is None else _statistic(expression))
    if name in SCOPES:
        return _usual(expression, partial(found.scope, name))
    if function is None and name in ("exposed_wait", "findings"):
        return found.exposed_wait() if name == "exposed_wait" else found.findings()
    if function is None and (plain := found.plain().get(name)) is not None:
        return plain
    phase = _known(expression, found.names(), sc.PHASES)
    if phase in found.plain() or phase in ("exposed_wait", "findings"):
        raise UsageError(f"{expression.measure}: {phase} is one number, of which no {function} can be told")
    if share and function is None:
        return found.phase(phase, share=True)
    return _usual(expression, partial(found.phase, phase), found)


def _usual(
    expression: Expression, make: Callable[[Statistic], Quantity], found: RunMeasures | None = None
) -> Quantity:
    """Return the quantity by the function that was given; without one as the answer of diff has it. Of the
    steps of ``found`` a phase is told as the step is.
    """
    if expression.function is not None:
        return make(_statistic(expression))
    if found is not None and found.usual_step.statistic == MEAN:
        return make(MEAN)
    return usual(make)


def _budget_names(found: RunMeasures) -> list[str]:
    return [
        *found.budget_parts,
        "start-up",
        "epoch gap",
        "teardown",
        "idle",
        "untraced",
        *sc.PHASES,
        sc.EVALUATE,
    ]


def _of_traces(expression: Expression, found: TraceMeasures) -> Quantity:
    name, function = expression.name, expression.function
    if function in ("budget", "finding"):
        raise UsageError(f"{expression.measure}: that is told of runs recorded by grademl-otel; here is none")
    if function in ("own", "path", "errors"):
        which = found.called(_operation(expression, found))
        of = {"own": found.own, "path": found.path, "errors": found.errors}
        return of[function](which)
    statistic = _statistic(expression)
    if name == "duration":
        return found.duration(statistic)
    if function is None and name == "errors":
        return found.errors()
    if function is None and (plain := found.plain().get(name)) is not None:
        return plain
    return found.operation(found.called(_operation(expression, found)), statistic)


def pair(expression: Expression, pairs: RunPairs | TracePairs) -> Pair:
    """Return what ``expression`` compares; UsageError as `quantity`, also where it cannot be a difference."""
    if expression.value is None or expression.operator not in ("<", "<=", ">", ">="):
        raise UsageError(f"{expression.text}: a difference needs a limit, as step_time>5%")
    found = (
        _pair_of_runs(expression, pairs)
        if isinstance(pairs, RunPairs)
        else _pair_of_traces(expression, pairs)
    )
    unit, kind = found.a.unit, expression.value.kind
    if kind == SHARE or (kind == POINTS and unit == FRACTION) or kind in _KINDS[unit]:
        return found
    right = "a part of A, as 5%" + (", or points, as 5pp" if unit == FRACTION else f", or {_EXAMPLES[unit]}")
    raise UsageError(f"{expression.text}: the difference is {right}; not {expression.value.text!r}")


def _pair_of_runs(expression: Expression, pairs: RunPairs) -> Pair:
    name, function = expression.name, expression.function
    known = [*pairs.a.names(), *pairs.b.names()]
    if function == "path":
        return pairs.path(_known(expression, [*pairs.a.on_path(), *pairs.b.on_path()], known))
    if function == "budget":
        parts = [*pairs.a.budget_parts, *pairs.b.budget_parts]
        return pairs.budget(_known(expression, parts, _budget_names(pairs.a)))
    if function in ("finding", "errors", "own"):
        raise UsageError(f"{expression.measure} is no difference of runs; `grademl check` takes findings")
    if name == "step_time":
        return _by(expression, pairs.step_time, pairs.usual_step)
    if name == "samples_per_s":
        return _by(expression, pairs.samples_per_s, pairs.samples_per_s)
    if name in SCOPES:
        scope = partial(pairs.scope, name)
        return _by(expression, scope, partial(usual_pair, scope))
    if name == "wall" and function is None:
        return pairs.wall()
    phase = _known(expression, known, sc.PHASES)
    plain = [side.plain() for side in (pairs.a, pairs.b)]
    if phase in plain[0] or phase in ("exposed_wait", "findings"):
        if phase in ("ended", "complete", "findings", "exposed_wait") or function is not None:
            raise UsageError(f"{expression.measure} is no difference of runs; `grademl check` takes it")
        return Pair(phase, "run", plain[0][phase], plain[1][phase])
    return _by(expression, partial(pairs.phase, phase), partial(pairs.usual_phase, phase))


def _pair_of_traces(expression: Expression, pairs: TracePairs) -> Pair:
    name, function = expression.name, expression.function
    if function in ("budget", "finding"):
        raise UsageError(f"{expression.measure}: that is told of runs recorded by grademl-otel; here is none")
    if name == "duration" and function not in ("own", "path", "errors"):
        return _by(expression, pairs.duration, partial(steadier, pairs.duration))
    if function is None and name == "errors":
        return pairs.errors()
    plain = [side.plain() for side in (pairs.a, pairs.b)]
    if function is None and name in plain[0]:
        if name == "complete":
            raise UsageError("complete is no difference; `grademl check` takes it")
        return Pair(name, "run", plain[0][name], plain[1][name])
    in_a, in_b = pairs.a.called(name), pairs.b.called(name)
    if not in_a and not in_b:
        _no_such(expression, [*pairs.a.names(), *pairs.b.names()])
    if function == "own":
        return pairs.own(name, in_a, in_b)
    if function == "path":
        return pairs.path(name, in_a, in_b)
    if function == "errors":
        return pairs.errors(name)
    operation = partial(pairs.operation, name, in_a, in_b)
    return _by(expression, operation, partial(steadier, operation))


def _by(expression: Expression, make: Callable[[Statistic], Pair], plainly: Callable[[], Pair]) -> Pair:
    """Return the pair by the function that was given; without one as the answer has it, median or mean."""
    return plainly() if expression.function is None else make(_statistic(expression))


def _operation(expression: Expression, found: TraceMeasures) -> str:
    if not found.called(expression.name):
        _no_such(expression, found.names())
    return expression.name


def _known(expression: Expression, here: Iterable[str], possible: Iterable[str] = ()) -> str:
    """Return the name of ``expression`` if it is one that is ``here``, or one that could be."""
    known = [*dict.fromkeys([*here, *possible])]
    if expression.name not in known:
        _no_such(expression, known)
    return expression.name


def _no_such(expression: Expression, known: Iterable[str]) -> NoReturn:
    what = expression.measure
    near = suggestion(expression.name, known)
    raise UsageError(f"{what}: no measure {expression.name!r} here{near or '; docs/comparing.md lists them'}")


def _statistic(expression: Expression) -> Statistic:
    if expression.function == "mean":
        return MEAN
    return MEDIAN if expression.quantile is None else Statistic(expression.quantile)


def _check_value(expression: Expression, unit: str) -> None:
    """Raise UsageError where what is asked for has another unit than the value."""
    value = expression.value
    if value is None:
        if unit != TRUTH:
            raise UsageError(
                f"{expression.text}: compare it with {_EXAMPLES[unit]}, as {_shown(expression, unit)}"
            )
        return
    if value.kind not in _KINDS[unit]:
        raise UsageError(f"{expression.text}: {expression.measure} is {_EXAMPLES[unit]}; not {value.text!r}")
    if unit != WORDS:
        return
    words = _WORDS[expression.function or expression.name]
    if expression.operator not in ("=", "!="):
        raise UsageError(f"{expression.text}: words are compared by = and !=")
    if value.text not in words:
        raise UsageError(f"{expression.text}: {value.text!r} is none of {', '.join(words)}")


def _shown(expression: Expression, unit: str) -> str:
    examples = {NS: "<200ms", FRACTION: "<10%", RATE: ">=1000", COUNT: "=8", WORDS: "=exit"}
    return f"{expression.measure}{examples[unit]}"
