# SPDX-License-Identifier: Apache-2.0
"""Diagnosis: symptom, evidence, cause, fix, gain; and what was not judged, with how to get it."""

from grademl_otel.analyzers.diagnosis.engine import diagnose
from grademl_otel.analyzers.diagnosis.finding import (
    Abstained,
    Evidence,
    Finding,
    Gain,
    Judgement,
    Verdict,
    Where,
)

__all__ = ["Abstained", "Evidence", "Finding", "Gain", "Judgement", "Verdict", "Where", "diagnose"]
