# SPDX-License-Identifier: Apache-2.0
"""Compiling: again and again for what does not fit, or once before the steps are at their speed.

Cost is share of the run, not of a steady step: compilations are no part of that. What is compiled for the
first time is paid once, however long the run is, and only told; what is compiled again costs as long as new
shapes come.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis.finding import (
    CRITICAL,
    CRITICAL_SHARE,
    INFO,
    WARN_SHARE,
    WARNING,
    Evidence,
    Finding,
    Judgement,
    Verdict,
    Where,
)
from grademl_otel.analyzers.model.facts import Scope
from grademl_otel.analyzers.model.run import Run
from grademl_otel.analyzers.units import count, duration, percent

AGAIN: Final = "compile.again"
FIRST: Final = "compile.first"
_PERSISTENT: Final = 3
"""Compilations of what was compiled before, without which they are not called a habit."""
_SHAPES: Final = "size mismatch"
_NUMBERS: Final = re.compile(r"^\d+/\d+: |\. expected .*$")
"""In a reason of Dynamo's: which compilation did not fit, and the sizes."""


def judge(run: Run) -> Judgement:
    """Conclude what compiling costs, where that is a tenth of the run of a rank or more."""
    wall = run.end - run.start
    compiled = [scope for scope in run.scopes if scope.name == sc.COMPILE]
    if not compiled or not wall:
        return Judgement([], [])
    again = [scope for scope in compiled if scope.attributes.get(sc.COMPILE_AGAIN) is True]
    ranks = _costly(again, wall)
    if ranks and len(again) >= _PERSISTENT * len(ranks):
        return _again([scope for scope in again if scope.rank in ranks], ranks, wall)
    ranks = _costly(compiled, wall)
    if not ranks:
        return Judgement([], [])
    return _first([scope for scope in compiled if scope.rank in ranks], ranks, wall)


def _again(again: list[Scope], ranks: list[int], wall: int) -> Judgement:
    share = _time(again) / len(ranks) / wall
    severity = CRITICAL if share >= CRITICAL_SHARE else WARNING
    limit = CRITICAL_SHARE if severity == CRITICAL else WARN_SHARE
    reasons = Counter(reason for scope in again if (reason := _reason(scope)))
    functions = Counter(str(scope.attributes.get(sc.COMPILE_FUNCTION, "")) for scope in again)
    function, times = functions.most_common(1)[0]
    finding = Finding(
        id=AGAIN,
        severity=severity,
        where=Where(ranks),
        evidence=[
            Evidence("compile.again.share", share, limit, "1", len(again)),
            Evidence(
                "compile.again.count", len(again) / len(ranks), _PERSISTENT, "{compilation}", len(again)
            ),
        ],
        fix=_fixes(reasons),
        gain=None,
    )
    each = " on each rank" if len(ranks) > 1 else ""
    lines = [
        f"What is compiled already is compiled again: {count(len(again) // len(ranks), 'time')}{each},"
        f" {percent(share)} of the run."
    ]
    if function:
        why = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
        part = "All" if times == len(again) else percent(times / len(again))
        lines.append(f"{part} of it is of {function}{why}.")
    return Judgement([finding], [], Verdict(AGAIN, severity, lines))


def _first(compiled: list[Scope], ranks: list[int], wall: int) -> Judgement:
    took = _time(compiled) / len(ranks)
    finding = Finding(
        id=FIRST,
        severity=INFO,
        where=Where(ranks),
        evidence=[Evidence("compile.share", took / wall, WARN_SHARE, "1", len(compiled))],
        fix=["a longer run pays for it once; shorter ones are quicker without torch.compile"],
        gain=None,
    )
    lines = [
        f"Compiling takes {duration(took)}, {percent(took / wall)} of the run, before its steps are at their"
        " speed."
    ]
    return Judgement([finding], [], Verdict(FIRST, INFO, lines))


def _costly(scopes: list[Scope], wall: int) -> list[int]:
    """Return the ranks in which these take a tenth of the run or more."""
    return sorted(
        rank
        for rank in {scope.rank for scope in scopes}
        if _time([scope for scope in scopes if scope.rank == rank]) >= WARN_SHARE * wall
    )


def _time(scopes: list[Scope]) -> int:
    return sum(scope.end - scope.start for scope in scopes)


def _reason(scope: Scope) -> str:
    """Why it was compiled again, without the numbers, which differ each time."""
    return _NUMBERS.sub("", str(scope.attributes.get(sc.COMPILE_REASON, "")))


def _fixes(reasons: Counter[str]) -> list[str]:
    shapes = sum(number for reason, number in reasons.items() if _SHAPES in reason)
    if shapes * 2 > sum(reasons.values()):
        return [
            "give all batches one shape: drop_last=True in the DataLoader where the last is smaller, padding"
            " to few lengths; or torch.compile(..., dynamic=True)"
        ]
    return ["run it with TORCH_LOGS=recompiles: it says what changes between the calls"]
