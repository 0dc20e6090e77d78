# SPDX-License-Identifier: Apache-2.0
"""Every metric: names, units, kinds and needs, in one place.

Plain data: the standard library only, no side effects, so that the analyzing half may read it, too. The page
docs/metrics.md is written from it by ``tools/document_metrics.py``.
"""

from __future__ import annotations

from typing import Final

from grademl_otel.catalog import gpu, host, interconnect, sampler, training
from grademl_otel.catalog.metric import Metric

METRICS: Final[tuple[Metric, ...]] = gpu.METRICS + interconnect.METRICS + host.METRICS + sampler.METRICS
"""Of hardware and hosts, in the order of the documentation. A name may occur several times: where its series
differ in more than their attributes.
"""

ALL: Final[tuple[Metric, ...]] = METRICS + training.METRICS
"""Those, and those that the training counts itself."""
