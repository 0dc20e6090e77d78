# SPDX-License-Identifier: Apache-2.0
"""The analyzing half: from telemetry to an answer. Needs the extra ``analyzer`` when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grademl_otel.analyzers.api import (
        check,
        critical_path,
        database,
        dependency_graph,
        diff,
        doctor,
        execution_model,
        export,
        pull,
        push,
        query,
        ranks,
        report,
        resources,
        runs,
    )
    from grademl_otel.analyzers.errors import GrademlError
    from grademl_otel.analyzers.model.clocks import ClockRule
    from grademl_otel.analyzers.reporting.document import PathInfo, PopulationInfo, to_dict
    from grademl_otel.analyzers.reporting.text import render
    from grademl_otel.analyzers.selection import StepRange

_HOMES = {
    "check": "api",
    "critical_path": "api",
    "database": "api",
    "dependency_graph": "api",
    "diff": "api",
    "doctor": "api",
    "execution_model": "api",
    "export": "api",
    "pull": "api",
    "push": "api",
    "query": "api",
    "ranks": "api",
    "report": "api",
    "resources": "api",
    "runs": "api",
    "ClockRule": "model.clocks",
    "GrademlError": "errors",
    "PathInfo": "reporting.document",
    "PopulationInfo": "reporting.document",
    "StepRange": "selection",
    "render": "reporting.text",
    "to_dict": "reporting.document",
}

__all__ = [
    "ClockRule",
    "GrademlError",
    "PathInfo",
    "PopulationInfo",
    "StepRange",
    "check",
    "critical_path",
    "database",
    "dependency_graph",
    "diff",
    "doctor",
    "execution_model",
    "export",
    "pull",
    "push",
    "query",
    "ranks",
    "render",
    "report",
    "resources",
    "runs",
    "to_dict",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        from grademl_otel.analyzers.cli import missing_package  # here, because only a missing extra needs it

        line = missing_package(error)
        if line is None:
            raise
        raise ModuleNotFoundError(line, name=error.name) from None


def __dir__() -> list[str]:
    return __all__
