# SPDX-License-Identifier: Apache-2.0
"""All that a process can say of where it runs: cheap, in part where not all can be had, never a secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final

from grademl_otel.resource_detectors.budget import Budget
from grademl_otel.resource_detectors.partial import Facts, collect

if TYPE_CHECKING:
    from grademl_otel.resource_detectors.places import Places

SECONDS: Final = 0.04
"""What takes long may cost this, all together, on a host with accelerators."""
SECONDS_WITHOUT: Final = 0.003
"""The same on another host: there, all of it is to cost less than 5 ms."""


def facts(environ: Mapping[str, str] | None = None) -> Facts:
    """Return what is known of accelerators, job, frameworks, source and container; never raises.

    All but the job is looked at once in the life of a process and of those that it forks.
    """
    from grademl_otel.resource_detectors.launcher import job_facts

    environ = os.environ if environ is None else environ
    if _looked_at is None:
        _look(environ)
    return (_looked_at or {}) | collect([lambda: job_facts(environ)])


def look(environ: Mapping[str, str], places: Places | None = None) -> Facts:
    """Return the facts that do not change in the life of a process, looked at anew; never raises.

    ``places`` is where drivers of accelerators tell of them, when not in the usual places.
    """
    from grademl_otel.resource_detectors.container import container_facts
    from grademl_otel.resource_detectors.frameworks import framework_facts
    from grademl_otel.resource_detectors.places import any_accelerator
    from grademl_otel.resource_detectors.source import source_facts

    began = perf_counter()
    # A driver is looked for, as a host may have one of a display only.
    accelerators = collect([lambda: _accelerators(environ, places)] if any_accelerator(places) else [])
    budget = Budget(SECONDS - (perf_counter() - began) if accelerators else SECONDS_WITHOUT)
    return accelerators | collect(
        [
            lambda: framework_facts(budget),
            lambda: source_facts(budget.left()),
            lambda: container_facts(environ),
            lambda: _pod(environ),
        ]
    )


def _pod(environ: Mapping[str, str]) -> Facts:
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return {}  # what is not needed is not loaded
    from grademl_otel.resource_detectors.kubernetes import kubernetes_facts

    return kubernetes_facts(environ)


def _accelerators(environ: Mapping[str, str], places: Places | None) -> Facts:
    from grademl_otel.resource_detectors.accelerators import accelerator_facts

    return accelerator_facts(environ, SECONDS, places)


_looked_at: Facts | None = None


def _look(environ: Mapping[str, str]) -> None:
    global _looked_at
    _looked_at = look(environ)
