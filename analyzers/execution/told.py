# SPDX-License-Identifier: Apache-2.0
"""What spans say of the order and the repetition of phases: links, and attributes.

========================  ==================================================================================
link of kind ``follows``  the span began after the one that it points at had ended (also a link of no kind)
``grademl.after``         str or str[]: what it comes after among its siblings: span ids (16 hex digits),
                          identifiers, or names. A name means all siblings of that name
``grademl.repeats``       str, on a parent: how those of its types of children that repeat do it:
                          ``sequential``, ``concurrent``, ``dag``
========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.execution.conflicts import Conflicts
from grademl_otel.analyzers.execution.dependencies import Dependencies
from grademl_otel.analyzers.execution.model import SELF, Phases
from grademl_otel.analyzers.execution.owners import linked
from grademl_otel.analyzers.execution.repeatability import CONCURRENT, DAG, SEQUENTIAL
from grademl_otel.analyzers.graph.path import ATTRIBUTE, OBSERVED
from grademl_otel.analyzers.model.columns import SpanColumns

AFTER: Final = "grademl.after"
REPEATS: Final = "grademl.repeats"
FOLLOWS: Final = "follows"
MOST_NAMED: Final = 1_000_000
"""Most dependencies that names may mean: n siblings after n of one name are n x n."""


def told(
    spans: SpanColumns, phases: Phases, placed: IntArray, conflicts: Conflicts
) -> tuple[Dependencies, dict[int, str]]:
    """Return (dependencies that spans tell, type -> how types below it repeat).

    ``conflicts`` get a line for what is wrong. ``placed`` has the phase of each span, -1 for none. A link
    between phases that are not siblings says nothing of a sibling, and is left out.
    """
    links = [
        (int(placed[target]), int(placed[ix]))
        for ix, target in linked(spans, FOLLOWS)
        if placed[ix] >= 0 and placed[target] >= 0
    ]
    siblings = [(before, later) for before, later in links if phases.parent[before] == phases.parent[later]]
    named = list(islice(_after(spans, phases, placed, conflicts), MOST_NAMED + 1))
    if len(named) > MOST_NAMED:
        conflicts.add(f"{AFTER} names more than {MOST_NAMED:,} dependencies: the others are left out")
        named.pop()
    said = _repeats(spans, phases, placed, conflicts)
    found = Dependencies.join([Dependencies.of(siblings, OBSERVED), Dependencies.of(named, ATTRIBUTE)])
    return found, said


def _after(
    spans: SpanColumns, phases: Phases, placed: IntArray, conflicts: Conflicts
) -> Iterator[tuple[int, int]]:
    """Yield (source, target) of what `AFTER` names."""
    families: dict[int, Mapping[str, list[int]]] = {}
    for ix, value in _with(spans, placed, AFTER):
        later = int(placed[ix])
        parent = int(phases.parent[later])
        if parent not in families:
            families[parent] = _family(spans, phases, parent)
        names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        for name in names:
            before = families[parent].get(name, []) if isinstance(name, str) else []
            if not before:
                line = f"{phases.path(later)}: {AFTER} names {name!r}, which is no sibling of it"
                conflicts.add(line)
            # A name that it shares means the others.
            alike = len(before) > 1
            yield from ((one, later) for one in before if not (alike and one == later))


def _family(spans: SpanColumns, phases: Phases, parent: int) -> Mapping[str, list[int]]:
    """Return id, identifier or name -> the children of ``parent`` that it means; in that order."""
    by_id: dict[str, list[int]] = {}
    by_identifier: dict[str, list[int]] = {}
    by_name: dict[str, list[int]] = {}
    for child in phases.children(parent).tolist():
        if phases.flags[child] & SELF:
            continue
        if phases.span_ix[child] >= 0:
            by_id.setdefault(spans.span_id_hex(int(phases.span_ix[child])), []).append(child)
        by_identifier.setdefault(phases.identifier(child), []).append(child)
        by_name.setdefault(phases.name(child), []).append(child)
    return {**by_name, **by_identifier, **by_id}


def _repeats(spans: SpanColumns, phases: Phases, placed: IntArray, conflicts: Conflicts) -> dict[int, str]:
    said: dict[int, set[str]] = {}
    for ix, value in _with(spans, placed, REPEATS):
        if value in (SEQUENTIAL, CONCURRENT, DAG):
            said.setdefault(int(phases.type[placed[ix]]), set()).add(str(value))
        else:
            conflicts.add(f"{phases.path(int(placed[ix]))}: {REPEATS} is {value!r}, no way to repeat")
    for of_type, values in said.items():
        if len(values) > 1:
            what = phases.all_kinds[int(phases.kind[np.flatnonzero(phases.type == of_type)[0]])].identifier
            conflicts.add(f"{what}: {REPEATS} is {' and '.join(sorted(values))}; what was seen counts")
    return {of_type: values.pop() for of_type, values in said.items() if len(values) == 1}


def _with(spans: SpanColumns, placed: IntArray, key: str) -> Iterator[tuple[int, Any]]:
    """Yield (span, value) of the phases' spans that have the attribute ``key``."""
    some = np.flatnonzero(placed >= 0)
    for ix in some[spans.raw_attributes.that_may_have(key.encode(), some)].tolist():
        value = spans.attributes(ix).get(key)
        if value is not None:
            yield ix, value
