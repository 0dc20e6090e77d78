# SPDX-License-Identifier: Apache-2.0
"""Metrics of gpu."""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog.metric import Metric

METRICS: Final[tuple[Metric, ...]] = ()
