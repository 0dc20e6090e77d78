# SPDX-License-Identifier: Apache-2.0
"""Columns as Arrow arrays, of exactly the types of their schema. The one module here that loads pyarrow."""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from grademl_otel.analyzers.tables.schema import Column, TableSchema
from grademl_otel.analyzers.tables.values import Coded, Hex, Makers, Masked, Ready, Values

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
    if isinstance(values, Coded):
        codes = np.asarray(values.codes, np.int32)
        absent = codes < 0
        indices = pa.array(codes, mask=absent if absent.any() else None)
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(values.words), pa.string()))
    if isinstance(values, Hex):
        return _hex(values)
    if isinstance(values, Ready):
        return values.array
    if isinstance(values, Masked):
        return pa.array(values.numbers, type_, mask=values.absent if values.absent.any() else None)
    return pa.array(values, type_)


def _hex(values: Hex) -> pa.Array:
    count, digits = len(values.words[0]), 16 * len(values.words)
    text = hexlify(np.stack(values.words, axis=1).astype(">u8").tobytes())
    offsets = np.arange(count + 1, dtype=np.int64) * digits
    valid: Any = None
    if values.absent is not None and values.absent.any():
        valid = pa.py_buffer(np.packbits(~values.absent, bitorder="little").tobytes())
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text), valid)
