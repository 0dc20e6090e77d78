# SPDX-License-Identifier: Apache-2.0
"""Columns as Arrow arrays, of exactly the types of their schema. The one module here that loads pyarrow."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from grademl_otel.analyzers.arrays import BoolArray
from grademl_otel.analyzers.tables.schema import Column, TableSchema
from grademl_otel.analyzers.tables.values import Coded, Hex, Makers, Masked, Numbers, Ready, Texts, Values

_TYPES: Final = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "UINTEGER": pa.uint32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.large_string(),
}
_CODED: Final = pa.dictionary(pa.int32(), pa.string())


def type_of(column: Column) -> pa.DataType:
    return _CODED if column.coded else _TYPES[column.type]


def schema_of(table: TableSchema, names: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of ``table``, or of its columns ``names``."""
    by_name = {column.name: column for column in table.columns}
    chosen = [by_name[name] for name in (table.column_names if names is None else names)]
    return pa.schema([pa.field(one.name, type_of(one), one.nullable) for one in chosen])


def made(table: TableSchema, makers: Makers, names: Sequence[str]) -> pa.Table:
    """Return the columns ``names`` of ``table``, which alone are made."""
    schema = schema_of(table, names)
    return pa.table([_array(makers[field.name](), field.type) for field in schema], schema)


def _array(values: Values, type_: pa.DataType) -> pa.Array:
    """Return ``values`` as an array over the same memory, where that holds them as Arrow does.

    `pyarrow.array` would do, and would first import pandas where that is installed.
    """
    if isinstance(values, Ready):
        return values.array
    if isinstance(values, Coded):
        indices = _numbers(values.codes, pa.int32(), values.codes < 0)
        return pa.DictionaryArray.from_arrays(indices, _texts(values.words, pa.string()))
    if isinstance(values, Hex):
        return _hex(values)
    if isinstance(values, Masked):
        return _numbers(values.numbers, type_, values.absent)
    if isinstance(values, np.ndarray):
        return _numbers(values, type_, None)
    return _texts(values, type_) if len(values) else pa.nulls(0, type_)


def _numbers(values: Numbers, type_: pa.DataType, absent: BoolArray | None) -> pa.Array:
    data = np.ascontiguousarray(values, np.dtype(str(type_)))
    if pa.types.is_boolean(type_):
        data = np.packbits(data, bitorder="little")
    return pa.Array.from_buffers(type_, len(values), [_valid(absent), pa.py_buffer(data)])


def _texts(texts: Texts, type_: pa.DataType) -> pa.Array:
    """Return text; what is no text, as half of a surrogate pair, as a question mark."""
    encoded = [b"" if text is None else text.encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if not pa.types.is_large_string(type_):
        ends = ends.astype(np.int32)
    absent = np.array([text is None for text in texts], np.bool_)
    buffers = [_valid(absent), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(type_, len(encoded), buffers)


def _hex(values: Hex) -> pa.Array:
    count, digits = len(values.words[0]), 16 * len(values.words)
    text = hexlify(np.stack(values.words, axis=1).astype(">u8").tobytes())
    ends = np.arange(count + 1, dtype=np.int64) * digits
    buffers = [_valid(values.absent), pa.py_buffer(ends), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), count, buffers)


def _valid(absent: BoolArray | None) -> Any:
    """Return the bits of what is not ``absent``; None where nothing is."""
    if absent is None or not absent.any():
        return None
    return pa.py_buffer(np.packbits(~absent, bitorder="little"))
