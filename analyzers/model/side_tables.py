# SPDX-License-Identifier: Apache-2.0
"""What hangs on spans, as tables of its own: attributes and events, decoded for who asks.

docs/columns.md has the columns. A value is in the column of its type: text, lists and maps as JSON, bytes as
base64 in ``string``; and an integer that no int64 holds, as text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.model.columns import SpanColumns
from grademl_otel.analyzers.model.raw import NOTHING

TYPES: Final = ("empty", "string", "bool", "int", "double", "bytes", "array", "map")
"""Of values; `AttributeTable.type` holds indices."""
_EMPTY, _STRING, _BOOL, _INT, _DOUBLE, _BYTES, _ARRAY, _MAP = range(len(TYPES))
_VERBATIM: Final = ("otlp-json", "otlp-proto")
"""Forms in which the keys of attributes stand as they are,"""
_MADE_UP: Final = frozenset({"otel.status_description"})
"""but for these."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]+")
"""Keys that nothing writes in another way."""
_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True)
class AttributeTable:
    """One row a value, in the order of owners; all columns of one length."""

    owner_ix: IntArray
    """Index of the span (of resources: of the resource)."""
    key_ix: npt.NDArray[np.int32]
    keys: list[str]
    type: npt.NDArray[np.int8]
    """Index into `TYPES`."""
    string: list[str | None]
    """None where the type is bool, int, double or empty."""
    integer: IntArray
    """int; bool as 0 and 1; 0 elsewhere."""
    double: npt.NDArray[np.float64]
    """NaN where the type is another."""

    def __len__(self) -> int:
        return len(self.owner_ix)


@dataclass(frozen=True)
class EventTable:
    """One row an event, in the order of spans."""

    span_ix: IntArray
    time: IntArray
    """Unix ns."""
    name: list[str]
    attributes: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.span_ix)


def attribute_table(
    spans: SpanColumns, keys: Collection[str] | None = None, ixs: Iterable[int] | None = None
) -> AttributeTable:
    """Return the attributes of the spans at ``ixs`` (None: of all), those of ``keys`` only (None: all)."""
    chosen = np.arange(len(spans)) if ixs is None else np.fromiter(ixs, np.int64)
    if keys is not None:
        chosen = chosen[_that_may_have(spans, keys, chosen)]
    return _table(((ix, spans.attributes(ix)) for ix in chosen.tolist()), keys)


def _that_may_have(spans: SpanColumns, keys: Collection[str], chosen: IntArray) -> npt.NDArray[np.bool_]:
    """Return which of the ``chosen`` spans may have one of ``keys``: of OTLP others are not decoded."""
    store = spans.raw_attributes
    may: npt.NDArray[np.bool_] = np.ones(len(chosen), np.bool_)
    if any(key in _MADE_UP or not _PLAIN.fullmatch(key) for key in keys):
        return may
    verbatim = np.array([column.form.name in _VERBATIM for column in store.columns] or [False], np.bool_)
    asked = np.flatnonzero((store.column[chosen] != NOTHING) & verbatim[store.column[chosen]])
    may[asked] = False
    for key in keys:
        may[asked] |= store.that_may_have(key.encode(), chosen[asked])
    return may


def resource_table(spans: SpanColumns, keys: Collection[str] | None = None) -> AttributeTable:
    """Return the attributes of all resources, as `attribute_table`."""
    return _table(enumerate(spans.resources), keys)


def event_table(spans: SpanColumns, ixs: Iterable[int] | None = None) -> EventTable:
    """Return the events of the spans at ``ixs``; None: of all."""
    chosen = range(len(spans)) if ixs is None else ixs
    found = [(ix, event) for ix in map(int, chosen) for event in spans.events(ix)]
    return EventTable(
        span_ix=np.array([ix for ix, _ in found], np.int64),
        time=np.array([event.time for _, event in found], np.int64),
        name=[event.name for _, event in found],
        attributes=[event.attributes for _, event in found],
    )


def _table(owners: Iterable[tuple[int, Mapping[str, Any]]], keys: Collection[str] | None) -> AttributeTable:
    number: dict[str, int] = {}
    owner_ix: list[int] = []
    key_ix: list[int] = []
    values: list[Any] = []
    wanted = None if keys is None else frozenset(keys)
    for ix, attributes in owners:
        for key, value in attributes.items():
            if wanted is None or key in wanted:
                owner_ix.append(ix)
                key_ix.append(number.setdefault(key, len(number)))
                values.append(value)
    kinds = [_type(value) for value in values]
    type_ = np.array(kinds, np.int8)
    integers, doubles = (np.flatnonzero(np.isin(type_, of)) for of in ((_INT, _BOOL), _DOUBLE))
    integer, double = np.zeros(len(values), np.int64), np.full(len(values), np.nan)
    integer[integers] = [values[ix] for ix in integers.tolist()]
    double[doubles] = [values[ix] for ix in doubles.tolist()]
    return AttributeTable(
        owner_ix=np.array(owner_ix, np.int64),
        key_ix=np.array(key_ix, np.int32),
        keys=list(number),
        type=type_,
        string=[_text(value, kind) for value, kind in zip(values, kinds, strict=True)],
        integer=integer,
        double=double,
    )


def _type(value: Any) -> int:
    if isinstance(value, str):
        return _STRING
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INT if value in _INT64 else _STRING
    if isinstance(value, float):
        return _DOUBLE
    if isinstance(value, bytes):
        return _BYTES
    if isinstance(value, Mapping):
        return _MAP
    return _ARRAY if isinstance(value, Sequence) else _EMPTY


def _text(value: Any, kind: int) -> str | None:
    if kind == _STRING:
        return value if isinstance(value, str) else str(value)
    if kind == _BYTES:
        return base64.b64encode(value).decode()
    return as_json(value) if kind in (_ARRAY, _MAP) else None


def as_json(value: Any) -> str:
    """Return a value of an attribute as JSON text; bytes as base64, NaN and infinities as their names."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
