# SPDX-License-Identifier: Apache-2.0
"""Columns and their side tables as Arrow tables, for queries and other programs.

docs/columns.md is the schema. pyarrow is loaded here, so import this module where a table is asked for.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.side_tables import (
    TYPES,
    AttributeTable,
    as_json,
    attribute_table,
    event_table,
    resource_table,
)

_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES: Final = ("unset", "ok", "error")


def spans_table(spans: SpanColumns) -> pa.Table:
    """Return one row a span."""
    return pa.table(
        {
            "span_ix": np.arange(len(spans)),
            "trace_id": _hex(spans.trace_hi, spans.trace_lo),
            "span_id": _hex(spans.span_id),
            "parent_id": _hex(spans.parent_id, absent=spans.parent_id == 0),
            "parent_ix": spans.parent_ix,
            "start_ns": spans.start,
            "end_ns": spans.end,
            "name": _coded(spans.name_ix, spans.names),
            "kind": _coded(spans.kind, _KINDS),
            "status": _coded(spans.status, _STATUSES),
            "flags": spans.flags,
            "service": _service(spans),
            "resource_ix": spans.resource_ix,
            "scope_ix": _nullable(spans.scope_ix),
            "clock": _coded(spans.clock, spans.clocks),
        }
    )


def attributes_table(
    spans: SpanColumns, keys: Collection[str] | None = None, ixs: Iterable[int] | None = None
) -> pa.Table:
    """Return one row an attribute of a span, of those that `attribute_table` chooses."""
    return _attributes("span_ix", attribute_table(spans, keys, ixs))


def resources_table(spans: SpanColumns) -> pa.Table:
    """Return one row an attribute of a resource."""
    return _attributes("resource_ix", resource_table(spans))


def scopes_table(spans: SpanColumns) -> pa.Table:
    """Return one row a scope."""
    scopes = spans.scopes
    return pa.table(
        {
            "scope_ix": np.arange(len(scopes), dtype=np.int32),
            "name": pa.array([scope["name"] for scope in scopes], pa.string()),
            "version": pa.array([scope["version"] for scope in scopes], pa.string()),
            "attributes": pa.array([as_json(scope["attributes"]) for scope in scopes], pa.string()),
        }
    )


def events_table(spans: SpanColumns, ixs: Iterable[int] | None = None) -> pa.Table:
    """Return one row an event."""
    table = event_table(spans, ixs)
    return pa.table(
        {
            "span_ix": table.span_ix,
            "time_ns": table.time,
            "name": pa.array(table.name, pa.string()),
            "attributes": pa.array([as_json(attributes) for attributes in table.attributes], pa.string()),
        }
    )


def links_table(spans: SpanColumns) -> pa.Table:
    """Return one row a link."""
    links = spans.links
    return pa.table(
        {
            "span_ix": links.span_ix,
            "linked_trace_id": _hex(links.trace_hi, links.trace_lo),
            "linked_span_id": _hex(links.span_id),
            "kind": pa.array(links.kind, pa.string()).dictionary_encode(),
        }
    )


def _attributes(owner: str, table: AttributeTable) -> pa.Table:
    type_ = table.type
    integer, boolean, double = (type_ == TYPES.index(name) for name in ("int", "bool", "double"))
    return pa.table(
        {
            owner: table.owner_ix,
            "key": _coded(table.key_ix, table.keys),
            "type": _coded(type_, TYPES),
            "value_string": pa.array(table.string, pa.string()),
            "value_int": pa.array(table.integer, mask=~integer),
            "value_double": pa.array(table.double, mask=~double),
            "value_bool": pa.array(table.integer != 0, mask=~boolean),
        }
    )


def _service(spans: SpanColumns) -> pa.Array:
    names = [str(resource.get("service.name", "")) for resource in spans.resources]
    distinct = list(dict.fromkeys(names))
    of_resource = np.array([distinct.index(name) for name in names] or [0], np.int32)
    return _coded(of_resource[spans.resource_ix], distinct)


def _coded(codes: npt.NDArray[Any], words: Sequence[str]) -> pa.Array:
    """Return words by their numbers; null for a negative number."""
    wide = np.asarray(codes, np.int32)
    return pa.DictionaryArray.from_arrays(_nullable(wide), pa.array(list(words), pa.string()))


def _nullable(numbers: npt.NDArray[Any]) -> pa.Array:
    absent = numbers < 0
    return pa.array(numbers, mask=absent if absent.any() else None)


def _hex(*words: npt.NDArray[np.uint64], absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return ids as text, 16 digits a word; null where ``absent``."""
    count, digits = len(words[0]), 16 * len(words)
    text = hexlify(np.stack(words, axis=1).astype(">u8").tobytes())
    offsets = np.arange(count + 1, dtype=np.int64) * digits
    valid = None
    if absent is not None and absent.any():
        valid = pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes())
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text), valid)
