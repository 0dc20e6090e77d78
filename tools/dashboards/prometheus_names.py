# SPDX-License-Identifier: Apache-2.0
"""What Prometheus calls a metric that it takes by OTLP, for the dashboards."""

from grademl_otel.catalog.prometheus_names import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    UPDOWN,
    label_name,
    metric_name,
)

__all__ = ["COUNTER", "GAUGE", "HISTOGRAM", "UPDOWN", "label_name", "metric_name"]
