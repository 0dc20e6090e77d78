# SPDX-License-Identifier: Apache-2.0
"""From what was read, and what the user adds, to the resource model."""

from __future__ import annotations

from grademl_otel.analyzers.resources.model import ResourceModel
from grademl_otel.analyzers.resources.settings import ResourceSettings
from grademl_otel.analyzers.subject import Subject


def resources_of(about: Subject, settings: ResourceSettings | None = None) -> ResourceModel:
    """Return all resources and metrics that are known of the time and the hosts of ``about``.

    What could not be used is in its ``problems``. Raises SourceError, NothingFound and UsageError for a
    further source that cannot be read.
    """
    raise NotImplementedError
