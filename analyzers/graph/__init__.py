# SPDX-License-Identifier: Apache-2.0
"""The dependency graph of a run or a trace, its critical path, and where the time of each main lane went.

What is here is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grademl_otel.analyzers.on_demand import on_demand

if TYPE_CHECKING:
    from grademl_otel.analyzers.graph.budget import (
        FEW_STEPS,
        LaneBudgetRow,
        PhaseOfStep,
        Quantiles,
        StepBreakdown,
        lane_budget,
        steady_level,
        steady_rows,
        step_breakdown,
    )
    from grademl_otel.analyzers.graph.drawn import event_networkx, path_networkx
    from grademl_otel.analyzers.graph.event_graph import EDGE_KINDS, Edges, EventGraph
    from grademl_otel.analyzers.graph.path import EnteredBy, Path, Section, Sections
    from grademl_otel.analyzers.graph.runs.activities import Activities, activities
    from grademl_otel.analyzers.graph.runs.run_graph import run_graph
    from grademl_otel.analyzers.graph.runs.run_path import run_path, step_path
    from grademl_otel.analyzers.graph.summary import SummaryRow, run_summary, tree_summary
    from grademl_otel.analyzers.graph.trees.forest import trace_paths, tree_path
    from grademl_otel.analyzers.graph.trees.span_tree import SpanTree, trace_roots
    from grademl_otel.analyzers.graph.trees.tolerance import DEFAULT_TOLERANCE, OverlapTolerance
    from grademl_otel.analyzers.graph.trees.trace_paths import TracePaths

_HOMES: Final = {
    "DEFAULT_TOLERANCE": "trees.tolerance",
    "EDGE_KINDS": "event_graph",
    "FEW_STEPS": "budget",
    "Activities": "runs.activities",
    "Edges": "event_graph",
    "EnteredBy": "path",
    "EventGraph": "event_graph",
    "LaneBudgetRow": "budget",
    "OverlapTolerance": "trees.tolerance",
    "Path": "path",
    "PhaseOfStep": "budget",
    "Quantiles": "budget",
    "Section": "path",
    "Sections": "path",
    "SpanTree": "trees.span_tree",
    "StepBreakdown": "budget",
    "SummaryRow": "summary",
    "TracePaths": "trees.trace_paths",
    "activities": "runs.activities",
    "event_networkx": "drawn",
    "lane_budget": "budget",
    "path_networkx": "drawn",
    "run_graph": "runs.run_graph",
    "run_path": "runs.run_path",
    "run_summary": "summary",
    "steady_level": "budget",
    "steady_rows": "budget",
    "step_breakdown": "budget",
    "step_path": "runs.run_path",
    "trace_paths": "trees.forest",
    "trace_roots": "trees.span_tree",
    "tree_path": "trees.forest",
    "tree_summary": "summary",
}

__all__ = [
    "DEFAULT_TOLERANCE",
    "EDGE_KINDS",
    "FEW_STEPS",
    "Activities",
    "Edges",
    "EnteredBy",
    "EventGraph",
    "LaneBudgetRow",
    "OverlapTolerance",
    "Path",
    "PhaseOfStep",
    "Quantiles",
    "Section",
    "Sections",
    "SpanTree",
    "StepBreakdown",
    "SummaryRow",
    "TracePaths",
    "activities",
    "event_networkx",
    "lane_budget",
    "path_networkx",
    "run_graph",
    "run_path",
    "run_summary",
    "steady_level",
    "steady_rows",
    "step_breakdown",
    "step_path",
    "trace_paths",
    "trace_roots",
    "tree_path",
    "tree_summary",
]

__getattr__ = on_demand(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
