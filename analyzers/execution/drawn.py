# SPDX-License-Identifier: Apache-2.0
"""The execution model as a graph of networkx: its types, which are few, or the phases of a part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from grademl_otel.analyzers.execution.identity import Tags
from grademl_otel.analyzers.execution.model import BESIDE, DERIVED, INFERRED, MISSING, SELF
from grademl_otel.analyzers.execution.order import Tree
from grademl_otel.analyzers.execution.whole import ExecutionModel
from grademl_otel.analyzers.graph.drawn import MOST_NODES, TooLarge, networkx
from grademl_otel.analyzers.graph.path import EVIDENCE

if TYPE_CHECKING:
    import networkx as nx

PART: Final = "part"
"""Kind of the edges from a phase to what is part of it."""
AFTER: Final = "after"
"""Kind of the edges from a phase to a sibling that began after it had ended."""

_FLAGS: Final = {
    DERIVED: "derived", MISSING: "missing", SELF: "self_time", INFERRED: "inferred", BESIDE: "beside",
}  # fmt: skip

_MOST_PARTS: Final = 10_000_000
"""Of all paths together: what is within itself thousands of times would be gigabytes."""


def types_networkx(model: ExecutionModel) -> nx.MultiDiGraph:
    """Return the types of phases as nodes, numbered as in the model.

    Nodes have ``path``, ``name``, ``tags``, ``repeats``, ``phases`` (how many there are) and ``busy_ns`` (all
    of them added up). Edges have ``kind`` (`PART`, `AFTER`); those of dependencies ``evidence`` (the best)
    and ``phases`` (between how many). Raises TooLarge.
    """
    nx = networkx()
    types, phases = model.types, model.phases
    _check_size(types, "types")
    count, busy = np.bincount(phases.type, minlength=len(types)).tolist(), model.busy_by_type().tolist()
    drawn = nx.MultiDiGraph()
    for node in range(len(types)):
        drawn.add_node(
            node,
            path=types.path(node),
            name=types.name[node],
            tags=_text(types.tags[node]),
            repeats=model.repeats[node],
            phases=count[node],
            busy_ns=busy[node],
        )
    drawn.add_edges_from((above, node, {"kind": PART}) for node, above in _parts(types.parent))
    for before, later, evidence, number in model.dependencies_of_types():
        drawn.add_edge(before, later, kind=AFTER, evidence=evidence, phases=number)
    return drawn


def phases_networkx(model: ExecutionModel) -> nx.MultiDiGraph:
    """Return the phases as nodes, numbered as in the model.

    Nodes have ``path``, ``type`` (its path), ``name``, ``tags``, ``start``, ``end`` (Unix ns), ``busy_ns``;
    ``span`` (index into the columns) and ``host`` where they are known; and ``derived``, ``missing``,
    ``self_time``, ``inferred``, ``beside`` where that holds. Edges have ``kind`` (`PART`, `AFTER`), those of
    dependencies ``evidence``. Raises TooLarge.
    """
    nx = networkx()
    phases = model.phases
    _check_size(phases, "phases")
    _check_size(model.types, "types")
    type_paths = [model.types.path(node) for node in range(len(model.types))]
    paths: list[str] = []
    drawn = nx.MultiDiGraph()
    for node in range(len(phases)):
        above = int(phases.parent[node])
        own = phases.identifier(node)
        paths.append(
            "/" if above < 0 else f"{paths[above].rstrip('/') if above == 0 else paths[above]}/{own}"
        )
        drawn.add_node(node, **_phase(model, node, paths[node], type_paths))
    drawn.add_edges_from((above, node, {"kind": PART}) for node, above in _parts(phases.parent))
    told = model.dependencies
    columns = (told.source, told.target, told.evidence)
    for before, later, evidence in zip(*(column.tolist() for column in columns), strict=True):
        drawn.add_edge(before, later, kind=AFTER, evidence=EVIDENCE[evidence])
    return drawn


def _check_size(tree: Tree, what: str) -> None:
    """Raise TooLarge for too many nodes, or too long paths."""
    parts = int(tree.size.sum())  # a node counts for itself, and for each that it is below
    if len(tree) > MOST_NODES:
        raise TooLarge(len(tree), what)
    if parts > _MOST_PARTS:
        raise TooLarge(len(tree), f"{what}, {parts // len(tree):,} deep on average,")


def _phase(model: ExecutionModel, node: int, path: str, type_paths: list[str]) -> dict[str, Any]:
    phases = model.phases
    known: dict[str, Any] = {
        "path": path,
        "type": type_paths[int(phases.type[node])],
        "name": phases.name(node),
        "tags": _text(phases.tags(node)),
        "start": int(phases.start[node]),
        "end": int(phases.end[node]),
        "busy_ns": int(phases.busy[node]),
    }
    if phases.span_ix[node] >= 0:
        known["span"] = int(phases.span_ix[node])
    if phases.host[node] >= 0:
        known["host"] = phases.hosts[int(phases.host[node])]
    flags = int(phases.flags[node])
    return known | {name: True for flag, name in _FLAGS.items() if flags & flag}


def _parts(parent: Any) -> list[tuple[int, int]]:
    """Return (node, parent) of all but the root."""
    return list(enumerate(parent.tolist()))[1:]


def _text(tags: Tags) -> str:
    return ", ".join(f"{key}={value}" for key, value in tags)
