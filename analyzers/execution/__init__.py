# SPDX-License-Identifier: Apache-2.0
"""The execution model: one tree of typed phases over all that ran, and the paths that select in it."""

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
