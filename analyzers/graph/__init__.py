# SPDX-License-Identifier: Apache-2.0
"""The dependency graph of a run or a trace, its critical path, and where the time of each main lane went."""

from grademl_otel.analyzers.graph.path import EnteredBy, Path, Section
from grademl_otel.analyzers.graph.shorten import shortened_total
from grademl_otel.analyzers.graph.tolerance import DEFAULT_TOLERANCE, OverlapTolerance
from grademl_otel.analyzers.graph.tree import SpanTree, trace_paths, trace_roots, tree_path
from grademl_otel.analyzers.verbs import callable_as_verb

__all__ = [
    "DEFAULT_TOLERANCE",
    "EnteredBy",
    "OverlapTolerance",
    "Path",
    "Section",
    "SpanTree",
    "shortened_total",
    "trace_paths",
    "trace_roots",
    "tree_path",
]

callable_as_verb(__name__)  # the verb `analyzers.graph(...)` has the same name
