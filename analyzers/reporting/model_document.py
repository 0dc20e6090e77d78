# SPDX-License-Identifier: Apache-2.0
"""The execution model as an answer: its types, which are few, and what came after what among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.shown import Records, Shown

MODEL_SCHEMA: Final = "grademl.execution_model/1"


@dataclass(frozen=True)
class TypeEntry:
    """One type of phases."""

    path: str
    """Its type path."""
    name: str
    repeats: str
    """How its phases repeat within their parents, see execution-model.md."""
    phases: int
    busy_ns: int
    """Time of all of them, those side by side added up."""


@dataclass(frozen=True)
class DependencyEntry:
    """Phases of one type that began after phases of another had ended, as siblings."""

    before: str
    after: str
    """Type paths."""
    evidence: str
    """The best that any of them has."""
    phases: int
    """Between how many pairs of phases."""


@dataclass(frozen=True, kw_only=True)
class ModelDocument(Shown, screen="reporting.model_screen"):
    """Schema `grademl.execution_model/1`."""

    schema: str = MODEL_SCHEMA
    verdict: str | None
    """On the completeness of what was read; null where nobody looked."""
    incomplete_because: list[str]
    phases: int
    types: list[TypeEntry]
    """In preorder: a type before those within it."""
    dependencies: list[DependencyEntry]
    conflicts: list[str]
    """What was told twice, or cannot be, a line each."""

    def _tables(self) -> Mapping[str, Records]:
        return {
            "types": Records(TypeEntry, self.types),
            "dependencies": Records(DependencyEntry, self.dependencies),
        }


def model_document(model: ExecutionModel) -> ModelDocument:
    """Return ``model`` as an answer."""
    types, number = model.types, len(model.types)
    count = np.bincount(model.phases.type, minlength=number).tolist()
    busy = model.busy_by_type().tolist()
    paths = [types.path(node) for node in range(number)]
    return ModelDocument(
        verdict=model.verdict,
        incomplete_because=list(model.incomplete_because),
        phases=len(model),
        types=[
            TypeEntry(paths[node], types.name[node], model.repeats[node], count[node], busy[node])
            for node in range(number)
        ],
        dependencies=[
            DependencyEntry(paths[before], paths[after], evidence, pairs)
            for before, after, evidence, pairs in model.dependencies_of_types()
        ],
        conflicts=list(model.conflicts),
    )
