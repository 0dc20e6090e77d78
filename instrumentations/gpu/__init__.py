# SPDX-License-Identifier: Apache-2.0
"""Sources of GPUs: of NVIDIA through nvidia-ml-py, of AMD through amdsmi; metrics of both have the same names."""

from __future__ import annotations

from grademl_otel.sampling.source import Provider


def providers() -> list[Provider]:
    """Return what finds GPUs. Nothing of a vendor is imported or opened before it is asked for sources."""
    from grademl_otel.instrumentations.gpu.nvidia import NvidiaProvider

    return [NvidiaProvider()]
