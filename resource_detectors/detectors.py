# SPDX-License-Identifier: Apache-2.0
"""The job that a process belongs to: launcher, job and step, and the process' place among its ranks."""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource, ResourceDetector

from grademl_otel import semconv
from grademl_otel.identity import launcher_of, place_from_environment
from grademl_otel.job import job_facts


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
    if launcher_of(os.environ) is not None:
        place = place_from_environment(os.environ)
        attributes[semconv.RANK] = place.rank
        attributes[semconv.LOCAL_RANK] = place.local_rank
        attributes[semconv.WORLD_SIZE] = place.world_size
        attributes[semconv.ATTEMPT] = place.attempt
    return attributes | job_facts(os.environ)
