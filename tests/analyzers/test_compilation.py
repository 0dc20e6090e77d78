# SPDX-License-Identifier: Apache-2.0
"""What compiling costs a run, and what the report says of it."""

from __future__ import annotations

from typing import Any

import pytest

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis import compilation
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.diagnosis.finding import CRITICAL, INFO, WARNING, Judgement
from grademl_otel.analyzers.model.facts import Run, Scope
from grademl_otel.analyzers.reporting.report_screen import in_words
from grademl_otel.analyzers.units import percent
from tests.support.build import R, run_from
from tests.support.synthetic import MS

RUN_MS = 4000


def compiled(at: int, took: int, again: bool, rank: int = 0, why: str = "") -> Scope:
    """A compilation of ``Net.forward``; times in ms."""
    attributes: dict[str, Any] = {sc.COMPILE_FUNCTION: "Net.forward", sc.COMPILE_AGAIN: again}
    if why:
        attributes[sc.COMPILE_REASON] = why
    return Scope(sc.COMPILE, rank, at * MS, (at + took) * MS, 0, attributes)


def run_with(*scopes: Scope, ranks: int = 1) -> Run:
    rows = [
        R(at, at + 40 * MS, step, rank=rank, phases={sc.FORWARD: (at, 30 * MS, 1)})
        for rank in range(ranks)
        for step in range(100)
        for at in (step * 40 * MS,)
    ]
    return run_from(rows, 0, RUN_MS * MS, scopes=scopes)


def shapes(number: int, took: int, rank: int = 0) -> list[Scope]:
    """So many compilations for other shapes, after a first one."""
    return [
        compiled(
            at * 200,
            took,
            at > 0,
            rank,
            f"0/{at}: tensor 'x' size mismatch at index 0. expected {at}, actual 9",
        )
        for at in range(number + 1)
    ]


def values(found: Judgement) -> dict[str, float]:
    return {one.signal: one.value for one in found.findings[0].evidence}


@pytest.mark.parametrize(("took", "severity"), [(50, WARNING), (100, CRITICAL)])
def test_what_is_compiled_again_for_other_shapes(took: int, severity: str) -> None:
    found = compilation.judge(run_with(*shapes(10, took)))
    (finding,) = found.findings
    assert (finding.id, finding.severity, finding.where.ranks) == ("compile.again", severity, [0])
    assert values(found) == {"compile.again.share": 10 * took / RUN_MS, "compile.again.count": 10}
    assert "dynamic=True" in finding.fix[0]
    assert in_words(finding.evidence[0]) == f"compile.again {percent(10 * took / RUN_MS)} of the run"
    assert found.verdict is not None
    first, second = found.verdict.lines
    assert "10 times" in first
    assert second == "All of it is of Net.forward (tensor 'x' size mismatch at index 0)."


def test_for_other_reasons_dynamo_is_asked() -> None:
    found = compilation.judge(
        run_with(*(compiled(at * 200, 100, True, why="0/1: flag is True") for at in range(5)))
    )
    assert "TORCH_LOGS=recompiles" in found.findings[0].fix[0]


def test_of_several_ranks_those_that_pay() -> None:
    found = compilation.judge(run_with(*shapes(8, 100, rank=1), compiled(0, 100, True), ranks=2))
    assert found.findings[0].where.ranks == [1]
    assert values(found) == {"compile.again.share": 0.2, "compile.again.count": 8}


def test_the_first_compilation_is_told_and_no_more() -> None:
    found = compilation.judge(run_with(compiled(0, 1000, False), compiled(1000, 20, True)))
    (finding,) = found.findings
    assert (finding.id, finding.severity) == ("compile.first", INFO)
    assert values(found) == {"compile.share": 1020 / RUN_MS}


def test_short_ones_are_not_worth_a_word() -> None:
    assert compilation.judge(run_with(*shapes(10, 20))) == Judgement([], [])
    assert compilation.judge(run_with()) == Judgement([], [])


def test_recompilations_lead_over_the_slowest_phase() -> None:
    found = diagnose(run_with(*shapes(10, 100)))
    assert found.findings[0].id == "compile.again"
    assert found.verdict is not None
    assert found.verdict.id == "compile.again"
