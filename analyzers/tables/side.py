# SPDX-License-Identifier: Apache-2.0
"""The tables of what hangs on spans: attributes, events, links; and of resources and scopes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from grademl_otel.analyzers.arrays import BoolArray, IntArray
from grademl_otel.analyzers.model.side_tables import (
    TYPES,
    AttributeTable,
    as_json,
    attribute_table,
    event_table,
    resource_table,
)
from grademl_otel.analyzers.tables.material import Material
from grademl_otel.analyzers.tables.schema import Column, TableSchema, flag, fraction, number, text, word
from grademl_otel.analyzers.tables.values import Coded, Hex, Makers, Masked, distinct

_VALUE: Final = (
    word("key", ""),
    word("type", "string, bool, int, double, bytes, array, map, empty"),
    text(
        "value_string",
        "of a string; of arrays and maps as JSON; of bytes as base64; of integers beyond 64 bits the digits",
        nullable=True,
    ),
    number("value_int", "null for other types", nullable=True),
    fraction("value_double", "null for other types", nullable=True),
    flag("value_bool", "null for other types", nullable=True),
)

ATTRIBUTES: Final = TableSchema(
    "attributes",
    "An attribute of a span. All of them are decoded, which takes about ten seconds for a million spans.",
    (number("span_ix", "whose it is"), *_VALUE),
)
RESOURCES: Final = TableSchema(
    "resources",
    "An attribute of a resource, of those of all spans that were read.",
    (Column("resource_ix", "INTEGER", "whose it is"), *_VALUE),
)
EVENTS: Final = TableSchema(
    "events",
    "An event of a span.",
    (
        number("span_ix", "whose it is"),
        number("time_ns", "Unix ns, by the clock that the times of its span are by"),
        text("name", ""),
        text("attributes", "as JSON"),
    ),
)
LINKS: Final = TableSchema(
    "links",
    "A link of a span.",
    (
        number("span_ix", "the span that carries it"),
        text("linked_trace_id", "where it points"),
        text("linked_span_id", ""),
        word("kind", "run, parent, blocking; follows where nothing is said"),
    ),
)
SCOPES: Final = TableSchema(
    "scopes",
    "An instrumentation scope.",
    (
        Column("scope_ix", "INTEGER", "its number"),
        text("name", "empty where it is not told"),
        text("version", "empty where it is not told"),
        text("attributes", "as JSON"),
    ),
)


def attributes(material: Material, keys: Collection[str] | None = None) -> Makers:
    """Of ``keys`` alone, where any are given."""
    return _values("span_ix", attribute_table(material.spans, keys, material.ixs))


def resources(material: Material) -> Makers:
    return _values("resource_ix", resource_table(material.spans))


def events(material: Material) -> Makers:
    found = event_table(material.spans, material.ixs)
    return {
        "span_ix": lambda: found.span_ix,
        "time_ns": lambda: found.time - material.shift[material.spans.resource_ix[found.span_ix]],
        "name": lambda: found.name,
        "attributes": lambda: [as_json(one) for one in found.attributes],
    }


def links(material: Material) -> Makers:
    links = material.spans.links
    at: IntArray = np.arange(len(links))
    if material.ixs is not None:
        at = np.flatnonzero(np.isin(links.span_ix, material.ixs))

    def kind() -> Coded:
        codes, words = distinct(links.kind)
        return Coded(codes[at], words)

    return {
        "span_ix": lambda: links.span_ix[at],
        "linked_trace_id": lambda: Hex((links.trace_hi[at], links.trace_lo[at])),
        "linked_span_id": lambda: Hex((links.span_id[at],)),
        "kind": kind,
    }


def scopes(material: Material) -> Makers:
    scopes = material.spans.scopes
    return {
        "scope_ix": lambda: np.arange(len(scopes)),
        "name": lambda: [str(scope["name"]) for scope in scopes],
        "version": lambda: [str(scope["version"]) for scope in scopes],
        "attributes": lambda: [as_json(scope["attributes"]) for scope in scopes],
    }


def _values(owner: str, found: AttributeTable) -> Makers:
    def other_than(type_: str) -> BoolArray:
        other: BoolArray = found.type != TYPES.index(type_)
        return other

    return {
        owner: lambda: found.owner_ix,
        "key": lambda: Coded(found.key_ix, found.keys),
        "type": lambda: Coded(found.type, TYPES),
        "value_string": lambda: found.string,
        "value_int": lambda: Masked(found.integer, other_than("int")),
        "value_double": lambda: Masked(found.double, other_than("double")),
        "value_bool": lambda: Masked(found.integer != 0, other_than("bool")),
    }
