# SPDX-License-Identifier: Apache-2.0
"""The event graph and a path as graphs of networkx, and any of those as GraphML.

This is the graph that people look at and other tools read: of a part of a run, or of one path. It takes
about a kilobyte a node, so it has a bound; what adds up or walks millions of activities reads the arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.errors import MissingExtra
from grademl_otel.analyzers.graph.event_graph import CHILD, EDGE_KINDS, PROGRAM, EventGraph
from grademl_otel.analyzers.graph.path import EVIDENCE, INFERRED, KINDS, OBSERVED, Path, Section

if TYPE_CHECKING:
    import networkx as nx

MOST_NODES: Final = 200_000
"""A graph with more is refused: the user chooses steps."""

_NO_XML: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no way to write, or that its readers take for others."""


class TooLarge(ValueError):
    """A graph has more than `MOST_NODES` nodes; the text says how many and what to do."""

    def __init__(self, count: int, what: str) -> None:
        super().__init__(
            f"{count:,} {what} are too many for one networkx graph (at most {MOST_NODES:,});"
            " select some of the steps"
        )


def networkx() -> Any:
    """Return the module, which only those need who draw; MissingExtra without it."""
    try:
        return import_module("networkx")
    except ModuleNotFoundError as error:
        if error.name != "networkx":
            raise
        raise MissingExtra("networkx") from None


def event_networkx(graph: EventGraph, **about: Any) -> nx.MultiDiGraph:
    """Return the activities of ``graph`` as nodes, and what they waited for as edges.

    Nodes are integers, the places of the activities, with the attributes ``rank``, ``lane``, ``phase``,
    ``kind``, ``start``, ``end`` (Unix ns) and, where they are known, ``step``, ``item`` and ``span`` (index
    into the columns); ``inferred`` where it is. Edges have ``kind``, ``evidence``, ``confidence``, ``at``
    (Unix ns: the moment of the source that the target waited for) and ``joins``: which events, as
    ``end-start``; ``inside-end`` where the moment lies within the source. ``about`` are attributes of the
    whole. Raises TooLarge.
    """
    nx = networkx()
    if len(graph) > MOST_NODES:
        raise TooLarge(len(graph), "activities")
    drawn = nx.MultiDiGraph(**about)
    drawn.add_nodes_from(_nodes(graph))
    drawn.add_edges_from(_program_order(graph))
    drawn.add_edges_from(_edges(graph))
    return drawn


def path_networkx(path: Path) -> nx.DiGraph:
    """Return ``path`` as a chain: sections as nodes in order of time, numbered from 0.

    Nodes have the fields of `Section` that are known, edges how the walk came from the later to the earlier.
    Raises TooLarge.
    """
    nx = networkx()
    if len(path.sections) > MOST_NODES:
        raise TooLarge(len(path.sections), "sections")
    drawn = nx.DiGraph(start=path.start, end=path.end)
    entered = None
    for number, section in enumerate(path.sections):
        drawn.add_node(number, **_section(section))
        if entered is not None:
            drawn.add_edge(
                number - 1,
                number,
                kind=entered.edge,
                evidence=entered.evidence,
                confidence=entered.confidence,
            )
        entered = section.entered_by
    return drawn


def graphml(drawn: nx.Graph) -> str:
    """Return ``drawn`` as GraphML; attributes are str, int, float or bool.

    Text is escaped as XML needs it; a character that XML does not keep is written as ``\\u001b``.
    """
    nx = networkx()
    held = drawn.__class__()
    held.graph.update(_held(drawn.graph))
    held.add_nodes_from((node, _held(data)) for node, data in drawn.nodes(data=True))
    held.add_edges_from((one, other, _held(data)) for one, other, data in drawn.edges(data=True))
    return "\n".join(nx.generate_graphml(held))


def _nodes(graph: EventGraph) -> Iterator[tuple[int, dict[str, Any]]]:
    columns = (
        graph.lane, graph.start, graph.end, graph.phase, graph.kind, graph.step, graph.item, graph.span_ix,
        graph.inferred,
    )  # fmt: skip
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for node, (lane, start, end, phase, kind, step, item, span_ix, inferred) in enumerate(rows):
        rank, name = graph.lanes[lane]
        known: dict[str, Any] = {
            "lane": name,
            "phase": graph.phases[phase],
            "kind": KINDS[kind],
            "start": start,
            "end": end,
        }
        if rank is not None:
            known["rank"] = rank
        if step >= 0:
            known["step"] = step
        if item >= 0:
            known["item"] = graph.items[item]
        if span_ix >= 0:
            known["span"] = span_ix
        if inferred:
            known["inferred"] = True
        yield node, known


def _program_order(graph: EventGraph) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the edges along the lanes, which the arrays hold as their order."""
    before: IntArray = np.flatnonzero(graph.lane[1:] == graph.lane[:-1])
    held = (graph.holder[before] >= 0) & (graph.holder[before] == graph.holder[before + 1])
    inferred = graph.inferred[before] | graph.inferred[before + 1]
    columns = (before, held, inferred, graph.end[before])
    for one, child, guessed, at in zip(*(column.tolist() for column in columns), strict=True):
        kind, evidence = CHILD if child else PROGRAM, INFERRED if guessed else OBSERVED
        yield one, one + 1, _edge(kind, evidence, 1.0, at, "end-start")


def _edges(graph: EventGraph) -> Iterator[tuple[int, int, dict[str, Any]]]:
    edges = graph.edges
    from_start, from_end = edges.at == graph.start[edges.source], edges.at == graph.end[edges.source]
    moment = np.where(from_end, "end", np.where(from_start, "start", "inside")).tolist()
    columns = (
        edges.source, edges.target, edges.to_end, edges.kind, edges.evidence, edges.confidence, edges.at,
    )  # fmt: skip
    rows = zip(moment, *(column.tolist() for column in columns), strict=True)
    for source_event, source, target, to_end, kind, evidence, confidence, at in rows:
        joins = f"{source_event}-{'end' if to_end else 'start'}"
        yield source, target, _edge(EDGE_KINDS[kind], EVIDENCE[evidence], confidence, at, joins)


def _edge(kind: str, evidence: str, confidence: float, at: int, joins: str) -> dict[str, Any]:
    return {"kind": kind, "evidence": evidence, "confidence": confidence, "at": at, "joins": joins}


def _section(section: Section) -> dict[str, Any]:
    fields = {
        "phase": section.phase,
        "kind": section.kind,
        "lane": section.lane,
        "start": section.start,
        "end": section.end,
        "rank": section.rank,
        "step": section.step,
        "item": section.item,
        "span": section.span_ix,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _held(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _NO_XML.sub(_escaped, value) if isinstance(value, str) else value for key, value in data.items()
    }


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
