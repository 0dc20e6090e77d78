# SPDX-License-Identifier: Apache-2.0
"""From what was read for a query, and what the user adds, to who used what."""

from __future__ import annotations

from dataclasses import replace

from grademl_otel.analyzers.attribution.attribute import Attributed
from grademl_otel.analyzers.attribution.builtin import BUILT_IN
from grademl_otel.analyzers.attribution.mapping import gpus_of
from grademl_otel.analyzers.attribution.rules import RuleSet
from grademl_otel.analyzers.modelled import model_of, runs_of
from grademl_otel.analyzers.resources.assemble import resources_of
from grademl_otel.analyzers.resources.settings import ResourceSettings
from grademl_otel.analyzers.subject import Subject


def attributed_of(
    about: Subject, rules: RuleSet | None = None, settings: ResourceSettings | None = None
) -> Attributed:
    """Return the metrics of ``about``, and of what ``settings`` add, attributed to its phases.

    Other names of hosts and capacities in ``rules`` go before those in ``settings``. Raises NothingFound
    where no phase matches the selection, and what `resources_of` does; without metrics it has none.
    """
    rules = rules or RuleSet(BUILT_IN)
    settings = settings or ResourceSettings()
    settings = replace(
        settings,
        aliases={**settings.aliases, **rules.aliases},
        capacities=(*settings.capacities, *rules.capacities),
    )
    return Attributed(model_of(about), resources_of(about, settings), rules, gpus_of(runs_of(about)))
