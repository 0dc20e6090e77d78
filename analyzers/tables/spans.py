# SPDX-License-Identifier: Apache-2.0
"""The table ``spans``: one row a span that was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from grademl_otel import semconv
from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.attempts import identity, whole
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import Column, TableSchema, number, text, word
from grademl_otel.analyzers.tables.values import Coded, Hex, Makers, Masked, distinct, possible_durations

KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES: Final = ("unset", "ok", "error")

SPANS: Final = TableSchema(
    "spans",
    "A span. Of a part of a run (`--ranks`, `--steps`, `--fit`) those of that part, else all that were read.",
    (
        number("span_ix", "its number, which the other tables refer to; rows are in the order of it"),
        text("trace_id", "32 hexadecimal digits"),
        text("span_id", "16 hexadecimal digits"),
        text("parent_id", "as given; null without a parent", nullable=True),
        number("parent_ix", "number of the parent; -1: a root; -2: an orphan, whose parent is not here"),
        number("start_ns", "Unix ns"),
        number("end_ns", "Unix ns; 0, or before the start: an impossible time, which no analysis uses"),
        word("name", ""),
        word("kind", "unspecified, internal, server, client, producer, consumer"),
        word("status", "unset, ok, error"),
        Column("flags", "UINTEGER", "as OTLP has them; the lowest byte is that of the trace context"),
        word("service", "`service.name` of the resource; empty without one"),
        Column("resource_ix", "INTEGER", "row in resources"),
        Column("scope_ix", "INTEGER", "row in scopes; null for none", nullable=True),
        word(
            "clock",
            "whose clock the times are of: a host's boot, else its name; null: not told",
            nullable=True,
        ),
        number("duration_ns", "end - start; null where the times are impossible", nullable=True),
        word("run", "id of the run that it is of; null for others' spans", nullable=True),
        number("attempt", "of that run; null for others' spans", nullable=True),
        number("rank", "of the process, as its resource says; null where it does not", nullable=True),
    ),
)


def spans(material: Material) -> Makers:
    found, ixs = material.spans, material.ixs
    at: Any = slice(None) if ixs is None else ixs

    def of_resource(values: Callable[[SpanColumns], IntArray]) -> Callable[[], Masked]:
        def make() -> Masked:
            numbers = np.append(values(found), -1)[found.resource_ix[at]]
            return Masked(numbers, numbers < 0)

        return make

    def words_of_resource(of: Callable[[dict[str, Any]], str | None]) -> Callable[[], Coded]:
        def make() -> Coded:
            codes, words = distinct([of(resource) for resource in found.resources])
            return Coded(np.append(codes, -1)[found.resource_ix[at]], words)

        return make

    return {
        "span_ix": lambda: np.arange(len(found))[at],
        "trace_id": lambda: Hex((found.trace_hi[at], found.trace_lo[at])),
        "span_id": lambda: Hex((found.span_id[at],)),
        "parent_id": lambda: Hex((found.parent_id[at],), found.parent_id[at] == 0),
        "parent_ix": lambda: found.parent_ix[at],
        "start_ns": lambda: found.start[at],
        "end_ns": lambda: found.end[at],
        "name": lambda: Coded(found.name_ix[at], found.names),
        "kind": lambda: Coded(found.kind[at], KINDS),
        "status": lambda: Coded(found.status[at], STATUSES),
        "flags": lambda: found.flags[at],
        "service": words_of_resource(lambda one: str(one.get("service.name", ""))),
        "resource_ix": lambda: found.resource_ix[at],
        "scope_ix": lambda: Masked(found.scope_ix[at], found.scope_ix[at] < 0),
        "clock": lambda: Coded(found.clock[at], found.clocks),
        "duration_ns": lambda: possible_durations(found.start[at], found.end[at]),
        "run": words_of_resource(_run),
        "attempt": of_resource(lambda spans: _numbers(spans, _attempt)),
        "rank": of_resource(lambda spans: _numbers(spans, _rank)),
    }


def _numbers(spans: SpanColumns, of: Callable[[dict[str, Any]], int | None]) -> IntArray:
    """Return a number of each resource; -1 for None."""
    found = (of(resource) for resource in spans.resources)
    return np.array([-1 if one is None else one for one in found], np.int64)


def _run(resource: dict[str, Any]) -> str | None:
    whose = identity(resource)
    return None if whose is None else whose.run_id


def _attempt(resource: dict[str, Any]) -> int | None:
    whose = identity(resource)
    return None if whose is None else whose.attempt


def _rank(resource: dict[str, Any]) -> int | None:
    whose = identity(resource)
    return whole(resource.get(semconv.RANK)) if whose is None else whose.rank
