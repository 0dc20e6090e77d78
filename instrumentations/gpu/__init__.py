# SPDX-License-Identifier: Apache-2.0
"""Sources of GPUs: of NVIDIA through nvidia-ml-py, of AMD through amdsmi; under the same names.

Nothing is loaded here: every program under `opentelemetry-instrument` imports this package at its start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from grademl_otel.sampling.source import Provider

_PROVIDERS: Final = (("nvidia", "NvidiaProvider"), ("amd", "AmdProvider"))
"""Modules here, and classes in them."""


def providers() -> list[Provider]:
    """Return what finds GPUs. Nothing of a vendor is imported or opened before it is asked for sources."""
    found: list[Provider] = []
    for module, name in _PROVIDERS:
        try:
            found.append(getattr(import_module(f"{__name__}.{module}"), name)())
        except Exception:  # what cannot be loaded here must not cost the other
            continue
    return found
