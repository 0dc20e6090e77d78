# SPDX-License-Identifier: Apache-2.0
"""The critical path of an answer as a graph of networkx."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.graph.drawn import MOST_NODES, TooLarge, networkx
from grademl_otel.analyzers.reporting.document import CriticalPathDocument, PopulationInfo, SectionEntry

if TYPE_CHECKING:
    import networkx as nx


def chain(document: CriticalPathDocument) -> nx.DiGraph:
    """Return the sections of the path as a chain, see `CriticalPathDocument.to_networkx`.

    Where ``document`` has the longest sections only, those that follow each other at once are joined.
    """
    nx, path = networkx(), document.path
    if isinstance(path, PopulationInfo):
        raise UsageError(f"{document.source.traces:,} traces have no one path; select one with traces=[...]")
    if len(path.sections) > MOST_NODES:
        raise UsageError(str(TooLarge(len(path.sections), "sections")))
    drawn = nx.DiGraph(origin_unix_ns=document.window.origin_unix_ns, total_ns=path.total_ns)
    drawn.add_nodes_from((number, _node(section)) for number, section in enumerate(path.sections))
    for (number, section), (later, follower) in pairwise(enumerate(path.sections)):
        if section.end_ns == follower.start_ns:
            by = section.entered_by
            drawn.add_edge(number, later, kind=by.edge, evidence=by.evidence, confidence=by.confidence)
    return drawn


def _node(section: SectionEntry) -> dict[str, Any]:
    names = ("phase", "kind", "lane", "start_ns", "end_ns", "rank", "step", "item")
    known = {name: getattr(section, name) for name in names}
    if section.span is not None:
        known |= {"trace_id": section.span.trace_id, "span_id": section.span.span_id}
    return {name: value for name, value in known.items() if value is not None}
