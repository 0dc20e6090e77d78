# SPDX-License-Identifier: Apache-2.0
"""The facts as resource detectors of OpenTelemetry, for programs and pipelines that are not ours.

Runs have all of them without any setting. A detector is run twice at a program's start and nothing stops it
when it is slow, so each has a budget of time of its own. None has a schema URL, which would make resources
of others impossible to merge; none tells a service.
"""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource, ResourceDetector

from grademl_otel import semconv
from grademl_otel.identity import launcher_of, place_from_environment
from grademl_otel.resource_detectors.accelerators import accelerator_facts
from grademl_otel.resource_detectors.budget import Budget
from grademl_otel.resource_detectors.container import container_facts
from grademl_otel.resource_detectors.facts import SECONDS, SECONDS_WITHOUT
from grademl_otel.resource_detectors.frameworks import framework_facts
from grademl_otel.resource_detectors.kubernetes import kubernetes_facts
from grademl_otel.resource_detectors.launcher import job_facts
from grademl_otel.resource_detectors.partial import Facts
from grademl_otel.resource_detectors.places import any_accelerator
from grademl_otel.resource_detectors.source import source_facts


class _FactsDetector(ResourceDetector):
    """A partial answer rather than an error."""

    def detect(self) -> Resource:
        """Return what is known; empty where nothing is."""
        try:
            found = self._facts()
            return Resource({key: value for key, value in found.items() if value not in ("", [])})
        except Exception:
            if self.raise_on_error:
                raise
            return Resource.get_empty()

    def _facts(self) -> Facts:
        raise NotImplementedError


def _seconds() -> float:
    """What each of the three that take long may cost."""
    return SECONDS / 3 if any_accelerator() else SECONDS_WITHOUT


class JobResourceDetector(_FactsDetector):
    """Launcher, job and pod, and the process' place among the ranks."""

    def _facts(self) -> Facts:
        facts: Facts = {}
        if launcher_of(os.environ) is not None:
            place = place_from_environment(os.environ)
            facts[semconv.RANK] = place.rank
            facts[semconv.LOCAL_RANK] = place.local_rank
            facts[semconv.WORLD_SIZE] = place.world_size
            facts[semconv.ATTEMPT] = place.attempt
        return facts | kubernetes_facts(os.environ) | job_facts(os.environ)


class AcceleratorResourceDetector(_FactsDetector):
    """Model, number, memory and driver of the accelerators."""

    def _facts(self) -> Facts:
        return accelerator_facts(os.environ, _seconds())


class FrameworkResourceDetector(_FactsDetector):
    """Versions of the installed frameworks and of Python."""

    def _facts(self) -> Facts:
        return framework_facts(Budget(_seconds()))


class SourceResourceDetector(_FactsDetector):
    """Commit, branch and repository of the program."""

    def _facts(self) -> Facts:
        return source_facts(_seconds())


class ContainerResourceDetector(_FactsDetector):
    """The container that the process is in."""

    def _facts(self) -> Facts:
        return container_facts(os.environ)
