# SPDX-License-Identifier: Apache-2.0
"""The analyzing half: from telemetry to an answer. Needs the extra ``analyzer`` when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grademl_otel.analyzers.api import critical_path, dependency_graph, report, runs
    from grademl_otel.analyzers.errors import GrademlError
    from grademl_otel.analyzers.reporting.document import to_dict
    from grademl_otel.analyzers.reporting.text import render
    from grademl_otel.analyzers.selection import StepRange

_HOMES = {
    "critical_path": "api",
    "dependency_graph": "api",
    "report": "api",
    "runs": "api",
    "GrademlError": "errors",
    "StepRange": "selection",
    "render": "reporting.text",
    "to_dict": "reporting.document",
}

__all__ = [
    "GrademlError",
    "StepRange",
    "critical_path",
    "dependency_graph",
    "render",
    "report",
    "runs",
    "to_dict",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__
