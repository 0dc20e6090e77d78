# SPDX-License-Identifier: Apache-2.0
"""Tables of a subject, made when they are asked for, and of them only the columns that are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from grademl_otel.analyzers.subject import Subject
from grademl_otel.analyzers.tables.budget import BUDGET, budget
from grademl_otel.analyzers.tables.material import Material, material
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
