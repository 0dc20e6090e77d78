# SPDX-License-Identifier: Apache-2.0
"""Tables of a subject, made when they are asked for, and of them only the columns that are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables.attributed import ATTRIBUTED, attributed
from grademl_otel.analyzers.tables.budget import BUDGET, budget
from grademl_otel.analyzers.tables.material import Material, material
from grademl_otel.analyzers.tables.metrics import METRICS, metrics
from grademl_otel.analyzers.tables.path import PATH, path
from grademl_otel.analyzers.tables.phases import PHASES, phases
from grademl_otel.analyzers.tables.runs import RUNS, runs
from grademl_otel.analyzers.tables.schema import TableSchema
from grademl_otel.analyzers.tables.side import (
    ATTRIBUTES,
    EVENTS,
    LINKS,
    RESOURCES,
    SCOPES,
    attributes,
    events,
    links,
    resources,
    scopes,
)
from grademl_otel.analyzers.tables.spans import SPANS, spans
from grademl_otel.analyzers.tables.steps import STEP_PHASES, STEPS, step_phases, steps
from grademl_otel.analyzers.tables.values import Makers

if TYPE_CHECKING:
    import pyarrow as pa

_TABLES: Final[tuple[tuple[TableSchema, Callable[[Material], Makers]], ...]] = (
    (SPANS, spans),
    (STEPS, steps),
    (STEP_PHASES, step_phases),
    (PHASES, phases),
    (METRICS, metrics),
    (ATTRIBUTED, attributed),
    (PATH, path),
    (BUDGET, budget),
    (RUNS, runs),
    (ATTRIBUTES, attributes),
    (EVENTS, events),
    (LINKS, links),
    (RESOURCES, resources),
    (SCOPES, scopes),
)

TABLES: Final[Mapping[str, TableSchema]] = {schema.name: schema for schema, _ in _TABLES}
"""Name -> schema of every table."""
_OF_RUNS: Final = frozenset(one.name for one in (STEPS, STEP_PHASES, BUDGET, RUNS))
_MAKERS: Final = {schema.name: maker for schema, maker in _TABLES}


def table(about: Subject, name: str, columns: Collection[str] | None = None) -> pa.Table:
    """Return the table ``name`` of what ``about`` is about, or those of its ``columns`` alone.

    Columns have the types of the schema and stand in its order; only those asked for are made. What is made
    for several tables, as the execution model, is kept with ``about``. KeyError for a table or a column that
    does not exist.
    """
    from grademl_otel.analyzers.tables.arrow import made  # pyarrow is for who wants rows

    schema = TABLES[name]
    if columns is not None and (unknown := set(columns) - set(schema.column_names)):
        raise KeyError(min(unknown))
    names = [one for one in schema.column_names if columns is None or one in columns]
    return made(schema, _MAKERS[name](material(about)), names)


def attributes_of(about: Subject, keys: Collection[str]) -> pa.Table:
    """Return the table ``attributes`` with those of ``keys`` alone."""
    from grademl_otel.analyzers.tables.arrow import made

    return made(ATTRIBUTES, attributes(material(about), keys), ATTRIBUTES.column_names)


def why_empty(about: Subject, name: str) -> str | None:
    """Return one line on why the table ``name`` has no rows; None where it has some."""
    if table(about, name, TABLES[name].column_names[:1]).num_rows:
        return None
    uri, run = about.telemetry.uri, about.run
    if name in _OF_RUNS:
        if run is None:
            return f"{name}: of a run of ours only, and {uri} has none that the query is about"
        return f"{name}: no step of run {run.run_id} was recorded"
    if name == PATH.name:
        return f"path: no trace of {uri} matches the selection"
    if name == METRICS.name:
        return material(about).why_no_points or "metrics: none of this part of the run"
    if name == ATTRIBUTED.name:
        return f"attributed: {material(about).why_not_attributed or 'no phase uses what was observed'}"
    return f"{name}: {uri} has none"
