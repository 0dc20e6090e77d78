# SPDX-License-Identifier: Apache-2.0
"""Who launched what: several traces and runs become one tree, and nothing gets two owners.

A run, or a trace of others, is part of what launched it. That is told, in order of evidence, by

context   a link of kind ``parent``: the trace context that a process found when it was launched
run       a run id: of its parent, as a run names it; of the run that a trace began in, as its root says
log       an id of the application (a run id, or what `APPLICATION_IDS` hold at the root of its trace) that
          stands in an attribute or an event of another span: what launched it has logged that

(A remote parent in the same trace needs none of this: its spans have their parents.) Where several are told,
and each lies within the next, the innermost launched it. Else the best evidence counts, the others are listed
as conflicts. Several of equal evidence that are parts of one thing, as the ranks of a run, launched it
together: it is part of that. Two logs are no evidence for either. An owner that lies within what it is said
to own is refused.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.execution.conflicts import Conflicts
from grademl_otel.analyzers.execution.draft import ROOT, Draft
from grademl_otel.analyzers.model.columns import SpanColumns

PARENT: Final = "parent"
"""Kind of the links that tell what a process was launched in."""

CONTEXT: Final = "trace context"
RUN: Final = "run id"
LOG: Final = "log"
EVIDENCES: Final = (CONTEXT, RUN, LOG)

APPLICATION_IDS: Final = ("spark.app.id", "spark.application.id", "yarn.application.id")
"""Attributes of a root span that hold what the application was called by who launched it."""

MOST_SOUGHT: Final = 64
"""So many ids are looked for in what others have logged: each is a pass over all attributes and events."""
MOST_LOGS: Final = 64
"""What more spans than that have logged tells nothing of who launched it."""
_SHORTEST_ID: Final = 8
_LISTED: Final = 8


@dataclass(frozen=True)
class Claim:
    """Something says that ``owner`` launched ``child``; both are phases of the draft."""

    child: int
    owner: int
    evidence: str


def settle(
    draft: Draft, claims: Sequence[Claim], words: Mapping[int, str], conflicts: Conflicts
) -> dict[int, int]:
    """Put each child under the one owner that it has; return child -> owner.

    Of children that would each be part of the other the one that is claimed first is. ``words`` say what
    phases are called in ``conflicts``.
    """
    settled: dict[int, int] = {}
    words = defaultdict(lambda: "what holds them", words)
    by_child: dict[int, dict[int, str]] = defaultdict(dict)
    for claim in sorted(claims, key=lambda one: EVIDENCES.index(one.evidence)):
        by_child[claim.child].setdefault(claim.owner, claim.evidence)
    # Those with one owner first: whether others lie within each other may depend on where they are.
    for child in sorted(by_child, key=lambda one: len(by_child[one])):
        possible = {}
        for owner, evidence in by_child[child].items():
            if owner == child or draft.is_above(child, owner):
                conflicts.add(
                    f"{words[child]} cannot be part of {words[owner]}, which is part of it ({evidence})"
                )
            else:
                possible[owner] = evidence
        owner_of_it, told = _owner(draft, possible)
        if told:
            listed = ", ".join(f"{words[one]} ({of_it})" for one, of_it in [*possible.items()][:_LISTED])
            listed += f" and {len(possible) - _LISTED:,} more" * (len(possible) > _LISTED)
            counts = "none counts" if owner_of_it is None else f"{words[owner_of_it]} counts"
            conflicts.add(f"{words[child]} has several owners: {listed}; {counts}")
        if owner_of_it is not None:
            draft.move(child, owner_of_it)
            settled[child] = owner_of_it
    return settled


def _owner(draft: Draft, possible: Mapping[int, str]) -> tuple[int | None, bool]:
    """Return (the owner that counts, whether that is a conflict)."""
    if len(possible) < 2:
        return next(iter(possible), None), False
    innermost = [
        one for one in possible if all(draft.is_above(other, one) for other in possible if other != one)
    ]
    if innermost:
        return innermost[0], False
    best = min(possible.values(), key=EVIDENCES.index)
    of_best = [one for one, evidence in possible.items() if evidence == best]
    if best == LOG:
        return None, True
    together = draft.common(of_best)
    return (None if together == ROOT else together), together == ROOT or len(of_best) < len(possible)


def linked(spans: SpanColumns, kind: str) -> list[tuple[int, int]]:
    """Return (span with a link of ``kind``, span that it points at) where both are here, by their starts."""
    links = spans.links
    wanted = np.array([ix for ix, one in enumerate(links.kind) if one == kind], np.int64)
    suspects = np.flatnonzero(np.isin(spans.span_id, links.span_id[wanted]))
    at = {
        (hi, lo, span): ix
        for hi, lo, span, ix in zip(
            spans.trace_hi[suspects].tolist(), spans.trace_lo[suspects].tolist(),
            spans.span_id[suspects].tolist(), suspects.tolist(), strict=True,
        )
    }  # fmt: skip
    targets = (
        at.get(key)
        for key in zip(
            links.trace_hi[wanted].tolist(), links.trace_lo[wanted].tolist(), links.span_id[wanted].tolist(),
            strict=True,
        )
    )  # fmt: skip
    found = zip(links.span_ix[wanted].tolist(), targets, strict=True)
    return sorted(
        ((ix, target) for ix, target in found if target is not None),
        key=lambda pair: [(int(spans.start[ix]), spans.name(ix), spans.span_id_hex(ix)) for ix in pair],
    )


def application_ids(spans: SpanColumns, roots: IntArray) -> dict[str, int]:
    """Return id -> the span of ``roots`` that says it is the application of that id."""
    may = np.zeros(len(roots), np.bool_)
    for key in APPLICATION_IDS:
        may |= spans.raw_attributes.that_may_have(key.encode(), roots)
    found: dict[str, int] = {}
    for ix in roots[may].tolist():
        attributes = spans.attributes(ix)
        for key in APPLICATION_IDS:
            value = attributes.get(key)
            if isinstance(value, str) and len(value) >= _SHORTEST_ID:
                found.setdefault(value, ix)
    return found


def logged(spans: SpanColumns, some: IntArray, sought: str) -> list[int]:
    """Return those of ``some`` spans, by their starts, that have the id ``sought`` in attributes or events.

    It must stand there as a word.
    """
    raw = sought.encode()
    word = re.compile(rf"(?<![0-9A-Za-z_-]){re.escape(sought)}(?![0-9A-Za-z_-])")
    found = []
    by_attribute = spans.raw_attributes.that_may_have(raw, some)
    by_event = spans.raw_events.that_may_have(raw, some)
    for at in np.flatnonzero(by_attribute | by_event).tolist():
        ix = int(some[at])
        # That a span was made in a run is no sign that it launched it.
        attributes = {key: value for key, value in spans.attributes(ix).items() if key != semconv.RUN_ID}
        texts: list[Any] = [attributes] if by_attribute[at] else []
        if by_event[at]:
            texts += [(event.name, event.attributes) for event in spans.events(ix)]
        if word.search(repr(texts)):
            found.append(ix)
    return sorted(found, key=lambda ix: (int(spans.start[ix]), spans.name(ix)))
