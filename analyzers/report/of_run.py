# SPDX-License-Identifier: Apache-2.0
"""The answer about a run of ours: its critical path, lane budget, steady step, findings and verdict."""

from __future__ import annotations

from grademl_otel import semconv as sc
from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.graph import Path, lane_budget, run_path, step_breakdown
from grademl_otel.analyzers.graph.budget import StepBreakdown
from grademl_otel.analyzers.model.columns import Telemetry
from grademl_otel.analyzers.model.run import HowEnded, Run
from grademl_otel.analyzers.report.completeness import completeness_info
from grademl_otel.analyzers.report.document import (
    BudgetEntry,
    CriticalPathDocument,
    EndedInfo,
    LoaderInfo,
    Percentiles,
    PhaseShare,
    ReportDocument,
    RunInfo,
    SourceInfo,
    StepInfo,
    StepWindow,
    Window,
)
from grademl_otel.analyzers.report.sections import path_info, summarize
