# SPDX-License-Identifier: Apache-2.0
"""The execution model: one tree of typed phases over all that ran, and the paths that select in it.

What is here is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grademl_otel.analyzers.on_demand import on_demand

if TYPE_CHECKING:
    from grademl_otel.analyzers.execution.dependencies import Dependencies, IllegalDependency
    from grademl_otel.analyzers.execution.model import (
        BESIDE,
        DERIVED,
        INFERRED,
        MISSING,
        SELF,
        Phases,
        Types,
    )
    from grademl_otel.analyzers.execution.of_traces import SpanIdentity
    from grademl_otel.analyzers.execution.patterns import InvalidPattern, NoMatch, Pattern
    from grademl_otel.analyzers.execution.repeatability import CONCURRENT, DAG, ONCE, SEQUENTIAL
    from grademl_otel.analyzers.execution.walkers import Moments, active, moments
    from grademl_otel.analyzers.execution.whole import ExecutionModel, execution_model

_HOMES: Final = {
    "BESIDE": "model",
    "CONCURRENT": "repeatability",
    "DAG": "repeatability",
    "DERIVED": "model",
    "INFERRED": "model",
    "MISSING": "model",
    "ONCE": "repeatability",
    "SELF": "model",
    "SEQUENTIAL": "repeatability",
    "Dependencies": "dependencies",
    "ExecutionModel": "whole",
    "IllegalDependency": "dependencies",
    "InvalidPattern": "patterns",
    "Moments": "walkers",
    "NoMatch": "patterns",
    "Pattern": "patterns",
    "Phases": "model",
    "SpanIdentity": "of_traces",
    "Types": "model",
    "active": "walkers",
    "execution_model": "whole",
    "moments": "walkers",
}

__all__ = [
    "BESIDE",
    "CONCURRENT",
    "DAG",
    "DERIVED",
    "INFERRED",
    "MISSING",
    "ONCE",
    "SELF",
    "SEQUENTIAL",
    "Dependencies",
    "ExecutionModel",
    "IllegalDependency",
    "InvalidPattern",
    "Moments",
    "NoMatch",
    "Pattern",
    "Phases",
    "SpanIdentity",
    "Types",
    "active",
    "execution_model",
    "moments",
]

__getattr__ = on_demand(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
