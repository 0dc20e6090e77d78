# SPDX-License-Identifier: Apache-2.0
"""The job that a process belongs to: launcher, job and step, and the process' place among its ranks."""

from __future__ import annotations

import os
from typing import Final

from opentelemetry.sdk.resources import Resource, ResourceDetector

from grademl_otel import identity, semconv

JOB_LAUNCHER: Final = "grademl.job.launcher"
"""``torchrun``, ``torch``, ``slurm`` or ``mpi``."""

_ATTRIBUTES: Final = (
    # The first of the variables that is set gives the attribute. Launchers use these ids again: they tell of
    # the job, and are never a run's identity.
    ("grademl.job.id", ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")),
    ("grademl.job.step", ("SLURM_STEP_ID",)),
    ("grademl.job.name", ("SLURM_JOB_NAME",)),
    ("grademl.job.node", ("SLURMD_NODENAME",)),
)


class JobResourceDetector(ResourceDetector):
    """Reads the launcher's variables: no waiting, no network, a partial answer rather than an error."""

    def detect(self) -> Resource:
        """Return what is known; empty for a process that was started by hand."""
        try:
            return Resource(_attributes())
        except Exception:
            if self.raise_on_error:
                raise
            return Resource.get_empty()


def _attributes() -> dict[str, str | int]:
    attributes: dict[str, str | int] = {}
    launcher = identity.launcher_of(os.environ)
    if launcher is not None:
        place = identity.place_from_environment(os.environ)
        attributes[JOB_LAUNCHER] = launcher
        attributes[semconv.RANK] = place.rank
        attributes[semconv.LOCAL_RANK] = place.local_rank
        attributes[semconv.WORLD_SIZE] = place.world_size
        attributes[semconv.ATTEMPT] = place.attempt
    for key, variables in _ATTRIBUTES:
        value = next((os.environ[name] for name in variables if os.environ.get(name)), None)
        if value is not None:
            attributes[key] = value
    return attributes
